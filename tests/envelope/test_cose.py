"""Sealing and opening one envelope."""

import time
from collections.abc import Callable
from typing import Any

import cbor2
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope import (
    Ack,
    Blob,
    CardBody,
    Envelope,
    EnvelopeError,
    Identity,
    Limits,
    Member,
    Message,
    Open,
    Provenance,
    Record,
    Revocation,
    Roster,
    Ruling,
    Seal,
    Settle,
    Settled,
    Witness,
    address,
    address_text,
    open_envelope,
    parse_address,
    seal_envelope,
    sign_record,
)
from envelope.cbor import decode
from envelope.cose import split
from envelope.keys import SMALL_ORDER
from envelope.records import KINDS, build, to_map
from envelope.rules import BY_CODE, STAGES

ADA = Identity.from_seed(b"a" * 32)
PEOPLE = [Identity.from_seed(bytes([n]) * 32).public_key for n in range(1, 7)]
WHERE = bytes(range(32))
MAX_INT = (1 << 53) - 1

# ------------------------------------------------------------------------------------------- records of every kind

addresses = st.binary(min_size=32, max_size=32)
keys = st.sampled_from(PEOPLE)
key_lists = st.sets(keys, min_size=1).map(lambda found: tuple(sorted(found)))
whole = st.integers(0, MAX_INT)
limits = st.integers(1, MAX_INT)
LOWER = "0123456789abcdefghijklmnopqrstuvwxyz"
LETTERS = LOWER + LOWER[10:].upper()


def word(first: str, rest: str, longest: int) -> st.SearchStrategy[str]:
    return st.builds(str.__add__, st.sampled_from(first), st.text(rest, max_size=longest - 1))


