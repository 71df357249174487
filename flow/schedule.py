"""Which unit of a plan is next, given what became of the others: no clock, no thread, no code of the user's.

A unit is a step, or the steps of a panel. It is ready once all its needs are terminal; then it is admitted or skipped,
and a skip is terminal at once. A failure stays on the books as long as a step that handles it may still run (rules R46
to R51).
"""

import heapq
from collections.abc import Iterable
from typing import Final, Literal

from flow.machine import Failure
from flow.plan import Plan, Step, Unit

Terminal = Literal["succeeded", "failed", "skipped"]


class Schedule:
    """One round of a plan.

    Attributes:
        plan: the plan.
        became: what became of each step that is terminal, by id.
    """

    def __init__(self, plan: Plan) -> None:
        self.became: Final[dict[str, Terminal]] = {}
        self.plan: Final = plan
        self._failures: dict[str, Failure] = {}
        self._unit_of = {step.id: place for place, unit in enumerate(plan.units) for step in unit.steps}
        self._owed = [sum(len(step.needs) for step in unit.steps) for unit in plan.units]
        self._ready = [place for place, needs in enumerate(self._owed) if not needs]

    def next(self) -> Unit | None:
        """Return the first declared unit that is ready, or None: then every step is terminal."""
        return self.plan.units[heapq.heappop(self._ready)] if self._ready else None

    def succeeded(self, unit: Unit, chosen: Iterable[str] | None = None) -> list[Step]:
        """Enter a unit as done; `chosen` are the dependents that its route chose. Return the steps this skips."""
        unwanted: list[Step] = []
        if chosen is not None:
            wanted = set(chosen)
            unwanted = [step for step in self.plan.dependents(unit.steps[0].id) if step.id not in wanted]
        return self._enter(unit, "succeeded", unwanted)

    def failed(self, unit: Unit, failure: Failure) -> list[Step]:
        """Enter a unit as failed. Return the steps this skips."""
        for step in unit.steps:
            self._failures[step.id] = failure
        return self._enter(unit, "failed", [])

    def catches(self, unit: Unit) -> bool:
        """Whether each step of a unit has a handler, which may still run."""
        return all(self._handlers(step.id) for step in unit.steps)

    def failure_for(self, step: Step) -> Failure | None:
        """Return what a step handles: the failure of the first declared of its needs that failed, or None."""
        if step.when != "failed":
            return None
        failed = (need.id for need in self.plan.steps if need.id in step.needs and need.id in self._failures)
        return self._failures[next(failed)]

    @property
    def lost(self) -> Failure | None:
        """A failure on the books whose last handler was skipped."""
        return next((failure for step, failure in self._failures.items() if not self._handlers(step)), None)

    def _handlers(self, failed: str) -> list[Step]:
        dependents = self.plan.dependents(failed)
        return [step for step in dependents if step.when == "failed" and self.became.get(step.id) != "skipped"]

    def _enter(self, unit: Unit, became: Terminal, unwanted: list[Step]) -> list[Step]:
        skipped: list[Step] = []
        freed: list[int] = []
        self._settle(unit, became, freed)
        for step in unwanted:
            if step.id not in self.became:
                self._skip(self._unit_of[step.id], skipped, freed)
        while freed:
            place = heapq.heappop(freed)
            if self._is_terminal(place):
                continue
            if all(map(self._admits, self.plan.units[place].steps)):
                heapq.heappush(self._ready, place)
            else:
                self._skip(place, skipped, freed)
        return skipped

    def _skip(self, place: int, skipped: list[Step], freed: list[int]) -> None:
        unit = self.plan.units[place]
        skipped += unit.steps
        self._settle(unit, "skipped", freed)

    def _settle(self, unit: Unit, became: Terminal, freed: list[int]) -> None:
        for step in unit.steps:
            self.became[step.id] = became
            for dependent in self.plan.dependents(step.id):
                place = self._unit_of[dependent.id]
                self._owed[place] -= 1
                if not self._owed[place]:
                    heapq.heappush(freed, place)

    def _is_terminal(self, place: int) -> bool:
        return self.plan.units[place].steps[0].id in self.became

    def _admits(self, step: Step) -> bool:
        became = [self.became[need] for need in step.needs]
        if step.when == "failed":
            return "failed" in became
        return "failed" not in became and (step.when == "finished" or "skipped" not in became)
