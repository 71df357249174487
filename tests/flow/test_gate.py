"""Asking for acknowledgements: all at once, in rounds, and only a valid ack ends the wait."""

import logging
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from envelope import Ack, Blob, Message, Ruling, open_envelope, sign_record
from flow import AckTimeout, Confirm, Correct, Declined, Delivery, FlowError, Panel, Rejected, Step
from flow.bus import ACK_DUE, MESSAGE_ACKED
from flow.testing import ScriptedPeer, Twisted, Wait
from tests.flow.stage import (
    ANNA,
    BEN,
    OWNER,
    STRANGER,
    Stage,
    appended,
    assert_ended,
    correct,
    on_the_way,
    opened,
    story,
    unless_wrong,
)

pytestmark = pytest.mark.anyio


def asking(**fields: Any) -> Step:
    return Step("s", target="b", **{"payload": "do it", **fields})


def to_anna(**fields: Any) -> Step:
    return asking(to=["anna"], **fields)


# Everybody at once


@pytest.mark.rule("R12")
async def test_all_recipients_are_asked_at_once() -> None:
    stage = Stage(asking(ack_timeout=5), anna=[Wait(4), "anna"], ben=[Wait(4), "ben"])
    run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    assert {name: ack.record.restatement for name, ack in run.outcomes["s"].acks.items()} == {
        "anna": "anna",
        "ben": "ben",
    }


@pytest.mark.rule("R12")
async def test_a_recipient_that_is_slow_does_not_hold_up_the_ack_of_another() -> None:
    stage = Stage(asking(), anna=[Wait(1000), "at last"])
    seen: list[list[str]] = []

    async def look() -> None:
        await stage.clock.sleep(500)
        seen.append(await stage.told())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        run = await stage.over_time(stage.run)
    assert seen == [["open", "request s", "ben accepts", "confirm"]]
    assert_ended(run.thread, "completed")


@pytest.mark.rule("R12")
async def test_only_those_named_by_the_step_are_asked() -> None:
    stage = Stage(to_anna())
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert (len(stage.anna.deliveries), len(stage.ben.deliveries)) == (1, 0)


@pytest.mark.rule("R12")
async def test_the_timeout_spans_all_rounds() -> None:
    script = [Wait(4), "wrong", Wait(4), "wrong", Wait(4), "right"]
    stage = Stage(to_anna(ack_timeout=10, corrections=5), anna=script, judge=unless_wrong)
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert_ended(error.thread, None)
    assert stage.clock.monotonic() == 10
    assert story(error.thread.records)[2:] == ["anna accepts", "correct", "anna accepts", "correct", "settle"]


@pytest.mark.rule("R12")
async def test_all_rounds_within_the_timeout_are_in_time() -> None:
    script = [Wait(4), "wrong", Wait(4), "wrong", Wait(1.9), "right"]
    stage = Stage(to_anna(ack_timeout=10, corrections=5), anna=script, judge=unless_wrong)
    assert_ended((await stage.over_time(stage.run)).thread, "completed")


@pytest.mark.rule("R12")
async def test_nobody_is_asked_once_the_time_is_up() -> None:
    stage = Stage(to_anna(ack_timeout=10), anna=["wrong"], judge=unless_wrong)

    async def dally(kinds: list[str]) -> None:
        if "ruling" in kinds:
            await stage.clock.sleep(11)

    stage.store.after = dally
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert_ended(error.thread, None)
    assert len(stage.anna.deliveries) == 1


@pytest.mark.rule("R12")
async def test_the_judges_time_is_counted_too() -> None:
    async def slow(message: Message, ack: Ack) -> Confirm:
        await stage.clock.sleep(100)
        return Confirm()

    stage = Stage(to_anna(ack_timeout=10), judge=slow)
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert (stage.clock.monotonic(), story(error.thread.records)[2:]) == (10, ["anna accepts", "settle"])
    assert_ended(error.thread, None)


@pytest.mark.rule("R12")
async def test_a_step_without_a_timeout_waits_without_end() -> None:
    stage = Stage(to_anna(), anna=[Wait(80_000), "at last"])
    assert_ended((await stage.over_time(stage.run)).thread, "completed")


