"""Compact memory of what a thread has used: digests, found by content and numbered in order; texts, bounded."""

from array import array

from blake3 import blake3


class DigestTable:
    """A set of digests that remembers their order: `width` bytes a row, and four a slot of its index.

    A row is indexed at the next search: most threads never look back at their chain.
    """

    __slots__ = ("_indexed", "_mask", "_most", "_rows", "_slots", "_width", "count")

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows = bytearray()
        self._slots = array("I", bytes(4 * 64))
        self._mask = 63
        self._most = 42  # rows that the index takes before it grows
        self._indexed = 0
        self.count = 0

    def __getitem__(self, row: int) -> bytes:
        return bytes(self._rows[row * self._width : (row + 1) * self._width])

    def add(self, digest: bytes) -> None:
        """Append a digest that is not there yet."""
        self._rows += digest
        self.count += 1

    def find(self, digest: bytes) -> int:
        """Return the row of `digest`, or -1."""
        if self._indexed < self.count:
            self._index()
        rows, slots, width, mask = self._rows, self._slots, self._width, self._mask
        slot = hash(digest) & mask  # keyed by the interpreter, so that nobody can choose digests that collide
        while row := slots[slot]:
            if rows[(row - 1) * width : row * width] == digest:
                return row - 1
            slot = (slot + 1) & mask
        return -1

    def _index(self) -> None:
        """Index the rows that were added since; about two thirds of the slots are in use at most."""
        if self.count > self._most:
            while self.count > self._most:
                self._mask = 2 * self._mask + 1
                self._most = self._mask * 2 // 3
            self._slots = array("I", bytes(4 * (self._mask + 1)))
            self._indexed = 0
        slots, mask = self._slots, self._mask
        for row in range(self._indexed, self.count):
            slot = hash(self[row]) & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = row + 1
        self._indexed = self.count


def condensed(text: str) -> str:
    """Return what a text is remembered as: itself where it is shorter than 32 characters, else 32 hex digits."""
    return text if len(text) < 32 else blake3(text.encode()).hexdigest(16)
