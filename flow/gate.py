"""One message's acknowledgements: everybody is asked at once, every valid answer is committed as it comes, and nothing
but a valid answer ends the wait (rules R12 to R20).

The wait ends in an `Ending` that says what came; what follows from it is the runner's. Where one recipient ends the
step, the others stop waiting, and nothing else of theirs is cut short: what has come is committed, and told.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from itertools import chain, repeat
from typing import Final, TypeVar

import anyio

from envelope import Ack, Envelope, EnvelopeError, Message, Ruling, did_key, open_envelope
from flow.bus import MESSAGE_ACKED, Bus, Event
from flow.clock import Clock
from flow.errors import Escalated, FlowError, NoRecipient, StoreError
from flow.journal import Journal
from flow.peers import Confirm, Correct, Delivery, Judge, Peer

_log = logging.getLogger(__name__)

_PAUSES: Final = (0.1, 0.5, 2.0, 10.0, 30.0)
_MAY_ACK: Final = frozenset(("moderator", "member", "approver"))

T = TypeVar("T")


@dataclass(slots=True)
class Ending:
    """What came of asking.

    Attributes:
        acks: the last valid ack of each recipient that gave one, by name.
        confirmed: the names of those whose ack is accepted and confirmed.
        rejections: why the step is rejected, the first one first: a recipient's words, or the last correction.
        errors: what peers, the judge or a commit raised, in the order it happened.
        unable: for each recipient that owes an ack and can no longer give one.
        escalations: what was escalated, by recipient.
        silent: the names of those who did not answer in time.
    """

    acks: dict[str, Envelope[Ack]] = field(default_factory=dict)
    confirmed: list[str] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    unable: list[NoRecipient] = field(default_factory=list)
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
        asking = _Asking(self, message, peers)
        ending = asking.ending
        async with anyio.create_task_group() as group:
            (name, peer), *others = peers.items()
            for other in others:
                group.start_soon(asking.one, *other)
            await asking.one(name, peer)
        if asking.stop is not None:
            raise asking.stop
        if ending.silent:
            try:
                await self.journal.refresh()
                ending.unable += self.unable({name: peers[name] for name in ending.silent})
            except Exception as error:
                ending.errors.append(error)
        return ending

    def unable(self, peers: Mapping[str, Peer]) -> list[NoRecipient]:
        """Return an error for each peer whose key may not acknowledge, as far as the journal has read."""
        roles = {name: self.journal.thread.role(peer.key) for name, peer in peers.items()}
        return [
            NoRecipient(f"{name} owes an ack and can no longer give one: it is {role or 'no member'} now")
            for name, role in roles.items()
            if role not in _MAY_ACK
        ]


class _Asking:
    """One call of `Gate.ask`."""

    def __init__(self, gate: Gate, message: Envelope[Message], peers: Mapping[str, Peer]) -> None:
        self.gate = gate
        self.message = message
        self.ending = Ending()
        self.stop: BaseException | None = None
        self._peers = peers
        self._committing = anyio.Lock(fast_acquire=True)
        self._waits: set[anyio.CancelScope] = set()
        self._over = False
        self._until: float | None = None
        self._deadline: int | None = None
        if gate.timeout is not None:
            self._until = gate.clock.monotonic() + gate.timeout
            self._deadline = gate.clock.now_ms() + round(gate.timeout * 1000)

    async def one(self, name: str, peer: Peer) -> None:
        """Ask one recipient until it is confirmed, or the step ends; raises nothing but a cancellation."""
        try:
            await self._rounds(name, peer)
        except _Over:
            if not self._over:
                self.ending.silent.append(name)
        except Escalated as escalated:
            self.ending.escalations[name] = escalated
        except Exception as error:
            refused = isinstance(error, StoreError) and error.code == "store.refused"
            unable = self.gate.unable({name: peer}) if refused else []
            self.ending.unable += unable
            self.ending.errors += [] if unable else [error]
            self._end()
        except BaseException as stop:  # a task group would wrap it, or take a stray cancellation for its own
            self.stop = self.stop or stop
            self._end()
            if isinstance(stop, anyio.get_cancelled_exc_class()):
                raise

    async def _rounds(self, name: str, peer: Peer) -> None:
        correction: Envelope[Ruling] | None = None
        for left in range(self.gate.corrections, -1, -1):
            ack = await self._valid_ack(name, peer, correction)
            if ack.record.answer == "decline":
                await self._commit(name, ack, None)
                self._reject(f"{name} declined: {_text(ack.record.restatement)}")
                return
            try:
                correction = await self._ruling(ack)
            except Exception:
                await self._commit(name, ack, None)
                raise
            await self._commit(name, ack, correction)
            if correction.record.ruling == "confirm":
                return
            if not left:
                self._reject(f"{name} was corrected and may not answer again: {_text(correction.record.correction)}")

    def _reject(self, why: str) -> None:
        self.ending.rejections.append(why)
        self._end()

    def _end(self) -> None:
        self._over = True
        for scope in self._waits:
            scope.cancel()

    async def _unless_over(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for a peer, for the judge, or for a pause to end, but no longer than the step goes on."""
        left = None if self._until is None else self._until - self.gate.clock.monotonic()
        if self._over or (left is not None and left <= 0):
            raise _Over
        with self.gate.clock.move_on_after(left) as scope:
            self._waits.add(scope)
            try:
                return await work()
            finally:
                self._waits.remove(scope)
        raise _Over

    async def _valid_ack(self, name: str, peer: Peer, correction: Envelope[Ruling] | None) -> Envelope[Ack]:
        delivery = Delivery(self.message, self.gate.journal.records, correction, self._deadline)
        pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
        while True:
            answer = await self._unless_over(lambda: peer.ack(delivery))
            try:
                return self._checked(answer, peer, correction)
            except EnvelopeError as error:
                why = str(error)
            except _Dropped as error:
                why = str(error)
            _log.warning("an answer of %s to %r is dropped: %s", name, self.message, why)
            await self._unless_over(partial(self.gate.clock.sleep, next(pauses)))

    def _checked(self, answer: object, peer: Peer, correction: Envelope[Ruling] | None) -> Envelope[Ack]:
        if type(answer) is not Envelope or type(answer.raw) is not bytes:
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

    async def _ruling(self, ack: Envelope[Ack]) -> Envelope[Ruling]:
        said = await self._unless_over(lambda: self._judged(ack))
        if not isinstance(said, Confirm | Correct):
            raise FlowError(f"the judge said {said!r}: return Confirm() or Correct(text)", code="run.judge")
        fields = {"ruling": "correct", "correction": said.text} if isinstance(said, Correct) else {"ruling": "confirm"}
        return self.gate.journal.sign(Ruling, ack=ack.address, **fields)

    async def _judged(self, ack: Envelope[Ack]) -> object:
        said = self.gate.judge(self.message.record, ack.record)
        return await said if isawaitable(said) else said

    async def _commit(self, name: str, ack: Envelope[Ack], ruling: Envelope[Ruling] | None) -> None:
        """Commit (b): an ack, its ruling, and with the last confirmation the step's state; then tell of it."""
        gate, ending = self.gate, self.ending
        confirms = ruling is not None and ruling.record.ruling == "confirm"
        async with self._committing:
            last = confirms and len(ending.confirmed) + 1 == len(self._peers)
            await gate.journal.receive([ack, ruling] if ruling else [ack], gate.state(last))
            ending.acks[name] = ack
            if confirms:
                ending.confirmed.append(name)
            owing = {other: peer for other, peer in self._peers.items() if other not in ending.confirmed}
            if not ending.unable and (unable := gate.unable(owing)):
                ending.unable += unable
                self._end()
        data = {"thread": gate.journal.name, "recipient": name, "message": self.message, "ack": ack, "ruling": ruling}
        await gate.bus.emit(Event(MESSAGE_ACKED, data, ack.address))


class _Over(Exception):
    """The step has ended, or its time is up, before what was waited for."""


class _Dropped(Exception):
    """An answer that is no valid ack."""


def _text(content: object) -> str:
    return content if isinstance(content, str) else "content outside the thread"