# What is handed over


@pytest.mark.rule("R13")
async def test_a_delivery_holds_the_message_the_thread_so_far_and_the_deadline() -> None:
    stage = Stage(to_anna(ack_timeout=10))
    start = stage.clock.now_ms()
    histories: list[list[str]] = []

    class Reading(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            histories.append(story(await delivery.history()))
            return await super().ack(delivery)

    stage.options["peers"] = {"anna": (anna := Reading(ANNA, clock=stage.clock))}
    run = await stage.run()
    assert_ended(run.thread, "completed")
    (delivery,) = anna.deliveries
    assert delivery.message.raw == run.thread.records[1]
    assert (delivery.correction, delivery.deadline, histories) == (None, start + 10_000, [["open", "request s"]])


@pytest.mark.rule("R13")
async def test_without_a_timeout_there_is_no_deadline() -> None:
    stage = Stage(to_anna())
    await stage.run()
    assert stage.anna.deliveries[0].deadline is None


@pytest.mark.rule("R13")
async def test_a_correction_is_delivered_with_the_same_message_and_deadline() -> None:
    stage = Stage(to_anna(ack_timeout=10), anna=[Wait(3), "wrong", "right"], judge=unless_wrong)
    run = await stage.over_time(stage.run)
    first, second = stage.anna.deliveries
    assert (first.message, first.deadline) == (second.message, second.deadline)
    assert second.correction is not None
    assert second.correction.record == opened(run.thread.records, "ruling")[0]
    assert second.correction.record.correction == "not that"


# Answers that are no valid acks


def _unsigned(delivery: Delivery) -> Any:
    raw = _right(delivery).raw
    return _like(delivery, raw[:-1] + bytes([raw[-1] ^ 1]))


def _right(delivery: Delivery, **fields: Any) -> Any:
    message = delivery.message
    fields = {"answer": "accept", "restatement": "understood", "message": message.address, **fields}
    return sign_record(Ack, ANNA, **{"thread": message.record.thread, **fields})


def _like(delivery: Delivery, raw: Any) -> Any:
    """An envelope that claims to be a right ack, over other bytes."""
    envelope = _right(delivery)
    return type(envelope)(envelope.record, envelope.signer, envelope.address, raw)


INVALID: dict[str, Callable[[Delivery], Any]] = {
    "nothing": lambda delivery: None,
    "a text": lambda delivery: "I agree",
    "true": lambda delivery: True,
    "bytes": lambda delivery: _right(delivery).raw,
    "an unsigned record": lambda delivery: _right(delivery).record,
    "an envelope without bytes": lambda delivery: _like(delivery, None),
    "an envelope of a text": lambda delivery: _like(delivery, "raw"),
    "an envelope of other bytes": lambda delivery: _like(delivery, bytearray(_right(delivery).raw)),
    "an envelope of garbage": lambda delivery: _like(delivery, b"garbage"),
    "a wrong signature": _unsigned,
    "the message itself": lambda delivery: delivery.message,
    "an envelope that poses as an ack": lambda delivery: _like(delivery, delivery.message.raw),
    "a ruling": lambda delivery: sign_record(
        Ruling, ANNA, thread=delivery.message.record.thread, ack=bytes(32), ruling="confirm"
    ),
    "an ack by a stranger": lambda delivery: Twisted(signer=STRANGER),
    "an ack by another recipient": lambda delivery: Twisted(signer=BEN),
    "an ack by the author": lambda delivery: Twisted(signer=OWNER),
    "a decline by a stranger": lambda delivery: Twisted({"answer": "decline"}, STRANGER),
    "an ack of other bytes": lambda delivery: _right(delivery, message=bytes(32)),
    "an ack in another thread": lambda delivery: _right(delivery, thread=bytes(32)),
    "an ack of the open": lambda delivery: _right(delivery, message=delivery.message.record.thread),
    "an ack of a correction there was not": lambda delivery: _right(delivery, after=bytes(32)),
}


@pytest.mark.rule("R14")
@pytest.mark.parametrize("sort", INVALID)
async def test_an_answer_that_is_no_valid_ack_is_dropped_and_logged_and_the_wait_goes_on(
    sort: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            if not self.deliveries:
                self.deliveries.append(delivery)
                odd = INVALID[sort](delivery)
                return self._signed(delivery, odd.fields, odd.signer) if isinstance(odd, Twisted) else odd
            return await super().ack(delivery)

    stage = Stage(to_anna())
    stage.options["peers"]["anna"] = anna = Odd(ANNA, clock=stage.clock)
    with caplog.at_level(logging.WARNING, "flow.gate"):
        run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    assert story(run.thread.records) == ["open", "request s", "anna accepts", "confirm", "seal completed"]
    assert [record.getMessage().startswith("an answer of anna to ") for record in caplog.records] == [True]
    assert len(anna.deliveries) == 2


@pytest.mark.rule("R14")
async def test_one_recipients_valid_ack_is_no_ack_of_another(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(asking(ack_timeout=60), ben=[Twisted(signer=ANNA)] * 99)
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert story(error.thread.records)[2:] == ["anna accepts", "confirm", "settle"]
    assert "ben" in str(error)
    assert "anna" not in str(error)


@pytest.mark.rule("R14")
async def test_an_ack_that_does_not_answer_the_correction_is_dropped() -> None:
    script = ["wrong", Twisted({"after": None}), Twisted({"after": bytes(32)}), "right"]
    stage = Stage(to_anna(), anna=script, judge=unless_wrong)
    run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    assert story(run.thread.records)[2:-1] == ["anna accepts", "correct", "anna accepts", "confirm"]


@pytest.mark.rule("R14")
async def test_the_first_rounds_ack_does_not_answer_a_correction_again() -> None:
    stage = Stage(to_anna(ack_timeout=60), judge=correct)

    class Parrot(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            self.deliveries.append(delivery)
            return said

    stage.options["peers"]["anna"] = anna = Parrot(ANNA)

    async def remember(kinds: list[str]) -> None:
        nonlocal said
        if kinds[0] == "message":
            raw = (await stage.records())[1]
            said = sign_record(
                Ack, ANNA, thread=open_envelope(raw).record.thread, message=open_envelope(raw).address,
                answer="accept", restatement="once",
            )  # fmt: skip

    said: Any = None
    stage.store.after = remember
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert story(error.thread.records)[2:] == ["anna accepts", "correct", "settle"]
    assert len(anna.deliveries) > 2


@pytest.mark.rule("R14")
async def test_a_recipient_that_talks_nonsense_is_asked_again_ever_more_seldom() -> None:
    asked: list[float] = []

    class Babbling(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            asked.append(round(stage.clock.monotonic(), 3))

    stage = Stage(to_anna(ack_timeout=100))
    stage.options["peers"]["anna"] = Babbling(ANNA)
    await stage.over_time(lambda: stage.fails(AckTimeout))
    assert asked == [0, 0.1, 0.6, 2.6, 12.6, 42.6, 72.6]


@pytest.mark.rule("R14")
async def test_the_answer_of_one_recipient_does_not_wait_for_the_nonsense_of_another() -> None:
    stage = Stage(asking(), anna=[None] * 5, ben=[Declined("no")])
    error = await stage.fails(Rejected)
    assert_ended(error.thread, "rejected")
    assert stage.clock.monotonic() == 0


@pytest.mark.rule("R14")
async def test_a_restatement_outside_the_thread_is_as_good_as_one_within() -> None:
    seen: list[object] = []

    def judge(message: Message, ack: Ack) -> Confirm:
        seen.append(ack.restatement)
        return Confirm()

    blob = {"address": bytes(32), "bytes": 99}
    stage = Stage(to_anna(), anna=[Twisted({"restatement": blob})], judge=judge)
    assert_ended((await stage.run()).thread, "completed")
    assert seen == [Blob(**blob)]


# The judge


@pytest.mark.rule("R16")
async def test_the_judge_is_told_the_message_and_the_ack() -> None:
    heard: list[Any] = []

    def judge(message: Message, ack: Ack) -> Confirm:
        heard.append((message.payload, ack.restatement))
        return Confirm()

    stage = Stage(to_anna(payload="please"), anna=["as you wish"], judge=judge)
    await stage.run()
    assert heard == [("please", "as you wish")]


@pytest.mark.rule("R16")
async def test_a_judge_may_be_async() -> None:
    async def judge(message: Message, ack: Ack) -> Confirm:
        await anyio.lowlevel.checkpoint()
        return Confirm()

    stage = Stage(judge=judge)
    assert_ended((await stage.run()).thread, "completed")


@pytest.mark.rule("R16")
@pytest.mark.parametrize("said", [None, True, "confirm", Confirm, (), ["not that"]])
async def test_a_judge_says_confirm_or_correct_and_nothing_else(said: object) -> None:
    def judge(message: Message, ack: Ack) -> Any:
        return said

    stage = Stage(to_anna(), judge=judge)
    error = await stage.fails(FlowError)
    assert (error.code, story(error.thread.records)[2:]) == ("run.judge", ["anna accepts", "settle"])
    assert_ended(error.thread, None)


@pytest.mark.rule("R16")
@pytest.mark.parametrize("text", ["", " \n", None, 7, "x" * 65_537, "\ud800"])
async def test_a_correction_that_cannot_be_signed_is_no_ruling(text: Any) -> None:
    def judge(message: Message, ack: Ack) -> Correct:
        return Correct(text)

    stage = Stage(to_anna(), judge=judge)
    with pytest.raises(Exception, match=r"body|cbor") as raised:
        await stage.run()
    assert "in step 's' of the thread 't'" in raised.value.__notes__[-1]
    assert await stage.told() == ["open", "request s", "anna accepts", "settle"]


@pytest.mark.rule("R16")
async def test_there_is_no_judge_by_default() -> None:
    stage = Stage()
    del stage.options["judge"]
    with pytest.raises(TypeError, match="judge"):
        await stage.run()


@pytest.mark.rule("R15")
async def test_the_judge_is_not_asked_about_a_decline() -> None:
    def judge(message: Message, ack: Ack) -> Confirm:
        raise AssertionError("the judge was asked")

    stage = Stage(to_anna(), anna=[Declined("no")], judge=judge)
    error = await stage.fails(Rejected)
    assert_ended(error.thread, "rejected")
    assert story(error.thread.records) == ["open", "request s", "anna declines", "seal rejected"]


@pytest.mark.rule("R15")
async def test_a_decline_after_a_correction_is_a_decline() -> None:
    stage = Stage(to_anna(), anna=["wrong", Declined("then no")], judge=unless_wrong)
    error = await stage.fails(Rejected)
    assert_ended(error.thread, "rejected")
    assert story(error.thread.records)[2:] == ["anna accepts", "correct", "anna declines", "seal rejected"]


@pytest.mark.rule("R15")
async def test_a_decline_ends_the_waits_for_the_others() -> None:
    stage = Stage(asking(), anna=[Wait(1000), "late"], ben=[Wait(1), Declined("no")])
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert (stage.clock.monotonic(), story(error.thread.records)[2:]) == (1, ["ben declines", "seal rejected"])
    assert not hasattr(error, "__notes__")


@pytest.mark.rule("R15", "R19")
async def test_a_recipient_whose_correction_was_under_way_when_another_declined_is_not_asked_again() -> None:
    stage = Stage(asking(), anna=["wrong"], ben=[Declined("no")], judge=unless_wrong)

    told: list[str] = []
    stage.bus.subscribe(lambda event: told.append(event.data["recipient"]), MESSAGE_ACKED)

    async def hold(event: Any) -> None:
        if event.data["recipient"] == "anna":
            await stage.clock.sleep(5)

    stage.bus.subscribe(hold, MESSAGE_ACKED)
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert (sorted(told), len(stage.anna.deliveries), len(stage.ben.deliveries)) == (["anna", "ben"], 1, 1)
    assert sorted(story(error.thread.records)[2:-1]) == ["anna accepts", "ben declines", "correct"]
    assert not hasattr(error, "__notes__")


# Commits and events


@pytest.mark.rule("R17")
async def test_each_ack_is_committed_with_its_ruling_and_the_last_with_the_state() -> None:
    stage = Stage(asking(), anna=["wrong", Wait(1), "right"], ben=[Wait(2), "fine"], judge=unless_wrong)
    await stage.over_time(stage.run)
    commits = [kinds for kinds in stage.store.log if "ack" in kinds]
    assert commits == [["ack", "ruling"], ["ack", "ruling"], ["ack", "ruling", "state"]]


@pytest.mark.rule("R17")
async def test_a_decline_is_committed_without_a_ruling_and_without_a_state() -> None:
    stage = Stage(to_anna(), anna=[Declined("no")])
    await stage.fails(Rejected)
    assert ["ack"] in stage.store.log


@pytest.mark.rule("R17", "S1")
async def test_an_ack_is_told_only_when_it_is_durable_and_with_all_there_is_to_it() -> None:
    stage = Stage(to_anna(), anna=["wrong", "right"], judge=unless_wrong)
    told: list[list[str]] = []

    async def look(event: Any) -> None:
        told.append((await stage.told())[2:])

    stage.bus.subscribe(look, MESSAGE_ACKED)
    run = await stage.run()
    assert told == [["anna accepts", "correct"], ["anna accepts", "correct", "anna accepts", "confirm"]]
    events = stage.bus.named(MESSAGE_ACKED)
    acks = [open_envelope(raw) for raw in run.thread.records if open_envelope(raw).kind == "ack"]
    assert [event.address for event in events] == [ack.address for ack in acks]
    assert {(event.data["thread"], event.data["recipient"]) for event in events} == {("t", "anna")}
    assert [event.data["ack"] for event in events] == acks
    assert [event.data["ruling"].record.ruling for event in events] == ["correct", "confirm"]
    assert {event.data["message"].record.id for event in events} == {"s"}


@pytest.mark.rule("R17")
async def test_a_decline_is_told_without_a_ruling() -> None:
    stage = Stage(to_anna(), anna=[Declined("no")])
    await stage.fails(Rejected)
    assert [event.data["ruling"] for event in stage.bus.named(MESSAGE_ACKED)] == [None]


@pytest.mark.rule("R18")
async def test_a_correction_is_durable_before_it_is_delivered() -> None:
    histories: list[list[str]] = []

    class Reading(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            histories.append(story(await delivery.history())[2:])
            return await super().ack(delivery)

    stage = Stage(to_anna(), judge=unless_wrong)
    stage.options["peers"]["anna"] = Reading(ANNA, ["wrong", "right"])
    assert_ended((await stage.run()).thread, "completed")
    assert histories == [[], ["anna accepts", "correct"]]


@pytest.mark.rule("R18")
async def test_a_correction_that_could_not_be_committed_is_not_delivered() -> None:
    stage = Stage(to_anna(), judge=correct)

    async def fail(kinds: list[str]) -> None:
        if "ruling" in kinds:
            raise OSError("disk full")

    stage.store.before = fail
    await stage.fails(OSError)
    assert len(stage.anna.deliveries) == 1


@pytest.mark.rule("R18")
@pytest.mark.parametrize("corrections", [0, 1, 3, 15])
async def test_a_recipient_is_corrected_at_most_so_often(corrections: int) -> None:
    stage = Stage(to_anna(corrections=corrections), anna=["wrong"] * corrections + ["right"], judge=unless_wrong)
    assert_ended((await stage.run()).thread, "completed")
    stage = Stage(to_anna(corrections=corrections), anna=["wrong"] * 99, judge=unless_wrong)
    error = await stage.fails(Rejected)
    assert_ended(error.thread, "rejected")
    assert len(stage.anna.deliveries) == corrections + 1
    assert story(error.thread.records).count("correct") == corrections + 1


@pytest.mark.rule("R18")
async def test_each_recipient_has_corrections_of_its_own() -> None:
    stage = Stage(asking(), anna=["wrong", "right"], ben=["wrong", "right"], judge=unless_wrong)
    assert_ended((await stage.run()).thread, "completed")


# What has come when the step ends


@pytest.mark.rule("R19")
async def test_an_ack_that_waits_for_the_judge_when_another_declines_is_committed_and_told() -> None:
    async def thinking(message: Message, ack: Ack) -> Confirm:
        await stage.clock.sleep(1000)
        return Confirm()

    stage = Stage(asking(), ben=[Wait(1), Declined("no")], judge=thinking)
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert_ended(error.thread, "rejected")
    assert sorted(story(error.thread.records)[2:4]) == ["anna accepts", "ben declines"]
    assert {event.data["recipient"] for event in stage.bus.named(MESSAGE_ACKED)} == {"anna", "ben"}


@pytest.mark.rule("R19")
async def test_an_ack_that_waits_for_the_judge_when_the_time_is_up_is_committed() -> None:
    async def thinking(message: Message, ack: Ack) -> Confirm:
        await stage.clock.sleep(1000)
        return Confirm()

    stage = Stage(asking(ack_timeout=10), judge=thinking)
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert_ended(error.thread, None)
    assert sorted(story(error.thread.records)[2:]) == ["anna accepts", "ben accepts", "settle"]


@pytest.mark.rule("R19")
async def test_the_ack_on_which_the_judge_raised_is_committed_at_once() -> None:
    def judge(message: Message, ack: Ack) -> Confirm:
        raise ValueError("no idea")

    stage = Stage(to_anna(), judge=judge)
    await stage.fails(ValueError)
    assert await stage.told() == ["open", "request s", "anna accepts", "settle"]


@pytest.mark.rule("R19")
@pytest.mark.parametrize("ending", [Declined("no"), ValueError("broken")])
async def test_a_commit_under_way_when_the_step_ends_is_finished_and_told(ending: Exception) -> None:
    stage = Stage(asking(), anna=["hers"], ben=[Wait(1), ending])

    async def slow(kinds: list[str]) -> None:
        if kinds[:2] == ["ack", "ruling"]:
            await stage.clock.sleep(2)

    stage.store.before = slow
    error = await stage.over_time(lambda: stage.fails(Rejected if isinstance(ending, Declined) else ValueError))
    told = await stage.told()
    assert ("anna accepts" in told, "confirm" in told) == (True, True), error
    assert "anna" in {event.data["recipient"] for event in stage.bus.named(MESSAGE_ACKED)}


@pytest.mark.rule("R19")
async def test_acks_that_wait_for_their_turn_when_the_step_ends_are_committed_with_their_rulings() -> None:
    stage = Stage(asking(), anna=[Declined("no")], ben=["his"])

    async def slow(kinds: list[str]) -> None:
        if "ack" in kinds:
            await stage.clock.sleep(2)

    stage.store.before = slow
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert_ended(error.thread, "rejected")
    assert sorted(story(error.thread.records)[2:-1]) == ["anna declines", "ben accepts", "confirm"]


@pytest.mark.rule("R19")
async def test_a_handler_is_not_cut_short_by_the_end_of_the_step_nor_makes_the_recipient_late() -> None:
    stage = Stage(to_anna(ack_timeout=10))
    through: list[bool] = []

    async def slow(event: Any) -> None:
        await stage.clock.sleep(100)
        through.append(True)

    stage.bus.subscribe(slow, MESSAGE_ACKED)
    run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    assert through == [True]


@pytest.mark.rule("R19")
async def test_what_has_not_come_when_another_declines_is_not_waited_for() -> None:
    cancelled: list[bool] = []

    class Slow(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            try:
                await stage.clock.sleep(1000)
            except anyio.get_cancelled_exc_class():
                cancelled.append(True)
                raise

    stage = Stage(asking(), ben=[Wait(1), Declined("no")])
    stage.options["peers"]["anna"] = Slow(ANNA)
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert (cancelled, stage.clock.monotonic()) == ([True], 1)
    assert_ended(error.thread, "rejected")


@pytest.mark.rule("R20")
async def test_nothing_fires_before_the_last_recipient_is_confirmed() -> None:
    stage = Stage(*on_the_way(1), ben=[Wait(5), "wrong", Wait(5), "right"], judge=unless_wrong)
    fired_at: list[float] = []
    stage.bus.subscribe(lambda event: fired_at.append(stage.clock.monotonic()), "machine.move")
    run = await stage.over_time(stage.run)
    assert fired_at == [10]
    assert_ended(run.thread, "completed")


@pytest.mark.rule("R20")
@pytest.mark.parametrize("stray", [True, False])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio's cancellations come from scopes only
async def test_a_recipient_that_gets_cancelled_from_within_never_counts_as_confirmed(stray: bool) -> None:
    stage = Stage(asking())

    class Stray(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            raise anyio.get_cancelled_exc_class()("from within")

    stage.options["peers"] = {"anna": stage.anna, "ben": Stray(BEN)} if stray else {"ben": Stray(BEN)}
    with pytest.raises(anyio.get_cancelled_exc_class(), match="from within"):
        await stage.run()
    assert not [line for line in await stage.told() if line.startswith("seal")]
    assert stage.bus.named("machine.move") == []


@pytest.mark.rule("R19")
async def test_an_ack_that_the_member_appended_itself_is_taken_once() -> None:
    stage = Stage(to_anna())

    class Eager(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            return await appended(
                stage.store.store, ANNA, Ack,
                message=delivery.message.address, answer="accept", restatement="understood",
            )  # fmt: skip

    stage.options["peers"]["anna"] = Eager(ANNA)
    assert_ended((await stage.run()).thread, "completed")
    assert await stage.told() == ["open", "request s", "anna accepts", "confirm", "seal completed"]


@pytest.mark.rule("R19")
async def test_of_two_acks_the_one_in_the_thread_is_judged() -> None:
    stage = Stage(to_anna(), judge=unless_wrong)

    class Eager(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            if delivery.correction is None:
                await appended(
                    stage.store.store, ANNA, Ack,
                    message=delivery.message.address, answer="accept", restatement="wrong",
                )  # fmt: skip
            return await super().ack(delivery)

    stage.options["peers"]["anna"] = Eager(ANNA)
    assert_ended((await stage.run()).thread, "completed")
    assert await stage.told() == [
        "open", "request s", "anna accepts", "correct", "anna accepts", "confirm", "seal completed",
    ]  # fmt: skip


# Reminders


def reminders(stage: Stage) -> list[tuple[list[str], float]]:
    return [(event.data["waiting"], event.data["left"]) for event in stage.bus.named(ACK_DUE)]


@pytest.mark.rule("R63")
async def test_who_is_not_confirmed_is_told_at_half_and_at_nine_tenths_of_the_time() -> None:
    stage = Stage(asking(ack_timeout=100), anna=[Wait(70), "late"], ben=[Wait(200)])
    await stage.over_time(lambda: stage.fails(AckTimeout))
    assert reminders(stage) == [(["anna", "ben"], 50), (["ben"], pytest.approx(10))]


@pytest.mark.rule("R63")
async def test_nobody_is_reminded_of_what_is_confirmed_or_has_no_end() -> None:
    for step in (asking(ack_timeout=100), asking()):
        stage = Stage(step, anna=[Wait(40), "soon"], ben=[Wait(45), "soon"])
        await stage.over_time(stage.run)
        assert (reminders(stage), stage.clock.monotonic()) == ([], 45)


@pytest.mark.rule("R63")
async def test_each_message_of_a_panel_is_reminded_of_by_itself() -> None:
    steps = [Step(name, target="b", payload="do it", to=[name], ack_timeout=10) for name in ("anna", "ben")]
    stage = Stage(*steps, panels=[Panel(["anna", "ben"], first)], anna=[Wait(6), "well"])
    await stage.over_time(stage.run)
    (event,) = stage.bus.named(ACK_DUE)
    assert (event.data["message"].record.id, event.data["waiting"]) == ("anna", ["anna"])


def first(record: Any, records: Any) -> Any:
    return records[0]
