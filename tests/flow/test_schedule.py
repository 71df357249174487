"""Which unit of a plan is next: what becomes of steps is told to a schedule, and nothing is run."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flow import Panel, Plan, PlanError, Step
from flow.machine import Failure
from flow.plan import Unit
from flow.schedule import Schedule


def step(id_: str, *needs: str, **fields: Any) -> Step:
    return Step(id_, target="b", needs=list(needs), gate="none", **fields)


def route(record: Any) -> list[str]:
    raise AssertionError("a schedule calls nothing")


def first(original: Any, records: Any) -> Any:
    raise AssertionError("a schedule calls nothing")


def panel(*steps: str) -> Panel:
    return Panel(steps, first)


def failure(id_: str) -> Failure:
    return Failure(id_, "Odd", f"{id_} broke", 1)


def ids(steps: Iterable[Step]) -> list[str]:
    return [step.id for step in steps]


class Told:
    """A schedule that is told of units by the id of their first step."""

    def __init__(self, *steps: Step, panels: Iterable[Panel] = ()) -> None:
        self.plan = Plan(steps, panels)
        self.schedule = Schedule(self.plan)

    def _unit(self, id_: str) -> Unit:
        return next(unit for unit in self.plan.units if unit.steps[0].id == id_)

    def next(self) -> list[str]:
        unit = self.schedule.next()
        return [] if unit is None else ids(unit.steps)

    def succeeded(self, id_: str, chosen: Iterable[str] | None = None) -> list[str]:
        return ids(self.schedule.succeeded(self._unit(id_), chosen))

    def failed(self, id_: str) -> list[str]:
        return ids(self.schedule.failed(self._unit(id_), failure(id_)))

    def catches(self, id_: str) -> bool:
        return self.schedule.catches(self._unit(id_))

    def handled_by(self, id_: str) -> Failure | None:
        return self.schedule.failure_for(self.plan.step(id_))


# Ready


@pytest.mark.rule("R46")
def test_of_the_ready_ones_the_first_declared_is_next() -> None:
    told = Told(step("late", "early"), step("early"), step("other"))
    assert told.next() == ["early"]
    told.succeeded("early")
    assert [told.next(), told.next(), told.next()] == [["late"], ["other"], []]


@pytest.mark.rule("R46")
def test_a_unit_waits_for_every_need() -> None:
    told = Told(step("both", "left", "right"), step("left"), step("right"))
    told.next()
    told.succeeded("left")
    assert told.next() == ["right"]
    assert told.next() == []
    told.succeeded("right")
    assert told.next() == ["both"]


@pytest.mark.rule("R46")
def test_a_panel_stands_where_its_first_declared_step_does_and_has_its_steps_in_that_order() -> None:
    told = Told(step("one"), step("two"), step("three"), step("four"), panels=[panel("four", "two")])
    assert [told.next(), told.next(), told.next()] == [["one"], ["two", "four"], ["three"]]


@pytest.mark.rule("R46")
def test_a_panel_waits_for_the_needs_of_all_its_steps() -> None:
    told = Told(step("one"), step("two", "three"), step("three"), panels=[panel("one", "two")])
    assert told.next() == ["three"]
    told.succeeded("three")
    assert told.next() == ["one", "two"]


@pytest.mark.rule("R46")
def test_a_need_that_failed_or_was_skipped_is_waited_for_no_longer() -> None:
    told = Told(
        step("broken"), step("skipped", "broken"), step("goes-on", "skipped", when="finished"),
        step("mends", "broken", when="failed"),
    )  # fmt: skip
    told.next()
    told.failed("broken")
    assert [told.next(), told.next()] == [["goes-on"], ["mends"]]


@pytest.mark.rule("R46")
def test_nothing_is_next_twice() -> None:
    told = Told(step("one"), step("two", "one"))
    assert [told.next(), told.next()] == [["one"], []]


# Admitted

NEEDS = {"succeeded": "good", "failed": "bad", "skipped": "gone"}


@pytest.mark.rule("R47")
@pytest.mark.parametrize(
    ("when", "needs", "admitted"),
    [
        ("succeeded", [], True),
        ("succeeded", ["succeeded"], True),
        ("succeeded", ["failed"], False),
        ("succeeded", ["skipped"], False),
        ("succeeded", ["succeeded", "failed"], False),
        ("succeeded", ["succeeded", "skipped"], False),
        ("finished", [], True),
        ("finished", ["succeeded"], True),
        ("finished", ["skipped"], True),
        ("finished", ["succeeded", "skipped"], True),
        ("finished", ["failed"], False),
        ("finished", ["skipped", "failed"], False),
        ("failed", ["failed"], True),
        ("failed", ["failed", "succeeded"], True),
        ("failed", ["failed", "skipped"], True),
        ("failed", ["succeeded"], False),
        ("failed", ["skipped"], False),
        ("failed", ["succeeded", "skipped"], False),
    ],
)
def test_a_step_is_admitted_by_what_became_of_its_needs(when: Any, needs: list[str], admitted: bool) -> None:
    told = Told(
        step("good"), step("bad"), step("gone", "bad"), step("handler", "bad", when="failed"),
        step("asked", *map(NEEDS.__getitem__, needs), when=when),
    )  # fmt: skip
    taken = []
    while unit := told.next():
        taken += unit
        if unit == ["bad"]:
            told.failed("bad")
        else:
            told.succeeded(unit[0])
    assert ("asked" in taken) == admitted
    assert told.schedule.became["asked"] == ("succeeded" if admitted else "skipped")


@pytest.mark.rule("R47", "R48")
def test_a_panel_with_a_step_that_is_not_admitted_is_skipped_as_a_whole() -> None:
    told = Told(
        step("broken"), step("fine"), step("one", "fine"), step("two", "broken"), panels=[panel("one", "two")]
    )  # fmt: skip
    told.next()
    assert told.failed("broken") == []
    told.next()
    assert told.succeeded("fine") == ["one", "two"]
    assert told.next() == []


# Skipped


@pytest.mark.rule("R48")
def test_skips_cascade_at_once_and_free_what_goes_on_after_them() -> None:
    told = Told(
        step("broken"), step("a", "broken"), step("b", "a"), step("c", "b", when="finished"), step("d", "a", "c")
    )
    told.next()
    assert told.failed("broken") == ["a", "b"]
    assert told.next() == ["c"]
    assert told.succeeded("c") == ["d"]


@pytest.mark.rule("R48")
def test_a_skip_is_reported_by_the_unit_that_brought_it_about_and_by_no_other() -> None:
    told = Told(
        step("broken"), step("fine"), step("waits", "broken", "fine"), step("fallback", "broken", when="failed")
    )
    told.next()
    assert told.failed("broken") == []
    told.next()
    assert told.succeeded("fine") == ["waits"]
    told.next()
    assert told.succeeded("fallback") == []


@pytest.mark.rule("R48")
def test_handlers_are_skipped_where_nothing_failed() -> None:
    told = Told(step("fine"), step("fallback", "fine", when="failed"), step("after", "fallback", when="finished"))
    told.next()
    assert told.succeeded("fine") == ["fallback"]
    assert told.next() == ["after"]


# Caught


@pytest.mark.rule("R49")
@pytest.mark.parametrize("when", ["succeeded", "finished"])
def test_a_step_that_goes_on_after_success_handles_nothing(when: Any) -> None:
    assert not Told(step("broken"), step("next", "broken", when=when)).catches("broken")


@pytest.mark.rule("R49")
def test_a_failure_is_caught_by_a_direct_handler_only() -> None:
    told = Told(step("broken"), step("next", "broken"), step("fallback", "next", when="failed"))
    assert not told.catches("broken")
    assert told.catches("next")


@pytest.mark.rule("R49")
def test_a_handler_that_was_skipped_handles_nothing_any_more() -> None:
    told = Told(
        step("chooses", route=route), step("broken"), step("next", "chooses"),
        step("fallback", "chooses", "broken", when="failed"),
    )  # fmt: skip
    assert told.catches("broken")
    told.succeeded("chooses", ["next"])
    assert not told.catches("broken")


@pytest.mark.rule("R49")
def test_a_panel_is_caught_only_if_each_of_its_steps_has_a_handler() -> None:
    steps = [step("one"), step("two"), step("fallback", "one", when="failed")]
    assert not Told(*steps, panels=[panel("one", "two")]).catches("one")
    assert Told(*steps, step("other", "two", when="failed"), panels=[panel("one", "two")]).catches("one")
    shared = step("shared", "one", "two", when="failed")
    assert Told(*steps[:2], shared, panels=[panel("one", "two")]).catches("one")


# The failure handled


@pytest.mark.rule("R50")
def test_of_several_failures_a_handler_reads_that_of_the_need_declared_first() -> None:
    told = Told(
        step("fine"), step("second"), step("third"), step("fallback", "third", "second", "fine", when="failed"),
        step("other", "third", when="failed"),
    )  # fmt: skip
    told.succeeded("fine")
    told.failed("third")
    told.failed("second")
    assert told.handled_by("fallback") == failure("second")
    assert told.handled_by("other") == failure("third")


@pytest.mark.rule("R50")
def test_a_step_that_is_no_handler_handles_nothing() -> None:
    told = Told(step("broken"), step("fallback", "broken", when="failed"), step("after", "fallback"))
    told.failed("broken")
    told.succeeded("fallback")
    assert told.handled_by("after") is None


# Routes


@pytest.mark.rule("R51")
def test_what_a_route_does_not_choose_is_skipped_for_good_handlers_too() -> None:
    told = Told(
        step("chooses", route=route), step("left", "chooses"), step("right", "chooses"),
        step("anyhow", "chooses", when="finished"), step("fallback", "chooses", when="failed"),
    )  # fmt: skip
    told.next()
    assert sorted(told.succeeded("chooses", ["right"])) == ["anyhow", "fallback", "left"]
    assert [told.next(), told.next()] == [["right"], []]


@pytest.mark.rule("R51")
def test_a_route_may_choose_several_or_none() -> None:
    for chosen in (["left", "right"], ["left"], []):
        told = Told(step("chooses", route=route), step("left", "chooses"), step("right", "chooses"))
        told.next()
        told.succeeded("chooses", chosen)
        assert [unit for _ in range(2) if (unit := told.next())] == [[name] for name in chosen]


@pytest.mark.rule("R51")
def test_what_was_skipped_for_good_stays_skipped_when_its_other_needs_are_done() -> None:
    told = Told(step("chooses", route=route), step("slow"), step("both", "chooses", "slow"), step("one", "chooses"))
    told.next()
    assert told.succeeded("chooses", ["one"]) == ["both"]
    assert told.next() == ["slow"]
    assert told.succeeded("slow") == []
    assert [told.next(), told.next()] == [["one"], []]


@pytest.mark.rule("R51")
def test_a_chosen_step_still_waits_for_its_other_needs_and_is_admitted_by_them() -> None:
    told = Told(
        step("chooses", route=route), step("broken"), step("both", "chooses", "broken"),
        step("fallback", "broken", when="failed"),
    )  # fmt: skip
    told.next()
    assert told.succeeded("chooses", ["both"]) == []
    told.next()
    assert told.failed("broken") == ["both"]


@pytest.mark.rule("R51")
def test_a_failure_whose_last_handler_a_route_skips_is_lost() -> None:
    told = Told(
        step("broken"), step("chooses", route=route), step("next", "chooses"),
        step("fallback", "broken", "chooses", when="failed"),
        step("other", "broken", "chooses", when="failed"),
    )  # fmt: skip
    told.failed("broken")
    assert told.schedule.lost is None
    told.succeeded("chooses", ["next"])
    assert told.schedule.lost == failure("broken")


@pytest.mark.rule("R51")
def test_a_failure_with_a_handler_left_is_not_lost() -> None:
    told = Told(
        step("broken"), step("chooses", route=route), step("next", "chooses"),
        step("fallback", "broken", "chooses", when="failed"), step("other", "broken", when="failed"),
    )  # fmt: skip
    told.failed("broken")
    told.succeeded("chooses", ["next"])
    assert told.schedule.lost is None


@pytest.mark.rule("R49")
def test_a_handler_that_fails_leaves_the_failure_that_it_handled_handled() -> None:
    told = Told(step("broken"), step("fallback", "broken", when="failed"), step("last", "fallback", when="failed"))
    told.failed("broken")
    told.next()
    told.failed("fallback")
    assert told.schedule.lost is None
    assert told.handled_by("last") == failure("fallback")


# Against the definition


class Definition:
    """What R46 to R51 say, found anew at each question from nothing but the plan and what was told."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.told: dict[str, str] = {}
        self.chosen: dict[str, list[str]] = {}

    def became(self) -> dict[str, str]:
        became = dict(self.told)
        for router, chosen in self.chosen.items():
            for dependent in self.plan.steps:
                if router in dependent.needs and dependent.id not in chosen:
                    became[dependent.id] = "skipped"
        while True:
            found = [
                unit for unit in self.plan.units
                if self._is_ready(unit, became) and not all(self._admits(step, became) for step in unit.steps)
            ]  # fmt: skip
            if not found:
                return became
            for unit in found:
                became |= {step.id: "skipped" for step in unit.steps}

    def next(self) -> list[str]:
        became = self.became()
        return next((ids(unit.steps) for unit in self.plan.units if self._is_ready(unit, became)), [])

    def handlers(self, failed: str) -> list[str]:
        became = self.became()
        return [
            step.id for step in self.plan.steps
            if failed in step.needs and step.when == "failed" and became.get(step.id) != "skipped"
        ]  # fmt: skip

    def _is_ready(self, unit: Unit, became: dict[str, str]) -> bool:
        needs = {need for step in unit.steps for need in step.needs}
        return not any(step.id in became for step in unit.steps) and needs <= became.keys()

    def _admits(self, step: Step, became: dict[str, str]) -> bool:
        needs = [became[need] for need in step.needs]
        match step.when:
            case "succeeded":
                return all(need == "succeeded" for need in needs)
            case "finished":
                return all(need in ("succeeded", "skipped") for need in needs)
        return any(need == "failed" for need in needs)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = [f"s{number}" for number in range(draw(st.integers(1, 9)))]
    earlier = draw(st.permutations(names))
    needs = {name: draw(st.sets(st.sampled_from(earlier[:place]), max_size=3)) if place else set()
             for place, name in enumerate(earlier)}  # fmt: skip
    whens = {name: draw(st.sampled_from(["succeeded", "finished", "failed"] if needs[name] else ["succeeded"]))
             for name in names}  # fmt: skip
    routed = {need for name in names if whens[name] != "failed" for need in needs[name]}
    routers = draw(st.sets(st.sampled_from(sorted(routed)))) if routed else set()
    free = [name for name in names
            if whens[name] != "failed" and name not in routers and not needs[name] & routers]  # fmt: skip
    panels = []
    for _ in range(draw(st.integers(0, 2))):
        if members := draw(st.lists(st.sampled_from(free), max_size=3, unique=True)) if free else []:
            panels.append(panel(*members))
            free = [name for name in free if name not in members]
    steps = [
        step(name, *sorted(needs[name]), when=whens[name], route=route if name in routers else None) for name in names
    ]
    try:
        return Plan(steps, panels)
    except PlanError:  # two steps of a panel of which one waits for the other
        assume(False)
        raise


