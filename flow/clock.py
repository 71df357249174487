"""All time and all waiting go through a clock.

Event loops keep their own time and cannot be told another; code that asks a clock instead runs unchanged under one
that a test moves by hand (`flow.testing.FakeClock`). Nothing else in this package looks at the time or sleeps.
"""

import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Final, Protocol

import anyio


class Clock(Protocol):
    """What a run knows of time (rules C1 to C4)."""

    def now_ms(self) -> int:
        """The wall clock, in milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Wait that long; zero or less only lets others run."""

    def move_on_after(self, seconds: float | None) -> AbstractContextManager[anyio.CancelScope]:
        """A scope whose body is cancelled when the time is up; afterwards its `cancelled_caught` tells.

        Args:
            seconds: from now; zero or less is up at once, None never.
        """


class SystemClock:
    """The machine's time, and waiting on the event loop that runs."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(max(0, seconds))

    def move_on_after(self, seconds: float | None) -> AbstractContextManager[anyio.CancelScope]:
        return anyio.move_on_after(seconds)


def rfc3339(ms: int) -> str:
    """Return a time in ms since the epoch as RFC 3339 has it, in UTC and with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


SYSTEM: Final[Clock] = SystemClock()
"""The clock that a run uses unless it is given another."""
