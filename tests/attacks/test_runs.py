"""Runs that somebody tries to lead astray: recipients, judges, actions, handlers and monitors that misbehave, members
and other runs that append meanwhile, stores that fail, and cancellation at every point.

A number in a docstring is the attack's row in the project's list of attacks.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from envelope import Ack, Envelope, Identity, Message, Roster, Thread, open_envelope, sign_record, verify_thread
from flow import (
    AckTimeout,
    Agent,
    Call,
    Confirm,
    Correct,
    Declined,
    Delivery,
    Draft,
    Escalated,
    FlowError,
    Limits,
    Machine,
    MemoryStore,
    Monitor,
    NoRecipient,
    OverBudget,
    Plan,
    Rejected,
    Run,
    Step,
    StepFailed,
    StoreError,
    Superseded,
    Transition,
)
from flow.bus import MACHINE_MOVE, MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED, Bus, Event
from flow.testing import FakeClock, ScriptedPeer, Twisted, Wait
from flow.transport import local
from tests.flow.stage import (
    ANNA,
    BEN,
    CARA,
    CARD,
    OWNER,
    STRANGER,
    Stage,
    Watched,
    appended,
    assert_ended,
    confirm,
    on_the_way,
    opened,
    settled,
    unless_wrong,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Odd(Exception):
    pass


class Stop(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Acting(ScriptedPeer):
    """A recipient whose answer is a function's."""

    def __init__(self, identity: Identity, answer: Callable[["Acting", Delivery], Awaitable[Any]]) -> None:
        super().__init__(identity)
        self._answer = answer

    async def ack(self, delivery: Delivery) -> Any:
        self.deliveries.append(delivery)
        return await self._answer(self, delivery)

    def signed(self, delivery: Delivery, **fields: Any) -> Envelope[Ack]:
        return self._signed(delivery, fields)


def asking(*names: str, **fields: Any) -> Step:
    said: dict[str, Any] = {} if fields.get("gate") == "none" else {"payload": "do it", "to": names or ("anna",)}
    return Step("s", target="b", **said | fields)


def both(**fields: Any) -> Step:
    return asking("anna", "ben", **fields)


def row(**parts: Any) -> Machine:
    return Machine("a", [Transition("a", "go", "b", **parts), ("b", "go", "c"), ("c", "go", "d")])


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


async def foreign_state(stage: Stage) -> None:
    """Have another run of the same key go on with the thread."""
    await stage.store.store.commit("t", await stage.store.head("t"), [], b"another run's")


async def self_acked(stage: Stage, who: Identity, delivery: Delivery, **fields: Any) -> Envelope[Ack]:
    """Have a recipient append an ack to the store itself."""
    own = {"message": delivery.message.address, "answer": "accept", "restatement": "understood"}
    return await appended(stage.store.store, who, Ack, **{**own, **fields})


async def left(stage: Stage, who: Identity) -> None:
    await appended(stage.store.store, who, Roster, change="leave", key=who.public_key)


async def raised_by(stage: Stage) -> BaseException:
    """Run over time, and return whatever leaves the run."""
    caught: list[BaseException] = []

    async def run() -> None:
        try:
            await stage.run()
        except BaseException as error:
            if isinstance(error, anyio.get_cancelled_exc_class()):
                raise
            caught.append(error)

    await stage.over_time(run)
    assert caught
    return caught[0]


def nothing_fired(stage: Stage) -> bool:
    return not stage.bus.named(MACHINE_MOVE) and not stage.bus.named(STEP_COMPLETED)


def acks_are_whole(records: Sequence[bytes]) -> None:
    """Assert that no ack stands twice, and that each ruling directly follows its ack."""
    assert len(set(records)) == len(records)
    envelopes = list(map(open_envelope, records))
    for place, envelope in enumerate(envelopes):
        if envelope.kind == "ruling":
            assert envelopes[place - 1].address == envelope.record.ack


# A thread that is no longer this run's


async def test_a_run_that_was_superseded_seals_nothing_though_another_recipient_declines() -> None:
    """16."""
    stage = Stage(both())

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        await foreign_state(stage)
        return peer.signed(delivery)

    async def ben(peer: Acting, delivery: Delivery) -> Any:
        return peer.signed(delivery, answer="decline", restatement="no")

    stage.options["peers"] = {"anna": Acting(ANNA, anna), "ben": Acting(BEN, ben)}

    async def slow(kinds: list[str]) -> None:
        await anyio.lowlevel.checkpoint()

    stage.store.before = slow
    error = await raised_by(stage)
    assert [line for line in await stage.told() if line.startswith("seal")] == []
    assert isinstance(error, Superseded)


async def test_a_run_that_was_superseded_appends_no_further_acks() -> None:
    """16."""
    stage = Stage(both())
    taken: list[int] = []

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        await stage.clock.sleep(1)
        await foreign_state(stage)
        taken.append(len(await stage.records()))
        return peer.signed(delivery)

    async def ben(peer: Acting, delivery: Delivery) -> Any:
        await stage.clock.sleep(1)
        return peer.signed(delivery)

    async def slow(kinds: list[str]) -> None:
        if "ack" in kinds:
            await stage.clock.sleep(1)

    stage.store.before = slow
    stage.options["peers"] = {"anna": Acting(ANNA, anna), "ben": Acting(BEN, ben)}
    error = await raised_by(stage)
    assert isinstance(error, Superseded)
    assert len(await stage.records()) == taken[0]


async def test_a_run_that_was_superseded_seals_nothing_though_a_silent_recipient_has_left() -> None:
    """16, 32."""
    stage = Stage(both(ack_timeout=10), ben=[Wait(100)])

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        await stage.clock.sleep(1)
        await left(stage, BEN)
        await foreign_state(stage)
        await stage.clock.sleep(100)

    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    error = await raised_by(stage)
    assert await stage.told() == ["open", "request s", "ben: leave ben"]
    assert isinstance(error, Superseded)


async def test_a_run_that_was_superseded_settles_nothing_though_another_recipient_failed_first() -> None:
    """16."""
    stage = Stage(asking("anna", "ben", "cara"))
    taken: list[int] = []

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        await stage.clock.sleep(2)
        raise Odd("broken")

    async def ben(peer: Acting, delivery: Delivery) -> Any:
        await stage.clock.sleep(1)
        return peer.signed(delivery)

    async def other(kinds: list[str]) -> None:
        if "ack" in kinds and stage.clock.monotonic() >= 1:
            stage.store.before = None
            await stage.clock.sleep(2)
            await foreign_state(stage)
            taken.append(len(await stage.records()))

    stage.store.before = other
    stage.options["peers"] = {"anna": Acting(ANNA, anna), "ben": Acting(BEN, ben), "cara": ScriptedPeer(CARA)}
    await raised_by(stage)
    assert len(await stage.records()) == taken[0]


