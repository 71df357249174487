"""What a run needs of a store: threads that grow by whole commits, each made against what the writer last saw.

A thread is its records, in file order, and beside them the entries of its run's private state. A commit appends some
of each in one transaction. `flow.testing.ThreadStoreContract` holds an implementation to every line of this page.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from envelope import address, open_envelope
from flow.errors import StoreError

IMPORTED: Final = b"imported"
"""The first entry of private state of a thread that grew elsewhere: no run of this store began it."""

_TRIES: Final = 3


class Head(NamedTuple):
    """How far a thread has come; what a commit is made against (rule S3).

    Attributes:
        thread: the address of the open.
        tip: the address of the last chain record.
        seq: the place of the next one.
        standing: the addresses of the receipts behind the tip, in order.
        state: how many entries of private state there are.
    """

    thread: bytes
    tip: bytes
    seq: int
    standing: tuple[bytes, ...]
    state: int

    @classmethod
    def first(cls, thread: bytes) -> "Head":
        """Return the head of a thread that is just begun."""
        return cls(thread, thread, 1, (), 1)

    def after(self, records: Sequence[bytes], state: bytes | None) -> "Head":
        """Return the head that a commit leaves which was made here, whatever was appended since."""
        tip, seq, standing = self.tip, self.seq, self.standing
        for raw in records:
            if open_envelope(raw).kind in ("ack", "ruling"):
                standing = (*standing, address(raw))
            else:
                tip, seq, standing = address(raw), seq + 1, ()
        return Head(self.thread, tip, seq, standing, self.state + (state is not None))


class State(NamedTuple):
    """An entry of private state, and the tip of the thread that it was committed with (rule S8)."""

    tip: bytes
    data: bytes


def may_hold_up(at: Head, records: Sequence[bytes]) -> bool:
    """Whether a store whose commits wait for nothing lets others go on before this one.

    That is about once a step, and always at the same places: a run whose order depended on how many commits came before
    would not be the same when it is resumed (rule D13).
    """
    return bool(records) and not at.standing


class ThreadStore(Protocol):
    """Threads by name (rules S1 to S4, S6 to S8, S10 to S13).

    Whatever is raised, the thread is as it was. A durable store raises besides what stands here what its files make it
    raise, with codes of its own.
    """

    async def create(self, name: str, opening: bytes, state: bytes) -> Head:
        """Begin a thread with its open and the first entry of private state.

        A thread that was begun already with the same bytes and the same state is begun again without effect: what is
        returned is the head that it began with.

        Raises:
            StoreError: `store.exists`, the name is taken; `store.refused`, the bytes are no open; `store.in_doubt`, as
                of `commit`.
        """

    async def adopt(self, name: str, records: Sequence[bytes], state: bytes = IMPORTED) -> Head:
        """Take in a whole thread that grew elsewhere, in one transaction.

        A name that holds the same thread as far as it goes gets the records that it lacks, and no state. If it lacks
        none, nothing changes.

        Args:
            name: of the thread.
            records: all of the thread's envelopes, in file order.
            state: the first entry of private state, where the name is new.

        Raises:
            StoreError: `store.exists`, the name holds another thread; `store.conflict`, it holds this one, but further,
                or going on differently; `store.refused`, a record breaks a rule; `store.in_doubt`, as of `commit`.
        """

    async def head(self, name: str) -> Head:
        """Return how far a thread has come.

        Raises:
            StoreError: `store.unknown`, there is no such thread.
        """

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        """Append records and at most one entry of private state: all of it, or nothing.

        A commit that was made already, at the same head with the same content, is made again without effect, also where
        others have appended since: what is returned is the head that it left.

        Args:
            name: of the thread.
            at: the head that the writer built on.
            records: envelopes in file order; may be empty.
            state: an entry of private state, or None.

        Returns:
            The new head, once everything is durable.

        Raises:
            StoreError: `store.conflict`, the thread has moved on; `store.refused`, a record breaks a rule of the
                protocol, named by the cause; `store.in_doubt`, the store cannot say whether it was made: make it
                again; `store.unknown`.
        """

    async def read(self, name: str, start: int = 0) -> Sequence[bytes]:
        """Return the records of a thread from place `start` on, in file order.

        Raises:
            StoreError: `store.unknown`.
        """

    async def states(self, name: str, start: int = 0) -> Sequence[State]:
        """Return the entries of private state from number `start` on.

        Raises:
            StoreError: `store.unknown`.
        """

    async def names(self) -> Sequence[str]:
        """Return the names of all threads, sorted."""


async def sent(send: Callable[[], Awaitable[Head]]) -> Head:
    """Send a commit, and where the store cannot say what became of it, send the same bytes again (rule S6)."""
    for _ in range(_TRIES - 1):
        try:
            return await send()
        except StoreError as error:
            if error.code != "store.in_doubt":
                raise
    return await send()
