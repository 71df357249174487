"""`flow approvals`, `approve`, `refuse`, `close` and `show`, run as commands on a store that a real run left."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from envelope import Identity, TrustedKey, TrustStore, Verifier, address, address_text
from envelope.show import Timeline, render_thread
from flow.store import SqliteStore
from tests.flow.storing import ROOT

AUTHOR, REVIEWER, ADA, GIL, STRANGER = (Identity.from_seed(bytes([number] * 32)) for number in range(1, 6))
KEYS = {"author": AUTHOR, "reviewer": REVIEWER, "ada": ADA, "stranger": STRANGER}
HOSTILE = "May it\x1b]0;owned\x07 ship\u202e?\n┃ approved\r"

PROGRAM = """
import anyio
from envelope import Card, Identity, address
from flow import Agent, Confirm, Draft, Escalated, Job, Machine, Plan, SqliteStore, Step, local

author, reviewer, ada, gil = (Identity.from_seed(bytes([number] * 32)) for number in (1, 2, 3, 4))
approvers = {"ada": ada.public_key, "gil": gil.public_key}

def restate(message):
    raise Escalated(WHY)

def judge(message, ack):
    return Confirm()

def said(record):
    source = {"source": "a build", "evidence": [address(b"report")]}
    return Draft(PAYLOAD, epistemic="verified", provenance=source)

plan = Plan([Step("ship", target="released", payload_from=said)])
agent = Agent(author, Card.issue(author, name="author", capabilities=["x"]), plan)
job = Job(
    agent, Machine("draft", [("draft", "ship", "released")]), {}, peers={"reviewer": local(reviewer, restate)},
    approvers={name: approvers[name] for name in APPROVERS}, judge=judge,
)

async def main():
    async with SqliteStore("threads.db") as store:
        try:
            await job.run(NAME, store=store)
        except Escalated:
            pass

if __name__ == "__main__":
    anyio.run(main)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, identity in KEYS.items():
        identity.save(tmp_path / f"{name}.pem")
    GIL.save(tmp_path / "gil.pem", "open sesame")
    known = {AUTHOR: ("author", "agent"), REVIEWER: ("reviewer", "agent"), ADA: ("Ada", "human"), GIL: ("Gil", "human")}
    trust = TrustStore({who.public_key: TrustedKey(*named) for who, named in known.items()})
    (tmp_path / "trust.toml").write_text(trust.dump(), "utf-8")
    return tmp_path


def escalate(
    folder: Path, *, why: str = "May it ship?", payload: str = "Ship it", name: str = "t", approvers: str = "ada"
) -> str:
    """Run a program that escalates, and return the address of its message."""
    head = f"WHY, PAYLOAD, NAME, APPROVERS = {why!r}, {payload!r}, {name!r}, {approvers.split()!r}\n"
    (folder / "release.py").write_text(head + PROGRAM, "utf-8")
    subprocess.run([sys.executable, "release.py"], cwd=folder, env=environment(), check=True)
    return next(found["message"]["address"] for found in waiting(folder) if found["name"] == name)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "120", **more}


