"""The audit of whole threads: findings and where they are, whatever the batches; one defect, one finding."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope import (
    EnvelopeError,
    Identity,
    ThreadVerdict,
    ThreadWriter,
    TrustedKey,
    TrustStore,
    Verifier,
    address,
    address_text,
    did_key,
    verify_file,
    verify_thread,
)
from envelope.threadfile import write_records

START = 1_760_000_000_000
NOW = START + 3_600_000
ADA, BOB, CY, PAT = PEOPLE = [Identity.from_seed(name.encode().ljust(32, b".")) for name in ("ada", "bob", "cy", "pat")]
NAMES = ("ada", "bob", "cy", "pat")
ROLES = ("moderator", "member", "member", "approver")
EVERYBODY = TrustStore(
    {person.public_key: TrustedKey(name.title(), "human") for person, name in zip(PEOPLE, NAMES, strict=True)}
)
NOWHERE = address(b"nowhere")


def begin(**fields: Any) -> ThreadWriter:
    members = [
        {"key": person.public_key, "role": role, "name": name}
        for person, role, name in zip(PEOPLE, ROLES, NAMES, strict=True)
    ]
    return ThreadWriter.open(ADA, "release-42", members, nonce=bytes(16), sent_at=START, **fields)


def ask(writer: ThreadWriter, number: int, **fields: Any) -> dict[str, Any]:
    """Append a request that Bob acknowledges; return its settlement."""
    said = writer.message(ADA, f"m{number}", "Please.", to=[BOB.public_key], sent_at=START + number, **fields)
    writer.ruling(ADA, writer.ack(BOB, said, "I will.", sent_at=START + number), sent_at=START + number)
    return {"message": said.address, "outcome": "succeeded"}


def long_thread(messages: int = 30) -> list[bytes]:
    writer = begin()
    settled = None
    for number in range(messages):
        settled = (ask(writer, number, settled=settled),)
    writer.seal(ADA, "completed", settled=settled, sent_at=START + messages)
    return writer.records


LONG = long_thread()
OFFSETS = [sum(map(len, LONG[:place])) for place in range(len(LONG))]


def verify(records: list[bytes], **changes: Any) -> ThreadVerdict:
    return verify_thread(records, **{"trust": EVERYBODY, "now": NOW, **changes})


def spoiled(records: list[bytes], *places: int) -> list[bytes]:
    """Return the records with the last bit of the signature changed in some of them."""
    return [raw[:-1] + bytes([raw[-1] ^ 1]) if place in places else raw for place, raw in enumerate(records)]


def failures(verdict: ThreadVerdict) -> list[tuple[str, int | None]]:
    return [(found.code, found.index) for found in verdict.findings if found.effect in ("invalid", "unverifiable")]


def test_a_sealed_thread_of_trusted_people_is_valid_and_has_no_findings() -> None:
    verdict = verify(LONG)
    assert (verdict.integrity, verdict.completeness, verdict.outcome, verdict.trust) == (
        "valid", "sealed", "completed", "trusted",
    )  # fmt: skip
    assert (verdict.exit_code, verdict.code, verdict.findings, verdict.plan) == (0, None, (), "none")
    assert (verdict.records, verdict.messages, verdict.acknowledged) == (len(LONG), 30, 30)
    assert (verdict.thread, verdict.name) == (address(LONG[0]), "release-42")
    assert [(signer.name, signer.claimed_name) for signer in verdict.signers] == [("Ada", "ada"), ("Bob", "bob")]


# -------------------------------------------------------------------------------------------------------- batches

batches = st.tuples(st.sampled_from([1, 2, 3, 7, 64, 10_000]), st.sampled_from([1, 300, 900, 4096, 1 << 30]))


@st.composite
def damaged(draw: st.DrawFn) -> list[bytes]:
    records = list(LONG)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(records) - 1))
        what = draw(st.sampled_from(["flip", "drop", "double", "swap", "cut", "junk"]))
        raw = records[place]
        if what == "flip":
            bit = draw(st.integers(0, 8 * len(raw) - 1))
            records[place] = raw[: bit // 8] + bytes([raw[bit // 8] ^ 1 << bit % 8]) + raw[bit // 8 + 1 :]
        elif what == "drop" and len(records) > 1:
            del records[place]
        elif what == "double":
            records.insert(place, raw)
        elif what == "swap":
            other = draw(st.integers(0, len(records) - 1))
            records[place], records[other] = records[other], records[place]
        elif what == "cut":
            records[place] = raw[: draw(st.integers(1, len(raw) - 1))] if len(raw) > 1 else raw
        else:
            records.insert(place, draw(st.binary(min_size=1, max_size=9)))
    return records


@settings(max_examples=60)
@given(damaged(), batches)
def test_a_verdict_does_not_depend_on_where_batches_end(records: list[bytes], sizes: tuple[int, int]) -> None:
    with patch.multiple("envelope.audit", _RECORD_SHARE=1, _BATCH_BYTES=1):
        one_by_one = verify(records)
    with patch.multiple("envelope.audit", _RECORD_SHARE=sizes[1] // sizes[0], _BATCH_BYTES=sizes[1]):
        assert verify(records) == one_by_one
    assert verify(records) == one_by_one


@settings(max_examples=60)
@given(damaged())
def test_of_damaged_records_the_first_finding_is_the_first_failure_and_its_place_is_right(records: list[bytes]) -> None:
    verdict = verify(records)
    found = [finding for finding in verdict.findings if finding.effect in ("invalid", "unverifiable")]
    assert [finding.index for finding in found] == sorted({finding.index for finding in found})
    assert verdict.code == (found[0].code if found else None)
    assert (verdict.integrity == "valid") == (not found)
    assert verdict.records == len(records)
    for finding in found:
        assert finding.index is not None
        assert finding.offset == sum(map(len, records[: finding.index]))
        assert finding.address in (None, address(records[finding.index]))
    if found:
        first = found[0].index
        assert first is not None
        assert verify(records[:first]).integrity == "valid" or first == 0


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65])
def test_a_bad_signature_is_found_at_its_place_on_each_side_of_a_batch_s_end(size: int) -> None:
    for place in (size - 1, size):
        with patch.multiple("envelope.audit", _RECORD_SHARE=(1 << 18) // size):
            verdict = verify(spoiled(LONG, place))
        assert failures(verdict) == [("signature.invalid", place)]
        assert verdict.findings[0].offset == OFFSETS[place]


# ------------------------------------------------------------------------------------------- one defect, one finding


def test_bad_signatures_after_the_first_failure_are_each_reported_once() -> None:
    verdict = verify(spoiled(LONG, 3, 4, 50, 70))
    assert failures(verdict) == [("signature.invalid", place) for place in (3, 4, 50, 70)]
    assert [finding.offset for finding in verdict.findings] == [OFFSETS[place] for place in (3, 4, 50, 70)]


def test_a_record_that_breaks_a_rule_is_reported_and_then_only_what_signatures_show() -> None:
    verdict = verify(spoiled(LONG[:10] + LONG[11:], 40))
    assert failures(verdict) == [("ack.message", 10), ("signature.invalid", 40)]


@pytest.mark.parametrize("place", range(1, 12))
def test_a_broken_chain_does_not_cascade(place: int) -> None:
    assert len(failures(verify(LONG[:place] + LONG[place + 1 :]))) == 1


def test_a_thread_without_its_open_has_one_finding() -> None:
    assert failures(verify(LONG[1:])) == [("chain.no_open", 0)]


def test_no_records_at_all_are_no_thread() -> None:
    verdict = verify([])
    assert failures(verdict) == [("chain.no_open", 0)]
    assert (verdict.thread, verdict.name, verdict.signers, verdict.trust) == (None, None, (), "unknown")
    assert (verdict.exit_code, verdict.records) == (1, 0)


def test_after_a_failure_the_other_axes_are_those_of_the_records_before_it() -> None:
    verdict = verify(spoiled(LONG, len(LONG) - 1))
    assert (verdict.integrity, verdict.completeness, verdict.outcome) == ("invalid", "open", None)
    assert (verdict.messages, verdict.acknowledged) == (30, 29)
    assert verdict.records == len(LONG)


def test_failures_beyond_sixty_four_are_counted() -> None:
    verdict = verify(spoiled(LONG, *range(20, 90)))
    assert failures(verdict) == [("signature.invalid", place) for place in range(20, 84)]
    assert verdict.omitted == 6


def test_a_code_is_not_left_out_because_another_occurred_often() -> None:
    records = spoiled(LONG, *range(10, 80))
    records[85] = b"\xd1" + records[85][1:]
    verdict = verify(records)
    assert failures(verdict)[-1] == ("cose.tag", 85)
    assert verdict.omitted == 6


def of_kind(kind: str, identity: Identity, body: dict[str, Any]) -> bytes:
    """Return the envelope of a kind that this version does not know."""
    typ = f"application/vnd.envelope.{kind}+cose"
    protected = cbor2.dumps({1: -19, 4: identity.public_key, 16: typ})
    payload = cbor2.dumps(dict(sorted(body.items(), key=lambda item: (len(item[0]), item[0]))))
    signature = identity.sign(cbor2.dumps(["Signature1", protected, b"", payload]))
    return cbor2.dumps(cbor2.CBORTag(18, [protected, {}, payload, signature]))


def test_a_record_of_an_unknown_kind_is_unverifiable_and_not_invalid() -> None:
    writer = begin()
    vote = of_kind("vote", ADA, {"v": 1, "sent_at": START, "thread": writer.thread.address})
    verdict = verify([*writer.records, vote])
    assert (verdict.integrity, verdict.code, verdict.exit_code) == ("unverifiable", "body.kind", 1)
    assert failures(verdict) == [("body.kind", 1)]
    spoilt = verify(spoiled([*writer.records, vote, *LONG[1:3]], 3))
    assert (spoilt.integrity, failures(spoilt)) == ("unverifiable", [("body.kind", 1), ("signature.invalid", 3)])


ACK = {"v": 1, "sent_at": START, "thread": NOWHERE, "message": NOWHERE, "answer": "accept", "restatement": "Yes."}
DEFECTS = {
    "cose.tag": b"\xd1" + LONG[4][1:],
    "signature.invalid": spoiled(LONG, 4)[4],
    "body.kind": of_kind("vote", BOB, ACK),
    "cbor.float": of_kind("ack", BOB, {**ACK, "v": 1.5}),
    "body.type": of_kind("ack", BOB, {**ACK, "sent_at": "now"}),
    "chain.thread": of_kind("ack", BOB, ACK),
}
"""Records that fail at one step after another, by their code."""


@pytest.mark.parametrize("first", DEFECTS)
@pytest.mark.parametrize("second", DEFECTS)
def test_of_two_failures_in_a_batch_the_first_decides_whatever_step_finds_it(first: str, second: str) -> None:
    found = failures(verify([*LONG[:4], DEFECTS[first], LONG[4], DEFECTS[second], LONG[5]]))
    assert found[0] == (first, 4)
    assert found[1:] == ([(second, 6)] if second in ("cose.tag", "signature.invalid") else [])


def test_a_torn_file_says_up_to_which_record_it_is_valid_and_gives_no_address(tmp_path: Path) -> None:
    path = tmp_path / "torn.thread"
    path.write_bytes(b"".join(LONG[:7]) + LONG[7][:-10])
    verdict = verify_file(path, trust=EVERYBODY, now=NOW)
    assert failures(verdict) == [("file.torn", 7)]
    finding = verdict.findings[0]
    assert finding.offset == OFFSETS[7]
    assert "valid up to record 7" in finding.text
    assert finding.address is None, "a part of a record has no address"


def test_a_record_that_announces_too_much_is_a_finding_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "large.thread"
    path.write_bytes(b"".join(LONG[:4]) + LONG[4][:83] + b"\x5a\x7f\xff\xff\xff" + bytes(500))
    verdict = verify_file(path, trust=EVERYBODY, now=NOW)
    assert failures(verdict) == [("size.envelope", 4)]
    assert (verdict.findings[0].offset, verdict.findings[0].address) == (OFFSETS[4], None)
    assert (verdict.integrity, verdict.messages) == ("invalid", 1)


# ------------------------------------------------------------------------------------------------- counts and pending


def test_everything_that_is_counted_is_counted_once() -> None:
    writer = begin()
    accepted = ask(writer, 1)
    declined = writer.message(ADA, "m2", "Please.", to=[BOB.public_key, CY.public_key], sent_at=START)
    writer.ack(BOB, declined, "No.", answer="decline", sent_at=START)
    asked = writer.message(
        ADA, "m3", "May we?", to=[PAT.public_key], intent="escalate", reply_to=declined.address, sent_at=START
    )
    writer.ruling(ADA, writer.ack(PAT, asked, "You may.", sent_at=START), sent_at=START)
    approved = {"message": declined.address, "outcome": "approved", "by": asked.address}
    steps = [{"step": (name,), "outcome": "skipped"} for name in ("a", "b")]
    writer.settle(ADA, [accepted, approved, *steps], sent_at=START)
    waiting = writer.message(ADA, "m4", "Please.", to=[BOB.public_key], sent_at=START)
    writer.ack(BOB, waiting, "No.", answer="decline", sent_at=START)
    verdict = verify(writer.records)
    assert verdict.integrity == "valid"
    assert (verdict.messages, verdict.acknowledged, verdict.approved) == (4, 1, 1)
    assert (verdict.declined, verdict.ungated, verdict.pending) == (1, 2, 1)
    notes = [(finding.code, finding.index, finding.address) for finding in verdict.findings]
    assert notes == [("message.declined", 4, declined.address), ("message.approved", 4, declined.address)]
    assert did_key(PAT.public_key) in verdict.findings[1].text
    assert did_key(BOB.public_key) in verdict.findings[1].text


def test_pending_receipts_are_shown_but_settle_and_count_for_nothing() -> None:
    writer = begin()
    ask(writer, 1)
    verdict = verify(writer.records)
    assert (verdict.pending, verdict.acknowledged, verdict.completeness) == (2, 0, "open")
    assert [signer.claimed_name for signer in verdict.signers] == ["ada"]


# ---------------------------------------------------------------------------------------------------- tip, pin, now


def test_a_tip_that_is_in_the_thread_changes_nothing() -> None:
    for raw in (LONG[0], LONG[1], LONG[-1]):
        assert verify(LONG, tip=address(raw)) == verify(LONG)


@pytest.mark.parametrize("ending", [1, 3, 20])
def test_a_thread_whose_tail_was_cut_is_truncated_when_the_tip_is_known(ending: int) -> None:
    cut = LONG[:-ending]
    assert verify(cut).completeness == "open"
    verdict = verify(cut, tip=address(LONG[-1]))
    assert (verdict.integrity, verdict.completeness, verdict.exit_code) == ("valid", "truncated", 3)
    assert [finding.code for finding in verdict.findings] == ["tip.missing"]
    assert address_text(address(LONG[-1])) in verdict.findings[0].text


def test_a_sealed_thread_that_lacks_the_tip_is_truncated() -> None:
    assert verify(LONG, tip=NOWHERE).completeness == "truncated"


def test_a_receipt_is_no_tip() -> None:
    assert verify(LONG, tip=address(LONG[2])).completeness == "truncated"


def test_the_thread_that_is_meant_is_verified_and_another_is_not() -> None:
    assert verify(LONG, thread=address(LONG[0])) == verify(LONG)
    verdict = verify(LONG, thread=NOWHERE)
    assert (verdict.integrity, failures(verdict)) == ("invalid", [("chain.pinned", 0)])
    assert (verdict.thread, verdict.messages) == (None, 0)


def test_times_are_held_against_the_verifier_s_now_with_five_minutes_of_tolerance() -> None:
    writer = begin()
    writer.message(ADA, "m1", "Here I am.", sent_at=START + 300_001)
    assert verify(writer.records, now=START + 1).findings == ()
    verdict = verify(writer.records, now=START)
    assert [(finding.code, finding.index, finding.effect) for finding in verdict.findings] == [
        ("time.future", 1, "note")
    ]
    assert verdict.integrity == "valid"


def test_pending_receipts_have_times_too() -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key], sent_at=START)
    writer.ack(BOB, said, "Yes.", sent_at=START + 1_000_000)
    assert [(found.code, found.index) for found in verify(writer.records, now=START).findings] == [("time.future", 2)]


def test_without_a_now_the_system_s_clock_is_the_verifier_s() -> None:
    with patch("time.time_ns", return_value=(START - 300_001) * 1_000_000):
        assert [found.code for found in verify(begin().records, now=None).findings] == ["time.future"]
    with patch("time.time_ns", return_value=START * 1_000_000):
        assert verify(begin().records, now=None).findings == ()


def test_times_that_go_back_are_noted_and_change_nothing() -> None:
    writer = begin()
    writer.message(ADA, "m1", "One.", sent_at=START - 300_000)
    writer.message(ADA, "m2", "Two.", sent_at=START - 600_001)
    verdict = verify(writer.records)
    assert [(found.code, found.index) for found in verdict.findings] == [("time.backwards", 2)]


# ------------------------------------------------------------------------------------------------------- trust, plan


def test_without_trust_nobody_is_known_and_one_finding_says_so() -> None:
    verdict = verify(LONG, trust=None)
    assert (verdict.trust, verdict.exit_code) == ("unknown", 4)
    assert [(found.code, found.index) for found in verdict.findings] == [("trust.none", None)]
    assert [(signer.trust, signer.name) for signer in verdict.signers] == [("unknown", None)] * 2


@pytest.mark.parametrize("trust", [TrustStore({}), [], ()])
def test_an_empty_store_knows_nobody_and_each_signer_is_a_finding(trust: Any) -> None:
    verdict = verify(LONG, trust=trust)
    assert [(found.code, found.index) for found in verdict.findings] == [("trust.unknown", 0), ("trust.unknown", 2)]
    assert verdict.findings[1].offset == OFFSETS[2]
    assert verdict.exit_code == 4


def test_plain_keys_are_trust_enough() -> None:
    assert verify(LONG, trust=[ADA.public_key, BOB.public_key]).trust == "trusted"
    assert verify(LONG, trust=[ADA.public_key]).trust == "unknown"


@pytest.mark.parametrize(
    ("role", "code"), [("agent", None), ("human", None), ("issuer", "trust.role"), ("witness", "trust.role")]
)
def test_a_signer_is_trusted_as_agent_or_human_only(role: Any, code: str | None) -> None:
    store = TrustStore({ADA.public_key: TrustedKey("Ada", "human"), BOB.public_key: TrustedKey("Bob", role)})
    verdict = verify(LONG, trust=store)
    assert [found.code for found in verdict.findings] == ([code] if code else [])
    assert verdict.trust == ("unknown" if code else "trusted")


@pytest.mark.parametrize("role", ["agent", "issuer", "witness", "human"])
def test_an_approver_is_trusted_as_a_human_only(role: Any) -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[PAT.public_key], sent_at=START)
    writer.ack(PAT, said, "Yes.", sent_at=START)
    writer.settle(ADA, sent_at=START)
    store = TrustStore({**EVERYBODY, PAT.public_key: TrustedKey("Pat", role)})
    verdict = verify(writer.records, trust=store)
    assert [(found.code, found.index) for found in verdict.findings] == (
        [] if role == "human" else [("trust.human", 2)]
    )


def test_a_plan_that_is_named_is_unchecked() -> None:
    verdict = verify(begin(plan=NOWHERE).records)
    assert (verdict.plan, [found.code for found in verdict.findings]) == ("unchecked", ["plan.unchecked"])
    assert address_text(NOWHERE) in verdict.findings[0].text


# -------------------------------------------------------------------------------------------------- ways to feed it


def test_a_file_a_list_and_an_iterator_have_the_same_verdict(tmp_path: Path) -> None:
    path = tmp_path / "long.thread"
    write_records(path, LONG)
    assert (
        verify_file(path, trust=EVERYBODY, now=NOW)
        == verify(LONG)
        == verify_thread(iter(LONG), trust=EVERYBODY, now=NOW)
    )
    assert verify_file(str(path), trust=EVERYBODY, now=NOW) == verify(LONG)


def test_records_are_taken_one_by_one_and_not_held() -> None:
    taken: list[int] = []

    def records() -> Iterator[bytes]:
        for number, raw in enumerate(LONG):
            taken.append(number)
            yield raw

    verify_thread(records(), trust=EVERYBODY, now=NOW)
    assert taken == list(range(len(LONG)))


def test_a_file_that_cannot_be_read_has_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(EnvelopeError) as caught:
        verify_file(tmp_path / "missing.thread", trust=None)
    assert caught.value.code == "file.unreadable"


def test_an_observer_sees_the_accepted_records_only_in_order_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "spoiled.thread"
    write_records(path, spoiled(LONG, 70))
    seen: list[tuple[bytes, int, int]] = []
    verify_file(path, trust=None, observe=lambda envelope, index, offset: seen.append((envelope.raw, index, offset)))
    assert seen == [(LONG[place], place, OFFSETS[place]) for place in range(70)]


@pytest.mark.parametrize("change", [lambda v: v, lambda v: replace(v, trust="unknown")])
def test_verdicts_are_compared_by_what_they_say(change: Callable[[ThreadVerdict], ThreadVerdict]) -> None:
    verdict = verify(LONG)
    assert (change(verdict) == verdict) == (change(verdict).trust == "trusted")


def test_a_verifier_can_be_asked_more_than_once_while_it_is_fed() -> None:
    verifier = Verifier(trust=EVERYBODY, now=NOW)
    for raw in LONG[:10]:
        verifier.feed(raw)
    assert verifier.finish() == verify(LONG[:10])
    for raw in LONG[10:]:
        verifier.feed(raw)
    assert verifier.finish() == verify(LONG)
