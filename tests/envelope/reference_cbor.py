"""A second decoder of the CBOR profile, slow and plain, written from the specification alone.

It shares nothing with the package but the names of the codes. The first defect met in reading order decides:

1. a head's kind, from its first byte: reserved, indefinite, tag, float, simple;
2. a map key's major type: text, or in a protected header unsigned;
3. the head's argument is there, and in its shortest form;
4. an integer is in range; a string's bytes are there, and text is UTF-8;
   a container is at most 8 deep, and announces no more items than there may be;
5. a map's key, read whole, is greater than the key before it;
6. nothing follows the outermost item.
"""

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 8
MAX_ITEMS = 16_384
MAX_INTEGER = 2**53 - 1

UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, OTHER = range(8)


class Refused(Exception):
    """The code of the first defect."""


def reference_decode(data: bytes, keys: int = TEXT) -> object:
    """Return the value of `data`, whose map keys are of the major type `keys`, or raise `Refused` with a code."""
    if len(data) > MAX_BYTES:
        raise Refused("size.envelope")
    reader = Reader(data, keys)
    value = reader.item(depth=1)
    if reader.at != len(data):
        raise Refused("cbor.trailing")
    return value


class Reader:
    """A position in the bytes, and the number of items announced so far: at first, the outermost."""

    def __init__(self, data: bytes, keys: int) -> None:
        self.data = data
        self.keys = keys
        self.at = 0
        self.items = 1

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise Refused("cbor.truncated")
        taken = self.data[self.at : self.at + count]
        self.at += count
        return taken

    def head(self, *, of_key: bool) -> tuple[int, int]:
        """Read one head; return its major type and its argument."""
        first = self.take(1)[0]
        major = first >> 5
        info = first & 31

        if info in (28, 29, 30):
            raise Refused("cbor.reserved")
        if info == 31:
            if major in (BYTES, TEXT, ARRAY, MAP):
                raise Refused("cbor.indefinite")
            raise Refused("cbor.reserved")
        if major == TAG:
            raise Refused("cbor.tag")
        if major == OTHER:
            if info in (25, 26, 27):
                raise Refused("cbor.float")
            if info not in (20, 21):
                raise Refused("cbor.simple")

        if of_key and major != self.keys:
            raise Refused("cbor.key_type")

        if info < 24:
            return major, info
        width = 2 ** (info - 24)
        argument = int.from_bytes(self.take(width), "big")
        least = {1: 24, 2: 2**8, 4: 2**16, 8: 2**32}[width]
        if argument < least:
            raise Refused("cbor.shortest")
        return major, argument

    def item(self, depth: int, *, of_key: bool = False) -> object:
        """Read one item; were it a container, it would be the `depth`-th from outside."""
        major, argument = self.head(of_key=of_key)

        if major == OTHER:
            return argument == 21

        if major in (UNSIGNED, NEGATIVE):
            value = argument if major == UNSIGNED else -1 - argument
            if abs(value) > MAX_INTEGER:
                raise Refused("cbor.integer")
            return value

        if major == BYTES:
            return self.take(argument)
        if major == TEXT:
            return utf8(self.take(argument))

        if depth > MAX_DEPTH:
            raise Refused("cbor.depth")
        self.items += argument if major == ARRAY else 2 * argument
        if self.items > MAX_ITEMS:
            raise Refused("cbor.items")
        if major == ARRAY:
            return [self.item(depth + 1) for _ in range(argument)]
        return self.map(argument, depth)

    def map(self, pairs: int, depth: int) -> dict[object, object]:
        result: dict[object, object] = {}
        previous = b""
        for _ in range(pairs):
            start = self.at
            key = self.item(depth + 1, of_key=True)
            encoded = self.data[start : self.at]
            if encoded == previous:
                raise Refused("cbor.duplicate_key")
            if encoded < previous:
                raise Refused("cbor.key_order")
            previous = encoded
            result[key] = self.item(depth + 1)
        return result


def utf8(data: bytes) -> str:
    """Decode by the table of RFC 3629 section 3: no overlong form, no surrogate, nothing past U+10FFFF."""
    text = ""
    at = 0
    while at < len(data):
        first = data[at]
        if first < 0x80:
            extra, point, least = 0, first, 0
        elif first >> 5 == 0b110:
            extra, point, least = 1, first & 0b11111, 0x80
        elif first >> 4 == 0b1110:
            extra, point, least = 2, first & 0b1111, 0x800
        elif first >> 3 == 0b11110:
            extra, point, least = 3, first & 0b111, 0x10000
        else:
            raise Refused("cbor.utf8")
        following = data[at + 1 : at + 1 + extra]
        if len(following) < extra or any(byte >> 6 != 0b10 for byte in following):
            raise Refused("cbor.utf8")
        for byte in following:
            point = point << 6 | byte & 0b111111
        if point < least or point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            raise Refused("cbor.utf8")
        text += chr(point)
        at += 1 + extra
    return text
