"""What the README shows is what happens."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from envelope import Identity, TrustedKey, TrustStore, open_envelope, parse_did, verify_file
from envelope.threadfile import read_records
from tests.readmegen import README, drawn

TEXT = README.read_text("utf-8")


def test_the_picture_is_what_the_command_shows() -> None:
    assert drawn(TEXT) == TEXT


def test_the_first_program_runs_and_prints_what_the_text_says(tmp_path: Path) -> None:
    program = re.search(r"<!-- program:begin -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    printed = re.search(r"It prints `(.*?)`", TEXT)
    assert program
    assert printed
    result = subprocess.run(
        [sys.executable, "-c", program[1]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == printed[1]
    assert (tmp_path / "release.thread").stat().st_size > 0


def test_a_person_decides_as_the_text_shows(tmp_path: Path) -> None:
    program = re.search(r"<!-- durable:begin -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    script = re.search(r"```sh\n(flow approvals.*?)```", TEXT, re.DOTALL)
    approvers = re.search(r'`approvers=\{"ada": parse_did\("did:key:z6Mk…"\)\}`', TEXT)
    assert program
    assert script
    assert approvers
    keys = {name: Identity.generate() for name in ("author", "reviewer", "ada")}
    for name, identity in keys.items():
        identity.save(tmp_path / f"{name}.pem")
    roles = {"author": "agent", "reviewer": "agent", "ada": "human"}
    trust = TrustStore({identity.public_key: TrustedKey(name, roles[name]) for name, identity in keys.items()})
    (tmp_path / "trust.toml").write_text(trust.dump(), "utf-8")
    escalates = program[1]
    for text, instead in {
        "SECONDS = 2": "SECONDS = 0",
        "import Agent,": "import Escalated, Agent,",
        '    return f"I agree': "    if message.step == ('ship',): raise Escalated('May it?')\n    return f\"I agree",
        "import Card, Identity": "import Card, Identity, parse_did",
        'peers={"reviewer"': f'approvers={{"ada": parse_did("{keys["ada"].did}")}}, peers={{"reviewer"',
    }.items():
        assert text in escalates
        escalates = escalates.replace(text, instead, 1)
    (tmp_path / "release.py").write_text(escalates, "utf-8")
    (tmp_path / "build").mkdir()

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", program, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    subprocess.run([sys.executable, "release.py"], cwd=tmp_path, capture_output=True, check=False)
    message = re.search(r"message +(b3:[0-9a-f]{64})", run("flow", "approvals").stdout)
    assert message
    commands = [shlex.split(line, comments=True) for line in script[1].splitlines()]
    assert [command[1] for command in commands] == ["approvals", "approve", "resume"]
    for name, *arguments in commands:
        given = [message[1][:11] if argument == "b3:0c1d2e3f" else argument for argument in arguments]
        done = run(name, *given, *(["--yes"] if given[0] == "approve" else []))
        assert done.returncode == 0, done
    assert run("flow", "export", "release-1.4", "-o", "release.thread").returncode == 0
    verdict = verify_file(tmp_path / "release.thread", trust=trust)
    assert (verdict.exit_code, verdict.approved, verdict.acknowledged) == (0, 1, 2)


def test_the_plans_document_is_written_as_the_text_shows_and_is_the_one_that_the_run_signed(tmp_path: Path) -> None:
    program = re.search(r"<!-- program:begin -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    recipe = re.search(r"```python\n(for address, data in documents.*?)```", TEXT, re.DOTALL)
    assert program
    assert recipe
    whole = f"{program[1]}\nfrom pathlib import Path\nfrom flow import Limits, documents\n{recipe[1]}"
    subprocess.run([sys.executable, "-c", whole], cwd=tmp_path, capture_output=True, text=True, check=True)
    (path,) = tmp_path.glob("*.plan")
    _, raw = next(iter(read_records(tmp_path / "release.thread")))
    opening = open_envelope(raw).record
    assert path.stem == opening.plan.hex()
    shown = subprocess.run(
        [sys.executable, "-m", "flow", "plan", "show", path, "--mermaid"],
        cwd=README.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.startswith("flowchart TD\n")


def test_an_agent_in_a_file_is_run_as_the_text_shows(tmp_path: Path) -> None:
    script = re.search(r"```sh\n(envelope keygen stocktaker.*?)```", TEXT, re.DOTALL)
    assert script
    for name in ("agent.toml", "stocktaking.py"):
        assert f"(flow/examples/{name})" in TEXT
        shutil.copy(README.parent / "flow" / "examples" / name, tmp_path)
    (tmp_path / "stock").mkdir()
    shutil.copy(README, tmp_path / "stock")
    lines = [line.partition("#")[0] for line in script[1].replace(" && ", "\n").splitlines()]
    said = []
    for program, *arguments in map(shlex.split, lines):
        command = [sys.executable, "-m", program, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        said.append(done.stdout)
    assert "Completed in status agreed" in said[-3]
    trusted = [parse_did(did.strip()) for did in said[:2]]
    assert verify_file(tmp_path / "stock-1.thread", trust=trusted).exit_code == 0


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []


def test_the_two_commands_install_into_the_projects_own_folder() -> None:
    commands = re.findall(r"^python3 -m venv .*$", TEXT, re.MULTILINE)
    assert len(commands) == 2
    assert all(".venv/bin/pip install" in command for command in commands)


def test_a_run_that_is_killed_goes_on_as_the_text_shows(tmp_path: Path) -> None:
    program = re.search(r"<!-- durable:begin -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert program
    slow = program[1].replace("sleep(SECONDS)", 'sleep(600 * (call.step[0] == "test"))')
    (tmp_path / "release.py").write_text(slow, "utf-8")
    keys = [Identity.generate() for _ in range(2)]
    for identity, name in zip(keys, ("author", "reviewer"), strict=True):
        identity.save(tmp_path / f"{name}.pem")
    trust = TrustStore({key.public_key: TrustedKey("somebody", "agent") for key in keys})
    (tmp_path / "trust.toml").write_text(trust.dump(), "utf-8")
    running = subprocess.Popen([sys.executable, "release.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    with running, running.stdout:
        begun = [running.stdout.readline() for _ in range(2)]
        running.kill()
    (tmp_path / "release.py").write_text(program[1], "utf-8")
    assert begun == ["building build attempt 1\n", "building test attempt 1\n"]
    script = re.search(r"```sh\n(.*?)^flow threads.*?```", TEXT, re.DOTALL | re.MULTILINE)
    assert script
    commands = re.findall(r"^(flow .*?|envelope verify .*?)(?: {2,}#.*)?$", script[0], re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["threads", "resume", "export", "verify"]
    printed = []
    for command in commands:
        name, *arguments = shlex.split(command)
        result = subprocess.run(
            [sys.executable, "-m", name, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result
        printed.append(result.stdout)
    assert " open " in printed[0]
    assert "building test attempt 2\n" in printed[1]
    assert "building build" not in printed[1]


def test_the_test_that_the_text_shows_passes(tmp_path: Path) -> None:
    shown = re.search(r"<!-- testing:begin -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    program = re.search(r"<!-- durable:begin -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert shown
    assert program
    (tmp_path / "release.py").write_text(program[1], "utf-8")
    (tmp_path / "test_release.py").write_text(shown[1], "utf-8")
    for name in ("author", "reviewer"):
        Identity.generate().save(tmp_path / f"{name}.pem")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, "2 passed" in result.stdout) == (0, True), result.stdout
