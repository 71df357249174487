"""`flow demo` on real files, and what an auditor makes of what it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envelope import EnvelopeError, TrustStore, Verifier, open_envelope, verify_file
from envelope.cards import read_proofs
from envelope.threadfile import read_records, write_records


def command(package: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", package, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "notes.txt").write_text("first\n")
    (folder / "empty").write_bytes(b"")
    (folder / "binary.bin").write_bytes(bytes(range(256)) * 400)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "ünïcode name.md").write_text("ä")
    (folder / ".hidden").write_text("not looked at")
    return folder


@pytest.fixture(scope="module")
def signed(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signed")
    result = command("flow", "demo", files, "--out", folder / "out", cwd=folder)
    assert result.returncode == 0, result.stderr
    (folder / "stdout").write_text(result.stdout)
    return folder


def test_it_leaves_a_thread_that_verifies_with_exit_code_0(signed: Path) -> None:
    out = signed / "out"
    verdict = command("envelope", "verify", out / "release.thread", "--trust", out / "trust.toml", "--json", cwd=signed)
    found = json.loads(verdict.stdout)
    assert verdict.returncode == 0
    assert (found["integrity"], found["completeness"], found["outcome"], found["trust"]) == (
        "valid",
        "sealed",
        "completed",
        "trusted",
    )
    assert (found["messages"], found["acknowledged"]) == (4, 4)


def test_it_prints_the_timeline_and_the_very_command_that_verifies_it(signed: Path) -> None:
    stdout = (signed / "stdout").read_text()
    told = stdout.splitlines()[-1].strip()
    assert told.endswith(f"envelope verify {signed / 'out' / 'release.thread'} --trust {signed / 'out' / 'trust.toml'}")
    for words in ("inventory", "evidence [verified]", "reviewer accepts", "releaser confirms", "seals the thread"):
        assert words in stdout


def test_it_records_the_address_of_every_file_as_evidence(signed: Path, files: Path) -> None:
    records = [open_envelope(raw).record for _, raw in read_records(signed / "out" / "release.thread")]
    (evidence,) = [record for record in records if getattr(record, "epistemic", None) == "verified"]
    listed = [json.loads(line) for line in evidence.payload.splitlines()]
    assert [Path(entry["path"]).name for entry in listed] == ["binary.bin", "ünïcode name.md", "empty", "notes.txt"]
    for entry, address in zip(listed, evidence.provenance.evidence, strict=True):
        told = command("envelope", "address", entry["path"], cwd=signed).stdout.strip()
        assert told == entry["address"] == f"b3:{address.hex()}"


def test_it_leaves_both_cards_of_the_two_trusted_keys(signed: Path) -> None:
    cards, skipped = read_proofs(signed / "out" / "release.proofs")
    trust = TrustStore.load(signed / "out" / "trust.toml")
    assert skipped == []
    assert {card.signer for card in cards} == set(trust)
    assert [card.record.name for card in cards] == ["releaser", "reviewer"]


def test_without_its_seal_the_thread_is_incomplete_with_exit_code_3(signed: Path, tmp_path: Path) -> None:
    records = [raw for _, raw in read_records(signed / "out" / "release.thread")]
    write_records(tmp_path / "cut.thread", records[:-1])
    result = command(
        "envelope", "verify", tmp_path / "cut.thread", "--trust", signed / "out" / "trust.toml", cwd=tmp_path
    )
    assert result.returncode == 3


def test_with_any_bit_changed_it_is_invalid(signed: Path, tmp_path: Path) -> None:
    data = (signed / "out" / "release.thread").read_bytes()
    trust = TrustStore.load(signed / "out" / "trust.toml")
    for place in range(0, 8 * len(data), 397):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        (tmp_path / "changed.thread").write_bytes(changed)
        assert verify_file(tmp_path / "changed.thread", trust=trust).exit_code == 1


def test_under_an_empty_trust_file_trust_is_unknown_with_exit_code_4(signed: Path, tmp_path: Path) -> None:
    (tmp_path / "nobody.toml").write_text("version = 1\n")
    result = command(
        "envelope", "verify", signed / "out" / "release.thread", "--trust", tmp_path / "nobody.toml", cwd=tmp_path
    )
    assert result.returncode == 4


def test_a_file_changed_behind_the_reviewers_back_is_declined_and_exits_with_5(files: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    result = command("flow", "demo", files, "--out", tmp_path / "out", "--tamper", cwd=tmp_path)
    assert result.returncode == 0
    assert "reviewer declines" in result.stdout
    verdict = verify_file(tmp_path / "out" / "release.thread", trust=TrustStore.load(tmp_path / "out" / "trust.toml"))
    assert (verdict.exit_code, verdict.outcome, verdict.declined) == (5, "rejected", 1)
    assert {path: path.read_bytes() for path in before} == before


def test_more_files_than_fit_as_evidence_are_named_by_their_list(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number}.txt").write_text(str(number))
    assert command("flow", "demo", folder, "--out", tmp_path / "out", cwd=tmp_path).returncode == 0
    verdict = verify_file(tmp_path / "out" / "release.thread", trust=TrustStore.load(tmp_path / "out" / "trust.toml"))
    assert verdict.exit_code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="names are text there")
def test_a_name_that_is_no_utf_8_is_signed_off_like_any_other(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    with open(os.fsencode(folder) + b"/\xff\x1b[31m\n.txt", "wb") as file:
        file.write(b"odd")
    result = command("flow", "demo", folder, "--out", tmp_path / "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("arguments", [["missing"], ["empty-folder"]])
def test_what_holds_no_file_is_refused_and_nothing_is_written(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty-folder").mkdir()
    result = command("flow", "demo", *arguments, "--out", tmp_path / "out", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: demo.files: ")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_not_written_to(files: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    result = command("flow", "demo", files, "--out", tmp_path, cwd=tmp_path)
    assert result.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_it_may_be_run_again(signed: Path, files: Path) -> None:
    assert command("flow", "demo", files, "--out", signed / "out", cwd=signed).returncode == 0


def test_help_has_an_example(tmp_path: Path) -> None:
    assert "Example: flow demo" in command("flow", "demo", "--help", cwd=tmp_path).stdout


def test_the_projects_own_documents_are_signed_off_by_default(tmp_path: Path) -> None:
    result = command("flow", "demo", cwd=tmp_path)
    assert result.returncode == 0
    assert "README.md" in result.stdout
    assert "protocol.md" in result.stdout


def test_a_thread_fed_record_by_record_is_judged_alike(signed: Path) -> None:
    trust = TrustStore.load(signed / "out" / "trust.toml")
    verifier = Verifier(trust=trust)
    for _, raw in read_records(signed / "out" / "release.thread"):
        verifier.feed(raw)
    assert verifier.finish().exit_code == 0
    with pytest.raises(EnvelopeError):
        verify_file(signed / "out" / "no.thread", trust=trust)
