"""The command that begins a run."""

from pathlib import Path
from typing import Annotated

import typer

from flow.cli_conduct import aside, conduct, resume_command
from flow.cli_program import find_job
from flow.cli_threads import STORE, StoreOption
from flow.errors import FlowError


def run(
    what: Annotated[
        str,
        typer.Argument(
            metavar="DOCUMENT|NAME",
            help="An agent document, FILE.toml; or the name that the thread of a Job gets in the store.",
        ),
    ],
    program: Annotated[
        str,
        typer.Option(
            "--with", metavar="MODULE:NAME", help="Where the document's registry or the Job is, or what makes it."
        ),
    ],
    given: Annotated[
        str | None, typer.Option("--name", help="The thread's name, for a document; the agent's name if not given.")
    ] = None,
    store: StoreOption = STORE,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the events as CloudEvents, a line each; what the program prints goes to stderr."
        ),
    ] = False,
) -> None:
    """Run an agent document or a job to its end, in a thread of its own, and tell how it goes.

    On a terminal the steps are shown with their states, who is awaited since when, and how much of the budget is used;
    elsewhere there is a line for each event. Ctrl-C pauses, and says how to go on.
    """
    document = Path(what) if what.endswith(".toml") else None
    if document is None and given is not None:
        raise FlowError(f"--name {given!r}: {what!r} is the thread's name already: say one", code="cli.name")
    events = aside() if as_json else None
    job = find_job(program, document)
    name = what if document is None else given or job.agent.name
    conduct(
        job,
        name,
        store,
        lambda opened, bus, monitor: job.run(name, store=opened, bus=bus, heartbeat=monitor),
        again=resume_command(name, program, store, document),
        events=events,
        create=True,
    )
