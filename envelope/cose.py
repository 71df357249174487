"""COSE_Sign1 (RFC 9052): seal and open one envelope.

An envelope is `18([protected, {}, payload, signature])` with the protected header `{1: -19, 4: kid, 16: typ}`, the
empty external_aad and an attached payload. Opening goes by stages, cheapest first, and decodes the payload only after
its signature held:

1. size, cbor and cose: split the bytes into their parts;
2. header and key: algorithm, key id, type;
3. signature: the Sig_structure, sliced from the bytes received, under the one rule of `envelope.keys`;
4. body: the record.
"""

import re
import time
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from blake3 import blake3

from envelope import cbor
from envelope.errors import EnvelopeError
from envelope.keys import Identity, PublicKey, check_public_key, check_signature
from envelope.records import Record, make, read_body, to_map

MAX_ENVELOPE: Final = cbor.ENVELOPE.bytes
MAX_HEADER: Final = 128
ALG_ED25519: Final = -19

R = TypeVar("R", bound=Record)

_TYP: Final = re.compile(r"application/vnd\.envelope\.([a-z0-9-]{1,32})\+cose")
_CONTEXT: Final = b"\x84\x6aSignature1"
_REMEMBERED: Final = 1024
_REMEMBERED_BYTES: Final = 16_384
_SIGNATURE_HEAD: Final = b"\x58\x40"


class Envelope(NamedTuple, Generic[R]):
    """One verified envelope: the record, who signed it, and the very bytes that were signed."""

    record: R
    signer: PublicKey
    address: bytes
    raw: bytes

    @property
    def kind(self) -> str:
        """The record's kind, as the signed header states it."""
        return self.record.kind

    def __repr__(self) -> str:
        return f"<Envelope {self.kind} {address_text(self.address)}>"


class Parts(NamedTuple):
    """An envelope whose size, shape, header and key are in order, and whose signature is not yet checked."""

    raw: bytes
    kind: str
    signer: PublicKey
    payload: bytes
    signature: bytes
    signed: bytes


def address(data: bytes) -> bytes:
    """Return the address of an envelope's or a blob's bytes: their BLAKE3-256 digest, 32 bytes."""
    return blake3(data).digest()


def address_text(value: bytes) -> str:
    """Return an address as text: `b3:` and 64 lowercase hex digits."""
    return "b3:" + value.hex()


def parse_address(text: str) -> bytes:
    """Return the 32 bytes of an address in text.

    Raises:
        EnvelopeError: `address.malformed`.
    """
    if not re.fullmatch(r"b3:[0-9a-f]{64}", text):
        raise EnvelopeError("address.malformed", f"{text[:80]!r} is no address (b3: and 64 lowercase hex digits)")
    return bytes.fromhex(text[3:])


def seal_envelope(record: R, identity: Identity) -> Envelope[R]:
    """Sign `record` as `identity`.

    Nothing is signed that a verifier would refuse by itself, and nothing returned whose signature does not hold.

    Raises:
        EnvelopeError: `body.*` and its like, or `size.envelope`.
    """
    return _seal(record.kind, to_map(record), identity)


