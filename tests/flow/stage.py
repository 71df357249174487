"""What the tests of runs share: a small cast, a machine in a row, a store that can be meddled with, and a way to read
what a thread tells."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import anyio

from envelope import Ack, Card, Envelope, Identity, Message, Thread, open_envelope, sign_record, verify_thread
from flow import (
    Agent,
    Confirm,
    Correct,
    Head,
    Machine,
    MemoryStore,
    Monitor,
    Panel,
    Plan,
    Run,
    State,
    Step,
    ThreadCopy,
    ThreadStore,
)
from flow.progress import read_entry
from flow.testing import Crash, Crashing, FakeClock, RecordingBus, ScriptedPeer
from flow.testing.crash import When

T = TypeVar("T")


def identity(number: int) -> Identity:
    return Identity.from_seed(bytes([number] * 32))


OWNER, ANNA, BEN, CARA, DORA, EMIL, STRANGER = map(identity, range(101, 108))
NAMES = {
    who.public_key: name
    for name, who in {"owner": OWNER, "anna": ANNA, "ben": BEN, "cara": CARA, "dora": DORA, "emil": EMIL}.items()
}
CARD = Card.issue(OWNER, name="owner", capabilities=["test"], sent_at=1_600_000_000_000)
STATUSES = "abcdefgh"
ROW = Machine("a", [(here, "go", there) for here, there in pairwise(STATUSES)])


def confirm(message: Message, ack: Ack) -> Confirm:
    return Confirm()


def correct(message: Message, ack: Ack) -> Correct:
    return Correct("not that")


def unless_wrong(message: Message, ack: Ack) -> Confirm | Correct:
    return Correct("not that") if str(ack.restatement).startswith("wrong") else Confirm()


def on_the_way(count: int = 1, **fields: Any) -> list[Step]:
    """Return steps that lead along the row, each saying something."""
    fields = {"payload": "do it"} | fields
    return [Step(f"to-{there}", target=there, **fields) for there in STATUSES[1 : count + 1]]


class Stage:
    """All that a run takes, ready to run; each part may be given, or changed before `run`."""

    def __init__(
        self, *steps: Step, machine: Machine = ROW, record: Any = None, panels: Sequence[Panel] = (), **options: Any
    ) -> None:
        self._given = {"machine": machine, "record": record, "panels": panels, **options}
        self.clock = FakeClock()
        self.bus = RecordingBus()
        self.store = Meddled()
        self.monitor = Watched(3000.0)
        self.anna = ScriptedPeer(ANNA, options.pop("anna", ()), clock=self.clock)
        self.ben = ScriptedPeer(BEN, options.pop("ben", ()), clock=self.clock)
        self.agent = Agent(OWNER, CARD, Plan(steps or on_the_way(), panels))
        self.machine = machine
        self.record = {"n": 0} if record is None else record
        self.beginning = {"nonce": options.pop("nonce", bytes(16))}
        self.options: dict[str, Any] = {
            "peers": {"anna": self.anna, "ben": self.ben},
            "judge": confirm,
            "store": self.store,
            "bus": self.bus,
            "heartbeat": self.monitor,
            "clock": self.clock,
            **options,
        }

    async def run(self) -> Run:
        with anyio.fail_after(60):  # of real time: a run that waits for ever fails its test, and does not hang them all
            return await self.agent.run("t", self.machine, self.record, **self.options, **self.beginning)

    async def resume(self, **options: Any) -> Run:
        with anyio.fail_after(60):
            return await self.agent.resume("t", self.machine, self.record, **{**self.options, **options})

    def reborn(self, **options: Any) -> "Stage":
        """Return the same stage in another process: only what is in the store is left; parts may be other ones."""
        given = {name: value for name, value in self._given.items() if name not in ("anna", "ben")}
        other = Stage(*self.agent.plan.steps, **{**given, **options})
        other.store.store = self.store.store
        return other

    async def cut(self, what: str, number: int = 1, when: When = "after", **options: Any) -> "Stage":
        """Run, die at a commit that brings such a record, or private state of such a phase, and return the stage
        in another process."""
        await self.dies(self.run, what, number, when)
        return self.reborn(**options)

    async def dies(
        self, act: Callable[[], Awaitable[object]], what: str, number: int = 1, when: When = "after"
    ) -> None:
        """Run or resume, and die at a commit."""
        self.options["store"] = Until(self.store, what, number, when)
        await self.fails(Crash, act)

    async def fails(self, kind: type[T], act: Callable[[], Awaitable[object]] | None = None) -> T:
        """Run, or do what is given, and return the error that it must end in."""
        try:
            await (act or self.run)()
        except BaseException as error:
            if type(error) is not kind:
                raise
            return error
        raise AssertionError(f"the run did not raise {kind.__name__}")

    async def over_time(self, work: Callable[[], Awaitable[T]], horizon: float = 86_400) -> T:
        """Do some work while the clock goes on."""

        async def go_on() -> None:
            await self.clock.advance(horizon)
            raise AssertionError("the run waits for ever")

        result: list[T] = []
        failure: list[BaseException] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on)
            try:
                result.append(await work())
            except Exception as error:
                failure.append(error)
            tasks.cancel_scope.cancel()
        if failure:
            raise failure[0]
        return result[0]

    async def records(self) -> Sequence[bytes]:
        return await self.store.read("t")

    async def told(self) -> list[str]:
        """What the thread in the store tells, once it is found valid."""
        return story(await self.records())


class Meddled:
    """A store in front of another, which notes each commit, and lets a test step in before and after it.

    Attributes:
        log: for each commit that was made, the kinds of its records, and `state` where it had one.
        sent: the records of each commit that was tried.
        before, after: awaited with that list; may raise.
        forged: whether the last record reads as one with another signature.
        cut: how many records at the end are not read.
    """

    def __init__(self, store: ThreadStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.log: list[list[str]] = []
        self.sent: list[Sequence[bytes]] = []
        self.forged = False
        self.cut = 0
        self.before: Callable[[list[str]], Awaitable[None]] | None = None
        self.after: Callable[[list[str]], Awaitable[None]] | None = None

    async def create(self, name: str, opening: bytes, state: bytes) -> Head:
        return await self._made(["open", "state"], [opening], lambda: self.store.create(name, opening, state))

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        kinds = [open_envelope(raw).kind for raw in records] + ["state"] * (state is not None)
        return await self._made(kinds, records, lambda: self.store.commit(name, at, records, state))

    async def _made(self, kinds: list[str], records: Sequence[bytes], make: Callable[[], Awaitable[Head]]) -> Head:
        self.sent.append(records)
        if self.before is not None:
            await self.before(kinds)
        head = await make()
        self.log.append(kinds)
        if self.after is not None:
            await self.after(kinds)
        return head

    async def head(self, name: str) -> Head:
        return await self.store.head(name)

    async def read(self, name: str, start: int = 0) -> Sequence[bytes]:
        records = list(await self.store.read(name, start))
        if self.forged:
            records[-1] = records[-1][:-1] + bytes([records[-1][-1] ^ 1])
        return records[: len(records) - self.cut]

    async def states(self, name: str, start: int = 0) -> Sequence[State]:
        return await self.store.states(name, start)

    async def names(self) -> Sequence[str]:
        return await self.store.names()


class Until(Crashing):
    """A store that dies at the n-th commit that brings a record of some kind, or private state of some phase."""

    def __init__(self, store: ThreadStore, what: str, number: int = 1, when: When = "after") -> None:
        super().__init__(store)
        self._what = what
        self._left = number
        self._before = when == "before"

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        brings = {open_envelope(raw).kind for raw in records} | ({read_entry(state, 0).phase} if state else set())
        self._left -= self._what in brings
        over = self._what in brings and self._left == 0
        if over and self._before:
            self.die()
        head = await super().commit(name, at, records, state)
        if over:
            self.die()
        return head


class Watched(Monitor):
    """A monitor that notes each beat, and what was forgotten."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.beats: list[float] = []
        self.ids: set[str] = set()
        self.forgotten: list[str] = []

    def beat(self, beating: str, at: float) -> None:
        super().beat(beating, at)
        self.beats.append(at)
        self.ids.add(beating)

    def forget(self, beating: str) -> None:
        super().forget(beating)
        self.forgotten.append(beating)