async def test_of_two_runs_of_one_name_and_key_one_goes_on_and_the_other_leaves_no_trace() -> None:
    """16."""
    stage = Stage(*on_the_way(2))
    ended: list[object] = []

    async def one() -> None:
        try:
            ended.append(await stage.run())
        except StoreError as error:
            ended.append(error.code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        tasks.start_soon(one)
    assert sorted(type(end).__name__ for end in ended) == ["Run", "str"]
    assert "store.exists" in ended
    assert len(await stage.told()) == 1 + 2 * 5 + 1


# What a recipient or the judge raises


@pytest.mark.parametrize("who", ["peer", "judge"])
async def test_a_no_recipient_of_a_run_inside_a_peer_or_the_judge_does_not_seal_this_run(who: str) -> None:
    """20."""
    inner = NoRecipient("carl owes an ack and can no longer give one: it is no member now")

    def judge(message: Message, ack: Ack) -> Confirm:
        raise inner

    stage = Stage(asking(), anna=[inner]) if who == "peer" else Stage(asking(), judge=judge)
    error = await raised_by(stage)
    assert error is inner
    assert_ended(inner.thread, None)


@pytest.mark.parametrize(
    "inner", [StoreError("disk full"), Superseded("not yours"), StoreError("no", code="store.refused")]
)
async def test_an_error_of_a_recipients_own_store_is_its_error_and_what_came_is_settled(inner: FlowError) -> None:
    """20."""
    stage = Stage(both(), ben=[Wait(1), inner])
    error = await raised_by(stage)
    assert error is inner
    inner.__notes__.clear()
    assert await stage.told() == ["open", "request s", "anna accepts", "confirm", "settle"]


@pytest.mark.parametrize(
    "inner",
    [AckTimeout("late"), Rejected("no"), StepFailed("bad"), OverBudget("much"), Declined("no"), FlowError("odd")],
)
async def test_an_ending_of_a_run_inside_a_recipient_is_not_taken_for_this_runs(inner: FlowError) -> None:
    stage = Stage(asking(), anna=[inner])
    if isinstance(inner, Declined):

        async def raise_it(peer: Acting, delivery: Delivery) -> Any:
            raise inner

        stage.options["peers"]["anna"] = Acting(ANNA, raise_it)
    assert await raised_by(stage) is inner
    assert_ended(inner.thread, None)
    assert nothing_fired(stage)


@pytest.mark.parametrize("heart", [True, False])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    "broken",
    [
        Stop(),
        KeyboardInterrupt(),
        ExceptionGroup("several", [Odd("a"), Odd("b")]),
        BaseExceptionGroup("several", [Stop(), Odd("b")]),
        StopAsyncIteration(),
        GeneratorExit(),
    ],
)
async def test_whatever_a_recipient_raises_leaves_the_run_as_it_came(
    broken: BaseException, alone: bool, heart: bool
) -> None:
    """20."""
    stage = Stage(asking() if alone else both(), anna=[broken], **({} if heart else {"heartbeat": None}))
    assert await raised_by(stage) is broken
    vars(broken).pop("__notes__", None)
    assert nothing_fired(stage)
    assert not [line for line in await stage.told() if line.startswith("seal")]
    assert len(stage.monitor.forgotten) == heart


async def test_an_escalation_without_words_is_an_escalation_still() -> None:
    class Human(Escalated):
        def __init__(self) -> None:
            super().__init__("a person must look")
            self.args = ()

    stage = Stage(asking(), anna=[Human()], approvers={"cara": CARA.public_key})
    assert isinstance(await raised_by(stage), Human)
    assert await stage.told() == ["open", "request s", "escalate s#escalate"]


async def test_nothing_is_escalated_once_a_recipient_declined_in_the_thread_itself() -> None:
    """41."""
    stage = Stage(both(ack_timeout=10), approvers={"cara": CARA.public_key})

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        await self_acked(stage, ANNA, delivery, answer="decline", restatement="never")
        await stage.clock.sleep(100)

    async def ben(peer: Acting, delivery: Delivery) -> Any:
        await stage.clock.sleep(1)
        raise Escalated("ask somebody else")

    stage.options["peers"] = {"anna": Acting(ANNA, anna), "ben": Acting(BEN, ben)}
    await raised_by(stage)
    assert [line for line in await stage.told() if line.startswith("escalate")] == []
    assert nothing_fired(stage)


async def test_an_error_that_cannot_be_put_into_words_does_not_hide_a_decline() -> None:
    async def ben(peer: Acting, delivery: Delivery) -> Any:
        try:
            await stage.clock.sleep(100)
        finally:
            raise Mute

    stage = Stage(both(), anna=[Wait(1), Declined("no")])
    stage.options["peers"]["ben"] = Acting(BEN, ben)
    error = await raised_by(stage)
    assert isinstance(error, Rejected)
    assert_ended(error.thread, "rejected")


# What a recipient answers


def _answers() -> list[Any]:
    class Shifting(Envelope):  # type: ignore[type-arg]
        seen = 0

        @property
        def raw(self) -> Any:  # type: ignore[override]
            Shifting.seen += 1
            return b"first" if Shifting.seen % 2 else None

    class Rude:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise Odd("do not look at me")

    class Raw(bytes):
        def __len__(self) -> int:
            return 1

    blank = Envelope(None, b"", b"", b"")  # type: ignore[arg-type]
    return [
        blank,
        blank._replace(raw=b"\xd2\x84X"),
        blank._replace(raw=Raw(b"x")),  # type: ignore[arg-type]
        blank._replace(raw=None),  # type: ignore[arg-type]
        blank._replace(raw=bytearray(b"x")),  # type: ignore[arg-type]
        blank._replace(raw=bytes(2_000_000)),
        (None, ANNA.public_key, b"", b""),
        Confirm(),
        True,
        Shifting(None, b"", b"", b""),  # type: ignore[arg-type]
        Rude(),
    ]


@pytest.mark.parametrize("place", range(11))
async def test_an_answer_made_by_hand_is_dropped_and_the_recipient_asked_again(place: int) -> None:
    """2."""
    answer = _answers()[place]

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        return answer if len(peer.deliveries) == 1 else peer.signed(delivery)

    stage = Stage(asking())
    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    assert len(stage.options["peers"]["anna"].deliveries) == 2


