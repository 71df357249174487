from dataclasses import FrozenInstanceError
from itertools import pairwise
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow.errors import PlanError
from flow.plan import Draft, Plan, Step

pytestmark = pytest.mark.anyio

EVIDENCE = {"source": "build log", "evidence": (bytes(32),)}


def step(id: str, *needs: str, target: str = "reviewed", **fields: Any) -> Step:  # noqa: A002
    return Step(id, **{"target": target, "needs": needs, "payload": f"Do {id}", **fields})


def refused(code: str, id: str = "review", **fields: Any) -> str:  # noqa: A002
    """Build a step that must be refused with this code, its id named in error and text; return the text."""
    with pytest.raises(PlanError) as caught:
        step(id, **fields)
    assert (caught.value.code, caught.value.step) == (code, id)
    assert f"step {id!r}, {code.removeprefix('plan.')}: " in str(caught.value)
    return str(caught.value)


@pytest.mark.rule("P1")
def test_a_step_asks_every_peer_before_it_fires_and_allows_one_correction() -> None:
    made = Step("review", target="reviewed", payload="Check release 1.4")
    assert (made.needs, made.to, made.gate, made.ack_timeout, made.corrections) == ((), (), "before", None, 1)
    assert (made.payload_from, made.capability) == (None, None)


@pytest.mark.rule("P2")
@pytest.mark.parametrize("id", ["", " ", "a b", "a#2", "-a", "a\n", "x" * 65, None, 7])
def test_an_id_that_is_no_name_is_refused_and_shown(id: Any) -> None:  # noqa: A002
    with pytest.raises(PlanError) as caught:
        Step(id, target="reviewed", payload="x")
    assert caught.value.code == "plan.id"
    assert f"step {id!r}" in str(caught.value)


@pytest.mark.rule("P2")
def test_an_id_taken_twice_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="step 'review', id: another step has this id") as caught:
        Plan([step("review"), step("ship"), step("review")])
    assert (caught.value.code, caught.value.step) == ("plan.id", "review")


@pytest.mark.rule("P3")
def test_a_need_that_is_no_step_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="step 'ship', needs: 'reviwe' is no step") as caught:
        Plan([step("review"), step("ship", "review", "reviwe")])
    assert (caught.value.code, caught.value.step) == ("plan.needs", "ship")


@pytest.mark.rule("P3")
def test_a_need_named_twice_is_refused() -> None:
    assert "'a' is named twice" in refused("plan.needs", needs=["a", "b", "a"])


@pytest.mark.rule("P3")
@pytest.mark.parametrize("need", ["", "a#2", None])
def test_a_need_that_is_no_name_is_refused(need: Any) -> None:
    assert f"{need!r} is no name of steps" in refused("plan.needs", needs=[need])


@pytest.mark.rule("P4")
@pytest.mark.parametrize(
    ("needs", "path"),
    [
        ({"a": "a"}, "a -> a"),
        ({"a": "b", "b": "a"}, "a -> b -> a"),
        ({"a": "c", "b": "a", "c": "b"}, "a -> c -> b -> a"),
        ({"x": "a", "a": "b", "b": "a"}, "a -> b -> a"),
    ],
)
def test_a_circle_of_needs_is_refused_and_printed_as_a_path(needs: dict[str, str], path: str) -> None:
    with pytest.raises(PlanError, match=f": {path}; take one need out") as caught:
        Plan([step("first"), *(step(id, "first", need) for id, need in needs.items())])  # noqa: A001
    assert caught.value.code == "plan.needs"
    assert caught.value.step in path.split(" -> ")


@pytest.mark.rule("P5")
@pytest.mark.parametrize("field", ["needs", "to"])
@pytest.mark.parametrize("given", ["reviewer", None, 7])
def test_a_text_in_place_of_a_list_is_refused(field: str, given: Any) -> None:
    assert f"{given!r} is no list" in refused(f"plan.{field}", **{field: given})


