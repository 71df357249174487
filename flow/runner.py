"""The scheduler: one step after the other, each told, acknowledged and fired in the order that `spec/flow.md` sets.

A step's three commits are (a) its message, (b) each ack with its ruling, (c) its outcome. Whatever ends a run early
goes through one of two doors: `_decided` seals the thread, `_paused` leaves it open and well formed.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

import anyio

from envelope import Ack, Card, Envelope, EnvelopeError, Identity, Message, PublicKey, Seal, address
from envelope.cbor import encode
from flow.budget import Limits
from flow.bus import MACHINE_MOVE, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED, Bus, Event
from flow.clock import Clock
from flow.errors import (
    AckTimeout,
    Escalated,
    FlowError,
    HeartbeatError,
    InvalidThread,
    NoTransition,
    OverBudget,
    Rejected,
    StepFailed,
    StoreError,
    Superseded,
)
from flow.gate import Ending, Gate
from flow.heartbeat import Monitor
from flow.journal import Journal
from flow.machine import Call, Machine, Slot, Transition
from flow.peers import Judge, Peer
from flow.plan import Draft, Plan, Step
from flow.run import Outcome, Run, ThreadCopy
from flow.store import ThreadStore

_log = logging.getLogger(__name__)

_LONGEST_TEXT: Final = 4096

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part in a run, and what it may use: everything but the plan and what it works on."""

    identity: Identity
    card: Card
    member: str
    peers: Mapping[str, Peer]
    approvers: Mapping[str, PublicKey]
    judge: Judge
    limits: Limits
    room: str | None
    store: ThreadStore
    bus: Bus
    heartbeat: Monitor | None
    clock: Clock