async def test_an_envelope_that_says_another_thing_than_its_bytes_counts_as_its_bytes() -> None:
    """2, 26."""

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        no = peer.signed(delivery, answer="decline", restatement="no")
        return no._replace(record=peer.signed(delivery).record, signer=BEN.public_key, address=bytes(32))

    stage = Stage(asking())
    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    error = await raised_by(stage)
    assert isinstance(error, Rejected)
    assert nothing_fired(stage)


@pytest.mark.parametrize("place", range(8))
async def test_an_ack_of_something_else_never_counts(place: int) -> None:
    """1, 2."""
    other = Stage(asking(), nonce=None)
    foreign = (await other.run()).outcomes["s"].acks["anna"]

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        if len(peer.deliveries) > 1:
            return peer.signed(delivery)
        ack = partial(peer.signed, delivery)
        own = {"thread": delivery.message.record.thread, "message": delivery.message.address, "restatement": "yes"}
        return [
            lambda: foreign,
            lambda: ack(thread=foreign.record.thread),
            lambda: ack(message=foreign.record.message),
            lambda: ack(after=delivery.message.address),
            lambda: sign_record(Ack, BEN, answer="accept", **own),
            lambda: sign_record(Ack, OWNER, answer="accept", **own),
            lambda: sign_record(Ack, STRANGER, answer="accept", **own),
            lambda: delivery.message,
        ][place]()

    stage = Stage(asking())
    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    run = await stage.over_time(stage.run)
    assert await stage.told() == ["open", "request s", "anna accepts", "confirm", "seal completed"]
    assert len(stage.options["peers"]["anna"].deliveries) == 2
    assert_ended(run.thread, "completed")


async def test_an_ack_of_an_earlier_step_does_not_answer_a_later_one() -> None:
    """1."""
    acks: list[Any] = []

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        acks.append(peer.signed(delivery))
        return acks[0] if len(acks) == 2 else acks[-1]

    stage = Stage(*on_the_way(2, to=["anna"]))
    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    await stage.over_time(stage.run)
    assert len(acks) == 3
    assert Counter(await stage.told())["anna accepts"] == 2


async def test_a_recipient_whose_key_turns_into_anothers_confirms_nothing_for_it() -> None:
    """2."""

    class Turning(ScriptedPeer):
        turned = False

        @property
        def key(self) -> bytes:
            return ANNA.public_key if self.turned else BEN.public_key

        async def ack(self, delivery: Delivery) -> Any:
            self.turned = True
            return self._signed(delivery, {"restatement": "also"}, ANNA)

    stage = Stage(both())
    stage.options["peers"]["ben"] = Turning(BEN)
    await raised_by(stage)
    assert nothing_fired(stage)
    assert not [line for line in await stage.told() if line.startswith("seal")]


async def test_a_decline_in_the_thread_itself_and_an_accept_by_hand_never_fire_the_step() -> None:
    """2."""
    stage = Stage(asking())

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        await self_acked(stage, ANNA, delivery, answer="decline", restatement="mine")
        return peer.signed(delivery)

    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    await raised_by(stage)
    assert nothing_fired(stage)
    told = await stage.told()
    assert told[:3] == ["open", "request s", "anna declines"]
    assert "confirm" not in told


@pytest.mark.parametrize("when", ["decline", "raise", "deadline"])
async def test_an_answer_given_while_the_step_is_ending_is_committed_once_and_not_ruled_on(when: str) -> None:
    async def anna(peer: Acting, delivery: Delivery) -> Any:
        try:
            await stage.clock.sleep(100)
        finally:
            with anyio.CancelScope(shield=True):
                await stage.clock.sleep(5)
            return peer.signed(delivery)  # noqa: B012

    ends: dict[str, list[object]] = {"decline": [Declined("no")], "raise": [Odd("x")], "deadline": ["yes"]}
    stage = Stage(both(ack_timeout=20), ben=[Wait(1), *ends[when]])
    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    error = await raised_by(stage)
    assert type(error) is {"decline": Rejected, "raise": Odd, "deadline": AckTimeout}[when]
    told = await stage.told()
    assert told.count("anna accepts") == 1
    assert nothing_fired(stage)
    records = await stage.records()
    acks = [envelope for envelope in map(open_envelope, records) if envelope.kind == "ack"]
    rulings = {envelope.record.ack for envelope in map(open_envelope, records) if envelope.kind == "ruling"}
    assert not rulings & {ack.address for ack in acks if ack.signer == ANNA.public_key}
    assert len(stage.bus.named(MESSAGE_ACKED)) == len(acks)


async def test_a_recipient_that_never_answers_and_never_stops_others_leaves_the_thread_open() -> None:
    stage = Stage(both(ack_timeout=10), anna=[Wait(10**6)])
    error = await raised_by(stage)
    assert isinstance(error, AckTimeout)
    assert await stage.told() == ["open", "request s", "ben accepts", "confirm", "settle"]


@pytest.mark.parametrize(("wait", "in_time"), [(9.999, True), (10, False), (10.001, False)])
async def test_an_answer_counts_up_to_the_deadline_and_not_from_it_on(wait: float, in_time: bool) -> None:
    stage = Stage(asking(ack_timeout=10), anna=[Wait(wait)])
    if in_time:
        assert_ended((await stage.over_time(stage.run)).thread, "completed")
    else:
        assert isinstance(await raised_by(stage), AckTimeout)


async def test_fifty_recipients_of_every_kind_are_each_committed_once_before_the_step_fires() -> None:
    crowd = [Identity.from_seed(bytes([8, number]) + bytes(30)) for number in range(50)]
    clock = FakeClock()
    scripts: list[list[object]] = [
        ["yes"],
        ["wrong", "yes"],
        [None, Twisted(signer=STRANGER), "yes"],
        [Wait(3), "wrong", Wait(3), "yes"],
        [Twisted({"message": bytes(32)}), "wrong", Twisted({"after": None}), "yes"],
    ]
    stage = Stage(Step("s", target="b", payload="do it", ack_timeout=60), judge=unless_wrong)
    stage.clock = clock
    stage.options["clock"] = clock
    stage.options["peers"] = {
        f"p{number}": ScriptedPeer(who, scripts[number % 5], clock=clock) for number, who in enumerate(crowd)
    }
    run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    acks_are_whole(run.thread.records)
    rounds = Counter(envelope.signer for envelope in map(open_envelope, run.thread.records) if envelope.kind == "ack")
    assert [rounds[who.public_key] for who in crowd] == [1, 2, 1, 2, 2] * 10
    assert len(stage.bus.named(MESSAGE_ACKED)) == 80
    moved = [event.name for event in stage.bus.events].index(MACHINE_MOVE)
    assert all(event.name != MESSAGE_ACKED for event in stage.bus.events[moved:])


