"""A clock that stands still until it is moved."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import anyio
import anyio.lowlevel


class FakeClock:
    """A `flow.clock.Clock` whose time passes only in `advance`, on every event loop, without sleeping (rule C5).

    Args:
        now_ms: the wall clock at the start, in milliseconds since the epoch.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._now_ns = 0
        self._turn = count()
        self._timers: list[tuple[int, int, Callable[[], object]]] = []

    def now_ms(self) -> int:
        return self._start_ms + self._now_ns // 1_000_000

    def monotonic(self) -> float:
        return self._now_ns / 1e9

    async def sleep(self, seconds: float) -> None:
        over = anyio.Event()
        with self._timer(seconds, over.set):
            await over.wait()

    @contextmanager
    def move_on_after(self, seconds: float | None) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as scope:
            if seconds is None:
                yield scope
            else:
                with self._timer(seconds, scope.cancel):
                    yield scope

    async def advance(self, seconds: float) -> None:
        """Let time pass, in a task of its own beside those that wait.

        Every sleep and deadline that falls due, the new ones too, takes effect at its own time, earliest first, and
        before the next one each other task has run until it waits.

        Args:
            seconds: how far to go; 0 only lets the others run.
        """
        end = self._now_ns + round(seconds * 1e9)
        if end < self._now_ns:
            raise ValueError(f"a clock does not go back: advance({seconds})")
        await _all_waiting()
        while self._timers and min(self._timers)[0] <= end:
            timer = min(self._timers)
            self._timers.remove(timer)
            self._now_ns, _, ring = timer
            ring()
            await _all_waiting()
        self._now_ns = max(self._now_ns, end)

    @contextmanager
    def _timer(self, seconds: float, ring: Callable[[], object]) -> Iterator[None]:
        timer = (self._now_ns + round(seconds * 1e9), next(self._turn), ring)
        if timer[0] > self._now_ns:
            self._timers.append(timer)
        else:
            ring()
        try:
            yield
        finally:
            if timer in self._timers:
                self._timers.remove(timer)


async def _all_waiting() -> None:
    # On asyncio, wait_all_tasks_blocked sleeps whenever it finds a task that can still run: give them turns first.
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    # There, too, a task that waits for another one which has just ended looks blocked for a turn: look several times.
    for _ in range(5):
        await anyio.wait_all_tasks_blocked()
