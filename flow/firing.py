"""Firing one row for one step: under a key that stays the same, and as often as the step's retry allows
(rules S9, R52 to R54)."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from blake3 import blake3

from envelope import Message, address
from envelope.cbor import encode
from flow.clock import Clock
from flow.errors import GuardRefused
from flow.machine import Call, Failure, Machine, Slot, Transition
from flow.plan import Step
from flow.progress import Path

Begin = Callable[[int], Awaitable[None]]


def call_key(thread: bytes, path: Path, slot: str) -> bytes:
    """Return the key of a call: the same for every attempt, in whichever process (rule S9)."""
    return address(encode([thread, list(path), slot]))


class Hit(NamedTuple):
    """What firing left, and how often an action was started; None for never."""

    record: Any
    attempts: int | None


class Unfired(Exception):
    """An attempt to fire that was the last one; `attempts` counts those so far, None if no action was ever started."""

    def __init__(self, cause: Exception, attempts: int | None) -> None:
        super().__init__()
        self.cause = cause
        self.attempts = attempts


class Shot(NamedTuple):
    """What firing takes: a row for a step at a path, its message, the failure it handles, and what was begun before.

    Attributes:
        attempt: the number of this attempt; it is durable.
        interrupted: whether an attempt before it was cut off, and may have started an action.
    """

    step: Step
    path: Path
    row: Transition
    message: Message | None
    failure: Failure | None
    attempt: int
    interrupted: bool


class Firing:
    """Fires rows of one machine for the steps of one thread."""

    def __init__(self, machine: Machine, thread: bytes, clock: Clock) -> None:
        self._machine: Final = machine
        self._thread: Final = thread
        self._clock: Final = clock

    async def fire(self, status: str, record: Any, shot: Shot, begin: Begin) -> Hit:
        """Fire, and return what that left.

        Args:
            begin: makes the number of a further attempt durable, before it starts.

        Raises:
            Unfired: the guard said no, or the last attempt allowed raised.
        """
        attempt, acted, guarded = shot.attempt, shot.interrupted and shot.row.acts, True

        def call(slot: Slot) -> Call:
            nonlocal acted, guarded
            guarded = slot == "guard"
            acted = acted or not guarded
            key = call_key(self._thread, shot.path, slot)
            return Call(shot.path, key, attempt, shot.message, shot.failure)

        retry = shot.step.retry
        while True:
            try:
                _, fired = await self._machine.fire(status, record, shot.row, call)
                return Hit(fired, attempt if acted else None)
            except Exception as error:
                refused = guarded and isinstance(error, GuardRefused)
                if retry is None or attempt >= retry.attempts or refused:
                    raise Unfired(error, attempt if acted else None) from error
            await self._clock.sleep(retry.pause(attempt, self._draw(shot.path, attempt)))
            attempt += 1
            await begin(attempt)

    def _draw(self, path: Path, attempt: int) -> float:
        """Return a number from 0 to below 1 that is the same wherever this pause is computed."""
        digest = blake3(call_key(self._thread, path, "pause") + attempt.to_bytes(8, "big")).digest(6)
        return int.from_bytes(digest, "big") / 2**48
