"""The scheduler: one unit of a plan after the other, each told, acknowledged and fired in the order that `spec/flow.md`
sets.

A unit's three commits are (a) its messages, (b) each ack with its ruling, (c) its outcome. What is durable of a run
that was cut off is its `History`: a unit whose outcome is recorded is not taken again, and one that was under way goes
on behind its last commit. What ends a run early is `flow.endings`'.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from inspect import isawaitable
from types import MappingProxyType
from typing import Any

from envelope import Envelope, PublicKey, Seal, address_text, did_key
from flow import evidence
from flow.bus import THREAD_VERIFIED
from flow.cast import Cast
from flow.endings import SEALED_AS, Endings, Settlements, short
from flow.errors import (
    Cancelled,
    FlowError,
    InvalidThread,
    MachineError,
    StepFailed,
    StoreError,
    Superseded,
)
from flow.firing import call_key
from flow.journal import Journal
from flow.ledger import Ledger
from flow.machine import Call, Machine
from flow.performer import Performer
from flow.plan import Loop, Plan, Step
from flow.progress import Entry, History, Path, Phase, damaged, entry, read_entry
from flow.pulse import Pulse
from flow.run import Run, ThreadCopy
from flow.schedule import Schedule
from flow.standing import Standing
from flow.store import IMPORTED
from flow.turn import Fault, Turn, Word


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
        self._here = Standing(machine.initial, record)
        self._run = secrets.token_bytes(8)
        self._history = History()
        self._journal = Journal(cast.store, name, cast.identity, cast.clock)
        self._ledger = Ledger(cast.bus, name)
        self._endings = Endings(self._journal, cast.approvers, cast.room, self._sealed, self._ledger.delivered)
        self._pulse = Pulse(cast.heartbeat, f"{cast.identity.did}:{name}", cast.clock)
        self._words: Mapping[str, Word] = {}
        self._at: str | None = None
        self._under_way = False  # until then, what is raised is not how a run ended

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

    async def _to_the_end(self, begin: Callable[[], Awaitable[FlowError | None]]) -> Run:
        try:
            if (ended := await begin()) is not None:
                raise ended
            if self._journal.thread.outcome is None:
                await self._whole_plan()
            return await self._finished()
        except Exception as error:
            if not self._under_way:
                raise
            if isinstance(error, FlowError):
                error.standing(
                    status=self._here.status, record=self._here.record, step=self._at, thread=await self._copy()
                )
            if self._journal.thread.outcome is None:
                place = f"in step {self._at!r}" if self._at else "between steps"
                error.add_note(f"{place} of the thread {self._journal.name!r}, which this run did not seal")
            raise
        finally:
            if self._under_way:
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
        self._under_way = True
        try:
            await self._journal.begin(fields, self._entry("begun", plan=self._plan_address, record=self._here.text))
        except StoreError as error:
            self._under_way = error.code != "store.exists"
            raise

    async def _go_on(self, words: Mapping[str, Word], seen: bytes | None) -> FlowError | None:
        """Take in what is durable (rules D1 to D14). Return what the run ended with, if it is over and failed."""
        envelopes, states = await self._journal.go_on(seen)
        imported = [state.data for state in states[:1]] == [IMPORTED]
        entries = [] if imported else [read_entry(state.data, number) for number, state in enumerate(states)]
        self._check_same_run(entries)
        self._words = words
        mine = self._cast.identity.public_key
        self._history = History(envelopes, entries, mine)
        owed = self._history.owed()
        evidence.check(self._history, self._plan, self._machine.initial)
        if entries[-1].phase == "sealed" and (owed or envelopes[-1].kind != "seal" or envelopes[-1].signer != mine):
            raise damaged("it is sealed, and its thread is not, or otherwise")
        self._journal.carry(owed)
        self._here.load(entries[0])
        names = {member["key"]: member["name"] for member in self._cast.members()}
        self._ledger.remember(self._history, names)
        if self._journal.thread.outcome is None:
            if self._journal.thread.role(self._cast.identity.public_key) != "moderator":
                raise Superseded(f"the key of this run is no moderator of the thread {self._journal.name!r} any more")
            await self._journal.note(self._entry("resumed"))
            self._under_way = True
            await self._ledger.tell_again([one for one in entries if one.phase != "resumed"][-1])
            return None
        ended = self._take_seal(entries, envelopes[-1])
        self._under_way = True
        return ended

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
        if opening.record.name != name:
            raise damaged(f"its thread was begun as {opening.record.name!r}, and not as {name!r}")
        if any(one.phase == "begun" for one in entries[1:]) or any(one.phase == "sealed" for one in entries[:-1]):
            raise damaged("it begins, or ends, more than once")
        if {opening.record.plan, entries[0].plan} != {self._plan_address}:
            raise FlowError(
                f"the thread {name!r} was begun with the plan {address_text(opening.record.plan or b'')}, and this is "
                f"{address_text(self._plan_address)}: resume it with the plan, machine, limits and judge it "
                "had then, or run what is new under another name",
                code="run.plan",
            )
        given = [(member["key"], member["role"], member["name"]) for member in self._cast.members()]
        there = [(member.key, member.role, member.name) for member in opening.record.members]
        if given != there:
            raise FlowError(
                f"the thread {name!r} was begun with other members: there {_difference(there, given)}; resume it with "
                "the peers, approvers and card name that it was begun with",
                code="run.peers",
            )
        if opening.record.room != self._cast.room:
            raise FlowError(
                f"the thread {name!r} is in the room {opening.record.room!r}: resume it there", code="run.room"
            )

    def _take_seal(self, entries: Sequence[Entry], seal: Envelope[Any]) -> FlowError | None:
        """Stand where the run ended; return what it ended with, unless it was completed."""
        last = entries[-1]
        if last.phase != "sealed":
            if seal.record.outcome == "cancelled" and seal.signer == self._cast.identity.public_key:
                return self._closed(entries, seal.record.reason)
            raise Superseded(f"the thread {self._journal.name!r} is sealed, and not by its run: read it there")
        kind = next((kind for kind in SEALED_AS if kind.__name__ == last.error), None)
        said = "completed" if last.error is None else SEALED_AS.get(kind) if kind else None
        if (said, last.status) != (seal.record.outcome, seal.record.status) or (
            kind and kind.default_code != last.code
        ):
            raise damaged(f"the seal says {seal.record.outcome}, in status {seal.record.status!r}")
        self._here.load(last)
        self._at = last.step
        return kind(last.text or "") if kind is not None else None

    def _closed(self, entries: Sequence[Entry], reason: object) -> Cancelled:
        """Stand where the run was when its owner gave it up; return what it ended with (rule W7)."""
        for one in entries:
            if one.phase == "done" and one.outcome == "succeeded" and all(len(path) == 1 for path in one.at):
                self._here.load(one)
        why = f": {reason}" if isinstance(reason, str) else ""
        return Cancelled(f"the thread {self._journal.name!r} was closed before its plan was done{why}")

    async def _whole_plan(self) -> None:
        self._performer = Performer(
            self._cast,
            self._machine,
            self._journal,
            self._history,
            self._here,
            self._ledger,
            self._endings,
            self._pulse,
            self._entry,
            self._words,
        )
        try:
            await self._level(self._plan, ())
        except Fault as fault:
            self._at = fault.failure.step
            error = StepFailed(fault.text)
            raise await self._endings.decided(error, "failed", self._here.status, fault.settled) from fault.cause
        self._at = None
        state = self._entry("sealed", status=self._here.status, record=self._here.text)
        await self._journal.append(Seal, lambda: {"outcome": "completed", "status": self._here.status}, state)

    async def _finished(self) -> Run:
        records = tuple(await self._journal.records())
        copy = ThreadCopy(self._journal.name, self._journal.thread.address, records)
        verdict = copy.verify(trust=None, thread=copy.address, now=self._cast.clock.now_ms())
        if (verdict.integrity, verdict.completeness, verdict.outcome) != ("valid", "sealed", "completed"):
            raise InvalidThread(f"the sealed thread {copy.name!r} does not verify: {verdict}; keep it and the store")
        if any(outcome.message for outcome in self._ledger.outcomes.values()):
            await self._ledger.emit(THREAD_VERIFIED, copy.address, copy=copy, verdict=verdict)
        return Run(self._here.status, self._here.record, MappingProxyType(self._ledger.outcomes), copy)

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
            turn = Turn(unit, paths, traces, schedule.failure_for(unit.steps[0]), self._here.now)
            self._at = turn.name
            if (done := traces[0].done) is None:
                await self._take(schedule, turn)
            elif done.outcome == "succeeded":
                self._here.load(done)
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
            chosen = await self._performer.perform(schedule, turn)
        except Fault as fault:
            self._here.back(turn.before)
            turn.move = None
            settled = [*fault.settled, *turn.settlements("failed", self._here.status)]
            if not schedule.catches(turn.unit):
                raise Fault(fault.failure, fault.text, fault.cause, settled) from fault
            settled += self._skips(turn, schedule.failed(turn.unit, fault.failure))
            await self._done(turn, settled, outcome="failed", failure=fault.failure)
        else:
            settled = turn.settlements("succeeded", self._here.status)
            settled += self._skips(turn, schedule.succeeded(turn.unit, chosen))
            await self._done(turn, settled, outcome="succeeded", chosen=chosen)

    def _skips(self, turn: Turn, steps: Sequence[Step]) -> list[dict[str, Any]]:
        return [
            {"step": (*turn.paths[0][:-1], step.id), "outcome": "skipped", "status": self._here.status}
            for step in steps
        ]

    async def _rounds(self, turn: Turn, step: Step, sub: Plan) -> str:
        """Run the sub-plan of a step, as often as its loop says; return the status that it ends in."""
        path, number = turn.paths[0], 1
        while True:
            inside = path if number == 1 else (*path[:-1], f"{path[-1]}#{number}")
            self._here.status, self._here.record = self._machine.initial, deepcopy(self._here.record)
            await self._level(sub, inside)
            self._at = turn.name
            if step.loop is None or number == step.loop.max or not await self._again(turn, step.loop, inside, number):
                break
            number += 1
        status, self._here.status = self._here.status, turn.before[0]
        return status

    async def _again(self, turn: Turn, loop: Loop, inside: Path, number: int) -> bool:
        if (known := turn.traces[0].rounds.get(number)) is not None:
            return known
        call = Call(inside, call_key(self._journal.thread.address, inside, "loop"), failure=turn.handles)
        try:
            again = loop.guard(deepcopy(self._here.record), call)
            again = await again if isawaitable(again) else again
            if not isinstance(again, bool):
                raise MachineError(f"the loop's guard returned {again!r}: return True or False", code="machine.guard")
        except Exception as error:
            raise turn.fault("loop's guard", error) from error
        await self._journal.note(self._entry("round", at=turn.paths, round=number, again=again))
        return again

    async def _done(self, turn: Turn, settled: Settlements, **fields: Any) -> None:
        """Commit (c): the outcome is durable, then told."""
        record = self._here.text if self._here.text != turn.before[2] else None
        state = self._entry(
            "done", at=turn.paths, status=self._here.status, record=record, settled=settled, move=turn.move, **fields
        )
        await self._journal.note(state, settled)
        self._ledger.account(settled, fields.get("failure"))
        await self._ledger.moved(turn, self._here.status)
        await self._ledger.tell_done(turn.paths)

    def _entry(self, phase: Phase, **fields: Any) -> bytes:
        return entry(self._run, phase, **fields)

    def _sealed(self, status: str, error: FlowError, settled: Settlements) -> bytes:
        said = {"error": type(error).__name__, "code": error.code, "text": short(str(error.args[0]))}
        stands = {"status": status, "record": self._here.text, "step": self._at}
        return self._entry("sealed", settled=settled or None, **stands, **said)


_Member = tuple[PublicKey, str, str]


def _difference(there: Sequence[_Member], given: Sequence[_Member]) -> str:
    """Say what the first member is that only one side has, on each."""
    sides = []
    for members, others in ((there, given), (given, there)):
        only = [
            f"{name!r} is {role} with {did_key(key)}" for key, role, name in members if (key, role, name) not in others
        ]
        sides.append(only[0] if only else "is nobody else")
    return f"{sides[0]}, and here {sides[1]}"
