"""Threads that mislead whoever looks at them through the commands: several copies at once, and rows of a terminal."""

import ctypes
import fcntl
import itertools
import json
import locale
import os
import pty
import struct
import subprocess
import sys
import termios
import unicodedata
from pathlib import Path

import anyio
import pytest

from envelope import Card, Identity, address_text
from envelope.show import escape, quoted
from flow.store import SqliteStore
from tests.attacks.test_forgeries import HUMAN, OWNER, REVIEWER, ROOT, Forger, run_verify, secret, settled


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_a_third_copy_does_not_hide_that_two_others_contradict_each_other(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Rows 5 and 34: a copy that both others go on from stands between them."""
    start = Forger()
    message = start.message(OWNER, "ask", [REVIEWER])
    start.agree(REVIEWER, OWNER, message)
    branches = [start, start.copy(), start.copy()]
    branches[1].seal(settled=[settled(message)])
    branches[2].seal("failed")
    paths = [tmp_path / f"{number}.thread" for number in range(3)]
    for path, branch in zip(paths, branches, strict=True):
        path.write_bytes(b"".join(branch.records))
    result = run_verify(tmp_path, *(paths[number] for number in order))
    assert (result.returncode, "it is forked" in result.stderr) == (1, True), result


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the C library how wide characters are")
def test_no_row_of_free_text_is_wider_than_the_terminal_whatever_it_is_written_in() -> None:
    """Row 17: what a terminal wraps by itself begins at its left margin, where no bar stands.

    Terminals differ. The C library counts vowel signs of Indic scripts, for one, as a cell each, others as none.
    """
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    library = ctypes.CDLL(None)
    library.wcwidth.argtypes = [ctypes.c_wchar]
    shown = [char for char in map(chr, range(0x20, 0x110000)) if escape(char) == char]
    assert library.wcwidth("\u0940") == 1
    marks = [char for char in shown if unicodedata.category(char)[0] in "MNS"]
    texts = ("".join(shown), *(before + char * 90 for char in marks for before in ("x", "")))
    rows = [row.plain for text in texts for row in quoted(text, "", 42, whole=True)]
    assert not [row for row in rows if sum(map(library.wcwidth, row)) > 42][:4]


def stored(folder: Path, thread: Forger) -> Path:
    async def adopt() -> None:
        async with SqliteStore(folder / "threads.db") as store:
            await store.adopt("t", thread.records)

    anyio.run(adopt)
    Identity.from_seed(bytes(secret(HUMAN))).save(folder / "human.pem")
    return folder / "threads.db"


def rows_on_a_terminal(folder: Path, *arguments: str, columns: int = 80, program: str = "flow") -> list[str]:
    """Run a command and return what a terminal shows, row by row."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", program, *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    data = b""
    try:
        while block := os.read(ours, 4096):
            data += block
    except OSError:
        pass  # the other side is closed
    os.close(ours)
    assert process.wait() == 0, data
    lines = data.decode().replace("\r\n", "\n").split("\n")
    return [line[start : start + columns] for line in lines for start in range(0, max(len(line), 1), columns)]


@pytest.mark.parametrize("command", ["approvals", "approve"])
@pytest.mark.parametrize("which", ["message", "escalation"])
def test_no_extension_wraps_into_a_line_of_the_tool(tmp_path: Path, command: str, which: str) -> None:
    """Row 17: the approver reads that the recipient accepts, which never answered."""
    forged = f"  {'recipient':<11} rev (did:key:z6Mk) accepts, having understood:"
    ext = {which: {"ext": {"a.b": forged.ljust(81) * 80}}}
    thread = Forger()
    message = thread.message(OWNER, "ask", [REVIEWER], **ext.get("message", {}))
    thread.message(OWNER, "e", [HUMAN], intent="escalate", reply_to=message, **ext.get("escalation", {}))
    stored(tmp_path, thread)
    more = ["--key", "human.pem", "--yes"] if command == "approve" else []
    address = [address_text(message)] if command == "approve" else []
    rows = rows_on_a_terminal(tmp_path, command, *address, *more)
    assert any(row.startswith(f"  {'recipient':<11} rev (did:key:") for row in rows)
    assert not any(row.startswith(forged) for row in rows)


def test_an_approver_is_shown_what_is_replied_to_and_all_that_asks_for_the_answer(tmp_path: Path) -> None:
    """Who signs that they accept an escalation signs for the whole of it, and for the message as a reply."""
    thread = Forger()
    plan = thread.message(OWNER, "plan", payload="delete everything")
    message = thread.message(OWNER, "ask", [REVIEWER], payload="do as it says", reply_to=plan)
    terms = {"ext": {"org.example": "and pay for it"}, "context": [plan], "capability": "pay", "room": None}
    thread.message(OWNER, "e", [HUMAN], intent="escalate", reply_to=message, **terms)
    stored(tmp_path, thread)
    rows = rows_on_a_terminal(tmp_path, "approve", address_text(message), "--key", "human.pem", "--yes", columns=200)
    shown = "\n".join(rows[: next(place for place, row in enumerate(rows) if row.startswith("You sign"))])
    assert f"  in reply to {address_text(plan)}" in shown
    assert f"  {'context':<11} {address_text(plan)}  a record of this thread" in shown
    assert f"  {'capability':<11} pay" in shown
    assert "and pay for it" in shown
    assert f"  {'thread':<11} {address_text(thread.thread)}" in shown


def test_a_program_is_told_what_a_message_that_waits_replies_to(tmp_path: Path) -> None:
    thread = Forger()
    plan = thread.message(OWNER, "plan")
    message = thread.message(OWNER, "ask", [REVIEWER], reply_to=plan)
    thread.message(OWNER, "e", [HUMAN], intent="escalate", reply_to=message)
    stored(tmp_path, thread)
    (told,) = [row for row in rows_on_a_terminal(tmp_path, "approvals", "--json", columns=9_999) if row]
    assert json.loads(told)["message"]["reply_to"] == address_text(plan)
    assert json.loads(told)["escalation"]["reply_to"] == address_text(message)


def test_no_name_on_a_card_wraps_into_a_line_of_the_tool(tmp_path: Path) -> None:
    """Rows 17 and 37: a name may hold spaces, and is longer than a terminal is wide."""
    forged = "  signed by     did:key:z6Mk (Bob)"
    pusher = Identity.generate()
    for length in range(60, 66):
        card = Card.issue(pusher, name="x".ljust(length) + forged, capabilities=["x"])
        (tmp_path / "a.card").write_bytes(card.raw)
        rows = rows_on_a_terminal(tmp_path, "card", "show", "a.card", program="envelope")
        assert any(row.startswith("  signed by     did:key:") for row in rows)
        assert not any(row.startswith(forged) for row in rows)
