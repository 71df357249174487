from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow.machine import Machine
from flow.plan import Panel, Plan, Step
from flow.validation import validate
from tests.flow.plandraw import choose, merge, plans, step

STATUSES = "abcd"
ABCD = [("a", "1", "b"), ("b", "2", "c"), ("c", "3", "d")]
ROWS = [(here, f"to-{there}", there) for here in STATUSES for there in STATUSES if here != there]


def found(plan: Plan, *rows: tuple[str, str, str]) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.code, finding.step) for finding in validate(plan, Machine("a", rows))]


# All executions of a plan, one after the other


class Executions:
    """Every way in which a small plan can go, by the words of flow.md: what is skipped, fails, is chosen.

    Attributes:
        starts: for each unit, by its first step, the statuses that it is reached in.
        ends: the statuses that the plan completes in.
    """

    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.plan, self.machine = plan, machine
        self.starts: dict[str, set[str]] = {unit.steps[0].id: set() for unit in plan.units}
        self.ends: set[str] = set()
        self.subs = {s.id: Executions(s.sub, machine) for s in plan.steps if s.sub is not None}
        self._go(machine.initial, {})

    def _go(self, status: str, fates: dict[str, str]) -> None:
        fates = self._settled(fates)
        if self._uncaught(fates):
            return
        unit = next(
            (
                unit
                for unit in self.plan.units
                if unit.steps[0].id not in fates and all(fates.get(n) for s in unit.steps for n in s.needs)
            ),
            None,
        )
        if unit is None:
            self.ends.add(status)
            return
        first = unit.steps[0]
        self.starts[first.id].add(status)
        for end in self._led(first, status):
            for skipped in self._choices(first):
                self._go(end, {**fates, **dict.fromkeys(skipped, "skipped"), **{s.id: "succeeded" for s in unit.steps}})
        if self._led(first, status) or self._leads(first, status):
            self._go(status, {**fates, **{s.id: "failed" for s in unit.steps}})

    def _leads(self, first: Step, status: str) -> bool:
        """Whether the step gets as far as to fail: a sub-plan runs before the parent's row is looked at."""
        return first.sub is not None or len(self.machine.rows_to(status, first.target or "")) == 1

    def _led(self, first: Step, status: str) -> list[str]:
        ends = sorted(self.subs[first.id].ends) if first.sub is not None else [first.target or ""]
        return [
            end
            for end in ends
            if len(self.machine.rows_to(status, end)) == 1 or (first.sub is not None and end == status)
        ]

    def _settled(self, fates: dict[str, str]) -> dict[str, str]:
        while True:
            more = {
                member.id: "skipped"
                for unit in self.plan.units
                if unit.steps[0].id not in fates and all(n in fates for s in unit.steps for n in s.needs)
                if not all(self._admitted(s, [fates[n] for n in s.needs]) for s in unit.steps)
                for member in unit.steps
            }
            if not more:
                return fates
            fates = {**fates, **more}

    @staticmethod
    def _admitted(of: Step, needs: list[str]) -> bool:
        match of.when:
            case "succeeded":
                return all(need == "succeeded" for need in needs)
            case "finished":
                return "failed" not in needs
            case _:
                return "failed" in needs

    def _uncaught(self, fates: dict[str, str]) -> bool:
        return any(
            fate == "failed"
            and all(d.when != "failed" or fates.get(d.id) == "skipped" for d in self.plan.dependents(name))
            for name, fate in fates.items()
        )

    def _choices(self, of: Step) -> Iterator[set[str]]:
        """The dependents that each choice of a route skips."""
        if of.route is None:
            yield set()
            return
        names = {d.id for d in self.plan.dependents(of.id)}
        free = sorted(d.id for d in self.plan.dependents(of.id) if d.when != "failed")
        for chosen in chain.from_iterable(combinations(free, count) for count in range(len(free) + 1)):
            yield names - set(chosen)


def statuses_of(plan: Plan) -> set[str]:
    return {s for of in plan.steps for s in ({of.target or ""} if of.sub is None else statuses_of(of.sub))}


def joined(statuses: set[str], target: str = "", *sources: str) -> Machine:
    """A machine with one row from each status to each other; to the target only from the sources, if it is given."""
    reached = sorted(statuses - {target}) if target else sorted(statuses)
    free = [(here, f"to-{there}", there) for here in ["start", *sorted(statuses)] for there in reached if here != there]
    return Machine("start", free + [(source, "to-it", target) for source in sources])


