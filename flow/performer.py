"""Performing a unit: its gate, and the parts that gates are made of.

A failure that a fallback may handle leaves it as a `Fault`; of every other ending the thread says all that it is to say
when it is raised.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from itertools import zip_longest
from typing import Any, Final

import anyio

from envelope import Envelope, EnvelopeError, Message
from flow.cast import Cast
from flow.endings import Asked, Endings, Settlements, words
from flow.errors import FlowError, InDoubt, MachineError, NoTransition, OverBudget, PlanError, StoreError
from flow.firing import Firing, Hit, Shot, Unfired
from flow.gate import Ask, Gate
from flow.journal import Journal
from flow.ledger import Ledger
from flow.machine import Machine, check_record
from flow.peers import Peer
from flow.plan import Draft, Step
from flow.progress import History, Path
from flow.pulse import Pulse
from flow.run import joined
from flow.schedule import Schedule
from flow.standing import Standing
from flow.turn import Turn, Word

Note = Callable[..., bytes]
"""`note(phase, **fields)` makes an entry of private state."""


@dataclass(slots=True)
class Performer:
    """What performing takes; `words` are what the caller says of actions in doubt, by path."""

    cast: Cast
    machine: Machine
    journal: Journal
    history: History
    here: Standing
    ledger: Ledger
    endings: Endings
    pulse: Pulse
    note: Note
    words: Mapping[str, Word]

    @property
    def _gate(self) -> Gate:
        return Gate(self.journal, self.cast.judge, self.cast.bus, self.cast.clock)

    async def perform(self, schedule: Schedule, turn: Turn) -> Sequence[str] | None:
        """Take a unit through its gate and its route; return what the route chose, or None without one.

        Raises:
            Fault: a failure that a fallback may handle.
            Exception: what the run ends with.
        """
        await _GATES[turn.unit.steps[0].gate](self, turn)
        return await self._route(schedule, turn)

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
        else:  # with the last confirmation the firing may have begun, whatever the state says of it
            for trace in turn.traces:
                trace.attempt = max(trace.attempt, 1)
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
            state = self.note(
                "fired",
                at=turn.paths,
                status=self.here.status,
                record=self.here.text,
                attempts=turn.attempts[0],
                move=turn.move,
            )
            await self._say(turn, drafts, "assert", state)
        else:
            self.here.load(fired)
            turn.attempts, turn.move = [fired.attempts], fired.move
            await self.ledger.moved(turn, self.here.status)
            await self._said_already(turn)
        await self._acknowledged(turn, attempt=None)

    async def _none(self, turn: Turn) -> None:
        """Fired, and entered in the thread without a message (rule R26)."""
        await self._aim(turn)
        await self._fire(turn)

    # The parts of a unit

    async def _aim(self, turn: Turn) -> None:
        if turn.unit.steps[0].sub is not None and turn.target == self.here.status:
            return
        rows = self.machine.rows_to(self.here.status, turn.target)
        if len(rows) != 1:
            error = NoTransition(
                f"{len(rows)} rows lead from {self.here.status!r} to {turn.target!r}, the target of step "
                f"{turn.name!r}: a run takes the only one"
            )
            raise await self._decided(turn, error, "failed")
        turn.row = rows[0]

    async def _drafts(self, turn: Turn) -> Sequence[Draft]:
        drafts = []
        for place, step in enumerate(turn.unit.steps):
            try:
                drafts.append(await step.draft(self.here.record))
            except Exception as error:
                raise turn.fault("payload", error, place) from error
        return drafts

    async def _afford(self, turn: Turn, drafts: Sequence[Draft], *, fired: bool = False) -> None:
        thread = self.journal.thread
        size = sum(len(draft.payload.encode()) for draft in drafts)
        if not self.cast.limits.fits(thread.used_bytes, thread.used_messages, size, len(turn.paths)):
            error = OverBudget(
                f"step {turn.name!r} would say {size} bytes more in {len(turn.paths)} messages; said so far: "
                f"{thread.used_bytes} bytes in {thread.used_messages} messages; the limits are {self.cast.limits}"
            )
            settled = turn.settlements("failed", self.here.status) if fired else ()
            raise await self._decided(turn, error, "over_budget", settled)

    async def _said_already(self, turn: Turn) -> bool:
        """Take up the messages that were durable before this run went on, and tell of them again."""
        messages = [trace.message for trace in turn.traces if trace.message is not None]
        if not messages:
            return False
        turn.messages = messages
        for trace in turn.traces:
            for message in filter(None, (trace.message, trace.escalation)):
                await self.ledger.delivered(message)
        return True

    async def _say(self, turn: Turn, drafts: Sequence[Draft], intent: str, state: bytes | None) -> None:
        """Commit (a): the unit's messages are durable, then told."""
        saying = 0

        def fields(place: int) -> dict[str, Any]:
            nonlocal saying
            saying = place
            return self._message(turn.unit.steps[place], turn.paths[place], drafts[place], intent)

        records = [(Message, partial(fields, place)) for place in range(len(drafts))]

        async def append() -> Sequence[Envelope[Message]]:
            return await self.journal.append_all(records, state)

        try:
            try:
                turn.messages = await append()
            except EnvelopeError as error:
                if error.code != "size.envelope" or not self.journal.owes:
                    raise
                await self.journal.settle()  # what a message would have carried, so that it has the room itself
                turn.messages = await append()
        except EnvelopeError as error:
            raise turn.fault("payload", error, saying) from error
        except StoreError as error:
            recipients = {name: peer.key for step in turn.unit.steps for name, peer in self._recipients(step).items()}
            if error.code != "store.refused" or not (unable := self._gate.unable(recipients)):
                raise
            settled = turn.settlements("failed", self.here.status)
            raise await self._decided(turn, unable[0], "failed", settled) from error
        await self.ledger.moved(turn, self.here.status)
        for path, message in zip(turn.paths, turn.messages, strict=True):
            self.ledger.said(path, message)
            await self.ledger.delivered(message)
        thread = self.journal.thread
        if self.cast.limits.is_low(thread.used_bytes, thread.used_messages):
            await self.ledger.budget_low(self.cast.limits, thread.used_bytes, thread.used_messages)

    def _message(self, step: Step, path: Path, draft: Draft, intent: str) -> dict[str, Any]:
        number, message_id = 1, step.id
        while self.journal.thread.has_id(message_id):
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
            "room": self.cast.room,
            "step": path,
            "capability": step.capability,
            "confidence": draft.confidence,
            "context": draft.context or None,
            "provenance": draft.provenance,
        }

    def _recipients(self, step: Step) -> dict[str, Peer]:
        return {name: self.cast.peers[name] for name in step.to or self.cast.peers}

    async def _acknowledged(self, turn: Turn, attempt: int | None) -> bool:
        """Commits (b): return once everybody has accepted and is confirmed; whether that became so just now."""
        asks = [
            Ask(
                message=message,
                peers=self._recipients(step),
                corrections=step.corrections,
                timeout=step.ack_timeout,
                answers=self.history.answers_to(message),
                escalation=trace.escalation,
                approvals=self.history.answers_to(trace.escalation),
                approvers=self.cast.approvers,
            )
            for step, message, trace in zip(turn.unit.steps, turn.messages, turn.traces, strict=True)
        ]
        confirmed = self.note("confirmed", at=turn.paths, attempt=attempt)
        endings = await self.pulse.during(lambda: self._gate.ask(asks, confirmed))
        for message, ending in zip(turn.messages, endings, strict=True):
            self.ledger.answered(message, ending.acks)
        if all(ending.complete for ending in endings):
            turn.approved = True
            return not all(ask.complete for ask in asks)
        asked = [
            Asked(joined(path), ask.message, ending, ask.timeout)
            for path, ask, ending in zip(turn.paths, asks, endings, strict=True)
        ]
        settled = turn.settlements("failed", self.here.status)
        raise await self.endings.unconfirmed(asked, self.here.status, settled)

    async def _fire(self, turn: Turn) -> None:
        if turn.row is None:
            turn.attempts = [None] * len(turn.paths)
            return
        begun = max(trace.attempt for trace in turn.traces)
        if begun:
            turn.words = self._words_on(turn)
        if begun or not turn.attempt:
            await self._begin_attempt(turn, begun + 1)
        row, source = turn.row, self.here.status
        shots = [
            Shot(step, path, row, message.record if message else None, turn.handles, turn.attempt, begun > 0)
            for step, path, message in zip_longest(turn.unit.steps, turn.paths, turn.messages)
        ]
        results = await self.pulse.during(lambda: self._shoot(turn, shots))
        turn.attempts = [one.attempts for one in results]
        if failed := [one for one in results if isinstance(one, Unfired)]:
            first = failed[0]
            for other in failed[1:]:
                first.cause.add_note(f"besides: {type(other.cause).__name__}: {words(other.cause)}")
            raise turn.fault("transition", first.cause, results.index(first)) from first.cause
        await self._take_records(turn, [one.record for one in results if isinstance(one, Hit)])
        self.here.status = row.target
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
            return Hit(deepcopy(self.here.record), turn.traces[turn.paths.index(shot.path)].attempt)
        firing = Firing(self.machine, self.journal.thread.address, self.cast.clock)
        try:
            return await firing.fire(self.here.status, self.here.record, shot, partial(self._begin_attempt, turn))
        except Unfired as failed:
            return failed

    async def _begin_attempt(self, turn: Turn, attempt: int) -> None:
        turn.attempt = attempt
        if at := [path for path in turn.paths if turn.words.get(joined(path)) != "done"]:
            await self.journal.note(self.note("firing", at=at, attempt=attempt))

    def _words_on(self, turn: Turn) -> Mapping[str, Word]:
        """Return what the caller said of actions that were cut off and are to run once (rule D8)."""
        once = [joined(path) for step, path in zip(turn.unit.steps, turn.paths, strict=True) if step.once]
        if unsaid := [path for path in once if path not in self.words]:
            others = sorted(set(self.words) - set(once))
            raise InDoubt(
                f"step {unsaid[0]!r} was cut off while its action ran, which is to run once, so it may be done or not: "
                f"find out, and resume with in_doubt={{{unsaid[0]!r}: 'again'}} (--in-doubt {unsaid[0]}=again) to fire "
                "it again, or with 'done' to go on without"
                + (f"; what was said of {others[0]!r} is no answer to that" if others else "")
            )
        return {path: self.words[path] for path in once}

    async def _take_records(self, turn: Turn, records: Sequence[Any]) -> None:
        assert turn.row is not None
        panel, record, what = turn.unit.panel, records[0], "transition"
        try:
            if panel is not None and panel.reducer is not None:
                what = "reducer"
                record = panel.reducer(deepcopy(self.here.record), list(records))
                record = await record if isawaitable(record) else record
                if type(record) is not type(self.here.record):
                    raise MachineError(
                        f"the reducer returned {type(record).__name__}, not {type(self.here.record).__name__}: "
                        "return the record",
                        code="machine.action",
                    )
                check_record(record)
                record = deepcopy(record)
            if panel is not None or turn.row.acts:
                self.here.write_down(record)
            self.here.record = record
        except Exception as error:
            raise turn.fault(what, error) from error

    async def _route(self, schedule: Schedule, turn: Turn) -> Sequence[str] | None:
        step = turn.unit.steps[0]
        if step.route is None:
            return None
        try:
            said = step.route(deepcopy(self.here.record))
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
            raise turn.fault("route", error) from error
        return chosen

    async def _decided(self, turn: Turn, error: FlowError, outcome: str, settled: Settlements = ()) -> FlowError:
        ended = await self.endings.decided(error, outcome, self.here.status, settled)
        await self.ledger.moved(turn, self.here.status)
        return ended


_GATES: Final[Mapping[str, Callable[[Performer, Turn], Awaitable[None]]]] = {
    "before": Performer._before,
    "after": Performer._after,
    "none": Performer._none,
}
