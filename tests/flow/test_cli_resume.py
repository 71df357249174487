"""`flow resume`: the store has the thread, a program has the code, and the exit code says how it ended."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import anyio
from envelope import Card, Identity
from flow import (
    Agent, Confirm, Declined, Escalated, FlowError, Job, Machine, Plan, SqliteStore, Step, Transition, local,
)

author, reviewer = Identity.from_seed(bytes(32)), Identity.from_seed(bytes([1]) * 32)
answers = {answers!r}

def act(record, call):
    if call.attempt == 1 and {dies!r}:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return {{**record, "attempts": call.attempt}}

def restate(message):
    if answers == "decline":
        raise Declined("not today")
    if answers == "escalate":
        raise Escalated("a person must look")
    if answers == "break":
        raise ValueError("no line\\x1b[31m")
    return "I agree"

def judge(message, ack):
    return Confirm()

plan = Plan([Step("ship", target="b", payload="Ship it", once={once!r})])
machine = Machine("a", [Transition("a", "go", "b", on_entry=act)])
agent = Agent(author, Card.issue(author, name="author", capabilities=["x"]), plan)
job = Job(agent, machine, {{}}, peers={{"reviewer": local(reviewer, restate)}}, judge=judge)

def make():
    return job

async def main():
    async with SqliteStore("threads.db") as store:
        try:
            await job.run("t", store=store)
        except (FlowError, ValueError) as error:
            print(type(error).__name__)

if __name__ == "__main__":
    anyio.run(main)
"""


def program(folder: Path, answers: str = "", *, dies: bool = True, once: bool = False, run: bool = True) -> None:
    (folder / "release.py").write_text(PROGRAM.format(answers=answers, dies=dies, once=once), "utf-8")
    if run:
        subprocess.run([sys.executable, "release.py"], cwd=folder, check=False, capture_output=True)


