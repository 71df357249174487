"""Build a thread in memory: links, receipts and signatures are filled in; nothing is built that would not verify."""

import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from envelope.cose import Envelope, open_envelope, sign_record
from envelope.keys import Identity, PublicKey
from envelope.records import Ack, Message, Open, Record, Roster, Ruling, Seal, Settle
from envelope.thread import Thread
from envelope.threadfile import read_records, write_records

R = TypeVar("R", bound=Record)


class ThreadWriter:
    """A thread that grows by the methods named after its record kinds, each signed by the identity given first.

    Every method returns the new envelope, or raises EnvelopeError with the rule that the record would break; the
    thread is then as it was.
    """

    def __init__(self) -> None:
        self.thread = Thread()
        self.records: list[bytes] = []

    @classmethod
    def open(cls, owner: Identity, name: str, members: Iterable[Mapping[str, Any]], **fields: Any) -> "ThreadWriter":
        """Begin a thread as `owner`, who must be one of `members` (maps of key, role, name, card) as moderator."""
        writer = cls()
        fields.setdefault("nonce", secrets.token_bytes(16))
        roster = tuple(sorted(members, key=lambda member: bytes(member["key"])))
        writer.append(sign_record(Open, owner, name=name, members=roster, **fields))
        return writer

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "ThreadWriter":
        """Go on with the thread of a file.

        Raises:
            EnvelopeError: what is wrong with the first bad record, or `file.unreadable`.
        """
        writer = cls()
        for _, raw in read_records(path):
            writer.append(open_envelope(raw))
        return writer

    @property
    def opening(self) -> Envelope[Open]:
        """The envelope that began the thread."""
        assert self.thread.opening is not None
        return self.thread.opening

    def message(
        self, author: Identity, message_id: str, payload: Any, *, to: Iterable[PublicKey] = (), **fields: Any
    ) -> Envelope[Message]:
        """Append a message; intent defaults to `request` with recipients, else `assert`; epistemic to `assumed`."""
        recipients = tuple(sorted(to)) or None
        fields.setdefault("intent", "request" if recipients else "assert")
        fields.setdefault("epistemic", "assumed")
        fields.setdefault("room", self.opening.record.room)
        fields = {"id": message_id, "payload": payload, "to": recipients, **self._links(fields)}
        return self.append(sign_record(Message, author, **fields))

    def ack(self, recipient: Identity, message: Envelope[Message], restatement: Any, **fields: Any) -> Envelope[Ack]:
        """Append an acknowledgement of `message`; `answer` defaults to `accept`."""
        fields.setdefault("answer", "accept")
        fields.setdefault("thread", self.thread.address)
        return self.append(sign_record(Ack, recipient, message=message.address, restatement=restatement, **fields))

    def ruling(self, author: Identity, ack: Envelope[Ack], correction: Any = None, **fields: Any) -> Envelope[Ruling]:
        """Append a ruling on `ack`: `confirm`, or `correct` where a correction is given."""
        fields.setdefault("ruling", "confirm" if correction is None else "correct")
        fields.setdefault("thread", self.thread.address)
        return self.append(sign_record(Ruling, author, ack=ack.address, correction=correction, **fields))

    def roster(self, moderator: Identity, change: str, key: PublicKey, **fields: Any) -> Envelope[Roster]:
        """Append a change of the roster."""
        return self.append(sign_record(Roster, moderator, change=change, key=key, **self._links(fields)))

    def settle(self, member: Identity, settled: Iterable[Mapping[str, Any]] = (), **fields: Any) -> Envelope[Settle]:
        """Append a settle, which commits what stands and settles what is given."""
        return self.append(sign_record(Settle, member, settled=tuple(settled) or None, **self._links(fields)))

    def seal(self, moderator: Identity, outcome: str, **fields: Any) -> Envelope[Seal]:
        """Append the seal."""
        return self.append(sign_record(Seal, moderator, outcome=outcome, **self._links(fields)))

    def append(self, envelope: Envelope[R]) -> Envelope[R]:
        """Append an envelope that was sealed elsewhere."""
        self.thread.apply(envelope)
        self.records.append(envelope.raw)
        return envelope

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the thread's records to a new or replaced .thread file, as a whole or not at all."""
        write_records(path, self.records)

    def _links(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**self.thread.links(), **fields}
