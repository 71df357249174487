"""The file of a durable store: opened with care, laid out on first use, and every error of SQLite put in words.

One connection serves all threads of a process, one at a time. After an error that leaves open what the file holds, the
connection is closed, and the next use opens the file anew.
"""

import contextlib
import errno
import os
import secrets
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flow.errors import StoreError

APPLICATION_ID: Final = int.from_bytes(b"EFth", "big")
VERSION: Final = 1

_LAYOUT: Final = (
    "CREATE TABLE threads (number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE)",
    "CREATE TABLE commits (id INTEGER PRIMARY KEY, place INTEGER NOT NULL, seq INTEGER NOT NULL, "
    "standing INTEGER NOT NULL, states INTEGER NOT NULL, tip BLOB NOT NULL, records BLOB NOT NULL, state BLOB, "
    "digest BLOB NOT NULL)",
)
_ASTRAY: Final = (  # whether there are rows that the search for a thread's last one would not come by
    "SELECT 1 FROM (SELECT id >> 32 AS number, min(id) AS first, max(id) AS last, count(*) AS rows FROM commits "
    "GROUP BY number) WHERE first != number << 32 OR last - first + 1 != rows "
    "OR number NOT IN (SELECT number FROM threads) LIMIT 1"
)

_DAMAGED: Final = ("store.corrupt", "the file is damaged: keep it aside, and go on with a copy of before")
_LOCKED: Final = ("store.locked", "another process holds it locked: wait until that one is done, or end it")
_CODES: Final = {
    sqlite3.SQLITE_FULL: ("store.full", "the disk is full: make room, then go on"),
    sqlite3.SQLITE_READONLY: (
        "store.readonly",
        "it cannot be written: give write permission to the file and its folder, or take another store",
    ),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_ERROR: _DAMAGED,
    0: _DAMAGED,
    sqlite3.SQLITE_NOTADB: ("store.foreign", "this is no store of threads: choose another file"),
    sqlite3.SQLITE_TOOBIG: ("store.refused", "a commit is more than SQLite holds in one row: commit less at once"),
    sqlite3.SQLITE_CANTOPEN: (
        "store.unreadable",
        "it cannot be opened: see that the folder is there, that you may write to it, and that this is a file",
    ),
}
_UNREADABLE: Final = ("store.unreadable", "it cannot be read or written: see to the disk and the permissions")
_OF_THE_SYSTEM: Final = {
    errno.ENOSPC: _CODES[sqlite3.SQLITE_FULL],
    errno.EDQUOT: _CODES[sqlite3.SQLITE_FULL],
    errno.EROFS: _CODES[sqlite3.SQLITE_READONLY],
}
_QUICK: Final = 0.005  # seconds for which a commit may hold up whatever else its thread does
_LONGEST: Final = (2**31 - 1) // 1000  # seconds of patience, as far as SQLite counts
_ODD: Final = (UnicodeDecodeError, OverflowError, struct.error)  # of values that no store writes, or words about them
_KNOWN_FATE: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY)


class Busy(Exception):
    """Somebody else holds the file, or a commit takes long there: what was to be done at once is to be waited for."""