@pytest.mark.rule("R46", "R47", "R48", "R49", "R50", "R51")
@given(plans(), st.data())
def test_a_schedule_says_what_its_definition_says(plan: Plan, data: st.DataObject) -> None:
    schedule, definition = Schedule(plan), Definition(plan)
    while (unit := schedule.next()) is not None:
        assert ids(unit.steps) == definition.next()
        before = definition.became()
        router = unit.steps[0] if unit.steps[0].route else None
        assert schedule.catches(unit) == all(definition.handlers(step.id) for step in unit.steps)
        for handler in unit.steps:
            failed = [failure(s.id) for s in plan.steps if s.id in handler.needs and before[s.id] == "failed"]
            wanted = failed[0] if handler.when == "failed" else None
            assert schedule.failure_for(handler) == (wanted and _of_unit(plan, wanted))
        if data.draw(st.booleans(), "fails"):
            definition.told |= dict.fromkeys(ids(unit.steps), "failed")
            skipped = schedule.failed(unit, failure(unit.steps[0].id))
        else:
            definition.told |= dict.fromkeys(ids(unit.steps), "succeeded")
            chosen = None
            if router is not None:
                open_to_it = [step.id for step in plan.steps if router.id in step.needs and step.when != "failed"]
                chosen = definition.chosen[router.id] = data.draw(st.lists(st.sampled_from(open_to_it)), "chosen")
            skipped = schedule.succeeded(unit, chosen)
        after = definition.became()
        assert schedule.became == after
        assert sorted(ids(skipped)) == sorted(after.keys() - before.keys() - set(ids(unit.steps)))
        lost = [step.id for step in plan.steps if after.get(step.id) == "failed" and not definition.handlers(step.id)]
        assert (schedule.lost is not None) == bool(lost)
    assert definition.next() == []
    assert schedule.became.keys() == {step.id for step in plan.steps}


def _of_unit(plan: Plan, failed: Failure) -> Failure:
    """Return the failure of the unit that a step is in, which is that of all its steps."""
    unit = next(unit for unit in plan.units if failed.step in ids(unit.steps))
    return failure(unit.steps[0].id)
