"""Acks and rulings: who may give which, in which rounds, and which of them no chain record has committed yet
(`spec/protocol.md`, "Receipts")."""

from collections.abc import Callable
from typing import Any, Final

from envelope.cose import Envelope, address_text
from envelope.errors import EnvelopeError
from envelope.keys import PublicKey, did_key
from envelope.membership import MAY_ACK, MAY_APPEND, Membership
from envelope.records import Ack, Ruling

MAX_STANDING: Final = 4096
MAX_ROUNDS: Final = 16

MESSAGE, SETTLED, RETRACTED, STEP, ESCALATION, RETRACTION, NEEDS_ACK, ADDRESSED = (1 << bit for bit in range(8))
"""What a thread remembers of each of its chain records, for good."""


class Recipient:
    """Where one recipient that gave an ack stands with one message: its last ack, its answer, the ruling on it."""

    ruling = ""
    correction: bytes | None = None
    rounds = 1

    def __init__(self, last: bytes, answer: str) -> None:
        self.last = last
        self.answer = answer


class Pending:
    """A message that is addressed to somebody, until it is settled or retracted.

    Attributes:
        row: its seq.
        author: the number of its author.
        flags: those it had when it was sent.
        index, offset: where it stands.
        recipients: where each of them stands, or None where it gave no ack.
        outstanding: how many recipients have not accepted, or are not confirmed.
        of: the message that it escalates; escalation: the message that escalates it.
        acks: the addresses of its acks.
        declined: whether a recipient declined; failed: whether it was settled so.
    """

    of: "Pending | None" = None
    escalation: "Pending | None" = None
    declined = False
    failed = False
    counted_acknowledged = False
    counted_declined = False

    def __init__(
        self, address: bytes, row: int, author: int, flags: int, index: int, offset: int, to: tuple[PublicKey, ...]
    ) -> None:
        self.address = address
        self.row = row
        self.author = author
        self.flags = flags
        self.index = index
        self.offset = offset
        self.recipients: dict[PublicKey, Recipient | None] = dict.fromkeys(to)
        self.outstanding = len(to)
        self.acks: list[bytes] = []

    @property
    def cleared(self) -> bool:
        """Whether every recipient, of it or of its escalation, has accepted and is confirmed."""
        return self.outstanding == 0 or (self.escalation is not None and self.escalation.outstanding == 0)

    @property
    def silent(self) -> list[PublicKey]:
        """The recipients that have not accepted, or are not confirmed."""
        return [key for key, state in self.recipients.items() if state is None or state.ruling != "confirm"]


Standing = tuple[PublicKey, str, bool, Pending]
"""What matters of a receipt until a chain record commits it: signer, answer or ruling, as an approver, its message."""


