"""Whatever is wrong with a store's file or its disk is said in words, and what was stored stays what it was."""

import errno
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from flow.errors import StoreError
from flow.store import SqliteStore, commits, database
from tests.flow.storing import ROOT, begun, code, filled, told

pytestmark = pytest.mark.anyio


# What is wrong with the disk


@contextmanager
def no_larger(size: int) -> Iterator[None]:
    """Let no file grow beyond a size: a write that would fails in the system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.rule("S6", "S14")
async def test_a_commit_whose_write_fails_is_in_doubt_and_made_again(tmp_path: Path) -> None:
    writer, large = begun(), b"x" * 300_000
    async with SqliteStore(tmp_path / "threads.db") as store:
        with no_larger(60_000):
            assert await code(store.create("t", writer.records[0], large)) == "store.in_doubt"
        head = await store.create("t", writer.records[0], large)
        message = told(writer, "hello")
        for room in (400_000, 450_000, 500_000):
            with no_larger(room):
                assert await code(store.commit("t", head, [message], large * 2)) == "store.in_doubt"
                assert await store.head("t") == head
                assert await store.read("t") == writer.records[:1]
        head = await store.commit("t", head, [message], large * 2)
        assert (head.seq, head.state) == (2, 2)
        with no_larger(1_000_000):
            assert await code(store.adopt("u", writer.records, large * 4)) == "store.in_doubt"
        assert (await store.adopt("u", writer.records, large * 4)).seq == 2
        assert await store.read("t") == await store.read("u") == writer.records


@pytest.mark.rule("S14")
async def test_a_full_database_refuses_what_does_not_fit_and_goes_on_with_what_does(tmp_path: Path) -> None:
    _, head = await filled(tmp_path / "threads.db")
    async with SqliteStore(tmp_path / "threads.db") as store:
        await store.names()
        with store._database.use() as connection:
            connection.execute("PRAGMA max_page_count = 1")  # which SQLite takes for: as many as there are
        for _ in range(3):
            assert await code(store.create("u", begun().records[0], b"x" * 50_000)) == "store.full"
            assert await code(store.commit("t", head, [], b"x" * 50_000)) == "store.full"
            assert await code(store.adopt("u", [begun().records[0]], b"x" * 50_000)) == "store.full"
        assert await store.head("t") == head
        assert await store.names() == ["t"]
        head = await store.commit("t", head, [], b"small")
        assert head.state == 5


SCENE = """
import os, sys, anyio
from pathlib import Path
from flow.store import SqliteStore
from flow.errors import StoreError
from tests.flow.storing import begun, told, filled

async def codes(path, works):
    found = []
    async with SqliteStore(path, patience=0.5) as store:
        for work in works:
            try:
                await work(store)
                found.append("ok")
            except StoreError as error:
                found.append(error.code)
    return found
"""


def elsewhere(program: str, *arguments: object, prefix: tuple[str, ...] = ()) -> str:
    """Run a program in a process of its own, and return what it prints."""
    command = [*prefix, sys.executable, "-c", SCENE + textwrap.dedent(program), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.rule("S14")
def test_a_full_disk_refuses_a_commit_and_keeps_the_thread(tmp_path: Path) -> None:
    mount = ("unshare", "--mount", "--map-root-user")
    if subprocess.run([*mount, "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount a small disk")
    script = 'mount -t tmpfs -o size=400k none "$1" && shift && exec "$@"'
    program = """
        async def main(folder):
            writer, head = await filled(Path(folder, "threads.db"), 1)
            long = "x" * 60_000
            async with SqliteStore(Path(folder, "threads.db")) as store:
                for number in range(20):
                    message = told(writer, f"long-{number}", long)
                    try:
                        head = await store.commit("t", head, [message])
                    except StoreError as error:
                        code = error.code
                        break
                writer.records.pop()
                assert await store.head("t") == head
                assert await store.read("t") == writer.records
                Path(folder, "filler").unlink()
                await store.commit("t", head, [message])
                print(code, number > 0)
        Path(sys.argv[1], "filler").write_bytes(bytes(150_000))
        anyio.run(main, sys.argv[1])
    """
    assert elsewhere(program, tmp_path, prefix=(*mount, "sh", "-c", script, "sh", str(tmp_path))) == "store.full True"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach."""
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


READING = """
        async def main(path):
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            writer = begun()
            print(*await codes(path, [
                lambda store: store.read("t"),
                lambda store: store.head("t"),
                lambda store: store.create("u", writer.records[0], b"begun"),
                lambda store: store.names(),
            ]))
        anyio.run(main, sys.argv[1])
"""


