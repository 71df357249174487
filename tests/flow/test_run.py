"""A run from its open to its seal: the order of what is found, said, committed, fired and told."""

import logging
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import BaseModel

from envelope import Message, Roster, address, open_envelope
from envelope.cbor import decode, encode
from flow import (
    AckTimeout,
    Agent,
    Call,
    Declined,
    Draft,
    FlowError,
    InvalidThread,
    Limits,
    Machine,
    Monitor,
    Outcome,
    OverBudget,
    Plan,
    Rejected,
    Step,
    StepFailed,
    Transition,
)
from flow.bus import BUDGET_LOW, MACHINE_MOVE, MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED, Event
from flow.document import document
from flow.testing import ScriptedPeer, Wait
from tests.flow.stage import (
    ANNA,
    BEN,
    CARA,
    CARD,
    DORA,
    OWNER,
    ROW,
    Stage,
    Watched,
    appended,
    assert_ended,
    confirm,
    on_the_way,
    opened,
    settled,
    story,
    unless_wrong,
)

pytestmark = pytest.mark.anyio


def asking(**fields: Any) -> Step:
    said: dict[str, Any] = {} if fields.get("gate") == "none" else {"payload": "do it", "to": ["anna"]}
    return Step("s", target="b", **said | fields)


def count(record: dict[str, Any], call: Call) -> dict[str, Any]:
    return {**record, "n": record["n"] + 1}


def counting(**parts: Any) -> Machine:
    """A machine in a row whose first row has the parts given, by default an action that counts."""
    parts = parts or {"on_entry": count}
    return Machine("a", [Transition("a", "go", "b", **parts), ("b", "go", "c")])


# The open


@pytest.mark.rule("R3")
async def test_the_open_names_plan_members_limits_and_room() -> None:
    limits = Limits(max_bytes=100, max_messages=7)
    stage = Stage(limits=limits, room="ops", approvers={"cara": CARA.public_key})
    run = await stage.run()
    assert_ended(run.thread, "completed")
    (record,) = opened(run.thread.records, "open")
    assert (record.name, record.room, record.follows) == ("t", "ops", None)
    assert record.plan == address(document(stage.agent.plan, ROW, limits, confirm))
    assert (record.limits.bytes, record.limits.messages) == (100, 7)
    assert {(m.name, m.role, m.key, m.card) for m in record.members} == {
        ("owner", "moderator", OWNER.public_key, CARD.envelope.address),
        ("anna", "member", ANNA.public_key, None),
        ("ben", "member", BEN.public_key, None),
        ("cara", "approver", CARA.public_key, None),
    }


@pytest.mark.rule("R3")
async def test_an_open_without_limits_and_room_leaves_them_out() -> None:
    run = await Stage().run()
    (record,) = opened(run.thread.records, "open")
    assert (record.limits, record.room) == (None, None)


@pytest.mark.rule("R3")
async def test_the_open_stands_before_the_first_step_begins() -> None:
    async def look(record: Any) -> str:
        seen.append(await stage.told())
        return "do it"

    seen: list[list[str]] = []
    stage = Stage(asking(payload=None, payload_from=look))
    await stage.run()
    assert seen == [["open"]]


@pytest.mark.rule("R3")
async def test_two_threads_of_one_name_are_two_threads() -> None:
    threads = {(await Stage(nonce=None).run()).thread.address for _ in range(2)}
    assert len(threads) == 2


@pytest.mark.rule("R3")
async def test_every_time_in_the_thread_is_the_clocks() -> None:
    stage = Stage(*on_the_way(2), anna=[Wait(5)])
    run = await stage.over_time(stage.run)
    times = [open_envelope(raw).record.sent_at - 1_700_000_000_000 for raw in run.thread.records]
    assert (sorted(set(times)), times[0], times[-1]) == ([0, 5000], 0, 5000)


# What a run gives


@pytest.mark.rule("R27")
async def test_a_run_gives_status_record_outcomes_and_the_sealed_thread() -> None:
    stage = Stage(*on_the_way(2), machine=counting())
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert (run.status, run.record, list(run.outcomes)) == ("c", {"n": 1}, ["to-b", "to-c"])
    assert run.thread.records == tuple(await stage.records())
    first, second = run.outcomes.values()
    assert (first.step, first.status, first.attempts) == ("to-b", "b", 1)
    assert (second.step, second.status, second.attempts) == ("to-c", "c", None)
    assert first.message is not None
    assert first.message.raw == run.thread.records[1]
    assert {name: ack.signer for name, ack in first.acks.items()} == {"anna": ANNA.public_key, "ben": BEN.public_key}


@pytest.mark.rule("R27")
async def test_the_thread_of_a_run_can_be_exported(tmp_path: Any) -> None:
    run = await Stage().run()
    run.thread.export(tmp_path / "t.thread")
    assert (tmp_path / "t.thread").read_bytes() == b"".join(run.thread.records)


