"""The examples of the package run on real files, and an auditor can verify what they leave."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest

from envelope import Identity, TrustedKey, TrustStore, open_envelope, verify_file
from envelope.threadfile import write_records
from flow import AgentFile, Job, Rejected, Run, StepFailed
from flow.examples import stocktaking
from tests.specgen import SCHEMA

HERE = Path(stocktaking.__file__).parent
ENVIRONMENT = {"PYTHONPATH": str(HERE.parents[1]), "PYTHONIOENCODING": "utf-8"}
FILES = {"notes.txt": b"first\n", "empty": b"", "deep/er/ünï.bin": bytes(range(256)) * 400}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The example, copied as its first lines say, bound, and with a folder to take stock of."""
    shutil.copyfile(HERE / "agent.toml", tmp_path / "agent.toml")
    for name in ("stocktaker", "reviewer"):
        Identity.generate().save(tmp_path / f"{name}.pem")
    for file, data in FILES.items():
        (tmp_path / "stock" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stock" / file).write_bytes(data)
    (tmp_path / "stock" / ".git").mkdir()
    (tmp_path / "stock" / ".git" / "config").write_text("hidden")
    monkeypatch.chdir(tmp_path)
    return AgentFile.read(tmp_path / "agent.toml").bind(stocktaking.registry)


def taken(job: Job, backend: str = "asyncio") -> Run:
    return anyio.run(job.run, "stock", backend=backend)


def trusted(job: Job, path: Path) -> Path:
    keys = {job.agent.identity.public_key: "stocktaker", job.peers["reviewer"].key: "reviewer"}
    store = TrustStore({key: TrustedKey(name, "agent") for key, name in keys.items()})
    write_records(path, [store.dump().encode()])
    return path


def test_taking_stock_leaves_a_thread_that_verifies_with_exit_code_0(
    job: Job, tmp_path: Path, anyio_backend: str
) -> None:
    run = taken(job, anyio_backend)
    run.thread.export("stock.thread")
    found = subprocess.run(
        [sys.executable, "-m", "envelope", "verify", "stock.thread", "--trust", trusted(job, tmp_path / "trust.toml")],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert (found.returncode, run.status) == (0, "agreed"), found.stderr


def test_the_inventory_names_every_file_with_the_address_that_envelope_gives_it(job: Job) -> None:
    run = taken(job)
    messages = [open_envelope(raw).record for raw in run.thread.records if open_envelope(raw).kind == "message"]
    listed = dict(map(json.loads, messages[-1].payload.splitlines()))
    assert sorted(listed) == sorted(f"stock/{file}" for file in FILES)
    for file, address in listed.items():
        command = [sys.executable, "-m", "envelope", "address", file]
        assert (
            subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout.strip()
            == address
        )


def test_a_file_that_changes_after_it_was_hashed_is_declined(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def inventory(record: Any) -> Any:
        said = stocktaking.inventory(record)
        Path("stock/notes.txt").write_bytes(b"second\n")
        return said

    changed = AgentFile.read("agent.toml").bind({**stocktaking.registry, "inventory": inventory})
    with pytest.raises(Rejected, match=r"'stock/notes.txt' is listed as b3:.*, but I read b3:") as raised:
        taken(changed)
    raised.value.thread.export("stock.thread")
    verdict = verify_file("stock.thread", trust=TrustStore.load(trusted(changed, Path("trust.toml"))))
    assert (verdict.exit_code, verdict.outcome, verdict.declined) == (5, "rejected", 1)


def test_there_is_no_stock_to_take_of_an_empty_folder(job: Job) -> None:
    shutil.rmtree("stock")
    Path("stock").mkdir()
    with pytest.raises(StepFailed, match="said no"):
        taken(job)


def test_the_commands_that_the_document_shows_do_it(job: Job, tmp_path: Path) -> None:
    shutil.copyfile(HERE / "stocktaking.py", tmp_path / "stocktaking.py")
    lines = [line.lstrip("# ") for line in (HERE / "agent.toml").read_text("utf-8").splitlines() if "#     " in line]
    commands = [command.split() for line in lines for command in line.split(" && ")]
    assert [command[:2] for command in commands[2:]] == [["flow", "check"], ["flow", "run"]]
    for key in tmp_path.glob("*.pem"):
        key.unlink()
    for package, *arguments in commands:
        command = [sys.executable, "-m", package, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
    assert "Completed in status agreed" in done.stdout


# The schema


SCHEMA_DATA = json.loads(SCHEMA.read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA_DATA)
TEXT = (HERE / "agent.toml").read_text("utf-8")


def test_the_schema_is_one_and_takes_the_example() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA_DATA)
    VALIDATOR.validate(tomllib.loads(TEXT))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version = 1", "version = 2"),
        ("version = 1", ""),
        ('judge = "judge"', 'judge = "a judge"'),
        ('judge = "judge"', "judge = 1"),
        ('gate = "after"', 'gate = "later"'),
        ('needs = ["list"]', 'needs = "list"'),
        ("attempts = 3", "atempts = 3"),
        ("max_messages = 3", "max_messages = -3"),
        ("[peers.reviewer]", '[peers."no name"]'),
        ('initial = "begun"', ""),
        ('key = "stocktaker.pem"', 'key = ""'),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(job: Job, old: str, new: str) -> None:
    changed = TEXT.replace(old, new, 1)
    assert changed != TEXT
    assert list(VALIDATOR.iter_errors(tomllib.loads(changed)))
    Path("agent.toml").write_text(changed, "utf-8")
    with pytest.raises(Exception, match=r"agent\.field"):
        AgentFile.read("agent.toml")


def test_the_schema_explains_every_field() -> None:
    for table in [SCHEMA_DATA, *SCHEMA_DATA["$defs"].values()]:
        for name, field in table["properties"].items():
            within = SCHEMA_DATA["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            assert field.get("description") or within.get("description"), name


def test_the_page_on_documents_names_every_field() -> None:
    page = SCHEMA.with_name("agent.md").read_text("utf-8")
    for table in [SCHEMA_DATA, *SCHEMA_DATA["$defs"].values()]:
        for name in table["properties"]:
            assert re.search(rf"[`\[.]{name}[`\].]", page), name
