"""What waits for a person in a store, and the person's answer: one signed ack of one escalation (rules W1 to W5).

A question is an escalation, with the exact message that it is about. An answer is a receipt of that escalation, which
replies to that one message: it fits no other. What follows from the answers is the run's, when it is resumed (D10).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from envelope import (
    Ack,
    Envelope,
    EnvelopeError,
    Identity,
    Message,
    PublicKey,
    Ruling,
    Thread,
    address_text,
    did_key,
    file_address,
    sign_record,
)
from envelope.membership import MAY_ACK
from envelope.records import Blob
from flow.clock import Clock, SystemClock
from flow.errors import FlowError, StoreError
from flow.store import ThreadStore, sent
from flow.store.refusals import shown
from flow.stored import Stored, read_verified

Word = Literal["accept", "decline"]

_PREFIX: Final = re.compile(r"(?:b3:)?([0-9a-f]{8,64})")


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody who was to acknowledge, and what they said last.

    Attributes:
        key: theirs.
        name: what the thread calls them.
        role: what they are in the thread now, or None.
        ack: their last one, or None.
        ruling: what its author said to that, or None.
    """

    key: PublicKey
    name: str
    role: str | None
    ack: Envelope[Ack] | None
    ruling: Envelope[Ruling] | None

    @property
    def owes(self) -> bool:
        """Whether they have not answered, or were corrected since."""
        return self.ack is None or (self.ruling is not None and self.ruling.record.ruling == "correct")

    @property
    def answer(self) -> Word | None:
        """What they said, if they owe nothing."""
        return None if self.ack is None or self.owes else self.ack.record.answer


@dataclass(frozen=True, slots=True)
class Question:
    """What approvers were asked.

    Attributes:
        name: the thread's in the store; thread: its address.
        message: what they are to decide about; escalation: what asks them to.
        recipients: of the message; approvers: of the escalation.
        author: what the thread calls the author of both.
        over: why no answer is taken any more, or None.
        envelopes: the addresses of the thread's records.
    """

    name: str
    thread: bytes
    message: Envelope[Message]
    escalation: Envelope[Message]
    recipients: tuple[Asked, ...]
    approvers: tuple[Asked, ...]
    author: str
    over: str | None
    envelopes: frozenset[bytes]

    @property
    def declined(self) -> tuple[Asked, ...]:
        """Who said no: a recipient, or an approver; the run then ends as rejected."""
        return tuple(one for one in (*self.recipients, *self.approvers) if one.answer == "decline")

    @property
    def missing(self) -> tuple[Asked, ...]:
        """The approvers without whom nothing is decided."""
        return () if self.declined else tuple(one for one in self.approvers if one.owes)


class Evidence(NamedTuple):
    """An address that a message names, and where bytes with that address are.

    Attributes:
        what: `payload`, `context` or `evidence`.
        address: 32 bytes.
        place: a file that was given; `""` for a record of the thread itself; None, nowhere.
    """

    what: str
    address: bytes
    place: Path | Literal[""] | None


async def find(store: ThreadStore, clock: Clock | None = None) -> tuple[list[Question], list[str]]:
    """Return every question of a store, those that are over included, and what is wrong with threads that have none."""
    questions: list[Question] = []
    damaged = []
    for name in await store.names():
        try:
            questions += questions_of(await read_verified(store, name, (clock or SystemClock()).now_ms()))
        except StoreError as error:
            damaged.append(str(error))
    return questions, damaged


def questions_of(stored: Stored) -> list[Question]:
    """Return the questions of a verified thread, in order."""
    reading = _Reading(stored.thread)
    for envelope in stored.envelopes:
        reading.take(envelope)
    return [reading.question(stored.name, escalation) for escalation in reading.escalations]


