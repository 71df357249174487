"""The commands of a person who decides: what waits, yes, no, and giving a run up."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from envelope import Blob, Envelope, Identity, Message, address_text, did_key
from envelope.show import escape, print_lines, quoted, say, terminal_width, utc
from envelope.unlock import unlock
from flow import approvals as waiting
from flow.approvals import Asked, Evidence, Question
from flow.cli_threads import STORE, StoreOption, export_command, in_store
from flow.closing import close as close_thread
from flow.errors import FlowError

APPROVALS_CODES: Final = (
    "Exit codes: 0 listed, also where nothing waits; 2 usage, unreadable, or a thread that does not verify."
)
ANSWER_CODES: Final = (
    "Exit codes: 0 the answer is in the store; 1 you did not confirm it, and nothing was signed; "
    "2 usage, or refused, and nothing was appended."
)
CLOSE_CODES: Final = "Exit codes: 0 the thread is sealed cancelled; 2 usage, or refused, and nothing was appended."

_ACCEPTED: Final = "I approve it as it stands."
_MARGIN: Final = " " * 4

MessageArgument = Annotated[
    str,
    typer.Argument(
        metavar="MESSAGE", help="The address of the message or of its escalation; 8 hex digits of it will do."
    ),
]
KeyOption = Annotated[
    Path, typer.Option("--key", help="Your key file; a passphrase is taken from ENVELOPE_PASSPHRASE, or asked for.")
]
EvidenceOption = Annotated[
    list[Path] | None,
    typer.Option("--evidence", metavar="PATH", help="A file or folder to look for evidence in; may be repeated."),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Sign without asking; needed where there is no terminal.")]


def approvals(
    store: StoreOption = STORE,
    evidence: EvidenceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line for each message that waits.")] = False,
) -> None:
    """List what waits for a person: each escalated message to the letter, who said what, and who must still answer.

    Each thread is verified first. Addresses that a message rests on are looked for among the files given: a file is
    what an address names if its BLAKE3 digest is that address; of a blob it holds the 16 random bytes too.
    """
    files = waiting.files_by_address(evidence or ())
    questions, damaged = in_store(store, waiting.find)
    open_ones = [question for question in questions if question.over is None]
    for question in open_ones:
        if as_json:
            say(json.dumps(_as_json(question, waiting.evidence(question, files)), ensure_ascii=True))
        else:
            print_lines([*_lines(question, files), *_next(question, store), Text()])
    if not open_ones and not as_json and not damaged:
        say(f"Nothing in {escape(str(store))} waits for a person.")
    if damaged:
        for text in damaged:
            typer.echo(escape(f"error: {text}"), err=True)
        raise typer.Exit(2)


def approve(
    message: MessageArgument,
    key: KeyOption,
    store: StoreOption = STORE,
    text: Annotated[str, typer.Option("--text", metavar="WORDS", help="What you approve, in your words.")] = _ACCEPTED,
    evidence: EvidenceOption = None,
    yes: YesOption = False,
) -> None:
    """Approve a message that was escalated to you: sign that you accept it, after you saw all of it.

    Your answer goes into the store as an ack of the escalation, and holds for this message alone. Once all approvers
    have accepted, resuming the run settles the message as approved by you.
    """
    _answer(message, key, store, evidence, "accept", text, yes=yes)


def refuse(
    message: MessageArgument,
    key: KeyOption,
    reason: Annotated[str, typer.Option("--reason", metavar="WORDS", help="Why, in your words.")],
    store: StoreOption = STORE,
    evidence: EvidenceOption = None,
    yes: YesOption = False,
) -> None:
    """Refuse a message that was escalated to you: sign that you decline it. It is final: the run ends as rejected."""
    _answer(message, key, store, evidence, "decline", reason, yes=yes)


def close(
    name: Annotated[str, typer.Argument(help="The thread's name in the store.")],
    key: Annotated[
        Path,
        typer.Option("--key", help="The key file of its owner, or of another moderator; passphrase as of approve."),
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="WORDS", help="Why; it stands in the seal.")],
    store: StoreOption = STORE,
) -> None:
    """Give a run up for good: seal its open thread as cancelled, with all that stands in it.

    It cannot be resumed after that; one that can wait is left open. A run that is still alive stops at its next commit.
    """
    identity = unlock(key)
    seal = in_store(store, lambda opened: close_thread(opened, name, identity, reason))
    say(escape(f"The thread {name!r} is sealed cancelled by {address_text(seal.address)}. What an auditor gets:"))
    say(escape(f"  {export_command(name, store)}"))


def _answer(
    message: str, key: Path, store: Path, evidence: list[Path] | None, word: waiting.Word, text: str, *, yes: bool
) -> None:
    files = waiting.files_by_address(evidence or ())
    questions, damaged = in_store(store, waiting.find)
    for other in damaged:
        typer.echo(escape(f"error: {other}"), err=True)
    question = waiting.match(questions, message)
    identity = unlock(key)
    who = waiting.check(question, identity.public_key)
    if not yes and not sys.stdin.isatty():
        raise FlowError(
            "there is no terminal to ask you in, so nothing was signed: give --yes if you know what you sign",
            code="approval.terminal",
        )
    print_lines([*_lines(question, files), *_signed(question, identity, who, word, text)])
    if not yes and not _confirmed(word):
        typer.echo("Nothing was signed.", err=True)
        raise typer.Exit(1)
    address = question.escalation.address
    after = in_store(
        store, lambda opened: waiting.answer(opened, question.name, address, identity, word, text, seen=question)
    )
    say(f"Signed: {'approved' if word == 'accept' else 'refused'}.")
    print_lines(_next(after, store))


def _confirmed(word: waiting.Word) -> bool:
    try:
        return typer.confirm("Do you approve this?" if word == "accept" else "Do you refuse this?", err=True)
    except typer.Abort:
        return False


# For a person. Whatever comes from a thread, a path or the command line is escaped.


def _lines(question: Question, files: Mapping[bytes, Path]) -> Iterator[Text]:
    """Yield a question with all that is in it: nothing of it is cut, since somebody is to sign for it."""
    message, escalation = question.message, question.escalation
    record = message.record
    yield Text(escape(f"{question.name}: {record.id}"), "bold")
    yield _field("thread", address_text(question.thread))
    yield _field("message", address_text(message.address))
    yield _field("escalation", address_text(escalation.address))
    if record.step is not None:
        yield _field("step", "/".join(record.step))
    yield _field("intent", f"{record.intent}, {record.epistemic}")
    if record.reply_to is not None:
        yield _field("in reply to", address_text(record.reply_to))
    if record.media_type is None:
        yield _field("media type", "text/plain")
    yield from _marks(record)
    yield _field("said at", utc(record.sent_at))
    yield _field("by", f'{did_key(message.signer)} (claims "{question.author}")')
    for one in question.recipients:
        yield _field("to", _who(one))
    if isinstance(record.payload, Blob):
        yield _field(
            "payload", f"{record.payload.bytes} bytes outside the thread, {address_text(record.payload.address)}"
        )
    else:
        yield from _words(record.payload)
    yield from _grounds(record, waiting.evidence(question, files), looked=bool(files))
    yield _field("asked for a person because", "")
    yield from _words(escalation.record.payload)
    yield from _marks(escalation.record)
    yield from _grounds(escalation.record, waiting.evidence(question, files, escalation), looked=bool(files))
    for one in question.recipients:
        yield from _said(one, "recipient")
    for one in question.approvers:
        yield from _said(one, "approver")


def _marks(record: Message) -> Iterator[Text]:
    """Yield what a message states of itself where it need not."""
    for label in ("media_type", "room", "capability", "confidence", "max_hops", "cost_budget", "ack_required"):
        if (value := getattr(record, label)) is not None:
            yield _field(label.replace("_", " "), str(value))
    if record.ext is not None:
        yield _field("ext", "")
        yield from _words(json.dumps(_plain(record.ext), ensure_ascii=True))
    for entry in record.settled or ():
        of = address_text(entry.message) if entry.message else f"the step {'/'.join(entry.step or ())}"
        yield _field("settles", f"{of}: {entry.outcome}" + (f", status {entry.status}" if entry.status else ""))
        if entry.result is not None:
            yield from _words(entry.result)


def _grounds(record: Message, found: list[Evidence], *, looked: bool) -> Iterator[Text]:
    """Yield where a message says that it comes from, and what it rests on."""
    if record.provenance is not None:
        yield _field("source", "")
        yield from _words(record.provenance.source)
        for key in record.provenance.chain or ():
            yield _field("through", did_key(key))
    for piece in found:
        yield _found(piece, looked=looked)


def _said(one: Asked, kind: str) -> Iterator[Text]:
    if one.ack is None:
        yield _field(kind, f"{_who(one)} has not answered", "yellow")
        return
    said = {"accept": "accepts, having understood:", "decline": "declines:"}[one.ack.record.answer]
    yield _field(kind, f"{_who(one)} {said}", "red" if one.ack.record.answer == "decline" else "")
    yield from _words(one.ack.record.restatement)
    if one.ruling is not None:
        yield _field("", "confirmed" if one.ruling.record.ruling == "confirm" else "corrected:")
        if one.ruling.record.correction is not None:
            yield from _words(one.ruling.record.correction)


def _signed(question: Question, identity: Identity, who: Asked, word: waiting.Word, text: str) -> Iterator[Text]:
    yield Text()
    yield Text(f"You sign, as {identity.did}, called {escape(who.name)} in this thread:", "bold")
    yield _field("answer", word, "bold")
    yield _field("of", f"{address_text(question.escalation.address)}, the escalation")
    yield _field("thus of", f"{address_text(question.message.address)}, the message above, and of no other")
    yield _field("words", "")
    yield from _words(text)


def _next(question: Question, store: Path) -> Iterator[Text]:
    if question.missing:
        yield Text(escape("Still to answer: " + ", ".join(_who(one) for one in question.missing)))
        address = address_text(question.message.address)
        yield Text(escape(f"  flow approve {address} --key KEY.pem --store {shlex.quote(str(store))}"))
        return
    if question.declined:
        names = ", ".join(escape(one.name) for one in question.declined)
        yield Text(f"Declined by {names}. The run ends as rejected when it goes on:")
    else:
        yield Text("All approvers have accepted. The run goes on with:")
    name = shlex.quote(question.name)
    yield Text(escape(f"  flow resume {name} --with MODULE:NAME --store {shlex.quote(str(store))}"))
    yield Text("and --agent FILE.toml, if a document began it.")


def _found(one: Evidence, *, looked: bool) -> Text:
    if one.place is None:
        why = "missing: no file given has these bytes" if looked else "not looked for: give --evidence PATH"
        return _field(one.what, f"{address_text(one.address)}  {why}", "yellow")
    where = f"found in {one.place}" if one.place else "a record of this thread"
    return _field(one.what, f"{address_text(one.address)}  {where}")


def _who(one: Asked) -> str:
    return f"{one.name} ({did_key(one.key)})"


def _words(content: object) -> Iterator[Text]:
    if isinstance(content, Blob):
        content = f"({content.bytes} bytes outside the thread, {address_text(content.address)})"
    yield from quoted(str(content), _MARGIN, terminal_width(), whole=True)


def _field(label: str, value: str, style: str = "") -> Text:
    return Text(f"  {label:<11} {escape(value)}".rstrip(), style)


# For a program


def _as_json(question: Question, found: list[Evidence]) -> dict[str, Any]:
    return {
        "name": question.name,
        "thread": address_text(question.thread),
        "message": _message_json(question.message),
        "escalation": _message_json(question.escalation),
        "recipients": [_asked_json(one) for one in question.recipients],
        "approvers": [_asked_json(one) for one in question.approvers],
        "missing": [did_key(one.key) for one in question.missing],
        "evidence": [
            {
                "what": one.what,
                "address": address_text(one.address),
                "found": one.place is not None,
                "path": str(one.place) if one.place else None,
            }
            for one in found
        ],
    }


def _message_json(envelope: Envelope[Message]) -> dict[str, Any]:
    record, provenance = envelope.record, envelope.record.provenance
    fields: dict[str, Any] = {
        "address": address_text(envelope.address),
        "by": did_key(envelope.signer),
        "sent_at": record.sent_at,
        "id": record.id,
        "step": record.step,
        "intent": record.intent,
        "reply_to": address_text(record.reply_to) if record.reply_to else None,
        "epistemic": record.epistemic,
        "media_type": record.media_type or "text/plain",
        "payload": _plain(record.payload),
        "room": record.room,
        "capability": record.capability,
        "confidence": record.confidence,
        "max_hops": record.max_hops,
        "cost_budget": record.cost_budget,
        "context": [address_text(address) for address in record.context or ()],
        "ext": _plain(record.ext),
    }
    if provenance is not None:
        fields["provenance"] = {
            "source": provenance.source,
            "chain": [did_key(key) for key in provenance.chain or ()],
            "evidence": [address_text(address) for address in provenance.evidence or ()],
        }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _asked_json(one: Asked) -> dict[str, Any]:
    ack, ruling = one.ack, one.ruling
    return {
        "key": did_key(one.key),
        "name": one.name,
        "role": one.role,
        "answer": ack.record.answer if ack else None,
        "text": _plain(ack.record.restatement) if ack else None,
        "ruling": ruling.record.ruling if ruling else None,
    }


def _plain(value: Any) -> Any:
    """Return a content, or the value of an ext, as JSON takes it: bytes as hex."""
    if isinstance(value, Blob):
        return {"address": address_text(value.address), "bytes": value.bytes}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
