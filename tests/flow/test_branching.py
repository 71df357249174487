"""Branches: what is skipped, what a failure leads to, what a route chooses, and what the thread says of it."""

from typing import Any

import pytest

from envelope import Roster, open_envelope
from flow import (
    AckTimeout,
    Call,
    Declined,
    Escalated,
    Limits,
    Machine,
    NoRecipient,
    NoTransition,
    OverBudget,
    Plan,
    Rejected,
    Step,
    StepFailed,
)
from flow.bus import MACHINE_MOVE, STEP_COMPLETED
from flow.machine import Failure
from flow.testing import Wait
from tests.flow.stage import ANNA, appended, assert_ended, settled, story
from tests.flow.test_endings import reason
from tests.flow.units import ALWAYS, Odd, PlanStage, became, net, quiet, routing, told

pytestmark = pytest.mark.anyio

GATES = {
    "before": {"gate": "before", "payload": "do it", "to": ["anna"]},
    "after": {"gate": "after", "payload": "done", "to": ["anna"]},
    "none": {},
}


def staged(*steps: Step, **options: Any) -> PlanStage:
    return PlanStage(Plan(steps), **options)


# Order


@pytest.mark.rule("R46")
async def test_units_are_taken_by_their_needs_and_then_as_declared() -> None:
    stage = staged(quiet("last", "b"), quiet("c"), quiet("a", "c"), told("b", "c"), quiet("d"))
    run = await stage.run()
    assert run.record[1:] == stage.fired == ["c", "a", "b", "last", "d"]
    assert run.status == "d"


@pytest.mark.rule("R46")
async def test_a_plan_of_a_thousand_steps_is_taken_in_its_order() -> None:
    steps = [quiet(f"s{number}", *([f"s{number + 1}"] if number % 2 == 0 else []), target="ab"[number % 2])
             for number in range(300)]  # fmt: skip
    rows = [("start", "b", "b"), ("a", "b", "b"), ("b", "a", "a")]
    run = await staged(*steps, machine=Machine("start", rows), record=[]).run()
    assert [int(path[1:]) for path in run.outcomes] == [number ^ 1 for number in range(300)]


# Skipped


@pytest.mark.rule("R47", "R48")
async def test_a_step_that_is_not_admitted_is_skipped_and_leaves_no_trace_but_its_entry() -> None:
    stage = staged(
        told("fine"), told("fallback", "fine", when="failed"), told("after", "fallback"), told("end", "fine")
    )
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert became(run) == {"fine": "succeeded", "fallback": "skipped", "after": "skipped", "end": "succeeded"}
    assert [line for line in story(run.thread.records) if line.startswith("request")] == ["request fine", "request end"]
    assert stage.fired == ["fine", "end"]
    assert settled(run.thread.records)["after"] == ("skipped", None, "fine")


@pytest.mark.rule("R48")
async def test_skips_stand_in_the_commit_of_the_unit_that_brought_them_about() -> None:
    stage = staged(quiet("fine"), quiet("fallback", "fine", when="failed"), quiet("after", "fallback"), quiet("end"))
    await stage.run()
    done = [entry for entry in await stage.log() if entry.phase == "done"]
    assert [["/".join(one.step) for one in entry.settled] for entry in done] == [["fine", "fallback", "after"], ["end"]]
    assert [entry.at for entry in done] == [(("fine",),), (("end",),)]


@pytest.mark.rule("R48")
async def test_skips_are_carried_by_the_next_chain_record() -> None:
    stage = staged(told("fine"), quiet("fallback", "fine", when="failed"), told("end", "fine"))
    run = await stage.run()
    carriers = {
        "/".join(entry.step): envelope.kind + " " + str(getattr(envelope.record, "id", ""))
        for envelope in map(open_envelope, run.thread.records)
        for entry in getattr(envelope.record, "settled", None) or ()
        if entry.step
    }
    assert carriers == {"fallback": "message end"}


