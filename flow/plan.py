"""A plan is data: steps, what each needs before it, and the one canonical document whose address a run signs.

Everything that can be refused without a run is refused here, with the step named: by a `Step` what it says of itself,
by a `Plan` how steps fit together, by `validate` how a plan fits a machine.
"""

import heapq
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from inspect import isawaitable
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeGuard, get_args

from envelope.cbor import encode
from flow.budget import MAX_INTEGER, Limits
from flow.errors import PlanError
from flow.machine import NAME, Machine, Transition

Gate = Literal["before", "after", "none"]
Epistemic = Literal["verified", "inferred", "assumed", "untrusted-input"]

_CAPABILITY: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FUNCTION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_BLANK: Final = "\t\n\r "
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAX_CORRECTIONS: Final = 15  # the protocol takes 16 acks of one recipient for one message
_MAX_LISTED: Final = 64


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
        if self.confidence is not None and (type(self.confidence) is not int or not 0 <= self.confidence <= 100):
            raise PlanError(f"confidence {self.confidence!r}: a whole percentage, 0 to 100", code="plan.draft")
        if len(self.context) > _MAX_LISTED or any(type(a) is not bytes or len(a) != 32 for a in self.context):
            raise PlanError(f"context: at most {_MAX_LISTED} addresses of 32 bytes", code="plan.draft")
        object.__setattr__(self, "context", tuple(self.context))


