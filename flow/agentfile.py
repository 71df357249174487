"""Agent documents: an agent described in a TOML file, bound to the code that the file only names.

The document is data. It says what is done, by whom and in which order; what a guard or an action does stands in a
program, which hands over a registry of its functions by name. Nothing is ever imported because a document says so.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from pydantic import ValidationError

from envelope import Identity
from flow.agent import Agent
from flow.agentcast import Load, Members
from flow.agentcode import Code, Registry, check_registry
from flow.agentfaults import Fault, Faults
from flow.agentplan import build_machine, build_plan, place_of
from flow.agenttables import AgentTables, LimitsTable
from flow.budget import Limits
from flow.errors import FlowError
from flow.job import Job
from flow.tomlplaces import KeyPath, places
from flow.validation import validate

MAX_BYTES: Final = 1 << 20
"""How large a document is at most; a larger one is not parsed."""

_JSON: Final = (bool, int, float, str)
_MOST_PARTS: Final = 32
_LONG_KEY: Final = re.compile(
    r"\.(?:[ \t]*(?:[A-Za-z0-9_-]+|\"(?:[^\"\\\n]|\\[^\n])*\"|'[^'\n]*')[ \t]*\.){" + str(_MOST_PARTS) + "}"
)
"""Keys of thousands of parts keep the parser busy for minutes."""


@dataclass(frozen=True, slots=True)
class AgentFile:
    """An agent document that is well formed; whether it can be run, `bind` says.

    Attributes:
        path: where it was read; what it names as a file is looked for from there.
        tables: what it says.
        lines: where each of its keys stands.
        source: what `tomllib` reads.
    """

    path: Path
    tables: AgentTables
    lines: Mapping[KeyPath, int] = field(repr=False)
    source: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a document of at most 1 MiB, strictly.

        Raises:
            FlowError: `agent.file`, it cannot be read or is no TOML; `agent.field`, a field is not what it must be. The
                text names the file, the line, the field, and what is expected there.
        """
        faults = Faults(Path(path))
        found = cls._read(faults)
        faults.check()
        assert found is not None
        return found

    @classmethod
    def _read(cls, faults: Faults) -> Self | None:
        text = _text(faults)
        return None if text is None else cls._parse(text, faults)

    @classmethod
    def _parse(cls, text: str, faults: Faults) -> Self | None:
        try:
            tables = tomllib.loads(text)
            faults.lines, faults.tables = places(text), tables
        except RecursionError:
            faults.note("agent.file", (), "it nests without end: flatten it")
            return None
        except ValueError as error:
            told = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
            if told:
                faults.lines = {("toml",): int(told[2])}
            reason = f"{told[1]}, at column {told[3]}" if told else str(error)
            faults.note("agent.file", ("toml",), f"no TOML: {reason}")
            return None
        for where, value in _values(tables):
            if why := _unfit(where, value):
                faults.note_field("agent.field", where, why)
        if faults.found:
            return None
        try:
            return cls(faults.file, AgentTables.model_validate(tables), faults.lines, tables)
        except ValidationError as error:
            faults.note_fields(error, AgentTables)
            return None

    def bind(self, registry: Registry, *, load: Load = Identity.load) -> Job:
        """Make a job of the document and the functions that it names.

        Args:
            registry: functions by name; more than the document names is fine.
            load: opens a key file; `envelope.unlock.unlock` asks for the passphrase of one that is encrypted.

        Raises:
            FlowError: the first thing that is wrong, with file and line: `agent.name`, `agent.key`, `agent.card`,
                `agent.peer`, `agent.plan`, `agent.field`, or the code of a plan, a machine or a record that is none.
        """
        check_registry(registry)
        faults = Faults(self.path)
        job, _ = self._build(registry, faults, load, connecting=True)
        faults.check()
        assert job is not None
        return job

    def _build(
        self, registry: Registry | None, faults: Faults, load: Load, *, connecting: bool
    ) -> tuple[Job | None, Code]:
        faults.lines, faults.tables = self.lines, self.source
        tables, code = self.tables, Code(registry, faults)
        machine, plan = build_machine(tables, code, faults), build_plan(tables, code, faults)
        if plan is not None and machine is not None and all(fault.code == "agent.name" for fault in faults.errors):
            for found in validate(plan, machine):
                place = place_of(tables, found.step)
                faults.note(found.code, place, found.text, severity=found.severity, step=found.step)
        judge = code.function(tables.judge, ("judge",))
        members = Members(tables, code, faults, load, connecting=connecting)
        owner, peers, approvers = members.owner(), members.peers(), members.approvers()
        if plan is None or machine is None or owner is None or faults.errors:
            return None, code
        caps = tables.limits or LimitsTable(max_bytes=0, max_messages=0, margin=0)
        try:
            job = Job(
                Agent(*owner, plan),
                machine,
                dict(tables.record),
                peers=peers,
                judge=judge,
                approvers=approvers,
                limits=Limits(caps.max_bytes, caps.max_messages, caps.margin),
                room=tables.room,
            )
            job.check()
        except FlowError as error:
            faults.note_error(error, self._place(error))
            return None, code
        except RecursionError:
            faults.note_field("machine.record", ("record",), "it nests without end: flatten it")
            return None, code
        return job, code

    def _place(self, error: FlowError) -> KeyPath:
        """Return where to look for what a run refuses before it begins."""
        if error.step is not None:
            return place_of(self.tables, error.step)
        return ("record",) if error.code == "machine.record" else ()


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of a document without running it.

    Attributes:
        faults: everything that is wrong, errors and warnings, in the order of the lines.
        uses: the names that a program must bind, with the fields that name them.
        job: what would be run, with peers elsewhere not connected and without a registry not runnable; None if there
            are errors.
    """

    faults: tuple[Fault, ...]
    uses: Mapping[str, list[str]]
    job: Job | None


def check(path: str | Path, registry: Registry | None = None, *, load: Load = Identity.load) -> Checked:
    """Find what is wrong with a document, without calling any code of the program's.

    Args:
        path: the document.
        registry: functions by name; without it every name counts as bound.
        load: opens a key file.

    Raises:
        FlowError: `agent.registry`, that is no registry.
    """
    if registry is not None:
        check_registry(registry)
    faults = Faults(Path(path))
    found = AgentFile._read(faults)
    if found is None:
        return _checked(faults)
    job, code = found._build(registry, faults, load, connecting=False)
    return _checked(faults, code.uses, job)


def _checked(faults: Faults, uses: Mapping[str, list[str]] = MappingProxyType({}), job: Job | None = None) -> Checked:
    return Checked(tuple(sorted(faults.found, key=lambda fault: fault.line or 0)), uses, job)


def _values(tables: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield everything that stands below some keys and is no table or array."""
    left: list[tuple[KeyPath, Any]] = [((), tables)]
    while left:
        where, value = left.pop()
        if isinstance(value, dict):
            left += (((*where, key), inner) for key, inner in reversed(value.items()))
        elif isinstance(value, list):
            left += (((*where, number), inner) for number, inner in reversed(list(enumerate(value))))
        else:
            yield where, value