@pytest.mark.rule("R48")
async def test_the_outcome_of_a_skipped_step_tells_where_the_run_stood() -> None:
    run = await staged(quiet("fine"), told("fallback", "fine", when="failed")).run()
    skipped = run.outcomes["fallback"]
    assert (skipped.step, skipped.status, skipped.became) == ("fallback", "fine", "skipped")
    assert (skipped.message, skipped.acks, skipped.attempts, skipped.failure) == (None, {}, None, None)


@pytest.mark.rule("R48", "R21")
async def test_only_the_steps_that_were_taken_are_told_of_as_completed() -> None:
    stage = staged(quiet("fine"), quiet("fallback", "fine", when="failed"), quiet("end"))
    await stage.run()
    assert [event.data["outcome"].step for event in stage.bus.named(STEP_COMPLETED)] == ["fine", "end"]


@pytest.mark.rule("R47")
async def test_a_step_that_goes_on_when_its_needs_have_finished_goes_on_after_a_skip() -> None:
    stage = staged(
        quiet("fine"), quiet("fallback", "fine", when="failed"), quiet("join", "fine", "fallback", when="finished")
    )
    run = await stage.run()
    assert became(run) == {"fine": "succeeded", "fallback": "skipped", "join": "succeeded"}


@pytest.mark.rule("R48")
async def test_hundreds_of_steps_may_be_skipped_at_once() -> None:
    many = [quiet(f"s{number}", "fallback", target="ab"[number % 2]) for number in range(700)]
    stage = staged(quiet("fine"), quiet("fallback", "fine", when="failed"), *many)
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert list(became(run).values()) == ["succeeded"] + ["skipped"] * 701
    assert len(settled(run.thread.records)) == 702


# Caught


@pytest.mark.rule("R49")
@pytest.mark.parametrize("gate", GATES)
async def test_a_failure_that_is_caught_leaves_status_and_record_and_the_run_goes_on(gate: str) -> None:
    stage = staged(
        quiet("first"), quiet("broken", "first", **GATES[gate]), quiet("mend", "broken", when="failed"),
        quiet("next", "broken"), quiet("end"),
        fail={"broken": ALWAYS},
    )  # fmt: skip
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert became(run) == {
        "first": "succeeded", "broken": "failed", "next": "skipped", "mend": "succeeded", "end": "succeeded",
    }  # fmt: skip
    assert run.record == ["begun", "first", "mend", "end"]
    assert settled(run.thread.records) == {
        "first": ("succeeded", 1, "first"), "broken": ("failed", 1, "first"), "next": ("skipped", None, "first"),
        "mend": ("succeeded", 1, "mend"), "end": ("succeeded", 1, "end"),
    }  # fmt: skip


@pytest.mark.rule("R49")
async def test_the_outcome_of_a_failed_step_tells_its_message_its_acks_and_its_failure() -> None:
    stage = staged(told("broken"), quiet("mend", "broken", when="failed"), fail={"broken": ALWAYS})
    run = await stage.run()
    broken = run.outcomes["broken"]
    assert broken.message is not None
    assert broken.message.record.id == "broken"
    assert [(name, ack.record.answer) for name, ack in broken.acks.items()] == [("anna", "accept")]
    assert (broken.status, broken.attempts, broken.became) == ("start", 1, "failed")
    assert broken.failure == Failure("broken", "Odd", "broken broke", 1)
    assert run.outcomes["mend"].failure is None


@pytest.mark.rule("R49", "R21")
async def test_a_failed_step_is_told_of_once_its_outcome_is_durable_and_no_move_is() -> None:
    stage = staged(told("broken"), quiet("mend", "broken", when="failed"), fail={"broken": ALWAYS})
    phases: list[str] = []

    async def look(event: Any) -> None:
        phases.append((await stage.log())[-1].phase)

    stage.bus.subscribe(look, STEP_COMPLETED)
    run = await stage.run()
    first, second = stage.bus.named(STEP_COMPLETED)
    assert (first.data["outcome"], second.data["outcome"]) == (run.outcomes["broken"], run.outcomes["mend"])
    assert first.address == first.data["outcome"].message.address
    assert phases == ["done", "done"]
    assert [event.data["step"] for event in stage.bus.named(MACHINE_MOVE)] == ["mend"]