names = word(LETTERS, LETTERS + "._-", 64)
ids = word(LETTERS, LETTERS + "._#-", 128)
capabilities = word(LOWER, LOWER + "._-", 64)
ext_keys = st.sampled_from(["a.b", "example.org", "-.-", "example.org/Some_thing.2", "a-1.b.c.d/x"])
paths = st.lists(names | names.map(lambda name: f"{name}#2"), min_size=1, max_size=8).map(tuple)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(
    lambda text: text.strip("\t\n\r ")
)
blobs = st.builds(Blob, address=addresses, bytes=st.integers(17, MAX_INT))
contents = texts | blobs
values = st.recursive(
    st.integers(-MAX_INT, MAX_INT) | st.booleans() | st.binary(max_size=9) | st.text("ab\0é€😀", max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3, alphabet="abé"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


common = {"sent_at": whole, "ext": maybe(st.dictionaries(ext_keys, values, min_size=1, max_size=2))}
settled = st.one_of(
    st.builds(
        Settled, message=addresses, outcome=st.sampled_from(["succeeded", "failed"]), attempts=maybe(limits),
        status=maybe(names), result=maybe(contents),
    ),
    st.builds(Settled, message=addresses, outcome=st.just("approved"), by=addresses),
    st.builds(Settled, step=paths, outcome=st.sampled_from(["succeeded", "failed", "skipped"])),
)  # fmt: skip
chained = {
    **common,
    "thread": addresses,
    "seq": limits,
    "prev": addresses,
    "receipts": maybe(st.lists(addresses, min_size=1, max_size=3).map(tuple)),
    "settled": maybe(st.lists(settled, min_size=1, max_size=2).map(tuple)),
}


@st.composite
def members(draw: st.DrawFn) -> tuple[Member, ...]:
    chosen = draw(key_lists)
    called = draw(st.lists(names, min_size=len(chosen), max_size=len(chosen), unique=True))
    roles = st.sampled_from(["moderator", "member", "approver", "observer"])
    return tuple(
        Member(key=key, role=draw(roles), name=name, card=draw(maybe(addresses)))
        for key, name in zip(chosen, called, strict=True)
    )


opens = st.builds(
    Open, **common, name=names, nonce=st.binary(min_size=16, max_size=16), members=members(), room=maybe(names),
    plan=maybe(addresses), limits=maybe(st.builds(Limits, bytes=limits, messages=maybe(limits))),
    follows=maybe(addresses),
)  # fmt: skip
provenances = st.builds(
    Provenance, source=texts, chain=maybe(st.lists(keys, min_size=1, max_size=3).map(tuple)),
    evidence=st.lists(addresses, min_size=1, max_size=3).map(tuple),
)  # fmt: skip
ordinary: dict[str, Any] = {
    **chained, "id": ids, "media_type": maybe(st.sampled_from(["text/markdown", "application/json"])),
    "room": maybe(names), "capability": maybe(capabilities), "confidence": maybe(st.integers(0, 100)),
    "context": maybe(st.lists(addresses, min_size=1, max_size=3).map(tuple)), "cost_budget": maybe(limits),
}  # fmt: skip
messages = st.one_of(
    st.builds(
        Message, **ordinary, intent=st.sampled_from(["assert", "query"]), payload=contents, to=maybe(key_lists),
        epistemic=st.sampled_from(["inferred", "assumed", "untrusted-input"]), reply_to=maybe(addresses),
    ),
    st.builds(
        Message, **ordinary, intent=st.just("request"), payload=contents, to=key_lists, step=maybe(paths),
        epistemic=st.just("verified"), provenance=provenances, max_hops=st.integers(3, 9),
        ack_required=maybe(st.just(True)),
    ),
    st.builds(
        Message, **ordinary, intent=st.sampled_from(["challenge", "retract", "escalate"]), payload=texts,
        to=key_lists, epistemic=st.just("assumed"), reply_to=addresses,
    ),
)  # fmt: skip
rosters = st.one_of(
    st.builds(Roster, **chained, change=st.just("admit"), key=keys, role=st.just("member"), name=names),
    st.builds(Roster, **chained, change=st.just("role"), key=keys, role=st.just("observer")),
    st.builds(Roster, **chained, change=st.sampled_from(["remove", "leave"]), key=keys),
)
display = st.text("abc é.", min_size=1, max_size=30)
records = st.one_of(
    opens,
    messages,
    rosters,
    st.builds(Settle, **{**chained, "settled": st.lists(settled, min_size=1, max_size=2).map(tuple)}),
    st.builds(
        Seal, **chained, outcome=st.sampled_from(["completed", "failed"]), status=maybe(names), reason=maybe(contents)
    ),
    st.builds(
        Ack, **common, thread=addresses, message=addresses, answer=st.sampled_from(["accept", "decline"]),
        restatement=contents, after=maybe(addresses),
    ),
    st.builds(Ruling, **common, thread=addresses, ack=addresses, ruling=st.just("confirm")),
    st.builds(Ruling, **common, thread=addresses, ack=addresses, ruling=st.just("correct"), correction=contents),
    st.builds(
        CardBody, **common, name=display, description=maybe(texts), key=keys, not_before=st.integers(0, 9),
        capabilities=st.sets(capabilities, min_size=1, max_size=3).map(lambda found: tuple(sorted(found))),
        not_after=maybe(st.integers(9, MAX_INT)), supersedes=maybe(addresses),
    ),
    st.builds(Revocation, **common, key=keys, reason=texts, revoked_at=whole, successor=maybe(keys)),
    st.builds(Witness, **common, thread=addresses, seq=whole, tip=addresses, seen_at=whole),
)  # fmt: skip


@settings(max_examples=200)
@given(records, st.binary(min_size=32, max_size=32))
def test_what_is_sealed_opens_as_the_same_record_and_seals_to_the_same_bytes(record: Record, seed: bytes) -> None:
    identity = Identity.from_seed(seed)
    sealed = seal_envelope(record, identity)
    opened = open_envelope(sealed.raw)
    assert opened == sealed
    assert opened.record == record
    assert type(opened.record) is type(record)
    assert (opened.signer, opened.kind) == (identity.public_key, record.kind)
    assert seal_envelope(opened.record, identity).raw == sealed.raw
    assert opened.address == blake3(sealed.raw).digest()


@given(records)
def test_a_sealed_envelope_is_the_cose_structure_that_another_library_reads(record: Record) -> None:
    raw = seal_envelope(record, ADA).raw
    tag = cbor2.loads(raw)
    assert tag.tag == 18
    protected, unprotected, payload, signature = tag.value
    assert unprotected == {}
    assert cbor2.loads(protected) == {
        1: -19, 4: ADA.public_key, 16: f"application/vnd.envelope.{record.kind}+cose",
    }  # fmt: skip
    body = cbor2.loads(payload)
    assert (body["v"], body["sent_at"]) == (1, record.sent_at)
    assert None not in body.values()
    structure = cbor2.dumps(["Signature1", protected, b"", payload])
    Ed25519PrivateKey.from_private_bytes(b"a" * 32).public_key().verify(signature, structure)


@given(records, st.data())
def test_no_bit_of_an_envelope_can_be_changed(record: Record, data: st.DataObject) -> None:
    raw = bytearray(seal_envelope(record, ADA).raw)
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(EnvelopeError):
        open_envelope(bytes(raw))


@given(records, st.data())
def test_no_part_of_an_envelope_is_an_envelope(record: Record, data: st.DataObject) -> None:
    raw = seal_envelope(record, ADA).raw
    with pytest.raises(EnvelopeError) as caught:
        open_envelope(raw[: data.draw(st.integers(1, len(raw) - 1))])
    assert (caught.value.code, caught.value.stage) == ("file.torn", "cbor")


@settings(max_examples=500)
@given(st.binary(max_size=120) | st.binary(max_size=120).map(lambda tail: b"\xd2\x84" + tail))
def test_any_bytes_are_an_envelope_or_refused_with_a_registered_code(data: bytes) -> None:
    with pytest.raises(EnvelopeError) as caught:
        open_envelope(data)
    assert caught.value.code in BY_CODE


def test_an_identity_that_signs_the_same_record_twice_makes_the_same_bytes() -> None:
    record = build(Witness, {"sent_at": 1, "thread": WHERE, "seq": 0, "tip": WHERE, "seen_at": 1})
    assert seal_envelope(record, ADA).raw == seal_envelope(record, ADA).raw


# ---------------------------------------------------------------------------------- what never passed the models

ASSERT: dict[str, Any] = {
    "v": 1, "sent_at": 1, "thread": WHERE, "seq": 1, "prev": WHERE, "id": "m1", "intent": "assert",
    "epistemic": "assumed", "payload": "Here I am.",
}  # fmt: skip


class _Loud(Message):
    kind = "loud"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"payload": " \n"}, "body.blank"),
        ({"payload": None}, "body.missing"),
        ({"seq": 0}, "body.value"),
        ({"seq": True}, "body.type"),
        ({"v": 2}, "body.version"),
        ({"id": "no spaces"}, "body.name"),
        ({"to": ()}, "body.empty"),
        ({"to": (PEOPLE[0], PEOPLE[0])}, "body.order"),
        ({"to": (min(SMALL_ORDER),)}, "body.key"),
        ({"thread": WHERE[1:]}, "body.value"),
        ({"intent": "demand"}, "body.value"),
        ({"intent": "request"}, "message.to_required"),
        ({"ack_required": False}, "body.value"),
        ({"media_type": "text/plain"}, "body.default"),
        ({"ext": {"plain": 1}}, "body.name"),
        ({"ext": {"example.org/x": 1.5}}, "cbor.type"),
        ({"ext": {"example.org/x": None}}, "cbor.type"),
        ({"ext": {"example.org/x": 1 << 60}}, "cbor.integer"),
        ({"ext": {"example.org/x": "\ud800"}}, "cbor.utf8"),
        ({"payload": "x" * (1 << 20)}, "size.envelope"),
    ],
)
def test_a_record_that_was_never_checked_is_not_sealed(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        seal_envelope(Message.model_construct(**{**ASSERT, **changes}), ADA)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "changes",
    [{"payload": 5}, {"to": [1]}, {"sent_at": 1.0}, {"sent_at": "1"}, {"payload": object()}, {"settled": "all"}],
    ids=("payload", "to", "float", "text", "object", "settled"),
)
def test_a_record_with_values_of_other_types_is_not_sealed_and_raises_nothing_else(changes: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeError):
        seal_envelope(Message.model_construct(**{**ASSERT, **changes}), ADA)


