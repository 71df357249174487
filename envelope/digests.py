"""Compact memory of what a thread has used: digests, found by content and numbered in order."""

from array import array

from blake3 import blake3


class DigestTable:
    """A set of digests that remembers the order: `width` bytes a row, four a slot, at most two thirds of them used."""

    __slots__ = ("_mask", "_rows", "_slots", "_width", "count")

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows = bytearray()
        self._slots = array("I", bytes(4 * 64))
        self._mask = 63
        self.count = 0

    def __getitem__(self, row: int) -> bytes:
        return bytes(self._rows[row * self._width : (row + 1) * self._width])

    def find(self, digest: bytes) -> int:
        """Return the row of `digest`, or -1."""
        rows, slots, width, mask = self._rows, self._slots, self._width, self._mask
        slot = hash(digest) & mask  # keyed by the interpreter, so that nobody can choose digests that collide
        while row := slots[slot]:
            if rows[(row - 1) * width : row * width] == digest:
                return row - 1
            slot = (slot + 1) & mask
        return -1

    def add(self, digest: bytes) -> None:
        """Append a digest that is not there yet."""
        if 3 * self.count >= 2 * self._mask:
            self._grow()
        self._rows += digest
        self.count += 1
        slots, mask = self._slots, self._mask
        slot = hash(digest) & mask
        while slots[slot]:
            slot = (slot + 1) & mask
        slots[slot] = self.count

    def _grow(self) -> None:
        self._mask = mask = 2 * self._mask + 1
        self._slots = slots = array("I", bytes(4 * (mask + 1)))
        for row in range(self.count):
            slot = hash(self[row]) & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = row + 1


def short_digest(*parts: str) -> bytes:
    """Return the 16-byte digest by which an id or a path is remembered; two that collide can only be refused."""
    return blake3("/".join(parts).encode()).digest(16)