def refuse(record: Any, call: Call) -> bool:
    return call.step != ("broken",)


def misguide(record: Any, call: Call) -> Any:
    return None if call.step == ("broken",) else True


def lose(record: Any, call: Call) -> Any:
    return None if call.step == ("broken",) else record


def stumble(record: Any) -> str:
    raise Odd("no words")


def mumble(record: Any) -> Any:
    return None


@pytest.mark.rule("R49", "R30")
@pytest.mark.parametrize(
    ("parts", "fields", "error", "attempts"),
    [
        ({"guard": refuse}, {}, "GuardRefused", None),
        ({"guard": misguide}, {}, "MachineError", None),
        ({"on_exit": lose}, {}, "MachineError", 1),
        ({}, {"payload": None, "payload_from": stumble}, "Odd", None),
        ({}, {"payload": None, "payload_from": mumble}, "PlanError", None),
        ({}, {"payload": None, "payload_from": stumble, "gate": "after"}, "Odd", None),
        ({"on_exit": lose}, {"gate": "after"}, "MachineError", 1),
    ],
)
async def test_whatever_fails_a_step_is_caught(
    parts: dict[str, Any], fields: dict[str, Any], error: str, attempts: int | None
) -> None:
    plan = Plan([told("broken", **fields), quiet("mend", "broken", when="failed")])
    run = await PlanStage(plan, machine=net(plan, **parts)).run()
    assert_ended(run.thread, "completed")
    assert became(run) == {"broken": "failed", "mend": "succeeded"}
    failure = run.outcomes["broken"].failure
    assert failure is not None
    assert (failure.step, failure.error, failure.attempts) == ("broken", error, attempts)
    assert settled(run.thread.records)["broken"] == ("failed", attempts, "start")


@pytest.mark.rule("R49")
async def test_a_report_that_fails_once_its_step_has_fired_takes_the_firing_back() -> None:
    stage = staged(
        told("broken", payload=None, payload_from=stumble, gate="after"), quiet("mend", "broken", when="failed")
    )
    run = await stage.run()
    assert stage.fired == ["broken", "mend"]
    assert run.record == ["begun", "mend"]
    assert settled(run.thread.records)["broken"] == ("failed", 1, "start")
    assert [event.data["source"] for event in stage.bus.named(MACHINE_MOVE)] == ["start"]


@pytest.mark.rule("R49")
async def test_of_a_firing_that_was_taken_back_no_record_is_kept() -> None:
    stage = staged(
        told("broken", payload=None, payload_from=stumble, gate="after"), quiet("mend", "broken", when="failed")
    )
    await stage.run()
    done = [entry for entry in await stage.log() if entry.phase == "done"]
    assert [(entry.outcome, entry.record) for entry in done] == [("failed", None), ("succeeded", '["begun","mend"]')]


@pytest.mark.rule("R49", "R30")
async def test_a_failure_without_a_handler_ends_the_run() -> None:
    stage = staged(quiet("first"), told("broken"), quiet("end", "broken", when="finished"), fail={"broken": ALWAYS})
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert (error.status, error.record, error.step) == ("first", ["begun", "first"], "broken")
    assert settled(error.thread.records) == {"first": ("succeeded", 1, "first"), "broken": ("failed", 1, "first")}
    assert isinstance(error.__cause__, Odd)


@pytest.mark.rule("R49")
async def test_a_handler_that_fails_without_a_handler_of_its_own_ends_the_run() -> None:
    stage = staged(quiet("broken"), quiet("mend", "broken", when="failed"), fail={"broken": ALWAYS, "mend": ALWAYS})
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert (error.step, error.status) == ("mend", "start")
    assert settled(error.thread.records) == {"broken": ("failed", 1, "start"), "mend": ("failed", 1, "start")}


@pytest.mark.rule("R49", "R50")
async def test_a_handler_that_fails_is_handled_like_any_other_step() -> None:
    stage = staged(
        quiet("broken"), quiet("mend", "broken", when="failed"), quiet("last", "mend", when="failed"),
        fail={"broken": ALWAYS, "mend": ALWAYS},
    )  # fmt: skip
    run = await stage.run()
    assert became(run) == {"broken": "failed", "mend": "failed", "last": "succeeded"}
    assert [call.failure and call.failure.step for call in stage.calls] == [None, "broken", "mend"]


