"""What a run notes of itself beside its thread: the private state, as a log of small entries, and what it tells.

The thread holds what was said and settled. The log holds what a thread has no place for: the record, the attempts that
were started, the rounds of a loop, what a route chose. An entry says what changed, so that what a run writes grows
with its steps. Where the two disagree, the thread is right (rules S8, D12).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from envelope import Ack, Envelope, EnvelopeError, Message, PublicKey, Ruling
from envelope.cbor import Caps, decode, encode
from envelope.records import Name, Settled
from envelope.records import Path as RecordPath
from flow.errors import StoreError
from flow.machine import Failure

Path = tuple[str, ...]
Phase = Literal["begun", "resumed", "round", "firing", "fired", "confirmed", "done", "sealed"]
Answer = tuple[Envelope[Ack], Envelope[Ruling] | None]
"""An ack, and the author's ruling on it, if there is one."""

_CAPS: Final = Caps(1 << 24, 1 << 20)  # one entry may skip tens of thousands of steps
_Texts = Annotated[tuple[str, ...], Strict(False)]
_Count = Annotated[int, Field(ge=1, lt=1 << 32)]  # far from what the thread cannot say any more
_FIELDS: Final[Mapping[Phase, tuple[str, str]]] = {
    "begun": ("plan record", ""),
    "resumed": ("", ""),
    "round": ("at round again", ""),
    "firing": ("at attempt", ""),
    "fired": ("at status record", "attempts move"),
    "confirmed": ("at", "attempt"),
    "done": ("at status outcome settled", "record chosen failure move"),
    "sealed": ("status record", "settled error code text step"),
}
"""What an entry of each phase has, and what it may have."""


