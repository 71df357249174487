"""Commits as rows of a store's file: one row each, which says at which head it was made, and proves that it is what was
written.

A thread's rows are read from the last one back as far as is asked, so nothing besides them has to be looked up.
"""

import io
import sqlite3
import struct
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from blake3 import blake3

from envelope import EnvelopeError, Thread, address, open_envelope
from envelope.threadfile import divide
from flow.errors import StoreError
from flow.store import refusals
from flow.store.contract import Head, State

_COUNT_BITS: Final = 32
_NUMBERS: Final = struct.Struct(">7Q")
_NO_STATE: Final = (1 << 64) - 1


class Commit(NamedTuple):
    """A row.

    Attributes:
        id: the thread's number, and in 32 bits how many commits the thread had.
        place: how many records it had.
        seq, standing, states: the head that the commit was made at: the next seq, how many receipts and states.
        tip: the address of the last chain record, once it was made.
        records: its envelopes, one behind another as in a thread file.
        state: its entry of private state, or None.
        digest: the BLAKE3-256 of all this.
    """

    id: int
    place: int
    seq: int
    standing: int
    states: int
    tip: bytes
    records: bytes
    state: bytes | None
    digest: bytes

    @property
    def sound(self) -> bool:
        """Whether the row is what was written."""
        try:
            return _digest(self) == self.digest
        except (TypeError, struct.error):
            return False

    def divided(self) -> list[bytes]:
        """The envelopes one by one."""
        return [raw for _, raw in divide(io.BytesIO(self.records))]


class Standing:
    """Where a thread stands at the end of a row: its state machine, and how many entries of private state there are.

    Attributes:
        number: the thread's.
        last: the row's id; before the first row, one less than that one's.
        digest: the row's.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.thread = Thread()
        self.states = 0
        self.last = (number << _COUNT_BITS) - 1
        self.digest = b""

    @property
    def head(self) -> Head:
        """The same as the writers of the thread know it."""
        thread = self.thread
        return Head(thread.address, thread.tip, thread.seq, thread.standing, self.states)

    def extend(self, records: Sequence[bytes], state: bytes | None, given: int = 0) -> Commit:
        """Apply records, and return the row that they make.

        Args:
            records: envelopes.
            state: an entry of private state, or None.
            given: how many records were given before these, to name one that is refused.

        Raises:
            StoreError: `store.refused`. If it was not the first of the records, this is then of no more use.
        """
        thread = self.thread
        made_at = (thread.index, thread.seq, len(thread.standing), self.states)
        for number, raw in enumerate(records, given):
            try:
                thread.apply(open_envelope(raw))
            except EnvelopeError as error:
                raise refusals.broken(number, error) from error
        row = Commit(self.last + 1, *made_at, thread.tip, b"".join(records), state, b"")
        row = row._replace(digest=_digest(row))
        self._reach(row)
        return row

    def follow(self, row: Commit) -> None:
        """Apply a stored row.

        Raises:
            EnvelopeError: a record is not valid where it stands.
            ValueError: the row is not the next one, or not what was written.
        """
        thread = self.thread
        made_at = (thread.index, thread.seq, len(thread.standing), self.states)
        if not row.sound or (row.id, *row[1:5]) != (self.last + 1, *made_at):
            raise ValueError("is not what was written")
        for raw in row.divided():
            thread.apply(open_envelope(raw))
        if row.tip != thread.tip:
            raise ValueError("does not lead where it says")
        self._reach(row)

    def _reach(self, row: Commit) -> None:
        self.last, self.digest = row.id, row.digest
        self.states += row.state is not None


def write(connection: sqlite3.Connection, row: Commit) -> None:
    """Insert a row. Two commits at one head cannot both be stored, since their ids are the same."""
    connection.execute("INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def last(connection: sqlite3.Connection, number: int) -> tuple[int, bytes]:
    """Return the id and the digest of a thread's last row; of one without rows, what a new `Standing` has."""
    first, end = _span(number)
    query = "SELECT id, digest FROM commits WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
    return connection.execute(query, (first, end)).fetchone() or (first - 1, b"")