def resume(folder: Path, *arguments: str, name: str = "t", job: str = "release:job") -> tuple[int, str, str]:
    command = [sys.executable, "-m", "flow", "resume", name, "--with", job, *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize("job", ["release:job", "release:make"])
def test_a_run_that_was_killed_is_completed(tmp_path: Path, job: str) -> None:
    program(tmp_path)
    code, out, _ = resume(tmp_path, job=job)
    assert (code, "ship: succeeded, status b" in out, "flow export t -o t.thread" in out) == (0, True, True)


def test_a_completed_run_says_so_again(tmp_path: Path) -> None:
    program(tmp_path)
    for _ in range(2):
        code, out, _ = resume(tmp_path, "--json")
        events = [json.loads(line) for line in out.splitlines()]
        assert {event["specversion"] for event in events} == {"1.0"}
        assert (events[-1]["type"], events[-1]["data"]["outcome"], code) == ("flow.run_ended", "completed", 0)
    assert [event["type"] for event in events[:-1]] == ["agent.thread_verified"]
    assert "It was completed before; nothing was done." in resume(tmp_path)[1]


def test_a_program_that_is_started_again_goes_on_too(tmp_path: Path) -> None:
    program(tmp_path)
    (tmp_path / "again.py").write_text(
        "import anyio\nfrom flow import SqliteStore\nfrom release import job\n\n"
        "async def main():\n"
        "    async with SqliteStore('threads.db') as store:\n"
        "        for name in ('t', 't', 'u'):\n"
        "            print(name, (await job.start(name, store=store)).record)\n\n"
        "anyio.run(main)\n",
        "utf-8",
    )
    (tmp_path / "release.py").write_text((tmp_path / "release.py").read_text().replace("if call.attempt == 1", "if 0"))
    result = subprocess.run([sys.executable, "again.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == "t {'attempts': 2}\nt {'attempts': 2}\nu {'attempts': 1}\n"


def test_a_run_that_is_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    program(tmp_path)
    text = (tmp_path / "release.py").read_text("utf-8")
    wait = "    print('acting', flush=True)\n    await anyio.sleep(60)\n    return {**record"
    waits = text.replace("    return {**record", wait).replace("def act", "async def act")
    (tmp_path / "release.py").write_text(waits, "utf-8")
    command = [sys.executable, "-m", "flow", "resume", "t", "--with", "release:job"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    while running.stdout.readline() != "acting\n":
        pass
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, "flow resume t --with release:job" in said) == (130, True), said
    (tmp_path / "release.py").write_text(text, "utf-8")
    assert resume(tmp_path)[0] == 0


@pytest.mark.parametrize(
    ("answers", "code", "outcome", "error"),
    [
        ("decline", 5, "rejected", "run.rejected"),
        ("escalate", 3, None, "run.escalated"),
        ("break", 3, None, "ValueError"),
    ],
)
def test_the_exit_code_tells_how_a_run_stopped(
    tmp_path: Path, answers: str, code: int, outcome: str | None, error: str
) -> None:
    program(tmp_path, answers, dies=False)
    found, out, err = resume(tmp_path, "--json")
    said = json.loads(out.splitlines()[-1])["data"]
    assert (found, said["outcome"], said["error"], err) == (code, outcome, error, "")
    found, out, err = resume(tmp_path)
    assert (found, err.startswith("error: "), "\x1b" in out + err) == (code, True, False)
    assert "flow approvals" not in out, "nobody was asked"


def test_an_action_in_doubt_is_asked_about(tmp_path: Path) -> None:
    program(tmp_path, once=True)
    code, _, err = resume(tmp_path)
    assert (code, "run.in_doubt" in err, "'again'" in err) == (3, True, True)
    code, out, _ = resume(tmp_path, "--in-doubt", "ship=done")
    assert (code, "ship: succeeded" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "name", "job", "said"),
    [
        ([], "t", "release", "MODULE:NAME"),
        ([], "t", "nothing:job", "there is no module 'nothing' here"),
        ([], "t", "release.py:job", "release:job"),
        ([], "t", "release:nothing", "release.py has no 'nothing'"),
        ([], "t", "release:main", "is a coroutine, not a Job"),
        ([], "t", "json:job", "json/__init__.py has no 'job'"),
        ([], "t", "leaves:job", "it ends itself; put what it is to do"),
        ([], "t", "leaves:leave", "it ends itself"),
        ([], "t", "fails:job", "ValueError: boom (fails.py, line 2)"),
        ([], "t", "keyless:job", "key.file: none.pem: No such file or directory (keyless.py, line 2)"),
        ([], "t", "release:plan", "is a Plan, not a Job"),
        ([], "other", "release:job", "store.unknown"),
        (["--store", "none.db"], "t", "release:job", "store.unreadable"),
        (["--in-doubt", "ship"], "t", "release:job", "STEP=again"),
        (["--seen", "b3:00"], "t", "release:job", "address.malformed"),
        (["--seen", "b3:" + "00" * 32], "t", "release:job", "store.stale"),
    ],
)
def test_what_cannot_go_on_is_refused_with_exit_code_2(
    tmp_path: Path, arguments: list[str], name: str, job: str, said: str
) -> None:
    program(tmp_path)
    leaves = "import sys\ndef leave(): sys.exit(0)\n" + ("leave()\n" if job == "leaves:job" else "")
    (tmp_path / "leaves.py").write_text(leaves, "utf-8")
    (tmp_path / "fails.py").write_text("\nraise ValueError('boom')\n", "utf-8")
    (tmp_path / "keyless.py").write_text("from envelope import Identity\nIdentity.load('none.pem')\n", "utf-8")
    code, out, err = resume(tmp_path, *arguments, name=name, job=job)
    assert (code, out, said in err) == (2, "", True), err
    assert "RuntimeWarning" not in err
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('Step("ship", ', "run.plan"),
        ("bytes([1]) * 32", "run.peers: the thread 't' was begun with other members: there 'reviewer' is member"),
        ("from_seed(bytes(32))", "run.key"),
    ],
)
def test_a_run_of_another_program_is_refused_with_exit_code_2(tmp_path: Path, change: str, said: str) -> None:
    program(tmp_path)
    others = {
        'Step("ship", ': 'Step("ship", corrections=3, ',
        "bytes([1]) * 32": "bytes([2]) * 32",
        "from_seed(bytes(32))": "from_seed(bytes([3]) * 32)",
    }
    text = (tmp_path / "release.py").read_text("utf-8")
    (tmp_path / "release.py").write_text(text.replace(change, others[change]), "utf-8")
    code, out, err = resume(tmp_path)
    assert (code, out, said in err) == (2, "", True), err


def test_a_run_that_failed_says_what_an_auditor_gets(tmp_path: Path) -> None:
    program(tmp_path, "decline", dies=False)
    code, out, _ = resume(tmp_path)
    assert (code, "sealed rejected" in out, "flow export t -o t.thread" in out) == (5, True, True)