class Database:
    """A file of threads.

    Args:
        path: of the file.
        create: whether a file that is not there is made, for its owner's eyes only.
        patience: how many seconds to wait for another process's commit.
    """

    def __init__(self, path: Path, *, create: bool, patience: float) -> None:
        self.path = path
        self._create = create
        self._patience = min(patience, _LONGEST)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._waits = True
        self._is_slow = False
        self._closed = False

    @contextmanager
    def use(self, *, wait: bool = True) -> Iterator[sqlite3.Connection]:
        """Have the connection to oneself.

        Args:
            wait: whether this may take its time. Otherwise it is for one small commit, which is over at once.

        Raises:
            StoreError: what SQLite or the system refused, in words.
            Busy: there would be something to wait for; nothing was written.
        """
        if not wait and self._is_slow:
            raise Busy
        if not self._lock.acquire(blocking=wait):
            raise Busy
        try:
            if self._connection is None:
                if not wait:
                    raise Busy
                self._connection = self._open()
            self._let_wait(self._connection, wait)
            yield self._connection
        except (sqlite3.Error, *_ODD) as error:
            if not wait and _base(error) == sqlite3.SQLITE_BUSY:
                raise Busy from error
            if _base(error) not in _KNOWN_FATE:
                self._disconnect()
            raise self._in_words(error) from error
        except StoreError as error:
            if error.code == "store.in_doubt":
                self._disconnect()
            raise
        finally:
            self._lock.release()

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Make everything that is written inside durable together, or nothing of it.

        Raises:
            StoreError: `store.in_doubt`, the system failed so late that it may be either.
        """
        start = time.monotonic()
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
        except BaseException:
            _roll_back(connection)
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(connection)
            if _base(error) in _KNOWN_FATE:
                raise
            raise StoreError(
                f"{self.path}: whether the commit was made is not known ({error}): make it again",
                code="store.in_doubt",
            ) from error
        self._is_slow = time.monotonic() - start > _QUICK

    def close(self) -> None:
        """Close the file for good."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _let_wait(self, connection: sqlite3.Connection, wait: bool) -> None:
        if wait != self._waits:
            connection.execute(f"PRAGMA busy_timeout = {round(1000 * self._patience) if wait else 0}")
            self._waits = wait

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"{self.path}: the store was closed: open another one", code="store.closed")
        try:
            if not self.path.exists():
                if not self._create:
                    text = "there is no such store: name another one, or have it created"
                    raise StoreError(f"{self.path}: {text}", code="store.unreadable")
                _make(self.path)
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
        except OSError as error:
            code, text = _OF_THE_SYSTEM.get(error.errno or 0, ("store.unreadable", f"{error.strerror}: choose another"))
            raise StoreError(f"{self.path}: {text}", code=code) from error
        except ValueError as error:
            raise StoreError(f"{str(self.path)!r} is no path: {error}", code="store.unreadable") from error
        connection = _connect(uri, self._patience)
        self._waits = True
        try:
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        """See that the file is a store of this version in good order, and ask for all the durability there is.

        A row proves that it is what was written, not that it is the last one: where the pages are damaged, a search
        may miss rows, and a thread would look as it did before. So their order is gone through once, which takes far
        less than to verify what they hold. A file that is as it was at an earlier commit is in good order.
        """
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        if _answer(connection, "PRAGMA application_id") != APPLICATION_ID:
            raise StoreError(
                f"{self.path} is empty, or another program's database: choose another file", code="store.foreign"
            )
        if (version := _answer(connection, "PRAGMA user_version")) != VERSION:
            raise StoreError(
                f"{self.path} is a store of version {version}, and this program knows {VERSION}: use the program "
                "that made it, or a newer one",
                code="store.version",
            )
        layout = connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
        if layout != [(statement,) for statement in _LAYOUT]:
            raise StoreError(
                f"{self.path} has other tables than a store has: something has changed it; go on with a copy of before",
                code="store.corrupt",
            )
        if _answer(connection, "PRAGMA quick_check(1)") != "ok" or connection.execute(_ASTRAY).fetchone():
            raise StoreError(f"{self.path}: {_DAMAGED[1]} (it has commits that cannot be found)", code=_DAMAGED[0])
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # without which nothing is durable on macOS
        if _answer(connection, "PRAGMA journal_mode") != "wal":
            connection.execute("PRAGMA journal_mode = WAL")

    def _in_words(self, error: Exception) -> StoreError:
        code, text = _CODES.get(_base(error), _UNREADABLE)
        return StoreError(f"{self.path}: {text} ({error})", code=code)


def _make(path: Path) -> None:
    """Make an empty store, which nobody sees before it is complete; do nothing if another process was faster."""
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with contextlib.closing(_connect(draft.absolute().as_uri(), 0)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            for statement in _LAYOUT:
                connection.execute(statement)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        for suffix in ("", "-wal", "-shm"):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def _connect(uri: str, patience: float) -> sqlite3.Connection:
    # Threads take turns by the lock, so that SQLite need not object to a connection that another one made.
    return sqlite3.connect(uri, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)


def _base(error: Exception) -> int:
    """Return SQLite's primary result code; 0 where the error is Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _answer(connection: sqlite3.Connection, pragma: str) -> object:
    (answer,) = connection.execute(pragma).fetchone()
    return answer


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
