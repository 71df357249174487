"""`flow run`: a job of a program, run from the command line and watched."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envelope import Identity

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


DOCUMENT = """
version = 1
judge = "judge"
agent = { name = "author", capabilities = ["x"], key = "author.pem" }
peers.reviewer = { handler = "restate", key_file = "reviewer.pem" }

[machine]
initial = "a"
rows = [
    { source = "a", trigger = "build", target = "b" },
    { source = "b", trigger = "ship", target = "c", on_entry = "act" },
]

[[steps]]
id = "build"
target = "b"
payload = "Build it"

[[steps]]
id = "ship"
target = "c"
payload = "Ship it"
needs = ["build"]
"""


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """A folder, `my agent`, with a document and keys, in the folder of the program that has the code."""
    folder = tmp_path / "my agent"
    folder.mkdir()
    (folder / "agent.toml").write_text(DOCUMENT, "utf-8")
    for who in ("author", "reviewer"):
        Identity.generate().save(folder / f"{who}.pem")
    return folder


def with_registry(folder: Path, **how: float) -> None:
    program(folder, **how)
    with (folder / "release.py").open("a") as file:
        file.write("registry = {'act': act, 'restate': restate, 'judge': judge}\n")


@pytest.mark.parametrize(("more", "name"), [([], "author"), (["--name", "t"], "t")])
def test_a_document_is_run_under_its_agents_name_or_the_one_given(
    described: Path, tmp_path: Path, more: list[str], name: str
) -> None:
    with_registry(tmp_path)
    done = flow(tmp_path, "run", "my agent/agent.toml", "--with", "release:registry", *more)
    assert (done.returncode, f"{name}: valid, sealed, outcome completed" in done.stdout) == (0, True), done.stderr
    exported = done.stdout.splitlines()[-1].split()
    assert exported[:3] == ["flow", "export", name]
    assert flow(tmp_path, *exported[1:]).returncode == 0
    again = flow(tmp_path, "run", "my agent/agent.toml", "--with", "release:registry", *more)
    assert (again.returncode, "store.exists" in again.stderr or "taken" in again.stderr) == (2, True), again.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_document_that_is_cut_off_goes_on_with_the_same_document(
    described: Path, tmp_path: Path, how: signal.Signals
) -> None:
    with_registry(tmp_path, seconds=60)
    arguments = ["run", "my agent/agent.toml", "--with", "release:registry", "--name", "t"]
    running = subprocess.Popen(
        [sys.executable, "-m", "flow", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    while running.stdout.readline() != "acting\n":
        pass
    running.send_signal(how)
    _, said = running.communicate(timeout=60)
    again = ["flow", "resume", "t", "--agent", "my agent/agent.toml", "--with", "release:registry"]
    if how == signal.SIGINT:
        assert (running.returncode, shlex.split(said.splitlines()[-1])[:7]) == (130, again)
    with_registry(tmp_path)
    done = flow(tmp_path, *again[1:])
    assert (done.returncode, "Completed in status c" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("command", ["run", "resume"])
def test_what_is_wrong_with_a_document_is_said_with_its_line_and_nothing_is_begun(
    described: Path, tmp_path: Path, command: str
) -> None:
    with_registry(tmp_path)
    (described / "agent.toml").write_text(DOCUMENT.replace('"act"', '"acts"'), "utf-8")
    given = ["my agent/agent.toml"] if command == "run" else ["t", "--agent", "my agent/agent.toml"]
    done = flow(tmp_path, command, *given, "--with", "release:registry")
    assert (done.returncode, list(tmp_path.glob("*.db"))) == (2, [])
    assert "agent.toml, line 11" in done.stderr
    assert "agent.name" in done.stderr


def test_a_registry_without_its_document_and_a_job_with_one_are_told_of(described: Path, tmp_path: Path) -> None:
    with_registry(tmp_path)
    for command in ("run", "resume"):
        done = flow(tmp_path, command, "t", "--with", "release:registry")
        assert (done.returncode, "name the document too" in done.stderr) == (2, True)
    done = flow(tmp_path, "run", "my agent/agent.toml", "--with", "release:job")
    assert (done.returncode, "give the thread's name instead" in done.stderr) == (2, True)


def test_a_thread_has_one_name(tmp_path: Path) -> None:
    program(tmp_path)
    done = flow(tmp_path, "run", "t", "--with", "release:job", "--name", "u")
    assert (done.returncode, "--name" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("run", "flow run agent.toml --with stocktaking:registry --name stock-1"),
        ("resume", "flow resume release-1.4 --with release:job"),
    ],
)
def test_help_has_an_example_and_the_exit_codes(command: str, example: str, tmp_path: Path) -> None:
    out = flow(tmp_path, command, "--help").stdout
    assert (example in " ".join(out.split()), "Exit codes" in out) == (True, True)
