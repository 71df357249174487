"""The two sides of an acknowledgement: what a recipient is handed, and what the author says to its answer."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from envelope import Ack, Envelope, Message, PublicKey, Ruling


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way to one recipient (rule R13).

    Attributes:
        message: the message, durable in its thread.
        history: gives the records of the thread so far, in file order.
        correction: the ruling to answer, or None in the first round.
        deadline: ms since the epoch after which no answer counts, or None.
    """

    message: Envelope[Message]
    history: Callable[[], Awaitable[Sequence[bytes]]]
    correction: Envelope[Ruling] | None = None
    deadline: int | None = None


class Peer(Protocol):
    """The acknowledging side, one for each recipient."""

    @property
    def key(self) -> PublicKey:
        """The key that signs its acks."""

    async def ack(self, delivery: Delivery) -> Envelope[Ack]:
        """Answer a message: accept or decline, and say what was understood.

        Raises:
            Escalated: a person must decide.
            Exception: anything else ends the run for now, and leaves its thread open.
        """


@dataclass(frozen=True, slots=True)
class Confirm:
    """The judge's word that a recipient understood."""


@dataclass(frozen=True, slots=True)
class Correct:
    """The judge's word that a recipient did not; `text` says what was meant."""

    text: str


Judge = Callable[[Message, Ack], Confirm | Correct | Awaitable[Confirm | Correct]]
"""`judge(message, ack)`: is that what I meant? Sync or async; may raise `Escalated`."""
