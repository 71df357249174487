"""An agent: who it is, what it can do, and what it runs, bound into one value."""

import secrets
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, get_args

from envelope import Card, EnvelopeError, Identity, PublicKey, address
from envelope.keys import check_public_key
from flow.budget import Limits
from flow.bus import Bus
from flow.cast import Cast
from flow.clock import SYSTEM, Clock
from flow.document import document
from flow.errors import FlowError, PlanError
from flow.heartbeat import Monitor
from flow.machine import NAME, Machine, check_record
from flow.peers import Judge, Peer
from flow.plan import Plan
from flow.run import Run
from flow.runner import Runner
from flow.store import MemoryStore, ThreadStore
from flow.turn import Word
from flow.validation import validate

_NOBODY: Final[Mapping[str, PublicKey]] = MappingProxyType({})
_MOST_MEMBERS: Final = 256


@dataclass(frozen=True, slots=True)
class Agent:
    """An identity, its card, and a plan (rules A1 to A4).

    Raises:
        FlowError: `agent.identity`, `agent.card` (it does not verify, or is of another key) or `agent.plan`, in this
            order.
    """

    identity: Identity
    card: Card
    plan: Plan

    def __post_init__(self) -> None:
        if not isinstance(self.identity, Identity):
            raise FlowError(f"the identity is {self.identity!r}: give an Identity", code="agent.identity")
        if not isinstance(self.card, Card):
            raise FlowError(f"the card is {self.card!r}: give a Card", code="agent.card")
        try:
            card = Card.open(self.card.raw)
        except EnvelopeError as error:
            raise FlowError(f"the card does not verify: {error}", code="agent.card") from error
        if card.key != self.identity.public_key:
            raise FlowError("the card is of another key than the identity's: issue one for it", code="agent.card")
        if not isinstance(self.plan, Plan):
            raise FlowError(f"the plan is {self.plan!r}: give a Plan", code="agent.plan")

    @property
    def name(self) -> str:
        """The card's name."""
        return self.card.name

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The card's capabilities, ascending."""
        return self.card.capabilities

    def check(
        self,
        machine: Machine,
        record: Any,
        *,
        peers: Mapping[str, Peer],
        judge: Judge,
        approvers: Mapping[str, PublicKey] = _NOBODY,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        room: str | None = None,
    ) -> None:
        """Refuse what `run` refuses before it begins, and do nothing else; arguments as of `run` (rules R1, R2)."""
        cast = self._cast("checked", peers, judge, approvers, limits, room, None, None, None, SYSTEM)
        self._runner(cast, "checked", machine, record)

    async def run(
        self,
        name: str,
        machine: Machine,
        record: Any,
        *,
        peers: Mapping[str, Peer],
        judge: Judge,
        approvers: Mapping[str, PublicKey] = _NOBODY,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        room: str | None = None,
        store: ThreadStore | None = None,
        bus: Bus | None = None,
        heartbeat: Monitor | None = None,
        clock: Clock = SYSTEM,
        nonce: bytes | None = None,
        follows: bytes | None = None,
    ) -> Run:
        """Run the plan as one thread, from its open to its seal.

        Args:
            name: the thread's; not yet in the store.
            machine: the statuses that the steps' targets are of.
            record: what is worked on: a pydantic model, a dataclass or JSON data; never changed.
            peers: who acknowledges, by name.
            judge: `judge(message, ack) -> Confirm() | Correct(text)`, sync or async.
            approvers: the people to whom a step may be escalated, by name.
            limits: what the run may say at most.
            room: stands on every message.
            store: where the thread lives; where it is not given, in memory, and gone if the run stops with another
                error than a `FlowError`.
            bus: is told what happens.
            heartbeat: is beaten while the run waits or fires, as `<did>:<name>`, in the clock's monotonic seconds.
            clock: all time and all waiting.
            nonce: 16 bytes that make this thread another one than any before; random where it is not given.
            follows: the address of an earlier thread that this one goes on from.

        Returns:
            The run, once its thread is sealed `completed` and verified as a whole.

        Raises:
            FlowError: as `spec/flow.md`, "Endings", says.
            Exception: what a peer, the judge or the store raised, as it was; the thread stays open.
        """
        cast = self._cast(name, peers, judge, approvers, limits, room, store, bus, heartbeat, clock)
        runner = self._runner(cast, name, machine, record)
        return await runner.start(secrets.token_bytes(16) if nonce is None else nonce, follows)

    async def resume(
        self,
        name: str,
        machine: Machine,
        record: Any,
        *,
        peers: Mapping[str, Peer],
        judge: Judge,
        store: ThreadStore,
        approvers: Mapping[str, PublicKey] = _NOBODY,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        room: str | None = None,
        bus: Bus | None = None,
        heartbeat: Monitor | None = None,
        clock: Clock = SYSTEM,
        in_doubt: Mapping[str, Word] = MappingProxyType({}),
        seen: bytes | None = None,
    ) -> Run:
        """Go on with a run that was cut off or paused, in the same thread; of one that is sealed, give its end again.

        What is durable is not done again: no record is signed anew, no recipient whose ack is confirmed is asked
        again, no step with an outcome is run again. What was told last is told once more.

        Args:
            name: of a thread in the store, begun by `run` with the same agent, machine, limits, judge and members.
            record: a record of the run's type, such as the one it began with; the store's own takes its place.
            in_doubt: for a step that is marked `once` and was cut off while it fired, by its path: fire it `again`, or
                take it for `done`.
            seen: the address of a chain record that the thread must have, such as the last one seen.

        Other arguments, what is returned and what is raised: as of `run`.

        Raises:
            StoreError: `store.unknown`, `store.invalid`, `store.stale`, `store.state`; the thread is left alone.
            FlowError: `run.plan`, `run.peers`, `run.room`: the thread was begun with others; `run.seen`,
                `run.in_doubt`: an argument says nothing.
            InDoubt: `in_doubt` says nothing of a step that is.
        """
        cast = self._cast(name, peers, judge, approvers, limits, room, store, bus, heartbeat, clock)
        if not isinstance(in_doubt, Mapping):
            raise FlowError(f"in_doubt is {in_doubt!r}: give a mapping of paths to words", code="run.in_doubt")
        if seen is not None and not (isinstance(seen, bytes) and len(seen) == 32):
            raise FlowError(f"seen is {seen!r}: give the 32 bytes of a record's address", code="run.seen")
        for path, word in in_doubt.items():
            if not isinstance(path, str) or word not in get_args(Word):
                raise FlowError(f"in_doubt[{path!r}] is {word!r}: say 'again' or 'done'", code="run.in_doubt")
        return await self._runner(cast, name, machine, record).resume(in_doubt, seen)

    def _cast(
        self,
        name: str,
        peers: Mapping[str, Peer],
        judge: Judge,
        approvers: Mapping[str, PublicKey],
        limits: Limits,
        room: str | None,
        store: ThreadStore | None,
        bus: Bus | None,
        heartbeat: Monitor | None,
        clock: Clock,
    ) -> Cast:
        _check(self, name, peers, approvers, limits, room)
        return Cast(
            identity=self.identity,
            card=self.card,
            member=_member_name(self.card.name, {*peers, *approvers}),
            peers=dict(peers),
            approvers=dict(approvers),
            judge=judge,
            limits=limits,
            room=room,
            store=MemoryStore() if store is None else store,
            bus=Bus() if bus is None else bus,
            heartbeat=heartbeat,
            clock=clock,
        )

    def _runner(self, cast: Cast, name: str, machine: Machine, record: Any) -> Runner:
        check_record(record)
        if errors := [found for found in validate(self.plan, machine) if found.severity == "error"]:
            raise PlanError("; ".join(error.text for error in errors), code="plan.machine")
        _check_recipients(self.plan, cast.peers)
        plan = address(document(self.plan, machine, cast.limits, cast.judge))
        return Runner(cast, name, self.plan, plan, machine, deepcopy(record))


