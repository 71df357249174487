"""The deterministic CBOR profile: strict, bounded decoding of our own; encoding through `cbor2` after a check.

The profile is RFC 8949 §4.2.1 with text keys and without floats, null, tags and integers beyond ±(2^53-1)
(`spec/protocol.md`, "Deterministic CBOR profile"). Within it one value has one encoding, so that
`encode(decode(data)) == data` for every accepted `data`. A refusal names the first defect in reading order.
"""

from typing import Any, Final, NamedTuple

import cbor2

from envelope.errors import EnvelopeError

MAX_DEPTH: Final = 8
MAX_INT: Final = (1 << 53) - 1
_MAX_KEYS: Final = 1024
_STR: Final = {str}


class Caps(NamedTuple):
    """How large an encoding may be.

    Attributes:
        bytes: in all.
        items: how many, the inner ones and keys counted too.
    """

    bytes: int
    items: int


ENVELOPE: Final = Caps(1 << 20, 16_384)
"""The caps of envelopes and their payloads (`spec/protocol.md`)."""

_UINT, _NINT, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_MAJOR: Final = ("unsigned integer", "negative integer", "byte string", "text", "array", "map", "tag", "simple value")


def encode(value: Any, caps: Caps = ENVELOPE) -> bytes:
    """Return the one encoding of `value`.

    Args:
        value: an int, bool, str, bytes, list, tuple or dict with str keys, nested at most 8 deep.
        caps: larger ones are for what is no envelope.

    Raises:
        EnvelopeError: `cbor.type`, `cbor.integer`, `cbor.utf8`, `cbor.key_type`, `cbor.depth`, `cbor.items`,
            `size.envelope`; nothing else, whatever the value.
    """
    data = cbor2.dumps(_Sorter(caps).sorted(value, 1))
    if len(data) > caps.bytes:
        raise EnvelopeError("size.envelope", f"the encoding is {len(data)} bytes, more than {caps.bytes}")
    return data


def decode(data: bytes, caps: Caps = ENVELOPE) -> Any:
    """Return the value that `data` encodes: int, bool, str, bytes, list or dict.

    Raises:
        EnvelopeError: `size.envelope` or a `cbor.*` code, with the offset of the defect.
    """
    if len(data) <= caps.items:  # then no count can exceed the cap
        try:
            head = data[0]
            value, end = _quick_map(data, 1, 1, head - 0xA0) if 0xA0 <= head < 0xB8 else _quick_item(data, 0, 1)
            if end == len(data):
                return value
        except (_Unusual, IndexError, UnicodeDecodeError):
            pass
    return _decode(data, _TEXT, caps)


def decode_header(data: bytes) -> Any:
    """Decode a protected header: the same profile, but map keys are unsigned integers."""
    return _decode(data, _UINT, ENVELOPE)


def decode_prefix(data: bytes, start: int) -> tuple[Any, int]:
    """Decode one item at `start`, whatever follows it; return it and the offset behind it."""
    return _Reader(data, _TEXT, ENVELOPE).item(start, 1)