class Runner:
    """One run of a plan; `go` is called once."""

    def __init__(self, cast: Cast, name: str, plan: Plan, plan_address: bytes, machine: Machine, record: Any) -> None:
        self._cast = cast
        self._plan = plan
        self._plan_address = plan_address
        self._machine = machine
        self._status = machine.initial
        self._record = record
        self._journal = Journal(cast.store, name, cast.identity, cast.clock)
        self._outcomes: dict[str, Outcome] = {}
        self._step: Step | None = None
        self._attempts: int | None = None
        self._move: dict[str, str] | None = None
        self._beats = f"{cast.identity.did}:{name}"

    async def go(self) -> Run:
        """Run the plan to its end.

        Raises:
            FlowError: as `spec/flow.md`, "Endings", says, with status, record, step and thread as they stood.
            Exception: what a peer, the judge or the store raised, with a note that names step and thread.
        """
        try:
            await self._begin()
            for step in (step for unit in self._plan.order for step in unit.steps):
                self._step, self._attempts = step, None
                await _GATES[step.gate](self, step)
            self._step = None
            return await self._complete()
        except Exception as error:
            where = self._step.id if self._step else None
            if isinstance(error, FlowError):
                error.standing(status=self._status, record=self._record, step=where, thread=await self._copy())
            if self._journal.thread.outcome is None:
                place = f"in step {where!r}" if where else "between steps"
                error.add_note(f"{place} of the thread {self._journal.name!r}, which this run did not seal")
            raise
        finally:
            if self._cast.heartbeat is not None:
                try:
                    self._cast.heartbeat.forget(self._beats)
                except Exception:
                    _log.exception("the monitor failed to forget %s", self._beats)

    # Beginning and end

    async def _begin(self) -> None:
        cast = self._cast
        members: list[dict[str, Any]] = [
            {
                "key": cast.identity.public_key,
                "role": "moderator",
                "name": cast.member,
                "card": cast.card.envelope.address,
            },
            *({"key": peer.key, "role": "member", "name": name} for name, peer in cast.peers.items()),
            *({"key": key, "role": "approver", "name": name} for name, key in cast.approvers.items()),
        ]
        fields = {
            "members": tuple(sorted(members, key=lambda member: member["key"])),
            "room": cast.room,
            "plan": self._plan_address,
            "limits": cast.limits.document() or None,
        }
        await self._journal.begin(fields, self._state("begun"))

    async def _complete(self) -> Run:
        await self._journal.append(
            Seal, lambda: {"outcome": "completed", "status": self._status}, self._state("completed")
        )
        records = tuple(await self._journal.records())
        copy = ThreadCopy(self._journal.name, self._journal.thread.address, records)
        verdict = copy.verify(trust=None, thread=copy.address, now=self._cast.clock.now_ms())
        if (verdict.integrity, verdict.completeness, verdict.outcome) != ("valid", "sealed", "completed"):
            raise InvalidThread(f"the sealed thread {copy.name!r} does not verify: {verdict}; keep it and the store")
        if any(outcome.message for outcome in self._outcomes.values()):
            await self._emit(THREAD_VERIFIED, copy.address, thread=copy, verdict=verdict)
        return Run(self._status, self._record, MappingProxyType(self._outcomes), copy)

    async def _copy(self) -> ThreadCopy | None:
        if not self._journal.thread.address:
            return None
        try:
            records = tuple(await self._journal.records())
        except Exception:
            return None  # the store's own error is already on its way
        return ThreadCopy(self._journal.name, self._journal.thread.address, records)

    # The three gates

    async def _before(self, step: Step) -> None:
        """Told and acknowledged, then fired (rules R6 to R22)."""
        row = await self._row(step)
        draft = await self._draft(step)
        await self._afford(step, _size(draft))
        message = await self._say(step, draft, "request", "sent")
        acks = await self._acknowledged(step, message)
        await self._fire(step, row, message)
        await self._done(step, message, acks)

    async def _after(self, step: Step) -> None:
        """Fired, then reported and acknowledged (rules R23 to R25)."""
        row = await self._row(step)
        await self._afford(step, 0)
        await self._journal.note(self._state("firing"))
        await self._fire(step, row, None)
        draft = await self._draft(step)
        await self._afford(step, _size(draft), fired=True)
        message = await self._say(step, draft, "assert", "fired")
        acks = await self._acknowledged(step, message)
        await self._done(step, message, acks)

    async def _none(self, step: Step) -> None:
        """Fired, and entered in the thread without a message (rule R26)."""
        row = await self._row(step)
        await self._journal.note(self._state("firing"))
        await self._fire(step, row, None)
        await self._done(step, None, {})

    # The parts of a step

    async def _row(self, step: Step) -> Transition:
        rows = self._machine.rows_to(self._status, step.target or "")
        if len(rows) != 1:
            error = NoTransition(
                f"{len(rows)} rows lead from {self._status!r} to {step.target!r}, the target of step {step.id!r}: "
                "a run takes the only one"
            )
            raise await self._decided(error, "failed")
        return rows[0]

    async def _draft(self, step: Step) -> Draft:
        try:
            return await step.draft(self._record)
        except Exception as error:
            raise await self._failed(step, "payload", error, None) from error

    async def _afford(self, step: Step, payload_bytes: int, *, fired: bool = False) -> None:
        thread = self._journal.thread
        if not self._cast.limits.fits(thread.used_bytes, thread.used_messages, payload_bytes, 1):
            error = OverBudget(
                f"step {step.id!r} would say {payload_bytes} bytes more; said so far: {thread.used_bytes} bytes in "
                f"{thread.used_messages} messages; the limits are {self._cast.limits}"
            )
            settled = [self._settlement(step, None, "failed")] if fired else []
            raise await self._decided(error, "over_budget", settled)

    async def _say(self, step: Step, draft: Draft, intent: str, phase: str) -> Envelope[Message]:
        """Commit (a): the step's message is durable, then told."""
        recipients = self._recipients(step)
        fields = {
            "intent": intent,
            "ack_required": True if intent == "assert" else None,
            "epistemic": draft.epistemic,
            "payload": draft.payload,
            "media_type": None if draft.media_type == "text/plain" else draft.media_type,
            "to": tuple(sorted(peer.key for peer in recipients.values())),
            "room": self._cast.room,
            "step": (step.id,),
            "capability": step.capability,
            "confidence": draft.confidence,
            "context": draft.context or None,
            "provenance": draft.provenance,
        }

        async def append() -> Envelope[Message]:
            return await self._journal.append(
                Message, lambda: {"id": self._unused_id(step.id), **fields}, self._state(phase)
            )

        try:
            try:
                message = await append()
            except EnvelopeError as error:
                if error.code != "size.envelope" or not self._journal.owes:
                    raise
                await self._journal.settle()  # what the message would have carried, so that it has the room itself
                message = await append()
        except EnvelopeError as error:
            raise await self._failed(step, "payload", error, None) from error
        except StoreError as error:
            if error.code != "store.refused" or not (unable := self._gate(step).unable(recipients)):
                raise
            raise await self._decided(unable[0], "failed", [self._settlement(step, None, "failed")]) from error
        await self._tell_move()
        await self._emit(MESSAGE_DELIVERED, message.address, message=message)
        return message

    def _unused_id(self, step: str) -> str:
        number, candidate = 1, step
        while self._journal.thread.has_id(candidate):
            number += 1
            candidate = f"{step}#{number}"
        return candidate

    def _recipients(self, step: Step) -> dict[str, Peer]:
        return {name: self._cast.peers[name] for name in step.to or self._cast.peers}

    async def _acknowledged(self, step: Step, message: Envelope[Message]) -> Mapping[str, Envelope[Ack]]:
        """Commits (b): return the acks once every recipient has accepted and is confirmed."""
        recipients = self._recipients(step)
        ending = await self._beating(lambda: self._gate(step).ask(message, recipients))
        if len(ending.confirmed) == len(recipients):
            return MappingProxyType(ending.acks)
        try:
            error = await self._verdict_on(step, message, ending)
        except Exception as instead:
            error = instead
        for other in _besides(error, ending):
            error.add_note(f"besides: {other}")
        raise error

    def _gate(self, step: Step) -> Gate:
        return Gate(
            journal=self._journal,
            judge=self._cast.judge,
            bus=self._cast.bus,
            clock=self._cast.clock,
            corrections=step.corrections,
            timeout=step.ack_timeout,
            state=lambda last: self._state("confirmed") if last else None,
        )

    async def _verdict_on(self, step: Step, message: Envelope[Message], ending: Ending) -> Exception:
        """Return what ends the run after asking: the first of rejected, failed, escalated, timed out (rule R41)."""
        if self._journal.failure is not None:
            return self._journal.failure
        if ending.rejections:
            rejected = Rejected(f"step {step.id!r}: {ending.rejections[0]}")
            settled = [self._settlement(step, message, "failed")]
            return await self._decided(rejected, "rejected", settled, reason=ending.rejections[0])
        if ending.unable:
            return await self._decided(ending.unable[0], "failed", [self._settlement(step, message, "failed")])
        if ending.errors:
            return await self._paused(ending.errors[0])
        if ending.escalations:
            return await self._escalated(step, message, next(iter(ending.escalations.values())))
        names = ", ".join(ending.silent)
        return await self._paused(
            AckTimeout(
                f"step {step.id!r}: no confirmed ack of {names} within {step.ack_timeout} s; the thread is open, "
                "and can still be sealed, or read from its store"
            )
        )

    async def _fire(self, step: Step, row: Transition, message: Envelope[Message] | None) -> None:
        thread = self._journal.thread.address

        def call(slot: Slot) -> Call:
            if slot != "guard":
                self._attempts = 1
            key = address(encode([thread, [step.id], slot]))
            return Call(step=(step.id,), key=key, message=message.record if message else None)

        before = self._status
        try:
            self._status, self._record = await self._beating(
                lambda: self._machine.fire(self._status, self._record, row, call)
            )
        except Exception as error:
            raise await self._failed(step, "transition", error, message) from error
        self._move = {"step": step.id, "source": before, "trigger": row.trigger, "target": self._status}

    async def _done(self, step: Step, message: Envelope[Message] | None, acks: Mapping[str, Envelope[Ack]]) -> None:
        """Commit (c): the outcome is durable, then told."""
        self._journal.owe(self._settlement(step, message, "succeeded"))
        await self._journal.note(self._state("done"))
        outcome = Outcome(step.id, self._status, message, acks, self._attempts)
        self._outcomes[step.id] = outcome
        await self._tell_move()
        await self._emit(STEP_COMPLETED, message.address if message else None, outcome=outcome)

    # Endings

    async def _failed(self, step: Step, what: str, error: Exception, message: Envelope[Message] | None) -> FlowError:
        text = f"step {step.id!r}: its {what} failed: {type(error).__name__}: {_words(error)}"
        return await self._decided(StepFailed(text), "failed", [self._settlement(step, message, "failed")], reason=text)

    async def _decided(
        self, error: FlowError, outcome: str, settled: list[dict[str, Any]] | None = None, reason: str | None = None
    ) -> FlowError:
        """Seal the thread: this run is over for good. Return what is to be raised."""
        for entry in settled or ():
            self._journal.owe(entry)
        fields = {"outcome": outcome, "status": self._status, "reason": _cut(reason or str(error.args[0]))}
        await self._journal.append(Seal, lambda: dict(fields), self._state(outcome))
        await self._tell_move()
        return error

    async def _paused(self, error: Exception) -> Exception:
        """Leave the thread open, with all that came committed. Return what is to be raised."""
        if self._journal.failure is None:
            try:
                await self._journal.settle()
            except Superseded:
                raise
            except Exception as second:
                error.add_note(f"besides: {type(second).__name__}: {second}")
        return error

    async def _escalated(self, step: Step, message: Envelope[Message], error: Escalated) -> FlowError:
        """Hand the message to the approvers, and leave the thread open (rules R42 to R44)."""
        if not self._approvers():
            error.add_note("the run has no approvers, so nobody was asked: give it approvers, or decide for yourself")
            return error
        text = _cut(_words(error.args[0]) if error.args else "")

        def escalation_fields() -> dict[str, Any]:
            if self._journal.thread.is_declined(message.address):
                raise Rejected(f"step {step.id!r}: a recipient declined in the thread itself, so nothing is escalated")
            return {
                "id": f"{message.record.id}#escalate",
                "intent": "escalate",
                "epistemic": "assumed",
                "payload": text,
                "to": self._approvers(),
                "room": self._cast.room,
                "reply_to": message.address,
            }

        try:
            await self._journal.refresh()
            escalation = await self._journal.append(Message, escalation_fields, self._state("escalated"))
        except Rejected as rejected:
            return await self._decided(rejected, "rejected", [self._settlement(step, message, "failed")])
        except StoreError as refused:
            if refused.code != "store.refused":
                raise
            error.add_note(f"nobody was asked: {refused}")
            return error
        await self._emit(MESSAGE_DELIVERED, escalation.address, message=escalation)
        return error

    def _approvers(self) -> tuple[PublicKey, ...]:
        """The keys of the approvers who have not left, ascending."""
        role = self._journal.thread.role
        return tuple(sorted(key for key in self._cast.approvers.values() if role(key) == "approver"))

    # Small things

    def _settlement(self, step: Step, message: Envelope[Message] | None, outcome: str) -> dict[str, Any]:
        what = {"message": message.address} if message else {"step": (step.id,)}
        return {**what, "outcome": outcome, "attempts": self._attempts, "status": self._status}

    def _state(self, phase: str) -> bytes:
        step = {"step": self._step.id} if self._step else {}
        return encode({"plan": self._plan_address, "phase": phase, "status": self._status, **step})

    async def _tell_move(self) -> None:
        """Tell that a transition fired, once that is durable."""
        if self._move is not None:
            move, self._move = self._move, None
            await self._emit(MACHINE_MOVE, None, **move)

    async def _emit(self, name: str, of: bytes | None, **data: Any) -> None:
        await self._cast.bus.emit(Event(name, {"thread": self._journal.name, **data}, of))

    async def _beating(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work while this run's heart beats (rule R11)."""
        heartbeat = self._cast.heartbeat
        if heartbeat is None:
            return await work()
        self._beat(heartbeat)
        result: list[T] = []
        failure: list[BaseException] = []
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_beating, heartbeat)
            try:
                result.append(await work())
            except BaseException as error:  # which the group would wrap, or take for its own
                failure.append(error)
                if isinstance(error, anyio.get_cancelled_exc_class()):
                    raise
            group.cancel_scope.cancel()
        if failure:
            raise failure[0]
        return result[0]

    async def _keep_beating(self, heartbeat: Monitor) -> None:
        try:
            while True:
                await self._cast.clock.sleep(heartbeat.timeout / 3)
                self._beat(heartbeat)
        except Exception:
            _log.exception("the monitor %r failed; the run goes on", heartbeat)

    def _beat(self, heartbeat: Monitor) -> None:
        try:
            heartbeat.beat(self._beats, self._cast.clock.monotonic())
        except HeartbeatError:  # a later beat is there already
            pass
        except Exception:
            _log.exception("the monitor %r failed; the run goes on", heartbeat)


_GATES: Final[Mapping[str, Callable[[Runner, Step], Awaitable[None]]]] = {
    "before": Runner._before,
    "after": Runner._after,
    "none": Runner._none,
}


def _besides(error: Exception, ending: Ending) -> list[str]:
    """What else happened, in words, where a step ended in `error`."""
    others = ending.rejections[isinstance(error, Rejected) :]
    raised = (*ending.unable, *ending.errors, *ending.escalations.values())
    others += [f"{type(other).__name__}: {_words(other)}" for other in raised if other is not error]
    if ending.silent and not isinstance(error, AckTimeout):
        others.append(f"no answer in time from {', '.join(ending.silent)}")
    return others


def _size(draft: Draft) -> int:
    return len(draft.payload.encode())


def _words(error: object) -> str:
    """Return what an error says, also where it cannot be put into words."""
    try:
        return str(error)
    except Exception:
        return f"a {type(error).__name__} without words"


def _cut(text: str) -> str:
    """Return as much of a text as a reason or an escalation may hold; never blank."""
    cut = text.encode("utf-8", "replace")[:_LONGEST_TEXT].decode("utf-8", "ignore")
    return cut if cut.strip("\t\n\r ") else "no reason given"
