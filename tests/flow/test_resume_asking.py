"""What recipients, judge and approvers said before a run was cut off counts, and nobody is asked for it again."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from envelope import Ack, Envelope, Identity, Message, Roster, Ruling, open_envelope
from flow import AckTimeout, Confirm, Correct, Declined, Escalated, NoRecipient, Panel, Rejected, Run, Step
from flow.bus import MACHINE_MOVE, MESSAGE_ACKED, STEP_COMPLETED, THREAD_VERIFIED, Event
from flow.testing import Wait
from tests.flow.stage import (
    ANNA,
    BEN,
    CARA,
    DORA,
    OWNER,
    Stage,
    appended,
    assert_ended,
    correct,
    on_the_way,
    opened,
    settled,
    story,
    unless_wrong,
)

pytestmark = pytest.mark.anyio


def asking(**fields: Any) -> Step:
    return Step("s", target="b", **{"payload": "do it", **fields})


def to_anna(**fields: Any) -> Step:
    return asking(to=["anna"], **fields)


def panel(**fields: Any) -> Stage:
    """Two steps done together, the first of which asks anna, the second ben."""
    return Stage(
        Step("one", target="b", to=["anna"], payload="first", **fields),
        Step("two", target="b", to=["ben"], payload="second", **fields),
        panels=[Panel(["one", "two"], reducer=keep)],
        approvers=APPROVERS,
    )


def keep(original: Any, records: Sequence[Any]) -> Any:
    return original


APPROVERS = {"cara": CARA.public_key, "dora": DORA.public_key}


class Odd(Exception):
    pass


def puzzled(message: Message, ack: Ack) -> Confirm:
    raise Odd("no idea")


puzzled.__name__ = "confirm"  # so that the plan document is the same as with a judge that knows


class Judge:
    """A judge that remembers what it was asked."""

    __name__ = "confirm"

    def __init__(self, *said: Confirm | Correct) -> None:
        self.acks: list[Any] = []
        self._said = list(said)

    def __call__(self, message: Message, ack: Ack) -> Confirm | Correct:
        self.acks.append(ack.restatement)
        return self._said.pop(0) if self._said else Confirm()


def asked(stage: Stage) -> tuple[int, int]:
    """How often anna and ben were asked."""
    return len(stage.anna.deliveries), len(stage.ben.deliveries)


async def the_message(stage: Stage, number: int = 0) -> Envelope[Message]:
    return [envelope for envelope in map(open_envelope, await stage.records()) if envelope.kind == "message"][number]


# Delivered again


@pytest.mark.rule("D4")
async def test_a_message_is_delivered_again_as_the_same_bytes() -> None:
    stage = await Stage(asking()).cut("message")
    (raw,) = [raw for raw in await stage.records() if open_envelope(raw).kind == "message"]
    run = await stage.resume()
    assert [delivery.message.raw for delivery in (*stage.anna.deliveries, *stage.ben.deliveries)] == [raw, raw]
    assert [raw for raw in run.thread.records if open_envelope(raw).kind == "message"] == [raw]


@pytest.mark.rule("D4")
async def test_no_record_that_is_durable_is_signed_anew() -> None:
    for what in ("message", "ack", "done", "seal"):
        stage = await Stage(*on_the_way(2)).cut(what)
        before = list(await stage.records())
        run = await stage.resume()
        assert list(run.thread.records[: len(before)]) == before


@pytest.mark.rule("D4")
async def test_a_message_is_delivered_only_to_those_whose_confirmed_ack_is_not_recorded() -> None:
    stage = await Stage(asking()).cut("ack")
    run = await stage.resume()
    assert asked(stage) == (0, 1)
    assert story(run.thread.records)[:6] == ["open", "request s", "anna accepts", "confirm", "ben accepts", "confirm"]
    assert {name: ack.signer for name, ack in run.outcomes["s"].acks.items()} == {
        "anna": ANNA.public_key,
        "ben": BEN.public_key,
    }


@pytest.mark.rule("D4")
async def test_nobody_is_asked_once_all_are_confirmed() -> None:
    stage = await Stage(asking()).cut("confirmed")
    run = await stage.resume()
    assert asked(stage) == (0, 0)
    assert_ended(run.thread, "completed")


@pytest.mark.rule("D4", "D13")
async def test_a_message_that_was_not_durable_is_said_for_the_first_time() -> None:
    stage = await Stage(asking()).cut("message", when="before")
    assert await stage.told() == ["open"]
    run = await stage.resume()
    assert story(run.thread.records)[1:] == (await story_of(Stage(asking())))[1:]


async def story_of(stage: Stage) -> list[str]:
    return story((await stage.run()).thread.records)


# Halves of rounds


@pytest.mark.rule("D5")
async def test_an_ack_without_a_ruling_goes_to_the_judge_and_its_recipient_is_not_asked() -> None:
    stage = Stage(to_anna(), anna=["hers"], judge=puzzled)
    await stage.fails(Odd)
    judge = Judge()
    later = stage.reborn(judge=judge)
    run = await later.resume()
    assert (judge.acks, asked(later)) == (["hers"], (0, 0))
    assert story(run.thread.records) == ["open", "request s", "anna accepts", "settle", "confirm", "seal completed"]


@pytest.mark.rule("D5")
async def test_an_ack_that_a_recipient_appended_itself_goes_to_the_judge() -> None:
    stage = await Stage(to_anna()).cut("message")
    message = await the_message(stage)
    await appended(stage.store.store, ANNA, Ack, message=message.address, answer="accept", restatement="by myself")
    judge = Judge()
    later = stage.reborn(judge=judge)
    run = await later.resume()
    assert (judge.acks, asked(later)) == (["by myself"], (0, 0))
    assert run.outcomes["s"].acks["anna"].record.restatement == "by myself"


@pytest.mark.rule("D5")
async def test_an_ack_without_a_ruling_may_be_corrected_and_its_recipient_asked_for_another() -> None:
    stage = Stage(to_anna(), anna=["wrong"], judge=puzzled)
    await stage.fails(Odd)
    judge = Judge(Correct("not that"))
    later = stage.reborn(judge=judge, anna=["right"])
    run = await later.resume()
    assert judge.acks == ["wrong", "right"]
    assert [delivery.correction.record.correction for delivery in later.anna.deliveries] == ["not that"]
    assert_ended(run.thread, "completed")


@pytest.mark.rule("D5")
async def test_a_correction_that_was_not_answered_is_delivered_again() -> None:
    stage = await Stage(to_anna(), anna=["wrong"], judge=unless_wrong).cut("ruling", anna=["right"])
    (ruling,) = [open_envelope(raw) for raw in await stage.records() if open_envelope(raw).kind == "ruling"]
    run = await stage.resume()
    (delivery,) = stage.anna.deliveries
    assert delivery.correction.raw == ruling.raw
    assert story(run.thread.records)[2:6] == ["anna accepts", "correct", "anna accepts", "confirm"]
    assert run.outcomes["s"].acks["anna"].record.after == ruling.address


@pytest.mark.rule("D5")
@pytest.mark.parametrize("gate", ["before", "after"])
async def test_a_decline_that_is_recorded_rejects_and_nobody_is_asked(gate: Any) -> None:
    whole = await Stage(asking(gate=gate), anna=[Declined("no")]).fails(Rejected)
    stage = await Stage(asking(gate=gate), anna=[Declined("no")]).cut("ack")
    error = await stage.fails(Rejected, stage.resume)
    assert_ended(error.thread, "rejected")
    assert (str(error), error.status, asked(stage)) == (str(whole), whole.status, (0, 0))
    assert settled(error.thread.records) == settled(whole.thread.records)


@pytest.mark.rule("D5")
async def test_a_decline_that_a_recipient_appended_itself_rejects() -> None:
    stage = await Stage(asking()).cut("message")
    message = await the_message(stage)
    await appended(stage.store.store, BEN, Ack, message=message.address, answer="decline", restatement="not me")
    error = await stage.fails(Rejected, stage.resume)
    assert_ended(error.thread, "rejected")
    assert "ben declined: not me" in str(error)


@pytest.mark.rule("D5")
async def test_corrections_are_counted_over_the_whole_run() -> None:
    stage = Stage(to_anna(corrections=2), judge=correct, anna=["wrong"] * 9)
    for number in range(2):
        await stage.dies(stage.run if number == 0 else stage.resume, "ruling")
        stage = stage.reborn(anna=["wrong"] * 9)
    error = await stage.fails(Rejected, stage.resume)
    assert "may not answer again" in str(error)
    assert (asked(stage), len(opened(error.thread.records, "ruling"))) == ((1, 0), 3)


@pytest.mark.rule("D5")
async def test_a_run_whose_corrections_were_used_up_when_it_died_is_rejected_without_asking() -> None:
    stage = await Stage(to_anna(), judge=correct, anna=["wrong"] * 9).cut("ruling", 2)
    error = await stage.fails(Rejected, stage.resume)
    assert_ended(error.thread, "rejected")
    assert ("anna was corrected and may not answer again: not that" in str(error), asked(stage)[0]) == (True, 0)


@pytest.mark.rule("D5")
async def test_the_time_to_acknowledge_begins_anew() -> None:
    stage = Stage(to_anna(ack_timeout=10), anna=[Wait(99)])
    await stage.over_time(lambda: stage.fails(AckTimeout))
    later = stage.reborn(anna=[Wait(9), "late but fine"])
    run = await later.over_time(later.resume)
    assert_ended(run.thread, "completed")
    start = stage.clock.now_ms() - 10_000
    assert [delivery.deadline for delivery in later.anna.deliveries] == [start + 10_000]


@pytest.mark.rule("D5", "R34")
async def test_a_run_may_time_out_again_and_keeps_what_came() -> None:
    stage = Stage(asking(ack_timeout=10), ben=[Wait(99)])
    await stage.over_time(lambda: stage.fails(AckTimeout))
    for _ in range(2):
        later = stage.reborn(ben=[Wait(11)])
        error = await later.over_time(lambda later=later: later.fails(AckTimeout, later.resume))
        assert (asked(later), story(error.thread.records)) == (
            (0, 1),
            ["open", "request s", "anna accepts", "confirm", "settle"],
        )


@pytest.mark.rule("D5", "R36")
async def test_a_recipient_that_left_while_the_run_was_down_can_no_longer_ack() -> None:
    stage = await Stage(asking()).cut("ack")
    await appended(stage.store.store, BEN, Roster, change="leave", key=BEN.public_key)
    error = await stage.fails(NoRecipient, stage.resume)
    assert_ended(error.thread, "failed")
    assert "ben owes an ack" in str(error)


@pytest.mark.rule("D5")
async def test_a_recipient_that_left_after_it_was_confirmed_is_not_missed() -> None:
    stage = await Stage(asking()).cut("ack")
    await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)
    run = await stage.resume()
    assert_ended(run.thread, "completed")


@pytest.mark.rule("D4", "D5")
@pytest.mark.parametrize("acks", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_panel_that_was_half_confirmed_asks_the_other_half(acks: int, when: Any) -> None:
    stage = await panel().cut("ack", acks, when)
    run = await stage.resume()
    known = acks - (when == "before")
    assert asked(stage) == (int(known < 1), int(known < 2))
    assert story(run.thread.records) == await story_of(panel())


@pytest.mark.rule("D4", "R55")
async def test_the_messages_of_a_panel_are_durable_together() -> None:
    stage = await panel().cut("message", when="before")
    assert await stage.told() == ["open"]
    stage = await panel().cut("message")
    assert await stage.told() == ["open", "request one", "request two"]
    run = await stage.resume()
    assert story(run.thread.records) == await story_of(panel())


# Told again


def told(stage: Stage) -> list[str]:
    return [event.name.partition(".")[2] for event in stage.bus.events]


@pytest.mark.rule("D9")
async def test_the_messages_and_acks_of_the_unit_under_way_are_told_again() -> None:
    first = Stage(asking(corrections=1), anna=["wrong", "right"], judge=unless_wrong)
    stage = await first.cut("ack", 3)
    await stage.resume()
    again = stage.bus.events[: len(first.bus.events)]
    assert {event.address for event in first.bus.events} <= {event.address for event in stage.bus.events}
    assert again[0].address == first.bus.events[0].address
    assert sorted(told(stage)) == sorted(
        ["message_delivered", *["message_acked"] * 3, "move", "step_completed", "thread_verified"]
    )


@pytest.mark.rule("D9")
async def test_an_ack_is_told_again_with_its_ruling() -> None:
    stage = await Stage(asking()).cut("ack")
    await stage.resume()
    for event in stage.bus.named(MESSAGE_ACKED):
        assert (event.data["ack"].address, event.data["ruling"].record.ack) == (event.address, event.address)
    assert [event.data["recipient"] for event in stage.bus.named(MESSAGE_ACKED)] == ["anna", "ben"]


@pytest.mark.rule("D9")
@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_the_last_outcome_is_told_again(gate: Any) -> None:
    said = {} if gate == "none" else {"payload": "do it"}
    steps = [Step(f"to-{there}", target=there, gate=gate, **said) for there in "bc"]
    whole = Stage(*steps)
    first = await whole.run()
    stage = await Stage(*steps).cut("done")
    run = await stage.resume()
    completed = stage.bus.named(STEP_COMPLETED)
    assert [event.data["outcome"].step for event in completed] == ["to-b", "to-c"]
    assert completed[0].data["outcome"] == first.outcomes["to-b"] == run.outcomes["to-b"]
    moves = [dict(event.data) for event in whole.bus.named(MACHINE_MOVE)]
    assert [dict(event.data) for event in stage.bus.named(MACHINE_MOVE)] == moves[gate == "after" :]


@pytest.mark.rule("D9")
async def test_the_move_of_a_step_gated_after_is_told_again_before_its_acks_are_asked_for() -> None:
    first = Stage(asking(gate="after"))
    stage = await first.cut("fired")
    await stage.resume()
    assert told(stage)[:2] == ["move", "message_delivered"]


@pytest.mark.rule("D9")
async def test_outcomes_before_the_last_one_are_not_told_again() -> None:
    stage = await Stage(*on_the_way(3)).cut("done", 2)
    await stage.resume()
    assert [event.data["outcome"].step for event in stage.bus.named(STEP_COMPLETED)] == ["to-c", "to-d"]


@pytest.mark.rule("D9")
async def test_no_event_of_the_whole_run_is_missing_wherever_it_was_cut() -> None:
    def two() -> Stage:
        return Stage(*on_the_way(2))

    def said(events: Sequence[Event]) -> set[tuple[Any, ...]]:
        return {(event.name, event.data.get("step"), event.data.get("recipient"), _about(event)) for event in events}

    whole = two()
    await whole.run()
    for what, number in (("message", 1), ("ack", 1), ("confirmed", 1), ("done", 1), ("message", 2), ("done", 2)):
        for when in ("before", "after"):
            first = two()
            stage = await first.cut(what, number, when)
            await stage.resume()
            assert said([*first.bus.events, *stage.bus.events]) == said(whole.bus.events)
            assert len(stage.bus.named(THREAD_VERIFIED)) == 1


def _about(event: Event) -> str | None:
    if "outcome" in event.data:
        return str(event.data["outcome"].step)
    return event.data["message"].record.id if "message" in event.data else None


# Escalated


async def escalated(step: Step | None = None, **options: Any) -> tuple[Stage, Envelope[Message]]:
    """A run that escalated its step, in another process; and the escalation."""
    options = {"anna": [Escalated("ask")], "approvers": APPROVERS, **options}
    stage = Stage(step or to_anna(), **options)
    await stage.fails(Escalated)
    return stage.reborn(), await the_message(stage, 1)


async def answers(
    stage: Stage, who: Identity, escalation: Envelope[Message], answer: str = "accept", words: str = "go on"
) -> None:
    await appended(stage.store.store, who, Ack, message=escalation.address, answer=answer, restatement=words)


@pytest.mark.rule("D10")
@pytest.mark.parametrize("answered", [0, 1])
async def test_until_all_approvers_have_answered_the_escalation_is_raised_again_and_nobody_asked(answered: int) -> None:
    stage, escalation = await escalated()
    if answered:
        await answers(stage, CARA, escalation)
    before = list(await stage.records())
    for _ in range(2):
        error = await stage.fails(Escalated, stage.resume)
        assert ("waits for dora" if answered else "waits for cara, dora") in str(error)
        assert_ended(error.thread, None)
        stage = stage.reborn()
        assert asked(stage) == (0, 0)
    kept = [raw for raw in await stage.records() if open_envelope(raw).kind != "settle"]
    assert kept == [raw for raw in before if open_envelope(raw).kind != "settle"]


@pytest.mark.rule("D10")
async def test_what_all_approvers_accept_is_approved_without_the_judge() -> None:
    judge = Judge()
    stage, escalation = await escalated(judge=judge)
    for who in (CARA, DORA):
        await answers(stage, who, escalation)
    run = await stage.resume()
    assert_ended(run.thread, "completed")
    assert (judge.acks, asked(stage)) == ([], (0, 0))
    assert [settled(run.thread.records)[name][0] for name in ("s", "s#escalate")] == ["approved", "succeeded"]
    assert (run.outcomes["s"].became, sorted(run.outcomes["s"].acks)) == ("approved", ["cara", "dora"])


@pytest.mark.rule("D10")
async def test_message_and_escalation_are_settled_in_one_record() -> None:
    stage, escalation = await escalated(approvers={"cara": CARA.public_key})
    await answers(stage, CARA, escalation)
    run = await stage.resume()
    (seal,) = opened(run.thread.records, "seal")
    message = await the_message(stage)
    assert [(entry.message, entry.outcome, entry.by) for entry in seal.settled] == [
        (escalation.address, "succeeded", None),
        (message.address, "approved", escalation.address),
    ]


@pytest.mark.rule("D10")
async def test_an_approver_may_answer_in_any_run_of_several() -> None:
    stage, escalation = await escalated()
    await answers(stage, DORA, escalation)
    await stage.fails(Escalated, stage.resume)
    stage = stage.reborn()
    await answers(stage, CARA, escalation)
    run = await stage.resume()
    assert run.outcomes["s"].became == "approved"


@pytest.mark.rule("D10")
@pytest.mark.parametrize("other", [None, "accept"])
async def test_the_decline_of_one_approver_rejects(other: str | None) -> None:
    stage, escalation = await escalated()
    if other is not None:
        await answers(stage, CARA, escalation)
    await answers(stage, DORA, escalation, "decline", "not on my watch")
    error = await stage.fails(Rejected, stage.resume)
    assert_ended(error.thread, "rejected")
    assert "dora declined: not on my watch" in str(error)
    assert [settled(error.thread.records)[name][0] for name in ("s", "s#escalate")] == ["failed", "failed"]


@pytest.mark.rule("D10", "R45")
async def test_the_decline_of_a_recipient_rejects_though_all_approvers_accept() -> None:
    stage, escalation = await escalated()
    message = await the_message(stage)
    await appended(stage.store.store, ANNA, Ack, message=message.address, answer="decline", restatement="no")
    for who in (CARA, DORA):
        await answers(stage, who, escalation)
    error = await stage.fails(Rejected, stage.resume)
    assert_ended(error.thread, "rejected")
    assert "anna declined: no" in str(error)


@pytest.mark.rule("D10", "R36")
async def test_an_approver_that_left_without_answering_can_no_longer_decide() -> None:
    stage, escalation = await escalated()
    await answers(stage, CARA, escalation)
    await appended(stage.store.store, DORA, Roster, change="leave", key=DORA.public_key)
    error = await stage.fails(NoRecipient, stage.resume)
    assert_ended(error.thread, "failed")
    assert "dora owes an ack" in str(error)


@pytest.mark.rule("D10")
async def test_an_approver_that_left_after_answering_has_decided() -> None:
    stage, escalation = await escalated()
    for who in (CARA, DORA):
        await answers(stage, who, escalation)
    await appended(stage.store.store, DORA, Roster, change="leave", key=DORA.public_key)
    run = await stage.resume()
    assert run.outcomes["s"].became == "approved"


@pytest.mark.rule("D10", "R42")
async def test_an_approver_that_had_left_before_the_escalation_is_not_waited_for() -> None:
    stage = await Stage(to_anna(), approvers=APPROVERS).cut("message", anna=[Escalated("ask")])
    await appended(stage.store.store, DORA, Roster, change="leave", key=DORA.public_key)
    await stage.fails(Escalated, stage.resume)
    await answers(stage, CARA, await the_message(stage, 1))
    later = stage.reborn()
    run = await later.resume()
    assert (run.outcomes["s"].became, sorted(run.outcomes["s"].acks)) == ("approved", ["cara"])


@pytest.mark.rule("D10")
@pytest.mark.parametrize("gate", ["before", "after"])
async def test_a_step_is_fired_once_whatever_its_gate_when_it_is_approved(gate: Any) -> None:
    stage, escalation = await escalated(to_anna(gate=gate))
    for who in (CARA, DORA):
        await answers(stage, who, escalation)
    run = await stage.resume()
    assert (run.status, run.outcomes["s"].became, run.outcomes["s"].attempts) == ("b", "approved", None)
    assert len(stage.bus.named(MACHINE_MOVE)) == 1


@pytest.mark.rule("D10", "D13")
@pytest.mark.parametrize("what", ["ruling", "confirmed", "done", "seal"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_approval_that_is_cut_off_anywhere_goes_on(what: str, when: Any) -> None:
    stage, escalation = await escalated()
    for who in (CARA, DORA):
        await answers(stage, who, escalation)
    await stage.dies(stage.resume, what, 1, when)
    later = stage.reborn()
    run = await later.resume()
    assert (run.outcomes["s"].became, asked(later)) == ("approved", (0, 0))
    assert story(run.thread.records) == [
        "open",
        "request s",
        "escalate s#escalate",
        "cara accepts",
        "dora accepts",
        "confirm",
        "confirm",
        "seal completed",
    ]


@pytest.mark.rule("D10")
async def test_an_escalation_that_was_not_durable_is_not_made_up_and_the_recipient_is_asked() -> None:
    stage = Stage(to_anna(), anna=[Escalated("ask")], approvers=APPROVERS)
    later = await stage.cut("message", 2, "before")
    run = await later.resume()
    assert (asked(later), story(run.thread.records)[:3]) == ((1, 0), ["open", "request s", "anna accepts"])


@pytest.mark.rule("D10")
async def test_the_answers_of_recipients_after_an_escalation_do_not_confirm_the_message() -> None:
    stage, _ = await escalated()
    message = await the_message(stage)
    await appended(stage.store.store, ANNA, Ack, message=message.address, answer="accept", restatement="after all")
    error = await stage.fails(Escalated, stage.resume)
    assert "waits for cara, dora" in str(error)


# A panel of which one member was escalated


async def half_escalated(ben: Sequence[object] = (Wait(99),)) -> Stage:
    stage = panel(ack_timeout=10)
    stage = stage.reborn(anna=[Escalated("ask")], ben=ben)
    await stage.over_time(lambda: stage.fails(Escalated))
    return stage


@pytest.mark.rule("D10", "R56")
@pytest.mark.parametrize("first", ["approvers", "ben"])
async def test_in_a_panel_the_escalated_member_waits_for_approvers_and_the_other_for_its_recipient(first: str) -> None:
    stage = await half_escalated()
    escalation = await the_message(stage, 2)
    assert escalation.record.id == "one#escalate"
    later = stage.reborn(ben=[Wait(99)] if first == "approvers" else ["fine"])
    if first == "approvers":
        for who in (CARA, DORA):
            await answers(later, who, escalation)
        await later.over_time(lambda: later.fails(AckTimeout, later.resume))
        assert asked(later) == (0, 1)
        later = later.reborn()
    else:
        await later.over_time(lambda: later.fails(Escalated, later.resume))
        assert asked(later) == (0, 1)
        for who in (CARA, DORA):
            await answers(later, who, escalation)
        later = later.reborn()
    run = await later.over_time(later.resume)
    assert asked(later) == (0, 1 if first == "approvers" else 0)
    assert {step: outcome.became for step, outcome in run.outcomes.items()} == {"one": "approved", "two": "succeeded"}
    assert_ended(run.thread, "completed")


@pytest.mark.rule("D10")
async def test_in_a_panel_an_approvers_decline_rejects_all_of_it() -> None:
    stage = await half_escalated(["fine"])
    escalation = await the_message(stage, 2)
    await answers(stage, CARA, escalation, "decline", "no")
    later = stage.reborn()
    error = await later.fails(Rejected, later.resume)
    assert {name: said[0] for name, said in settled(error.thread.records).items()} == {
        "one": "failed",
        "one#escalate": "failed",
        "two": "failed",
    }


@pytest.mark.rule("D10", "R56")
async def test_each_escalated_member_of_a_panel_has_an_escalation_of_its_own_to_be_answered() -> None:
    stage = await half_escalated([Escalated("me too")])
    assert (await stage.told())[-2:] == ["escalate one#escalate", "escalate two#escalate"]
    for number in (2, 3):
        later = stage.reborn()
        await later.fails(Escalated, later.resume)
        for who in (CARA, DORA):
            await answers(later, who, await the_message(later, number))
    later = stage.reborn()
    run = await later.resume()
    assert [outcome.became for outcome in run.outcomes.values()] == ["approved", "approved"]


# Every way in which an escalation may come about stays open until it is decided


RAISED: dict[str, Callable[[], dict[str, Any]]] = {
    "a peer": lambda: {"anna": [Escalated("ask")]},
    "the judge": lambda: {"judge": _escalating},
}


def _escalating(message: Message, ack: Ack) -> Confirm:
    raise Escalated("I cannot tell")


@pytest.mark.rule("D10")
@pytest.mark.parametrize("by", RAISED)
async def test_whoever_escalated_the_approvers_decide(by: str) -> None:
    stage, escalation = await escalated(**RAISED[by]())
    for who in (CARA, DORA):
        await answers(stage, who, escalation)
    run: Run = await stage.resume()
    assert run.outcomes["s"].became == "approved"


@pytest.mark.rule("D10", "R44")
async def test_without_approvers_the_recipient_is_asked_again() -> None:
    stage = Stage(to_anna(), anna=[Escalated("ask")])
    await stage.fails(Escalated)
    later = stage.reborn()
    assert_ended((await later.resume()).thread, "completed")
    assert asked(later) == (1, 0)


@pytest.mark.rule("D5", "D12")
async def test_a_ruling_of_the_run_itself_counts_though_its_private_state_says_nothing_of_it() -> None:
    stage = await Stage(to_anna()).cut("message")
    message = await the_message(stage)
    ack = await appended(
        stage.store.store, ANNA, Ack, message=message.address, answer="accept", restatement="understood"
    )
    await appended(stage.store.store, OWNER, Ruling, ack=ack.address, ruling="confirm")
    run = await stage.resume()
    assert (asked(stage), run.outcomes["s"].became) == ((0, 0), "succeeded")
