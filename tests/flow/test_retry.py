"""Retry: a firing that raises is tried again, after pauses that are the same wherever they are computed."""

from typing import Any

import anyio
import pytest

from flow import Call, Machine, Plan, Retry, StepFailed, StoreError, Transition
from flow.bus import MACHINE_MOVE, MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED
from flow.errors import GuardRefused
from flow.firing import call_key
from flow.machine import Failure
from tests.flow.stage import assert_ended, settled, story
from tests.flow.test_branching import GATES
from tests.flow.units import ALWAYS, Odd, PlanStage, became, log, net, quiet, routing, told

pytestmark = pytest.mark.anyio

NONCE = bytes(16)


class Timed(PlanStage):
    """A stage that notes when each call was made, in seconds."""

    def __init__(self, plan: Plan, **options: Any) -> None:
        super().__init__(plan, **options)
        self.times: list[float] = []
        self.acting = self._note

    async def _note(self, call: Call) -> None:
        self.times.append(self.clock.monotonic())

    @property
    def pauses(self) -> list[float]:
        return [round(after - before, 6) for before, after in zip(self.times, self.times[1:], strict=False)]


def retried(fails: float, retry: Retry, gate: str = "none", **options: Any) -> Timed:
    return Timed(Plan([quiet("s", retry=retry, **GATES[gate])]), fail={"s": fails}, **options)


async def over_time(stage: PlanStage) -> Any:
    return await stage.over_time(stage.run)


@pytest.mark.rule("R52")
@pytest.mark.parametrize("gate", GATES)
async def test_a_firing_that_raises_is_tried_until_it_succeeds(gate: str) -> None:
    stage = retried(2, Retry(5), gate)
    run = await over_time(stage)
    assert_ended(run.thread, "completed")
    assert [call.attempt for call in stage.calls] == [1, 2, 3]
    assert run.record == ["begun", "s"]
    assert run.outcomes["s"].attempts == 3
    assert settled(run.thread.records)["s"] == ("succeeded", 3, "s")


@pytest.mark.rule("R52", "R30")
async def test_when_the_last_attempt_has_failed_the_step_has() -> None:
    stage = retried(ALWAYS, Retry(3, delay=1))
    error = await stage.over_time(lambda: stage.fails(StepFailed))
    assert_ended(error.thread, "failed")
    assert [call.attempt for call in stage.calls] == [1, 2, 3]
    assert settled(error.thread.records) == {"s": ("failed", 3, "start")}
    assert (error.status, error.record) == ("start", ["begun"])
    assert stage.clock.monotonic() == 3


@pytest.mark.rule("R52", "R49", "R50")
async def test_the_failure_that_a_handler_reads_is_that_of_the_last_attempt() -> None:
    stage = Timed(Plan([quiet("s", retry=Retry(4)), quiet("mend", "s", when="failed")]), fail={"s": ALWAYS})
    run = await over_time(stage)
    assert run.record == ["begun", "mend"]
    assert stage.calls[-1].failure == Failure("s", "Odd", "s broke", 4) == run.outcomes["s"].failure


@pytest.mark.rule("R52")
async def test_without_a_retry_a_firing_is_tried_once() -> None:
    stage = PlanStage(Plan([quiet("s")]), fail={"s": 1})
    await stage.fails(StepFailed)
    assert len(stage.calls) == 1


@pytest.mark.rule("R52")
async def test_each_attempt_begins_with_the_guard_on_a_record_that_nobody_has_touched() -> None:
    seen: list[tuple[str, list[str], int]] = []

    def look(record: list[str], call: Call) -> bool:
        seen.append(("guard", list(record), call.attempt))
        record.append("spoilt")
        return True

    def leave(record: list[str], call: Call) -> list[str]:
        seen.append(("on_exit", list(record), call.attempt))
        return [*record, "left"]

    def enter(record: list[str], call: Call) -> list[str]:
        seen.append(("on_entry", list(record), call.attempt))
        record.append("entered")
        if call.attempt < 2:
            raise Odd
        return record

    plan = Plan([quiet("s", retry=Retry(2))])
    run = await over_time(PlanStage(plan, machine=net(plan, guard=look, on_exit=leave, on_entry=enter)))
    once = [("guard", ["begun"]), ("on_exit", ["begun"]), ("on_entry", ["begun", "left"])]
    assert seen == [(*what, attempt) for attempt in (1, 2) for what in once]
    assert run.record == ["begun", "left", "entered"]


@pytest.mark.rule("R52")
async def test_a_guard_that_says_no_is_not_asked_again() -> None:
    asked: list[int] = []

    def refuse(record: Any, call: Call) -> bool:
        asked.append(call.attempt)
        if call.attempt < 2:
            raise Odd
        return False

    plan = Plan([quiet("s", retry=Retry(9))])
    stage = PlanStage(plan, machine=net(plan, guard=refuse))
    error = await stage.over_time(lambda: stage.fails(StepFailed))
    assert asked == [1, 2]
    assert settled(error.thread.records) == {"s": ("failed", None, "start")}


