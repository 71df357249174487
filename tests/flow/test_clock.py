import ast
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import flow
from flow.clock import SYSTEM, Clock
from flow.testing import FakeClock

pytestmark = pytest.mark.anyio

BANNED = {"time", "datetime", "asyncio", "trio", "sched"}
WAITING = {"sleep", "sleep_until", "move_on_after", "move_on_at", "fail_after", "fail_at", "current_time"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.rule("C1")
def test_only_the_clock_knows_time_or_waits() -> None:
    offenders = []
    for path in Path(flow.__file__).parent.rglob("*.py"):
        if path.name in ("clock.py", "database.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Import(names=names):
                    used = {name.name.split(".")[0] for name in names} & BANNED
                case ast.ImportFrom(module=str(module), names=names):
                    used = {module.split(".")[0]} & BANNED
                    used |= {name.name for name in names} & WAITING if module.startswith("anyio") else set()
                case ast.Attribute(value=ast.Name(id="anyio"), attr=attr):
                    used = {attr} & WAITING
                case _:
                    used = set()
            offenders += [(path.name, name) for name in used]
    assert offenders == []


@pytest.mark.rule("C2")
def test_the_system_clock_tells_milliseconds_since_the_epoch() -> None:
    before = time.time()
    now = SYSTEM.now_ms()
    assert isinstance(now, int)
    assert before * 1000 - 1 <= now <= time.time() * 1000


@pytest.mark.rule("C2")
def test_the_system_clock_never_goes_back_when_the_wall_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    first = SYSTEM.monotonic()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert first <= SYSTEM.monotonic() < first + 60


@pytest.mark.rule("C2")
async def test_both_times_of_the_fake_clock_go_on_together(clock: FakeClock) -> None:
    start = clock.now_ms()
    seen: list[tuple[int, float]] = []

    async def look() -> None:
        await clock.sleep(1.25)
        seen.append((clock.now_ms() - start, clock.monotonic()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        await clock.advance(2)
    assert [*seen, (clock.now_ms() - start, clock.monotonic())] == [(1250, 1.25), (2000, 2)]
    assert all(isinstance(ms, int) for ms in (start, seen[0][0], clock.now_ms()))


@pytest.mark.rule("C3")
@pytest.mark.parametrize("which", [SYSTEM, FakeClock()])
@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_deadline_that_is_up_cancels_the_body(which: Clock, seconds: float) -> None:
    with which.move_on_after(seconds) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.rule("C3")
async def test_the_system_clock_cancels_a_body_in_time() -> None:
    with SYSTEM.move_on_after(0.001) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.rule("C3")
@pytest.mark.parametrize("which", [SYSTEM, FakeClock()])
async def test_a_body_that_is_through_in_time_is_not_cancelled(which: Clock) -> None:
    with which.move_on_after(30) as scope:
        await anyio.lowlevel.checkpoint()
    assert not scope.cancelled_caught


@pytest.mark.rule("C3")
async def test_a_body_without_deadline_waits_for_ever(clock: FakeClock) -> None:
    through = anyio.Event()

    async def wait() -> None:
        with clock.move_on_after(None):
            await anyio.sleep_forever()
        through.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await clock.advance(10**9)
        assert not through.is_set()
        tasks.cancel_scope.cancel()


@pytest.mark.rule("C3")
async def test_the_fake_clock_cancels_exactly_at_the_deadline(clock: FakeClock) -> None:
    caught: list[float] = []

    async def wait() -> None:
        with clock.move_on_after(30) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        caught.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await clock.advance(29.999)
        assert caught == []
        await clock.advance(10)
        assert caught == [30]


@pytest.mark.rule("C3")
async def test_a_deadline_that_was_left_in_time_never_cancels_anything(clock: FakeClock) -> None:
    through = anyio.Event()

    async def wait() -> None:
        with clock.move_on_after(1) as scope:
            pass
        await clock.sleep(5)
        assert not scope.cancel_called
        through.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await clock.advance(5)
    assert through.is_set()


@pytest.mark.rule("C3")
async def test_a_cancelled_body_may_take_time_to_clean_up(clock: FakeClock) -> None:
    cleaned: list[float] = []

    async def wait() -> None:
        with clock.move_on_after(1):
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await clock.sleep(5)
                cleaned.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await clock.advance(10)
    assert cleaned == [6]


@pytest.mark.rule("C3")
async def test_of_two_nested_deadlines_the_one_that_is_up_says_so(clock: FakeClock) -> None:
    seen: list[tuple[bool, bool]] = []

    async def wait() -> None:
        with clock.move_on_after(2) as outer:
            with clock.move_on_after(1) as inner:
                await anyio.sleep_forever()
            seen.append((outer.cancelled_caught, inner.cancelled_caught))
            with clock.move_on_after(9) as inner:
                await anyio.sleep_forever()
        seen.append((outer.cancelled_caught, inner.cancelled_caught))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await clock.advance(3)
    assert seen == [(False, True), (True, False)]


@pytest.mark.rule("C4")
@pytest.mark.parametrize("which", [SYSTEM, FakeClock()])
@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_sleep_of_no_time_lets_others_run(which: Clock, seconds: float) -> None:
    ran: list[str] = []

    async def note(who: str) -> None:
        ran.append(f"{who} before")
        await which.sleep(seconds)
        ran.append(f"{who} after")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(note, "a")
        tasks.start_soon(note, "b")
    assert {who.split()[1] for who in ran[:2]} == {"before"}
    assert len(ran) == 4


@pytest.mark.rule("C4")
async def test_a_sleep_on_the_system_clock_takes_its_time() -> None:
    start = time.monotonic()
    await SYSTEM.sleep(0.01)
    assert 0.009 <= time.monotonic() - start < 0.9


@pytest.mark.rule("C5")
async def test_the_fake_clock_stands_still_until_it_is_advanced(clock: FakeClock) -> None:
    start = clock.now_ms()
    await anyio.wait_all_tasks_blocked()
    assert clock.now_ms() == start


@pytest.mark.rule("C5")
async def test_advancing_wakes_sleepers_at_their_own_times_and_in_order(clock: FakeClock) -> None:
    woken: list[tuple[float, float]] = []

    async def nap(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    async with anyio.create_task_group() as tasks:
        for seconds in (3, 1, 2, 99):
            tasks.start_soon(nap, seconds)
        await clock.advance(10)
        assert woken == [(1, 1), (2, 2), (3, 3)]
        assert clock.monotonic() == 10
        tasks.cancel_scope.cancel()


@pytest.mark.rule("C5")
async def test_sleepers_of_the_same_time_wake_in_the_order_they_went_to_sleep(clock: FakeClock) -> None:
    asleep: list[int] = []
    woken: list[int] = []

    async def nap(n: int) -> None:
        asleep.append(n)
        await clock.sleep(1)
        woken.append(n)

    async with anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(nap, n)
        await clock.advance(1)
    assert woken == asleep


@pytest.mark.rule("C5")
async def test_a_loop_of_sleeps_runs_whole_in_one_advance(clock: FakeClock) -> None:
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(clock.monotonic())
            await clock.sleep(0.1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        await clock.advance(1)
        tasks.cancel_scope.cancel()
    assert beats == [n / 10 for n in range(11)]


@pytest.mark.rule("C5")
async def test_every_other_task_runs_until_it_waits_before_time_goes_on(clock: FakeClock) -> None:
    seen: list[float] = []

    async def work() -> None:
        await clock.sleep(1)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        seen.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await clock.advance(2)
    assert seen == [1]


@pytest.mark.rule("C5")
async def test_a_task_that_waits_for_one_which_has_just_ended_is_not_taken_for_one_that_waits() -> None:
    for turns in range(8):
        clock = FakeClock()
        done: list[float] = []

        async def work(turns: int = turns, clock: FakeClock = clock, done: list[float] = done) -> None:
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            for _ in range(50):
                async with anyio.create_task_group() as helpers:
                    helpers.start_soon(anyio.sleep_forever)
                    helpers.cancel_scope.cancel()
            await clock.sleep(1)
            done.append(clock.monotonic())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await clock.advance(10)
            assert done == [1]


@pytest.mark.rule("C5")
async def test_a_day_of_hours_passes_on_the_fake_clock_without_waiting_for_it(clock: FakeClock) -> None:
    async def watch() -> None:
        for _ in range(24):
            await clock.sleep(3600)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()

    start = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await clock.advance(86_400)
    assert time.monotonic() - start < 2


@pytest.mark.rule("C5")
async def test_an_advance_by_nothing_lets_the_others_run(clock: FakeClock) -> None:
    ran: list[float] = []

    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        ran.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await clock.advance(0)
        assert ran == [0]


@pytest.mark.rule("C5")
async def test_the_fake_clock_does_not_go_back(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="does not go back"):
        await clock.advance(-1)