@pytest.mark.rule("R49")
async def test_one_failure_may_have_several_handlers_and_one_handler_several_failures() -> None:
    stage = staged(
        quiet("one"), quiet("two"), quiet("mend", "one", "two", when="failed"), quiet("tell", "one", when="failed"),
        fail={"one": ALWAYS, "two": ALWAYS},
    )  # fmt: skip
    run = await stage.run()
    assert became(run) == {"one": "failed", "two": "failed", "mend": "succeeded", "tell": "succeeded"}
    assert [call.failure and call.failure.step for call in stage.calls] == [None, None, "one", "one"]


async def _leave(stage: PlanStage) -> None:
    async def leave(kinds: list[str]) -> None:
        if "message" in kinds:
            stage.store.after = None
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.after = leave


@pytest.mark.rule("R49")
@pytest.mark.parametrize(
    ("raised", "options", "outcome"),
    [
        (Rejected, {"anna": [Declined("no")]}, "rejected"),
        (OverBudget, {"limits": Limits(max_bytes=3)}, "over_budget"),
        (NoRecipient, {}, "failed"),
        (Escalated, {"anna": [Escalated("ask")]}, None),
        (AckTimeout, {"anna": [Wait(100)]}, None),
        (Odd, {"anna": [Odd("broken")]}, None),
    ],
)
async def test_no_handler_catches_what_is_no_failure_of_a_step(
    raised: type[Exception], options: dict[str, Any], outcome: str | None
) -> None:
    stage = staged(told("broken", ack_timeout=10), quiet("mend", "broken", when="failed"), **options)
    if raised is NoRecipient:
        await _leave(stage)
    await stage.over_time(lambda: stage.fails(raised))
    assert stage.fired == []
    lines = await stage.told()
    assert [line for line in lines if line.startswith("seal")] == ([f"seal {outcome}"] if outcome else [])


@pytest.mark.rule("R49", "R31")
async def test_no_handler_catches_that_no_row_leads_on() -> None:
    rows = [("start", "go", "choose"), ("choose", "left", "left"), ("choose", "right", "right"), ("left", "go", "end"),
            ("right", "mend", "mend"), ("left", "mend", "mend")]  # fmt: skip
    stage = staged(
        quiet("choose", route=routing("right")), quiet("left", "choose"), quiet("right", "choose"),
        quiet("end", "left", "right", when="finished"), quiet("mend", "end", when="failed"),
        machine=Machine("start", rows),
    )  # fmt: skip
    error = await stage.fails(NoTransition)
    assert_ended(error.thread, "failed")
    assert (error.status, error.step) == ("right", "end")
    assert settled(error.thread.records).keys() == {"choose", "left", "right"}


# The failure, as data


@pytest.mark.rule("R50", "M13")
async def test_guard_and_actions_of_a_handler_are_told_the_failure_and_no_other_steps_are() -> None:
    seen: list[tuple[str, Any]] = []

    def look(record: Any, call: Call) -> bool:
        seen.append(("guard", call.failure))
        return True

    def leave(record: Any, call: Call) -> Any:
        seen.append(("on_exit", call.failure))
        return record

    def enter(record: Any, call: Call) -> Any:
        seen.append(("on_entry", call.failure))
        if call.step == ("broken",):
            raise Odd("a café \ud800 is no text")
        return record

    plan = Plan([quiet("broken"), quiet("mend", "broken", when="failed"), quiet("end", "mend")])
    await PlanStage(plan, machine=net(plan, guard=look, on_exit=leave, on_entry=enter)).run()
    failure = Failure("broken", "Odd", "a café ? is no text", 1)
    slots = ["guard", "on_exit", "on_entry"]
    assert seen == [(slot, told) for told in (None, failure, None) for slot in slots]


