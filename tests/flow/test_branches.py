"""Steps that branch, wait, repeat and nest, and panels: what is refused when they are built."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow.errors import PlanError
from flow.plan import MAX_DEPTH, Loop, Panel, Plan, Retry, Step
from tests.flow.plandraw import again, choose, merge, plans, step

SUB = Plan([step("inner", "b")])


def refused(code: str, name: str | None, make: Callable[[], object]) -> str:
    """Make what must be refused with this code, the step named in error and text; return the text."""
    with pytest.raises(PlanError) as caught:
        make()
    assert (caught.value.code, caught.value.step) == (code, name)
    if name is not None:
        assert f"step {name!r}, " in str(caught.value)
    return str(caught.value)


@pytest.mark.rule("P1", "P28")
def test_a_step_has_no_branch_and_nothing_to_repeat_unless_it_says_so() -> None:
    made = step("x", "b")
    assert (made.when, made.route, made.retry, made.loop, made.sub, made.once) == (
        "succeeded", None, None, None, None, False,
    )  # fmt: skip


# Conditions and routes


@pytest.mark.rule("P20")
@pytest.mark.parametrize("when", ["", "Failed", None, True])
def test_a_condition_of_another_kind_is_refused(when: Any) -> None:
    assert f"when: {when!r}: one of" in refused("plan.when", "y", lambda: step("y", "b", "x", when=when))


@pytest.mark.rule("P20")
def test_a_step_for_a_failure_that_needs_nothing_is_refused() -> None:
    assert "needs no step that could fail" in refused("plan.when", "x", lambda: step("x", "b", when="failed"))


@pytest.mark.rule("P21")
@pytest.mark.parametrize("others", [[], [step("y", "c", "x", when="failed")], [step("y", "c")]])
def test_a_route_with_nothing_to_choose_from_is_refused(others: list[Step]) -> None:
    text = refused("plan.route", "x", lambda: Plan([step("x", "b", route=choose), *others]))
    assert "nothing to choose from" in text


@pytest.mark.rule("P21")
@pytest.mark.parametrize("when", ["succeeded", "finished"])
def test_a_route_may_choose_among_steps_that_do_not_wait_for_a_failure(when: str) -> None:
    plan = Plan([step("x", "b", route=choose), step("y", "c", "x", when=when), step("z", "c", "x", when="failed")])
    assert [of.id for of in plan.dependents("x")] == ["y", "z"]


@pytest.mark.rule("P28")
@pytest.mark.parametrize(
    ("field", "given"),
    [("route", "y"), ("retry", 3), ("once", 1), ("once", None), ("payload_from", "text"), ("sub", [step("x", "b")])],
)
def test_what_is_not_what_a_field_is_for_is_refused(field: str, given: Any) -> None:
    fields = {"gate": "before", "payload": "do it"} | ({"payload": None} if field == "payload_from" else {})
    target = None if field == "sub" else "b"
    assert repr(given) in refused(f"plan.{field}", "x", lambda: step("x", target, **fields | {field: given}))


# Retries


@pytest.mark.rule("P22")
@pytest.mark.parametrize(
    ("field", "given"),
    [
        *[("attempts", given) for given in (1, 0, 1001, 2.0, True, None)],
        *[("delay", given) for given in (-1, 0.0009, float("nan"), float("inf"), True, "1", None)],
        *[("longest", given) for given in (-1, 0.0009, float("nan"), float("inf"), True)],
        *[("factor", given) for given in (0.99, 100.01, 0, float("nan"), True, "2")],
        *[("jitter", given) for given in (-1, 101, 0.5, True)],
    ],
)
def test_a_retry_out_of_bounds_is_refused(field: str, given: Any) -> None:
    text = refused("plan.retry", None, lambda: Retry(**{"attempts": 3, field: given}))
    assert f"retry, {field}: {given!r}: give " in text


@pytest.mark.rule("P22")
def test_a_retry_at_its_bounds_is_taken_and_kept_in_the_parts_that_a_document_holds() -> None:
    made = Retry(1000, delay=0.0014, factor=4 / 3, longest=0, jitter=100)
    assert (made.attempts, made.delay, made.factor, made.longest, made.jitter) == (1000, 0.001, 1.33, 0, 100)
    assert (Retry(2).delay, Retry(2).factor, Retry(2).longest, Retry(2).jitter) == (0, 2, 60, 0)


@pytest.mark.rule("P23")
def test_the_wait_grows_by_the_factor_up_to_the_longest() -> None:
    made = Retry(9, delay=0.5, factor=3, longest=10)
    assert [made.pause(attempt, 0.7) for attempt in range(1, 6)] == [0.5, 1.5, 4.5, 10, 10]
    assert Retry(9, delay=20, longest=10).pause(1, 0) == 10
    assert Retry(9, factor=100).pause(999, 0.9) == 0


@pytest.mark.rule("P23")
def test_jitter_is_at_most_its_percentage_either_way_also_of_the_longest_wait() -> None:
    made = Retry(9, delay=10, longest=20, jitter=25)
    assert [made.pause(1, draw) for draw in (0, 0.5, 0.75)] == [7.5, 10, 11.25]
    assert made.pause(5, 0) == 15
    assert 24.9 < made.pause(5, 0.9999) < 25


@pytest.mark.rule("P23")
@given(
    st.integers(1, 1000),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.001, 1e12),
    st.floats(1, 100),
    st.floats(0.001, 1e12),
    st.integers(0, 100),
)
def test_no_wait_overflows_or_is_negative(
    attempt: int, draw: float, delay: float, factor: float, longest: float, jitter: int
) -> None:
    made = Retry(1000, delay=delay, factor=factor, longest=longest, jitter=jitter)
    assert 0 <= made.pause(attempt, draw) <= made.longest * (1 + jitter / 100)


# Sub-plans and loops


@pytest.mark.rule("P24")
@pytest.mark.parametrize("rounds", [0, -1, 1_000_001, 1.0, True, None])
def test_a_loop_of_no_round_or_too_many_is_refused(rounds: Any) -> None:
    assert f"loop, max: {rounds!r}" in refused("plan.loop", None, lambda: Loop(rounds, again))


@pytest.mark.rule("P24")
def test_a_loop_has_a_guard_and_belongs_to_a_sub_plan() -> None:
    assert "loop, guard: True" in refused("plan.loop", None, lambda: Loop(3, True))  # type: ignore[arg-type]
    assert "without sub" in refused("plan.loop", "x", lambda: step("x", "b", loop=Loop(3, again)))
    assert "give a Loop" in refused("plan.loop", "x", lambda: step("x", None, sub=SUB, loop=3))
    assert step("x", None, sub=SUB, loop=Loop(1_000_000, again)).loop == Loop(1_000_000, again)


@pytest.mark.rule("P8")
def test_a_step_that_leads_nowhere_is_refused() -> None:
    assert "neither a target nor a sub" in refused("plan.target", "x", lambda: step("x", None))


@pytest.mark.rule("P25")
@pytest.mark.parametrize(("field", "given"), [("target", "b"), ("route", choose), ("retry", Retry(2))])
def test_a_step_with_a_sub_plan_has_no_target_route_or_retry(field: str, given: Any) -> None:
    fields = {"gate": "none", "sub": SUB, field: given}
    assert f"together with {field}" in refused("plan.sub", "x", lambda: Step("x", **fields))


def nested(depth: int) -> Plan:
    plan = SUB
    for _ in range(depth - 1):
        plan = Plan([step("outer", None, sub=plan), step("beside", "b")])
    return plan


@pytest.mark.rule("P26")
def test_plans_nest_as_deep_as_a_path_is_long() -> None:
    assert [nested(depth).depth for depth in range(1, MAX_DEPTH + 1)] == [1, 2, 3, 4, 5, 6, 7, 8]
    text = refused("plan.depth", "outer", lambda: nested(9))
    assert "plans would nest 9 deep, at most 8" in text


# What nobody would see


@pytest.mark.rule("P27")
@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("to", ["anna"]),
        ("payload", "do it"),
        ("payload_from", str),
        ("capability", "review"),
        ("ack_timeout", 30),
        ("corrections", 0),
    ],
)
def test_what_a_step_without_a_message_would_ignore_is_refused(field: str, given: Any) -> None:
    text = refused("plan.ungated", "x", lambda: Step("x", target="b", gate="none", **{field: given}))
    assert f"step 'x', {field}: a step with gate 'none'" in text


# Panels


def panel(*steps: Step, **fields: Any) -> Callable[[], Plan]:
    """A plan in which x and y are to be a panel, and what is given stands for steps of the same id."""
    made = {name: step(name, "b") for name in "xy"} | {of.id: of for of in steps}
    return lambda: Plan(list(made.values()), [Panel(**{"steps": ["x", "y"], "reducer": merge, **fields})])


@pytest.mark.rule("P29")
@pytest.mark.parametrize(
    ("fields", "name", "told"),
    [
        ({"steps": []}, None, "it has no step"),
        ({"steps": "xy"}, None, "'xy' is no list"),
        ({"steps": None}, None, "None is no list"),
        ({"steps": [7]}, None, "7 is no id"),
        ({"steps": ["x", "y", "x"]}, "x", "named twice"),
        ({"steps": ["x", "z"]}, "z", "no step of this plan"),
        ({"reducer": None}, "x", "without reducer"),
        ({"reducer": "merge"}, "x", "reducer 'merge'"),
    ],
)
def test_a_panel_of_other_than_steps_of_its_plan_with_a_reducer_is_refused(
    fields: dict[str, Any], name: str | None, told: str
) -> None:
    assert told in refused("plan.panel", name, panel(**fields))


@pytest.mark.rule("P29")
def test_a_step_in_two_panels_is_refused() -> None:
    steps, panels = [step(name, "b") for name in "xyz"], [Panel(["x", "y"], merge), Panel(["z", "y"], merge)]
    assert "in two panels" in refused("plan.panel", "y", lambda: Plan(steps, panels))


@pytest.mark.rule("P29")
def test_a_panel_of_one_needs_no_reducer() -> None:
    (unit,) = Plan([step("x", "b")], [Panel(["x"])]).units
    assert ([of.id for of in unit.steps], unit.panel) == (["x"], Panel(["x"]))


@pytest.mark.rule("P5")
@pytest.mark.parametrize("given", ["x", Panel(["x"]), None])
def test_what_is_no_list_of_panels_is_refused(given: Any) -> None:
    assert "give a list of panels" in refused("plan.panel", None, lambda: Plan([step("x", "b")], given))


@pytest.mark.rule("P29")
def test_what_is_no_panel_is_refused_and_shown() -> None:
    assert "['x'] is no Panel" in refused("plan.panel", None, lambda: Plan([step("x", "b")], [["x"]]))  # type: ignore[list-item]


WITH_A_ROUTE = [step("w", "b"), step("r", "b", route=choose), step("s", "b", "r")]


@pytest.mark.rule("P30")
@pytest.mark.parametrize(
    ("member", "told"),
    [
        (step("y", "c"), "target 'c', but 'b' of 'x'"),
        (step("y", "b", gate="before", payload="do it"), "gate 'before', but 'none' of 'x'"),
        (step("y", "b", gate="after", payload="done"), "gate 'after' does not go"),
        (step("y", "b", "w", when="failed"), "when 'failed' does not go"),
        (step("y", "b", retry=Retry(2)), "it has a retry"),
        (step("y", None, sub=SUB), "it has a sub"),
        (step("y", None, sub=SUB, loop=Loop(2, again)), "it has a sub"),
        (step("y", "b", "r"), "it needs 'r', which routes"),
    ],
)
def test_what_a_step_of_a_panel_cannot_be_is_refused(member: Step, told: str) -> None:
    assert told in refused("plan.panel", "y", panel(*WITH_A_ROUTE, member))


@pytest.mark.rule("P30")
def test_a_step_of_a_panel_that_routes_is_refused() -> None:
    routing = step("y", "b", route=choose)
    assert "it has a route" in refused("plan.panel", "y", panel(routing, step("z", "c", "y")))


@pytest.mark.rule("P31")
@pytest.mark.parametrize(
    ("needs", "waiting", "awaited", "path"),
    [
        ({"y": "x"}, "y", "x", r"[x, y] -> [x, y]"),
        ({"y": "w", "w": "x"}, "y", "x", r"[x, y] -> w -> [x, y]"),
        ({"x": "v", "v": "w", "w": "y"}, "x", "y", r"[x, y] -> v -> w -> [x, y]"),
    ],
)
def test_a_step_of_a_panel_that_waits_for_another_of_it_is_refused(
    needs: dict[str, str], waiting: str, awaited: str, path: str
) -> None:
    text = refused("plan.panel", waiting, panel(*(step(name, "b", need) for name, need in sorted(needs.items()))))
    assert f"it waits for {awaited!r}, which is in its panel" in text
    assert path in text


@pytest.mark.rule("P4")
def test_a_circle_of_steps_is_told_as_one_though_a_panel_lies_on_it() -> None:
    text = refused("plan.needs", "y", panel(step("y", "b", "w"), step("w", "b", "y")))
    assert "y -> w -> y; take one need out" in text


@pytest.mark.rule("P31")
def test_panels_that_wait_on_each_other_are_refused_and_the_circle_printed() -> None:
    steps = [step("a", "b", "d"), step("b", "b"), step("c", "b", "b"), step("d", "b", "m"), step("m", "b", "c")]
    panels = [Panel(["a", "b"], merge), Panel(["d"]), Panel(["c"])]
    text = refused("plan.panel", "a", lambda: Plan(steps, panels))
    assert "panels that wait on each other" in text
    assert "[a, b] -> [d] -> m -> [c] -> [a, b]" in text
    assert Plan(steps, panels[1:]).units


# Units


@pytest.mark.rule("P11")
def test_a_panel_is_one_unit_where_its_first_step_is_declared() -> None:
    plan = Plan(
        [step("a", "b"), step("x", "b", "c"), step("b", "b"), step("y", "b"), step("c", "b")],
        [Panel(["y", "x"], merge)],
    )
    assert list(map(str, plan.units)) == ["a", "[x, y]", "b", "c"]
    assert list(map(str, plan.order)) == ["a", "b", "c", "[x, y]"]


@pytest.mark.rule("P11")
def test_a_step_and_what_needs_it_are_found_by_id() -> None:
    plan = Plan([step("a", "b"), step("d", "b", "c", "a"), step("c", "b", "a"), step("e", "b", "d")])
    assert plan.step("c") is plan.steps[2]
    assert [of.id for of in plan.dependents("a")] == ["d", "c"]
    assert plan.dependents("e") == ()
    for find in (plan.step, plan.dependents):
        assert "'z' is no step" in refused("plan.id", None, lambda find=find: find("z"))  # type: ignore[misc]


@pytest.mark.rule("P11", "P21", "P29", "P30", "P31")
@given(plans())
def test_units_hold_each_step_once_and_their_order_keeps_the_needs_and_takes_the_first_that_is_ready(
    plan: Plan,
) -> None:
    assert sorted(of.id for unit in plan.units for of in unit.steps) == sorted(of.id for of in plan.steps)
    done: set[str] = set()
    for taken in plan.order:
        ready = [u for u in plan.units if done >= {n for s in u.steps for n in s.needs} and u.steps[0].id not in done]
        assert taken is ready[0]
        done |= {of.id for of in taken.steps}
    assert done == {of.id for of in plan.steps}
