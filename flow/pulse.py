"""A run's heart: it beats before and while the run waits, fires or delays, and is forgotten when the run is over."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

from flow.clock import Clock
from flow.errors import HeartbeatError
from flow.heartbeat import Monitor

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Pulse:
    """Beats one id on a monitor (rules R11, R28); without a monitor, does nothing."""

    def __init__(self, monitor: Monitor | None, beating: str, clock: Clock) -> None:
        self._monitor: Final = monitor
        self._id: Final = beating
        self._clock: Final = clock

    async def during(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work while the heart beats."""
        monitor = self._monitor
        if monitor is None:
            return await work()
        self._beat(monitor)
        result: list[T] = []
        failure: list[BaseException] = []
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_beating, monitor)
            try:
                result.append(await work())
            except BaseException as error:  # which the group would wrap, or take for its own
                failure.append(error)
                if isinstance(error, anyio.get_cancelled_exc_class()):
                    raise
            group.cancel_scope.cancel()
        if failure:
            raise failure[0]
        return result[0]

    def forget(self) -> None:
        """Have the monitor forget the id."""
        if self._monitor is not None:
            try:
                self._monitor.forget(self._id)
            except Exception:
                _log.exception("the monitor failed to forget %s", self._id)

    async def _keep_beating(self, monitor: Monitor) -> None:
        try:
            while True:
                await self._clock.sleep(monitor.timeout / 3)
                self._beat(monitor)
        except Exception:
            _log.exception("the monitor %r failed; the run goes on", monitor)

    def _beat(self, monitor: Monitor) -> None:
        try:
            monitor.beat(self._id, self._clock.monotonic())
        except HeartbeatError:  # a later beat is there already
            pass
        except Exception:
            _log.exception("the monitor %r failed; the run goes on", monitor)