def test_a_record_whose_ext_holds_itself_is_not_sealed() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EnvelopeError, match=r"cbor\.depth"):
        seal_envelope(Message.model_construct(**ASSERT, ext={"example.org/x": loop}), ADA)


@pytest.mark.parametrize("value", [None, [None], {"x": None}, [{"x": [{"y": None}]}]], ids=repr)
def test_nothing_that_has_no_encoding_is_left_out_of_a_record_that_is_signed(value: Any) -> None:
    with pytest.raises(EnvelopeError, match=r"cbor\.type"):
        sign_record(Message, ADA, **ASSERT, ext={"example.org/x": value, "example.org/y": 1})


def test_fields_that_hold_themselves_are_not_signed() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EnvelopeError, match=r"cbor\.depth"):
        sign_record(Message, ADA, **ASSERT, ext={"example.org/x": loop})


def test_a_record_with_a_field_missing_is_not_sealed() -> None:
    with pytest.raises(EnvelopeError, match=r"body\.missing"):
        seal_envelope(Message.model_construct(sent_at=1), ADA)


def test_a_record_with_a_field_too_many_is_not_sealed() -> None:
    class Extended(Message):
        mood: str = "sombre"

    with pytest.raises(EnvelopeError, match=r"body\.unknown: mood"):
        seal_envelope(Extended(**ASSERT), ADA)


