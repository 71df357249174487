"""Runs against what they cannot do without: their signatures, their verifications, their bytes on disk.

Everything is measured in one process and one run, the parts taking turns; the medians count.
"""

import gc
import os
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from nacl.signing import SigningKey

from envelope import Card, Identity, Message
from flow import Agent, Confirm, Machine, MemoryStore, Plan, SqliteStore, Step, ThreadStore, local
from flow.bus import STEP_COMPLETED, Bus, Event
from flow.store import Head, State
from tests.bench.verify import PAYLOAD

Commit = tuple[Sequence[bytes], bytes | None]


def measure(steps: int, rounds: int) -> dict[str, float]:
    """Gated steps in memory and on SQLite, against three signatures and verifications, and three bare commits."""
    bare, memory, sqlite, commits = [], [], [], []
    gc.collect()
    gc.freeze()  # the modules that were imported are no work of a run's
    for _ in range(rounds):
        bare.append(three_signatures(steps))
        memory.append(anyio.run(gated_steps, steps, MemoryStore()))
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            store = Noting(SqliteStore(Path(folder) / "threads.db"))
            sqlite.append(anyio.run(gated_steps, steps, store))
            commits.append(bare_commits(Path(folder) / "bare.db", store.commits) / steps)
    return {
        "steps": steps,
        "memory_steps_per_s": 1 / statistics.median(memory),
        "sqlite_steps_per_s": 1 / statistics.median(sqlite),
        "signatures_per_step_s": statistics.median(bare),
        "commits_per_step_s": statistics.median(commits),
        "ratio_signatures": _ratio(memory, bare),
        "ratio_sqlite": _ratio(sqlite, [a + b for a, b in zip(bare, commits, strict=True)]),
    }


def _ratio(whole: Sequence[float], part: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(whole, part, strict=True))


def three_signatures(times: int) -> float:
    """Return the seconds that three signatures and three verifications take with PyNaCl."""
    key = SigningKey.generate()
    public = key.verify_key
    messages = [f"{number:04}".encode() + bytes(400) for number in range(3 * times)]
    start = time.perf_counter()
    for message in messages:
        public.verify(message, key.sign(message).signature)
    return (time.perf_counter() - start) / times