@pytest.mark.parametrize("count", [0, 1, 15])
async def test_the_last_correction_that_is_allowed_still_gets_an_answer(count: int) -> None:
    stage = Stage(asking(corrections=count), anna=["wrong"] * count + ["right"], judge=unless_wrong)
    assert_ended((await stage.run()).thread, "completed")
    stage = Stage(asking(corrections=count), anna=["wrong"] * (count + 1) + ["right"], judge=unless_wrong)
    error = await raised_by(stage)
    assert isinstance(error, Rejected)
    assert_ended(error.thread, "rejected")
    assert len(stage.anna.deliveries) == count + 1


# What a judge does


@pytest.mark.parametrize(
    "said", [None, True, "confirm", Confirm, Correct, 1, Correct(""), Correct("\ud800"), [Confirm()]]
)
async def test_an_odd_word_of_the_judge_confirms_nothing(said: Any) -> None:
    def judge(message: Message, ack: Ack) -> Any:
        return said

    stage = Stage(asking(), judge=judge)
    await raised_by(stage)
    assert nothing_fired(stage)
    assert await stage.told() == ["open", "request s", "anna accepts", "settle"]


@pytest.mark.parametrize("broken", [Stop(), KeyboardInterrupt(), ExceptionGroup("two", [Odd(), Odd()])])
async def test_what_the_judge_raises_leaves_the_run_as_it_came(broken: BaseException) -> None:
    def judge(message: Message, ack: Ack) -> Any:
        raise broken

    stage = Stage(both(), judge=judge)
    assert await raised_by(stage) is broken
    vars(broken).pop("__notes__", None)
    assert nothing_fired(stage)


# What payload functions, guards and actions do


@pytest.mark.parametrize("slot", ["guard", "on_exit", "on_entry", "payload"])
@pytest.mark.parametrize(
    "broken",
    [
        Odd("plain"), Odd(""), Odd("\x00\x1b[2J\u202e"), Odd("\ud800"), Odd("x" * 10_000), Odd("\n\t "),
        ExceptionGroup("two", [Odd("a"), Odd("b")]), Mute(), NoRecipient("x"), Superseded("x"), StoreError("x"),
        Escalated("x"), OverBudget("x"), Rejected("x"),
    ],
)  # fmt: skip
async def test_whatever_fails_in_a_step_seals_the_thread_as_failed(slot: str, broken: Exception) -> None:
    """20."""

    def fail(*args: Any) -> Any:
        raise broken

    if slot == "payload":
        stage = Stage(asking(payload=None, payload_from=fail))
    else:
        stage = Stage(asking(), machine=row(**{slot: fail}))
    error = await raised_by(stage)
    assert isinstance(error, StepFailed)
    assert error.__cause__ is broken
    assert_ended(error.thread, "failed")
    if slot != "payload":
        assert settled(await stage.records())["s"] == ("failed", None if slot == "guard" else 1, "a")


@pytest.mark.parametrize("gate", ["before", "after", "none"])
@pytest.mark.parametrize("heart", [True, False])
async def test_a_cancellation_that_an_action_brings_from_elsewhere_leaves_the_run_as_it_came(
    gate: Any, heart: bool
) -> None:
    kept: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep(1)
        except BaseException as error:
            kept.append(error)
            raise

    def act(record: Any, call: Call) -> Any:
        raise kept[0]

    stage = Stage(asking(gate=gate), machine=row(on_entry=act), **({} if heart else {"heartbeat": None}))
    caught: list[BaseException] = []
    try:
        await stage.agent.run("t", stage.machine, stage.record, **stage.options)
    except BaseException as error:
        caught.append(error)
    assert caught == kept
    assert nothing_fired(stage)
    assert not [line for line in await stage.told() if line.startswith("seal")]


@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_an_action_that_rewrites_the_record_and_fails_leaves_it_as_it_was(gate: Any) -> None:
    def spoil(record: Any, call: Call) -> Any:
        record["n"] = 99
        record["deep"].append("spoilt")
        raise Odd("no")

    record = {"n": 0, "deep": ["whole"]}
    stage = Stage(asking(gate=gate), machine=row(on_entry=spoil), record=record)
    error = await raised_by(stage)
    assert isinstance(error, StepFailed)
    assert error.record == record == {"n": 0, "deep": ["whole"]}


async def test_an_action_keeps_no_hold_on_the_record_that_it_returned() -> None:
    kept: list[Any] = []

    def keep(record: Any, call: Call) -> Any:
        kept.append(record)
        return record

    def said(record: Any) -> str:
        kept.append(record)
        record["n"] = -1
        return "do it"

    stage = Stage(
        asking(payload=None, payload_from=said), Step("t", target="c", payload="more"), machine=row(on_entry=keep)
    )
    stage.bus.subscribe(lambda event: [one.update(n=7) for one in kept] and None)
    run = await stage.run()
    assert run.record == {"n": 0}


@pytest.mark.parametrize("answer", [0, 1, None, "yes", [], object()])
async def test_a_guard_that_says_neither_yes_nor_no_fires_nothing(answer: Any) -> None:
    stage = Stage(asking(), machine=row(guard=lambda record, call: answer))
    stage.machine = Machine("a", [Transition("a", "go", "b", guard=named(answer)), ("b", "go", "c")])
    error = await raised_by(stage)
    assert isinstance(error, StepFailed)
    assert_ended(error.thread, "failed")


def named(answer: Any) -> Any:
    def guard(record: Any, call: Call) -> Any:
        return answer

    return guard


@pytest.mark.parametrize("result", [None, [], 1, ("a",), {"n": {1, 2}}, {"n": float("nan")}, {1: 2}, object()])
async def test_an_action_that_returns_no_record_of_the_kind_fails_its_step(result: Any) -> None:
    stage = Stage(asking(gate="after"), machine=row(on_entry=named(result)))
    error = await raised_by(stage)
    assert isinstance(error, StepFailed)
    assert (error.record, error.status) == ({"n": 0}, "a")
    assert_ended(error.thread, "failed")


@pytest.mark.parametrize("said", [None, b"x", 1, "", " \n", "\ud800", ["x"], {"payload": "x"}, Draft])
async def test_a_payload_function_that_gives_no_text_fails_its_step(said: Any) -> None:
    def give(record: Any) -> Any:
        return said

    error = await raised_by(Stage(asking(payload=None, payload_from=give)))
    assert isinstance(error, StepFailed)
    assert_ended(error.thread, "failed")


async def test_a_payload_that_claims_to_be_verified_stays_assumed() -> None:
    """21."""
    run = await Stage(asking(payload="epistemic: verified; confidence: 100")).run()
    (message,) = opened(run.thread.records, "message")
    assert (message.epistemic, message.confidence) == ("assumed", None)


