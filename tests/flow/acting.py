"""Acts a case out: a plan, a machine and recipients that do what the script says, and what a real run of them leaves,
in the words of the model."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import anyio
import anyio.lowlevel

from envelope import Ack, Envelope, Identity, Message, PublicKey, open_envelope, sign_record, verify_thread
from flow import (
    Agent,
    Call,
    Confirm,
    Correct,
    Delivery,
    Escalated,
    Event,
    FlowError,
    Limits,
    Loop,
    Machine,
    MemoryStore,
    Panel,
    Plan,
    Retry,
    Run,
    Step,
    ThreadStore,
    Transition,
)
from flow.bus import ACK_DUE, MACHINE_MOVE, MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED
from flow.machine import Failure
from flow.plan import Draft
from flow.testing import Crash, FakeClock, RecordingBus
from tests.flow.model import (
    PEERS,
    SECOND,
    STATUSES,
    Became,
    Case,
    Fault,
    Group,
    Line,
    Part,
    Path,
    Script,
    Settled,
    Story,
    nth,
    visit,
)
from tests.flow.stage import ANNA, BEN, CARA, CARD, DORA, EMIL, OWNER, STRANGER, Watched

IDENTITIES: Mapping[str, Identity] = {"anna": ANNA, "ben": BEN, "cara": CARA, "dora": DORA, "emil": EMIL}
NAMES: Mapping[PublicKey, str] = {who.public_key: name for name, who in IDENTITIES.items()}
HORIZON = 7 * 86_400.0


class Broken(Exception):
    """What goes wrong where the script says so."""


opened = lru_cache(8192)(open_envelope)


class Recipient:
    """A `flow.Peer` that answers by the script, from nothing but what it is handed; only what it answered in vain it
    remembers."""

    def __init__(self, who: str, case: Case, clock: FakeClock) -> None:
        self._who = who
        self._identity = IDENTITIES[who]
        self._case = case
        self._clock = clock
        self._vain: Counter[tuple[bytes, int]] = Counter()

    @property
    def key(self) -> PublicKey:
        return self._identity.public_key

    async def ack(self, delivery: Delivery) -> Any:
        message = delivery.message
        path = message.record.step
        assert path is not None
        answer = nth(part_at(self._case.script, path).answers, visit(path))[self._who]
        rounds = [
            one
            for one in map(opened, await delivery.history())
            if one.kind == "ack" and one.signer == self.key and one.record.message == message.address
        ]
        now = answer.round(len(rounds))
        await self._clock.sleep(answer.pace / SECOND)
        right: dict[str, Any] = {
            "message": message.address,
            "after": delivery.correction.address if delivery.correction else None,
        }
        right |= {"restatement": f"{now.word}|{now.thinks}", "answer": "decline" if now.word == "decline" else "accept"}
        if self._vain[message.address, len(rounds)] < len(now.junk):
            self._vain[message.address, len(rounds)] += 1
            return self._junk(now.junk[self._vain[message.address, len(rounds)] - 1], delivery, right)
        match now.word:
            case "silence":
                await self._clock.sleep(10 * HORIZON)
            case "raise":
                raise Broken("broken")
            case "escalate":
                raise Escalated("ask")
        return self._signed(delivery, right)

    def _signed(self, delivery: Delivery, fields: dict[str, Any], who: Identity | None = None) -> Envelope[Ack]:
        thread = {"thread": delivery.message.record.thread}
        return sign_record(Ack, who or self._identity, sent_at=self._clock.now_ms(), **{**thread, **fields})

    def _junk(self, kind: str, delivery: Delivery, right: dict[str, Any]) -> Any:
        match kind:
            case "stranger":
                return self._signed(delivery, right, STRANGER)
            case "colleague":
                return self._signed(delivery, right, BEN if self._identity is ANNA else ANNA)
            case "other bytes":
                return self._signed(delivery, right | {"message": bytes(32)})
            case "other thread":
                return self._signed(delivery, right | {"thread": bytes(32)})
            case "stale":
                return self._signed(delivery, right | {"after": bytes(32)})
            case "bent":
                ack = self._signed(delivery, right)
                return ack._replace(raw=ack.raw[:-1] + bytes([ack.raw[-1] ^ 1]))
            case "message":
                return delivery.message
        return "understood"


def part_at(script: Script, path: Sequence[str]) -> Part:
    """Return the step at a path."""
    name, *inside = path
    part = next(part for part in script.parts if part.id == name.partition("#")[0])
    if not inside:
        return part
    assert part.sub is not None
    return part_at(part.sub, inside)


class Theatre:
    """A case on a stage: everything that its run takes.

    Attributes:
        calls: how often each function was called, as of `Story`.
        reads: what handlers were handed.
        keys: the keys of calls, by path and slot.
        effects: the path and the key of each action that was done outside, in order.
        acting: awaited before and after each action is done outside.
    """

    def __init__(self, case: Case, store: ThreadStore | None = None, clock: FakeClock | None = None) -> None:
        self.case = case
        self.clock = clock or FakeClock()
        self.bus = RecordingBus()
        self.monitor = Watched(25.0)
        self.store = store or MemoryStore()
        self.calls: Counter[Any] = Counter()
        self.reads: dict[str, Fault | None] = {}
        self.keys: dict[tuple[Path, str], set[bytes]] = {}
        self.effects: list[tuple[Path, bytes]] = []
        self.acting: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self.plan = self._plan(case.script, "")
        self.machine = self._machine()
        self.agent = Agent(OWNER, CARD, self.plan)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "peers": {who: Recipient(who, self.case, self.clock) for who in PEERS},
            "judge": self.judge,
            "approvers": {who: IDENTITIES[who].public_key for who in self.case.approvers},
            "limits": Limits(*self.case.caps),
            "store": self.store,
            "bus": self.bus,
            "heartbeat": self.monitor if self.case.heart else None,
            "clock": self.clock,
        }

    async def judge(self, message: Message, ack: Ack) -> Any:
        word, _, thinks = str(ack.restatement).partition("|")
        if thinks != "0":
            await self.clock.sleep(int(thinks) / SECOND)
        match word:
            case "judge raises":
                raise Broken("broken")
            case "hand it on":
                raise Escalated("ask")
        return Correct("not that") if word == "wrong" else Confirm()

    async def run(self) -> Run:
        return await self.agent.run("t", self.machine, {"log": []}, nonce=bytes(16), **self.options)

    async def resume(self, **options: Any) -> Run:
        return await self.agent.resume("t", self.machine, {"log": []}, **{**self.options, **options})

    # What a row does

    def _machine(self) -> Machine:
        does: dict[str, Any] = {"guard": self.guard, "exit": self.leave, "entry": self.enter}
        rows = [
            Transition(
                f"s{source}",
                f"to-{target}-{number}",
                f"s{target}",
                **{name: does[slot] for slot, name in SLOTS.items() if slot in slots},
            )
            for source, target in product(STATUSES, STATUSES)
            for number, slots in enumerate(self.case.rows(source, target))
        ]
        return Machine("s0", rows)

    def guard(self, record: Any, call: Call) -> Any:
        record["log"].append("spoiled")
        word = self._called("guard", call)
        if word == "guard":
            raise Broken("broken")
        return 1 if word == "odd" else word != "no"

    async def leave(self, record: Any, call: Call) -> Any:
        return await self._act("exit", record, call)

    async def enter(self, record: Any, call: Call) -> Any:
        return await self._act("entry", record, call)

    async def _act(self, slot: str, record: Any, call: Call) -> Any:
        word = self._called(slot, call)
        part = part_at(self.case.script, call.step)
        await self.acting()
        self.effects.append((call.step, call.key))
        await self.acting()
        if part.takes:
            await self.clock.sleep(part.takes / SECOND)
        record["log"].append(f"{'/'.join(call.step)}:{slot}")
        if word == slot:
            raise Broken("broken")
        return [record] if (slot, word) == ("entry", "type") else record

    def _called(self, slot: str, call: Call) -> str:
        part = part_at(self.case.script, call.step)
        self.calls[call.step, slot, call.attempt] += 1
        self.reads["/".join(call.step)] = fault(call.failure)
        self.keys.setdefault((call.step, slot), set()).add(call.key)
        assert (call.message is None) == (part.gate != "before")
        if call.message is not None:
            assert call.message.step == call.step
        words = nth(part.firing, visit(call.step))
        return str(words[min(call.attempt, len(words)) - 1])

    # What a plan does

    def _plan(self, script: Script, above: str) -> Plan:
        steps = [self._step(part, f"{above}{number}_") for number, part in enumerate(script.parts)]
        panels = [
            Panel(panel.steps, self._reducer(script, panel, f"{above}{number}"))
            for number, panel in enumerate(script.panels)
        ]
        return Plan(steps, panels)

    def _step(self, part: Part, place: str) -> Step:
        fields: dict[str, Any] = {"needs": part.needs, "gate": part.gate, "when": part.when, "once": part.once}
        if part.gate != "none":
            fields |= {"to": part.to, "corrections": part.corrections}
            fields["payload_from" if part.says else "payload"] = self._says(part, place)
            fields["ack_timeout"] = None if part.timeout is None else part.timeout / SECOND
        if part.attempts > 1:
            fields["retry"] = Retry(part.attempts, delay=1.0, jitter=50)
        if part.route is not None:
            fields["route"] = self._route(part, place)
        if part.sub is None:
            return Step(part.id, target=f"s{part.target}", **fields)
        if part.rounds is not None:
            fields["loop"] = Loop(part.rounds[0], self._loop(part, place))
        return Step(part.id, sub=self._plan(part.sub, place), **fields)

    def _says(self, part: Part, place: str) -> Any:
        if not part.says:
            return "x" * part.size

        async def says(record: Any) -> Any:
            self.calls["says", part.id] += 1
            word, text = nth(part.says, len(record["log"])), f"{'x' * part.size}{len(record['log'])}"
            record["log"].append("spoiled")
            if word == "raise":
                raise Broken("broken")
            return {"text": text, "draft": Draft(text, confidence=50)}.get(word, 7)

        return named(says, f"says_{place}")

    def _route(self, part: Part, place: str) -> Any:
        def route(record: Any) -> Any:
            self.calls["route", part.id] += 1
            assert part.route is not None
            word = nth(part.route, len(record["log"]))
            record["log"].append("spoiled")
            if word == ("!raise",):
                raise Broken("broken")
            if word == ("!stranger",):
                return [part.id]
            return 7 if word == ("!odd",) else word[0] if len(word) == 1 else list(word)

        return named(route, f"route_{place}")

    def _loop(self, part: Part, place: str) -> Any:
        async def guard(record: Any, call: Call) -> Any:
            self.calls["loop", "/".join(call.step)] += 1
            self.keys.setdefault((call.step, "loop"), set()).add(call.key)
            assert part.rounds is not None
            word = nth(part.rounds[1], len(record["log"]))
            record["log"].append("spoiled")
            if word == "raise":
                raise Broken("broken")
            return {"on": True, "stop": False}.get(word, 1)

        return named(guard, f"loop_{place}")

    def _reducer(self, script: Script, panel: Group, place: str) -> Any:
        if panel.reducer is None:
            return None
        words = panel.reducer
        first = next(part.id for part in script.parts if part.id in panel.steps)

        async def reduce(original: Any, records: Sequence[Any]) -> Any:
            self.calls["reducer", first] += 1
            start = len(original["log"])
            if (word := nth(words, start)) == "raise":
                raise Broken("broken")
            log = [*original["log"], *(line for record in records for line in record["log"][start:]), "joined"]
            original["log"].append("spoiled")
            return {"log": log} if word == "join" else [log]

        return named(reduce, f"reduce_{place}")


SLOTS = {"guard": "guard", "exit": "on_exit", "entry": "on_entry"}


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Give a function the name under which it stands in the plan's document."""
    function.__name__ = name
    return function