class _Sorter:
    """Checks a value against the profile and copies it with its maps in order."""

    __slots__ = ("caps", "items", "size")

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.items = 1
        self.size = 0

    def sorted(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is dict:
            self._enter(depth, 2 * len(value))
            if odd := {*map(type, value)} - _STR:
                raise EnvelopeError("cbor.key_type", f"a map key is a {odd.pop().__name__}, not a str")
            order, length = _orders.get(names := tuple(value)) or _order(names)
            result = {}
            for name in order:
                item = value[name]
                kind = type(item)
                if kind is bytes or (kind is str and item.isascii()):
                    length += len(item)
                elif kind is not int or not -MAX_INT <= item <= MAX_INT:
                    item = self.sorted(item, depth + 1)
                result[name] = item
            self.size += length
            value = result
        elif kind is list or kind is tuple:
            self._enter(depth, len(value))
            value = [self.sorted(item, depth + 1) for item in value]
        elif kind is int:
            if not -MAX_INT <= value <= MAX_INT:
                raise EnvelopeError("cbor.integer", "an integer lies beyond ±(2^53-1)")
        elif kind is bytes:
            self.size += len(value)
        elif kind is str:
            self.size += len(value) if value.isascii() else len(_utf8(value))
        elif kind is not bool:
            raise EnvelopeError("cbor.type", f"a {kind.__name__} has no encoding in the profile")
        if self.size > self.caps.bytes:
            raise EnvelopeError("size.envelope", f"the value's strings are more than {self.caps.bytes} bytes")
        return value

    def _enter(self, depth: int, more: int) -> None:
        if depth > MAX_DEPTH:
            raise EnvelopeError("cbor.depth", f"containers nest more than {MAX_DEPTH} deep")
        self.items += more
        if self.items > self.caps.items:
            raise EnvelopeError("cbor.items", f"the value holds more than {self.caps.items} items")


_orders: dict[tuple[str, ...], tuple[list[str], int]] = {}
"""Orders found for the keys of maps, since records repeat a few; bounded, and rebuilt at will."""


def _order(names: tuple[str, ...]) -> tuple[list[str], int]:
    """Return keys by their encodings, the shorter first, then bytewise (RFC 8949 §4.2.1), and how long they all are."""
    encoded = {name: _utf8(name) for name in names}
    order = sorted(names, key=lambda name: (len(encoded[name]), encoded[name]))
    length = sum(map(len, encoded.values()))
    if length <= _MAX_KEYS:
        if len(_orders) >= _MAX_KEYS:
            _orders.clear()
        _orders[names] = (order, length)
    return order, length


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EnvelopeError("cbor.utf8", f"a text holds a surrogate at {error.start}, which UTF-8 cannot") from None


def _decode(data: bytes, key_major: int, caps: Caps) -> Any:
    if len(data) > caps.bytes:
        raise EnvelopeError("size.envelope", f"the item is {len(data)} bytes, more than {caps.bytes}")
    value, end = _Reader(data, key_major, caps).item(0, 1)
    if end != len(data):
        raise EnvelopeError("cbor.trailing", f"{len(data) - end} bytes follow the item at offset {end}")
    return value


class _Unusual(Exception):
    """The bytes hold something that the quick decoder leaves to the reader, be it a defect or not."""


def _quick_item(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Decode the item at `at` if it is made of what records are made of.

    It accepts a part of what `_Reader` accepts and judges nothing: whatever else it meets it leaves to the reader.
    That keeps decoding a small part of the cost of a signature. Ends of strings are not checked one by one: an index
    beyond the bytes raises, a slice beyond them leaves an offset that no later step brings back, and `decode` takes
    only what ends exactly with the bytes.
    """
    head = data[at]
    if 0x80 <= head < 0x98:
        if depth > MAX_DEPTH:
            raise _Unusual
        at += 1
        values: list[Any] = []
        for _ in range(head - 0x80):
            head = data[at]
            if head == 0x58:
                end = at + 2 + data[at + 1]
                if end < at + 26:
                    raise _Unusual
                values.append(data[at + 2 : end])
                at = end
            elif 0xA0 <= head < 0xB8:
                value, at = _quick_map(data, at + 1, depth + 1, head - 0xA0)
                values.append(value)
            else:
                value, at = _quick_item(data, at, depth + 1)
                values.append(value)
        return values, at
    if 0xA0 <= head < 0xB8:
        return _quick_map(data, at + 1, depth, head - 0xA0)
    if head < 0x18:
        return head, at + 1
    if 0x60 <= head < 0x78:
        end = at + head - 0x5F
        return data[at + 1 : end].decode(), end
    if head == 0x79 or head == 0x59:
        end = at + 3 + (data[at + 1] << 8 | data[at + 2])
        if end < at + 0x103:
            raise _Unusual
        return data[at + 3 : end].decode() if head == 0x79 else data[at + 3 : end], end
    if head == 0x18 and data[at + 1] >= 24:
        return data[at + 1], at + 2
    if head == 0x19 and data[at + 1]:
        return data[at + 1] << 8 | data[at + 2], at + 3
    if head == 0xF5:
        return True, at + 1
    raise _Unusual


_keys: dict[bytes, str] = {}
"""Encoded map keys met before, and what they decode to: records repeat a few of them. Bounded."""


def _quick_key(token: bytes, length: int) -> str:
    if not 0 <= length < 24 or len(token) != length + 1:
        raise _Unusual
    key = token[1:].decode()
    if len(_keys) < _MAX_KEYS:
        _keys[token] = key
    return key


def _quick_map(data: bytes, at: int, depth: int, pairs: int) -> tuple[dict[str, Any], int]:
    if depth > MAX_DEPTH:
        raise _Unusual
    values: dict[str, Any] = {}
    known = _keys.get
    from_bytes = int.from_bytes
    last = b""
    for _ in range(pairs):
        end = at + data[at] - 0x5F
        token = data[at:end]
        key = known(token)
        if key is None:
            key = _quick_key(token, end - at - 1)
        if token <= last:
            raise _Unusual
        last = token
        head = data[end]
        if head == 0x58:
            at = end + 2 + data[end + 1]
            if at < end + 26:
                raise _Unusual
            values[key] = data[end + 2 : at]
        elif head < 0x18:
            values[key] = head
            at = end + 1
        elif 0x60 <= head < 0x78:
            at = end + head - 0x5F
            values[key] = data[end + 1 : at].decode()
        elif head == 0x78:
            at = end + 2 + data[end + 1]
            if at < end + 26:
                raise _Unusual
            values[key] = data[end + 2 : at].decode()
        elif head == 0x1B:
            at = end + 9
            values[key] = number = from_bytes(data[end + 1 : at], "big")
            if number <= 0xFFFFFFFF or number > MAX_INT:
                raise _Unusual
        else:
            values[key], at = _quick_item(data, end, depth + 1)
    return values, at


class _Reader:
    """One careful pass over the bytes. Each method takes an offset, and returns a value and the offset behind it."""

    __slots__ = ("data", "items", "key_major", "most", "size")

    def __init__(self, data: bytes, key_major: int, caps: Caps) -> None:
        self.data = data
        self.most = caps.items
        self.size = len(data)
        self.items = 1
        self.key_major = key_major

    def item(self, at: int, depth: int) -> tuple[Any, int]:
        if at >= self.size:
            raise EnvelopeError("cbor.truncated", f"the bytes end at offset {at}, where an item should begin")
        major, argument, at = self._head(at)
        if major == _UINT:
            if argument > MAX_INT:
                raise EnvelopeError("cbor.integer", f"the integer before offset {at} lies beyond 2^53-1")
            return argument, at
        if major == _NINT:
            if argument >= MAX_INT:
                raise EnvelopeError("cbor.integer", f"the integer before offset {at} lies beyond -(2^53-1)")
            return -1 - argument, at
        if major == _BYTES or major == _TEXT:
            return self._string(at, argument, major == _TEXT)
        if major == _SIMPLE:
            return argument == 21, at
        if depth > MAX_DEPTH:
            raise EnvelopeError("cbor.depth", f"the container before offset {at} is nested more than {MAX_DEPTH} deep")
        self.items += argument if major == _ARRAY else 2 * argument
        if self.items > self.most:
            raise EnvelopeError("cbor.items", f"the container before offset {at} announces more than {self.most} items")
        if major == _ARRAY:
            values = []
            for _ in range(argument):
                value, at = self.item(at, depth + 1)
                values.append(value)
            return values, at
        return self._map(at, argument, depth)

    def _map(self, at: int, pairs: int, depth: int) -> tuple[dict[Any, Any], int]:
        values: dict[Any, Any] = {}
        before = b""
        for _ in range(pairs):
            start = at
            key, at = self._key(at)
            encoded = self.data[start:at]
            if encoded == before:
                raise EnvelopeError("cbor.duplicate_key", f"the map key at offset {start} stands a second time")
            if encoded < before:
                raise EnvelopeError("cbor.key_order", f"the map key at offset {start} sorts before the one before it")
            before = encoded
            values[key], at = self.item(at, depth + 1)
        return values, at

    def _key(self, at: int) -> tuple[Any, int]:
        if at < self.size:
            self._kind(at)
            if (major := self.data[at] >> 5) != self.key_major:
                wanted = _MAJOR[self.key_major]
                raise EnvelopeError("cbor.key_type", f"the map key at offset {at} is a {_MAJOR[major]}, not a {wanted}")
        return self.item(at, MAX_DEPTH)

    def _string(self, at: int, length: int, text: bool) -> tuple[str | bytes, int]:
        end = at + length
        if end > self.size:
            raise EnvelopeError(
                "cbor.truncated", f"a string of {length} bytes at offset {at} runs past the end at {self.size}"
            )
        raw = self.data[at:end]
        if not text:
            return raw, end
        try:
            return raw.decode(), end
        except UnicodeDecodeError as error:
            raise EnvelopeError("cbor.utf8", f"the text at offset {at} is no UTF-8 at {at + error.start}") from None

    def _kind(self, at: int) -> None:
        """Refuse what the initial byte alone shows to be outside the profile (RFC 8949 §3)."""
        major, info = divmod(self.data[at], 32)
        if info == 31 and _BYTES <= major <= _MAP:
            raise EnvelopeError("cbor.indefinite", f"the {_MAJOR[major]} at offset {at} has no definite length")
        if info >= 28:
            raise EnvelopeError("cbor.reserved", f"the initial byte at offset {at} is not well-formed CBOR")
        if major == _TAG:
            raise EnvelopeError("cbor.tag", f"a tag stands at offset {at}")
        if major == _SIMPLE:
            if 25 <= info <= 27:
                raise EnvelopeError("cbor.float", f"a float stands at offset {at}")
            if info not in (20, 21):
                raise EnvelopeError("cbor.simple", f"a simple value other than true and false stands at offset {at}")

    def _head(self, at: int) -> tuple[int, int, int]:
        """Return major type, argument and the offset behind the head."""
        self._kind(at)
        major, info = divmod(self.data[at], 32)
        at += 1
        if info < 24:
            return major, info, at
        width = 1 << (info - 24)
        if at + width > self.size:
            raise EnvelopeError("cbor.truncated", f"the head before offset {at} lacks its argument of {width} bytes")
        argument = int.from_bytes(self.data[at : at + width], "big")
        if argument < (24 if width == 1 else 1 << (4 * width)):
            raise EnvelopeError("cbor.shortest", f"the head before offset {at} is not in its shortest form")
        return major, argument, at + width