@pytest.mark.rule("P5")
@pytest.mark.parametrize("given", ["review", None, step("review")])
def test_what_is_no_list_of_steps_is_refused(given: Any) -> None:
    with pytest.raises(PlanError, match="give a list of steps") as caught:
        Plan(given)
    assert caught.value.code == "plan.steps"


@pytest.mark.rule("P5")
def test_what_is_no_step_is_refused_and_shown() -> None:
    with pytest.raises(PlanError, match="'ship' is no Step"):
        Plan([step("review"), "ship"])  # type: ignore[list-item]


@pytest.mark.rule("P6")
def test_a_plan_without_steps_is_refused() -> None:
    with pytest.raises(PlanError, match="at least one") as caught:
        Plan([])
    assert caught.value.code == "plan.steps"


@pytest.mark.rule("P7")
@pytest.mark.parametrize("payload", ["", " \t\r\n", "\ud800", b"bytes", 7])
def test_a_payload_that_is_blank_or_no_text_is_refused(payload: Any) -> None:
    assert "not blank" in refused("plan.payload", payload=payload)


@pytest.mark.rule("P7")
@pytest.mark.parametrize("payload", ["\u00a0", "\x0b", " x "])
def test_only_tab_line_ends_and_space_count_as_blank(payload: str) -> None:
    assert step("review", payload=payload).payload == payload


@pytest.mark.rule("P7")
@pytest.mark.parametrize("gate", ["before", "after", "none"])
def test_a_payload_and_a_function_for_it_are_refused_together(gate: str) -> None:
    assert "choose one" in refused("plan.payload", payload="x", payload_from=str, gate=gate)


@pytest.mark.rule("P7")
@pytest.mark.parametrize("gate", ["before", "after"])
def test_a_gated_step_that_says_nothing_is_refused(gate: str) -> None:
    assert "give payload or payload_from" in refused("plan.payload", payload=None, gate=gate)


@pytest.mark.rule("P7")
def test_a_step_that_is_not_gated_may_say_nothing() -> None:
    assert step("review", payload=None, gate="none").payload is None


@pytest.mark.rule("P8")
@pytest.mark.parametrize("target", ["", "a b", 7])
def test_a_target_that_is_no_name_is_refused(target: Any) -> None:
    assert f"{target!r} is no status" in refused("plan.target", target=target)


@pytest.mark.rule("P8")
@pytest.mark.parametrize("gate", ["", "Before", None])
def test_a_gate_of_another_kind_is_refused(gate: Any) -> None:
    assert f"{gate!r}: one of" in refused("plan.gate", gate=gate)


@pytest.mark.rule("P9")
@pytest.mark.parametrize("timeout", [0, -1, 0.0009995, float("nan"), float("inf"), True, "30", 2**53 / 1000 + 1])
def test_an_ack_timeout_that_is_no_time_is_refused(timeout: Any) -> None:
    assert f"{timeout!r}: seconds" in refused("plan.ack_timeout", ack_timeout=timeout)


@pytest.mark.rule("P9")
@pytest.mark.parametrize("timeout", [0.001, 30, 2.5, None])
def test_an_ack_timeout_from_a_millisecond_is_taken(timeout: float | None) -> None:
    assert step("review", ack_timeout=timeout).ack_timeout == timeout


@pytest.mark.rule("P9")
@pytest.mark.parametrize("corrections", [-1, 16, 1.0, True, None])
def test_a_number_of_corrections_beyond_what_acks_allow_is_refused(corrections: Any) -> None:
    assert f"{corrections!r}: a whole number" in refused("plan.corrections", corrections=corrections)


@pytest.mark.rule("P9")
@pytest.mark.parametrize("corrections", [0, 15])
def test_no_correction_and_fifteen_are_taken(corrections: int) -> None:
    assert step("review", corrections=corrections).corrections == corrections


