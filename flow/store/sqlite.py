"""Threads in one SQLite file, which outlives the process and may be shared by several.

A commit is one row, so it writes what it brings and nothing else, however long the thread is (rule S7). What it may
append is decided by the thread's state machine, which is kept for the threads in use: under the file's write lock it is
brought up to the last row, whoever wrote that, by reading only the rows that are new.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar, checkpoint, checkpoint_if_cancelled

from envelope import address
from flow.errors import StoreError
from flow.store import refusals
from flow.store.commits import Standing, catch_up, find_made, last, read_first, read_records, read_states, write
from flow.store.contract import IMPORTED, Head, State, may_hold_up
from flow.store.database import Busy, Database

T = TypeVar("T")

_MOST_KNOWN: Final = 256
_ROW_BYTES: Final = 1 << 20
_FEW: Final = 16  # records, which are applied at once even where their signatures are still to be checked
_LITTLE: Final = 1 << 16  # bytes of a commit that is made at once


class SqliteStore:
    """A `ThreadStore` in one SQLite file; use it as an async context manager, or close it with `aclose`.

    Several stores and processes may have the same file open. A commit under way when its task is cancelled is made as a
    whole or not at all. A store is not to be used on both sides of a fork. A commit that has nothing to wait for is
    made in the caller's thread, since to hand it to another takes as long as the commit; all else is done in a worker.

    Besides what the contract names, anything may raise a StoreError of these codes: `store.full`; `store.readonly`;
    `store.locked`, another process holds the file for longer than `patience`; `store.corrupt`, the file is damaged, or
    a stored record is not valid where it stands; `store.foreign`, the file is no store; `store.version`, it is one of
    another version; `store.unreadable`, it cannot be opened, or the disk fails; `store.closed`.

    Args:
        path: of the file, beside which SQLite keeps two more, `-wal` and `-shm`, while it is open.
        create: whether a file that is not there is made.
        patience: how many seconds to wait for another process's commit.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True, patience: float = 10.0) -> None:
        self._database = Database(Path(path), create=create, patience=patience)
        self._known: dict[str, Standing] = {}
        self._turn: RunVar[anyio.CapacityLimiter] = RunVar("flow.store.sqlite")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the file, once a commit under way is made."""
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._database.close)

    async def create(self, name: str, opening: bytes, state: bytes) -> Head:
        return await self._do(lambda connection: self._create(connection, name, opening, state))

    async def adopt(self, name: str, records: Sequence[bytes], state: bytes = IMPORTED) -> Head:
        if not records:
            raise refusals.no_open()
        return await self._do(lambda connection: self._adopt(connection, name, records, state))

    async def head(self, name: str) -> Head:
        return await self._do(lambda connection: self._standing(connection, name).head)

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        await (checkpoint() if may_hold_up(at, records) else checkpoint_if_cancelled())
        if len(records) <= _FEW and sum(map(len, records)) + len(state or b"") <= _LITTLE:
            try:
                with self._database.use(wait=False) as connection:
                    return self._commit(connection, name, at, records, state, wait=False)
            except Busy:
                pass
        return await self._do(lambda connection: self._commit(connection, name, at, records, state))

    async def read(self, name: str, start: int = 0) -> Sequence[bytes]:
        return await self._do(lambda connection: self._read(connection, name, start))

    async def states(self, name: str, start: int = 0) -> Sequence[State]:
        return await self._do(lambda connection: read_states(connection, _number(connection, name), start))

    async def names(self) -> Sequence[str]:
        return await self._do(_names)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            turn = self._turn.get()
        except LookupError:
            turn = anyio.CapacityLimiter(1)  # so that those who wait do not hold the threads that others need
            self._turn.set(turn)
        return await to_thread.run_sync(self._done, work, limiter=turn)

    def _done(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._database.use() as connection:
            return work(connection)

    # With the connection to oneself. A thread that changes is forgotten until the change is durable: whatever fails in
    # between, what is known is what the file holds.

    def _create(self, connection: sqlite3.Connection, name: str, opening: bytes, state: bytes) -> Head:
        with self._database.transaction(connection):
            if (number := _find(connection, name)) is not None:
                first = read_first(connection, number)
                if (first.records, first.state) != (opening, state):
                    raise refusals.exists(name)
                return Head.first(address(opening))
            standing = Standing(_unused(connection))
            _begin(connection, name, standing.number)
            write(connection, standing.extend([opening], state))
        self._know(name, standing)
        return standing.head

    def _commit(
        self,
        connection: sqlite3.Connection,
        name: str,
        at: Head,
        records: Sequence[bytes],
        state: bytes | None,
        *,
        wait: bool = True,
    ) -> Head:
        if wait and name not in self._known:
            self._standing(connection, name)  # which may take long, before anybody is locked out
        with self._database.transaction(connection):
            standing = self._standing(connection, name, wait=wait)
            if at != standing.head:
                if not find_made(connection, standing, at, records, state):
                    raise refusals.moved_on(name)
                return at.after(records, state)
            if not records and state is None:
                return at
            index = standing.thread.index
            del self._known[name]
            try:
                row = standing.extend(records, state)
            except StoreError:
                if standing.thread.index == index:
                    self._know(name, standing)
                raise
            write(connection, row)
        self._know(name, standing)
        return standing.head

    def _read(self, connection: sqlite3.Connection, name: str, start: int) -> Sequence[bytes]:
        number = self._standing(connection, name).number  # a digest proves no record: what is given out was verified
        return read_records(connection, number, start)

    def _adopt(self, connection: sqlite3.Connection, name: str, records: Sequence[bytes], state: bytes) -> Head:
        number = _find(connection, name)
        if number is None:
            standing, stored = Standing(_unused(connection)), []
        else:
            standing, stored = self._standing(connection, name), read_records(connection, number, 0)
            if records[0] != stored[0]:
                raise refusals.exists(name)
            if list(records[: len(stored)]) != stored:
                raise refusals.departed(name)
            if len(records) == len(stored):
                return standing.head
        self._known.pop(name, None)
        before = standing.last, standing.digest
        rows = []  # before anybody is locked out, since to verify them may take long
        for given, part in _parts(records, len(stored)):
            final = number is None and given + len(part) == len(records)
            rows.append(standing.extend(part, state if final else None, given))
        with self._database.transaction(connection):
            if _find(connection, name) != number or last(connection, standing.number) != before:
                raise refusals.moved_on(name)
            if number is None:
                _begin(connection, name, standing.number)
            for row in rows:
                write(connection, row)
        self._know(name, standing)
        return standing.head

    def _standing(self, connection: sqlite3.Connection, name: str, *, wait: bool = True) -> Standing:
        """Return where a thread stands in the file now.

        Raises:
            Busy: there is something to be read first, and this is not to wait for that.
        """
        standing = self._known.get(name)
        if standing is not None and (standing.last, standing.digest) == last(connection, standing.number):
            return standing
        if not wait:
            raise Busy
        if standing is None:
            standing = Standing(_number(connection, name))
        self._known.pop(name, None)
        standing = catch_up(connection, standing)
        self._know(name, standing)
        return standing

    def _know(self, name: str, standing: Standing) -> None:
        self._known[name] = standing
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]


def _find(connection: sqlite3.Connection, name: str) -> int | None:
    """Return the number of a thread, or None if there is none of this name."""
    found = connection.execute("SELECT number FROM threads WHERE name = ?", (_encoded(name),)).fetchone()
    return None if found is None else int(found[0])


def _number(connection: sqlite3.Connection, name: str) -> int:
    number = _find(connection, name)
    if number is None:
        raise refusals.unknown(name)
    return number


def _unused(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("SELECT ifnull(max(number), 0) + 1 FROM threads").fetchone()
    return int(number)


def _begin(connection: sqlite3.Connection, name: str, number: int) -> None:
    connection.execute("INSERT INTO threads VALUES (?, ?)", (number, _encoded(name)))


def _names(connection: sqlite3.Connection) -> list[str]:
    names = [name for (name,) in connection.execute("SELECT name FROM threads")]
    if not all(isinstance(name, bytes) for name in names):
        raise sqlite3.DataError("a thread has a name that no store gives")
    return sorted(name.decode("utf-8", "surrogatepass") for name in names)


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _parts(records: Sequence[bytes], start: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the records from a place on in parts that fit a row, and the place of each."""
    part: list[bytes] = []
    size = 0
    for place in range(start, len(records)):
        if part and size + len(records[place]) > _ROW_BYTES:
            yield place - len(part), part
            part, size = [], 0
        part.append(records[place])
        size += len(records[place])
    yield len(records) - len(part), part
