"""A thread as a person reads it: who said what to whom, what was answered and ruled, what became of it.

Everything that comes from a record is escaped: what could move a cursor, hide or reorder text is shown as its code.
Free text stands behind a bar (┃) that nothing else uses, on every line that it takes, so that no text can pass for one
of this program's lines. Only records that verified are shown.
"""

import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import Any, Final, NoReturn, TextIO

from rich.console import Console
from rich.text import Text

from envelope.cose import Envelope, address_text
from envelope.keys import PublicKey, did_key
from envelope.records import Ack, Blob, Chained, Message, Open, Roster, Ruling, Seal, Settled
from envelope.trust import TrustStore
from envelope.verdict import Finding, ThreadVerdict

_HIDDEN_CATEGORIES: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_BLANK_LETTERS: Final = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10)))
) | frozenset(map(chr, range(0xE0100, 0xE01F0)))
_PICTURES: Final = frozenset(("No", "Sk", "So"))
_LONGEST_TEXT: Final = 4_000
_MARGIN: Final = " " * 6


def escape(text: str) -> str:
    r"""Return `text` with every character that does not show as itself written as `\xNN`, `\uNNNN` or `\UNNNNNNNN`."""
    return "".join(map(_escape, text)) if not (text.isascii() and text.isprintable() and "\\" not in text) else text


