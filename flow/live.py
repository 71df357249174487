"""A run as it goes on, for a person who watches it: each step with its state, who is awaited since when, how much of
the budget is used. It knows what the bus tells, and renders; it prints nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from rich.text import Text
from rich.tree import Tree

from envelope import PublicKey, did_key
from envelope.show import escape
from flow.budget import Limits
from flow.bus import (
    HEARTBEAT_MISSED,
    HEARTBEAT_RECOVERED,
    MACHINE_MOVE,
    MESSAGE_ACKED,
    MESSAGE_DELIVERED,
    STEP_COMPLETED,
    Event,
)
from flow.plan import Plan
from flow.run import joined

State = Literal["waiting", "asking", "acknowledged", "fired", "succeeded", "approved", "failed", "skipped"]

_MARKS: Final[Mapping[State, tuple[str, str]]] = {
    "waiting": ("·", "dim"),
    "asking": ("?", "bold cyan"),
    "acknowledged": ("»", "cyan"),
    "fired": ("»", "cyan"),
    "succeeded": ("✓", "green"),
    "approved": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("-", "dim"),
}


@dataclass(slots=True)
class _Step:
    state: State = "waiting"
    awaited: dict[str, int] = field(default_factory=dict)  # since when, in ms
    rounds: int = 0
    says: str = ""


class Progress:
    """What is known of a run.

    Args:
        name: of its thread.
        plan: what it runs; the steps of its sub-plans are shown below theirs.
        limits: of which the messages told so far use a part.
        names: how its members are called.
    """

    def __init__(self, name: str, plan: Plan, limits: Limits, names: Mapping[PublicKey, str]) -> None:
        self._name = name
        self._limits = limits
        self._names = names
        self._steps: dict[str, _Step] = {}
        self._heart = ""
        self._said: dict[bytes, int] = {}  # the bytes of each message, by address: some are told of twice
        self._paths: dict[bytes, str] = {}
        self._declare(plan, ())

    def _declare(self, plan: Plan, above: tuple[str, ...]) -> None:
        for step in plan.steps:
            path = (*above, step.id)
            self._steps[joined(path)] = _Step()
            if step.sub is not None:
                self._declare(step.sub, path)

    def observe(self, event: Event, now_ms: int) -> None:
        """Take note of an event that is told at a time."""
        data = event.data
        if event.name == MESSAGE_DELIVERED:
            message = data["message"]
            self._said[message.address] = message.record.payload_bytes
            escalated = self._paths.get(message.record.reply_to or b"")
            path = escalated or joined(message.record.step or ())
            self._paths[message.address] = path
            step = self._step(path)
            step.state, step.says = "asking", "escalated" if escalated else ""
            step.awaited = {self._called(key): now_ms for key in message.record.to or ()}
        elif event.name == MESSAGE_ACKED:
            self._acked(event, now_ms)
        elif event.name == MACHINE_MOVE:
            self._step(data["step"]).state = "fired"
        elif event.name == STEP_COMPLETED:
            outcome = data["outcome"]
            step = self._step(outcome.step)
            step.state, step.awaited = outcome.became, {}
            step.says = outcome.failure.text if outcome.failure else outcome.status
        elif event.name in (HEARTBEAT_MISSED, HEARTBEAT_RECOVERED):
            self._heart = f"silent: {data['beating']}" if event.name == HEARTBEAT_MISSED else ""

    def _acked(self, event: Event, now_ms: int) -> None:
        data = event.data
        step = self._step(joined(data["message"].record.step or ()))
        who, ack, ruling = data["recipient"], data["ack"].record, data["ruling"]
        step.awaited.pop(who, None)
        if ack.answer == "decline":
            step.says = f"{who} declined"
        elif ruling is not None and ruling.record.ruling == "correct":
            step.rounds += 1
            step.awaited[who] = now_ms
        elif not step.awaited:
            step.state = "acknowledged"

    def _step(self, path: str) -> _Step:
        return self._steps.setdefault(path, _Step())

    def _called(self, key: PublicKey) -> str:
        return self._names.get(key) or did_key(key)[:20] + "…"

    def lines(self, now_ms: int) -> Iterator[tuple[str, Text]]:
        """Yield the path and a line for each step, in the order of the plan."""
        for path, step in list(self._steps.items()):  # it may grow meanwhile, in another thread
            mark, style = _MARKS[step.state]
            line = Text(f"{mark} ", style).append(escape(path.rpartition("/")[2]), style)
            line.append(f"  {step.state}", "dim")
            for who, since in sorted(step.awaited.items()):
                line.append(f"  awaits {escape(who)} for {max(0, now_ms - since) // 1000} s")
            if step.rounds:
                line.append(f"  corrected {step.rounds} times")
            if step.says:
                line.append(f"  {escape(step.says)}", "dim")
            yield path, line

    def tree(self, now_ms: int) -> Tree:
        """Return the run as a tree: its steps, and those of sub-plans below theirs."""
        root = Tree(self._head())
        nodes: dict[str, Tree] = {}
        for path, line in self.lines(now_ms):
            above = path.rpartition("/")[0]
            nodes[path] = nodes.get(above, root).add(line)
        return root

    def _head(self) -> Text:
        head = Text(escape(self._name), "bold")
        used = (
            ("bytes", sum(self._said.values()), self._limits.max_bytes),
            ("messages", len(self._said), self._limits.max_messages),
        )
        for what, count, most in used:
            head.append(f"  {what} {count:,} of {most:,}" if most else f"  {what} {count:,}", "not bold")
        return head.append(f"  {escape(self._heart)}", "bold red") if self._heart else head