def _check_recipients(plan: Plan, peers: Mapping[str, Peer], around: str = "") -> None:
    for step in plan.steps:
        unknown = [member for member in step.to if member not in peers]
        if unknown or (step.gate != "none" and not peers):
            who = repr(unknown[0]) if unknown else "anybody"
            error = PlanError(f"step {step.id!r} is to {who}, who is no peer of this run", code="plan.to")
            error.step = around + step.id
            raise error
        if step.sub is not None:
            _check_recipients(step.sub, peers, f"{around}{step.id}/")


def _check(
    agent: Agent,
    name: str,
    peers: Mapping[str, Peer],
    approvers: Mapping[str, PublicKey],
    limits: Limits,
    room: str | None,
) -> None:
    """Refuse arguments that no run can be made of: identity, peers, name, limits, room, in this order (rule R1)."""
    if not isinstance(agent.identity, Identity):
        raise FlowError("the agent has no identity", code="run.identity")
    for members in (peers, approvers):
        if not isinstance(members, Mapping):
            raise FlowError(f"{members!r} are no members: give a mapping of names", code="run.peers")
    names: dict[PublicKey, str] = {agent.identity.public_key: "the agent itself"}
    keys: dict[str, Any] = {**{name: getattr(peer, "key", None) for name, peer in peers.items()}, **approvers}
    if len(keys) < len(peers) + len(approvers):
        raise FlowError("a peer and an approver have one name: rename one", code="run.peers")
    if len(keys) >= _MOST_MEMBERS:
        raise FlowError(f"{len(keys)} peers and approvers: {_MOST_MEMBERS - 1} at most", code="run.peers")
    for member, key in keys.items():
        if not isinstance(member, str) or not NAME.fullmatch(member):
            raise FlowError(f"{member!r} is no name of a member: {NAME.pattern}", code="run.peers")
        try:
            check_public_key(key)
        except (EnvelopeError, TypeError):
            raise FlowError(
                f"{member!r} has no acceptable key: {key!r}: give the 32 bytes of a public key; "
                "envelope.parse_did makes them of a did:key",
                code="run.peers",
            ) from None
        if key in names:
            raise FlowError(f"{member!r} has the key of {names[key]}: each member has its own", code="run.peers")
        names[key] = member
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise FlowError(f"{name!r} is no name of a thread: {NAME.pattern}", code="run.name")
    if not isinstance(limits, Limits):
        raise FlowError(f"{limits!r} are no Limits", code="run.limits")
    if room is not None and not (isinstance(room, str) and NAME.fullmatch(room)):
        raise FlowError(f"{room!r} is no name of a room: {NAME.pattern}", code="run.room")


def _member_name(wanted: str, taken: set[str]) -> str:
    """Return the name under which the agent is a member: its card's where that will do, else `owner`, `owner-2`…"""
    name, number = wanted, 1
    while name in taken or not NAME.fullmatch(name):
        name = "owner" if number == 1 else f"owner-{number}"
        number += 1
    return name