def catch_up(connection: sqlite3.Connection, standing: Standing) -> Standing:
    """Return where a thread stands in the file, by applying the rows that are new.

    Raises:
        StoreError: `store.corrupt`.
    """
    first, end = _span(standing.number)
    if standing.last >= first:
        query = "SELECT digest FROM commits WHERE id = ?"
        if connection.execute(query, (standing.last,)).fetchone() != (standing.digest,):
            standing = Standing(standing.number)  # the file was put back to an earlier copy of itself
    query = "SELECT * FROM commits WHERE id BETWEEN ? AND ? ORDER BY id"
    with closing(connection.execute(query, (standing.last + 1, end))) as rows:
        for row in map(Commit._make, rows):
            try:
                standing.follow(row)
            except (EnvelopeError, ValueError) as error:
                raise _damaged(connection, row.id, str(error)) from error
    if standing.last < first:
        raise _damaged(connection, first, "is missing")
    return standing


def find_made(
    connection: sqlite3.Connection, standing: Standing, at: Head, records: Sequence[bytes], state: bytes | None
) -> bool:
    """Whether a thread has a commit of these that was made at this head."""
    if at.thread != standing.thread.address or not standing.thread.find(at.tip) == at.seq - 1 >= 0:
        return False
    made_at = (at.seq, len(at.standing), at.state)
    query = (
        "SELECT * FROM commits WHERE id BETWEEN ? AND ? AND (seq, standing, states) <= (?, ?, ?) "
        "ORDER BY id DESC LIMIT 1"
    )
    row = Commit(*connection.execute(query, (*_span(standing.number), *made_at)).fetchone())
    if not row.sound or (row.seq, row.standing, row.states, row.state) != (*made_at, state):
        return False
    if row.divided() != list(records):
        return False
    stood = read_records(connection, standing.number, row.place - row.standing, before=row.id)
    return tuple(address(raw) for raw in stood) == at.standing


def read_first(connection: sqlite3.Connection, number: int) -> Commit:
    """Return the row that a thread began with."""
    (row,) = _backwards(connection, number, before=(number << _COUNT_BITS) + 1)
    return row


def read_records(connection: sqlite3.Connection, number: int, start: int, before: int | None = None) -> list[bytes]:
    """Return a thread's records from a place on, of the rows before an id if one is given.

    Raises:
        StoreError: `store.corrupt`.
    """
    parts: list[list[bytes]] = []
    with closing(_backwards(connection, number, before)) as rows:
        for row in rows:
            parts.append(row.divided()[max(start - row.place, 0) :])
            if row.place <= start:
                break
    return [raw for part in reversed(parts) for raw in part]


def read_states(connection: sqlite3.Connection, number: int, start: int) -> list[State]:
    """Return a thread's entries of private state from a number on.

    Raises:
        StoreError: `store.corrupt`.
    """
    states: list[State] = []
    with closing(_backwards(connection, number)) as rows:
        for row in rows:
            if row.states < start:
                break
            if row.state is not None:
                states.append(State(row.tip, row.state))
    states.reverse()
    return states


def _backwards(connection: sqlite3.Connection, number: int, before: int | None = None) -> Generator[Commit, None, None]:
    """Yield the rows of a thread from the last one to the first."""
    first, end = _span(number)
    query = "SELECT * FROM commits WHERE id BETWEEN ? AND ? ORDER BY id DESC"
    expected = None if before is None else before - 1
    with closing(connection.execute(query, (first, end if before is None else before - 1))) as rows:
        for row in map(Commit._make, rows):
            if expected is not None and row.id != expected:
                raise _damaged(connection, expected, "is missing")
            if not row.sound:
                raise _damaged(connection, row.id, "is not what was written")
            yield row
            expected = row.id - 1
    if expected != first - 1:
        raise _damaged(connection, first if expected is None else expected, "is missing")


def _span(number: int) -> tuple[int, int]:
    """Return the first and the last id that a row of a thread may have."""
    return number << _COUNT_BITS, (number + 1 << _COUNT_BITS) - 1


def _digest(row: Commit) -> bytes:
    length = _NO_STATE if row.state is None else len(row.state)
    numbers = _NUMBERS.pack(row.id, row.place, row.seq, row.standing, row.states, len(row.records), length)
    return blake3(b"".join((numbers, row.tip, row.records, row.state or b""))).digest()


def _damaged(connection: sqlite3.Connection, row: int, what: str) -> StoreError:
    _, _, path = connection.execute("PRAGMA database_list").fetchone()
    number, count = divmod(row, 1 << _COUNT_BITS)
    return StoreError(
        f"{path} is damaged: commit {count} of thread number {number} {what}: keep the file aside, and go on with a "
        "copy of before",
        code="store.corrupt",
    )
