"""The `envelope` command, run as a command."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from envelope import (
    Card,
    Identity,
    Revocation,
    Settle,
    ThreadWriter,
    TrustedKey,
    TrustStore,
    address,
    address_text,
    did_key,
    sign_record,
)
from envelope.cli import main
from envelope.threadfile import write_records

ROOT = Path(__file__).parents[2]
START = 1_760_000_000_000
ADA, BOB = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2))
COMMANDS = [["keygen"], ["card", "new"], ["card", "show"], ["verify"], ["show"], ["address"]]
FILES = {
    0: "done.thread",
    1: "bad.thread",
    2: "missing.thread",
    3: "open.thread",
    4: "stranger.thread",
    5: "failed.thread",
}
"""By the exit code with which verifying each of them ends."""


def run(
    *arguments: str | bytes | Path, cwd: Path, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ENVELOPE_"))}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        "NO_COLOR": "1",
        "COLUMNS": "100",
        **(env or {}),
    }
    options = {
        "timeout": 60,
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **options,
    }
    command = [sys.executable, "-m", "envelope", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, encoding="utf-8", errors="replace", check=False, **options)
    assert "Traceback" not in (done.stderr or ""), done.stderr
    return done


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Call(Protocol):
    def __call__(self, *arguments: str | Path, cwd: Path) -> Done: ...


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command in this process: for tables of cases, since each process of its own takes a while to begin."""

    def call(*arguments: str | Path, cwd: Path) -> Done:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["envelope", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        code = caught.value.code
        assert code is None or isinstance(code, int)
        return Done(code or 0, *capsys.readouterr())

    return call


def begin(**fields: Any) -> ThreadWriter:
    members = [
        {"key": ADA.public_key, "role": "moderator", "name": "ada"},
        {"key": BOB.public_key, "role": "member", "name": "bob"},
    ]
    return ThreadWriter.open(ADA, "release-42", members, sent_at=START, **{"nonce": bytes(16), **fields})


def ask(writer: ThreadWriter) -> dict[str, Any]:
    said = writer.message(ADA, "m1", "Ship it.", to=[BOB.public_key], sent_at=START)
    writer.ruling(ADA, writer.ack(BOB, said, "I ship it.", sent_at=START), sent_at=START)
    return {"message": said.address, "outcome": "succeeded"}


def thread(outcome: str | None = "completed", **fields: Any) -> ThreadWriter:
    writer = begin(**fields)
    settled = (ask(writer),)
    if outcome:
        writer.seal(ADA, outcome, settled=settled, sent_at=START)
    return writer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli")
    done = thread()
    done.export(path / FILES[0])
    write_records(path / FILES[1], [*done.records[:4], done.records[4][:-1] + bytes([done.records[4][-1] ^ 1])])
    thread(None, nonce=b"3" * 16).export(path / FILES[3])
    eve = Identity.from_seed(b"\3" * 32)
    stranger = ThreadWriter.open(eve, "t", [{"key": eve.public_key, "role": "moderator", "name": "eve"}])
    stranger.seal(eve, "completed")
    stranger.export(path / FILES[4])
    thread("failed", nonce=b"5" * 16).export(path / FILES[5])
    thread(plan=bytes(32), nonce=b"6" * 16).export(path / "planned.thread")
    open_request = begin(nonce=b"7" * 16)
    open_request.message(BOB, "m1", "And me?", to=[ADA.public_key], sent_at=START)
    open_request.seal(ADA, "completed", sent_at=START)
    open_request.export(path / "parked.thread")
    later = begin()
    (path / "empty.thread").touch()
    (path / "torn.thread").write_bytes(b"".join(done.records)[:-5])
    (path / "text.thread").write_text("Dear auditor,\n")
    body = sign_record(
        Settle, ADA, **later.thread.links(), settled=({"step": ("a",), "outcome": "skipped"},), sent_at=1
    )
    (path / "unlinked.thread").write_bytes(b"".join(done.records[:2]) + body.raw)
    store = TrustStore({ADA.public_key: TrustedKey("Ada", "human"), BOB.public_key: TrustedKey("Bob", "agent")})
    (path / "trust.toml").write_text(store.dump(), encoding="utf-8")
    card = Card.issue(BOB, name="Bob", capabilities=["ship"], description="Ships.", sent_at=START)
    lost = sign_record(Revocation, ADA, key=BOB.public_key, reason="Lost.", revoked_at=START, sent_at=START)
    write_records(path / "some.proofs", [card.raw, lost.raw])
    return path


# ---------------------------------------------------------------------------------------------------------- help


def test_the_command_explains_itself_and_names_every_command(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    for name in ("keygen", "card", "verify", "show", "address"):
        assert re.search(rf"^\W*{name}\b", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_s_help_has_an_example_of_it(tmp_path: Path, command: list[str], call: Call) -> None:
    done = call(*command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert re.search(rf"Example:\s+envelope\s+{' '.join(command)} \S", done.stdout)


def test_verify_s_help_explains_its_exit_codes(tmp_path: Path, call: Call) -> None:
    text = " ".join(call("verify", "--help", cwd=tmp_path).stdout.split())
    for phrase in (
        "0 verified",
        "1 invalid",
        "2 usage",
        "3 incomplete",
        "4 a signer is not trusted",
        "5 verified, but",
    ):
        assert phrase in text


def test_the_installed_script_is_the_same_command(folder: Path) -> None:
    script = shutil.which("envelope", path=str(Path(sys.executable).parent))
    if script is None:
        pytest.skip("the package is not installed")
    done = subprocess.run(
        [script, "verify", FILES[0], "--trust", "trust.toml"], cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [[], ["verify"], ["verify", "--loud", "x"], ["certify", "x"], ["verify", "x", "--trust"], ["keygen"], ["card"],
     ["card", "new", "--key", "x"], ["show", "a", "b"]],
    ids=lambda arguments: " ".join(arguments) or "nothing",
)  # fmt: skip
def test_a_command_that_is_not_one_ends_with_2(tmp_path: Path, arguments: list[str], call: Call) -> None:
    assert call(*arguments, cwd=tmp_path).returncode == 2


# -------------------------------------------------------------------------------------------------------- verify


@pytest.mark.parametrize("code", FILES)
def test_verify_and_show_end_with_every_exit_code(folder: Path, code: int) -> None:
    for command in ("verify", "show"):
        assert run(command, FILES[code], "--trust", "trust.toml", cwd=folder).returncode == code


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ((0, 0), 0),
        ((0, 5), 5),
        ((5, 3, 0), 3),
        ((0, 3, 5, 4), 4),
        ((4, 3, 1, 5, 0), 1),
        ((0, 1, 4, 3, 5, 2), 2),
        ((2, 0), 2),
    ],
)
def test_of_several_files_the_first_of_2_1_4_3_5_decides_in_any_order(
    folder: Path, files: tuple[int, ...], code: int, call: Call
) -> None:
    done = call("verify", *(FILES[file] for file in files), "--trust", "trust.toml", cwd=folder)
    assert done.returncode == code
    for file in files:
        assert FILES[file] in (done.stderr if file == 2 else done.stdout), "each file has its verdict"


def test_verify_with_json_prints_a_line_of_json_for_each_file(folder: Path) -> None:
    names = [*FILES.values(), "parked.thread", "planned.thread", "empty.thread", "torn.thread"]
    done = run("verify", *names, "--trust", "trust.toml", "--json", cwd=folder)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["file"] for line in lines] == names
    assert done.returncode == 2
    assert done.stderr == ""
    assert done.stdout.isascii()
    codes = [line.get("exit_code") for line in lines]
    assert codes == [0, 1, 2, 3, 4, 5, 5, 0, 1, 1]
    assert lines[2]["error"]["code"] == "file.unreadable"
    first = lines[0]
    assert (first["integrity"], first["completeness"], first["outcome"], first["trust"]) == (
        "valid", "sealed", "completed", "trusted",
    )  # fmt: skip
    assert first["thread"] == address_text(thread().opening.address)
    assert [signer["name"] for signer in first["signers"]] == ["Ada", "Bob"]
    assert [finding["code"] for finding in lines[6]["findings"]] == ["seal.open_request"]
    assert (lines[7]["plan"], lines[8]["code"], lines[9]["code"]) == ("unchecked", "chain.no_open", "file.torn")


def test_a_failing_verify_names_the_record_its_offset_its_address_and_what_was_expected_and_found(folder: Path) -> None:
    done = run("verify", "unlinked.thread", "--trust", "trust.toml", cwd=folder)
    records = thread().records
    data = (folder / "unlinked.thread").read_bytes()
    offset = len(records[0]) + len(records[1])
    assert done.returncode == 1
    assert done.stdout.startswith("unlinked.thread: invalid (chain.fork)")
    text = " ".join(done.stdout.split())
    assert f"chain.fork (rule 8.8) at record 2, byte {offset}, {address_text(address(data[offset:]))}" in text
    assert f"both follow {address_text(address(records[0]))}" in text
    assert address_text(address(records[1])) in text
    assert "Ask another party for their copy of the thread" in text


def test_a_missing_record_is_named_by_what_was_expected_and_what_was_found(folder: Path, tmp_path: Path) -> None:
    records = thread().records
    write_records(tmp_path / "gap.thread", [records[0], records[4]])
    text = " ".join(run("verify", "gap.thread", cwd=tmp_path).stdout.split())
    assert "chain.prev (rule 8.9) at record 1" in text
    assert (
        f"prev is {address_text(address(records[1]))}, but the record before is {address_text(address(records[0]))}"
        in text
    )


def test_a_file_that_was_cut_says_up_to_where_it_is_valid(folder: Path, call: Call) -> None:
    text = " ".join(call("verify", "torn.thread", cwd=folder).stdout.split())
    assert "invalid (file.torn)" in text
    assert "at record 4, byte" in text
    assert "valid up to record 4" in text


def test_the_first_line_says_that_a_plan_was_not_checked_and_it_can_be_required(folder: Path, call: Call) -> None:
    done = call("verify", "planned.thread", "--trust", "trust.toml", cwd=folder)
    assert (done.returncode, done.stdout.splitlines()[0].endswith("plan unchecked")) == (0, True)
    done = call("verify", "planned.thread", FILES[0], "--trust", "trust.toml", "--require-plan", "--json", cwd=folder)
    assert done.returncode == 3
    assert [json.loads(line)["exit_code"] for line in done.stdout.splitlines()] == [3, 0]


def test_a_required_plan_does_not_hide_what_comes_first(folder: Path, call: Call) -> None:
    assert call("verify", "planned.thread", "--require-plan", cwd=folder).returncode == 4


def test_without_a_trust_file_nobody_is_trusted(folder: Path) -> None:
    done = run("verify", FILES[0], cwd=folder)
    assert done.returncode == 4
    assert "trust.none" in done.stdout


def test_the_thread_that_is_meant_can_be_named(folder: Path, call: Call) -> None:
    right, wrong = address_text(thread().opening.address), address_text(bytes(32))
    assert call("verify", FILES[0], "--trust", "trust.toml", "--thread", right, cwd=folder).returncode == 0
    done = call("verify", FILES[0], "--trust", "trust.toml", "--thread", wrong, cwd=folder)
    assert (done.returncode, "chain.pinned" in done.stdout) == (1, True)


def test_two_copies_of_which_one_goes_on_further_do_not_contradict_each_other(
    folder: Path, tmp_path: Path, call: Call
) -> None:
    thread().export(tmp_path / "whole.thread")
    write_records(tmp_path / "short.thread", thread().records[:2])
    done = call("verify", "whole.thread", "short.thread", "--trust", folder / "trust.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")


def test_two_copies_that_go_on_differently_are_forked_and_end_with_1(folder: Path, tmp_path: Path, call: Call) -> None:
    thread().export(tmp_path / "one.thread")
    thread("failed").export(tmp_path / "two.thread")
    done = call("verify", "one.thread", "two.thread", "--trust", folder / "trust.toml", cwd=tmp_path)
    assert (done.returncode, "forked" in done.stderr) == (1, True)


def test_a_copy_with_pending_receipts_is_no_fork_of_one_with_a_longer_chain(tmp_path: Path, call: Call) -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key], sent_at=START)
    further = begin()
    further.append(said)
    further.message(ADA, "m2", "By the way.", sent_at=START)
    writer.ruling(ADA, writer.ack(BOB, said, "Yes.", sent_at=START), sent_at=START)
    writer.export(tmp_path / "pending.thread")
    further.export(tmp_path / "further.thread")
    for order in (("pending", "further"), ("further", "pending")):
        done = call("verify", *(f"{name}.thread" for name in order), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (4, "")


def test_a_tip_that_is_missing_makes_a_thread_truncated(folder: Path, tmp_path: Path, call: Call) -> None:
    tip = address_text(address(thread().records[-1]))
    write_records(tmp_path / "cut.thread", thread().records[:-1])
    options = ("--trust", folder / "trust.toml", "--tip", tip)
    assert call("verify", FILES[0], *options, cwd=folder).returncode == 0
    done = call("verify", "cut.thread", *options, cwd=tmp_path)
    assert (done.returncode, "truncated" in done.stdout) == (3, True)


@pytest.mark.parametrize("option", ["--thread", "--tip"])
def test_an_address_that_is_none_ends_with_2(folder: Path, option: str, call: Call) -> None:
    done = call("verify", FILES[0], option, "b3:xyz", cwd=folder)
    assert (done.returncode, "address.malformed" in done.stderr) == (2, True)


# ------------------------------------------------------------------------------------------ files that are none


def test_files_that_cannot_be_read_end_with_2_and_each_is_named(folder: Path, tmp_path: Path) -> None:
    names = ["missing.thread", ".", "missing/some.thread", "trust.toml/some.thread", "n" * 300]
    done = run("verify", *names, cwd=folder)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["error", "file.unreadable"]] * len(names)
    assert all(name in line for name, line in zip(names, lines, strict=True))