def possible(plan: Plan, target: str, step_id: str) -> set[str]:
    """The statuses that validation takes a step to start from: it is no error for them to have the only rows."""
    statuses = statuses_of(plan)
    return {
        source
        for source in {"start", *statuses} - {target}
        if (step_id, "error") not in [(f.step, f.severity) for f in validate(plan, joined(statuses, target, source))]
    }


@pytest.mark.rule("P16", "P32", "P33", "P34")
@settings(max_examples=200, deadline=None)
@given(plans())
def test_every_status_that_some_execution_starts_a_step_in_is_found_possible(plan: Plan) -> None:
    machine = joined(statuses_of(plan))
    runs = Executions(plan, machine)
    never = {finding.step for finding in validate(plan, machine) if finding.code == "plan.never"}
    for unit in plan.units:
        first = unit.steps[0]
        if first.id in never:
            assert not runs.starts[first.id]
        elif first.target is not None:
            assert runs.starts[first.id] <= possible(plan, first.target, first.id)


MACHINES = st.lists(st.sampled_from([*ROWS, *[(a, t + "2", b) for a, t, b in ROWS[:4]]]), unique=True, min_size=1)


def machine_of(rows: list[tuple[str, str, str]]) -> Machine:
    """A machine of those of the rows that can be reached."""
    reached = {"a"}
    for _ in STATUSES:
        reached |= {there for here, _, there in rows if here in reached}
    return Machine("a", [row for row in rows if row[0] in reached] or [("a", "to-b", "b")])


@pytest.mark.rule("P16")
@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=6), MACHINES, st.randoms(use_true_random=False))
def test_a_plan_without_branches_has_an_error_exactly_where_it_gets_stuck(
    targets: list[str], rows: list[tuple[str, str, str]], random: Any
) -> None:
    steps = [step(f"s{n}", target, *[f"s{n - 1}"] * (n > 0)) for n, target in enumerate(targets)]
    random.shuffle(steps)
    machine, plan = machine_of(rows), Plan(steps)
    findings = validate(plan, machine)
    starts = zip(["a", *targets], targets, strict=False)
    assert [(f.step, f.severity) for f in findings] == [
        (f"s{n}", "error") for n, (here, there) in enumerate(starts) if len(machine.rows_to(here, there)) != 1
    ]
    assert (not findings) == bool(Executions(plan, machine).ends)


# Without branches


@pytest.mark.rule("P16")
def test_a_step_without_a_row_to_its_target_is_found() -> None:
    (finding,) = validate(Plan([step("ship", "c")]), Machine("a", ABCD))
    assert (finding.code, finding.step, finding.severity) == ("plan.no_row", "ship", "error")
    assert "step 'ship': no row leads from 'a' to 'c'; add one" in finding.text


@pytest.mark.rule("P16")
def test_a_step_with_two_rows_to_its_target_is_found_with_their_triggers() -> None:
    (finding,) = validate(Plan([step("x", "b")]), Machine("a", [("a", "review", "b"), ("a", "skim", "b")]))
    assert (finding.code, finding.step, finding.severity) == ("plan.two_rows", "x", "error")
    assert "'review' and 'skim' both lead from 'a' to 'b'; leave one row" in finding.text


@pytest.mark.rule("P16")
def test_a_step_starts_from_the_target_of_the_one_before_it_in_the_order_of_the_run() -> None:
    assert found(Plan([step("ship", "c", "review"), step("review", "b")]), *ABCD) == []
    twice = [step("review", "b"), step("again", "b"), step("ship", "c")]
    assert found(Plan(twice), *ABCD) == [("error", "plan.no_row", "again")]


@pytest.mark.rule("P16")
def test_all_findings_are_told_in_the_order_of_the_run() -> None:
    plan = Plan([step("c", "nowhere", "b"), step("a", "b"), step("b", "a", "a")])
    assert found(plan, *ABCD) == [("error", "plan.no_row", "b"), ("error", "plan.no_row", "c")]


# Branches, one by one


@pytest.mark.rule("P33")
def test_a_step_that_mends_a_failure_and_one_that_goes_on_after_it_fit_like_a_line() -> None:
    plan = Plan(
        [
            step("build", "b"),
            step("test", "c", "build"),
            step("mend", "c", "test", when="failed"),
            step("ship", "d", "mend", when="finished"),
        ]
    )
    assert found(plan, *ABCD) == []
    assert found(plan, *ABCD[:2]) == [("error", "plan.no_row", "ship")]


