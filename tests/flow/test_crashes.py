"""Wherever a run dies, and however often, what goes on with it ends as if nothing had happened.

A process is played by one call of `run` or `resume`: when it dies, nothing of it is kept but the store and what its
actions did outside. FLOW_CASES=20000 looks at that many cases more.
"""

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope import Ack, verify_thread
from flow import FlowError, MemoryStore, Run, validate
from flow.errors import InDoubt
from flow.testing import Crashing, FakeClock, differences
from tests.flow.acting import IDENTITIES, Theatre, became, happened, lines, opened, over_time, part_at
from tests.flow.cases import case_at, cases
from tests.flow.model import Became, Case, Line, Path
from tests.flow.stage import appended

MORE = int(os.environ.get("FLOW_CASES", "0"))
RULES = pytest.mark.rule("D4", "D5", "D6", "D7", "D8", "D9", "D10", "D11", "D13", "R40", "S9")


@dataclass(frozen=True)
class Death:
    """How a process ends: at its n-th `commit`, around its n-th `act`, or in its n-th `sleep`.

    Attributes:
        after: the commit, or the action, was done.
        cancel: the run is cancelled; else it is as if its process were killed.
    """

    where: str
    number: int
    after: bool = False
    cancel: bool = False


@dataclass
class Life:
    """What a run left, in one process or in several.

    Attributes:
        counts: of commits, acts and sleeps in the first process.
        effects: what was done outside, in order.
        doubts: how often the run could not say whether a step was done, by path.
        died: how many of the deaths came true.
    """

    store: MemoryStore = field(default_factory=MemoryStore)
    ended: Any = None
    counts: Counter[str] = field(default_factory=Counter)
    effects: list[tuple[Path, bytes]] = field(default_factory=list)
    events: set[tuple[str, str]] = field(default_factory=set)
    doubts: Counter[str] = field(default_factory=Counter)
    died: int = 0


class Still(FakeClock):
    """A clock on which one can wait, but which always tells the same time of day; `sleeping` is awaited first."""

    sleeping: Callable[[], Awaitable[None]] = staticmethod(anyio.lowlevel.checkpoint)

    def now_ms(self) -> int:
        return 1_700_000_000_000

    async def sleep(self, seconds: float) -> None:
        await self.sleeping()
        await super().sleep(seconds)


