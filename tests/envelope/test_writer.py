"""Building threads in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envelope import (
    Envelope,
    EnvelopeError,
    Identity,
    Message,
    Thread,
    ThreadWriter,
    address,
    open_envelope,
    sign_record,
    verify_file,
    verify_thread,
)

ADA, BOB, CY, EVE = (Identity.from_seed(bytes([n]) * 32) for n in range(1, 5))
MEMBERS = [
    {"key": ADA.public_key, "role": "moderator", "name": "ada"},
    {"key": BOB.public_key, "role": "member", "name": "bob"},
    {"key": CY.public_key, "role": "approver", "name": "cy"},
]


def begin(**fields: Any) -> ThreadWriter:
    return ThreadWriter.open(ADA, "t", MEMBERS, **fields)


def test_a_thread_is_built_by_the_methods_named_after_its_records_and_verifies() -> None:
    writer = begin(room="ops", limits={"messages": 9})
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key, CY.public_key])
    first = writer.ack(BOB, said, "I am to do it.")
    fix = writer.ruling(ADA, first, "On Monday.")
    writer.ruling(ADA, writer.ack(BOB, said, "On Monday.", after=fix.address))
    writer.ruling(ADA, writer.ack(CY, said, "Agreed."))
    writer.roster(BOB, "leave", BOB.public_key)
    writer.settle(ADA, [{"message": said.address, "outcome": "succeeded"}])
    writer.seal(ADA, "completed")
    kinds = [open_envelope(raw).kind for raw in writer.records]
    assert kinds == ["open", "message", "ack", "ruling", "ack", "ruling", "ack", "ruling", "roster", "settle", "seal"]
    verdict = verify_thread(writer.records, trust=None)
    assert (verdict.integrity, verdict.completeness, verdict.acknowledged) == ("valid", "sealed", 1)


def test_links_and_receipts_are_filled_in() -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key])
    ack = writer.ack(BOB, said, "Yes.")
    ruling = writer.ruling(ADA, ack)
    record = writer.settle(ADA).record
    assert (record.thread, record.seq, record.prev) == (writer.opening.address, 2, said.address)
    assert record.receipts == (ack.address, ruling.address)


def test_members_are_put_in_order_and_each_thread_is_another() -> None:
    first, second = begin(), begin()
    keys = [member.key for member in first.opening.record.members]
    assert keys == sorted(keys)
    assert first.opening.address != second.opening.address


def test_intent_and_label_have_defaults_that_can_be_overridden() -> None:
    writer = begin()
    plain = writer.message(ADA, "m1", "So it is.").record
    asked = writer.message(ADA, "m2", "Please.", to=[BOB.public_key]).record
    told = writer.message(ADA, "m3", "Know this.", to=[BOB.public_key], intent="assert", epistemic="inferred").record
    assert (plain.intent, plain.epistemic, plain.to) == ("assert", "assumed", None)
    assert (asked.intent, asked.to) == ("request", (BOB.public_key,))
    assert (told.intent, told.epistemic) == ("assert", "inferred")


def test_messages_are_in_the_room_of_the_open() -> None:
    assert begin(room="ops").message(ADA, "m1", "Here.").record.room == "ops"
    assert begin().message(ADA, "m1", "Here.").record.room is None


def test_an_ack_accepts_and_a_ruling_confirms_unless_they_are_told_otherwise() -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key, CY.public_key])
    accepted = writer.ack(BOB, said, "Yes.")
    declined = writer.ack(CY, said, "No.", answer="decline")
    assert (accepted.record.answer, declined.record.answer) == ("accept", "decline")
    ruling = writer.ruling(ADA, accepted, "Not quite.").record
    assert (ruling.ruling, ruling.correction) == ("correct", "Not quite.")


Attempt = Callable[[ThreadWriter, Envelope[Message]], Any]


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (lambda w, m: w.message(EVE, "m2", "Hello."), "roster.stranger"),
        (lambda w, m: w.message(ADA, "m1", "Again."), "message.id"),
        (lambda w, m: w.message(ADA, "m 2", "Hello."), "body.name"),
        (lambda w, m: w.message(ADA, "m2", " "), "body.blank"),
        (lambda w, m: w.message(ADA, "m2", "Hello.", to=[EVE.public_key]), "roster.to"),
        (lambda w, m: w.message(ADA, "m2", "Hello.", to=[BOB.public_key] * 2), "body.order"),
        (lambda w, m: w.message(ADA, "m2", "Hello.", mood="fine"), "body.unknown"),
        (lambda w, m: w.message(ADA, "m2", "Hello.", seq=9), "chain.seq"),
        (lambda w, m: w.message(ADA, "m2", "Hello.", prev=w.opening.address, seq=1), "chain.fork"),
        (lambda w, m: w.ack(CY, m, "Yes."), "ack.recipient"),
        (lambda w, m: w.ack(BOB, m, ""), "body.blank"),
        (lambda w, m: w.roster(BOB, "admit", EVE.public_key, role="member", name="eve"), "roster.role"),
        (lambda w, m: w.roster(ADA, "leave", ADA.public_key), "roster.moderator"),
        (lambda w, m: w.settle(ADA), "body.fields"),
        (lambda w, m: w.settle(ADA, [{"message": m.address, "outcome": "succeeded"}]), "settle.unacknowledged"),
        (lambda w, m: w.seal(ADA, "completed"), "seal.unacknowledged"),
        (lambda w, m: w.seal(ADA, "finished"), "body.value"),
        (lambda w, m: w.append(w.opening), "chain.second_open"),
        (lambda w, m: w.append(m), "chain.repeated"),
    ],
)
def test_what_would_not_verify_is_refused_and_the_thread_goes_on_as_it_was(attempt: Attempt, code: str) -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key])
    records = list(writer.records)
    with pytest.raises(EnvelopeError) as caught:
        attempt(writer, said)
    assert caught.value.code == code
    assert writer.records == records
    writer.ruling(ADA, writer.ack(BOB, said, "Yes."))
    writer.seal(ADA, "completed", settled=({"message": said.address, "outcome": "succeeded"},))
    assert verify_thread(writer.records, trust=None).integrity == "valid"


def test_an_open_that_would_not_verify_begins_no_thread() -> None:
    with pytest.raises(EnvelopeError, match=r"roster\.owner"):
        ThreadWriter.open(BOB, "t", MEMBERS)
    with pytest.raises(EnvelopeError, match=r"open\.names"):
        ThreadWriter.open(ADA, "t", [{**member, "name": "same"} for member in MEMBERS])
    with pytest.raises(EnvelopeError, match=r"body\.empty"):
        ThreadWriter.open(ADA, "t", [])


def test_an_envelope_that_was_sealed_elsewhere_can_be_appended() -> None:
    writer = begin()
    fields = {"id": "m1", "intent": "assert", "epistemic": "assumed", "payload": "Hello."}
    envelope = sign_record(Message, BOB, **fields, **writer.thread.links())
    assert writer.append(envelope) is envelope
    assert writer.records[-1] == envelope.raw
    assert writer.thread.tip == envelope.address


def test_a_thread_is_exported_as_the_file_of_its_records_and_again_when_it_has_grown(tmp_path: Path) -> None:
    writer = begin()
    path = tmp_path / "t.thread"
    writer.export(path)
    assert path.read_bytes() == b"".join(writer.records)
    writer.seal(ADA, "cancelled")
    writer.export(path)
    assert path.read_bytes() == b"".join(writer.records)
    assert verify_file(path, trust=None).outcome == "cancelled"
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.thread"]


def test_a_thread_that_cannot_be_exported_is_still_there(tmp_path: Path) -> None:
    writer = begin()
    with pytest.raises(EnvelopeError, match=r"file\.unreadable"):
        writer.export(tmp_path / "missing" / "t.thread")
    writer.seal(ADA, "cancelled")


def test_what_a_writer_knows_of_its_thread_is_what_a_reader_finds() -> None:
    writer = begin()
    writer.message(ADA, "m1", "Please.", to=[BOB.public_key], step=("build",))
    thread = Thread()
    for raw in writer.records:
        thread.apply(open_envelope(raw))
    for known in (thread, writer.thread):
        assert (known.owner, known.address, known.seq) == (ADA.public_key, writer.opening.address, 2)
        assert (known.has_id("m1"), known.has_id("m2")) == (True, False)
        assert (known.has_path(("build",)), known.has_path(("test",))) == (True, False)
        assert (known.role(BOB.public_key), known.role(EVE.public_key)) == ("member", None)
        assert known.find(address(b"nothing")) == -1
        assert known.links() == writer.thread.links()


def test_before_its_open_a_thread_has_neither_address_nor_owner() -> None:
    assert (Thread().address, Thread().owner, Thread().standing) == (b"", b"", ())
