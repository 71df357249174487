"""The command that finds what is wrong with an agent document, without running it."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from envelope import address_text
from envelope.show import escape, print_lines, say
from envelope.unlock import unlock
from flow.agentfile import Checked
from flow.agentfile import check as check_document
from flow.cli_program import find_registry
from flow.document import documents
from flow.planview import Exported, as_table

CODES: Final = "Exit codes: 0 it can be run, warnings aside; 2 usage, or there are errors."


def check(
    file: Annotated[Path, typer.Argument(help="An agent document, such as agent.toml.")],
    program: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="MODULE:NAME", help="Where the registry of functions is, or a function that makes it."
        ),
    ] = None,
    as_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check an agent document without running it: fields, names, plan and machine, key files and cards.

    Shows everything that is wrong, not only the first; else the address of the plan that a run would sign, and the
    plan. Without --with, names count as bound, and those that a program must bind are listed.
    """
    registry = None if program is None else find_registry(program)
    checked = check_document(file, registry, load=unlock)
    exported = _exported(file, checked)
    if as_lines:
        _say_json(file, checked, exported)
    else:
        _say(checked, exported, bound=registry is not None)
    if checked.job is None:
        raise typer.Exit(2)


def _exported(file: Path, checked: Checked) -> list[Exported]:
    if (job := checked.job) is None:
        return []
    written = documents(job.agent.plan, job.machine, job.limits, job.judge)
    return [Exported.of(file, data) for data in written.values()]


def _say(checked: Checked, exported: list[Exported], *, bound: bool) -> None:
    for fault in checked.faults:
        say(escape(f"{fault.severity}: {fault.code}: {fault}"))
    for number, found in enumerate(exported):
        if number:
            print_lines([Text()])
        print_lines(as_table(found, exported))
    if checked.uses and not bound:
        say("Names that a program must bind, checked with --with MODULE:NAME:")
        for name, fields in sorted(checked.uses.items()):
            say(escape(f"  {name}: {', '.join(dict.fromkeys(fields))}"))


def _say_json(file: Path, checked: Checked, exported: list[Exported]) -> None:
    findings = [
        {"severity": fault.severity, "code": fault.code, "line": fault.line, "step": fault.step, "text": fault.text}
        for fault in checked.faults
    ]
    fields = {
        "file": str(file),
        "plan": address_text(exported[0].address) if exported else None,
        "agent": None if checked.job is None else checked.job.agent.identity.did,
        "names": {name: sorted(set(fields)) for name, fields in sorted(checked.uses.items())},
        "findings": findings,
    }
    say(json.dumps(fields, ensure_ascii=True))
