"""`spec/envelope.cddl` accepts a body of every kind, and refuses what CDDL can tell apart."""

from typing import Any

import cbor2
import pytest
from pycddl import ValidationError

from tests.cddl import schema, validate_body, validate_envelope

KEY = bytes(range(32))
ADDRESS = bytes(range(32, 64))
MAX = 2**53 - 1
BLOB = {"address": ADDRESS, "bytes": 17}

COMMON = {"v": 1, "sent_at": 1_700_000_000_000}
PLACE = {**COMMON, "thread": ADDRESS, "seq": 1, "prev": ADDRESS}
OPEN = {
    **COMMON,
    "seq": 0,
    "name": "release-42",
    "nonce": bytes(16),
    "members": [{"key": KEY, "role": "moderator", "name": "ada"}],
}
MESSAGE = {**PLACE, "id": "m#1", "epistemic": "inferred", "payload": "Ship it?"}
ASSERT = {**MESSAGE, "intent": "assert"}
REQUEST = {**MESSAGE, "intent": "request", "to": [KEY]}
RETRACT = {**MESSAGE, "intent": "retract", "reply_to": ADDRESS}
ESCALATE = {**MESSAGE, "intent": "escalate", "reply_to": ADDRESS, "to": [KEY]}
ADMIT = {**PLACE, "change": "admit", "key": KEY, "role": "member", "name": "eve"}
LEAVE = {**PLACE, "change": "leave", "key": KEY}
SETTLED = {"message": ADDRESS, "outcome": "succeeded"}
SETTLE = {**PLACE, "settled": [SETTLED]}
SEAL = {**PLACE, "outcome": "completed"}
ACK = {**COMMON, "thread": ADDRESS, "message": ADDRESS, "answer": "accept", "restatement": "I am to ship it."}
CONFIRM = {**COMMON, "thread": ADDRESS, "ack": ADDRESS, "ruling": "confirm"}
CORRECT = {**CONFIRM, "ruling": "correct", "correction": "On Monday."}
CARD = {**COMMON, "name": "Ada Lovelace", "capabilities": ["deploy"], "key": KEY, "not_before": 0}
REVOCATION = {**COMMON, "key": KEY, "reason": "The laptop was lost.", "revoked_at": 0}
WITNESS = {**COMMON, "thread": ADDRESS, "seq": 0, "tip": ADDRESS, "seen_at": 0}

MINIMAL = [
    ("open", OPEN),
    ("message", ASSERT),
    ("message", REQUEST),
    ("message", RETRACT),
    ("message", ESCALATE),
    ("roster", ADMIT),
    ("roster", LEAVE),
    ("settle", SETTLE),
    ("seal", SEAL),
    ("ack", ACK),
    ("ruling", CONFIRM),
    ("ruling", CORRECT),
    ("card", CARD),
    ("revocation", REVOCATION),
    ("witness", WITNESS),
]

FULLER: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("open", OPEN, {"room": "ops", "plan": ADDRESS, "follows": ADDRESS}),
    ("open", OPEN, {"limits": {"bytes": 1}}),
    ("open", OPEN, {"limits": {"messages": MAX}}),
    ("open", OPEN, {"limits": {"bytes": 1, "messages": 1}}),
    ("open", OPEN, {"members": [{"key": KEY, "role": "observer", "name": "a" * 64, "card": ADDRESS}] * 256}),
    ("open", OPEN, {"ext": {"example.org/note": {"any": [1, -MAX, True, b"", {}]}}}),
    ("message", REQUEST, {"step": ["build", "test#2", "x#123456789"], "ack_required": True, "reply_to": ADDRESS}),
    ("message", REQUEST, {"media_type": "application/vnd.api+json", "capability": "deploy", "confidence": 100}),
    ("message", REQUEST, {"context": [ADDRESS] * 64, "max_hops": 1, "cost_budget": 1, "room": "ops"}),
    ("message", REQUEST, {"epistemic": "verified", "provenance": {"source": "CI", "evidence": [ADDRESS]}}),
    ("message", REQUEST, {"provenance": {"source": "x" * 256, "chain": [KEY]}, "payload": BLOB}),
    ("message", REQUEST, {"receipts": [ADDRESS], "settled": [SETTLED], "payload": "\n x \n" * 20_000}),
    ("message", ASSERT, {"to": [KEY], "ack_required": True, "step": ["a"]}),
    ("message", ASSERT, {"to": [KEY], "reply_to": ADDRESS, "intent": "query"}),
    ("message", RETRACT, {"to": [KEY], "ack_required": True}),
    ("message", ESCALATE, {"payload": "x" * 4096}),
    ("roster", LEAVE, {"change": "remove"}),
    ("roster", LEAVE, {"change": "role", "role": "approver"}),
    ("settle", SETTLE, {"receipts": [ADDRESS] * 4096}),
    ("settle", SETTLE, {"settled": [{"step": ["a"], "outcome": "skipped"}, SETTLED]}),
    ("settle", SETTLE, {"settled": [{**SETTLED, "attempts": 1, "status": "done", "result": "Shipped."}]}),
    ("settle", SETTLE, {"settled": [{"message": ADDRESS, "outcome": "approved", "by": ADDRESS, "result": BLOB}]}),
    ("seal", SEAL, {"outcome": "over_budget", "status": "idle", "reason": BLOB}),
    ("ack", ACK, {"answer": "decline", "restatement": BLOB, "after": ADDRESS}),
    ("ruling", CORRECT, {"correction": BLOB}),
    ("card", CARD, {"description": "Ships.", "not_after": 1, "supersedes": ADDRESS}),
    ("revocation", REVOCATION, {"successor": KEY}),
]

