"""A machine says which status may follow which, and turns a record of one status into the record of the next.

It holds no state: the caller owns status and record, and `fire` either returns the next pair or raises, and then the
caller's pair stands as it was, because nothing but copies was ever handed out.
"""

import math
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, is_dataclass
from inspect import isawaitable
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel

from flow.errors import GuardRefused, MachineError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The form of statuses, triggers, steps and members."""

Record = TypeVar("Record")
Slot = Literal["guard", "on_exit", "on_entry"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What a step failed of, as data that survives its process.

    Attributes:
        step: the path of the step, its elements joined by `/`.
        error: the name of the exception's type.
        text: its words.
        attempts: how often an action was started, or None for never.
    """

    step: str
    error: str
    text: str
    attempts: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What a guard or an action is told besides the record (rule M13).

    Attributes:
        step: the path of the step that fires, outermost name first.
        key: 32 bytes, the same however often this very call is made: for deduplicating what it does outside.
        attempt: which start of the action this is, from 1.
        message: the step's message, or None for a step that sent none.
        failure: the failure that the step handles, as data; None if it handles none.
    """

    step: tuple[str, ...]
    key: bytes
    attempt: int = 1
    message: Any = None
    failure: Failure | None = None


Guard = Callable[[Any, Call], bool | Awaitable[bool]]
Action = Callable[[Any, Call], Any]


@dataclass(frozen=True, slots=True)
class Transition:
    """One row: in `source`, `trigger` leads to `target`.

    Attributes:
        guard: `guard(record, call) -> bool`, sync or async; False refuses the firing.
        on_exit: `action(record, call) -> record`, sync or async; first.
        on_entry: the same, on what `on_exit` left.
    """

    source: str
    trigger: str
    target: str
    guard: Guard | None = None
    on_exit: Action | None = None
    on_entry: Action | None = None

    @property
    def acts(self) -> bool:
        """Whether firing it may change the record."""
        return self.on_exit is not None or self.on_entry is not None


class Machine:
    """Statuses and the rows between them (rules M1 to M6).

    Args:
        initial: the status of a new record.
        rows: each a `Transition` or a tuple `(source, trigger, target)`.

    Raises:
        MachineError: naming the row, if it is none, moves nowhere, repeats a (source, trigger) or cannot be reached;
            or if there is no row at all.
    """

    def __init__(self, initial: str, rows: Iterable[Transition | tuple[str, str, str]]) -> None:
        if isinstance(rows, str):
            raise MachineError(f"rows are the text {rows!r}: give a list of rows", code="machine.rows")
        self.initial: Final = initial
        self.rows: Final = tuple(_row(row) for row in rows)
        if not self.rows:
            raise MachineError(f"no row leaves {initial!r}: give at least one", code="machine.rows")
        self._check()
        self.statuses: Final = frozenset({initial, *(row.target for row in self.rows)})
        self._between: Final[dict[tuple[str, str], tuple[Transition, ...]]] = {}
        for row in self.rows:
            self._between[row.source, row.target] = (*self.rows_to(row.source, row.target), row)

    def _check(self) -> None:
        names = [(number, n) for number, row in enumerate(self.rows) for n in (row.source, row.trigger, row.target)]
        for number, name in [(None, self.initial), *names]:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise MachineError(
                    f"{name!r} is no name for a status or trigger: {NAME.pattern}", code="machine.name", row=number
                )
        seen: dict[tuple[str, str], str] = {}
        for number, row in enumerate(self.rows):
            if row.source == row.target:
                raise MachineError(f"{_shown(row)} stays where it is: remove it", code="machine.self_loop", row=number)
            if (row.source, row.trigger) in seen:
                other = seen[row.source, row.trigger]
                raise MachineError(
                    f"{_shown(row)}: this trigger already leads to {other!r}", code="machine.duplicate", row=number
                )
            seen[row.source, row.trigger] = row.target
        reached = self._reached()
        for number, row in enumerate(self.rows):
            if row.source not in reached:
                raise MachineError(
                    f"{_shown(row)}: {row.source!r} cannot be reached from {self.initial!r}",
                    code="machine.unreachable",
                    row=number,
                )

    def _reached(self) -> set[str]:
        leaves = defaultdict(list)
        for row in self.rows:
            leaves[row.source].append(row.target)
        reached, left = {self.initial}, [self.initial]
        while left:
            new = set(leaves[left.pop()]) - reached
            reached |= new
            left += new
        return reached

    def rows_to(self, status: str, target: str) -> tuple[Transition, ...]:
        """The rows that lead from one status to the other: none, one, or several with different triggers."""
        return self._between.get((status, target), ())

    async def fire(
        self, status: str, record: Record, row: Transition, call: Callable[[Slot], Call]
    ) -> tuple[str, Record]:
        """Take one row: guard, then on_exit, then on_entry (rules M7 to M12).

        Args:
            status: where the record stands.
            record: a pydantic model, a dataclass or JSON data; never changed.
            row: one of this machine's rows, leaving `status`.
            call: gives what each of the three is told; their keys differ.

        Returns:
            The row's target and the new record, of the same type, which shares nothing with the old one.

        Raises:
            GuardRefused: the guard said no.
            MachineError: the row does not leave `status`; the record, or what an action returned, is no record of
                this run; the guard returned something else than True or False.
            Exception: whatever a guard or an action raised, as it was.
        """
        if row not in self.rows_to(status, row.target):
            raise MachineError(f"{_shown(row)} does not leave {status!r} in this machine", code="machine.row")
        check_record(record)
        if row.guard is not None:
            allowed = await _called(row.guard, record, call("guard"))
            if not isinstance(allowed, bool):
                raise MachineError(
                    f"guard of {_shown(row)} returned {allowed!r}: return True or False", code="machine.guard"
                )
            if not allowed:
                raise GuardRefused(f"guard of {_shown(row)} said no: the record is not ready for {row.target!r}")
        fired = record
        actions: tuple[tuple[Slot, Action | None], ...] = (("on_exit", row.on_exit), ("on_entry", row.on_entry))
        for slot, action in actions:
            if action is not None:
                fired = await _called(action, fired, call(slot))
                if type(fired) is not type(record):
                    raise MachineError(
                        f"{slot} of {_shown(row)} returned {type(fired).__name__}, not {type(record).__name__}: "
                        "return the record",
                        code="machine.action",
                    )
                check_record(fired)
        return row.target, deepcopy(fired)


def check_record(record: object) -> None:
    """Refuse what cannot be written down and read back: all but pydantic models, dataclasses and JSON data (rule M11).

    Raises:
        MachineError: naming the type that is none of these (code `machine.record`).
    """
    if isinstance(record, BaseModel) or (is_dataclass(record) and not isinstance(record, type)):
        return
    try:
        odd = _no_json(record)
    except RecursionError:
        odd = "data nested without end"
    if odd:
        raise MachineError(
            f"the record holds {odd}: use a pydantic model, a dataclass or JSON data", code="machine.record"
        )


def _no_json(value: object) -> str | None:
    if value is None or type(value) in (bool, int, str):
        return None
    if type(value) is float:
        return None if math.isfinite(value) else repr(value)
    if type(value) is list:
        return next(filter(None, map(_no_json, value)), None)
    if type(value) is dict:
        odd = next((repr(key) for key in value if type(key) is not str), None)
        return f"the key {odd}" if odd else next(filter(None, map(_no_json, value.values())), None)
    return f"a {type(value).__name__}"


def _row(row: object) -> Transition:
    if isinstance(row, Transition):
        return row
    if isinstance(row, tuple) and len(row) == 3:
        return Transition(*row)
    raise MachineError(f"{row!r} is no row: give (source, trigger, target) or a Transition", code="machine.rows")


def _shown(row: Transition) -> str:
    return f"({row.source!r}, {row.trigger!r}) -> {row.target!r}"


async def _called(function: Callable[[Any, Call], Any], record: Any, call: Call) -> Any:
    result = function(deepcopy(record), call)
    return await result if isawaitable(result) else result
