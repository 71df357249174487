"""What waits for a person in a store, and what comes of an answer; and what closing a thread leaves."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envelope import Ack, EnvelopeError, Identity, Message, Roster, Ruling, Seal, Settle, address
from flow import Cancelled, Escalated, FlowError, MemoryStore, Panel, Rejected, Step, StoreError, Superseded
from flow.approvals import Question, Word, answer, evidence, files_by_address, find, match
from flow.closing import close
from flow.plan import Draft
from tests.flow.stage import (
    ANNA,
    BEN,
    CARA,
    DORA,
    OWNER,
    STRANGER,
    Stage,
    appended,
    assert_ended,
    on_the_way,
    settled,
    story,
)

pytestmark = pytest.mark.anyio

APPROVERS = {"cara": CARA.public_key, "dora": DORA.public_key}
STEP = Step("s", target="b", to=["anna"], payload="do it")


async def escalated(step: Step = STEP, **options: Any) -> Stage:
    """A run that escalated its step, in another process."""
    stage = Stage(step, **{"anna": [Escalated("ask")], "approvers": APPROVERS, **options})
    await stage.fails(Escalated)
    return stage.reborn()


async def question(stage: Stage) -> Question:
    (found,), damaged = await find(stage.store)
    assert damaged == []
    return found


async def says(stage: Stage, who: Identity, word: Word = "accept", text: str = "go on") -> Question:
    asked = await question(stage)
    return await answer(stage.store, "t", asked.escalation.address, who, word, text, stage.clock)


async def contents(stage: Stage) -> tuple[Any, ...]:
    store = stage.store.store
    return tuple(await store.read("t")), tuple(await store.states("t"))


async def refused(stage: Stage, code: str, act: Callable[[], Awaitable[object]]) -> None:
    before = await contents(stage)
    with pytest.raises(FlowError) as raised:
        await act()
    assert raised.value.code == code
    assert await contents(stage) == before


def once(stage: Stage, happens: Callable[[], Awaitable[object]], *, after: bool = False) -> None:
    """Have something happen just before, or just after, the next commit."""

    async def happen(kinds: list[str]) -> None:
        stage.store.before = stage.store.after = None
        await happens()

    stage.store.before, stage.store.after = (None, happen) if after else (happen, None)


# What waits


@pytest.mark.rule("W1")
async def test_a_question_has_the_message_to_the_letter_and_what_everybody_said() -> None:
    stage = await escalated()
    asked = await question(stage)
    _, message, escalation = await stage.records()
    assert (asked.message.raw, asked.escalation.raw, asked.over) == (message, escalation, None)
    assert [(one.name, one.role, one.answer) for one in asked.recipients] == [("anna", "member", None)]
    assert sorted(one.name for one in asked.missing) == ["cara", "dora"]
    await appended(stage.store.store, ANNA, Ack, message=asked.message.address, answer="accept", restatement="late")
    after = await says(stage, CARA, text="it may")
    assert [(one.answer, one.ack.record.restatement) for one in after.recipients] == [("accept", "late")]
    assert [one.name for one in after.missing] == ["dora"]
    assert {one.name: one.answer for one in after.approvers} == {"cara": "accept", "dora": None}


@pytest.mark.rule("W1")
async def test_what_is_settled_retracted_or_sealed_does_not_wait() -> None:
    stage = await escalated()
    asked = await question(stage)
    escalation, message = asked.escalation.address, asked.message.address
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "the escalation s#escalate was settled failed": (
            Settle, {"settled": ({"message": escalation, "outcome": "failed"},)},
        ),
        "the message s was settled failed": (Settle, {"settled": ({"message": message, "outcome": "failed"},)}),
        "the thread 't' is sealed cancelled": (Seal, {"outcome": "cancelled"}),
    }  # fmt: skip
    before = list(await stage.records())
    for over, (kind, fields) in ways.items():
        stage.store.store = MemoryStore()
        await stage.store.store.adopt("t", before)
        await appended(stage.store.store, OWNER, kind, **fields)
        assert (await question(stage)).over == over
        await refused(stage, "approval.over", lambda: says(stage, CARA))


@pytest.mark.rule("W1")
async def test_what_was_retracted_does_not_wait() -> None:
    writer_fields = {"intent": "request", "epistemic": "assumed", "payload": "do", "to": (ANNA.public_key,)}
    stage = await escalated()
    store = stage.store.store
    message = await appended(store, OWNER, Message, id="m", **writer_fields)
    reply = {"reply_to": message.address, "epistemic": "assumed", "payload": "?"}
    asked = await appended(store, OWNER, Message, id="e", intent="escalate", to=(CARA.public_key,), **reply)
    await appended(store, OWNER, Message, id="r", intent="retract", **reply)
    questions, _ = await find(store)
    assert [one.over for one in questions] == [None, "the message m was retracted"]
    await refused(stage, "approval.over", lambda: answer(store, "t", asked.address, CARA, "accept", "yes", stage.clock))


@pytest.mark.rule("W1")
async def test_a_thread_that_does_not_verify_is_told_of_beside_the_others_and_takes_no_answer() -> None:
    stage = await escalated()
    asked = await question(stage)
    await stage.store.store.adopt("u", [(await stage.records())[0]])
    stage.store.forged = True
    questions, damaged = await find(stage.store)
    assert (questions, len(damaged)) == ([], 2)
    assert damaged[0].startswith("store.invalid: the stored thread 't' does not verify")
    escalation = asked.escalation.address
    await refused(stage, "store.invalid", lambda: answer(stage.store, "t", escalation, CARA, "accept", "yes"))


# Answers


@pytest.mark.rule("W2")
async def test_an_answer_is_one_ack_and_when_all_accepted_the_run_is_approved() -> None:
    stage = await escalated()
    before = await contents(stage)
    await says(stage, CARA, text="I saw it")
    records, states = await contents(stage)
    assert (records[:-1], states) == before
    assert story(records)[-1] == "cara accepts"
    await stage.fails(Escalated, stage.resume)
    await says(stage, DORA)
    run = await stage.reborn().resume()
    assert_ended(run.thread, "completed")
    assert run.outcomes["s"].became == "approved"


@pytest.mark.rule("W2")
async def test_a_decline_ends_the_run_as_rejected() -> None:
    stage = await escalated()
    after = await says(stage, DORA, "decline", "not today")
    assert ([one.name for one in after.declined], after.missing) == (["dora"], ())
    error = await stage.fails(Rejected, stage.resume)
    assert "dora declined: not today" in str(error)


@pytest.mark.rule("W2")
@pytest.mark.parametrize("who", [STRANGER, ANNA, BEN, OWNER])
async def test_the_answer_of_anybody_who_was_not_asked_is_refused(who: Identity) -> None:
    stage = await escalated()
    await refused(stage, "approval.stranger", lambda: says(stage, who))


@pytest.mark.rule("W2")
@pytest.mark.parametrize("word", ["accept", "decline"])
async def test_nobody_answers_twice(word: Word) -> None:
    stage = await escalated()
    await says(stage, CARA, word)
    for second in ("accept", "decline"):
        await refused(stage, "approval.answered", lambda second=second: says(stage, CARA, second))


@pytest.mark.rule("W2")
async def test_an_approver_that_left_can_no_longer_answer() -> None:
    stage = await escalated()
    await appended(stage.store.store, CARA, Roster, change="leave", key=CARA.public_key)
    await refused(stage, "approval.left", lambda: says(stage, CARA))


@pytest.mark.rule("W2")
async def test_an_approver_that_was_corrected_answers_the_correction() -> None:
    stage = await escalated()
    after = await says(stage, CARA, text="something else")
    (first,) = (one.ack for one in after.approvers if one.ack)
    ruling = await appended(stage.store.store, OWNER, Ruling, ack=first.address, ruling="correct", correction="read it")
    assert sorted(one.name for one in (await question(stage)).missing) == ["cara", "dora"]
    after = await says(stage, CARA, text="now I have")
    (second,) = (one.ack for one in after.approvers if one.ack)
    assert (second.record.after, second.record.restatement) == (ruling.address, "now I have")


@pytest.mark.rule("W3")
async def test_a_correction_that_an_approver_was_not_shown_is_not_answered() -> None:
    stage = await escalated()
    seen = await question(stage)
    (first,) = (one.ack for one in (await says(stage, CARA, text="from elsewhere")).approvers if one.ack)
    await appended(stage.store.store, OWNER, Ruling, ack=first.address, ruling="correct", correction="and you pay")
    address = seen.escalation.address
    await refused(
        stage,
        "approval.corrected",
        lambda: answer(stage.store, "t", address, CARA, "accept", "yes", stage.clock, seen=seen),
    )
    again = await question(stage)
    after = await answer(stage.store, "t", address, CARA, "accept", "yes", stage.clock, seen=again)
    assert [one.name for one in after.missing] == ["dora"]


@pytest.mark.rule("W2")
async def test_an_answer_holds_for_the_one_message_it_was_given_for() -> None:
    steps = [Step(name, target="b", to=[who], payload=name) for name, who in (("one", "anna"), ("two", "ben"))]
    options = {"anna": [Escalated("ask")], "ben": [Escalated("ask")], "approvers": {"cara": CARA.public_key}}
    stage = Stage(*steps, panels=[Panel(["one", "two"], reducer=keep)], **options)
    await stage.fails(Escalated)
    stage = stage.reborn()
    first, second = (await find(stage.store))[0]
    assert (first.message.record.payload, second.message.record.payload) == ("one", "two")
    await answer(stage.store, "t", first.escalation.address, CARA, "accept", "this one", stage.clock)
    first, second = (await find(stage.store))[0]
    assert ([one.name for one in first.missing], [one.name for one in second.missing]) == ([], ["cara"])
    await stage.fails(Escalated, stage.resume)


def keep(original: Any, records: Any) -> Any:
    return original


@pytest.mark.rule("W2")
async def test_a_message_with_other_arguments_needs_an_answer_of_its_own() -> None:
    stage = await escalated()
    await says(stage, CARA)
    changed = await escalated(Step("s", target="b", to=["anna"], payload="do something else"))
    assert sorted(one.name for one in (await question(changed)).missing) == ["cara", "dora"]
    taken = (await stage.records())[-1]
    with pytest.raises(StoreError) as raised:
        await changed.store.commit("t", await changed.store.head("t"), [taken])
    assert raised.value.code == "store.refused"
    await refused(
        changed,
        "approval.unknown",
        lambda: answer(changed.store, "t", address(taken), CARA, "accept", "again", changed.clock),
    )


@pytest.mark.rule("W2")
@pytest.mark.parametrize("text", ["", " \n", "x" * 65_537])
async def test_words_that_no_ack_may_hold_are_refused(text: str) -> None:
    stage = await escalated()
    before = await contents(stage)
    with pytest.raises(EnvelopeError):
        await says(stage, CARA, text=text)
    assert await contents(stage) == before


# Answers that race


@pytest.mark.rule("W3")
async def test_an_answer_goes_in_though_the_thread_moved_on_meanwhile() -> None:
    stage = await escalated()
    escalation = address((await stage.records())[-1])

    async def meanwhile() -> None:
        await stage.clock.advance(7)
        await answer(stage.store.store, "t", escalation, DORA, "accept", "me too", stage.clock)

    once(stage, meanwhile)
    after = await says(stage, CARA)
    assert after.missing == ()
    assert (await stage.told())[-2:] == ["dora accepts", "cara accepts"]
    lost, won = stage.store.sent
    assert lost == won, "the same bytes were appended again"


@pytest.mark.rule("W3")
async def test_an_answer_that_lost_to_a_seal_is_refused() -> None:
    stage = await escalated()
    once(stage, lambda: appended(stage.store.store, OWNER, Seal, outcome="cancelled"))
    with pytest.raises(FlowError, match=r"approval\.over.*sealed cancelled"):
        await says(stage, CARA)
    assert (await stage.told())[-1] == "seal cancelled"


@pytest.mark.rule("W3")
async def test_an_answer_of_which_the_store_cannot_say_whether_it_was_made_is_there_once() -> None:
    stage = await escalated()

    async def doubt() -> None:
        await stage.clock.advance(7)
        raise StoreError("who knows", code="store.in_doubt")

    for after in (True, False):
        once(stage, doubt, after=after)
        await says(stage, CARA if after else DORA)
    assert (await stage.told())[-2:] == ["cara accepts", "dora accepts"]


@pytest.mark.rule("W3")
async def test_an_answer_while_the_run_is_being_resumed_is_taken_or_refused_and_never_lost() -> None:
    stage = await escalated(approvers={"cara": CARA.public_key})
    once(stage, lambda: stage.reborn().fails(Escalated, stage.reborn().resume))
    await says(stage, CARA)
    run = await stage.reborn().resume()
    assert run.outcomes["s"].became == "approved"
    with pytest.raises(FlowError, match=r"approval\.over"):
        await says(stage, CARA)


# Addresses


@pytest.mark.rule("W4")
async def test_a_message_is_named_by_its_address_or_the_escalations_or_the_beginning_of_either() -> None:
    asked = await question(await escalated())
    for envelope in (asked.message, asked.escalation):
        digits = envelope.address.hex()
        for text in (f"b3:{digits}", digits, digits[:8], f"b3:{digits[:8]}"):
            assert match([asked], text) is asked


@pytest.mark.rule("W4")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0c1d2e3", "approval.address"),
        ("b3:" + "0" * 65, "approval.address"),
        ("ABCDEF01", "approval.address"),
        ("", "approval.address"),
        ("\x1b[31m", "approval.address"),
        ("b3:" + "00" * 32, "approval.unknown"),
        ("00000000", "approval.unknown"),
    ],
)
async def test_what_names_nothing_is_refused(text: str, code: str) -> None:
    asked = await question(await escalated())
    with pytest.raises(FlowError) as raised:
        match([asked], text)
    assert raised.value.code == code


@pytest.mark.rule("W4")
async def test_what_fits_two_messages_is_refused_until_it_fits_one() -> None:
    asked = await question(await escalated())
    twin_address = asked.message.address[:5] + bytes(27)
    twin = replace(asked, message=asked.message._replace(address=twin_address), name="twin")
    with pytest.raises(FlowError, match=r"approval\.ambiguous: .* fits 2 messages"):
        match([asked, twin], twin_address.hex()[:10])
    assert match([asked, twin], twin_address.hex()[:20]) is twin


# Evidence


@pytest.mark.rule("W5")
async def test_evidence_is_found_by_its_bytes_and_by_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    blob = bytes(range(16)) + b"what was erased"
    (tmp_path / "deep" / "er" / "blob").write_bytes(blob)
    (tmp_path / "report.txt").write_text("all green")
    changed, plain = address(b"all red"), address(b"all green")
    provenance = {"source": "a build", "evidence": [plain, address(blob)]}
    draft = Draft("do it", epistemic="verified", provenance=provenance, context=[changed])

    def payload(record: Any) -> Draft:
        return draft

    stage = await escalated(Step("s", target="b", to=["anna"], payload_from=payload))
    asked = await question(stage)
    found = {one.address: one.place for one in evidence(asked, files_by_address([tmp_path]))}
    assert found == {plain: tmp_path / "report.txt", address(blob): tmp_path / "deep/er/blob", changed: None}
    assert {one.place for one in evidence(asked, {})} == {None}


@pytest.mark.rule("W5")
def test_evidence_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match=r"approval\.evidence"):
        files_by_address([tmp_path / "missing"])


# Closing


@pytest.mark.rule("W6")
async def test_closing_seals_with_all_that_stands() -> None:
    stage = await escalated()
    await says(stage, CARA)
    seal = await close(stage.store, "t", OWNER, "enough", stage.clock)
    assert (seal.record.outcome, seal.record.reason, len(seal.record.receipts)) == ("cancelled", "enough", 1)
    assert (await stage.told())[-2:] == ["cara accepts", "seal cancelled"]


@pytest.mark.rule("W6")
async def test_closing_carries_what_the_run_had_done() -> None:
    stage = await Stage(*on_the_way(2)).cut("done")
    await close(stage.store, "t", OWNER, "enough", stage.clock)
    assert settled(await stage.records())["to-b"][0] == "succeeded"
    error = await stage.fails(Cancelled, stage.resume)
    assert error.status == "b"


@pytest.mark.rule("W6")
async def test_another_moderator_closes_and_nobody_else() -> None:
    stage = await escalated()
    for who in (STRANGER, ANNA, CARA):
        await refused(stage, "close.role", lambda who=who: close(stage.store, "t", who, "enough"))
    await appended(stage.store.store, OWNER, Roster, change="role", key=BEN.public_key, role="moderator")
    await close(stage.store, "t", BEN, "enough", stage.clock)
    assert (await stage.told())[-1] == "seal cancelled"
    await refused(stage, "close.sealed", lambda: close(stage.store, "t", OWNER, "enough"))
    with pytest.raises(Superseded):
        await stage.resume()


@pytest.mark.rule("W6")
async def test_a_run_that_is_alive_loses_at_its_next_commit() -> None:
    stage = Stage(*on_the_way(3))

    async def closed(kinds: list[str]) -> None:
        if "ack" in kinds:
            stage.store.before = None
            await close(stage.store.store, "t", OWNER, "enough", stage.clock)

    stage.store.before = closed
    await stage.fails(Superseded)
    assert (await stage.told())[-1] == "seal cancelled"


@pytest.mark.rule("W6")
@pytest.mark.parametrize("doubt", [False, True])
async def test_closing_a_thread_that_moves_on_meanwhile_closes_it_as_it_stands_then(doubt: bool) -> None:
    stage = await escalated()
    asked = await question(stage)

    async def meanwhile() -> None:
        if doubt:
            raise StoreError("who knows", code="store.in_doubt")
        await answer(stage.store.store, "t", asked.escalation.address, DORA, "accept", "yes", stage.clock)

    once(stage, meanwhile, after=doubt)
    await close(stage.store, "t", OWNER, "enough", stage.clock)
    told = await stage.told()
    assert (told.count("seal cancelled"), told.count("dora accepts")) == (1, not doubt)


@pytest.mark.rule("W7")
@pytest.mark.parametrize("waits", [True, False])
async def test_resuming_a_thread_that_its_owner_closed_says_so_as_often_as_one_likes(waits: bool) -> None:
    stage = await (escalated() if waits else Stage(*on_the_way(2)).cut("message", 2))
    await close(stage.store, "t", OWNER, "overtaken by 1.5", stage.clock)
    before = await contents(stage)
    for _ in range(2):
        error = await stage.reborn().fails(Cancelled, stage.resume)
        assert "closed before its plan was done: overtaken by 1.5" in str(error)
        assert_ended(error.thread, "cancelled")
    assert await contents(stage) == before


@pytest.mark.rule("W6")
async def test_a_thread_whose_private_state_nobody_can_read_is_closed_all_the_same() -> None:
    stage = await escalated()
    other = MemoryStore()
    await other.create("t", (await stage.records())[0], b"garbage")
    await close(other, "t", OWNER, "enough", stage.clock)
    assert story(await other.read("t")) == ["open", "seal cancelled"]
