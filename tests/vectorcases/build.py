"""Builds the bytes of threads from scripts, apart from the package: also those that break the rules.

A script is a list of moves, one a record. A move names other records by label; thread, seq, prev and receipts are
filled in when the script is built, so that a changed move is followed by records that are signed and linked anew.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

START = 1_760_000_000_000
NOW = START + 3_600_000
CHAIN_KINDS = ("open", "message", "roster", "settle", "seal")
RECEIPT_KINDS = ("ack", "ruling")


class Raw(bytes):
    """Bytes that stand for a whole encoded item."""


class Pairs(list):
    """The pairs of a map, encoded in the order given."""


@dataclass(frozen=True)
class Ref:
    """The address of the record with a label."""

    label: str


ABSENT = object()
"""In a body: no such field, although the builder would fill it in."""


def head(major: int, argument: int) -> bytes:
    """Return the shortest head of a data item (RFC 8949 §3)."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    width = next(width for width in (1, 2, 4, 8) if argument < 1 << 8 * width)
    return bytes((major << 5 | 23 + width.bit_length(),)) + argument.to_bytes(width, "big")


def encode(value: Any) -> bytes:
    """Return the deterministic encoding of a value; `Raw` and `Pairs` go in as they are."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, Pairs):
        return head(5, len(value)) + b"".join(encode(key) + encode(item) for key, item in value)
    if isinstance(value, dict):
        return encode(Pairs(sorted(value.items(), key=lambda pair: encode(pair[0]))))
    if isinstance(value, list | tuple):
        return head(4, len(value)) + b"".join(map(encode, value))
    raise TypeError(f"{value!r} has no encoding")


def address(data: bytes) -> bytes:
    """Return the BLAKE3-256 digest."""
    return blake3(data).digest()


@cache
def seed(name: str) -> bytes:
    """Return the seed of the test key with a name."""
    return hashlib.sha256(f"envelope-flow test key {name}".encode()).digest()


@cache
def secret(name: str) -> Ed25519PrivateKey:
    """Return the test key with a name."""
    return Ed25519PrivateKey.from_private_bytes(seed(name))


@cache
def key(name: str) -> bytes:
    """Return the public key of the test key with a name."""
    return secret(name).public_key().public_bytes_raw()


def keys(names: Iterable[str]) -> list[bytes]:
    """Return public keys, ascending."""
    return sorted(map(key, names))


def digest(text: str) -> bytes:
    """Return 32 bytes that stand for the address of something outside the thread."""
    return address(text.encode())


@dataclass
class Craft:
    """How one envelope is made otherwise than it should be. Each takes what is right and returns what to use."""

    kid: bytes | None = None
    header: Callable[[dict[int, Any]], Any] | None = None
    payload: Callable[[bytes], bytes] | None = None
    signed: Callable[[bytes], bytes] | None = None
    sign: Callable[[bytes], bytes] | None = None
    signature: Callable[[bytes], bytes] | None = None
    outer: Callable[[bytes, bytes, bytes], bytes] | None = None
    raw: Callable[[bytes], bytes] | None = None


@dataclass
class Move:
    """One record: its kind, who signs it, and its body."""

    label: str
    kind: str
    by: str
    body: dict[str, Any]
    craft: Craft = field(default_factory=Craft)
    hidden: bool = False


class Built(NamedTuple):
    """One record's bytes; `signed` is its Sig_structure where the outer structure is in order."""

    label: str
    raw: bytes
    signed: bytes | None


class Script:
    """The moves of one thread."""

    def __init__(self, *moves: Move) -> None:
        self.moves = list(moves)
        self.exchanged: list[tuple[str, str]] = []

    def copy(self) -> "Script":
        """Return a script that can be changed without changing this one."""
        return copy.deepcopy(self)

    def place(self, label: str) -> int:
        """Return the place of a move."""
        return next(place for place, move in enumerate(self.moves) if move.label == label)

    def move(self, label: str) -> Move:
        """Return a move."""
        return self.moves[self.place(label)]

    def build(self) -> list[Built]:
        """Return the records in file order."""
        labels = [move.label for move in self.moves]
        assert len(set(labels)) == len(labels), f"a label stands twice: {labels}"
        builder = _Builder()
        built = [(move, builder.record(index, move)) for index, move in enumerate(self.moves)]
        records = [record for move, record in built if not move.hidden]
        for pair in self.exchanged:
            first, second = (next(i for i, record in enumerate(records) if record.label == label) for label in pair)
            records[first], records[second] = records[second], records[first]
        return records


class _Builder:
    def __init__(self) -> None:
        self.addresses: dict[str, bytes] = {}
        self.raws: dict[str, bytes] = {}
        self.standing: list[bytes] = []
        self.thread = self.prev = b""
        self.seq = 0

    def record(self, index: int, move: Move) -> Built:
        if move.kind == "copy":
            return Built(move.label, self.raws[move.body["of"]], None)
        if move.kind == "bytes":
            return Built(move.label, move.body["raw"], None)
        body = self._body(index, move)
        raw, signed = seal(move, body)
        own = address(raw)
        self.addresses[move.label] = own
        self.raws[move.label] = raw
        if move.kind in CHAIN_KINDS:
            self.prev, self.seq, self.standing = own, self.seq + 1, []
            self.thread = self.thread or own
        elif move.kind in RECEIPT_KINDS:
            self.standing.append(own)
        return Built(move.label, raw, signed)

    def _body(self, index: int, move: Move) -> dict[str, Any]:
        body: dict[str, Any] = {"v": 1, "sent_at": START + 1000 * index}
        if move.kind in CHAIN_KINDS[1:]:
            body |= {"thread": self.thread, "seq": self.seq, "prev": self.prev}
            if self.standing:
                body["receipts"] = list(self.standing)
        elif move.kind == "open":
            body["seq"] = 0
        elif move.kind in RECEIPT_KINDS:
            body["thread"] = self.thread
        return {name: self._resolve(value) for name, value in (body | move.body).items() if value is not ABSENT}

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.addresses[value.label]
        if isinstance(value, dict):
            return {name: self._resolve(item) for name, item in value.items() if item is not ABSENT}
        if isinstance(value, Pairs):
            return Pairs((name, self._resolve(item)) for name, item in value)
        if isinstance(value, list):
            return [self._resolve(item) for item in value]
        return value


def seal(move: Move, body: dict[str, Any]) -> tuple[bytes, bytes | None]:
    """Return the bytes of one envelope and its Sig_structure, or None where it has none."""
    craft = move.craft
    kid = craft.kid or key(move.by)
    header: Any = {1: -19, 4: kid, 16: f"application/vnd.envelope.{move.kind}+cose"}
    if craft.header is not None:
        header = craft.header(header)
    protected = encode(header)
    payload = encode(body)
    if craft.payload is not None:
        payload = craft.payload(payload)
    signed = b"\x84\x6aSignature1" + encode(protected) + b"\x40" + encode(payload)
    to_sign = craft.signed(signed) if craft.signed else signed
    signature = craft.sign(to_sign) if craft.sign else secret(move.by).sign(to_sign)
    if craft.signature is not None:
        signature = craft.signature(signature)
    if craft.outer is not None:
        return craft.outer(protected, payload, signature), None
    raw = b"\xd2\x84" + encode(protected) + b"\xa0" + encode(payload) + encode(signature)
    if craft.raw is not None:
        return craft.raw(raw), None
    return raw, signed