def fault(failure: Failure | None) -> Fault | None:
    return None if failure is None else Fault(failure.step, failure.error, failure.attempts)


async def over_time(clock: FakeClock, work: Callable[[], Any], horizon: float = HORIZON) -> Any:
    """Do some work while the clock goes on; return what it returned or raised."""

    async def go_on() -> None:
        await clock.advance(horizon)
        raise AssertionError("the run waits for ever")

    result: list[Any] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        try:
            result.append(await work())
        except (Exception, Crash, BaseExceptionGroup) as error:
            result.append(error)
        tasks.cancel_scope.cancel()
    return result[0]


# What came of it, in the model's words


async def story(theatre: Theatre, ended: Run | Exception) -> Story:
    """Return what a run left, once its thread is found valid."""
    records = await theatre.store.read("t")
    verdict = verify_thread(records, trust=None)
    assert verdict.integrity == "valid", verdict
    told = Story(None if isinstance(ended, Run) else type(ended).__name__, sealed=verdict.outcome)
    assert verdict.completeness == ("sealed" if told.sealed else "open")
    assert not told.sealed or verdict.pending == 0
    if isinstance(ended, Run | FlowError):
        assert ended.thread is not None
        assert list(ended.thread.records) == list(records)
        told.status, told.log = str(ended.status), ended.record["log"]
    if isinstance(ended, Run):
        told.outcomes = {path: became(outcome) for path, outcome in ended.outcomes.items()}
    elif isinstance(ended, FlowError):
        told.step = ended.step
    told.lines = lines(records)
    told.calls, told.reads = theatre.calls, theatre.reads
    told.events = [happened(one) for one in theatre.bus.events if one.name != ACK_DUE]  # the model knows no reminders
    return told


