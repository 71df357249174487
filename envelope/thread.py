"""The state machine of a thread: IO-free, one verified envelope after another.

`Thread.apply` takes the envelopes of one thread in file order. It returns when the envelope obeys every rule that
depends on what stands before it, and raises otherwise; a refused envelope leaves the state as it was. The rules, and
the order in which one record is checked (`spec/protocol.md`, "Chain" to "Settle"):

1. chain: thread, repetition, predecessor, sequence; for a message its id, room and reply;
2. roster: the signer is a member in a role that may sign this; recipients; changes of the roster;
3. receipts: a chain record commits exactly the receipts that stand before it; acks and rulings go in rounds;
4. settle: settlements in order, then the record's own effect: retraction, escalation, limits, seal.

What a message still owes is held until it is settled; of what is settled only digests and flags are kept, in tables of
a few tens of bytes a message.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from blake3 import blake3

from envelope.cose import Envelope, address_text
from envelope.errors import EnvelopeError
from envelope.keys import PublicKey, did_key
from envelope.records import Ack, Chained, Message, Open, Roster, Ruling, Seal, Settled

MAX_STANDING: Final = 4096
MAX_ROUNDS: Final = 16
MAX_NOTES: Final = 64
CLOCK_TOLERANCE_MS: Final = 300_000

_MODERATOR: Final = frozenset(("moderator",))
_MAY_APPEND: Final = frozenset(("moderator", "member"))
_MAY_ACK: Final = frozenset(("moderator", "member", "approver"))

_MESSAGE, _SETTLED, _RETRACTED, _STEP, _ESCALATION, _RETRACTION, _NEEDS, _ADDRESSED = (1 << bit for bit in range(8))

_INTENT_FLAGS: Final = {"escalate": _ESCALATION, "retract": _RETRACTION}


@dataclass(frozen=True, slots=True)
class Note:
    """Something a verdict tells about a record that obeys the rules."""

    code: str
    index: int
    offset: int
    address: bytes
    text: str


@dataclass(slots=True)
class MemberState:
    """A key that is, or was, a member. `role` is None once it is gone; `since` is the seq that gave the role."""

    number: int
    name: str
    role: str | None
    since: int


@dataclass(slots=True)
class _Recipient:
    """Where one recipient stands with one message."""

    last: bytes | None = None
    answer: str = ""
    ruling: str = ""
    correction: bytes | None = None
    rounds: int = 0


@dataclass(slots=True)
class _Pending:
    """A message that is addressed to somebody, until it is settled or retracted."""

    address: bytes
    row: int
    author: int
    flags: int
    index: int
    offset: int
    needs_ack: bool
    recipients: dict[PublicKey, _Recipient]
    outstanding: int
    of: "_Pending | None" = None
    escalation: "_Pending | None" = None
    acks: list[bytes] = field(default_factory=list)
    declined: bool = False
    failed: bool = False
    counted_acknowledged: bool = False
    counted_declined: bool = False

    @property
    def acknowledged(self) -> bool:
        return self.outstanding == 0

    @property
    def cleared(self) -> bool:
        return self.outstanding == 0 or (self.escalation is not None and self.escalation.outstanding == 0)


class _Table:
    """A set of digests that remembers the order: `width` bytes a row, four a slot, at most two thirds of them used."""

    __slots__ = ("_mask", "_rows", "_slots", "_width", "count")

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows = bytearray()
        self._slots = array("I", bytes(4 * 64))
        self._mask = 63
        self.count = 0

    def __getitem__(self, row: int) -> bytes:
        return bytes(self._rows[row * self._width : (row + 1) * self._width])

    def find(self, digest: bytes) -> int:
        """Return the row of `digest`, or -1."""
        rows, slots, width, mask = self._rows, self._slots, self._width, self._mask
        slot = hash(digest) & mask  # keyed by the interpreter, so that nobody can choose digests that collide
        while row := slots[slot]:
            if rows[(row - 1) * width : row * width] == digest:
                return row - 1
            slot = (slot + 1) & mask
        return -1

    def add(self, digest: bytes) -> None:
        """Append a digest that is not there yet."""
        self._rows += digest
        self.count += 1
        if 3 * self.count > 2 * self._mask:
            self._mask = 2 * self._mask + 1
            self._slots = array("I", bytes(4 * (self._mask + 1)))
            for row in range(self.count):
                self._place(self[row], row)
        else:
            self._place(digest, self.count - 1)

    def _place(self, digest: bytes, row: int) -> None:
        slot = hash(digest) & self._mask
        while self._slots[slot]:
            slot = (slot + 1) & self._mask
        self._slots[slot] = row + 1


def _digest(*parts: str) -> bytes:
    return blake3("/".join(parts).encode()).digest(16)


class Thread:
    """What a thread has come to.

    Attributes:
        pinned: the address that the thread must have, or None.
        opening: the open, or None before it.
        members: every key that is or was a member.
        signers: the keys that signed chain records and committed receipts; True where one acted as an approver.
        outcome: the seal's, or None.
        acknowledged, approved, declined, ungated: how many messages (steps, for the last), by committed records.
        notes: what is worth telling, at most 64 of a code; `omitted` counts the rest.
    """

    def __init__(self, pinned: bytes | None = None) -> None:
        self.pinned = pinned
        self.opening: Envelope[Open] | None = None
        self.members: dict[PublicKey, MemberState] = {}
        self.signers: dict[PublicKey, bool] = {}
        self.outcome: str | None = None
        self.tip = b""
        self.seq = 0
        self.index = 0
        self.messages = self.acknowledged = self.approved = self.declined = self.ungated = 0
        self.used_bytes = self.used_messages = 0
        self.notes: list[Note] = []
        self.omitted = 0
        self._notes_of: dict[str, int] = {}
        self._names: dict[str, PublicKey] = {}
        self._moderators = 0
        self._chain = _Table(32)
        self._rows = array("Q")  # author << 8 | flags, one a chain record
        self._ids = _Table(16)
        self._paths = _Table(16)
        self._pending: dict[bytes, _Pending] = {}
        self._acks: dict[bytes, tuple[_Pending, PublicKey]] = {}
        self._standing: dict[bytes, tuple[Envelope[Any], _Pending]] = {}
        self._challenges: dict[bytes, tuple[int, bytes, int, int]] = {}
        self._challenged: dict[bytes, set[bytes]] = {}
        self._uncleared: list[tuple[int, int, int, bytes]] = []
        self._uncleared_owner: bytes | None = None
        self._sent_at = 0

    # What a writer needs to know

    @property
    def address(self) -> bytes:
        """The thread's address: that of its open."""
        return self.opening.address if self.opening else b""

    @property
    def owner(self) -> PublicKey:
        """The key that opened the thread."""
        return self.opening.signer if self.opening else b""

    @property
    def standing(self) -> tuple[bytes, ...]:
        """The addresses of the receipts that the next chain record must commit, in order."""
        return tuple(self._standing)

    def role(self, key: PublicKey) -> str | None:
        """Return the role that `key` has now, or None."""
        member = self.members.get(key)
        return member.role if member else None

    def has_id(self, message_id: str) -> bool:
        """Whether a message of the thread has this id."""
        return self._ids.find(_digest(message_id)) >= 0

    def has_path(self, path: tuple[str, ...]) -> bool:
        """Whether a message or a settlement of the thread has this step path."""
        return self._paths.find(_digest(*path)) >= 0

    def find(self, address: bytes) -> int:
        """Return the seq of a chain record of the thread, or -1."""
        return self._chain.find(address)

    def links(self) -> dict[str, Any]:
        """Return the fields that place the next chain record: thread, seq, prev, and the receipts it commits."""
        return {"thread": self.address, "seq": self.seq, "prev": self.tip, "receipts": self.standing or None}

    # One envelope after another

    def apply(self, envelope: Envelope[Any], offset: int = 0) -> None:
        """Take the next envelope of the thread.

        Args:
            envelope: an opened envelope, whose signature held.
            offset: where it begins, kept for notes.

        Raises:
            EnvelopeError: the rule that it breaks here. The state is then as it was.
        """
        if self.opening is None:
            self._begin(envelope)
        elif envelope.kind in _RECEIPTS:
            self._receive(envelope)
        else:
            self._extend(envelope, offset)
        self.index += 1

    def _begin(self, envelope: Envelope[Any]) -> None:
        record = envelope.record
        if envelope.kind != "open":
            raise EnvelopeError("chain.no_open", f"the first record is of kind {envelope.kind}, not an open")
        if self.pinned not in (None, envelope.address):
            raise EnvelopeError("chain.pinned", f"the thread is another one: {address_text(envelope.address)}")
        roles = {member.key: member.role for member in record.members}
        if roles.get(envelope.signer) != "moderator":
            raise EnvelopeError("roster.owner", f"the opener {did_key(envelope.signer)} is no moderator of the thread")
        for member in record.members:
            self._admit(member.key, member.name, member.role, 0)
        self.opening = envelope
        self.signers[envelope.signer] = False
        self._sent_at = record.sent_at
        self._push(envelope, 0)

    def _extend(self, envelope: Envelope[Any], offset: int) -> None:
        record = envelope.record
        kind = envelope.kind
        if kind == "open":
            raise EnvelopeError("chain.second_open", "a second open stands in the thread")
        if kind not in _EFFECTS:
            raise EnvelopeError("chain.kind", f"a {kind} stands outside of threads, not in one")
        check, take = _EFFECTS[kind]
        # 1. chain
        if self.outcome is not None:
            raise EnvelopeError("chain.sealed", f"a {kind} follows the seal")
        if record.thread != self.address:
            raise EnvelopeError("chain.thread", f"the {kind} is of the thread {address_text(record.thread)}")
        if record.prev != self.tip or record.seq != self.seq:
            self._misplaced(envelope)
        member = self.members.get(envelope.signer)
        if kind == "message":
            self._check_identity(record)
        # 2. roster
        if member is None or member.role is None:
            raise EnvelopeError("roster.stranger", f"{did_key(envelope.signer)} is no member at this place")
        leaves = kind == "roster" and record.change == "leave"
        if member.role not in (_MODERATOR if kind in ("roster", "seal") else _MAY_APPEND) and not leaves:
            raise EnvelopeError("roster.role", f"the signer is {member.role}, who may not append a {kind}")
        if record.settled is not None and member.role not in _MAY_APPEND:
            raise EnvelopeError("roster.role", f"the signer is {member.role}, who may leave, but not settle")
        if kind == "message":
            self._check_recipients(record, envelope.signer)
        elif kind == "roster":
            self._check_roster(record, envelope.signer)
        if record.settled is not None and envelope.signer != self.owner:
            if any(entry.step is not None for entry in record.settled):
                raise EnvelopeError("step.owner", "a step is settled by another key than the owner's")
        # 3. receipts
        if (record.receipts or ()) != tuple(self._standing):
            raise EnvelopeError("receipts.committed", self._miscommitted(record.receipts or ()))
        # 4. settle
        done: dict[bytes, str] = {}
        for entry in record.settled or ():
            self._check_settled(entry, member.number, done)
        check(self, envelope, member, done)
        # The record holds: nothing below may fail.
        self._commit_receipts()
        self._see_time(envelope, offset)
        for entry in record.settled or ():
            self._settle(entry, envelope, offset)
        take(self, envelope, member, offset)
        self.signers.setdefault(envelope.signer, False)

    def _misplaced(self, envelope: Envelope[Any]) -> None:
        record = envelope.record
        if self._chain.find(envelope.address) >= 0:
            raise EnvelopeError("chain.repeated", "the record stands a second time")
        if record.prev != self.tip:
            row = self._chain.find(record.prev)
            if row >= 0:
                other = self._chain[row + 1]
                author = self._rows[row + 1] >> 8
                member = self.members.get(envelope.signer)
                same = member is not None and member.number == author
                raise EnvelopeError(
                    "chain.fork",
                    f"{address_text(envelope.address)} and {address_text(other)} both follow "
                    f"{address_text(record.prev)}" + (f"; {did_key(envelope.signer)} signed both" if same else ""),
                )
            raise EnvelopeError(
                "chain.prev",
                f"prev is {address_text(record.prev)}, but the record before is {address_text(self.tip)}; "
                "a record is missing, added or moved here",
            )
        if record.seq != self.seq:
            raise EnvelopeError("chain.seq", f"seq is {record.seq}, but the place is {self.seq}")

    def _miscommitted(self, receipts: tuple[bytes, ...]) -> str:
        for place, (listed, stands) in enumerate(zip(receipts, self._standing, strict=False)):
            if listed != stands:
                return f"receipt {place} is listed as {address_text(listed)}, but {address_text(stands)} stands there"
        if len(receipts) < len(self._standing):
            return f"{len(self._standing)} receipts stand before the record, which lists only {len(receipts)}"
        return f"the record lists {len(receipts)} receipts, but only {len(self._standing)} stand before it"

    # Messages

    def _check_identity(self, record: Message) -> None:
        assert self.opening is not None
        if self._ids.find(_digest(record.id)) >= 0:
            raise EnvelopeError("message.id", f"the id {record.id} was used before")
        if record.room != self.opening.record.room:
            raise EnvelopeError("message.room", f"the room is {record.room}, but the open's {self.opening.record.room}")
        if record.reply_to is not None and not self._flags(record.reply_to) & _MESSAGE:
            raise EnvelopeError("message.reply_to", f"reply_to {address_text(record.reply_to)} is no earlier message")

    def _check_recipients(self, record: Message, signer: PublicKey) -> None:
        for key in record.to or ():
            member = self.members.get(key)
            if member is None or member.role is None or key == signer:
                why = "the author" if key == signer else "no member at this place"
                raise EnvelopeError("roster.to", f"the recipient {did_key(key)} is {why}")
            if record.needs_ack and member.role not in _MAY_ACK:
                raise EnvelopeError("roster.unable", f"the recipient {did_key(key)} is {member.role}, who may not ack")
        if record.step is not None and signer != self.owner:
            raise EnvelopeError("step.owner", f"the step {'/'.join(record.step)} is another key's than the owner's")

    def _check_message(self, envelope: Envelope[Message], member: MemberState, done: dict[bytes, str]) -> None:
        record = envelope.record
        if record.step is not None and (path := _digest(*record.step)):
            if path in done or self._paths.find(path) >= 0:
                raise EnvelopeError("step.repeated", f"the step {'/'.join(record.step)} occurred before")
        if record.intent == "retract":
            self._check_retraction(record, member, done)
        elif record.intent == "escalate":
            self._check_escalation(record, member, done)
        if envelope.signer == self.owner and record.intent != "escalate":
            self._check_limits(record)

    def _check_retraction(self, record: Message, member: MemberState, done: dict[bytes, str]) -> None:
        assert record.reply_to is not None
        flags = self._flags(record.reply_to)
        if self._author(record.reply_to) != member.number:
            raise EnvelopeError("retract.author", "the retracted message is another's")
        if flags & _SETTLED or record.reply_to in done:
            raise EnvelopeError("retract.settled", "the retracted message is settled already")
        if flags & (_STEP | _ESCALATION | _RETRACTION | _RETRACTED):
            raise EnvelopeError("retract.target", "a step's message, an escalation or a retraction is not retracted")
        target = self._pending.get(record.reply_to)
        if target and (target.declined or (target.escalation and target.escalation.declined)):
            raise EnvelopeError("retract.declined", "the retracted message was declined")

    def _check_escalation(self, record: Message, member: MemberState, done: dict[bytes, str]) -> None:
        assert record.reply_to is not None
        flags = self._flags(record.reply_to)
        if self._author(record.reply_to) != member.number:
            raise EnvelopeError("escalate.author", "the escalated message is another's")
        if flags & _ESCALATION or not flags & _NEEDS:
            raise EnvelopeError("escalate.target", "the escalated message needs no ack, or is an escalation")
        if flags & (_SETTLED | _RETRACTED) or record.reply_to in done:
            raise EnvelopeError("escalate.late", "the escalated message is settled or retracted")
        target = self._pending[record.reply_to]
        if target.escalation is not None:
            raise EnvelopeError("escalate.repeated", "the message was escalated before")
        for key in record.to or ():
            approver = self.members[key]
            if approver.role != "approver" or approver.since >= target.row:
                raise EnvelopeError("escalate.approver", f"{did_key(key)} was no approver before the message was sent")
            if key in target.recipients:
                raise EnvelopeError("escalate.recipient", f"{did_key(key)} is a recipient of the escalated message")

    def _check_limits(self, record: Message) -> None:
        assert self.opening is not None
        limits = self.opening.record.limits
        if limits is None:
            return
        if limits.bytes is not None and self.used_bytes + record.payload_bytes > limits.bytes:
            raise EnvelopeError("limit.bytes", f"the payload brings the owner to more than {limits.bytes} bytes")
        if limits.messages is not None and self.used_messages + 1 > limits.messages:
            raise EnvelopeError("limit.messages", f"the message is one more than the owner's {limits.messages}")

    def _take_message(self, envelope: Envelope[Message], member: MemberState, offset: int) -> None:
        record = envelope.record
        flags = _MESSAGE | _INTENT_FLAGS.get(record.intent, 0)
        if record.needs_ack:
            flags |= _NEEDS
        self._ids.add(_digest(record.id))
        if record.step is not None:
            flags |= _STEP
            self._paths.add(_digest(*record.step))
        pending = None
        if record.to is not None:
            flags |= _ADDRESSED
            pending = self._pending[envelope.address] = _Pending(
                envelope.address, self.seq, member.number, flags, self.index, offset,
                record.needs_ack, {key: _Recipient() for key in record.to}, len(record.to),
            )  # fmt: skip
        if record.reply_to is not None:
            self._take_reply(envelope, member, offset, pending)
        if envelope.signer == self.owner and record.intent != "escalate":
            self.used_bytes += record.payload_bytes
            self.used_messages += 1
        self.messages += 1
        self._push(envelope, flags)

    def _take_reply(
        self, envelope: Envelope[Message], member: MemberState, offset: int, pending: _Pending | None
    ) -> None:
        record = envelope.record
        target = record.reply_to
        assert target is not None
        if (challenge := self._challenges.get(target)) is not None and challenge[0] == member.number:
            self._answered(target)
        if record.intent == "challenge":
            self._challenges[envelope.address] = (self._author(target), target, self.index, offset)
            self._challenged.setdefault(target, set()).add(envelope.address)
        elif record.intent == "escalate":
            assert pending is not None
            pending.of = self._pending[target]
            pending.of.escalation = pending
        elif record.intent == "retract":
            self._rows[self._chain.find(target)] |= _RETRACTED
            self._forget(target)
            if target in self._challenges:
                self._answered(target)
            for address in self._challenged.pop(target, ()):
                self._challenges.pop(address, None)

    def _answered(self, challenge: bytes) -> None:
        _, target, _, _ = self._challenges.pop(challenge)
        open_ones = self._challenged[target]
        open_ones.discard(challenge)
        if not open_ones:
            del self._challenged[target]

    # The roster

    def _check_roster(self, record: Roster, signer: PublicKey) -> None:
        present = self.members.get(record.key)
        role = present.role if present else None
        if record.change == "admit":
            if role is not None:
                raise EnvelopeError("roster.present", f"{did_key(record.key)} is a member already")
            if self._names.get(record.name or "", record.key) != record.key:
                raise EnvelopeError("roster.name", f"the name {record.name} was given to another key of this thread")
            return
        if record.change == "leave" and record.key != signer:
            raise EnvelopeError("roster.leave", "another key than the signer's leaves")
        if role is None:
            raise EnvelopeError("roster.absent", f"{did_key(record.key)} is no member")
        if record.change == "role" and record.role == role:
            raise EnvelopeError("roster.same_role", f"{did_key(record.key)} is {role} already")
        if role == "moderator" and self._moderators == 1:
            raise EnvelopeError("roster.moderator", "the thread would be without a moderator")

    def _check_nothing(self, envelope: Envelope[Any], member: MemberState, done: dict[bytes, str]) -> None:
        """A roster record's own effect is checked with the roster, a settle has none."""

    def _take_roster(self, envelope: Envelope[Roster], member: MemberState, offset: int) -> None:
        record = envelope.record
        if record.change == "admit":
            assert record.name is not None
            assert record.role is not None
            self._admit(record.key, record.name, record.role, self.seq)
        else:
            changed = self.members[record.key]
            self._moderators += (record.role == "moderator") - (changed.role == "moderator")
            changed.role = record.role
            changed.since = self.seq
        self._push(envelope, 0)

    def _admit(self, key: PublicKey, name: str, role: str, seq: int) -> None:
        number = self.members[key].number if key in self.members else len(self.members)
        self.members[key] = MemberState(number, name, role, seq)
        self._names[name] = key
        self._moderators += role == "moderator"

    # Receipts

    def _receive(self, envelope: Envelope[Any]) -> None:
        record: Ack | Ruling = envelope.record
        if self.outcome is not None:
            raise EnvelopeError("chain.sealed", f"a {envelope.kind} follows the seal")
        if record.thread != self.address:
            raise EnvelopeError("chain.thread", f"the {envelope.kind} is of the thread {address_text(record.thread)}")
        pending = self._hear_ack(envelope) if isinstance(record, Ack) else self._hear_ruling(envelope)
        self._standing[envelope.address] = (envelope, pending)

    def _hear_ack(self, envelope: Envelope[Ack]) -> _Pending:
        record, signer = envelope.record, envelope.signer
        pending = self._pending.get(record.message)
        flags = pending.flags if pending else self._flags(record.message)
        if not flags & _MESSAGE:
            raise EnvelopeError("ack.message", f"the ack is of {address_text(record.message)}, no earlier message")
        self._check_signer(signer, _MAY_ACK, "ack")
        if not flags & _ADDRESSED or (pending and signer not in pending.recipients):
            raise EnvelopeError("ack.recipient", f"{did_key(signer)} is no recipient of the message")
        self._check_place(envelope)
        if pending is None:
            raise EnvelopeError("ack.settled", "the ack is of a message that is settled or retracted")
        recipient = pending.recipients[signer]
        if recipient.answer == "decline":
            raise EnvelopeError("ack.declined", f"{did_key(signer)} declined the message before")
        if record.after != recipient.correction:
            wanted = "none" if recipient.correction is None else address_text(recipient.correction)
            given = "none" if record.after is None else address_text(record.after)
            raise EnvelopeError("ack.after", f"after is {given}, but the correction to answer is {wanted}")
        if recipient.last is not None and recipient.correction is None:
            raise EnvelopeError("ack.after", "the ack before it was not corrected, so there is nothing to ack anew")
        if recipient.rounds >= MAX_ROUNDS:
            raise EnvelopeError("ack.rounds", f"{did_key(signer)} acknowledged the message {MAX_ROUNDS} times already")
        recipient.last, recipient.answer, recipient.ruling = envelope.address, record.answer, ""
        recipient.correction = None
        recipient.rounds += 1
        pending.acks.append(envelope.address)
        pending.declined = pending.declined or record.answer == "decline"
        self._acks[envelope.address] = (pending, signer)
        return pending

    def _hear_ruling(self, envelope: Envelope[Ruling]) -> _Pending:
        record, signer = envelope.record, envelope.signer
        if (found := self._acks.get(record.ack)) is None:
            raise EnvelopeError("ruling.ack", f"{address_text(record.ack)} is no ack of an unsettled message")
        pending, key = found
        recipient = pending.recipients[key]
        self._check_signer(signer, _MAY_APPEND, "ruling")
        if self.members[signer].number != pending.author:
            raise EnvelopeError("ruling.author", f"{did_key(signer)} is not the author of the acknowledged message")
        self._check_place(envelope)
        if recipient.last != record.ack or recipient.ruling:
            raise EnvelopeError("ruling.repeated", "the ack was ruled on before")
        if recipient.answer == "decline":
            raise EnvelopeError("ruling.declined", "the ack declines, which is final")
        recipient.ruling = record.ruling
        if record.ruling == "confirm":
            pending.outstanding -= 1
        else:
            recipient.correction = envelope.address
        return pending

    def _check_signer(self, signer: PublicKey, roles: frozenset[str], kind: str) -> None:
        role = self.role(signer)
        if role is None:
            raise EnvelopeError("roster.stranger", f"{did_key(signer)} is no member at this place")
        if role not in roles:
            raise EnvelopeError("roster.role", f"the signer is {role}, who may not sign a {kind}")

    def _check_place(self, envelope: Envelope[Any]) -> None:
        if len(self._standing) >= MAX_STANDING:
            raise EnvelopeError("receipts.many", f"{MAX_STANDING} receipts stand already; a chain record is due")
        if envelope.address in self._standing or envelope.address in self._acks:
            raise EnvelopeError("receipts.repeated", f"the {envelope.kind} stands a second time")

    def _commit_receipts(self) -> None:
        for envelope, pending in self._standing.values():
            as_approver = envelope.kind == "ack" and (
                pending.of is not None or self.role(envelope.signer) == "approver"
            )
            self.signers[envelope.signer] = self.signers.get(envelope.signer, False) or as_approver
            if envelope.kind == "ruling" and envelope.record.ruling == "confirm":
                if pending.acknowledged and pending.of is None and not pending.counted_acknowledged:
                    pending.counted_acknowledged = True
                    self.acknowledged += 1
            elif envelope.kind == "ack" and envelope.record.answer == "decline":
                target = pending.of or pending
                if not target.counted_declined:
                    target.counted_declined = True
                    self.declined += 1
                who = "approver" if pending.of else "recipient"
                self._note(
                    "message.declined", target.index, target.offset, target.address,
                    f"{who} {did_key(envelope.signer)} declined the message",
                )  # fmt: skip
        self._standing.clear()

    # Settling and sealing

    def _check_settled(self, entry: Settled, author: int, done: dict[bytes, str]) -> None:
        if entry.step is not None:
            path = _digest(*entry.step)
            if path in done or self._paths.find(path) >= 0:
                raise EnvelopeError("step.repeated", f"the step {'/'.join(entry.step)} occurred before")
            done[path] = entry.outcome
            return
        assert entry.message is not None
        message = f"the message {address_text(entry.message)}"
        pending = self._pending.get(entry.message)
        flags = pending.flags if pending else self._flags(entry.message)
        if not flags & _MESSAGE:
            raise EnvelopeError("settle.unknown", f"{message} is none of the thread")
        if (pending.author if pending else self._author(entry.message)) != author:
            raise EnvelopeError("settle.author", f"{message} is another's")
        if flags & _SETTLED or entry.message in done:
            raise EnvelopeError("settle.repeated", f"{message} is settled already")
        if flags & _RETRACTED and entry.outcome != "failed":
            raise EnvelopeError("settle.retracted", f"{message} was retracted; it can only have failed")
        if entry.outcome == "succeeded" and pending and pending.needs_ack and not pending.acknowledged:
            raise EnvelopeError(
                "settle.unacknowledged", f"{message} lacks an accepted and confirmed ack of every recipient"
            )
        if entry.outcome == "approved":
            escalation = pending.escalation if pending else None
            if (
                escalation is None
                or entry.by != escalation.address
                or not escalation.acknowledged
                or escalation.failed
                or done.get(escalation.address) == "failed"
            ):
                raise EnvelopeError("settle.approved", f"{message} has no escalation that every approver accepted")
        done[entry.message] = entry.outcome

    def _settle(self, entry: Settled, envelope: Envelope[Any], offset: int) -> None:
        if entry.step is not None:
            self._paths.add(_digest(*entry.step))
            self.ungated += 1
            return
        assert entry.message is not None
        pending = self._forget(entry.message)
        self._rows[pending.row if pending else self._chain.find(entry.message)] |= _SETTLED
        if pending is None:
            return
        if entry.outcome == "approved":
            assert pending.escalation is not None
            self.approved += 1
            approvers = ", ".join(did_key(key) for key in pending.escalation.recipients)
            silent = ", ".join(did_key(k) for k, r in pending.recipients.items() if r.ruling != "confirm")
            self._note(
                "message.approved", pending.index, pending.offset, pending.address,
                f"approved by {approvers}; not acknowledged by {silent or 'nobody'}",
            )  # fmt: skip
        pending.failed = entry.outcome == "failed"
        if pending.needs_ack and pending.of is None and not pending.cleared:
            if self._is_owner(pending.author):
                self._uncleared_owner = self._uncleared_owner or pending.address
            else:
                self._leave_open(pending)

    def _is_owner(self, number: int) -> bool:
        return self.members[self.owner].number == number

    def _leave_open(self, pending: _Pending) -> None:
        if len(self._uncleared) < MAX_NOTES:
            self._uncleared.append((pending.author, pending.index, pending.offset, pending.address))
        else:
            self.omitted += 1

    def _check_seal(self, envelope: Envelope[Seal], member: MemberState, done: dict[bytes, str]) -> None:
        if envelope.record.outcome != "completed":
            return
        owner = self.members[self.owner].number
        bad = self._uncleared_owner
        for address, pending in self._pending.items():
            if pending.author == owner and pending.needs_ack and pending.of is None:
                if address not in done or not pending.cleared:
                    bad = bad or address
        if bad is not None:
            raise EnvelopeError(
                "seal.unacknowledged",
                f"completed, but the owner's message {address_text(bad)} is not acknowledged, approved or settled",
            )

    def _take_seal(self, envelope: Envelope[Seal], member: MemberState, offset: int) -> None:
        self.outcome = envelope.record.outcome
        if self.outcome == "completed":
            for pending in self._pending.values():
                if pending.needs_ack and pending.of is None and not self._is_owner(pending.author):
                    self._leave_open(pending)
            names = {state.number: key for key, state in self.members.items()}
            for author, index, place, address in self._uncleared:
                text = f"the request of {did_key(names[author])} was not acknowledged and settled"
                self._note("seal.open_request", index, place, address, text)
            for address, (author, _, index, place) in self._challenges.items():
                text = f"{did_key(names[author])} did not answer the challenge"
                self._note("seal.open_challenge", index, place, address, text)
        self._push(envelope, 0)

    # Bookkeeping

    def _take_settle(self, envelope: Envelope[Any], member: MemberState, offset: int) -> None:
        self._push(envelope, 0)

    def _flags(self, address: bytes) -> int:
        row = self._chain.find(address)
        return self._rows[row] & 0xFF if row >= 0 else 0

    def _author(self, address: bytes) -> int:
        return self._rows[self._chain.find(address)] >> 8

    def _push(self, envelope: Envelope[Any], flags: int) -> None:
        self._chain.add(envelope.address)
        self._rows.append(self.members[envelope.signer].number << 8 | flags)
        self.tip = envelope.address
        self.seq += 1

    def _forget(self, message: bytes) -> _Pending | None:
        pending = self._pending.pop(message, None)
        for ack in pending.acks if pending else ():
            del self._acks[ack]
        return pending

    def _see_time(self, envelope: Envelope[Chained], offset: int) -> None:
        sent_at = envelope.record.sent_at
        if sent_at + CLOCK_TOLERANCE_MS < self._sent_at:
            text = f"sent_at is {self._sent_at - sent_at} ms before the record before it; order comes from the chain"
            self._note("time.backwards", self.index, offset, envelope.address, text)
        self._sent_at = sent_at

    def _note(self, code: str, index: int, offset: int, address: bytes, text: str) -> None:
        self._notes_of[code] = self._notes_of.get(code, 0) + 1
        if self._notes_of[code] <= MAX_NOTES:
            self.notes.append(Note(code, index, offset, address, text))
        else:
            self.omitted += 1


_Check = Callable[[Thread, Envelope[Any], MemberState, dict[bytes, str]], None]
_Take = Callable[[Thread, Envelope[Any], MemberState, int], None]

_RECEIPTS: Final = frozenset(("ack", "ruling"))
_EFFECTS: Final[Mapping[str, tuple[_Check, _Take]]] = {
    "message": (Thread._check_message, Thread._take_message),
    "roster": (Thread._check_nothing, Thread._take_roster),
    "settle": (Thread._check_nothing, Thread._take_settle),
    "seal": (Thread._check_seal, Thread._take_seal),
}