@pytest.mark.parametrize("command", [["verify"], ["show"], ["address"], ["card", "show"]], ids=" ".join)
@pytest.mark.parametrize("name", [".", "n" * 300], ids=["folder", "long name"])
def test_every_command_that_reads_a_file_ends_with_2_where_it_cannot(
    folder: Path, command: list[str], name: str, call: Call
) -> None:
    done = call(*command, name, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: file.unreadable: ")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no file here that opens and does not read")
def test_a_file_that_opens_but_does_not_read_ends_with_2(folder: Path) -> None:
    done = run("verify", "/proc/self/mem", FILES[0], cwd=folder)
    assert (done.returncode, "file.unreadable" in done.stderr) == (2, True)


def test_a_file_that_one_may_not_read_ends_with_2(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    thread().export(closed / "some.thread")
    (closed / "some.thread").chmod(0)
    closed.chmod(0)
    try:
        for name in ("closed/some.thread", "closed"):
            if os.access(tmp_path / name, os.R_OK):
                pytest.skip("nothing is closed to this user")
            assert run("verify", name, cwd=tmp_path).returncode == 2
    finally:
        closed.chmod(0o700)


def test_nothing_and_other_files_are_no_threads(folder: Path) -> None:
    done = run("verify", os.devnull, "empty.thread", "text.thread", "trust.toml", "--json", cwd=folder)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [line["integrity"] for line in lines] == ["invalid"] * 4
    assert [line["code"] for line in lines][:2] == ["chain.no_open"] * 2


def test_a_file_of_zeroes_is_judged_in_bounded_time(tmp_path: Path) -> None:
    with (tmp_path / "zeroes.thread").open("wb") as file:
        file.truncate(1 << 30)
    done = run("verify", "zeroes.thread", "--json", cwd=tmp_path, timeout=30)
    assert (done.returncode, json.loads(done.stdout)["integrity"]) == (1, "invalid")


def test_a_name_that_is_no_utf_8_is_a_file_like_any_other(tmp_path: Path) -> None:
    name = b"caf\xe9-\xff.thread"
    thread().export(Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))))
    for command in ("verify", "show", "address"):
        done = run(command, name, cwd=tmp_path)
        assert done.returncode == (0 if command == "address" else 4), done.stderr
    done = run("verify", "--json", name, b"missing-" + name, cwd=tmp_path)
    files = [os.fsencode(json.loads(line)["file"]) for line in done.stdout.splitlines()]
    assert files == [name, b"missing-" + name]


