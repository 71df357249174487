"""`flow run`: a job of a program, run from the command line and watched."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import anyio
from envelope import Card, Identity
from flow import Agent, Confirm, Declined, Job, Limits, Machine, Plan, Step, Transition, local

author, reviewer = Identity.from_seed(bytes(32)), Identity.from_seed(bytes([1]) * 32)

async def act(record, call):
    print("acting", flush=True)
    await anyio.sleep({seconds})
    return record

async def restate(message):
    if {declines}:
        raise Declined("not today")
    await anyio.sleep({thinks})
    return "I agree"

def judge(message, ack):
    return Confirm()

plan = Plan([
    Step("build", target="b", payload="Build it"),
    Step("ship", target="c", payload="Ship it", needs=["build"]),
])
machine = Machine("a", [("a", "build", "b"), Transition("b", "ship", "c", on_entry=act)])
agent = Agent(author, Card.issue(author, name="author", capabilities=["x"]), plan)
job = Job(
    agent, machine, {{}}, peers={{"reviewer": local(reviewer, restate)}}, judge=judge, limits=Limits(max_bytes=100)
)
"""


def program(folder: Path, *, seconds: float = 0, declines: bool = False, thinks: float = 0) -> None:
    text = PROGRAM.format(seconds=seconds, declines=declines, thinks=thinks)
    (folder / "release.py").write_text(text, "utf-8")


def flow(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flow", *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
    return result


def test_a_job_is_run_to_its_end_with_the_verdict_and_what_an_auditor_gets(tmp_path: Path) -> None:
    program(tmp_path)
    result = flow(tmp_path, "run", "t", "--with", "release:job")
    assert result.returncode == 0
    told = ["build: delivered", "build: reviewer accepts, confirm", "build: succeeded, status b", "ship: delivered"]
    assert [line for line in result.stdout.splitlines() if line in told] == told
    assert "t: valid, sealed, outcome completed, trust trusted" in result.stdout
    export = result.stdout.splitlines()[-1].split()
    assert flow(tmp_path, *export[1:]).returncode == 0
    assert (tmp_path / "t.thread").exists()


def test_a_name_that_is_taken_is_refused_with_advice(tmp_path: Path) -> None:
    program(tmp_path)
    for code in (0, 2):
        result = flow(tmp_path, "run", "t", "--with", "release:job")
        assert result.returncode == code
    assert "there is a thread 't' in this store already: go on with its run by resuming it" in result.stderr


def test_a_run_that_is_declined_ends_with_5(tmp_path: Path) -> None:
    program(tmp_path, declines=True)
    result = flow(tmp_path, "run", "t", "--with", "release:job")
    assert (result.returncode, "run.rejected" in result.stderr, "sealed rejected" in result.stdout) == (5, True, True)


def test_with_json_every_line_is_a_cloudevent_and_the_last_one_says_how_it_ended(tmp_path: Path) -> None:
    program(tmp_path)
    text = (tmp_path / "release.py").read_text("utf-8")
    children = 'print("acting", flush=True); import subprocess; subprocess.run(["echo", "child"])'
    (tmp_path / "release.py").write_text(
        'print("imported")\n' + text.replace('print("acting", flush=True)', children), "utf-8"
    )
    result = flow(tmp_path, "run", "t", "--with", "release:job", "--json")
    assert sorted(result.stderr.split()) == ["acting", "child", "imported"]
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["type"] for event in events[:4]] == [
        "agent.message_delivered", "agent.message_acked", "machine.move", "flow.step_completed",
    ]  # fmt: skip
    assert len({event["id"] for event in events}) == len(events)
    assert (events[-1]["type"], events[-1]["data"]) == (
        "flow.run_ended",
        {"thread": "t", "outcome": "completed", "status": "c"},
    )


def test_ctrl_c_pauses_and_the_printed_command_goes_on(tmp_path: Path) -> None:
    program(tmp_path, seconds=60)
    command = [sys.executable, "-m", "flow", "run", "t", "--with", "release:job"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    while running.stdout.readline() != "acting\n":
        pass
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    again = said.splitlines()[-1].split()
    assert (running.returncode, again[:3]) == (130, ["flow", "resume", "t"])
    program(tmp_path)
    assert flow(tmp_path, *again[1:]).returncode == 0


def test_on_a_terminal_the_steps_are_shown_with_who_is_awaited_and_the_budget(tmp_path: Path) -> None:
    program(tmp_path, thinks=0.6)
    child, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "flow", "run", "t", "--with", "release:job"]
    running = subprocess.Popen(command, cwd=tmp_path, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(child, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(child)
    assert running.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "? build  asking  awaits reviewer for" in text
    assert "✓ ship  succeeded  c" in text
    assert "bytes 15 of 100  messages 2" in text
    assert "t: valid, sealed, outcome completed" in text


@pytest.mark.parametrize("command", ["run", "resume"])
def test_help_has_an_example_and_the_exit_codes(command: str, tmp_path: Path) -> None:
    out = flow(tmp_path, command, "--help").stdout
    assert (f"flow {command} release-1.4 --with release:job" in out, "Exit codes" in out) == (True, True)
