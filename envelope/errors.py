"""The one error type of the package, and the codes that are not rules of the protocol."""

from typing import Final

from envelope.rules import BY_CODE

API_CODES: Final[dict[str, str]] = {
    "cbor.type": "A value handed to the encoder is not of the profile.",
    "did.malformed": "A text is not a did:key of an Ed25519 public key.",
    "address.malformed": "A text is not an address.",
    "key.file": "A key file cannot be read or written.",
    "key.passphrase": "A key file needs a passphrase, or another one.",
    "file.unreadable": "A file cannot be read or written.",
    "trust.file": "A trust file is not well formed.",
    "verdict.unmet": "A verdict is not what was required.",
    "writer.misuse": "A record cannot be built from these arguments.",
}
"""Codes of errors made on this side of the wire: by a caller's argument or by the file system, not by a record."""


class EnvelopeError(Exception):
    """What is wrong with bytes, a record, a key or a file; the only exception that bad input can cause.

    Args:
        code: a stable code, of `envelope.rules` or of `API_CODES`.
        text: what was wrong, where, and what was expected. Control characters in it are the caller's to escape.
        stage: overrides the rule's stage (a payload's CBOR is checked in stage `body`).
    """

    def __init__(self, code: str, text: str, *, stage: str | None = None) -> None:
        rule = BY_CODE.get(code)
        if rule is None and code not in API_CODES:
            raise AssertionError(f"unregistered code {code}")
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.rule = rule.number if rule else ""
        self.stage = stage or (rule.stage if rule else "")
        self.effect = rule.effect if rule else "invalid"
