"""Cases of the stages size and cbor, and of the codes of cbor in a payload.

Where a defect leaves the bounds of the record unknown, the record is the file's last one.
"""

from collections.abc import Callable
from typing import Any

from tests.vectorcases.bounds import ENVELOPE_OVERHEAD, LARGEST, SPARE_ITEMS, filled, nested
from tests.vectorcases.build import Pairs, Raw, Script, encode
from tests.vectorcases.case import negative
from tests.vectorcases.moves import Change, craft, header_swap, payload_swap, put

REQUEST = "thread.request"
EXAMPLE = "org.example"


def extended(label: str, raw: bytes) -> Change:
    """Put an encoded item into the extension of a body."""
    return put(label, ext={EXAMPLE: Raw(raw)})


def outer(label: str, make: Callable[[bytes, bytes, bytes], bytes]) -> Change:
    """Make the outer structure otherwise, of header, payload and signature as byte strings."""
    return craft(
        label, outer=lambda header, payload, signature: make(encode(header), encode(payload), encode(signature))
    )


def header(label: str, make: Callable[[dict[int, Any]], Any]) -> Change:
    """Make the protected header otherwise."""
    return craft(label, header=make)


def relabelled(label: str, **values: Any) -> Change:
    """Put other values into the protected header: alg, kid, typ."""
    labels = {"alg": 1, "kid": 4, "typ": 16}
    return header(label, lambda right: right | {labels[name]: value for name, value in values.items()})


def refill(label: str, size: int) -> Change:
    """Give the message a body of `size` bytes."""

    def change(script: Script) -> None:
        script.moves[script.place(label)] = filled(label, size)

    return change


# Size

negative(
    "size.envelope", "message", "bounds.envelope",
    "The payload of the message is one byte longer, so that the envelope has 1,048,577 bytes.",
    refill("large", LARGEST - ENVELOPE_OVERHEAD + 1), at="large",
)  # fmt: skip
negative(
    "size.envelope", "extension", "thread.smallest",
    "The open has an extension of 1,048,576 bytes.",
    put("open", ext={EXAMPLE: bytes(LARGEST)}), at="open",
)  # fmt: skip
negative(
    "size.header", "long-type", REQUEST,
    "The kind of a message's type is lengthened by 60 letters.",
    header_swap("end", encode("application/vnd.envelope.seal+cose"),
                encode("application/vnd.envelope.seal" + "l" * 60 + "+cose")), at="end",
)  # fmt: skip
negative(
    "size.header", "certificate", REQUEST,
    "The protected header carries a certificate of 100 bytes under label 33.",
    header("ask", lambda right: right | {33: bytes(100)}), at="ask",
)  # fmt: skip

# CBOR

