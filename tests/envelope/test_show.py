"""What a person sees: run in a terminal, with records that would rather show something else.

A small model of a terminal takes the command's output as a terminal of 100 columns would. It knows printable text, new
lines and colours; anything else fails the test, and so does text that leaves the gutter of the message it belongs to.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import tty
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope import (
    Card,
    Identity,
    Revocation,
    ThreadVerdict,
    ThreadWriter,
    TrustedKey,
    TrustStore,
    Verifier,
    address_text,
    did_key,
    sign_record,
    verify_thread,
)
from envelope.show import Timeline, escape, render_verdict
from envelope.threadfile import write_records

ROOT = Path(__file__).parents[2]
WIDTH = 100
START = 1_760_000_000_000
ADA, BOB, PAT, EVE = (Identity.from_seed(name.encode().ljust(32, b".")) for name in ("ada", "bob", "pat", "eve"))
TRUST = TrustStore(
    {
        ADA.public_key: TrustedKey("Ada Lovelace", "human"),
        BOB.public_key: TrustedKey("Bob [bold]the builder[/bold] :smile:", "agent"),
        PAT.public_key: TrustedKey("Pat", "human"),
    }
)
MEMBERS = [
    {"key": ADA.public_key, "role": "moderator", "name": "ada"},
    {"key": BOB.public_key, "role": "member", "name": "bob"},
    {"key": PAT.public_key, "role": "approver", "name": "pat"},
]
INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


# ----------------------------------------------------------------------------------------------------- a terminal


class Row(NamedTuple):
    text: str
    continued: bool  # begun because the row before was full, not because a line began


class Unprintable(AssertionError):
    """A terminal was told something else than text, colours and new lines."""


def on_screen(output: bytes, width: int = WIDTH) -> list[Row]:
    """Return the rows that a terminal shows, given only text, new lines and colours; anything else fails."""
    text = output.decode("utf-8")
    rows, row, column, continued = [], "", 0, False
    place = 0
    while place < len(text):
        if colour := re.compile(r"\x1b\[[0-9;]*m").match(text, place):
            place = colour.end()
            continue
        char = text[place]
        place += 1
        if char == "\n":
            rows.append(Row(row, continued))
            row, column, continued = "", 0, False
            continue
        if unicodedata.category(char) in INVISIBLE:
            raise Unprintable(f"{text[max(0, place - 40) : place + 20]!r}")
        cells = 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if column + cells > width:
            rows.append(Row(row, continued))
            row, column, continued = "", 0, True
        row += char
        column += cells
    return [*rows, Row(row, continued)] if row else rows


def in_terminal(*arguments: str | bytes, cwd: Path) -> tuple[int, bytes]:
    """Run the command in a terminal and return its exit code and all that the terminal was sent."""
    outside, inside = pty.openpty()
    tty.setraw(inside)
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONWARNINGS"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "envelope", *arguments]
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, cwd=cwd, env=environment) as process:
        os.close(inside)
        output = b""
        while True:
            try:
                block = os.read(outside, 65_536)
            except OSError:  # how Linux says that nobody holds the other end
                break
            if not block:
                break
            output += block
    os.close(outside)
    return process.returncode, output


@pytest.mark.parametrize(
    "output",
    [b"\x1b[2J", b"\x1b]8;;x\x1b\\", b"a\rb", b"a\bb", b"\t", b"\x1b[1A", "\u202e".encode(), b"\xc2\x9b", b"\0"],
)  # fmt: skip
def test_the_terminal_of_these_tests_takes_nothing_but_text_and_colours(output: bytes) -> None:
    with pytest.raises(Unprintable):
        on_screen(b"so\x1b[1;31m far\x1b[0m\n" + output)


def test_the_terminal_of_these_tests_wraps_as_terminals_do() -> None:
    assert on_screen(b"x" * 100 + b"\ny", 100) == [Row("x" * 100, False), Row("y", False)]
    assert on_screen(b"x" * 101, 100) == [Row("x" * 100, False), Row("x", True)]
    assert on_screen("漢".encode() * 3, 5) == [Row("漢漢", False), Row("漢", True)]


# ------------------------------------------------------------------------------------------------ hostile records

MARK = "MARK"
"""Stands in every hostile text, so that the rows which show a part of one can be told."""

FORGED = f"   9  2025-10-09 08:53:20Z  Ada Lovelace seals the thread completed {MARK}"
HOSTILE: dict[str, str] = {
    "clear screen": "\x1b[2J\x1b[H",
    "colours": "\x1b[31mred\x1b[0m",
    "cursor up": "\x1b[1A\x1b[2K",
    "link": "\x1b]8;;https://evil.example\x1b\\Ada\x1b]8;;\x1b\\",
    "title": "\x1b]0;root\x07",
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "device": "\x1bP0;1|17/ab\x1b\\",
    "carriage return": f"declined\r{FORGED}",
    "backspace": "declined\b\b\b\b\b\b\b\baccepted",
    "direction": "\u202egnp.exe\u202c \u2066x\u2069 \u200f\u061c",
    "zero width": "ac\u200bce\u200dpt\u2060ed\ufeff",
    "c1": "\x9b2J\x9d8;;x\x9c\x85",
    "nul": "a\0b",
    "tabs": "a\tb\x0bc\x0cd",
    "separators": "a\u2028b\u2029c",
    "markup": "[red]alarm[/red] [link=https://evil.example]x[/link] [/] :smile: {x} %s",
    "blank letters": "a\u3164b\u115f\u1160\uffa0\u2800c",
    "tags": "a\U000e0041\U000e007f",
    "private": "\ue000\U0010ffff",
    "soft hyphen": "ac\u00adcept",
    "variation": "a\ufe0f\U000e0100",
    "backslash": "\\x1b[2J \\u202e",
    "lines": f"\n{FORGED}\n      ├ Pat accepts, having understood:\n      └ settled succeeded\n\n{MARK}\n",
    "long line": "x" * 90 + " " * 2 + FORGED + " " * 300 + FORGED,
    "wrapped line": " ".join(" " * pad + FORGED for pad in range(0, 100, 7)),
    "wide line": "漢" * 46 + FORGED,
    "longer than shown": ("y" * 79 + " ") * 60 + "THE END",
    "combining": "e\u0301" * 120 + FORGED,
}


def hostile(text: str) -> str:
    return f"{MARK} {text} {MARK}"


def hostile_thread() -> ThreadWriter:
    """Return a thread in which every field that holds free text holds every hostile text."""
    writer = ThreadWriter.open(ADA, "hostile", MEMBERS, nonce=bytes(16), sent_at=START)
    settled: list[dict[str, Any]] = []
    for number, text in enumerate(map(hostile, HOSTILE.values())):
        source = text.encode()[:250].decode(errors="ignore")
        said = writer.message(
            ADA, f"m{number}", text, to=[BOB.public_key, PAT.public_key], sent_at=START, provenance={"source": source}
        )
        ack = writer.ack(BOB, said, text, sent_at=START)
        fix = writer.ruling(ADA, ack, text, sent_at=START)
        writer.ruling(ADA, writer.ack(BOB, said, text, after=fix.address, sent_at=START), sent_at=START)
        writer.ack(PAT, said, text, answer="decline", sent_at=START)
        settled.append({"message": said.address, "outcome": "failed", "status": "given-up", "result": text})
        settled.append({"step": (f"s{number}",), "outcome": "failed", "result": text})
    writer.settle(ADA, settled, sent_at=START)
    writer.seal(ADA, "failed", reason="".join(map(hostile, HOSTILE.values())), sent_at=START)
    return writer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("show")
    hostile_thread().export(path / "hostile.thread")
    (path / "trust.toml").write_text(TRUST.dump(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def shown(folder: Path) -> list[Row]:
    code, output = in_terminal("show", "hostile.thread", "--trust", "trust.toml", cwd=folder)
    assert code == 5
    assert b"\x1b[" in output, "no colours in a terminal"
    return on_screen(output)


HEADING = re.compile(r" {0,3}\d+  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  ")


def test_every_heading_of_the_timeline_is_a_record_s(shown: list[Row]) -> None:
    headings = [row.text for row in shown if HEADING.match(row.text)]
    assert len(headings) == len(HOSTILE) + 3
    assert not any(MARK in heading for heading in headings)


def test_what_a_record_says_stays_in_its_gutter_on_every_row(shown: list[Row]) -> None:
    begin = next(number for number, row in enumerate(shown) if HEADING.match(row.text))
    gutter = re.compile(r" {6}[│ ]*[┃…] ?")
    assert [row.text for row in shown[begin:] if MARK in row.text and not gutter.match(row.text)] == []


def test_an_imitation_of_the_timeline_is_shown_inside_the_gutter(shown: list[Row]) -> None:
    assert f"      ┃ {FORGED}" in [row.text for row in shown]
    assert "      ┃       ├ Pat accepts, having understood:" in [row.text for row in shown]


def squeezed(text: str) -> str:
    """Return a text without the blanks and gutters among which it may be broken into rows."""
    return re.sub(r"[\s│┃]", "", text)


@pytest.mark.parametrize("name", [name for name in HOSTILE if len(HOSTILE[name]) < 70])
def test_a_hostile_text_is_shown_as_what_it_is(shown: list[Row], name: str) -> None:
    wanted = "".join(map(squeezed, map(escape, hostile(HOSTILE[name]).split("\n"))))
    assert wanted in squeezed("".join(row.text for row in shown))


def test_markup_and_emoji_codes_are_shown_as_they_are_written(shown: list[Row]) -> None:
    text = "".join(row.text for row in shown)
    assert squeezed("[red]alarm[/red] [link=https://evil.example]x[/link] [/] :smile: {x} %s") in squeezed(text)
    assert "Bob [bold]the builder[/bold] :smile:" in text


def test_of_a_very_long_text_the_rest_is_counted(shown: list[Row]) -> None:
    text = "\n".join(row.text for row in shown)
    length = len(hostile(HOSTILE["longer than shown"]))
    assert f"… {length - 4000} characters more" in text
    assert "THE END" not in text


def test_every_restatement_correction_result_and_reason_is_shown(shown: list[Row]) -> None:
    begun = [row.text for row in shown if f"{MARK} " in row.text and not row.continued]
    short = escape(hostile(HOSTILE["nul"]))
    gutters = sorted({row[: row.index(MARK)] for row in begun if short in row})
    assert len([row for row in begun if short in row]) >= 6, gutters


def test_a_verdict_on_hostile_records_keeps_to_its_lines(folder: Path) -> None:
    code, output = in_terminal("verify", "hostile.thread", "--trust", "trust.toml", cwd=folder)
    assert code == 5
    rows = on_screen(output)
    assert rows[0].text.startswith("hostile.thread: valid, sealed, outcome failed")
    assert all(row.continued or row.text.startswith("  ") for row in rows[1:])
    assert not any(MARK in row.text for row in rows)


# A field's name of a refused record is its signer's to choose, and the finding repeats it.
UNKNOWN_FIELDS = [
    "\x1b[2J",
    "\u202e",
    "mood\nforged.thread: valid, sealed, outcome completed, trust trusted",
    "m" * 40_000,
    "m" * 30 + " " + "  ".join(["forged.thread: valid, sealed, outcome completed, trust trusted"] * 9),
]


@pytest.mark.parametrize("name", UNKNOWN_FIELDS, ids=["escape", "direction", "line", "long", "wrapped"])
def test_a_finding_that_repeats_a_record_keeps_to_its_lines_and_to_a_bounded_length(tmp_path: Path, name: str) -> None:
    writer = ThreadWriter.open(ADA, "t", MEMBERS, nonce=bytes(16), sent_at=START)
    body = {"v": 1, "sent_at": START, **writer.thread.links(), "receipts": [bytes(32)], name: 1}
    write_records(tmp_path / "bad.thread", [*writer.records, _raw("settle", body)])
    code, output = in_terminal("verify", "bad.thread", cwd=tmp_path)
    rows = on_screen(output)
    assert code == 1
    assert not [row.text for row in rows if row.text.startswith("forged.thread")]
    assert len(rows) < 40
    assert all(row.text.startswith("  ") for row in rows[1:] if "forged.thread" in row.text)


def _raw(kind: str, body: dict[str, Any]) -> bytes:
    """Return an envelope of a body that no writer makes."""
    from envelope import cbor

    def string(data: bytes) -> bytes:
        return cbor.encode(data)

    typ = cbor.encode(f"application/vnd.envelope.{kind}+cose")
    protected = string(b"\xa3\x01\x32\x04" + string(ADA.public_key) + b"\x10" + typ)
    payload = string(cbor.encode(body))
    signature = ADA.sign(b"\x84\x6aSignature1" + protected + b"\x40" + payload)
    return b"\xd2\x84" + protected + b"\xa0" + payload + string(signature)


@pytest.mark.parametrize(
    "name",
    ["x\x1b[2J.thread", "x\nforged.thread: valid, sealed", "x\u202edaerht", "[red]x.thread", b"\xff\xfe.thread"],
)  # fmt: skip
def test_a_file_s_name_is_escaped_as_well(tmp_path: Path, name: str | bytes) -> None:
    path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), os.fsencode(name))))
    ThreadWriter.open(ADA, "t", MEMBERS, nonce=bytes(16), sent_at=START).export(path)
    code, output = in_terminal("verify", os.fsencode(name), b"missing-" + os.fsencode(name), cwd=tmp_path)
    rows = on_screen(output)
    assert code == 2
    assert rows[0].text.startswith(escape(os.fsdecode(name)) + ": valid, open")
    assert squeezed(escape("missing-" + os.fsdecode(name))) in squeezed("".join(row.text for row in rows[-2:]))
    assert not any(row.text.startswith("forged") for row in rows)


def test_a_card_s_claims_are_escaped_and_keep_to_their_lines(tmp_path: Path) -> None:
    texts = list(map(hostile, HOSTILE.values()))
    cards = [Card.issue(BOB, name="Ada Lovelace", capabilities=["x"], description=text) for text in texts]
    reason = hostile(HOSTILE["long line"])
    lost = sign_record(Revocation, BOB, sent_at=1, key=BOB.public_key, reason=reason, revoked_at=1)
    write_records(tmp_path / "all.proofs", [*(card.raw for card in cards), lost.raw])
    code, output = in_terminal("card", "show", "all.proofs", cwd=tmp_path)
    assert code == 0
    rows = on_screen(output)
    gutter = re.compile(r"  (description|reason) | {8}| +┃ ")
    assert [row.text for row in rows if MARK in row.text and not gutter.match(row.text)] == []
    assert not any(HEADING.match(row.text) for row in rows)
    assert sum("unknown to you" in row.text for row in rows) == len(cards) + 1


# ------------------------------------------------------------------------------------------------------- escaping

UNESCAPE = re.compile(r"\\(?:(\\)|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def unescape(text: str) -> str:
    return UNESCAPE.sub(lambda match: match[1] or chr(int(match[2] or match[3] or match[4], 16)), text)


anything = st.text(
    st.characters(codec=None) | st.sampled_from("\\xuU0123456789abcdef\x1b\u202e\ue000\ud800"), max_size=60
)


@settings(max_examples=500)
@given(anything)
def test_an_escaped_text_holds_no_character_that_does_not_show(text: str) -> None:
    assert not {unicodedata.category(char) for char in escape(text)} & INVISIBLE


@settings(max_examples=500)
@given(anything)
def test_an_escaped_text_can_be_read_back_so_no_two_texts_look_the_same(text: str) -> None:
    assert unescape(escape(text)) == text


def test_every_character_that_does_not_show_is_escaped() -> None:
    codes = (*range(0x20000), *range(0xE0000, 0xE1000), *range(0x10FF00, 0x110000))
    hidden = "".join(char for char in map(chr, codes) if unicodedata.category(char) in INVISIBLE)
    assert escape(hidden).isascii()
    assert unescape(escape(hidden)) == hidden


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("Grüße, 漢字 🙂", "Grüße, 漢字 🙂"),
        ("\x1b", "\\x1b"),
        ("\n", "\\x0a"),
        ("\u202e", "\\u202e"),
        ("\U000e0041", "\\U000e0041"),
        ("\\", "\\\\"),
        ("\\x1b", "\\\\x1b"),
        ("\ud800", "\\ud800"),
        ("\u3164", "\\u3164"),
        ("\ufe0f", "\\ufe0f"),
    ],
)
def test_escaping_writes_codes_of_two_four_or_eight_digits(text: str, shown: str) -> None:
    assert escape(text) == shown


# ---------------------------------------------------------------------------------------------------- the timeline


def timeline(writer: ThreadWriter, trust: TrustStore | None = None) -> list[str]:
    found = Timeline(trust)
    verifier = Verifier(trust=trust, now=START, observe=found.observe)
    for raw in writer.records:
        verifier.feed(raw)
    assert verifier.finish().integrity == "valid"
    return [line.plain for line in found.render()]


def verdict_lines(verdict: ThreadVerdict) -> list[str]:
    return [line.plain for line in render_verdict("some.thread", verdict)]


def begin(**fields: Any) -> ThreadWriter:
    return ThreadWriter.open(ADA, "release-42", MEMBERS, nonce=bytes(16), sent_at=START, **fields)


def test_a_timeline_tells_who_said_what_to_whom_and_what_became_of_it() -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Ship it?\nNow?", to=[BOB.public_key], sent_at=START, step=("ship",))
    first = writer.ack(BOB, said, "Ship on Friday.", sent_at=START)
    fix = writer.ruling(ADA, first, "Now, not on Friday.", sent_at=START)
    writer.ruling(ADA, writer.ack(BOB, said, "Ship now.", after=fix.address, sent_at=START), sent_at=START)
    writer.seal(
        ADA, "completed", sent_at=START, reason="Done.",
        settled=({"message": said.address, "outcome": "succeeded", "attempts": 2, "result": "Shipped."},),
    )  # fmt: skip
    lines = timeline(
        writer, TrustStore({ADA.public_key: TrustedKey("Ada", "human"), BOB.public_key: TrustedKey("Bob", "agent")})
    )
    rest = "\n".join(lines[lines.index(next(line for line in lines if "m1" in line)) :])
    short = address_text(said.address)[:15]
    assert rest.splitlines() == [
        f"   1  2025-10-09 08:53:20Z  Ada → Bob  request m1 [assumed]  {short}…",
        "      step ship",
        "      ┃ Ship it?",
        "      ┃ Now?",
        "      ├ Bob accepts, having understood:",
        "      │ ┃ Ship on Friday.",
        "      │   Ada corrects:",
        "      │   ┃ Now, not on Friday.",
        "      ├ Bob accepts, having understood:",
        "      │ ┃ Ship now.",
        "      │   Ada confirms",
        "      └ settled succeeded, attempts 2",
        "        ┃ Shipped.",
        "   6  2025-10-09 08:53:20Z  Ada seals the thread completed",
        "      ┃ Done.",
    ]


def test_names_come_from_the_verifier_and_a_name_from_the_thread_is_quoted_as_a_claim() -> None:
    lines = timeline(begin(), TrustStore({ADA.public_key: TrustedKey("Countess", "human")}))
    assert "Countess opens release-42" in lines[0]
    assert f'      {did_key(BOB.public_key)} (claims "bob"), member, called bob' in lines
    assert "      Countess, moderator, called ada" in lines


def test_an_open_shows_its_room_plan_limits_and_what_it_follows() -> None:
    lines = timeline(begin(room="ops", plan=bytes(32), follows=bytes(32), limits={"bytes": 9}))
    assert "      room ops" in lines
    assert f"      plan {address_text(bytes(32))}" in lines
    assert f"      follows {address_text(bytes(32))}" in lines
    assert "      limits: 9 bytes, any messages" in lines


def test_a_decline_and_an_unsettled_request_are_shown() -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key], sent_at=START)
    writer.ack(BOB, said, "No.", answer="decline", sent_at=START)
    lines = timeline(writer, TRUST)
    assert lines[-3].endswith("declines:")
    assert lines[-2:] == ["      │ ┃ No.", "      └ not settled"]


def test_an_approval_names_who_was_asked_and_in_which_escalation() -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key], sent_at=START)
    asked = writer.message(
        ADA, "m2", "May I?", to=[PAT.public_key], intent="escalate", reply_to=said.address, sent_at=START
    )
    writer.ruling(ADA, writer.ack(PAT, asked, "You may.", sent_at=START), sent_at=START)
    writer.settle(ADA, [{"message": said.address, "outcome": "approved", "by": asked.address}], sent_at=START)
    lines = timeline(writer, TRUST)
    assert f"      └ settled approved by Pat, asked in {address_text(asked.address)[:15]}…" in lines
    assert "      in reply to m1" in lines


def test_steps_without_a_message_are_shown_as_ungated_where_they_were_settled() -> None:
    writer = begin()
    writer.settle(ADA, [{"step": ("build", "test#2"), "outcome": "skipped", "status": "unneeded"}], sent_at=START)
    lines = timeline(writer, TRUST)
    assert "      step build/test#2, ungated: settled skipped, status unneeded" in lines


def test_receipts_that_no_chain_record_committed_are_shown_as_pending() -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key], sent_at=START)
    writer.ruling(ADA, writer.ack(BOB, said, "Yes.", sent_at=START), sent_at=START)
    assert sum("pending" in line for line in timeline(writer, TRUST)) == 2
    writer.settle(ADA, sent_at=START)
    assert not any("pending" in line for line in timeline(writer, TRUST))


def test_changes_of_the_roster_are_shown() -> None:
    writer = begin()
    writer.roster(ADA, "admit", EVE.public_key, role="observer", name="eve", sent_at=START)
    writer.roster(ADA, "role", EVE.public_key, role="member", sent_at=START)
    writer.roster(ADA, "remove", BOB.public_key, sent_at=START)
    writer.roster(EVE, "leave", EVE.public_key, sent_at=START)
    eve = f'{did_key(EVE.public_key)} (claims "eve")'
    endings = [line.split("Z  ", 1)[1] for line in timeline(writer, TRUST)[-4:]]
    assert endings[0] == f"Ada Lovelace admits {eve} as observer"
    assert endings[1] == f"Ada Lovelace changes the role of {eve} as member"
    assert endings[2] == "Ada Lovelace removes Bob [bold]the builder[/bold] :smile:"
    assert endings[3].startswith(f"{eve} ")


def test_a_payload_that_stands_outside_the_thread_is_shown_by_its_address() -> None:
    writer = begin()
    writer.message(ADA, "m1", {"address": bytes(32), "bytes": 1017}, sent_at=START)
    assert f"      ┃ (1017 bytes outside the thread, {address_text(bytes(32))})" in timeline(writer)


@pytest.mark.parametrize("sent_at", [0, 253_402_300_799_999, 253_402_300_800_000, (1 << 53) - 1])
def test_any_time_that_a_record_can_have_is_shown(sent_at: int) -> None:
    writer = ThreadWriter.open(ADA, "t", MEMBERS, nonce=bytes(16), sent_at=sent_at)
    assert str(sent_at) in timeline(writer)[0] or re.search(r"\d{4}-\d\d-\d\d", timeline(writer)[0])


def test_a_verdict_shows_its_counts_signers_and_findings_with_places_and_advice() -> None:
    writer = begin()
    said = writer.message(ADA, "m1", "Please.", to=[BOB.public_key], sent_at=START)
    ack = writer.ack(BOB, said, "No.", answer="decline", sent_at=START)
    writer.seal(ADA, "failed", sent_at=START)
    verdict = verify_thread(writer.records, trust=[ADA.public_key], now=START)
    lines = verdict_lines(verdict)
    offset = len(writer.records[0]) + len(writer.records[1])
    assert lines[0] == "some.thread: valid, sealed, outcome failed, trust unknown"
    assert lines[1] == f"  thread    release-42  {address_text(verdict.thread or b'')}"
    assert "messages 1: acknowledged 0, approved 0, declined 1" in lines[2]
    assert f'  signer    unknown  {did_key(BOB.public_key)}  claims "bob"' in lines
    at = lines.index(f"  finding   trust.unknown (rule 12.2) at record 2, byte {offset}, {address_text(ack.address)}")
    assert lines[at + 2].strip() == verdict.findings[0].advice
    assert any(line.startswith("  note      message.declined") for line in lines)


def test_a_verdict_says_how_many_findings_it_leaves_out() -> None:
    writer = begin()
    for number in range(150):
        writer.message(ADA, f"m{number}", "Tick.", sent_at=START + 1_000_000 * (1 - number % 2))
    verdict = verify_thread(writer.records, trust=[ADA.public_key], now=START + 1_000_000)
    assert verdict_lines(verdict)[-1] == f"  {75 - 64} more findings are not shown"


def test_a_verdict_without_a_thread_is_shown_too() -> None:
    assert (
        verdict_lines(verify_thread([], trust=None))[0]
        == "some.thread: invalid (chain.no_open), open, outcome none, trust unknown"
    )
