"""How a run ends early: by a seal that says why, or by a pause that leaves its thread open and well formed.

Each method appends what its ending calls for, and returns the exception that the run then raises (`spec/flow.md`,
"Endings" and "Escalation").
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from envelope import Envelope, Message, PublicKey, Seal
from flow.errors import (
    AckTimeout,
    Escalated,
    FlowError,
    NoRecipient,
    NoTransition,
    OverBudget,
    Rejected,
    StepFailed,
    StoreError,
    Superseded,
)
from flow.gate import Ending
from flow.journal import Journal

_LONGEST_TEXT: Final = 4096

SEALED_AS: Final[Mapping[type[FlowError], str]] = {
    StepFailed: "failed",
    NoTransition: "failed",
    NoRecipient: "failed",
    Rejected: "rejected",
    OverBudget: "over_budget",
}
"""What the seal says of a run that ended with such an error."""

Settlements = Sequence[dict[str, Any]]


class Asked(NamedTuple):
    """A message that was asked for, what came of that, and how long the recipients had (seconds, or None)."""

    step: str
    message: Envelope[Message]
    ending: Ending
    timeout: float | None


@dataclass(slots=True)
class Endings:
    """What ending a run takes.

    Attributes:
        journal: the run's.
        approvers: their keys, by name.
        room: stands on every message.
        sealed: makes the entry of private state that goes with the seal, of the error the run ends with and what the
            seal settles.
        tell: tells of a message that is durable.
    """

    journal: Journal
    approvers: Mapping[str, PublicKey]
    room: str | None
    sealed: Callable[[str, FlowError, Settlements], bytes]
    tell: Callable[[Envelope[Message]], Awaitable[None]]

    async def decided(
        self, error: FlowError, outcome: str, status: str, settled: Settlements = (), reason: str | None = None
    ) -> FlowError:
        """Seal the thread: this run is over for good."""
        fields = {"outcome": outcome, "status": status, "reason": cut(reason or str(error.args[0]))}
        await self.journal.append(Seal, lambda: fields, self.sealed(status, error, settled), settled)
        return error

    async def paused(self, error: Exception) -> Exception:
        """Leave the thread open, with all that came committed."""
        if self.journal.failure is None:
            try:
                await self.journal.settle()
            except Superseded:
                raise
            except Exception as second:
                error.add_note(f"besides: {type(second).__name__}: {second}")
        return error

    async def unconfirmed(self, asked: Sequence[Asked], status: str, settled: Settlements) -> Exception:
        """End after asking in vain: the first of rejected, failed, raised, escalated, timed out (rule R41).

        Args:
            asked: each message of the unit.
            settled: the settlements that fail the unit, for the endings that seal.
        """
        try:
            error = await self._first(asked, status, settled)
        except Exception as instead:
            error = instead
        for one in asked:
            for other in _besides(error, one):
                error.add_note(f"besides: {other}")
        return error

    async def _first(self, asked: Sequence[Asked], status: str, settled: Settlements) -> Exception:
        if self.journal.failure is not None:
            return self.journal.failure
        for one in asked:
            if one.ending.rejections:
                why = one.ending.rejections[0]
                return await self.decided(Rejected(f"step {one.step!r}: {why}"), "rejected", status, settled, why)
        for one in asked:
            if one.ending.unable:
                return await self.decided(one.ending.unable[0], "failed", status, settled)
        for one in asked:
            if one.ending.errors:
                return await self.paused(one.ending.errors[0])
        escalated = [one for one in asked if one.ending.escalations or one.ending.waiting]
        if escalated:
            try:
                errors = [await self._escalated(one) for one in escalated]
            except Rejected as rejected:
                return await self.decided(rejected, "rejected", status, settled)
            return errors[0]
        silent = next(one for one in asked if one.ending.silent)
        return await self.paused(
            AckTimeout(
                f"step {silent.step!r}: no confirmed ack of {', '.join(silent.ending.silent)} within "
                f"{silent.timeout:g} s; the thread is open: resume the run when they can answer"
            )
        )

    async def _escalated(self, one: Asked) -> Escalated:
        """Hand a message to the approvers, and leave the thread open (rules R42 to R44)."""
        if one.ending.waiting:
            names = ", ".join(one.ending.waiting)
            return Escalated(f"step {one.step!r} waits for {names}: resume the run when their acks are in the thread")
        error = next(iter(one.ending.escalations.values()))
        if not self._present():
            error.add_note("the run has no approvers, so nobody was asked: decide for yourself, or begin one with some")
            return error
        text = cut(words(error.args[0]) if error.args else "")

        def fields() -> dict[str, Any]:
            if self.journal.thread.is_declined(one.message.address):
                raise Rejected(f"step {one.step!r}: a recipient declined in the thread itself, so nothing is escalated")
            return {
                "id": f"{one.message.record.id}#escalate",
                "intent": "escalate",
                "epistemic": "assumed",
                "payload": text,
                "to": self._present(),
                "room": self.room,
                "reply_to": one.message.address,
            }

        try:
            await self.journal.refresh()
            escalation = await self.journal.append(Message, fields)
        except StoreError as refused:
            if refused.code != "store.refused":
                raise
            error.add_note(f"nobody was asked: {refused}")
            return error
        await self.tell(escalation)
        return error

    def _present(self) -> tuple[PublicKey, ...]:
        """The keys of the approvers who have not left, ascending."""
        role = self.journal.thread.role
        return tuple(sorted(key for key in self.approvers.values() if role(key) == "approver"))


def words(error: object) -> str:
    """Return what an error says, also where it cannot be put into words."""
    try:
        return str(error)
    except Exception:
        return f"a {type(error).__name__} without words"


def short(text: str) -> str:
    """Return as much of a text as an entry of private state may hold, in valid Unicode."""
    return text.encode("utf-8", "replace")[:_LONGEST_TEXT].decode("utf-8", "ignore")


def cut(text: str) -> str:
    """Return as much of a text as a reason or an escalation may hold; never blank."""
    return short(text) if short(text).strip("\t\n\r ") else "no reason given"


def _besides(error: Exception, one: Asked) -> Iterable[str]:
    """What else came of asking for a message, in words, where that ended in `error`."""
    ending = one.ending
    told = str(error) if f"step {one.step!r}: " in str(error) else ""
    for rejection in ending.rejections:
        if not (isinstance(error, Rejected) and rejection in told):
            yield rejection
    for other in (*ending.unable, *ending.errors, *ending.escalations.values()):
        if other is not error:
            yield f"{type(other).__name__}: {words(other)}"
    if ending.silent and not (isinstance(error, AckTimeout) and told):
        yield f"no answer in time from {', '.join(ending.silent)}"