def test_a_record_of_a_kind_of_one_s_own_is_not_sealed() -> None:
    with pytest.raises(EnvelopeError, match=r"body\.kind"):
        seal_envelope(_Loud(**ASSERT), ADA)


def test_a_record_changed_by_model_copy_is_not_sealed() -> None:
    with pytest.raises(EnvelopeError, match=r"body\.value"):
        seal_envelope(Message(**ASSERT).model_copy(update={"seq": -1}), ADA)


def test_the_largest_envelope_is_sealed_and_one_byte_more_is_not() -> None:
    small = len(sign_record(Message, ADA, **{**ASSERT, "payload": "x" * 70_000}).raw)
    payload = "x" * (70_000 + (1 << 20) - small)
    sealed = sign_record(Message, ADA, **{**ASSERT, "payload": payload})
    assert len(sealed.raw) == 1 << 20
    assert open_envelope(sealed.raw).record.payload == payload
    with pytest.raises(EnvelopeError, match=r"size\.envelope"):
        sign_record(Message, ADA, **{**ASSERT, "payload": payload + "x"})


def test_sign_record_dates_a_record_by_the_clock_where_it_is_not_dated() -> None:
    before = time.time_ns() // 1_000_000
    sent_at = sign_record(Witness, ADA, thread=WHERE, seq=0, tip=WHERE, seen_at=1).record.sent_at
    assert before <= sent_at <= time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    "settled",
    [
        ({"message": WHERE, "outcome": "succeeded"},),
        [{"message": WHERE, "outcome": "succeeded", "status": None, "result": None}],
        (Settled(message=WHERE, outcome="succeeded"),),
    ],
    ids=["a map", "a map with absent fields", "a model"],
)
def test_sign_record_takes_maps_and_models_alike_and_leaves_out_what_is_absent(settled: object) -> None:
    place = {"thread": WHERE, "seq": 1, "prev": WHERE, "sent_at": 1}
    sealed = sign_record(Settle, ADA, settled=settled, receipts=None, **place)
    body = decode(split(sealed.raw).payload)
    assert body == {"v": 1, **place, "settled": [{"message": WHERE, "outcome": "succeeded"}]}