negative(
    "file.torn", "signature", REQUEST,
    "The last byte of the last signature is missing.",
    craft("end", raw=lambda data: data[:-1]), at="end",
)  # fmt: skip
negative(
    "file.torn", "payload", REQUEST,
    "The file ends in the midst of the last payload.",
    craft("end", raw=lambda data: data[:150]), at="end",
)  # fmt: skip
negative(
    "file.torn", "first-bytes", "thread.smallest",
    "Of the last record only the first two bytes are there.",
    craft("end", raw=lambda data: data[:2]), at="end",
)  # fmt: skip
negative(
    "cbor.truncated", "payload", REQUEST,
    "The signed payload lacks its last byte.",
    craft("ask", payload=lambda data: data[:-1]), at="ask",
)  # fmt: skip
negative(
    "cbor.truncated", "no-payload", REQUEST,
    "The signed payload is the empty byte string.",
    craft("end", payload=lambda data: b""), at="end",
)  # fmt: skip
negative(
    "cbor.truncated", "header", REQUEST,
    "The protected header is the empty byte string.",
    header("end", lambda right: Raw(b"")), at="end",
)  # fmt: skip
negative(
    "cbor.truncated", "length", REQUEST,
    "A byte string in the payload announces 2^53 bytes.",
    extended("bob-yes", b"\x5b\x00\x20\x00\x00\x00\x00\x00\x00"), at="bob-yes",
)  # fmt: skip
negative(
    "cbor.truncated", "head", REQUEST,
    "The signed payload ends within the head of its first item.",
    craft("end", payload=lambda data: b"\xb9\x00"), at="end",
)  # fmt: skip
negative(
    "cbor.trailing", "payload", REQUEST,
    "A zero byte follows the map in the signed payload.",
    craft("ask", payload=lambda data: data + b"\x00"), at="ask",
)  # fmt: skip
negative(
    "cbor.trailing", "header", REQUEST,
    "A second map follows the one in the protected header.",
    header("ask", lambda right: Raw(encode(right) + b"\xa0")), at="ask",
)  # fmt: skip
negative(
    "cbor.trailing", "envelope", REQUEST,
    "A zero byte follows the last signature.",
    craft("end", raw=lambda data: data + b"\x00"), at="end",
)  # fmt: skip
negative(
    "cbor.reserved", "payload", REQUEST,
    "An item in the payload begins with the reserved byte 1c.",
    extended("ask", b"\x1c"), at="ask",
)  # fmt: skip
negative(
    "cbor.reserved", "break", REQUEST,
    "A break stands in the payload where an item should.",
    extended("ask", b"\xff"), at="ask",
)  # fmt: skip
negative(
    "cbor.reserved", "header", REQUEST,
    "The algorithm in the protected header is the reserved byte 3e.",
    relabelled("ask", alg=Raw(b"\x3e")), at="ask",
)  # fmt: skip
negative(
    "cbor.indefinite", "payload", REQUEST,
    "The body is a map of indefinite length.",
    craft("ask", payload=lambda data: b"\xbf" + data[1:] + b"\xff"), at="ask",
)  # fmt: skip
negative(
    "cbor.indefinite", "header", REQUEST,
    "The key id is a byte string of indefinite length.",
    header("ask", lambda right: right | {4: Raw(b"\x5f" + encode(right[4]) + b"\xff")}), at="ask",
)  # fmt: skip
negative(
    "cbor.indefinite", "envelope", REQUEST,
    "The envelope is an array of indefinite length.",
    outer("end", lambda *parts: b"\xd2\x9f" + parts[0] + b"\xa0" + parts[1] + parts[2] + b"\xff"), at="end",
)  # fmt: skip
negative(
    "cbor.shortest", "integer", REQUEST,
    "The version 1 is written in two bytes.",
    put("ask", v=Raw(b"\x18\x01")), at="ask",
)  # fmt: skip
negative(
    "cbor.shortest", "text", REQUEST,
    "The length of a payload of 16 bytes is written in three bytes.",
    payload_swap("ask", encode("Check the build."), b"\x79\x00\x10Check the build."), at="ask",
)  # fmt: skip
negative(
    "cbor.shortest", "map-key", REQUEST,
    "The length of a map key in the payload is written in two bytes.",
    payload_swap("ask", encode("sent_at"), b"\x78\x07sent_at"), at="ask",
)  # fmt: skip
negative(
    "cbor.shortest", "header", REQUEST,
    "The algorithm -19 is written in two bytes.",
    relabelled("ask", alg=Raw(b"\x38\x12")), at="ask",
)  # fmt: skip
negative(
    "cbor.shortest", "envelope", REQUEST,
    "The length of the payload's byte string is written in five bytes.",
    outer("end", lambda *parts: b"\xd2\x84" + parts[0] + b"\xa0\x5a\x00\x00" + parts[1][1:3] + parts[1][3:] + parts[2]),
    at="end",
)  # fmt: skip
negative(
    "cbor.integer", "time", REQUEST,
    "The time of a message is 2^53.",
    put("ask", sent_at=2**53), at="ask",
)  # fmt: skip
negative(
    "cbor.integer", "negative", "thread.extensions",
    "An extension holds -(2^53).",
    put("bob-ok", ext={EXAMPLE: -(2**53)}), at="bob-ok",
)  # fmt: skip
negative(
    "cbor.integer", "greatest", REQUEST,
    "An extension holds 2^64-1.",
    put("end", ext={EXAMPLE: 2**64 - 1}), at="end",
)  # fmt: skip
negative(
    "cbor.float", "confidence", REQUEST,
    "The confidence is the half-precision float 0.5.",
    put("ask", confidence=Raw(b"\xf9\x38\x00")), at="ask",
)  # fmt: skip
negative(
    "cbor.float", "whole", REQUEST,
    "An extension holds the double-precision float 1.0.",
    extended("ask", b"\xfb\x3f\xf0\x00\x00\x00\x00\x00\x00"), at="ask",
)  # fmt: skip
negative(
    "cbor.simple", "null", REQUEST,
    "An absent field is written as null.",
    put("ask", confidence=Raw(b"\xf6")), at="ask",
)  # fmt: skip
negative(
    "cbor.simple", "undefined", REQUEST,
    "An extension holds undefined.",
    extended("bob-yes", b"\xf7"), at="bob-yes",
)  # fmt: skip
negative(
    "cbor.simple", "two-bytes", REQUEST,
    "An extension holds the simple value 32.",
    extended("bob-ok", b"\xf8\x20"), at="bob-ok",
)  # fmt: skip
negative(
    "cbor.simple", "detached", REQUEST,
    "The payload is detached: null stands in its place.",
    outer("end", lambda *parts: b"\xd2\x84" + parts[0] + b"\xa0\xf6" + parts[2]), at="end",
)  # fmt: skip
negative(
    "cbor.tag", "time", REQUEST,
    "The time of a message has the tag for times.",
    put("ask", sent_at=Raw(b"\xc1" + encode(1_760_000_000_000))), at="ask",
)  # fmt: skip
negative(
    "cbor.tag", "self-described", REQUEST,
    "The body has the tag for self-described CBOR.",
    craft("ask", payload=lambda data: b"\xd9\xd9\xf7" + data), at="ask",
)  # fmt: skip
negative(
    "cbor.tag", "big-number", REQUEST,
    "The algorithm is a big number of one byte.",
    relabelled("ask", alg=Raw(b"\xc3\x41\x12")), at="ask",
)  # fmt: skip
negative(
    "cbor.utf8", "surrogate", REQUEST,
    "The payload holds a surrogate in the form of UTF-8.",
    put("ask", payload=Raw(b"\x63\xed\xa0\x80")), at="ask",
)  # fmt: skip
negative(
    "cbor.utf8", "overlong", REQUEST,
    "A restatement holds an overlong slash.",
    put("bob-yes", restatement=Raw(b"\x63x\xc0\xaf")), at="bob-yes",
)  # fmt: skip
negative(
    "cbor.utf8", "too-high", REQUEST,
    "The payload holds U+110000.",
    put("ask", payload=Raw(b"\x64\xf4\x90\x80\x80")), at="ask",
)  # fmt: skip
negative(
    "cbor.utf8", "type", REQUEST,
    "The type in the protected header ends in a lone byte ff.",
    header_swap("ask", b"message+cose", b"message+cos\xff"), at="ask",
)  # fmt: skip
negative(
    "cbor.key_type", "integer", REQUEST,
    "A map in the extension has the integer 1 as its key.",
    put("ask", ext={EXAMPLE: {1: True}}), at="ask",
)  # fmt: skip
negative(
    "cbor.key_type", "bytes", REQUEST,
    "The key v of the body is a byte string.",
    payload_swap("end", encode("v"), encode(b"v")), at="end",
)  # fmt: skip
negative(
    "cbor.key_type", "header", REQUEST,
    "The label of the type in the protected header is text.",
    header("ask", lambda right: Pairs([(1, right[1]), (4, right[4]), ("typ", right[16])])), at="ask",
)  # fmt: skip
negative(
    "cbor.key_type", "negative-label", REQUEST,
    "The protected header has the label -1 as well.",
    header("ask", lambda right: right | {-1: 0}), at="ask",
)  # fmt: skip
negative(
    "cbor.duplicate_key", "body", REQUEST,
    "The body has v twice.",
    craft("ask", payload=lambda data: bytes([data[0] + 1]) + b"\x61v\x01" + data[1:]), at="ask",
)  # fmt: skip
negative(
    "cbor.duplicate_key", "nested", REQUEST,
    "A map in the extension has a key twice, with other values.",
    put("bob-ok", ext={EXAMPLE: Pairs([("k", 1), ("k", 2)])}), at="bob-ok",
)  # fmt: skip
negative(
    "cbor.duplicate_key", "header", REQUEST,
    "The protected header has the algorithm twice.",
    header("ask", lambda right: Pairs([(1, right[1]), *right.items()])), at="ask",
)  # fmt: skip
negative(
    "cbor.key_order", "body", REQUEST,
    "The fields of the body stand in the opposite order.",
    craft("ask", payload=lambda data: bytes([data[0]]) + data[4:] + data[1:4]), at="ask",
)  # fmt: skip
negative(
    "cbor.key_order", "alphabetic", REQUEST,
    "A longer key sorts before a shorter one, as in a dictionary.",
    put("ask", ext={EXAMPLE: Pairs([("aa", 1), ("b", 2)])}), at="ask",
)  # fmt: skip
negative(
    "cbor.key_order", "again-later", REQUEST,
    "A key stands twice with another one between.",
    put("ask", ext={EXAMPLE: Pairs([("a", 1), ("b", 2), ("a", 1)])}), at="ask",
)  # fmt: skip
negative(
    "cbor.key_order", "header", REQUEST,
    "The labels of the protected header descend.",
    header("ask", lambda right: Pairs(reversed(right.items()))), at="ask",
)  # fmt: skip
negative(
    "cbor.depth", "payload", "bounds.depth",
    "The extension nests one level more.",
    put("open", ext={EXAMPLE: nested(7)}), at="open",
)  # fmt: skip
negative(
    "cbor.depth", "empty", "bounds.depth",
    "An empty array stands nine deep.",
    put("say", ext={EXAMPLE: nested(6, [])}), at="say",
)  # fmt: skip
negative(
    "cbor.depth", "header", REQUEST,
    "The algorithm in the protected header is wrapped in eight arrays.",
    relabelled("ask", alg=Raw(b"\x81" * 8 + b"\x32")), at="ask",
)  # fmt: skip
negative(
    "cbor.items", "one-more", "bounds.items",
    "The extension's list has one element more.",
    put("say", ext={EXAMPLE: [0] * (SPARE_ITEMS + 1)}), at="say",
)  # fmt: skip
negative(
    "cbor.items", "announced", REQUEST,
    "An array announces 2^32 elements.",
    extended("ask", b"\x9b\x00\x00\x00\x01\x00\x00\x00\x00"), at="ask",
)  # fmt: skip
negative(
    "cbor.items", "maps", "bounds.items",
    "The extension's list holds empty maps in maps, 16,385 items in all.",
    put("say", ext={EXAMPLE: [{"": 0}] * (SPARE_ITEMS // 3) + [0] * (SPARE_ITEMS % 3 + 1)}), at="say",
)  # fmt: skip
