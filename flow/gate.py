"""Acknowledgements: everybody is asked at once, every valid answer is committed as it comes, and nothing but a valid
answer ends the wait (rules R12 to R20, R56, D5, D10).

Several messages are asked for together where steps form a panel. The wait ends in an `Ending` for each, which says what
came; what follows from it is the runner's. Where one recipient ends the step, the others stop waiting, and nothing else
of theirs is cut short: what has come is committed, and told.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from envelope import Ack, Envelope, EnvelopeError, Message, PublicKey, Ruling, did_key, open_envelope
from flow.bus import ACK_DUE, MESSAGE_ACKED, Bus, Event
from flow.clock import Clock
from flow.errors import Escalated, FlowError, NoRecipient, StoreError
from flow.journal import Journal
from flow.peers import Confirm, Correct, Delivery, Judge, Peer
from flow.progress import Answer, is_confirmed

_log = logging.getLogger(__name__)

_PAUSES: Final = (0.1, 0.5, 2.0, 10.0, 30.0)
_REMINDERS: Final = (0.5, 0.9)
_MAY_ACK: Final = frozenset(("moderator", "member", "approver"))

T = TypeVar("T")


class Ask(NamedTuple):
    """A message whose recipients are to acknowledge it.

    Attributes:
        message: durable in the thread.
        peers: its recipients, by name.
        corrections: how often each may be corrected.
        timeout: seconds for all rounds together, or None.
        answers: what the recipients answered before this run went on.
        escalation: the message that handed it to the approvers; then they are waited for, and nobody is asked.
        approvals: what the approvers answered.
        approvers: their keys, by name.
    """

    message: Envelope[Message]
    peers: Mapping[str, Peer]
    corrections: int
    timeout: float | None
    answers: Mapping[PublicKey, Sequence[Answer]]
    escalation: Envelope[Message] | None
    approvals: Mapping[PublicKey, Sequence[Answer]]
    approvers: Mapping[str, PublicKey]

    @property
    def complete(self) -> bool:
        """Whether everybody was confirmed before this run went on."""
        if self.escalation is not None:
            return all(is_confirmed(self.approvals, key) for key in self.escalation.record.to or ())
        return all(is_confirmed(self.answers, peer.key) for peer in self.peers.values())


@dataclass(slots=True)
class Ending:
    """What came of asking for one message.

    Attributes:
        acks: the last valid ack of each recipient that gave one, by name.
        complete: whether every recipient has accepted and is confirmed, or the approvers have.
        rejections: why the step is rejected, the first one first: a recipient's words, or the last correction.
        errors: what peers, the judge or a commit raised, in the order it happened.
        unable: for each recipient that owes an ack and can no longer give one.
        escalations: what was escalated, by recipient.
        silent: the names of those who did not answer in time.
        waiting: the names of the approvers who have not answered.
    """

    acks: dict[str, Envelope[Ack]] = field(default_factory=dict)
    complete: bool = False
    rejections: list[str] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    unable: list[NoRecipient] = field(default_factory=list)
    escalations: dict[str, Escalated] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Gate:
    """What asking needs: the run's journal, judge, bus and clock."""

    journal: Journal
    judge: Judge
    bus: Bus
    clock: Clock

    async def ask(self, asks: Sequence[Ask], confirmed: bytes) -> Sequence[Ending]:
        """Deliver each message to its recipients, in as many rounds as it takes, and return what came of each.

        Args:
            confirmed: the entry of private state that goes with the last confirmation.
        """
        unit = _Unit(self, confirmed)
        asking = unit.asking = [_Asking(unit, ask) for ask in asks]
        first, *others = [task for one in asking for task in one.tasks()]
        unit.alone = not others
        if others:
            unit.committing = anyio.Lock(fast_acquire=True)
        async with _reminding(asking):
            if unit.alone:
                await first()
            else:
                async with anyio.create_task_group() as group:
                    for other in others:
                        group.start_soon(other)
                    await first()
        if unit.stop is not None:
            raise unit.stop
        for one in asking:
            await one.look_for_the_silent()
        return [one.ending for one in asking]

    def unable(self, keys: Mapping[str, PublicKey]) -> list[NoRecipient]:
        """Return an error for each key that may not acknowledge, as far as the journal has read."""
        roles = {name: self.journal.thread.role(key) for name, key in keys.items()}
        return [
            NoRecipient(f"{name} owes an ack and can no longer give one: it is {role or 'no member'} now")
            for name, role in roles.items()
            if role not in _MAY_ACK
        ]


