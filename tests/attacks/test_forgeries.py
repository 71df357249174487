"""Threads that try to mislead an auditor, each built from raw maps by somebody who holds the keys that it signs with.

The builder here signs whatever it is given and shares no code with the package: CBOR is `cbor2`'s, signatures are
PyNaCl's. A number in a docstring is the attack's row in the project's list of attacks.
"""

import copy
import fcntl
import io
import json
import os
import pty
import random
import struct
import subprocess
import sys
import termios
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cbor2
import pytest
from blake3 import blake3
from nacl.signing import SigningKey

from envelope import (
    EnvelopeError,
    Thread,
    ThreadVerdict,
    TrustedKey,
    TrustStore,
    Verifier,
    verify_file,
    verify_thread,
)
from envelope import open_envelope as reopen
from envelope.digests import DigestTable
from envelope.records import read_body, to_map
from envelope.show import Timeline, render_verdict
from envelope.threadfile import divide, read_records

OWNER, REVIEWER, OTHER, WATCHER, PUPPET = "owner", "rev", "other", "watch", "pup"
HUMAN, SECOND_HUMAN = "human", "human2"
STAFF = (
    (OWNER, "moderator"),
    (REVIEWER, "member"),
    (OTHER, "member"),
    (HUMAN, "approver"),
    (SECOND_HUMAN, "approver"),
    (WATCHER, "observer"),
)
ROOT = Path(__file__).parents[2]
ABSENT = b"\x07" * 32


def address(data: bytes) -> bytes:
    return blake3(data).digest()


def head(major: int, length: int) -> bytes:
    if length < 24:
        return bytes((major + length,))
    width = 1 if length < 0x100 else 2 if length < 0x10000 else 4
    return bytes((major + 23 + width.bit_length(),)) + length.to_bytes(width, "big")


def string(data: bytes) -> bytes:
    return head(0x40, len(data)) + data


def encode(value: Any) -> bytes:
    return cbor2.dumps(value, canonical=True)


def secret(who: str) -> SigningKey:
    return SigningKey(blake3(b"forger " + who.encode()).digest())


def public(who: str) -> bytes:
    return bytes(secret(who).verify_key)


def protect(who: str, kind: str) -> bytes:
    return encode({1: -19, 4: public(who), 16: f"application/vnd.envelope.{kind}+cose"})


def signed(who: str, protected: bytes, payload: bytes) -> bytes:
    signature = secret(who).sign(b"\x84\x6aSignature1" + string(protected) + b"\x40" + string(payload)).signature
    return b"\xd2\x84" + string(protected) + b"\xa0" + string(payload) + b"\x58\x40" + signature


def envelope(who: str, kind: str, body: Any) -> bytes:
    return signed(who, protect(who, kind), encode(body))


class Forger:
    """A thread under construction; every method signs what it is told to, whatever the rules say."""

    def __init__(self, members: Iterable[tuple[str, str]] = STAFF, *, owner: str = OWNER, **fields: Any) -> None:
        self.records: list[bytes] = []
        self.standing: list[bytes] = []
        listed = [{"key": public(who), "role": role, "name": who} for who, role in members]
        listed.sort(key=lambda member: member["key"])
        opening = {"v": 1, "sent_at": 1000, "seq": 0, "name": "t", "nonce": b"n" * 16, "members": listed, **fields}
        self._add(envelope(owner, "open", opening))
        self.thread = self.tip = address(self.records[0])
        self.seq = 1

    def _add(self, raw: bytes) -> bytes:
        self.records.append(raw)
        return address(raw)

    def copy(self) -> "Forger":
        return copy.deepcopy(self)

    def chain(self, kind: str, who: str, **fields: Any) -> bytes:
        links = {"thread": self.thread, "seq": self.seq, "prev": self.tip, "receipts": list(self.standing) or None}
        body = {"v": 1, "sent_at": 1000, **links, **fields}
        self.tip = self._add(envelope(who, kind, {name: value for name, value in body.items() if value is not None}))
        self.seq += 1
        self.standing = []
        return self.tip

    def message(self, who: str, name: str, to: Iterable[str] = (), **fields: Any) -> bytes:
        recipients = sorted(map(public, to)) or None
        intent = "request" if recipients else "assert"
        defaults = {"id": name, "to": recipients, "intent": intent, "epistemic": "assumed", "payload": "p"}
        return self.chain("message", who, **{**defaults, **fields})

    def _receipt(self, kind: str, who: str, body: dict[str, Any]) -> bytes:
        self.standing.append(self._add(envelope(who, kind, {"v": 1, "sent_at": 1000, "thread": self.thread, **body})))
        return self.standing[-1]

    def ack(self, who: str, message: bytes, answer: str = "accept", **fields: Any) -> bytes:
        return self._receipt("ack", who, {"message": message, "answer": answer, "restatement": "r", **fields})

    def rule(self, who: str, ack: bytes, ruling: str = "confirm", **fields: Any) -> bytes:
        return self._receipt("ruling", who, {"ack": ack, "ruling": ruling, **fields})

    def agree(self, recipient: str, author: str, message: bytes) -> bytes:
        return self.rule(author, self.ack(recipient, message))

    def settle(self, who: str, *entries: dict[str, Any], **fields: Any) -> bytes:
        return self.chain("settle", who, settled=list(entries) or None, **fields)

    def roster(self, who: str, change: str, whom: str, **fields: Any) -> bytes:
        return self.chain("roster", who, change=change, key=public(whom), **fields)

    def seal(self, outcome: str = "completed", who: str = OWNER, **fields: Any) -> bytes:
        return self.chain("seal", who, outcome=outcome, **fields)

    def verdict(self, trust: TrustStore | None = None, **options: Any) -> ThreadVerdict:
        return verify_thread(self.records, trust=EVERYBODY if trust is None else trust, **options)


def store(*humans: str, agents: Iterable[str] = (OWNER, REVIEWER, OTHER, WATCHER, PUPPET)) -> TrustStore:
    keys = {public(who): TrustedKey(who.title(), "agent") for who in agents}
    return TrustStore({**keys, **{public(who): TrustedKey(who.title(), "human") for who in humans}})


EVERYBODY = store(HUMAN, SECOND_HUMAN)


def settled(message: bytes, outcome: str = "succeeded", **fields: Any) -> dict[str, Any]:
    return {"message": message, "outcome": outcome, **fields}


def refused(thread: Forger, code: str) -> None:
    """The last record of the thread is refused with this code; all before it is in order."""
    before = verify_thread(thread.records[:-1], trust=EVERYBODY)
    assert before.integrity == "valid", before.findings
    verdict = thread.verdict()
    assert (verdict.code, verdict.exit_code) == (code, 1), verdict.findings
    assert verdict.findings[0].index == len(thread.records) - 1


def agreed() -> tuple[Forger, bytes]:
    """A request that its reviewer accepted and the owner confirmed, uncommitted yet."""
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    thread.agree(REVIEWER, OWNER, message)
    return thread, message


def complete() -> Forger:
    """A thread with every kind of record that verifies, sealed completed."""
    thread = Forger(limits={"messages": 9, "bytes": 99})
    first = thread.message(OWNER, "a", [REVIEWER, OTHER], ext={"org.example": [1, True, {"x": b"y"}]})
    thread.agree(REVIEWER, OWNER, first)
    wrong = thread.ack(OTHER, first)
    correction = thread.rule(OWNER, wrong, "correct", correction="no")
    thread.settle(OWNER)
    thread.rule(OWNER, thread.ack(OTHER, first, after=correction))
    thread.settle(OWNER, settled(first, result="done"))
    second = thread.message(OWNER, "b", [REVIEWER], step=["deploy"])
    thread.ack(REVIEWER, second, "decline")
    escalation = thread.message(OWNER, "e", [HUMAN], intent="escalate", reply_to=second)
    thread.agree(HUMAN, OWNER, escalation)
    thread.settle(OWNER, settled(second, "approved", by=escalation), settled(escalation))
    thread.roster(OWNER, "remove", OTHER)
    thread.seal()
    assert thread.verdict().exit_code == 0, thread.verdict().findings
    return thread


# Replays


def test_a_message_of_another_thread_is_refused() -> None:
    """Row 1."""
    other = Forger(nonce=b"m" * 16)
    other.message(OWNER, "a")
    thread = Forger()
    thread.records.append(other.records[-1])
    refused(thread, "chain.thread")
    thread = Forger()
    thread.message(OWNER, "a", thread=other.thread)
    refused(thread, "chain.thread")
    thread = Forger()
    thread.message(OWNER, "a", prev=other.tip)
    refused(thread, "chain.prev")


@pytest.mark.parametrize("kind", ["ack", "ruling"])
def test_a_receipt_of_another_thread_is_refused(kind: str) -> None:
    """Rows 1 and 2."""
    other = Forger(nonce=b"m" * 16)
    asked = other.message(OWNER, "ask", [REVIEWER])
    other.agree(REVIEWER, OWNER, asked)
    thread = Forger()
    thread.message(OWNER, "ask", [REVIEWER])
    thread.records.append(other.records[-2 if kind == "ack" else -1])
    refused(thread, "chain.thread")


def test_a_message_for_another_room_is_refused() -> None:
    """Row 1."""
    for mine, theirs in (("red", "blue"), (None, "blue"), ("red", None), ("red", "Red")):
        thread = Forger(**({"room": mine} if mine else {}))
        thread.message(OWNER, "a", room=theirs)
        refused(thread, "message.room")


