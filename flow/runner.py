"""The scheduler: one unit of a plan after the other, each told, acknowledged and fired in the order that `spec/flow.md`
sets.

A unit's three commits are (a) its messages, (b) each ack with its ruling, (c) its outcome. What is durable of a run
that was cut off is its `History`: a unit whose outcome is recorded is not taken again, and one that was under way goes
on behind its last commit. What ends a run early is `flow.endings`'.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Final, Literal

import anyio

from envelope import (
    Ack,
    Card,
    Envelope,
    EnvelopeError,
    Identity,
    Message,
    PublicKey,
    Seal,
    address_text,
    did_key,
)
from flow import errors
from flow.budget import Limits
from flow.bus import MACHINE_MOVE, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED, Bus, Event
from flow.clock import Clock
from flow.endings import Asked, Endings, Settlements, short, words
from flow.errors import (
    FlowError,
    InDoubt,
    InvalidThread,
    MachineError,
    NoTransition,
    OverBudget,
    PlanError,
    StepFailed,
    StoreError,
    Superseded,
)
from flow.firing import Firing, Hit, Shot, Unfired, call_key
from flow.gate import Ask, Gate
from flow.heartbeat import Monitor
from flow.journal import Journal
from flow.machine import Call, Failure, Machine, Transition, check_record
from flow.peers import Judge, Peer
from flow.plan import Draft, Loop, Plan, Step, Unit
from flow.progress import Entry, History, Path, Phase, Trace, entry, read_entry
from flow.pulse import Pulse
from flow.recording import Shape
from flow.run import Outcome, Run, ThreadCopy
from flow.schedule import Schedule
from flow.store import IMPORTED, ThreadStore

Word = Literal["again", "done"]


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

    def members(self) -> list[dict[str, Any]]:
        """The members of the run's thread, ascending by key."""
        card = self.card.envelope.address
        members: list[dict[str, Any]] = [
            {"key": self.identity.public_key, "role": "moderator", "name": self.member, "card": card}
        ]
        members += [{"key": peer.key, "role": "member", "name": name} for name, peer in self.peers.items()]
        members += [{"key": key, "role": "approver", "name": name} for name, key in self.approvers.items()]
        return sorted(members, key=lambda member: bytes(member["key"]))


class Fault(Exception):
    """A failure that a fallback may handle; until one does, the failing steps' settlements go up with it."""

    def __init__(self, failure: Failure, text: str, cause: Exception | None, settled: Settlements = ()) -> None:
        super().__init__(text)
        self.failure = failure
        self.text = text
        self.cause = cause
        self.settled = settled


@dataclass(slots=True)
class Turn:
    """A unit under way.

    Attributes:
        paths: of its steps.
        traces: what was durable of each before this run went on.
        handles: the failure that it handles.
        before: status, record and the record's text, to which a failure returns.
        target: the status it leads to; row: the row there, or None where the run stands there already.
        messages: of each step, if it says something; acks: of each, once asked.
        approved: whether the approvers have accepted, where a message was handed to them.
        attempt: the number of the attempt that may have begun; attempts: how often each step started an action.
        words: what the caller said of actions in doubt, by path.
        move: source and trigger of the row that was fired.
    """

    unit: Unit
    paths: Sequence[Path]
    traces: Sequence[Trace]
    handles: Failure | None
    before: tuple[str, Any, str]
    target: str = ""
    row: Transition | None = None
    messages: Sequence[Envelope[Message]] = ()
    acks: Sequence[Mapping[str, Envelope[Ack]]] = ()
    approved: bool = False
    attempt: int = 0
    attempts: Sequence[int | None] = ()
    words: Mapping[str, Word] = field(default_factory=dict)
    move: Sequence[str] | None = None

    @property
    def name(self) -> str:
        """The steps' paths as text."""
        return ", ".join(map(joined, self.paths))

    def settlements(self, outcome: str, status: str) -> list[dict[str, Any]]:
        """Return the entries that settle the unit, and the escalations of its messages."""
        entries: list[dict[str, Any]] = []
        for place, (path, trace) in enumerate(zip(self.paths, self.traces, strict=True)):
            what: dict[str, Any] = {"message": self.messages[place].address} if self.messages else {"step": path}
            said: dict[str, Any] = {"outcome": outcome, "status": status}
            if (escalation := trace.escalation) is not None:
                entries.append({"message": escalation.address, "outcome": "succeeded" if self.approved else "failed"})
                if outcome == "succeeded":
                    said |= {"outcome": "approved", "by": escalation.address}
            attempts = self.attempts[place] if self.attempts else None
            word = self.words.get(joined(path))
            result = None if word is None else f"the action was cut off in an earlier attempt; the caller said: {word}"
            known = {"attempts": attempts, "result": result}
            entries.append({**what, **said, **{name: value for name, value in known.items() if value is not None}})
        return entries


