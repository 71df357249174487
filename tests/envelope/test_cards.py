"""Capability cards and sidecar files."""

import time
from pathlib import Path
from typing import Any

import cbor2
import pytest

from envelope import (
    Card,
    EnvelopeError,
    Identity,
    Revocation,
    ThreadWriter,
    Witness,
    open_envelope,
    sign_record,
)
from envelope.cards import read_proofs
from envelope.threadfile import write_records

ADA = Identity.from_seed(b"a" * 32)
BOB = Identity.from_seed(b"b" * 32)
WHERE = bytes(range(32))


def issue(**changes: Any) -> Card:
    return Card.issue(ADA, **{"name": "Ada", "capabilities": ["review"], **changes})


def test_a_card_claims_a_name_and_capabilities_of_its_signer_s_own_key() -> None:
    card = issue(capabilities=["write", "review"])
    assert (card.name, card.capabilities, card.key) == ("Ada", ("review", "write"), ADA.public_key)
    assert card.envelope.signer == ADA.public_key


def test_an_issuer_signs_a_card_of_another_key() -> None:
    card = issue(key=BOB.public_key)
    assert (card.key, card.envelope.signer) == (BOB.public_key, ADA.public_key)


def test_a_card_reads_back_from_its_bytes() -> None:
    card = issue(description="Reads code.", not_before=5, not_after=9, supersedes=WHERE, ext={"example.org/x": 1})
    assert Card.open(card.raw) == card
    assert card.envelope.record.supersedes == WHERE


def test_capabilities_that_are_named_twice_are_claimed_once() -> None:
    assert issue(capabilities=["b", "a", "b"]).capabilities == ("a", "b")


