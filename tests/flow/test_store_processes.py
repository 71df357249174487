"""Processes that share a store's file, and that are killed while they write to it."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from envelope import open_envelope, verify_thread
from flow.store import Head, SqliteStore
from tests.flow.storing import ROOT, begun, filled

WRITING = """
import json, os, signal, sys
import anyio
from envelope import Identity, Message, Thread, open_envelope, sign_record
from flow.errors import StoreError
from flow.store import SqliteStore
from tests.flow.storing import OWNER, PEER, begun

def say(*words):
    print(*words, flush=True)

def message(thread, name):
    fields = {"id": name, "intent": "request", "epistemic": "assumed", "payload": "x" * 300, "to": (PEER.public_key,)}
    return sign_record(Message, OWNER, **thread.links(), **fields).raw

async def thread_in(store):
    head, thread = await store.head("t"), Thread()
    for raw in await store.read("t"):
        thread.apply(open_envelope(raw))
    return head, thread
"""

WRITER = (
    WRITING
    + """
path, deadly, times = sys.argv[1], sys.argv[2], int(sys.argv[3])

def die(statement):
    global times
    if statement.startswith(deadly):
        times -= 1
        if times == 0:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with SqliteStore(path) as store:
        await store.names()
        if deadly:
            store._database._connection.set_trace_callback(die)
        if "t" not in await store.names():
            await store.create("t", begun().records[0], b"begun")
        head, thread = await thread_in(store)
        say("open")
        while True:
            raw, state = message(thread, f"m-{head.seq}"), f"state-{head.state}".encode()
            at = [head.thread.hex(), head.tip.hex(), head.seq, head.state]
            say(json.dumps({"at": at, "record": raw.hex(), "state": state.hex()}))
            head = await store.commit("t", head, [raw], state)
            thread.apply(open_envelope(raw))
            say("made")

anyio.run(main)
"""
)


@contextmanager
def process(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def read_all(path: Path) -> tuple[list[bytes], list[bytes], Head]:
    """Return the records and states of a thread that must be whole, and its head."""

    async def read() -> tuple[list[bytes], list[bytes], Head]:
        async with SqliteStore(path) as store:
            states = [state.data for state in await store.states("t")]
            return list(await store.read("t")), states, await store.head("t")

    records, states, head = anyio.run(read)
    assert verify_thread(records, trust=None).integrity == "valid"
    assert states == [b"begun", *(f"state-{number}".encode() for number in range(1, len(records)))]
    assert (head.seq, head.state, head.tip) == (len(records), len(states), open_envelope(records[-1]).address)
    return records, states, head


def make_again(path: Path, said: str) -> Head:
    """Make a commit again that a process announced before it was killed."""
    commit = json.loads(said)
    thread, tip, seq, state = commit["at"]
    at = Head(bytes.fromhex(thread), bytes.fromhex(tip), seq, (), state)
    record, entry = bytes.fromhex(commit["record"]), bytes.fromhex(commit["state"])

    async def again() -> Head:
        async with SqliteStore(path) as store:
            head = await store.commit("t", at, [record], entry)
            assert head == at.after([record], entry) == await store.head("t")
            assert (await store.read("t", seq), (await store.states("t", state))[0].data) == ([record], entry)
            return head

    return anyio.run(again)


@pytest.mark.rule("S3", "S12")
@pytest.mark.parametrize("deadly", ["BEGIN IMMEDIATE", "SELECT id, digest", "INSERT INTO commits", "COMMIT"])
def test_a_process_that_is_killed_inside_a_commit_leaves_the_commits_before_it(tmp_path: Path, deadly: str) -> None:
    path = tmp_path / "threads.db"
    anyio.run(filled, path, 2)
    with process(WRITER, path, deadly, 4) as writer:
        said, errors = writer.communicate()
    assert writer.returncode == -signal.SIGKILL, errors
    lines = said.splitlines()
    assert lines[-1].startswith("{"), "it was killed in a commit that it had announced"
    assert Path(f"{path}-wal").exists()
    records, _, head = read_all(path)
    assert len(records) == 3 + lines.count("made")
    assert make_again(path, lines[-1]).seq == head.seq + 1
    assert len(read_all(path)[0]) == len(records) + 1


@pytest.mark.rule("S3", "S12")
@pytest.mark.parametrize("deadly", ["INSERT INTO threads", "INSERT INTO commits", "COMMIT"])
def test_a_process_that_is_killed_while_it_begins_a_thread_leaves_none(tmp_path: Path, deadly: str) -> None:
    path = tmp_path / "threads.db"
    with process(WRITER, path, deadly, 1) as writer:
        assert writer.communicate()[0] == ""
    assert writer.returncode == -signal.SIGKILL

    async def begin() -> None:
        async with SqliteStore(path) as store:
            assert await store.names() == []
            await store.create("t", begun().records[0], b"begun")

    anyio.run(begin)


@pytest.mark.rule("S6", "S12")
def test_whenever_a_process_is_killed_what_it_was_told_is_there(tmp_path: Path) -> None:
    path, made = tmp_path / "threads.db", 0
    chance = random.Random(7)
    for _ in range(12):
        with process(WRITER, path, "", 0) as writer:
            assert writer.stdout
            lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 12))]
            assert lines[0] == "open\n", writer.communicate()
            writer.kill()
            lines += writer.stdout.read().splitlines(keepends=True)
        made += lines.count("made\n")
        records = read_all(path)[0]
        announced = [line for line in lines if line.startswith("{") and line.endswith("}\n")]
        assert 1 + made <= len(records) <= 1 + made + (lines[-1] in announced)
        if announced:
            make_again(path, announced[-1])
        made = len(read_all(path)[0]) - 1
    assert made > 12


@pytest.mark.rule("S3", "S12")
def test_a_log_that_is_cut_or_damaged_anywhere_leaves_whole_commits(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    anyio.run(filled, path, 2)
    with process(WRITER, path, "BEGIN IMMEDIATE", 5) as writer:
        writer.communicate()
    base, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    whole = read_all(path)[0]
    found = set()
    for place in (*range(0, len(log), 509), len(log) - 1):
        for damaged in (log[:place], log[:place] + bytes([log[place] ^ 1]) + log[place + 1 :]):
            path.write_bytes(base)
            Path(f"{path}-shm").unlink(missing_ok=True)
            Path(f"{path}-wal").write_bytes(damaged)
            records = read_all(path)[0]
            assert records == whole[: len(records)]
            found.add(len(records))
    assert (len(whole), found) == (7, {3, 4, 5, 6})


ONE_OF_SEVERAL = (
    WRITING
    + """
