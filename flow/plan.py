"""A plan is data: steps, what each needs before it, when and how it is done, and which are done together.

Everything that can be refused without a machine is refused here, with the step named: by a `Step` what it says of
itself, by a `Plan` how steps fit together. How a plan fits a machine is `flow.validation`'s, the document that a run
signs `flow.document`'s.
"""

import heapq
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from inspect import isawaitable
from typing import Any, Final, Literal, NoReturn, TypeGuard, get_args

from flow.errors import PlanError
from flow.machine import NAME, Guard

Gate = Literal["before", "after", "none"]
When = Literal["succeeded", "finished", "failed"]
Epistemic = Literal["verified", "inferred", "assumed", "untrusted-input"]

MAX_DEPTH: Final = 8
"""How deep plans nest at most: a path of the protocol has no more elements."""

_CAPABILITY: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_BLANK: Final = "\t\n\r "
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAX_CORRECTIONS: Final = 15  # the protocol takes 16 acks of one recipient for one message
_MAX_LISTED: Final = 64
_MAX_ATTEMPTS: Final = 1000
_MAX_FACTOR: Final = 100
_MAX_ROUNDS: Final = 1_000_000
_MAX_MS: Final = 2**50  # milliseconds up to here are exact as seconds


@dataclass(frozen=True, slots=True)
class Draft:
    """What a step says, when text alone does not do (rules P14, P15).

    Attributes:
        payload: text, not blank.
        media_type: None means text/plain.
        epistemic: how the author knows it; `verified` needs a provenance with source and evidence.
        confidence: percent, 0 to 100.
        provenance: `{"source": text, "chain"?: keys, "evidence"?: addresses}`.
        context: addresses of what should be known first, 32 bytes each, at most 64.

    Raises:
        PlanError: naming the field that is none of this (code `plan.draft`).
    """

    payload: str
    media_type: str | None = None
    epistemic: Epistemic = "assumed"
    confidence: int | None = None
    provenance: Mapping[str, Any] | None = None
    context: Sequence[bytes] = ()

    def __post_init__(self) -> None:
        if not _says_something(self.payload):
            raise PlanError(
                f"payload {self.payload!r}: give a text in valid Unicode that is not blank", code="plan.draft"
            )
        if self.epistemic not in get_args(Epistemic):
            raise PlanError(f"epistemic {self.epistemic!r}: one of {get_args(Epistemic)}", code="plan.draft")
        source = self.provenance or {}
        if self.provenance is not None and not source.get("source"):
            raise PlanError(f"provenance {self.provenance!r}: name its source", code="plan.draft")
        if self.epistemic == "verified" and not source.get("evidence"):
            raise PlanError("epistemic 'verified': give a provenance with source and evidence", code="plan.draft")
        if self.confidence is not None and not _is_whole(self.confidence, 0, 100):
            raise PlanError(f"confidence {self.confidence!r}: a whole percentage, 0 to 100", code="plan.draft")
        if len(self.context) > _MAX_LISTED or any(type(a) is not bytes or len(a) != 32 for a in self.context):
            raise PlanError(f"context: at most {_MAX_LISTED} addresses of 32 bytes", code="plan.draft")
        object.__setattr__(self, "context", tuple(self.context))


