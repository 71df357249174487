"""How a run ends without success: what is raised, what the thread says then, and what is appended no more."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from envelope import Ack, EnvelopeError, Message, Roster, Seal, open_envelope
from flow import (
    AckTimeout,
    Call,
    Confirm,
    Declined,
    Delivery,
    Escalated,
    FlowError,
    Limits,
    Machine,
    NoRecipient,
    NoTransition,
    OverBudget,
    Rejected,
    Step,
    StepFailed,
    StoreError,
    Superseded,
    Transition,
)
from flow.bus import MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED
from flow.testing import ScriptedPeer, Twisted, Wait
from tests.flow.stage import (
    ANNA,
    BEN,
    CARA,
    DORA,
    OWNER,
    Stage,
    appended,
    assert_ended,
    correct,
    on_the_way,
    opened,
    settled,
    story,
    unless_wrong,
)

pytestmark = pytest.mark.anyio

APPROVERS = {"cara": CARA.public_key, "dora": DORA.public_key}


def asking(**fields: Any) -> Step:
    said: dict[str, Any] = {} if fields.get("gate") == "none" else {"payload": "do it", "to": ["anna"]}
    return Step("s", target="b", **said | fields)


def both(**fields: Any) -> Step:
    return asking(to=["anna", "ben"], **fields)


def row(**parts: Any) -> Machine:
    return Machine("a", [Transition("a", "go", "b", **parts), ("b", "go", "c")])


def reason(error: Any) -> str:
    return str(opened(error.thread.records, "seal")[0].reason)


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


# A step that fails


def refuse(record: Any, call: Call) -> bool:
    return False


def fail(record: Any, call: Call) -> Any:
    raise KeyError("no such thing")


def lose(record: Any, call: Call) -> Any:
    return None


@pytest.mark.rule("R30")
@pytest.mark.parametrize(
    ("parts", "attempts", "why"),
    [
        ({"guard": refuse}, None, "GuardRefused"),
        ({"guard": fail}, None, "KeyError"),
        ({"guard": lose}, None, "MachineError"),
        ({"on_exit": fail}, 1, "KeyError"),
        ({"on_entry": fail}, 1, "KeyError"),
        ({"on_entry": lose}, 1, "MachineError"),
    ],
)
@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_a_guard_or_an_action_that_fails_fails_the_step(
    gate: Any, parts: dict[str, Any], attempts: Any, why: str
) -> None:
    stage = Stage(asking(gate=gate), *on_the_way(2)[1:], machine=row(**parts))
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    asked = ["request s", "anna accepts", "confirm"] if gate == "before" else []
    assert story(error.thread.records) == ["open", *asked, "seal failed"]
    assert settled(error.thread.records) == {"s": ("failed", attempts, "a")}
    assert (error.status, error.record, error.step, error.thread.name) == ("a", {"n": 0}, "s", "t")
    assert reason(error).startswith(f"step 's': its transition failed: {why}: ")
    assert type(error.__cause__).__name__ == why
    assert notes(error) == ""


@pytest.mark.rule("R30")
@pytest.mark.parametrize("said", [fail, lambda record: None, lambda record: " ", lambda record: "\ud800"])
async def test_a_payload_function_that_fails_fails_the_step_and_nothing_is_said(said: Any) -> None:
    def payload(record: Any) -> Any:
        return said(record, None) if said is fail else said(record)

    stage = Stage(asking(payload=None, payload_from=payload))
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert story(error.thread.records) == ["open", "seal failed"]
    assert settled(error.thread.records) == {"s": ("failed", None, "a")}
    assert reason(error).startswith("step 's': its payload failed: ")
    assert stage.anna.deliveries == []


@pytest.mark.rule("R30")
async def test_what_an_action_did_to_its_copy_is_gone_when_it_fails() -> None:
    def spoil(record: Any, call: Call) -> Any:
        record["n"] = 99
        raise ValueError("halfway")

    stage = Stage(asking(), machine=row(on_entry=spoil))
    error = await stage.fails(StepFailed)
    assert (error.record, stage.record) == ({"n": 0}, {"n": 0})


@pytest.mark.rule("R30")
async def test_a_failure_is_told_with_a_reason_that_fits_the_seal() -> None:
    def shout(record: Any, call: Call) -> Any:
        raise ValueError("é" * 5000 + "\ud800")

    stage = Stage(asking(), machine=row(on_entry=shout))
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert 4090 <= len(reason(error).encode()) <= 4096


@pytest.mark.rule("R30")
async def test_after_a_failure_no_further_step_begins() -> None:
    stage = Stage(
        *on_the_way(3),
        machine=Machine("a", [Transition("a", "go", "b", on_entry=fail), ("b", "go", "c"), ("c", "go", "d")]),
    )
    error = await stage.fails(StepFailed)
    assert len(stage.anna.deliveries) == 1
    assert stage.bus.named(STEP_COMPLETED) == stage.bus.named(THREAD_VERIFIED) == []
    assert_ended(error.thread, "failed")


# No way to the target


class Shifting(Machine):
    """A machine that has other rows when it is run than when it was validated."""

    def shift(self, *rows: Transition) -> None:
        self.instead = rows

    def rows_to(self, status: str, target: str) -> tuple[Transition, ...]:
        return getattr(self, "instead", None) or super().rows_to(status, target)


@pytest.mark.rule("R31")
@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_two_rows_to_the_target_seal_the_thread_before_the_step_says_anything(gate: Any) -> None:
    machine = Shifting("a", [("a", "go", "b"), ("b", "go", "c")])
    said: dict[str, Any] = {} if gate == "none" else {"payload": "do it"}
    stage = Stage(Step("one", target="b", payload="do it"), Step("two", target="c", gate=gate, **said), machine=machine)

    async def shift(kinds: list[str]) -> None:
        if kinds == ["state"]:
            machine.shift(Transition("b", "go", "c"), Transition("b", "walk", "c"))

    stage.store.after = shift
    error = await stage.fails(NoTransition)
    assert_ended(error.thread, "failed")
    assert story(error.thread.records)[-3:] == ["ben accepts", "confirm", "seal failed"]
    assert settled(error.thread.records) == {"one": ("succeeded", None, "b")}
    assert (error.status, error.step) == ("b", "two")
    assert reason(error).startswith("2 rows lead from 'b' to 'c'")


@pytest.mark.rule("R31")
async def test_no_row_to_the_target_seals_the_thread_before_the_step_says_anything() -> None:
    class Shrinking(Machine):
        shrunk = False

        def rows_to(self, status: str, target: str) -> tuple[Transition, ...]:
            return () if self.shrunk else super().rows_to(status, target)

    machine = Shrinking("a", [("a", "go", "b")])
    stage = Stage(asking(), machine=machine)

    async def shrink(kinds: list[str]) -> None:
        machine.shrunk = True

    stage.store.after = shrink
    error = await stage.fails(NoTransition)
    assert_ended(error.thread, "failed")
    assert (story(error.thread.records), stage.anna.deliveries) == (["open", "seal failed"], [])


# Rejected


@pytest.mark.rule("R32")
async def test_a_decline_seals_the_thread_as_rejected_with_the_recipients_words() -> None:
    stage = Stage(both(), anna=[Declined("not on a Friday")], ben=[Wait(1)])
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert_ended(error.thread, "rejected")
    assert reason(error) == "anna declined: not on a Friday"
    assert settled(error.thread.records) == {"s": ("failed", None, "a")}
    assert (error.status, error.record, error.step) == ("a", {"n": 0}, "s")
    assert "anna declined: not on a Friday" in str(error)
    assert error.thread.verify(trust=None).declined == 1


@pytest.mark.rule("R32")
async def test_corrections_used_up_seal_the_thread_as_rejected_with_the_last_correction() -> None:
    stage = Stage(asking(), anna=["wrong", "wrong again"], judge=correct)
    error = await stage.fails(Rejected)
    assert_ended(error.thread, "rejected")
    assert reason(error) == "anna was corrected and may not answer again: not that"
    assert settled(error.thread.records) == {"s": ("failed", None, "a")}


@pytest.mark.rule("R32")
async def test_a_reason_outside_the_thread_is_named_as_such() -> None:
    blob = {"answer": "decline", "restatement": {"address": bytes(32), "bytes": 99}}
    stage = Stage(asking(), anna=[Twisted(blob)])
    error = await stage.fails(Rejected)
    assert reason(error) == "anna declined: content outside the thread"


@pytest.mark.rule("R32")
async def test_a_long_reason_is_cut() -> None:
    stage = Stage(asking(), anna=[Declined("é" * 9000)])
    error = await stage.fails(Rejected)
    assert_ended(error.thread, "rejected")
    assert len(reason(error).encode()) in (4095, 4096)


@pytest.mark.rule("R32")
async def test_a_rejected_step_never_fires() -> None:
    stage = Stage(asking(), machine=row(on_entry=fail), anna=[Declined("no")])
    await stage.fails(Rejected)
    assert stage.bus.named("machine.move") == []


@pytest.mark.rule("R33")
async def test_a_step_over_the_limits_is_raised_with_how_the_run_stood() -> None:
    stage = Stage(*on_the_way(2), limits=Limits(max_messages=1))
    error = await stage.fails(OverBudget)
    assert_ended(error.thread, "over_budget")
    assert (error.status, error.record, error.step) == ("b", {"n": 0}, "to-c")


# Open


@pytest.mark.rule("R34")
async def test_an_ack_that_is_not_there_in_time_leaves_the_thread_open() -> None:
    stage = Stage(both(ack_timeout=10), ben=[Wait(11), "late"])
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert_ended(error.thread, None)
    assert story(error.thread.records) == ["open", "request s", "anna accepts", "confirm", "settle"]
    assert (settled(error.thread.records), stage.clock.monotonic()) == ({}, 10)
    assert (error.status, error.step, "of ben within 10 s" in str(error)) == ("a", "s", True)
    assert notes(error) == "in step 's' of the thread 't', which this run did not seal"


@pytest.mark.rule("R34")
async def test_where_nobody_answers_in_time_nothing_is_appended() -> None:
    stage = Stage(both(ack_timeout=10), anna=[Wait(11)], ben=[Wait(11)])
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert story(error.thread.records) == ["open", "request s"]
    assert "of anna, ben within" in str(error)


@pytest.mark.rule("R34")
async def test_a_deadline_comes_before_an_ack_of_the_same_instant() -> None:
    stage = Stage(asking(ack_timeout=10), anna=[Wait(10)])
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert_ended(error.thread, None)


class Odd(Exception):
    pass


@pytest.mark.rule("R35")
@pytest.mark.parametrize(
    "broken",
    [Odd("broken"), FlowError("broken"), EnvelopeError("writer.misuse", "broken"), ExceptionGroup("g", [Odd()])],
)
async def test_what_a_peer_raises_is_raised_itself_and_leaves_the_thread_open(broken: Exception) -> None:
    stage = Stage(both(), anna=[Wait(1), broken], ben=["fine"])
    error = await stage.over_time(lambda: stage.fails(type(broken)))
    assert error is broken
    assert story(await stage.records()) == ["open", "request s", "ben accepts", "confirm", "settle"]
    assert notes(error) == "in step 's' of the thread 't', which this run did not seal"
    broken.__notes__.clear()


@pytest.mark.rule("R35")
@pytest.mark.parametrize("late", [True, False])
async def test_what_the_judge_raises_is_raised_itself_and_leaves_the_thread_open(late: bool) -> None:
    async def later(message: Message, ack: Ack) -> Confirm:
        await anyio.lowlevel.checkpoint()
        raise broken

    def now(message: Message, ack: Ack) -> Confirm:
        raise broken

    broken = Odd("no idea")
    stage = Stage(asking(), judge=later if late else now)
    assert await stage.fails(Odd) is broken
    assert await stage.told() == ["open", "request s", "anna accepts", "settle"]
    assert "in step 's' of the thread 't'" in notes(broken)


@pytest.mark.rule("R35")
@pytest.mark.parametrize("broken", [Odd("disk full"), StoreError("disk full")])
@pytest.mark.parametrize("kind", ["open", "message", "ack", "state", "seal"])
async def test_what_the_store_raises_is_raised_itself_at_whatever_commit(kind: str, broken: Exception) -> None:
    stage = Stage(asking())

    async def fail(kinds: list[str]) -> None:
        if kinds[0] == kind:
            raise broken

    stage.store.before = fail
    assert await stage.fails(type(broken)) is broken  # type: ignore[comparison-overlap]
    assert "of the thread 't', which this run did not seal" in notes(broken)
    told = await stage.told() if kind != "open" else []
    assert (
        told
        == {
            "open": [],
            "message": ["open"],
            "ack": ["open", "request s"],
            "state": ["open", "request s", "anna accepts", "confirm"],
            "seal": ["open", "request s", "anna accepts", "confirm"],
        }[kind]
    )
    assert stage.monitor.forgotten == [f"{OWNER.did}:t"]
    broken.__notes__.clear()


@pytest.mark.rule("R35")
async def test_a_store_that_cannot_be_read_at_the_end_raises_what_it_raises() -> None:
    class Blind(Exception):
        pass

    stage = Stage(asking())

    async def read(name: str, start: int = 0) -> Any:
        raise Blind

    stage.store.read = read  # type: ignore[method-assign]
    await stage.fails(Blind)
    assert stage.bus.named(THREAD_VERIFIED) == []


@pytest.mark.rule("R35")
async def test_an_error_of_the_store_while_pausing_is_noted_on_the_first() -> None:
    stage = Stage(asking(), judge=correct, anna=["wrong", Odd("broken")])

    async def full(kinds: list[str]) -> None:
        if "settle" in kinds:
            raise OSError("disk full")

    stage.store.before = full
    error = await stage.fails(Odd)
    assert "besides: OSError: disk full" in notes(error)
    assert await stage.told() == ["open", "request s", "anna accepts", "correct"]


# Recipients who can acknowledge no more


@pytest.mark.rule("R36")
@pytest.mark.parametrize("gate", ["before", "after"])
@pytest.mark.parametrize("when", ["open", "message"])
async def test_a_recipient_that_has_left_seals_the_thread_as_failed(when: str, gate: Any) -> None:
    stage = Stage(both(gate=gate), ben=[Wait(1000)])

    async def leave(kinds: list[str]) -> None:
        if when in kinds:
            stage.store.after = None
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.after = leave
    error = await stage.over_time(lambda: stage.fails(NoRecipient))
    assert_ended(error.thread, "failed")
    assert "anna owes an ack and can no longer give one: it is no member now" in reason(error)
    status = "a" if gate == "before" else "b"
    assert settled(error.thread.records) == {"s": ("failed", None, status)}
    assert "anna accepts" not in story(error.thread.records)
    assert error.step == "s"


@pytest.mark.rule("R36")
async def test_a_recipient_that_left_before_its_silence_ran_out_seals_the_thread_as_failed() -> None:
    stage = Stage(asking(ack_timeout=10), anna=[Wait(100)])

    async def leave(kinds: list[str]) -> None:
        if "message" in kinds:
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.after = leave
    error = await stage.over_time(lambda: stage.fails(NoRecipient))
    assert_ended(error.thread, "failed")
    assert story(error.thread.records) == ["open", "request s", "anna: leave anna", "seal failed"]
    assert "besides: no answer in time from anna" in notes(error)


@pytest.mark.rule("R36")
async def test_a_recipient_known_to_have_left_is_not_asked() -> None:
    stage = Stage(asking(to=["ben"]), Step("u", target="c", payload="do it", to=["ben", "anna"]), ben=["fine", "fine"])

    async def leave(kinds: list[str]) -> None:
        if kinds[0] == "message":
            stage.store.after = None
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.after = leave
    error = await stage.fails(NoRecipient)
    assert_ended(error.thread, "failed")
    assert (len(stage.ben.deliveries), stage.anna.deliveries) == (1, [])
    assert settled(error.thread.records) == {"s": ("succeeded", None, "b"), "u": ("failed", None, "b")}


@pytest.mark.rule("R36")
async def test_a_recipient_that_leaves_in_the_middle_of_its_rounds_seals_the_thread_as_failed() -> None:
    stage = Stage(asking(), anna=["wrong", "right"], judge=unless_wrong)

    async def leave(kinds: list[str]) -> None:
        if "ruling" in kinds:
            stage.store.after = None
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.after = leave
    error = await stage.fails(NoRecipient)
    assert_ended(error.thread, "failed")
    assert story(error.thread.records)[2:] == ["anna accepts", "correct", "anna: leave anna", "seal failed"]


# Superseded


@pytest.mark.rule("R37")
@pytest.mark.parametrize("kind", ["message", "ack", "state", "seal"])
async def test_a_run_that_lost_its_thread_to_another_run_appends_nothing_more(kind: str) -> None:
    stage = Stage(asking())

    async def other(kinds: list[str]) -> None:
        if kinds[0] == kind:
            stage.store.before = None
            await stage.store.store.commit("t", await stage.store.head("t"), [], b"another run's")
            before.extend(await stage.records())

    before: list[bytes] = []
    stage.store.before = other
    error = await stage.fails(Superseded)
    assert await stage.records() == before
    assert_ended(error.thread, None)
    assert (error.step, error.status) == (None if kind == "seal" else "s", "b" if kind in ("state", "seal") else "a")


@pytest.mark.rule("R37")
async def test_a_run_that_finds_its_thread_gone_when_the_time_is_up_is_superseded() -> None:
    stage = Stage(asking(ack_timeout=10), anna=[Wait(100)])

    async def other(kinds: list[str]) -> None:
        if "message" in kinds:
            await stage.store.store.commit("t", await stage.store.head("t"), [], b"another run's")

    stage.store.after = other
    error = await stage.over_time(lambda: stage.fails(Superseded))
    assert story(error.thread.records) == ["open", "request s"]
    assert "besides: no answer in time from anna" in notes(error)


@pytest.mark.rule("R37")
async def test_a_run_that_finds_its_thread_gone_while_pausing_is_superseded() -> None:
    stage = Stage(asking(), judge=unless_wrong, anna=["wrong", Odd("broken")])

    async def other(kinds: list[str]) -> None:
        if "settle" in kinds:
            stage.store.before = None
            await stage.store.store.commit("t", await stage.store.head("t"), [], b"another run's")

    stage.store.before = other
    error = await stage.fails(Superseded)
    assert "besides: Odd: broken" in notes(error)


@pytest.mark.rule("R37")
async def test_a_run_whose_thread_another_moderator_sealed_is_superseded() -> None:
    stage = Stage(asking(), anna=[Wait(1)])

    async def demote(kinds: list[str]) -> None:
        if kinds[0] == "message":
            stage.store.after = None
            await appended(stage.store.store, OWNER, Roster, change="role", key=BEN.public_key, role="moderator")

    stage.store.after = demote
    error = await stage.over_time(lambda: stage.fails(Superseded))
    assert_ended(error.thread, None)


# Cancelled


async def cancelled_at(stage: Stage, place: int) -> tuple[bool, list[bytes], list[bytes]]:
    """Run, and cancel at the given place among all that the run awaits.

    Returns:
        Whether the run had got that far; the records at that moment and after the run was over.
    """
    came = 0
    at: list[bytes] = []
    trying = [0, 0]
    caught: list[BaseException] = []

    async def await_here() -> None:
        nonlocal came
        came += 1
        if came == place:
            at.extend(await stage.store.store.read("t") if await stage.store.names() else [])
            trying[0] = len(stage.store.sent)
            scope.cancel()
        await anyio.lowlevel.checkpoint()

    async def commit(kinds: list[str]) -> None:
        await await_here()

    async def told(event: Any) -> None:
        await await_here()

    class Awaiting(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            await await_here()
            return await super().ack(delivery)

    async def judge(message: Message, ack: Ack) -> Any:
        await await_here()
        return unless_wrong(message, ack)

    stage.store.before = stage.store.after = commit
    stage.bus.subscribe(told)
    stage.options |= {"judge": judge, "peers": {"anna": Awaiting(ANNA, ["wrong"]), "ben": Awaiting(BEN)}}
    with anyio.CancelScope() as scope:
        try:
            await stage.run()
        except BaseException as error:
            caught.append(error)
            raise
    if came >= place:
        assert isinstance(caught[0], anyio.get_cancelled_exc_class())
        assert not isinstance(caught[0], BaseExceptionGroup)
        assert len(stage.store.sent) == trying[0]
    return came >= place, at, list(await stage.store.store.read("t") if await stage.store.names() else [])


@pytest.mark.rule("R40")
@pytest.mark.parametrize("heart", [True, False])
async def test_a_cancel_at_any_await_is_raised_as_it_came_and_nothing_is_appended_after_it(heart: bool) -> None:
    async def said(record: Any) -> str:
        await anyio.lowlevel.checkpoint()
        return "do it"

    place = 0
    reached = True
    while reached:
        place += 1
        stage = Stage(
            both(payload=None, payload_from=said), both_after(), Step("quiet", target="d", gate="none"),
            **({} if heart else {"heartbeat": None}),
        )  # fmt: skip
        reached, at, after = await cancelled_at(stage, place)
        if reached:
            assert after == at
            assert stage.monitor.forgotten == ([f"{OWNER.did}:t"] if heart else [])
    assert place > 50


def both_after() -> Step:
    return Step("report", target="c", payload="done", gate="after", to=["anna", "ben"])


@pytest.mark.rule("R40")
@pytest.mark.parametrize("heart", [True, False])
@pytest.mark.parametrize("gate", ["before", "after", "none"])
@pytest.mark.parametrize("slot", ["guard", "on_exit", "on_entry"])
async def test_a_cancel_inside_a_firing_leaves_what_a_crash_would_leave(slot: str, gate: Any, heart: bool) -> None:
    async def hang(record: Any, call: Call) -> Any:
        at.extend(await stage.records())
        scope.cancel()
        await anyio.sleep_forever()

    at: list[bytes] = []
    stage = Stage(asking(gate=gate), machine=row(**{slot: hang}), **({} if heart else {"heartbeat": None}))
    with anyio.CancelScope() as scope:
        await stage.run()
        raise AssertionError("the run went on")
    assert scope.cancelled_caught
    assert await stage.records() == at
    phase = {"before": "confirmed", "after": "firing", "none": "firing"}[gate]
    assert phase.encode() in (await stage.store.states("t"))[-1].data


@pytest.mark.rule("R40")
async def test_a_cancel_while_acks_wait_for_their_turn_commits_none_of_them() -> None:
    stage = Stage(both())
    with anyio.CancelScope() as scope:

        async def hang(kinds: list[str]) -> None:
            if "ack" in kinds:
                scope.cancel()
                await anyio.sleep_forever()

        stage.store.before = hang
        await stage.run()
    assert await stage.told() == ["open", "request s"]
    assert len(stage.store.sent) == 3


@pytest.mark.rule("R40")
async def test_a_cancel_while_the_run_waits_for_an_ack_stops_the_peers_and_appends_nothing() -> None:
    stage = Stage(both(), anna=["fine"], ben=[Wait(1000)])
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.run)
            await stage.clock.advance(1)
            scope.cancel()
    assert await stage.told() == ["open", "request s", "anna accepts", "confirm"]


@pytest.mark.rule("R40")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancel_of_the_task_itself_is_raised_as_it_came() -> None:
    import asyncio

    stage = Stage(both(), anna=[Wait(1000)], ben=[Wait(1000)])
    task = asyncio.get_running_loop().create_task(stage.run())
    await stage.clock.advance(1)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await stage.told() == ["open", "request s"]
    assert stage.monitor.forgotten == [f"{OWNER.did}:t"]


# Several failures, and no groups


@pytest.mark.rule("R41")
async def test_of_two_declines_the_first_is_raised_and_the_other_noted() -> None:
    stage = Stage(both(), anna=[Declined("no")], ben=[Declined("never")])

    async def slow(kinds: list[str]) -> None:
        if kinds == ["ack"]:
            await stage.clock.sleep(1)

    stage.store.before = slow
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert_ended(error.thread, "rejected")
    assert reason(error) == "anna declined: no"
    assert notes(error) == "besides: ben declined: never"


@pytest.mark.rule("R41")
@pytest.mark.parametrize(
    ("anna", "ben", "raised", "noted"),
    [
        ([Wait(9), Declined("no")], [Escalated("ask")], Rejected, "besides: Escalated: run.escalated: ask"),
        ([Wait(9), Declined("no")], [Wait(99)], Rejected, ""),
        ([Wait(9), Odd("broken")], [Escalated("ask")], Odd, "besides: Escalated: run.escalated: ask"),
        ([Wait(99)], [Escalated("ask")], Escalated, "besides: no answer in time from anna"),
        ([Escalated("ask")], [Escalated("also")], Escalated, "besides: Escalated: run.escalated: also"),
    ],
)
async def test_of_several_failures_the_gravest_is_raised_and_the_others_are_noted(
    anna: list[Any], ben: list[Any], raised: type[Exception], noted: str
) -> None:
    stage = Stage(both(ack_timeout=10), anna=anna, ben=ben)
    error = await stage.over_time(lambda: stage.fails(raised))
    assert noted in notes(error)


@pytest.mark.rule("R41")
async def test_a_recipient_that_can_no_longer_answer_comes_before_an_escalation() -> None:
    stage = Stage(both(ack_timeout=10), anna=[Wait(99)], ben=[Escalated("ask")])

    async def leave(kinds: list[str]) -> None:
        if "message" in kinds:
            stage.store.after = None
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.after = leave
    error = await stage.over_time(lambda: stage.fails(NoRecipient))
    assert_ended(error.thread, "failed")
    assert "besides: Escalated: run.escalated: ask" in notes(error)


@pytest.mark.rule("R41")
@pytest.mark.parametrize(
    ("bens", "raised", "noted"),
    [(Declined("no"), Rejected, "besides: NoRecipient: "), (Odd("broken"), NoRecipient, "besides: Odd: broken")],
)
async def test_a_recipient_that_can_no_longer_answer_comes_before_an_error_and_after_a_decline(
    bens: Exception, raised: type[Exception], noted: str
) -> None:
    stage = Stage(both(), anna=["hers"], ben=[bens])

    async def leave(kinds: list[str]) -> None:
        if "ruling" in kinds:
            stage.store.before = None
            await stage.clock.sleep(1)
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.before = leave
    error = await stage.over_time(lambda: stage.fails(raised))
    assert noted in notes(error)
    assert [line for line in await stage.told() if line.startswith("seal")] == [
        "seal rejected" if raised is Rejected else "seal failed"
    ]


@pytest.mark.rule("R41")
async def test_two_peers_that_fail_at_once_are_no_group() -> None:
    class Failing(ScriptedPeer):
        async def ack(self, delivery: Delivery) -> Any:
            try:
                await stage.clock.sleep(1)
            finally:
                failed.append(0)
                raise Odd(str(len(failed)))

    failed: list[int] = []
    stage = Stage(both())
    stage.options["peers"] = {"anna": Failing(ANNA), "ben": Failing(BEN)}
    error = await stage.over_time(lambda: stage.fails(Odd))
    assert "besides: Odd: 2" in notes(error)


class Stop(BaseException):
    pass


@pytest.mark.rule("R41")
@pytest.mark.parametrize("heart", [True, False])
async def test_what_is_no_exception_leaves_a_run_as_it_came(heart: bool) -> None:
    def stop(record: Any, call: Call) -> Any:
        raise Stop

    for options in ({"machine": row(on_entry=stop)}, {"anna": [Stop()]}, {"ben": [Stop()]}):
        stage = Stage(both(), **options, **({} if heart else {"heartbeat": None}))
        await stage.fails(Stop)
        assert [line for line in await stage.told() if line.startswith(("seal", "settle"))] == []


@pytest.mark.rule("R41")
async def test_a_judge_that_fails_on_two_acks_at_once_is_no_group() -> None:
    async def judge(message: Message, ack: Ack) -> Confirm:
        await stage.clock.sleep(1)
        raise Odd("no idea")

    stage = Stage(both(), judge=judge)
    await stage.over_time(lambda: stage.fails(Odd))
    assert sorted(await stage.told())[:2] == ["anna accepts", "ben accepts"]


# Escalated


@pytest.mark.rule("R42", "R43")
async def test_an_escalation_asks_the_approvers_about_the_steps_message() -> None:
    stage = Stage(asking(), anna=[Escalated("above my pay")], approvers=APPROVERS, room="ops")
    error = await stage.fails(Escalated)
    assert_ended(error.thread, None)
    assert story(error.thread.records) == ["open", "request s", "escalate s#escalate"]
    message, escalation = (open_envelope(raw) for raw in error.thread.records[1:])
    record = escalation.record
    assert (record.reply_to, record.payload, record.room, record.step) == (message.address, "above my pay", "ops", None)
    assert record.to == tuple(sorted(APPROVERS.values()))
    assert (error.status, error.step) == ("a", "s")
    assert notes(error) == "in step 's' of the thread 't', which this run did not seal"


@pytest.mark.rule("R42")
async def test_the_judge_may_escalate_and_the_ack_stands_without_a_ruling() -> None:
    def judge(message: Message, ack: Ack) -> Confirm:
        raise Escalated("I cannot tell")

    stage = Stage(asking(), judge=judge, approvers=APPROVERS)
    error = await stage.fails(Escalated)
    assert_ended(error.thread, None)
    assert story(error.thread.records) == ["open", "request s", "anna accepts", "escalate s#escalate"]


@pytest.mark.rule("R42", "R10")
async def test_an_escalation_is_told_once_it_is_durable() -> None:
    stage = Stage(asking(), anna=[Escalated("ask")], approvers=APPROVERS)
    told: list[list[str]] = []

    async def look(event: Any) -> None:
        told.append(await stage.told())

    stage.bus.subscribe(look, MESSAGE_DELIVERED)
    error = await stage.fails(Escalated)
    assert told == [["open", "request s"], ["open", "request s", "escalate s#escalate"]]
    assert stage.bus.events[-1].address == open_envelope(error.thread.records[-1]).address


@pytest.mark.rule("R42")
async def test_an_escalation_lets_the_other_recipients_answer_first() -> None:
    stage = Stage(both(), anna=[Escalated("ask")], ben=[Wait(50), "fine"], approvers=APPROVERS)
    error = await stage.over_time(lambda: stage.fails(Escalated))
    assert story(error.thread.records) == ["open", "request s", "ben accepts", "confirm", "escalate s#escalate"]
    assert stage.clock.monotonic() == 50


@pytest.mark.rule("R42")
async def test_a_step_is_escalated_once_however_many_recipients_ask_for_it() -> None:
    stage = Stage(both(), anna=[Escalated("ask")], ben=[Escalated("also")], approvers=APPROVERS)
    error = await stage.fails(Escalated)
    assert story(error.thread.records) == ["open", "request s", "escalate s#escalate"]
    assert "also" in notes(error)


@pytest.mark.rule("R42")
async def test_an_approver_who_has_left_is_not_asked() -> None:
    stage = Stage(asking(), anna=[Escalated("ask")], approvers=APPROVERS)

    async def leave(kinds: list[str]) -> None:
        if "message" in kinds:
            stage.store.after = None
            await appended(stage.store.store, CARA, Roster, change="leave", key=CARA.public_key)

    stage.store.after = leave
    error = await stage.fails(Escalated)
    assert_ended(error.thread, None)
    assert opened(error.thread.records, "message")[-1].to == (DORA.public_key,)


@pytest.mark.rule("R42")
async def test_a_step_gated_after_may_be_escalated_too() -> None:
    stage = Stage(asking(gate="after"), anna=[Escalated("ask")], approvers=APPROVERS)
    error = await stage.fails(Escalated)
    assert story(error.thread.records) == ["open", "assert s", "escalate s#escalate"]
    assert error.status == "b"


@pytest.mark.rule("R43")
@pytest.mark.parametrize(
    ("said", "payload"),
    [
        ("x" * 5000, "x" * 4096),
        ("é" * 5000, "é" * 2048),
        ("x" + "é" * 5000, "x" + "é" * 2047),
        (" ", "no reason given"),
    ],
)
async def test_the_escalations_payload_is_the_errors_text_cut_to_4096_bytes(said: str, payload: str) -> None:
    stage = Stage(asking(), anna=[Escalated(said)], approvers=APPROVERS)
    error = await stage.fails(Escalated)
    assert opened(error.thread.records, "message")[-1].payload == payload


@pytest.mark.rule("R43")
async def test_the_escalation_of_a_message_with_another_id_goes_by_that_id() -> None:
    stage = Stage(asking(), anna=[Escalated("ask")], approvers=APPROVERS)

    async def squat(kinds: list[str]) -> None:
        if kinds[0] == "open":
            await appended(stage.store.store, BEN, Message, id="s", intent="assert", epistemic="assumed", payload="hi")

    stage.store.after = squat
    error = await stage.fails(Escalated)
    assert story(error.thread.records)[1:] == ["assert s", "request s#2", "escalate s#2#escalate"]


@pytest.mark.rule("R43")
async def test_an_escalation_counts_for_no_limit() -> None:
    stage = Stage(asking(), anna=[Escalated("ask")], approvers=APPROVERS, limits=Limits(max_bytes=5, max_messages=1))
    error = await stage.fails(Escalated)
    assert story(error.thread.records)[-1] == "escalate s#escalate"


@pytest.mark.rule("R44")
async def test_without_approvers_nothing_is_appended_and_the_error_says_so() -> None:
    stage = Stage(both(), anna=[Escalated("ask")])
    error = await stage.fails(Escalated)
    assert_ended(error.thread, None)
    assert story(error.thread.records) == ["open", "request s", "ben accepts", "confirm"]
    assert "no approvers, so nobody was asked" in notes(error)


@pytest.mark.rule("R44")
async def test_where_all_approvers_have_left_nothing_is_appended_and_the_error_says_so() -> None:
    stage = Stage(both(), anna=[Escalated("ask")], approvers={"cara": CARA.public_key})

    async def leave(kinds: list[str]) -> None:
        if "message" in kinds:
            await appended(stage.store.store, CARA, Roster, change="leave", key=CARA.public_key)

    stage.store.after = leave
    error = await stage.fails(Escalated)
    assert story(error.thread.records)[-1] == "confirm"
    assert "nobody was asked" in notes(error)


@pytest.mark.rule("R44")
async def test_an_escalation_that_the_thread_refuses_is_not_appended_and_the_error_says_so() -> None:
    stage = Stage(asking(), anna=[Escalated("ask")], approvers=APPROVERS)

    async def squat(kinds: list[str]) -> None:
        if "message" in kinds:
            stage.store.after = None
            fields = {"intent": "assert", "epistemic": "assumed", "payload": "hi"}
            await appended(stage.store.store, BEN, Message, id="s#escalate", **fields)

    stage.store.after = squat
    error = await stage.fails(Escalated)
    assert_ended(error.thread, None)
    assert story(error.thread.records) == ["open", "request s", "assert s#escalate"]
    assert "nobody was asked: store.refused" in notes(error)


@pytest.mark.rule("R42")
async def test_an_escalation_that_the_store_fails_on_raises_what_the_store_raises() -> None:
    stage = Stage(asking(), anna=[Escalated("ask")], approvers=APPROVERS)

    async def full(kinds: list[str]) -> None:
        if kinds[0] == "message" and len(stage.store.log) > 1:
            raise StoreError("disk full")

    stage.store.before = full
    error = await stage.fails(StoreError)
    assert "besides: Escalated: run.escalated: ask" in notes(error)
    assert story(error.thread.records) == ["open", "request s"]


@pytest.mark.rule("R45")
async def test_once_a_recipient_has_declined_nothing_is_escalated() -> None:
    stage = Stage(both(), anna=[Escalated("ask")], ben=[Wait(1), Declined("no")], approvers=APPROVERS)
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert_ended(error.thread, "rejected")
    assert story(error.thread.records) == ["open", "request s", "ben declines", "seal rejected"]


@pytest.mark.rule("R45")
async def test_once_a_recipient_has_declined_in_the_thread_itself_nothing_is_escalated() -> None:
    steps = both(ack_timeout=5)
    stage = Stage(steps, anna=[Escalated("ask")], ben=[Wait(50)], approvers=APPROVERS)

    async def decline(kinds: list[str]) -> None:
        if "message" in kinds:
            stage.store.after = None
            tip = (await stage.store.store.head("t")).tip
            fields = {"message": tip, "answer": "decline", "restatement": "no"}
            await appended(stage.store.store, BEN, Ack, **fields)

    stage.store.after = decline
    error = await stage.over_time(lambda: stage.fails(Rejected))
    assert story(error.thread.records) == ["open", "request s", "ben declines", "seal rejected"]


# What an error carries, and what is never sealed


@pytest.mark.rule("E2")
async def test_an_error_carries_the_thread_as_it_stood() -> None:
    stage = Stage(*on_the_way(2), anna=["fine", Declined("no")])
    error = await stage.fails(Rejected)
    assert error.thread.records == tuple(await stage.records())
    assert (error.thread.name, error.thread.address) == ("t", open_envelope(error.thread.records[0]).address)
    assert (error.status, error.step) == ("b", "to-c")


@pytest.mark.rule("E2")
async def test_a_flow_error_of_a_peer_is_told_how_the_run_stood() -> None:
    stage = Stage(asking(), anna=[FlowError("not mine", code="peer.mine")])
    error = await stage.fails(FlowError)
    assert (error.code, error.status, error.step, error.thread.name) == ("peer.mine", "a", "s", "t")


OPEN: dict[str, dict[str, Any]] = {
    "a timeout": {"anna": [Wait(99)]},
    "an error of a peer": {"anna": [Odd()]},
    "an escalation": {"anna": [Escalated("ask")]},
}


@pytest.mark.rule("R39")
@pytest.mark.parametrize("ending", OPEN)
async def test_an_ending_that_may_be_resumed_does_not_seal(ending: str) -> None:
    stage = Stage(asking(ack_timeout=10), **OPEN[ending])
    with pytest.raises((FlowError, Odd)):
        await stage.over_time(stage.run)
    assert [line for line in await stage.told() if line.startswith("seal")] == []
    head = await stage.store.head("t")
    links = {"thread": head.thread, "seq": head.seq, "prev": head.tip, "receipts": head.standing or None}
    await appended(stage.store.store, OWNER, Seal, outcome="cancelled", **links)


@pytest.mark.rule("R39")
async def test_no_event_tells_of_a_thread_that_was_not_completed() -> None:
    stage = Stage(asking(), anna=[Declined("no")])
    await stage.fails(Rejected)
    assert [event.name for event in stage.bus.events] == [MESSAGE_DELIVERED, MESSAGE_ACKED]
