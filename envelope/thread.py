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
from dataclasses import dataclass
from typing import Any, Final

from envelope.cose import Envelope, address_text
from envelope.digests import DigestTable, condensed
from envelope.errors import EnvelopeError
from envelope.keys import PublicKey, did_key
from envelope.membership import ANYBODY, MAY_APPEND, MODERATOR, Membership, MemberState
from envelope.receipts import (
    ADDRESSED,
    ESCALATION,
    MESSAGE,
    NEEDS_ACK,
    RETRACTED,
    RETRACTION,
    SETTLED,
    STEP,
    Pending,
    Receipts,
)
from envelope.records import Chained, Limits, Message, Open, Roster, Seal, Settled

MAX_NOTES: Final = 64
CLOCK_TOLERANCE_MS: Final = 300_000

_Done = dict[bytes | str, str]
"""The outcomes that a record's settlements state, by message or remembered path."""

_INTENT_FLAGS: Final = {"escalate": ESCALATION, "retract": RETRACTION}


@dataclass(frozen=True, slots=True)
class Note:
    """Something a verdict tells about a record that obeys the rules."""

    code: str
    index: int
    offset: int
    address: bytes
    text: str


class Thread:
    """What a thread has come to.

    Attributes:
        pinned: the address that the thread must have, or None.
        opening: the open, or None before it; address: its address, which is the thread's; owner: its signer.
        members: every key that is or was a member.
        signers: the keys that signed chain records and committed receipts; True where one acted as an approver.
        outcome: the seal's, or None.
        acknowledged, approved, declined, ungated: how many messages (steps, for the last), by committed records.
        notes: what is worth telling, at most 64 of a code; `omitted` counts the rest.
    """

    def __init__(self, pinned: bytes | None = None) -> None:
        self.pinned = pinned
        self.opening: Envelope[Open] | None = None
        self.address = b""
        self.owner: PublicKey = b""
        self.members = Membership()
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
        self._chain = DigestTable(32)
        self._rows = array("Q")  # author << 8 | flags, one a chain record
        self._ids: dict[str, None] = {}  # a set; but a set takes up to three times the memory of a dict
        self._paths: dict[str, None] = {}
        self._limits: Limits | None = None
        self._room: str | None = None
        self._receipts = Receipts(self.members, self._flags)
        self._challenges: dict[bytes, tuple[int, bytes, int, int]] = {}
        self._challenged: dict[bytes, set[bytes]] = {}
        self._uncleared: list[tuple[int, int, int, bytes]] = []
        self._more_uncleared = 0
        self._uncleared_owner: bytes | None = None
        self._sent_at = 0

    # What a writer needs to know

    @property
    def standing(self) -> tuple[bytes, ...]:
        """The addresses of the receipts that the next chain record must commit, in order."""
        return tuple(self._receipts.standing)

    def role(self, key: PublicKey) -> str | None:
        """Return the role that `key` has now, or None."""
        return self.members.role(key)

    def has_id(self, message_id: str) -> bool:
        """Whether a message of the thread has this id."""
        return condensed(message_id) in self._ids

    def has_path(self, path: tuple[str, ...]) -> bool:
        """Whether a message or a settlement of the thread has this step path."""
        return _path(path) in self._paths

    def is_declined(self, message: bytes) -> bool:
        """Whether a recipient of a message that is not settled has declined it, committed or not."""
        pending = self._receipts.pending.get(message)
        return pending is not None and pending.declined

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
        kind = envelope.record.kind
        if self.opening is None:
            self._begin(envelope)
        elif kind not in _RECEIPTS:
            self._extend(envelope, kind, offset)
        elif self.outcome is None:
            self._receipts.receive(envelope)
        else:
            raise EnvelopeError("chain.sealed", f"a {kind} follows the seal")
        self.index += 1

    def _begin(self, envelope: Envelope[Any]) -> None:
        record = envelope.record
        if envelope.kind != "open":
            raise EnvelopeError("chain.no_open", f"the first record is of kind {envelope.kind}, not an open")
        if self.pinned not in (None, envelope.address):
            raise EnvelopeError("chain.pinned", f"the thread is another one: {address_text(envelope.address)}")
        self.members.begin(envelope.signer, record.members)
        self.opening = envelope
        self.address = envelope.address
        self._receipts.thread = envelope.address
        self._limits, self._room = record.limits, record.room
        self.owner = envelope.signer
        self.signers[envelope.signer] = False
        self._sent_at = record.sent_at
        self._push(envelope.address, self.members[envelope.signer].number, 0)

    def _extend(self, envelope: Envelope[Any], kind: str, offset: int) -> None:
        record, signer, address, _ = envelope
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
        if kind == "message":
            self._check_identity(record)
        # 2. roster
        member = self.members.check_signer(signer, _may_sign(record), kind)
        settled: tuple[Settled, ...] = record.settled or ()
        if settled and member.role not in MAY_APPEND:
            raise EnvelopeError("roster.role", f"the signer is {member.role}, who may leave, but not settle")
        if kind == "message":
            self.members.check_recipients(record, signer)
        elif kind == "roster":
            self.members.check_change(record, signer)
        if signer != self.owner:
            self._check_steps(record)
        # 3. receipts
        self._receipts.check_committed(record.receipts or ())
        # 4. settle
        done: _Done = {}
        for entry in settled:
            self._check_settled(entry, member.number, done)
        check(self, envelope, member, done)
        # The record holds: nothing below may fail.
        self._commit_receipts()
        if record.sent_at + CLOCK_TOLERANCE_MS < self._sent_at:
            self._note_time(envelope, offset)
        self._sent_at = record.sent_at
        for entry in settled:
            self._settle(entry)
        self._push(address, member.number, take(self, envelope, member, offset))
        self.signers.setdefault(signer, False)

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

    # Messages

    def _check_identity(self, record: Message) -> None:
        if condensed(record.id) in self._ids:
            raise EnvelopeError("message.id", f"the id {record.id} was used before")
        if record.room != self._room:
            raise EnvelopeError("message.room", f"the room is {record.room}, but the open's {self._room}")
        if record.reply_to is not None and not self._flags(record.reply_to) & MESSAGE:
            raise EnvelopeError("message.reply_to", f"reply_to {address_text(record.reply_to)} is no earlier message")

    def _check_steps(self, record: Any) -> None:
        step = record.step if record.kind == "message" else None
        if step is not None:
            raise EnvelopeError("step.owner", f"the step {'/'.join(step)} is another key's than the owner's")
        if record.settled is not None and any(entry.step is not None for entry in record.settled):
            raise EnvelopeError("step.owner", "a step is settled by another key than the owner's")

    def _check_message(self, envelope: Envelope[Message], member: MemberState, done: _Done) -> None:
        record = envelope.record
        intent = record.intent
        step = record.step
        if step is not None and ((path := _path(step)) in done or path in self._paths):
            raise EnvelopeError("step.repeated", f"the step {'/'.join(step)} occurred before")
        if intent == "retract":
            self._check_retraction(record, member, done)
        elif intent == "escalate":
            self._check_escalation(record, member, done)
        if self._limits is not None and envelope.signer == self.owner and intent != "escalate":
            self._check_limits(record, self._limits)

    def _check_retraction(self, record: Message, member: MemberState, done: _Done) -> None:
        assert record.reply_to is not None
        flags = self._flags(record.reply_to)
        if self._author(record.reply_to) != member.number:
            raise EnvelopeError("retract.author", "the retracted message is another's")
        if flags & SETTLED or record.reply_to in done:
            raise EnvelopeError("retract.settled", "the retracted message is settled already")
        if flags & (STEP | ESCALATION | RETRACTION | RETRACTED):
            raise EnvelopeError("retract.target", "a step's message, an escalation or a retraction is not retracted")
        target = self._receipts.pending.get(record.reply_to)
        if target and (target.declined or (target.escalation and target.escalation.declined)):
            raise EnvelopeError("retract.declined", "the retracted message was declined")

    def _check_escalation(self, record: Message, member: MemberState, done: _Done) -> None:
        assert record.reply_to is not None
        flags = self._flags(record.reply_to)
        if self._author(record.reply_to) != member.number:
            raise EnvelopeError("escalate.author", "the escalated message is another's")
        if flags & ESCALATION or not flags & NEEDS_ACK:
            raise EnvelopeError("escalate.target", "the escalated message needs no ack, or is an escalation")
        if flags & (SETTLED | RETRACTED) or record.reply_to in done:
            raise EnvelopeError("escalate.late", "the escalated message is settled or retracted")
        target = self._receipts.pending[record.reply_to]
        if target.escalation is not None:
            raise EnvelopeError("escalate.repeated", "the message was escalated before")
        for key in record.to or ():
            approver = self.members[key]
            if approver.role != "approver" or approver.since >= target.row:
                raise EnvelopeError("escalate.approver", f"{did_key(key)} was no approver before the message was sent")
            if key in target.recipients:
                raise EnvelopeError("escalate.recipient", f"{did_key(key)} is a recipient of the escalated message")

    def _check_limits(self, record: Message, limits: Limits) -> None:
        if limits.bytes is not None and self.used_bytes + record.payload_bytes > limits.bytes:
            raise EnvelopeError("limit.bytes", f"the payload brings the owner to more than {limits.bytes} bytes")
        if limits.messages is not None and self.used_messages + 1 > limits.messages:
            raise EnvelopeError("limit.messages", f"the message is one more than the owner's {limits.messages}")

    def _take_message(self, envelope: Envelope[Message], member: MemberState, offset: int) -> int:
        record, signer, address, _ = envelope
        intent = record.intent
        flags = MESSAGE | _INTENT_FLAGS.get(intent, 0)
        if record.needs_ack:
            flags |= NEEDS_ACK
        self._ids[condensed(record.id)] = None
        if record.step is not None:
            flags |= STEP
            self._paths[_path(record.step)] = None
        pending = None
        if record.to is not None:
            flags |= ADDRESSED
            pending = Pending(address, self.seq, member.number, flags, self.index, offset, record.to)
            self._receipts.pending[address] = pending
        if record.reply_to is not None:
            self._take_reply(envelope, member, offset, pending)
        if signer == self.owner and intent != "escalate":
            self.used_bytes += record.payload_bytes
            self.used_messages += 1
        self.messages += 1
        return flags

    def _take_reply(
        self, envelope: Envelope[Message], member: MemberState, offset: int, pending: Pending | None
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
            pending.of = self._receipts.pending[target]
            pending.of.escalation = pending
        elif record.intent == "retract":
            self._rows[self._chain.find(target)] |= RETRACTED
            self._receipts.forget(target)
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

    def _check_nothing(self, envelope: Envelope[Any], member: MemberState, done: _Done) -> None:
        """A roster record's own effect is checked with the roster, a settle has none."""

    def _take_nothing(self, envelope: Envelope[Any], member: MemberState, offset: int) -> int:
        return 0

    def _take_roster(self, envelope: Envelope[Roster], member: MemberState, offset: int) -> int:
        self.members.change(envelope.record, self.seq)
        return 0

    # Receipts

    def _commit_receipts(self) -> None:
        for signer, word, as_approver, pending in self._receipts.standing.values():
            if as_approver or signer not in self.signers:
                self.signers[signer] = as_approver
            if word == "confirm":
                if pending.outstanding == 0 and pending.of is None and not pending.counted_acknowledged:
                    pending.counted_acknowledged = True
                    self.acknowledged += 1
            elif word == "decline":
                target = pending.of or pending
                if not target.counted_declined:
                    target.counted_declined = True
                    self.declined += 1
                who = "approver" if pending.of else "recipient"
                self._note_on(target, "message.declined", f"{who} {did_key(signer)} declined the message")
        self._receipts.standing.clear()

    # Settling and sealing

    def _check_settled(self, entry: Settled, author: int, done: _Done) -> None:
        message, outcome = entry.message, entry.outcome
        if message is None:
            assert entry.step is not None
            path = _path(entry.step)
            if path in done or path in self._paths:
                raise EnvelopeError("step.repeated", f"the step {'/'.join(entry.step)} occurred before")
            done[path] = outcome
            return
        pending = self._receipts.pending.get(message)
        flags = pending.flags if pending else self._flags(message)
        if not flags & MESSAGE:
            raise EnvelopeError("settle.unknown", f"{address_text(message)} is no message of the thread")
        if (pending.author if pending else self._author(message)) != author:
            raise EnvelopeError("settle.author", f"the message {address_text(message)} is another's")
        if flags & SETTLED or message in done:
            raise EnvelopeError("settle.repeated", f"the message {address_text(message)} is settled already")
        if flags & RETRACTED and outcome != "failed":
            raise EnvelopeError("settle.retracted", f"{address_text(message)} was retracted")
        if outcome == "succeeded" and pending and flags & NEEDS_ACK and pending.outstanding:
            raise EnvelopeError(
                "settle.unacknowledged",
                f"{address_text(message)} lacks a confirmed ack of a recipient",
            )
        if outcome == "approved":
            escalation = pending.escalation if pending else None
            if (
                escalation is None
                or entry.by != escalation.address
                or escalation.outstanding
                or escalation.failed
                or done.get(escalation.address) == "failed"
            ):
                raise EnvelopeError("settle.approved", f"{address_text(message)} was not approved throughout")
        done[message] = outcome

    def _settle(self, entry: Settled) -> None:
        message, outcome = entry.message, entry.outcome
        if message is None:
            assert entry.step is not None
            self._paths[_path(entry.step)] = None
            self.ungated += 1
            return
        pending = self._receipts.forget(message)
        if pending is None:
            self._rows[self._chain.find(message)] |= SETTLED
            return
        self._rows[pending.row] |= SETTLED
        if outcome == "approved":
            assert pending.escalation is not None
            self.approved += 1
            approvers = ", ".join(did_key(key) for key in pending.escalation.recipients)
            text = f"approved by {approvers}; not acknowledged by {', '.join(map(did_key, pending.silent)) or 'nobody'}"
            self._note_on(pending, "message.approved", text)
        elif outcome == "failed":
            pending.failed = True
        if pending.flags & NEEDS_ACK and pending.of is None and not pending.cleared:
            if self._is_owner(pending.author):
                self._uncleared_owner = self._uncleared_owner or message
            else:
                self._leave_open(pending)

    def _is_owner(self, number: int) -> bool:
        return self.members[self.owner].number == number

    def _leave_open(self, pending: Pending) -> None:
        if len(self._uncleared) < MAX_NOTES:
            self._uncleared.append((pending.author, pending.index, pending.offset, pending.address))
        else:
            self._more_uncleared += 1

    def _check_seal(self, envelope: Envelope[Seal], member: MemberState, done: _Done) -> None:
        if envelope.record.outcome != "completed":
            return
        owner = self.members[self.owner].number
        bad = self._uncleared_owner
        for address, pending in self._receipts.pending.items():
            if pending.author == owner and pending.flags & NEEDS_ACK and pending.of is None:
                if address not in done or not pending.cleared:
                    bad = bad or address
        if bad is not None:
            raise EnvelopeError(
                "seal.unacknowledged",
                f"completed, but the owner's message {address_text(bad)} is not acknowledged, approved or settled",
            )

    def _take_seal(self, envelope: Envelope[Seal], member: MemberState, offset: int) -> int:
        self.outcome = envelope.record.outcome
        if self.outcome == "completed":
            for pending in self._receipts.pending.values():
                if pending.flags & NEEDS_ACK and pending.of is None and not self._is_owner(pending.author):
                    self._leave_open(pending)
            names = {state.number: key for key, state in self.members.items()}
            for author, index, place, address in self._uncleared:
                text = f"the request of {did_key(names[author])} was not acknowledged and settled"
                self._note("seal.open_request", index, place, address, text)
            self.omitted += self._more_uncleared
            for address, (author, _, index, place) in self._challenges.items():
                text = f"{did_key(names[author])} did not answer the challenge"
                self._note("seal.open_challenge", index, place, address, text)
        return 0

    # Bookkeeping

    def _flags(self, address: bytes) -> int:
        row = self._chain.find(address)
        return self._rows[row] & 0xFF if row >= 0 else 0

    def _author(self, address: bytes) -> int:
        return self._rows[self._chain.find(address)] >> 8

    def _push(self, address: bytes, author: int, flags: int) -> None:
        self._chain.add(address)
        self._rows.append(author << 8 | flags)
        self.tip = address
        self.seq += 1

    def _note_time(self, envelope: Envelope[Chained], offset: int) -> None:
        behind = self._sent_at - envelope.record.sent_at
        text = f"sent_at is {behind} ms before the record before it; order comes from the chain"
        self._note("time.backwards", self.index, offset, envelope.address, text)

    def _note_on(self, message: Pending, code: str, text: str) -> None:
        self._note(code, message.index, message.offset, message.address, text)

    def _note(self, code: str, index: int, offset: int, address: bytes, text: str) -> None:
        self._notes_of[code] = self._notes_of.get(code, 0) + 1
        if self._notes_of[code] <= MAX_NOTES:
            self.notes.append(Note(code, index, offset, address, text))
        else:
            self.omitted += 1


def _path(step: tuple[str, ...]) -> str:
    """Return what is remembered of a step's path."""
    return condensed("/".join(step))


def _may_sign(record: Chained) -> frozenset[str]:
    if record.kind == "message" or record.kind == "settle":
        return MAY_APPEND
    return ANYBODY if isinstance(record, Roster) and record.change == "leave" else MODERATOR


_Check = Callable[[Thread, Envelope[Any], MemberState, _Done], None]
_Take = Callable[[Thread, Envelope[Any], MemberState, int], int]

_RECEIPTS: Final = frozenset(("ack", "ruling"))
_EFFECTS: Final[Mapping[str, tuple[_Check, _Take]]] = {
    "message": (Thread._check_message, Thread._take_message),
    "roster": (Thread._check_nothing, Thread._take_roster),
    "settle": (Thread._check_nothing, Thread._take_nothing),
    "seal": (Thread._check_seal, Thread._take_seal),
}
