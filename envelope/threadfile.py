"""Thread files: a CBOR sequence (RFC 8742) of the envelopes of one thread, read as a stream and written as a whole.

A record's extent is known from its heads, so that one over the limit is refused before it is read.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from envelope import cbor
from envelope.cose import MAX_ENVELOPE
from envelope.errors import EnvelopeError
from envelope.files import write_whole

_BLOCK: Final = 1 << 18
_HEADS: Final = 2 + 2 + 128 + 1 + 9


def read_records(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the bytes of each record of a file, without judging them.

    Bytes that cannot be divided into records are yielded as one last record (at most 1 MiB of them), and so is a
    record that the file's end cuts.

    Raises:
        EnvelopeError: `file.unreadable`; `size.envelope` at a record whose heads announce too much.
    """
    try:
        with Path(path).open("rb", buffering=0) as file:
            yield from divide(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise EnvelopeError("file.unreadable", f"{path}: {why}") from None


def divide(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of each record of a stream; as `read_records`, which names its file's errors."""
    buffer, at, base, ended = b"", 0, 0, False
    while True:
        wanted = _HEADS
        while True:
            if len(buffer) - at < wanted and not ended:
                block = file.read(max(_BLOCK, wanted - len(buffer) + at))
                ended = not block
                base += at
                buffer, at = buffer[at:] + block, 0
                continue
            if wanted > _HEADS or at == len(buffer):
                break
            wanted = _extent(buffer, at) or MAX_ENVELOPE
            if wanted > MAX_ENVELOPE:
                raise EnvelopeError(
                    "size.envelope", f"the heads announce a record of {wanted} bytes, more than {MAX_ENVELOPE}"
                )
            if len(buffer) - at >= wanted or ended:
                break
        if at == len(buffer):
            return
        extent = _extent(buffer, at) or _unusual(buffer[at : at + MAX_ENVELOPE])
        yield base + at, buffer[at : at + (extent or MAX_ENVELOPE)]
        if not extent:
            return
        at = min(at + extent, len(buffer))


def write_records(path: str | os.PathLike[str], records: Iterable[bytes], *, replace: bool = True) -> None:
    """Write records to a file as a whole or not at all; an existing one is replaced, or refused.

    Raises:
        EnvelopeError: `file.unreadable`; what stood at the path is then untouched.
    """
    try:
        write_whole(Path(path), records, replace=replace)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise EnvelopeError("file.unreadable", f"{path}: {why}; nothing was written") from None


def _extent(buffer: bytes, at: int) -> int:
    """Return the length of the record at `at` by its heads, or 0 where they are not those of an envelope."""
    heads = buffer[at : at + _HEADS]
    if heads[:2] != b"\xd2\x84":
        return 0
    end = 2
    for separator in (b"\xa0", b"\x58\x40"):
        if (head := _string_head(heads, end)) is None:
            return 0
        end = sum(head)
        if separator == b"\xa0":
            if heads[end : end + 1] != separator:
                return 0
            end += 1
    return end + 66


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