@pytest.mark.rule("P10")
@pytest.mark.parametrize("member", ["", "a#2", "did:key:z6Mk", None])
def test_a_member_that_is_no_name_is_refused(member: Any) -> None:
    assert f"{member!r} is no name of members" in refused("plan.to", to=[member])


@pytest.mark.rule("P10")
def test_a_member_addressed_twice_is_refused() -> None:
    assert "'b' is named twice" in refused("plan.to", to=["a", "b", "b"])


@pytest.mark.rule("P10")
@pytest.mark.parametrize("capability", ["", "Review", "-a", "a b", "x" * 65, 7])
def test_a_capability_of_another_form_is_refused(capability: Any) -> None:
    assert f"{capability!r}: the form is" in refused("plan.capability", capability=capability)


@pytest.mark.rule("P10")
def test_a_capability_is_lower_case_and_may_hold_dots() -> None:
    assert step("review", capability="code.review_v2").capability == "code.review_v2"


def ids(plan: Plan) -> list[str]:
    return [step.id for unit in plan.order for step in unit.steps]


@pytest.mark.rule("P11")
def test_of_the_ready_steps_the_one_declared_first_is_next() -> None:
    plan = Plan([step("last", "a", "b"), step("b"), step("b2", "b"), step("a"), step("a2", "a")])
    assert ids(plan) == ["b", "b2", "a", "last", "a2"]
    assert [step.id for step in plan.steps] == ["last", "b", "b2", "a", "a2"]


@pytest.mark.rule("P12")
def test_a_step_cannot_be_changed_nor_can_its_lists_from_outside() -> None:
    needs = ["a"]
    made = Step("review", target="reviewed", payload="x", needs=needs)
    needs.append("b")
    assert made.needs == ("a",)
    with pytest.raises(FrozenInstanceError):
        made.target = "released"  # type: ignore[misc]


@pytest.mark.rule("P12")
def test_two_plans_may_share_their_steps() -> None:
    shared = [step("a"), step("b", "a")]
    first, second = Plan(shared), Plan([*shared, step("c", "b")])
    assert (ids(first), ids(second)) == (["a", "b"], ["a", "b", "c"])
    shared.clear()
    assert len(first.steps) == 2


@pytest.mark.rule("P13")
async def test_a_payload_stands_for_a_draft_of_it() -> None:
    assert await step("review", payload="Check").draft({}) == Draft("Check")


@pytest.mark.rule("P13")
async def test_a_payload_function_may_be_sync_or_async_and_give_text_or_draft() -> None:
    async def later(record: dict[str, str]) -> Draft:
        await anyio.lowlevel.checkpoint()
        return Draft(f"Check {record['release']}", confidence=80)

    def now(record: dict[str, str]) -> str:
        return f"Check {record['release']}"

    record = {"release": "1.4"}
    assert await step("a", payload=None, payload_from=now).draft(record) == Draft("Check 1.4")
    assert await step("a", payload=None, payload_from=later).draft(record) == Draft("Check 1.4", confidence=80)


@pytest.mark.rule("P13")
async def test_a_payload_function_cannot_change_the_record() -> None:
    def spoil(record: dict[str, list[int]]) -> str:
        record["log"].clear()
        return "x"

    record = {"log": [1]}
    await step("a", payload=None, payload_from=spoil).draft(record)
    assert record == {"log": [1]}


@pytest.mark.rule("P13")
@pytest.mark.parametrize("made", [None, 7, b"bytes", "", " "])
async def test_a_payload_function_that_gives_neither_text_nor_draft_is_refused(made: Any) -> None:
    with pytest.raises(PlanError) as caught:
        await step("a", payload=None, payload_from=lambda record: made).draft({})
    assert caught.value.code == "plan.draft"


@pytest.mark.rule("P13")
async def test_what_a_payload_function_raises_comes_out_as_it_was() -> None:
    error = LookupError("no such release")

    def fail(record: Any) -> str:
        raise error

    with pytest.raises(LookupError) as caught:
        await step("a", payload=None, payload_from=fail).draft({})
    assert caught.value is error


