"""The `envelope` command: keys, cards, addresses, and threads verified and shown offline."""

import json
import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from envelope.audit import Observer, verify_file
from envelope.cards import Card, read_proofs
from envelope.cose import Envelope, address_text, parse_address
from envelope.errors import EnvelopeError
from envelope.keys import Identity, did_key, parse_did
from envelope.records import CardBody
from envelope.show import (
    Timeline,
    escape,
    print_lines,
    quoted,
    render_thread,
    render_verdict,
    say,
    say_anything,
    terminal_width,
)
from envelope.threadfile import file_address, write_records
from envelope.trust import TrustStore
from envelope.unlock import ask_passphrase, unlock
from envelope.verdict import EXIT_CODES, ThreadVerdict

app = typer.Typer(
    help="Signed agent messages: make keys and cards, verify and show threads. Nothing here needs a network.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
card_app = typer.Typer(help="Make and show capability cards.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(card_app, name="card")

_PROGRESS_FROM_BYTES = 4 << 20

TrustOption = Annotated[Path | None, typer.Option("--trust", help="A trust.toml that names the keys you trust.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, a line for each file.")]
KeyOption = Annotated[Path, typer.Option("--key", help="The signer's key file.")]


@app.command(epilog="Example: envelope keygen reviewer.pem")
def keygen(
    path: Annotated[Path, typer.Argument(help="Where to write the key file; it must not exist.")],
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Ask for a passphrase, or take ENVELOPE_PASSPHRASE.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make an Ed25519 key file that only you can read, and print its did:key."""
    identity = Identity.generate()
    identity.save(path, ask_passphrase(confirm=True) if encrypt else None)
    _say({"did": identity.did, "path": str(path)}, identity.did, as_json)


@card_app.command("new", epilog="Example: envelope card new --key me.pem --name Reviewer -c review -o me.card")
def card_new(
    key: KeyOption,
    name: Annotated[str, typer.Option("--name", help="The display name, 1 to 128 bytes.")],
    capability: Annotated[list[str], typer.Option("--capability", "-c", help="A capability; may be repeated.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the card; it must not exist.")],
    description: Annotated[str | None, typer.Option("--description", help="What the agent does.")] = None,
    subject: Annotated[
        str | None, typer.Option("--for", help="The did:key that the card is about; yours if absent.")
    ] = None,
) -> None:
    """Sign a card that says what a key is called and can do. It is a claim until a verifier trusts the key.

    The passphrase of an encrypted key is taken from ENVELOPE_PASSPHRASE, or asked for.
    """
    identity = unlock(key)
    about = None if subject is None else parse_did(subject)
    card = Card.issue(identity, name=name, capabilities=capability, key=about, description=description)
    write_records(out, [card.raw], replace=False)
    say(address_text(card.envelope.address))


@card_app.command("show", epilog="Example: envelope card show release.proofs")
def card_show(
    path: Annotated[Path, typer.Argument(help="A card, or a .proofs file.")],
    trust: TrustOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify the signatures of the cards in a file and show what they claim."""
    store = TrustStore.load(trust) if trust else None
    proofs, skipped = read_proofs(path)
    for envelope in proofs:
        if as_json:
            say(json.dumps(_card_json(envelope, store), ensure_ascii=True))
        else:
            print_lines(_card_lines(envelope, store))
    for sentence in skipped:
        _warn(f"skipped: {sentence}")


@app.command(epilog=f"Example: envelope verify release.thread --trust trust.toml\n\n{EXIT_CODES}")
def verify(
    files: Annotated[list[Path], typer.Argument(help="Thread files.")],
    trust: TrustOption = None,
    thread: Annotated[
        str | None, typer.Option("--thread", help="The address (b3:…) that the thread must have.")
    ] = None,
    tip: Annotated[str | None, typer.Option("--tip", help="The address of a record known to be in the thread.")] = None,
    require_plan: Annotated[
        bool, typer.Option("--require-plan", help="Exit with 3 if a named plan was not checked.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify threads: who said what, who acknowledged it, whether anything is missing or changed."""
    store = TrustStore.load(trust) if trust else None
    codes = set()
    longest: dict[bytes, tuple[Path, ThreadVerdict]] = {}
    for path in files:
        try:
            verdict = _verify(path, store, thread, tip)
            if verdict.thread is not None and verdict.integrity == "valid":
                copy = (path, verdict)
                other = longest.setdefault(verdict.thread, copy)
                if (longer := _longer(other, copy, store)) is None:
                    codes.add(1)
                    _warn(f"{path} and {other[0]} are copies of one thread and contradict each other: it is forked")
                longest[verdict.thread] = longer or other
        except EnvelopeError as error:
            codes.add(2)
            if as_json:
                say(json.dumps({"file": str(path), "error": {"code": error.code, "text": error.text}, "exit_code": 2}))
            else:
                _complain(error)
            continue
        code = verdict.exit_code
        if require_plan and verdict.plan == "unchecked" and code in (0, 5):
            code = 3
        codes.add(code)
        if as_json:
            say(json.dumps({"file": str(path), **verdict.as_json(), "exit_code": code}, ensure_ascii=True))
        else:
            print_lines(render_verdict(str(path), verdict))
    raise typer.Exit(next((code for code in (2, 1, 4, 3, 5) if code in codes), 0))


@app.command(epilog=f"Example: envelope show release.thread --trust trust.toml\n\n{EXIT_CODES}")
def show(
    path: Annotated[Path, typer.Argument(help="A thread file.")],
    trust: TrustOption = None,
) -> None:
    """Show a thread as a timeline, with the verdict on top. What did not verify is not shown."""
    store = TrustStore.load(trust) if trust else None
    timeline = Timeline(store, terminal_width())
    verdict = _verify(path, store, observe=timeline.observe)
    print_lines(render_thread(str(path), verdict, timeline))
    raise typer.Exit(verdict.exit_code)


@app.command(epilog="Example: envelope address README.md")
def address(
    path: Annotated[Path, typer.Argument(help="A file that holds one envelope or one blob.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the address of a file's bytes: b3: and their BLAKE3-256 digest, as b3sum computes it."""
    text = address_text(file_address(path))
    _say({"path": str(path), "address": text}, text, as_json)


def main() -> None:
    """Run the command; every error that an input can cause ends in a sentence and exit code 2."""
    try:
        say_anything()
        app()
    except EnvelopeError as error:
        _complain(error)
        sys.exit(2)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _warn(f"error: the output cannot be written: {error.strerror}")
        sys.exit(2)


def _verify(
    path: Path,
    store: TrustStore | None,
    thread: str | None = None,
    tip: str | None = None,
    observe: Observer | None = None,
) -> ThreadVerdict:
    pinned = None if thread is None else parse_address(thread)
    known_tip = None if tip is None else parse_address(tip)
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        size = 0  # what is wrong with it, reading will tell
    if observe is None and size >= _PROGRESS_FROM_BYTES and sys.stderr.isatty():
        columns = (TextColumn("verifying"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        bar: Any = Progress(*columns, console=Console(stderr=True), transient=True)
        task = bar.add_task("", total=size)

        def observe(envelope: Envelope[Any], index: int, offset: int) -> None:
            if index % 256 == 0:
                bar.update(task, completed=offset)
    else:
        bar = nullcontext()
    with bar:
        return verify_file(path, trust=store, thread=pinned, tip=known_tip, observe=observe)


def _longer(
    one: tuple[Path, ThreadVerdict], two: tuple[Path, ThreadVerdict], store: TrustStore | None
) -> tuple[Path, ThreadVerdict] | None:
    """Return which of two valid copies of one thread holds the other's tip; None where they go on differently.

    Copies that agree with the longest agree with each other, so that a further one is held against that alone.
    """
    (path, verdict), (other_path, other) = one, two
    if verdict.tip == other.tip or verify_file(path, trust=store, tip=other.tip).completeness != "truncated":
        return one
    return two if verify_file(other_path, trust=store, tip=verdict.tip).completeness != "truncated" else None


def _card_json(envelope: Envelope[Any], store: TrustStore | None) -> dict[str, Any]:
    record = envelope.record
    body = {
        name: did_key(value)
        if name in ("key", "successor")
        else address_text(value)
        if isinstance(value, bytes)
        else value
        for name, value in record.model_dump(exclude_none=True, exclude={"ext", "v"}).items()
    }
    known = store.get(envelope.signer) if store is not None else None
    return {
        "kind": envelope.kind,
        "address": address_text(envelope.address),
        "signer": did_key(envelope.signer),
        "signer_known_as": known.name if known else None,
        "claims": body,
    }


def _card_lines(envelope: Envelope[Any], store: TrustStore | None) -> Iterable[Text]:
    known = store.get(envelope.signer) if store is not None else None
    who = escape(known.name) if known else "unknown to you"
    yield Text(f"{envelope.kind}  {address_text(envelope.address)}", "bold")
    yield Text(f"  signed by     {did_key(envelope.signer)}  ({who})")
    record = envelope.record
    if isinstance(record, CardBody):
        own = "its signer's own" if record.key == envelope.signer else "another than its signer's"
        yield Text(f"  claims of     {did_key(record.key)}  ({own})")
        yield Text("  the name")
        yield from quoted(record.name, "    ", terminal_width())
        yield Text(f"  capabilities  {', '.join(record.capabilities)}")
        if record.description is not None:
            yield Text("  description")
            yield from quoted(record.description, "    ", terminal_width())
        return
    for name, value in _card_json(envelope, store)["claims"].items():
        if name == "reason":
            yield Text("  reason")
            yield from quoted(value, "    ", terminal_width())
        else:
            yield Text(f"  {name:<13} {escape(str(value))}")


def _say(data: dict[str, Any], text: str, as_json: bool) -> None:
    say(json.dumps(data, ensure_ascii=True) if as_json else text)


def _complain(error: EnvelopeError) -> None:
    _warn(f"error: {error.code}: {error.text}")


def _warn(sentence: str) -> None:
    typer.echo(escape(sentence), err=True)
