"""Whoever else writes to a thread, and whenever: one goes on, nothing is done twice, and what is there is valid."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from envelope import Ack, Envelope, Message, Roster, open_envelope
from flow import Machine, MemoryStore, NoRecipient, Run, Step, StoreError, Superseded, ThreadStore
from flow.store import SqliteStore
from flow.testing import Crash, Crashing, differences
from tests.flow import killable
from tests.flow.everything import Everything
from tests.flow.stage import ANNA, Meddled, Stage, appended, assert_ended, opened, settled, story
from tests.flow.test_kill import Left, assert_each_effect_is_there_once, assert_each_message_is_acked_once

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def store_of(kind: str, folder: Path) -> AsyncIterator[Callable[[], ThreadStore]]:
    """Give what opens one store again and again, as so many processes would."""
    memory, files = MemoryStore(), []

    def opened() -> ThreadStore:
        if kind == "memory":
            return memory
        files.append(SqliteStore(folder / "threads.db"))
        return files[-1]

    try:
        yield opened
    finally:
        for file in files:
            await file.aclose()


KINDS = pytest.mark.parametrize("kind", ["memory", "sqlite"])


async def at_once(works: list[Callable[[], Awaitable[Run]]]) -> list[Run | Exception]:
    """Do all at once, and return how each ended."""
    ends: dict[int, Run | Exception] = {}

    async def end(number: int, work: Callable[[], Awaitable[Run]]) -> None:
        try:
            ends[number] = await work()
        except Exception as error:
            ends[number] = error

    async with anyio.create_task_group() as tasks:
        for number, work in enumerate(works):
            tasks.start_soon(end, number, work)
    return [ends[number] for number in range(len(works))]


# Many of one run


@pytest.mark.rule("S4", "R4")
@KINDS
async def test_of_twenty_runs_that_begin_one_thread_one_does(kind: str, tmp_path: Path) -> None:
    async with store_of(kind, tmp_path) as store:
        ends = await at_once([Stage(nonce=None, store=store()).run for _ in range(20)])
        assert Counter(getattr(end, "code", "completed") for end in ends) == {"completed": 1, "store.exists": 19}
        (run,) = (end for end in ends if isinstance(end, Run))
        assert run.thread.records == tuple(await store().read("t"))


@pytest.mark.rule("S4", "D3", "D13")
@KINDS
@pytest.mark.parametrize("cut", [1, 9])
@pytest.mark.parametrize("together", [True, False])
async def test_of_twenty_that_resume_one_thread_one_goes_on_and_nothing_is_done_twice(
    kind: str, cut: int, together: bool, tmp_path: Path
) -> None:
    calm, world = Everything(), Everything()
    line = Line(20)
    whole = await calm.stage().run()
    async with store_of(kind, tmp_path) as store:
        with pytest.raises(Crash):
            await world.stage(Crashing(store(), cut)).run()
        stores = [line.held(store()) if together else store() for _ in range(20)]
        ends = await at_once([world.stage(one).resume for one in stores])
        if together:
            assert Counter(type(end) for end in ends) == {Run: 1, Superseded: 19}
        else:  # whoever comes when the thread is sealed is given its end
            assert {Run} <= {type(end) for end in ends} <= {Run, Superseded}
        assert len({end.thread for end in ends if isinstance(end, Run)}) == 1
        assert differences(whole.thread.records, await store().read("t")) == []
        assert_nothing_is_done_twice(world, calm)


class Line:
    """Where so many wait for each other before each makes its first commit: all have read the same by then."""

    def __init__(self, many: int) -> None:
        self._missing = many
        self._full = anyio.Event()

    def held(self, store: ThreadStore) -> Meddled:
        """Return a store whose user stops at the line once."""
        meddled = Meddled(store)

        async def stop(kinds: list[str]) -> None:
            meddled.before = None
            self._missing -= 1
            if not self._missing:
                self._full.set()
            await self._full.wait()

        meddled.before = stop
        return meddled


def assert_nothing_is_done_twice(world: Everything, calm: Everything) -> None:
    """The world is as after an undisturbed run, and no two attempts of an action have one number."""
    assert world.effects == calm.effects
    assert len({(call.key, call.attempt) for call in world.calls}) == len(world.calls)


# Another one resumes while a run is alive


@pytest.mark.rule("D3", "D7", "D13", "R37")
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_run_that_is_alive_loses_to_the_one_that_resumes_whatever_it_does_at_that_moment(
    resumed: bool,
) -> None:
    calm, ends = Everything(), Counter[str]()
    whole = await calm.stage().run()
    for moment in range(0, calm.moments + 2 * resumed, 7 if resumed else 1):
        store = MemoryStore()
        others: list[Run] = []

        async def meanwhile() -> None:
            if await store.names():  # noqa: B023 - called in this round only
                others.append(await world.stage(store).resume())  # noqa: B023

        world = Everything(moment, meanwhile)
        alive = world.stage(store)
        if resumed:
            with pytest.raises(Crash):
                await world.stage(Crashing(store, 1)).run()
        (end,) = await at_once([alive.resume if resumed and await store.names() else alive.run])
        for other in others:
            assert isinstance(end, Superseded) or end.thread == other.thread
            assert other.thread.records == tuple(await store.read("t"))
        ends[f"{type(end).__name__} of {1 + len(others)}"] += 1
        records = await store.read("t")
        assert (moment, differences(whole.thread.records, records)) == (moment, [])
        assert_nothing_is_done_twice(world, calm)
    assert ends.keys() <= {"Superseded of 2", "Run of 1", "Run of 2"}
    assert ends["Superseded of 2"] > (10 if resumed else 90)


@pytest.mark.rule("D3", "D7")
@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_a_run_that_loses_its_thread_while_it_fires_commits_nothing_of_it(gate: Any) -> None:
    said = {} if gate == "none" else {"payload": "do it"}
    stage = Stage(*[Step(f"to-{there}", target=there, gate=gate, **said) for there in "bc"])
    other: list[Run] = []

    class Meanwhile(Machine):
        async def fire(self, *args: Any) -> Any:
            if not other:
                other.append(await stage.reborn().resume())
            return await super().fire(*args)

    stage.machine = Meanwhile("a", stage.machine.rows)
    error = await stage.fails(Superseded)
    assert error.thread == other[0].thread
    assert settled(error.thread.records) == {"to-b": ("succeeded", None, "b"), "to-c": ("succeeded", None, "c")}


# Processes

RESUMING = """
import sys
from functools import partial
from pathlib import Path
import anyio
from flow import Bus, Superseded
from flow.store import SqliteStore
from tests.flow.killable import NAME, Outside, Still, Trail, job, leave

