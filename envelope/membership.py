"""Who is a member of a thread, in which role, since when, and under which names (`spec/protocol.md`, "Roster")."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envelope.errors import EnvelopeError
from envelope.keys import PublicKey, did_key
from envelope.records import Member, Message, Roster

ANYBODY: Final = frozenset(("moderator", "member", "approver", "observer"))
MODERATOR: Final = frozenset(("moderator",))
MAY_APPEND: Final = frozenset(("moderator", "member"))
MAY_ACK: Final = frozenset(("moderator", "member", "approver"))


@dataclass(slots=True)
class MemberState:
    """A key that is, or was, a member.

    Attributes:
        number: its place in the order of first appearance.
        name: what the thread calls it.
        role: None once it is gone.
        since: the seq of the record that gave the role.
    """

    number: int
    name: str
    role: str | None
    since: int


class Membership(dict[PublicKey, MemberState]):
    """Every key that is or was a member of a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, PublicKey] = {}
        self._moderators = 0

    def role(self, key: PublicKey) -> str | None:
        """Return the role that `key` has now, or None."""
        member = self.get(key)
        return member.role if member else None

    def begin(self, owner: PublicKey, members: Iterable[Member]) -> None:
        """Take the members of an open."""
        if not any(member.key == owner and member.role == "moderator" for member in members):
            raise EnvelopeError("roster.owner", f"the opener {did_key(owner)} is no moderator of the thread")
        for member in members:
            self._admit(member.key, member.name, member.role, 0)

    def check_signer(self, signer: PublicKey, roles: frozenset[str], kind: str) -> MemberState:
        """Return the signer's state if it is a member in one of `roles`."""
        member = self.get(signer)
        if member is None or member.role is None:
            raise EnvelopeError("roster.stranger", f"{did_key(signer)} is no member at this place")
        if member.role not in roles:
            raise EnvelopeError("roster.role", f"the signer is {member.role}, who may not sign a {kind}")
        return member

    def check_recipients(self, message: Message, author: PublicKey) -> None:
        """Return if the recipients of a message are members, and able to acknowledge where they must."""
        for key in message.to or ():
            member = self.get(key)
            if member is None or member.role is None or key == author:
                why = "the author" if key == author else "no member at this place"
                raise EnvelopeError("roster.to", f"the recipient {did_key(key)} is {why}")
            if member.role not in MAY_ACK and message.needs_ack:
                raise EnvelopeError("roster.unable", f"the recipient {did_key(key)} is {member.role}, who may not ack")

    def check_change(self, record: Roster, signer: PublicKey) -> None:
        """Return if a roster record changes what is there."""
        role = self.role(record.key)
        if record.change == "admit":
            if role is not None:
                raise EnvelopeError("roster.present", f"{did_key(record.key)} is a member already")
            if self._names.get(record.name or "", record.key) != record.key:
                raise EnvelopeError("roster.name", f"the name {record.name} was given to another key of this thread")
            return
        if record.change == "leave" and record.key != signer:
            raise EnvelopeError("roster.leave", "another key than the signer's leaves")
        if role is None:
            raise EnvelopeError("roster.absent", f"{did_key(record.key)} is no member")
        if record.change == "role" and record.role == role:
            raise EnvelopeError("roster.same_role", f"{did_key(record.key)} is {role} already")
        if role == "moderator" and self._moderators == 1:
            raise EnvelopeError("roster.moderator", "the thread would be without a moderator")

    def change(self, record: Roster, seq: int) -> None:
        """Take a checked change."""
        if record.change == "admit":
            assert record.name is not None
            assert record.role is not None
            self._admit(record.key, record.name, record.role, seq)
        else:
            changed = self[record.key]
            self._moderators += (record.role == "moderator") - (changed.role == "moderator")
            changed.role = record.role
            changed.since = seq

    def _admit(self, key: PublicKey, name: str, role: str, seq: int) -> None:
        number = self[key].number if key in self else len(self)
        self[key] = MemberState(number, name, role, seq)
        self._names[name] = key
        self._moderators += role == "moderator"