@pytest.mark.parametrize(("place", "code"), [(1, "chain.repeated"), (2, "receipts.repeated"), (3, "receipts.repeated")])
def test_a_record_that_stands_twice_is_refused(place: int, code: str) -> None:
    """Rows 1 and 2."""
    thread, _ = agreed()
    thread.records.append(thread.records[place])
    refused(thread, code)


def test_a_committed_receipt_that_stands_again_is_refused() -> None:
    """Rows 1, 2 and 27."""
    for settle, ack_code, ruling_code in (
        (False, "receipts.repeated", "ruling.repeated"),
        (True, "ack.settled", "ruling.ack"),
    ):
        for place, code in ((2, ack_code), (3, ruling_code)):
            thread, message = agreed()
            thread.settle(OWNER, *([settled(message)] if settle else []))
            thread.records.append(thread.records[place])
            refused(thread, code)


def test_an_id_used_again_is_refused_after_its_message_was_settled_or_retracted() -> None:
    """Row 1."""
    thread, message = agreed()
    thread.settle(OWNER, settled(message))
    thread.message(OTHER, "ask")
    refused(thread, "message.id")
    thread = Forger()
    target = thread.message(OWNER, "ask", [REVIEWER])
    thread.message(OWNER, "take-back", intent="retract", reply_to=target)
    thread.message(OWNER, "ask", [OTHER])
    refused(thread, "message.id")


def test_two_threads_in_one_file_are_refused(tmp_path: Path) -> None:
    """Rows 1 and 6."""
    path = tmp_path / "two.thread"
    path.write_bytes(b"".join(complete().records * 2))
    assert verify_file(path, trust=EVERYBODY).code == "chain.second_open"


# Receipts that are not what they seem


def test_an_unsigned_ack_is_refused() -> None:
    """Rows 2 and 3."""
    thread = Forger()
    thread.ack(REVIEWER, thread.message(OWNER, "ask", [REVIEWER]))
    good = thread.records.pop()
    for raw, code in (
        (good[:-66] + b"\x40", "signature.length"),
        (good[:-64], "file.torn"),
        (good[:-66] + b"\x58\x40" + b"\xff" * 64, "signature.scalar"),
        (good[:-66] + b"\x58\x40" + bytes(64), "signature.small_order"),
        (good[:-66] + b"\xf6", "cbor.simple"),
    ):
        forged = thread.copy()
        forged.records.append(raw)
        refused(forged, code)


def test_an_ack_of_something_else_than_an_addressed_message_is_refused() -> None:
    """Row 2."""
    for target, code in (
        (lambda t, m, s: ABSENT, "ack.message"),
        (lambda t, m, s: t.thread, "ack.message"),
        (lambda t, m, s: t.settle(OWNER, {"step": ["x"], "outcome": "failed"}), "ack.message"),
        (lambda t, m, s: s, "ack.recipient"),
    ):
        thread = Forger()
        said = thread.message(OWNER, "said")
        message = thread.message(OWNER, "ask", [REVIEWER])
        thread.ack(REVIEWER, target(thread, message, said))
        refused(thread, code)


def test_an_ack_of_an_ack_is_refused() -> None:
    """Row 2."""
    thread, message = agreed()
    thread.ack(REVIEWER, address(thread.records[2]))
    refused(thread, "ack.message")
    thread, message = agreed()
    thread.rule(OWNER, message)
    refused(thread, "ruling.ack")
    thread, message = agreed()
    thread.rule(OWNER, address(thread.records[3]))
    refused(thread, "ruling.ack")


@pytest.mark.parametrize(
    ("who", "code"),
    [(PUPPET, "roster.stranger"), (OTHER, "ack.recipient"), (OWNER, "ack.recipient"), (WATCHER, "roster.role")],
)
def test_an_ack_by_anybody_but_a_recipient_is_refused(who: str, code: str) -> None:
    """Row 2."""
    thread = Forger()
    thread.ack(who, thread.message(OWNER, "ask", [REVIEWER]))
    refused(thread, code)


def test_a_second_ack_needs_the_correction_of_the_first() -> None:
    """Row 2."""
    for prepare, after, code in (
        (lambda t, a: None, None, "ack.after"),
        (lambda t, a: t.rule(OWNER, a), None, "ack.after"),
        (lambda t, a: t.rule(OWNER, a), "ruling", "ack.after"),
        (lambda t, a: t.rule(OWNER, a, "correct", correction="no"), None, "ack.after"),
        (lambda t, a: t.rule(OWNER, a, "correct", correction="no"), "ack", "ack.after"),
    ):
        thread = Forger()
        message = thread.message(OWNER, "ask", [REVIEWER])
        first = thread.ack(REVIEWER, message)
        ruling = prepare(thread, first)
        named = {"ruling": ruling, "ack": first, None: None}[after]
        thread.ack(REVIEWER, message, sent_at=2, **({"after": named} if named else {}))
        refused(thread, code)


def test_an_ack_after_the_correction_of_somebody_elses_ack_is_refused() -> None:
    """Row 2."""
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER, OTHER])
    correction = thread.rule(OWNER, thread.ack(OTHER, message), "correct", correction="no")
    thread.ack(REVIEWER, message, after=correction)
    refused(thread, "ack.after")


def test_a_correction_answered_once_answers_no_second_ack() -> None:
    """Row 2."""
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    correction = thread.rule(OWNER, thread.ack(REVIEWER, message), "correct", correction="no")
    second = thread.ack(REVIEWER, message, after=correction)
    thread.rule(OWNER, second, "correct", correction="still no")
    thread.ack(REVIEWER, message, after=correction, sent_at=2)
    refused(thread, "ack.after")


@pytest.mark.parametrize("who", [REVIEWER, OTHER])
def test_a_ruling_by_anybody_but_the_author_is_refused(who: str) -> None:
    """Row 2."""
    thread = Forger()
    thread.rule(who, thread.ack(REVIEWER, thread.message(OWNER, "ask", [REVIEWER])))
    refused(thread, "ruling.author")


def test_a_ruling_by_an_author_who_was_demoted_or_removed_is_refused() -> None:
    """Rows 2 and 28."""
    for change, fields, code in (("remove", {}, "roster.stranger"), ("role", {"role": "approver"}, "roster.role")):
        thread = Forger()
        message = thread.message(OTHER, "ask", [REVIEWER])
        ack = thread.ack(REVIEWER, message)
        thread.roster(OWNER, change, OTHER, **fields)
        thread.rule(OTHER, ack)
        refused(thread, code)


def test_an_overruled_confirmation_is_refused() -> None:
    """Row 2."""
    confirm, correct = ("confirm", {}), ("correct", {"correction": "c"})
    for first, second in ((confirm, correct), (correct, confirm)):
        thread = Forger()
        ack = thread.ack(REVIEWER, thread.message(OWNER, "ask", [REVIEWER]))
        thread.rule(OWNER, ack, first[0], **first[1])
        thread.rule(OWNER, ack, second[0], **second[1])
        refused(thread, "ruling.repeated")


def test_a_seventeenth_ack_is_refused() -> None:
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    after: dict[str, Any] = {}
    for _ in range(16):
        after = {"after": thread.rule(OWNER, thread.ack(REVIEWER, message, **after), "correct", correction="no")}
    thread.ack(REVIEWER, message, **after)
    refused(thread, "ack.rounds")


# Bytes


def test_a_header_with_another_algorithm_or_label_is_refused() -> None:
    """Row 3."""
    typ = "application/vnd.envelope.settle+cose"
    for header, code in (
        ({1: -8, 4: public(OWNER), 16: typ}, "header.alg_eddsa"),
        ({1: -7, 4: public(OWNER), 16: typ}, "header.alg"),
        ({1: "none", 4: public(OWNER), 16: typ}, "header.alg"),
        ({4: public(OWNER), 16: typ}, "header.labels"),
        ({}, "header.labels"),
        ({1: -19, 2: [4], 4: public(OWNER), 16: typ}, "header.labels"),
        ({1: -19, 3: 0, 4: public(OWNER), 16: typ}, "header.labels"),
        ({1: -19, 4: public(OWNER)[:31], 16: typ}, "header.kid"),
        ({1: -19, 4: public(OWNER), 16: 18}, "header.typ"),
        ({1: -19, 4: public(OWNER), 16: typ + "\n"}, "header.typ"),
        ({1: -19, 4: public(OWNER), 16: typ.upper()}, "header.typ"),
        ({1: -19, 4: public(OWNER), 16: "application/vnd.envelope.+cose"}, "header.typ"),
    ):
        thread = Forger()
        body = {"v": 1, "sent_at": 1, "thread": thread.thread, "seq": 1, "prev": thread.tip}
        thread.records.append(signed(OWNER, encode(header), encode(body)))
        refused(thread, code)


def test_an_algorithm_outside_the_protected_header_or_stated_twice_is_refused() -> None:
    """Rows 3 and 12."""
    good = complete().records[1]
    end = 4 + good[3]
    for raw, code in (
        (good[:end] + b"\xa1\x01\x32" + good[end + 1 :], "cose.unprotected"),
        (b"\xd2\x84\x41\xa0" + good[end:], "header.labels"),
        (b"\xd2\x84\x40" + good[end:], "cbor.truncated"),
        (good[1:], "cose.tag"),
        (b"\xd8\x12" + good[1:], "cose.tag"),
        (b"\xd9\xd9\xf7" + good, "cose.tag"),
        (b"\xd2\x85" + good[2:] + b"\x00", "cose.shape"),
        (good + b"\x00", "cbor.trailing"),
    ):
        assert verify_thread([raw], trust=None).code == code
    twice = b"\xa4\x01\x27\x01\x32" + protect(OWNER, "settle")[3:]
    assert verify_thread([signed(OWNER, twice, b"\xa0")], trust=None).code == "cbor.duplicate_key"


