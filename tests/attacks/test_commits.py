"""Commits in the caller's thread, and programs that end otherwise than a run does."""

import math
import sqlite3
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from flow import SqliteStore, Step
from flow.bus import ACK_DUE, Event
from flow.testing import Wait
from tests.flow.stage import Stage
from tests.flow.storing import begun, told
from tests.flow.test_cli_resume import PROGRAM, program, resume


@pytest.mark.anyio
@pytest.mark.parametrize("patience", [math.inf, 1e7])
async def test_patience_without_end_is_patience(tmp_path: Path, patience: float) -> None:
    path = tmp_path / "threads.db"
    writer = begun()
    async with SqliteStore(path, patience=patience) as store:
        head = await store.create("t", writer.records[0], b"begun")
        head = await store.commit("t", head, [told(writer, "m-0")])
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")

        async def let_go() -> None:
            await anyio.sleep(0.2)
            other.execute("ROLLBACK")
            other.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(let_go)
            head = await store.commit("t", head, [told(writer, "m-1")])
        assert await store.head("t") == head


@pytest.mark.parametrize(
    "text",
    [
        "def __getattr__(name):\n    raise ValueError('no')\n",
        "class Mute(Exception):\n    def __str__(self):\n        return 1\n\nraise Mute\n",
        "raise BaseException('x')\n",
        "import os, tempfile\nfolder = tempfile.mkdtemp()\nos.chdir(folder)\nos.rmdir(folder)\n1 / 0\n",
    ],
)
def test_a_program_that_gives_no_job_is_told_off_in_words(tmp_path: Path, text: str) -> None:
    program(tmp_path)
    (tmp_path / "release.py").write_text(text, "utf-8")
    code, _, err = resume(tmp_path)
    assert (code, err.startswith("error: cli.with: ")) == (2, True)


def test_a_folder_that_is_gone_is_told_of(tmp_path: Path) -> None:
    gone = "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d); from flow.cli import main; "
    call = "import sys; sys.argv = ['flow', 'resume', 't', '--with', 'release:job', '--store', '/nowhere']; main()"
    result = subprocess.run([sys.executable, "-c", gone + call], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.startswith("error: cli.with: ")) == (2, True), result.stderr


@pytest.mark.parametrize("ends", ["SystemExit(0)", "KeyboardInterrupt()", "asyncio.CancelledError()"])
def test_an_action_that_ends_its_process_leaves_a_run_to_be_resumed(tmp_path: Path, ends: str) -> None:
    program(tmp_path)
    fine = PROGRAM.format(answers="", dies=False, once=False)
    text = fine.replace("    return {**record", f"    import asyncio\n    raise {ends}\n    return {{**record")
    (tmp_path / "release.py").write_text(text, "utf-8")
    code, out, err = resume(tmp_path)
    again = "\n  flow resume t --with release:job --store threads.db\n"
    assert (code, again in out + err) == (130 if ends.startswith("Key") else 3, True)
    (tmp_path / "release.py").write_text(fine, "utf-8")
    assert resume(tmp_path)[0] == 0


@pytest.mark.anyio
@pytest.mark.rule("R63")
async def test_what_stops_a_reminder_stops_the_run_as_itself() -> None:
    class Stop(BaseException):
        pass

    def stop(event: Event) -> None:
        raise Stop

    stage = Stage(Step("s", target="b", payload="do it", ack_timeout=100), anna=[Wait(70), "late"])
    stage.bus.subscribe(stop, ACK_DUE)
    await stage.over_time(lambda: stage.fails(Stop))


def test_a_command_whose_output_nobody_reads_ends_without_a_word(tmp_path: Path) -> None:
    program(tmp_path)
    command = [sys.executable, "-m", "flow", "resume", "t", "--with", "release:job"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    said = running.stderr.read()
    running.stderr.close()
    assert (running.wait(60), said) == (141, b"")
    assert resume(tmp_path)[0] == 0
