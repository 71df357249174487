"""One message's acknowledgements: everybody is asked at once, every valid answer is committed as it comes, and nothing
but a valid answer ends the wait (rules R12 to R20).

The wait ends in an `Ending` that says what came; what follows from it is the runner's.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from envelope import Ack, Envelope, EnvelopeError, Message, Ruling, did_key, open_envelope
from flow.bus import MESSAGE_ACKED, Bus, Event
from flow.clock import Clock
from flow.errors import Escalated, FlowError, NoRecipient, StoreError
from flow.journal import Journal
from flow.peers import Confirm, Correct, Delivery, Judge, Peer

_log = logging.getLogger(__name__)

_PAUSES: Final = (0.1, 0.5, 2.0, 10.0, 30.0)
_MAY_ACK: Final = frozenset(("moderator", "member", "approver"))


@dataclass(slots=True)
class Ending:
    """What came of asking.

    Attributes:
        acks: the last valid ack of each recipient that gave one, by name.
        confirmed: the names of those whose ack is accepted and confirmed.
        rejection: why the step is rejected: a recipient's words, or the last correction; None if it is not.
        errors: what peers and the judge raised, and a recipient's inability to answer, in the order it happened.
        escalations: what was escalated, by recipient.
        silent: the names of those who did not answer in time.
    """

    acks: dict[str, Envelope[Ack]] = field(default_factory=dict)
    confirmed: list[str] = field(default_factory=list)
    rejection: str | None = None
    errors: list[Exception] = field(default_factory=list)
    escalations: dict[str, Escalated] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Gate:
    """What asking needs: the run's journal, judge, bus and clock, and how often a recipient may be corrected."""

    journal: Journal
    judge: Judge
    bus: Bus
    clock: Clock
    corrections: int
    timeout: float | None
    state: Callable[[bool], bytes | None]
    """Gives the entry of private state for a commit; told whether the last confirmation goes with it."""

    async def ask(self, message: Envelope[Message], peers: Mapping[str, Peer]) -> Ending:
        """Deliver `message` to all of `peers`, in as many rounds as it takes, and return what came of it."""
        asking = _Asking(self, message, len(peers))
        ending = asking.ending
        ending.errors += [_cannot(name, peer) for name, peer in peers.items() if not self.able(peer)]
        if ending.errors:
            return ending
        with self.clock.move_on_after(self.timeout) as scope:
            async with anyio.create_task_group() as group:
                for name, peer in peers.items():
                    group.start_soon(asking.one, name, peer, group)
        try:
            await asking.commit_late()
            if scope.cancelled_caught:
                ending.silent += asking.waiting
                await self.journal.refresh()
                ending.errors += [_cannot(name, peers[name]) for name in ending.silent if not self.able(peers[name])]
        except Exception as error:
            ending.errors.append(error)
        return ending

    def able(self, peer: Peer) -> bool:
        """Whether a peer's key may acknowledge, as far as the journal has read."""
        return self.journal.thread.role(peer.key) in _MAY_ACK