def test_a_record_taken_for_another_kind_is_refused() -> None:
    """Rows 3 and 9."""
    thread = Forger()
    thread.settle(OWNER, {"step": ["x"], "outcome": "succeeded"})
    raw = thread.records.pop()
    thread.records.append(raw.replace(b"envelope.settle", b"envelope.roster"))
    refused(thread, "signature.invalid")


def test_a_cards_signature_is_no_messages() -> None:
    """Rows 8 and 9."""
    card = {"v": 1, "sent_at": 1, "name": "Owner", "capabilities": ["x"], "key": public(OWNER), "not_before": 1}
    thread = Forger()
    thread.records.append(envelope(OWNER, "card", card))
    refused(thread, "chain.kind")
    thread.records[-1] = envelope(OWNER, "card", card).replace(b"envelope.card+", b"envelope.open+")
    refused(thread, "signature.invalid")
    assert Forger().verdict(store()).trust == "trusted"
    assert thread.verdict(store(agents=())).trust == "unknown"


def test_no_changed_leaf_of_any_record_verifies() -> None:
    """Row 4."""
    records = complete().records
    for place, raw in enumerate(records):
        payload = raw[4 + raw[3] + 1 : -66]
        body = cbor2.loads(cbor2.loads(payload))
        for changed in leaves(body):
            forged = raw[: 4 + raw[3] + 1] + string(encode(changed)) + raw[-66:]
            if forged != raw:
                verdict = verify_thread([*records[:place], forged, *records[place + 1 :]], trust=EVERYBODY)
                assert (verdict.code, verdict.exit_code) == ("signature.invalid", 1)


def leaves(value: Any) -> Iterable[Any]:
    """Every value that differs from this one in one leaf."""
    if isinstance(value, dict):
        for key, item in value.items():
            for changed in leaves(item):
                yield {**value, key: changed}
            yield {other: value[other] for other in value if other != key}
    elif isinstance(value, list):
        for place, item in enumerate(value):
            for changed in leaves(item):
                yield [*value[:place], changed, *value[place + 1 :]]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, str):
        yield value + "x"
    else:
        yield bytes((value[0] ^ 1,)) + value[1:]


def test_no_changed_file_verifies_or_raises_anything_but_a_finding() -> None:
    """Rows 4 and 6."""
    rnd = random.Random(4)
    whole = b"".join(complete().records)
    for _ in range(400):
        data = bytearray(whole)
        place = rnd.randrange(len(data))
        match rnd.randrange(4):
            case 0:
                data[place] ^= 1 << rnd.randrange(8)
            case 1:
                del data[place : place + rnd.choice((1, 66, 300))]
            case 2:
                start = rnd.randrange(len(whole))
                data[place:place] = whole[start : start + rnd.choice((1, 64, 300))]
            case 3:
                data[place:place] = rnd.choice((b"\0", b"\xd2\x84", b"\x5b" + b"\xff" * 8, b"\xd2\x84\x40\xa0\xf6\x40"))
        verifier = Verifier(trust=EVERYBODY)
        read = b""
        try:
            for _, raw in divide(io.BytesIO(bytes(data))):
                read += raw
                verifier.feed(raw)
        except EnvelopeError as error:
            verifier.refuse(error)
        verdict = verifier.finish()
        assert data.startswith(read)
        json.dumps(verdict.as_json())
        assert verdict.exit_code != 0


def test_every_body_that_is_accepted_has_one_encoding() -> None:
    """Row 12."""
    odd = [0, 1, -1, True, False, "", "a", "1", "a" * 32, b"", b"a", ABSENT, [], ["a"], [ABSENT], ["a" * 32], [[]], {}]
    odd += [{"a": 1}, {"address": ABSENT, "bytes": 17}, {"address": "a" * 32, "bytes": 17}, {"bytes": True}, "x\n", "é"]
    refusals = 0
    for raw in complete().records:
        kind = raw[: 4 + raw[3]].rsplit(b".", 1)[1].removesuffix(b"+cose").decode()
        body = cbor2.loads(cbor2.loads(raw[4 + raw[3] + 1 : -66]))
        for changed in replacements(body, odd):
            try:
                record = read_body(kind, encode(changed))
            except EnvelopeError:
                refusals += 1
            else:
                assert encode(to_map(record)) == encode(changed)
    assert refusals > 1000


def replacements(value: Any, odd: list[Any]) -> Iterable[Any]:
    yield from odd
    if isinstance(value, dict):
        for key, item in value.items():
            for changed in replacements(item, odd):
                yield {**value, key: changed}
            yield {other: value[other] for other in value if other != key}
    elif isinstance(value, list):
        for place, item in enumerate(value):
            for changed in replacements(item, odd):
                yield [*value[:place], changed, *value[place + 1 :]]


def test_an_open_without_its_place_is_refused() -> None:
    """Row 12: two encodings would mean the same thread."""
    body = cbor2.loads(cbor2.loads(Forger().records[0][4 + Forger().records[0][3] + 1 : -66]))
    del body["seq"]
    assert verify_thread([envelope(OWNER, "open", body)], trust=EVERYBODY).code == "body.missing"


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\xa2\x61v\x01\x61v\x01", "cbor.duplicate_key"),
        (b"\xa1\x61v\x18\x01", "cbor.shortest"),
        (b"\xbf\x61v\x01\xff", "cbor.indefinite"),
        (b"\xa1\x61v\x01\x00", "cbor.trailing"),
        (b"\xa1\x61v\xf9\x3c\x00", "cbor.float"),
        (b"\xa1\x61v\xc2\x41\x01", "cbor.tag"),
        (b"\xa1\x61v\xd8\x1c\x80", "cbor.tag"),
        (b"\xa1\x61v\xf6", "cbor.simple"),
        (b"\xa1\x61v\x1b" + b"\xff" * 8, "cbor.integer"),
        (b"\xa1\x01\x01", "cbor.key_type"),
        (b"\xa1\x61v\x62\xed\xa0", "cbor.utf8"),
        (b"\xa1\x61v" + b"\x81" * 8 + b"\x80", "cbor.depth"),
        (b"\xa1\x61v\x9b" + b"\x7f" + b"\xff" * 7, "cbor.items"),
        (b"\xa1\x61v\x5b" + b"\x7f" + b"\xff" * 7, "cbor.truncated"),
        (b"\xa2\x62aa\x01\x61v\x01", "cbor.key_order"),
        (b"\x80", "body.type"),
        (b"\xa1\x61v\x02", "body.version"),
        (b"\xa1\x61v\xf5", "body.type"),
    ],
)
def test_a_signed_payload_outside_the_profile_is_refused(payload: bytes, code: str) -> None:
    """Rows 12 and 15."""
    thread = Forger()
    thread.records.append(signed(OWNER, protect(OWNER, "settle"), payload))
    verdict = thread.verdict()
    assert verdict.code == code or (code == "body.type" and verdict.code == "body.missing")
    assert verdict.exit_code == 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "a\0",
        "a\n",
        "a ",
        "\u0440\u0430\u0443",
        "e\u0301",
        "a\u200b",
        "a\u202eb",
        "-a",
        "#a",
        "a" * 129,
    ],
)
def test_an_id_that_looks_like_another_is_refused(name: str) -> None:
    """Row 13."""
    thread = Forger()
    thread.message(OWNER, name)
    refused(thread, "body.name")


def test_keys_of_small_order_sign_nothing_and_are_no_members() -> None:
    """Row 14: under `01 00…` one fixed signature holds for every message in other verifiers."""
    weak = bytes((1,)) + bytes(31)
    for key in (weak, bytes(32), bytes((0xED,)) + b"\xff" * 30 + b"\x7f", weak[:31] + b"\x80"):
        protected = encode({1: -19, 4: key, 16: "application/vnd.envelope.settle+cose"})
        raw = b"\xd2\x84" + string(protected) + b"\xa0" + string(b"\xa0") + b"\x58\x40" + weak + bytes(32)
        assert verify_thread([raw], trust=None).code == "key.small_order"
        thread = Forger()
        thread.chain("roster", OWNER, change="admit", key=key, role="member", name="weak")
        refused(thread, "body.key")


# Forks, cuts, insertions


def test_a_fork_in_one_file_names_both_addresses_and_its_signer() -> None:
    """Rows 5 and 34."""
    for who, accused in ((OWNER, True), (OTHER, False)):
        thread = Forger()
        fork = thread.copy()
        one = thread.message(OWNER, "a")
        thread.message(OWNER, "b")
        two = fork.message(who, "c")
        thread.records.append(fork.records[-1])
        refused(thread, "chain.fork")
        text = thread.verdict().findings[0].text
        assert one.hex() in text
        assert two.hex() in text
        assert ("signed both" in text) == accused


def test_a_record_that_names_its_place_and_not_its_predecessor_is_refused() -> None:
    """Rows 5 and 6."""
    thread = Forger()
    thread.message(OWNER, "a", seq=2)
    refused(thread, "chain.seq")
    thread = Forger()
    thread.message(OWNER, "a", prev=ABSENT)
    refused(thread, "chain.prev")
    thread = Forger()
    thread.message(OWNER, "a", seq=0)
    refused(thread, "body.value")