async def appended(store: ThreadStore, who: Identity, kind: Any, **fields: Any) -> Envelope[Any]:
    """Have a member append a chain record, or a receipt, to the thread, as another process would."""
    thread = Thread()
    for raw in await store.read("t"):
        thread.apply(open_envelope(raw))
    links = {"thread": thread.address} if kind.kind in ("ack", "ruling") else thread.links()
    envelope = sign_record(kind, who, **{**links, **fields})
    await store.commit("t", await store.head("t"), [envelope.raw])
    return envelope


def story(records: Iterable[bytes]) -> list[str]:
    """Return a line for each record of a thread, which must be valid."""
    records = list(records)
    assert verify_thread(records, trust=None).integrity == "valid"
    return [_line(open_envelope(raw)) for raw in records]


def _line(envelope: Envelope[Any]) -> str:
    record, who = envelope.record, NAMES.get(envelope.signer, "somebody")
    match envelope.kind:
        case "message":
            return f"{record.intent} {record.id}"
        case "ack":
            return f"{who} {record.answer}s"
        case "ruling":
            return str(record.ruling)
        case "roster":
            return f"{who}: {record.change} {NAMES.get(record.key)}"
        case "seal":
            return f"seal {record.outcome}"
    return envelope.kind


def settled(records: Iterable[bytes]) -> dict[str, tuple[str, int | None, str]]:
    """Return how a thread settled its messages and steps: outcome, attempts and status, by id or path."""
    ids: dict[bytes, str] = {}
    found = {}
    for envelope in map(open_envelope, records):
        if envelope.kind == "message":
            ids[envelope.address] = envelope.record.id
        for entry in getattr(envelope.record, "settled", None) or ():
            name = ids[entry.message] if entry.message else "/".join(entry.step)
            assert name not in found
            found[name] = (entry.outcome, entry.attempts, entry.status)
    return found


def opened(records: Iterable[bytes], kind: str) -> list[Any]:
    """Return the records of a kind."""
    return [envelope.record for envelope in map(open_envelope, records) if envelope.kind == kind]


def assert_ended(thread: ThreadCopy | None, outcome: str | None) -> None:
    """Assert that a thread verifies, and is sealed with an outcome, or open where there is none."""
    assert thread is not None
    verdict = verify_thread(thread.records, trust=list(NAMES), thread=thread.address)
    assert verdict.integrity == "valid", verdict
    assert (verdict.completeness, verdict.outcome) == ("sealed" if outcome else "open", outcome)
    if outcome:
        assert verdict.pending == 0