@pytest.mark.rule("R52")
async def test_an_action_that_raises_what_a_guards_no_raises_is_tried_again() -> None:
    stage = retried(0, Retry(3))

    async def ask_another_machine(call: Call) -> None:
        if call.attempt < 3:
            raise GuardRefused("not over there")

    stage.acting = ask_another_machine
    run = await over_time(stage)
    assert settled(run.thread.records) == {"s": ("succeeded", 3, "s")}


@pytest.mark.rule("R52", "R53")
async def test_a_guard_that_raises_is_asked_again_and_no_action_was_started() -> None:
    def hesitate(record: Any, call: Call) -> bool:
        if call.attempt < 3:
            raise Odd
        return True

    plan = Plan([quiet("s", retry=Retry(9))])
    for machine, attempts in ((net(plan, guard=hesitate), None), (net(plan, guard=hesitate, on_exit=keep), 3)):
        run = await over_time(PlanStage(plan, machine=machine))
        assert settled(run.thread.records) == {"s": ("succeeded", attempts, "s")}


def keep(record: Any, call: Call) -> Any:
    return record


@pytest.mark.rule("R53")
async def test_an_action_that_was_started_once_counts_though_the_last_attempt_never_reached_it() -> None:
    def close(record: Any, call: Call) -> bool:
        return call.attempt == 1

    def fail(record: Any, call: Call) -> Any:
        raise Odd

    plan = Plan([quiet("s", retry=Retry(9))])
    stage = PlanStage(plan, machine=net(plan, guard=close, on_entry=fail))
    error = await stage.over_time(lambda: stage.fails(StepFailed))
    assert settled(error.thread.records) == {"s": ("failed", 2, "start")}


@pytest.mark.rule("R52")
@pytest.mark.parametrize("gate", ["before", "after"])
async def test_nothing_else_of_the_step_is_repeated(gate: str) -> None:
    drafts: list[Any] = []

    def say(record: Any) -> str:
        drafts.append(record)
        return "do it"

    fields = GATES[gate] | {"payload": None, "payload_from": say}
    asked: list[Any] = []

    def ask(record: Any) -> str:
        asked.append(record)
        return "next"

    stage = Timed(Plan([quiet("s", retry=Retry(4), route=ask, **fields), quiet("next", "s")]), fail={"s": 3})
    run = await over_time(stage)
    intent = {"before": "request", "after": "assert"}[gate]
    assert story(run.thread.records) == ["open", f"{intent} s", "anna accepts", "confirm", "seal completed"]
    assert (len(drafts), len(asked), len(stage.anna.deliveries), stage.fired) == (1, 1, 1, ["s"] * 4 + ["next"])
    names = [event.name for event in stage.bus.events if event.data.get("step") != "next"]
    assert [names.count(name) for name in (MESSAGE_DELIVERED, MESSAGE_ACKED, MACHINE_MOVE)] == [1, 1, 1]
    assert [event.data["outcome"].step for event in stage.bus.named(STEP_COMPLETED)] == ["s", "next"]


@pytest.mark.rule("R52")
@pytest.mark.parametrize("field", ["route", "payload_from"])
async def test_a_payload_or_a_route_that_fails_is_not_tried_again(field: str) -> None:
    stumbled: list[Any] = []

    def stumble(record: Any) -> Any:
        stumbled.append(record)
        raise Odd

    fields = {field: stumble} | ({"payload": None} if field == "payload_from" else {})
    await PlanStage(Plan([told("s", retry=Retry(4), **fields), quiet("next", "s")])).fails(StepFailed)
    assert len(stumbled) == 1


@pytest.mark.rule("S9", "R52")
async def test_every_attempt_has_the_same_key() -> None:
    stage = retried(3, Retry(4))
    run = await over_time(stage)
    assert {call.key for call in stage.calls} == {call_key(run.thread.address, ("s",), "on_entry")}
    assert len(stage.calls) == 4


# Pauses


@pytest.mark.rule("R52", "P21")
@pytest.mark.parametrize(
    ("retry", "pauses"),
    [
        (Retry(4), [0, 0, 0]),
        (Retry(4, delay=1.5), [1.5, 3, 6]),
        (Retry(4, delay=2, factor=1), [2, 2, 2]),
        (Retry(5, delay=1, factor=3, longest=5), [1, 3, 5, 5]),
        (Retry(4, delay=90), [60, 60, 60]),
        (Retry(4, delay=2, factor=10, longest=0), [0, 0, 0]),
    ],
)
async def test_pauses_grow_by_the_factor_up_to_the_longest(retry: Retry, pauses: list[float]) -> None:
    stage = retried(ALWAYS, retry)
    await stage.over_time(lambda: stage.fails(StepFailed))
    assert stage.pauses == pauses


