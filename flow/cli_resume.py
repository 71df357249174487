"""The command that goes on with a run: the store has the thread, and a program the code."""

import json
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Final

import anyio
import typer

from envelope import EnvelopeError, address_text, open_envelope, parse_address
from envelope.cose import split
from envelope.show import escape, say
from flow.bus import MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED, Bus, Event
from flow.cli_program import find_job
from flow.cli_threads import STORE, StoreOption, export_command, opened_store
from flow.endings import SEALED_AS
from flow.errors import Cancelled, Escalated, FlowError
from flow.run import Run

RESUME_CODES: Final = (
    "Exit codes: 0 the run is completed; 2 usage, or it cannot go on; 3 it paused, and its thread is open; "
    "5 its thread is sealed with another outcome; 130 interrupted."
)
_SEALS: Final[Mapping[type[FlowError], str]] = {**SEALED_AS, Cancelled: "cancelled"}


def resume(
    name: Annotated[str, typer.Argument(help="The thread's name in the store.")],
    program: Annotated[
        str, typer.Option("--with", metavar="MODULE:NAME", help="Where the run's Job is, or a function that makes it.")
    ],
    store: StoreOption = STORE,
    in_doubt: Annotated[
        list[str] | None,
        typer.Option("--in-doubt", metavar="STEP=WORD", help="For an action that is to run once: again, or done."),
    ] = None,
    seen: Annotated[
        str | None, typer.Option("--seen", metavar="ADDRESS", help="A record that the thread must have.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, at the end.")] = False,
) -> None:
    """Go on with a run that was cut off or that paused, in the same thread.

    The store says how far it came; the program, a module found from this folder, has the Job that began it. What is
    durable is not done again. A run that is still alive elsewhere is taken over from: it stops at its next commit.
    """
    words = dict(_word(entry) for entry in in_doubt or ())
    address = None if seen is None else parse_address(seen)
    job = find_job(program)
    bus, told = Bus(), set[str]()
    bus.subscribe(lambda event: told.add(event.name))
    if not as_json:
        bus.subscribe(_tell)

    async def go_on() -> Run:
        async with opened_store(store) as opened:
            return await job.resume(name, store=opened, bus=bus, in_doubt=words, seen=address)

    again = f"flow resume {shlex.quote(name)} --with {shlex.quote(program)} --store {shlex.quote(str(store))}"
    try:
        run = anyio.run(go_on)
    except EnvelopeError:
        raise
    except KeyboardInterrupt:
        typer.echo(escape(f"Interrupted. What was durable is kept; go on with:\n  {again}"), err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        if isinstance(error, FlowError) and error.thread is None:
            raise
        outcome = _sealed_as(error)
        _say_why(name, error, outcome, as_json)
        if not as_json:
            say("It can be resumed:" if outcome is None else f"The thread is sealed {outcome}. What an auditor gets:")
            if _asks_a_person(error):
                say(escape(f"  flow approvals --store {shlex.quote(str(store))}   # what waits for a person, first"))
            say(escape(f"  {again if outcome is None else export_command(name, store)}"))
        raise typer.Exit(3 if outcome is None else 5) from None
    _report(as_json, name=name, status=run.status, outcome="completed", thread=address_text(run.thread.address))
    if not as_json:
        been = "Completed" if told - {THREAD_VERIFIED} else "It was completed before; nothing was done. It ended"
        say(f"{been} in status {escape(run.status)}. What an auditor gets:")
        say(escape(f"  {export_command(name, store)}"))


def _sealed_as(error: Exception) -> str | None:
    return next((outcome for kind, outcome in _SEALS.items() if isinstance(error, kind)), None)


def _asks_a_person(error: Exception) -> bool:
    """Whether a run paused because an approver is to answer, and was asked to."""
    if not isinstance(error, Escalated) or error.thread is None:
        return False
    messages = [open_envelope(raw) for raw in error.thread.records if split(raw).kind == "message"]
    return any(message.record.intent == "escalate" for message in messages)


def _say_why(name: str, error: Exception, outcome: str | None, as_json: bool) -> None:
    """Say why the run stopped."""
    code = error.code if isinstance(error, FlowError) else type(error).__name__
    _report(as_json, name=name, outcome=outcome, error=code, text=str(error), notes=getattr(error, "__notes__", []))
    if not as_json:
        typer.echo(escape(f"error: {error if isinstance(error, FlowError) else f'{code}: {error}'}"), err=True)
        for note in getattr(error, "__notes__", ()):
            typer.echo(escape(f"  {note}"), err=True)


def _report(as_json: bool, **fields: object) -> None:
    if as_json:
        say(json.dumps(fields, ensure_ascii=True))


def _tell(event: Event) -> None:
    data = event.data
    if event.name == MESSAGE_DELIVERED:
        say(escape(f"{data['message'].record.id}: delivered"))
    elif event.name == MESSAGE_ACKED:
        ruling = data["ruling"].record.ruling if data["ruling"] else "not ruled on"
        answer = data["ack"].record.answer
        say(escape(f"{data['message'].record.id}: {data['recipient']} {answer}s, {ruling}"))
    elif event.name == STEP_COMPLETED:
        outcome = data["outcome"]
        say(escape(f"{outcome.step}: {outcome.became}, status {outcome.status}"))


def _word(text: str) -> tuple[str, Any]:
    step, _, word = text.partition("=")
    if word not in ("again", "done"):
        raise FlowError(f"--in-doubt {text!r}: say STEP=again or STEP=done", code="cli.in_doubt")
    return step, word