def sign_record(kind: type[R], identity: Identity, **fields: Any) -> Envelope[R]:
    """Build a record of `kind` and sign it as `identity`; `sent_at` defaults to now.

    Raises:
        EnvelopeError: what the record breaks by itself, with the protocol's code.
    """
    fields.setdefault("sent_at", time.time_ns() // 1_000_000)
    return _seal(kind.kind, to_map({"v": 1, **kind.constants, **fields}), identity)


def _seal(kind: str, body: dict[str, Any], identity: Identity) -> Envelope[Any]:
    payload = cbor.encode(body)
    record = make(kind, body)
    front, signed_front = _fronts_of(kind, identity.public_key)
    wrapped = _head(0x40, len(payload)) + payload
    parts = split(front + wrapped + _SIGNATURE_HEAD + identity.sign(signed_front + wrapped))
    check_signature(parts.signer, parts.signature, parts.signed)
    return _remember(Envelope(record, parts.signer, address(parts.raw), parts.raw))


@lru_cache(maxsize=1024)
def _fronts_of(kind: str, signer: PublicKey) -> tuple[bytes, bytes]:
    """Return what stands before the payload, in an envelope and in its Sig_structure."""
    typ = f"application/vnd.envelope.{kind}+cose".encode()
    protected = b"\xa3\x01\x32\x04\x58\x20" + signer + b"\x10" + _head(0x60, len(typ)) + typ
    header = _head(0x40, len(protected)) + protected
    return b"\xd2\x84" + header + b"\xa0", _CONTEXT + header + b"\x40"


def open_envelope(data: bytes) -> Envelope[Any]:
    """Verify one envelope and return it.

    Raises:
        EnvelopeError: the code of the earliest stage that fails.
    """
    if (known := _opened.get(data)) is not None:
        return known
    parts = split(data)
    check_signature(parts.signer, parts.signature, parts.signed)
    return _remember(read_record(parts))


_opened: dict[bytes, Envelope[Any]] = {}
"""Envelopes that were opened or sealed, bounded, and rebuilt at will: to open is a function of the bytes, and within a
process the same bytes pass through the hands of their signer, their store and their recipients. Whoever verifies a
thread as a whole goes by no such memory."""


def _remember(envelope: Envelope[R]) -> Envelope[R]:
    if len(envelope.raw) <= _REMEMBERED_BYTES:
        if len(_opened) >= _REMEMBERED:
            _opened.clear()
        _opened[envelope.raw] = envelope
    return envelope


def split(data: bytes) -> Parts:
    """Stages size to key: cut an envelope into its parts.

    Raises:
        EnvelopeError: `size.*`, `file.torn`, `cbor.*`, `cose.*`, `header.*`, `key.*`.
    """
    size = len(data)
    if size > MAX_ENVELOPE:
        raise EnvelopeError("size.envelope", f"the envelope is {size} bytes, more than {MAX_ENVELOPE}")
    at = data[3] + 5 if size > 3 else 5
    if size < at + 67:
        raise _misshapen(data)
    kind, signer, signed_header = _fronts.get(data[:at]) or _front(data, at)
    head = data[at]
    if head == 0x58:
        start = at + 2
        end = start + data[at + 1]
        least = start + 24
    elif head == 0x59:
        start = at + 3
        end = start + (data[at + 1] << 8 | data[at + 2])
        least = start + 0x100
    elif head == 0x5A:
        start = at + 5
        end = start + int.from_bytes(data[at + 1 : start], "big")
        least = start + 0x10000
    else:
        start = least = at + 1
        end = start + head - 0x40
    if end < least or end + 66 != size or head > 0x5A or data[end : end + 2] != _SIGNATURE_HEAD:
        raise _misshapen(data)
    return Parts(data, kind, signer, data[start:end], data[end + 2 :], signed_header + data[at:end])


def read_record(parts: Parts) -> Envelope[Any]:
    """Stage body: decode the record of an envelope whose signature held.

    Raises:
        EnvelopeError: `body.*` and its like.
    """
    return Envelope(read_body(parts.kind, parts.payload), parts.signer, address(parts.raw), parts.raw)


def _head(major: int, length: int) -> bytes:
    """Return the shortest head of a string of `length` bytes (RFC 8949 §3)."""
    if length < 24:
        return bytes((major + length,))
    if length < 0x100:
        return bytes((major + 24, length))
    if length < 0x10000:
        return bytes((major + 25,)) + length.to_bytes(2, "big")
    return bytes((major + 26,)) + length.to_bytes(4, "big")


_fronts: dict[bytes, tuple[str, PublicKey, bytes]] = {}
"""What was found in order before a payload, since a thread repeats a few of them: kind, signer, and what stands before
the payload in the Sig_structure. Bounded, and rebuilt at will."""


def _front(data: bytes, at: int) -> tuple[str, PublicKey, bytes]:
    """Stages header and key, of an envelope whose payload begins at `at`."""
    if data[:3] != b"\xd2\x84\x58" or not 24 <= data[3] <= MAX_HEADER or data[at - 1] != 0xA0:
        raise _misshapen(data)
    try:
        kind, signer = _header(data[4 : at - 1])
    except EnvelopeError:
        raise _misshapen(data) from None
    if len(_fronts) >= 1024:
        _fronts.clear()
    front = _fronts[data[:at]] = (kind, signer, _CONTEXT + data[2 : at - 1] + b"\x40")
    return front


def _header(protected: bytes) -> tuple[str, PublicKey]:
    """Return kind and signer of a protected header."""
    header = cbor.decode_header(protected)
    if type(header) is not dict or list(header) != [1, 4, 16]:
        raise EnvelopeError("header.labels", "the protected header is no map of exactly the labels 1, 4 and 16")
    alg, kid, typ = header.values()
    if alg == -8:
        raise EnvelopeError("header.alg_eddsa", "the algorithm is EdDSA (-8), which names no curve; Ed25519 is -19")
    if type(alg) is not int or alg != ALG_ED25519:
        raise EnvelopeError("header.alg", f"the algorithm is {alg!r:.40}, not Ed25519 (-19)")
    if type(kid) is not bytes or len(kid) != 32:
        raise EnvelopeError("header.kid", "the key id is not a public key of 32 bytes")
    if type(typ) is not str or not (match := _TYP.fullmatch(typ)):
        raise EnvelopeError("header.typ", f"the type {typ!r:.80} is not application/vnd.envelope.<kind>+cose")
    check_public_key(kid)
    return match[1], kid


def _misshapen(data: bytes) -> EnvelopeError:
    """Name the first defect, in reading order, of bytes that are not shaped as an envelope."""
    try:
        _diagnose(data)
    except EnvelopeError as error:
        return error
    raise AssertionError("an envelope in shape was taken for one that is not")


def _diagnose(data: bytes) -> None:
    if data and data[0] != 0xD2:
        raise EnvelopeError("cose.tag", f"the bytes begin with {data[0]:02x}, not with tag 18 (d2)")
    if len(data) > 1 and data[1] != 0x84:
        _outer_item(data, 1)
        raise EnvelopeError("cose.shape", "what the tag holds is no array of four")
    protected, at = _outer_item(data, 2)
    if type(protected) is not bytes:
        raise EnvelopeError("cose.shape", "the protected header is no byte string")
    if len(protected) > MAX_HEADER:
        raise EnvelopeError("size.header", f"the protected header is {len(protected)} bytes, more than {MAX_HEADER}")
    if at < len(data) and 0xA0 < data[at] < 0xC0:
        raise EnvelopeError("cose.unprotected", f"the unprotected header at offset {at} is not the empty map")
    unprotected, at = _outer_item(data, at)
    payload, at = _outer_item(data, at)
    signature, at = _outer_item(data, at)
    if unprotected != {} or type(payload) is not bytes or type(signature) is not bytes:
        raise EnvelopeError("cose.shape", "the envelope is no array of byte string, map, byte string and byte string")
    if at != len(data):
        raise EnvelopeError("cbor.trailing", f"{len(data) - at} bytes follow the envelope at offset {at}")
    _header(protected)
    if len(signature) != 64:
        raise EnvelopeError("signature.length", f"the signature is {len(signature)} bytes, not 64")


def _outer_item(data: bytes, at: int) -> tuple[Any, int]:
    try:
        return cbor.decode_prefix(data, at)
    except EnvelopeError as error:
        if error.code == "cbor.truncated":
            raise EnvelopeError("file.torn", f"the bytes end inside an envelope: {error.text}") from None
        raise