PayloadFrom = Callable[[Any], str | Draft | Awaitable[str | Draft]]
Route = Callable[[Any], str | Sequence[str] | Awaitable[str | Sequence[str]]]
Reducer = Callable[[Any, Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a firing is started, and how long to wait in between (rules P22, P23).

    Attributes:
        attempts: all starts together, 2 to 1000.
        delay: seconds after the first failed attempt; kept in whole milliseconds.
        factor: by which each wait is longer than the one before, 1 to 100; kept in whole hundredths.
        longest: seconds that no wait exceeds, jitter aside; kept in whole milliseconds.
        jitter: whole percent, 0 to 100, by which a wait may be shorter or longer.

    Raises:
        PlanError: naming the field (code `plan.retry`).
    """

    attempts: int
    _: KW_ONLY
    delay: float = 0.0
    factor: float = 2.0
    longest: float = 60.0
    jitter: int = 0

    def __post_init__(self) -> None:
        if not _is_whole(self.attempts, 2, _MAX_ATTEMPTS):
            raise self._error("attempts", f"a whole number, 2 to {_MAX_ATTEMPTS}, the first start included")
        for field in ("delay", "longest"):
            seconds = getattr(self, field)
            if not (_is_time(seconds) or (type(seconds) in (int, float) and seconds == 0)):
                raise self._error(field, "seconds, 0 or 0.001 and more")
            object.__setattr__(self, field, _in_parts(seconds, 1000))
        if type(self.factor) not in (int, float) or not 1 <= self.factor <= _MAX_FACTOR:
            raise self._error("factor", f"a number, 1 to {_MAX_FACTOR}")
        object.__setattr__(self, "factor", _in_parts(self.factor, 100))
        if not _is_whole(self.jitter, 0, 100):
            raise self._error("jitter", "a whole percentage, 0 to 100")

    def _error(self, field: str, due: str) -> PlanError:
        return PlanError(f"retry, {field}: {getattr(self, field)!r}: give {due}", code="plan.retry")

    def pause(self, attempt: int, draw: float) -> float:
        """Seconds to wait once an attempt has failed (rule P23).

        Args:
            attempt: which one, from 1.
            draw: at least 0 and below 1, by which the jitter is chosen.
        """
        pause = 0.0
        if self.delay:
            try:
                pause = min(self.longest, self.delay * self.factor ** (attempt - 1))
            except OverflowError:
                pause = self.longest
        return pause * (1 + self.jitter / 100 * (2 * draw - 1))


@dataclass(frozen=True, slots=True)
class Loop:
    """How often a sub-plan is run (rule P24).

    Attributes:
        max: rounds at most, 1 to 1,000,000.
        guard: `guard(record, call) -> bool`, sync or async, after a round that may be followed: go on for another?

    Raises:
        PlanError: naming the field (code `plan.loop`).
    """

    max: int
    guard: Guard

    def __post_init__(self) -> None:
        if not _is_whole(self.max, 1, _MAX_ROUNDS):
            raise PlanError(f"loop, max: {self.max!r}: give a whole number, 1 to {_MAX_ROUNDS}", code="plan.loop")
        if not callable(self.guard):
            raise PlanError(f"loop, guard: {self.guard!r}: give guard(record, call) -> bool", code="plan.loop")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to get done, and who must have understood it and agreed (rules P1 to P10, P20 to P28).

    Attributes:
        id: its name in the plan; the only positional argument.
        target: the status it brings the run to; a step with `sub` has none.
        needs: ids of the steps that must be done before.
        to: names of the members who must acknowledge; empty means every peer of the run.
        payload: what is said to them, or
        payload_from: `f(record) -> str | Draft`, sync or async: what is said, made from a copy of the record.
        capability: the capability asked for.
        gate: acknowledged `before` the transition fires, reported `after` it, or `none`: no message at all.
        when: run if all needs have `succeeded`, if all have `finished` (succeeded or been skipped), or if at least
            one has `failed`; else skipped.
        route: `route(record) -> str | list of str`, sync or async: which of the steps that need this one go on.
        retry: how often the firing is started if it fails; None starts it once.
        loop: how often `sub` is run; None runs it once.
        sub: a plan that is run first; its final status is this step's target.
        ack_timeout: seconds for all rounds together, kept in whole milliseconds; None waits without end.
        corrections: how often a recipient may be corrected, 0 to 15.
        once: an interrupted firing is never started again by itself.

    Raises:
        PlanError: naming the step and the field.
    """

    id: str
    _: KW_ONLY
    target: str | None = None
    needs: Sequence[str] = ()
    to: Sequence[str] = ()
    payload: str | None = None
    payload_from: PayloadFrom | None = None
    capability: str | None = None
    gate: Gate = "before"
    when: When = "succeeded"
    route: Route | None = None
    retry: Retry | None = None
    loop: Loop | None = None
    sub: "Plan | None" = None
    ack_timeout: float | None = None
    corrections: int = 1
    once: bool = False

    def __post_init__(self) -> None:
        if not _named(self.id):
            raise PlanError(f"step {self.id!r}: an id has the form {NAME.pattern}", code="plan.id")
        for field, kind in (("needs", "steps"), ("to", "members")):
            object.__setattr__(self, field, self._names(field, kind))
        self._check_target()
        if self.gate not in get_args(Gate):
            raise self._error("gate", f"{self.gate!r}: one of {get_args(Gate)}")
        self._check_payload()
        if self.capability is not None and not _matches(self.capability, _CAPABILITY):
            raise self._error("capability", f"{self.capability!r}: the form is {_CAPABILITY.pattern}")
        if self.ack_timeout is not None:
            if not _is_time(self.ack_timeout):
                raise self._error(
                    "ack_timeout", f"{self.ack_timeout!r}: seconds, 0.001 or more, or None to wait for ever"
                )
            object.__setattr__(self, "ack_timeout", _in_parts(self.ack_timeout, 1000))
        if not _is_whole(self.corrections, 0, _MAX_CORRECTIONS):
            raise self._error("corrections", f"{self.corrections!r}: a whole number, 0 to {_MAX_CORRECTIONS}")
        self._check_ungated()
        if self.when not in get_args(When):
            raise self._error("when", f"{self.when!r}: one of {get_args(When)}")
        if self.when == "failed" and not self.needs:
            raise self._error("when", "'failed', but it needs no step that could fail: name one in needs")
        if self.route is not None and not callable(self.route):
            raise self._error("route", f"{self.route!r}: give route(record) -> name, or a list of names")
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise self._error("retry", f"{self.retry!r}: give a Retry")
        if type(self.once) is not bool:
            raise self._error("once", f"{self.once!r}: give True or False")

    def _check_target(self) -> None:
        """Refuse a step that leads nowhere, or in two ways; a sub-plan's end is the target (rules P8, P24 to P26)."""
        if self.sub is None:
            if self.target is None:
                raise self._error("target", "neither a target nor a sub: give the status that this step leads to")
            if not _named(self.target):
                raise self._error("target", f"{self.target!r} is no status: {NAME.pattern}")
            if self.loop is not None:
                raise self._error("loop", "given without sub: a loop is of a sub-plan; give one, or a Retry")
            return
        if not isinstance(self.sub, Plan):
            raise self._error("sub", f"{self.sub!r}: give a Plan")
        for field in ("target", "route", "retry"):
            if getattr(self, field) is not None:
                raise self._error("sub", f"given together with {field}: put that on a step of the sub-plan, or after")
        if self.sub.depth >= MAX_DEPTH:
            raise self._error("depth", f"plans would nest {self.sub.depth + 1} deep, at most {MAX_DEPTH}: flatten one")
        if self.loop is not None and not isinstance(self.loop, Loop):
            raise self._error("loop", f"{self.loop!r}: give a Loop")

    def _check_payload(self) -> None:
        if self.payload is not None and self.payload_from is not None:
            raise self._error("payload", "given together with payload_from: choose one")
        if self.payload_from is None and self.payload is None and self.gate != "none":
            raise self._error("payload", "a gated step says something: give payload or payload_from")
        if self.payload is not None and not _says_something(self.payload):
            raise self._error("payload", f"{self.payload!r}: give a text in valid Unicode that is not blank")
        if self.payload_from is not None and not callable(self.payload_from):
            raise self._error("payload_from", f"{self.payload_from!r}: give f(record) -> text or Draft")

    def _check_ungated(self) -> None:
        """Refuse what would be ignored (rule P27)."""
        if self.gate != "none":
            return
        for field in ("to", "payload", "payload_from", "capability", "ack_timeout"):
            if getattr(self, field) not in (None, ()):
                raise self._error(
                    field, "a step with gate 'none' sends no message: leave it out, or gate it", code="plan.ungated"
                )
        if self.corrections != 1:
            raise self._error(
                "corrections", "a step with gate 'none' asks nobody: leave it out, or gate it", code="plan.ungated"
            )

    def _names(self, field: str, kind: str) -> tuple[str, ...]:
        given: object = getattr(self, field)
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise self._error(field, f"{given!r} is no list: write [{given!r}]")
        names = tuple(given)
        seen = set()
        for name in names:
            if not _named(name):
                raise self._error(field, f"{name!r} is no name of {kind}: {NAME.pattern}")
            if name in seen:
                raise self._error(field, f"{name!r} is named twice")
            seen.add(name)
        return names

    def _error(self, field: str, text: str, *, code: str | None = None) -> PlanError:
        error = PlanError(f"step {self.id!r}, {field}: {text}", code=code or f"plan.{field}")
        error.step = self.id
        return error

    async def draft(self, record: object) -> Draft:
        """What this step says about a record, which is handed to `payload_from` as a copy (rule P13).

        Raises:
            PlanError: the step says nothing, or `payload_from` made neither a text nor a `Draft`.
            Exception: whatever `payload_from` raised, as it was.
        """
        said: Any = self.payload
        if self.payload_from is not None:
            said = self.payload_from(deepcopy(record))
            if isawaitable(said):
                said = await said
        return said if isinstance(said, Draft) else Draft(said)


@dataclass(frozen=True, slots=True)
class Panel:
    """Steps that are done together (rule P29).

    Attributes:
        steps: their ids.
        reducer: `reducer(original, records) -> record`, sync or async: makes one record of the members', which come
            in the order that the plan declares them in; not needed for a single member.

    Raises:
        PlanError: there is no step, one is named twice, or nothing says how several records become one
            (code `plan.panel`).
    """

    steps: Sequence[str]
    reducer: Reducer | None = None

    def __post_init__(self) -> None:
        given: object = self.steps
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise PlanError(f"panel: {given!r} is no list of steps: write [{given!r}]", code="plan.panel")
        object.__setattr__(self, "steps", names := tuple(given))
        if not names:
            raise PlanError("panel: it has no step: name some, or leave it out", code="plan.panel")
        seen = set()
        for name in names:
            if not _named(name):
                raise PlanError(f"panel: {name!r} is no id of a step: {NAME.pattern}", code="plan.panel")
            if name in seen:
                raise self._error(name, "named twice in one panel: name it once")
            seen.add(name)
        if self.reducer is None and len(names) > 1:
            raise self._error(names[0], f"in a panel of {len(names)} without reducer: say how records become one")
        if self.reducer is not None and not callable(self.reducer):
            raise self._error(names[0], f"reducer {self.reducer!r}: give reducer(original, records) -> record")

    def _error(self, step: str, text: str) -> PlanError:
        error = PlanError(f"step {step!r}, panel: {text}", code="plan.panel")
        error.step = step
        return error


@dataclass(frozen=True, slots=True)
class Unit:
    """What is done at one turn: a step, or the steps of a panel in the order that the plan declares them in."""

    steps: tuple[Step, ...]
    panel: Panel | None = None

    def __str__(self) -> str:
        ids = ", ".join(step.id for step in self.steps)
        return ids if self.panel is None else f"[{ids}]"


class Plan:
    """Steps, panels, and the order that needs leave them (rules P2 to P6, P11, P12, P21, P29 to P31).

    Attributes:
        steps: as declared.
        panels: as declared.
        units: steps and panels in the order of declaration; a panel stands where its first step does.
        order: units as a run takes them if none is skipped: of those whose needs are done, the one declared first.
        depth: 1, and with sub-plans 1 more than the deepest has.

    Raises:
        PlanError: there is no step, an id is taken, a need is no step, needs run in a circle, a route has nobody to
            choose, or steps do not make a panel.
    """

    def __init__(self, steps: Iterable[Step], panels: Iterable[Panel] = ()) -> None:
        if isinstance(steps, str | Step) or not isinstance(steps, Iterable):
            raise PlanError(f"steps are {steps!r}: give a list of steps", code="plan.steps")
        if isinstance(panels, str | Panel) or not isinstance(panels, Iterable):
            raise PlanError(f"panels are {panels!r}: give a list of panels", code="plan.panel")
        self.steps: Final = tuple(steps)
        self.panels: Final = tuple(panels)
        if not self.steps:
            raise PlanError("no steps: give at least one", code="plan.steps")
        self._steps: Final[dict[str, Step]] = {}
        for step in self.steps:
            if not isinstance(step, Step):
                raise PlanError(f"{step!r} is no Step", code="plan.steps")
            if step.id in self._steps:
                raise step._error("id", "another step has this id: rename one")
            self._steps[step.id] = step
        self._dependents: Final[dict[str, list[Step]]] = {step.id: [] for step in self.steps}
        for step in self.steps:
            for need in step.needs:
                if need not in self._dependents:
                    raise step._error("needs", f"{need!r} is no step of this plan")
                self._dependents[need].append(step)
        _ordered(tuple(Unit((step,)) for step in self.steps))
        self._check_routes()
        self.units: Final = self._grouped()
        self.order: Final = _ordered(self.units)
        self.depth: Final[int] = 1 + max((step.sub.depth for step in self.steps if step.sub is not None), default=0)

    def step(self, id: str) -> Step:  # noqa: A002 - what it is called
        """The step of this id.

        Raises:
            PlanError: there is none (code `plan.id`).
        """
        if id not in self._steps:
            raise PlanError(f"{id!r} is no step of this plan", code="plan.id")
        return self._steps[id]

    def dependents(self, id: str) -> tuple[Step, ...]:  # noqa: A002
        """The steps that need this one directly, in the order of declaration."""
        return tuple(self._dependents[self.step(id).id])

    def _check_routes(self) -> None:
        for step in self.steps:
            if step.route is not None and all(dependent.when == "failed" for dependent in self._dependents[step.id]):
                raise step._error("route", "no step needs this one unless it fails: there is nothing to choose from")

    def _grouped(self) -> tuple[Unit, ...]:
        """Return the units, once the panels have been checked (rules P29 to P31)."""
        panels: dict[str, Panel] = {}
        for panel in self.panels:
            if not isinstance(panel, Panel):
                raise PlanError(f"{panel!r} is no Panel", code="plan.panel")
            for name in panel.steps:
                if name not in self._steps:
                    raise panel._error(name, "no step of this plan: correct the panel, or add the step")
                if name in panels:
                    raise panel._error(name, "in two panels: take it out of one")
                panels[name] = panel
            first = self._steps[panel.steps[0]]
            for member in map(self._steps.__getitem__, panel.steps):
                self._check_member(member)
                for field in ("target", "gate"):
                    if (own := getattr(member, field)) != (other := getattr(first, field)):
                        raise member._error(
                            "panel", f"{field} {own!r}, but {other!r} of {first.id!r}: one panel has one {field}"
                        )
        members: dict[int, list[Step]] = {id(panel): [] for panel in self.panels}
        for step in self.steps:
            if step.id in panels:
                members[id(panels[step.id])].append(step)
        units = []
        for step in self.steps:
            if step.id not in panels:
                units.append(Unit((step,)))
            elif (found := members[id(panels[step.id])])[0] is step:
                units.append(Unit(tuple(found), panels[step.id]))
        return tuple(units)

    def _check_member(self, member: Step) -> None:
        for field in ("sub", "route", "retry"):
            if getattr(member, field) is not None:
                raise member._error("panel", f"it has a {field}, which no step of a panel has: take it out of one")
        if member.gate == "after":
            raise member._error("panel", "gate 'after' does not go with a panel: choose another, or take it out")
        if member.when == "failed":
            raise member._error("panel", "when 'failed' does not go with a panel: take it out")
        for need in member.needs:
            if self._steps[need].route is not None:
                raise member._error("panel", f"it needs {need!r}, which routes: put a step in between, or take it out")


def _ordered(units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Return the units in the order of rule P11, and refuse a circle among them (rules P4, P31)."""
    owner = {step.id: place for place, unit in enumerate(units) for step in unit.steps}
    needed = [{owner[need] for step in unit.steps for need in step.needs} for unit in units]
    owed = [len(needs) for needs in needed]
    dependents: list[list[int]] = [[] for _ in units]
    for place, needs in enumerate(needed):
        for need in needs:
            dependents[need].append(place)
    ready = [place for place, needs in enumerate(owed) if not needs]
    order = []
    while ready:
        place = heapq.heappop(ready)
        order.append(units[place])
        for dependent in dependents[place]:
            owed[dependent] -= 1
            if not owed[dependent]:
                heapq.heappush(ready, dependent)
    if len(order) < len(units):
        stuck = {place for place, needs in enumerate(owed) if needs}
        place = min(stuck)
        path: dict[int, None] = {}
        while place not in path:
            path[place] = None
            place = min(needed[place] & stuck)
        circle = list(path)[list(path).index(place) :]
        _refuse_circle([units[place] for place in circle])
    return tuple(order)


def _refuse_circle(circle: Sequence[Unit]) -> NoReturn:
    """Say what runs in a circle, each unit needing the next and the last the first: steps, or steps through panels."""
    shown = " -> ".join(map(str, [*circle, circle[0]]))
    panels = [place for place, unit in enumerate(circle) if unit.panel is not None]
    if not panels:
        raise circle[0].steps[0]._error("needs", f"a circle, each needing the next: {shown}; take one need out")
    if len(panels) > 1:
        raise (
            circle[panels[0]]
            .steps[0]
            ._error(
                "panel", f"panels that wait on each other, each needing the next: {shown}; take one need or member out"
            )
        )
    circle = [*circle[panels[0] :], *circle[: panels[0]]]
    waiting, _ = _link(circle[0], circle[1 % len(circle)])
    _, awaited = _link(circle[-1], circle[0])
    raise waiting._error("panel", f"it waits for {awaited!r}, which is in its panel: {shown}; take one of the two out")


def _link(here: Unit, there: Unit) -> tuple[Step, str]:
    """Return a step of one unit and what it needs of another."""
    ids = {step.id for step in there.steps}
    return next((step, need) for step in here.steps for need in step.needs if need in ids)


def _matches(value: object, form: re.Pattern[str]) -> TypeGuard[str]:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _named(value: object) -> TypeGuard[str]:
    return _matches(value, NAME)


def _says_something(text: object) -> bool:
    return isinstance(text, str) and text.strip(_BLANK) != "" and not _SURROGATE.search(text)


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_time(seconds: float) -> bool:
    return type(seconds) in (int, float) and 1 <= seconds * 1000 <= _MAX_MS


def _in_parts(value: float, parts: int) -> float:
    """Return the value as a document can hold it, so that what is run is what is written: in whole 1/`parts`."""
    return value if type(value) is int else round(value * parts) / parts