def test_sign_record_refuses_what_the_record_breaks_by_itself() -> None:
    with pytest.raises(EnvelopeError, match=r"body\.unknown"):
        sign_record(Witness, ADA, thread=WHERE, seq=0, tip=WHERE, seen_at=1, weather="fine")


def test_the_map_of_a_record_builds_the_same_record() -> None:
    message = Message(**ASSERT)
    assert build(Message, to_map(message)) == message
    assert "room" not in to_map(message)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_kind_is_under_the_signature(kind: str) -> None:
    raw = sign_record(Message, ADA, **ASSERT).raw
    if kind != "message":
        with pytest.raises(EnvelopeError):
            open_envelope(raw.replace(b"envelope.message", f"envelope.{kind}".encode()))


# ------------------------------------------------------------------------------------- several defects at once


def head(major: int, length: int) -> bytes:
    return (
        cbor2.dumps(length)[:1].translate(bytes((n + 32 * major) & 255 for n in range(256))) + cbor2.dumps(length)[1:]
    )


def string(data: bytes) -> bytes:
    return head(2, len(data)) + data


SECRET = Ed25519PrivateKey.from_private_bytes(b"a" * 32)


def assemble(defects: set[str]) -> bytes:
    """Build the envelope of a message with the defects named, each of its own stage."""
    alg, kid, typ = cbor2.dumps(-19), string(ADA.public_key), "application/vnd.envelope.message+cose"
    if "key" in defects:
        kid = string(min(SMALL_ORDER))
    if "header.typ" in defects:
        typ = "application/cose"
    if "header.alg" in defects:
        alg = cbor2.dumps(-7)
    if "header.alg_eddsa" in defects:
        alg = cbor2.dumps(-8)
    if "header cbor" in defects:
        alg = b"\xf9\x00\x00"
    protected = b"\xa3\x01" + alg + b"\x04" + kid + b"\x10" + cbor2.dumps(typ)
    if "size.header" in defects:
        protected = protected.ljust(129, b"\0")
    body = {key: ASSERT[key] for key in sorted(ASSERT, key=lambda key: (len(key), key))}
    if "body.version" in defects:
        body["v"] = 2
    if "body.value" in defects:
        body["seq"] = 0
    payload = cbor2.dumps(body)
    if "body cbor" in defects:
        payload += b"\0"
    structure = b"\x84\x6aSignature1" + string(protected) + b"\x40" + string(payload)
    signature = SECRET.sign(structure)
    if "signature" in defects:
        signature = bytes([signature[0] ^ 1]) + signature[1:]
    if "signature.length" in defects:
        signature += b"\0"
    unprotected = b"\xa1\x01\x01" if "cose.unprotected" in defects else b"\xa0"
    data = b"\xd2\x84" + string(protected) + unprotected + string(payload) + string(signature)
    if "trailing" in defects:
        data += b"\0"
    if "size" in defects:
        data += bytes(1 << 20)
    return data


# In the order in which an envelope is judged: the code is that of the first defect in this list.
DEFECTS = {
    "size": ("size", "size.envelope"),
    "size.header": ("size", "size.header"),
    "cose.unprotected": ("cose", "cose.unprotected"),
    "trailing": ("cbor", "cbor.trailing"),
    "header cbor": ("cbor", "cbor.float"),
    "header.alg_eddsa": ("header", "header.alg_eddsa"),
    "header.alg": ("header", "header.alg"),
    "header.typ": ("header", "header.typ"),
    "key": ("key", "key.small_order"),
    "signature.length": ("signature", "signature.length"),
    "signature": ("signature", "signature.invalid"),
    "body cbor": ("body", "cbor.trailing"),
    "body.version": ("body", "body.version"),
    "body.value": ("body", "body.value"),
}


