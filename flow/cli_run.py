"""The command that begins a run."""

from typing import Annotated

import typer

from flow.cli_conduct import aside, conduct, resume_command
from flow.cli_program import find_job
from flow.cli_threads import STORE, StoreOption


def run(
    name: Annotated[str, typer.Argument(help="The name that the thread gets in the store.")],
    program: Annotated[
        str, typer.Option("--with", metavar="MODULE:NAME", help="Where the run's Job is, or a function that makes it.")
    ],
    store: StoreOption = STORE,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the events as CloudEvents, a line each; what the program prints goes to stderr."
        ),
    ] = False,
) -> None:
    """Run a job to its end, in a thread of its own, and tell how it goes.

    On a terminal the steps are shown with their states, who is awaited since when, and how much of the budget is used;
    elsewhere there is a line for each event. Ctrl-C pauses, and says how to go on.
    """
    events = aside() if as_json else None
    job = find_job(program)
    conduct(
        job,
        name,
        store,
        lambda opened, bus, monitor: job.run(name, store=opened, bus=bus, heartbeat=monitor),
        again=resume_command(name, program, store),
        events=events,
        create=True,
    )