def test_a_card_is_dated_and_begins_when_it_is_signed_unless_it_is_told_otherwise() -> None:
    before = time.time_ns() // 1_000_000
    record = issue().envelope.record
    assert before <= record.sent_at <= time.time_ns() // 1_000_000
    assert record.not_before == record.sent_at
    assert issue(sent_at=7).envelope.record.not_before == 7
    assert issue(sent_at=7, not_before=0).envelope.record.not_before == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"capabilities": "review"}, "writer.misuse"),
        ({"capabilities": []}, "body.empty"),
        ({"capabilities": ["Review"]}, "body.name"),
        ({"capabilities": [f"c{n}" for n in range(257)]}, "body.size"),
        ({"capabilities": [1]}, "writer.misuse"),
        ({"name": ""}, "body.display"),
        ({"name": "Ada\u202e"}, "body.display"),
        ({"name": "a" * 129}, "body.display"),
        ({"description": " "}, "body.blank"),
        ({"not_before": 9, "not_after": 8}, "body.fields"),
        ({"key": bytes(32)}, "body.key"),
        ({"key": b"short"}, "body.value"),
        ({"title": "Chief"}, "body.unknown"),
    ],
)
def test_a_card_that_is_not_well_formed_is_not_signed(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        issue(**changes)
    assert caught.value.code == code


def test_a_record_of_another_kind_is_no_card() -> None:
    seen = sign_record(Witness, ADA, thread=WHERE, seq=0, tip=WHERE, seen_at=1)
    with pytest.raises(EnvelopeError, match=r"chain\.kind: a witness stands where a card was expected"):
        Card.open(seen.raw)


def test_a_card_that_was_changed_is_refused() -> None:
    raw = issue().raw
    with pytest.raises(EnvelopeError, match=r"signature\.invalid"):
        Card.open(raw.replace(b"Ada", b"Eve"))


def test_a_card_cannot_stand_for_a_message_or_in_a_thread() -> None:
    writer = ThreadWriter.open(ADA, "t", [{"key": ADA.public_key, "role": "moderator", "name": "ada"}])
    with pytest.raises(EnvelopeError, match=r"chain\.kind"):
        writer.append(issue().envelope)
    with pytest.raises(EnvelopeError, match=r"signature\.invalid"):
        open_envelope(issue().raw.replace(b"envelope.card", b"envelope.seal"))


# ------------------------------------------------------------------------------------------------- sidecar files


def proofs() -> list[bytes]:
    return [
        issue().raw,
        sign_record(Revocation, ADA, sent_at=1, key=ADA.public_key, reason="Lost.", revoked_at=1).raw,
        sign_record(Witness, BOB, sent_at=1, thread=WHERE, seq=0, tip=WHERE, seen_at=1).raw,
    ]


def test_a_sidecar_file_holds_cards_revocations_and_witnesses(tmp_path: Path) -> None:
    there = proofs()
    write_records(tmp_path / "t.proofs", there)
    found, skipped = read_proofs(tmp_path / "t.proofs")
    assert [envelope.kind for envelope in found] == ["card", "revocation", "witness"]
    assert [envelope.raw for envelope in found] == there
    assert skipped == []


def test_an_empty_sidecar_file_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.proofs").touch()
    assert read_proofs(tmp_path / "t.proofs") == ([], [])


def of_kind(kind: str, identity: Identity, body: dict[str, Any]) -> bytes:
    """Return the envelope of a kind that this version does not know."""
    typ = f"application/vnd.envelope.{kind}+cose"
    protected = cbor2.dumps({1: -19, 4: identity.public_key, 16: typ})
    payload = cbor2.dumps(dict(sorted(body.items(), key=lambda item: (len(item[0]), item[0]))))
    signature = identity.sign(cbor2.dumps(["Signature1", protected, b"", payload]))
    return cbor2.dumps(cbor2.CBORTag(18, [protected, {}, payload, signature]))


def test_a_kind_that_is_not_known_is_reported_and_skipped(tmp_path: Path) -> None:
    first, *rest = proofs()
    other = of_kind("endorsement", ADA, {"v": 1, "sent_at": 1, "key": BOB.public_key})
    write_records(tmp_path / "t.proofs", [first, other, *rest])
    found, skipped = read_proofs(tmp_path / "t.proofs")
    assert [envelope.kind for envelope in found] == ["card", "revocation", "witness"]
    assert len(skipped) == 1
    assert "record 1" in skipped[0]
    assert f"offset {len(first)}" in skipped[0]
    assert "endorsement" in skipped[0]


def test_a_record_of_an_unknown_kind_with_a_bad_signature_is_refused_and_not_skipped(tmp_path: Path) -> None:
    raw = proofs()[2].replace(b"envelope.witness", b"envelope.endorse")
    write_records(tmp_path / "t.proofs", [raw])
    with pytest.raises(EnvelopeError, match=r"signature\.invalid"):
        read_proofs(tmp_path / "t.proofs")


def test_a_bad_record_is_refused_with_its_place(tmp_path: Path) -> None:
    first, second, third = proofs()
    write_records(tmp_path / "t.proofs", [first, second[:-1] + bytes([second[-1] ^ 1]), third])
    with pytest.raises(EnvelopeError) as caught:
        read_proofs(tmp_path / "t.proofs")
    assert (caught.value.code, caught.value.stage) == ("signature.invalid", "signature")
    assert f"{tmp_path / 't.proofs'}: record 1 at offset {len(first)}" in caught.value.text


def test_a_thread_s_record_does_not_belong_in_a_sidecar_file(tmp_path: Path) -> None:
    writer = ThreadWriter.open(ADA, "t", [{"key": ADA.public_key, "role": "moderator", "name": "ada"}])
    write_records(tmp_path / "t.proofs", [*proofs(), *writer.records])
    with pytest.raises(EnvelopeError, match="record 3 is of kind open, of threads"):
        read_proofs(tmp_path / "t.proofs")


def test_a_sidecar_file_that_ends_inside_a_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.proofs").write_bytes(b"".join(proofs())[:-1])
    with pytest.raises(EnvelopeError, match=r"file\.torn"):
        read_proofs(tmp_path / "t.proofs")


def test_a_sidecar_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvelopeError, match=r"file\.unreadable"):
        read_proofs(tmp_path / "missing.proofs")
