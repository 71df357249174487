"""The `flow` command."""

import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from envelope import EnvelopeError, verify_file
from envelope.show import Timeline, escape, print_lines, render_verdict, say_anything, terminal_width
from envelope.threadfile import write_records
from envelope.verdict import EXIT_CODES
from flow import cli_check, cli_conduct, cli_people, cli_resume, cli_run, cli_threads
from flow.cli_plan import plan_app
from flow.demo import copied, files_below, sign_off
from flow.errors import FlowError

app = typer.Typer(
    help="Run agents whose every step is told, acknowledged, ruled on and signed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(plan_app, name="plan")

_MOST_FILES = 2_000
_MADE = ("release.thread", "release.proofs", "trust.toml", "files")


@app.callback()
def flow() -> None:
    """Run agents whose every step is told, acknowledged, ruled on and signed."""


@app.command(epilog="Example: flow demo README.md spec --out signed")
def demo(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files and folders; by default this project's README and spec.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder to write to; new, or an earlier demo's.")] = Path(
        "demo"
    ),
    tamper: Annotated[
        bool, typer.Option("--tamper", help="Work on copies, and change one between evidence and review.")
    ] = False,
) -> None:
    """Have two agents sign off real files, and verify what remains.

    A release agent takes stock of the files and records their addresses as evidence; a reviewer with a key of its own
    reads them itself and agrees, or declines. Writes release.thread, their cards (release.proofs) and trust.toml.
    With --tamper the release is rejected, as it should be: the demo ends with 0, verifying its thread with 5.
    """
    files = files_below(paths or _own_documents())
    if not 1 <= len(files) <= _MOST_FILES:
        raise FlowError(f"{len(files)} files: give 1 to {_MOST_FILES}, or folders that hold them", code="demo.files")
    if missing := [path for path in files if not path.is_file()]:
        raise FlowError(f"{missing[0]} is no file: give files and folders that exist", code="demo.files")
    _claim(out)
    if tamper:
        files = copied(files, out / "files")
    with Console(stderr=True).status(f"signing off {len(files)} files"):
        signoff = anyio.run(lambda: sign_off(files, tamper=files[0] if tamper else None))
    thread, trust = out / "release.thread", out / "trust.toml"
    signoff.thread.export(thread)
    write_records(out / "release.proofs", [card.raw for card in signoff.cards])
    write_records(trust, [signoff.trust.dump().encode()])
    timeline = Timeline(signoff.trust, terminal_width())
    verdict = verify_file(thread, trust=signoff.trust, observe=timeline.observe)
    print_lines(render_verdict(str(thread), verdict))
    typer.echo()
    print_lines(timeline.render())
    typer.echo()
    if signoff.rejected is not None:
        typer.echo(escape(f"The release was rejected. {signoff.rejected}"))
    typer.echo(f"Verify it yourself (exit code {verdict.exit_code}):")
    typer.echo(f"  {cli_threads.verify_command(thread, trust)}")


app.command(epilog="Example: flow threads --store threads.db")(cli_threads.threads)
app.command(epilog="Example: flow export release -o release.thread")(cli_threads.export)
app.command("import", epilog=f"Example: flow import release.thread\n\n{cli_threads.IMPORT_CODES}")(cli_threads.import_)
app.command(epilog=f"Example: flow check agent.toml --with stocktaking:registry\n\n{cli_check.CODES}")(cli_check.check)
app.command(epilog=f"Example: flow run agent.toml --with stocktaking:registry --name stock-1\n\n{cli_conduct.CODES}")(
    cli_run.run
)
app.command(epilog=f"Example: flow resume release-1.4 --with release:job\n\n{cli_conduct.CODES}")(cli_resume.resume)
app.command(epilog="Example: flow show release-1.4 --trust trust.toml\n\n" + EXIT_CODES)(cli_threads.show)
app.command(epilog=f"Example: flow approvals --evidence build/\n\n{cli_people.APPROVALS_CODES}")(cli_people.approvals)
app.command(epilog=f"Example: flow approve b3:0c1d2e3f --key ada.pem\n\n{cli_people.ANSWER_CODES}")(cli_people.approve)
app.command(
    epilog=f"Example: flow refuse b3:0c1d2e3f --key ada.pem --reason 'Not on a Friday'\n\n{cli_people.ANSWER_CODES}"
)(cli_people.refuse)
app.command(
    epilog=f"Example: flow close release-1.4 --key author.pem --reason 'Overtaken by 1.5'\n\n{cli_people.CLOSE_CODES}"
)(cli_people.close)


def main() -> None:
    """Run the command; every error that an input can cause ends in a sentence and exit code 2."""
    try:
        say_anything()
        app()
    except (EnvelopeError, FlowError) as error:
        typer.echo(escape(f"error: {error}"), err=True)
        sys.exit(2)


def _own_documents() -> list[Path]:
    root = Path(__file__).parents[1]
    own = [path for path in (root / "README.md", root / "spec") if path.exists()]
    if not own:
        raise FlowError("this installation has no README and spec of its own: give PATHs", code="demo.files")
    return own


def _claim(out: Path) -> None:
    """Make the output folder, and refuse one in which something else would be overwritten."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        others = sorted(path.name for path in out.iterdir() if path.name not in _MADE)
    except OSError as error:
        raise FlowError(f"{out}: {error.strerror}: choose another --out", code="demo.out") from None
    if others:
        raise FlowError(f"{out} holds {others[0]!r}: choose another --out", code="demo.out")
