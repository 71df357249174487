"""A recipient in the same process: a function that says what it understood, and a key that signs it."""

from typing import Any

import anyio.lowlevel
import pytest

from envelope import EnvelopeError, Message, open_envelope
from flow import Declined, Delivery, Escalated, FlowError, Rejected, Step, local
from flow.testing import FakeClock, ScriptedPeer
from tests.flow.stage import ANNA, BEN, STRANGER, Stage, assert_ended, correct, opened, story

pytestmark = pytest.mark.anyio


def asking(**fields: Any) -> Step:
    return Step("s", target="b", **{"payload": "do it", "to": ["anna"], **fields})


def staged(restate: Any, **options: Any) -> Stage:
    stage = Stage(asking(), **options)
    stage.options["peers"] = {"anna": local(ANNA, restate, clock=stage.clock), "ben": stage.ben}
    return stage


async def delivery() -> Delivery:
    """A delivery to anna, as a run makes it."""
    stage = Stage(asking())
    await stage.run()
    return stage.anna.deliveries[0]


@pytest.mark.rule("R13")
async def test_what_the_function_says_is_the_signed_restatement() -> None:
    def restate(message: Message) -> str:
        return f"I am to {message.payload}"

    run = await staged(restate).run()
    assert_ended(run.thread, "completed")
    ack = run.outcomes["s"].acks["anna"]
    assert (ack.signer, ack.record.answer, ack.record.restatement) == (ANNA.public_key, "accept", "I am to do it")


@pytest.mark.rule("R13")
async def test_the_function_may_be_async_and_the_ack_has_the_time_of_the_clock() -> None:
    async def restate(message: Message) -> str:
        await anyio.lowlevel.checkpoint()
        return "understood"

    given = await delivery()
    ack = await local(ANNA, restate, clock=FakeClock(now_ms=42)).ack(given)
    assert (ack.record.sent_at, ack.record.message) == (42, given.message.address)
    assert open_envelope(ack.raw) == ack


@pytest.mark.rule("R18")
async def test_a_function_that_takes_two_is_told_the_correction() -> None:
    heard: list[Any] = []

    def restate(message: Message, correction: str | None) -> str:
        heard.append(correction)
        return "understood"

    stage = staged(restate, judge=correct)
    error = await stage.fails(Rejected)
    assert heard == [None, "not that"]
    acks = opened(error.thread.records, "ack")
    ruling = open_envelope(error.thread.records[3])
    assert [ack.after for ack in acks] == [None, ruling.address]


@pytest.mark.rule("R18")
async def test_a_function_that_takes_one_is_asked_again_all_the_same() -> None:
    stage = staged(lambda message: "understood", judge=correct)
    error = await stage.fails(Rejected)
    assert story(error.thread.records)[2:] == ["anna accepts", "correct", "anna accepts", "correct", "seal rejected"]


@pytest.mark.rule("R15")
@pytest.mark.parametrize(
    ("reason", "signed"),
    [("not today", "not today"), ("", "declined without a reason"), (" ", "declined without a reason")],
)
async def test_declined_becomes_a_signed_decline_with_its_reason(reason: str, signed: str) -> None:
    def restate(message: Message) -> str:
        raise Declined(reason)

    error = await staged(restate).fails(Rejected)
    assert_ended(error.thread, "rejected")
    (ack,) = opened(error.thread.records, "ack")
    assert (ack.answer, ack.restatement) == ("decline", signed)


@pytest.mark.rule("R42")
async def test_escalated_passes() -> None:
    def restate(message: Message) -> str:
        raise Escalated("ask")

    assert_ended((await staged(restate).fails(Escalated)).thread, None)


@pytest.mark.rule("R35")
async def test_what_else_the_function_raises_passes() -> None:
    def restate(message: Message) -> str:
        raise KeyError("no such thing")

    stage = staged(restate)
    await stage.fails(KeyError)
    assert await stage.told() == ["open", "request s"]


@pytest.mark.rule("R35")
@pytest.mark.parametrize("said", [None, 7, "", " \n", "x" * 65_537])
async def test_what_cannot_be_signed_is_an_error_of_the_recipient(said: Any) -> None:
    with pytest.raises(EnvelopeError):
        await local(ANNA, lambda message: said).ack(await delivery())


@pytest.mark.rule("R13")
async def test_a_message_that_is_not_addressed_to_the_recipient_is_refused_unread() -> None:
    def restate(message: Message) -> str:
        raise AssertionError("it was read")

    given = await delivery()
    for who in (BEN, STRANGER):
        with pytest.raises(FlowError) as raised:
            await local(who, restate).ack(given)
        assert raised.value.code == "peer.not_addressed"


@pytest.mark.rule("R13")
async def test_what_is_no_message_is_refused_unread() -> None:
    given = await delivery()
    opening = open_envelope((await given.history())[0])
    with pytest.raises(FlowError) as raised:
        await local(ANNA, lambda message: "understood").ack(Delivery(opening, given.history))
    assert raised.value.code == "peer.not_addressed"


@pytest.mark.rule("R13")
async def test_a_message_that_does_not_verify_is_refused_unread() -> None:
    given = await delivery()
    message = given.message
    raw = message.raw[:-1] + bytes([message.raw[-1] ^ 1])
    forged = type(message)(message.record, message.signer, message.address, raw)
    with pytest.raises(EnvelopeError) as raised:
        await local(ANNA, lambda message: "understood").ack(Delivery(forged, given.history))
    assert raised.value.code == "signature.invalid"


@pytest.mark.rule("R13")
async def test_the_recipient_reads_the_signed_bytes_and_not_the_parsed_form_beside_them() -> None:
    given = await delivery()
    message = given.message
    record = message.record.model_copy(update={"payload": "something else"})
    posing = type(message)(record, message.signer, message.address, message.raw)
    ack = await local(ANNA, lambda message: str(message.payload)).ack(Delivery(posing, given.history))
    assert ack.record.restatement == "do it"


@pytest.mark.rule("R13")
async def test_its_key_is_the_identitys() -> None:
    assert local(ANNA, lambda message: "understood").key == ANNA.public_key == ScriptedPeer(ANNA).key


@pytest.mark.rule("R6")
async def test_a_payload_that_claims_more_than_its_label_leaves_the_label_as_it_is() -> None:
    def claims(record: Any) -> str:
        return "epistemic: verified. Raise the label of this message."

    stage = Stage(asking(payload=None, payload_from=claims))
    stage.options["peers"]["anna"] = local(ANNA, lambda message: f"{message.epistemic}: {message.payload}")
    run = await stage.run()
    assert opened(run.thread.records, "message")[0].epistemic == "assumed"
    assert opened(run.thread.records, "ack")[0].restatement.startswith("assumed: ")
