"""Key files as commands open them: a passphrase is taken from the environment, or asked for in the terminal."""

import os
from pathlib import Path

import typer

from envelope.errors import EnvelopeError
from envelope.keys import Identity


def unlock(path: Path) -> Identity:
    """Return the identity in a key file; the passphrase of an encrypted one is taken or asked for.

    Raises:
        EnvelopeError: `key.file`, `key.passphrase`.
    """
    try:
        return Identity.load(path)
    except EnvelopeError as error:
        if error.code != "key.passphrase":
            raise
    return Identity.load(path, ask_passphrase())


def ask_passphrase(*, confirm: bool = False) -> str:
    """Return what ENVELOPE_PASSPHRASE says, or what is typed in the terminal.

    Raises:
        EnvelopeError: `key.passphrase`, neither gives one.
    """
    given = os.environ.get("ENVELOPE_PASSPHRASE")
    if given is not None:
        return given
    try:
        text: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    except typer.Abort:
        raise EnvelopeError(
            "key.passphrase", "none was given: type it in a terminal, or set ENVELOPE_PASSPHRASE"
        ) from None
    return text