class _Unit:
    """The messages of one call of `Gate.ask`, which end together."""

    def __init__(self, gate: Gate, confirmed: bytes) -> None:
        self.gate = gate
        self.confirmed = confirmed
        self.asking: Sequence[_Asking] = ()
        self.incomplete = 0
        self.alone = False  # then nothing but time ends a wait
        self.committing: AbstractAsyncContextManager[Any] = nullcontext()  # a lock, where several may commit
        self.stop: BaseException | None = None
        self.over = False
        self._waits: set[anyio.CancelScope] = set()

    def end(self) -> None:
        self.over = True
        for scope in self._waits:
            scope.cancel()

    async def wait(self, work: Callable[[], Awaitable[T]], until: float | None) -> T:
        """Wait for a peer, for the judge, or for a pause to end, but no longer than the unit goes on."""
        left = None if until is None else until - self.gate.clock.monotonic()
        if self.over or (left is not None and left <= 0):
            raise _Over
        if self.alone and left is None:
            return await work()
        with self.gate.clock.move_on_after(left) as scope:
            self._waits.add(scope)
            try:
                return await work()
            finally:
                self._waits.remove(scope)
        raise _Over


class _Asking:
    """Asking for one message."""

    def __init__(self, unit: _Unit, ask: Ask) -> None:
        self.ending = Ending()
        self._unit = unit
        self._gate = unit.gate
        self._ask = ask
        self._message = ask.message
        self._until: float | None = None
        self._deadline: int | None = None
        if ask.timeout is not None:
            self._until = self._gate.clock.monotonic() + ask.timeout
            self._deadline = self._gate.clock.now_ms() + round(ask.timeout * 1000)
        self._owing = {name: peer.key for name, peer in ask.peers.items() if not is_confirmed(ask.answers, peer.key)}
        self.ending.complete = ask.complete
        unit.incomplete += not self.ending.complete

    def tasks(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return what is to be done at once; nothing of it raises but a cancellation."""
        if self._ask.escalation is not None:
            return [partial(self._guarded, "", partial(self._approval, self._ask.escalation))]
        peers = self._ask.peers.items()
        return [partial(self._guarded, name, partial(self._rounds, name, peer)) for name, peer in peers]

    @property
    def is_timed(self) -> bool:
        """Whether there is an end to the time for acknowledgements."""
        return self._until is not None

    async def remind(self) -> None:
        """Tell who is not confirmed yet when much of the time is over (rule R63); as of `tasks`, of what it raises."""
        try:
            await self._remind()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as stop:  # a task group would wrap it
            self._unit.stop = self._unit.stop or stop
            self._unit.end()

    async def _remind(self) -> None:
        assert self._ask.timeout is not None
        assert self._until is not None
        clock, journal = self._gate.clock, self._gate.journal
        for part in _REMINDERS:
            await clock.sleep(self._until - clock.monotonic() - self._ask.timeout * (1 - part))
            if self._owing and not self._unit.over:
                left = max(self._until - clock.monotonic(), 0.0)
                data = {"thread": journal.name, "message": self._message, "waiting": sorted(self._owing), "left": left}
                await self._gate.bus.emit(Event(ACK_DUE, data))

    async def look_for_the_silent(self) -> None:
        """Find out whether those who did not answer can still do so."""
        if self.ending.silent:
            try:
                await self._gate.journal.refresh()
                silent = {name: self._owing[name] for name in self.ending.silent}
                self.ending.unable += self._gate.unable(silent)
            except Exception as error:
                self.ending.errors.append(error)

    def look_for_the_unable(self) -> None:
        """End the unit if somebody who is asked is known to have lost the right to answer."""
        if self._ask.escalation is None and not self.ending.unable and (unable := self._gate.unable(self._owing)):
            self.ending.unable += unable
            self._unit.end()

    async def _guarded(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except _Over:
            if not self._unit.over:
                self.ending.silent.append(name)
        except Escalated as escalated:
            self.ending.escalations[name] = escalated
        except Exception as error:
            refused = isinstance(error, StoreError) and error.code == "store.refused"
            unable = self._gate.unable({name: self._owing[name]}) if refused and name in self._owing else []
            self.ending.unable += unable
            self.ending.errors += [] if unable else [error]
            self._unit.end()
        except BaseException as stop:  # a task group would wrap it, or take a stray cancellation for its own
            self._unit.stop = self._unit.stop or stop
            self._unit.end()
            if isinstance(stop, anyio.get_cancelled_exc_class()):
                raise

    # A recipient

    async def _rounds(self, name: str, peer: Peer) -> None:
        """Ask one recipient until it is confirmed, or the step ends; go on from what it answered before."""
        ack: Envelope[Ack] | None = None
        correction: Envelope[Ruling] | None = None
        left = self._ask.corrections
        for ack, ruling in self._ask.answers.get(peer.key, ()):
            self.ending.acks[name] = ack
            await self._tell(name, self._message, ack, ruling)
            if ruling is not None:
                ack, correction, left = None, ruling, left - 1
        if name not in self._owing:
            return
        while left >= 0:
            if ack is None:
                ack = await self._valid_ack(name, peer, correction)
            if ack.record.answer == "decline":
                ack = await self._commit(name, peer, ack, None)
                self._reject(f"{name} declined: {_text(ack.record.restatement)}")
                return
            try:
                correction = await self._ruling(ack)
            except Exception:
                await self._commit(name, peer, ack, None)
                raise
            taken = await self._commit(name, peer, ack, correction)
            if taken is not ack:
                ack = taken  # what the recipient had appended itself; the judge has not seen it
                continue
            if correction.record.ruling == "confirm":
                return
            ack, left = None, left - 1
        assert correction is not None
        self._reject(f"{name} was corrected and may not answer again: {_text(correction.record.correction)}")

    def _reject(self, why: str) -> None:
        self.ending.rejections.append(why)
        self._unit.end()

    async def _valid_ack(self, name: str, peer: Peer, correction: Envelope[Ruling] | None) -> Envelope[Ack]:
        delivery = Delivery(self._message, self._gate.journal.records, correction, self._deadline)
        pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
        while True:
            answer = await self._unit.wait(lambda: peer.ack(delivery), self._until)
            try:
                return self._checked(answer, peer, correction)
            except EnvelopeError as error:
                why = str(error)
            except _Dropped as error:
                why = str(error)
            _log.warning("an answer of %s to %r is dropped: %s", name, self._message, why)
            await self._unit.wait(partial(self._gate.clock.sleep, next(pauses)), self._until)

    def _checked(self, answer: object, peer: Peer, correction: Envelope[Ruling] | None) -> Envelope[Ack]:
        if type(answer) is not Envelope or type(answer.raw) is not bytes:
            raise _Dropped(f"it is a {type(answer).__name__}, no envelope")
        ack = open_envelope(answer.raw)
        if ack.kind != "ack" or ack.signer != peer.key:
            raise _Dropped(f"it is a {ack.kind} of {did_key(ack.signer)}")
        record = ack.record
        if record.thread != self._gate.journal.thread.address or record.message != self._message.address:
            raise _Dropped("it is of another message")
        if record.after != (correction.address if correction else None):
            raise _Dropped("it answers another correction")
        return ack

    async def _ruling(self, ack: Envelope[Ack]) -> Envelope[Ruling]:
        said = await self._unit.wait(lambda: self._judged(ack), self._until)
        if not isinstance(said, Confirm | Correct):
            raise FlowError(f"the judge said {said!r}: return Confirm() or Correct(text)", code="run.judge")
        fields = {"ruling": "correct", "correction": said.text} if isinstance(said, Correct) else {"ruling": "confirm"}
        return self._gate.journal.sign(Ruling, ack=ack.address, **fields)

    async def _judged(self, ack: Envelope[Ack]) -> object:
        said = self._gate.judge(self._message.record, ack.record)
        return await said if isawaitable(said) else said

    async def _commit(
        self, name: str, peer: Peer, ack: Envelope[Ack], ruling: Envelope[Ruling] | None
    ) -> Envelope[Ack]:
        """Commit (b): an ack, its ruling, and with the last confirmation the run's state; then tell of it.

        Returns:
            The ack; another one, not ruled on, if the recipient has meanwhile appended that to the thread itself.
        """
        gate, unit = self._gate, self._unit
        confirms = ruling is not None and ruling.record.ruling == "confirm"
        async with unit.committing:
            last = confirms and len(self._owing) == 1 and unit.incomplete == 1
            try:
                await gate.journal.receive([ack, ruling] if ruling else [ack], unit.confirmed if last else None)
            except StoreError as error:
                own = gate.journal.appended.get((self._message.address, peer.key))
                if error.code != "store.refused" or own is None or own.address == ack.address:
                    raise
                if own.record.after != ack.record.after:
                    raise  # it stands in another round, so it is not why this one is refused
                ack, ruling, confirms = own, None, False
            self.ending.acks[name] = ack
            if confirms:
                del self._owing[name]
                if not self._owing:
                    self._completed()
            for asking in unit.asking:
                asking.look_for_the_unable()
        await self._tell(name, self._message, ack, ruling)
        return ack

    def _completed(self) -> None:
        self.ending.complete = True
        self._unit.incomplete -= 1

    async def _tell(
        self, name: str, message: Envelope[Message], ack: Envelope[Ack], ruling: Envelope[Ruling] | None
    ) -> None:
        data = {"thread": self._gate.journal.name, "recipient": name, "message": message, "ack": ack, "ruling": ruling}
        await self._gate.bus.emit(Event(MESSAGE_ACKED, data, ack.address))

    # The approvers

    async def _approval(self, escalation: Envelope[Message]) -> None:
        """Take what the approvers said; they are not waited for, and the recipients are not asked again."""
        for name, peer in self._ask.peers.items():
            for ack, _ in self._ask.answers.get(peer.key, ())[-1:]:
                self.ending.acks[name] = ack
                if ack.record.answer == "decline":
                    self._reject(f"{name} declined: {_text(ack.record.restatement)}")
                    return
        approvers = {name: key for name, key in self._ask.approvers.items() if key in (escalation.record.to or ())}
        unruled = []
        for name, key in approvers.items():
            for ack, ruling in self._ask.approvals.get(key, ())[-1:]:
                self.ending.acks[name] = ack
                await self._tell(name, escalation, ack, ruling)
                if ack.record.answer == "decline":
                    self._reject(f"{name} declined: {_text(ack.record.restatement)}")
                    return
                unruled += [ack] if ruling is None else []
        missing = {name: key for name, key in approvers.items() if name not in self.ending.acks}
        if missing:
            self.ending.waiting += missing
            self.ending.unable += self._gate.unable(missing)
            return
        if self.ending.complete:
            return
        rulings = [self._gate.journal.sign(Ruling, ack=ack.address, ruling="confirm") for ack in unruled]
        async with self._unit.committing:
            last = self._unit.incomplete == 1
            await self._gate.journal.receive(rulings, self._unit.confirmed if last else None)
            self._completed()


@asynccontextmanager
async def _reminding(asking: Sequence[_Asking]) -> AsyncIterator[None]:
    """Remind of what is asked for, as long as the body waits for it."""
    timed = [one for one in asking if one.is_timed]
    if not timed:
        yield
        return
    async with anyio.create_task_group() as group:
        for one in timed:
            group.start_soon(one.remind)
        yield
        group.cancel_scope.cancel()


class _Over(Exception):
    """The step has ended, or its time is up, before what was waited for."""


class _Dropped(Exception):
    """An answer that is no valid ack."""


def _text(content: object) -> str:
    return content if isinstance(content, str) else "content outside the thread"
