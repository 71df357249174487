"""What is wrong with an agent document, each fault with its line, in words that say what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flow.errors import FlowError, MachineError, PlanError
from flow.tomlplaces import KeyPath
from flow.validation import Severity

_LONGEST_SHOWN: Final = 60
_MOST_LISTED: Final = 20
_TREES: Final[Mapping[str, type[FlowError]]] = {"plan": PlanError, "machine": MachineError}

_WORDS: Final = {
    "Input should be ": "",
    "String should match pattern": "a text of the form",
    "String should have": "a text of",
    "a valid dictionary": "a table",
    "a valid tuple": "a list",
    "a valid string": "a text",
    "a valid integer": "a whole number",
    "a valid ": "a ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""What pydantic says, and how it is said of a TOML document."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a document.

    Attributes:
        code: stable: `agent.*`, or that of the error which a plan, a machine or a run would end in.
        file: the document.
        line: from 1; None where it is of no line.
        text: what is wrong, in which field, and what to do.
        severity: with an `error` no run can begin; a `warning` is what only some runs would meet.
        step: the id or path of the step concerned, or None.
    """

    code: str
    file: Path
    line: int | None
    text: str
    severity: Severity = "error"
    step: str | None = None

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f', line {self.line}'}: {self.text}"

    def error(self, more: int = 0) -> FlowError:
        """The fault as an error of its tree.

        Args:
            more: how many errors there are besides.
        """
        others = f" (and {more} more: `flow check` shows all)" if more else ""
        error = _TREES.get(self.code.partition(".")[0], FlowError)(f"{self}{others}", code=self.code)
        error.step = self.step
        return error


class Faults:
    """The faults of one document, as they are found.

    Args:
        file: the document.

    Attributes:
        lines: where its keys stand, once that is known (`flow.tomlplaces.places`).
        tables: what it says, as `tomllib` reads it.
    """

    def __init__(self, file: Path) -> None:
        self.file: Final = file
        self.found: Final[list[Fault]] = []
        self.lines: Mapping[KeyPath, int] = {}
        self.tables: Mapping[str, Any] = {}

    @property
    def errors(self) -> list[Fault]:
        """Those with which no run can begin."""
        return [fault for fault in self.found if fault.severity == "error"]

    def check(self) -> None:
        """Raise the first error, if there is one."""
        if errors := self.errors:
            raise errors[0].error(len(errors) - 1)

    def note(
        self, code: str, where: KeyPath, text: str, *, severity: Severity = "error", step: str | None = None
    ) -> None:
        """Note a fault at the line of a key, or of the nearest one around it that has a line."""
        around = (where[:length] for length in range(len(where), 0, -1))
        line = next((self.lines[path] for path in around if path in self.lines), None)
        self.found.append(Fault(code, self.file, line, text, severity, step))

    def note_field(self, code: str, where: KeyPath, text: str, *, severity: Severity = "error") -> None:
        """Note what is wrong with a field, which the text names."""
        self.note(code, where, f"{named(where, self.tables)}: {text}" if where else text, severity=severity)

    def note_error(self, error: FlowError, where: KeyPath) -> None:
        """Note what building a part of the document raised; many a code ends with the name of the field."""
        field = (*where, error.code.rpartition(".")[2])
        self.note(error.code, field, str(error.args[0]), step=error.step)

    def note_fields(self, error: ValidationError, model: type[BaseModel]) -> None:
        """Note every field that is not what its table holds (code `agent.field`)."""
        for entry in error.errors(include_url=False, include_context=False):
            where = tuple(part for part in entry["loc"] if part != "[key]")
            self.note_field("agent.field", where, _told(entry, where, model))


def named(where: KeyPath, tables: Any) -> str:
    """Say where a field is: keys with dots between, a step by its id, any other element by its number from 1."""
    said = ""
    for part in where:
        tables = _inside(tables, part)
        if isinstance(part, str):
            key = part if part.isascii() and part.replace("-", "_").isidentifier() else shown(part)
            said += f".{key}" if said else key
        else:
            name = tables.get("id") if isinstance(tables, dict) else None
            said += f"[{shown(name) if isinstance(name, str) else part + 1}]"
    return said


def close(name: str, known: Iterable[str]) -> str:
    """Say which names are close to one that is unknown, or else which there are."""
    names = sorted(known)
    if near := get_close_matches(name, names, 3):
        return f"did you mean {' or '.join(map(shown, near))}?"
    more = "…" if len(names) > _MOST_LISTED else ""
    return f"there are {', '.join(map(shown, names[:_MOST_LISTED]))}{more}" if names else "there is none"


def shown(value: object) -> str:
    """Return how a value is quoted in a text: cut, and never a secret key that got where it does not belong."""
    text = repr(value)
    if "PRIVATE KEY" in text:
        return "a private key"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _inside(tables: Any, part: str | int) -> Any:
    try:
        return tables[part]
    except (LookupError, TypeError):
        return None


def _told(entry: ErrorDetails, where: KeyPath, model: type[BaseModel]) -> str:
    """Return what is wrong with a field, what stands there, and what is expected."""
    if entry["type"] == "extra_forbidden":
        table = _model(model, where[:-1])
        return f"no such field; {close(str(where[-1]), table.model_fields if table else ())}"
    description = _description(model, where)
    if entry["type"] == "missing":
        return f"it is missing. {description}".rstrip()
    due = entry["msg"]
    for pydantic, toml in _WORDS.items():
        due = due.replace(pydantic, toml)
    return f"{shown(entry['input'])} stands here: give {due}. {description}".rstrip()


def _model(model: type[BaseModel], where: KeyPath) -> type[BaseModel] | None:
    """Return the model of the table at a path."""
    found: type[BaseModel] | None = model
    named_by_key = False
    for part in where:
        if found is None or isinstance(part, int) or named_by_key:
            named_by_key = False
            continue
        field = found.model_fields.get(part)
        found = None if field is None else _within(field.annotation)
        named_by_key = field is not None and "dict[" in str(field.annotation)
    return found


def _within(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field's type names, in whatever it is wrapped."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_within, get_args(annotation))), None)


def _description(model: type[BaseModel], where: KeyPath) -> str:
    """Return what the field is for."""
    while where and isinstance(where[-1], int):
        where = where[:-1]
    table = _model(model, where[:-1]) if where else None
    field = table.model_fields.get(str(where[-1])) if table else None
    return (field.description or "") if field else ""
