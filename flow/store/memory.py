"""A store that lasts as long as its process."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio.lowlevel

from envelope import EnvelopeError, Thread, address, open_envelope
from flow.errors import StoreError
from flow.store.contract import Head, State

_Place = tuple[bytes, int, int]
_Content = tuple[tuple[bytes, ...], bytes | None]


@dataclass(slots=True)
class _Stored:
    thread: Thread
    records: list[bytes] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    made: dict[_Place, _Content] = field(default_factory=dict)

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
            raise StoreError(f"the thread {name!r} exists: choose another name", code="store.exists")
        stored = _Stored(Thread())
        _append(stored, [opening])
        stored.states.append(State(stored.thread.tip, state))
        self._threads[name] = stored
        return stored.head

    async def head(self, name: str) -> Head:
        return self._stored(name).head

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        if records and not at.standing:  # so that a run lets others go on about once a step
            await anyio.lowlevel.checkpoint()
        stored = self._stored(name)
        place, content = (at.tip, len(at.standing), at.state), (tuple(records), state)
        if at != stored.head:
            if stored.made.get(place) == content:
                return _after(at, records, state)
            raise StoreError(
                f"the thread {name!r} has moved on since it was read: read it again, and build on what stands there",
                code="store.conflict",
            )
        _append(stored, records)
        if state is not None:
            stored.states.append(State(stored.thread.tip, state))
        stored.made[place] = content
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


def _after(at: Head, records: Sequence[bytes], state: bytes | None) -> Head:
    """Return the head that a commit left when it was made, whatever was appended since."""
    tip, seq, standing = at.tip, at.seq, at.standing
    for raw in records:
        if open_envelope(raw).kind in ("ack", "ruling"):
            standing = (*standing, address(raw))
        else:
            tip, seq, standing = address(raw), seq + 1, ()
    return Head(at.thread, tip, seq, standing, at.state + (state is not None))


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
