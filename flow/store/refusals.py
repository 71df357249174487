"""What every store says when it refuses, so that a code means the same in each."""

from envelope import EnvelopeError
from flow.errors import StoreError


def exists(name: str) -> StoreError:
    """The name is taken."""
    return StoreError(
        f"there is a thread {shown(name)} in this store already: go on with its run by resuming it, or choose another "
        "name",
        code="store.exists",
    )


def unknown(name: str) -> StoreError:
    """There is no thread of this name."""
    return StoreError(
        f"there is no thread {shown(name)} in this store: `flow threads` lists those there are", code="store.unknown"
    )


def moved_on(name: str) -> StoreError:
    """The commit was made against a head that is none any more."""
    return StoreError(
        f"the thread {shown(name)} has moved on since it was read: read it again, and build on what stands there",
        code="store.conflict",
    )


def departed(name: str) -> StoreError:
    """The copy that is to be taken in is no continuation of what is stored."""
    return StoreError(
        f"the thread {shown(name)} stands here with records that the copy lacks: take in a copy that has them, "
        "or choose another name",
        code="store.conflict",
    )


def no_open() -> StoreError:
    """There is nothing for a thread to begin with."""
    return StoreError("a thread has at least its open: give its records from the first on", code="store.refused")


def broken(number: int, error: EnvelopeError) -> StoreError:
    """A record, counted from 0 in what was given, is not one that may stand there; to be raised from its error."""
    return StoreError(f"record {number} of the commit breaks the protocol: {error}", code="store.refused")


def shown(name: str) -> str:
    """Return a thread's name as an error shows it."""
    return repr(name if len(name) <= 80 else name[:79] + "…")
