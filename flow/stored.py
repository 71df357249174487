"""A thread as a store holds it, read at one moment and verified as a whole before anybody builds on it (rule D1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envelope import Envelope, Thread, Verifier
from flow.errors import StoreError
from flow.store import Head, State, ThreadStore


@dataclass(frozen=True, slots=True)
class Stored:
    """A verified thread.

    Attributes:
        name: in the store.
        head: what a commit on it is made against.
        envelopes: all of it, in file order.
        states: its run's private state.
        thread: where it stands.
    """

    name: str
    head: Head
    envelopes: Sequence[Envelope[Any]]
    states: Sequence[State]
    thread: Thread


async def read_verified(store: ThreadStore, name: str, now: int, seen: bytes | None = None) -> Stored:
    """Read a thread and verify it.

    Args:
        store: that has it.
        name: of the thread.
        now: in ms since the epoch.
        seen: the address of a chain record that the thread must have.

    Raises:
        StoreError: `store.unknown`; `store.invalid`, the stored thread does not verify; `store.stale`, it has not the
            record that was seen, or less than its private state knows of.
    """
    head = await store.head(name)
    while True:
        records = await store.read(name)
        states = await store.states(name)
        before, head = head, await store.head(name)
        if head == before:
            break
    envelopes: list[Envelope[Any]] = []
    verifier = Verifier(trust=None, now=now, tip=seen, observe=lambda e, *_: envelopes.append(e))
    for raw in records:
        verifier.feed(raw)
    verdict = verifier.finish()
    if verdict.integrity != "valid":
        raise StoreError(
            f"the stored thread {name!r} does not verify, and is left alone: {verdict}", code="store.invalid"
        )
    known = {envelope.address for envelope in envelopes}
    if verdict.completeness == "truncated" or any(state.tip not in known for state in states):
        raise StoreError(
            f"the stored thread {name!r} lacks records that are known to exist: the store is older than the "
            "thread; give the store that the run last wrote to",
            code="store.stale",
        )
    return Stored(name, head, envelopes, states, verifier.thread)
