"""A recipient that answers by a script."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from envelope import Ack, Envelope, Identity, PublicKey, sign_record
from flow.clock import SYSTEM, Clock
from flow.errors import Declined
from flow.peers import Delivery


@dataclass(frozen=True, slots=True)
class Wait:
    """In a script: let that many seconds of the clock pass, then go on with the next answer."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Twisted:
    """In a script: an ack that is right but for what is said here.

    Attributes:
        fields: of the ack, in place of the right ones.
        signer: in place of the peer's own identity.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    signer: Identity | None = None


class ScriptedPeer:
    """A `flow.peers.Peer` that answers one delivery after another by a script, and remembers what it was handed.

    Args:
        identity: signs the acks.
        script: for each delivery the next of: a text, accepted with it; a `Declined`, declined with its reason; a
            `Wait`; a `Twisted`; another exception, raised; anything else, returned as it is. When it is used up, the
            peer accepts.
        clock: tells the acks' time, and is waited on.

    Attributes:
        deliveries: what the peer was handed, in order.
    """

    def __init__(self, identity: Identity, script: Iterable[object] = (), *, clock: Clock = SYSTEM) -> None:
        self.deliveries: list[Delivery] = []
        self._identity = identity
        self._script = iter(script)
        self._clock = clock

    @property
    def key(self) -> PublicKey:
        return self._identity.public_key

    async def ack(self, delivery: Delivery) -> Any:
        self.deliveries.append(delivery)
        answer = next(self._script, "understood")
        while isinstance(answer, Wait):
            await self._clock.sleep(answer.seconds)
            answer = next(self._script, "understood")
        if isinstance(answer, str):
            return self._signed(delivery, {"restatement": answer})
        if isinstance(answer, Declined):
            return self._signed(delivery, {"answer": "decline", "restatement": answer.reason})
        if isinstance(answer, Twisted):
            return self._signed(delivery, answer.fields, answer.signer)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _signed(self, delivery: Delivery, fields: dict[str, Any], signer: Identity | None = None) -> Envelope[Ack]:
        right = {
            "sent_at": self._clock.now_ms(),
            "thread": delivery.message.record.thread,
            "message": delivery.message.address,
            "answer": "accept",
            "restatement": "understood",
            "after": delivery.correction.address if delivery.correction else None,
        }
        return sign_record(Ack, signer or self._identity, **{**right, **fields})
