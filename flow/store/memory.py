"""A store that lasts as long as its process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from anyio.lowlevel import checkpoint

from envelope import EnvelopeError, Thread, address, open_envelope
from flow.store import refusals
from flow.store.contract import IMPORTED, Head, State, may_hold_up

_Place = tuple[bytes, int, int]
_Content = tuple[tuple[bytes, ...], bytes | None]

_BEGINNING: Final = (b"", 0, 0)


@dataclass(slots=True)
class _Stored:
    thread: Thread
    records: list[bytes] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    made: dict[_Place, tuple[int, _Content]] = field(default_factory=dict)

    @property
    def head(self) -> Head:
        thread = self.thread
        return Head(thread.address, thread.tip, thread.seq, thread.standing, len(self.states))

    def has_made(self, at: Head, content: _Content) -> bool:
        """Whether a commit of this content was made at this head."""
        thread, (index, made) = self.thread, self.made.get(_place(at), (0, None))
        stood = self.records[index - len(at.standing) : index]
        return (
            made == content
            and at.thread == thread.address
            and thread.find(at.tip) == at.seq - 1 >= 0
            and tuple(address(raw) for raw in stood) == at.standing
        )


class MemoryStore:
    """A `ThreadStore` in memory. No commit awaits anything between its check and its effect, so each is atomic."""

    def __init__(self) -> None:
        self._threads: dict[str, _Stored] = {}

    async def create(self, name: str, opening: bytes, state: bytes) -> Head:
        content = ((opening,), state)
        if name in self._threads:
            if self._threads[name].made.get(_BEGINNING) != (0, content):
                raise refusals.exists(name)
            return Head.first(address(opening))
        stored = self._begin(name, [opening], state)
        stored.made[_BEGINNING] = (0, content)
        return stored.head

    async def adopt(self, name: str, records: Sequence[bytes], state: bytes = IMPORTED) -> Head:
        if not records:
            raise refusals.no_open()
        if name not in self._threads:
            return self._begin(name, records, state).head
        stored = self._threads[name]
        count = len(stored.records)
        if records[0] != stored.records[0]:
            raise refusals.exists(name)
        if list(records[:count]) != stored.records:
            raise refusals.departed(name)
        _append(stored, records[count:])
        return stored.head

    async def head(self, name: str) -> Head:
        return self._stored(name).head

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        if may_hold_up(at, records):
            await checkpoint()
        stored = self._stored(name)
        content = (tuple(records), state)
        if at != stored.head:
            if not stored.has_made(at, content):
                raise refusals.moved_on(name)
            return at.after(records, state)
        index = stored.thread.index
        _append(stored, records)
        if state is not None:
            stored.states.append(State(stored.thread.tip, state))
        stored.made[_place(at)] = (index, content)
        return stored.head

    async def read(self, name: str, start: int = 0) -> Sequence[bytes]:
        return self._stored(name).records[start:]

    async def states(self, name: str, start: int = 0) -> Sequence[State]:
        return self._stored(name).states[start:]

    async def names(self) -> Sequence[str]:
        return sorted(self._threads)

    def _begin(self, name: str, records: Sequence[bytes], state: bytes) -> _Stored:
        stored = _Stored(Thread())
        _append(stored, records)
        stored.states.append(State(stored.thread.tip, state))
        self._threads[name] = stored
        return stored

    def _stored(self, name: str) -> _Stored:
        if name not in self._threads:
            raise refusals.unknown(name)
        return self._threads[name]


def _place(at: Head) -> _Place:
    return at.tip, len(at.standing), at.state


def _append(stored: _Stored, records: Sequence[bytes]) -> None:
    """Apply records to a thread, all of them or none."""
    for done, raw in enumerate(records):
        try:
            stored.thread.apply(open_envelope(raw))
        except EnvelopeError as error:
            if done:
                stored.thread = _replayed(stored.records)
            raise refusals.broken(done, error) from error
    stored.records += records


def _replayed(records: Sequence[bytes]) -> Thread:
    thread = Thread()
    for raw in records:
        thread.apply(open_envelope(raw))
    return thread
