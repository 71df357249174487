"""The command that goes on with a run: the store has the thread, and a program the code."""

import importlib
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import anyio
import typer

from envelope import EnvelopeError, address_text, parse_address
from envelope.show import escape, say
from flow.bus import MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED, Bus, Event
from flow.cli_threads import STORE, StoreOption
from flow.endings import SEALED_AS
from flow.errors import Cancelled, FlowError
from flow.job import Job
from flow.run import Run
from flow.store import SqliteStore

RESUME_CODES: Final = (
    "Exit codes: 0 the run is completed; 2 usage, or it cannot go on; 3 it paused, and its thread is open; "
    "5 its thread is sealed with another outcome."
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
    durable is not done again.
    """
    words = dict(_word(entry) for entry in in_doubt or ())
    address = None if seen is None else parse_address(seen)
    job = _job(program)
    bus = Bus()
    if not as_json:
        bus.subscribe(_tell)

    async def go_on() -> Run:
        async with SqliteStore(store, create=False) as opened:
            return await job.resume(name, store=opened, bus=bus, in_doubt=words, seen=address)

    try:
        run = anyio.run(go_on)
    except EnvelopeError:
        raise
    except Exception as error:
        if isinstance(error, FlowError) and error.thread is None:
            raise
        _stopped(name, error, as_json)
    else:
        _report(as_json, name=name, status=run.status, outcome="completed", thread=address_text(run.thread.address))
        if not as_json:
            say(f"Completed in status {escape(run.status)}. What an auditor gets:")
            say(
                escape(
                    f"  flow export {shlex.quote(name)} -o {shlex.quote(name)}.thread --store {shlex.quote(str(store))}"
                )
            )


def _stopped(name: str, error: Exception, as_json: bool) -> NoReturn:
    """Say why the run stopped, and leave with the code of its ending."""
    sealed = next((outcome for kind, outcome in _SEALS.items() if isinstance(error, kind)), None)
    code = error.code if isinstance(error, FlowError) else type(error).__name__
    _report(as_json, name=name, outcome=sealed, error=code, text=str(error), notes=getattr(error, "__notes__", []))
    if not as_json:
        typer.echo(escape(f"error: {error if isinstance(error, FlowError) else f'{code}: {error}'}"), err=True)
        for note in getattr(error, "__notes__", ()):
            typer.echo(escape(f"  {note}"), err=True)
    raise typer.Exit(3 if sealed is None else 5)


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


def _job(program: str) -> Job:
    """Find a Job, in a module that is imported as a program in this folder would import it."""
    module, _, attribute = program.partition(":")
    if not module or not attribute.isidentifier():
        raise FlowError(f"--with {program!r}: give MODULE:NAME, such as release:job", code="cli.with")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = getattr(importlib.import_module(module), attribute)
        job = found() if callable(found) else found
    except Exception as error:
        raise FlowError(
            f"--with {program!r}: {type(error).__name__}: {error}: the module must import by itself, and name a Job",
            code="cli.with",
        ) from error
    if not isinstance(job, Job):
        raise FlowError(f"--with {program!r} is a {type(job).__name__}, not a Job: make one", code="cli.with")
    return job
