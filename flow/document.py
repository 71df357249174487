"""The canonical documents of a plan (rules P17 to P19, P36 to P39): a run signs the address of one, people read them.

The main document holds the plan with machine, limits and judge; each plan below it has a document of its own, and
stands in the others as its address, so that nesting costs no depth. A document holds names where code stands. Reading
one back builds the plan anew, with placeholders for code, so that exactly what a plan may be is read.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from envelope import EnvelopeError, address
from envelope.cbor import Caps, decode, encode
from flow.budget import Limits
from flow.errors import FlowError, PlanError
from flow.machine import Machine, Transition
from flow.plan import Gate, Loop, Panel, Plan, Retry, Step

_FUNCTION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

CAPS: Final = Caps(1 << 24, 1 << 20)
"""A document is no envelope, and may be larger: a plan may have tens of thousands of steps."""

Function = Callable[..., Any]
NO_NAMES: Final[Mapping[str, Function]] = MappingProxyType({})


def document(
    plan: Plan, machine: Machine, limits: Limits, judge: Function, names: Mapping[str, Function] = NO_NAMES
) -> bytes:
    """The main document of a plan, whose BLAKE3-256 is `open.plan`: the first of `documents`."""
    return next(iter(documents(plan, machine, limits, judge, names).values()))


def documents(
    plan: Plan, machine: Machine, limits: Limits, judge: Function, names: Mapping[str, Function] = NO_NAMES
) -> Mapping[bytes, bytes]:
    """All documents of a plan by their addresses: the main one, and then one for each plan below it.

    Args:
        names: a registry, under whose names functions stand; one that is not in it stands under its `__name__`.

    Raises:
        PlanError: a function has no usable name (a lambda), or two stand under one (code `plan.function`); a plan is
            too long for one document (code `plan.document`).
    """
    writer = _Writer(names)
    main = _encoded(
        {
            **writer.plan(plan),
            "machine": {"initial": machine.initial, "rows": [writer.row(row) for row in machine.rows]},
            **_present(limits=limits.document()),
            "judge": writer.name(judge),
        }
    )
    return MappingProxyType({address(main): main, **writer.below})


class _Writer:
    """Writes plans, each once, and the plans below them first; gives no two functions one name.

    Attributes:
        below: the documents of the plans below, by address.
    """

    def __init__(self, names: Mapping[str, Function], known: Mapping[Plan, bytes] = MappingProxyType({})) -> None:
        self.below: Final[dict[bytes, bytes]] = {}
        self._addresses: Final = dict(known)
        self._names = names
        self._bearers: Final[dict[str, Function]] = {}

    def plan(self, plan: Plan) -> dict[str, Any]:
        panels = [
            _present(steps=[step.id for step in unit.steps], reducer=self.name(unit.panel.reducer))
            for unit in plan.units
            if unit.panel is not None
        ]
        return _present(v=1, plan=[self._step(step) for step in plan.steps], panels=panels)

    def row(self, row: Transition) -> dict[str, Any]:
        return _present(
            source=row.source,
            trigger=row.trigger,
            target=row.target,
            guard=self.name(row.guard),
            on_exit=self.name(row.on_exit),
            on_entry=self.name(row.on_entry),
        )

    def name(self, function: Function | None) -> str | None:
        if function is None:
            return None
        registered = (name for name, known in self._names.items() if known == function)
        name = next(registered, None) or getattr(function, "__name__", None)
        if not isinstance(name, str) or not _FUNCTION.fullmatch(name):
            code = getattr(function, "__code__", None)
            place = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
            raise PlanError(
                f"{function!r}{place} has no name that a document can hold: use a def, or name it", code="plan.function"
            )
        if self._bearers.setdefault(name, function) != function:
            raise PlanError(f"two functions are called {name!r}: rename one", code="plan.function")
        return name

    def _step(self, step: Step) -> dict[str, Any]:
        return _present(
            id=step.id,
            target=step.target,
            sub=self._sub(step.sub),
            loop=None if step.loop is None else {"max": step.loop.max, "guard": self.name(step.loop.guard)},
            needs=sorted(step.needs),
            when=None if step.when == "succeeded" else step.when,
            to=sorted(step.to),
            payload=step.payload,
            payload_from=self.name(step.payload_from),
            capability=step.capability,
            gate=step.gate,
            route=self.name(step.route),
            retry=None if step.retry is None else _retry(step.retry),
            ack_timeout_ms=None if step.ack_timeout is None else _parts(step.ack_timeout, 1000),
            corrections=step.corrections,
            once=step.once or None,
        )

    def _sub(self, plan: Plan | None) -> bytes | None:
        if plan is None:
            return None
        if plan not in self._addresses:
            data = _encoded(self.plan(plan))
            self._addresses[plan] = address(data)
            self.below[address(data)] = data
        return self._addresses[plan]


def _retry(retry: Retry) -> dict[str, int]:
    return {
        "attempts": retry.attempts,
        "delay_ms": _parts(retry.delay, 1000),
        "factor_percent": _parts(retry.factor, 100),
        "longest_ms": _parts(retry.longest, 1000),
        "jitter_percent": retry.jitter,
    }


def _parts(value: float, parts: int) -> int:
    return round(value * parts)


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _encoded(fields: dict[str, Any]) -> bytes:
    try:
        return encode(fields, CAPS)
    except EnvelopeError as error:
        raise PlanError(
            f"the plan is too long for one document ({error}): move steps into a sub-plan", code="plan.document"
        ) from error


# Reading


class _Map(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


_Names = Annotated[tuple[str, ...], Strict(False)]


class RetryEntry(_Map):
    """Times in whole milliseconds; the factor in hundredths, so that 200 doubles."""

    attempts: int
    delay_ms: int
    factor_percent: int
    longest_ms: int
    jitter_percent: int


class LoopEntry(_Map):
    """Rounds at most, and the name of the guard."""

    max: int
    guard: str


class StepEntry(_Map):
    """A step: names for code, an address for a sub-plan, times in whole milliseconds."""

    id: str
    target: str | None = None
    sub: Annotated[bytes, Field(min_length=32, max_length=32)] | None = None
    loop: Annotated[LoopEntry, Strict(False)] | None = None
    needs: _Names = ()
    when: Literal["succeeded", "finished", "failed"] = "succeeded"
    to: _Names = ()
    payload: str | None = None
    payload_from: str | None = None
    capability: str | None = None
    gate: Gate
    route: str | None = None
    retry: Annotated[RetryEntry, Strict(False)] | None = None
    ack_timeout_ms: int | None = None
    corrections: int
    once: bool = False


class PanelEntry(_Map):
    """The steps of a panel, and the name of its reducer."""

    steps: _Names
    reducer: str | None = None


class RowEntry(_Map):
    """A row of the machine, with the names of guard and actions."""

    source: str
    trigger: str
    target: str
    guard: str | None = None
    on_exit: str | None = None
    on_entry: str | None = None


class MachineEntry(_Map):
    """The machine's initial status and rows."""

    initial: str
    rows: Annotated[tuple[Annotated[RowEntry, Strict(False)], ...], Strict(False)]