@pytest.mark.rule("R54")
async def test_jitter_is_the_same_whenever_the_same_pause_is_computed() -> None:
    pauses = []
    for _ in range(2):
        stage = retried(ALWAYS, Retry(9, delay=10, factor=1, jitter=50))
        await _with_nonce(stage, NONCE)
        pauses.append(stage.pauses)
    assert pauses[0] == pauses[1]
    assert len(set(pauses[0])) == 8
    assert all(5 <= pause <= 15 for pause in pauses[0])


@pytest.mark.rule("R54")
async def test_jitter_is_another_for_another_step_and_another_thread() -> None:
    pauses = set()
    for name, nonce in (("s", NONCE), ("s", bytes([1]) * 16), ("other", NONCE)):
        stage = Timed(Plan([quiet(name, retry=Retry(4, delay=10, jitter=100))]), fail={name: ALWAYS})
        await _with_nonce(stage, nonce)
        pauses.add(tuple(stage.pauses))
    assert len(pauses) == 3


async def _with_nonce(stage: PlanStage, nonce: bytes) -> None:
    stage.beginning["nonce"] = nonce
    await stage.over_time(lambda: stage.fails(StepFailed))


@pytest.mark.rule("R52", "R11")
async def test_the_run_beats_while_it_pauses_between_attempts() -> None:
    stage = retried(1, Retry(2, delay=4500, longest=4500))
    await over_time(stage)
    assert stage.monitor.beats == [0, 1000, 2000, 3000, 4000]


@pytest.mark.rule("R52", "R40")
@pytest.mark.parametrize("gate", GATES)
async def test_a_cancel_between_attempts_appends_nothing_more(gate: str) -> None:
    stage = retried(ALWAYS, Retry(3, delay=100), gate)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.run)
            await stage.clock.advance(50)
            before, sent = await stage.records(), len(stage.store.sent)
            scope.cancel()
    assert scope.cancelled_caught
    assert (await stage.records(), len(stage.store.sent)) == (before, sent)
    assert [call.attempt for call in stage.calls] == [1]
    assert stage.monitor.forgotten


# Durable attempts


@pytest.mark.rule("R53")
@pytest.mark.parametrize(
    ("gate", "phases"),
    [
        ("before", ["confirmed", "firing", "firing"]),
        ("after", ["firing", "firing", "firing"]),
        ("none", ["firing", "firing", "firing"]),
    ],
)
async def test_the_number_of_an_attempt_is_durable_before_it_starts(gate: str, phases: list[str]) -> None:
    found: list[tuple[str, int | None, tuple[Any, ...]]] = []

    async def look(call: Call) -> None:
        last = (await stage.log())[-1]
        found.append((last.phase, last.attempt, last.at))

    stage = retried(2, Retry(3), gate)
    stage.acting = look
    await over_time(stage)
    assert found == [(phase, number, (("s",),)) for number, phase in enumerate(phases, 1)]


@pytest.mark.rule("R53")
async def test_the_number_is_durable_before_the_guard_too() -> None:
    found: list[int | None] = []

    async def look(record: Any, call: Call) -> bool:
        found.append((await log(stage.store))[-1].attempt)
        if len(found) < 3:
            raise Odd
        return True

    plan = Plan([quiet("s", retry=Retry(3))])
    stage = PlanStage(plan, machine=net(plan, guard=look))
    await over_time(stage)
    assert found == [1, 2, 3]


@pytest.mark.rule("R53", "R35")
async def test_an_attempt_whose_number_could_not_be_made_durable_is_not_started() -> None:
    stage = retried(ALWAYS, Retry(5))

    async def full(kinds: list[str]) -> None:
        if len(stage.calls) == 2:
            raise StoreError("disk full")

    stage.store.before = full
    error = await stage.over_time(lambda: stage.fails(StoreError))
    assert_ended(error.thread, None)
    assert len(stage.calls) == 2


@pytest.mark.rule("R53")
async def test_an_attempt_costs_the_thread_nothing() -> None:
    stages = [retried(fails, Retry(9)) for fails in (0, 8)]
    threads = [story((await over_time(stage)).thread.records) for stage in stages]
    assert threads[0] == threads[1] == ["open", "seal completed"]


@pytest.mark.rule("R52", "R61")
async def test_a_step_of_a_sub_plan_is_tried_again_by_its_own_retry() -> None:
    stage = Timed(Plan([quiet("p", sub=Plan([quiet("s", retry=Retry(3, delay=7))]))]), fail={"p/s": 2})
    run = await over_time(stage)
    assert became(run) == {"p/s": "succeeded", "p": "succeeded"}
    assert settled(run.thread.records)["p/s"] == ("succeeded", 3, "s")
    assert stage.pauses[:2] == [7, 14]


@pytest.mark.rule("R52")
async def test_rows_without_actions_succeed_at_the_first_attempt() -> None:
    stage = Timed(
        Plan([quiet("s", retry=Retry(3), route=routing("next")), quiet("next", "s")]),
        machine=Machine("start", [Transition("start", "go", "s"), ("s", "go", "next")]),
    )
    run = await over_time(stage)
    assert settled(run.thread.records) == {"s": ("succeeded", None, "s"), "next": ("succeeded", None, "next")}