@pytest.mark.rule("S14")
def test_a_read_only_file_is_read_and_not_written(open_folder: Path) -> None:
    path = open_folder / "threads.db"
    anyio.run(filled, path)
    path.chmod(0o444)
    assert elsewhere(READING, path) == "ok ok store.readonly ok"


@pytest.mark.rule("S14")
def test_a_file_in_a_read_only_folder_is_refused_in_words(open_folder: Path) -> None:
    path = open_folder / "threads.db"
    anyio.run(filled, path)
    path.chmod(0o444)
    open_folder.chmod(0o555)
    assert set(elsewhere(READING, path).split()) <= {"store.readonly", "store.unreadable"}
    assert set(elsewhere(READING, open_folder / "new.db").split()) == {"store.unreadable"}


@pytest.mark.rule("S14")
def test_a_file_that_is_somebody_elses_is_unreadable(open_folder: Path) -> None:
    path = open_folder / "threads.db"
    anyio.run(filled, path)
    path.chmod(0)
    assert set(elsewhere(READING, path).split()) == {"store.unreadable"}


@pytest.mark.rule("S14")
async def test_a_file_that_another_process_holds_is_locked_until_it_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    writer, head = await filled(path)
    hold = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN IMMEDIATE')"
    command = [sys.executable, "-c", f"{hold}; print(flush=True); input(); c.execute('ROLLBACK'); c.close()", str(path)]
    async with SqliteStore(path, patience=0.05) as store:
        async with await anyio.open_process(command) as other:
            assert other.stdout
            assert other.stdin
            await other.stdout.receive()
            for _ in range(2):
                assert await code(store.commit("t", head, [], b"state")) == "store.locked"
                assert await code(store.create("u", begun().records[0], b"begun")) == "store.locked"
                assert await code(store.adopt("u", begun().records)) == "store.locked"
            assert await store.head("t") == head
            assert await store.read("t") == writer.records
            await other.stdin.send(b"\n")
            await other.wait()
        assert (await store.commit("t", head, [], b"state")).state == 5


def test_every_system_error_has_a_text() -> None:
    assert {database._OF_THE_SYSTEM[number][0] for number in (errno.ENOSPC, errno.EROFS)} == {
        "store.full",
        "store.readonly",
    }


# Damage


async def contents(path: Path) -> tuple[Any, ...] | str:
    """Return all that a store tells of its thread, or the code with which it refuses to."""
    async with SqliteStore(path) as store:
        try:
            return tuple(await store.read("t")), tuple(await store.states("t")), await store.head("t")
        except StoreError as error:
            return error.code


DAMAGED = {"store.corrupt", "store.foreign", "store.version", "store.unknown"}


