"""What became of the steps of a run, and telling the bus of it, of each thing once it is durable."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from envelope import Ack, Envelope, Message, PublicKey, did_key
from flow.budget import Limits
from flow.bus import BUDGET_LOW, MACHINE_MOVE, MESSAGE_DELIVERED, STEP_COMPLETED, Bus, Event
from flow.endings import Settlements
from flow.machine import Failure
from flow.progress import Entry, History, Path
from flow.run import Outcome, joined
from flow.turn import Turn


class Ledger:
    """The outcomes of one run.

    Attributes:
        outcomes: of each step that is terminal, by its path as text.
    """

    def __init__(self, bus: Bus, thread: str) -> None:
        self.outcomes: Final[dict[str, Outcome]] = {}
        self._bus = bus
        self._thread = thread
        self._said: dict[bytes, tuple[Path, Envelope[Message]]] = {}
        self._is_low = False
        self._acks: dict[bytes, Mapping[str, Envelope[Ack]]] = {}

    def said(self, path: Path, message: Envelope[Message]) -> None:
        """Enter what a step said."""
        self._said[message.address] = path, message

    def answered(self, message: Envelope[Message], acks: Mapping[str, Envelope[Ack]]) -> None:
        """Enter the last ack of each who answered a message, by name."""
        self._acks[message.address] = MappingProxyType(acks)

    def account(self, settled: Settlements, failure: Failure | None) -> None:
        """Enter what settlements say."""
        for one in settled:
            address = one.get("message")
            if address is not None and address not in self._said:
                continue  # an escalation's
            path, message = self._said[address] if address is not None else (tuple(one["step"]), None)
            became = one["outcome"]
            self.outcomes[joined(path)] = Outcome(
                joined(path),
                one["status"],
                message,
                self._acks.get(address or b"", MappingProxyType({})),
                one.get("attempts"),
                became,
                failure if became == "failed" else None,
            )

    def remember(self, history: History, names: Mapping[PublicKey, str]) -> None:
        """Enter what a history tells."""
        for path, trace in history.traces.items():
            if trace.message is None:
                continue
            self.said(path, trace.message)
            answers = {**history.answers_to(trace.message), **history.answers_to(trace.escalation)}
            acks = {names.get(key, did_key(key)): given[-1][0] for key, given in answers.items()}
            self.answered(trace.message, acks)
        for one in history.entries:
            settled = [entry.model_dump(exclude_none=True) for entry in one.settled]
            self.account(settled, one.failed_with if one.failure else None)

    async def tell_again(self, last: Entry) -> None:
        """Tell of the last outcome once more: nobody knows whether it was told before the run was cut off."""
        if last.phase == "done":
            if last.move is not None:
                await self._tell_move(last.at[0], last.move, last.status)
            await self.tell_done(last.at)

    async def tell_done(self, paths: Sequence[Path]) -> None:
        """Tell of the outcomes of steps."""
        for path in paths:
            outcome = self.outcomes[joined(path)]
            message = outcome.message
            await self.emit(STEP_COMPLETED, message.address if message else None, outcome=outcome)

    async def moved(self, turn: Turn, target: str) -> None:
        """Tell that a row was fired, if that was not told of."""
        if turn.move is not None:
            move, turn.move = turn.move, None
            await self._tell_move(turn.paths[0], move, target)

    async def _tell_move(self, path: Path, move: Sequence[str], target: str | None) -> None:
        source, trigger = move
        await self.emit(MACHINE_MOVE, None, step=joined(path), source=source, trigger=trigger, target=target)

    async def budget_low(self, limits: Limits, used_bytes: int, used_messages: int) -> None:
        """Tell once that the run has come into the margin of its limits."""
        if not self._is_low:
            self._is_low = True
            await self.emit(BUDGET_LOW, None, limits=asdict(limits), bytes=used_bytes, messages=used_messages)

    async def delivered(self, message: Envelope[Message]) -> None:
        """Tell of a message."""
        await self.emit(MESSAGE_DELIVERED, message.address, message=message)

    async def emit(self, name: str, of: bytes | None, **data: Any) -> None:
        """Tell of a record at an address, if it is of one."""
        await self._bus.emit(Event(name, {"thread": self._thread, **data}, of))
