"""What a run leaves behind."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envelope import Ack, Envelope, Message, ThreadVerdict, verify_thread
from envelope.threadfile import write_records
from flow.store import ThreadStore


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step.

    Attributes:
        step: its id.
        status: where it brought the run.
        message: what it said, or None for a step that is not gated.
        acks: the last ack of each recipient, by name.
        attempts: how often its action was started; None for never.
    """

    step: str
    status: str
    message: Envelope[Message] | None = None
    acks: Mapping[str, Envelope[Ack]] = field(default_factory=dict)
    attempts: int | None = None


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
    """A run that came to its end: the status and record reached, each step's outcome by id, and the sealed thread."""

    status: str
    record: Any
    outcomes: Mapping[str, Outcome]
    thread: ThreadCopy