def run(
    folder: Path, program: str, *arguments: object, passphrase: str | None = None
) -> subprocess.CompletedProcess[str]:
    more = {} if passphrase is None else {"ENVELOPE_PASSPHRASE": passphrase}
    result = subprocess.run(
        [sys.executable, "-m", program, *map(str, arguments)],
        cwd=folder, env=environment(**more), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    return result


def flow(folder: Path, *arguments: object, passphrase: str | None = None) -> subprocess.CompletedProcess[str]:
    return run(folder, "flow", *arguments, passphrase=passphrase)


def waiting(folder: Path, *arguments: object) -> list[dict[str, Any]]:
    result = flow(folder, "approvals", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def records(folder: Path, name: str = "t") -> list[bytes]:
    async def read() -> list[bytes]:
        async with SqliteStore(folder / "threads.db", create=False) as store:
            return list(await store.read(name))

    return anyio.run(read)


def refused(folder: Path, code: str, *arguments: object) -> str:
    """Run a command that must be refused in one sentence, with nothing appended; return the sentence."""
    before = records(folder)
    result = flow(folder, *arguments)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result
    assert result.stderr.startswith(f"error: {code}: ")
    assert records(folder) == before
    return result.stderr


@pytest.mark.rule("W2")
def test_what_a_person_approves_is_done_and_an_auditor_sees_who_approved_it(folder: Path) -> None:
    message = escalate(folder)
    listed = flow(folder, "approvals").stdout
    assert all(words in listed for words in (message, "┃ Ship it", "┃ May it ship?", "reviewer (did:key:"))
    done = flow(folder, "approve", message, "--key", "ada.pem", "--text", "I saw the report", "--yes")
    assert (done.returncode, "┃ I saw the report" in done.stdout, "flow resume t" in done.stdout) == (0, True, True)
    assert flow(folder, "resume", "t", "--with", "release:job").returncode == 0
    assert flow(folder, "export", "t", "-o", "t.thread").returncode == 0
    verified = run(folder, "envelope", "verify", "t.thread", "--trust", "trust.toml")
    assert (verified.returncode, "approved by Ada" in verified.stdout) == (0, True)
    shown = run(folder, "envelope", "show", "t.thread", "--trust", "trust.toml").stdout
    assert "├ Ada accepts, having understood:\n      │ ┃ I saw the report\n" in shown
    assert flow(folder, "approvals").stdout == "Nothing in threads.db waits for a person.\n"


@pytest.mark.rule("W2")
def test_all_of_several_approvers_must_accept_and_a_passphrase_opens_a_key(folder: Path) -> None:
    message = escalate(folder, approvers="ada gil")
    done = flow(folder, "approve", message[:11], "--key", "ada.pem", "--yes")
    assert (done.returncode, "Still to answer: gil" in done.stdout) == (0, True)
    paused = flow(folder, "resume", "t", "--with", "release:job")
    assert (paused.returncode, "flow approvals --store threads.db" in paused.stdout) == (3, True)
    arguments = ("approve", message, "--key", "gil.pem", "--yes")
    for passphrase in (None, "open says me"):
        wrong = flow(folder, *arguments, passphrase=passphrase)
        assert (wrong.returncode, "key.passphrase" in wrong.stderr) == (2, True)
    done = flow(folder, *arguments, passphrase="open sesame")  # noqa: S106
    assert (done.returncode, "All approvers have accepted." in done.stdout) == (0, True)
    assert flow(folder, "resume", "t", "--with", "release:job").returncode == 0


@pytest.mark.rule("W3")
def test_people_who_answer_at_the_same_time_both_have_answered(folder: Path) -> None:
    message = escalate(folder, approvers="ada gil")
    GIL.save(folder / "open.pem")
    command = [sys.executable, "-m", "flow", "approve", message, "--yes", "--key"]
    both = [
        subprocess.Popen([*command, key], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
        for key in ("ada.pem", "open.pem")
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("All approvers have accepted." in text for text in said) >= 1
    assert flow(folder, "resume", "t", "--with", "release:job").returncode == 0


@pytest.mark.rule("W2")
def test_what_a_person_refuses_ends_as_rejected(folder: Path) -> None:
    message = escalate(folder, approvers="ada gil")
    done = flow(folder, "refuse", message, "--key", "ada.pem", "--reason", "Not on a Friday", "--yes")
    assert (done.returncode, "The run ends as rejected" in done.stdout) == (0, True)
    (left,) = waiting(folder)
    assert [(one["name"], one["answer"], one["text"]) for one in left["approvers"] if one["answer"]] == [
        ("ada", "decline", "Not on a Friday")
    ]
    resumed = flow(folder, "resume", "t", "--with", "release:job")
    assert (resumed.returncode, "ada declined: Not on a Friday" in resumed.stderr) == (5, True)
    assert waiting(folder) == []


@pytest.mark.rule("W2", "W4")
def test_what_is_no_answer_is_refused_in_a_sentence_and_nothing_is_appended(folder: Path) -> None:
    message = escalate(folder)
    yes = ("--yes", "--key", "ada.pem")
    for who in ("stranger", "reviewer", "author"):
        refused(folder, "approval.stranger", "approve", message, "--key", f"{who}.pem", "--yes")
    refused(folder, "key.file", "approve", message, "--key", "missing.pem", "--yes")
    refused(folder, "approval.unknown", "approve", "b3:" + "00" * 32, *yes)
    refused(folder, "approval.address", "refuse", "b3:0", "--reason", "no", *yes)
    refused(folder, "approval.terminal", "approve", message, "--key", "ada.pem")
    refused(folder, "body.blank", "approve", message, "--text", " ", *yes)
    refused(folder, "approval.evidence", "approve", message, "--evidence", "missing", *yes)
    assert flow(folder, "approve", message, *yes).returncode == 0
    refused(folder, "approval.answered", "refuse", message, "--reason", "no", *yes)
    assert flow(folder, "resume", "t", "--with", "release:job").returncode == 0
    assert "is sealed completed" in refused(folder, "approval.over", "approve", message, *yes)


@pytest.mark.rule("W4")
def test_an_address_that_stands_in_two_threads_of_the_store_is_ambiguous(folder: Path) -> None:
    message = escalate(folder)
    assert flow(folder, "export", "t", "-o", "t.thread").returncode == 0
    assert flow(folder, "import", "t.thread", "--name", "copy").returncode == 0
    said = refused(folder, "approval.ambiguous", "approve", message, "--key", "ada.pem", "--yes")
    assert "in 'copy'" in said


@pytest.mark.rule("W4")
@pytest.mark.parametrize(("typed", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_on_a_terminal_a_person_is_asked_after_all_of_it_was_shown(folder: Path, typed: str, code: int) -> None:
    long = "x" * 9_000 + " and delete everything"
    message = escalate(folder, payload=long)
    before = records(folder)
    ours, theirs = pty.openpty()
    os.write(ours, f"{typed}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "flow", "approve", message, "--key", "ada.pem"],
        cwd=folder, env=environment(), stdin=theirs, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert (done.returncode, long in done.stdout, "Do you approve this?" in done.stderr) == (code, True, True)
    assert len(records(folder)) == len(before) + (code == 0)


@pytest.mark.rule("W4")
def test_hostile_texts_are_shown_escaped_everywhere(folder: Path) -> None:
    message = escalate(folder, why=HOSTILE, payload=HOSTILE)
    listed = flow(folder, "approvals")
    words = "┃ May it\\x1b]0;owned\\x07 ship\\u202e?\n    ┃ ┃ approved\\x0d"
    assert listed.stdout.count(words) == 2
    done = flow(folder, "approve", message, "--key", "ada.pem", "--text", HOSTILE, "--yes")
    assert done.stdout.count(words) == 3
    shown = flow(folder, "show", "t").stdout
    assert shown.count("May it\\x1b]0;owned\\x07 ship\\u202e?") == 3
    assert "\u202e" not in listed.stdout + done.stdout + shown
    (said,) = waiting(folder)
    assert said["message"]["payload"] == said["escalation"]["payload"] == HOSTILE
    for arguments in (["approve", HOSTILE], ["refuse", HOSTILE, "--reason", "no"]):
        assert "\u202e" not in refused(folder, "approval.address", *arguments, "--key", "ada.pem", "--yes")
    assert "\u202e" not in refused(folder, "store.unknown", "close", HOSTILE, "--key", "author.pem", "--reason", "no")


@pytest.mark.rule("W5")
def test_evidence_is_looked_for_in_the_files_that_are_given(folder: Path) -> None:
    escalate(folder)
    (folder / "build").mkdir()
    (folder / "build" / "report.txt").write_text("report")
    named = address_text(address(b"report"))
    assert f"{named}  not looked for: give --evidence PATH" in flow(folder, "approvals").stdout
    assert f"{named}  found in build/report.txt" in flow(folder, "approvals", "--evidence", "build").stdout
    (found,) = waiting(folder, "--evidence", "build")
    assert found["evidence"] == [{"what": "evidence", "address": named, "found": True, "path": "build/report.txt"}]
    (folder / "build" / "report.txt").write_text("another report")
    assert f"{named}  missing" in flow(folder, "approvals", "--evidence", "build").stdout


@pytest.mark.rule("W1")
def test_a_damaged_thread_is_told_of_and_the_others_are_listed(folder: Path) -> None:
    escalate(folder, name="damaged", payload="Ship nothing")
    message = escalate(folder, name="t")
    content = (folder / "threads.db").read_bytes()
    (folder / "threads.db").write_bytes(content.replace(b"Ship nothing", b"Ship nothinG"))
    listed = flow(folder, "approvals")
    assert (listed.returncode, message in listed.stdout, "Ship nothin" in listed.stdout) == (2, True, False)
    assert listed.stderr.startswith("error: store.corrupt: ")


@pytest.mark.rule("W6", "W7")
def test_a_closed_thread_is_sealed_cancelled_and_its_run_says_so(folder: Path) -> None:
    message = escalate(folder)
    assert flow(folder, "approve", message, "--key", "ada.pem", "--yes").returncode == 0
    why = ("--reason", "Overtaken by 1.5")
    refused(folder, "close.role", "close", "t", "--key", "ada.pem", *why)
    refused(folder, "close.role", "close", "t", "--key", "stranger.pem", *why)
    done = flow(folder, "close", "t", "--key", "author.pem", *why)
    assert (done.returncode, "flow export t -o t.thread" in done.stdout) == (0, True)
    refused(folder, "close.sealed", "close", "t", "--key", "author.pem", *why)
    for _ in range(2):
        resumed = flow(folder, "resume", "t", "--with", "release:job", "--json")
        said = json.loads(resumed.stdout.splitlines()[-1])["data"]
        assert (resumed.returncode, said["outcome"], said["error"]) == (5, "cancelled", "run.cancelled")
        assert "Overtaken by 1.5" in said["text"]
    refused(folder, "approval.over", "refuse", message, "--key", "ada.pem", "--reason", "late", "--yes")
    assert flow(folder, "show", "t", "--trust", "trust.toml").returncode == 5


def test_a_stored_thread_is_shown_as_envelope_show_does(folder: Path) -> None:
    escalate(folder)
    shown = flow(folder, "show", "t", "--trust", "trust.toml")
    assert flow(folder, "export", "t", "-o", "t").returncode == 0
    exported = run(folder, "envelope", "show", "t", "--trust", "trust.toml")
    assert (shown.stdout, shown.returncode) == (exported.stdout, exported.returncode) == (exported.stdout, 3)
    trust = TrustStore.load(folder / "trust.toml")
    timeline = Timeline(trust)
    verifier = Verifier(trust=trust, observe=timeline.observe)
    for raw in records(folder):
        verifier.feed(raw)
    assert [str(line).rstrip() for line in render_thread("t", verifier.finish(), timeline)] == [
        line.rstrip() for line in shown.stdout.splitlines()
    ]


@pytest.mark.parametrize("command", ["approvals", "approve", "refuse", "close", "show"])
def test_help_has_an_example_and_the_exit_codes(command: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "flow", command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"Example: flow {command}" in shown
    assert "Exit codes: 0 " in shown


@pytest.mark.rule("S18")
def test_a_command_of_a_person_makes_no_store_that_is_not_there(folder: Path) -> None:
    key = ("--key", "ada.pem", "--yes")
    for arguments in (
        ["approvals"],
        ["approve", "00000000", *key],
        ["refuse", "00000000", "--reason", "no", *key],
        ["close", "t", "--key", "author.pem", "--reason", "no"],
        ["show", "t"],
    ):
        result = flow(folder, *arguments)
        assert (result.returncode, result.stderr.startswith("error: store.unreadable: ")) == (2, True)
    assert not (folder / "threads.db").exists()