def bare_commits(path: Path, commits: Sequence[Commit]) -> float:
    """Return the seconds that the same bytes take in as many transactions of SQLite, synchronous and with a WAL."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bytes (number INTEGER PRIMARY KEY, data BLOB)")
    rows = [b"".join((*records, state or b"")) for records, state in commits]
    start = time.perf_counter()
    for row in rows:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO bytes (data) VALUES (?)", (row,))
        connection.execute("COMMIT")
    took = time.perf_counter() - start
    connection.close()
    return took


class Noting:
    """A store in front of another that notes what is committed."""

    def __init__(self, store: ThreadStore) -> None:
        self.commits: list[Commit] = []
        self._store: Any = store

    async def create(self, name: str, opening: bytes, state: bytes) -> Head:
        return await self._store.create(name, opening, state)  # type: ignore[no-any-return]

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        self.commits.append((records, state))
        return await self._store.commit(name, at, records, state)  # type: ignore[no-any-return]

    async def head(self, name: str) -> Head:
        return await self._store.head(name)  # type: ignore[no-any-return]

    async def read(self, name: str, start: int = 0) -> Sequence[bytes]:
        return await self._store.read(name, start)  # type: ignore[no-any-return]

    async def states(self, name: str, start: int = 0) -> Sequence[State]:
        return await self._store.states(name, start)  # type: ignore[no-any-return]

    async def names(self) -> Sequence[str]:
        return await self._store.names()  # type: ignore[no-any-return]

    async def adopt(self, name: str, records: Sequence[bytes], state: bytes = b"") -> Head:
        return await self._store.adopt(name, records, state)  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        await _closed(self._store)


async def gated_steps(steps: int, store: ThreadStore) -> float:
    """Return the seconds that a gated step takes, from the first to the last one completed."""
    completed: list[float] = []
    bus = Bus()

    def note(event: Event) -> None:
        completed.append(time.perf_counter())

    bus.subscribe(note, STEP_COMPLETED)
    await _run("bench", [Step(f"step-{n}", target=f"s{n + 1}", payload=PAYLOAD) for n in range(steps)], store, bus)
    await _closed(store)
    return (completed[-1] - completed[0]) / (steps - 1)


async def _run(name: str, steps: Sequence[Step], store: ThreadStore, bus: Bus | None = None) -> Any:
    author, reviewer = Identity.generate(), Identity.generate()
    rows = [(f"s{number}", "go", f"s{number + 1}") for number in range(len(steps))]
    agent = Agent(author, Card.issue(author, name="author", capabilities=["bench"]), Plan(steps))

    def restate(message: Message) -> str:
        return f"I agree to {message.id}"

    def judge(message: object, ack: object) -> Confirm:
        return Confirm()

    return await agent.run(
        name, Machine("s0", rows), {}, peers={"reviewer": local(reviewer, restate)}, judge=judge, store=store, bus=bus
    )


async def _closed(store: Any) -> None:
    if hasattr(store, "aclose"):
        await store.aclose()


# Steps without a gate


def measure_growth(few: int, many: int) -> dict[str, float]:
    """How time and bytes grow from a plan of `few` steps that are not gated to one of `many`."""
    figures: dict[str, float] = {"few": few, "many": many}
    for kind in ("memory", "sqlite"):
        (short, little), (long, much) = (_ungated(kind, steps) for steps in (few, many))
        figures |= {f"{kind}_time": long / short, f"{kind}_bytes": much / little}
    return figures


def _ungated(kind: str, count: int) -> tuple[float, int]:
    """Return the seconds and the bytes written of a run of that many steps without a gate."""
    steps = [Step(f"step-{number}", target=f"s{number + 1}", gate="none") for number in range(count)]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = Path(folder) / "threads.db"
        store = Noting(MemoryStore() if kind == "memory" else SqliteStore(path))

        async def run() -> None:
            await _run("ungated", steps, store)
            await _closed(store)

        written = _written()
        start = time.perf_counter()
        anyio.run(run)
        took = time.perf_counter() - start
        committed = sum(len(state or b"") + sum(map(len, records)) for records, state in store.commits)
        return took, _written() - written if kind == "sqlite" else committed


def _written() -> int:
    """Return how many bytes this process has handed to the system to write."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{os.getpid()}/io").read_text("ascii").splitlines())
    return int(fields["wchar"])


# Many runs at once


def measure_many(runs: int, steps: int) -> dict[str, float]:
    """The peak of memory of many runs in one process, each with a thread that is sealed and verified."""
    gc.collect()
    tracemalloc.start()
    completed = anyio.run(_many, runs, steps)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"runs": runs, "steps_each": steps, "completed": completed, "peak_kib_per_run": peak / 1024 / runs}


async def _many(runs: int, steps: int) -> int:
    store = MemoryStore()
    completed = 0
    waiting = anyio.Event()
    arrived = 0

    async def together() -> None:
        """Let no run go on before all have come as far as their first message."""
        nonlocal arrived
        arrived += 1
        if arrived == runs:
            waiting.set()
        await waiting.wait()

    async def one(number: int) -> None:
        nonlocal completed
        await _one_of_many(f"run-{number}", steps, store, together)
        completed += 1

    async with anyio.create_task_group() as group:
        for number in range(runs):
            group.start_soon(one, number)
    return completed


_MANY = {"author": Identity.generate(), "reviewer": Identity.generate()}


async def _one_of_many(name: str, count: int, store: ThreadStore, together: Callable[[], Awaitable[None]]) -> None:
    first = True

    async def restate(message: Message) -> str:
        nonlocal first
        if first:
            first = False
            await together()
        return f"I agree to {message.id}"

    def judge(message: object, ack: object) -> Confirm:
        return Confirm()

    steps = [Step(f"step-{number}", target=f"s{number + 1}", payload=PAYLOAD) for number in range(count)]
    rows = [(f"s{number}", "go", f"s{number + 1}") for number in range(count)]
    agent = Agent(_MANY["author"], Card.issue(_MANY["author"], name="author", capabilities=["bench"]), Plan(steps))
    peers = {"reviewer": local(_MANY["reviewer"], restate)}
    run = await agent.run(name, Machine("s0", rows), {}, peers=peers, judge=judge, store=store)
    assert run.thread.verify(trust=[who.public_key for who in _MANY.values()]).exit_code == 0