def test_a_cut_tail_is_never_complete() -> None:
    """Row 6."""
    records = complete().records
    for kept in range(len(records)):
        verdict = verify_thread(records[:kept], trust=EVERYBODY)
        assert (verdict.completeness, verdict.outcome) == ("open", None)
        assert verdict.exit_code == (3 if kept else 1)
        if kept:
            cut = verify_thread(records[:kept], trust=EVERYBODY, tip=address(records[-1]))
            assert (cut.completeness, cut.exit_code) == ("truncated", 3)


def test_no_record_can_be_removed_inserted_or_swapped() -> None:
    """Rows 6 and 27."""
    records = complete().records
    last = len(records) - 1
    for one in range(last):
        assert verify_thread(records[:one] + records[one + 1 :], trust=EVERYBODY).integrity == "invalid"
        for two in range(len(records)):
            if one != two:
                moved = records[:one] + records[one + 1 :]
                moved.insert(two, records[one])
                assert verify_thread(moved, trust=EVERYBODY).exit_code != 0
        assert verify_thread([*records[:one], records[one], *records[one:]], trust=EVERYBODY).exit_code == 1


def test_two_sealed_copies_of_one_thread_that_contradict_each_other_do_not_pass_together(tmp_path: Path) -> None:
    """Rows 5, 34 and 48: both copies are at hand, and the owner signed two different ends."""
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    declined = thread.copy()
    thread.agree(REVIEWER, OWNER, message)
    thread.seal(settled=[settled(message)])
    declined.message(OWNER, "take-back", intent="retract", reply_to=message)
    declined.seal()
    paths = [tmp_path / "one.thread", tmp_path / "two.thread"]
    for path, branch in zip(paths, (thread, declined), strict=True):
        path.write_bytes(b"".join(branch.records))
    assert run_verify(tmp_path, *paths).returncode == 1


def test_a_file_with_anything_around_its_records_is_refused(tmp_path: Path) -> None:
    """Row 6."""
    records = complete().records
    whole = b"".join(records)
    middle = len(b"".join(records[:3]))
    path = tmp_path / "odd.thread"
    for data in (
        b"\xef\xbb\xbf" + whole,
        b"\n" + whole,
        whole + b"\n",
        whole + b"\0" * 70,
        whole[:middle] + b"\xa0" + whole[middle:],
        whole[:middle] + b"\xd2\x84\x40\xa0\x40\x40" + whole[middle:],
        b"\x9f" + whole + b"\xff",
        whole[:-1],
        b"",
    ):
        path.write_bytes(data)
        assert verify_file(path, trust=EVERYBODY).exit_code == 1


# Agreement


def test_nothing_less_than_an_accepted_and_confirmed_ack_settles_succeeded() -> None:
    """Rows 2 and 26."""
    cases: tuple[Callable[[Forger, bytes], Any], ...] = (
        lambda t, m: None,
        lambda t, m: t.ack(REVIEWER, m),
        lambda t, m: t.ack(REVIEWER, m, "decline"),
        lambda t, m: t.rule(OWNER, t.ack(REVIEWER, m), "correct", correction="no"),
        lambda t, m: t.ack(REVIEWER, m, after=t.rule(OWNER, t.ack(REVIEWER, m), "correct", correction="no")),
        lambda t, m: t.ack(REVIEWER, m, "decline", after=t.rule(OWNER, t.ack(REVIEWER, m), "correct", correction="no")),
    )
    for case in cases:
        for later in (False, True):
            thread = Forger()
            message = thread.message(OWNER, "ask", [REVIEWER])
            case(thread, message)
            if later:
                thread.message(OTHER, "between")
            thread.settle(OWNER, settled(message))
            refused(thread, "settle.unacknowledged")


def test_one_recipient_of_two_is_not_enough() -> None:
    """Row 26."""
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER, OTHER])
    thread.agree(OTHER, OWNER, message)
    thread.settle(OWNER, settled(message))
    refused(thread, "settle.unacknowledged")


def test_a_decline_takes_no_confirmation() -> None:
    """Row 26."""
    thread = Forger()
    thread.rule(OWNER, thread.ack(REVIEWER, thread.message(OWNER, "ask", [REVIEWER]), "decline"))
    refused(thread, "ruling.declined")


def test_a_decline_is_not_taken_back() -> None:
    """Row 26."""
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    thread.ack(REVIEWER, message, "decline")
    thread.settle(OWNER)
    thread.ack(REVIEWER, message)
    refused(thread, "ack.declined")


def test_a_sealed_thread_takes_no_receipt_and_gives_none_away() -> None:
    """Row 27."""
    thread, message = agreed()
    thread.settle(OWNER)
    thread.seal("failed")
    thread.ack(REVIEWER, message)
    refused(thread, "chain.sealed")
    sealed = Forger()
    asked = sealed.message(OWNER, "ask", [REVIEWER, OTHER])
    sealed.ack(REVIEWER, asked, "decline")
    sealed.ack(OTHER, asked)
    sealed.seal("failed")
    for place in (2, 3):
        stripped = sealed.records[:place] + sealed.records[place + 1 :]
        assert verify_thread(stripped, trust=EVERYBODY).code == "receipts.committed"
    swapped = [sealed.records[place] for place in (0, 1, 3, 2, 4)]
    assert verify_thread(swapped, trust=EVERYBODY).code == "receipts.committed"


def test_a_record_lists_the_receipts_that_stand_and_no_others() -> None:
    """Row 27."""
    for receipts in (
        lambda standing: None,
        lambda standing: standing[:1],
        lambda standing: standing[::-1],
        lambda standing: [*standing, standing[0]],
        lambda standing: [*standing, ABSENT],
        lambda standing: [ABSENT, *standing[1:]],
    ):
        thread, message = agreed()
        thread.settle(OWNER, settled(message, "failed"), receipts=receipts(thread.standing))
        refused(thread, "receipts.committed")


def test_a_receipt_moved_across_a_change_of_the_roster_is_refused() -> None:
    """Row 28."""
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    thread.roster(OWNER, "remove", REVIEWER)
    thread.ack(REVIEWER, message)
    refused(thread, "roster.stranger")
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    thread.ack(REVIEWER, message)
    thread.roster(OWNER, "remove", REVIEWER)
    records = [thread.records[place] for place in (0, 1, 3, 2)]
    assert verify_thread(records, trust=EVERYBODY).code == "receipts.committed"
    for role in ("observer", "approver"):
        thread = Forger()
        message = thread.message(OWNER, "ask", [REVIEWER])
        thread.roster(OWNER, "role", REVIEWER, role=role)
        thread.ack(REVIEWER, message)
        if role == "observer":
            refused(thread, "roster.role")
        else:
            assert thread.verdict().integrity == "valid"


def test_a_request_without_recipients_who_can_answer_is_refused() -> None:
    """Rows 10, 29 and 44."""
    for to, fields, code in (
        ([], {"intent": "request"}, "message.to_required"),
        ([], {"ack_required": True}, "message.to_required"),
        ([OWNER], {}, "roster.to"),
        ([OWNER, REVIEWER], {}, "roster.to"),
        ([PUPPET], {}, "roster.to"),
        ([PUPPET], {"intent": "assert"}, "roster.to"),
        ([WATCHER], {}, "roster.unable"),
        ([REVIEWER, REVIEWER], {}, "body.order"),
    ):
        thread = Forger()
        thread.message(OWNER, "ask", to, **fields)
        refused(thread, code)
    thread = Forger()
    thread.chain("message", OWNER, id="a", to=[], intent="request", epistemic="assumed", payload="p")
    refused(thread, "body.empty")


# Escalation and approval


def escalated(to: Iterable[str] = (HUMAN,), author: str = OWNER) -> tuple[Forger, bytes, bytes]:
    thread = Forger()
    message = thread.message(author, "ask", [REVIEWER])
    escalation = thread.message(author, "up", to, intent="escalate", reply_to=message)
    return thread, message, escalation


def test_an_escalation_by_anybody_but_the_author_is_refused() -> None:
    """Row 30."""
    for who in (OTHER, REVIEWER):
        thread = Forger()
        message = thread.message(OWNER, "ask", [REVIEWER])
        thread.message(who, "up", [HUMAN], intent="escalate", reply_to=message)
        refused(thread, "escalate.author")


def test_an_escalation_to_an_approver_of_later_or_interrupted_standing_is_refused() -> None:
    """Rows 30 and 41."""

    def admitted(thread: Forger) -> None:
        thread.roster(OWNER, "admit", PUPPET, role="approver", name="pup")

    def promoted(thread: Forger) -> None:
        thread.roster(OWNER, "role", OTHER, role="approver")

    def flapped(thread: Forger) -> None:
        thread.roster(OWNER, "role", HUMAN, role="member")
        thread.roster(OWNER, "role", HUMAN, role="approver")

    def returned(thread: Forger) -> None:
        thread.roster(HUMAN, "leave", HUMAN)
        thread.roster(OWNER, "admit", HUMAN, role="approver", name=HUMAN)

    for change, whom in ((admitted, PUPPET), (promoted, OTHER), (flapped, HUMAN), (returned, HUMAN)):
        thread = Forger()
        message = thread.message(OWNER, "ask", [REVIEWER])
        change(thread)
        thread.message(OWNER, "up", [whom], intent="escalate", reply_to=message)
        refused(thread, "escalate.approver")


def test_an_escalation_to_a_recipient_or_to_no_approver_is_refused() -> None:
    """Row 30."""
    for to, code in (
        ([HUMAN, SECOND_HUMAN], "escalate.recipient"),
        ([OTHER], "escalate.approver"),
        ([HUMAN], "escalate.recipient"),
        ([PUPPET], "roster.to"),
        ([WATCHER], "roster.unable"),
        ([], "message.to_required"),
    ):
        thread = Forger()
        message = thread.message(OWNER, "ask", [HUMAN])
        thread.message(OWNER, "up", to, intent="escalate", reply_to=message)
        refused(thread, code)


