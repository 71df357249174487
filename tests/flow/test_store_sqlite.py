"""The store in a SQLite file keeps the contract, in one file of its own, however many use it."""

import os
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from envelope import verify_thread
from flow.errors import StoreError
from flow.store import SqliteStore, ThreadStore, database, sqlite
from flow.testing import ThreadStoreContract
from tests.flow.storing import OWNER, PEER, begun, code, filled, log_size, names_in, told

pytestmark = pytest.mark.anyio


@pytest.mark.rule("S2", "S3", "S4", "S6", "S8", "S10", "S11", "S13")
class TestSqliteStore(ThreadStoreContract):
    @pytest.fixture(autouse=True)
    async def _folder(self, tmp_path: Path) -> AsyncIterator[None]:
        self.path = tmp_path / "threads.db"
        self.opened: list[SqliteStore] = []
        yield
        for store in self.opened:
            await store.aclose()

    async def make_store(self) -> ThreadStore:
        store = SqliteStore(self.path)
        self.opened.append(store)
        return store

    async def reopen(self, store: ThreadStore) -> ThreadStore:
        return await self.make_store()


# The file


@pytest.mark.rule("S16")
async def test_its_files_are_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with SqliteStore(tmp_path / "threads.db") as store:
            await store.create("t", begun().records[0], b"begun")
            modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names_in(tmp_path)}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("threads.db", "threads.db-wal", "threads.db-shm"), 0o600)


@pytest.mark.rule("S16")
async def test_a_store_that_is_closed_leaves_one_file(tmp_path: Path) -> None:
    await filled(tmp_path / "threads.db")
    assert names_in(tmp_path) == ["threads.db"]


@pytest.mark.rule("S16")
async def test_a_file_is_made_only_if_it_may_be(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "threads.db", create=False) as store:
        assert await code(store.names()) == "store.unreadable"
    assert names_in(tmp_path) == []
    async with SqliteStore(tmp_path / "threads.db") as store:
        assert await store.names() == []
    async with SqliteStore(tmp_path / "threads.db", create=False) as store:
        await store.create("t", begun().records[0], b"begun")


@pytest.mark.rule("S16")
async def test_a_store_that_another_process_was_faster_to_make_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    writer, _ = await filled(path)
    database._make(path)
    assert names_in(tmp_path) == ["threads.db"]
    async with SqliteStore(path) as store:
        assert await store.read("t") == writer.records


def text_file(path: Path) -> None:
    path.write_text("no database " * 1000)


def empty_file(path: Path) -> None:
    path.touch()


def others_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE threads (number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE)")


def newer_store(path: Path) -> None:
    anyio.run(filled, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")


def changed_tables(path: Path) -> None:
    anyio.run(filled, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TRIGGER quiet BEFORE INSERT ON commits BEGIN SELECT RAISE(IGNORE); END")


@pytest.mark.rule("S14", "S16")
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (text_file, "store.foreign"),
        (empty_file, "store.foreign"),
        (others_database, "store.foreign"),
        (newer_store, "store.version"),
        (changed_tables, "store.corrupt"),
    ],
)
def test_a_file_that_is_no_store_of_this_version_is_refused_and_left_alone(
    tmp_path: Path, anyio_backend: str, make: Callable[[Path], None], expected: str
) -> None:
    path = tmp_path / "threads.db"
    make(path)
    before = path.read_bytes()

    async def refused() -> None:
        async with SqliteStore(path) as store:
            for _ in range(2):
                assert await code(store.names()) == expected
                assert await code(store.create("t", begun().records[0], b"begun")) == expected

    anyio.run(refused, backend=anyio_backend)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["threads.db"]


@pytest.mark.rule("S14")
async def test_a_path_that_leads_to_no_file_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing" / "threads.db", tmp_path, tmp_path / "file" / "threads.db", "nul\0byte", ""):
        async with SqliteStore(path) as store:
            assert await code(store.names()) == "store.unreadable"
    assert names_in(tmp_path) == ["file"]


