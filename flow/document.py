"""The one canonical document of a plan, whose address a run signs."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from envelope.cbor import encode
from flow.budget import Limits
from flow.errors import PlanError
from flow.machine import Machine, Transition
from flow.plan import Plan, Step

_FUNCTION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


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
        if not isinstance(name, str) or not _FUNCTION.fullmatch(name):
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