@pytest.mark.parametrize(
    ("text", "named"),
    [("version = 2\n", "version"), ("version = [", "TOML"), ("version = 1\nx = 1\n", "x"), (None, "No such file")],
)
def test_a_trust_file_that_is_none_ends_with_2_before_anything_is_read(
    folder: Path, tmp_path: Path, text: str | None, named: str, call: Call
) -> None:
    if text is not None:
        (tmp_path / "trust.toml").write_text(text)
    for command in ("verify", "show"):
        done = call(command, FILES[0], "--trust", tmp_path / "trust.toml", cwd=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: trust.file: ")
        assert named in done.stderr


# -------------------------------------------------------------------------------------------------------- output


def test_a_reader_that_stops_listening_does_not_look_like_a_verdict(folder: Path) -> None:
    for command in (
        ["show", FILES[0], "--trust", "trust.toml"],
        ["verify", FILES[0], "--trust", "trust.toml", "--json"],
    ):
        reading, writing = os.pipe()
        os.close(reading)
        done = run(*command, cwd=folder, stdout=writing)
        os.close(writing)
        assert done.returncode not in (0, 1, 2, 3, 4, 5)
        assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_verdict_that_cannot_be_written_ends_with_2_and_a_sentence(folder: Path) -> None:
    for command in (["verify", FILES[0], "--trust", "trust.toml"], ["address", FILES[0]]):
        with Path("/dev/full").open("w") as full:
            done = run(*command, cwd=folder, stdout=full)
        assert done.returncode == 2
        assert "No space left on device" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_of_another_encoding_gets_what_it_can_show(folder: Path, encoding: str) -> None:
    done = run("show", FILES[0], "--trust", "trust.toml", cwd=folder, env={"PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr[-300:]
    assert "outcome completed" in done.stdout
    assert "Ship it." in done.stdout


def test_what_is_not_for_a_terminal_has_no_colours(folder: Path) -> None:
    done = run("show", FILES[0], "--trust", "trust.toml", cwd=folder, env={"TERM": "xterm-256color"})
    assert "\x1b" not in done.stdout


def test_show_shows_the_verdict_first_and_then_the_timeline(folder: Path) -> None:
    done = run("show", FILES[0], "--trust", "trust.toml", cwd=folder)
    lines = done.stdout.splitlines()
    assert lines[0] == f"{FILES[0]}: valid, sealed, outcome completed, trust trusted"
    assert any("Ada → Bob  request m1" in line for line in lines)
    assert "      ┃ Ship it." in lines
    assert any("seals the thread completed" in line for line in lines)


def test_of_a_thread_that_breaks_show_shows_what_comes_before_and_says_so(folder: Path) -> None:
    done = run("show", FILES[1], "--trust", "trust.toml", cwd=folder)
    assert done.returncode == 1
    assert "      ┃ Ship it." in done.stdout.splitlines()
    assert "seals" not in done.stdout
    assert "from record 4 on nothing verified" in done.stdout


# ------------------------------------------------------------------------------------------------------- keygen


def test_keygen_writes_a_key_that_only_its_owner_can_read_and_prints_its_did(tmp_path: Path) -> None:
    done = run("keygen", "me.pem", cwd=tmp_path)
    identity = Identity.load(tmp_path / "me.pem")
    assert (done.returncode, done.stdout, done.stderr) == (0, identity.did + "\n", "")
    assert stat.S_IMODE((tmp_path / "me.pem").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["me.pem"]


def test_keygen_prints_json(tmp_path: Path, call: Call) -> None:
    done = call("keygen", "me.pem", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"did": Identity.load(tmp_path / "me.pem").did, "path": "me.pem"}


def test_keygen_never_writes_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "me.pem").write_bytes(b"before")
    done = run("keygen", "me.pem", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: key.file: me.pem: ")
    assert (tmp_path / "me.pem").read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["me.pem"]


@pytest.mark.parametrize("place", ["missing/me.pem", ".", ""])
def test_keygen_ends_with_2_where_no_file_can_be(tmp_path: Path, place: str, call: Call) -> None:
    done = call("keygen", place, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert os.listdir(tmp_path) == []


def test_a_key_is_encrypted_with_the_passphrase_of_the_environment_and_signs_with_it_only(tmp_path: Path) -> None:
    secret = {"ENVELOPE_PASSPHRASE": "correct horse"}
    done = run("keygen", "me.pem", "--encrypt", cwd=tmp_path, env=secret)
    assert done.returncode == 0
    identity = Identity.load(tmp_path / "me.pem", "correct horse")
    assert identity.did + "\n" == done.stdout
    new = ["card", "new", "--key", "me.pem", "--name", "Me", "-c", "x", "-o", "me.card"]
    done = run(*new, cwd=tmp_path, env={"ENVELOPE_PASSPHRASE": "battery staple"})
    assert (done.returncode, done.stderr.split(": ")[1]) == (2, "key.passphrase")
    assert not (tmp_path / "me.card").exists()
    assert run(*new, cwd=tmp_path, env=secret).returncode == 0
    assert Card.open((tmp_path / "me.card").read_bytes()).key == identity.public_key


@pytest.mark.parametrize("passphrase", ["", "x" * 1001])
def test_a_passphrase_that_is_empty_or_too_long_ends_with_2(tmp_path: Path, passphrase: str) -> None:
    done = run("keygen", "me.pem", "--encrypt", cwd=tmp_path, env={"ENVELOPE_PASSPHRASE": passphrase})
    assert (done.returncode, done.stderr.split(": ")[1]) == (2, "key.passphrase")
    assert os.listdir(tmp_path) == []


def test_where_a_passphrase_can_neither_be_asked_nor_found_no_key_is_written(tmp_path: Path) -> None:
    done = run("keygen", "me.pem", "--encrypt", cwd=tmp_path, env={"PYTHONWARNINGS": "ignore"}, start_new_session=True)
    assert done.returncode != 0
    assert os.listdir(tmp_path) == []


# --------------------------------------------------------------------------------------------------------- cards


def test_a_card_is_signed_and_its_address_printed(tmp_path: Path) -> None:
    ADA.save(tmp_path / "ada.pem")
    done = run(
        "card", "new", "--key", "ada.pem", "--name", "Bób", "-c", "write", "-c", "review", "--description", "Reads.",
        "--for", did_key(BOB.public_key), "-o", "bob.card", cwd=tmp_path,
    )  # fmt: skip
    raw = (tmp_path / "bob.card").read_bytes()
    card = Card.open(raw)
    assert (done.returncode, done.stdout) == (0, address_text(address(raw)) + "\n")
    assert (card.name, card.capabilities, card.key) == ("Bób", ("review", "write"), BOB.public_key)
    assert (card.envelope.signer, card.envelope.record.description) == (ADA.public_key, "Reads.")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (["--name", ""], "body.display"),
        (["--name", "a\u202eb"], "body.display"),
        (["-c", "Review"], "body.name"),
        (["--description", " "], "body.blank"),
        (["--for", "did:key:z6Mk"], "did.malformed"),
        (["--key", "missing.pem"], "key.file"),
        (["--key", "."], "key.file"),
        (["-o", "missing/me.card"], "file.unreadable"),
        (["-o", "there.card"], "file.unreadable"),
    ],
)
def test_a_card_that_cannot_be_made_ends_with_2_and_writes_nothing(
    tmp_path: Path, changes: list[str], code: str, call: Call
) -> None:
    ADA.save(tmp_path / "ada.pem")
    (tmp_path / "there.card").write_bytes(b"before")
    given = ["--key", "ada.pem", "--name", "Ada", "-c", "review", "-o", "me.card"]
    done = call("card", "new", *given, *changes, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {code}: ")
    assert sorted(os.listdir(tmp_path)) == ["ada.pem", "there.card"]
    assert (tmp_path / "there.card").read_bytes() == b"before"


def test_cards_are_shown_as_claims_beside_what_the_verifier_knows(folder: Path, call: Call) -> None:
    done = call("card", "show", "some.proofs", "--trust", "trust.toml", cwd=folder)
    assert done.returncode == 0
    assert f"signed by     {did_key(BOB.public_key)}  (Bob)" in done.stdout
    assert "  the name\n    ┃ Bob\n" in done.stdout
    assert "its signer's own" in done.stdout
    assert "  reason\n    ┃ Lost.\n" in done.stdout
    assert "unknown to you" in call("card", "show", "some.proofs", cwd=folder).stdout


def test_cards_are_shown_as_json_lines(folder: Path) -> None:
    done = run("card", "show", "some.proofs", "--trust", "trust.toml", "--json", cwd=folder)
    card, lost = [json.loads(line) for line in done.stdout.splitlines()]
    assert (card["kind"], card["signer"], card["signer_known_as"]) == ("card", did_key(BOB.public_key), "Bob")
    assert card["claims"]["capabilities"] == ["ship"]
    assert (lost["kind"], lost["claims"]["key"]) == ("revocation", did_key(BOB.public_key))


@pytest.mark.parametrize(
    ("name", "code"),
    [(FILES[0], "chain.kind"), ("text.thread", ""), ("torn.thread", ""), ("missing.card", "file.unreadable")],
)
def test_a_file_that_holds_no_cards_ends_with_2(folder: Path, name: str, code: str, call: Call) -> None:
    done = call("card", "show", name, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {code}")
    assert name in done.stderr


# ------------------------------------------------------------------------------------------------------- address


def test_the_address_of_a_file_is_that_of_its_bytes(folder: Path) -> None:
    data = (folder / FILES[0]).read_bytes()
    done = run("address", FILES[0], cwd=folder)
    assert (done.returncode, done.stdout) == (0, address_text(address(data)) + "\n")
    done = run("address", FILES[0], "--json", cwd=folder)
    assert json.loads(done.stdout) == {"path": FILES[0], "address": address_text(address(data))}


def test_the_address_of_nothing_is_that_of_no_bytes(folder: Path, call: Call) -> None:
    assert call("address", os.devnull, cwd=folder).stdout == address_text(address(b"")) + "\n"