async def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&b#%41 'x\n\udcff.db"
    writer, _ = await filled(path)
    assert names_in(tmp_path) == [path.name]
    async with SqliteStore(str(path)) as store:
        assert await store.read("t") == writer.records


async def test_a_store_that_was_closed_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "threads.db")
    await store.aclose()
    await store.aclose()
    assert await code(store.names()) == "store.closed"


async def test_any_text_is_a_name(tmp_path: Path) -> None:
    names = [
        "",
        "'; DROP TABLE threads; --",
        "nul\0byte",
        "x" * 1_000_000,
        "\udcff",
        "\U0001d518nï\u202ecode",
        "\n",
        "?",
        "a",
        "A",
    ]
    writers = {name: begun() for name in names}
    async with SqliteStore(tmp_path / "threads.db") as store:
        for name, writer in writers.items():
            await store.create(name, writer.records[0], name[:9].encode("utf-8", "surrogatepass"))
    async with SqliteStore(tmp_path / "threads.db") as store:
        assert list(await store.names()) == sorted(names)
        for name, writer in writers.items():
            assert await store.read(name) == writer.records
            assert (await store.states(name))[0].data == name[:9].encode("utf-8", "surrogatepass")
        with pytest.raises(StoreError) as raised:
            await store.head("y" * 1_000_000)
        assert (raised.value.code, len(str(raised.value)) < 200) == ("store.unknown", True)


# Growth


@pytest.mark.rule("S7")
@pytest.mark.parametrize("kind", ["states", "receipts"])
async def test_the_bytes_written_grow_with_the_commits_and_not_with_the_thread(tmp_path: Path, kind: str) -> None:
    path, writer = tmp_path / "threads.db", begun()
    messages = [writer.message(OWNER, f"m-{number}", "say it", to=[PEER.public_key]) for number in range(400)]
    if kind == "receipts":
        parts = [([writer.ack(PEER, message, "understood").raw], None) for message in messages]
    else:
        parts = [([], b"state") for _ in messages]
    written = []
    async with SqliteStore(path) as store:
        head = await store.adopt("t", writer.records[:401])
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM commits").fetchone()  # so that the log is kept from its beginning
            for records, state in parts:
                before = log_size(path)
                head = await store.commit("t", head, records, state)
                written.append(log_size(path) - before)
    assert max(len(head.standing), head.state) >= 400
    assert sum(written[200:]) <= 1.1 * sum(written[:200])
    assert sum(written) < 400 * 3 * 4200


@contextmanager
def statements_of(store: SqliteStore) -> Iterator[list[str]]:
    """Note what a store asks SQLite."""
    connection, asked = store._database._connection, []
    assert connection is not None
    connection.set_trace_callback(asked.append)
    yield asked
    connection.set_trace_callback(None)


@pytest.mark.rule("S7")
async def test_a_commit_asks_as_little_for_a_long_thread_as_for_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flow.store.database._QUICK", 1000.0)  # so that all commits are made in one thread
    path = tmp_path / "threads.db"
    for messages in (0, 30):
        path.unlink(missing_ok=True)
        await filled(path, messages)
        async with SqliteStore(path) as store:
            head = await store.commit("t", await store.head("t"), [], b"state")
            with statements_of(store) as asked:
                await store.commit("t", head, [], b"state")
            assert [statement.split(" ")[0] for statement in asked] == ["BEGIN", "SELECT", "INSERT", "COMMIT"]
            assert asked[1].endswith("LIMIT 1")


