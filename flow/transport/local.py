"""A recipient in the same process: a function that says what it understood, and a key that signs it."""

from collections.abc import Awaitable, Callable
from inspect import Parameter, isawaitable, signature
from typing import Final

from envelope import Ack, Envelope, Identity, PublicKey, did_key, open_envelope, sign_record
from flow.clock import SYSTEM, Clock
from flow.errors import Declined, FlowError
from flow.peers import Delivery, Peer

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

Restate = Callable[..., str | Awaitable[str]]


def local(identity: Identity, restate: Restate, *, clock: Clock = SYSTEM) -> Peer:
    """Make a peer of an identity and a function.

    Args:
        identity: signs the acks.
        restate: `restate(message) -> str` or `restate(message, correction) -> str`, sync or async: what was
            understood, given the author's correction in later rounds (text, or None in the first). A function
            that is not async holds up the whole event loop. It raises
            `Declined` to say no and `Escalated` to hand the message to a person.
        clock: tells the acks' time.
    """
    return _Local(identity, restate, clock)


class _Local:
    def __init__(self, identity: Identity, restate: Restate, clock: Clock) -> None:
        self._identity = identity
        self._restate = restate
        taken = signature(restate).parameters.values()
        self._takes_correction = sum(p.default is p.empty and p.kind in _POSITIONAL for p in taken) > 1
        self._clock = clock

    @property
    def key(self) -> PublicKey:
        return self._identity.public_key

    async def ack(self, delivery: Delivery) -> Envelope[Ack]:
        envelope = open_envelope(delivery.message.raw)
        message = envelope.record
        if envelope.kind != "message" or self.key not in (message.to or ()):
            raise FlowError(
                f"{envelope!r} is not addressed to {did_key(self.key)}: deliver it to its recipients",
                code="peer.not_addressed",
            )
        correction = delivery.correction
        said = (message, correction.record.correction if correction else None)
        answer = "accept"
        try:
            restated = self._restate(*said) if self._takes_correction else self._restate(message)
            text = await restated if isawaitable(restated) else restated
        except Declined as no:
            reason = no.reason.encode("utf-8", "replace")[:65_536].decode("utf-8", "ignore")
            answer, text = "decline", reason if reason.strip() else "declined without a reason"
        return sign_record(
            Ack,
            self._identity,
            sent_at=self._clock.now_ms(),
            thread=message.thread,
            message=envelope.address,
            answer=answer,
            restatement=text,
            after=correction.address if correction else None,
        )
