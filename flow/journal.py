"""The thread of a run, as its runner sees it: what is appended is durable, signed on what really stands there, and
never a second time something else.

Another member may append while the run waits. Then the commit is refused, the journal takes in what is new, and the
record is signed anew on top of it; receipts name no predecessor and go in again as the same bytes (rule S5).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import anyio
import anyio.lowlevel

from envelope import (
    Ack,
    Envelope,
    Identity,
    Open,
    PublicKey,
    Settle,
    Thread,
    did_key,
    open_envelope,
    sign_record,
)
from envelope.records import Record
from flow.clock import Clock
from flow.errors import FlowError, StoreError, Superseded
from flow.store import Head, State, ThreadStore, sent
from flow.stored import read_verified

_MOST_STANDING: Final = 4096
MOST_SETTLED: Final = 512
"""How many settlements one record carries at most."""

Build = Callable[[], Sequence[Envelope[Any]]]


class Journal:
    """One thread in a store, and a run's own copy of its state.

    Attributes:
        name: the thread's.
        thread: the state machine, as of the last commit or refresh.
        failure: what the store raised, or how the thread was lost; nothing is appended after that.
        appended: the last ack that stood in the thread before this run received it, by message and signer.
    """

    def __init__(self, store: ThreadStore, name: str, identity: Identity, clock: Clock) -> None:
        self.name = name
        self.thread = Thread()
        self.failure: Exception | None = None
        self.appended: dict[tuple[bytes, PublicKey], Envelope[Ack]] = {}
        self._store = store
        self._identity = identity
        self._clock = clock
        self._head: Head
        self._read = 0
        self._owed: list[dict[str, Any]] = []
        self._lock = anyio.Lock(fast_acquire=True)

    async def begin(self, fields: dict[str, Any], state: bytes) -> Envelope[Open]:
        """Sign the open and create the thread.

        Raises:
            StoreError: `store.exists`.
        """
        opening = self._seal(Open, {"name": self.name, **fields})
        self._head = await self._create(opening.raw, state)
        self._take([opening])
        return opening

    async def go_on(self, seen: bytes | None = None) -> tuple[Sequence[Envelope[Any]], Sequence[State]]:
        """Read a thread that was begun before, verify it, and return its envelopes and its private state.

        Args:
            seen: the address of a chain record that the thread must have.

        Raises:
            StoreError: `store.unknown`; `store.invalid`, the stored thread does not verify; `store.stale`, it has not
                the record that was seen, or less than its private state knows of.
            FlowError: `run.key`, the thread is another key's.
        """
        stored = await read_verified(self._store, self.name, self._clock.now_ms(), seen)
        self._head, self.thread = stored.head, stored.thread
        self._read = len(stored.envelopes)
        if self.thread.owner != self._identity.public_key:
            raise FlowError(
                f"the thread {self.name!r} is of {did_key(self.thread.owner)}, and the agent's key is "
                f"{self._identity.did}: resume it with the key it was begun with",
                code="run.key",
            )
        self._notice(stored.envelopes)
        return stored.envelopes, stored.states

    def carry(self, owed: Iterable[dict[str, Any]]) -> None:
        """Have the next chain record carry settlements that are durable in the private state."""
        self._owed += owed

    @property
    def owes(self) -> bool:
        """Whether receipts or settlements stand uncommitted."""
        return bool(self._owed or self.thread.standing)

    async def append(
        self,
        kind: type[Record],
        fields: Callable[[], dict[str, Any]],
        state: bytes | None = None,
        settled: Sequence[dict[str, Any]] = (),
    ) -> Envelope[Any]:
        """Append one chain record that carries what stands and what is owed.

        Args:
            kind: the record's model.
            fields: gives its own fields; asked again when the record is signed anew.
            state: the entry of private state that goes with it.
            settled: settlements that it carries besides those that are owed.
        """
        (envelope,) = await self.append_all([(kind, fields)], state, settled)
        return envelope

    async def append_all(
        self,
        records: Sequence[tuple[type[Record], Callable[[], dict[str, Any]]]],
        state: bytes | None = None,
        settled: Sequence[dict[str, Any]] = (),
    ) -> Sequence[Envelope[Any]]:
        """Append several chain records in one commit; the first carries what stands and what is owed."""
        async with self._lock:
            while self.owes and len(self._owed) + len(settled) > MOST_SETTLED:
                await self._flush()
            envelopes = await self._commit(lambda: self._chain(records, (*self._owed, *settled)), state)
            self._owed.clear()
            return envelopes

    async def receive(self, receipts: Sequence[Envelope[Any]], state: bytes | None) -> None:
        """Append receipts, of which the first may be another's; a settle goes first where too many would stand.

        A receipt that its signer has appended itself meanwhile is there already.
        """
        async with self._lock:
            if len(self.thread.standing) + len(receipts) > _MOST_STANDING:
                await self._flush()
            await self._commit(lambda: [one for one in receipts if not self._stands(one)], state)

    async def note(self, state: bytes, settled: Sequence[dict[str, Any]] = ()) -> None:
        """Make an entry of private state durable, and owe the thread the settlements that it knows.

        A settle goes first where too much is owed already.
        """
        async with self._lock:
            while len(self._owed) >= MOST_SETTLED:
                await self._flush()
            await self._commit(lambda: (), state)
            self._owed += settled

    async def settle(self) -> None:
        """Append a settle, if anything stands uncommitted."""
        async with self._lock:
            while self.owes:
                await self._flush()

    async def refresh(self) -> None:
        """Take in what other members appended."""
        async with self._lock:
            if self.failure is not None:
                raise self.failure
            head = await self._store.head(self.name)
            if head != self._head:
                await self._reload()

    async def records(self) -> Sequence[bytes]:
        """Return the thread's records as they stand in the store."""
        return await self._store.read(self.name)

    def sign(self, kind: type[Record], **fields: Any) -> Envelope[Any]:
        """Sign a receipt."""
        return self._seal(kind, {"thread": self.thread.address, **fields})

    async def _flush(self) -> None:
        carried = self._owed[:MOST_SETTLED]
        await self._commit(lambda: self._chain([(Settle, dict)], carried), None)
        del self._owed[: len(carried)]

    def _chain(
        self,
        records: Iterable[tuple[type[Record], Callable[[], dict[str, Any]]]],
        settled: Sequence[dict[str, Any]],
    ) -> list[Envelope[Any]]:
        links = {**self.thread.links(), "settled": tuple(settled) or None}
        envelopes = []
        for kind, fields in records:
            envelope = self._seal(kind, {**links, **fields()})
            envelopes.append(envelope)
            links = {"thread": links["thread"], "seq": links["seq"] + 1, "prev": envelope.address}
        return envelopes

    def _stands(self, receipt: Envelope[Any]) -> bool:
        own = self.appended.get((receipt.record.message, receipt.signer)) if receipt.kind == "ack" else None
        return own is not None and own.address == receipt.address

    def _seal(self, kind: type[Record], fields: dict[str, Any]) -> Envelope[Any]:
        return sign_record(kind, self._identity, sent_at=self._clock.now_ms(), **fields)

    async def _commit(self, make: Build, state: bytes | None) -> Sequence[Envelope[Any]]:
        while True:
            if self.failure is not None:
                raise self.failure
            envelopes, before = make(), self._head
            if not envelopes and state is None:
                return envelopes
            try:
                head = await self._send([envelope.raw for envelope in envelopes], state)
            except StoreError as error:
                if error.code == "store.conflict":
                    await self._reload()
                    if self._head != before:
                        await anyio.lowlevel.checkpoint()
                        continue
                if error.code != "store.refused":
                    self.failure = error
                raise
            except Exception as error:
                self.failure = error
                raise
            self._take(envelopes)
            self._head = head
            return envelopes

    async def _send(self, records: Sequence[bytes], state: bytes | None) -> Head:
        return await sent(lambda: self._store.commit(self.name, self._head, records, state))

    async def _create(self, opening: bytes, state: bytes) -> Head:
        return await sent(lambda: self._store.create(self.name, opening, state))

    async def _reload(self) -> None:
        """Take in what others appended, or learn that the thread is no longer this run's (rule R37)."""
        try:
            await self._catch_up()
        except Exception as error:
            self.failure = error
            raise

    async def _catch_up(self) -> None:
        states = self._head.state
        self._head = await self._store.head(self.name)
        new = [open_envelope(raw) for raw in await self._store.read(self.name, self._read)]
        mine = self._identity.public_key
        self._take(new)
        if self._head.state != states or any(envelope.signer == mine for envelope in new):
            raise Superseded(f"another run of this key goes on with the thread {self.name!r}: leave it to that one")
        if self.thread.role(mine) != "moderator":
            raise Superseded(f"the key of this run is no longer a moderator of the thread {self.name!r}")
        if self.thread.outcome is not None:
            raise Superseded(f"another moderator sealed the thread {self.name!r} as {self.thread.outcome}")
        self._notice(new)

    def _notice(self, envelopes: Iterable[Envelope[Any]]) -> None:
        for envelope in envelopes:
            if envelope.kind == "ack":
                self.appended[envelope.record.message, envelope.signer] = envelope

    def _take(self, envelopes: Iterable[Envelope[Any]]) -> None:
        for envelope in envelopes:
            self.thread.apply(envelope)
            self._read += 1
