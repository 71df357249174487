"""Who takes part in a run, and what it may use: everything but the plan and what it works on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envelope import Card, Identity, PublicKey
from flow.budget import Limits
from flow.bus import Bus
from flow.clock import Clock
from flow.heartbeat import Monitor
from flow.peers import Judge, Peer
from flow.store import ThreadStore


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part in a run, and what it may use: everything but the plan and what it works on."""

    identity: Identity
    card: Card
    member: str
    peers: Mapping[str, Peer]
    approvers: Mapping[str, PublicKey]
    judge: Judge
    limits: Limits
    room: str | None
    store: ThreadStore
    bus: Bus
    heartbeat: Monitor | None
    clock: Clock

    def members(self) -> list[dict[str, Any]]:
        """The members of the run's thread, ascending by key."""
        card = self.card.envelope.address
        members: list[dict[str, Any]] = [
            {"key": self.identity.public_key, "role": "moderator", "name": self.member, "card": card}
        ]
        members += [{"key": peer.key, "role": "member", "name": name} for name, peer in self.peers.items()]
        members += [{"key": key, "role": "approver", "name": name} for name, key in self.approvers.items()]
        return sorted(members, key=lambda member: bytes(member["key"]))