OUT_OF_RANGE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("open", OPEN, {"v": 2}),
    ("open", OPEN, {"v": True}),
    ("open", OPEN, {"sent_at": -1}),
    ("open", OPEN, {"sent_at": MAX + 1}),
    ("open", OPEN, {"name": "a" * 65}),
    ("open", OPEN, {"name": "a#1"}),
    ("open", OPEN, {"nonce": bytes(15)}),
    ("open", OPEN, {"members": []}),
    ("open", OPEN, {"members": OPEN["members"] * 257}),  # type: ignore[operator]
    ("open", OPEN, {"members": [{"key": KEY, "role": "owner", "name": "ada"}]}),
    ("open", OPEN, {"members": [{"key": KEY[1:], "role": "member", "name": "ada"}]}),
    ("open", OPEN, {"limits": {}}),
    ("open", OPEN, {"limits": {"bytes": 0}}),
    ("open", OPEN, {"limits": {"bytes": 1, "tokens": 1}}),
    ("open", OPEN, {"plan": ADDRESS[1:]}),
    ("open", OPEN, {"seq": 1}),
    ("open", OPEN, {"ext": {}}),
    ("open", OPEN, {"ext": {"undotted": 1}}),
    ("message", REQUEST, {"seq": 0}),
    ("message", REQUEST, {"intent": "order"}),
    ("message", REQUEST, {"epistemic": "certain"}),
    ("message", REQUEST, {"id": "-m"}),
    ("message", REQUEST, {"id": "m" * 129}),
    ("message", REQUEST, {"payload": " \t\r\n"}),
    ("message", REQUEST, {"payload": 1}),
    ("message", REQUEST, {"payload": {"address": ADDRESS, "bytes": 16}}),
    ("message", REQUEST, {"media_type": "text/plain"}),
    ("message", REQUEST, {"media_type": "text/html; charset=utf-8"}),
    ("message", REQUEST, {"media_type": "Text/html"}),
    ("message", REQUEST, {"to": []}),
    ("message", REQUEST, {"to": [KEY] * 257}),
    ("message", REQUEST, {"step": []}),
    ("message", REQUEST, {"step": ["a"] * 9}),
    ("message", REQUEST, {"step": ["a#1"]}),
    ("message", REQUEST, {"step": ["a#02"]}),
    ("message", REQUEST, {"step": ["a#1234567890"]}),
    ("message", REQUEST, {"confidence": 101}),
    ("message", REQUEST, {"context": [ADDRESS] * 65}),
    ("message", REQUEST, {"provenance": {"source": "x" * 257}}),
    ("message", REQUEST, {"provenance": {"source": "CI", "evidence": []}}),
    ("message", REQUEST, {"max_hops": 0}),
    ("message", REQUEST, {"ack_required": False}),
    ("message", ASSERT, {"step": ["a"], "to": [KEY]}),
    ("message", ESCALATE, {"step": ["a"]}),
    ("message", ESCALATE, {"payload": "x" * 4097}),
    ("message", ESCALATE, {"payload": BLOB}),
    ("roster", ADMIT, {"change": "expel"}),
    ("roster", LEAVE, {"role": "member"}),
    ("roster", LEAVE, {"change": "role"}),
    ("settle", SETTLE, {"receipts": []}),
    ("settle", SETTLE, {"receipts": [ADDRESS] * 4097}),
    ("settle", SETTLE, {"settled": []}),
    ("settle", SETTLE, {"settled": [{**SETTLED, "outcome": "skipped"}]}),
    ("settle", SETTLE, {"settled": [{**SETTLED, "by": ADDRESS}]}),
    ("settle", SETTLE, {"settled": [{**SETTLED, "step": ["a"]}]}),
    ("settle", SETTLE, {"settled": [{**SETTLED, "outcome": "approved"}]}),
    ("settle", SETTLE, {"settled": [{**SETTLED, "attempts": 0}]}),
    ("settle", SETTLE, {"settled": [{"step": ["a"], "outcome": "approved"}]}),
    ("seal", SEAL, {"outcome": "done"}),
    ("seal", SEAL, {"reason": "x" * 65_537}),
    ("ack", ACK, {"answer": "perhaps"}),
    ("ack", ACK, {"restatement": ""}),
    ("ruling", CONFIRM, {"ruling": "reject"}),
    ("ruling", CONFIRM, {"correction": "On Monday."}),
    ("card", CARD, {"name": ""}),
    ("card", CARD, {"name": "é" * 65}),
    ("card", CARD, {"name": "ada\u202e"}),
    ("card", CARD, {"capabilities": []}),
    ("card", CARD, {"capabilities": ["Deploy"]}),
    ("revocation", REVOCATION, {"reason": " "}),
    ("witness", WITNESS, {"seq": -1}),
]

