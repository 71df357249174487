"""Giving up a run for good: its thread is sealed `cancelled` by whoever may, with all that stands and is owed (W6)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from envelope import Envelope, Identity, Seal, ThreadWriter, did_key
from flow.clock import Clock, SystemClock
from flow.errors import FlowError, StoreError
from flow.journal import MOST_SETTLED
from flow.progress import History, read_entry
from flow.store import IMPORTED, ThreadStore, sent
from flow.stored import Stored, read_verified


async def close(
    store: ThreadStore, name: str, identity: Identity, reason: str, clock: Clock | None = None
) -> Envelope[Seal]:
    """Seal an open thread `cancelled`.

    The seal commits the receipts that stand. Settlements that the run's private state knows and the thread does not
    carry yet go in with it, if it is the owner who closes. A run that is still alive loses at its next commit.

    Args:
        store: that has the thread.
        name: of the thread in it.
        identity: the owner's, or another moderator's.
        reason: stands in the seal.

    Raises:
        FlowError: `close.sealed`, it is sealed; `close.role`, the key is no moderator's.
        StoreError: the thread does not verify, or the store fails.
        EnvelopeError: the reason is none that a seal may hold.
    """
    clock = clock or SystemClock()
    while True:
        stored = await read_verified(store, name, clock.now_ms())
        _check(stored, identity)
        records, seal = _records(stored, identity, reason, clock.now_ms())
        try:
            await sent(partial(store.commit, name, stored.head, records))
        except StoreError as error:
            if error.code != "store.conflict":
                raise
        else:
            return seal


def _check(stored: Stored, identity: Identity) -> None:
    if stored.thread.outcome is not None:
        raise FlowError(
            f"the thread {stored.name!r} is sealed {stored.thread.outcome} already: nothing is left to close",
            code="close.sealed",
        )
    role = stored.thread.role(identity.public_key)
    if role != "moderator":
        raise FlowError(
            f"{identity.did} is {role or 'no member'} in the thread {stored.name!r}: close it with the key of its "
            f"owner, {did_key(stored.thread.owner)}, or of another moderator",
            code="close.role",
        )


def _records(stored: Stored, identity: Identity, reason: str, now: int) -> tuple[Sequence[bytes], Envelope[Seal]]:
    """Return what is to be appended, the seal at its end, behind as many settles as it takes to carry what is owed."""
    owed = _owed(stored) if identity.public_key == stored.thread.owner else []
    writer = ThreadWriter()
    for envelope in stored.envelopes:
        writer.append(envelope)
    while len(owed) > MOST_SETTLED:
        writer.settle(identity, owed[:MOST_SETTLED], sent_at=now)
        del owed[:MOST_SETTLED]
    seal = writer.seal(identity, "cancelled", reason=reason, settled=tuple(owed) or None, sent_at=now)
    return writer.records[len(stored.envelopes) :], seal


def _owed(stored: Stored) -> list[dict[str, Any]]:
    """Return what the run had done, and its thread does not say yet; of damaged state, which nobody can read, nothing.

    Raises:
        StoreError: `store.stale`.
    """
    if [state.data for state in stored.states[:1]] == [IMPORTED]:
        return []
    try:
        entries = [read_entry(state.data, number) for number, state in enumerate(stored.states)]
        return History(stored.envelopes, entries, stored.thread.owner).owed()
    except StoreError as error:
        if error.code != "store.state":
            raise
        return []
