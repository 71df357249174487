"""A run with everything in it, in processes that are killed: before and after each commit, and inside each function
that the run calls. `python -m tests.flow.killable FOLDER BACKEND` leaves a folder for each kill, with what came of it.

Each process is forked from one that has imported everything and started nothing, is killed with SIGKILL, and is
followed by another one that resumes.
"""

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from envelope import Ack, Card, Envelope, Identity, Message, PublicKey, open_envelope
from flow import (
    Agent,
    Bus,
    Call,
    Confirm,
    Correct,
    Delivery,
    Event,
    Head,
    Loop,
    Machine,
    Panel,
    Plan,
    Retry,
    Run,
    Step,
    ThreadStore,
    Transition,
    local,
)
from flow.bus import MESSAGE_ACKED, MESSAGE_DELIVERED
from flow.errors import InDoubt
from flow.job import Job
from flow.peers import Peer
from flow.progress import read_entry
from flow.store import SqliteStore
from flow.testing import Crashing, kill

OWNER, ANNA, BEN = (Identity.from_seed(bytes([number] * 32)) for number in (101, 102, 103))
RECIPIENTS = {"anna": ANNA, "ben": BEN}
NOW = 1_700_000_000_000
CARD = Card.issue(OWNER, name="owner", capabilities=["test"], sent_at=NOW)
NAME = "t"


