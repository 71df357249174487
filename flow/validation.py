"""How a plan fits a machine, found without running it (rules P16, P32 to P35).

Units go one at a time, so a unit starts from the target of the last one before it that succeeded. Which one that is
depends on what was skipped and what failed: for each unit its order is walked back, past everything that may have been
skipped, or may have failed and been caught, to the first that must have succeeded. What a unit's start tells of those
before it (that a need succeeded, that one failed) is taken into account, executions are never enumerated. Sets of
statuses and of units are integers, a bit for each member.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice, product
from operator import and_, or_
from typing import Final, Literal

from flow.machine import Machine
from flow.plan import Plan, Step, Unit

Severity = Literal["error", "warning"]

_FARTHEST: Final = 64
"""How many units are walked back with what is given; beyond them every status that is possible there is taken."""

_MOST_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a plan cannot run on a machine, or may not.

    Attributes:
        code: stable: `plan.no_row`, `plan.two_rows` or `plan.never`.
        step: the path of the step concerned, outermost first, joined with `/`; of a panel its first step.
        text: what is wrong and what to do.
        severity: an `error` is refused by a run; a `warning` is what only some runs would meet.
    """

    code: str
    step: str
    text: str
    severity: Severity = "error"


def validate(plan: Plan, machine: Machine) -> list[Finding]:
    """Walk the plan and its sub-plans through the machine, over the set of statuses that each step can start from.

    A step that exactly one row brings to its target in none of these statuses is an error, in some of them only a
    warning; so is one that can never run. After an error the walk goes on as if the step had succeeded.

    Returns:
        Findings in the order of a run in which nothing is skipped, after those of the sub-plans, each of which is
        walked once, however often it is used. Empty if the plan fits.
    """
    walk = _Walk(machine)
    walk.through(plan, "")
    return walk.findings


@dataclass(frozen=True, slots=True)
class _Given:
    """What is known of units if one thing is: sets of those that succeeded, failed, did not fail, did not succeed."""

    succeeded: int = 0
    failed: int = 0
    unfailed: int = 0
    unsucceeded: int = 0

    def __or__(self, other: "_Given") -> "_Given":
        return _Given(
            self.succeeded | other.succeeded,
            self.failed | other.failed,
            self.unfailed | other.unfailed,
            self.unsucceeded | other.unsucceeded,
        )

    @property
    def possible(self) -> bool:
        return not (self.failed & (self.succeeded | self.unfailed) or self.succeeded & self.unsucceeded)


_NEVER: Final = _Given(succeeded=1, failed=1)


