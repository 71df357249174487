"""Gated steps of a run on SQLite, against their signatures and as many bare commits of the same bytes."""

import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import anyio

from flow.store import SqliteStore
from tests.bench.run import gated_steps, three_signatures


def measure(steps: int, rounds: int) -> dict[str, float]:
    signatures, bare, gated, growth = [], [], [], 0.0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            path = Path(folder) / "threads.db"
            signatures.append(three_signatures(steps))
            gated.append(anyio.run(on_sqlite, steps, path))
            commits = stored(path)
            bare.append(bare_commits(commits, Path(folder) / "bare.db") / steps)
            growth = sum(size(row) for row in commits[len(commits) // 2 :]) / sum(map(size, commits))
    return {
        "steps": steps,
        "steps_per_s": 1 / statistics.median(gated),
        "step_us": 1e6 * statistics.median(gated),
        "signatures_per_step_us": 1e6 * statistics.median(signatures),
        "bare_commits_per_step_us": 1e6 * statistics.median(bare),
        "ratio_sqlite": statistics.median(
            step / (signed + made) for step, signed, made in zip(gated, signatures, bare, strict=True)
        ),
        "bytes_in_second_half": growth,
    }


async def on_sqlite(steps: int, path: Path) -> float:
    """Return the seconds that a gated step takes with a store in a file."""
    async with SqliteStore(path) as store:
        return await gated_steps(steps, store)


def stored(path: Path) -> list[tuple[bytes, bytes | None]]:
    """Return the records and the state of each commit that a store holds."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT records, state FROM commits ORDER BY id").fetchall()


def bare_commits(commits: list[tuple[bytes, bytes | None]], path: Path) -> float:
    """Return the seconds that inserting the same bytes takes, each in a transaction as durable as a store's."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE commits (id INTEGER PRIMARY KEY, records BLOB NOT NULL, state BLOB)")
        start = time.perf_counter()
        for commit in commits:
            connection.execute("INSERT INTO commits (records, state) VALUES (?, ?)", commit)
        return time.perf_counter() - start


def size(commit: tuple[bytes, bytes | None]) -> int:
    records, state = commit
    return len(records) + len(state or b"")
