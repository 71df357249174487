"""Sub-plans and loops: a plan inside a step, once or several times, in the same thread."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from envelope import Roster
from flow import (
    AckTimeout,
    Call,
    Declined,
    Escalated,
    Limits,
    Loop,
    Machine,
    NoRecipient,
    NoTransition,
    OverBudget,
    Panel,
    Plan,
    PlanError,
    Rejected,
    Step,
    StepFailed,
    StoreError,
)
from flow.bus import MACHINE_MOVE, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED
from flow.firing import call_key
from flow.machine import Failure
from flow.testing import Wait
from tests.flow.stage import ANNA, appended, assert_ended, opened, settled, story
from tests.flow.test_branching import GATES
from tests.flow.test_panels import APPROVERS, join
from tests.flow.units import ALWAYS, Odd, PlanStage, became, named, net, quiet, routing, told

pytestmark = pytest.mark.anyio


def staged(*steps: Step, **options: Any) -> PlanStage:
    return PlanStage(Plan(steps), **options)


def two(**fields: Any) -> Plan:
    return Plan([quiet("c", **fields), quiet("d", "c", **fields)])


def rounds(number: int, *, most: int = 9) -> Loop:
    """Return a loop that goes on for so many rounds; its guard keeps what it is told as `asked`."""
    asked: list[tuple[Any, Call]] = []

    def go_on(record: Any, call: Call) -> bool:
        asked.append((list(record), call))
        record.append("spoilt")
        return len(asked) < number

    go_on.asked = asked  # type: ignore[attr-defined]
    return Loop(most, go_on)


def asked(loop: Loop) -> list[tuple[Any, Call]]:
    return loop.guard.asked  # type: ignore[attr-defined, no-any-return]


def nested(depth: int, inmost: Step) -> Plan:
    plan = Plan([inmost])
    for _ in range(depth - 1):
        plan = Plan([quiet("p", sub=plan)])
    return plan


# Where a sub-plan stands


@pytest.mark.rule("R59", "R60")
async def test_a_sub_plan_runs_first_and_its_record_and_last_status_are_what_its_step_begins_with() -> None:
    stage = staged(quiet("first"), quiet("p", "first", sub=two()), quiet("next", "p"))
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert stage.fired == ["first", "p/c", "p/d", "p", "next"]
    assert run.record == ["begun", "first", "p/c", "p/d", "p", "next"]
    moves = [
        (event.data["step"], event.data["source"], event.data["target"]) for event in stage.bus.named(MACHINE_MOVE)
    ]
    assert moves == [
        ("first", "start", "first"),
        ("p/c", "start", "c"),
        ("p/d", "c", "d"),
        ("p", "first", "d"),
        ("next", "d", "next"),
    ]  # fmt: skip
    assert run.status == "next"


@pytest.mark.rule("R59", "R9")
async def test_the_path_of_a_step_in_a_sub_plan_is_that_of_the_step_above_and_its_own_id() -> None:
    sub = Plan([told("c"), quiet("q", "c", sub=Plan([told("d")]))])
    run = await staged(told("p", sub=sub)).run()
    assert [message.step for message in opened(run.thread.records, "message")] == [("p", "c"), ("p", "q", "d"), ("p",)]
    assert became(run) == dict.fromkeys(["p/c", "p/q/d", "p/q", "p"], "succeeded")
    assert {path: outcome.step for path, outcome in run.outcomes.items()} == {path: path for path in run.outcomes}


@pytest.mark.rule("R59", "R8")
async def test_ids_of_messages_are_those_that_the_thread_has_not_used_at_whatever_level() -> None:
    sub = Plan([told("s")])
    run = await staged(told("s"), told("p", "s", sub=sub), told("q", "p", sub=Plan([told("p"), told("s", "p")]))).run()
    ids = [message.id for message in opened(run.thread.records, "message")]
    assert ids == ["s", "s#2", "p", "p#2", "s#3", "q"]


@pytest.mark.rule("R59", "R7", "R33")
@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        (Limits(max_messages=3), True),
        (Limits(max_messages=2), False),
        (Limits(max_bytes=12), True),
        (Limits(max_bytes=11), False),
    ],
)
async def test_the_limits_are_for_all_levels_together(limits: Limits, fits: bool) -> None:
    stage = staged(told("a"), told("p", "a", sub=Plan([told("c")])), limits=limits)
    if fits:
        assert_ended((await stage.run()).thread, "completed")
        return
    error = await stage.fails(OverBudget)
    assert_ended(error.thread, "over_budget")
    assert error.step == "p"
    assert stage.fired == ["a", "p/c"]


@pytest.mark.rule("R59", "R33")
async def test_a_step_of_a_sub_plan_over_the_limits_ends_the_run() -> None:
    stage = staged(told("p", sub=Plan([told("c")])), quiet("mend", "p", when="failed"), limits=Limits(max_bytes=3))
    error = await stage.fails(OverBudget)
    assert_ended(error.thread, "over_budget")
    assert (error.step, error.status) == ("p/c", "start")


@pytest.mark.rule("R59")
async def test_the_row_the_draft_and_the_budget_of_the_step_are_looked_at_after_its_sub_plan() -> None:
    seen: list[Any] = []

    def say(record: Any) -> str:
        seen.append((list(record), list(stage.fired)))
        return "do it"

    stage = staged(told("p", payload=None, payload_from=say, sub=two()))
    await stage.run()
    assert seen == [(["begun", "p/c", "p/d"], ["p/c", "p/d"])]


@pytest.mark.rule("R59")
async def test_a_sub_plan_begins_at_the_machines_initial_status_wherever_the_run_stands() -> None:
    rows = [("start", "go", "c"), ("c", "go", "far"), ("far", "back", "c")]
    stage = staged(quiet("first", target="c"), quiet("far", "first"), quiet("p", "far", sub=Plan([quiet("c")])),
                   machine=Machine("start", rows))  # fmt: skip
    run = await stage.run()
    assert run.status == "c"
    assert settled(run.thread.records)["p/c"] == ("succeeded", None, "c")


@pytest.mark.rule("R59", "A7")
async def test_steps_of_a_sub_plan_are_to_peers_of_the_run() -> None:
    with pytest.raises(PlanError) as refused:
        await staged(quiet("p", sub=Plan([told("c", to=["zoe"])]))).run()
    assert refused.value.code == "plan.to"


@pytest.mark.rule("R59", "R46")
async def test_branches_and_panels_inside_a_sub_plan_are_its_own() -> None:
    sub = Plan(
        [
            quiet("choose", route=routing("left")), quiet("left", "choose"), quiet("right", "choose"),
            quiet("one", "left", target="all"), quiet("two", "left", target="all"),
            quiet("broken", "one"), quiet("mend", "broken", when="failed"),
        ],
        [Panel(["one", "two"], join)],
    )  # fmt: skip
    stage = staged(
        quiet("p", sub=sub), quiet("mend", "p", when="failed"), quiet("right", "p"), fail={"p/broken": ALWAYS}
    )
    run = await stage.run()
    assert became(run) == {
        "p/choose": "succeeded", "p/right": "skipped", "p/left": "succeeded",
        "p/one": "succeeded", "p/two": "succeeded", "p/broken": "failed", "p/mend": "succeeded",
        "p": "succeeded", "mend": "skipped", "right": "succeeded",
    }  # fmt: skip
    assert run.record == ["begun", "p/choose", "p/left", "p/one", "p/two", "p/mend", "p", "right"]
    failure = run.outcomes["p/broken"].failure
    assert failure == Failure("p/broken", "Odd", "p/broken broke", 1)
    assert stage.calls[stage.fired.index("p/mend")].failure == failure


@pytest.mark.rule("R59")
async def test_one_sub_plan_may_stand_in_several_steps() -> None:
    sub = two()
    stage = staged(quiet("p", sub=sub), quiet("back", "p"), quiet("q", "back", sub=sub))
    run = await stage.run()
    assert stage.fired == ["p/c", "p/d", "p", "back", "q/c", "q/d", "q"]
    assert run.status == "d"


@pytest.mark.rule("R59", "P24")
async def test_plans_nest_eight_deep() -> None:
    stage = PlanStage(nested(8, told("s")))
    run = await stage.run()
    assert_ended(run.thread, "completed")
    path = ("p",) * 7 + ("s",)
    assert opened(run.thread.records, "message")[0].step == path
    assert settled(run.thread.records)["s"] == ("succeeded", 1, "s")
    assert run.record == ["begun", *("/".join(path[:length]) for length in range(8, 0, -1))]


@pytest.mark.rule("R59")
async def test_all_calls_in_sub_plans_have_keys_of_their_own() -> None:
    stage = staged(quiet("c"), quiet("p", "c", sub=two(), loop=rounds(2)), quiet("e", "p"))
    run = await stage.run()
    assert [call.key for call in stage.calls] == [
        call_key(run.thread.address, call.step, "on_entry") for call in stage.calls
    ]
    assert len({call.key for call in stage.calls}) == len(stage.calls) == 7


# The step above


@pytest.mark.rule("R60", "R23", "R26")
@pytest.mark.parametrize(
    ("gate", "lines"),
    [
        ("before", ["request p", "anna accepts", "confirm"]),
        ("after", ["assert p", "anna accepts", "confirm"]),
        ("none", []),
    ],
)
async def test_the_step_above_is_gated_and_fired_once_whatever_its_gate(gate: str, lines: list[str]) -> None:
    stage = staged(quiet("first"), quiet("p", "first", sub=two(), **GATES[gate]))
    run = await stage.run()
    assert story(run.thread.records) == ["open", *lines, "seal completed"]
    assert stage.fired == ["first", "p/c", "p/d", "p"]
    assert settled(run.thread.records)["p"] == ("succeeded", 1, "d")
    assert [event.data["outcome"].step for event in stage.bus.named(STEP_COMPLETED)] == ["first", "p/c", "p/d", "p"]
    assert len(stage.bus.named(THREAD_VERIFIED)) == (gate != "none")


@pytest.mark.rule("R60")
@pytest.mark.parametrize("gate", GATES)
async def test_where_the_run_stands_already_at_the_last_status_the_step_is_gated_only(gate: str) -> None:
    stage = staged(quiet("d"), quiet("p", "d", sub=two(), **GATES[gate]))
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert stage.fired == ["d", "p/c", "p/d"]
    assert run.record == ["begun", "d", "p/c", "p/d"]
    assert settled(run.thread.records)["p"] == ("succeeded", None, "d")
    assert len(stage.anna.deliveries) == (gate != "none")
    assert [event.data["step"] for event in stage.bus.named(MACHINE_MOVE)] == ["d", "p/c", "p/d"]
    assert [event.data["outcome"].step for event in stage.bus.named(STEP_COMPLETED)][-1] == "p"


@pytest.mark.rule("R60", "R53")
@pytest.mark.parametrize("gate", GATES)
async def test_a_step_that_is_gated_only_begins_no_attempt(gate: str) -> None:
    stage = staged(quiet("d"), quiet("p", "d", sub=two(), **GATES[gate]))
    await stage.run()
    assert [entry.at for entry in await stage.log() if entry.phase == "firing"] == [
        (("d",),), (("p", "c"),), (("p", "d"),)
    ]  # fmt: skip


@pytest.mark.rule("R60")
async def test_a_sub_plan_of_which_nothing_fires_ends_where_it_began() -> None:
    sub = Plan([quiet("inner", sub=Plan([quiet("c"), quiet("back", "c", target="start")]))])
    machine = Machine("start", [("start", "go", "c"), ("c", "back", "start")])
    run = await staged(told("p", sub=sub), machine=machine, record=[]).run()
    assert (run.status, became(run)["p"]) == ("start", "succeeded")


@pytest.mark.rule("R60", "R31")
async def test_no_row_to_the_last_status_of_a_sub_plan_ends_the_run() -> None:
    rows = [("start", "go", "choose"), ("choose", "l", "left"), ("choose", "r", "right"), ("start", "l", "left")]
    sub = Plan([quiet("choose", route=routing("right")), quiet("left", "choose"), quiet("right", "choose")])
    stage = staged(told("p", sub=sub), quiet("mend", "p", when="failed", target="left"), machine=Machine("start", rows))
    error = await stage.fails(NoTransition)
    assert_ended(error.thread, "failed")
    assert (error.step, error.status) == ("p", "start")
    assert stage.anna.deliveries == []


@pytest.mark.rule("R25", "R60")
async def test_the_move_of_a_step_that_is_over_the_limits_only_once_it_has_fired_is_told() -> None:
    limits = Limits(max_bytes=3)
    for step in (quiet("d", **GATES["after"]), quiet("p", sub=Plan([quiet("d")]), **GATES["after"])):
        stage = staged(step, limits=limits)
        error = await stage.fails(OverBudget)
        assert_ended(error.thread, "over_budget")
        assert settled(error.thread.records)[step.id] == ("failed", 1, "d")
        moves = [event.data["step"] for event in stage.bus.named(MACHINE_MOVE)]
        assert moves[-1] == step.id


# Failures inside


@pytest.mark.rule("R61", "R30")
async def test_a_failure_that_nothing_inside_handles_fails_the_steps_above_and_the_run() -> None:
    sub = Plan([quiet("c"), quiet("q", "c", sub=Plan([told("s")]))])
    stage = staged(quiet("first"), told("p", "first", sub=sub), fail={"p/q/s": ALWAYS})
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert (error.step, error.status, error.record) == ("p/q/s", "first", ["begun", "first"])
    assert isinstance(error.__cause__, Odd)
    assert settled(error.thread.records) == {
        "first": ("succeeded", 1, "first"), "p/c": ("succeeded", 1, "c"), "s": ("failed", 1, "start"),
        "p/q": ("failed", None, "c"), "p": ("failed", None, "first"),
    }  # fmt: skip
    assert opened(error.thread.records, "message")[-1].id == "s"


@pytest.mark.rule("R61", "R49", "R50")
async def test_a_failure_inside_may_be_caught_at_the_step_above() -> None:
    sub = Plan([quiet("c"), told("s", "c"), quiet("never", "s")])
    stage = staged(
        quiet("first"), told("p", "first", sub=sub), quiet("mend", "p", when="failed"), quiet("next", "p"),
        fail={"p/s": ALWAYS},
    )  # fmt: skip
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert became(run) == {
        "first": "succeeded", "p/c": "succeeded", "p/s": "failed", "p": "failed",
        "next": "skipped", "mend": "succeeded",
    }  # fmt: skip
    assert (run.status, run.record) == ("mend", ["begun", "first", "mend"])
    failure = Failure("p/s", "Odd", "p/s broke", 1)
    assert [run.outcomes[path].failure for path in ("p/s", "p")] == [failure, failure]
    assert stage.calls[-1].failure == failure
    assert story(run.thread.records) == ["open", "request s", "anna accepts", "confirm", "seal completed"]


@pytest.mark.rule("R61", "R48")
async def test_what_a_failure_inside_brings_about_is_one_commit_with_the_step_above() -> None:
    stage = staged(quiet("p", sub=two()), quiet("mend", "p", when="failed"), quiet("next", "p"), fail={"p/d": ALWAYS})
    await stage.run()
    done = [entry for entry in await stage.log() if entry.phase == "done"]
    assert [entry.at for entry in done] == [(("p", "c"),), (("p",),), (("mend",),)]
    assert [(one.step, one.outcome) for one in done[1].settled] == [
        (("p", "d"), "failed"), (("p",), "failed"), (("next",), "skipped"),
    ]  # fmt: skip


@pytest.mark.rule("R61", "R51")
async def test_a_failure_that_loses_its_handler_inside_fails_the_step_above() -> None:
    sub = Plan([
        quiet("broken"), quiet("choose", route=routing("on")), quiet("on", "choose"),
        quiet("fix", "broken", "choose", when="failed"),
    ])  # fmt: skip
    stage = staged(quiet("p", sub=sub), quiet("mend", "p", when="failed"), fail={"p/broken": ALWAYS})
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert became(run) == {
        "p/broken": "failed", "p/choose": "succeeded", "p/fix": "skipped", "p": "failed", "mend": "succeeded"
    }  # fmt: skip
    assert stage.calls[-1].failure == Failure("p/broken", "Odd", "p/broken broke", 1)
    assert run.record == ["begun", "mend"]


@pytest.mark.rule("R61", "R49")
@pytest.mark.parametrize("gate", GATES)
async def test_a_step_above_that_fails_itself_leaves_what_stood_before_its_sub_plan(gate: str) -> None:
    stage = staged(
        quiet("first"), quiet("p", "first", sub=two(), **GATES[gate]), quiet("mend", "p", when="failed"),
        fail={"p": ALWAYS},
    )  # fmt: skip
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert run.record == ["begun", "first", "mend"]
    assert settled(run.thread.records)["p"] == ("failed", 1, "first")
    assert became(run)["p/d"] == "succeeded"
    assert run.outcomes["p"].failure == Failure("p", "Odd", "p broke", 1)


@pytest.mark.rule("R61", "R59")
async def test_the_step_above_is_not_gated_when_its_sub_plan_failed() -> None:
    stage = staged(told("p", sub=Plan([quiet("s")])), quiet("mend", "p", when="failed"), fail={"p/s": ALWAYS})
    run = await stage.run()
    assert stage.anna.deliveries == []
    assert run.outcomes["p"].message is None


@pytest.mark.rule("R61")
@pytest.mark.parametrize(
    ("raised", "options", "outcome"),
    [
        (Rejected, {"anna": [Declined("no")]}, "rejected"),
        (OverBudget, {"limits": Limits(max_bytes=3)}, "over_budget"),
        (NoRecipient, {}, "failed"),
        (Escalated, {"anna": [Escalated("ask")], "approvers": APPROVERS}, None),
        (AckTimeout, {"anna": [Wait(100)]}, None),
        (Odd, {"anna": [Odd("broken")]}, None),
        (StoreError, {}, None),
    ],
)
async def test_every_other_ending_inside_ends_the_run(
    raised: type[Exception], options: dict[str, Any], outcome: str | None
) -> None:
    stage = staged(quiet("p", sub=Plan([told("s", ack_timeout=10)])), quiet("mend", "p", when="failed"), **options)

    async def leave(kinds: list[str]) -> None:
        if "message" in kinds:
            stage.store.after = None
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    async def full(kinds: list[str]) -> None:
        if "ack" in kinds:
            raise StoreError("disk full")

    stage.store.after = leave if raised is NoRecipient else None
    stage.store.before = full if raised is StoreError else None
    error = await stage.over_time(lambda: stage.fails(raised))
    lines = await stage.told()
    assert [line for line in lines if line.startswith("seal")] == ([f"seal {outcome}"] if outcome else [])
    assert stage.fired == []
    assert getattr(error, "step", "p/s") == "p/s"
    if outcome is None:
        assert "in step 'p/s' of the thread 't'" in "\n".join(error.__notes__)
    if raised is Escalated:
        assert lines[-1] == "escalate s#escalate"


@pytest.mark.rule("R61", "R31")
async def test_no_row_inside_ends_the_run() -> None:
    rows = [("start", "go", "choose"), ("choose", "l", "left"), ("choose", "r", "right"), ("left", "go", "end"),
            ("start", "e", "end"), ("start", "m", "mend")]  # fmt: skip
    sub = Plan([
        quiet("choose", route=routing("right")), quiet("left", "choose"), quiet("right", "choose"),
        quiet("end", "left", "right", when="finished"),
    ])  # fmt: skip
    stage = staged(quiet("p", sub=sub), quiet("mend", "p", when="failed"), machine=Machine("start", rows))
    error = await stage.fails(NoTransition)
    assert_ended(error.thread, "failed")
    assert (error.step, error.status) == ("p/end", "right")


@pytest.mark.rule("R61", "R40")
async def test_a_cancel_inside_a_sub_plan_is_raised_as_it_came() -> None:
    stage = staged(quiet("p", sub=two()))
    with anyio.CancelScope() as scope:

        async def hang(call: Call) -> None:
            scope.cancel()
            await anyio.sleep_forever()

        stage.acting = hang
        await stage.run()
    assert scope.cancelled_caught
    assert await stage.told() == ["open"]


# Loops


@pytest.mark.rule("R62")
async def test_a_loop_runs_its_sub_plan_until_its_guard_says_no() -> None:
    loop = rounds(3)
    stage = staged(quiet("p", sub=two(), loop=loop), quiet("next", "p"))
    run = await stage.run()
    assert_ended(run.thread, "completed")
    paths = ["p/c", "p/d", "p#2/c", "p#2/d", "p#3/c", "p#3/d", "p", "next"]
    assert stage.fired == list(became(run)) == paths
    assert run.record == ["begun", *paths]
    assert len(asked(loop)) == 3


@pytest.mark.rule("R62")
@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_loop_ends_with_its_last_round_and_its_guard_is_not_asked_after_that(most: int) -> None:
    loop = rounds(99, most=most)
    stage = staged(quiet("p", sub=Plan([quiet("c")]), loop=loop))
    await stage.run()
    assert stage.fired == ["p/c", *(f"p#{number}/c" for number in range(2, most + 1)), "p"]
    assert len(asked(loop)) == most - 1


@pytest.mark.rule("R62")
async def test_each_round_begins_at_the_initial_status_with_the_record_that_the_one_before_left() -> None:
    stage = staged(quiet("first"), quiet("p", "first", sub=two(), loop=rounds(2)))
    await stage.run()
    moves = [(event.data["step"], event.data["source"]) for event in stage.bus.named(MACHINE_MOVE)]
    assert moves[1:] == [("p/c", "start"), ("p/d", "c"), ("p#2/c", "start"), ("p#2/d", "c"), ("p", "first")]


@pytest.mark.rule("R62", "M8", "M13")
async def test_the_guard_is_asked_with_a_copy_of_the_record_and_a_call_of_that_round() -> None:
    loop = rounds(2)
    run = await staged(quiet("p", sub=Plan([quiet("c")]), loop=loop)).run()
    assert [record for record, _ in asked(loop)] == [["begun", "p/c"], ["begun", "p/c", "p#2/c"]]
    calls = [call for _, call in asked(loop)]
    assert [call.step for call in calls] == [("p",), ("p#2",)]
    assert [call.key for call in calls] == [
        call_key(run.thread.address, (name,), "loop") for name in ("p", "p#2")
    ]  # fmt: skip
    assert [(call.attempt, call.message, call.failure) for call in calls] == [(1, None, None)] * 2
    assert run.record == ["begun", "p/c", "p#2/c", "p"]


@pytest.mark.rule("R62", "R50")
async def test_the_guard_of_a_handlers_loop_is_told_the_failure_that_it_handles() -> None:
    loop = rounds(1)
    stage = staged(
        quiet("broken"), quiet("p", "broken", when="failed", sub=two(), loop=loop), fail={"broken": ALWAYS}
    )  # fmt: skip
    await stage.run()
    failure = Failure("broken", "Odd", "broken broke", 1)
    assert [call.failure for _, call in asked(loop)] == [failure]
    assert [call.failure for call in stage.calls] == [None, None, None, failure]


@pytest.mark.rule("R62")
async def test_a_guard_may_be_async() -> None:
    async def once_more(record: Any, call: Call) -> bool:
        await anyio.lowlevel.checkpoint()
        return call.step == ("p",)

    stage = staged(quiet("p", sub=Plan([quiet("c")]), loop=Loop(9, once_more)))
    await stage.run()
    assert stage.fired == ["p/c", "p#2/c", "p"]


@pytest.mark.rule("R62", "R9")
async def test_the_steps_own_message_and_settlement_stand_under_its_plain_path() -> None:
    stage = staged(told("p", sub=Plan([told("c")]), loop=rounds(3)))
    run = await stage.run()
    assert_ended(run.thread, "completed")
    messages = opened(run.thread.records, "message")
    assert [(message.id, message.step) for message in messages] == [
        ("c", ("p", "c")), ("c#2", ("p#2", "c")), ("c#3", ("p#3", "c")), ("p", ("p",)),
    ]  # fmt: skip
    assert list(run.outcomes) == ["p/c", "p#2/c", "p#3/c", "p"]
    assert run.outcomes["p"].message is not None
    assert run.outcomes["p"].message.record.id == "p"


@pytest.mark.rule("R62")
async def test_what_the_guard_said_is_durable_before_the_next_round_begins() -> None:
    stage = staged(quiet("p", sub=Plan([quiet("c")]), loop=rounds(2)))
    found: list[tuple[str, Any, Any]] = []

    async def look(call: Call) -> None:
        said = [entry for entry in await stage.log() if entry.phase == "round"]
        found.append(("/".join(call.step), *((said[-1].round, said[-1].again) if said else (None, None))))

    stage.acting = look
    await stage.run()
    assert found == [("p/c", None, None), ("p#2/c", 1, True), ("p", 2, False)]


@pytest.mark.rule("R62", "R35")
async def test_a_round_whose_beginning_could_not_be_made_durable_is_not_begun() -> None:
    loop = rounds(2)
    stage = staged(quiet("p", sub=Plan([quiet("c")]), loop=loop))

    async def full(kinds: list[str]) -> None:
        if asked(loop):
            raise StoreError("disk full")

    stage.store.before = full
    error = await stage.fails(StoreError)
    assert stage.fired == ["p/c"]
    assert error.step == "p"


def fall(record: Any, call: Call) -> bool:
    raise Odd("no idea")


def mumble(record: Any, call: Call) -> Any:
    return 1


def shrug(record: Any, call: Call) -> Any:
    return None


@pytest.mark.rule("R62", "R30", "R61")
@pytest.mark.parametrize(("guard", "error"), [(fall, "Odd"), (mumble, "MachineError"), (shrug, "MachineError")])
async def test_a_guard_that_raises_or_says_something_else_than_yes_or_no_fails_the_step(guard: Any, error: str) -> None:
    stage = staged(quiet("first"), told("p", "first", sub=two(), loop=Loop(2, guard)))
    failed = await stage.fails(StepFailed)
    assert_ended(failed.thread, "failed")
    assert (failed.step, failed.status, failed.record) == ("p", "first", ["begun", "first"])
    assert "guard" in failed.args[0]
    assert settled(failed.thread.records)["p"] == ("failed", None, "first")
    caught = staged(told("p", sub=two(), loop=Loop(2, guard)), quiet("mend", "p", when="failed"))
    run = await caught.run()
    assert run.record == ["begun", "mend"]
    failure = run.outcomes["p"].failure
    assert failure is not None
    assert (failure.step, failure.error, failure.attempts) == ("p", error, None)
    assert caught.calls[-1].failure == failure


@pytest.mark.rule("R62", "R61")
async def test_a_failure_in_a_later_round_fails_the_step_and_takes_every_round_back() -> None:
    loop = rounds(3)
    stage = staged(
        quiet("first"), quiet("p", "first", sub=two(), loop=loop), quiet("mend", "p", when="failed"),
        fail={"p#2/d": ALWAYS},
    )  # fmt: skip
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert stage.fired == ["first", "p/c", "p/d", "p#2/c", "p#2/d", "mend"]
    assert (run.record, run.status) == (["begun", "first", "mend"], "mend")
    assert {path: what for path, what in became(run).items() if what == "failed"} == {"p#2/d": "failed", "p": "failed"}
    assert stage.calls[-1].failure == Failure("p#2/d", "Odd", "p#2/d broke", 1)
    assert len(asked(loop)) == 1


@pytest.mark.rule("R62")
async def test_loops_nest_and_each_has_rounds_of_its_own_in_every_round_above() -> None:
    def inner(record: Any, call: Call) -> bool:
        return not call.step[-1].endswith("#2")

    sub = Plan([quiet("q", sub=Plan([told("c")]), loop=Loop(5, inner))])
    outer = rounds(2)
    stage = staged(quiet("p", sub=sub, loop=outer))
    run = await stage.run()
    assert_ended(run.thread, "completed")
    paths = ["p/q/c", "p/q#2/c", "p/q", "p#2/q/c", "p#2/q#2/c", "p#2/q", "p"]
    assert list(run.outcomes) == paths
    assert [message.id for message in opened(run.thread.records, "message")] == ["c", "c#2", "c#3", "c#4"]
    assert [message.step for message in opened(run.thread.records, "message")][-1] == ("p#2", "q#2", "c")
    assert [entry.at for entry in await stage.log() if entry.phase == "round"] == [
        (("p", "q"),), (("p", "q"),), (("p",),), (("p#2", "q"),), (("p#2", "q"),), (("p",),),
    ]  # fmt: skip


@pytest.mark.rule("R62", "R60")
async def test_the_target_of_a_loop_is_the_last_status_of_its_last_round() -> None:
    turns = iter(["left", "right"])
    sub = Plan([
        quiet("choose", route=named("turn", lambda record: next(turns))),
        quiet("left", "choose"), quiet("right", "choose"),
    ])  # fmt: skip
    run = await staged(quiet("p", sub=sub, loop=rounds(2))).run()
    assert run.status == "right"
    assert became(run)["p#2/left"] == "skipped"
    assert became(run)["p/right"] == "skipped"


@pytest.mark.rule("R62", "R7")
async def test_every_round_counts_against_the_limits() -> None:
    stage = staged(quiet("p", sub=Plan([told("c")]), loop=rounds(9)), limits=Limits(max_messages=2))
    error = await stage.fails(OverBudget)
    assert_ended(error.thread, "over_budget")
    assert error.step == "p#3/c"


@pytest.mark.rule("R62")
async def test_a_thousand_rounds_are_not_too_many() -> None:
    stage = staged(quiet("p", sub=Plan([quiet("c", target="c")]), loop=rounds(1000, most=1_000_000)))
    stage.machine = net(Plan([quiet("c")]))
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert len(run.outcomes) == 1001
    assert "p#1000/c" in run.outcomes


@pytest.mark.rule("R62", "R10")
async def test_a_delivery_in_a_round_is_of_that_rounds_message() -> None:
    stage = staged(quiet("p", sub=Plan([told("c")]), loop=rounds(2)))
    run = await stage.run()
    delivered = [event.data["message"].record.step for event in stage.bus.named(MESSAGE_DELIVERED)]
    assert delivered == [("p", "c"), ("p#2", "c")]
    assert run.outcomes["p#2/c"].message is not None
    assert run.outcomes["p#2/c"].message.record.step == ("p#2", "c")
    assert run.outcomes["p#2/c"].acks.keys() == {"anna"}