class _Fates:
    """What can become of each unit of a plan, whatever the machine; units by their place in `plan.order`.

    Attributes:
        skipped: whether it may be skipped.
        caught: whether it may fail without ending the run.
        runs: what is given if it runs; impossible if it never does.
        passed: what is given if it does not succeed.
        ordered: whether every run takes its units in `plan.order`, leaving some out.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._place: Final = {step.id: number for number, unit in enumerate(plan.order) for step in unit.steps}
        self.skipped: Final[list[bool]] = []
        self.caught: Final[list[bool]] = []
        self.runs: Final[list[_Given]] = []
        self.passed: Final[list[_Given]] = []
        for unit in plan.order:
            self.caught.append(
                all(any(other.when == "failed" for other in plan.dependents(step.id)) for step in unit.steps)
            )
            self.skipped.append(any(map(self._may_be_skipped, unit.steps)))
            self.runs.append(reduce(or_, map(self._if_it_runs, unit.steps)))
            told = len(unit.steps) == 1 and not self.caught[-1]  # it was skipped, and by what this one step asks
            self.passed.append(self._if_it_is_skipped(unit.steps[0]) if told else _Given())
        self.ordered: Final = self._keeps_its_order()

    def _keeps_its_order(self) -> bool:
        """Whether a unit that may be ready early, as what it needs may be skipped, finds nobody to overtake.

        It would overtake those that come before it in the order, are declared after it, and are not needed for it.
        """
        declared = {unit.steps[0].id: number for number, unit in enumerate(self._plan.units)}
        gone = 0
        before: list[int] = []
        for unit in self._plan.order:
            number = declared[unit.steps[0].id]
            needs = {need for step in unit.steps for need in self._needs(step)}
            before.append(reduce(or_, (before[need] for need in needs), 0))
            if any(map(self._may_be_early, unit.steps)) and (gone & ~before[-1]) >> number:
                return False
            gone |= 1 << number
            before[-1] |= 1 << number
        return True

    def _needs(self, step: Step) -> list[int]:
        return [self._place[need] for need in step.needs]

    def _routed(self, step: Step) -> bool:
        return any(self._plan.step(need).route is not None for need in step.needs)

    def _may_be_skipped(self, step: Step) -> bool:
        needs = self._needs(step)
        return (
            step.when == "failed"
            or self._routed(step)
            or any(self.caught[need] for need in needs)
            or (step.when == "succeeded" and any(self.skipped[need] for need in needs))
        )

    def _may_be_early(self, step: Step) -> bool:
        return (
            step.when != "succeeded"
            and len(step.needs) > (step.when == "failed")
            and any(self.skipped[need] for need in self._needs(step))
        )

    def _if_it_runs(self, step: Step) -> _Given:
        given = _Given()
        needs = self._needs(step)
        if step.when == "failed":
            failing = {need for need in needs if self.caught[need]}
            if not failing:  # such a failure ends the run: a panel, not all of whose members have a handler
                return _NEVER
            if len(failing) == 1:
                (need,) = failing
                given = _Given(failed=1 << need) | self.runs[need]
            return given
        for need in needs:
            if step.when == "succeeded" or not self.skipped[need]:
                given |= _Given(succeeded=1 << need) | self.runs[need]
            else:
                given |= _Given(unfailed=1 << need)
        return given

    def _if_it_is_skipped(self, step: Step) -> _Given:
        needs = self._needs(step)
        if self._routed(step) and not (step.when == "failed" and len(needs) == 1):
            return _Given()  # the route may have left it out
        if step.when == "failed":
            return _Given(unfailed=reduce(or_, (1 << need for need in needs)))
        failing = [need for need in needs if self.caught[need]]
        if step.when == "finished":
            return _Given(failed=1 << failing[0]) if len(failing) == 1 else _Given()
        missing = [need for need in needs if self.caught[need] or self.skipped[need]]
        return _Given(unsucceeded=1 << missing[0]) if len(missing) == 1 else _Given()


@dataclass(frozen=True, slots=True)
class _Goal:
    """Where a unit leads to, and sets of the statuses that it can be reached from.

    Attributes:
        ends: its target, or all in which its sub-plan can end.
        some: from here exactly one row leads to some of the ends.
        every: from here exactly one row leads to each of them.
    """

    ends: int
    some: int
    every: int


_NOWHERE: Final = _Goal(0, 0, 0)


class _Walk:
    """Statuses, rows, and the sub-plans walked so far."""

    def __init__(self, machine: Machine) -> None:
        self.findings: Final[list[Finding]] = []
        self._machine = machine
        self._bits: Final[dict[str, int]] = {}
        self._statuses: Final[list[str]] = []
        self._initial = self._bit(machine.initial)
        once: defaultdict[int, int] = defaultdict(int)
        twice: defaultdict[int, int] = defaultdict(int)
        for row in machine.rows:
            source, target = self._bit(row.source), self._bit(row.target)
            twice[target] |= once[target] & source
            once[target] |= source
        self._one_row: Final = {target: once[target] & ~twice[target] for target in once}
        self._subs: Final[dict[Plan, _Goal]] = {}

    def through(self, plan: Plan, path: str) -> int:
        """Note what is found on the way, and return the statuses in which the plan can end."""
        fates = _Fates(plan)
        goals = [self._goal(unit.steps[0], path) for unit in plan.order]
        for place, given in enumerate(fates.runs):
            if not given.possible:
                goals[place] = _NOWHERE
        possible = [self._initial]
        for place, goal in enumerate(goals):
            stays = fates.skipped[place] or fates.caught[place]
            possible.append(goal.ends | (possible[place] if stays else 0))
        anywhere = reduce(or_, (goal.ends for goal in goals), self._initial)

        def before(place: int, given: _Given) -> int:
            return _before(place, given, fates, goals, possible) if fates.ordered or place == 0 else anywhere

        for place, unit in enumerate(plan.order):
            if fates.runs[place].possible:
                self._check(unit, path, goals[place], before(place, fates.runs[place]))
            else:
                self._find("plan.never", unit, path, "it never runs, as its needs cannot all end as it asks", "warning")
        return before(len(goals), _Given())

    def _goal(self, step: Step, path: str) -> _Goal:
        if step.sub is None:
            target = self._bit(step.target or "")
            sources = self._one_row.get(target, 0)
            return _Goal(target, sources, sources)
        if step.sub not in self._subs:
            ends = self.through(step.sub, f"{path}{step.id}/")
            # where the run stands already, no row is needed
            each = [self._one_row.get(end, 0) | end for end in _members(ends)]
            self._subs[step.sub] = _Goal(ends, reduce(or_, each), reduce(and_, each))
        return self._subs[step.sub]

    def _check(self, unit: Unit, path: str, goal: _Goal, starts: int) -> None:
        stuck = starts & ~goal.every
        if not stuck:
            return
        severity: Severity = "warning" if starts & goal.some else "error"
        only = "" if severity == "error" else ", from where the run may come too"
        for source, target in product(self._first(stuck), self._first(goal.ends)):
            if len(rows := self._machine.rows_to(source, target)) > 1:
                triggers = " and ".join(repr(row.trigger) for row in rows)
                text = f"{triggers} both lead from {source!r} to {target!r}{only}; leave one row"
                return self._find("plan.two_rows", unit, path, text, severity)
        text = f"no row leads from {self._either(stuck)} to {self._either(goal.ends)}{only}; "
        self._find("plan.no_row", unit, path, text + "add one, or change the step's target or needs", severity)

    def _first(self, statuses: int) -> list[str]:
        return [self._statuses[status.bit_length() - 1] for status in islice(_members(statuses), _MOST_SHOWN)]

    def _either(self, statuses: int) -> str:
        shown, more = " or ".join(map(repr, self._first(statuses))), statuses.bit_count() - _MOST_SHOWN
        return f"{shown} or {more} more" if more > 0 else shown

    def _find(self, code: str, unit: Unit, path: str, text: str, severity: Severity) -> None:
        step = path + unit.steps[0].id
        self.findings.append(Finding(code, step, f"step {step!r}: {text}", severity))

    def _bit(self, status: str) -> int:
        if status not in self._bits:
            self._bits[status] = 1 << len(self._bits)
            self._statuses.append(status)
        return self._bits[status]


def _before(place: int, given: _Given, fates: _Fates, goals: Sequence[_Goal], possible: Sequence[int]) -> int:
    """Return the statuses before a place in the order: the ends of what may have been the last to succeed before it.

    Args:
        given: what is known of the units before it.
        possible: for each place all statuses before it, when nothing is given.
    """
    found = 0
    for last in range(place - 1, -1, -1):
        if place - last > _FARTHEST:
            return found | possible[last + 1]
        unit = 1 << last
        if (given | fates.runs[last]).possible and not (given.failed | given.unsucceeded) & unit:
            found |= goals[last].ends
        may_fail = fates.caught[last] and not given.unfailed & unit
        if given.succeeded & unit or not (fates.skipped[last] or may_fail):
            return found
        given |= fates.passed[last]
        if not given.possible:
            return found
    return found | possible[0]


def _members(bits: int) -> Iterator[int]:
    while bits:
        yield bits & -bits
        bits &= bits - 1