def _escape(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if unicodedata.category(char) not in _HIDDEN_CATEGORIES and char not in _BLANK_LETTERS:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def short(address: bytes) -> str:
    """Return enough of an address to tell it from its neighbours."""
    return address_text(address)[:15] + "…"


@dataclass(slots=True)
class _Entry:
    envelope: Envelope[Any]
    index: int  # of the record in its file, as findings give it
    answers: list[tuple[Envelope[Any], int]] = field(default_factory=list)
    settled: Settled | None = None
    settled_by: PublicKey = b""


class Timeline:
    """Collects the records that a verifier accepts, and renders them message by message.

    Args:
        trust: where names come from; a name from the thread is quoted as a claim beside the key.
        width: of the terminal, to which free text is wrapped; None where there is none.
    """

    def __init__(self, trust: TrustStore | None = None, width: int | None = None) -> None:
        self._width = width
        self._trust: Mapping[PublicKey, Any] = trust or {}
        self._claims: dict[PublicKey, str] = {}
        self._entries: list[_Entry] = []
        self._messages: dict[bytes, _Entry] = {}
        self._acks: dict[bytes, _Entry] = {}
        self._steps: list[tuple[int, Settled]] = []

    def observe(self, envelope: Envelope[Any], index: int, offset: int) -> None:
        """Take the next accepted record."""
        record = envelope.record
        if isinstance(record, Ack):
            entry = self._messages[record.message]
            entry.answers.append((envelope, len(self._entries)))
            self._acks[envelope.address] = entry
            return
        if isinstance(record, Ruling):
            self._acks[record.ack].answers.append((envelope, len(self._entries)))
            return
        if isinstance(record, Open):
            self._claims.update((member.key, member.name) for member in record.members)
        elif isinstance(record, Roster) and record.name is not None:
            self._claims[record.key] = record.name
        entry = _Entry(envelope, index)
        if isinstance(record, Chained):
            for settled in record.settled or ():
                if settled.message is not None:
                    self._messages[settled.message].settled = settled
                else:
                    self._steps.append((len(self._entries), settled))
        self._entries.append(entry)
        self._messages[envelope.address] = entry

    def render(self) -> Iterator[Text]:
        """Yield the timeline, a line at a time."""
        steps = iter([*self._steps, (len(self._entries), None)])
        place, step = next(steps)
        for number, entry in enumerate(self._entries):
            while step is not None and place <= number:
                yield from self._step(step)
                place, step = next(steps)
            yield from self._chain_record(entry)

    def name(self, key: PublicKey) -> str:
        """Return how a key is called: by the verifier's name, or its did:key with the thread's claim quoted."""
        if (known := self._trust.get(key)) is not None:
            return escape(known.name)
        claim = self._claims.get(key)
        return did_key(key) + (f' (claims "{escape(claim)}")' if claim else "")

    def _chain_record(self, entry: _Entry) -> Iterator[Text]:
        envelope = entry.envelope
        record = envelope.record
        head = Text()
        head.append(f"{entry.index:>4}  {utc(record.sent_at)}  ", "dim")
        head.append(self.name(envelope.signer), "bold")
        if isinstance(record, Open):
            head.append(" opens ").append(escape(record.name), "bold").append(f"  {short(envelope.address)}", "dim")
            yield head
            for member in record.members:
                yield _under(f"{self.name(member.key)}, {member.role}, called {escape(member.name)}")
            for label, value in (("room", record.room), ("plan", record.plan), ("follows", record.follows)):
                if value is not None:
                    yield _under(f"{label} {address_text(value) if isinstance(value, bytes) else escape(value)}")
            if record.limits is not None:
                yield _under(
                    f"limits: {record.limits.bytes or 'any'} bytes, {record.limits.messages or 'any'} messages"
                )
        elif isinstance(record, Message):
            yield from self._message(head, entry)
        elif isinstance(record, Roster):
            role = f" as {record.role}" if record.role else ""
            head.append(f" {_CHANGES[record.change]} {self.name(record.key)}{role}")
            yield head
        elif isinstance(record, Seal):
            style = "bold green" if record.outcome == "completed" else "bold red"
            head.append(" seals the thread ").append(record.outcome, style)
            if record.status:
                head.append(f", status {escape(record.status)}")
            yield head
            if record.reason is not None:
                yield from self._content(record.reason, "")
        else:
            yield head.append(" settles")

    def _message(self, head: Text, entry: _Entry) -> Iterator[Text]:
        envelope = entry.envelope
        record: Message = envelope.record
        to = ", ".join(self.name(key) for key in record.to or ()) or "the thread"
        head.append(" → ").append(to, "bold").append(f"  {record.intent} ").append(escape(record.id), "bold cyan")
        head.append(f" [{record.epistemic}]")
        head.append(f"  {short(envelope.address)}", "dim")
        yield head
        if record.reply_to is not None:
            target = self._messages[record.reply_to].envelope.record
            yield _under(f"in reply to {escape(target.id)}")
        if record.step is not None:
            yield _under(f"step {escape('/'.join(record.step))}")
        yield from self._content(record.payload, "")
        if record.provenance is not None:
            evidence = record.provenance.evidence or ()
            yield _under(f"│ from a source, with {len(evidence)} pieces of evidence:")
            yield from self._content(record.provenance.source, "│ ")
            for address in evidence:
                yield _under(f"│ {address_text(address)}")
        for answer, place in entry.answers:
            yield from self._answer(answer, pending=place == len(self._entries))
        if (settled := entry.settled) is not None:
            yield _under("└ " + self._settlement(settled), "green" if settled.outcome == "succeeded" else "yellow")
            if settled.result is not None:
                yield from self._content(settled.result, "  ")
        elif record.needs_ack:
            yield _under("└ not settled", "yellow")

    def _answer(self, envelope: Envelope[Any], *, pending: bool) -> Iterator[Text]:
        record: Ack | Ruling = envelope.record
        who = ("(pending, not counted) " if pending else "") + self.name(envelope.signer)
        if isinstance(record, Ruling):
            yield _under(f"│   {who} {'confirms' if record.ruling == 'confirm' else 'corrects:'}")
            if record.correction is not None:
                yield from self._content(record.correction, "│   ")
            return
        accepts = record.answer == "accept"
        yield _under(f"├ {who} {'accepts, having understood:' if accepts else 'declines:'}", "" if accepts else "red")
        yield from self._content(record.restatement, "│ ")

    def _content(self, content: str | Blob, prefix: str) -> Iterator[Text]:
        if isinstance(content, Blob):
            content = f"({content.bytes} bytes outside the thread, {address_text(content.address)})"
        yield from quoted(content, _MARGIN + prefix, self._width)

    def _settlement(self, settled: Settled) -> str:
        words = [f"settled {settled.outcome}"]
        if settled.by is not None:
            approvers = self._messages[settled.by].envelope.record.to or ()
            words[0] += f" by {', '.join(map(self.name, approvers))}"
            words.append(f"asked in {short(settled.by)}")
        if settled.status is not None:
            words.append(f"status {escape(settled.status)}")
        if settled.attempts is not None:
            words.append(f"attempts {settled.attempts}")
        return ", ".join(words)

    def _step(self, settled: Settled) -> Iterator[Text]:
        path = escape("/".join(settled.step or ()))
        yield _under(
            f"step {path}, ungated: {self._settlement(settled)}", "yellow" if settled.outcome == "failed" else ""
        )


_CHANGES: Final = {"admit": "admits", "role": "changes the role of", "remove": "removes", "leave": "lets go"}


def render_verdict(label: str, verdict: ThreadVerdict) -> Iterator[Text]:
    """Yield a verdict for a person: the axes, the counts, the signers, the findings."""
    style = {0: "bold green", 5: "bold yellow", 3: "bold yellow", 4: "bold yellow"}.get(verdict.exit_code, "bold red")
    head = Text(f"{escape(label)}: ")
    head.append(str(verdict), style)
    yield head
    if verdict.thread is not None:
        yield Text(f"  thread    {escape(verdict.name or '')}  {address_text(verdict.thread)}")
    yield Text(
        f"  records   {verdict.records}; messages {verdict.messages}: acknowledged {verdict.acknowledged}, "
        f"approved {verdict.approved}, declined {verdict.declined}; steps without a message {verdict.ungated}; "
        f"pending receipts {verdict.pending}"
    )
    for signer in verdict.signers:
        known = f"{escape(signer.name)} ({signer.role})" if signer.name is not None else "unknown"
        line = Text("  signer    ").append(known, "bold" if signer.trust == "trusted" else "bold yellow")
        line.append(f"  {did_key(signer.key)}")
        yield line if signer.name is not None else line.append(f'  claims "{escape(signer.claimed_name)}"')
    names = {did_key(signer.key): escape(signer.name) for signer in verdict.signers if signer.name is not None}
    for finding in verdict.findings:
        yield from _finding(finding, names)
    if verdict.omitted:
        yield Text(f"  {verdict.omitted} more findings are not shown")


def render_thread(label: str, verdict: ThreadVerdict, timeline: Timeline) -> Iterator[Text]:
    """Yield a thread for a person: the verdict, then the timeline of what verified."""
    yield from render_verdict(label, verdict)
    yield Text()
    yield from timeline.render()
    if verdict.integrity != "valid":
        where = f"from record {verdict.findings[0].index} on"
        yield Text(f"   …  {where} nothing verified, so nothing is shown", "bold red")


def say_anything() -> None:
    """Have the standard streams write what their encoding cannot hold as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def terminal_width() -> int | None:
    """Return the width of the terminal that is printed to, or None where the output is none."""
    console = Console()
    return console.width if console.is_terminal else None


UNREAD: Final = 141
"""The exit code of a command whose output nobody reads any more."""


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line; where nobody reads any more, end with the exit code of a command that a closed pipe killed."""
    try:
        print(text, file=file, flush=True)
    except BrokenPipeError:
        _leave(file or sys.stdout)


def _leave(file: TextIO) -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
    sys.exit(UNREAD)


def print_lines(lines: Iterable[Text]) -> None:
    """Print lines as they are, unwrapped; in colour where the output is a terminal."""
    console = _Console(highlight=False, emoji=False, markup=False, soft_wrap=True)
    for line in lines:
        console.print(line)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        _leave(sys.stdout)


def _finding(finding: Finding, names: Mapping[str, str]) -> Iterator[Text]:
    word = "note" if finding.effect == "note" else "finding"
    line = Text(f"  {word:<9} ").append(finding.code, "bold" if word == "note" else "bold red")
    line.append(f" (rule {finding.rule})")
    if finding.index is not None:
        line.append(f" at record {finding.index}, byte {finding.offset}")
    if finding.address is not None:
        line.append(f", {address_text(finding.address)}")
    yield line
    text = escape(finding.text)
    for did, name in names.items():
        text = text.replace(did, f"{name} ({did[:20]}…)")
    yield Text(f"            {text}")
    yield Text(f"            {finding.advice}", "dim")


def quoted(text: str, margin: str, width: int | None, *, whole: bool = False) -> Iterator[Text]:
    """Yield free text, escaped and wrapped to `width`, each line behind the margin and a bar; cut, unless `whole`."""
    room = None if width is None else max(width - len(margin) - 2, 8)
    longest = len(text) if whole else _LONGEST_TEXT
    for line in text[:longest].split("\n"):
        for piece in [escape(line)] if room is None else _chopped(escape(line), room):
            yield Text(f"{margin}┃ {piece}")
    if len(text) > longest:
        yield Text(f"{margin}… {len(text) - longest} characters more")


def _chopped(line: str, room: int) -> Iterator[str]:
    """Yield a line in pieces that take at most `room` cells on any terminal.

    Terminals differ in how wide they show marks, numbers in circles and emoji. Each character counts for what it takes
    at most, so that none wraps a line by itself: what it wrapped would begin at the left margin, behind no bar.
    """
    if line.isascii():
        yield from (line[at : at + room] for at in range(0, len(line), room) or (0,))
        return
    start = used = 0
    for at, char in enumerate(line):
        wide = char > "~" and (unicodedata.east_asian_width(char) in "WF" or unicodedata.category(char) in _PICTURES)
        if used + 1 + wide > room:
            yield line[start:at]
            start, used = at, 0
        used += 1 + wide
    yield line[start:]


def _under(text: str, style: str = "") -> Text:
    return Text(_MARGIN + text, style)


def utc(sent_at: int) -> str:
    """Return a record's time for a person."""
    try:
        return datetime.fromtimestamp(sent_at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{sent_at} ms"