class _Asking:
    """One call of `Gate.ask`."""

    def __init__(self, gate: Gate, message: Envelope[Message], recipients: int) -> None:
        self.gate = gate
        self.message = message
        self.ending = Ending()
        self.waiting: list[str] = []
        self._recipients = recipients
        self._committing = anyio.Lock()
        self._come: dict[str, Envelope[Ack]] = {}
        self._deadline: int | None = None
        if gate.timeout is not None:
            self._deadline = gate.clock.now_ms() + round(gate.timeout * 1000)

    async def one(self, name: str, peer: Peer, group: TaskGroup) -> None:
        """Ask one recipient until it is confirmed, or the step ends; never raises anything but a cancellation."""
        self.waiting.append(name)
        try:
            if await self._rounds(name, peer):
                group.cancel_scope.cancel()
        except Escalated as escalated:
            self.ending.escalations[name] = escalated
        except Exception as error:
            refused = isinstance(error, StoreError) and error.code == "store.refused"
            self.ending.errors.append(_cannot(name, peer) if refused and not self.gate.able(peer) else error)
            group.cancel_scope.cancel()
        self.waiting.remove(name)

    async def _rounds(self, name: str, peer: Peer) -> bool:
        """Return whether the step is rejected."""
        correction: Envelope[Ruling] | None = None
        for left in range(self.gate.corrections, -1, -1):
            ack = await self._valid_ack(name, peer, correction)
            self._come[name] = ack
            if ack.record.answer == "decline":
                await self._commit(name, ack, None)
                self.ending.rejection = f"{name} declined: {_text(ack.record.restatement)}"
                return True
            ruling = await self._ruling(ack)
            correction = await self._commit(name, ack, ruling)
            if isinstance(ruling, Confirm):
                return False
            if not left:
                self.ending.rejection = f"{name} was corrected and may not answer again: {ruling.text}"
        return True

    async def _valid_ack(self, name: str, peer: Peer, correction: Envelope[Ruling] | None) -> Envelope[Ack]:
        delivery = Delivery(self.message, self.gate.journal.records, correction, self._deadline)
        pauses = iter(_PAUSES)
        pause = 0.0
        while True:
            answer = await peer.ack(delivery)
            try:
                return self._checked(answer, peer, correction)
            except EnvelopeError as error:
                why = str(error)
            except _Dropped as error:
                why = str(error)
            _log.warning("an answer of %s to %r is dropped: %s", name, self.message, why)
            pause = next(pauses, pause)
            await self.gate.clock.sleep(pause)

    def _checked(self, answer: object, peer: Peer, correction: Envelope[Ruling] | None) -> Envelope[Ack]:
        if not isinstance(answer, Envelope):
            raise _Dropped(f"it is a {type(answer).__name__}, no envelope")
        ack = open_envelope(answer.raw)
        if ack.kind != "ack" or ack.signer != peer.key:
            raise _Dropped(f"it is a {ack.kind} of {did_key(ack.signer)}")
        record = ack.record
        if record.thread != self.gate.journal.thread.address or record.message != self.message.address:
            raise _Dropped("it is of another message")
        if record.after != (correction.address if correction else None):
            raise _Dropped("it answers another correction")
        return ack

    async def _ruling(self, ack: Envelope[Ack]) -> Confirm | Correct:
        ruling = self.gate.judge(self.message.record, ack.record)
        if isawaitable(ruling):
            ruling = await ruling
        if not isinstance(ruling, Confirm | Correct):
            raise FlowError(f"the judge said {ruling!r}: return Confirm() or Correct(text)", code="run.judge")
        return ruling

    async def _commit(self, name: str, ack: Envelope[Ack], ruling: Confirm | Correct | None) -> Envelope[Ruling] | None:
        """Commit (b): an ack, its ruling, and with the last confirmation the step's state."""
        with anyio.CancelScope(shield=True):
            async with self._committing:
                signed = await self._durably(name, ack, ruling)
        data: dict[str, Any] = {"recipient": name, "message": self.message, "ack": ack, "ruling": signed}
        await self.gate.bus.emit(Event(MESSAGE_ACKED, data, ack.address))
        return signed

    async def _durably(
        self, name: str, ack: Envelope[Ack], ruling: Confirm | Correct | None
    ) -> Envelope[Ruling] | None:
        gate = self.gate
        signed = None
        if ruling is not None:
            text = ruling.text if isinstance(ruling, Correct) else None
            word = "confirm" if text is None else "correct"
            signed = gate.journal.sign(Ruling, ack=ack.address, ruling=word, correction=text)
        last = isinstance(ruling, Confirm) and len(self.ending.confirmed) + 1 == self._recipients
        await gate.journal.receive([ack, signed] if signed else [ack], gate.state(last))
        del self._come[name]
        self.ending.acks[name] = ack
        if isinstance(ruling, Confirm):
            self.ending.confirmed.append(name)
        return signed

    async def commit_late(self) -> None:
        """Commit the acks that had come when the step ended before they were ruled on (rule R19)."""
        for name, ack in list(self._come.items()):
            await self._commit(name, ack, None)


class _Dropped(Exception):
    """An answer that is no valid ack."""


def _cannot(name: str, peer: Peer) -> NoRecipient:
    return NoRecipient(f"{name} ({did_key(peer.key)}) still owes an ack and can no longer give one")


def _text(content: object) -> str:
    return content if isinstance(content, str) else "content outside the thread"