async def process(life: Life, case: Case, death: Death | None, words: dict[str, Any]) -> Any:
    """Run, or go on with a run, until its end or its death; return how it ended, None for a death."""
    clock = Still()
    last = death.number if death is not None and death.where == "commit" else None
    store = Crashing(life.store, last, "after" if death is not None and death.after else "before")
    theatre = Theatre(case, store, clock)
    theatre.effects = life.effects
    counts: Counter[str] = Counter()
    scope = anyio.CancelScope()

    async def at(what: str) -> None:
        counts[what] += 1
        number = 2 * death.number - (not death.after) if death and what == "act" else death and death.number
        if death is not None and (death.where, number) == (what, counts[what]):
            if not death.cancel:
                store.die()
            scope.cancel()
        await anyio.lowlevel.checkpoint()

    theatre.acting = lambda: at("act")
    clock.sleeping = lambda: at("sleep")

    async def work() -> Any:
        with scope:
            if await life.store.names():
                return await theatre.resume(in_doubt=words)
            return await theatre.run()

    ended = await over_time(clock, work)
    life.events |= {happened(event) for event in theatre.bus.events}
    if not life.counts:
        life.counts = Counter(commit=store.commits, act=counts["act"] // 2, sleep=counts["sleep"])
    if store.dead or ended is None:
        life.died += 1
        return None
    return ended


async def live(case: Case, deaths: Sequence[Death] = ()) -> Life:
    """Have processes follow one another until one comes to an end, the approvers asked and doubts answered."""
    life, coming = Life(), list(deaths)
    words: dict[str, str] = {}
    while True:
        ended = await process(life, case, coming.pop(0) if coming else None, words)
        words = {}
        if isinstance(ended, InDoubt):
            words = dict.fromkeys(str(ended.step).split(", "), "again")
            life.doubts.update(list(words))
        elif type(ended).__name__ == "Escalated" and await approve(life.store, case):
            continue
        elif ended is not None:
            life.ended = ended
            return life


async def approve(store: MemoryStore, case: Case) -> bool:
    """Have the approvers answer what was escalated and they have not answered yet; whether there was anything."""
    records = [opened(raw) for raw in await store.read("t")]
    answered = {(one.record.message, one.signer) for one in records if one.kind == "ack"}
    asked = [one for one in records if one.kind == "message" and one.record.intent == "escalate"]
    done = False
    for message in asked:
        for name in case.approvers:
            who = IDENTITIES[name]
            if (message.address, who.public_key) not in answered:
                answer = "decline" if len(message.record.id) % 3 == 0 else "accept"
                said = {"answer": answer, "restatement": "so be it", "sent_at": 1_700_000_000_000}
                await appended(store, who, Ack, message=message.address, **said)
                done = True
    return done


Fate = Callable[[Counter[str]], Sequence[Death]]


async def compare(case: Case, alone: bool, fate: Fate) -> Life | None:
    """Compare a case that is cut off with one that is not; `fate` gives the deaths, of what there is to die at."""
    theatre = Theatre(case)
    if any(finding.severity == "error" for finding in validate(theatre.plan, theatre.machine)):
        return None
    whole = await live(case)
    cut = await live(case, fate(whole.counts))
    one, other = await whole.store.read("t"), await cut.store.read("t")
    assert verify_thread(other, trust=None).integrity == "valid"
    for (path, key), times in Counter(cut.effects).items():
        part = part_at(case.script, path)
        assert not part.once or times <= part.attempts + cut.doubts["/".join(path)], (path, key)
    if type(whole.ended).__name__ == "AckTimeout":  # a run that goes on gives everybody the whole time again
        return cut
    if alone and attempts(one) == attempts(other):
        assert one == other
    elif alone:
        assert differences(one, other) == []
    else:
        assert chain(one) == chain(other)
        assert receipts(one) == receipts(other)
    assert type(cut.ended) is type(whole.ended)
    assert lasting(cut.effects, other) == lasting(whole.effects, one)
    if isinstance(whole.ended, Run | FlowError):
        assert (cut.ended.status, cut.ended.record) == (whole.ended.status, whole.ended.record)
    if isinstance(whole.ended, Run):
        assert outcomes(cut.ended) == outcomes(whole.ended)
        assert cut.events >= whole.events
    elif isinstance(whole.ended, FlowError):
        assert cut.ended.step == whole.ended.step
    return cut


def attempts(records: Sequence[bytes]) -> list[Any]:
    """Return what settlements say of attempts, and of words on them."""
    settled = [one for raw in records for one in getattr(opened(raw).record, "settled", None) or ()]
    return [(one.attempts, one.result) for one in settled]


def lasting(effects: Sequence[tuple[Path, bytes]], records: Sequence[bytes]) -> set[tuple[Path, bytes]]:
    """Return the effects of the steps that succeeded; what others did depends on the attempt that was cut off."""
    told = lines(records)
    paths = {line.what: line.path for line in told if line.kind in ("request", "assert")}
    good = {paths.get(one.what, one.what) for line in told for one in line.settled if one.outcome != "failed"}
    return {(path, key) for path, key in effects if "/".join(path) in good}


def chain(records: Sequence[bytes]) -> list[Line]:
    """Return what the chain records of a thread tell, attempts aside."""
    return [
        replace(line, settled=tuple(one._replace(attempts=None) for one in line.settled))
        for line in lines(records)
        if line.kind not in ("ack", "confirm", "correct")
    ]


def receipts(records: Sequence[bytes]) -> Counter[tuple[Line, Line]]:
    """Return the acks of a thread, each with what follows it, in whatever order they came."""
    return Counter(pair for pair in pairwise(lines(records)) if pair[0].kind == "ack")


def outcomes(run: Run) -> dict[str, Became]:
    found = {path: became(outcome) for path, outcome in run.outcomes.items()}
    return {
        path: one._replace(attempts=None, failure=one.failure and one.failure._replace(attempts=None))
        for path, one in found.items()
    }


def deaths(pick: Callable[[int], int]) -> Fate:
    """Give up to three deaths, each where the run that nobody cut off came."""

    def some(counts: Counter[str]) -> list[Death]:
        found = []
        for _ in range(1 + pick(3)):
            where = ("commit", "commit", "act", "sleep")[pick(4)]
            number = 1 + pick(max(counts[where], 1))
            found.append(Death(where, number, after=bool(pick(2)), cancel=where != "commit" and bool(pick(2))))
        return found

    return some


@RULES
@pytest.mark.parametrize("asking", ["alone", "calm"])
@settings(max_examples=60)
@given(data=st.data())
def test_a_run_that_is_cut_off_ends_as_if_it_had_not_been(asking: str, data: st.DataObject) -> None:
    case = data.draw(cases(asking=asking, once=True))
    anyio.run(compare, case, asking == "alone", deaths(lambda number: data.draw(st.integers(0, number - 1))))


@RULES
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("asking", ["alone", "calm"])
def test_runs_that_are_cut_off_end_as_if_they_had_not_been(asking: str, backend: str) -> None:
    died = 0
    for seed in range(40 + (MORE if backend == "asyncio" else MORE // 10)):
        case = case_at(seed, asking=asking, once=True, trouble=10)
        cut = anyio.run(compare, case, asking == "alone", deaths(Random(seed).randrange), backend=backend)
        died += cut.died if cut is not None else 0
    assert died > 20