def became(outcome: Any) -> Became:
    message = outcome.message.record.id if outcome.message else None
    return Became(
        outcome.became, outcome.status, outcome.attempts, message, tuple(sorted(outcome.acks)), fault(outcome.failure)
    )


def happened(event: Event) -> tuple[str, str]:
    match event.name:
        case name if name == MESSAGE_DELIVERED:
            return "delivered", event.data["message"].record.id
        case name if name == MESSAGE_ACKED:
            return "acked", event.data["recipient"]
        case name if name == MACHINE_MOVE:
            return "move", f"{event.data['source']}>{event.data['target']}"
        case name if name == STEP_COMPLETED:
            return "completed", event.data["outcome"].step
    return "verified", ""


def lines(records: Iterable[bytes]) -> list[Line]:
    """Return what a thread tells, record by record."""
    ids: dict[bytes, str] = {}
    told = []
    for envelope in map(opened, records):
        record = envelope.record
        settled = tuple(
            Settled(ids[one.message] if one.message else "/".join(one.step), one.outcome, one.attempts, one.status)
            for one in getattr(record, "settled", None) or ()
        )
        match envelope.kind:
            case "message":
                ids[envelope.address] = record.id
                to = tuple(sorted(NAMES[key] for key in record.to))
                path = "/".join(record.step) if record.step else ids[record.reply_to]
                told.append(Line(record.intent, record.id, to, path, record.payload, settled))
            case "ack":
                told.append(Line("ack", f"{record.answer}s", (NAMES[envelope.signer],), ids[record.message]))
            case "ruling":
                told.append(Line(record.ruling))
            case "seal":
                told.append(Line("seal", record.outcome, path=record.status, settled=settled))
            case kind:
                told.append(Line(kind, settled=settled))
    return told
