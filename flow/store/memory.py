"""A store that lasts as long as its process."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio.lowlevel

from envelope import EnvelopeError, Thread, open_envelope
from flow.errors import StoreError
from flow.store.contract import Head, State


@dataclass(slots=True)
class _Stored:
    thread: Thread
    records: list[bytes] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    last: tuple[Head, tuple[bytes, ...], bytes | None] | None = None

    @property
    def head(self) -> Head:
        thread = self.thread
        return Head(thread.address, thread.tip, thread.seq, thread.standing, len(self.states))


class MemoryStore:
    """A `ThreadStore` in memory. No commit awaits anything between its check and its effect, so each is atomic."""

    def __init__(self) -> None:
        self._threads: dict[str, _Stored] = {}

    async def create(self, name: str, opening: bytes, state: bytes) -> Head:
        if name in self._threads:
            raise StoreError(
                f"the thread {name!r} exists: choose another name, or go on with that thread", code="store.exists"
            )
        stored = _Stored(Thread())
        _append(stored, [opening])
        stored.states.append(State(stored.thread.tip, state))
        self._threads[name] = stored
        return stored.head

    async def head(self, name: str) -> Head:
        return self._stored(name).head

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        if records:
            await anyio.lowlevel.checkpoint()
        stored = self._stored(name)
        head = stored.head
        commit = (at, tuple(records), state)
        if commit == stored.last:
            return head
        if at != head:
            raise StoreError(
                f"the thread {name!r} has moved on since it was read: read it again, and build on what stands there",
                code="store.conflict",
            )
        _append(stored, records)
        if state is not None:
            stored.states.append(State(stored.thread.tip, state))
        stored.last = commit
        return stored.head

    async def read(self, name: str, start: int = 0) -> Sequence[bytes]:
        return self._stored(name).records[start:]

    async def states(self, name: str, start: int = 0) -> Sequence[State]:
        return self._stored(name).states[start:]

    async def names(self) -> Sequence[str]:
        return sorted(self._threads)

    def _stored(self, name: str) -> _Stored:
        if name not in self._threads:
            raise StoreError(f"there is no thread {name!r} in this store", code="store.unknown")
        return self._threads[name]


def _append(stored: _Stored, records: Sequence[bytes]) -> None:
    """Apply records to a thread, all of them or none."""
    for done, raw in enumerate(records):
        try:
            stored.thread.apply(open_envelope(raw))
        except EnvelopeError as error:
            if done:
                stored.thread = _replayed(stored.records)
            raise StoreError(
                f"record {done} of the commit breaks the protocol: {error}", code="store.refused"
            ) from error
    stored.records += records


def _replayed(records: Sequence[bytes]) -> Thread:
    thread = Thread()
    for raw in records:
        thread.apply(open_envelope(raw))
    return thread