def _unfit(where: KeyPath, value: Any) -> str | None:
    """Say why a value cannot stand in a document at all, if it cannot."""
    if type(value) is int and not -(2**63) <= value < 2**63:
        return "the number does not fit into 64 bits"
    if where[0] == "record" and (type(value) not in _JSON or (type(value) is float and not isfinite(value))):
        return f"{value} stands here: a record is JSON data, which has no dates and no such numbers; write a text"
    return None


def _text(faults: Faults) -> str | None:
    """Return what the file holds, if it is text that may be parsed."""
    try:
        with faults.file.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        faults.note("agent.file", (), f"{why}: give an agent document, such as agent.toml")
        return None
    if len(data) > MAX_BYTES:
        faults.note("agent.file", (), f"it is larger than {MAX_BYTES} bytes: move what is said into payload functions")
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        faults.lines = {("text",): data.count(b"\n", 0, error.start) + 1}
        faults.note("agent.file", ("text",), f"byte {error.start} is no UTF-8: save it as UTF-8")
        return None
    if match := _LONG_KEY.search(text):
        faults.lines = {("text",): text.count("\n", 0, match.start()) + 1}
        faults.note("agent.file", ("text",), f"more than {_MOST_PARTS} words with dots between: shorten that key")
        return None
    return text