PayloadFrom = Callable[[Any], str | Draft | Awaitable[str | Draft]]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to get done, and who must have understood it and agreed (rules P1 to P10).

    Attributes:
        id: its name in the plan; the only positional argument.
        target: the status it brings the run to.
        needs: ids of the steps that must have succeeded before.
        to: names of the members who must acknowledge; empty means every peer of the run.
        payload: what is said to them, or
        payload_from: `f(record) -> str | Draft`, sync or async: what is said, made from a copy of the record.
        capability: the capability asked for.
        gate: acknowledged `before` the transition fires, reported `after` it, or `none`: no message at all.
        ack_timeout: seconds for all rounds together; None waits without end.
        corrections: how often a recipient may be corrected, 0 to 15.

    Raises:
        PlanError: naming the step and the field.
    """

    id: str
    _: KW_ONLY
    target: str
    needs: Sequence[str] = ()
    to: Sequence[str] = ()
    payload: str | None = None
    payload_from: PayloadFrom | None = None
    capability: str | None = None
    gate: Gate = "before"
    ack_timeout: float | None = None
    corrections: int = 1

    def __post_init__(self) -> None:
        if not _named(self.id):
            raise PlanError(f"step {self.id!r}: an id has the form {NAME.pattern}", code="plan.id")
        for field, kind in (("needs", "steps"), ("to", "members")):
            object.__setattr__(self, field, self._names(field, kind))
        if not _named(self.target):
            raise self._error("target", f"{self.target!r} is no status: {NAME.pattern}")
        if self.gate not in get_args(Gate):
            raise self._error("gate", f"{self.gate!r}: one of {get_args(Gate)}")
        self._check_payload()
        if self.capability is not None and not _matches(self.capability, _CAPABILITY):
            raise self._error("capability", f"{self.capability!r}: the form is {_CAPABILITY.pattern}")
        if self.ack_timeout is not None and not _is_time(self.ack_timeout):
            raise self._error("ack_timeout", f"{self.ack_timeout!r}: seconds, 0.001 or more, or None to wait for ever")
        if type(self.corrections) is not int or not 0 <= self.corrections <= _MAX_CORRECTIONS:
            raise self._error("corrections", f"{self.corrections!r}: a whole number, 0 to {_MAX_CORRECTIONS}")

    def _check_payload(self) -> None:
        if self.payload is not None and self.payload_from is not None:
            raise self._error("payload", "given together with payload_from: choose one")
        if self.payload_from is None and self.payload is None and self.gate != "none":
            raise self._error("payload", "a gated step says something: give payload or payload_from")
        if self.payload is not None and not _says_something(self.payload):
            raise self._error("payload", f"{self.payload!r}: give a text in valid Unicode that is not blank")

    def _names(self, field: str, kind: str) -> tuple[str, ...]:
        given: object = getattr(self, field)
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise self._error(field, f"{given!r} is no list: write [{given!r}]")
        names = tuple(given)
        for place, name in enumerate(names):
            if not _named(name):
                raise self._error(field, f"{name!r} is no name of {kind}: {NAME.pattern}")
            if name in names[:place]:
                raise self._error(field, f"{name!r} is named twice")
        return names

    def _error(self, field: str, text: str) -> PlanError:
        error = PlanError(f"step {self.id!r}, {field}: {text}", code=f"plan.{field}")
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


class Plan:
    """Steps, and the order that their needs leave them (rules P2 to P6, P11, P12).

    Attributes:
        steps: as declared.
        order: as a run takes them, one at a time: of those whose needs are done, always the one declared first.

    Raises:
        PlanError: there is no step, an id is taken, a need is no step, or needs run in a circle.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        if isinstance(steps, str | Step) or not isinstance(steps, Iterable):
            raise PlanError(f"steps are {steps!r}: give a list of steps", code="plan.steps")
        self.steps: Final = tuple(steps)
        if not self.steps:
            raise PlanError("no steps: give at least one", code="plan.steps")
        places: dict[str, int] = {}
        for place, step in enumerate(self.steps):
            if not isinstance(step, Step):
                raise PlanError(f"{step!r} is no Step", code="plan.steps")
            if places.setdefault(step.id, place) != place:
                raise step._error("id", "another step has this id: rename one")
        for step in self.steps:
            if unknown := [need for need in step.needs if need not in places]:
                raise step._error("needs", f"{unknown[0]!r} is no step of this plan")
        self.order: Final = self._ordered(places)

    def _ordered(self, places: Mapping[str, int]) -> tuple[Step, ...]:
        owed = [len(step.needs) for step in self.steps]
        dependents: list[list[int]] = [[] for _ in self.steps]
        for place, step in enumerate(self.steps):
            for need in step.needs:
                dependents[places[need]].append(place)
        ready = [place for place, needs in enumerate(owed) if not needs]
        order = []
        while ready:
            place = heapq.heappop(ready)
            order.append(self.steps[place])
            for dependent in dependents[place]:
                owed[dependent] -= 1
                if not owed[dependent]:
                    heapq.heappush(ready, dependent)
        if len(order) < len(self.steps):
            self._refuse_cycle({step.id: step for place, step in enumerate(self.steps) if owed[place]})
        return tuple(order)

    def _refuse_cycle(self, stuck: Mapping[str, Step]) -> NoReturn:
        step = next(iter(stuck.values()))
        path: list[str] = []
        while step.id not in path:
            path.append(step.id)
            step = stuck[next(need for need in step.needs if need in stuck)]
        circle = " -> ".join([*path[path.index(step.id) :], step.id])
        raise step._error("needs", f"a circle, each needing the next: {circle}; take one need out")


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a plan cannot run on a machine.

    Attributes:
        code: stable: `plan.no_row` or `plan.two_rows`.
        step: the id of the step concerned.
        text: what is wrong and what to do.
    """

    code: str
    step: str
    text: str


def validate(plan: Plan, machine: Machine) -> list[Finding]:
    """Walk the plan through the machine, and find each step that exactly one row does not bring to its target.

    Every step runs and ends in its target, so the status that a step starts from is known: the target of the one
    before it in `plan.order` (rule P16). After a finding the walk goes on as if the step had succeeded.

    Returns:
        Findings in the order of the run, each of which a run refuses; empty if the plan fits.
    """
    findings = []
    status = machine.initial
    for step in plan.order:
        rows = machine.rows_to(status, step.target)
        if len(rows) > 1:
            triggers = " and ".join(repr(row.trigger) for row in rows)
            findings.append(
                Finding(
                    "plan.two_rows",
                    step.id,
                    f"step {step.id!r}: {triggers} both lead from {status!r} to {step.target!r}; leave one row",
                )
            )
        elif not rows:
            findings.append(
                Finding(
                    "plan.no_row",
                    step.id,
                    f"step {step.id!r}: no row leads from {status!r} to {step.target!r}; "
                    "add one, or change the step's target or needs",
                )
            )
        status = step.target
    return findings


def document(
    plan: Plan,
    machine: Machine,
    limits: Limits,
    judge: Callable[..., object],
    names: Mapping[str, Callable[..., object]] = MappingProxyType({}),
) -> bytes:
    """The plan, the machine and the limits as one canonical map, whose BLAKE3-256 is `open.plan` (rules P17 to P19).

    The map: `v` (1), `plan` (steps as declared: `id`, `target`, `gate`, `corrections`, and where given `needs`, `to`,
    `payload`, `payload_from`, `capability`, `ack_timeout_ms`), `machine` (`initial`, and `rows`: `source`, `trigger`,
    `target`, and where given `guard`, `on_exit`, `on_entry`), `limits` (where capped: `bytes`, `messages`), `judge`.

    Args:
        names: a registry, under whose names functions stand; one that is not in it stands under its `__name__`.

    Raises:
        PlanError: a function has no usable name (a lambda), or two stand under one (code `plan.function`).
        envelope.errors.EnvelopeError: the map is beyond the profile's bounds.
    """
    naming = _Naming(names)
    return encode(
        _present(
            v=1,
            plan=[_step_map(step, naming) for step in plan.steps],
            machine={"initial": machine.initial, "rows": [_row_map(row, naming) for row in machine.rows]},
            limits=limits.document(),
            judge=naming(judge),
        )
    )


def _step_map(step: Step, naming: "_Naming") -> dict[str, Any]:
    return _present(
        id=step.id,
        target=step.target,
        gate=step.gate,
        corrections=step.corrections,
        needs=sorted(step.needs),
        to=sorted(step.to),
        payload=step.payload,
        payload_from=naming(step.payload_from),
        capability=step.capability,
        ack_timeout_ms=None if step.ack_timeout is None else round(step.ack_timeout * 1000),
    )


def _row_map(row: Transition, naming: "_Naming") -> dict[str, Any]:
    return _present(
        source=row.source,
        trigger=row.trigger,
        target=row.target,
        guard=naming(row.guard),
        on_exit=naming(row.on_exit),
        on_entry=naming(row.on_entry),
    )


class _Naming:
    """Gives each function its name in one document, and no two functions the same."""

    def __init__(self, names: Mapping[str, Callable[..., object]]) -> None:
        self._names = names
        self._bearers: dict[str, Callable[..., object]] = {}

    def __call__(self, function: Callable[..., object] | None) -> str | None:
        if function is None:
            return None
        registered = (name for name, known in self._names.items() if known == function)
        name = next(registered, None) or getattr(function, "__name__", None)
        if not _matches(name, _FUNCTION):
            raise PlanError(
                f"{function!r} has no name that a document can hold: use a def, or name it",
                code="plan.function",
            )
        if self._bearers.setdefault(name, function) != function:
            raise PlanError(
                f"two functions are called {name!r}: rename one",
                code="plan.function",
            )
        return name


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _matches(value: object, form: re.Pattern[str]) -> TypeGuard[str]:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _named(value: object) -> TypeGuard[str]:
    return _matches(value, NAME)


def _says_something(text: object) -> bool:
    return isinstance(text, str) and text.strip(_BLANK) != "" and not _SURROGATE.search(text)


def _is_time(seconds: float) -> bool:
    return type(seconds) in (int, float) and 1 <= seconds * 1000 <= MAX_INTEGER