@pytest.mark.rule("R50")
async def test_a_long_text_of_a_failure_is_cut_so_that_it_can_be_kept() -> None:
    stage = staged(quiet("broken"), quiet("mend", "broken", when="failed"))

    async def rant(call: Call) -> None:
        if call.step == ("broken",):
            raise Odd("é" * 5000)

    stage.acting = rant
    run = await stage.run()
    assert run.outcomes["broken"].failure == Failure("broken", "Odd", "é" * 2048, 1)
    assert stage.calls[-1].failure == run.outcomes["broken"].failure


@pytest.mark.rule("R50")
async def test_a_failure_without_an_action_says_no_attempts() -> None:
    plan = Plan([quiet("broken"), quiet("mend", "broken", when="failed")])
    stage = PlanStage(plan)
    stage.machine = net(plan, guard=refuse, on_entry=stage.act)
    run = await stage.run()
    (call,) = stage.calls
    assert call.failure == run.outcomes["broken"].failure
    assert call.failure is not None
    assert call.failure.attempts is None


# Routes


@pytest.mark.rule("R51")
@pytest.mark.parametrize("gate", GATES)
async def test_a_route_chooses_among_the_steps_that_need_its_step(gate: str) -> None:
    stage = staged(
        quiet("choose", route=routing("right"), **GATES[gate]), quiet("left", "choose"), quiet("right", "choose"),
        quiet("beyond", "left"), quiet("apart"),
    )  # fmt: skip
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert became(run) == {
        "choose": "succeeded", "left": "skipped", "beyond": "skipped", "right": "succeeded", "apart": "succeeded",
    }  # fmt: skip
    assert stage.fired == ["choose", "right", "apart"]


def one(record: Any) -> str:
    return "left"


def both(record: Any) -> list[str]:
    return ["right", "left"]


def neither(record: Any) -> tuple[str, ...]:
    return ()


def repeated(record: Any) -> list[str]:
    return ["left", "left"]


async def awaited(record: Any) -> str:
    return "right"


@pytest.mark.rule("R51")
@pytest.mark.parametrize(
    ("route", "chosen"),
    [(one, ["left"]), (both, ["left", "right"]), (neither, []), (repeated, ["left"]), (awaited, ["right"])],
)
async def test_a_route_gives_a_name_or_several_or_none_and_may_be_async(route: Any, chosen: list[str]) -> None:
    stage = staged(quiet("choose", route=route), quiet("left", "choose"), quiet("right", "choose"))
    run = await stage.run()
    assert run.record == ["begun", "choose", *chosen]
    assert [path for path, what in became(run).items() if what == "skipped"] == [
        side for side in ("left", "right") if side not in chosen
    ]


@pytest.mark.rule("R51")
async def test_a_route_is_asked_with_a_copy_of_the_record_as_it_was_fired() -> None:
    seen: list[Any] = []

    def spoil(record: Any) -> str:
        seen.append(list(record))
        record.append("spoilt")
        return "left"

    run = await staged(quiet("choose", route=spoil), quiet("left", "choose")).run()
    assert seen == [["begun", "choose"]]
    assert run.record == ["begun", "choose", "left"]


@pytest.mark.rule("R51")
async def test_what_a_route_chose_is_durable_with_the_outcome_of_its_step() -> None:
    stage = staged(
        quiet("choose", route=both), quiet("left", "choose"), quiet("right", "choose"), quiet("no", "choose")
    )
    await stage.run()
    done = next(entry for entry in await stage.log() if entry.phase == "done")
    assert done.chosen == ("right", "left")
    assert [one.step for one in done.settled] == [("choose",), ("no",)]


def stray(record: Any) -> str:
    return "apart"


def handler(record: Any) -> str:
    return "mend"


def beyond(record: Any) -> list[str]:
    return ["left", "beyond"]


def itself(record: Any) -> str:
    return "choose"


def nothing(record: Any) -> Any:
    return None


def number(record: Any) -> Any:
    return [1]


def unhashable(record: Any) -> Any:
    return [["left"]]


def broken(record: Any) -> str:
    raise Odd("no way")


BAD = [stray, handler, beyond, itself, nothing, number, unhashable, broken]