@pytest.mark.rule("R27")
async def test_the_callers_record_is_never_changed() -> None:
    class Order(BaseModel):
        lines: list[str]

    def add(record: Order, call: Call) -> Order:
        record.lines.append("added")
        return record

    order = Order(lines=["one"])
    run = await Stage(machine=counting(on_entry=add), record=order).run()
    assert (order.lines, run.record.lines) == (["one"], ["one", "added"])


@pytest.mark.rule("R27")
async def test_the_seal_tells_the_status_reached() -> None:
    run = await Stage(*on_the_way(3)).run()
    (seal,) = opened(run.thread.records, "seal")
    assert (seal.outcome, seal.status, seal.reason) == ("completed", "d", None)


# The order of steps


@pytest.mark.rule("R5")
async def test_steps_go_one_at_a_time_in_the_order_of_the_plan() -> None:
    machine = Machine("a", [("a", "go", "b"), ("b", "go", "c"), ("c", "go", "d")])
    steps = [
        Step("last", target="d", payload="3", needs=["first", "second"]),
        Step("first", target="b", payload="1"),
        Step("second", target="c", payload="2"),
    ]
    stage = Stage(*steps, machine=machine, anna=[Wait(5)] * 3)
    run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    asked = [line for line in story(run.thread.records) if line.startswith("request")]
    assert (asked, list(run.outcomes)) == (["request first", "request second", "request last"], list(run.outcomes))
    commits = [kinds[0] for kinds in stage.store.log]
    assert commits == ["open", *["message", "ack", "ack", "state"] * 3, "seal"]


# A step gated before


@pytest.mark.rule("R6")
async def test_the_draft_is_made_from_the_record_before_the_step_fires() -> None:
    def said(record: dict[str, Any]) -> str:
        return f"n is {record['n']}"

    steps = [Step(f"s-{there}", target=there, payload_from=said) for there in "bc"]
    run = await Stage(*steps, machine=counting()).run()
    assert [record.payload for record in opened(run.thread.records, "message")] == ["n is 0", "n is 1"]


@pytest.mark.rule("R6")
async def test_the_message_is_a_request_that_is_assumed_unless_the_draft_says_otherwise() -> None:
    run = await Stage(asking()).run()
    (record,) = opened(run.thread.records, "message")
    assert (record.intent, record.epistemic, record.payload, record.media_type) == ("request", "assumed", "do it", None)
    assert (record.ack_required, record.confidence, record.context, record.provenance) == (None, None, None, None)


@pytest.mark.rule("R6")
async def test_the_message_says_all_that_the_draft_says() -> None:
    draft = Draft(
        "{}",
        media_type="application/json",
        epistemic="verified",
        confidence=90,
        provenance={"source": "the log", "chain": [DORA.public_key], "evidence": [bytes(32)]},
        context=[bytes(32)],
    )

    def said(record: Any) -> Draft:
        return draft

    run = await Stage(asking(payload=None, payload_from=said)).run()
    assert_ended(run.thread, "completed")
    (record,) = opened(run.thread.records, "message")
    assert (record.payload, record.media_type, record.epistemic) == ("{}", "application/json", "verified")
    assert (record.confidence, record.context) == (90, (bytes(32),))
    assert (record.provenance.source, record.provenance.chain) == ("the log", (DORA.public_key,))


@pytest.mark.rule("R6")
async def test_text_plain_is_not_written() -> None:
    def said(record: Any) -> Draft:
        return Draft("do it", media_type="text/plain")

    run = await Stage(asking(payload=None, payload_from=said)).run()
    assert opened(run.thread.records, "message")[0].media_type is None


@pytest.mark.rule("R6")
@pytest.mark.parametrize("fields", [{"media_type": "no type"}, {"provenance": {"source": "x" * 257}}])
async def test_a_draft_that_cannot_be_signed_is_a_payload_that_failed(fields: dict[str, Any]) -> None:
    def said(record: Any) -> Draft:
        return Draft("do it", **fields)

    stage = Stage(asking(payload=None, payload_from=said))
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert (story(error.thread.records), settled(error.thread.records)) == (
        ["open", "seal failed"],
        {"s": ("failed", None, "a")},
    )


# The budget


@pytest.mark.rule("R7")
async def test_what_reaches_the_limits_exactly_is_said() -> None:
    stage = Stage(*on_the_way(3, payload="12345"), limits=Limits(max_bytes=15, max_messages=3))
    assert_ended((await stage.run()).thread, "completed")


@pytest.mark.rule("R7", "R33")
@pytest.mark.parametrize("limits", [Limits(max_bytes=14), Limits(max_messages=2)])
async def test_a_step_over_the_limits_says_nothing_and_nothing_is_beaten_or_awaited(limits: Limits) -> None:
    stage = Stage(*on_the_way(3, payload="12345"), limits=limits)
    asked: list[int] = []

    async def look(kinds: list[str]) -> None:
        asked.append(len(stage.monitor.beats))

    stage.store.before = look
    error = await stage.fails(OverBudget)
    assert_ended(error.thread, "over_budget")
    told = story(error.thread.records)
    assert [line for line in told if line.startswith("request")] == ["request to-b", "request to-c"]
    assert (told[-1], len(stage.anna.deliveries), asked[-1]) == ("seal over_budget", 2, asked[-2])
    assert (error.status, error.step) == ("c", "to-d")
    assert settled(error.thread.records) == {"to-b": ("succeeded", None, "b"), "to-c": ("succeeded", None, "c")}