class LimitsEntry(_Map):
    """The caps that there are."""

    bytes: int | None = None
    messages: int | None = None


class PlanDocument(_Map):
    """What a document says. That of a sub-plan has no machine, limits and judge: those are the main document's."""

    v: Annotated[int, Field(ge=1, le=1)]
    plan: Annotated[tuple[Annotated[StepEntry, Strict(False)], ...], Strict(False)]
    panels: Annotated[tuple[Annotated[PanelEntry, Strict(False)], ...], Strict(False)] = ()
    machine: Annotated[MachineEntry, Strict(False)] | None = None
    limits: Annotated[LimitsEntry, Strict(False)] | None = None
    judge: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.machine is None) != (self.judge is None) or (self.machine is None and self.limits is not None):
            raise ValueError("machine and judge stand together, and limits only with them")
        return self


def read_document(data: bytes) -> PlanDocument:
    """Read a document strictly: a plan that can be built, written as `documents` writes it (rules P38, P39).

    Raises:
        PlanError: what is wrong and where (code `plan.document`).
    """
    try:
        fields = decode(data, CAPS)
        found = PlanDocument.model_validate(fields)
        again = _written(found)
    except EnvelopeError as error:
        raise _unreadable(str(error)) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise _unreadable(f"{where}: {first['msg']}") from None
    except FlowError as error:
        raise _unreadable(str(error)) from None
    if again != fields:
        where = next(key for key in [*again, *fields] if again.get(key) != fields.get(key))
        raise _unreadable(f"{where}: not written as it must be: lists in order, and defaults left out")
    return found


def _unreadable(text: str) -> PlanError:
    return PlanError(f"no plan document: {text}", code="plan.document")


def _written(found: PlanDocument) -> dict[str, Any]:
    """Build what the document says, with placeholders for code and sub-plans, and write that down again."""
    stand_in = _StandIns()
    plan = Plan(
        [_step(entry, stand_in) for entry in found.plan],
        [Panel(entry.steps, stand_in.function(entry.reducer)) for entry in found.panels],
    )
    writer = _Writer(NO_NAMES, {plan: address for address, plan in stand_in.plans.items()})
    written = writer.plan(plan)
    if found.machine is not None:
        rows = [
            Transition(
                row.source, row.trigger, row.target, *map(stand_in.function, (row.guard, row.on_exit, row.on_entry))
            )
            for row in found.machine.rows
        ]
        machine = Machine(found.machine.initial, rows)
        written["machine"] = {"initial": machine.initial, "rows": [writer.row(row) for row in machine.rows]}
        written["judge"] = writer.name(stand_in.function(found.judge))
    if found.limits is not None:
        caps = found.limits
        written |= _present(limits=Limits(caps.bytes or 0, caps.messages or 0).document())
    return written


def _step(entry: StepEntry, stand_in: "_StandIns") -> Step:
    retry, loop, timeout = entry.retry, entry.loop, entry.ack_timeout_ms
    return Step(
        entry.id,
        target=entry.target,
        needs=entry.needs,
        to=entry.to,
        payload=entry.payload,
        payload_from=stand_in.function(entry.payload_from),
        capability=entry.capability,
        gate=entry.gate,
        when=entry.when,
        route=stand_in.function(entry.route),
        retry=None
        if retry is None
        else Retry(
            retry.attempts,
            delay=retry.delay_ms / 1000,
            factor=retry.factor_percent / 100,
            longest=retry.longest_ms / 1000,
            jitter=retry.jitter_percent,
        ),
        loop=None if loop is None else Loop(loop.max, stand_in.function(loop.guard)),
        sub=None if entry.sub is None else stand_in.plan(entry.sub),
        ack_timeout=None if timeout is None else timeout / 1000,
        corrections=entry.corrections,
        once=entry.once,
    )


class _StandIns:
    """Functions that bear a name, and plans that stand for an address; neither is ever run."""

    def __init__(self) -> None:
        self.plans: Final[dict[bytes, Plan]] = {}
        self._functions: Final[dict[str, Function]] = {}

    def plan(self, address: bytes) -> Plan:
        return self.plans.setdefault(address, Plan([Step("elsewhere", target="elsewhere", gate="none")]))

    def function(self, name: str | None) -> Any:
        if name is None:
            return None

        def function() -> None: ...

        function.__name__ = name
        return self._functions.setdefault(name, function)
