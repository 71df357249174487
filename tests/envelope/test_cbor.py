"""The CBOR profile: tables of hex cases, bombs, and three oracles (RFC 8949's examples, cbor2, a reference decoder)."""

import datetime
import decimal
import enum
import itertools
import random
import tracemalloc
import uuid
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envelope import rules
from envelope.cbor import decode, decode_header, decode_prefix, encode
from envelope.errors import EnvelopeError

from .reference_cbor import TEXT, UNSIGNED, Refused, reference_decode

MAX_BYTES = 1_048_576
MAX_ITEMS = 16_384
MAX_INTEGER = 2**53 - 1


def verdict(data: bytes, decode: Callable[[bytes], object] = decode) -> str:
    """The value, as text that tells 1 from True and shows the order of keys, or the code."""
    try:
        return repr(decode(data))
    except EnvelopeError as error:
        return error.code


def reference_verdict(data: bytes, keys: int = TEXT) -> str:
    try:
        return repr(reference_decode(data, keys))
    except Refused as refused:
        return str(refused)


def code_of(call: Callable[[Any], object], argument: object) -> str:
    with pytest.raises(EnvelopeError) as caught:
        call(argument)
    return caught.value.code


def head(major: int, argument: int, width: int | None = None) -> bytes:
    """A head with its argument in `width` bytes, 0 for none, by default in the fewest."""
    if width is None:
        width = next(w for w in (0, 1, 2, 4, 8) if argument < (24 if w == 0 else 256**w))
    if width == 0:
        return bytes([major << 5 | argument])
    return bytes([major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[width]]) + argument.to_bytes(width, "big")


def nested(depth: int, innermost: bytes = b"\x80") -> bytes:
    """`depth` arrays, one in the other, the innermost given."""
    return b"\x81" * (depth - 1) + innermost


# ---------------------------------------------------------------------------------------- RFC 8949, Appendix A