@pytest.mark.rule("R51", "R30")
@pytest.mark.parametrize("route", BAD)
async def test_a_route_that_fails_or_names_another_step_fails_its_step(route: Any) -> None:
    stage = staged(
        quiet("choose", route=route), quiet("left", "choose"), quiet("beyond", "left"), quiet("apart"), quiet("other")
    )  # fmt: skip
    if route is handler:
        stage = staged(quiet("choose", route=route), quiet("left", "choose"), quiet("mend", "other", when="failed"),
                       quiet("other"))  # fmt: skip
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert (error.status, error.record, error.step) == ("start", ["begun"], "choose")
    assert "route" in error.args[0]
    assert settled(error.thread.records) == {"choose": ("failed", 1, "start")}


@pytest.mark.rule("R51", "R49")
@pytest.mark.parametrize("route", BAD)
async def test_a_route_that_fails_is_caught_like_any_failure(route: Any) -> None:
    stage = staged(
        quiet("choose", route=route), quiet("left", "choose"), quiet("beyond", "left"), quiet("apart"),
        quiet("mend", "choose", when="failed"),
    )  # fmt: skip
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert became(run) == {
        "choose": "failed", "left": "skipped", "beyond": "skipped", "apart": "succeeded", "mend": "succeeded",
    }  # fmt: skip
    assert run.record == ["begun", "apart", "mend"]


@pytest.mark.rule("R51")
async def test_a_route_of_a_step_that_failed_is_not_asked() -> None:
    asked: list[Any] = []

    def ask(record: Any) -> str:
        asked.append(record)
        return "left"

    stage = staged(
        quiet("choose", route=ask), quiet("left", "choose"), quiet("mend", "choose", when="failed"),
        fail={"choose": ALWAYS},
    )  # fmt: skip
    await stage.run()
    assert asked == []


@pytest.mark.rule("R51")
async def test_a_route_of_a_step_gated_after_is_asked_once_its_report_is_confirmed() -> None:
    lines: list[str] = []

    async def look(record: Any) -> str:
        lines.extend(await stage.told())
        return "left"

    stage = staged(quiet("choose", route=look, **GATES["after"]), quiet("left", "choose"))
    await stage.run()
    assert lines == ["open", "assert choose", "anna accepts", "confirm"]


@pytest.mark.rule("R51")
async def test_a_route_that_skips_the_last_handler_of_a_failure_ends_the_run_with_that_failure() -> None:
    stage = staged(
        quiet("broken"), quiet("choose", route=routing("next")), quiet("next", "choose"),
        quiet("mend", "broken", "choose", when="failed"),
        fail={"broken": ALWAYS},
    )  # fmt: skip
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert (error.step, error.status, error.record) == ("broken", "choose", ["begun", "choose"])
    assert "broken broke" in error.args[0]
    assert reason(error) == error.args[0]
    assert settled(error.thread.records) == {
        "broken": ("failed", 1, "start"), "choose": ("succeeded", 1, "choose"), "mend": ("skipped", None, "choose"),
    }  # fmt: skip
    assert stage.fired == ["broken", "choose"]


@pytest.mark.rule("R51")
async def test_a_failure_that_another_step_handles_may_lose_one_of_its_handlers() -> None:
    stage = staged(
        quiet("broken"), quiet("choose", route=routing("next")), quiet("next", "choose"),
        quiet("mend", "broken", "choose", when="failed"), quiet("tell", "broken", when="failed"),
        fail={"broken": ALWAYS},
    )  # fmt: skip
    run = await stage.run()
    assert became(run) == {
        "broken": "failed", "choose": "succeeded", "mend": "skipped", "next": "succeeded", "tell": "succeeded",
    }  # fmt: skip


@pytest.mark.rule("R49", "R51")
async def test_a_failure_whose_handlers_were_all_skipped_before_is_not_caught() -> None:
    stage = staged(
        quiet("choose", route=routing("next")), quiet("broken"), quiet("next", "choose"),
        quiet("mend", "broken", "choose", when="failed"),
        fail={"broken": ALWAYS},
    )  # fmt: skip
    error = await stage.fails(StepFailed)
    assert (error.step, stage.fired) == ("broken", ["choose", "broken"])