class _Map(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _Failure(_Map):
    step: str
    error: str
    text: str
    attempts: _Count | None = None


class Entry(_Map):
    """One entry of the log.

    Attributes:
        run: tells one process's run from another's.
        phase: what is durable with this entry.
        at: the paths of the steps it is about.
        plan: in `begun`, the address of the plan document.
        record: the record as text, where it changed; status: where the run stands.
        attempt: in `firing` and `confirmed`, the number of the attempt that may start now.
        attempts: in `fired`, what the settlement will say.
        round, again: in `round`, that this round of a loop ended, and whether another begins.
        outcome, chosen, settled, failure: in `done`, what came of the steps, and the settlements this owes the thread.
        move: in `done` and `fired`, the source and the trigger of the row that was fired.
        error, code, text, step: in `sealed`, the error that the run ended with: its type, and what it says; `settled`
            is then what the seal itself settles.
    """

    run: bytes
    phase: Phase
    at: Annotated[tuple[RecordPath, ...], Strict(False)] = ()
    plan: bytes | None = None
    record: str | None = None
    status: Name | None = None
    attempt: _Count | None = None
    attempts: _Count | None = None
    round: _Count | None = None
    again: bool | None = None
    outcome: Literal["succeeded", "failed"] | None = None
    chosen: _Texts | None = None
    settled: Annotated[tuple[Annotated[Settled, Strict(False)], ...], Strict(False)] = ()
    failure: Annotated[_Failure, Strict(False)] | None = None
    move: Annotated[tuple[str, str], Strict(False)] | None = None
    error: str | None = None
    code: str | None = None
    text: str | None = None
    step: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        required, allowed = (names.split() for names in _FIELDS[self.phase])
        given = {name for name in self.model_fields_set if getattr(self, name) not in (None, ())}
        given |= {"chosen"} if self.chosen is not None else set()
        if not set(required) <= given <= {"run", "phase", *required, *allowed}:
            raise ValueError(f"an entry of the phase {self.phase!r} does not have {', '.join(sorted(given))}")
        if (self.failure is None) == (self.outcome == "failed"):
            raise ValueError("a failure goes with the outcome failed, and only with it")
        if len({self.error is None, self.code is None, self.text is None}) > 1:
            raise ValueError("an error has a code and a text")
        return self

    @property
    def failed_with(self) -> Failure:
        """The failure of a `done` whose outcome is failed."""
        assert self.failure is not None
        return Failure(**dict(self.failure))


def entry(run: bytes, phase: Phase, **fields: Any) -> bytes:
    """Return the bytes of an entry; fields as of `Entry`, of which the absent ones are left out."""
    if (failure := fields.get("failure")) is not None:
        fields["failure"] = _present(asdict(failure))
    return encode({"run": run, "phase": phase, **_present(fields)}, _CAPS)


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def read_entry(data: bytes, number: int) -> Entry:
    """Return the entry that the bytes hold.

    Raises:
        StoreError: `store.state`.
    """
    try:
        return Entry.model_validate(decode(data, _CAPS))
    except (EnvelopeError, ValidationError) as error:
        raise StoreError(
            f"entry {number} of the run's private state is no entry: {error}: the store was damaged; its thread can "
            "still be exported, and closed",
            code="store.state",
        ) from error


def damaged(what: str) -> StoreError:
    """Return the error for a log that no run has written."""
    return StoreError(
        f"the run's private state is not what was written: {what}: the store was changed; its thread can still be "
        "exported, and closed",
        code="store.state",
    )


def is_confirmed(answers: Mapping[PublicKey, Sequence[Answer]], key: PublicKey) -> bool:
    """Whether one of those who answered is confirmed."""
    return any(ruling is not None and ruling.record.ruling == "confirm" for _, ruling in answers.get(key, ()))


@dataclass(slots=True)
class Trace:
    """What is durable of one step.

    Attributes:
        message: what it said.
        escalation: the message that handed it to the approvers.
        attempt: how many attempts to fire it may have begun.
        fired: the entry that says that a step gated after has fired.
        rounds: of its loop, those that ended, and whether another began.
        done: the entry that says what became of it.
    """

    message: Envelope[Message] | None = None
    escalation: Envelope[Message] | None = None
    attempt: int = 0
    fired: Entry | None = None
    rounds: dict[int, bool] = field(default_factory=dict)
    done: Entry | None = None


class History:
    """What a thread and a log tell of a run so far; of a new run, nothing.

    Attributes:
        entries: the log.
        traces: what is durable of each step, by path.
    """

    def __init__(
        self, envelopes: Iterable[Envelope[Any]] = (), entries: Sequence[Entry] = (), owner: PublicKey = b""
    ) -> None:
        self.entries: Final = entries
        self.traces: Final[dict[Path, Trace]] = {}
        self._answers: dict[bytes, dict[PublicKey, list[Answer]]] = {}
        self._settled: dict[bytes | Path, Settled] = {}
        self._read(envelopes, owner)
        for one in entries:
            self._note(one)

    def of(self, path: Path) -> Trace:
        """Return what is durable of a step."""
        return self.traces.get(path) or Trace()

    def answers_to(self, message: Envelope[Message] | None) -> Mapping[PublicKey, Sequence[Answer]]:
        """Return the acks of a message, by recipient and in order, each with its ruling."""
        return self._answers.get(message.address, {}) if message else {}

    def is_confirmed(self, trace: Trace) -> bool:
        """Whether everybody who had to has acknowledged a step's message, and is confirmed."""
        last = trace.escalation or trace.message
        return last is not None and all(is_confirmed(self.answers_to(last), key) for key in last.record.to or ())

    def owed(self) -> list[dict[str, Any]]:
        """Return the settlements that the log knows, and no chain record carries yet.

        Raises:
            StoreError: `store.stale`, the thread carries one that the log does not know; `store.state`, another one.
        """
        known: set[bytes | Path] = set()
        owed = []
        for one in self.entries:
            for entry in one.settled:
                what = entry.message or entry.step
                assert what is not None
                if what in known or self._settled.get(what, entry) != entry:
                    raise damaged("it settles a step otherwise than the thread, or twice")
                known.add(what)
                if what not in self._settled:
                    owed.append(entry.model_dump(exclude_none=True))
        if not self._settled.keys() <= known:
            raise StoreError(
                "the thread settles more than the run's private state knows of: the state is older than the thread; "
                "give the store that the run last wrote to",
                code="store.stale",
            )
        return owed

    def _read(self, envelopes: Iterable[Envelope[Any]], owner: bytes) -> None:
        asked: dict[bytes, Trace] = {}
        acks: dict[bytes, tuple[bytes, PublicKey]] = {}
        for envelope in envelopes:
            record = envelope.record
            if record.kind == "ack":
                acks[envelope.address] = (record.message, envelope.signer)
                answers = self._answers.setdefault(record.message, {})
                answers.setdefault(envelope.signer, []).append((envelope, None))
            elif record.kind == "ruling" and record.ack in acks:
                message, signer = acks[record.ack]
                ack, _ = self._answers[message][signer][-1]
                self._answers[message][signer][-1] = (ack, envelope)
            elif record.kind != "open" and envelope.signer == owner:
                for entry in record.settled or ():
                    self._settled[entry.message or entry.step] = entry
                if record.kind == "message" and record.step is not None:
                    asked[envelope.address] = self.traces.setdefault(record.step, Trace())
                    asked[envelope.address].message = envelope
                elif record.kind == "message" and record.intent == "escalate" and record.reply_to in asked:
                    asked[record.reply_to].escalation = envelope

    def _note(self, one: Entry) -> None:
        for path in one.at:
            trace = self.traces.setdefault(path, Trace())
            if trace.done is not None:
                raise damaged(f"step {'/'.join(path)!r} goes on after it was done")
            if one.attempt is not None:
                trace.attempt = one.attempt
            if one.phase == "fired":
                trace.fired = one
            elif one.phase == "done":
                trace.done = one
            elif one.phase == "round":
                assert one.round is not None
                trace.rounds[one.round] = bool(one.again)