def joined(path: Path) -> str:
    """Return a path as text."""
    return "/".join(path)


class Runner:
    """One run of a plan; `go` is called once.

    Args:
        plan_address: of the plan's document.
        record: what is worked on, or, for a run that goes on, any record of its type.
    """

    def __init__(self, cast: Cast, name: str, plan: Plan, plan_address: bytes, machine: Machine, record: Any) -> None:
        self._cast = cast
        self._plan = plan
        self._plan_address = plan_address
        self._machine = machine
        self._shape = Shape(record)
        self._status = machine.initial
        self._record = record
        self._text = self._shape.dump(record)
        self._run = secrets.token_bytes(8)
        self._history = History()
        self._journal = Journal(cast.store, name, cast.identity, cast.clock)
        self._gate = Gate(self._journal, cast.judge, cast.bus, cast.clock)
        self._endings = Endings(self._journal, cast.approvers, cast.room, self._sealed, self._delivered)
        self._pulse = Pulse(cast.heartbeat, f"{cast.identity.did}:{name}", cast.clock)
        self._said: dict[bytes, tuple[Path, Envelope[Message]]] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._acks: dict[bytes, Mapping[str, Envelope[Ack]]] = {}
        self._words: Mapping[str, Word] = {}
        self._at: str | None = None
        self._turn: Turn | None = None

    async def start(self, nonce: bytes, follows: bytes | None) -> Run:
        """Run the plan from its beginning to its end.

        Args:
            nonce: 16 bytes that make the thread another one than any before.
            follows: the address of an earlier thread, or None.

        Raises:
            FlowError: as `spec/flow.md`, "Endings", says, with status, record, step and thread as they stood.
            Exception: what a peer, the judge or the store raised, with a note that names step and thread.
        """
        return await self._to_the_end(lambda: self._begin(nonce, follows))

    async def resume(self, words: Mapping[str, Word], seen: bytes | None) -> Run:
        """Go on with a thread where it was left, and run the plan to its end; raises as `start` does.

        Args:
            words: for steps whose action is in doubt, by path: fire it `again`, or take it for `done`.
            seen: the address of a chain record that the thread must have, or None.
        """
        return await self._to_the_end(lambda: self._go_on(words, seen))

    async def _to_the_end(self, begin: Callable[[], Awaitable[None]]) -> Run:
        try:
            await begin()
            if self._journal.thread.outcome is None:
                await self._whole_plan()
            return await self._finished()
        except Exception as error:
            if isinstance(error, FlowError):
                error.standing(status=self._status, record=self._record, step=self._at, thread=await self._copy())
            if self._journal.thread.outcome is None:
                place = f"in step {self._at!r}" if self._at else "between steps"
                error.add_note(f"{place} of the thread {self._journal.name!r}, which this run did not seal")
            raise
        finally:
            self._pulse.forget()

    # Beginning and end

    async def _begin(self, nonce: bytes, follows: bytes | None) -> None:
        fields = {
            "nonce": nonce,
            "members": tuple(self._cast.members()),
            "room": self._cast.room,
            "plan": self._plan_address,
            "limits": self._cast.limits.document() or None,
            "follows": follows,
        }
        await self._journal.begin(fields, self._entry("begun", plan=self._plan_address, record=self._text))

    async def _go_on(self, words: Mapping[str, Word], seen: bytes | None) -> None:
        """Take in what is durable (rules D1 to D12)."""
        envelopes, states = await self._journal.go_on(seen)
        imported = [state.data for state in states[:1]] == [IMPORTED]
        entries = [] if imported else [read_entry(state.data, number) for number, state in enumerate(states)]
        self._check_same_run(entries)
        self._words = words
        self._history = History(envelopes, entries, self._cast.identity.public_key)
        self._journal.carry(self._history.owed())
        self._load(entries[0])
        self._remember()
        if self._journal.thread.outcome is None:
            if self._journal.thread.role(self._cast.identity.public_key) != "moderator":
                raise Superseded(f"the key of this run is no moderator of the thread {self._journal.name!r} any more")
            await self._journal.note(self._entry("resumed"))
            await self._tell_again([one for one in entries if one.phase != "resumed"][-1])
        else:
            self._take_seal(entries[-1])

    def _check_same_run(self, entries: Sequence[Entry]) -> None:
        opening = self._journal.thread.opening
        assert opening is not None
        name = self._journal.name
        if not entries or entries[0].phase != "begun" or entries[0].record is None:
            raise StoreError(
                f"the store holds the thread {name!r}, but not its run's private state: it cannot go on; "
                "it can be exported, and closed",
                code="store.state",
            )
        if {opening.record.plan, entries[0].plan} != {self._plan_address}:
            raise FlowError(
                f"the thread {name!r} was begun with the plan {address_text(opening.record.plan or b'')}, and this is "
                f"{address_text(self._plan_address)}: resume it with the plan, machine, limits and judge it has",
                code="run.plan",
            )
        given = [(member["key"], member["role"], member["name"]) for member in self._cast.members()]
        if given != [(member.key, member.role, member.name) for member in opening.record.members]:
            raise FlowError(
                f"the thread {name!r} was begun with other members: resume it with the peers and approvers it has, "
                "under the names they have there",
                code="run.peers",
            )
        if opening.record.room != self._cast.room:
            raise FlowError(
                f"the thread {name!r} is in the room {opening.record.room!r}: resume it there", code="run.room"
            )

    def _take_seal(self, last: Entry) -> None:
        """Stand where the run ended; raise what it ended with, unless it was completed."""
        if last.phase != "sealed" or last.status is None:
            raise Superseded(f"the thread {self._journal.name!r} is sealed, and not by its run: read it there")
        self._load(last)
        self._at = last.step
        if last.error is not None:
            kind = getattr(errors, last.error, FlowError)
            raise kind(last.text or "", code=last.code)

    async def _whole_plan(self) -> None:
        try:
            await self._level(self._plan, ())
        except Fault as fault:
            self._at = fault.failure.step
            raise await self._decided(StepFailed(fault.text), "failed", fault.settled) from fault.cause
        self._at = None
        state = self._entry("sealed", status=self._status, record=self._text)
        await self._journal.append(Seal, lambda: {"outcome": "completed", "status": self._status}, state)

    async def _finished(self) -> Run:
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

    # Units

    async def _level(self, plan: Plan, above: Path) -> None:
        """Take the units of a plan, one after the other; `above` is the path of the step whose sub-plan it is.

        Raises:
            Fault: a failure that nothing in this plan handles.
        """
        schedule = Schedule(plan)
        while (unit := schedule.next()) is not None:
            paths = [(*above, step.id) for step in unit.steps]
            traces = [self._history.of(path) for path in paths]
            before = self._status, self._record, self._text
            turn = Turn(unit, paths, traces, schedule.failure_for(unit.steps[0]), before)
            self._at, self._turn = turn.name, turn
            if (done := traces[0].done) is None:
                await self._take(schedule, turn)
            elif done.outcome == "succeeded":
                self._load(done)
                schedule.succeeded(unit, done.chosen)
            else:
                schedule.failed(unit, done.failed_with)
            if (lost := schedule.lost) is not None:
                text = f"step {lost.step!r} failed: {lost.error}: {lost.text}; a route skipped the step that handles it"
                raise Fault(lost, text, None)

    async def _take(self, schedule: Schedule, turn: Turn) -> None:
        step = turn.unit.steps[0]
        try:
            turn.target = step.target or ""
            if step.sub is not None:
                turn.target = await self._rounds(turn, step, step.sub)
            await _GATES[step.gate](self, turn)
            chosen = await self._route(schedule, turn)
        except Fault as fault:
            self._status, self._record, self._text = turn.before
            turn.move = None
            settled = [*fault.settled, *turn.settlements("failed", self._status)]
            if not schedule.catches(turn.unit):
                raise Fault(fault.failure, fault.text, fault.cause, settled) from fault
            settled += self._skips(turn, schedule.failed(turn.unit, fault.failure))
            await self._done(turn, settled, outcome="failed", failure=fault.failure)
        else:
            settled = turn.settlements("succeeded", self._status)
            settled += self._skips(turn, schedule.succeeded(turn.unit, chosen))
            await self._done(turn, settled, outcome="succeeded", chosen=chosen)

    def _skips(self, turn: Turn, steps: Sequence[Step]) -> list[dict[str, Any]]:
        return [
            {"step": (*turn.paths[0][:-1], step.id), "outcome": "skipped", "status": self._status} for step in steps
        ]

    async def _rounds(self, turn: Turn, step: Step, sub: Plan) -> str:
        """Run the sub-plan of a step, as often as its loop says; return the status that it ends in."""
        path, number = turn.paths[0], 1
        while True:
            inside = path if number == 1 else (*path[:-1], f"{path[-1]}#{number}")
            self._status, self._record = self._machine.initial, deepcopy(self._record)
            await self._level(sub, inside)
            self._at, self._turn = turn.name, turn
            if step.loop is None or number == step.loop.max or not await self._again(turn, step.loop, inside, number):
                break
            number += 1
        status, self._status = self._status, turn.before[0]
        return status

    async def _again(self, turn: Turn, loop: Loop, inside: Path, number: int) -> bool:
        if (known := turn.traces[0].rounds.get(number)) is not None:
            return known
        call = Call(inside, call_key(self._journal.thread.address, inside, "loop"), failure=turn.handles)
        try:
            again = loop.guard(deepcopy(self._record), call)
            again = await again if isawaitable(again) else again
            if not isinstance(again, bool):
                raise MachineError(f"the loop's guard returned {again!r}: return True or False", code="machine.guard")
        except Exception as error:
            raise self._fault(turn, "loop's guard", error) from error
        await self._journal.note(self._entry("round", at=turn.paths, round=number, again=again))
        return again

    # The three gates

    async def _before(self, turn: Turn) -> None:
        """Told and acknowledged, then fired (rules R6 to R22)."""
        await self._aim(turn)
        if not await self._said_already(turn):
            drafts = await self._drafts(turn)
            await self._afford(turn, drafts)
            await self._say(turn, drafts, "request", None)
        if await self._acknowledged(turn, attempt=1):
            turn.attempt = 1
        await self._fire(turn)

    async def _after(self, turn: Turn) -> None:
        """Fired, then reported and acknowledged (rules R23 to R25)."""
        await self._aim(turn)
        fired = turn.traces[0].fired
        if fired is None:
            await self._afford(turn, ())
            await self._fire(turn)
            drafts = await self._drafts(turn)
            await self._afford(turn, drafts, fired=True)
            state = self._entry(
                "fired",
                at=turn.paths,
                status=self._status,
                record=self._text,
                attempts=turn.attempts[0],
                move=turn.move,
            )
            await self._say(turn, drafts, "assert", state)
        else:
            self._load(fired)
            turn.attempts, turn.move = [fired.attempts], fired.move
            await self._moved(turn)
            await self._said_already(turn)
        await self._acknowledged(turn, attempt=None)

    async def _none(self, turn: Turn) -> None:
        """Fired, and entered in the thread without a message (rule R26)."""
        await self._aim(turn)
        await self._fire(turn)

    # The parts of a unit

    async def _aim(self, turn: Turn) -> None:
        if turn.unit.steps[0].sub is not None and turn.target == self._status:
            return
        rows = self._machine.rows_to(self._status, turn.target)
        if len(rows) != 1:
            error = NoTransition(
                f"{len(rows)} rows lead from {self._status!r} to {turn.target!r}, the target of step {turn.name!r}: "
                "a run takes the only one"
            )
            raise await self._decided(error, "failed")
        turn.row = rows[0]

    async def _drafts(self, turn: Turn) -> Sequence[Draft]:
        drafts = []
        for place, step in enumerate(turn.unit.steps):
            try:
                drafts.append(await step.draft(self._record))
            except Exception as error:
                raise self._fault(turn, "payload", error, place) from error
        return drafts

    async def _afford(self, turn: Turn, drafts: Sequence[Draft], *, fired: bool = False) -> None:
        thread = self._journal.thread
        size = sum(len(draft.payload.encode()) for draft in drafts)
        if not self._cast.limits.fits(thread.used_bytes, thread.used_messages, size, len(turn.paths)):
            error = OverBudget(
                f"step {turn.name!r} would say {size} bytes more in {len(turn.paths)} messages; said so far: "
                f"{thread.used_bytes} bytes in {thread.used_messages} messages; the limits are {self._cast.limits}"
            )
            settled = turn.settlements("failed", self._status) if fired else ()
            raise await self._decided(error, "over_budget", settled)

    async def _said_already(self, turn: Turn) -> bool:
        """Take up the messages that were durable before this run went on, and tell of them again."""
        messages = [trace.message for trace in turn.traces if trace.message is not None]
        if not messages:
            return False
        turn.messages = messages
        for trace in turn.traces:
            for message in filter(None, (trace.message, trace.escalation)):
                await self._delivered(message)
        return True

    async def _say(self, turn: Turn, drafts: Sequence[Draft], intent: str, state: bytes | None) -> None:
        """Commit (a): the unit's messages are durable, then told."""
        saying = turn.paths[0]

        def fields(step: Step, path: Path, draft: Draft) -> dict[str, Any]:
            nonlocal saying
            saying = path
            return self._message(step, path, draft, intent)

        steps = zip(turn.unit.steps, turn.paths, drafts, strict=True)
        records = [(Message, partial(fields, *each)) for each in steps]

        async def append() -> Sequence[Envelope[Message]]:
            return await self._journal.append_all(records, state)

        try:
            try:
                turn.messages = await append()
            except EnvelopeError as error:
                if error.code != "size.envelope" or not self._journal.owes:
                    raise
                await self._journal.settle()  # what a message would have carried, so that it has the room itself
                turn.messages = await append()
        except EnvelopeError as error:
            raise self._fault(turn, "payload", error, turn.paths.index(saying)) from error
        except StoreError as error:
            recipients = {name: peer.key for step in turn.unit.steps for name, peer in self._recipients(step).items()}
            if error.code != "store.refused" or not (unable := self._gate.unable(recipients)):
                raise
            settled = turn.settlements("failed", self._status)
            raise await self._decided(unable[0], "failed", settled) from error
        await self._moved(turn)
        for path, message in zip(turn.paths, turn.messages, strict=True):
            self._said[message.address] = path, message
            await self._delivered(message)

    def _message(self, step: Step, path: Path, draft: Draft, intent: str) -> dict[str, Any]:
        number, message_id = 1, step.id
        while self._journal.thread.has_id(message_id):
            number += 1
            message_id = f"{step.id}#{number}"
        return {
            "id": message_id,
            "intent": intent,
            "ack_required": True if intent == "assert" else None,
            "epistemic": draft.epistemic,
            "payload": draft.payload,
            "media_type": None if draft.media_type == "text/plain" else draft.media_type,
            "to": tuple(sorted(peer.key for peer in self._recipients(step).values())),
            "room": self._cast.room,
            "step": path,
            "capability": step.capability,
            "confidence": draft.confidence,
            "context": draft.context or None,
            "provenance": draft.provenance,
        }

    def _recipients(self, step: Step) -> dict[str, Peer]:
        return {name: self._cast.peers[name] for name in step.to or self._cast.peers}

    async def _acknowledged(self, turn: Turn, attempt: int | None) -> bool:
        """Commits (b): return once everybody has accepted and is confirmed; whether that became so just now."""
        asks = [
            Ask(
                message=message,
                peers=self._recipients(step),
                corrections=step.corrections,
                timeout=step.ack_timeout,
                answers=self._history.answers_to(message),
                escalation=trace.escalation,
                approvals=self._history.answers_to(trace.escalation),
                approvers=self._cast.approvers,
            )
            for step, message, trace in zip(turn.unit.steps, turn.messages, turn.traces, strict=True)
        ]
        confirmed = self._entry("confirmed", at=turn.paths, attempt=attempt)
        endings = await self._pulse.during(lambda: self._gate.ask(asks, confirmed))
        turn.acks = [MappingProxyType(ending.acks) for ending in endings]
        for message, acks in zip(turn.messages, turn.acks, strict=True):
            self._acks[message.address] = acks
        if all(ending.complete for ending in endings):
            turn.approved = True
            return not all(ask.complete for ask in asks)
        asked = [
            Asked(joined(path), ask.message, ending, ask.timeout)
            for path, ask, ending in zip(turn.paths, asks, endings, strict=True)
        ]
        settled = turn.settlements("failed", self._status)
        raise await self._endings.unconfirmed(asked, self._status, settled)

    async def _fire(self, turn: Turn) -> None:
        if turn.row is None:
            turn.attempts = [None] * len(turn.paths)
            return
        begun = max(trace.attempt for trace in turn.traces)
        if begun:
            turn.words = self._words_on(turn)
        if begun or not turn.attempt:
            await self._begin_attempt(turn, begun + 1)
        row, source = turn.row, self._status
        shots = [
            Shot(step, path, row, message.record if message else None, turn.handles, turn.attempt, begun > 0)
            for step, path, message in zip_longest(turn.unit.steps, turn.paths, turn.messages)
        ]
        results = await self._pulse.during(lambda: self._shoot(turn, shots))
        turn.attempts = [one.attempts for one in results]
        if failed := [one for one in results if isinstance(one, Unfired)]:
            first = failed[0]
            for other in failed[1:]:
                first.cause.add_note(f"besides: {type(other.cause).__name__}: {words(other.cause)}")
            raise self._fault(turn, "transition", first.cause, results.index(first)) from first.cause
        await self._take_records(turn, [one.record for one in results if isinstance(one, Hit)])
        self._status = row.target
        turn.move = source, row.trigger

    async def _shoot(self, turn: Turn, shots: Sequence[Shot]) -> Sequence[Hit | Unfired]:
        """Fire all at once, each on its own copy; a failure does not cut the others short."""
        results: dict[int, Hit | Unfired] = {}
        stops: list[BaseException] = []

        async def shoot(place: int, shot: Shot) -> None:
            try:
                results[place] = await self._shot(turn, shot)
            except BaseException as stop:  # a task group would wrap it
                stops.append(stop)
                if isinstance(stop, anyio.get_cancelled_exc_class()):
                    raise

        if len(shots) == 1:
            return [await self._shot(turn, shots[0])]
        async with anyio.create_task_group() as group:
            for place, shot in enumerate(shots):
                group.start_soon(shoot, place, shot)
        if stops:
            raise stops[0]
        return [results[place] for place in range(len(shots))]

    async def _shot(self, turn: Turn, shot: Shot) -> Hit | Unfired:
        if turn.words.get(joined(shot.path)) == "done":
            return Hit(deepcopy(self._record), turn.traces[turn.paths.index(shot.path)].attempt)
        firing = Firing(self._machine, self._journal.thread.address, self._cast.clock)
        try:
            return await firing.fire(self._status, self._record, shot, partial(self._begin_attempt, turn))
        except Unfired as failed:
            return failed

    async def _begin_attempt(self, turn: Turn, attempt: int) -> None:
        turn.attempt = attempt
        if at := [path for path in turn.paths if turn.words.get(joined(path)) != "done"]:
            await self._journal.note(self._entry("firing", at=at, attempt=attempt))

    def _words_on(self, turn: Turn) -> Mapping[str, Word]:
        """Return what the caller said of actions that were cut off and are to run once (rule D8)."""
        once = [joined(path) for step, path in zip(turn.unit.steps, turn.paths, strict=True) if step.once]
        if unsaid := [path for path in once if path not in self._words]:
            raise InDoubt(
                f"step {unsaid[0]!r} was cut off while its action ran, which is to run once, so it may be done or not: "
                f"find out, and resume with {{{unsaid[0]!r}: 'again'}} to fire it again, or 'done' to go on without"
            )
        return {path: self._words[path] for path in once}

    async def _take_records(self, turn: Turn, records: Sequence[Any]) -> None:
        assert turn.row is not None
        panel, record, what = turn.unit.panel, records[0], "transition"
        try:
            if panel is not None and panel.reducer is not None:
                what = "reducer"
                record = panel.reducer(deepcopy(self._record), list(records))
                record = await record if isawaitable(record) else record
                if type(record) is not type(self._record):
                    raise MachineError(
                        f"the reducer returned {type(record).__name__}, not {type(self._record).__name__}: "
                        "return the record",
                        code="machine.action",
                    )
                check_record(record)
            if panel is not None or turn.row.acts:
                self._text = self._shape.dump(record)
            self._record = deepcopy(record)
        except Exception as error:
            raise self._fault(turn, what, error) from error

    async def _route(self, schedule: Schedule, turn: Turn) -> Sequence[str] | None:
        step = turn.unit.steps[0]
        if step.route is None:
            return None
        try:
            said = step.route(deepcopy(self._record))
            said = await said if isawaitable(said) else said
            chosen = (said,) if isinstance(said, str) else tuple(said)
            open_to_it = [other.id for other in schedule.plan.dependents(step.id) if other.when != "failed"]
            if odd := [name for name in chosen if name not in open_to_it]:
                raise PlanError(
                    f"the route chose {odd[0]!r}: it chooses among {', '.join(open_to_it)}, the steps that need "
                    f"{step.id!r} and handle no failure",
                    code="plan.route",
                )
        except Exception as error:
            raise self._fault(turn, "route", error) from error
        return chosen

    async def _done(self, turn: Turn, settled: Settlements, **fields: Any) -> None:
        """Commit (c): the outcome is durable, then told."""
        record = self._text if self._text != turn.before[2] else None
        state = self._entry(
            "done", at=turn.paths, status=self._status, record=record, settled=settled, move=turn.move, **fields
        )
        await self._journal.note(state, settled)
        self._account(settled, fields.get("failure"))
        await self._moved(turn)
        await self._tell_done(turn.paths)

    # What came of steps, and telling it

    def _account(self, settled: Settlements, failure: Failure | None) -> None:
        for one in settled:
            address = one.get("message")
            if address is not None and address not in self._said:
                continue  # an escalation's
            path, message = self._said[address] if address is not None else (tuple(one["step"]), None)
            became = one["outcome"]
            self._outcomes[joined(path)] = Outcome(
                joined(path),
                one["status"],
                message,
                self._acks.get(address or b"", MappingProxyType({})),
                one.get("attempts"),
                became,
                failure if became == "failed" else None,
            )

    def _remember(self) -> None:
        """Take in what the history tells of outcomes."""
        names = {member["key"]: member["name"] for member in self._cast.members()}
        for path, trace in self._history.traces.items():
            if trace.message is None:
                continue
            self._said[trace.message.address] = path, trace.message
            answers = {**self._history.answers_to(trace.message), **self._history.answers_to(trace.escalation)}
            acks = {names.get(key, did_key(key)): given[-1][0] for key, given in answers.items()}
            self._acks[trace.message.address] = MappingProxyType(acks)
        for one in self._history.entries:
            settled = [entry.model_dump(exclude_none=True) for entry in one.settled]
            self._account(settled, one.failed_with if one.failure else None)

    async def _tell_again(self, last: Entry) -> None:
        """Tell of the last outcome once more: nobody knows whether it was told before the run was cut off."""
        if last.phase == "done":
            if last.move is not None:
                await self._tell_move(last.at[0], last.move, last.status)
            await self._tell_done(last.at)

    async def _tell_done(self, paths: Sequence[Path]) -> None:
        for path in paths:
            outcome = self._outcomes[joined(path)]
            message = outcome.message
            await self._emit(STEP_COMPLETED, message.address if message else None, outcome=outcome)

    async def _moved(self, turn: Turn) -> None:
        """Tell that a row was fired, once that is durable."""
        if turn.move is not None:
            move, turn.move = turn.move, None
            await self._tell_move(turn.paths[0], move, self._status)

    async def _tell_move(self, path: Path, move: Sequence[str], target: str | None) -> None:
        source, trigger = move
        await self._emit(MACHINE_MOVE, None, step=joined(path), source=source, trigger=trigger, target=target)

    async def _delivered(self, message: Envelope[Message]) -> None:
        await self._emit(MESSAGE_DELIVERED, message.address, message=message)

    async def _emit(self, name: str, of: bytes | None, **data: Any) -> None:
        await self._cast.bus.emit(Event(name, {"thread": self._journal.name, **data}, of))

    # Small things

    def _fault(self, turn: Turn, what: str, error: Exception, place: int = 0) -> Fault:
        """Return the failure of a unit's step in that place."""
        attempts = turn.attempts[place] if turn.attempts else None
        failure = Failure(joined(turn.paths[place]), short(type(error).__name__), short(words(error)), attempts)
        text = f"step {failure.step!r}: its {what} failed: {type(error).__name__}: {words(error)}"
        return Fault(failure, text, error)

    async def _decided(self, error: FlowError, outcome: str, settled: Settlements = ()) -> FlowError:
        ended = await self._endings.decided(error, outcome, self._status, settled)
        if self._turn is not None:
            await self._moved(self._turn)
        return ended

    def _entry(self, phase: Phase, **fields: Any) -> bytes:
        return entry(self._run, phase, **fields)

    def _sealed(self, status: str, error: FlowError, settled: Settlements) -> bytes:
        said = {"error": type(error).__name__, "code": error.code, "text": short(str(error.args[0]))}
        stands = {"status": status, "record": self._text, "step": self._at}
        return self._entry("sealed", settled=settled or None, **stands, **said)

    def _load(self, one: Entry) -> None:
        """Stand where an entry says."""
        if one.status is not None:
            self._status = one.status
        if one.record is not None:
            self._text, self._record = one.record, self._shape.load(one.record)


_GATES: Final[Mapping[str, Callable[[Runner, Turn], Awaitable[None]]]] = {
    "before": Runner._before,
    "after": Runner._after,
    "none": Runner._none,
}