def test_the_ack_of_an_escalation_is_not_the_recipients() -> None:
    """Row 30."""
    thread, message, escalation = escalated()
    thread.agree(HUMAN, OWNER, escalation)
    thread.settle(OWNER, settled(message))
    refused(thread, "settle.unacknowledged")
    thread, message, _ = escalated()
    thread.ack(HUMAN, message)
    refused(thread, "ack.recipient")


def test_an_approval_needs_every_approver() -> None:
    """Row 41."""
    for answers in (
        [],
        [(HUMAN, "accept")],
        [(HUMAN, "accept"), (SECOND_HUMAN, "decline")],
        [(HUMAN, "decline")],
    ):
        thread, message, escalation = escalated([HUMAN, SECOND_HUMAN])
        for who, answer in answers:
            ack = thread.ack(who, escalation, answer)
            if answer == "accept":
                thread.rule(OWNER, ack)
        thread.settle(OWNER, settled(message, "approved", by=escalation))
        refused(thread, "settle.approved")


def test_an_unconfirmed_approval_does_not_count() -> None:
    """Rows 26 and 41."""
    thread, message, escalation = escalated()
    thread.ack(HUMAN, escalation)
    thread.settle(OWNER, settled(message, "approved", by=escalation))
    refused(thread, "settle.approved")


def test_approval_by_a_failed_escalation_is_refused_in_the_same_record_too() -> None:
    """Row 41."""
    thread, message, escalation = escalated()
    thread.agree(HUMAN, OWNER, escalation)
    thread.settle(OWNER, settled(escalation, "failed"), settled(message, "approved", by=escalation))
    refused(thread, "settle.approved")
    thread, message, escalation = escalated()
    thread.agree(HUMAN, OWNER, escalation)
    thread.settle(OWNER, settled(escalation, "failed"))
    thread.seal(settled=[settled(message, "approved", by=escalation)])
    refused(thread, "settle.approved")


def test_approval_by_another_record_than_the_messages_escalation_is_refused() -> None:
    """Row 41."""
    for choose in (
        lambda first, second, one, two: (first, two),
        lambda first, second, one, two: (first, first),
        lambda first, second, one, two: (first, ABSENT),
        lambda first, second, one, two: (one, one),
    ):
        thread = Forger()
        first, second = (thread.message(OWNER, name, [REVIEWER]) for name in ("a", "b"))
        one = thread.message(OWNER, "up1", [HUMAN], intent="escalate", reply_to=first)
        two = thread.message(OWNER, "up2", [HUMAN], intent="escalate", reply_to=second)
        thread.agree(HUMAN, OWNER, two)
        message, by = choose(first, second, one, two)
        thread.settle(OWNER, settled(message, "approved", by=by))
        refused(thread, "settle.approved")


def test_no_second_escalation_whatever_became_of_the_first() -> None:
    """Row 41."""
    for end in ("open", "declined", "failed"):
        thread, message, escalation = escalated()
        if end == "declined":
            thread.ack(HUMAN, escalation, "decline")
        if end == "failed":
            thread.settle(OWNER, settled(escalation, "failed"))
        thread.message(OWNER, "again", [SECOND_HUMAN], intent="escalate", reply_to=message)
        refused(thread, "escalate.repeated")


def test_an_escalation_is_not_retracted_escalated_or_given_a_step() -> None:
    """Row 41."""
    thread, _, escalation = escalated()
    thread.message(OWNER, "back", intent="retract", reply_to=escalation)
    refused(thread, "retract.target")
    thread, _, escalation = escalated()
    thread.message(OWNER, "up-up", [SECOND_HUMAN], intent="escalate", reply_to=escalation)
    refused(thread, "escalate.target")
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    thread.message(OWNER, "up", [HUMAN], intent="escalate", reply_to=message, step=["x"])
    refused(thread, "message.step")
    for payload in ("x" * 4097, {"address": ABSENT, "bytes": 17}):
        thread = Forger()
        message = thread.message(OWNER, "ask", [REVIEWER])
        thread.message(OWNER, "up", [HUMAN], intent="escalate", reply_to=message, payload=payload)
        refused(thread, "message.escalation_payload")


def test_a_settled_or_retracted_message_is_not_escalated_in_the_same_record_either() -> None:
    """Row 41."""
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    thread.message(
        OWNER, "up", [HUMAN], intent="escalate", reply_to=message, settled=[settled(message, "failed")]
    )  # fmt: skip
    refused(thread, "escalate.late")
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    thread.message(OWNER, "back", intent="retract", reply_to=message)
    thread.message(OWNER, "up", [HUMAN], intent="escalate", reply_to=message)
    refused(thread, "escalate.late")


def test_an_approver_who_is_not_known_as_human_is_not_trusted() -> None:
    """Row 41."""
    thread, message, escalation = escalated()
    thread.agree(HUMAN, OWNER, escalation)
    thread.seal(settled=[settled(message, "approved", by=escalation)])
    assert thread.verdict().exit_code == 0
    verdict = thread.verdict(store(agents=(OWNER, HUMAN)))
    assert (verdict.trust, verdict.exit_code) == ("unknown", 4)
    thread, message, escalation = escalated()
    thread.roster(OWNER, "role", HUMAN, role="member")
    thread.agree(HUMAN, OWNER, escalation)
    thread.seal(settled=[settled(message, "approved", by=escalation)])
    assert thread.verdict(store(agents=(OWNER, HUMAN))).exit_code == 4


def test_a_key_trusted_as_issuer_or_witness_only_does_not_sign_threads() -> None:
    thread = Forger()
    thread.seal()
    for role in ("issuer", "witness"):
        keys = TrustStore({public(OWNER): TrustedKey("O", role)})  # type: ignore[arg-type]
        assert verify_thread(thread.records, trust=keys).exit_code == 4


def test_an_approved_message_is_never_counted_as_acknowledged() -> None:
    thread, message, escalation = escalated()
    thread.agree(HUMAN, OWNER, escalation)
    thread.seal(settled=[settled(message, "approved", by=escalation)])
    verdict = thread.verdict()
    assert (verdict.acknowledged, verdict.approved) == (0, 1)
    assert [finding.code for finding in verdict.findings] == ["message.approved"]


# Settling


def test_settling_what_is_not_ones_own_open_message_is_refused() -> None:
    """Row 31."""
    for entry, code in (
        (lambda t, mine, theirs: settled(ABSENT, "failed"), "settle.unknown"),
        (lambda t, mine, theirs: settled(t.thread, "failed"), "settle.unknown"),
        (lambda t, mine, theirs: settled(theirs, "failed"), "settle.author"),
    ):
        thread = Forger()
        mine, theirs = thread.message(OWNER, "a"), thread.message(OTHER, "b")
        thread.settle(OWNER, entry(thread, mine, theirs))
        refused(thread, code)


def test_settling_twice_is_refused() -> None:
    """Row 31."""
    for outcomes in (("failed", "succeeded"), ("succeeded", "succeeded")):
        for apart in (False, True):
            thread, message = agreed()
            first, second = (settled(message, outcome) for outcome in outcomes)
            if apart:
                thread.settle(OWNER, first)
                thread.settle(OWNER, second)
            else:
                thread.settle(OWNER, first, second)
            refused(thread, "settle.repeated")


def test_a_message_is_not_settled_by_the_record_that_sends_it() -> None:
    """Row 31."""
    thread = Forger()
    ahead = thread.copy().message(OWNER, "a")
    thread.message(OWNER, "a", settled=[settled(ahead, "failed")])
    refused(thread, "settle.unknown")


def test_a_removed_reviewer_still_owes_the_ack() -> None:
    """Row 32."""
    for change, fields in (("remove", {}), ("role", {"role": "observer"})):
        thread = Forger()
        message = thread.message(OWNER, "ask", [REVIEWER])
        thread.roster(OWNER, change, REVIEWER, **fields)
        thread.settle(OWNER, settled(message))
        refused(thread, "settle.unacknowledged")
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    thread.roster(REVIEWER, "leave", REVIEWER)
    thread.roster(OWNER, "admit", PUPPET, role="member", name="reviewer2")
    thread.ack(PUPPET, message)
    refused(thread, "ack.recipient")


def test_who_may_not_append_settles_nothing_while_leaving() -> None:
    thread = Forger()
    message = thread.message(OTHER, "a")
    thread.roster(OWNER, "role", OTHER, role="observer")
    thread.roster(OTHER, "leave", OTHER, settled=[settled(message, "failed")])
    refused(thread, "roster.role")


@pytest.mark.parametrize("kind", ["message", "settle", "seal", "roster"])
@pytest.mark.parametrize("who", [HUMAN, WATCHER, PUPPET, REVIEWER])
def test_a_record_by_somebody_without_the_role_for_it_is_refused(kind: str, who: str) -> None:
    """Row 35."""
    thread = Forger()
    if kind == "message":
        thread.message(who, "a")
    elif kind == "settle":
        thread.settle(who, {"step": ["x"], "outcome": "failed"})
    elif kind == "seal":
        thread.seal(who=who)
    else:
        thread.roster(who, "remove", OTHER)
    expected = "roster.stranger" if who == PUPPET else "roster.role"
    if who == REVIEWER and kind == "message":
        assert thread.verdict().integrity == "valid"
    else:
        refused(thread, "step.owner" if who == REVIEWER and kind == "settle" else expected)