class Halting(Trail):
    "Waits for a word once it is durable that this process goes on."

    async def commit(self, name, at, records, state=None):
        head = await super().commit(name, at, records, state)
        if self.commits == 1:
            print("goes on", flush=True)
            sys.stdin.readline()
        return head

async def main(folder):
    outside, bus = Outside(folder), Bus()
    async with SqliteStore(folder / "threads.db") as store:
        try:
            run = await job(outside, bus).resume(NAME, store=Halting(outside, store), bus=bus, clock=Still())
        except Superseded:
            print("superseded", flush=True)
        else:
            leave(folder, run)
            print("completed", flush=True)

anyio.run(partial(main, Path(sys.argv[1])), backend=sys.argv[2])
"""


@pytest.mark.rule("S4", "D3", "D13")
async def test_of_four_processes_that_resume_one_thread_one_goes_on(anyio_backend: str, tmp_path: Path) -> None:
    calm, raced = tmp_path / "calm", tmp_path / "raced"
    for folder in (calm, raced):
        folder.mkdir()
    await killable.run(calm)
    with pytest.raises(Crash):
        await killable.run(raced, 6)
    command = [sys.executable, "-c", RESUMING, str(raced), anyio_backend]
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(  # noqa: ASYNC220 - nothing else is to run meanwhile
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            )
            for _ in range(4)
        ]
        firsts = [racer.stdout.readline() for racer in racers]
        assert set(firsts) <= {"goes on\n", "superseded\n"}
        lasts = [racer.communicate("go\n")[0] or first for racer, first in zip(racers, firsts, strict=True)]
    assert Counter(lasts) == {"superseded\n": 3, "completed\n": 1}
    whole, left = Left(calm), Left(raced)
    assert differences(whole.records, left.records) == []
    assert left.run == whole.run
    assert_each_effect_is_there_once(whole, left)
    assert_each_message_is_acked_once(left)


# A member appends


async def says(store: ThreadStore, number: int = 0) -> None:
    fields = {"id": f"hers-{number}", "intent": "assert", "epistemic": "assumed", "payload": "by the way"}
    await appended(store, ANNA, Message, **fields)


async def acks(store: ThreadStore) -> None:
    """Have anna acknowledge what she was asked last, if she has not yet."""
    asked: Envelope[Message] | None = None
    for envelope in map(open_envelope, await store.read("t")):
        if envelope.kind == "message" and ANNA.public_key in envelope.record.to:
            asked = envelope
        elif envelope.kind == "ack" and envelope.signer == ANNA.public_key:
            asked = None
    if asked is not None:
        await appended(store, ANNA, Ack, message=asked.address, answer="accept", restatement="by myself")


async def leaves(store: ThreadStore) -> None:
    await appended(store, ANNA, Roster, change="leave", key=ANNA.public_key)


@pytest.mark.rule("S5", "R36")
@pytest.mark.parametrize("act", [says, acks, leaves])
async def test_a_run_takes_in_what_a_member_appends_whatever_it_does_at_that_moment(act: Any) -> None:
    calm, ends = Everything(), Counter[str]()
    whole = await calm.stage().run()
    for moment in range(calm.moments):
        store, before = MemoryStore(), list[bytes]()

        async def meanwhile() -> None:
            if await store.names() and await is_open(store):  # noqa: B023 - called in this round only
                await insist(lambda: act(store))  # noqa: B023
                before.extend(await store.read("t"))  # noqa: B023

        world = Everything(moment, meanwhile)
        (end,) = await at_once([world.stage(store).run])
        records = await store.read("t")
        assert records[: len(before)] == before
        ends[type(end).__name__] += 1
        if act is leaves and isinstance(end, NoRecipient):
            assert_ended(end.thread, "failed")
            assert world.effects < calm.effects
            continue
        assert isinstance(end, Run)
        assert_ended(end.thread, "completed")
        assert_nothing_is_done_twice(world, calm)
        if act is says:
            kept = sorted(line for line in story(records) if "hers" not in line)
            assert (moment, kept) == (moment, sorted(story(whole.thread.records)))
        confirmed = [one for one in opened(records, "ruling") if one.ruling == "confirm"]
        assert len(confirmed) == sum(one.ruling == "confirm" for one in opened(whole.thread.records, "ruling"))
    assert ends.keys() == ({"Run", "NoRecipient"} if act is leaves else {"Run"})


async def insist(act: Callable[[], Awaitable[None]]) -> None:
    """Append, also where the run appends at the same time."""
    while True:
        try:
            return await act()
        except StoreError as error:
            if error.code != "store.conflict":
                raise


async def is_open(store: ThreadStore) -> bool:
    return open_envelope((await store.read("t"))[-1]).kind != "seal"


@pytest.mark.rule("S5")
@KINDS
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_run_comes_to_its_end_though_every_commit_of_it_is_outrun(kind: str, when: Any, tmp_path: Path) -> None:
    calm, world = Everything(), Everything()
    whole = await calm.stage().run()
    tried = [0]

    async def outrun(kinds: list[str]) -> None:
        tried[0] += 1
        if ("open" in kinds and when == "before") or ("seal" in kinds and when == "after"):
            tried[0] = 0
        elif tried[0] % 2 or when == "after":  # before a first try, and not before the second one that this causes
            await says(stage.store.store, said[0])
            said[0] += 1

    said = [0]
    async with store_of(kind, tmp_path) as store:
        stage = world.stage(store())
        stage.store.before = stage.store.after = None
        setattr(stage.store, when, outrun)
        run = await stage.run()
    assert_ended(run.thread, "completed")
    assert [line for line in story(run.thread.records) if "hers" not in line] == story(whole.thread.records)
    assert sum("hers" in line for line in story(run.thread.records)) == said[0] == len(stage.store.log) - 1
    assert len(stage.store.sent) == 2 * len(stage.store.log) - 1
    assert_nothing_is_done_twice(world, calm)
