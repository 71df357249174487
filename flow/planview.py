"""Plan documents as a person reads them: a table, a Mermaid flowchart, or JSON.

Everything that comes from a document is escaped: it cannot move a cursor, hide or reorder text, nor leave the quotes
that a flowchart puts around it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from rich.cells import cell_len, chop_cells
from rich.text import Text

from envelope import address, address_text
from envelope.cbor import decode
from envelope.show import escape, short
from flow.document import CAPS, PlanDocument, RowEntry, StepEntry, read_document
from flow.errors import FlowError, PlanError

_WIDEST: Final = 48
_HEADS: Final = ("step", "needs", "when", "to", "gate", "target", "says", "besides")
_PLAIN: Final = re.compile(r"[A-Za-z0-9 .,:/_()=+-]")


@dataclass(frozen=True, slots=True)
class Exported:
    """A document and the file that it was read from."""

    path: Path
    data: bytes
    document: PlanDocument

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read one file.

        Raises:
            FlowError: it cannot be read (code `plan.file`).
            PlanError: it holds no plan document (code `plan.document`).
        """
        try:
            with path.open("rb") as file:
                data = file.read(CAPS.bytes + 1)
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise FlowError(f"{path}: {why}: give an exported plan document", code="plan.file") from None
        return cls.of(path, data)

    @classmethod
    def of(cls, path: Path, data: bytes) -> Self:
        """Read what a file holds.

        Raises:
            PlanError: it is no plan document (code `plan.document`).
        """
        if data[:1] == b"\xd2":
            raise PlanError(
                f"{path}: these are envelopes, no plan document: give the file that holds the plan, and the thread to "
                "`envelope show`",
                code="plan.document",
            )
        try:
            return cls(path, data, read_document(data))
        except PlanError as error:
            raise PlanError(f"{path}: {error.args[0]}", code=error.code) from None

    @property
    def address(self) -> bytes:
        """What an `open`, or the step above a sub-plan, names it by."""
        return address(self.data)


def as_json(found: Exported) -> dict[str, Any]:
    """The document as JSON data, with addresses as text."""
    return {
        "file": str(found.path),
        "address": address_text(found.address),
        "document": _with_texts(decode(found.data, CAPS)),
    }


def _with_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item) for item in value]
    return address_text(value) if isinstance(value, bytes) else value


# The table


def as_table(found: Exported, among: Sequence[Exported]) -> Iterator[Text]:
    """Yield the document, a line at a time; sub-plans are looked up among the others."""
    document = found.document
    head = Text(f"{escape(str(found.path))}: ").append(address_text(found.address), "bold")
    yield head
    if document.machine is None:
        above = [step.id for other in among for step in other.document.plan if step.sub == found.address]
        yield Text("  a sub-plan" + (f", of {', '.join(map(escape, above))}" if above else ""))
    panels = {name: number for number, panel in enumerate(document.panels, 1) for name in panel.steps}
    rows = [_HEADS, *(_cells(step, panels) for step in document.plan)]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(_HEADS))]
    for number, row in enumerate(rows):
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        yield Text(("  " + "  ".join(cells)).rstrip(), "" if number else "bold")
    for number, panel in enumerate(document.panels, 1):
        reducer = f", made one by {panel.reducer}()" if panel.reducer else ""
        yield Text(f"  panel {number}: {escape(', '.join(panel.steps))}{escape(reducer)}")
    if document.machine is not None:
        yield Text(f"  machine, from {escape(document.machine.initial)}:")
        for transition in document.machine.rows:
            yield Text(f"    {escape(_row(transition))}")
        yield Text(f"  judge {escape(document.judge or '')}()")
    if document.limits is not None:
        caps = document.limits
        yield Text(f"  limits: {caps.bytes or 'any'} bytes, {caps.messages or 'any'} messages")
    known = {other.address for other in among}
    for missing in dict.fromkeys(step.sub for step in document.plan if step.sub and step.sub not in known):
        yield Text(f"  sub-plan {address_text(missing)} is in none of the files", "yellow")


def _cells(step: StepEntry, panels: Mapping[str, int]) -> tuple[str, ...]:
    return (
        escape(step.id),
        escape(", ".join(step.needs)),
        "" if step.when == "succeeded" else step.when,
        escape(", ".join(step.to)) if step.to or step.gate == "none" else "every peer",
        step.gate,
        f"ends of {short(step.sub)}" if step.sub else escape(step.target or ""),
        _says(step),
        escape(", ".join(_besides(step, panels))),
    )