def test_a_thread_has_a_moderator_who_opened_it_and_never_is_without_one() -> None:
    """Row 33."""
    for members in (((REVIEWER, "moderator"),), ((OWNER, "member"), (REVIEWER, "moderator"))):
        assert Forger(members).verdict().code == "roster.owner"
    for who, change, fields in (
        (OWNER, "leave", {}),
        (OWNER, "remove", {}),
        (OWNER, "role", {"role": "member"}),
    ):
        thread = Forger()
        thread.roster(who, change, OWNER, **fields)
        refused(thread, "roster.moderator")
    thread = Forger()
    thread.roster(OWNER, "admit", PUPPET, role="moderator", name="pup")
    thread.roster(PUPPET, "remove", OWNER)
    thread.roster(PUPPET, "leave", PUPPET)
    refused(thread, "roster.moderator")


def test_a_refused_record_leaves_no_trace() -> None:
    """Row 35."""
    thread, message = agreed()
    live = Thread()
    for raw in thread.records:
        live.apply(reopen(raw))
    forgeries = []
    for make in (
        lambda t: t.settle(OWNER, settled(message), settled(ABSENT, "failed")),
        lambda t: t.settle(OWNER, {"step": ["x"], "outcome": "failed"}, {"step": ["x"], "outcome": "failed"}),
        lambda t: t.message(OWNER, "ask"),
        lambda t: t.message(OTHER, "z", [PUPPET]),
        lambda t: t.message(OWNER, "back", intent="retract", reply_to=message, settled=[settled(message)]),
        lambda t: t.message(OWNER, "up", [OTHER], intent="escalate", reply_to=message),
        lambda t: t.roster(OWNER, "leave", OWNER),
        lambda t: t.roster(OWNER, "admit", PUPPET, role="member", name=REVIEWER),
        lambda t: t.seal(settled=[settled(message, "approved", by=ABSENT)]),
        lambda t: t.seal(),
        lambda t: t.ack(REVIEWER, message),
        lambda t: t.rule(OWNER, t.standing[0]),
    ):
        forged = thread.copy()
        make(forged)
        forgeries.append(forged.records[-1])
    before = frozen(live)
    for raw in forgeries:
        with pytest.raises(EnvelopeError):
            live.apply(reopen(raw))
        assert frozen(live) == before
    thread.settle(OWNER, settled(message))
    live.apply(reopen(thread.records[-1]))


