"""Thread files: a CBOR sequence (RFC 8742) of the envelopes of one thread, read as a stream and written as a whole.

A record's extent is known from its heads, so that one over the limit is refused before it is read.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from blake3 import blake3

from envelope import cbor
from envelope.cose import MAX_ENVELOPE
from envelope.errors import EnvelopeError
from envelope.files import write_whole

_BLOCK: Final = 1 << 18
_HEADS: Final = 2 + 2 + 128 + 1 + 9
_SIGNATURE_HEAD: Final = b"\x58\x40"


def read_records(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the bytes of each record of a file, without judging them.

    Reading ends with the first record whose outer structure is not that of an envelope: it is yielded by itself where
    it is well-formed, else with all that follows it, at most 1 MiB. So is a record that the file's end cuts.

    Raises:
        EnvelopeError: `file.unreadable`; `size.envelope` at a record whose heads announce too much.
    """
    try:
        with Path(path).open("rb", buffering=0) as file:
            yield from divide(file)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def divide(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of each record of a stream; as `read_records`, which names its file's errors."""
    stream = _Stream(file)
    while heads := stream.peek(_HEADS):
        extent = _announced(heads)
        if extent > MAX_ENVELOPE:
            raise EnvelopeError(
                "size.envelope", f"the heads announce a record of {extent} bytes, more than {MAX_ENVELOPE}"
            )
        record = stream.peek(extent)
        if not extent or (len(record) == extent and record[-66:-64] != _SIGNATURE_HEAD):
            rest = stream.peek(MAX_ENVELOPE)
            yield stream.offset, rest[: _unusual(rest) or len(rest)]
            return
        yield stream.offset, record
        stream.skip(len(record))


def write_records(path: str | os.PathLike[str], records: Iterable[bytes], *, replace: bool = True) -> None:
    """Write records to a file as a whole or not at all; an existing one is replaced, or refused.

    Raises:
        EnvelopeError: `file.unreadable`; what stood at the path is then untouched.
    """
    try:
        write_whole(Path(path), records, replace=replace)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, "; nothing was written") from None


def file_address(path: str | os.PathLike[str]) -> bytes:
    """Return the address of a file's bytes, read as a stream.

    Raises:
        EnvelopeError: `file.unreadable`.
    """
    digest = blake3()
    try:
        with Path(path).open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    return digest.digest()


class _Stream:
    """Bytes read ahead of a file, as far as they are needed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ahead = b""
        self._at = 0
        self.offset = 0

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the file's end."""
        while len(self._ahead) - self._at < size:
            block = self._file.read(max(_BLOCK, size))
            if not block:
                break
            self._ahead = self._ahead[self._at :] + block
            self._at = 0
        return self._ahead[self._at : self._at + size]

    def skip(self, size: int) -> None:
        """Leave the next `size` bytes behind."""
        self._at += size
        self.offset += size


def _unreadable(path: object, error: OSError | ValueError, more: str = "") -> EnvelopeError:
    why = error.strerror if isinstance(error, OSError) else error
    return EnvelopeError("file.unreadable", f"{path}: {why}{more}")


def _announced(heads: bytes) -> int:
    """Return the length that an envelope's heads announce, or 0 where they are not those of an envelope."""
    if heads[:2] != b"\xd2\x84" or (protected := _string_head(heads, 2)) is None:
        return 0
    middle = sum(protected)
    if heads[middle : middle + 1] != b"\xa0" or (payload := _string_head(heads, middle + 1)) is None:
        return 0
    return sum(payload) + 66


def _string_head(heads: bytes, at: int) -> tuple[int, int] | None:
    """Return where a byte string begins behind its head at `at`, and its length."""
    if at >= len(heads) or not 0x40 <= heads[at] <= 0x5B:
        return None
    info = heads[at] - 0x40
    if info < 24:
        return at + 1, info
    width = 1 << (info - 24)
    argument = heads[at + 1 : at + 1 + width]
    return (at + 1 + width, int.from_bytes(argument, "big")) if len(argument) == width else None


def _unusual(rest: bytes) -> int:
    """Return the length of a record that is well-formed but not shaped as an envelope, or 0."""
    try:
        return cbor.decode_prefix(rest, 1 if rest[:1] == b"\xd2" else 0)[1]
    except EnvelopeError:
        return 0