INSIDE: list[tuple[str, object]] = [
    ("00", 0),
    ("01", 1),
    ("0a", 10),
    ("17", 23),
    ("1818", 24),
    ("1819", 25),
    ("1864", 100),
    ("1903e8", 1000),
    ("1a000f4240", 1_000_000),
    ("1b000000e8d4a51000", 1_000_000_000_000),
    ("20", -1),
    ("29", -10),
    ("3863", -100),
    ("3903e7", -1000),
    ("f4", False),
    ("f5", True),
    ("40", b""),
    ("4401020304", b"\x01\x02\x03\x04"),
    ("60", ""),
    ("6161", "a"),
    ("6449455446", "IETF"),
    ("62225c", '"\\'),
    ("62c3bc", "\u00fc"),
    ("63e6b0b4", "\u6c34"),
    ("64f0908591", "\U00010151"),
    ("80", []),
    ("83010203", [1, 2, 3]),
    ("8301820203820405", [1, [2, 3], [4, 5]]),
    ("98190102030405060708090a0b0c0d0e0f101112131415161718181819", list(range(1, 26))),
    ("a0", {}),
    ("a26161016162820203", {"a": 1, "b": [2, 3]}),
    ("826161a161626163", ["a", {"b": "c"}]),
    ("a56161614161626142616361436164614461656145", {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E"}),
]

OUTSIDE = [
    ("1bffffffffffffffff", "cbor.integer"),
    ("c249010000000000000000", "cbor.tag"),
    ("3bffffffffffffffff", "cbor.integer"),
    ("c349010000000000000000", "cbor.tag"),
    ("f90000", "cbor.float"),
    ("f98000", "cbor.float"),
    ("f93c00", "cbor.float"),
    ("fb3ff199999999999a", "cbor.float"),
    ("f93e00", "cbor.float"),
    ("f97bff", "cbor.float"),
    ("fa47c35000", "cbor.float"),
    ("fa7f7fffff", "cbor.float"),
    ("fb7e37e43c8800759c", "cbor.float"),
    ("f90001", "cbor.float"),
    ("f90400", "cbor.float"),
    ("f9c400", "cbor.float"),
    ("fbc010666666666666", "cbor.float"),
    ("f97c00", "cbor.float"),
    ("f97e00", "cbor.float"),
    ("f9fc00", "cbor.float"),
    ("fa7f800000", "cbor.float"),
    ("fa7fc00000", "cbor.float"),
    ("faff800000", "cbor.float"),
    ("fb7ff0000000000000", "cbor.float"),
    ("fb7ff8000000000000", "cbor.float"),
    ("fbfff0000000000000", "cbor.float"),
    ("f6", "cbor.simple"),
    ("f7", "cbor.simple"),
    ("f0", "cbor.simple"),
    ("f8ff", "cbor.simple"),
    ("c074323031332d30332d32315432303a30343a30305a", "cbor.tag"),
    ("c11a514b67b0", "cbor.tag"),
    ("c1fb41d452d9e2000000", "cbor.tag"),
    ("d74401020304", "cbor.tag"),
    ("d818456449455446", "cbor.tag"),
    ("d82076687474703a2f2f7777772e6578616d706c652e636f6d", "cbor.tag"),
    ("a201020304", "cbor.key_type"),
    ("5f42010243030405ff", "cbor.indefinite"),
    ("7f657374726561646d696e67ff", "cbor.indefinite"),
    ("9fff", "cbor.indefinite"),
    ("9f018202039f0405ffff", "cbor.indefinite"),
    ("9f01820203820405ff", "cbor.indefinite"),
    ("83018202039f0405ff", "cbor.indefinite"),
    ("83019f0203ff820405", "cbor.indefinite"),
    ("9f0102030405060708090a0b0c0d0e0f101112131415161718181819ff", "cbor.indefinite"),
    ("bf61610161629f0203ffff", "cbor.indefinite"),
    ("826161bf61626163ff", "cbor.indefinite"),
    ("bf6346756ef563416d7421ff", "cbor.indefinite"),
]


@pytest.mark.parametrize(("text", "value"), INSIDE)
def test_an_example_of_the_rfc_inside_the_profile_decodes_to_its_value(text: str, value: object) -> None:
    assert verdict(bytes.fromhex(text)) == repr(value)


@pytest.mark.parametrize(("text", "value"), INSIDE)
def test_an_example_of_the_rfc_inside_the_profile_is_what_its_value_encodes_to(text: str, value: object) -> None:
    assert encode(value).hex() == text


@pytest.mark.parametrize(("text", "code"), OUTSIDE)
def test_an_example_of_the_rfc_outside_the_profile_is_refused(text: str, code: str) -> None:
    assert verdict(bytes.fromhex(text)) == code


# ------------------------------------------------------------------------------------------- each code, by hand

REFUSED: dict[str, list[str]] = {
    "cbor.truncated": [
        "",  # nothing at all
        "18", "19", "1903", "1a0000ff", "1b00000000000000", "38", "3903",  # inside an argument
        "58", "5900", "78", "98", "b8",
        "41", "44010203", "61", "6261", "5818" + 23 * "00", "590100" + 255 * "00",  # inside a string
        "5bffffffffffffffff", "7bffffffffffffffff", "5b8000000000000000", "7b7fffffffffffffff",
        "81", "8201", "8181", "a1", "a16161", "a2616101", "a161",  # inside a container
        "62c3",  # too short comes before not UTF-8
        "63ffff",
    ],
    "cbor.trailing": [
        "0000", "00ff", "40f6", "8000", "a0a0", "f5f5", "4000", "60c3", "0018", "001c", "81818000",
    ],
    "cbor.reserved": [
        *(f"{major << 5 | info:02x}" for major in range(8) for info in (28, 29, 30)),
        "1f", "3f", "df", "ff", "1cffffffffffffffff", "81ff", "a16161ff", "a17c", "8201ff", "82011e",
    ],
    "cbor.indefinite": [
        "5f", "7f", "9f", "bf", "5fff", "7fff", "9fff", "bfff", "819fff", "a161619fff", "a17fff", "827f",
    ],
    "cbor.shortest": [
        "1800", "1817", "190000", "190017", "190018", "1900ff", "1a00000000", "1a0000ffff", "1b0000000000000000",
        "1b00000000ffffffff",
        "3800", "3817", "3900ff", "3a0000ffff", "3b00000000ffffffff",
        "5800", "5817", "5900ff", "5a0000ffff", "5b00000000ffffffff", "580100",
        "7800", "7817", "7900ff", "7a0000ffff", "7b00000000ffffffff", "780161",
        "9800", "9817", "9900ff", "9a0000ffff", "9b00000000ffffffff",
        "b800", "b817", "b900ff", "ba0000ffff", "bb00000000ffffffff",
        "a178016100", "811801",
    ],
    "cbor.integer": [
        "1b0020000000000000", "1b7fffffffffffffff", "1b8000000000000000", "1bffffffffffffffff",
        "3b001fffffffffffff", "3b0020000000000000", "3b7fffffffffffffff", "3bffffffffffffffff",
        "811b0020000000000000", "a161611b0020000000000000",
    ],
    "cbor.float": [
        "f90000", "fa00000000", "fb0000000000000000", "f97e00", "f9", "fa", "fb", "81f90000", "a16161fb",
        "f93c00", "fa7fc00000", "fb7ff8000000000001",
    ],
    "cbor.simple": [
        *(f"{0xE0 | info:02x}" for info in (*range(20), 22, 23)),
        "f8", "81f8", "f800", "f814", "f815", "f818", "f820", "f8ff", "81f6", "a16161f7",
    ],
    "cbor.tag": [
        *(f"{0xC0 | info:02x}" for info in range(28)),
        "c000", "d200", "d28443a10126a04040", "d81c80", "d81d00", "d8236161", "d9d9f700", "da00000000", "d800",
        "dbffffffffffffffff00", "81c100", "a16161c100",
    ],
    "cbor.utf8": [
        "6180", "61bf", "61c0", "61c3", "61e0", "61f0", "61f8", "61fe", "61ff",
        "62c080", "62c1bf",  # overlong
        "63e08080", "63e09fbf", "64f0808080", "64f08fbfbf",
        "63eda080", "63edafbf", "63edb080", "63edbfbf", "66eda080edb080",  # surrogates, alone and in a pair
        "64f4908080", "64f5808080", "64f7bfbfbf", "65f888808080", "66fc8480808080",  # past U+10FFFF
        "62c328", "62e6b0", "63e6b028", "63f09085", "64f0908528", "6261ff", "62ff61",
        "a161ff00", "a1616161ff", "8161ff", "a261ff0061ff00",
        "7818" + 23 * "61" + "ff",
    ],
    "cbor.key_type": [
        "a10000", "a12000", "a14000", "a1416100", "a18000", "a1a000", "a1f400", "a1f500", "a201020304",
        "a26161000000", "a3010100000000", "81a10000", "a16161a10000",
        "8267587a7a7a7a7a7aa157" + 115 * "7a",  # a length of less than nothing would point back into the first text
    ],
    "cbor.duplicate_key": [
        "a2616100616100", "a260006000", "a3616100616200616200", "a26161006161", "81a2616100616100",
        "a26163a0616300",
    ],
    "cbor.key_order": [
        "a2616200616100", "a26161006000", "a262616100616200", "a3616100616200616100", "a26162006161",
        "a262616100617a00",  # shorter keys come first
        "a262c3bc00617a00",
        "a2617a006159", "81a2616200616100", "a16161a2616200616100",
        "a2" + "7818" + 24 * "61" + "00" + "77" + 23 * "7a" + "00",
    ],
    "cbor.depth": [
        nested(9).hex(), nested(9, b"\xa0").hex(), nested(9, b"\x81").hex(), nested(9, b"\x82\x00").hex(),
        nested(30).hex(), nested(1000).hex(), "a16161" * 8 + "a0", "a16161" * 8 + "80", "a1616181" * 4 + "80",
        nested(9, head(4, 2**63)).hex(),  # at a head, too deep comes before too many
        nested(9, head(5, 2**63)).hex(),
    ],
    "cbor.items": [
        "994000", "b92000", "9a00010000", "9b8000000000000000", "bb8000000000000000", "9bffffffffffffffff",
        "bbffffffffffffffff", "9b0000000100000000", "81993fff", "82993ffe", "82b91fffa0", "a16161993ffe",
        "994000" + 16_384 * "00", "b920006161",
        "82991fff" + 8191 * "00" + "991fff", "993fff81",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("code", "text"), [(code, text) for code, texts in REFUSED.items() for text in texts])
def test_a_defect_is_refused_with_its_code(code: str, text: str) -> None:
    assert verdict(bytes.fromhex(text)) == code


@pytest.mark.parametrize(("code", "text"), [(code, text) for code, texts in REFUSED.items() for text in texts])
def test_the_reference_decoder_refuses_the_same_defect(code: str, text: str) -> None:
    assert reference_verdict(bytes.fromhex(text)) == code


def test_every_code_of_the_profile_has_a_table_of_defects() -> None:
    assert set(REFUSED) == {rule.code for rule in rules.RULES if rule.stage == "cbor"} - {"file.torn"}


def test_a_refusal_names_its_stage_and_rule() -> None:
    with pytest.raises(EnvelopeError) as caught:
        decode(b"\xf6")
    assert (caught.value.stage, caught.value.rule) == ("cbor", rules.BY_CODE["cbor.simple"].number)


# ------------------------------------------------------------------------------------------------ at the limits

LIMITS: list[tuple[str, object]] = [
    ("1b001fffffffffffff", MAX_INTEGER),
    ("3b001ffffffffffffe", -MAX_INTEGER),
    ("18ff", 255),
    ("190100", 256),
    ("19ffff", 65_535),
    ("1a00010000", 65_536),
    ("1affffffff", 2**32 - 1),
    ("1b0000000100000000", 2**32),
    ("37", -24),
    ("3818", -25),
    ("38ff", -256),
    ("390100", -257),
    ("39ffff", -65_536),
    ("3a00010000", -65_537),
    ("3affffffff", -(2**32)),
    ("3b0000000100000000", -(2**32) - 1),
    ("57" + 23 * "00", bytes(23)),
    ("5818" + 24 * "00", bytes(24)),
    ("58ff" + 255 * "00", bytes(255)),
    ("590100" + 256 * "00", bytes(256)),
    ("77" + 23 * "61", 23 * "a"),
    ("7818" + 24 * "61", 24 * "a"),
    ("62c280", "\x80"),
    ("63e0a080", "\u0800"),
    ("63ed9fbf", "\ud7ff"),
    ("63ee8080", "\ue000"),
    ("63efbbbf", "\ufeff"),
    ("63efbfbf", "\uffff"),
    ("64f0908080", "\U00010000"),
    ("64f48fbfbf", "\U0010ffff"),
    ("6100", "\x00"),
    ("617f", "\x7f"),
    ("97" + 23 * "80", [[] for _ in range(23)]),
    ("9818" + 24 * "f4", 24 * [False]),
    ("a3600061610062616100", {"": 0, "a": 0, "aa": 0}),
    ("a2617a0062616100", {"z": 0, "aa": 0}),
    ("a2617f0062c28000", {"\x7f": 0, "\x80": 0}),
    ("a2" + "77" + 23 * "7a" + "00" + "7818" + 24 * "61" + "00", {23 * "z": 0, 24 * "a": 0}),
    ("a263efbfbf0064f090808000", {"\uffff": 0, "\U00010000": 0}),
]


@pytest.mark.parametrize(("text", "value"), LIMITS)
def test_a_value_at_a_limit_decodes(text: str, value: object) -> None:
    assert verdict(bytes.fromhex(text)) == repr(value)


@pytest.mark.parametrize(("text", "value"), LIMITS)
def test_a_value_at_a_limit_encodes(text: str, value: object) -> None:
    assert encode(value).hex() == text


@pytest.mark.parametrize("innermost", [b"\x80", b"\xa0", b"\x82\x00\x61a", b"\xa1\x61a\x00"])
def test_eight_containers_deep_is_accepted(innermost: bytes) -> None:
    assert encode(decode(nested(8, innermost))) == nested(8, innermost)


def test_depth_is_how_deep_and_not_how_many() -> None:
    data = head(4, 1000) + 1000 * nested(7)
    assert encode(decode(data)) == data


@pytest.mark.parametrize(
    "data",
    [
        head(4, MAX_ITEMS - 1) + bytes(MAX_ITEMS - 1),
        head(4, MAX_ITEMS - 1) + (MAX_ITEMS - 1) * b"\x80",
        head(4, 2) + head(4, MAX_ITEMS - 4) + bytes(MAX_ITEMS - 4) + b"\x81\x00",
        head(4, 2) + head(4, 0) + head(4, MAX_ITEMS - 3) + bytes(MAX_ITEMS - 3),
        head(4, 1) + head(5, 8191) + b"".join(head(3, 4) + f"{i:04}".encode() + b"\x00" for i in range(8191)),
    ],
    ids=["integers", "arrays", "two arrays", "an empty one first", "a map"],
)
def test_16384_items_are_accepted(data: bytes) -> None:
    assert encode(decode(data)) == data


@pytest.mark.parametrize(
    "data",
    [
        head(4, MAX_ITEMS) + bytes(MAX_ITEMS),
        head(4, 2) + head(4, MAX_ITEMS - 4) + bytes(MAX_ITEMS - 4) + b"\x82\x00\x00",
        head(4, 2) + head(4, 0) + head(4, MAX_ITEMS - 2) + bytes(MAX_ITEMS - 2),
        head(5, 8192) + b"".join(head(3, 4) + f"{i:04}".encode() + b"\x00" for i in range(8192)),
        head(4, 128) + 128 * (head(4, 127) + bytes(127)),
    ],
    ids=["integers", "two arrays", "an empty one first", "a map", "many arrays"],
)
def test_one_item_more_is_refused(data: bytes) -> None:
    assert verdict(data) == "cbor.items"


def test_an_encoding_of_one_mebibyte_is_accepted() -> None:
    data = head(2, MAX_BYTES - 5) + bytes(MAX_BYTES - 5)
    assert len(data) == MAX_BYTES
    assert encode(decode(data)) == data


@pytest.mark.parametrize(
    "data",
    [
        head(2, MAX_BYTES - 4) + bytes(MAX_BYTES - 4),
        bytes(MAX_BYTES + 1),
        b"\xff" * (MAX_BYTES + 1),
        bytes(64 * MAX_BYTES),
    ],
    ids=["a string", "zeroes", "breaks", "many zeroes"],
)
def test_a_byte_more_is_refused_by_its_size_alone(data: bytes) -> None:
    assert verdict(data) == "size.envelope"


def test_arrays_decode_to_lists_and_maps_to_dicts() -> None:
    value = decode(bytes.fromhex("826161a161626163"))
    assert type(value) is list
    assert type(value[1]) is dict


# ------------------------------------------------------------------------------------- the first defect decides

FIRST = [
    ("821c18", "cbor.reserved"),
    ("82181c", "cbor.truncated"),
    ("8218011c", "cbor.shortest"),
    ("831bffffffffffffffff61ff", "cbor.integer"),
    ("8261ff1bffffffffffffffff", "cbor.utf8"),
    ("820018", "cbor.truncated"),
    ("8262c3", "cbor.truncated"),
    ("82f61c", "cbor.simple"),
    ("82c11c", "cbor.tag"),
    ("82f91c", "cbor.float"),
    ("a2616200616100ff", "cbor.key_order"),
    ("a261620061ff", "cbor.utf8"),
    ("a261620078016100", "cbor.shortest"),
    ("a26162006261", "cbor.truncated"),
    ("a261620001", "cbor.key_type"),
    ("a2616200", "cbor.truncated"),
    ("a2616200616018", "cbor.key_order"),
    ("a26161f6616100", "cbor.simple"),
    ("a26161006161f6", "cbor.duplicate_key"),
    ("a16161f600", "cbor.simple"),
    ("a1f90000", "cbor.float"),  # a key's head is of a kind before it is of a type
    ("a1c10000", "cbor.tag"),
    ("a1f600", "cbor.simple"),
    ("a11c", "cbor.reserved"),
    ("a1ff", "cbor.reserved"),
    ("a19fff00", "cbor.indefinite"),
    ("a118", "cbor.key_type"),  # and of a type before it has an argument
    ("a1180000", "cbor.key_type"),
    ("a141", "cbor.key_type"),
    ("a1994000", "cbor.key_type"),
    ("8000ff", "cbor.trailing"),
    ("81" * 8 + "9800", "cbor.shortest"),  # the head is read before it is judged too deep
    ("81" * 8 + "98", "cbor.truncated"),
    ("81" * 8 + "9f", "cbor.indefinite"),
    ("81" * 8 + "9c", "cbor.reserved"),
    ("81" * 8 + "f6", "cbor.simple"),
    ("81" * 8 + "1800", "cbor.shortest"),
    ("9b00000000ffffffff", "cbor.shortest"),
    ("82994000f6", "cbor.items"),
    ("82f6994000", "cbor.simple"),
    ("a16161b92000", "cbor.items"),
]


@pytest.mark.parametrize(("text", "code"), FIRST)
def test_of_two_defects_the_first_one_decides(text: str, code: str) -> None:
    assert verdict(bytes.fromhex(text)) == code


@pytest.mark.parametrize(("text", "code"), FIRST)
def test_the_reference_decoder_agrees_on_the_first_defect(text: str, code: str) -> None:
    assert reference_verdict(bytes.fromhex(text)) == code


@pytest.mark.parametrize(
    "data",
    [bytes.fromhex("a26161830102f4616282626869420102"), nested(8), head(4, 30) + bytes(30), b"\x1a\x00\x0f\x42\x40"],
    ids=lambda data: data[:8].hex(),
)
def test_every_proper_prefix_is_truncated(data: bytes) -> None:
    assert {verdict(data[:end]) for end in range(len(data))} == {"cbor.truncated"}


# -------------------------------------------------------------------------------------------------------- bombs

BOMBS = {
    "a nesting bomb of arrays": (b"\x81" * MAX_BYTES, "cbor.depth"),
    "a nesting bomb of maps": (b"\xa1\x61a" * (MAX_BYTES // 3), "cbor.depth"),
    "a nesting bomb of keys": (b"\xa1" * MAX_BYTES, "cbor.key_type"),
    "a nesting bomb of tags": (b"\xc1" * MAX_BYTES, "cbor.tag"),
    "a nesting bomb of indefinite arrays": (b"\x9f" * MAX_BYTES, "cbor.indefinite"),
    "an array of 2^63": (head(4, 2**63), "cbor.items"),
    "a map of 2^63": (head(5, 2**63), "cbor.items"),
    "an array of 2^64 - 1": (head(4, 2**64 - 1), "cbor.items"),
    "a map of 2^64 - 1": (head(5, 2**64 - 1), "cbor.items"),
    "a byte string of 2^63": (head(2, 2**63) + bytes(100), "cbor.truncated"),
    "a text of 2^63": (head(3, 2**63) + bytes(100), "cbor.truncated"),
    "a byte string of 2^32 - 1": (head(2, 2**32 - 1), "cbor.truncated"),
    "a mebibyte of empty maps": (head(4, MAX_BYTES - 5) + b"\xa0" * (MAX_BYTES - 5), "cbor.items"),
    "a mebibyte of empty maps in a row": (b"\xa0" * MAX_BYTES, "cbor.trailing"),
    "a mebibyte of empty maps in arrays": (
        head(4, 127) + (head(4, 8000) + b"\xa0" * 8000) * 127,
        "cbor.items",
    ),
    "colliding integer keys": (
        head(5, 8000) + b"".join(head(0, 2**61 - 1 + i * 2**61) + b"\x00" for i in range(8)),
        "cbor.key_type",
    ),
    "shared references": (
        bytes.fromhex("d81c82d81c82d81d00d81d00d81d01"),
        "cbor.tag",
    ),
    "shared references in an array": (
        head(4, 20) + b"\xd8\x1c\x80" + b"".join(b"\xd8\x1c" + head(4, 9) + 9 * b"\xd8\x1d\x00" for _ in range(19)),
        "cbor.tag",
    ),
    "an evil regular expression": (bytes.fromhex("d823") + head(3, 8) + b"(a+)+$ab", "cbor.tag"),
    "a bignum": (bytes.fromhex("c2") + head(2, 1000) + b"\xff" * 1000, "cbor.tag"),
    "a decimal with a great exponent": (bytes.fromhex("c4821b7fffffffffffffff01"), "cbor.tag"),
}


@pytest.mark.parametrize(("data", "code"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_in_little_memory(data: bytes, code: str) -> None:
    assert len(data) <= MAX_BYTES
    tracemalloc.start()
    try:
        found = verdict(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == code
    assert peak < 4 * MAX_BYTES


# ----------------------------------------------------------------------------------------------------- encoding


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class Int(int):
    pass


class Str(str):
    __slots__ = ()


class Bytes(bytes):
    pass


PLACES = pytest.mark.parametrize(
    "place",
    [lambda v: v, lambda v: [v], lambda v: [0, v], lambda v: {"a": v}, lambda v: [{"a": [v]}]],
    ids=["alone", "in a list", "second in a list", "in a dict", "deep"],
)

NOT_OF_THE_PROFILE = [
    None, 0.0, 1.0, -0.0, float("nan"), float("inf"), 1j, set(), {1}, frozenset(), bytearray(), bytearray(b"a"),
    memoryview(b"a"), Colour.RED, Number.ONE, Word.A, Int(1), Str("a"), Bytes(b"a"), decimal.Decimal(1),
    datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), datetime.date(2020, 1, 1), uuid.UUID(int=0), object(), int,
    ..., range(3), iter([]), {}.keys(), {}.values(), UserDict(), cbor2.undefined, cbor2.CBORTag(1, 0),
    cbor2.CBORSimpleValue(0), len,
]  # fmt: skip


@pytest.mark.parametrize("value", NOT_OF_THE_PROFILE, ids=lambda value: type(value).__name__)
@PLACES
def test_a_python_value_that_is_not_of_the_profile_is_refused(value: object, place: Callable[[object], object]) -> None:
    assert code_of(encode, place(value)) == "cbor.type"


@pytest.mark.parametrize("key", [0, True, b"a", None, 1.5, ("a",), frozenset(), Number.ONE, Word.A, Str("a")])
def test_a_key_that_is_not_plain_text_is_refused(key: object) -> None:
    assert code_of(encode, {key: 0}) == "cbor.key_type"


def test_keys_of_several_types_are_refused() -> None:
    assert code_of(encode, {"a": 0, 1: 0, b"b": 0}) == "cbor.key_type"


@pytest.mark.parametrize(
    "value",
    ["\ud800", "a\udfffb", "\ud83d\ude00", ["\udc80"], {"\ud800": 0}, {"a": "\ud800"}],
    ids=ascii,
)
def test_a_surrogate_is_refused(value: object) -> None:
    assert code_of(encode, value) == "cbor.utf8"


@pytest.mark.parametrize("value", [2**53, 2**63, 2**64 - 1, 2**64, 10**5000], ids=lambda value: value.bit_length())
@pytest.mark.parametrize("sign", [1, -1])
@PLACES
def test_a_great_integer_is_refused(value: int, sign: int, place: Callable[[object], object]) -> None:
    assert code_of(encode, place(sign * value)) == "cbor.integer"


@pytest.mark.parametrize("value", [2**53 - 1, 1 - 2**53, 0, -1, 2**32])
@PLACES
def test_an_integer_of_the_profile_is_encoded_wherever_it_stands(value: int, place: Callable[[object], object]) -> None:
    assert decode(encode(place(value))) == place(value)


def deep(depth: int, wrap: Callable[[object], object]) -> object:
    value = wrap(0)
    for _ in range(depth - 1):
        value = wrap(value)
    return value


WRAPS = {"lists": lambda v: [v], "dicts": lambda v: {"a": v}, "both": lambda v: [{"a": v}]}


@pytest.mark.parametrize("wrap", [WRAPS["lists"], WRAPS["dicts"]], ids=["lists", "dicts"])
def test_eight_containers_deep_encodes(wrap: Callable[[object], object]) -> None:
    value = deep(8, wrap)
    assert decode(encode(value)) == value


@pytest.mark.parametrize("depth", [9, 400, 1000, 20_000, 100_000])
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_deeper_is_refused_without_a_crash(wrap: Callable[[object], object], depth: int) -> None:
    assert code_of(encode, deep(depth, wrap)) == "cbor.depth"


@pytest.mark.parametrize("innermost", [[], {}], ids=["list", "dict"])
def test_an_empty_container_nine_deep_is_refused(innermost: object) -> None:
    value = innermost
    for _ in range(8):
        value = [value]
    assert code_of(encode, value) == "cbor.depth"


def test_a_list_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    assert code_of(encode, value) == "cbor.depth"


def test_a_dict_that_holds_itself_is_refused() -> None:
    value: dict[str, object] = {}
    value["a"] = [value]
    assert code_of(encode, value) == "cbor.depth"


def test_a_tuple_is_written_as_a_list() -> None:
    assert encode((1, ("a", ()))).hex() == encode([1, ["a", []]]).hex() == "820182616180"


def test_a_value_that_stands_twice_is_written_twice() -> None:
    shared = ["a"]
    assert encode([shared, shared]).hex() == "82816161816161"


def test_16384_items_encode() -> None:
    assert len(encode([0] * (MAX_ITEMS - 1))) == MAX_ITEMS + 2


@pytest.mark.parametrize(
    "value",
    [[0] * MAX_ITEMS, [[0] * 127] * 128, {f"{i}": 0 for i in range(8192)}, [[], [0] * (MAX_ITEMS - 2)]],
    ids=["a list", "many lists", "a dict", "an empty one first"],
)
def test_one_item_more_is_not_encoded(value: object) -> None:
    assert code_of(encode, value) == "cbor.items"


def test_a_few_lists_that_multiply_to_very_many_are_refused() -> None:
    value: object = 0
    for _ in range(8):
        value = [value] * 1000
    assert code_of(encode, value) == "cbor.items"


def test_one_mebibyte_encodes() -> None:
    assert len(encode(bytes(MAX_BYTES - 5))) == MAX_BYTES


@pytest.mark.parametrize(
    "value",
    [
        bytes(MAX_BYTES - 4),
        "a" * (MAX_BYTES - 4),
        "\u6c34" * (MAX_BYTES // 3),
        {"a" * MAX_BYTES: 0},
        [bytes(MAX_BYTES // 2)] * 2,
    ],
    ids=["bytes", "text", "text of few characters", "a key", "two halves"],
)
def test_a_byte_more_is_not_encoded(value: object) -> None:
    assert code_of(encode, value) == "size.envelope"


@pytest.mark.parametrize("long", ["a" * 500_000, b"a" * 500_000, {"a" * 500_000: 0}], ids=["text", "bytes", "a key"])
def test_a_long_string_that_stands_very_often_is_refused_in_little_memory(long: object) -> None:
    value = [long] * 100
    tracemalloc.start()
    try:
        code = code_of(encode, value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert code == "size.envelope"
    assert peak < 16 * MAX_BYTES


def test_the_order_in_which_a_dict_was_filled_does_not_show() -> None:
    names = ["", "b", "a", "aa", "z", "\u00fc", "Z", "ab", "\uffff", "\U00010000"]
    orders = itertools.islice(itertools.permutations(names), 0, None, 9973)
    assert len({encode(dict.fromkeys(order, 0)) for order in orders}) == 1


def test_keys_ascend_by_their_encoding_and_not_as_text() -> None:
    assert list(decode(encode({"aa": 0, "b": 0, "": 0}))) == ["", "b", "aa"]


def test_encoding_leaves_its_argument_alone() -> None:
    value = {"b": [1, {"d": 0, "c": 1}], "a": 2}
    before = repr(value)
    encode(value)
    assert repr(value) == before


# -------------------------------------------------------------------------------------------------- properties

scalars = (
    st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.integers(-70_000, 70_000)
    | st.booleans()
    | st.binary(max_size=40)
    | st.text(max_size=40)
)


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=26), inner, max_size=6)


@st.composite
def values(draw: st.DrawFn) -> object:
    """A value of the profile, sometimes with a stem that brings it to the greatest depth."""
    value = draw(st.recursive(scalars, containers, max_leaves=10) | st.lists(st.integers(0, 30), max_size=30))
    depth = depth_of(value)
    if depth <= 8 and draw(st.booleans()):
        for _ in range(draw(st.integers(0, 8 - depth))):
            value = draw(st.sampled_from([[value], {"k": value}]))
    return value


def depth_of(value: object) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 0


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid encoding with up to three bytes changed, put in, taken out, or with its end cut off or added to."""
    data = bytearray(encode(draw(values())))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "flip", "insert", "delete", "cut", "append"])):
            case "change" if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "delete":
                del data[at : at + draw(st.integers(1, 4))]
            case "cut":
                del data[at:]
            case "append":
                data += draw(st.binary(min_size=1, max_size=3))
    return bytes(data)


@st.composite
def heads(draw: st.DrawFn, major: int, argument: int) -> bytes:
    """A head that is mostly the shortest, sometimes longer."""
    shortest = len(head(major, argument)) - 1
    wider = draw(st.integers(0, 9)) == 0
    return head(major, argument, draw(st.sampled_from([w for w in (1, 2, 4, 8) if w >= shortest])) if wider else None)


@st.composite
def strings(draw: st.DrawFn, major: int) -> bytes:
    content = draw(st.text(max_size=4)).encode() if draw(st.integers(0, 7)) else draw(st.binary(max_size=4))
    return draw(heads(major, len(content))) + content


@st.composite
def sloppy(draw: st.DrawFn, depth: int = 0) -> bytes:
    """CBOR of any sort, well formed more often than not, but rarely of the profile."""
    kinds = ["integer", "integer", "bytes", "text", "boolean", "other"] + ["array", "map"] * (3 if depth < 10 else 0)
    match draw(st.sampled_from(kinds)):
        case "integer":
            argument = st.sampled_from([0, 23, 24, 255, MAX_INTEGER - 1, MAX_INTEGER, MAX_INTEGER + 1])
            return draw(heads(draw(st.integers(0, 1)), draw(argument)))
        case "bytes":
            return draw(strings(2))
        case "text":
            return draw(strings(3))
        case "boolean":
            return draw(st.sampled_from([b"\xf4", b"\xf5"]))
        case "array":
            items = draw(st.lists(sloppy(depth + 1), max_size=3))
            return draw(heads(4, len(items))) + b"".join(items)
        case "map":
            keys = draw(st.lists(strings(3) if draw(st.integers(0, 7)) else sloppy(depth + 1), max_size=3))
            if draw(st.booleans()):
                keys = sorted(set(keys))
            return draw(heads(5, len(keys))) + b"".join(key + draw(sloppy(depth + 1)) for key in keys)
        case _:
            return draw(st.sampled_from([b"\xf6", b"\xf9\x00\x00", b"\xc1\x00", b"\x1c", b"\x9f\xff", b"\xff", b""]))


any_bytes = st.binary(max_size=64) | mutated() | sloppy()


@given(values())
def test_decoding_undoes_encoding(value: object) -> None:
    decoded = decode(encode(value))
    assert typed(decoded) == typed(value)


@given(any_bytes)
@example(bytes.fromhex("a2617a0062616100"))
def test_encoding_undoes_decoding(data: bytes) -> None:
    try:
        value = decode(data)
    except EnvelopeError:
        return
    assert encode(value) == data


@given(st.binary(max_size=2000))
def test_any_byte_string_is_a_value_or_one_error(data: bytes) -> None:
    found = verdict(data)
    assert isinstance(found, str)


def typed(value: object) -> object:
    """`value` with every type written out, so that 1 is not True; the order of keys is let go."""
    match value:
        case list():
            return [typed(item) for item in value]
        case dict():
            return {key: typed(item) for key, item in value.items()}
    return type(value).__name__, value


# -------------------------------------------------------------------------------------- against the reference


def as_header(labels: dict[int, object]) -> bytes:
    return head(5, len(labels)) + b"".join(head(0, label) + encode(value) for label, value in sorted(labels.items()))


@given(any_bytes)
def test_the_reference_decoder_agrees_on_value_and_code(data: bytes) -> None:
    assert verdict(data) == reference_verdict(data)


@given(values())
def test_the_reference_decoder_reads_what_is_encoded(value: object) -> None:
    assert typed(reference_decode(encode(value))) == typed(value)


def disagreements(cases: Iterable[bytes]) -> list[tuple[str, str, str]]:
    return [
        (data.hex(), found, expected)
        for data in cases
        if (found := verdict(data)) != (expected := reference_verdict(data))
    ]


def test_all_strings_of_one_and_two_bytes_agree() -> None:
    assert not disagreements(bytes(pair) for size in (0, 1, 2) for pair in itertools.product(range(256), repeat=size))


def test_strings_of_three_bytes_agree_for_every_first_byte() -> None:
    second = [0x00, 0x01, 0x17, 0x18, 0x1C, 0x20, 0x40, 0x41, 0x60, 0x61, 0x62, 0x7F, 0x80, 0x81, 0xA0, 0xA1, 0xC1,
              0xC3, 0xE0, 0xF4, 0xF6, 0xF9, 0xFF]  # fmt: skip
    third = [0x00, 0x17, 0x18, 0x20, 0x40, 0x60, 0x61, 0x80, 0x81, 0xA0, 0xBF, 0xC0, 0xF5, 0xF8, 0xFF]
    assert not disagreements(bytes(three) for three in itertools.product(range(256), second, third))


def test_a_sample_of_all_strings_of_three_bytes_agrees() -> None:
    step = 211  # prime to 2^24, so that every byte takes every value at every place
    assert not disagreements(number.to_bytes(3, "big") for number in range(0, 2**24, step))


def test_short_strings_over_the_bytes_that_matter_agree() -> None:
    telling = [0x00, 0x18, 0x1B, 0x20, 0x41, 0x60, 0x61, 0x62, 0x78, 0x80, 0x81, 0x82, 0xA1, 0xA2, 0xC1, 0xF5, 0xF6]
    assert not disagreements(bytes(four) for four in itertools.product(telling, repeat=4))


def test_maps_of_three_keys_agree_in_every_order_and_repetition() -> None:
    keys = [b"\x60", b"\x61a", b"\x61b", b"\x62aa", b"\x62\xc3\xbc", b"\x78\x01a", b"\x61\xff", b"\x00", b"\x41a"]
    assert not disagreements(
        b"\xa3" + b"".join(key + b"\x00" for key in three) for three in itertools.product(keys, repeat=3)
    )


def test_every_head_agrees_at_every_depth() -> None:
    tails = [
        bytes.fromhex(t) for t in ("", "00", 8 * "00", "7f" + 7 * "ff", 8 * "ff", 2 * "00000001", "4000" + 6 * "00")
    ]
    assert not disagreements(
        stem * depth + bytes([first]) + tail
        for stem in (b"\x81", b"\xa1\x61a")
        for depth in (0, 1, 7, 8, 9)
        for first in range(256)
        for tail in tails
    )


def content(major: int, size: int) -> bytes:
    """What stands behind the head of a string of `size` bytes or a container of `size` items or pairs."""
    if major in (2, 3):
        return b"a" * size
    if major == 4:
        return b"\x00" * size
    names = sorted((f"{i:x}" if i else "" for i in range(size)), key=lambda name: (len(name), name))
    return b"".join(head(3, len(name)) + name.encode() + b"\x00" for name in names)


@pytest.mark.parametrize(
    "place", ["", "81", "8200", "a16161", "a260606161", "a16161a16161"], ids=lambda p: p or "alone"
)
@pytest.mark.parametrize("major", [2, 3, 4, 5], ids=["bytes", "text", "array", "map"])
def test_a_length_in_a_longer_form_is_refused_though_all_its_content_is_there(major: int, place: str) -> None:
    longer = [
        (size, width)
        for size in (0, 1, 22, 23, 24, 25, 254, 255, 256, 300)
        for width in (1, 2, 4, 8)
        if width >= len(head(major, size))
    ]
    found = [verdict(bytes.fromhex(place) + head(major, size, width) + content(major, size)) for size, width in longer]
    assert found == ["cbor.shortest"] * len(longer)


@pytest.mark.parametrize(
    "place", ["", "81", "8200", "a16161", "a260606161", "a16161a16161"], ids=lambda p: p or "alone"
)
@pytest.mark.parametrize("major", [2, 3, 4, 5], ids=["bytes", "text", "array", "map"])
def test_a_length_that_is_not_its_content_s_is_refused(major: int, place: str) -> None:
    stem = bytes.fromhex(place)
    for size in (0, 1, 22, 23, 24, 25, 254, 255, 256, 300):
        more, fewer = head(major, size + 1) + content(major, size), head(major, size) + content(major, size + 1)
        assert (size, verdict(stem + more)) == (size, "cbor.truncated")
        assert (size, verdict(stem + fewer)) == (size, "cbor.trailing")


@pytest.mark.parametrize("before", ["", "82", "a2616100", "81"], ids=lambda before: before or "alone")
@pytest.mark.parametrize("major", [0, 1], ids=["unsigned", "negative"])
def test_an_integer_in_a_longer_form_is_refused(major: int, before: str) -> None:
    stem = bytes.fromhex(before) + (b"\x61b" if before[:1] == "a" else b"")
    for argument in (0, 23, 24, 254, 255, 256, 2**16 - 1, 2**16, 2**32 - 1):
        for width in (1, 2, 4, 8):
            if width >= len(head(major, argument)):
                assert (argument, verdict(stem + head(major, argument, width))) == (argument, "cbor.shortest")


def test_every_first_byte_agrees_in_front_of_items_of_every_number() -> None:
    numbers = (0, 1, 22, 23, 24, 25, 96, 255, 256)
    bodies = [bytes.fromhex(item) * number for item in ("00", "60", "6161", "f5") for number in numbers]
    bodies += [content(5, number) for number in numbers]
    counts = [bytes.fromhex(count) for count in ("", "17", "18", "60", "0017", "0018", "00ff", "0100")]
    assert not disagreements(
        bytes([first]) + count + body for first in range(256) for count in counts for body in bodies
    )


def test_random_and_mutated_strings_agree() -> None:
    rng = random.Random(20_240_501)
    seeds = [bytes.fromhex(text) for text, _ in INSIDE + LIMITS] + [encode(message(rng)) for _ in range(100)]

    def cases() -> Iterator[bytes]:
        for _ in range(5_000):
            yield rng.randbytes(rng.randrange(3, 40))
        for _ in range(25_000):
            data = bytearray(rng.choice(seeds))
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(data) + 1)
                action = rng.randrange(5)
                if action == 0 and at < len(data):
                    data[at] = rng.randrange(256)
                elif action == 1 and at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
                elif action == 2:
                    data[at:at] = rng.randbytes(rng.randrange(1, 4))
                elif action == 3:
                    del data[at : at + rng.randrange(1, 4)]
                else:
                    data[at:] = rng.choice(seeds)
            yield bytes(data)

    assert not disagreements(cases())


def message(rng: random.Random) -> dict[str, object]:
    """A map much like a record's body."""
    words = ["v", "id", "to", "seq", "prev", "thread", "intent", "payload", "sent_at", "ext", "provenance", "receipts"]
    body: dict[str, object] = {"v": 1, "sent_at": rng.randrange(2**41), "prev": rng.randbytes(32)}
    for word in rng.sample(words, rng.randrange(len(words))):
        body[word] = rng.choice(
            [rng.randrange(2**16), "x" * rng.randrange(60), [rng.randbytes(32)], True, {"a.b": [-1]}]
        )
    return body


@given(any_bytes | st.dictionaries(st.integers(0, 70_000), scalars, max_size=4).map(as_header))
@example(bytes.fromhex("a3013204401060"))
@example(bytes.fromhex("a201320100"))
@example(bytes.fromhex("a204400132"))
@example(bytes.fromhex("a1616100"))
def test_the_reference_decoder_agrees_on_protected_headers(data: bytes) -> None:
    assert verdict(data, decode_header) == reference_verdict(data, UNSIGNED)


@given(any_bytes, st.binary(max_size=3), st.binary(max_size=3))
def test_an_item_is_read_from_the_midst_of_other_bytes(data: bytes, before: bytes, after: bytes) -> None:
    try:
        value = reference_decode(data)
    except Refused:
        return
    found, end = decode_prefix(before + data + after, len(before))
    assert (repr(found), end) == (repr(value), len(before + data))


# --------------------------------------------------------------------------------------------- against cbor2


class NoTags(dict[int, Any]):
    """Refuses every tag; without it cbor2 resolves shared references, compiles regular expressions, and more."""

    def __missing__(self, tag: int) -> Any:
        raise cbor2.CBORDecodeError(f"tag {tag}")


def walk(value: object, depth: int = 1) -> int:
    """The number of items of a value of the profile; `ValueError` for one outside it."""
    match value:
        case bool() | bytes() | str():
            return 1
        case int() if abs(value) <= MAX_INTEGER:
            return 1
        case list() if depth <= 8:
            return 1 + sum(walk(item, depth + 1) for item in value)
        case dict() if depth <= 8 and all(type(key) is str for key in value):
            return 1 + sum(1 + walk(item, depth + 1) for item in value.values())
    raise ValueError("outside the profile")


def cbor2_verdict(data: bytes) -> object:
    """The value that cbor2 reads, if it is of the profile and cbor2 would write it as the same bytes; else None."""
    try:
        value = cbor2.loads(data, semantic_decoders=NoTags())
        # With text keys only, cbor2's order (the shorter encoding first) is the profile's.
        if walk(value) > MAX_ITEMS or len(data) > MAX_BYTES or cbor2.dumps(value, canonical=True) != data:
            return None
    except (cbor2.CBORDecodeError, ValueError):
        return None
    return typed(value)


@given(values())
def test_cbor2_writes_the_same_bytes(value: object) -> None:
    assert encode(value) == cbor2.dumps(value, canonical=True)


@given(values())
def test_cbor2_reads_what_is_encoded(value: object) -> None:
    assert typed(cbor2.loads(encode(value), semantic_decoders=NoTags())) == typed(value)


@given(values())
def test_what_cbor2_writes_is_read(value: object) -> None:
    assert typed(decode(cbor2.dumps(value, canonical=True))) == typed(value)


@given(any_bytes)
def test_exactly_that_is_accepted_which_cbor2_reads_and_writes_again_within_the_profile(data: bytes) -> None:
    try:
        found = typed(decode(data))
    except EnvelopeError:
        found = None
    assert found == cbor2_verdict(data)


def test_cbor2_agrees_on_every_defect_of_the_tables() -> None:
    tables = [bytes.fromhex(text) for texts in REFUSED.values() for text in texts]
    assert [data.hex() for data in tables if cbor2_verdict(data) is not None] == []
