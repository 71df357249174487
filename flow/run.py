"""What a run leaves behind."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from envelope import Ack, Envelope, Message, ThreadVerdict, verify_thread
from envelope.threadfile import write_records
from flow.machine import Failure
from flow.store import ThreadStore


def joined(path: Sequence[str]) -> str:
    """Return the path of a step as text."""
    return "/".join(path)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step.

    Attributes:
        step: its path, the elements joined by `/`; for a step of the plan itself, its id.
        status: where the run stood afterwards.
        message: what it said, or None for a step that said nothing.
        acks: the last ack of each recipient, and of each approver who decided, by name.
        attempts: how often its action was started; None for never.
        became: what the thread says of it.
        failure: what it failed of, if it did.
    """

    step: str
    status: str
    message: Envelope[Message] | None = None
    acks: Mapping[str, Envelope[Ack]] = field(default_factory=dict)
    attempts: int | None = None
    became: Literal["succeeded", "approved", "failed", "skipped"] = "succeeded"
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ThreadCopy:
    """A run's thread as it stood: every record's bytes, in file order."""

    name: str
    address: bytes
    records: tuple[bytes, ...]

    @classmethod
    async def read(cls, store: ThreadStore, name: str) -> "ThreadCopy":
        """Read a thread from the store of a run, however the run ended.

        Raises:
            StoreError: `store.unknown`.
        """
        head = await store.head(name)
        return cls(name, head.thread, tuple(await store.read(name)))

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the thread file that an auditor gets, as a whole or not at all.

        Raises:
            EnvelopeError: `file.unreadable`.
        """
        write_records(path, self.records)

    def verify(self, **options: Any) -> ThreadVerdict:
        """Verify the thread; options as of `envelope.verify_thread`, `trust` among them."""
        return verify_thread(self.records, **options)


@dataclass(frozen=True, slots=True)
class Run:
    """A run that came to its end: status and record, what became of each step by its path, and the sealed thread."""

    status: str
    record: Any
    outcomes: Mapping[str, Outcome]
    thread: ThreadCopy
