"""No cut and no changed bit of a thread goes unseen.

Every positive vector is cut and flipped. A record is judged by itself up to its signature, so that two facts together
stand for the whole: a flipped record is refused wherever it is opened, and a thread with a refused record at any place
is refused there. Where a bit changes the bounds of a record, and for the small threads, the whole file is verified.

By default a part of the bits is tried, the same on every run; with ENVELOPE_EVERY_BIT=1 each of them. The few threads
of more than 64 KiB are tried in part either way.
"""

import os
import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from envelope.audit import verify_file, verify_thread
from envelope.cose import open_envelope, split
from envelope.errors import EnvelopeError
from envelope.verdict import ThreadVerdict
from tests.conformance import arguments, vectors

EVERY_BIT = os.environ.get("ENVELOPE_EVERY_BIT") == "1"
STRIDE = 67  # without a common factor with 8 and with the sizes of fields, so that every bit of a byte has its turn

POSITIVE = {name: vector["input"] for name, vector in sorted(vectors().items()) if "derive" not in vector}
RECORDS = {name: [bytes.fromhex(text) for text in given["records"]] for name, given in POSITIVE.items()}
LARGE = {name for name, records in RECORDS.items() if sum(map(len, records)) > 1 << 16}
COMMON = sorted(set(POSITIVE) - LARGE)
SMALLEST = "thread.smallest"
SMALL = [SMALLEST, "key.mixed-order", "thread.single"]


def verify(name: str, records: list[bytes]) -> ThreadVerdict:
    return verify_thread(records, **arguments(POSITIVE[name]))


def verify_bytes(name: str, data: bytes, path: Path) -> ThreadVerdict:
    path.write_bytes(data)
    return verify_file(path, **arguments(POSITIVE[name]))


def flipped(data: bytes, bit: int) -> bytes:
    return data[: bit >> 3] + bytes((data[bit >> 3] ^ 1 << (bit & 7),)) + data[(bit >> 3) + 1 :]


def heads(record: bytes) -> Iterator[int]:
    """Yield the offsets of the bytes from which a reader of files takes a record's bounds."""
    protected = 4 + record[3]
    width = {0x58: 2, 0x59: 3, 0x5A: 5}.get(record[protected + 1], 1)
    yield from (0, 1, 2, 3, protected, *range(protected + 1, protected + 1 + width), len(record) - 66, len(record) - 65)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "changed.thread"


# Cuts


@pytest.mark.parametrize("name", SMALL)
def test_a_file_cut_anywhere_is_torn_or_open(name: str, path: Path) -> None:
    data = b"".join(RECORDS[name])
    ends = set(accumulate(map(len, RECORDS[name])))
    for length in range(len(data)):
        verdict = verify_bytes(name, data[:length], path)
        if length == 0:
            assert (verdict.exit_code, verdict.code) == (1, "chain.no_open")
        elif length in ends:
            assert (verdict.exit_code, verdict.code) == (3, None)
        else:
            assert (verdict.exit_code, verdict.code) == (1, "file.torn")


@pytest.mark.parametrize("name", [*COMMON, *sorted(LARGE)])
def test_a_thread_cut_between_records_is_incomplete_and_cut_to_nothing_invalid(name: str) -> None:
    records = RECORDS[name]
    lengths = range(1, len(records)) if name in COMMON else sorted({1, 2, len(records) // 2, len(records) - 1})
    for length in lengths:
        verdict = verify(name, records[:length])
        assert (verdict.exit_code, verdict.integrity) == (3, "valid")
        assert verdict.completeness in ("open", "truncated")
    assert verify(name, []).exit_code == 1


@pytest.mark.parametrize("name", COMMON)
def test_a_record_cut_anywhere_is_refused_as_torn(name: str) -> None:
    for record in RECORDS[name]:
        for length in range(len(record)):
            with pytest.raises(EnvelopeError) as refused:
                split(record[:length])
            assert refused.value.code == "file.torn"


@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_large_record_cut_anywhere_is_refused_as_torn(name: str) -> None:
    record = max(RECORDS[name], key=len)
    for length in {*range(300), *range(300, len(record), 9973), *range(len(record) - 100, len(record))}:
        with pytest.raises(EnvelopeError) as refused:
            split(record[:length])
        assert refused.value.code == "file.torn"


# Flips


@pytest.mark.parametrize("name", SMALL)
def test_a_file_with_any_bit_flipped_is_refused(name: str, path: Path) -> None:
    data = b"".join(RECORDS[name])
    for bit in range(0, 8 * len(data), 1 if EVERY_BIT or name == SMALLEST else 13):
        assert verify_bytes(name, flipped(data, bit), path).exit_code == 1


@pytest.mark.parametrize("name", COMMON)
def test_a_record_with_any_bit_flipped_is_refused(name: str) -> None:
    position = sum(name.encode()) % STRIDE
    for record in RECORDS[name]:
        bits = 8 * len(record)
        for bit in range(bits) if EVERY_BIT else range(position % STRIDE, bits, STRIDE):
            with pytest.raises(EnvelopeError):
                open_envelope(flipped(record, bit))
        position += bits


@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_large_record_with_a_bit_flipped_is_refused(name: str) -> None:
    record = max(RECORDS[name], key=len)
    for bit in {
        *range(0, 4000, 7),
        *range(4000, 8 * len(record), 200_003),
        *range(8 * len(record) - 600, 8 * len(record), 7),
    }:
        with pytest.raises(EnvelopeError):
            open_envelope(flipped(record, bit))


@pytest.mark.parametrize("name", COMMON)
def test_a_thread_with_a_refused_record_at_any_place_is_refused_there(name: str) -> None:
    records = RECORDS[name]
    for index, record in enumerate(records):
        changed = [*records[:index], flipped(record, 8 * len(record) - 9), *records[index + 1 :]]
        verdict = verify(name, changed)
        assert verdict.exit_code == 1
        assert [f.index for f in verdict.findings if f.effect == "invalid"] == [index]


@pytest.mark.parametrize("name", COMMON)
def test_a_file_in_which_a_bit_of_a_record_s_bounds_is_flipped_is_refused(name: str, path: Path) -> None:
    data = b"".join(RECORDS[name])
    starts = [0, *accumulate(map(len, RECORDS[name]))]
    bits = [
        8 * (start + offset) + bit
        for start, record in zip(starts, RECORDS[name], strict=False)
        for offset in heads(record)
        for bit in range(8)
    ]
    for bit in bits if EVERY_BIT else random.Random(name).sample(bits, min(64, len(bits))):
        assert verify_bytes(name, flipped(data, bit), path).exit_code == 1


def test_a_file_with_a_bit_flipped_at_random_is_refused(path: Path) -> None:
    choice = random.Random(0)
    weights: list[Any] = [sum(map(len, RECORDS[name])) for name in COMMON]
    for name in choice.choices(COMMON, weights, k=20_000 if EVERY_BIT else 500):
        data = b"".join(RECORDS[name])
        assert verify_bytes(name, flipped(data, choice.randrange(8 * len(data))), path).exit_code == 1