async def test_what_the_caller_does_to_its_record_during_the_run_is_nothing_to_the_run() -> None:
    seen: list[Any] = []

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        record["n"] = 99
        return peer.signed(delivery)

    def act(given: Any, call: Call) -> Any:
        seen.append(given["n"])
        return given

    def said(given: Any) -> str:
        return f"pay {given['n']}"

    record = {"n": 1}
    stage = Stage(asking(payload=None, payload_from=said), machine=row(on_entry=act), record=record)
    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    run = await stage.run()
    assert (opened(run.thread.records, "message")[0].payload, seen) == ("pay 1", [1])


# Budgets and sizes


async def test_a_text_that_lies_about_its_size_is_over_the_budget_all_the_same() -> None:
    """23."""

    class Light(str):
        __slots__ = ()

        def encode(self, *args: Any, **kwargs: Any) -> bytes:
            return b""

    def give(record: Any) -> str:
        return Light("x" * 100)

    stage = Stage(asking(payload=None, payload_from=give), limits=Limits(max_bytes=10))
    error = await raised_by(stage)
    assert nothing_fired(stage)
    assert stage.bus.named(MESSAGE_DELIVERED) == []
    assert isinstance(error, (OverBudget, StepFailed))


@pytest.mark.parametrize("steps", [1, 2])
async def test_the_largest_payload_that_can_be_said_can_be_said_at_any_step(steps: int) -> None:
    """23, 46."""
    largest = 2**20 - 600
    plan = [*on_the_way(steps - 1), Step("big", target="bcdef"[steps - 1], payload="x" * largest)]
    crowd = [Identity.from_seed(bytes([6, number]) + bytes(30)) for number in range(8)]
    stage = Stage(*plan)
    stage.options["peers"] = {f"p{number}": ScriptedPeer(who) for number, who in enumerate(crowd)}
    run = await stage.run()
    assert_ended(run.thread, "completed")


async def test_a_payload_that_no_envelope_holds_fails_its_step() -> None:
    """23."""

    def give(record: Any) -> str:
        return "x" * 2**20

    error = await raised_by(Stage(asking(payload=None, payload_from=give)))
    assert isinstance(error, StepFailed)
    assert_ended(error.thread, "failed")


async def test_an_id_of_full_length_that_is_squatted_gets_a_number() -> None:
    """36."""
    name = "x" * 64
    stage = Stage(Step(name, target="b", payload="do it"), Step("t", target="c", payload="more"))

    async def squat(kinds: list[str]) -> None:
        if kinds[0] == "open":
            for taken in (name, f"{name}#2", f"{name}#3"):
                await appended(
                    stage.store.store, BEN, Message, id=taken, intent="request", epistemic="assumed", payload="mine",
                    to=(ANNA.public_key,),
                )  # fmt: skip

    stage.store.after = squat
    run = await stage.run()
    assert [message.id for message in opened(run.thread.records, "message")][3:] == [f"{name}#4", "t"]
    assert_ended(run.thread, "completed")


async def test_a_member_that_squats_an_id_again_at_every_attempt_is_outrun() -> None:
    """36."""
    stage = Stage(asking())
    left_over = [5]

    async def squat(kinds: list[str]) -> None:
        if "message" in kinds and left_over[0]:
            left_over[0] -= 1
            taken = open_envelope(stage.store.sent[-1][0]).record.id
            await appended(
                stage.store.store, BEN, Message, id=taken, intent="assert", epistemic="assumed", payload="mine"
            )

    stage.store.before = squat
    run = await stage.run()
    assert opened(run.thread.records, "message")[-1].id == "s#6"
    assert_ended(run.thread, "completed")


# Others in the same thread


@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_a_run_that_was_superseded_before_a_step_never_fires_it(gate: Any) -> None:
    """16."""
    fired: list[str] = []

    def act(record: Any, call: Call) -> Any:
        fired.append(call.step[0])
        return record

    stage = Stage(asking(gate=gate), machine=row(on_entry=act))

    async def other(kinds: list[str]) -> None:
        if kinds[0] == "open":
            await foreign_state(stage)

    stage.store.after = other
    error = await raised_by(stage)
    assert isinstance(error, Superseded)
    assert fired == []
    assert await stage.told() == ["open"]


async def test_a_recipient_that_was_removed_while_it_answered_is_never_taken_for_an_acknowledgement() -> None:
    """32."""
    stage = Stage(asking())

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        ack = peer.signed(delivery)
        await left(stage, ANNA)
        return ack

    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    error = await raised_by(stage)
    assert isinstance(error, NoRecipient)
    assert_ended(error.thread, "failed")
    assert nothing_fired(stage)


async def test_a_recipient_that_is_known_to_have_left_is_not_waited_for_without_end() -> None:
    """32."""
    stage = Stage(both(), ben=[Wait(2)])

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        await stage.clock.sleep(1)
        await left(stage, ANNA)
        await anyio.sleep_forever()

    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    error = await raised_by(stage)
    assert isinstance(error, NoRecipient)
    assert_ended(error.thread, "failed")


async def test_fifty_recipients_of_which_one_declines_leave_every_ack_that_came_and_no_other() -> None:
    crowd = [Identity.from_seed(bytes([8, number]) + bytes(30)) for number in range(50)]
    stage = Stage(Step("s", target="b", payload="do it", ack_timeout=60), judge=unless_wrong)
    scripts: list[list[object]] = [["yes"], ["wrong", "yes"], [Wait(5), "yes"], [None, "yes"], [Wait(10**5)]]
    peers = {f"p{n}": ScriptedPeer(who, scripts[n % 5], clock=stage.clock) for n, who in enumerate(crowd)}
    peers["p7"] = ScriptedPeer(crowd[7], [Wait(2), Declined("no")], clock=stage.clock)
    peers["p8"] = ScriptedPeer(crowd[8], [Wait(1), Escalated("ask")], clock=stage.clock)
    stage.options |= {"peers": peers, "approvers": {"cara": CARA.public_key}}
    error = await raised_by(stage)
    assert isinstance(error, Rejected)
    assert_ended(error.thread, "rejected")
    assert nothing_fired(stage)
    acks = [envelope for envelope in map(open_envelope, await stage.records()) if envelope.kind == "ack"]
    assert Counter(ack.record.answer for ack in acks) == {"accept": 39, "decline": 1}
    assert [event.address for event in stage.bus.named(MESSAGE_ACKED)] == [ack.address for ack in acks]