@pytest.mark.rule("R7")
async def test_the_budget_counts_bytes_of_utf8_and_all_steps_together() -> None:
    stage = Stage(*on_the_way(2, payload="ééé"), limits=Limits(max_bytes=11))
    error = await stage.fails(OverBudget)
    assert_ended(error.thread, "over_budget")
    assert opened(error.thread.records, "seal")[0].reason == (
        "step 'to-c' would say 6 bytes more in 1 messages; said so far: 6 bytes in 1 messages; the limits are "
        "Limits(max_bytes=11, max_messages=0, margin=0)"
    )


@pytest.mark.rule("R7")
async def test_what_others_say_is_not_counted() -> None:
    stage = Stage(asking(), limits=Limits(max_bytes=5, max_messages=1))

    async def meddle(kinds: list[str]) -> None:
        if kinds[0] == "open":
            await appended(stage.store.store, BEN, Message, **note("his", "longer than five bytes"))

    stage.store.after = meddle
    run = await stage.run()
    assert story(run.thread.records)[:3] == ["open", "assert his", "request s"]
    assert_ended(run.thread, "completed")


@pytest.mark.rule("R7")
async def test_steps_that_say_nothing_cost_nothing() -> None:
    steps = [Step(f"to-{there}", target=there, gate="none") for there in "bc"]
    assert_ended((await Stage(*steps, limits=Limits(max_messages=1, max_bytes=1)).run()).thread, "completed")


# Ids, paths, recipients, rooms


def note(message_id: str, payload: str = "by the way") -> dict[str, Any]:
    return {"id": message_id, "intent": "assert", "epistemic": "assumed", "payload": payload}


@pytest.mark.rule("R8")
async def test_the_id_is_the_first_that_the_thread_has_not_used() -> None:
    stage = Stage(asking())

    async def squat(kinds: list[str]) -> None:
        if kinds[0] == "open":
            for message_id in ("s", "s#2", "s#4"):
                await appended(stage.store.store, BEN, Message, **note(message_id))

    stage.store.after = squat
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert story(run.thread.records)[1:5] == ["assert s", "assert s#2", "assert s#4", "request s#3"]


@pytest.mark.rule("R8", "R9")
async def test_a_squatted_step_name_gates_nothing() -> None:
    stage = Stage(asking(), anna=[Declined("no")])

    async def squat(kinds: list[str]) -> None:
        if kinds[0] == "open":
            await appended(
                stage.store.store, BEN, Message, **note("s") | {"intent": "request"}, to=(ANNA.public_key,)
            )  # fmt: skip

    stage.store.after = squat
    error = await stage.fails(Rejected)
    assert_ended(error.thread, "rejected")
    assert settled(error.thread.records) == {"s#2": ("failed", None, "a")}


@pytest.mark.rule("R9")
async def test_the_message_carries_path_capability_and_room_and_its_recipients_in_order() -> None:
    stage = Stage(asking(capability="review", to=[]), room="ops")
    run = await stage.run()
    (record,) = opened(run.thread.records, "message")
    assert (record.id, record.step, record.capability, record.room) == ("s", ("s",), "review", "ops")
    assert record.to == tuple(sorted([ANNA.public_key, BEN.public_key]))


@pytest.mark.rule("R9")
@pytest.mark.parametrize("gate", ["before", "after"])
async def test_recipients_are_written_also_where_the_step_names_none(gate: Any) -> None:
    run = await Stage(asking(to=[], gate=gate)).run()
    assert opened(run.thread.records, "message")[0].to == tuple(sorted([ANNA.public_key, BEN.public_key]))
    run = await Stage(asking(to=["ben"], gate=gate)).run()
    assert opened(run.thread.records, "message")[0].to == (BEN.public_key,)


@pytest.mark.rule("R9")
async def test_without_room_and_capability_none_is_written() -> None:
    run = await Stage(asking()).run()
    (record,) = opened(run.thread.records, "message")
    assert (record.room, record.capability) == (None, None)


# Events come after what they tell of


@pytest.mark.rule("R10", "R17", "R21", "S1")
async def test_every_event_comes_after_the_commit_of_what_it_tells() -> None:
    stage = Stage(*on_the_way(1), Step("after", target="c", gate="after", payload="done"), machine=ROW)
    order: list[str] = []

    async def commit(kinds: list[str]) -> None:
        order.append(" ".join(kinds))

    stage.store.after = commit
    stage.bus.subscribe(lambda event: order.append(event.name))
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert order == [
        "open state",
        "message", MESSAGE_DELIVERED,
        "ack ruling", MESSAGE_ACKED,
        "ack ruling state", MESSAGE_ACKED,
        "state", MACHINE_MOVE, STEP_COMPLETED,
        "state",
        "message state", MACHINE_MOVE, MESSAGE_DELIVERED,
        "ack ruling", MESSAGE_ACKED,
        "ack ruling state", MESSAGE_ACKED,
        "state", STEP_COMPLETED,
        "seal state", THREAD_VERIFIED,
    ]  # fmt: skip