def match(questions: Sequence[Question], text: str) -> Question:
    """Return the one question whose message or escalation has an address (rule W4).

    Args:
        questions: of a store.
        text: an address, or at least its first 8 hex digits.

    Raises:
        FlowError: `approval.address`, it is none; `approval.unknown`, none has it; `approval.ambiguous`, several have.
    """
    if (found := _PREFIX.fullmatch(text)) is None:
        raise FlowError(
            f"{text[:80]!r} is no address: give b3: and 64 hex digits, or at least the first 8 of them",
            code="approval.address",
        )
    digits = found[1]
    matching = [
        one
        for one in questions
        if any(envelope.address.hex().startswith(digits) for envelope in (one.message, one.escalation))
    ]
    if not matching:
        raise FlowError(
            f"no message that was escalated has the address {text}: `flow approvals` lists what waits",
            code="approval.unknown",
        )
    if len(matching) > 1:
        places = ", ".join(f"{address_text(one.message.address)} in {shown(one.name)}" for one in matching[:4])
        raise FlowError(
            f"{text} fits {len(matching)} messages: {places}: give more of the address of one, or a store that has "
            "the thread once",
            code="approval.ambiguous",
        )
    return matching[0]


def check(question: Question, key: PublicKey) -> Asked:
    """Return the approver that a key is, if an answer of it is taken (rule W2).

    Raises:
        FlowError: `approval.over`, `approval.stranger`, `approval.left`, `approval.answered`.
    """
    if question.over is not None:
        raise FlowError(f"nothing waits for an answer there: {question.over}", code="approval.over")
    who = next((one for one in question.approvers if one.key == key), None)
    if who is None:
        names = ", ".join(f"{one.name} ({did_key(one.key)})" for one in question.approvers)
        raise FlowError(
            f"{did_key(key)} was not asked: this is for {names} to answer, each with their own key",
            code="approval.stranger",
        )
    if who.role not in MAY_ACK:
        raise FlowError(
            f"{who.name} can no longer answer in the thread {shown(question.name)}: it is {who.role or 'no member'} "
            "there now; resume the run, which then ends",
            code="approval.left",
        )
    if not who.owes:
        assert who.ack is not None
        raise FlowError(
            f"{who.name} answered already: {who.ack.record.answer}; an answer is final: resume the run",
            code="approval.answered",
        )
    return who


async def answer(
    store: ThreadStore,
    name: str,
    escalation: bytes,
    identity: Identity,
    word: Word,
    text: str,
    clock: Clock | None = None,
    seen: Question | None = None,
) -> Question:
    """Sign one ack of an escalation, and append it; nothing else (rules W2 and W3).

    Args:
        store: that has the thread.
        name: of the thread in it.
        escalation: the address of what is answered.
        identity: the approver's.
        word: accept or decline.
        text: what stands in the ack as the approver's own words.
        seen: the question as the approver saw it; no correction that came later is answered.

    Returns:
        The question as it stands with the answer.

    Raises:
        FlowError: as of `check`; `approval.unknown`; `approval.corrected`, the approver was corrected since.
        StoreError: the thread does not verify, or the store fails.
        EnvelopeError: the text is none that an ack may hold.
    """
    clock = clock or SystemClock()
    ack: Envelope[Ack] | None = None
    while True:
        stored = await read_verified(store, name, clock.now_ms())
        question = _asked_by(stored, escalation)
        who = check(question, identity.public_key)
        after = who.ruling.address if who.ruling else None
        if seen is not None and who.ruling != check(seen, identity.public_key).ruling:
            raise FlowError(
                f"{who.name} was corrected since you were shown what waits, so nothing was signed: look at it again",
                code="approval.corrected",
            )
        if ack is None or ack.record.after != after:
            ack = sign_record(
                Ack,
                identity,
                thread=question.thread,
                message=escalation,
                answer=word,
                restatement=text,
                after=after,
                sent_at=clock.now_ms(),
            )
        try:
            await sent(partial(store.commit, name, stored.head, [ack.raw]))
        except StoreError as error:
            if error.code != "store.conflict":
                raise
        else:
            return _asked_by(await read_verified(store, name, clock.now_ms()), escalation)


