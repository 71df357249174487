"""The supervisor tells once of each silence, and once of its end."""

from collections.abc import Callable

import anyio
import pytest

from flow import Monitor
from flow.bus import HEARTBEAT_MISSED, HEARTBEAT_RECOVERED
from flow.supervisor import supervise
from flow.testing import FakeClock, RecordingBus

pytestmark = pytest.mark.anyio


class Watch:
    """A monitor of 3 seconds under supervision, on a clock that stands still."""

    def __init__(self) -> None:
        self.clock, self.bus, self.monitor = FakeClock(), RecordingBus(), Monitor(3)

    def beat(self, beating: str = "a") -> None:
        self.monitor.beat(beating, self.clock.monotonic())

    async def over(self, *script: float | Callable[[], None]) -> list[tuple[str, str, float]]:
        """Let seconds pass and do things, and return what was told."""
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: supervise(self.monitor, self.bus, clock=self.clock))
            for part in script:
                if callable(part):
                    part()
                else:
                    await self.clock.advance(part)
            group.cancel_scope.cancel()
        return [(event.name, event.data["beating"], event.data["since"]) for event in self.bus.events]


@pytest.mark.rule("H8")
async def test_a_silence_is_told_once_however_long_it_lasts() -> None:
    watch = Watch()
    watch.beat()
    assert await watch.over(100) == [(HEARTBEAT_MISSED, "a", 0)]


@pytest.mark.rule("H8")
async def test_a_silence_is_told_within_a_third_of_the_timeout() -> None:
    watch = Watch()
    watch.beat()
    assert await watch.over(3) == []
    assert await watch.over(1) == [(HEARTBEAT_MISSED, "a", 0)]


@pytest.mark.rule("H8")
async def test_who_beats_in_time_is_not_told_of() -> None:
    watch = Watch()
    watch.beat()
    assert await watch.over(*[2, watch.beat] * 9) == []


@pytest.mark.rule("H8", "H9")
async def test_each_silence_is_told_with_its_end() -> None:
    watch = Watch()
    watch.beat()
    told = await watch.over(5, watch.beat, 1, 9)
    assert told == [(HEARTBEAT_MISSED, "a", 0), (HEARTBEAT_RECOVERED, "a", 5), (HEARTBEAT_MISSED, "a", 5)]


@pytest.mark.rule("H9")
async def test_a_sign_of_life_between_two_silences_is_not_lost_though_nobody_looked_meanwhile() -> None:
    watch = Watch()
    watch.beat()
    await watch.clock.advance(5)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: supervise(watch.monitor, watch.bus, clock=watch.clock))
        await watch.clock.advance(0)
        watch.monitor.beat("a", 1)
        await watch.clock.advance(1)
        group.cancel_scope.cancel()
    assert [(event.name, event.data["since"]) for event in watch.bus.events] == [
        (HEARTBEAT_MISSED, 0),
        (HEARTBEAT_RECOVERED, 1),
        (HEARTBEAT_MISSED, 1),
    ]


@pytest.mark.rule("H9")
async def test_who_is_forgotten_has_not_recovered() -> None:
    watch = Watch()
    watch.beat()
    assert await watch.over(5, lambda: watch.monitor.forget("a"), 9) == [(HEARTBEAT_MISSED, "a", 0)]


@pytest.mark.rule("H10")
async def test_what_is_called_for_a_silence_may_end_what_is_supervised() -> None:
    watch = Watch()
    watch.beat("b")
    watch.beat("a")
    called: list[tuple[str, int]] = []

    class TooLong(Exception):
        pass

    async def missed(beating: str) -> None:
        called.append((beating, len(watch.bus.events)))
        raise TooLong

    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: supervise(watch.monitor, watch.bus, missed=missed, clock=watch.clock))
            await watch.clock.advance(100)

    with pytest.raises(ExceptionGroup) as raised:
        await group()
    assert raised.group_contains(TooLong)
    assert called == [("a", 1)]