@pytest.mark.rule("R10")
async def test_a_message_that_could_not_be_committed_is_not_told_of_nor_asked_about() -> None:
    stage = Stage(asking())

    async def fail(kinds: list[str]) -> None:
        if "message" in kinds:
            raise OSError("disk full")

    stage.store.before = fail
    await stage.fails(OSError)
    assert (stage.bus.events, stage.anna.deliveries, await stage.told()) == ([], [], ["open"])


@pytest.mark.rule("R10", "R21")
async def test_events_carry_the_thread_what_they_tell_of_and_its_address() -> None:
    stage = Stage(asking(), machine=counting())
    run = await stage.run()
    message = open_envelope(run.thread.records[1])
    (delivered,) = stage.bus.named(MESSAGE_DELIVERED)
    assert (delivered.data["message"].raw, delivered.address) == (message.raw, message.address)
    (moved,) = stage.bus.named(MACHINE_MOVE)
    assert (dict(moved.data), moved.address) == (
        {"thread": "t", "step": "s", "source": "a", "trigger": "go", "target": "b"},
        None,
    )
    (completed,) = stage.bus.named(STEP_COMPLETED)
    assert isinstance(completed.data["outcome"], Outcome)
    assert (completed.data["outcome"], completed.address) == (run.outcomes["s"], message.address)
    assert {event.data["thread"] for event in (*stage.bus.events[:4],)} == {"t"}


@pytest.mark.rule("R21")
async def test_an_outcome_that_could_not_be_committed_is_not_told_of() -> None:
    stage = Stage(asking(), machine=counting())

    async def fail(kinds: list[str]) -> None:
        if kinds == ["state"]:
            raise OSError("disk full")

    stage.store.before = fail
    error = await stage.fails(OSError)
    assert (stage.bus.named(MACHINE_MOVE), stage.bus.named(STEP_COMPLETED)) == ([], [])
    assert "in step 's' of the thread 't', which this run did not seal" in error.__notes__


@pytest.mark.rule("R29")
async def test_a_handler_can_verify_all_that_it_is_told_of() -> None:
    async def check(event: Event) -> None:
        for part in event.data.values():
            if hasattr(part, "raw"):
                assert open_envelope(part.raw).address == part.address
                assert part.raw in await stage.records()
        checked.append(event.name)

    checked: list[str] = []
    stage = Stage(*on_the_way(1), Step("after", target="c", gate="after", payload="done"))
    stage.bus.subscribe(check)
    await stage.run()
    assert len(checked) == len(stage.bus.events)


# The margin of the limits


@pytest.mark.rule("L4")
async def test_what_comes_into_the_margin_is_told_once_after_it_is_durable() -> None:
    stage = Stage(*on_the_way(3), limits=Limits(max_messages=3, margin=50))
    told: list[tuple[int, Any]] = []

    async def look(event: Event) -> None:
        told.append((len(opened(await stage.records(), "message")), event.data["messages"]))

    stage.bus.subscribe(look, BUDGET_LOW)
    await stage.run()
    assert told == [(2, 2)]


# Beats


@pytest.mark.rule("R11")
async def test_the_run_beats_before_it_waits_and_every_third_of_the_timeout_while_it_does() -> None:
    stage = Stage(asking(), anna=[Wait(3.5)], heartbeat=(monitor := Watched(3)))
    await stage.over_time(stage.run)
    assert monitor.beats == [0, 1, 2, 3, 3.5]
    assert monitor.ids == {f"{OWNER.did}:t"}


@pytest.mark.rule("R11")
@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_the_run_beats_while_it_fires(gate: Any) -> None:
    async def slow(record: Any, call: Call) -> Any:
        begun.append(stage.clock.monotonic())
        await stage.clock.sleep(3.5)
        ended.append(stage.clock.monotonic())
        return record

    begun: list[float] = []
    ended: list[float] = []
    stage = Stage(asking(gate=gate), machine=counting(on_entry=slow), heartbeat=(monitor := Watched(3)))
    await stage.over_time(stage.run)
    assert [beat for beat in monitor.beats if begun[0] <= beat < ended[0]][-4:] == [0, 1, 2, 3]


@pytest.mark.rule("R11")
async def test_the_first_beat_comes_before_anybody_is_asked() -> None:
    class Watching(ScriptedPeer):
        async def ack(self, delivery: Any) -> Any:
            beaten.append(list(monitor.beats))
            return await super().ack(delivery)

    beaten: list[list[float]] = []
    stage = Stage(asking(), heartbeat=(monitor := Watched(3)))
    stage.options["peers"]["anna"] = Watching(ANNA)
    await stage.run()
    assert beaten == [[0]]