@pytest.mark.rule("P33")
def test_a_failure_leaves_the_status_that_its_handler_starts_from() -> None:
    plan = Plan([step("build", "b"), step("test", "c", "build"), step("mend", "d", "test", when="failed")])
    assert found(plan, *ABCD[:2], ("b", "4", "d")) == []
    assert found(plan, *ABCD) == [("error", "plan.no_row", "mend")]


@pytest.mark.rule("P32", "P33")
def test_a_step_that_a_route_may_leave_out_brings_a_warning_for_what_comes_after() -> None:
    plan = Plan([step("sort", "b", route=choose), step("x", "c", "sort"), step("y", "d", "x", when="finished")])
    assert found(plan, *ABCD) == [("warning", "plan.no_row", "y")]
    assert (
        "no row leads from 'b' to 'd', from where the run may come too; add one"
        in validate(plan, Machine("a", ABCD))[0].text
    )
    assert found(plan, *ABCD, ("b", "4", "d")) == []


@pytest.mark.rule("P33")
def test_what_needs_a_skipped_step_is_skipped_too() -> None:
    chain_of_three = [step("sort", "b", route=choose), step("x", "c", "sort"), step("y", "d", "x")]
    plan = Plan([*chain_of_three, step("z", "e", "y", when="finished")])
    assert found(plan, *ABCD, ("d", "4", "e")) == [("warning", "plan.no_row", "z")]
    assert found(plan, *ABCD, ("b", "4", "e")) == [("warning", "plan.no_row", "z")]
    assert found(plan, *ABCD, ("b", "4", "e"), ("d", "5", "e")) == []


@pytest.mark.rule("P33")
def test_a_step_may_come_before_its_place_if_what_it_needs_is_skipped() -> None:
    plan = Plan(
        [
            step("sort", "b", route=choose),
            step("early", "c", "slow", when="finished"),
            step("other", "d", "sort"),
            step("slow", "e", "sort"),
        ]
    )
    assert [str(unit) for unit in plan.order] == ["sort", "other", "slow", "early"]
    only_after_early = [("a", "1", "b"), ("b", "2", "c"), ("b", "3", "e"), ("c", "4", "d")]
    assert ("error", "plan.no_row", "other") not in found(plan, *only_after_early)
    assert "sort" not in [name for _, _, name in found(plan, *only_after_early)]


@pytest.mark.rule("P33")
def test_declaring_a_step_before_what_it_needs_makes_nothing_less_certain() -> None:
    steps = [
        step("ship", "d", "mend", when="finished"),
        step("build", "b"),
        step("test", "c", "build"),
        step("mend", "c", "test", when="failed"),
    ]
    assert found(Plan(steps), *ABCD) == []


@pytest.mark.rule("P33")
def test_a_handler_that_a_route_has_left_out_does_not_tell_that_nothing_failed() -> None:
    plan = Plan(
        [
            step("risky", "x"),
            step("sort", "b", route=choose),
            step("left-out", "y", "risky", "sort", when="failed"),
            step("chosen", "z", "sort"),
            step("mend", "c", "risky", when="failed"),
        ]
    )
    rows = [("a", "1", "x"), ("a", "2", "b"), ("b", "3", "c"), ("b", "4", "z"), ("b", "5", "y")]
    assert ("error", "plan.no_row", "mend") not in found(plan, *rows)


@pytest.mark.rule("P33")
def test_however_many_steps_may_be_left_out_the_status_before_them_is_not_forgotten() -> None:
    many = [step(f"s{number}", "c", "sort") for number in range(100)]
    plan = Plan([step("sort", "b", route=choose), *many, step("last", "d", "sort", when="finished")])
    assert [f for f in found(plan, *ABCD[:2], ("b", "4", "d")) if f[2] == "last"] == [
        ("warning", "plan.no_row", "last")
    ]
    assert [f for f in found(plan, *ABCD[:2]) if f[2] == "last"] == [("error", "plan.no_row", "last")]


@pytest.mark.rule("P34")
def test_a_step_whose_needs_cannot_end_as_it_asks_is_told_to_run_never() -> None:
    plan = Plan(
        [step("x", "b"), step("y", "c", "x"), step("mend", "d", "x", when="failed"), step("z", "d", "y", "mend")]
    )
    (finding,) = validate(plan, Machine("a", [*ABCD, ("a", "4", "d")]))
    assert (finding.code, finding.step, finding.severity) == ("plan.never", "z", "warning")
    assert "step 'z': it never runs" in finding.text


