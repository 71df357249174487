"""One tree of errors: a stable code says what kind, the text says what was wrong, where, and what to do next.

A run fills in how things stood when it ended, so that whoever catches the error needs nothing else to go on.
"""

from typing import Any, ClassVar, Self


class FlowError(Exception):
    """Whatever this package refuses, and every way in which a run ends without success (rules E1, E2).

    Args:
        text: what was wrong, where, and what to do next.
        code: a code narrower than the class's own.

    Attributes:
        code: stable; programs compare it, never the text.
        status: the status the run had reached, or None outside a run.
        record: the record as it stood, or None outside a run.
        step: the id of the step concerned, or None.
        thread: the run's thread as it stood (`flow.runner.ThreadCopy`), or None where there is none.
    """

    default_code: ClassVar[str] = "flow"

    def __init__(self, text: str = "", *, code: str | None = None) -> None:
        super().__init__(text)
        self.code = code or self.default_code
        self.status: str | None = None
        self.record: Any = None
        self.step: str | None = None
        self.thread: Any = None

    def __str__(self) -> str:
        return f"{self.code}: {self.args[0] if self.args else ''}"

    def standing(self, *, status: str, record: Any, step: str | None, thread: Any) -> Self:
        """Fill in how the run stood, and return the error itself, ready to raise."""
        self.status, self.record, self.step, self.thread = status, record, step, thread
        return self


class MachineError(FlowError):
    """A machine, a record or a firing is not what it must be.

    Attributes:
        row: the number of the machine's row concerned, from 0, or None.
    """

    default_code = "machine"

    def __init__(self, text: str = "", *, code: str | None = None, row: int | None = None) -> None:
        super().__init__(text, code=code)
        self.row = row


class GuardRefused(MachineError):
    """A guard said no: nothing is broken, and trying again is not the remedy."""

    default_code = "machine.guard_no"


class PlanError(FlowError):
    """A plan, a step or what is to be said for a step is not what it must be."""

    default_code = "plan"


class BudgetError(FlowError):
    """Limits that are no limits."""

    default_code = "budget.limit"


class HeartbeatError(FlowError):
    """A timeout or a beat that a monitor does not take."""

    default_code = "heartbeat"


class StoreError(FlowError):
    """A store refused a commit, another writer was first, or its file or disk failed."""

    default_code = "store"


class StepFailed(FlowError):
    """A guard, an action or a payload function failed; the thread is sealed `failed`."""

    default_code = "run.step_failed"


class NoTransition(FlowError):
    """Not exactly one row leads from the run's status to a step's target; the thread is sealed `failed`."""

    default_code = "run.no_transition"


class Rejected(FlowError):
    """A recipient declined, or its corrections are used up; the thread is sealed `rejected`."""

    default_code = "run.rejected"


class OverBudget(FlowError):
    """A step's message would exceed the limits; the thread is sealed `over_budget`."""

    default_code = "run.over_budget"


class Escalated(FlowError):
    """A peer or the judge hands the step to a person; the thread stays open."""

    default_code = "run.escalated"


class AckTimeout(FlowError):
    """A recipient did not answer in time; the thread stays open."""

    default_code = "run.ack_timeout"


class NoRecipient(FlowError):
    """A recipient that still owes an ack can no longer give one; the thread is sealed `failed`."""

    default_code = "run.no_recipient"


class Superseded(FlowError):
    """The thread now belongs to another run of the same key, or the key lost its role in it."""

    default_code = "run.superseded"


class InDoubt(FlowError):
    """An action marked to run once was cut off, and may or may not have been done; the thread stays open."""

    default_code = "run.in_doubt"


class Cancelled(FlowError):
    """The thread was closed before its plan was done, and sealed `cancelled`."""

    default_code = "run.cancelled"


class InvalidThread(FlowError):
    """The sealed thread does not verify."""

    default_code = "run.invalid_thread"


class Declined(FlowError):
    """What a peer raises to say no to a message; `reason` goes into its signed ack."""

    default_code = "peer.declined"

    @property
    def reason(self) -> str:
        """The peer's own words."""
        return str(self.args[0])
