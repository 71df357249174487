"""The commands on a store of threads: what is in it, what an auditor gets of it, what it takes in."""

import json
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import typer
from rich.text import Text

from envelope import EnvelopeError, TrustStore, Verifier, address_text, open_envelope, verify_file
from envelope.cose import split
from envelope.show import Timeline, escape, print_lines, render_thread, say, short, terminal_width, utc
from envelope.threadfile import read_records, write_records
from flow.errors import FlowError, StoreError
from flow.store import SqliteStore

T = TypeVar("T")

StoreOption = Annotated[Path, typer.Option("--store", help="The store's file.")]

STORE = Path("threads.db")
_TRUST = Path("trust.toml")
IMPORT_CODES = "Exit codes: 0 done; 1 the thread in the file is not valid; 2 usage, unreadable, or refused."

_RECEIPTS = ("ack", "ruling")
_HEADINGS = ("NAME", "STATE", "RECORDS", "MESSAGES", "PENDING", "LAST", "TIP")
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Summary:
    """A thread as a store holds it, judged by nobody.

    Attributes:
        name: in the store.
        thread: its address; tip: that of its last chain record.
        outcome: the seal's, or None while it is open.
        records, messages: how many there are.
        pending: how many receipts no chain record has committed.
        sent_at: the last record's, in ms since the epoch.
    """

    name: str
    thread: bytes
    tip: bytes
    outcome: str | None
    records: int
    messages: int
    pending: int
    sent_at: int

    @classmethod
    def of(cls, name: str, records: Sequence[bytes]) -> "Summary":
        """Return what is to be said of a thread's records.

        Raises:
            EnvelopeError: they are no envelopes.
        """
        kinds = [split(raw).kind for raw in records]
        pending = next(count for count, kind in enumerate(reversed(kinds)) if kind not in _RECEIPTS)
        first, tip, last = (open_envelope(records[place]) for place in (0, len(records) - 1 - pending, -1))
        outcome = tip.record.outcome if tip.kind == "seal" else None
        count = (len(records), kinds.count("message"), pending)
        return cls(name, first.address, tip.address, outcome, *count, last.record.sent_at)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, as `flow threads --json` prints it."""
        addresses = {"thread": address_text(self.thread), "tip": address_text(self.tip)}
        return {**asdict(self), **addresses, "state": "sealed" if self.outcome else "open"}

    def cells(self) -> tuple[str, ...]:
        """Return it as texts, one for each heading."""
        state = f"sealed {self.outcome}" if self.outcome else "open"
        counts = (f"{count:,}" for count in (self.records, self.messages, self.pending))
        return (escape(_clipped(self.name)), state, *counts, utc(self.sent_at), short(self.tip))


def threads(
    store: StoreOption = STORE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line for each thread.")] = False,
) -> None:
    """List the threads of a store: open or how they were sealed, how long they are, when they last grew.

    PENDING are the receipts that the next record will commit. It says what the store holds; what it is worth, `envelope
    verify` tells of an exported thread.
    """
    found = in_store(store, _summaries)
    summaries = [summary for summary in found if isinstance(summary, Summary)]
    if as_json:
        for summary in summaries:
            say(json.dumps(summary.as_json(), ensure_ascii=True))
    elif summaries:
        print_lines(_table([_HEADINGS, *(summary.cells() for summary in summaries)]))
    elif not found:
        say(f"{escape(str(store))} holds no thread")
    if damaged := [text for text in found if isinstance(text, str)]:
        for text in damaged:
            typer.echo(escape(f"error: {text}"), err=True)
        raise typer.Exit(2)


def export(
    name: Annotated[str, typer.Argument(help="The thread's name in the store.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The thread file to write.")],
    store: StoreOption = STORE,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a thread to the file that an auditor gets, as a whole or not at all."""
    records = in_store(store, lambda opened: opened.read(name))
    if out.is_dir():
        raise FlowError(f"{out} is a folder: name the file in --out", code="export.exists")
    if out.exists() and not force:
        raise FlowError(f"{out} exists: choose another --out, or replace it with --force", code="export.exists")
    write_records(out, records, replace=force)
    say(escape(f"{len(records)} records, {sum(map(len, records))} bytes, written to {out}. Verify them:"))
    say(f"  {verify_command(out, _TRUST if _TRUST.exists() else None)}")