def _says(step: StepEntry) -> str:
    if step.payload is None:
        return f"{escape(step.payload_from)}()" if step.payload_from else ""
    return '"' + _cut(escape(step.payload).replace('"', '\\"')) + '"'


def _cut(text: str) -> str:
    return text if cell_len(text) <= _WIDEST else chop_cells(text, _WIDEST - 1)[0] + "…"


def _besides(step: StepEntry, panels: Mapping[str, int]) -> Iterator[str]:
    if step.id in panels:
        yield f"panel {panels[step.id]}"
    if step.route is not None:
        yield f"route {step.route}()"
    if (retry := step.retry) is not None:
        waits = f", {_seconds(retry.delay_ms)} x{retry.factor_percent / 100:g} to {_seconds(retry.longest_ms)}"
        jitter = f" +-{retry.jitter_percent}%" if retry.jitter_percent else ""
        yield f"{retry.attempts} attempts{waits if retry.delay_ms else ''}{jitter if retry.delay_ms else ''}"
    if step.loop is not None:
        yield f"up to {step.loop.max} rounds while {step.loop.guard}()"
    if step.once:
        yield "once"
    if step.capability is not None:
        yield f"capability {step.capability}"
    if step.ack_timeout_ms is not None:
        yield f"acks within {_seconds(step.ack_timeout_ms)}"
    if step.corrections != 1:
        yield f"{step.corrections} corrections"


def _seconds(ms: int) -> str:
    whole, rest = divmod(ms, 1000)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".") + " s"


def _row(row: RowEntry) -> str:
    code = [f"{slot} {name}()" for slot in ("guard", "on_exit", "on_entry") if (name := getattr(row, slot))]
    return f"{row.source} -> {row.target} on {row.trigger}" + (f" ({', '.join(code)})" if code else "")


# The flowchart


def as_mermaid(plans: Sequence[Exported]) -> Iterator[str]:
    """Yield a Mermaid flowchart, a line at a time: steps with their needs, panels and sub-plans as subgraphs."""
    yield "flowchart TD"
    places = {found.address: number for number, found in reversed(list(enumerate(plans)))}
    for number, found in enumerate(plans):
        if places[found.address] != number:
            continue  # the same document once more
        yield f"  subgraph p{number}[{_label([address_text(found.address)])}]"
        yield from _chart(found.document, f"p{number}")
        yield "  end"
    for number, found in enumerate(plans):
        for place, step in enumerate(found.document.plan):
            if step.sub in places and places[found.address] == number:
                yield f"  p{number}s{place} -.-o|{_label(_loop(step))}| p{places[step.sub]}"


def _chart(document: PlanDocument, prefix: str) -> Iterator[str]:
    nodes = {step.id: f"{prefix}s{place}" for place, step in enumerate(document.plan)}
    boxes = {step.id: f"    {nodes[step.id]}[{_label(_box(step))}]" for step in document.plan}
    for number, panel in enumerate(document.panels):
        label = ["panel", *([f"reducer {panel.reducer}()"] if panel.reducer else [])]
        yield f"    subgraph {prefix}g{number}[{_label(label)}]"
        for name in panel.steps:
            yield "  " + boxes.pop(name)
        yield "    end"
    yield from boxes.values()
    routes = {step.id: step.route for step in document.plan}
    for step in document.plan:
        for need in step.needs:
            words: list[str] = [] if step.when == "succeeded" else [step.when]
            if step.when != "failed" and (route := routes[need]):
                words.append(f"if {route}() names it")
            arrow = "-.->" if step.when == "failed" else "-->"
            yield f"    {nodes[need]} {arrow}{f'|{_label(words)}|' if words else ''} {nodes[step.id]}"


def _box(step: StepEntry) -> Iterator[str]:
    yield step.id
    yield f"sub-plan {short(step.sub)}" if step.sub else f"to {step.target}"
    if said := _says(step):
        yield said
    if step.gate == "after":
        yield "gate after"


def _loop(step: StepEntry) -> list[str]:
    return ["sub-plan", *([f"up to {step.loop.max} rounds"] if step.loop else [])]


def _label(lines: Iterable[str]) -> str:
    """Quote lines as one label: but for plain characters everything stands as its code, so nothing ends the quotes."""
    coded = ("".join(char if _PLAIN.fullmatch(char) else f"#{ord(char)};" for char in line) for line in lines)
    return '"' + "<br/>".join(coded) + '"'