def frozen(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Everything that can be reached from a value, in a form that compares."""
    seen = {} if seen is None else seen
    if isinstance(value, str | bytes | int | None):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, DigestTable):
        return bytes(value._rows)  # its index follows from them
    inner = [frozen(item, seen) for item in value.items()] if isinstance(value, dict) else []
    if isinstance(value, list | tuple):
        return [frozen(item, seen) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    names = [*getattr(value, "__dict__", ())] + [n for c in type(value).__mro__ for n in getattr(c, "__slots__", ())]
    return [inner, *((name, frozen(getattr(value, name), seen)) for name in names if hasattr(value, name))]


# Steps


def test_a_step_of_another_members_is_refused() -> None:
    """Row 36."""
    thread = Forger()
    thread.message(OTHER, "a", [REVIEWER], step=["deploy"])
    refused(thread, "step.owner")
    thread = Forger()
    thread.roster(OWNER, "role", OTHER, role="moderator")
    thread.message(OTHER, "a", settled=[{"step": ["deploy"], "outcome": "succeeded"}])
    refused(thread, "step.owner")


def test_a_step_on_a_message_that_gates_nothing_is_refused() -> None:
    """Row 42."""
    for intent in ("assert", "query"):
        thread = Forger()
        thread.message(OWNER, "a", [REVIEWER], intent=intent, step=["deploy"])
        refused(thread, "message.step")


def test_a_step_occurs_once_however_it_is_told() -> None:
    """Rows 40 and 42."""
    path = ["deploy", "db#2"]
    entry = {"step": path, "outcome": "skipped"}
    for first, second in (
        (lambda t: t.settle(OWNER, entry), lambda t: t.settle(OWNER, {**entry, "outcome": "succeeded"})),
        (lambda t: None, lambda t: t.settle(OWNER, entry, {**entry, "outcome": "failed"})),
        (lambda t: t.message(OWNER, "a", [REVIEWER], step=path), lambda t: t.settle(OWNER, entry)),
        (lambda t: t.settle(OWNER, entry), lambda t: t.message(OWNER, "a", [REVIEWER], step=path)),
        (lambda t: t.message(OWNER, "a", [REVIEWER], step=path), lambda t: t.message(OWNER, "b", [OTHER], step=path)),
        (lambda t: None, lambda t: t.message(OWNER, "a", [REVIEWER], step=path, settled=[entry])),
    ):
        thread = Forger()
        first(thread)
        second(thread)
        refused(thread, "step.repeated")


@pytest.mark.parametrize("path", [["a/b"], ["a#1"], ["a#02"], ["a#"], [""], ["a"] * 9, [], ["a#2#3"], ["a\n"]])
def test_a_path_has_one_spelling(path: list[str]) -> None:
    """Row 42: no path is spelled so that another one joins to the same text."""
    thread = Forger()
    thread.settle(OWNER, {"step": path, "outcome": "failed"})
    assert thread.verdict().code in ("body.name", "body.empty", "body.size")


# Retractions


def test_a_retraction_of_what_is_not_ones_own_open_message_is_refused() -> None:
    """Row 40."""
    thread = Forger()
    thread.message(OTHER, "back", intent="retract", reply_to=thread.message(OWNER, "a"))
    refused(thread, "retract.author")
    for apart in (False, True):
        thread = Forger()
        message = thread.message(OWNER, "a")
        entries = [settled(message, "failed")]
        if apart:
            thread.settle(OWNER, *entries)
        thread.message(OWNER, "b", intent="retract", reply_to=message, settled=None if apart else entries)
        refused(thread, "retract.settled")
    for target in (
        lambda t: t.message(OWNER, "s", [REVIEWER], step=["x"]),
        lambda t: t.message(OWNER, "r", intent="retract", reply_to=t.message(OWNER, "a")),
    ):
        thread = Forger()
        thread.message(OWNER, "back", intent="retract", reply_to=target(thread))
        refused(thread, "retract.target")
    thread = Forger()
    message = thread.message(OWNER, "a")
    thread.message(OWNER, "b", intent="retract", reply_to=message)
    thread.message(OWNER, "c", intent="retract", reply_to=message)
    refused(thread, "retract.target")


def test_a_declined_message_is_not_retracted_before_or_after_the_decline_is_committed() -> None:
    """Row 40."""
    for commit in (False, True):
        for by_approver in (False, True):
            thread, message, escalation = escalated()
            thread.ack(*((HUMAN, escalation) if by_approver else (REVIEWER, message)), "decline")
            if commit:
                thread.settle(OWNER)
                if by_approver:
                    thread.settle(OWNER, settled(escalation, "failed"))
            thread.message(OWNER, "back", intent="retract", reply_to=message)
            refused(thread, "retract.declined")


def test_a_retracted_message_takes_no_ack_ruling_or_success() -> None:
    """Row 40."""
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER])
    ack = thread.ack(REVIEWER, message)
    thread.message(OWNER, "back", intent="retract", reply_to=message)
    for attempt, code in (
        (lambda t: t.ack(REVIEWER, message, sent_at=2), "ack.settled"),
        (lambda t: t.rule(OWNER, ack), "ruling.ack"),
        (lambda t: t.settle(OWNER, settled(message)), "settle.retracted"),
        (lambda t: t.settle(OWNER, settled(message, "approved", by=ABSENT)), "settle.retracted"),
    ):
        forged = thread.copy()
        attempt(forged)
        refused(forged, code)


# Names and the roster


def test_a_name_is_never_given_to_a_second_key() -> None:
    """Row 44."""
    thread = Forger()
    thread.roster(OWNER, "remove", REVIEWER)
    thread.roster(OWNER, "admit", PUPPET, role="member", name=REVIEWER)
    refused(thread, "roster.name")
    thread = Forger()
    thread.roster(OWNER, "remove", REVIEWER)
    thread.roster(OWNER, "admit", REVIEWER, role="member", name="renamed")
    thread.roster(OWNER, "admit", PUPPET, role="member", name=REVIEWER)
    refused(thread, "roster.name")


def test_a_change_of_the_roster_that_changes_nothing_is_refused() -> None:
    """Row 33."""
    for who, change, whom, fields, code in (
        (OWNER, "admit", REVIEWER, {"role": "member", "name": "x"}, "roster.present"),
        (OWNER, "remove", PUPPET, {}, "roster.absent"),
        (OWNER, "role", PUPPET, {"role": "member"}, "roster.absent"),
        (OWNER, "role", REVIEWER, {"role": "member"}, "roster.same_role"),
        (REVIEWER, "leave", OTHER, {}, "roster.leave"),
        (OWNER, "leave", OTHER, {}, "roster.leave"),
        (REVIEWER, "admit", PUPPET, {"role": "member", "name": "x"}, "roster.role"),
        (REVIEWER, "role", REVIEWER, {"role": "moderator"}, "roster.role"),
    ):
        thread = Forger()
        thread.roster(who, change, whom, **fields)
        refused(thread, code)


# Limits and seals


def test_the_owner_does_not_exceed_its_limits() -> None:
    """Row 23."""
    thread = Forger(limits={"messages": 2})
    message = thread.message(OWNER, "a", [REVIEWER])
    thread.message(OWNER, "e", [HUMAN], intent="escalate", reply_to=message)
    thread.message(OWNER, "b", intent="retract", reply_to=message)
    thread.message(OWNER, "c")
    refused(thread, "limit.messages")
    for payload in ("é" * 5, {"address": ABSENT, "bytes": 2**53 - 1}):
        thread = Forger(limits={"bytes": 9})
        thread.message(OWNER, "a", payload=payload)
        refused(thread, "limit.bytes")


def test_the_owner_does_not_escape_its_limits_by_leaving_and_coming_back() -> None:
    thread = Forger(limits={"messages": 1})
    thread.message(OWNER, "a")
    thread.roster(OWNER, "role", OTHER, role="moderator")
    thread.roster(OWNER, "leave", OWNER)
    thread.roster(OTHER, "admit", OWNER, role="member", name="owner2")
    thread.message(OWNER, "b")
    refused(thread, "limit.messages")


def test_completed_over_the_owners_open_request_is_refused() -> None:
    """Row 38."""
    for prepare, entries in (
        (lambda t, m: None, lambda m: []),
        (lambda t, m: None, lambda m: [settled(m, "failed")]),
        (lambda t, m: t.agree(REVIEWER, OWNER, m), lambda m: []),
        (lambda t, m: t.ack(REVIEWER, m), lambda m: [settled(m, "failed")]),
        (lambda t, m: t.ack(REVIEWER, m, "decline"), lambda m: [settled(m, "failed")]),
        (lambda t, m: t.settle(OWNER, settled(m, "failed")), lambda m: []),
    ):
        thread = Forger()
        message = thread.message(OWNER, "ask", [REVIEWER])
        prepare(thread, message)
        thread.seal(settled=entries(message) or None)
        refused(thread, "seal.unacknowledged")


def test_an_owner_who_left_and_came_back_owes_what_it_owed() -> None:
    """Row 38."""
    thread = Forger()
    thread.message(OWNER, "ask", [REVIEWER])
    thread.roster(OWNER, "role", OTHER, role="moderator")
    thread.roster(OWNER, "leave", OWNER)
    thread.seal(who=OTHER)
    refused(thread, "seal.unacknowledged")


def test_a_step_settled_in_place_of_its_message_does_not_complete_the_thread() -> None:
    """Rows 38 and 42."""
    thread = Forger()
    thread.message(OWNER, "ask", [REVIEWER], step=["deploy"])
    thread.seal(settled=[{"step": ["deploy", "again"], "outcome": "succeeded"}])
    refused(thread, "seal.unacknowledged")


@pytest.mark.parametrize("outcome", ["failed", "rejected", "over_budget", "cancelled"])
def test_another_outcome_never_ends_with_zero(outcome: str) -> None:
    """Row 38."""
    thread = Forger()
    thread.seal(outcome)
    verdict = thread.verdict()
    assert verdict.exit_code == 5
    with pytest.raises(EnvelopeError):
        verdict.require("sealed", "completed")


def open_request() -> Forger:
    thread = Forger()
    thread.message(OTHER, "ask", [REVIEWER])
    thread.seal()
    return thread


def test_a_request_parked_under_another_members_key_ends_with_five() -> None:
    """Row 45."""
    for settle in (False, True):
        thread = Forger()
        message = thread.message(OTHER, "ask", [REVIEWER])
        if settle:
            thread.settle(OTHER, settled(message, "failed"))
        thread.roster(OWNER, "remove", OTHER)
        thread.seal()
        assert thread.verdict().exit_code == 5
        assert [finding.code for finding in thread.verdict().findings] == ["seal.open_request"]


@pytest.mark.parametrize("trust", [EVERYBODY, store(agents=()), store(agents=(OWNER,))], ids=["all", "none", "owner"])
@pytest.mark.parametrize("tip", [None, ABSENT], ids=["no tip", "a later record is known"])
def test_requiring_completed_refuses_an_open_request_whatever_else_is_wrong(trust: TrustStore, tip: bytes) -> None:
    """Row 45: a caller that does not ask for trust, or knows a later record, is not told that all is done."""
    with pytest.raises(EnvelopeError, match=r"verdict\.unmet"):
        open_request().verdict(trust, tip=tip).require("completed")


def test_a_verdict_is_not_taken_for_a_boolean() -> None:
    """Row 38: `if verify_thread(…):` must not pass for a thread that is invalid."""
    try:
        passed = bool(verify_thread([], trust=None))
    except TypeError:
        passed = False
    assert not passed


def test_an_unanswered_challenge_is_told() -> None:
    for answer, told in (
        (lambda t, c, m: None, True),
        (lambda t, c, m: t.message(OTHER, "x", reply_to=c), True),
        (lambda t, c, m: t.message(OWNER, "x", reply_to=m), True),
        (lambda t, c, m: t.message(OWNER, "x", reply_to=c), False),
        (lambda t, c, m: t.message(OWNER, "x", intent="retract", reply_to=m), False),
        (lambda t, c, m: t.message(REVIEWER, "x", intent="retract", reply_to=c), False),
        (lambda t, c, m: t.settle(REVIEWER, settled(c, "failed")), True),
    ):
        thread = Forger()
        message = thread.message(OWNER, "a")
        challenge = thread.message(REVIEWER, "why", intent="challenge", reply_to=message)
        answer(thread, challenge, message)
        thread.seal()
        assert (["seal.open_challenge"] if told else []) == [finding.code for finding in thread.verdict().findings]


def test_a_challenge_of_a_message_already_retracted_is_told() -> None:
    thread = Forger()
    message = thread.message(OWNER, "a")
    thread.message(OWNER, "back", intent="retract", reply_to=message)
    thread.message(REVIEWER, "why", intent="challenge", reply_to=message)
    thread.seal()
    assert [finding.code for finding in thread.verdict().findings] == ["seal.open_challenge"]


def test_a_decline_among_many_is_counted_and_told_to_be_left_out() -> None:
    thread = Forger()
    messages = [thread.message(OWNER, f"m{number}", [OTHER], intent="assert") for number in range(70)]
    for message in messages:
        thread.ack(OTHER, message, "decline")
    asked = thread.message(OWNER, "ask", [REVIEWER])
    thread.ack(REVIEWER, asked, "decline")
    thread.settle(OWNER)
    verdict = thread.verdict()
    assert (verdict.declined, len(verdict.findings), verdict.omitted) == (71, 64, 7)


def test_findings_are_not_said_to_be_left_out_when_there_are_none() -> None:
    """A member's failed requests are findings of a seal `completed` only."""
    thread = Forger()
    messages = [thread.message(OTHER, f"m{number}", [REVIEWER]) for number in range(70)]
    thread.settle(OTHER, *(settled(message, "failed") for message in messages))
    thread.seal("failed")
    verdict = thread.verdict()
    assert (verdict.findings, verdict.omitted) == ((), 0)


def test_an_unchecked_plan_stands_in_the_first_line() -> None:
    """Row 43."""
    thread = Forger(plan=ABSENT)
    thread.seal()
    assert "plan unchecked" in next(iter(render_verdict("f", thread.verdict()))).plain
    with pytest.raises(EnvelopeError):
        thread.verdict().require("followed")


def test_a_pinned_thread_is_not_another_one_of_the_same_people() -> None:
    """Row 1."""
    assert complete().verdict(thread=Forger(nonce=b"m" * 16).thread).code == "chain.pinned"


def test_pending_receipts_count_for_nothing() -> None:
    """Row 48."""
    thread, _ = agreed()
    verdict = thread.verdict(store(agents=(OWNER,)))
    assert (verdict.pending, verdict.acknowledged, verdict.declined) == (2, 0, 0)
    assert [signer.key for signer in verdict.signers] == [public(OWNER)]


def test_a_clock_changes_nothing_but_notes() -> None:
    """Rows 7 and 11."""
    thread = Forger()
    thread.message(OWNER, "a", sent_at=2**53 - 1)
    thread.message(OWNER, "b", sent_at=0)
    thread.seal(sent_at=0)
    verdict = thread.verdict(now=1000)
    assert verdict.exit_code == 0
    assert {finding.code for finding in verdict.findings} == {"time.backwards", "time.future"}


def test_a_label_that_names_no_evidence_is_refused() -> None:
    """Row 21."""
    for provenance in (None, {"source": "s"}, {"source": "s", "chain": [public(OWNER)]}):
        thread = Forger()
        thread.message(OWNER, "a", epistemic="verified", provenance=provenance)
        refused(thread, "message.verified")


# Trust


def test_a_mapping_that_says_who_may_what_is_not_flattened_to_agents() -> None:
    """A caller that hands over `{key: TrustedKey(…, "issuer")}` does not thereby trust the issuer as an agent."""
    thread = Forger()
    thread.seal()
    try:
        verdict = verify_thread(thread.records, trust={public(OWNER): TrustedKey("O", "issuer")})
    except (EnvelopeError, TypeError):
        return
    assert verdict.exit_code == 4


@pytest.mark.parametrize("trust", ["trust.toml", public(OWNER), [public(OWNER).hex()], [1]])
def test_what_is_no_set_of_keys_trusts_nobody(trust: Any) -> None:
    thread = Forger()
    thread.seal()
    with pytest.raises((EnvelopeError, TypeError)):
        verify_thread(thread.records, trust=trust)


def test_no_trust_and_an_empty_trust_both_trust_nobody() -> None:
    """Row 8."""
    thread = Forger()
    thread.seal()
    for trust in (None, [], TrustStore({}), iter(())):
        assert verify_thread(thread.records, trust=trust).exit_code == 4


def test_a_spent_iterator_is_no_thread() -> None:
    records = iter(complete().records)
    assert verify_thread(records, trust=EVERYBODY).exit_code == 0
    assert verify_thread(records, trust=EVERYBODY).code == "chain.no_open"


def test_one_untrusted_signer_of_a_committed_receipt_is_enough() -> None:
    thread, message = agreed()
    thread.seal(settled=[settled(message)])
    assert thread.verdict(store(agents=(OWNER,))).exit_code == 4
    assert thread.verdict(store(agents=(OWNER, REVIEWER))).exit_code == 0


@pytest.mark.parametrize(
    "text",
    ["version = " + "9" * 5000, "version = true", "version = 1\nx = 1", "version = 1\nkeys = 1", "\0", "version = 1.0"],
    ids=range(6),
)
def test_a_trust_file_that_is_none_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trust.toml"
    path.write_text(text)
    with pytest.raises(EnvelopeError, match=r"trust\.file"):
        TrustStore.load(path)


# Bounds


def test_a_file_of_zeroes_ends_soon(tmp_path: Path) -> None:
    """Row 15: what is no envelope is not searched for more of them, a byte at a time."""
    path = tmp_path / "zeroes.thread"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    deadline = time.monotonic() + 5
    for count, _ in enumerate(read_records(path)):
        assert time.monotonic() < deadline, f"{count} records were made of zeroes, and no end"


def test_a_record_over_the_limit_is_refused_from_its_heads(tmp_path: Path) -> None:
    """Rows 15 and 23."""
    path = tmp_path / "large.thread"
    protected = protect(OWNER, "open")
    for announced in (1 << 20, 1 << 40, (1 << 64) - 1):
        path.write_bytes(b"\xd2\x84" + string(protected) + b"\xa0\x5b" + announced.to_bytes(8, "big"))
        assert verify_file(path, trust=None).code == "size.envelope"


def test_receipts_that_no_record_could_commit_are_refused() -> None:
    """Row 46."""
    thread = Forger()
    recipients = [f"p{number}" for number in range(250)]
    for name in recipients:
        thread.roster(OWNER, "admit", name, role="member", name=name)
    messages = [thread.message(OWNER, f"m{number}", recipients, intent="assert") for number in range(17)]
    for message in messages:
        for name in recipients:
            if len(thread.standing) < 4097:
                thread.ack(name, message)
    refused(thread, "receipts.many")


def test_receipts_that_stand_are_not_held_as_a_whole() -> None:
    """Row 15: memory grows by messages and recipients, never by the size of the records."""
    recipients = [f"p{number}" for number in range(24)]
    thread = Forger((*STAFF, *((name, "member") for name in recipients)))
    message = thread.message(OWNER, "ask", recipients)
    for name in recipients:
        thread.ack(name, message, ext={"org.example": b"x" * 1_000_000})
    tracemalloc.start()
    try:
        assert thread.verdict().integrity == "valid"
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def test_what_a_finding_quotes_is_short() -> None:
    """Rows 17 and 23: an unknown field's name is the sender's text, of up to a megabyte."""
    thread = Forger()
    thread.settle(OWNER, {"step": ["x"], "outcome": "failed"}, **{"valid, sealed, trusted " * 4000: 1})
    verdict = thread.verdict()
    assert verdict.code == "body.unknown"
    assert len(verdict.findings[0].text) < 1000


def test_digests_are_found_and_only_those() -> None:
    rnd = random.Random(7)
    for width in (16, 32):
        table, rows = DigestTable(width), {}
        for number in range(3000):
            digest = rnd.randbytes(width)
            assert table.find(digest) == -1
            table.add(digest)
            rows[digest] = number
        assert all(table.find(digest) == row and table[row] == digest for digest, row in rows.items())
        assert table.find(b"") == table.find(bytes(width)) == -1


# What is shown


def shown(thread: Forger) -> list[str]:
    timeline = Timeline(EVERYBODY)
    live = Thread()
    for index, raw in enumerate(thread.records):
        record = reopen(raw)
        live.apply(record)
        timeline.observe(record, index, 0)
    return [line.plain for line in timeline.render()]


IMITATION = (
    "Please deploy.\n"
    "├ Rev accepts, having understood:\n"
    "│ ┃ I agree\n"
    "  Owner confirms\n"
    "└ settled succeeded\n"
    "   7  1970-01-01 00:00:01Z  Rev seals the thread completed\n"
)


def test_no_line_of_a_payload_is_a_line_that_the_tool_writes_itself() -> None:
    """Row 17: a payload draws an ack, its restatement, a ruling and a settlement."""
    honest, message = agreed()
    honest.settle(OWNER, settled(message))
    words = ("accepts", "confirms", "settled", "┃ r")
    genuine = {line for line in shown(honest) if any(word in line for word in words)}
    assert len(genuine) == 4
    for field in ("payload", "restatement", "correction", "result", "reason", "source"):
        text = IMITATION.replace("I agree", "r")
        thread = Forger()
        source = {"source": text} if field == "source" else None
        message = thread.message(OWNER, "ask", [OTHER], payload=text if field == "payload" else "p", provenance=source)
        ack = thread.ack(OTHER, message, restatement=text if field == "restatement" else "s")
        thread.rule(OWNER, ack, "correct", correction=text if field == "correction" else "c")
        thread.settle(OWNER, settled(message, "failed", result=text if field == "result" else "x"))
        thread.seal("failed", reason=text if field == "reason" else "x")
        assert not genuine & set(shown(thread)), field


def test_a_pending_receipt_does_not_look_like_a_committed_one() -> None:
    """Row 48: pending receipts are shown, but count for nothing."""
    thread, _ = agreed()
    committed = thread.copy()
    committed.settle(OWNER)
    pending_lines = [line for line in shown(thread) if "Rev accepts" in line or "Owner confirms" in line]
    committed_lines = [line for line in shown(committed) if "Rev accepts" in line or "Owner confirms" in line]
    assert pending_lines != committed_lines


@pytest.mark.parametrize(
    "hidden", ["\x1b[2J", "\x1b]8;;http://x\x07", "\r", "\x08", "\x9b", "\u202e", "\u2066", "\u200b"]
)
def test_nothing_that_moves_hides_or_reorders_reaches_a_terminal(hidden: str) -> None:
    """Row 17."""
    thread = Forger()
    text = f"a{hidden}b"
    message = thread.message(OWNER, "ask", [REVIEWER], payload=text, provenance={"source": text})
    thread.rule(OWNER, thread.ack(REVIEWER, message, restatement=text), "correct", correction=text)
    thread.settle(OWNER, settled(message, "failed", result=text))
    thread.seal("failed", reason=text)
    lines = "\n".join(shown(thread))
    assert hidden not in lines
    assert lines.count("a\\") == 6


def run_verify(folder: Path, *paths: Path, command: str = "verify", **options: Any) -> subprocess.CompletedProcess[str]:
    trust = folder / "trust.toml"
    trust.write_text(EVERYBODY.dump())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    arguments = [sys.executable, "-m", "envelope", command, *map(str, paths), "--trust", str(trust)]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, **options)


