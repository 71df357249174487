"""A day of a user, on the real commands: an agent in a document, killed, resumed, approved by a person, audited."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.flow.storing import ROOT

PROGRAM = """
from pathlib import Path

import anyio

from flow import Confirm, Escalated

async def build(record, call):
    print("building", flush=True)
    if Path("slow").exists():
        await anyio.sleep(600)
    with open("built", "a") as file:
        print(call.key.hex(), file=file)
    return record

def review(message):
    if message.payload == "Ship release 1.4":
        raise Escalated("May I let this out on a Friday?")
    return f"I agree to: {message.payload}"

def judge(message, ack):
    return Confirm()

registry = {"build": build, "review": review, "judge": judge}
"""

DOCUMENT = """
version = 1
judge = "judge"

[agent]
name = "releaser"
capabilities = ["release"]
key = "releaser.pem"

[peers.reviewer]
handler = "review"
key_file = "reviewer.pem"

[approvers.ada]
key = "ADA"

[machine]
initial = "draft"
rows = [
    { source = "draft", trigger = "build", target = "built", on_entry = "build" },
    { source = "built", trigger = "ship", target = "released" },
]

[[steps]]
id = "build"
target = "built"
payload = "Build release 1.4"

[[steps]]
id = "ship"
needs = ["build"]
target = "released"
payload = "Ship release 1.4"
"""


def run(folder: Path, command: str, code: int = 0) -> str:
    """Run a command as a user types it, and return what it printed; it must end with this exit code."""
    package, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", package, *arguments],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stdout + done.stderr
    return done.stdout + done.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "120"}


def killed_while_it_builds(folder: Path, command: str) -> None:
    package, *arguments = shlex.split(command)
    (folder / "slow").touch()
    running = subprocess.Popen(
        [sys.executable, "-m", package, *arguments], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    while running.stdout.readline() != "building\n":
        assert running.poll() is None
    running.kill()
    running.communicate()
    (folder / "slow").unlink()


def test_an_agent_in_a_document_is_killed_resumed_approved_by_a_person_and_audited(tmp_path: Path) -> None:
    dids = {who: run(tmp_path, f"envelope keygen {who}.pem").split()[0] for who in ("releaser", "reviewer", "ada")}
    (tmp_path / "release.py").write_text(PROGRAM, "utf-8")
    (tmp_path / "agent.toml").write_text(DOCUMENT.replace("ADA", dids["ada"]), "utf-8")
    run(tmp_path, "flow check agent.toml --with release:registry")

    killed_while_it_builds(tmp_path, "flow run agent.toml --with release:registry --name release-1.4")
    resume = "flow resume release-1.4 --agent agent.toml --with release:registry"
    paused = run(tmp_path, resume, 3)
    assert "It can be resumed:\n  flow approvals" in paused
    assert len((tmp_path / "built").read_text("utf-8").splitlines()) == 1

    (waits,) = map(json.loads, run(tmp_path, "flow approvals --json").splitlines())
    message = waits["message"]["address"]
    assert "May I let this out on a Friday?" in run(tmp_path, "flow approvals")
    run(tmp_path, f"flow approve {message} --key reviewer.pem --yes", 2)
    told = run(tmp_path, f"flow approve {message} --key ada.pem --text 'I am here until eight' --yes")
    assert "--agent FILE.toml" in told
    assert "Completed in status released" in run(tmp_path, resume)
    assert len((tmp_path / "built").read_text("utf-8").splitlines()) == 1

    run(tmp_path, "flow export release-1.4 -o release.thread")
    roles = {"releaser": "agent", "reviewer": "agent", "ada": "human"}
    keys = [f'[[keys]]\nkey = "{dids[who]}"\nname = "{who}"\nrole = "{role}"\n' for who, role in roles.items()]
    (tmp_path / "trust.toml").write_text("\n".join(["version = 1", *keys]), "utf-8")
    run(tmp_path, "envelope verify release.thread --trust trust.toml")
    timeline = run(tmp_path, "envelope show release.thread --trust trust.toml")
    assert "approved by ada" in timeline
    assert "I am here until eight" in timeline
    (tmp_path / "trust.toml").write_text("\n".join(["version = 1", *keys[:2]]), "utf-8")
    run(tmp_path, "envelope verify release.thread --trust trust.toml", 4)