async def test_a_members_record_that_breaks_a_rule_is_refused_and_the_run_goes_on() -> None:
    """35."""
    stage = Stage(asking())
    codes: list[str] = []

    async def meddle(kinds: list[str]) -> None:
        if kinds[0] == "message":
            thread = Thread()
            for raw in await stage.records():
                thread.apply(open_envelope(raw))
            fields = {"id": "x", "intent": "assert", "epistemic": "assumed", "payload": "p"}
            for who, extra in (
                (STRANGER, {}), (ANNA, {"step": ("s2",), "to": (BEN.public_key,), "ack_required": True}),
                (ANNA, {"settled": ({"message": thread.tip, "outcome": "failed"},)}), (ANNA, {"id": "s"}),
            ):  # fmt: skip
                raw = sign_record(Message, who, **{**thread.links(), **fields, **extra}).raw
                try:
                    await stage.store.store.commit("t", await stage.store.head("t"), [raw])
                except StoreError as error:
                    codes.append(error.code)

    stage.store.after = meddle
    assert_ended((await stage.run()).thread, "completed")
    assert codes == ["store.refused"] * 4


async def test_members_who_speak_between_every_two_reads_of_the_store_do_not_confuse_the_run() -> None:
    """16."""
    stage = Stage(*on_the_way(3))
    busy, spoken = [False], [0]

    async def speak() -> None:
        if spoken[0] < 30 and await stage.store.store.names():
            spoken[0] += 1
            await appended(
                stage.store.store, BEN, Message, id=f"by-{spoken[0]}", intent="assert", epistemic="assumed", payload="p"
            )

    head, read = stage.store.head, stage.store.read

    async def meddled_head(name: str) -> Any:
        found = await head(name)
        if not busy[0]:
            busy[0] = True
            await speak()
            busy[0] = False
        return found

    async def meddled_read(name: str, start: int = 0) -> Any:
        found = await read(name, start)
        if not busy[0]:
            busy[0] = True
            await speak()
            busy[0] = False
        return found

    async def before(kinds: list[str]) -> None:
        if spoken[0] < 25:
            await speak()

    stage.store.head, stage.store.read = meddled_head, meddled_read  # type: ignore[method-assign]
    stage.store.before = before
    run = await stage.run()
    assert verify_thread(await stage.store.store.read("t"), trust=None).completeness == "sealed"
    assert spoken[0] >= 25
    assert run.status == "d"
    acks_are_whole(run.thread.records)


# A store that fails


async def commits_of(make: Callable[[], Stage]) -> int:
    stage = make()
    await stage.over_time(stage.run)
    return len(stage.store.log)