def test_the_worst_file_decides_the_exit_code(tmp_path: Path) -> None:
    good, bad, opened = (tmp_path / name for name in ("good", "bad", "open"))
    good.write_bytes(b"".join(complete().records))
    bad.write_bytes(b"".join(complete().records[1:]))
    opened.write_bytes(b"".join(complete().records[:-1]))
    assert run_verify(tmp_path, good).returncode == 0
    assert run_verify(tmp_path, good, opened, good).returncode == 3
    assert run_verify(tmp_path, good, opened, bad).returncode == 1
    assert run_verify(tmp_path, bad, tmp_path / "absent", good).returncode == 2


def test_a_file_that_cannot_be_named_is_unreadable_and_hides_no_other(tmp_path: Path) -> None:
    """A traceback ends with 1, which means invalid, and leaves the files after it unread."""
    good = tmp_path / "good.thread"
    good.write_bytes(b"".join(complete().records))
    result = run_verify(tmp_path, tmp_path / ("x" * 300), good)
    assert "Traceback" not in result.stderr
    assert result.returncode == 2
    assert "good.thread" in result.stdout


def test_a_terminal_that_cannot_show_a_character_shows_the_rest(tmp_path: Path) -> None:
    thread = Forger()
    thread.message(OWNER, "a", payload="日本")
    path = tmp_path / "a.thread"
    path.write_bytes(b"".join(thread.records))
    result = run_verify(tmp_path, path, command="show", env={"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"})
    assert "Traceback" not in result.stderr
    assert result.returncode == 3


def test_a_long_line_of_a_payload_does_not_wrap_into_a_line_of_the_tool(tmp_path: Path) -> None:
    """Row 17: what a terminal wraps begins at its left margin, where the tool's own lines begin."""
    forged = "   7  1970-01-01 00:00:01Z  Rev seals the thread completed"
    thread = Forger()
    thread.message(OWNER, "ask", [REVIEWER], payload="x".ljust(72) + forged.ljust(80))
    path = tmp_path / "a.thread"
    path.write_bytes(b"".join(thread.records))
    trust = tmp_path / "trust.toml"
    trust.write_text(EVERYBODY.dump())
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    arguments = [sys.executable, "-m", "envelope", "show", str(path), "--trust", str(trust)]
    process = subprocess.Popen(arguments, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    data = b""
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:
            break
        if not block:
            break
        data += block
    os.close(ours)
    process.wait()
    lines = data.decode().replace("\r\n", "\n").split("\n")
    screen = [line[start : start + 80] for line in lines for start in range(0, max(len(line), 1), 80)]
    assert any("Owner opens" in row for row in screen)
    assert not any(row.startswith(forged) for row in screen)
