"""Processes are killed before and after every commit and inside every function that a run calls; another one goes on,
and the thread, the result and the world outside are as if nothing had happened."""

import json
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from envelope import open_envelope
from envelope.threadfile import read_records
from flow.testing import differences

ROOT = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")  # noqa: S108 - where it is there, nothing waits for a disk; a killed process loses nothing there


class Left:
    """What the processes of one kill left in their folder."""

    def __init__(self, folder: Path) -> None:
        self.records = [raw for _, raw in read_records(folder / "thread")]
        self.run = json.loads((folder / "run").read_text())
        self.effects = self._lines(folder / "effects")
        self.doubts = self._lines(folder / "doubts")
        self.trail = self._lines(folder / "trail")
        self.calls = [line.rsplit(" ", 1) for line in self._lines(folder / "calls")]
        with closing(sqlite3.connect(folder / "threads.db")) as file:
            (self.commits,) = file.execute("SELECT count(*) FROM commits").fetchone()

    def _lines(self, path: Path) -> list[str]:
        return path.read_text().splitlines() if path.exists() else []


class Undisturbed(Left):
    """What a run left that nobody killed: its trail says what a kill falls into."""

    def kills(self) -> dict[str, int]:
        """Each kill there is to make, and how many lines of the trail come before it."""
        kills: dict[str, int] = {}
        counts: Counter[str] = Counter()
        for place, line in enumerate(self.trail):
            kind = line.split()[0]
            counts[kind] += 1
            if kind == "commit":
                kills[f"before commit {counts[kind]}"] = place
                kills[f"after commit {counts[kind]}"] = place + 1
            else:
                kills[f"in point {counts[kind]}"] = place
        return kills

    def cut_off(self, lines: int) -> bool:
        """Whether a firing is under way after so many lines: the last private state says that an attempt begins."""
        commits = [line.split()[-1] for line in self.trail[:lines] if line.startswith("commit")]
        noted = [last for last in commits if last in ("begun", "done", "fired", "attempt")]
        return noted[-1:] == ["attempt"]

    def paying(self, lines: int) -> bool:
        """Whether the last firing, of the step that is to run once, is the one under way."""
        attempts = [place for place, line in enumerate(self.trail) if line.endswith("attempt")]
        return self.cut_off(lines) and lines > attempts[-1]


@pytest.mark.rule("D13", "D4", "D7", "D8", "S9")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_whose_process_is_killed_anywhere_ends_as_if_it_had_not_been(backend: str) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as base:
        command = [sys.executable, "-m", "tests.flow.killable", base, backend]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        ends = json.loads(done.stdout)
        whole = Undisturbed(Path(base, "undisturbed"))
        assert_nothing_is_missed(whole, ends)
        for where, lines in whole.kills().items():
            left = Left(Path(base, where.replace(" ", "-")))
            assert (where, differences(whole.records, left.records)) == (where, [])
            assert (where, left.run) == (where, whole.run)
            if not whole.cut_off(lines):
                assert (where, left.records) == (where, whole.records)
            assert_each_effect_is_there_once(whole, left)
            assert_each_message_is_acked_once(left)
            assert (where, [line.split()[0] for line in left.doubts]) == (where, ["pay"] * whole.paying(lines))


def assert_nothing_is_missed(whole: Undisturbed, ends: dict[str, list[int]]) -> None:
    """Every kill was made, by SIGKILL, and went on to an end; and there are as many as there were commits and points,
    counted elsewhere: in the file, and in the thread."""
    kills = whole.kills()
    assert ends == {"undisturbed": [0, 0], **{where: [-9, 0] for where in kills}}
    assert sum(where.startswith("before commit") for where in kills) == whole.commits
    started = sum(entry.attempts or 0 for entry in settlements(whole))
    assert whole.trail.count("point act begins") == len(whole.calls) == started
    assert {line.split()[-1] for line in whole.trail} >= {"begun", "fired", "round", "done", "attempt", "sealed"}
    cut = Counter(whole.cut_off(lines) for lines in kills.values())
    assert min(cut[True], cut[False]) > 40


def assert_each_effect_is_there_once(whole: Left, left: Left) -> None:
    """The world was changed as it was in the undisturbed run, under the same keys, and no attempt has a number that
    another one of its action had."""
    assert sorted(left.effects) == sorted(whole.effects)  # the steps of a panel fire in any order
    assert len(set(left.effects)) == len(left.effects)
    assert {call for call, _ in left.calls} == {call for call, _ in whole.calls}
    assert len({(call, attempt) for call, attempt in left.calls}) == len(left.calls)


def assert_each_message_is_acked_once(left: Left) -> None:
    envelopes = [open_envelope(raw) for raw in left.records]
    asked = [(one.address, key) for one in envelopes if one.kind == "message" for key in one.record.to]
    confirmed = {one.record.ack for one in envelopes if one.kind == "ruling" and one.record.ruling == "confirm"}
    acked = [(one.record.message, one.signer) for one in envelopes if one.address in confirmed]
    assert sorted(acked) == sorted(asked)
    assert sum(one.kind == "ack" for one in envelopes) == len(asked) + 2  # two were corrected, once each


def settlements(left: Left) -> list[object]:
    return [entry for raw in left.records for entry in getattr(open_envelope(raw).record, "settled", None) or ()]