@pytest.mark.rule("P14")
def test_a_draft_is_assumed_plain_text_unless_it_says_otherwise() -> None:
    draft = Draft("x")
    assert (draft.epistemic, draft.media_type, draft.confidence) == ("assumed", None, None)
    assert (draft.provenance, draft.context) == (None, ())


@pytest.mark.rule("P14")
def test_a_draft_cannot_be_changed_nor_can_its_context_from_outside() -> None:
    context = [bytes(32)]
    draft = Draft("x", context=context)
    context.clear()
    assert draft.context == (bytes(32),)
    with pytest.raises(FrozenInstanceError):
        draft.payload = ""  # type: ignore[misc]


@pytest.mark.rule("P15")
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"payload": " "}, "payload ' '"),
        ({"payload": b"x"}, "payload b'x'"),
        ({"epistemic": "certain"}, "epistemic 'certain'"),
        ({"confidence": -1}, "confidence -1"),
        ({"confidence": 101}, "confidence 101"),
        ({"confidence": 0.5}, "confidence 0.5"),
        ({"confidence": True}, "confidence True"),
        ({"provenance": {}}, "name its source"),
        ({"provenance": {"evidence": (bytes(32),)}}, "name its source"),
        ({"epistemic": "verified"}, "source and evidence"),
        ({"epistemic": "verified", "provenance": {"source": "log"}}, "source and evidence"),
        ({"context": [bytes(31)]}, "32 bytes"),
        ({"context": ["b3:"]}, "32 bytes"),
        ({"context": ["b" * 32]}, "32 bytes"),
        ({"context": [bytes(32)] * 65}, "at most 64"),
    ],
)
def test_a_draft_that_no_message_could_carry_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError, match=named) as caught:
        Draft(**{"payload": "x", **fields})
    assert caught.value.code == "plan.draft"


@pytest.mark.rule("P15")
@pytest.mark.parametrize(
    "fields",
    [
        {"epistemic": "verified", "provenance": EVIDENCE},
        {"epistemic": "untrusted-input"},
        {"epistemic": "inferred", "confidence": 0},
        {"confidence": 100, "context": [bytes(32)] * 64},
    ],
)
def test_a_draft_within_the_bounds_is_taken(fields: dict[str, Any]) -> None:
    assert Draft("x", **fields).payload == "x"


IDS = st.sampled_from("abcdefg")
GRAPHS = st.dictionaries(IDS, st.sets(IDS, max_size=3), min_size=1, max_size=7)


def reaches_itself(graph: dict[str, set[str]], start: str) -> bool:
    reached: set[str] = set()
    left = set(graph[start])
    while left:
        reached |= left
        left = {need for id_ in left for need in graph[id_]} - reached
    return start in reached


@pytest.mark.rule("P3", "P4", "P11")
@given(GRAPHS)
def test_exactly_the_graphs_without_a_circle_are_plans_and_their_order_keeps_the_needs(
    graph: dict[str, set[str]],
) -> None:
    known = all(needs <= graph.keys() for needs in graph.values())
    circular = known and any(reaches_itself(graph, id_) for id_ in graph)
    try:
        plan = Plan([step(id_, *sorted(needs)) for id_, needs in graph.items()])
    except PlanError as error:
        assert not known or circular
        if known:
            path = str(error).split(": ")[-1].split(";")[0].split(" -> ")
            assert path[0] == path[-1]
            assert all(need in graph[id_] for id_, need in pairwise(path))
        return
    assert known
    assert not circular
    done: list[str] = []
    for taken in (step for unit in plan.order for step in unit.steps):
        first_ready = next(id_ for id_, needs in graph.items() if id_ not in done and needs <= set(done))
        assert taken.id == first_ready
        done.append(taken.id)
    assert set(done) == set(graph)