@pytest.mark.rule("R11")
async def test_a_stale_beat_is_ignored() -> None:
    stage = Stage(asking(), anna=[Wait(2.5)])
    stage.monitor.beat(f"{OWNER.did}:t", 1e9)
    run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    assert stage.monitor.beats == [1e9]


@pytest.mark.rule("R11", "R41")
async def test_a_monitor_that_fails_is_logged_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Monitor):
        def beat(self, beating: str, at: float) -> None:
            raise OSError("no route")

    stage = Stage(asking(), anna=[Wait(2.5)], heartbeat=Broken(3))
    with caplog.at_level(logging.ERROR, "flow.runner"):
        run = await stage.over_time(stage.run)
    assert_ended(run.thread, "completed")
    assert len(caplog.records) == 4


@pytest.mark.rule("R11")
async def test_a_run_that_waits_is_alive_to_whoever_watches() -> None:
    seen: list[tuple[bool, list[str]]] = []

    async def watch() -> None:
        await stage.clock.sleep(950)
        now = stage.clock.monotonic()
        seen.append((monitor.alive(f"{OWNER.did}:t", now), monitor.dead(now)))

    stage = Stage(asking(), anna=[Wait(1000)], heartbeat=(monitor := Watched(3)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await stage.over_time(stage.run)
    assert seen == [(True, [])]


@pytest.mark.rule("R11")
async def test_the_beats_end_with_the_wait() -> None:
    stage = Stage(asking(), heartbeat=(monitor := Watched(3)))
    await stage.run()
    await stage.clock.advance(100)
    assert set(monitor.beats) == {0}


# The heartbeat id is forgotten


def divide(record: Any, call: Call) -> Any:
    return 1 / 0


WAYS: dict[str, dict[str, Any]] = {
    "completed": {},
    "rejected": {"anna": [Declined("no")]},
    "raised": {"anna": [ValueError("broken")]},
    "timed out": {"anna": [Wait(100)]},
    "over budget": {"limits": Limits(max_bytes=1)},
    "failed": {"machine": counting(on_entry=divide)},
}


@pytest.mark.rule("R28")
@pytest.mark.parametrize("way", WAYS)
async def test_the_heartbeat_id_is_forgotten_once_on_every_way_out(way: str) -> None:
    stage = Stage(asking(ack_timeout=10), **WAYS[way])
    with nullcontext() if way == "completed" else pytest.raises((FlowError, ValueError)):
        await stage.over_time(stage.run)
    assert stage.monitor.forgotten == [f"{OWNER.did}:t"]


@pytest.mark.rule("R28")
async def test_the_heartbeat_id_is_forgotten_once_after_a_cancel() -> None:
    stage = Stage(asking(), anna=[Wait(1000)])
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.run)
            await stage.clock.advance(1)
            assert stage.monitor.forgotten == []
            scope.cancel()
    assert stage.monitor.forgotten == [f"{OWNER.did}:t"]


@pytest.mark.rule("R28")
async def test_the_heartbeat_id_is_left_to_the_run_that_took_the_name_first() -> None:
    stage = Stage()
    await stage.run()
    with pytest.raises(FlowError) as raised:
        await stage.run()
    assert (raised.value.code, raised.value.thread) == ("store.exists", None)
    assert not hasattr(raised.value, "__notes__")
    assert stage.monitor.forgotten == [f"{OWNER.did}:t"]


@pytest.mark.rule("R28")
async def test_a_run_that_never_began_forgets_nothing() -> None:
    stage = Stage(Step("s", target="h", payload="do it"))
    with pytest.raises(Exception, match="no row"):
        await stage.run()
    assert stage.monitor.forgotten == []


# Firing


@pytest.mark.rule("R21")
async def test_a_gated_step_fires_with_its_message_and_its_path() -> None:
    calls: list[Call] = []

    def act(record: Any, call: Call) -> Any:
        calls.append(call)
        return record

    stage = Stage(asking(), machine=counting(on_entry=act))
    run = await stage.run()
    assert [(call.step, call.attempt, call.failure) for call in calls] == [(("s",), 1, None)]
    assert calls[0].message == open_envelope(run.thread.records[1]).record


@pytest.mark.rule("S9", "M13")
async def test_the_key_of_a_call_is_made_of_thread_path_and_slot() -> None:
    calls: dict[str, bytes] = {}

    def guard(record: Any, call: Call) -> bool:
        calls["guard"] = call.key
        return True

    def leave(record: Any, call: Call) -> Any:
        calls["on_exit"] = call.key
        return record

    def enter(record: Any, call: Call) -> Any:
        calls["on_entry"] = call.key
        return record

    stage = Stage(asking(), machine=counting(guard=guard, on_exit=leave, on_entry=enter))
    run = await stage.run()
    assert calls == {slot: address(encode([run.thread.address, ["s"], slot])) for slot in calls}
    assert len(set(calls.values())) == 3


@pytest.mark.rule("R21")
async def test_attempts_say_that_an_action_was_started_and_nothing_where_there_is_none() -> None:
    def guard(record: Any, call: Call) -> bool:
        return True

    for machine, attempts in ((counting(), 1), (counting(guard=guard), None), (ROW, None)):
        run = await Stage(asking(), machine=machine).run()
        assert settled(run.thread.records) == {"s": ("succeeded", attempts, "b")}


@pytest.mark.rule("R22")
async def test_the_next_chain_record_carries_receipts_and_settlements() -> None:
    run = await Stage(*on_the_way(2), ben=()).run()
    first, second = (open_envelope(run.thread.records[place]) for place in (1, 6))
    assert story(run.thread.records)[6] == "request to-c"
    assert [entry.message for entry in second.record.settled] == [first.address]
    assert second.record.receipts == tuple(address(raw) for raw in run.thread.records[2:6])
    (seal,) = opened(run.thread.records, "seal")
    assert [entry.message for entry in seal.settled] == [second.address]
    assert seal.receipts == tuple(address(raw) for raw in run.thread.records[7:11])


@pytest.mark.rule("R22")
async def test_a_run_that_pauses_settles_what_stands_and_what_is_owed() -> None:
    stage = Stage(*on_the_way(2, to=["anna"], ack_timeout=10), anna=["fine", Wait(100)])
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert_ended(error.thread, None)
    assert story(error.thread.records) == ["open", "request to-b", "anna accepts", "confirm", "request to-c"]
    stage = Stage(*on_the_way(1), Step("late", target="c", payload="do it", ack_timeout=10), ben=["fine", Wait(100)])
    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert story(error.thread.records)[-3:] == ["anna accepts", "confirm", "settle"]


@pytest.mark.rule("R22")
async def test_a_run_that_pauses_settles_steps_that_said_nothing() -> None:
    steps = [Step("quiet", target="b", gate="none"), Step("loud", target="c", payload="do it", ack_timeout=1)]
    stage = Stage(*steps, anna=[Wait(100)])

    async def fail(kinds: list[str]) -> None:
        if "message" in kinds:
            raise OSError("disk full")

    error = await stage.over_time(lambda: stage.fails(AckTimeout))
    assert settled(error.thread.records) == {"quiet": ("succeeded", None, "b")}


@pytest.mark.rule("R22")
async def test_a_run_of_many_quiet_steps_settles_them_by_the_hundreds() -> None:
    machine = Machine("a", [("a", "go", "b"), ("b", "back", "a")])
    steps = [Step(f"s-{n}", target="ba"[n % 2], gate="none", needs=[f"s-{n - 1}"] if n else []) for n in range(600)]
    run = await Stage(*steps, machine=machine).run()
    assert_ended(run.thread, "completed")
    assert story(run.thread.records) == ["open", "settle", "seal completed"]
    assert list(settled(run.thread.records)) == [step.id for step in steps]


# Gated after


@pytest.mark.rule("R23")
async def test_a_step_gated_after_fires_first_and_then_reports_what_was_done() -> None:
    def said(record: dict[str, Any]) -> str:
        return f"n is now {record['n']}"

    stage = Stage(asking(gate="after", payload=None, payload_from=said), machine=counting())
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert story(run.thread.records) == ["open", "assert s", "anna accepts", "confirm", "seal completed"]
    (record,) = opened(run.thread.records, "message")
    assert (record.ack_required, record.payload, record.step) == (True, "n is now 1", ("s",))
    assert settled(run.thread.records) == {"s": ("succeeded", 1, "b")}
    assert (run.status, run.record, run.outcomes["s"].attempts) == ("b", {"n": 1}, 1)


@pytest.mark.rule("R23")
async def test_a_step_gated_after_is_firing_durably_before_it_fires() -> None:
    async def act(record: Any, call: Call) -> Any:
        phases.extend([await _phases(stage), call.message])
        return record

    phases: list[Any] = []
    stage = Stage(asking(gate="after"), machine=counting(on_entry=act))
    await stage.run()
    assert phases == [["begun", "firing"], None]
    assert await _phases(stage) == ["begun", "firing", "fired", "confirmed", "done", "sealed"]
    assert ["message", "state"] in stage.store.log


@pytest.mark.rule("R23")
async def test_a_step_gated_after_that_is_over_the_limits_already_does_not_fire() -> None:
    stage = Stage(
        Step("one", target="b", payload="do it"),
        Step("two", target="c", payload="done", gate="after"),
        machine=Machine("a", [("a", "go", "b"), Transition("b", "go", "c", on_entry=count)]),
        limits=Limits(max_messages=1),
    )
    error = await stage.fails(OverBudget)
    assert_ended(error.thread, "over_budget")
    assert (error.status, error.record) == ("b", {"n": 0})
    assert settled(error.thread.records) == {"one": ("succeeded", None, "b")}


@pytest.mark.rule("R23")
async def test_corrections_and_rounds_follow_for_a_step_gated_after_too() -> None:
    stage = Stage(asking(gate="after"), anna=["wrong", "right"], judge=unless_wrong)
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert story(run.thread.records)[2:-1] == ["anna accepts", "correct", "anna accepts", "confirm"]


@pytest.mark.rule("R24")
async def test_a_decline_of_what_was_done_rejects_the_run_and_says_that_it_was_done() -> None:
    stage = Stage(asking(gate="after"), machine=counting(), anna=[Declined("undo that")])
    error = await stage.fails(Rejected)
    assert_ended(error.thread, "rejected")
    assert settled(error.thread.records) == {"s": ("failed", 1, "b")}
    assert (error.status, error.record) == ("b", {"n": 1})


@pytest.mark.rule("R25")
@pytest.mark.parametrize(("machine", "attempts"), [(counting(), 1), (ROW, None)])
async def test_a_step_that_is_over_the_limits_once_fired_is_entered_as_failed(machine: Machine, attempts: Any) -> None:
    stage = Stage(asking(gate="after", payload="too long"), machine=machine, limits=Limits(max_bytes=7))
    error = await stage.fails(OverBudget)
    assert_ended(error.thread, "over_budget")
    assert story(error.thread.records) == ["open", "seal over_budget"]
    assert settled(error.thread.records) == {"s": ("failed", attempts, "b")}
    assert [event.name for event in stage.bus.events] == [MACHINE_MOVE]


@pytest.mark.rule("R23", "R30")
async def test_a_report_that_cannot_be_made_fails_the_step_that_was_done() -> None:
    def said(record: Any) -> str:
        raise KeyError("no words")

    stage = Stage(asking(gate="after", payload=None, payload_from=said), machine=counting())
    error = await stage.fails(StepFailed)
    assert_ended(error.thread, "failed")
    assert (error.status, settled(error.thread.records)) == ("a", {"s": ("failed", 1, "a")})


# Not gated


@pytest.mark.rule("R26")
async def test_a_step_that_is_not_gated_fires_without_a_word() -> None:
    stage = Stage(asking(gate="none"), machine=counting())
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert story(run.thread.records) == ["open", "seal completed"]
    assert settled(run.thread.records) == {"s": ("succeeded", 1, "b")}
    assert (stage.anna.deliveries, run.outcomes["s"].message, dict(run.outcomes["s"].acks)) == ([], None, {})
    assert [event.name for event in stage.bus.events] == [MACHINE_MOVE, STEP_COMPLETED]
    assert run.thread.verify(trust=None).ungated == 1


@pytest.mark.rule("R26")
async def test_a_step_that_is_not_gated_is_firing_durably_before_it_fires() -> None:
    async def act(record: Any, call: Call) -> Any:
        phases.append(await _phases(stage))
        return record

    phases: list[Any] = []
    stage = Stage(asking(gate="none"), machine=counting(on_entry=act))
    await stage.run()
    assert phases == [["begun", "firing"]]
    assert await _phases(stage) == ["begun", "firing", "done", "sealed"]


# The end


@pytest.mark.rule("R27")
async def test_a_verified_thread_is_told_of_once_where_a_step_was_gated() -> None:
    stage = Stage(*on_the_way(2))
    run = await stage.run()
    (event,) = stage.bus.named(THREAD_VERIFIED)
    assert stage.bus.events[-1] is event
    assert (event.data["thread"], event.data["copy"], event.address) == ("t", run.thread, run.thread.address)
    assert (event.data["verdict"].integrity, event.data["verdict"].outcome) == ("valid", "completed")


@pytest.mark.rule("R27")
async def test_a_thread_without_a_gated_step_is_verified_but_not_told_of() -> None:
    stage = Stage(asking(gate="none"))
    assert_ended((await stage.run()).thread, "completed")
    assert stage.bus.named(THREAD_VERIFIED) == []


@pytest.mark.rule("R27", "R38")
@pytest.mark.parametrize("gate", ["before", "none"])
async def test_a_sealed_thread_that_does_not_verify_is_invalid_and_told_of_by_nobody(gate: Any) -> None:
    stage = Stage(asking(gate=gate))

    async def forge(kinds: list[str]) -> None:
        if "seal" in kinds:
            stage.store.forged = True

    stage.store.after = forge
    error = await stage.fails(InvalidThread)
    assert (error.status, error.step, error.code) == ("b", None, "run.invalid_thread")
    assert stage.bus.named(THREAD_VERIFIED) == []
    assert (await stage.store.store.read("t"))[-1] == stage.store.sent[-1][0]


@pytest.mark.rule("R38")
async def test_a_sealed_thread_that_lost_its_tail_is_invalid() -> None:
    stage = Stage(asking())

    async def cut(kinds: list[str]) -> None:
        if "seal" in kinds:
            stage.store.cut = 1

    stage.store.after = cut
    await stage.fails(InvalidThread)
    assert stage.bus.named(THREAD_VERIFIED) == []


@pytest.mark.rule("R39")
async def test_to_a_sealed_thread_nothing_is_appended() -> None:
    for options in ({}, {"anna": [Declined("no")]}, {"limits": Limits(max_bytes=1)}):
        stage = Stage(asking(), **options)
        with pytest.raises(FlowError) if options else nullcontext():
            await stage.run()
        assert stage.store.log[-1] == ["seal", "state"]


# Private state


async def _phases(stage: Stage) -> list[str]:
    return [decode(state.data)["phase"] for state in await stage.store.states("t")]


@pytest.mark.rule("S8")
async def test_each_state_is_bound_to_the_plan_and_to_the_tip_it_was_committed_with() -> None:
    stage = Stage(asking(), machine=counting())
    run = await stage.run()
    plan = opened(run.thread.records, "open")[0].plan
    chain = [address(raw) for raw in run.thread.records if open_envelope(raw).kind not in ("ack", "ruling")]
    states = await stage.store.states("t")
    entries = [decode(state.data) for state in states]
    assert [(entry["phase"], entry.get("plan"), entry.get("status")) for entry in entries] == [
        ("begun", plan, None), ("confirmed", None, None), ("done", None, "b"), ("sealed", None, "b"),
    ]  # fmt: skip
    assert len({entry["run"] for entry in entries}) == 1
    assert [state.tip for state in states] == [chain[0], chain[1], chain[1], chain[2]]


@pytest.mark.rule("S8")
async def test_nothing_of_the_state_stands_in_the_thread() -> None:
    stage = Stage(asking(), record={"n": 0, "secret": "k3cret"})
    run = await stage.run()
    assert not any(b"k3cret" in raw for raw in run.thread.records)


@pytest.mark.rule("S7")
async def test_the_bytes_written_grow_with_the_steps_and_not_with_their_square() -> None:
    def written(stage: Stage) -> int:
        return sum(len(raw) for records in stage.store.sent for raw in records)

    async def size(steps: int) -> int:
        machine = Machine("a", [("a", "go", "b"), ("b", "back", "a")])
        plan = [Step(f"s-{n:03}", target="ba"[n % 2], payload="do it") for n in range(steps)]
        stage = Stage(*plan, machine=machine)
        await stage.run()
        return written(stage) + sum(len(state.data) for state in await stage.store.states("t"))

    ten, twenty, forty = [await size(steps) for steps in (10, 20, 40)]
    assert abs((forty - twenty) - 2 * (twenty - ten)) < (twenty - ten) // 20


@pytest.mark.rule("S7")
async def test_a_record_that_does_not_change_is_written_once() -> None:
    stage = Stage(*on_the_way(3), record={"bulk": "x" * 5000})
    await stage.run()
    held = [b"x" * 5000 in state.data for state in await stage.store.states("t")]
    assert (held[0], sum(held[1:-1])) == (True, 0)


# Others in the same thread


@pytest.mark.rule("S5")
async def test_a_run_goes_on_where_other_members_speak_at_every_commit() -> None:
    stage = Stage(*on_the_way(2), Step("report", target="d", gate="after", payload="done"))
    said = iter(range(99))

    async def chatter(kinds: list[str]) -> None:
        if kinds[0] in ("message", "ack", "state", "seal"):
            await appended(stage.store.store, BEN, Message, **note(f"by-the-way-{next(said)}"))

    async def once(kinds: list[str]) -> None:
        await chatter(kinds)
        stage.store.before = quiet

    async def quiet(kinds: list[str]) -> None:
        stage.store.before = once

    stage.store.before = once
    run = await stage.run()
    assert_ended(run.thread, "completed")
    told = [line for line in story(run.thread.records) if "by-the-way" not in line]
    assert told == [
        "open",
        *("request to-b", "anna accepts", "confirm", "ben accepts", "confirm"),
        *("request to-c", "anna accepts", "confirm", "ben accepts", "confirm"),
        *("assert report", "anna accepts", "confirm", "ben accepts", "confirm"),
        "seal completed",
    ]
    assert next(said) > 8


@pytest.mark.rule("S5")
async def test_a_member_that_leaves_when_its_ack_is_given_does_not_stop_the_run() -> None:
    stage = Stage(asking())

    async def leave(kinds: list[str]) -> None:
        if "ack" in kinds:
            stage.store.after = None
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.after = leave
    run = await stage.run()
    assert_ended(run.thread, "completed")
    assert story(run.thread.records)[2:] == ["anna accepts", "confirm", "anna: leave anna", "seal completed"]


@pytest.mark.rule("R5")
async def test_two_runs_of_one_agent_go_side_by_side_in_threads_of_their_own() -> None:
    stage = Stage(*on_the_way(2))
    agent = Agent(OWNER, CARD, Plan(on_the_way(2)))
    runs: dict[str, Any] = {}

    async def one(name: str) -> None:
        peers = {"anna": ScriptedPeer(ANNA), "ben": ScriptedPeer(BEN)}
        runs[name] = await agent.run(name, ROW, {}, **{**stage.options, "peers": peers, "heartbeat": Monitor(3)})

    async with anyio.create_task_group() as tasks:
        for name in ("t", "u", "v"):
            tasks.start_soon(one, name)
    for run in runs.values():
        assert_ended(run.thread, "completed")
    assert len({run.thread.address for run in runs.values()}) == 3
