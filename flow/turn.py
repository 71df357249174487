"""A unit under way: what it is, what is durable of it, and what it has come to so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from envelope import Envelope, Message
from flow.endings import Settlements, short, words
from flow.machine import Failure, Transition
from flow.plan import Unit
from flow.progress import Path, Trace
from flow.run import joined

Word = Literal["again", "done"]


@dataclass(slots=True)
class Turn:
    """A unit under way.

    Attributes:
        paths: of its steps.
        traces: what was durable of each before this run went on.
        handles: the failure that it handles.
        before: status, record and the record's text, to which a failure returns.
        target: the status it leads to; row: the row there, or None where the run stands there already.
        messages: of each step, if it says something.
        approved: whether the approvers have accepted, where a message was handed to them.
        attempt: the number of the attempt that may have begun; attempts: how often each step started an action.
        words: what the caller said of actions in doubt, by path.
        move: source and trigger of the row that was fired.
    """

    unit: Unit
    paths: Sequence[Path]
    traces: Sequence[Trace]
    handles: Failure | None
    before: tuple[str, Any, str]
    target: str = ""
    row: Transition | None = None
    messages: Sequence[Envelope[Message]] = ()
    approved: bool = False
    attempt: int = 0
    attempts: Sequence[int | None] = ()
    words: Mapping[str, Word] = field(default_factory=dict)
    move: Sequence[str] | None = None

    @property
    def name(self) -> str:
        """The steps' paths as text."""
        return ", ".join(map(joined, self.paths))

    def fault(self, what: str, error: Exception, place: int = 0) -> "Fault":
        """Return the failure of the step in that place, in one of whose parts an error was raised."""
        attempts = self.attempts[place] if self.attempts else None
        failure = Failure(joined(self.paths[place]), short(type(error).__name__), short(words(error)), attempts)
        text = f"step {failure.step!r}: its {what} failed: {type(error).__name__}: {words(error)}"
        return Fault(failure, text, error)

    def settlements(self, outcome: str, status: str) -> list[dict[str, Any]]:
        """Return the entries that settle the unit, and the escalations of its messages."""
        entries: list[dict[str, Any]] = []
        for place, (path, trace) in enumerate(zip(self.paths, self.traces, strict=True)):
            what: dict[str, Any] = {"message": self.messages[place].address} if self.messages else {"step": path}
            said: dict[str, Any] = {"outcome": outcome, "status": status}
            if (escalation := trace.escalation) is not None:
                entries.append({"message": escalation.address, "outcome": "succeeded" if self.approved else "failed"})
                if outcome == "succeeded":
                    said |= {"outcome": "approved", "by": escalation.address}
            attempts = self.attempts[place] if self.attempts else None
            word = self.words.get(joined(path))
            result = None if word is None else f"the action was cut off in an earlier attempt; the caller said: {word}"
            known = {"attempts": attempts, "result": result}
            entries.append({**what, **said, **{name: value for name, value in known.items() if value is not None}})
        return entries


class Fault(Exception):
    """A failure that a fallback may handle; until one does, the failing steps' settlements go up with it."""

    def __init__(self, failure: Failure, text: str, cause: Exception | None, settled: Settlements = ()) -> None:
        super().__init__(text)
        self.failure = failure
        self.text = text
        self.cause = cause
        self.settled = settled
