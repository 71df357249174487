"""The command that goes on with a run: the store has the thread, and a program the code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from envelope import parse_address
from flow.cli_conduct import aside, conduct, resume_command
from flow.cli_program import find_job
from flow.cli_threads import STORE, StoreOption
from flow.errors import FlowError


def resume(
    name: Annotated[str, typer.Argument(help="The thread's name in the store.")],
    program: Annotated[
        str,
        typer.Option(
            "--with", metavar="MODULE:NAME", help="Where the document's registry or the Job is, or what makes it."
        ),
    ],
    document: Annotated[
        Path | None, typer.Option("--agent", metavar="DOCUMENT", help="The agent document that began it, if one did.")
    ] = None,
    store: StoreOption = STORE,
    in_doubt: Annotated[
        list[str] | None,
        typer.Option("--in-doubt", metavar="STEP=WORD", help="For an action that is to run once: again, or done."),
    ] = None,
    seen: Annotated[
        str | None, typer.Option("--seen", metavar="ADDRESS", help="A record that the thread must have.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the events as CloudEvents, a line each; what the program prints goes to stderr."
        ),
    ] = False,
) -> None:
    """Go on with a run that was cut off or that paused, in the same thread.

    The store says how far it came; the program, a module found from this folder, has the Job that began it,
    or the registry of the document that did. What is
    durable is not done again. A run that is still alive elsewhere is taken over from: it stops at its next commit.
    """
    words = _words(in_doubt)
    address = None if seen is None else parse_address(seen)
    events = aside() if as_json else None
    job = find_job(program, document)
    conduct(
        job,
        name,
        store,
        lambda opened, bus, monitor: job.resume(
            name, store=opened, bus=bus, heartbeat=monitor, in_doubt=words, seen=address
        ),
        again=resume_command(name, program, store, document),
        events=events,
    )


def _words(given: list[str] | None) -> Mapping[str, Any]:
    """Return what `--in-doubt` says, by step."""
    words = {}
    for text in given or ():
        step, _, word = text.partition("=")
        if word not in ("again", "done"):
            raise FlowError(f"--in-doubt {text!r}: say STEP=again or STEP=done", code="cli.in_doubt")
        words[step] = word
    return words
