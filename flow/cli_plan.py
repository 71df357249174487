"""The `flow plan` commands."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from envelope.show import print_lines, say
from flow.errors import FlowError
from flow.planview import Exported, as_json, as_mermaid, as_table

plan_app = typer.Typer(help="Read plan documents.", no_args_is_help=True, rich_markup_mode=None)


@plan_app.callback()
def plan() -> None:
    """Read plan documents."""


@plan_app.command(epilog="Example: flow plan show release.plan review.plan --mermaid")
def show(
    files: Annotated[list[Path], typer.Argument(help="Exported plan documents; those of sub-plans in any order.")],
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_lines: Annotated[bool, typer.Option("--json", help="Print JSON, a line for each file.")] = False,
) -> None:
    """Show plan documents: address, steps, panels, machine. A sub-plan is found among the files by its address."""
    if mermaid and as_lines:
        raise FlowError("--mermaid and --json together: choose one", code="plan.usage")
    plans = [Exported.read(path) for path in files]
    if as_lines:
        for found in plans:
            say(json.dumps(as_json(found)))
    elif mermaid:
        for line in as_mermaid(plans):
            say(line)
    else:
        for number, found in enumerate(plans):
            if number:
                print_lines([Text()])
            print_lines(as_table(found, plans))