def test_without_a_defect_the_envelope_opens() -> None:
    assert open_envelope(assemble(set())) == sign_record(Message, ADA, **ASSERT)


@settings(max_examples=400)
@given(st.sets(st.sampled_from(list(DEFECTS)), min_size=1))
def test_of_several_defects_the_earliest_is_reported(defects: set[str]) -> None:
    first = next(DEFECTS[name] for name in DEFECTS if name in defects)
    with pytest.raises(EnvelopeError) as caught:
        open_envelope(assemble(defects))
    assert (caught.value.stage, caught.value.code) == first
    assert caught.value.stage in STAGES


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_alone_is_reported_as_itself(defect: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        open_envelope(assemble({defect}))
    assert (caught.value.stage, caught.value.code) == DEFECTS[defect]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda raw: b"", "file.torn"),
        (lambda raw: raw[1:], "cose.tag"),
        (lambda raw: b"\xd1" + raw[1:], "cose.tag"),
        (lambda raw: b"\xd8\x12" + raw[1:], "cose.tag"),
        (lambda raw: b"\xd2\x83" + raw[2:], "cose.shape"),
        (lambda raw: b"\xd2" + raw, "cbor.tag"),
        (lambda raw: b"\xd2\x9f" + raw[2:], "cbor.indefinite"),
        (lambda raw: b"\xd2\x84" + string(bytes(129)) + raw[raw.index(b"\xa0\x58") :], "size.header"),
        (lambda raw: b"\xd2\x84\x58\x17" + bytes(23) + raw[80:], "cbor.shortest"),
        (lambda raw: b"\xd2\x84\x40\xa0\x40\x40", "cbor.truncated"),
        (lambda raw: b"\xd2\x84\x41\xa0\xa0\x40\x40", "header.labels"),
        (lambda raw: b"\xd2\x84\x40\xa0\xf6\x40", "cbor.simple"),
        (lambda raw: b"\xd2\x84\x40\xa0\x60\x40", "cose.shape"),
        (lambda raw: b"\xd2\x84\xa0\xa0\x40\x40", "cose.shape"),
        (lambda raw: b"\xd2\x84\x40\x80\x40\x40", "cose.shape"),
        (lambda raw: raw + raw, "cbor.trailing"),
        (lambda raw: raw[:-65] + b"\x3f" + raw[-64:-1], "signature.length"),
    ],
)
def test_a_structure_that_is_none_is_refused_by_its_first_defect(change: Callable[[bytes], bytes], code: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        open_envelope(change(sign_record(Message, ADA, **ASSERT).raw))
    assert caught.value.code == code


# -------------------------------------------------------------------------------------------------- addresses


@given(st.binary(max_size=100))
def test_an_address_is_the_blake3_digest_and_reads_back_from_its_text(data: bytes) -> None:
    assert address(data) == blake3(data).digest()
    text = address_text(address(data))
    assert text == "b3:" + blake3(data).hexdigest()
    assert parse_address(text) == address(data)


@pytest.mark.parametrize(
    "text",
    [
        "", "b3:", "0" * 64, "b3:" + "0" * 63, "b3:" + "0" * 65, "b3:" + "A" * 64, "B3:" + "0" * 64,
        "b3:" + "0" * 64 + "\n", " b3:" + "0" * 64, "b3:" + "g" * 64, "b3:" + "\u0660" * 64, "sha256:" + "0" * 64,
    ],
)  # fmt: skip
def test_a_text_that_is_not_exactly_an_address_is_refused(text: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        parse_address(text)
    assert caught.value.code == "address.malformed"


def test_an_envelope_shows_its_kind_and_address_and_cannot_be_changed() -> None:
    envelope: Envelope[Message] = sign_record(Message, ADA, **ASSERT)
    assert repr(envelope) == f"<Envelope message {address_text(envelope.address)}>"
    with pytest.raises(AttributeError):
        envelope.signer = PEOPLE[0]  # type: ignore[misc]
