"""`flow check`: what is wrong with a document is listed, each with its line, and nothing of it is run."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from envelope import address_text
from flow import AgentFile, documents
from tests.flow.agentdoc import AUTHOR, REGISTRY, written

ROOT = Path(__file__).parents[2]
PROGRAM = "program:registry"
NOTHING: Mapping[str, str] = {}


def check(
    folder: Path, *arguments: str, file: str = "agent.toml", environment: Mapping[str, str] = NOTHING
) -> tuple[int, str, str]:
    (folder / "program.py").write_text(
        "from tests.flow.agentdoc import REGISTRY\n"
        "def fail(*_): raise AssertionError('nothing is run')\n"
        "registry = {name: fail for name in REGISTRY}\n"
        "made = lambda: registry\n"
        "number = 5\n"
        "def broken(): return 1 // 0\n",
        "utf-8",
    )
    result = subprocess.run(
        [sys.executable, "-m", "flow", "check", file, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in result.stderr
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize("program", [PROGRAM, "program:made"])
def test_a_document_that_can_be_run_is_shown_with_the_address_of_its_plan(tmp_path: Path, program: str) -> None:
    job = AgentFile.read(written(tmp_path)).bind(REGISTRY)
    address = next(iter(documents(job.agent.plan, job.machine, job.limits, job.judge)))
    code, out, _ = check(tmp_path, "--with", program)
    assert (code, out.splitlines()[0]) == (0, f"agent.toml: {address_text(address)}")
    assert "draft -> reviewed on review" in out
    assert "Names" not in out


def test_without_a_registry_the_names_to_bind_are_listed(tmp_path: Path) -> None:
    written(tmp_path)
    code, out, _ = check(tmp_path)
    assert (code, out.splitlines()[-3:]) == (0, ["  judge: judge", "  restate: handler", "  ship: on_entry"])


def test_everything_that_is_wrong_is_listed_with_its_line(tmp_path: Path) -> None:
    changes = (('"judge"', '"jduge"'), ("author.pem", "absent.pem"), ('payload = "Ship it."', 'payload = " "'))
    written(tmp_path, *changes)
    code, out, _ = check(tmp_path, "--with", PROGRAM)
    assert code == 2
    heads = ["agent.name: agent.toml, line 2", "agent.key: agent.toml, line 7", "plan.payload: agent.toml, line 33"]
    assert [line[: len(head) + 7] for line, head in zip(out.splitlines(), heads, strict=True)] == [
        f"error: {head}" for head in heads
    ]


def test_a_warning_alone_is_no_failure(tmp_path: Path) -> None:
    more = '[[plans.spare.steps]]\nid = "x"\ntarget = "released"\ngate = "none"\n'
    written(tmp_path, more=more)
    code, out, _ = check(tmp_path, "--with", PROGRAM)
    assert (code, out.startswith("warning: agent.plan: agent.toml, line 41: plans.spare: no step")) == (0, True)


def test_json_says_the_same(tmp_path: Path) -> None:
    written(tmp_path)
    code, out, _ = check(tmp_path, "--json", "--with", PROGRAM)
    found = json.loads(out)
    assert (code, found["agent"], found["findings"]) == (0, AUTHOR.did, [])
    assert found["plan"] == check(tmp_path)[1].split()[1]
    assert found["names"] == {"judge": ["judge"], "restate": ["handler"], "ship": ["on_entry"]}


def test_json_tells_what_is_wrong(tmp_path: Path) -> None:
    written(tmp_path, ('payload = "Ship it."', 'payload = " "'))
    code, out, _ = check(tmp_path, "--json")
    found = json.loads(out)
    (finding,) = found["findings"]
    assert (code, found["plan"], found["agent"]) == (2, None, None)
    assert [finding[key] for key in ("severity", "code", "line", "step")] == ["error", "plan.payload", 33, "ship"]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    code, out, _ = check(tmp_path, file="absent.toml")
    assert (code, "error: agent.file: absent.toml: No such file" in out) == (2, True)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("program", "give MODULE:NAME, such as release:registry"),
        ("program.py:registry", "give the module without .py, as in program:registry"),
        ("program:absent", "has no 'absent': name the registry that stands there"),
        ("program:number", "that is a int, not a registry: name one, or a function that returns one"),
        ("program:broken", "it makes no registry: ZeroDivisionError"),
        ("absent:registry", "there is no module 'absent' here"),
    ],
)
def test_a_program_without_registry_is_told_what_to_give(tmp_path: Path, program: str, text: str) -> None:
    written(tmp_path)
    code, _, err = check(tmp_path, "--with", program)
    assert (code, text in err) == (2, True)


def test_an_encrypted_key_is_opened_with_the_passphrase_of_the_environment(tmp_path: Path) -> None:
    AUTHOR.save(tmp_path / "author.pem", "open sesame")
    written(tmp_path)
    assert check(tmp_path, environment={"ENVELOPE_PASSPHRASE": "open sesame"})[0] == 0
    code, out, _ = check(tmp_path)
    assert (code, "line 7: agent.key: none was given" in out) == (2, True)


def test_what_a_document_says_cannot_move_the_cursor(tmp_path: Path) -> None:
    written(tmp_path, ('payload = "Ship it."', 'payload = "\\u001b[2J"'), ("author.pem", "\u202e.pem"))
    code, out, _ = check(tmp_path)
    assert (code, "\\u202e.pem: No such file" in out, "\u202e" in out) == (2, True, False)
    written(tmp_path, ('payload = "Ship it."', 'payload = "\\u001b[2J"'))
    code, out, _ = check(tmp_path)
    assert (code, '"\\x1b[2J"' in out, "\x1b" in out) == (0, True, False)


def test_the_help_says_the_exit_codes_with_an_example(tmp_path: Path) -> None:
    code, out, _ = check(tmp_path, "--help", file="x")
    words = " ".join(out.split())
    assert code == 0
    assert "Example: flow check agent.toml --with stocktaking:registry" in words
    assert "Exit codes: 0 it can be run, warnings aside; 2 usage, or there are errors." in words