def eventful(**options: Any) -> Stage:
    return Stage(
        both(), Step("report", target="c", payload="done", gate="after", to=["anna", "ben"]),
        Step("quiet", target="d", gate="none"), anna=["wrong", "right"], judge=unless_wrong, **options,
    )  # fmt: skip


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "broken", [OSError("disk full"), StoreError("disk full"), Stop(), ExceptionGroup("several", [Odd()])]
)
async def test_a_store_that_fails_at_any_commit_leaves_a_thread_that_verifies_and_raises_what_it_raised(
    broken: BaseException, when: str
) -> None:
    """20."""
    for place in range(1, await commits_of(eventful) + 1):
        stage = eventful()
        came = 0

        async def fail(kinds: list[str], stage: Stage = stage, place: int = place) -> None:
            nonlocal came
            came += 1
            if came == place:
                raise broken

        setattr(stage.store, when, fail)
        error = await raised_by(stage)
        assert error is broken, (place, error)
        vars(broken).pop("__notes__", None)
        if place > 1 or when == "after":
            acks_are_whole(await stage.records())
            assert told_only_what_is_durable(stage, await stage.records(), len(await stage.store.states("t")))
            await stage.told()
        assert len(stage.monitor.forgotten) == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_in_doubt_at_every_commit_changes_nothing_but_how_often_it_is_asked(when: str) -> None:
    stage = eventful()
    asked: Counter[tuple[bytes, ...]] = Counter()

    async def doubt(kinds: list[str]) -> None:
        key = (*map(bytes, stage.store.sent[-1]), str(kinds).encode(), str(len(stage.store.sent) // 2).encode())
        asked[key] += 1
        if len(stage.store.sent) % 2 == 0:
            raise StoreError("the line is down", code="store.in_doubt")

    setattr(stage.store, when, doubt)
    run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    acks_are_whole(run.thread.records)
    assert len(opened(run.thread.records, "ack")) == 5


async def test_an_error_after_an_ack_was_stored_is_raised_itself_and_not_taken_for_another_run() -> None:
    """20."""
    stage = Stage(both(), ben=[Wait(1)])
    broken = OSError("the line is down")

    async def fail(kinds: list[str]) -> None:
        if "ack" in kinds and len(stage.bus.named(MESSAGE_ACKED)) == 1:
            stage.store.after = None
            raise broken

    stage.store.after = fail
    error = await raised_by(stage)
    assert error is broken
    assert "another run" not in notes(error)


async def test_a_store_that_always_reports_a_conflict_and_never_anything_new_is_given_up() -> None:
    stage = Stage(asking(gate="none"))
    tries = 0

    async def conflict(kinds: list[str]) -> None:
        nonlocal tries
        if kinds == ["state"]:
            tries += 1
            if tries == 1000:
                raise Stop
            raise StoreError("moved on", code="store.conflict")

    stage.store.before = conflict
    error = await raised_by(stage)
    assert isinstance(error, StoreError)


# Cancellation


def told_only_what_is_durable(stage: Stage, records: Sequence[bytes], states: int) -> bool:
    addresses = {open_envelope(raw).address for raw in records}
    return all(event.address in addresses for event in stage.bus.events if event.address is not None)


async def ticked(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


class Slow:
    """Makes every commit of a stage's store take two checkpoints, and counts those that are under way."""

    def __init__(self, stage: Stage) -> None:
        self.under_way = 0
        commit, create = stage.store.commit, stage.store.create

        async def slow_commit(*args: Any) -> Any:
            return await self._slow(partial(commit, *args))

        async def slow_create(*args: Any) -> Any:
            return await self._slow(partial(create, *args))

        stage.store.commit, stage.store.create = slow_commit, slow_create  # type: ignore[method-assign]

    async def _slow(self, make: Callable[[], Awaitable[Any]]) -> Any:
        self.under_way += 1
        try:
            await anyio.lowlevel.checkpoint()
            made = await make()
            await anyio.lowlevel.checkpoint()
            return made
        finally:
            self.under_way -= 1


async def check_cancelled(stage: Stage, heart: bool) -> None:
    if not await stage.store.store.names():
        assert stage.bus.events == []
        return
    records = await stage.records()
    acks_are_whole(records)
    told = await stage.told()
    assert told.count("open") == 1
    assert told_only_what_is_durable(stage, records, 0)
    assert not [line for line in told[:-1] if line.startswith("seal")]
    phases = [state.data for state in await stage.store.states("t")]
    steps = [event.data["outcome"].step for event in stage.bus.named(STEP_COMPLETED)]
    assert len(steps) <= sum(b"done" in phase for phase in phases)
    assert len(stage.monitor.forgotten) == heart


@pytest.mark.parametrize("heart", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_cancel_after_any_number_of_checkpoints_leaves_a_whole_thread_and_is_raised_as_it_came(
    heart: bool, at_once: bool
) -> None:
    """20."""
    count, finished = 0, False
    while not finished:
        stage = eventful(**({} if heart else {"heartbeat": None}))
        slow = None if at_once else Slow(stage)
        ended: list[BaseException | Run] = []
        at = [0, 0]

        async def run(scope: anyio.CancelScope, stage: Stage = stage, ended: list[Any] = ended) -> None:
            with scope:
                try:
                    ended.append(await stage.agent.run("t", stage.machine, stage.record, **stage.options))
                except BaseException as error:
                    ended.append(error)
                    raise

        scope = anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, scope)
            await ticked(count)
            finished = bool(ended)
            at[:] = [len(stage.store.log), slow.under_way if slow else 1]
            scope.cancel()
        if finished:
            assert isinstance(ended[0], Run)
            break
        if ended:
            assert isinstance(ended[0], (Run, anyio.get_cancelled_exc_class())), ended
            assert len(stage.store.log) <= sum(at) + isinstance(ended[0], Run)
            await check_cancelled(stage, heart)
        count += 1
    assert count > 5


@pytest.mark.parametrize("heart", [True, False])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancel_of_the_task_after_any_number_of_turns_is_never_lost(heart: bool) -> None:
    import asyncio

    count, finished = 0, False
    while not finished:
        stage = eventful(**({} if heart else {"heartbeat": None}))
        Slow(stage)
        task = asyncio.ensure_future(stage.agent.run("t", stage.machine, stage.record, **stage.options))
        for _ in range(count):
            await asyncio.sleep(0)
        finished = task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert finished or task.cancelled(), count
        if not finished and count:
            await check_cancelled(stage, heart)
        count += 1
    assert count > 30


@pytest.mark.parametrize("ending", ["decline", "error"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancel_of_the_task_while_a_step_ends_is_never_lost(ending: str) -> None:
    import asyncio

    count, finished = 0, False
    while not finished:
        stage = Stage(both(), anna=[Declined("no") if ending == "decline" else Odd("x")], ben=[Wait(1000)])
        Slow(stage)
        task = asyncio.ensure_future(stage.agent.run("t", stage.machine, stage.record, **stage.options))
        for _ in range(count):
            await asyncio.sleep(0)
        finished = task.done()
        task.cancel()
        with suppress(asyncio.CancelledError, Rejected, Odd):
            await task
        assert finished or task.cancelled(), count
        count += 1
    assert count > 5


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("alone", [True, False])
async def test_a_recipient_that_works_in_a_nursery_of_its_own_is_cancelled_without_a_group(alone: bool) -> None:
    import trio

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    stage = Stage(asking() if alone else both(), ben=[Wait(10**5)])
    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    caught: list[BaseException] = []
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                try:
                    await stage.run()
                except BaseException as error:
                    caught.append(error)
                    raise

            tasks.start_soon(run)
            await stage.clock.advance(1)
            scope.cancel()
    assert await stage.told() == ["open", "request s"]
    assert not isinstance(caught[0], BaseExceptionGroup)


# Handlers, monitors and clocks


async def test_a_monitor_that_cannot_forget_does_not_take_the_run_with_it() -> None:
    class Forgetful(Monitor):
        def forget(self, beating: str) -> None:
            raise Odd("forgot how")

    stage = Stage(asking(), heartbeat=Forgetful(10.0))
    assert_ended((await stage.run()).thread, "completed")


async def test_a_monitor_that_cannot_forget_does_not_swallow_a_cancel() -> None:
    class Forgetful(Monitor):
        def forget(self, beating: str) -> None:
            raise Odd("forgot how")

    stage = Stage(asking(), anna=[Wait(1000)], heartbeat=Forgetful(10.0))
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.run)
            await stage.clock.advance(1)
            scope.cancel()
    assert scope.cancelled_caught


async def test_a_monitor_whose_timeout_cannot_be_told_harms_no_step_and_makes_no_group() -> None:
    class Timeless(Watched):
        armed = False

        @property
        def timeout(self) -> float:  # type: ignore[override]
            if self.armed:
                raise Odd("no time")
            return 10.0

        @timeout.setter
        def timeout(self, value: float) -> None:
            pass

    monitor = Timeless(10.0)
    monitor.armed = True
    stage = Stage(asking(), anna=[Wait(5)], heartbeat=monitor)
    error: Any = None
    try:
        await stage.over_time(stage.run)
    except BaseException as caught:
        error = caught
    assert not isinstance(error, BaseExceptionGroup)
    assert error is None


@pytest.mark.parametrize("broken", [Odd("x"), ExceptionGroup("two", [Odd(), Odd()]), StoreError("x"), Escalated("x")])
async def test_a_handler_that_fails_on_everything_harms_no_run(broken: Exception) -> None:
    def fail(event: Event) -> None:
        raise broken

    async def fail_later(event: Event) -> None:
        await anyio.lowlevel.checkpoint()
        raise broken

    stage = eventful()
    for handler in (fail, fail_later):
        stage.bus.subscribe(handler)
    assert_ended((await stage.run()).thread, "completed")
    assert len(stage.bus.named(THREAD_VERIFIED)) == 1


async def test_a_handler_may_unsubscribe_itself_and_others_and_emit_again() -> None:
    bus, seen = Bus(), []
    ends: list[Callable[[], None]] = []

    async def first(event: Event) -> None:
        seen.append(("first", event.name))
        for end in ends:
            end()
        if event.name == "outer":
            bus.subscribe(lambda later: seen.append(("new", later.name)))
            await bus.emit(Event("inner"))

    ends.append(bus.subscribe(first))
    ends.append(bus.subscribe(lambda event: seen.append(("second", event.name))))
    await bus.emit(Event("outer"))
    assert seen == [("first", "outer"), ("new", "inner"), ("second", "outer")]
    await bus.emit(Event("after"))
    assert seen[3:] == [("new", "after")]


async def test_a_handler_that_starts_a_run_of_its_own_on_the_same_store_and_bus_disturbs_nothing() -> None:
    stage = eventful()
    inner: list[Run] = []

    async def again(event: Event) -> None:
        if event.name == MESSAGE_DELIVERED and event.data["thread"] == "t" and not inner:
            peers = {"anna": ScriptedPeer(ANNA)}
            agent = Agent(OWNER, CARD, Plan([asking()]))
            options = {**stage.options, "peers": peers, "judge": confirm}
            inner.append(await agent.run("u", stage.machine, {"n": 0}, **options))

    stage.bus.subscribe(again)
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert_ended(inner[0].thread, "completed")
    assert sorted(stage.monitor.forgotten) == [f"{OWNER.did}:t", f"{OWNER.did}:u"]


async def test_twenty_runs_share_a_store_a_bus_and_a_monitor_and_stay_apart() -> None:
    """16."""
    stage = Stage(*on_the_way(3))
    runs: dict[str, Run] = {}

    async def one(name: str) -> None:
        peers = {"anna": ScriptedPeer(ANNA), "ben": ScriptedPeer(BEN)}
        runs[name] = await stage.agent.run(name, stage.machine, {"n": 0}, **{**stage.options, "peers": peers})

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(one, f"run-{number}")
    for name, run in runs.items():
        assert_ended(run.thread, "completed")
        mine = [event for event in stage.bus.events if event.data["thread"] == name]
        assert Counter(event.name for event in mine) == {
            MESSAGE_DELIVERED: 3, MESSAGE_ACKED: 6, MACHINE_MOVE: 3, STEP_COMPLETED: 3, THREAD_VERIFIED: 1,
        }  # fmt: skip
    assert len(stage.bus.named(THREAD_VERIFIED)) == 20
    assert len({run.thread.address for run in runs.values()}) == 20
    assert len(stage.monitor.forgotten) == 20


async def test_an_old_beat_replayed_is_refused_and_the_run_goes_on() -> None:
    """22."""
    stage = Stage(asking(), anna=[Wait(5)])
    codes: list[str] = []

    async def replay(event: Event) -> None:
        await stage.clock.sleep(1)
        stage.monitor._last[f"{OWNER.did}:t"] = 10**6
        try:
            stage.monitor.beat(f"{OWNER.did}:t", 0)
        except FlowError as error:
            codes.append(error.code)

    stage.bus.subscribe(replay, MESSAGE_DELIVERED)
    assert_ended((await stage.over_time(stage.run)).thread, "completed")
    assert codes == ["heartbeat.stale"]


async def test_a_clock_that_two_tasks_move_never_goes_back() -> None:
    for _ in range(20):  # which of the two is done first is for the event loop to choose
        clock, times = FakeClock(), []

        async def move(seconds: float, clock: FakeClock = clock, times: list[float] = times) -> None:
            await clock.advance(seconds)
            times.append(clock.monotonic())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(move, 5)
            tasks.start_soon(move, 1)
        assert times == sorted(times)


async def test_a_sleep_that_is_cancelled_leaves_no_timer_behind() -> None:
    clock = FakeClock()
    for _ in range(3):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await clock.sleep(5)
        with clock.move_on_after(5), suppress(Odd):
            raise Odd
    assert clock._timers == []


# Growth


async def test_a_thousand_quiet_steps_are_settled_by_the_hundreds_in_records_of_a_bounded_size() -> None:
    steps = [Step(f"{number:064}", target="ba"[number % 2], gate="none") for number in range(1500)]
    machine = Machine("a", [("a", "go", "b"), ("b", "back", "a")])
    stage = Stage(*steps, machine=machine)
    run = await stage.agent.run("t", machine, stage.record, **stage.options)
    verdict = verify_thread(run.thread.records, trust=None)
    assert (verdict.completeness, len(run.thread.records)) == ("sealed", 4)
    assert len(settled(run.thread.records)) == 1500
    assert max(map(len, run.thread.records)) < 2**18


async def test_a_plan_that_is_too_long_for_its_document_is_refused_as_a_plan() -> None:
    steps = [Step(f"s{number}", target="ba"[number % 2], payload="x" * 600_000) for number in range(30)]
    machine = Machine("a", [("a", "go", "b"), ("b", "back", "a")])
    stage = Stage(*steps, machine=machine)
    error = await stage_error(stage, machine)
    assert await stage.store.names() == []
    assert isinstance(error, FlowError)


async def stage_error(stage: Stage, machine: Machine) -> BaseException | None:
    try:
        await stage.agent.run("t", machine, stage.record, **stage.options)
    except Exception as error:
        return error
    return None


# Local recipients


@pytest.mark.parametrize("reason", ["", " ", "\ud800", "x" * 70_000, "\x00"])
async def test_a_local_recipient_that_declines_in_odd_words_declines(reason: str) -> None:
    def restate(message: Message) -> str:
        raise Declined(reason)

    stage = Stage(asking())
    stage.options["peers"]["anna"] = local(ANNA, restate, clock=stage.clock)
    error = await raised_by(stage)
    assert isinstance(error, Rejected)
    assert_ended(error.thread, "rejected")


async def test_a_local_recipient_refuses_what_is_not_addressed_to_it() -> None:
    """10."""
    stage = Stage(asking())
    said: list[str] = []

    def restate(message: Message) -> str:
        said.append(str(message.payload))
        return "yes"

    wrong = local(CARA, restate, clock=stage.clock)

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        return await wrong.ack(delivery)

    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    error = await raised_by(stage)
    assert (error.code, said) == ("peer.not_addressed", [])  # type: ignore[attr-defined]


async def test_a_correction_is_in_the_thread_before_its_recipient_sees_it() -> None:
    """47."""
    stage = Stage(asking(), judge=unless_wrong)

    async def anna(peer: Acting, delivery: Delivery) -> Any:
        if delivery.correction is not None:
            assert delivery.correction.raw in await delivery.history()
            assert delivery.correction.raw in await stage.records()
            return peer.signed(delivery, restatement="right")
        return peer.signed(delivery, restatement="wrong")

    stage.options["peers"]["anna"] = Acting(ANNA, anna)
    with nullcontext():
        assert_ended((await stage.run()).thread, "completed")


async def test_a_handler_that_fails_on_a_message_does_not_make_it_come_again() -> None:
    """19."""
    stage = Stage(asking(), store=None)
    told: list[bytes | None] = []

    def fail(event: Event) -> None:
        told.append(event.address)
        raise Odd("later")

    stage.bus.subscribe(fail, MESSAGE_DELIVERED)
    stage.options["store"] = MemoryStore()
    await stage.run()
    assert len(told) == 1
