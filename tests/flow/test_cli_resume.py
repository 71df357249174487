"""`flow resume`: the store has the thread, a program has the code, and the exit code says how it ended."""

import json
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
    first, second = resume(tmp_path, "--json"), resume(tmp_path, "--json")
    assert first == second
    assert (json.loads(first[1])["outcome"], first[0]) == ("completed", 0)


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
    said = json.loads(out)
    assert (found, said["outcome"], said["error"], err) == (code, outcome, error, "")
    found, out, err = resume(tmp_path)
    assert (found, err.startswith("error: "), "\x1b" in out + err) == (code, True, False)


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
        ([], "t", "nothing:job", "ModuleNotFoundError"),
        ([], "t", "release:nothing", "AttributeError"),
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
    code, out, err = resume(tmp_path, *arguments, name=name, job=job)
    assert (code, out, said in err) == (2, "", True), err
    assert not (tmp_path / "none.db").exists()


def test_help_has_an_example_and_the_exit_codes() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "flow", "resume", "--help"], capture_output=True, text=True, check=True
    )
    assert "--with release:job" in result.stdout
    assert "Exit codes" in result.stdout