class Still:
    """A clock on which no time passes, so that every process signs the same."""

    def now_ms(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    def move_on_after(self, seconds: float | None) -> anyio.CancelScope:
        return anyio.CancelScope()


class Outside:
    """What is there when the process is not: lines in the files of a folder.

    Attributes:
        deadly: the number of the point that this process does not pass, from 1; 0 for none.
    """

    def __init__(self, folder: Path, deadly: int = 0) -> None:
        self.deadly = deadly
        self._folder = folder
        self._passed = 0

    def note(self, file: str, line: str) -> None:
        with (self._folder / file).open("a") as lines:
            lines.write(line + "\n")

    def lines(self, file: str) -> list[str]:
        path = self._folder / file
        return path.read_text().splitlines() if path.exists() else []

    def point(self, name: str) -> None:
        """Pass a point inside a function of the run's, or die there."""
        self._passed += 1
        if self._passed == self.deadly:
            kill()
        self.note("trail", f"point {name}")

    def effect(self, call: Call) -> None:
        """Do something that is not to be done twice, as a service does that knows each key."""
        line = f"{call.key.hex()} {'/'.join(call.step)}"
        if line not in self.lines("effects"):
            self.note("effects", line)

    def is_done(self, path: str) -> bool:
        return any(line.endswith(f" {path}") for line in self.lines("effects"))


class Trail(Crashing):
    """A store that dies, and notes each commit that it made."""

    def __init__(self, outside: Outside, *deadly: Any) -> None:
        super().__init__(*deadly)
        self._outside = outside

    async def create(self, name: str, opening: bytes, state: bytes) -> Head:
        head = await super().create(name, opening, state)
        self._outside.note("trail", "commit begun")
        return head

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        head = await super().commit(name, at, records, state)
        entry = read_entry(state, 0) if state else None
        begins = entry is not None and entry.phase in ("confirmed", "firing") and entry.attempt is not None
        kinds = [open_envelope(raw).kind for raw in records]
        said = [*kinds, *([entry.phase] if entry else []), *(["attempt"] if begins else [])]
        self._outside.note("trail", f"commit {' '.join(said)}")
        return head


class Turns:
    """Has recipients answer one at a time: message after message, in the order of their names."""

    def __init__(self, bus: Bus) -> None:
        self._owed: list[tuple[bytes, str]] = []
        self._waiting: list[anyio.Event] = []
        bus.subscribe(self._delivered, MESSAGE_DELIVERED)
        bus.subscribe(self._acked, MESSAGE_ACKED)

    def _delivered(self, event: Event) -> None:
        message = event.data["message"]
        self._owed += [
            (message.address, name) for name, who in RECIPIENTS.items() if who.public_key in message.record.to
        ]

    def _acked(self, event: Event) -> None:
        ruling = event.data["ruling"]
        if ruling is not None and ruling.record.ruling == "confirm":
            self._owed.remove((event.data["message"].address, event.data["recipient"]))
        for one in self._waiting:
            one.set()
        self._waiting.clear()

    async def mine(self, message: bytes, name: str) -> None:
        while self._owed[0] != (message, name):
            self._waiting.append(anyio.Event())
            await self._waiting[-1].wait()


class Recipient:
    """A peer that waits for its turn."""

    def __init__(self, peer: Peer, name: str, turns: Turns) -> None:
        self._peer = peer
        self._name = name
        self._turns = turns

    @property
    def key(self) -> PublicKey:
        return self._peer.key

    async def ack(self, delivery: Delivery) -> Envelope[Ack]:
        await self._turns.mine(delivery.message.address, self._name)
        return await self._peer.ack(delivery)


def job(outside: Outside, bus: Bus) -> Job:
    """Everything that a plan can do, and functions that may be deadly."""
    point = outside.point

    def act(record: Any, call: Call) -> Any:
        outside.note("calls", f"{call.key.hex()} {'/'.join(call.step)} {call.attempt}")
        point("act begins")
        if call.step[-1] == "broken" or (call.step[-1] == "flaky" and call.attempt == 1):
            raise ValueError("no luck")
        outside.effect(call)
        point("act is done")
        return record if call.step[-1] == "pay" else {"done": [*record["done"], "/".join(call.step)]}

    def leave(record: Any, call: Call) -> Any:
        outside.effect(call)
        point("leave")
        return record

    def guard(record: Any, call: Call) -> bool:
        point("guard")
        return True

    def route(record: Any) -> list[str]:
        point("route")
        return ["wanted"]

    def reduce(original: Any, records: Sequence[Any]) -> Any:
        point("reduce")
        return {"done": [*original["done"], *(record["done"][-1] for record in records)]}

    def go_on(record: Any, call: Call) -> bool:
        point("go on")
        return True

    def report(record: Any) -> str:
        point("report")
        return f"{len(record['done'])} things are done"

    def judge(message: Message, ack: Ack) -> Confirm | Correct:
        point("judge")
        return Correct("not that") if str(ack.restatement).startswith("wrong") else Confirm()

    def restate(message: Message, correction: str | None) -> str:
        point("restate")
        return "wrong" if message.id == "ask" and correction is None else f"I will do {message.id}"

    rows = [
        Transition(
            here, f"to-{there}", there, on_entry=act, **({"guard": guard, "on_exit": leave} if here == "c" else {})
        )
        for here, there in permutations("abcd", 2)
    ]
    turns = Turns(bus)
    peers = {name: Recipient(local(who, restate, clock=Still()), name, turns) for name, who in RECIPIENTS.items()}
    return Job(
        Agent(OWNER, CARD, plan(route, reduce, go_on, report)),
        Machine("a", rows),
        {"done": []},
        peers=peers,
        judge=judge,
    )


def plan(route: Any, reduce: Any, go_on: Any, report: Any) -> Plan:
    """Routes, a panel, a loop, sub-plans, a retry, a failure that is handled, and all three gates."""
    say = {"payload": "do it"}
    looped = Plan([Step("x", target="b", to=["ben"], **say), Step("y", target="c", gate="none", needs=["x"])])
    steps = [
        Step("ask", target="b", route=route, **say),
        Step("unwanted", target="a", needs=["ask"], **say),
        Step("wanted", target="a", needs=["ask"], gate="none"),
        Step("left", target="d", needs=["wanted"], to=["anna"], **say),
        Step("right", target="d", needs=["wanted"], to=["ben"], payload_from=report),
        Step("many", sub=looped, loop=Loop(2, go_on), needs=["left"], gate="after", to=["anna"], payload_from=report),
        Step("flaky", target="d", needs=["many"], to=["anna"], retry=Retry(3, delay=0.1), **say),
        Step("broken", target="a", needs=["flaky"], gate="none"),
        Step("unreached", target="b", needs=["broken"], gate="none"),
        Step("mend", target="b", needs=["broken"], when="failed", gate="after", to=["ben"], payload_from=report),
        Step("pay", target="a", needs=["mend"], to=["anna"], once=True, **say),
    ]
    return Plan(steps, [Panel(["left", "right"], reducer=reduce)])


async def run(folder: Path, *deadly: Any, point: int = 0) -> None:
    """Begin a run, or go on with the one that is there, and leave what comes of it in the folder."""
    outside, bus = Outside(folder, point), Bus()
    work = job(outside, bus)
    async with SqliteStore(folder / "threads.db") as store:
        options = {"store": Trail(outside, store, *deadly), "bus": bus, "clock": Still()}
        if NAME not in await store.names():
            done = await work.run(NAME, nonce=bytes(16), **options)
        else:
            done = await resumed(work, outside, store, options)
    leave(folder, done)


async def resumed(work: Job, outside: Outside, store: ThreadStore, options: dict[str, Any]) -> Run:
    try:
        return await work.resume(NAME, **options)
    except InDoubt as doubt:
        step = str(doubt.step)
    word = "done" if outside.is_done(step) else "again"
    outside.note("doubts", f"{step} {word}")
    bus = Bus()
    return await job(outside, bus).resume(NAME, in_doubt={step: word}, **{**options, "bus": bus})


def leave(folder: Path, done: Run) -> None:
    """Write down what is to be the same wherever a run was killed."""
    done.thread.export(folder / "thread")
    outcomes = {
        path: [outcome.status, outcome.became, sorted(outcome.acks), outcome.failure and outcome.failure.text]
        for path, outcome in done.outcomes.items()
    }
    told = {"status": done.status, "record": done.record, "outcomes": outcomes}
    (folder / "run").write_text(json.dumps(told))


def in_process(backend: str, work: Callable[[], Any]) -> int:
    """Do some work in a process of its own; return how that ended, as `os.waitstatus_to_exitcode` does."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            anyio.run(work, backend=backend)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def killed_everywhere(base: Path, backend: str) -> dict[str, tuple[int, int]]:
    """Return, for each kill, how the process that was killed ended, and how the one after it did."""
    calm = base / "undisturbed"
    calm.mkdir()
    ends = {"undisturbed": (in_process(backend, partial(run, calm)), 0)}
    trail = Outside(calm).lines("trail")
    commits, points = (sum(line.startswith(kind) for line in trail) for kind in ("commit", "point"))
    kills: dict[str, Callable[[Path], Any]] = {}
    for number in range(1, commits + 1):
        kills[f"before commit {number}"] = partial(run_dying, "before", number)
        kills[f"after commit {number}"] = partial(run_dying, "after", number)
    for number in range(1, points + 1):
        kills[f"in point {number}"] = partial(run_dying, "in", number)
    for where, dying in kills.items():
        folder = base / where.replace(" ", "-")
        folder.mkdir()
        first = in_process(backend, partial(dying, folder))
        ends[where] = (first, in_process(backend, partial(run, folder)))
    return ends


async def warmed_up() -> None:
    """Run once without a file, and so without a thread, so that what is made at first use is made before the forks."""
    with tempfile.TemporaryDirectory() as folder:
        outside, bus = Outside(Path(folder)), Bus()
        await job(outside, bus).run(NAME, bus=bus, clock=Still())


async def run_dying(when: str, number: int, folder: Path) -> None:
    if when == "in":
        await run(folder, point=number)
    else:
        await run(folder, number, when, kill)


def main() -> None:
    base, backend = Path(sys.argv[1]), sys.argv[2]
    anyio.run(warmed_up, backend=backend)
    gc.freeze()
    print(json.dumps(killed_everywhere(base, backend)))


if __name__ == "__main__":
    main()