class Receipts:
    """The messages that may be acknowledged, their acks, and the receipts that stand behind the last chain record.

    Args:
        members: the thread's.
        flags: gives what is remembered of the record at an address; 0 for none.

    Attributes:
        thread: the thread's address, once it is open.
        pending: the messages that may be acknowledged, by address.
        standing: the receipts behind the last chain record, by address, in order.
    """

    def __init__(self, members: Membership, flags: Callable[[bytes], int]) -> None:
        self.pending: dict[bytes, Pending] = {}
        self.standing: dict[bytes, Standing] = {}
        self._members = members
        self._flags = flags
        self._acks: dict[bytes, tuple[Pending, Recipient]] = {}
        self.thread = b""

    def receive(self, envelope: Envelope[Any]) -> None:
        """Take the next receipt, judged where it stands."""
        record: Any = envelope.record
        if record.thread != self.thread:
            raise EnvelopeError("chain.thread", f"the {record.kind} is of the thread {address_text(record.thread)}")
        if record.kind == "ack":
            self._ack(envelope, record)
        else:
            self._ruling(envelope, record)

    def check_committed(self, listed: tuple[bytes, ...]) -> None:
        """Return if a chain record lists exactly the receipts that stand before it."""
        if listed != (tuple(self.standing) if self.standing else ()):
            raise EnvelopeError("receipts.committed", self._difference(listed))

    def forget(self, message: bytes) -> Pending | None:
        """Let a message that was settled or retracted take no more receipts; return it if it was pending."""
        pending = self.pending.pop(message, None)
        for ack in pending.acks if pending else ():
            del self._acks[ack]
        return pending

    def _ack(self, envelope: Envelope[Any], record: Ack) -> None:
        _, signer, address, _ = envelope
        message, answer = record.message, record.answer
        pending = self.pending.get(message)
        flags = pending.flags if pending is not None else self._flags(message)
        if not flags & MESSAGE:
            raise EnvelopeError("ack.message", f"the ack is of {address_text(message)}, no earlier message")
        member = self._members.check_signer(signer, MAY_ACK, "ack")
        if not flags & ADDRESSED or (pending is not None and signer not in pending.recipients):
            raise EnvelopeError("ack.recipient", f"{did_key(signer)} is no recipient of the message")
        self._check_place(address, "ack")
        if pending is None:
            raise EnvelopeError("ack.settled", "the ack is of a message that is settled or retracted")
        recipient = pending.recipients[signer]
        if recipient is None and record.after is None:
            recipient = pending.recipients[signer] = Recipient(address, answer)
        else:
            recipient = self._check_round(signer, recipient, record.after)
            recipient.last, recipient.answer = address, answer
            recipient.ruling, recipient.correction = "", None
            recipient.rounds += 1
        pending.acks.append(address)
        if answer == "decline":
            pending.declined = True
        self._acks[address] = (pending, recipient)
        as_approver = member.role == "approver" or pending.of is not None
        self.standing[address] = (signer, answer, as_approver, pending)

    def _check_round(self, signer: PublicKey, recipient: Recipient | None, after: bytes | None) -> Recipient:
        """Return the recipient if its further ack answers a correction, as one that is not its first must."""
        if recipient is not None and recipient.answer == "decline":
            raise EnvelopeError("ack.declined", f"{did_key(signer)} declined the message before")
        correction = recipient.correction if recipient is not None else None
        if after != correction:
            wanted = "none" if correction is None else address_text(correction)
            given = "none" if after is None else address_text(after)
            raise EnvelopeError("ack.after", f"after is {given}, but the correction to answer is {wanted}")
        if recipient is None or correction is None:
            raise EnvelopeError("ack.after", "the ack before it was not corrected, so there is nothing to ack anew")
        if recipient.rounds >= MAX_ROUNDS:
            raise EnvelopeError("ack.rounds", f"{did_key(signer)} acknowledged the message {MAX_ROUNDS} times already")
        return recipient

    def _ruling(self, envelope: Envelope[Any], record: Ruling) -> None:
        _, signer, address, _ = envelope
        ack, ruling = record.ack, record.ruling
        if (found := self._acks.get(ack)) is None:
            raise EnvelopeError("ruling.ack", f"{address_text(ack)} is no ack of an unsettled message")
        pending, recipient = found
        member = self._members.check_signer(signer, MAY_APPEND, "ruling")
        if member.number != pending.author:
            raise EnvelopeError("ruling.author", f"{did_key(signer)} is not the author of the message")
        self._check_place(address, "ruling")
        if recipient.last != ack or recipient.ruling:
            raise EnvelopeError("ruling.repeated", "the ack was ruled on before")
        if recipient.answer == "decline":
            raise EnvelopeError("ruling.declined", "the ack declines, which is final")
        recipient.ruling = ruling
        if ruling == "confirm":
            pending.outstanding -= 1
        else:
            recipient.correction = address
        self.standing[address] = (signer, ruling, False, pending)

    def _check_place(self, address: bytes, kind: str) -> None:
        if len(self.standing) >= MAX_STANDING:
            raise EnvelopeError("receipts.many", f"{MAX_STANDING} receipts stand already; a chain record is due")
        if address in self.standing or address in self._acks:
            raise EnvelopeError("receipts.repeated", f"the {kind} stands a second time")

    def _difference(self, listed: tuple[bytes, ...]) -> str:
        for place, (wrong, right) in enumerate(zip(listed, self.standing, strict=False)):
            if wrong != right:
                return f"receipt {place} is listed as {address_text(wrong)}, but {address_text(right)} stands there"
        if len(listed) < len(self.standing):
            return f"{len(self.standing)} receipts stand before the record, which lists only {len(listed)}"
        return f"the record lists {len(listed)} receipts, but only {len(self.standing)} stand before it"
