"""Everything that a run takes but its name and its store, as one value that a command can find and go on with."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any

from envelope import PublicKey
from flow.agent import Agent
from flow.budget import Limits
from flow.errors import StoreError
from flow.machine import Machine
from flow.peers import Judge, Peer
from flow.run import Run
from flow.store import ThreadStore


@dataclass(frozen=True, slots=True)
class Job:
    """An agent with what it works on and whom it works with; fields as of `Agent.run`.

    A program defines one and starts it under a name. When the program was cut off, start it again, or have
    `flow resume NAME --with program:job` find the job and go on.
    """

    agent: Agent
    machine: Machine
    record: Any
    _: KW_ONLY
    peers: Mapping[str, Peer]
    judge: Judge
    approvers: Mapping[str, PublicKey] = field(default_factory=lambda: MappingProxyType({}))
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    room: str | None = None

    def check(self) -> None:
        """Refuse what `run` refuses before it begins, and do nothing else.

        Raises:
            FlowError: as `Agent.run` does.
        """
        self.agent.check(self.machine, self.record, **self._members())

    async def run(self, name: str, **options: Any) -> Run:
        """Run it as a new thread; options as of `Agent.run`: store, bus, heartbeat, clock, nonce, follows."""
        return await self.agent.run(name, self.machine, self.record, **self._members(), **options)

    async def start(self, name: str, *, store: ThreadStore, **options: Any) -> Run:
        """Run it as a new thread, or go on with the thread that the store has of this name; options of both methods."""
        try:
            await store.head(name)
        except StoreError as error:
            if error.code != "store.unknown":
                raise
            return await self.run(name, store=store, **options)
        return await self.resume(name, store=store, **options)

    async def resume(self, name: str, *, store: ThreadStore, **options: Any) -> Run:
        """Go on with its thread in a store; options as of `Agent.resume`: bus, heartbeat, clock, in_doubt, seen."""
        return await self.agent.resume(name, self.machine, self.record, store=store, **self._members(), **options)

    def _members(self) -> dict[str, Any]:
        return {
            "peers": self.peers,
            "judge": self.judge,
            "approvers": self.approvers,
            "limits": self.limits,
            "room": self.room,
        }
