"""Watching who falls silent, and telling of it: once when a silence begins, and once when it ends."""

from collections.abc import Awaitable, Callable
from typing import NoReturn

from flow.bus import HEARTBEAT_MISSED, HEARTBEAT_RECOVERED, Bus, Event
from flow.clock import SYSTEM, Clock
from flow.heartbeat import Monitor


async def supervise(
    monitor: Monitor,
    bus: Bus,
    *,
    missed: Callable[[str], Awaitable[None]] | None = None,
    clock: Clock = SYSTEM,
) -> NoReturn:
    """Look at a monitor three times in each of its timeouts, until cancelled (rules H8 to H10).

    Run it in a task beside what is watched, and cancel it when that is done.

    Args:
        monitor: the same that the runs beat.
        bus: is told `heartbeat.missed` and `heartbeat.recovered`, with the id as `beating` and the time of its last
            beat, in seconds of the clock, as `since`.
        missed: called with an id that has fallen silent, after the bus; what it raises ends the supervision, and with
            it the task group that both are in.
        clock: the one that the beats are of.
    """
    silent: dict[str, float] = {}
    while True:
        now = clock.monotonic()
        dead = {beating: since for beating in monitor.dead(now) if (since := monitor.last(beating)) is not None}
        for beating, since in silent.items():
            last = monitor.last(beating)
            if last is not None and last != since:
                await bus.emit(Event(HEARTBEAT_RECOVERED, {"beating": beating, "since": last}))
        for beating, since in dead.items():
            if silent.get(beating) != since:
                await bus.emit(Event(HEARTBEAT_MISSED, {"beating": beating, "since": since}))
                if missed is not None:
                    await missed(beating)
        silent = dead
        await clock.sleep(monitor.timeout / 3)