@pytest.mark.rule("S15")
def test_no_byte_of_a_file_can_change_what_is_read_without_being_noticed(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    anyio.run(filled, path)
    whole, right = path.read_bytes(), anyio.run(contents, path)
    found = set()
    for place in range(0, len(whole), 41):
        for bit in (0x01, 0x80):
            damaged = bytearray(whole)
            damaged[place] ^= bit
            path.write_bytes(damaged)
            result = anyio.run(contents, path)
            if result != right:
                assert result in DAMAGED, place
                found.add(result)
            for left in ("-wal", "-shm"):
                Path(f"{path}{left}").unlink(missing_ok=True)
    assert "store.corrupt" in found


@pytest.mark.rule("S15")
async def test_a_page_whose_search_misses_rows_that_are_there_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    async with SqliteStore(path) as store:
        head = await store.create("t", begun().records[0], b"begun")
        for _ in range(3):
            head = await store.commit("t", head, [], b"state")
        await store.create("u", begun("u").records[0], b"begun")
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'commits'").fetchone()
    whole = bytearray(path.read_bytes())
    pointers = (root - 1) * 4096 + 8  # two bytes for each row of a leaf, in the order of their ids
    for lost in (2, 3):
        whole[pointers + 2 * lost : pointers + 2 * lost + 2] = whole[pointers + 8 : pointers + 10]
    path.write_bytes(whole)
    assert await anyio.to_thread.run_sync(anyio.run, contents, path) in DAMAGED


@pytest.mark.rule("S15")
def test_a_page_that_leads_a_search_away_from_rows_that_are_there_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    anyio.run(filled, path, 40)
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'commits'").fetchone()
    whole = bytearray(path.read_bytes())
    page = (root - 1) * 4096
    first = page + int.from_bytes(whole[page + 12 : page + 14])  # four bytes name a page, then its greatest id follows
    assert (whole[page], whole[first + 4]) == (5, 0x90), "a page above leaves, and an id of thread 1"
    whole[first + 4] = 0xA0  # as if all of thread 1 stood on the first leaf
    path.write_bytes(whole)
    assert anyio.run(contents, path) in DAMAGED


@pytest.mark.rule("S15")
@pytest.mark.parametrize("moved", ["id + 1", "id + (1 << 32)", "id + (5 << 32)", "2 * id"])
async def test_a_last_row_that_went_to_another_thread_or_place_is_noticed(tmp_path: Path, moved: str) -> None:
    path = tmp_path / "threads.db"
    await filled(path)
    async with SqliteStore(path) as store:
        await store.create("u", begun("u").records[0], b"begun")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE commits SET id = {moved} WHERE id = (1 << 32) + 3")  # noqa: S608
    async with SqliteStore(path) as store:
        assert await code(store.head("t")) == "store.corrupt"


@pytest.mark.rule("S15")
def test_a_page_that_was_overwritten_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    anyio.run(filled, path, 40)
    whole, right = path.read_bytes(), anyio.run(contents, path)
    noticed = 0
    for page in range(4096, len(whole), 4096):
        for filling in (bytes(4096), b"\xff" * 4096, whole[:4096]):
            path.write_bytes(whole[:page] + filling + whole[page + 4096 :])
            result = anyio.run(contents, path)
            assert result == right or result in DAMAGED
            noticed += result != right
    assert noticed >= 3 * (len(whole) // 4096 - 2), "only the table behind the index of names is never looked at"


@pytest.mark.rule("S15")
def test_a_file_that_was_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    anyio.run(filled, path, 40)
    whole = path.read_bytes()
    for size in (1, 100, 4095, *range(4096, len(whole), 4096), len(whole) - 1):
        path.write_bytes(whole[:size])
        assert anyio.run(contents, path) in DAMAGED, size


@pytest.mark.rule("S15")
@pytest.mark.parametrize(
    "change",
    [
        {"records": lambda row, other: other.records},
        {"records": lambda row, other: row.records[:-1] + bytes([row.records[-1] ^ 1])},
        {"records": lambda row, other: b""},
        {"seq": lambda row, other: row.seq + 1},
        {"place": lambda row, other: row.place - 1},
        {"standing": lambda row, other: 1},
        {"states": lambda row, other: row.states - 1},
        {"tip": lambda row, other: other.tip},
        {"id": lambda row, other: row.id + 1},
    ],
)
async def test_a_stored_row_that_is_not_valid_where_it_stands_is_noticed(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "threads.db"
    writer, head = await filled(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rows = [commits.Commit(*row) for row in connection.execute("SELECT * FROM commits ORDER BY id")]
        forged = rows[-1]._replace(**{name: make(rows[-1], rows[-2]) for name, make in change.items()})
        forged = forged._replace(digest=commits._digest(forged))
        connection.execute("DELETE FROM commits WHERE id = ?", (rows[-1].id,))
        commits.write(connection, forged)
    async with SqliteStore(path) as store:
        for _ in range(2):
            assert await code(store.head("t")) == "store.corrupt"
            assert await code(store.commit("t", head, [], b"state")) == "store.corrupt"
            assert await code(store.adopt("t", writer.records)) == "store.corrupt"


@pytest.mark.rule("S15")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("column", ["records", "state"])
async def test_a_row_that_was_changed_is_not_given_out(tmp_path: Path, column: str, known: bool) -> None:
    path = tmp_path / "threads.db"
    await filled(path)
    async with SqliteStore(path) as store:
        if known:
            await store.head("t")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"UPDATE commits SET {column} = x'00' WHERE id = (SELECT min(id) FROM commits)")  # noqa: S608
        assert await code(store.states("t")) == "store.corrupt"
        assert await code(store.read("t")) == "store.corrupt"


@pytest.mark.rule("S15")
async def test_a_row_that_is_missing_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    await filled(path)
    for place in (2, 0):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("DELETE FROM commits WHERE id = (SELECT min(id) FROM commits) + ?", (place,))
        async with SqliteStore(path) as store:
            for asked in (store.read("t"), store.states("t"), store.head("t"), store.read("t", 1)):
                assert await code(asked) == "store.corrupt"


@pytest.mark.rule("S13", "S15")
async def test_a_file_that_is_put_back_to_an_earlier_copy_goes_on_from_there(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    writer, head = await filled(path)
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        live.backup(copy)
        async with SqliteStore(path) as store:
            later = await store.commit("t", head, [told(writer, "lost")], b"lost")
            copy.backup(live)
            assert await store.head("t") == head
            assert await code(store.commit("t", later, [], b"state")) == "store.conflict"
            assert (await store.commit("t", head, [], b"other")).state == head.state + 1
            assert len(await store.read("t")) == head.seq