REQUIRED = [(kind, body, field) for kind, body in MINIMAL for field in body]


@pytest.mark.parametrize(("kind", "body"), MINIMAL)
def test_a_body_of_required_fields_alone_passes(kind: str, body: dict[str, Any]) -> None:
    validate_body(kind, cbor2.dumps(body))


@pytest.mark.parametrize(("kind", "body", "more"), FULLER)
def test_a_body_with_optional_fields_passes(kind: str, body: dict[str, Any], more: dict[str, Any]) -> None:
    validate_body(kind, cbor2.dumps({**body, **more}))


@pytest.mark.parametrize(("kind", "body"), MINIMAL)
def test_a_body_with_an_unknown_field_fails(kind: str, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        validate_body(kind, cbor2.dumps({**body, "priority": 1}))


@pytest.mark.parametrize(("kind", "body", "field"), REQUIRED)
def test_a_body_without_a_required_field_fails(kind: str, body: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError):
        validate_body(kind, cbor2.dumps({name: value for name, value in body.items() if name != field}))


@pytest.mark.parametrize(("kind", "body", "change"), OUT_OF_RANGE)
def test_a_body_with_a_value_out_of_range_fails(kind: str, body: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        validate_body(kind, cbor2.dumps({**body, **change}))


@pytest.mark.parametrize(("kind", "body"), MINIMAL)
def test_an_envelope_of_every_kind_passes(kind: str, body: dict[str, Any]) -> None:
    validate_envelope(_envelope(kind, body))


@pytest.mark.parametrize(
    "change",
    [
        {1: -8},
        {4: KEY[1:]},
        {16: "application/vnd.envelope.memo+cose"},
        {16: "application/vnd.envelope.open+cbor"},
        {2: [4]},
    ],
)
def test_a_header_with_another_label_or_value_fails(change: dict[int, Any]) -> None:
    with pytest.raises(ValidationError):
        validate_envelope(_envelope("open", OPEN, change))


def test_a_body_under_the_type_of_another_kind_fails() -> None:
    with pytest.raises(ValidationError):
        validate_envelope(_envelope("ack", OPEN))


@pytest.mark.parametrize("root", ["envelope", "body", "message-body", "roster-body", "settle-body", "ruling-body"])
def test_every_named_choice_is_a_usable_root(root: str) -> None:
    with pytest.raises(ValidationError):
        schema(root).validate_cbor(cbor2.dumps(1))


def _envelope(kind: str, body: dict[str, Any], header: dict[int, Any] | None = None) -> bytes:
    protected = {1: -19, 4: KEY, 16: f"application/vnd.envelope.{kind}+cose", **(header or {})}
    return cbor2.dumps(cbor2.CBORTag(18, [cbor2.dumps(protected), {}, cbor2.dumps(body), bytes(64)]))
