"""A monitor remembers when each id last gave a sign of life.

It owns no clock and starts nothing: who beats and who asks bring the time with them, in seconds of one clock.
"""

import math

from flow.errors import HeartbeatError


class Monitor:
    """Who beat when, and who has been silent for longer than the timeout (rules H1 to H7).

    Args:
        timeout: seconds of silence after which an id counts as dead; above 0.

    Raises:
        HeartbeatError: the timeout is not a finite number above 0.
    """

    def __init__(self, timeout: float) -> None:
        if not 0 < timeout < math.inf:
            raise HeartbeatError(f"timeout {timeout!r}: give seconds above 0", code="heartbeat.timeout")
        self.timeout = timeout
        self._last: dict[str, float] = {}

    def beat(self, beating: str, at: float) -> None:
        """Note a sign of life.

        Args:
            beating: the id; not blank.
            at: when, in seconds.

        Raises:
            HeartbeatError: the id is blank, or the beat is older than the id's last (code `heartbeat.stale`).
        """
        if not beating.strip():
            raise HeartbeatError("a beat with a blank id: name what is alive", code="heartbeat.id")
        last = self._last.get(beating, at)
        if at < last:
            raise HeartbeatError(
                f"beat of {beating!r} at {at} is older than its last at {last}: drop it", code="heartbeat.stale"
            )
        self._last[beating] = at

    def alive(self, beating: str, now: float) -> bool:
        """Whether the id has beaten within the timeout; a beat from the future counts."""
        last = self._last.get(beating)
        return last is not None and now - last <= self.timeout

    def last(self, beating: str) -> float | None:
        """When the id last beat, in seconds; None if it is not watched."""
        return self._last.get(beating)

    def dead(self, now: float) -> list[str]:
        """The ids that have beaten once but not within the timeout, sorted; the same ones again until forgotten."""
        return sorted(beating for beating in self._last if not self.alive(beating, now))

    def forget(self, beating: str) -> None:
        """Stop watching an id; one that is not watched may be forgotten too."""
        self._last.pop(beating, None)
