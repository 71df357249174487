"""Conducting a run from a command: what is told meanwhile, and how the command ends."""

import json
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

import anyio
import typer
from rich.console import Console
from rich.live import Live

from envelope import EnvelopeError, PublicKey, TrustedKey, TrustStore, open_envelope
from envelope.cose import split
from envelope.show import UNREAD, escape, print_lines, render_verdict, say
from flow.bus import MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED, Bus, Event
from flow.cli_threads import export_command, opened_store
from flow.clock import SYSTEM
from flow.cloudevents import cloud_event
from flow.endings import SEALED_AS, words
from flow.errors import Cancelled, Escalated, FlowError
from flow.heartbeat import Monitor
from flow.job import Job
from flow.live import Progress
from flow.run import Run
from flow.store import SqliteStore
from flow.supervisor import supervise

CODES: Final = (
    "Exit codes: 0 the run is completed; 2 usage, or it cannot go on; 3 it paused, and its thread is open; "
    "5 its thread is sealed with another outcome; 130 interrupted."
)
ENDED: Final = "flow.run_ended"
"""The last event of `--json`: how the run ended."""

_SEALS: Final[Mapping[type[FlowError], str]] = {**SEALED_AS, Cancelled: "cancelled"}
_SILENCE: Final = 30.0  # seconds

Go = Callable[[SqliteStore, Bus, Monitor], Awaitable[Run]]


def aside() -> TextIO:
    """Keep standard output for events: what the program and its children print goes to standard error from now on."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def conduct(
    job: Job, name: str, store: Path, go: Go, *, again: str, events: TextIO | None = None, create: bool = False
) -> None:
    """Run, tell of it, and leave with the exit code that says how it ended.

    Args:
        job: what is run.
        name: of its thread.
        store: the file.
        go: starts the run, or goes on with it.
        again: the command that goes on with it later.
        events: where CloudEvents are written, a line each; then nothing else is told.
        create: whether a store that is not there is made.
    """
    told: set[str] = set()
    bus = Bus()
    bus.subscribe(lambda event: told.add(event.name))
    try:
        run = _watched(job, name, bus, lambda: _run(store, create, bus, go), events)
    except EnvelopeError:
        raise
    except KeyboardInterrupt:
        typer.echo("Interrupted. What was durable is kept; go on with:", err=True)
        typer.echo(escape(f"  {again}"), err=True)
        raise typer.Exit(130) from None
    except BaseException as error:  # also where an action ends its process, or is cancelled by itself
        if isinstance(error, FlowError) and error.thread is None:
            raise
        if isinstance(error, SystemExit) and error.code == UNREAD:
            raise
        outcome = next((outcome for kind, outcome in _SEALS.items() if isinstance(error, kind)), None)
        _say_why(name, error, outcome, events)
        if events is None:
            say("It can be resumed:" if outcome is None else f"The thread is sealed {outcome}. What an auditor gets:")
            if _asks_a_person(error):
                say(escape(f"  flow approvals --store {shlex.quote(str(store))}   # what waits for a person, first"))
            say(escape(f"  {again if outcome is None else export_command(name, store)}"))
        raise typer.Exit(3 if outcome is None else 5) from None
    if events is not None:
        _say_ended(events, name, outcome="completed", status=run.status)
        return
    print_lines(render_verdict(name, run.thread.verify(trust=_trust(job))))
    say("Trusted here are the keys that the program itself works with; an auditor goes by their own.")
    been = "Completed" if told - {THREAD_VERIFIED} else "It was completed before; nothing was done. It ended"
    say(f"{been} in status {escape(run.status)}. What an auditor gets:")
    say(escape(f"  {export_command(name, store)}"))


def _asks_a_person(error: BaseException) -> bool:
    """Whether a run paused because an approver is to answer, and was asked to."""
    if not isinstance(error, Escalated) or error.thread is None:
        return False
    messages = [open_envelope(raw) for raw in error.thread.records if split(raw).kind == "message"]
    return any(message.record.intent == "escalate" for message in messages)


def _run(store: Path, create: bool, bus: Bus, go: Go) -> Run:
    """Run beside a supervisor."""
    monitor = Monitor(_SILENCE)
    ends: list[Run | BaseException] = []

    async def beside() -> None:
        async with opened_store(store, create) as opened, anyio.create_task_group() as tasks:
            tasks.start_soon(supervise, monitor, bus)
            try:
                ends.append(await go(opened, bus, monitor))
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # which the group would wrap
                ends.append(error)
            tasks.cancel_scope.cancel()

    anyio.run(beside)
    (end,) = ends
    if isinstance(end, BaseException):
        raise end
    return end


def _watched(job: Job, name: str, bus: Bus, work: Callable[[], Run], events: TextIO | None) -> Run:
    """Do the work, and meanwhile show how it goes: as CloudEvents, as a tree on a terminal, else line by line."""
    screen = Console(stderr=True)
    if events is not None:
        bus.subscribe(lambda event: _say_event(events, event))
    elif screen.is_terminal:
        names = {**_agents(job), **{key: who for who, key in job.approvers.items()}}
        progress = Progress(name, job.agent.plan, job.limits, names)
        bus.subscribe(lambda event: progress.observe(event, SYSTEM.now_ms()))
        live = Live(console=screen, get_renderable=lambda: progress.tree(SYSTEM.now_ms()), refresh_per_second=4)
        live.start()
        try:
            return work()
        finally:
            live.stop()
    else:
        bus.subscribe(_tell)
    return work()


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


def _agents(job: Job) -> dict[PublicKey, str]:
    """Return how the agents of a job are called."""
    return {job.agent.identity.public_key: job.agent.name, **{peer.key: who for who, peer in job.peers.items()}}


def _trust(job: Job) -> TrustStore:
    """Return the keys that whoever runs the job trusts by that."""
    known = {key: TrustedKey(who, "agent") for key, who in _agents(job).items()}
    return TrustStore({**known, **{key: TrustedKey(who, "human") for who, key in job.approvers.items()}})


def _say_why(name: str, error: BaseException, outcome: str | None, events: TextIO | None) -> None:
    code = error.code if isinstance(error, FlowError) else type(error).__name__
    notes = getattr(error, "__notes__", [])
    text = words(error)
    if events is not None:
        _say_ended(events, name, outcome=outcome, error=code, text=text, notes=notes)
        return
    typer.echo(escape(f"error: {text if isinstance(error, FlowError) else f'{code}: {text}'}"), err=True)
    for note in notes:
        typer.echo(escape(f"  {note}"), err=True)


def _say_ended(events: TextIO, name: str, **how: Any) -> None:
    _say_event(events, Event(ENDED, {"thread": name, **how}))


def _say_event(events: TextIO, event: Event) -> None:
    say(json.dumps(cloud_event(event, SYSTEM.now_ms()), ensure_ascii=True), events)


def resume_command(name: str, program: str, store: Path, document: Path | None) -> str:
    """Return the command that goes on with a run."""
    agent = [] if document is None else ["--agent", str(document)]
    return shlex.join(["flow", "resume", name, *agent, "--with", program, "--store", str(store)])