def show(
    name: Annotated[str, typer.Argument(help="The thread's name in the store.")],
    store: StoreOption = STORE,
    trust: Annotated[Path | None, typer.Option("--trust", help="A trust.toml that names the keys you trust.")] = None,
) -> None:
    """Show a stored thread as a timeline, with the verdict on top, as `envelope show` does of an exported one."""
    known = TrustStore.load(trust) if trust else None
    timeline = Timeline(known, terminal_width())
    verifier = Verifier(trust=known, observe=timeline.observe)
    for raw in in_store(store, lambda opened: opened.read(name)):
        verifier.feed(raw)
    verdict = verifier.finish()
    print_lines(render_thread(name, verdict, timeline))
    raise typer.Exit(verdict.exit_code)


def import_(
    path: Annotated[Path, typer.Argument(help="A thread file.")],
    store: StoreOption = STORE,
    name: Annotated[str | None, typer.Option("--name", help="The name in the store; by default the thread's.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the store if it is not there.")] = False,
) -> None:
    """Verify a thread file as a whole, and take it into a store, in one transaction.

    A thread that the store holds as far as it goes is extended; one that it holds already is left alone. Refused are an
    invalid thread, a name that another thread has, and a copy that lacks records of the store or goes on differently.
    """
    verdict = verify_file(path, trust=None)
    if verdict.integrity != "valid":
        finding = verdict.findings[0]
        where = "" if finding.index is None else f" at record {finding.index}"
        typer.echo(escape(f"error: {path} is {verdict.integrity}: {finding.code}{where}: {finding.text}"), err=True)
        typer.echo("Nothing was taken in. Ask the sender for the file again.", err=True)
        raise typer.Exit(1)
    records = [raw for _, raw in read_records(path)]
    under = name or verdict.name or ""
    held, head = in_store(store, lambda opened: _adopted(opened, under, records), create=create)
    new = len(records) - held
    what = f"taken in as {under!r}" if not held else "added" if new else f"new: {under!r} is as the file has it"
    say(escape(f"{new} records {what}; the tip is {address_text(head)}"))


def opened_store(path: Path, create: bool | None = None) -> SqliteStore:
    """Return the store in a file.

    Args:
        path: of the file.
        create: whether a file that is not there is made; None where the command has no option for that.

    Raises:
        FlowError: `store.unreadable`, there is no such file, and none is to be made.
    """
    if not create and not path.exists():
        other = "" if create is None else ", or have it made with --create"
        raise FlowError(f"{path}: there is no such store: name it with --store{other}", code="store.unreadable")
    return SqliteStore(path, create=bool(create))


def export_command(name: str, store: Path) -> str:
    """Return the command that writes a thread of a store to a file."""
    return f"flow export {shlex.quote(name)} -o {shlex.quote(name)}.thread --store {shlex.quote(str(store))}"


def verify_command(thread: Path, trust: Path | None = None) -> str:
    """Return the command that verifies a thread file, ready to be printed and copied to a shell."""
    beside = Path(sys.executable).with_name("envelope")
    command = "envelope" if shutil.which("envelope") or not beside.exists() else _quoted(beside)
    return f"{command} verify {_quoted(thread)}" + (f" --trust {_quoted(trust)}" if trust else "")


async def _summaries(store: SqliteStore) -> list[Summary | str]:
    """Return each thread's summary, or what is wrong with it."""
    found: list[Summary | str] = []
    for name in await store.names():
        try:
            found.append(Summary.of(name, await store.read(name)))
        except (EnvelopeError, StoreError) as error:
            found.append(f"{_clipped(name)}: {error}")
    return found


async def _adopted(store: SqliteStore, name: str, records: Sequence[bytes]) -> tuple[int, bytes]:
    """Take a thread in; return how many of its records the store had, and the tip."""
    try:
        held = len(await store.read(name))
    except StoreError as error:
        if error.code != "store.unknown":
            raise
        held = 0
    return held, (await store.adopt(name, records)).tip


def in_store(path: Path, work: Callable[[SqliteStore], Awaitable[T]], *, create: bool | None = None) -> T:
    """Do something with the store in a file; raises as of `opened_store`, and whatever the store does."""

    async def done() -> T:
        async with opened_store(path, create) as store:
            return await work(store)

    return anyio.run(done)


def _table(rows: Sequence[Sequence[str]]) -> list[Text]:
    widths = [max(Text(row[column]).cell_len for row in rows) for column in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        line = Text(style="bold" if number == 0 else "")
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            text = Text(cell)
            text.align("right" if column in (2, 3, 4) else "left", width)
            line.append_text(text).append("  ")
        line.rstrip()
        lines.append(line)
    return lines


def _clipped(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _quoted(path: Path) -> str:
    return escape(shlex.quote(str(path)))