def files_by_address(paths: Iterable[Path]) -> Mapping[bytes, Path]:
    """Return the files among `paths`, and below the folders among them, by the BLAKE3 address of their bytes (rule W5).

    Raises:
        FlowError: `approval.evidence`, there is no such file or folder, or it cannot be read.
    """
    found: dict[bytes, Path] = {}
    for path in paths:
        if not path.exists():
            raise FlowError(f"{path}: there is no such file or folder to look in", code="approval.evidence")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                try:
                    found.setdefault(file_address(file), file)
                except EnvelopeError as error:
                    raise FlowError(
                        f"{error.text}: give --evidence what you may read", code="approval.evidence"
                    ) from error
    return found


def evidence(
    question: Question, files: Mapping[bytes, Path], message: Envelope[Message] | None = None
) -> list[Evidence]:
    """Return each address that a message rests on, the question's if none is given, and where its bytes are."""
    record = (message or question.message).record
    named = [("payload", record.payload.address)] if isinstance(record.payload, Blob) else []
    named += [("context", address) for address in record.context or ()]
    named += [("evidence", address) for address in (record.provenance.evidence if record.provenance else None) or ()]
    return [
        Evidence(what, address, "" if address in question.envelopes else files.get(address)) for what, address in named
    ]


class _Reading:
    """A verified thread, read for what was asked in it."""

    def __init__(self, thread: Thread) -> None:
        self.escalations: list[Envelope[Message]] = []
        self._thread = thread
        self._names: dict[PublicKey, str] = {}
        self._addresses: set[bytes] = set()
        self._messages: dict[bytes, Envelope[Message]] = {}
        self._became: dict[bytes, str] = {}
        self._acks: dict[tuple[bytes, PublicKey], Envelope[Ack]] = {}
        self._rulings: dict[bytes, Envelope[Ruling]] = {}

    def take(self, envelope: Envelope[Any]) -> None:
        record = envelope.record
        self._addresses.add(envelope.address)
        match record.kind:
            case "ack":
                self._acks[record.message, envelope.signer] = envelope
                return
            case "ruling":
                self._rulings[record.ack] = envelope
                return
            case "open":
                self._names.update((member.key, member.name) for member in record.members)
                return
            case "roster" if record.name is not None:
                self._names[record.key] = record.name
            case "message":
                self._messages[envelope.address] = envelope
                if record.intent == "escalate":
                    self.escalations.append(envelope)
                elif record.intent == "retract":
                    self._became[record.reply_to] = "retracted"
        self._became.update((one.message, f"settled {one.outcome}") for one in record.settled or () if one.message)

    def question(self, name: str, escalation: Envelope[Message]) -> Question:
        assert escalation.record.reply_to is not None
        message = self._messages[escalation.record.reply_to]
        over = None
        if self._thread.outcome is not None:
            over = f"the thread {shown(name)} is sealed {self._thread.outcome}"
        elif (became := self._became.get(escalation.address)) is not None:
            over = f"the escalation {escalation.record.id} was {became}"
        elif (became := self._became.get(message.address)) is not None:
            over = f"the message {message.record.id} was {became}"
        return Question(
            name,
            self._thread.address,
            message,
            escalation,
            self._all_asked(message),
            self._all_asked(escalation),
            self._names[message.signer],
            over,
            frozenset(self._addresses),
        )

    def _all_asked(self, message: Envelope[Message]) -> tuple[Asked, ...]:
        found = []
        for key in message.record.to or ():
            ack = self._acks.get((message.address, key))
            ruling = self._rulings.get(ack.address) if ack else None
            found.append(Asked(key, self._names[key], self._thread.role(key), ack, ruling))
        return tuple(found)


def _asked_by(stored: Stored, escalation: bytes) -> Question:
    for question in questions_of(stored):
        if question.escalation.address == escalation:
            return question
    raise FlowError(
        f"the thread {shown(stored.name)} has no escalation {address_text(escalation)}: `flow approvals` lists what "
        "waits",
        code="approval.unknown",
    )