@pytest.mark.rule("P34")
def test_the_only_handler_in_a_panel_of_two_never_runs() -> None:
    steps = [step("x", "b"), step("y", "b"), step("mend", "c", "x", when="failed")]
    panels = [Panel(["x", "y"], merge)]
    assert found(Plan(steps, panels), *ABCD, ("a", "4", "c")) == [("warning", "plan.never", "mend")]
    both = [*steps, step("mend-y", "c", "y", when="failed")]
    assert ("warning", "plan.never", "mend") not in found(Plan(both, panels), *ABCD, ("a", "4", "c"))


@pytest.mark.rule("P32")
def test_a_panel_goes_one_row_and_has_one_finding() -> None:
    plan = Plan([step("x", "c"), step("y", "c"), step("z", "d", "x", "y")], [Panel(["y", "x"], merge)])
    assert found(plan, *ABCD) == [("error", "plan.no_row", "x")]
    assert found(plan, ("a", "1", "c"), ("c", "2", "d")) == []


@pytest.mark.rule("P32")
def test_of_two_rows_from_a_possible_status_the_triggers_are_told() -> None:
    plan = Plan([step("sort", "b", route=choose), step("x", "c", "sort"), step("y", "d", "x", when="finished")])
    rows = [*ABCD, ("b", "4", "d"), ("b", "5", "d")]
    (finding,) = validate(plan, Machine("a", rows))
    assert (finding.severity, finding.code, finding.step) == ("warning", "plan.two_rows", "y")
    assert "'4' and '5' both lead from 'b' to 'd'" in finding.text


def forked(*rest: Step) -> Plan:
    """A plan that ends in b or in c."""
    return Plan([step("sort", "b", route=choose), step("on", "c", "sort"), *rest])


@pytest.mark.rule("P35")
def test_a_sub_plan_starts_from_the_initial_status_and_its_end_is_the_target() -> None:
    plan = Plan([step("first", "b"), step("part", None, sub=Plan([step("x", "b"), step("y", "c", "x")]))])
    assert found(plan, *ABCD) == []
    plan = Plan([step("part", None, sub=Plan([step("x", "b"), step("y", "d", "x")]))])
    assert found(plan, *ABCD) == [("error", "plan.no_row", "part/y"), ("error", "plan.no_row", "part")]


@pytest.mark.rule("P35")
def test_a_step_whose_sub_plan_ends_where_the_run_stands_needs_no_row() -> None:
    plan = Plan([step("first", "b"), step("part", None, sub=Plan([step("x", "b")]))])
    assert found(plan, ("a", "1", "b")) == []


@pytest.mark.rule("P35")
def test_a_sub_plan_of_several_ends_needs_a_row_to_one_and_should_have_one_to_each() -> None:
    plan = Plan([step("first", "d"), step("part", None, "first", sub=forked())])
    rows = [("a", "1", "b"), ("b", "2", "c"), ("a", "3", "d")]
    assert found(plan, *rows) == [("error", "plan.no_row", "part")]
    assert found(plan, *rows, ("d", "4", "c")) == [("warning", "plan.no_row", "part")]
    assert found(plan, *rows, ("d", "4", "c"), ("d", "5", "b")) == []
    last = Plan([step("part", None, sub=forked()), step("last", "d", "part")])
    both = [*rows[:2], ("a", "4", "c"), ("c", "5", "d")]
    assert found(last, *both) == [("warning", "plan.no_row", "last")]
    assert found(last, *both, ("b", "6", "d")) == []


@pytest.mark.rule("P35")
def test_a_sub_plan_that_is_used_often_is_walked_once() -> None:
    odd = Plan([step("x", "d")])
    plan = Plan([step("one", None, sub=odd), step("two", None, sub=Plan([step("in", None, sub=odd)]))])
    assert [name for _, _, name in found(plan, *ABCD)] == ["one/x", "two/in", "one"]


@pytest.mark.rule("P32")
def test_plans_of_ten_thousand_steps_and_of_thousands_of_branches_are_validated() -> None:
    count = 10_000
    rows = [(f"s{number}", "go", f"s{number + 1}") for number in range(count)]
    line = [step(f"x{n}", f"s{n + 1}", *[f"x{n - 1}"] * (n > 0)) for n in range(count)]
    assert validate(Plan(line), Machine("s0", rows)) == []
    count = 3_000
    branches = [step("sort", "s1", route=choose), *(step(f"x{n}", f"s{n + 1}", "sort") for n in range(1, count))]
    findings = validate(Plan(branches), Machine("s0", rows))
    assert {(finding.severity, finding.code) for finding in findings} == {("warning", "plan.no_row")}
    assert len(findings) == count - 2
