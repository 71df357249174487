"""Capability cards: what a key claims of itself, or an issuer of a key. A card is a claim until the verifier's own
trust store says otherwise."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from envelope.cose import Envelope, open_envelope, sign_record
from envelope.errors import EnvelopeError
from envelope.keys import Identity, PublicKey
from envelope.records import CardBody
from envelope.threadfile import read_records


@dataclass(frozen=True, slots=True)
class Card:
    """A signed card."""

    envelope: Envelope[CardBody]

    @classmethod
    def issue(
        cls,
        issuer: Identity,
        *,
        name: str,
        capabilities: Iterable[str],
        key: PublicKey | None = None,
        not_before: int | None = None,
        **fields: Any,
    ) -> "Card":
        """Sign a card.

        Args:
            issuer: who signs.
            name: the display name, 1 to 128 bytes.
            capabilities: at least one, as `[a-z0-9][a-z0-9._-]{0,63}`.
            key: the key that the card is about; the issuer's own where it is not given.
            not_before: ms since the epoch; the time of signing where it is not given.
            fields: `description`, `not_after`, `supersedes`, `sent_at`, `ext`.

        Raises:
            EnvelopeError: `body.*`.
        """
        if isinstance(capabilities, str):
            raise EnvelopeError("writer.misuse", "capabilities is one string; give a list of them")
        names = list(capabilities)
        if not all(isinstance(name, str) for name in names):
            raise EnvelopeError("writer.misuse", f"capabilities are texts, not as in {names!r:.80}")
        fields.setdefault("sent_at", time.time_ns() // 1_000_000)
        signed = sign_record(
            CardBody,
            issuer,
            name=name,
            capabilities=tuple(sorted(set(names))),
            key=issuer.public_key if key is None else key,
            not_before=fields["sent_at"] if not_before is None else not_before,
            **fields,
        )
        return cls(signed)

    @classmethod
    def open(cls, data: bytes) -> "Card":
        """Verify the bytes of a card.

        Raises:
            EnvelopeError: what is wrong with the envelope; `chain.kind` if it is no card.
        """
        envelope = open_envelope(data)
        if envelope.kind != "card":
            raise EnvelopeError("chain.kind", f"a {envelope.kind} stands where a card was expected")
        return cls(envelope)

    @property
    def name(self) -> str:
        """The display name that the card claims."""
        return self.envelope.record.name

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities that the card claims, ascending."""
        return self.envelope.record.capabilities

    @property
    def key(self) -> PublicKey:
        """The key that the card is about."""
        return self.envelope.record.key

    @property
    def raw(self) -> bytes:
        """The card's bytes."""
        return self.envelope.raw


def read_proofs(path: str | os.PathLike[str]) -> tuple[list[Envelope[Any]], list[str]]:
    """Read a sidecar file of cards, revocations and witnesses.

    Returns:
        The envelopes, each with its signature verified, and a sentence for each record of an unknown kind or version,
        which is skipped.

    Raises:
        EnvelopeError: what is wrong with the first bad record, or `file.unreadable`.
    """
    proofs, skipped = [], []
    for index, (offset, raw) in enumerate(read_records(path)):
        try:
            envelope = open_envelope(raw)
        except EnvelopeError as error:
            where = f"record {index} at offset {offset}: {error.text}"
            if error.effect != "unverifiable":
                raise EnvelopeError(error.code, f"{path}: {where}", stage=error.stage) from None
            skipped.append(where)
            continue
        if envelope.kind not in ("card", "revocation", "witness"):
            raise EnvelopeError("chain.kind", f"{path}: record {index} is of kind {envelope.kind}, of threads")
        proofs.append(envelope)
    return proofs, skipped