path, mine, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

async def main():
    lost = 0
    async with SqliteStore(path) as store:
        say("ready")
        sys.stdin.readline()
        head, thread = await thread_in(store)
        for number in range(count):
            while True:
                raw = message(thread, f"{mine}-{number}")
                try:
                    head = await store.commit("t", head, [raw], mine.encode())
                    break
                except StoreError as error:
                    assert error.code == "store.conflict", error
                    lost += 1
                    head, thread = await thread_in(store)
            thread.apply(open_envelope(raw))
    say(lost)

anyio.run(main)
"""
)


@pytest.mark.rule("S4", "S13")
def test_processes_that_race_for_one_thread_each_append_all_they_have(tmp_path: Path) -> None:
    path, count = tmp_path / "threads.db", 15
    anyio.run(filled, path, 0)
    with (
        process(ONE_OF_SEVERAL, path, "a", count) as one,
        process(ONE_OF_SEVERAL, path, "b", count) as two,
        process(ONE_OF_SEVERAL, path, "c", count) as three,
    ):
        for running in (one, two, three):
            assert running.stdout
            assert running.stdout.readline() == "ready\n", running.communicate()
        for running in (one, two, three):
            assert running.stdin
            running.stdin.write("\n")
            running.stdin.flush()
        lost = [int(running.communicate()[0]) for running in (one, two, three)]
    assert [running.returncode for running in (one, two, three)] == [0, 0, 0]

    async def read() -> tuple[list[bytes], list[bytes]]:
        async with SqliteStore(path) as store:
            return list(await store.read("t")), [state.data for state in await store.states("t")]

    records, states = anyio.run(read)
    assert verify_thread(records, trust=None).integrity == "valid"
    ids = [open_envelope(raw).record.id for raw in records[1:]]
    for mine in ("a", "b", "c"):
        assert [name for name in ids if name[0] == mine] == [f"{mine}-{number}" for number in range(count)]
    assert states[1:] == [name[0].encode() for name in ids]
    assert sum(lost) > 0, "they did race"


BEGINNING = (
    WRITING
    + """
async def main():
    say("ready")
    sys.stdin.readline()
    async with SqliteStore(sys.argv[1]) as store:
        try:
            await store.create("t", begun().records[0], b"begun")
            say("begun")
        except StoreError as error:
            say(error.code)

anyio.run(main)
"""
)


@pytest.mark.rule("S4", "S13")
def test_of_processes_that_make_one_store_and_begin_one_thread_one_does(tmp_path: Path) -> None:
    with (
        process(BEGINNING, tmp_path / "threads.db") as one,
        process(BEGINNING, tmp_path / "threads.db") as two,
        process(BEGINNING, tmp_path / "threads.db") as three,
    ):
        for running in (one, two, three):
            assert running.stdout
            assert running.stdout.readline() == "ready\n", running.communicate()
        for running in (one, two, three):
            assert running.stdin
            running.stdin.write("\n")
            running.stdin.flush()
        said = [running.communicate()[0].strip() for running in (one, two, three)]
    assert sorted(said) == ["begun", "store.exists", "store.exists"]
    assert [path.name for path in tmp_path.iterdir()] == ["threads.db"]
    assert len(read_all(tmp_path / "threads.db")[0]) == 1
