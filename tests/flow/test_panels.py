"""Panels: steps that are told, acknowledged and fired together, and settled as one."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from envelope import Ack, Message, Roster, open_envelope
from flow import (
    AckTimeout,
    Call,
    Confirm,
    Declined,
    Delivery,
    Escalated,
    Limits,
    Machine,
    NoRecipient,
    NoTransition,
    OverBudget,
    Panel,
    Plan,
    Rejected,
    Step,
    StepFailed,
)
from flow.bus import MACHINE_MOVE, MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED
from flow.firing import call_key
from flow.machine import Failure
from flow.testing import ScriptedPeer, Wait
from tests.flow.stage import ANNA, BEN, CARA, DORA, EMIL, appended, assert_ended, opened, settled, story, unless_wrong
from tests.flow.test_endings import notes, reason
from tests.flow.units import ALWAYS, Odd, PlanStage, became, net, quiet, routing, told

pytestmark = pytest.mark.anyio

APPROVERS = {"cara": CARA.public_key, "dora": DORA.public_key}
TO = {"one": ["anna"], "two": ["ben"], "three": ["anna", "ben"]}


def member(id_: str, *needs: str, **fields: Any) -> Step:
    return told(id_, *needs, **{"target": "all", "to": TO.get(id_, ["anna"])} | fields)


def mute(id_: str, *needs: str, **fields: Any) -> Step:
    return quiet(id_, *needs, target="all", **fields)


def join(original: list[str], records: list[list[str]]) -> list[str]:
    """Return the record with all that its copies got besides."""
    return [*original, *(entry for record in records for entry in record[len(original) :])]


def staged(*steps: Step, members: int = 2, reducer: Any = join, **options: Any) -> PlanStage:
    """Return a stage for a plan in which the first steps form a panel."""
    return PlanStage(Plan(steps, [Panel([step.id for step in steps[:members]], reducer)]), **options)


def pair(**fields: Any) -> list[Step]:
    return [member("one", **fields), member("two", **fields)]


# Told


@pytest.mark.rule("R55")
async def test_the_messages_of_a_panel_are_one_commit_in_the_order_of_declaration() -> None:
    steps = [member("one"), quiet("apart"), member("two"), member("three")]
    stage = PlanStage(Plan(steps, [Panel(["three", "one", "two"], join)]))
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert [commit for commit in stage.store.log if "message" in commit] == [["message", "message", "message"]]
    assert story(run.thread.records)[:4] == ["open", "request one", "request two", "request three"]
    messages = opened(run.thread.records, "message")
    assert [message.step for message in messages] == [("one",), ("two",), ("three",)]
    assert [len(message.to) for message in messages] == [1, 1, 2]


@pytest.mark.rule("R55", "R22")
async def test_the_first_message_of_a_panel_carries_what_stands() -> None:
    steps = [told("first"), member("one", "first"), member("two", "first")]
    run = await PlanStage(Plan(steps, [Panel(["one", "two"], join)])).run()
    one, two = opened(run.thread.records, "message")[1:]
    assert (len(one.receipts), len(one.settled)) == (2, 1)
    assert (two.receipts, two.settled) == (None, None)


@pytest.mark.rule("R55", "R10")
async def test_the_messages_are_told_of_once_all_are_durable() -> None:
    stage = staged(*pair())
    lines: list[int] = []

    async def look(event: Any) -> None:
        lines.append(len(await stage.told()))

    stage.bus.subscribe(look, MESSAGE_DELIVERED)
    await stage.run()
    assert lines == [3, 3]
    assert [event.data["message"].record.id for event in stage.bus.named(MESSAGE_DELIVERED)] == ["one", "two"]


@pytest.mark.rule("R55", "R8")
async def test_each_message_of_a_panel_has_an_id_that_the_thread_has_not_used() -> None:
    sub = Plan([member("one"), member("two")], [Panel(["one", "two"], join)])
    plan = Plan([told("one"), quiet("p", sub=sub), told("two")])
    run = await PlanStage(plan).run()
    ids = [message.id for message in opened(run.thread.records, "message")]
    assert ids == ["one", "one#2", "two", "two#2"]


@pytest.mark.rule("R55", "R7", "R33")
@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        (Limits(max_messages=2), True),
        (Limits(max_messages=1), False),
        (Limits(max_bytes=12), True),
        (Limits(max_bytes=11), False),
    ],
)
async def test_the_budget_is_for_all_messages_of_a_panel_or_for_none(limits: Limits, fits: bool) -> None:
    stage = staged(*pair(), limits=limits)
    if fits:
        assert_ended((await stage.run()).thread, "completed")
        return
    error = await stage.fails(OverBudget)
    assert_ended(error.thread, "over_budget")
    assert story(error.thread.records) == ["open", "seal over_budget"]
    assert (stage.anna.deliveries, stage.ben.deliveries, stage.fired, stage.monitor.beats) == ([], [], [], [])


@pytest.mark.rule("R55", "R30")
async def test_a_draft_that_fails_leaves_the_whole_panel_unsaid() -> None:
    def stumble(record: Any) -> str:
        raise Odd("no words")

    stage = staged(member("one"), member("two", payload=None, payload_from=stumble), member("three"), members=3)
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert story(error.thread.records) == ["open", "seal failed"]
    assert settled(error.thread.records) == dict.fromkeys(("one", "two", "three"), ("failed", None, "start"))
    assert error.step == "two"


@pytest.mark.rule("R55", "R30")
async def test_of_messages_that_are_one_commit_the_one_that_cannot_be_signed_is_named() -> None:
    def ramble(record: Any) -> str:
        return "x" * 2_000_000

    stage = staged(member("one"), member("two", payload=None, payload_from=ramble), member("three"), members=3)
    error = await stage.fails(StepFailed)
    assert story(error.thread.records) == ["open", "seal failed"]
    assert error.step == "two"
    assert settled(error.thread.records) == dict.fromkeys(("one", "two", "three"), ("failed", None, "start"))


@pytest.mark.rule("R55", "R6")
async def test_all_drafts_are_made_from_copies_of_the_record_as_it_was() -> None:
    seen: list[Any] = []

    def say(record: Any) -> str:
        seen.append(list(record))
        record.append("spoilt")
        return "do it"

    run = await staged(*pair(payload=None, payload_from=say)).run()
    assert seen == [["begun"], ["begun"]]
    assert run.record == ["begun", "one", "two"]


@pytest.mark.rule("R55", "R31")
@pytest.mark.parametrize("rows", [0, 2])
async def test_a_panel_without_the_one_row_says_nothing(rows: int) -> None:
    leads = [("right", f"go-{number}", "all") for number in range(rows)]
    rest = [("choose", "l", "left"), ("choose", "r", "right"), ("left", "go", "all")]
    machine = Machine("start", [("start", "go", "choose"), *rest, *leads])
    steps = [
        quiet("choose", route=routing("right")), quiet("left", "choose"), quiet("right", "choose"),
        *(member(name, "left", "right", when="finished") for name in ("one", "two")),
    ]  # fmt: skip
    stage = PlanStage(Plan(steps, [Panel(["one", "two"], join)]), machine=machine)
    error = await stage.fails(NoTransition)
    assert_ended(error.thread, "failed")
    assert story(error.thread.records) == ["open", "seal failed"]
    assert error.step == "one, two"


# Asked


@pytest.mark.rule("R56")
async def test_all_recipients_of_all_messages_are_asked_at_once() -> None:
    stage = staged(*pair(), member("three"), members=3, anna=[Wait(10), "a", Wait(10), "b"], ben=[Wait(10)] * 2)
    run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    assert stage.clock.monotonic() <= 20
    first = [delivery.message.record.id for peer in (stage.anna, stage.ben) for delivery in peer.deliveries]
    assert sorted(first) == ["one", "three", "three", "two"]
    assert {path: sorted(outcome.acks) for path, outcome in run.outcomes.items()} == {
        "one": ["anna"], "two": ["ben"], "three": ["anna", "ben"],
    }  # fmt: skip


@pytest.mark.rule("R56", "R12")
async def test_each_message_has_its_own_time() -> None:
    steps = [member("one", ack_timeout=5), member("two", ack_timeout=20)]
    stage = staged(*steps, anna=[Wait(10)], ben=[Wait(15)])
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert_ended(error.thread, None)
    assert stage.clock.monotonic() == 15
    assert "'one'" in error.args[0]
    assert "5 s" in error.args[0]
    assert story(error.thread.records)[3:] == ["ben accepts", "confirm", "settle"]
    deadlines = [peer.deliveries[0].deadline for peer in (stage.anna, stage.ben)]
    assert deadlines == [1_700_000_005_000, 1_700_000_020_000]


@pytest.mark.rule("R56", "R18")
async def test_each_message_has_its_own_corrections() -> None:
    steps = [member("one", corrections=3), member("two", corrections=1)]
    stage = staged(*steps, anna=["wrong"] * 3 + ["right"], ben=["wrong", "right"], judge=unless_wrong)
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert (len(stage.anna.deliveries), len(stage.ben.deliveries)) == (4, 2)


@pytest.mark.rule("R56", "R32")
async def test_corrections_used_up_for_one_message_reject_the_run() -> None:
    steps = [member("one", corrections=3), member("two", corrections=0)]
    stage = staged(*steps, anna=[Wait(100)], ben=["wrong"], judge=unless_wrong)
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert_ended(error.thread, "rejected")
    assert stage.clock.monotonic() == 0
    assert settled(error.thread.records) == {"one": ("failed", None, "start"), "two": ("failed", None, "start")}


@pytest.mark.rule("R56", "R15")
async def test_a_decline_of_one_message_ends_the_waits_for_all() -> None:
    stage = staged(*pair(), anna=[Wait(100)], ben=[Wait(1), Declined("no")])
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert_ended(error.thread, "rejected")
    assert stage.clock.monotonic() == 1
    assert reason(error) == "ben declined: no"
    assert "'two'" in error.args[0]
    assert story(error.thread.records)[3:] == ["ben declines", "seal rejected"]
    assert stage.fired == []


@pytest.mark.rule("R56", "R35")
async def test_an_error_of_one_recipient_ends_the_waits_for_all() -> None:
    stage = staged(*pair(), anna=[Wait(100)], ben=[Wait(1), Odd("broken")])
    error = await stage.over_time(lambda: stage.fails(Odd))
    assert stage.clock.monotonic() == 1
    assert await stage.told() == ["open", "request one", "request two"]
    assert "in step 'one, two' of the thread 't'" in notes(error)


@pytest.mark.rule("R56")
async def test_a_time_that_is_up_lets_the_others_finish_and_keeps_what_they_bring() -> None:
    steps = [member("one", ack_timeout=5), member("two", corrections=2)]
    stage = staged(*steps, anna=[Wait(10)], ben=[Wait(50), "wrong", Wait(50), "right"], judge=unless_wrong)
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert stage.clock.monotonic() == 100
    assert story(error.thread.records)[3:] == ["ben accepts", "correct", "ben accepts", "confirm", "settle"]


@pytest.mark.rule("R56", "R42")
async def test_an_escalation_lets_the_others_finish_and_keeps_what_they_bring() -> None:
    stage = staged(*pair(), anna=[Escalated("ask")], ben=[Wait(50), "fine"], approvers=APPROVERS)
    error = await stage.over_time(lambda: stage.fails(Escalated))
    assert_ended(error.thread, None)
    assert story(error.thread.records)[3:] == ["ben accepts", "confirm", "escalate one#escalate"]
    assert stage.fired == []


@pytest.mark.rule("R56", "R42", "R43")
async def test_each_message_that_was_escalated_gets_an_escalation_of_its_own() -> None:
    stage = staged(
        *pair(), member("three", to=["emil"]), members=3, approvers=APPROVERS,
        anna=[Escalated("ask")], ben=[Wait(9), Escalated("also")],
    )  # fmt: skip
    stage.options["peers"]["emil"] = ScriptedPeer(EMIL)
    error = await stage.over_time(lambda: stage.fails(Escalated))
    assert_ended(error.thread, None)
    messages = [open_envelope(raw) for raw in error.thread.records if open_envelope(raw).kind == "message"]
    one, two, _, *escalations = messages
    assert [message.record.id for message in escalations] == ["one#escalate", "two#escalate"]
    assert [message.record.reply_to for message in escalations] == [one.address, two.address]
    assert [message.record.payload for message in escalations] == ["ask", "also"]
    assert "also" in notes(error)
    assert error.args[0] == "ask"
    assert [event.address for event in stage.bus.named(MESSAGE_DELIVERED)] == [one.address for one in messages]


@pytest.mark.rule("R56", "R42")
async def test_a_judge_escalates_the_message_it_was_asked_about() -> None:
    def judge(message: Message, ack: Ack) -> Confirm:
        if message.id == "two":
            raise Escalated("I cannot tell")
        return Confirm()

    stage = staged(*pair(), judge=judge, approvers=APPROVERS)
    error = await stage.fails(Escalated)
    assert story(error.thread.records)[-1] == "escalate two#escalate"
    assert sorted(story(error.thread.records)[3:-1]) == ["anna accepts", "ben accepts", "confirm"]


@pytest.mark.rule("R56", "R45")
async def test_a_decline_of_one_message_leaves_the_other_unescalated() -> None:
    stage = staged(*pair(), anna=[Escalated("ask")], ben=[Wait(1), Declined("no")], approvers=APPROVERS)
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert_ended(error.thread, "rejected")
    assert story(error.thread.records)[3:] == ["ben declines", "seal rejected"]
    assert "Escalated: run.escalated: ask" in notes(error)


@pytest.mark.rule("R44", "R56")
async def test_without_approvers_no_message_of_a_panel_is_escalated_and_the_errors_say_so() -> None:
    stage = staged(*pair(), anna=[Escalated("ask")], ben=[Escalated("also")])
    error = await stage.fails(Escalated)
    assert story(error.thread.records) == ["open", "request one", "request two"]
    assert "no approvers" in notes(error)


@pytest.mark.rule("R41", "R56")
@pytest.mark.parametrize(
    ("anna", "ben", "raised", "noted"),
    [
        ([Wait(9), Declined("no")], [Escalated("ask")], Rejected, "besides: Escalated: run.escalated: ask"),
        ([Wait(99)], [Wait(9), Declined("no")], Rejected, ""),
        ([Wait(9), Odd("broken")], [Escalated("ask")], Odd, "besides: Escalated: run.escalated: ask"),
        ([Escalated("ask")], [Wait(9), Odd("broken")], Odd, "besides: Escalated: run.escalated: ask"),
        ([Wait(99)], [Escalated("ask")], Escalated, "besides: no answer in time from anna"),
        ([Escalated("ask")], [Wait(99)], Escalated, "besides: no answer in time from ben"),
        ([Wait(99)], [Wait(99)], AckTimeout, "besides: no answer in time from ben"),
    ],
)
async def test_of_several_failures_of_a_panel_the_gravest_is_raised_and_the_others_are_noted(
    anna: list[Any], ben: list[Any], raised: type[Exception], noted: str
) -> None:
    stage = staged(*pair(ack_timeout=10), anna=anna, ben=ben)
    error = await stage.over_time(lambda: stage.fails(raised))
    assert noted in notes(error)
    assert not isinstance(error, BaseExceptionGroup)


@pytest.mark.rule("R41", "R56")
async def test_of_two_declines_in_a_panel_the_first_declared_is_raised_and_the_other_noted() -> None:
    class Late(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            with anyio.CancelScope(shield=True):
                return await super().ack(delivery)

    stage = staged(*pair())

    async def slow(kinds: list[str]) -> None:
        if kinds == ["ack"]:
            await stage.clock.sleep(1)

    stage.store.before = slow
    stage.options["peers"] = {"anna": Late(ANNA, [Declined("no")]), "ben": Late(BEN, [Declined("no")])}
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert_ended(error.thread, "rejected")
    assert reason(error) == "anna declined: no"
    assert notes(error) == "besides: ben declined: no"


@pytest.mark.rule("R36", "R56")
async def test_a_recipient_of_one_message_that_has_left_ends_the_waits_for_all() -> None:
    stage = staged(*pair(), anna=[Wait(100)], ben=[Wait(1), "fine"])

    async def leave(kinds: list[str]) -> None:
        if "message" in kinds:
            stage.store.after = None
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.after = leave
    error = await stage.over_time(lambda: stage.fails(NoRecipient))
    assert_ended(error.thread, "failed")
    assert stage.clock.monotonic() == 1
    assert settled(error.thread.records) == {"one": ("failed", None, "start"), "two": ("failed", None, "start")}


@pytest.mark.rule("R36", "D10")
async def test_a_recipient_of_a_message_that_was_escalated_may_leave_while_another_message_is_asked_about() -> None:
    steps = [member("one"), member("two", ack_timeout=10)]
    approvers = {"cara": CARA.public_key}
    bens = [Wait(20), "wrong", "right"]
    stage = staged(*steps, anna=[Escalated("ask")], ben=bens, approvers=approvers, judge=unless_wrong)
    error = await stage.over_time(lambda: stage.fails(Escalated))
    message = open_envelope(error.thread.records[-1])
    assert message.record.id == "one#escalate"
    await appended(stage.store, CARA, Ack, message=message.address, answer="accept", restatement="do it")
    await appended(stage.store, ANNA, Roster, change="leave", key=ANNA.public_key)
    run = await stage.resume()
    assert_ended(run.thread, "completed")
    assert (run.outcomes["one"].became, run.outcomes["two"].became) == ("approved", "succeeded")


@pytest.mark.rule("R17", "R56")
async def test_each_ack_is_committed_as_it_comes_and_the_last_of_all_with_the_state() -> None:
    stage = staged(*pair(), member("three"), members=3, ben=[Wait(1), "a", Wait(1), "b"])
    await stage.over_time(stage.run)
    commits = [commit for commit in stage.store.log if "ack" in commit]
    assert commits == [["ack", "ruling"]] * 3 + [["ack", "ruling", "state"]]
    confirmed = [entry for entry in await stage.log() if entry.phase == "confirmed"]
    assert [(entry.at, entry.attempt) for entry in confirmed] == [((("one",), ("two",), ("three",)), 1)]


# Fired


@pytest.mark.rule("R57", "R20")
async def test_nothing_fires_before_every_message_is_confirmed() -> None:
    stage = staged(*pair(), ben=[Wait(50), "fine"])
    lines: list[list[str]] = []

    async def look(call: Call) -> None:
        lines.append(await stage.told())

    stage.acting = look
    await stage.over_time(stage.run)
    assert lines == [["open", "request one", "request two", "anna accepts", "confirm", "ben accepts", "confirm"]] * 2


@pytest.mark.rule("R57")
@pytest.mark.parametrize("make", [member, mute])
async def test_the_steps_of_a_panel_fire_at_once_each_on_its_own_copy(make: Callable[..., Step]) -> None:
    stage = staged(make("one"), make("two"), make("three"), members=3)
    inside: list[str] = []
    together = anyio.Event()

    async def meet(call: Call) -> None:
        inside.append("/".join(call.step))
        if len(inside) == 3:
            together.set()
        await together.wait()

    stage.acting = meet
    run = await stage.run()
    assert sorted(inside) == ["one", "three", "two"]
    assert run.record == ["begun", "one", "two", "three"]
    assert run.status == "all"


@pytest.mark.rule("R57", "S9")
async def test_each_step_of_a_panel_has_its_own_path_key_and_message() -> None:
    stage = staged(*pair())
    run = await stage.run()
    calls = {call.step: call for call in stage.calls}
    for name in ("one", "two"):
        call = calls.pop((name,))
        assert call.key == call_key(run.thread.address, (name,), "on_entry")
        assert (call.attempt, call.failure, call.message.id) == (1, None, name)
    assert calls == {}


@pytest.mark.rule("R57")
async def test_no_step_of_a_panel_is_cut_short_because_another_failed() -> None:
    stage = staged(mute("one"), mute("two"), fail={"one": ALWAYS})
    finished: list[Any] = []

    async def slow(call: Call) -> None:
        if call.step == ("two",):
            await stage.clock.sleep(10)
            finished.append(call.step)

    stage.acting = slow
    error = await stage.over_time(lambda: stage.fails(StepFailed))
    assert finished == [("two",)]
    assert settled(error.thread.records) == {"one": ("failed", 1, "start"), "two": ("failed", 1, "start")}


@pytest.mark.rule("R57", "R53")
async def test_a_panel_that_says_nothing_is_firing_durably_before_it_fires() -> None:
    stage = staged(mute("one"), mute("two"))
    found: list[Any] = []

    async def look(call: Call) -> None:
        last = (await stage.log())[-1]
        found.append((last.phase, last.attempt, last.at))

    stage.acting = look
    run = await stage.run()
    assert found == [("firing", 1, (("one",), ("two",)))] * 2
    assert story(run.thread.records) == ["open", "seal completed"]
    assert settled(run.thread.records) == {"one": ("succeeded", 1, "all"), "two": ("succeeded", 1, "all")}


@pytest.mark.rule("R57", "R11")
async def test_the_run_beats_while_a_panel_fires() -> None:
    stage = staged(mute("one"), mute("two"))

    async def slow(call: Call) -> None:
        await stage.clock.sleep(2500)

    stage.acting = slow
    await stage.over_time(stage.run)
    assert stage.monitor.beats == [0, 1000, 2000]


@pytest.mark.rule("R57", "R40")
async def test_a_cancel_while_a_panel_fires_leaves_what_a_crash_would_leave() -> None:
    stage = staged(*pair())
    with anyio.CancelScope() as scope:

        async def hang(call: Call) -> None:
            if len(stage.calls) == 2:
                scope.cancel()
            await anyio.sleep_forever()

        stage.acting = hang
        await stage.run()
    assert scope.cancelled_caught
    assert (await stage.told())[-1] == "confirm"
    assert (await stage.log())[-1].phase == "confirmed"
    assert stage.monitor.forgotten


class Stop(BaseException):
    pass


@pytest.mark.rule("R57", "R41")
@pytest.mark.parametrize("heart", [True, False])
async def test_what_is_no_exception_leaves_a_panel_as_it_came(heart: bool) -> None:
    stage = staged(mute("one"), mute("two"), **({} if heart else {"heartbeat": None}))

    async def stop(call: Call) -> None:
        raise Stop

    stage.acting = stop
    await stage.fails(Stop)
    assert await stage.told() == ["open"]


# Reduced


@pytest.mark.rule("R58")
async def test_the_reducer_gets_the_record_as_it_was_and_those_of_the_steps_in_the_order_of_declaration() -> None:
    seen: list[Any] = []

    def look(original: Any, records: Any) -> Any:
        seen.append((original, records))
        return [*original, "reduced"]

    steps = [mute("one"), mute("two"), mute("three")]
    stage = PlanStage(Plan(steps, [Panel(["three", "two", "one"], look)]))

    async def dawdle(call: Call) -> None:
        await stage.clock.sleep({"one": 3, "two": 1, "three": 2}[call.step[0]])

    stage.acting = dawdle
    run = await stage.over_time(stage.run)
    assert seen == [(["begun"], [["begun", "one"], ["begun", "two"], ["begun", "three"]])]
    assert run.record == ["begun", "reduced"]


@pytest.mark.rule("R58")
async def test_a_reducer_may_be_async() -> None:
    async def later(original: Any, records: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return records[1]

    assert (await staged(mute("one"), mute("two"), reducer=later).run()).record == ["begun", "two"]


@pytest.mark.rule("R58", "M8")
async def test_what_a_reducer_keeps_is_no_part_of_the_runs_record() -> None:
    kept: list[Any] = []

    def keep(original: Any, records: Any) -> Any:
        kept.append(join(original, records))
        original.append("spoilt")
        return kept[0]

    async def meddle(event: Any) -> None:
        kept[0].append("spoilt")

    stage = staged(mute("one"), mute("two"), reducer=keep)
    stage.bus.subscribe(meddle, STEP_COMPLETED)
    assert (await stage.run()).record == ["begun", "one", "two"]


@pytest.mark.rule("R58")
async def test_the_record_that_a_reducer_made_is_durable_and_the_next_step_begins_with_it() -> None:
    stage = staged(mute("one"), mute("two"), quiet("next", "one"))
    run = await stage.run()
    done = [entry for entry in await stage.log() if entry.phase == "done"]
    assert [entry.record for entry in done] == ['["begun","one","two"]', '["begun","one","two","next"]']
    assert run.record == ["begun", "one", "two", "next"]


@pytest.mark.rule("R58", "R21")
async def test_a_panel_is_settled_told_of_and_moved_once() -> None:
    stage = staged(*pair())
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert settled(run.thread.records) == {"one": ("succeeded", 1, "all"), "two": ("succeeded", 1, "all")}
    names = [event.name for event in stage.bus.events]
    assert names == [
        *[MESSAGE_DELIVERED] * 2, *[MESSAGE_ACKED] * 2, MACHINE_MOVE, *[STEP_COMPLETED] * 2, THREAD_VERIFIED
    ]  # fmt: skip
    completed = [event.data["outcome"] for event in stage.bus.named(STEP_COMPLETED)]
    assert completed == [run.outcomes["one"], run.outcomes["two"]]
    assert [outcome.message.record.id for outcome in completed] == ["one", "two"]


def fall(original: Any, records: Any) -> Any:
    original.append("spoilt")
    raise Odd("nothing adds up")


def forget(original: Any, records: Any) -> Any:
    return None


def retype(original: Any, records: Any) -> Any:
    return {"n": 1}


def smuggle(original: Any, records: Any) -> Any:
    return [{1, 2}]


def bloat(original: Any, records: Any) -> Any:
    return ["x" * 1_000_001]


@pytest.mark.rule("R58", "R30")
@pytest.mark.parametrize("reducer", [fall, forget, retype, smuggle, bloat])
async def test_a_reducer_that_fails_fails_every_step_and_leaves_status_and_record(reducer: Any) -> None:
    stage = staged(*pair(), reducer=reducer)
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert (error.status, error.record, error.step) == ("start", ["begun"], "one")
    assert settled(error.thread.records) == {"one": ("failed", 1, "start"), "two": ("failed", 1, "start")}
    assert stage.bus.named(MACHINE_MOVE) == []


@pytest.mark.rule("R58")
async def test_attempts_in_a_panel_that_failed_tell_which_actions_were_started() -> None:
    def look(record: Any, call: Call) -> bool:
        return call.step != ("two",)

    plan = Plan([mute("one"), mute("two")], [Panel(["one", "two"], join)])
    stage = PlanStage(plan)
    stage.machine = net(plan, guard=look, on_entry=stage.act)
    error = await stage.fails(StepFailed)
    assert settled(error.thread.records) == {"one": ("failed", 1, "start"), "two": ("failed", None, "start")}
    assert error.step == "two"
    assert "said no" in error.args[0]


@pytest.mark.rule("R58", "R41")
async def test_of_several_steps_that_failed_the_first_declared_is_raised_and_the_others_are_noted() -> None:
    stage = staged(
        mute("one"), mute("two"), mute("three"), members=3, fail={"two": ALWAYS, "three": ALWAYS}
    )  # fmt: skip

    async def dawdle(call: Call) -> None:
        await stage.clock.sleep({"one": 1, "two": 9, "three": 3}[call.step[0]])

    stage.acting = dawdle
    error = await stage.over_time(lambda: stage.fails(StepFailed))
    assert error.step == "two"
    assert error.__cause__ is not None
    assert notes(error.__cause__) == "besides: Odd: three broke"


# Caught


@pytest.mark.rule("R49", "R58")
@pytest.mark.parametrize("reducer", [join, fall])
async def test_a_panel_whose_every_step_has_a_handler_is_caught(reducer: Any) -> None:
    stage = staged(
        *pair(), quiet("mend", "one", "two", when="failed"), quiet("end", "one"),
        reducer=reducer, fail={} if reducer is fall else {"two": ALWAYS},
    )  # fmt: skip
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert became(run) == {"one": "failed", "two": "failed", "end": "skipped", "mend": "succeeded"}
    assert run.record == ["begun", "mend"]
    step, text = ("one", "nothing adds up") if reducer is fall else ("two", "two broke")
    failure = Failure(step, "Odd", text, 1)
    assert [run.outcomes[name].failure for name in ("one", "two")] == [failure, failure]
    assert stage.calls[-1].failure == failure
    assert {name: sorted(run.outcomes[name].acks) for name in ("one", "two")} == {"one": ["anna"], "two": ["ben"]}


@pytest.mark.rule("R49", "R58")
async def test_a_panel_with_a_step_that_has_no_handler_is_not_caught() -> None:
    stage = staged(*pair(), quiet("mend", "one", when="failed"), fail={"one": ALWAYS})
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert sorted(stage.fired) == ["one", "two"]


# Of one, of many, of none that speak


@pytest.mark.rule("R46", "R58")
@pytest.mark.parametrize("reducer", [None, join])
async def test_a_panel_of_one_is_a_step_that_may_have_a_reducer(reducer: Any) -> None:
    stage = staged(member("one"), quiet("next", "one"), members=1, reducer=reducer)
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert run.record == ["begun", "one", "next"]
    assert settled(run.thread.records)["one"] == ("succeeded", 1, "all")


@pytest.mark.rule("R47", "R48")
async def test_a_panel_with_a_step_that_is_not_admitted_is_skipped_as_a_whole() -> None:
    steps = [
        quiet("broken"), quiet("mend", "broken", when="failed"), member("one", "broken"), member("two", "mend"),
        quiet("end", "two", when="finished"),
    ]  # fmt: skip
    stage = PlanStage(Plan(steps, [Panel(["one", "two"], join)]), fail={"broken": ALWAYS})
    run = await stage.run()
    assert became(run) == {
        "broken": "failed", "mend": "succeeded", "one": "skipped", "two": "skipped", "end": "succeeded"
    }  # fmt: skip
    assert story(run.thread.records) == ["open", "seal completed"]


@pytest.mark.rule("R55", "R56", "R57", "R58")
async def test_fifty_steps_make_a_panel_like_two() -> None:
    names = [f"s{number}" for number in range(50)]
    stage = staged(*(member(name, to=["anna", "ben"]) for name in names), quiet("next", "s7"), members=50)
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert run.record == ["begun", *names, "next"]
    assert len(opened(run.thread.records, "ruling")) == 100
    assert [commit.count("message") for commit in stage.store.log if "message" in commit] == [50]


@pytest.mark.rule("R55", "R58", "R22")
async def test_a_panel_may_settle_more_than_one_record_usually_carries() -> None:
    names = [f"s{number}" for number in range(600)]
    for fail in ({}, {"s9": ALWAYS}):
        stage = staged(*map(mute, names), quiet("next", "s7"), members=600, fail=fail)
        if fail:
            error = await stage.fails(StepFailed)
            assert_ended(error.thread, "failed")
            assert len(settled(error.thread.records)) == 600
        else:
            assert len(settled((await stage.run()).thread.records)) == 601
