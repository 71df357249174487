"""`flow threads`, `flow export` and `flow import`, run as commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from envelope import address_text, verify_file
from envelope.threadfile import write_records
from flow.store import SqliteStore
from tests.flow.storing import OWNER, PEER, ROOT, begun, told

COMMANDS = (["threads"], ["export", "t", "-o", "x.thread"], ["import", "x.thread"])


def flow(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "flow", *map(str, arguments)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def threads(cwd: Path) -> dict[str, dict[str, object]]:
    result = flow("threads", "--json", cwd=cwd)
    assert result.returncode == 0, result.stderr
    return {found["name"]: found for found in map(json.loads, result.stdout.splitlines())}


def held(path: Path) -> dict[str, int]:
    """Return how many records a store has of each of its threads."""

    async def count() -> dict[str, int]:
        async with SqliteStore(path, create=False) as opened:
            return {name: len(await opened.read(name)) for name in await opened.names()}

    return anyio.run(count)


def store(path: Path, *names: str) -> None:
    """Make a store with a thread of each name: a message, and an ack that stands."""

    async def make() -> None:
        async with SqliteStore(path) as opened:
            assert await opened.names() == []
            for name in names:
                writer = begun()
                message = writer.message(OWNER, "hello", "say it", to=[PEER.public_key])
                writer.ack(PEER, message, "understood")
                head = await opened.create(name, writer.records[0], b"begun")
                await opened.commit(name, head, writer.records[1:])

    anyio.run(make)


def test_threads_are_listed_with_how_they_stand(tmp_path: Path) -> None:
    store(tmp_path / "threads.db", "b")
    writer = begun("a")
    seal = writer.seal(OWNER, "cancelled")
    write_records(tmp_path / "a.thread", writer.records)
    assert flow("import", "a.thread", cwd=tmp_path).returncode == 0
    result = flow("threads", cwd=tmp_path)
    heading, a, b = (line.split() for line in result.stdout.splitlines())
    assert heading == ["NAME", "STATE", "RECORDS", "MESSAGES", "PENDING", "LAST", "TIP"]
    assert (a[:6], b[:5]) == (["a", "sealed", "cancelled", "2", "0", "0"], ["b", "open", "3", "1", "1"])
    found = threads(tmp_path)
    assert list(found) == ["a", "b"]
    assert found["a"] == {
        "name": "a", "state": "sealed", "outcome": "cancelled", "records": 2, "messages": 0, "pending": 0,
        "thread": address_text(writer.thread.address), "tip": address_text(seal.address),
        "sent_at": seal.record.sent_at,
    }  # fmt: skip
    assert (found["b"]["state"], found["b"]["outcome"]) == ("open", None)


def test_a_store_without_threads_says_so(tmp_path: Path) -> None:
    store(tmp_path / "threads.db")
    assert flow("threads", cwd=tmp_path).stdout == "threads.db holds no thread\n"
    assert threads(tmp_path) == {}


@pytest.mark.rule("S18")
def test_a_command_makes_no_store_that_is_not_there(tmp_path: Path) -> None:
    write_records(tmp_path / "x.thread", begun().records)
    for command in COMMANDS:
        for where in ([], ["--store", "missing/other.db"]):
            result = flow(*command, *where, cwd=tmp_path)
            assert (result.returncode, result.stdout) == (2, "")
            assert result.stderr.startswith("error: store.unreadable: ")
            assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.thread"]
    assert flow("import", "x.thread", "--create", cwd=tmp_path).returncode == 0
    assert held(tmp_path / "threads.db") == {"t": 1}


def test_a_file_that_is_no_store_ends_in_a_sentence(tmp_path: Path) -> None:
    write_records(tmp_path / "x.thread", begun().records)
    (tmp_path / "threads.db").write_text("no store " * 1000)
    for command in COMMANDS:
        result = flow(*command, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("error: store.foreign: threads.db: ")


def test_names_and_paths_are_shown_escaped(tmp_path: Path) -> None:
    name = "\x1b]0;owned\x07\u202e" + "x" * 10_000
    store(tmp_path / "threads.db", name)
    shown = flow("threads", cwd=tmp_path).stdout
    assert "\\x1b]0;owned\\x07\\u202exxx" in shown
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) < 250
    assert list(threads(tmp_path)) == [name]
    refused = flow("export", "\x1b[31m", "-o", "x.thread", cwd=tmp_path)
    assert (refused.returncode, "\x1b" in refused.stderr) == (2, False)


def test_a_damaged_thread_is_told_of_beside_the_others(tmp_path: Path) -> None:
    store(tmp_path / "threads.db", "a", "b", "c")
    content = (tmp_path / "threads.db").read_bytes()
    place = content.index(b"say it", content.index(b"say it") + 1)
    (tmp_path / "threads.db").write_bytes(content[:place] + b"!" + content[place + 1 :])
    result = flow("threads", "--json", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: b: store.corrupt: ")
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["a", "c"]
    assert flow("export", "b", "-o", "b.thread", cwd=tmp_path).returncode == 2
    assert not (tmp_path / "b.thread").exists()


# Export


@pytest.mark.rule("S18")
def test_an_exported_thread_is_the_file_that_the_printed_command_verifies(tmp_path: Path) -> None:
    writer = begun()
    told(writer, "hello")
    write_records(tmp_path / "x.thread", writer.records)
    flow("import", "x.thread", "--create", cwd=tmp_path)
    result = flow("export", "t", "-o", "it's.thread", cwd=tmp_path)
    assert result.returncode == 0
    assert (tmp_path / "it's.thread").read_bytes() == b"".join(writer.records)
    command = result.stdout.splitlines()[-1].strip()
    assert command.endswith("""envelope verify 'it'"'"'s.thread'""")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    verified = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "valid, open" in verified.stdout


@pytest.mark.rule("S18")
def test_export_overwrites_nothing_unless_it_is_told_to(tmp_path: Path) -> None:
    store(tmp_path / "threads.db", "t")
    (tmp_path / "x.thread").write_text("mine")
    refused = flow("export", "t", "-o", "x.thread", cwd=tmp_path)
    assert (refused.returncode, (tmp_path / "x.thread").read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    for out in (".", "missing/x.thread"):
        assert flow("export", "t", "--force", "-o", out, cwd=tmp_path).returncode == 2
    assert flow("export", "u", "--force", "-o", "x.thread", cwd=tmp_path).returncode == 2
    assert (tmp_path / "x.thread").read_text() == "mine"
    assert flow("export", "t", "--force", "-o", "x.thread", cwd=tmp_path).returncode == 0
    assert verify_file(tmp_path / "x.thread", trust=None).integrity == "valid"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["threads.db", "x.thread"]


# Import


@pytest.mark.rule("S11", "S18")
def test_an_imported_thread_is_left_alone_extended_or_refused(tmp_path: Path) -> None:
    writer = begun()
    for number in range(3):
        told(writer, f"m-{number}")
        write_records(tmp_path / f"{number}.thread", writer.records)
    other = begun()
    told(other, "m-0")
    write_records(tmp_path / "other.thread", other.records)

    def imported(file: str, *options: str) -> tuple[str, int]:
        result = flow("import", f"{file}.thread", *options, cwd=tmp_path)
        said = result.stderr.split(": ")[1] if result.returncode else result.stdout.split(";")[0]
        return said, held(tmp_path / "threads.db")["t"]

    assert imported("1", "--create") == ("3 records taken in as 't'", 3)
    assert imported("1") == ("0 records new: 't' is as the file has it", 3)
    assert imported("2") == ("1 records added", 4)
    assert imported("1") == ("store.conflict", 4)
    assert imported("other") == ("store.exists", 4)
    assert imported("other", "--name", "u") == ("2 records taken in as 'u'", 4)
    assert held(tmp_path / "threads.db") == {"t": 4, "u": 2}

    async def states() -> list[bytes]:
        async with SqliteStore(tmp_path / "threads.db") as opened:
            return [state.data for name in ("t", "u") for state in await opened.states(name)]

    assert anyio.run(states) == [b"imported", b"imported"]


@pytest.mark.rule("S18")
def test_a_thread_that_is_not_valid_is_not_imported(tmp_path: Path) -> None:
    store(tmp_path / "threads.db")
    writer = begun()
    told(writer, "hello")
    opening, message = writer.records
    for content in (
        [opening, message[:-1] + bytes([message[-1] ^ 1])],
        [opening, message, message],
        [opening, message[:-5]],
        [message],
        [b"garbage"],
        [],
    ):
        write_records(tmp_path / "bad.thread", content)
        result = flow("import", "bad.thread", cwd=tmp_path)
        assert result.returncode == 1, content
        assert result.stderr.startswith("error: bad.thread is invalid: ")
        assert result.stderr.endswith("\nNothing was taken in. Ask the sender for the file again.\n")
    assert flow("import", "missing.thread", cwd=tmp_path).returncode == 2
    assert held(tmp_path / "threads.db") == {}


@pytest.mark.parametrize("command", ["threads", "export", "import"])
def test_each_command_helps_with_an_example(tmp_path: Path, command: str) -> None:
    shown = flow(command, "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert f"Example: flow {command}" in shown.stdout
    assert "--store" in shown.stdout