@pytest.mark.rule("S7", "S13")
async def test_what_another_store_appended_is_taken_in_by_reading_that_alone(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    writer, head = await filled(path, 10)
    async with SqliteStore(path) as one, SqliteStore(path) as two:
        assert await one.head("t") == head
        head = await two.commit("t", head, [told(writer, "new")])
        with statements_of(one) as asked:
            assert await one.head("t") == head
        (rows,) = [statement for statement in asked if "SELECT *" in statement]
        assert f"BETWEEN {(1 << 32) + 11} AND" in rows


async def test_a_thread_is_taken_in_by_rows_of_limited_size_and_read_from_any_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_ROW_BYTES", 1500)
    writer = begun()
    for number in range(12):
        writer.ack(
            PEER, writer.message(OWNER, f"m-{number}", "x" * (100 * number or 1), to=[PEER.public_key]), "understood"
        )
    async with SqliteStore(tmp_path / "threads.db") as store:
        await store.adopt("t", writer.records[:9])
        head = await store.adopt("t", writer.records)
        for start in range(len(writer.records) + 2):
            assert await store.read("t", start) == writer.records[start:]
        assert [state.data for state in await store.states("t")] == [b"imported"]
        assert (head.tip, head.standing) == (writer.thread.tip, writer.thread.standing)
    with closing(sqlite3.connect(tmp_path / "threads.db")) as connection:
        rows = [length for (length,) in connection.execute("SELECT length(records) FROM commits")]
    assert len(rows) > 6
    assert verify_thread(writer.records, trust=None).integrity == "valid"


async def test_threads_that_are_no_longer_in_use_are_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_MOST_KNOWN", 2)
    writers = {name: begun() for name in "abcde"}
    async with SqliteStore(tmp_path / "threads.db") as store:
        heads = {name: await store.create(name, writer.records[0], b"begun") for name, writer in writers.items()}
        for turn in range(2):
            for name, writer in writers.items():
                heads[name] = await store.commit(name, heads[name], [told(writer, f"m-{turn}")])
                assert len(store._known) <= 2
        for name, writer in writers.items():
            assert await store.read(name) == writer.records


# Durability


@pytest.mark.rule("S1", "S12")
async def test_a_commit_is_on_the_disk_when_it_returns_whatever_journal_the_file_had(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    writer, head = await filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    async with SqliteStore(path) as store:
        await store.commit("t", head, [told(writer, "hello")])
        with store._database.use() as connection:
            pragmas = ("journal_mode", "synchronous", "fullfsync")
            asked = [connection.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas]
    assert asked == ["wal", 2, 1]


# Others in between


@pytest.mark.rule("S13")
@pytest.mark.parametrize("new", [True, False])
async def test_a_thread_that_changes_while_a_copy_is_verified_is_not_taken_in(tmp_path: Path, new: bool) -> None:
    path = tmp_path / "threads.db"
    writer, head = begun(), None
    async with SqliteStore(path) as one, SqliteStore(path) as two:
        if not new:
            head = await one.create("t", writer.records[0], b"begun")
        told(writer, "hello")

        def meddle(statement: str) -> None:
            if statement == "BEGIN IMMEDIATE":
                with one._database._connection and two._database.use() as connection:
                    if new:
                        two._create(connection, "t", begun().records[0], b"other")
                    else:
                        two._commit(connection, "t", head, [], b"other")

        await one.names()
        assert one._database._connection is not None
        one._database._connection.set_trace_callback(meddle)
        assert await code(one.adopt("t", writer.records)) == "store.conflict"
        one._database._connection.set_trace_callback(None)
        assert len(await one.read("t")) == 1
        assert await one.head("t") == await two.head("t")


@pytest.mark.rule("S17")
@pytest.mark.parametrize("native", [True, False])
async def test_a_commit_under_way_when_its_task_is_cancelled_is_made_as_a_whole_or_not_at_all(
    tmp_path: Path, native: bool, anyio_backend_name: str
) -> None:
    path = tmp_path / "threads.db"
    writer, head = await filled(path)
    message = told(writer, "hello")
    async with SqliteStore(path) as store:
        await store.head("t")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            if native and anyio_backend_name == "asyncio":
                import asyncio

                task = asyncio.ensure_future(store.commit("t", head, [message], b"sent"))
                await anyio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                other.execute("ROLLBACK")
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(store.commit, "t", head, [message], b"sent")
                    await anyio.sleep(0.05)
                    tasks.cancel_scope.cancel()
                    other.execute("ROLLBACK")
        made = await store.commit("t", head, [message], b"sent")
        assert made == await store.head("t") == head.after([message], b"sent")
        assert await store.read("t") == writer.records
        assert len(await store.states("t")) == made.state
        await store.commit("t", made, [told(writer, "more")], b"more")


@pytest.mark.rule("S17")
@pytest.mark.parametrize("known", [True, False])
async def test_a_commit_that_was_cancelled_before_it_began_is_not_made(tmp_path: Path, known: bool) -> None:
    path = tmp_path / "threads.db"
    writer, head = await filled(path)
    async with SqliteStore(path) as store:
        if known:
            await store.head("t")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.commit("t", head, [], b"never")
        assert scope.cancelled_caught
        assert await store.head("t") == head
        assert await store.read("t") == writer.records


@pytest.mark.rule("S17")
async def test_a_store_is_closed_also_by_a_task_that_is_cancelled(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with SqliteStore(tmp_path / "threads.db") as store:
            await store.create("t", begun().records[0], b"begun")
            scope.cancel()
    assert names_in(tmp_path) == ["threads.db"]
    assert await code(store.names()) == "store.closed"


@pytest.mark.rule("S19")
@pytest.mark.parametrize("slow", [True, False])
async def test_after_a_commit_that_took_long_the_next_one_is_made_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr("flow.store.database._QUICK", -1.0 if slow else 1000.0)
    path = tmp_path / "threads.db"
    await filled(path)
    threads: set[int] = set()
    async with SqliteStore(path) as store:
        head = await store.commit("t", await store.head("t"), [], b"one")
        assert store._database._connection is not None
        store._database._connection.set_trace_callback(lambda statement: threads.add(threading.get_ident()))
        await store.commit("t", head, [], b"two")
        store._database._connection.set_trace_callback(None)
    assert (threading.get_ident() in threads, len(threads)) == (not slow, 1)


@pytest.mark.rule("S19")
@pytest.mark.parametrize(("size", "at_once"), [(1 << 16, True), ((1 << 16) + 1, False)])
async def test_a_large_commit_is_made_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, at_once: bool
) -> None:
    monkeypatch.setattr("flow.store.database._QUICK", 1000.0)
    path = tmp_path / "threads.db"
    await filled(path)
    threads: set[int] = set()
    async with SqliteStore(path) as store:
        head = await store.head("t")
        assert store._database._connection is not None
        store._database._connection.set_trace_callback(lambda statement: threads.add(threading.get_ident()))
        await store.commit("t", head, [], bytes(size))
        store._database._connection.set_trace_callback(None)
    assert threads == {threading.get_ident()} if at_once else threading.get_ident() not in threads


@pytest.mark.rule("S19")
async def test_commits_that_wait_for_a_lock_leave_threads_to_others(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    _, head = await filled(path)
    found: list[str] = []

    async def commit(store: SqliteStore, number: int) -> None:
        try:
            found.append(str((await store.commit("t", head, [], str(number).encode())).state))
        except StoreError as error:
            found.append(error.code)

    async with SqliteStore(path, patience=3) as store:
        await store.head("t")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tasks:
                for number in range(60):
                    tasks.start_soon(commit, store, number)
                await anyio.wait_all_tasks_blocked()
                assert await anyio.to_thread.run_sync(threading.get_ident) != threading.get_ident()
                other.execute("ROLLBACK")
    assert sorted(found) == [str(head.state + 1), *["store.conflict"] * 59]


def test_one_store_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    store, writer = SqliteStore(tmp_path / "threads.db"), begun()
    head = anyio.run(store.create, "t", writer.records[0], b"begun")
    for number, backend in enumerate(("asyncio", "trio", "asyncio")):
        head = anyio.run(store.commit, "t", head, [told(writer, f"m-{number}")], backend=backend)
    assert anyio.run(store.read, "t", backend="trio") == writer.records
    anyio.run(store.aclose)
