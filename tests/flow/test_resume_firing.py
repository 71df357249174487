"""What was fired is not fired again, what was cut off is, and a run that died anywhere ends as if it had not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import pytest

from envelope.cbor import decode
from flow import (
    Call,
    Declined,
    Loop,
    Machine,
    MemoryStore,
    Outcome,
    Panel,
    Plan,
    Rejected,
    Retry,
    Run,
    Step,
    StepFailed,
    Transition,
)
from flow.errors import InDoubt
from flow.machine import Failure
from flow.testing import Crash, Crashing, ScriptedPeer, Wait, crash_everywhere, differences
from tests.flow.everything import Everything, add, step
from tests.flow.stage import Stage, Until, assert_ended, opened, settled, story

pytestmark = pytest.mark.anyio


class World:
    """What lies outside of a run and outlives it: the actions that were started, and what they should do.

    Attributes:
        calls: of the actions, in order.
        dies: the numbers of the calls that their process does not survive, from 0.
        fails: the numbers of the calls that raise.
    """

    def __init__(self, dies: Sequence[int] = (), fails: Sequence[int] = ()) -> None:
        self.calls: list[Call] = []
        self.guarded = 0
        self.dies = dies
        self.fails = fails

    def act(self, record: Any, call: Call) -> Any:
        self.calls.append(call)
        number = len(self.calls) - 1
        if number in self.dies:
            raise Crash
        if number in self.fails:
            raise ValueError("not now")
        return {"n": record["n"] + 1}

    def guard(self, record: Any, call: Call) -> bool:
        self.guarded += 1
        return True

    @property
    def steps(self) -> list[str]:
        """The paths of the calls."""
        return ["/".join(call.step) for call in self.calls]

    @property
    def attempts(self) -> list[int]:
        return [call.attempt for call in self.calls]

    def machine(self) -> Machine:
        """Statuses, each of them reached from each other one by an action."""
        return Machine("a", [Transition(a, f"to-{b}", b, guard=self.guard, on_entry=self.act) for a, b in PAIRS])


PAIRS = list(permutations("abcdef", 2))
GATES = ["before", "after", "none"]


def stage_of(world: World, *steps: Step, **options: Any) -> Stage:
    return Stage(*steps, machine=world.machine(), **options)


# What is recorded


@pytest.mark.rule("D6")
@pytest.mark.parametrize("gate", GATES)
async def test_a_step_whose_outcome_is_recorded_is_not_fired_again(gate: Any) -> None:
    world = World()
    stage = await stage_of(world, step("one", "b", gate), step("two", "c", gate)).cut("done")
    run = await stage.resume()
    assert (world.steps, run.record, run.status) == (["one", "two"], {"n": 2}, "c")
    assert world.attempts == [1, 1]


@pytest.mark.rule("D6")
async def test_the_record_is_the_recorded_one_and_no_guard_is_asked_for_it_again() -> None:
    world = World()
    stage = await stage_of(world, *[step(f"s-{to}", to) for to in "bcdef"]).cut("done", 4)
    assert (world.guarded, (await stage.resume()).record) == (4, {"n": 5})
    assert world.guarded == 5


@pytest.mark.rule("D6")
async def test_settlements_that_no_record_carries_yet_are_carried_by_the_next_one() -> None:
    stage = await Stage(step("one", "b", "none"), step("two", "c", "none"), step("three", "d")).cut("done", 2)
    assert settled(await stage.records()) == {}
    run = await stage.resume()
    (message,) = opened(run.thread.records, "message")
    assert [entry.step for entry in message.settled] == [("one",), ("two",)]


@pytest.mark.rule("D6")
async def test_settlements_that_were_carried_are_not_carried_again() -> None:
    stage = await Stage(step("one", "b", "none"), step("two", "c")).cut("message")
    run = await stage.resume()
    assert list(settled(run.thread.records)) == ["one", "two"]


@pytest.mark.rule("D6")
async def test_outcomes_of_before_are_given_with_those_of_after() -> None:
    def branching() -> Stage:
        world = World(fails=[0])
        handler = step("mend", "b", needs=["one"], when="failed")
        return stage_of(world, step("one", "b"), step("never", "c", needs=["one"]), handler)

    whole = await branching().run()
    stage = await branching().cut("done")
    run = await stage.resume()
    assert {path: _plain(outcome) for path, outcome in run.outcomes.items()} == {
        path: _plain(outcome) for path, outcome in whole.outcomes.items()
    }
    assert {path: outcome.became for path, outcome in run.outcomes.items()} == {
        "one": "failed",
        "never": "skipped",
        "mend": "succeeded",
    }


def _plain(outcome: Outcome) -> Outcome:
    return replace(outcome, acks=dict(outcome.acks))


@pytest.mark.rule("D6")
async def test_a_handler_is_told_of_a_failure_that_was_recorded() -> None:
    world = World(fails=[0])
    handler = step("mend", "b", needs=["one"], when="failed")
    stage = await stage_of(world, step("one", "b"), handler).cut("done")
    run = await stage.resume()
    assert world.calls[-1].failure == Failure("one", "ValueError", "not now", 1)
    assert run.outcomes["one"].failure == Failure("one", "ValueError", "not now", 1)


@pytest.mark.rule("D6")
async def test_what_a_route_chose_is_not_asked_again() -> None:
    asked: list[Any] = []

    def route(record: Any) -> str:
        asked.append(record)
        return "left"

    steps = [step("one", "b", route=route), step("left", "c", needs=["one"]), step("right", "c", needs=["one"])]
    stage = await stage_of(World(), *steps).cut("done")
    run = await stage.resume()
    assert asked == [{"n": 1}]
    assert {path: outcome.became for path, outcome in run.outcomes.items()} == {
        "one": "succeeded",
        "left": "succeeded",
        "right": "skipped",
    }


@pytest.mark.rule("D6")
async def test_a_failure_whose_handler_a_route_skipped_ends_the_resumed_run_too() -> None:
    def route(record: Any) -> list[str]:
        return []

    world = World(fails=[0])
    steps = [
        step("one", "b"),
        step("two", "b", route=route),
        step("mend", "c", needs=["one", "two"], when="failed"),
        step("more", "c", needs=["two"]),
    ]
    whole = await stage_of(World(fails=[0]), *steps).fails(StepFailed)
    stage = await stage_of(world, *steps).cut("done", 2)
    error = await stage.fails(StepFailed, stage.resume)
    assert_ended(error.thread, "failed")
    assert (str(error), differences(whole.thread.records, error.thread.records)) == (str(whole), [])


# What was cut off


@pytest.mark.rule("D7", "S9")
@pytest.mark.parametrize("gate", GATES)
async def test_a_firing_that_was_cut_off_is_fired_again_under_its_key_as_one_more_attempt(gate: Any) -> None:
    world = World(dies=[0])
    stage = stage_of(world, step("one", "b", gate))
    await stage.fails(Crash)
    stage = stage.reborn()
    run = await stage.resume()
    first, again = world.calls
    assert (first.key, first.step) == (again.key, again.step)
    assert (world.attempts, run.record) == ([1, 2], {"n": 1})
    assert (settled(run.thread.records), run.outcomes["one"].attempts) == ({"one": ("succeeded", 2, "b")}, 2)


@pytest.mark.rule("D7")
async def test_a_firing_that_is_cut_off_again_and_again_counts_on() -> None:
    world = World(dies=[0, 1, 2])
    stage = stage_of(world, step("one", "b"))
    await stage.fails(Crash)
    for _ in range(2):
        stage = stage.reborn()
        await stage.fails(Crash, stage.resume)
    stage = stage.reborn()
    run = await stage.resume()
    assert (world.attempts, settled(run.thread.records)["one"][1]) == ([1, 2, 3, 4], 4)


@pytest.mark.rule("D7")
async def test_a_failed_attempt_after_one_that_was_cut_off_is_settled_with_both() -> None:
    world = World(dies=[0], fails=[1])
    stage = stage_of(world, step("one", "b"))
    await stage.fails(Crash)
    stage = stage.reborn()
    error = await stage.fails(StepFailed, stage.resume)
    assert settled(error.thread.records) == {"one": ("failed", 2, "a")}


@pytest.mark.rule("D7", "R53")
@pytest.mark.parametrize("gate", GATES)
async def test_a_retry_that_was_cut_off_in_an_attempt_goes_on_with_the_next_number(gate: Any) -> None:
    world = World(fails=[0], dies=[1])
    stage = stage_of(world, step("one", "b", gate, retry=Retry(4, delay=0)))
    await stage.fails(Crash)
    stage = stage.reborn()
    run = await stage.resume()
    assert (world.attempts, settled(run.thread.records)) == ([1, 2, 3], {"one": ("succeeded", 3, "b")})


@pytest.mark.rule("D7", "R53")
async def test_attempts_are_not_given_back_by_a_crash() -> None:
    world = World(fails=[0, 2, 3, 4, 5], dies=[1])
    stage = stage_of(world, step("one", "b", retry=Retry(4, delay=0)))
    await stage.fails(Crash)
    stage = stage.reborn()
    error = await stage.fails(StepFailed, stage.resume)
    assert (world.attempts, settled(error.thread.records)) == ([1, 2, 3, 4], {"one": ("failed", 4, "a")})


@pytest.mark.rule("D7")
async def test_a_firing_that_was_cut_off_in_the_last_attempt_is_fired_once_more() -> None:
    world = World(fails=[0, 2], dies=[1])
    stage = stage_of(world, step("one", "b", retry=Retry(2, delay=0)))
    await stage.fails(Crash)
    stage = stage.reborn()
    error = await stage.fails(StepFailed, stage.resume)
    assert (world.attempts, settled(error.thread.records)) == ([1, 2, 3], {"one": ("failed", 3, "a")})


@pytest.mark.rule("D7", "R40")
async def test_a_retry_that_was_cut_off_while_it_paused_goes_on_at_once() -> None:
    world = World(fails=[0])
    stage = stage_of(world, step("one", "b", retry=Retry(3, delay=30)))

    class Impatient(Exception):
        pass

    async def hurry() -> Run:
        with stage.clock.move_on_after(10):
            return await stage.run()
        raise Impatient

    await stage.over_time(lambda: stage.fails(Impatient, hurry))
    assert world.attempts == [1]
    later = stage.reborn()
    run = await later.resume()
    assert (world.attempts, run.outcomes["one"].attempts, later.clock.monotonic()) == ([1, 2], 2, 0)


@pytest.mark.rule("D7", "R53")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_run_that_died_at_the_commit_of_an_attempt_starts_none_twice_under_one_number(when: Any) -> None:
    world = World(fails=[0])
    stage = await stage_of(world, step("one", "b", retry=Retry(4, delay=0))).cut("firing", when=when)
    run = await stage.resume()
    assert world.attempts == [1, 2 if when == "before" else 3]
    assert run.outcomes["one"].attempts == world.attempts[-1]


@pytest.mark.rule("D7", "R57")
async def test_a_panel_that_was_cut_off_is_fired_again_whole() -> None:
    world = World(dies=[1])
    stage = panel_of(world)
    await stage.fails(Crash)
    stage = stage.reborn()
    run = await stage.resume()
    assert (sorted(world.steps), world.attempts) == (["one", "one", "two", "two"], [1, 1, 2, 2])
    assert {call.key for call in world.calls[:2]} == {call.key for call in world.calls[2:]}
    assert settled(run.thread.records) == {"one": ("succeeded", 2, "b"), "two": ("succeeded", 2, "b")}


def panel_of(world: World, gate: Any = "before", **fields: Any) -> Stage:
    steps = [step("one", "b", gate), step("two", "b", gate, **fields)]
    return stage_of(world, *steps, panels=[Panel(["one", "two"], reducer=add)])


@pytest.mark.rule("D7")
async def test_a_reducer_that_was_cut_off_is_asked_again() -> None:
    world, asked = World(), []

    def dying(original: Any, records: Sequence[Any]) -> Any:
        asked.append(records)
        if len(asked) == 1:
            raise Crash
        return add(original, records)

    steps = [step("one", "b"), step("two", "b")]
    stage = stage_of(world, *steps, panels=[Panel(["one", "two"], reducer=dying)])
    await stage.fails(Crash)
    stage = stage.reborn()
    run = await stage.resume()
    assert (asked, run.record) == ([[{"n": 1}, {"n": 1}]] * 2, {"n": 2})


# Gated after


@pytest.mark.rule("D6", "R23")
@pytest.mark.parametrize(
    ("what", "when", "attempts"),
    [
        ("firing", "before", [1]),
        ("firing", "after", [2]),
        ("fired", "before", [1, 2]),
        ("fired", "after", [1]),
        ("ack", "before", [1]),
        ("ack", "after", [1]),
        ("confirmed", "after", [1]),
        ("done", "before", [1]),
        ("done", "after", [1]),
        ("seal", "before", [1]),
    ],
)
async def test_a_step_gated_after_goes_on_behind_its_last_commit(what: str, when: Any, attempts: list[int]) -> None:
    world = World()
    stage = await stage_of(world, step("one", "b", "after")).cut(what, when=when)
    run = await stage.resume()
    assert (world.attempts, run.record, run.status) == (attempts, {"n": 1}, "b")
    assert settled(run.thread.records) == {"one": ("succeeded", attempts[-1], "b")}
    assert story(run.thread.records)[1] == "assert one"


@pytest.mark.rule("D6", "R24")
async def test_a_step_gated_after_that_is_declined_when_it_goes_on_was_done() -> None:
    world = World()
    stage = await stage_of(world, step("one", "b", "after", to=["anna"])).cut("fired")
    stage.anna._script = iter([Declined("no")])
    error = await stage.fails(Rejected, stage.resume)
    assert (settled(error.thread.records), world.attempts) == ({"one": ("failed", 1, "b")}, [1])


# To be done once


@pytest.mark.rule("D8")
@pytest.mark.parametrize("gate", GATES)
async def test_a_step_that_is_to_run_once_is_in_doubt_and_nothing_is_appended(gate: Any) -> None:
    world = World(dies=[0])
    stage = stage_of(world, step("one", "b", gate, once=True))
    await stage.fails(Crash)
    before = list(await stage.records())
    for _ in range(2):
        stage = stage.reborn()
        error = await stage.fails(InDoubt, stage.resume)
        assert ("{'one': 'again'}" in str(error), error.step, error.status) == (True, "one", "a")
        assert_ended(error.thread, None)
    assert (await stage.records(), world.attempts) == (before, [1])


@pytest.mark.rule("D8")
@pytest.mark.parametrize("gate", GATES)
async def test_the_word_again_fires_it_again_and_is_settled(gate: Any) -> None:
    world = World(dies=[0])
    stage = stage_of(world, step("one", "b", gate, once=True))
    await stage.fails(Crash)
    stage = stage.reborn()
    run = await stage.resume(in_doubt={"one": "again"})
    assert (world.attempts, run.record) == ([1, 2], {"n": 1})
    (entry,) = settlements(run)
    assert (entry.attempts, entry.result) == (2, "the action was cut off in an earlier attempt; the caller said: again")


@pytest.mark.rule("D8")
@pytest.mark.parametrize("gate", GATES)
async def test_the_word_done_takes_it_for_done_with_the_record_as_it_is_and_is_settled(gate: Any) -> None:
    world = World(dies=[0])
    stage = stage_of(world, step("one", "b", gate, once=True), step("two", "c"))
    await stage.fails(Crash)
    stage = stage.reborn()
    run = await stage.resume(in_doubt={"one": "done"})
    assert (world.steps, run.record, run.status) == (["one", "two"], {"n": 1}, "c")
    entry, _ = settlements(run)
    assert (entry.attempts, entry.result) == (1, "the action was cut off in an earlier attempt; the caller said: done")


def settlements(run: Run) -> list[Any]:
    return [
        entry
        for kind in ("message", "settle", "seal")
        for record in opened(run.thread.records, kind)
        for entry in record.settled or ()
    ]


@pytest.mark.rule("D8")
async def test_a_step_in_a_sub_plan_is_named_by_its_path() -> None:
    world = World(dies=[0])
    stage = stage_of(world, Step("outer", sub=Plan([step("one", "b", once=True)]), payload="done?"))
    await stage.fails(Crash)
    stage = stage.reborn()
    await stage.fails(InDoubt, stage.resume)
    stage = stage.reborn()
    await stage.fails(InDoubt, partial(stage.resume, in_doubt={"one": "done"}))
    stage = stage.reborn()
    run = await stage.resume(in_doubt={"outer/one": "done"})
    assert world.steps == ["outer/one", "outer"]
    assert_ended(run.thread, "completed")


@pytest.mark.rule("D8")
@pytest.mark.parametrize("word", ["again", "done"])
async def test_a_run_that_dies_after_the_word_was_given_keeps_count_and_needs_it_again(word: Any) -> None:
    world = World(dies=[0])
    stage = stage_of(world, step("one", "b", once=True))
    await stage.fails(Crash)
    stage = stage.reborn()
    await stage.dies(lambda: stage.resume(in_doubt={"one": word}), "done", when="before")
    stage = stage.reborn()
    await stage.fails(InDoubt, stage.resume)
    stage = stage.reborn()
    run = await stage.resume(in_doubt={"one": word})
    assert world.attempts == ([1, 2, 3] if word == "again" else [1])
    assert run.outcomes["one"].attempts == world.attempts[-1]


@pytest.mark.rule("D8")
async def test_a_step_that_is_to_run_once_is_not_in_doubt_where_its_firing_never_began() -> None:
    world = World()
    stage = await stage_of(world, step("one", "b", once=True)).cut("ack", 1)
    await stage.resume()
    assert world.attempts == [1]


@pytest.mark.rule("D8")
async def test_a_step_that_is_to_run_once_may_be_retried_where_it_fails_by_itself() -> None:
    world = World(fails=[0])
    run = await stage_of(world, step("one", "b", once=True, retry=Retry(2, delay=0))).run()
    assert (world.attempts, settlements(run)[0].result) == ([1, 2], None)


@pytest.mark.rule("D8")
@pytest.mark.parametrize("gate", ["before", "none"])
@pytest.mark.parametrize("word", ["again", "done"])
async def test_in_a_panel_the_word_is_for_the_member_that_is_to_run_once(gate: Any, word: Any) -> None:
    world = World(dies=[1])
    stage = panel_of(world, gate, once=True)
    await stage.fails(Crash)
    stage = stage.reborn()
    error = await stage.fails(InDoubt, stage.resume)
    assert "'two'" in str(error)
    stage = stage.reborn()
    run = await stage.resume(in_doubt={"two": word})
    assert sorted(world.steps) == ["one", "one", "two"] + ["two"] * (word == "again")
    assert run.record == {"n": 2 if word == "again" else 1}
    one, two = settlements(run)
    assert (one.attempts, one.result, two.attempts) == (2, None, 2 if word == "again" else 1)
    assert two.result.endswith(word)


# Loops and sub-plans


def looping(world: World, rounds: int = 3, guarded: list[Call] | None = None, **fields: Any) -> Stage:
    def again(record: Any, call: Call) -> bool:
        (guarded if guarded is not None else []).append(call)
        return True

    inner = Plan([step("x", "b"), step("y", "c", "none", needs=["x"])])
    outer = Step("outer", sub=inner, loop=Loop(rounds, again), payload="round and round", **fields)
    return stage_of(world, step("first", "b"), outer, step("last", "d", needs=["outer"]))


@pytest.mark.rule("D6", "R62")
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_loop_that_was_cut_off_at_its_guard_goes_on_with_what_the_guard_said(number: int, when: Any) -> None:
    world, guarded = World(), []
    whole = await looping(World()).run()
    stage = await looping(world, guarded=guarded).cut("round", number, when)
    run = await stage.resume()
    assert run.thread == whole.thread
    assert [call.step for call in guarded] == [
        *[("outer",)] * (1 + (number == 1 and when == "before")),
        *[("outer#2",)] * (1 + (number == 2 and when == "before")),
    ]
    assert len({call.key for call in guarded}) == 2


@pytest.mark.rule("D6", "R62")
async def test_a_loop_that_died_inside_its_guard_asks_it_again_under_the_same_key() -> None:
    world, guarded = World(), []

    def again(record: Any, call: Call) -> bool:
        guarded.append(call)
        if len(guarded) == 1:
            raise Crash
        return False

    outer = Step("outer", sub=Plan([step("x", "b")]), loop=Loop(3, again), payload="again?")
    stage = stage_of(world, outer)
    await stage.fails(Crash)
    stage = stage.reborn()
    await stage.resume()
    assert (len(guarded), len({call.key for call in guarded})) == (2, 1)
    assert world.steps == ["outer/x", "outer"]


@pytest.mark.rule("D6", "R59", "R60")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("what", ["message", "ack", "confirmed", "done"])
async def test_a_sub_plan_that_was_cut_off_anywhere_ends_as_if_it_had_not_been(
    first: bool, gate: Any, what: str
) -> None:
    def nested() -> Stage:
        inner = Plan([step("x", "b"), step("y", "c", needs=["x"])])
        said = {} if gate == "none" else {"payload": "all of it"}
        outer = Step("outer", sub=Plan([Step("mid", sub=inner, payload="some")]), gate=gate, **said)
        return stage_of(World(), *([step("before", "b")] if not first else []), outer)

    whole = await nested().run()
    for number in range(1, 12):
        stage = nested()
        store = Until(stage.store, what, number)
        stage.options["store"] = store
        try:
            await stage.run()
        except Crash:
            pass
        else:
            assert number > 2
            break
        stage = stage.reborn()
        run = await stage.resume()
        assert differences(whole.thread.records, run.thread.records) == []
        assert (run.status, run.record, list(run.outcomes)) == (whole.status, whole.record, list(whole.outcomes))
    else:
        raise AssertionError("there is no end to it")


@pytest.mark.rule("D6")
async def test_a_sub_plan_with_its_parent_gated_is_not_run_again_when_the_parent_was_asked_for() -> None:
    world = World()
    outer = Step("outer", sub=Plan([step("x", "b")]), payload="done")
    stage = await stage_of(world, outer).cut("message", 2)
    run = await stage.resume()
    assert world.steps == ["outer/x", "outer"]
    assert [message.step for message in opened(run.thread.records, "message")] == [("outer", "x"), ("outer",)]


# Anywhere


@pytest.mark.rule("D13")
async def test_a_run_that_crashes_at_any_commit_ends_as_if_it_had_not() -> None:
    world = Everything()
    results = await crash_everywhere(lambda store: world.stage(store).run(), lambda store: world.stage(store).resume())
    whole = results["undisturbed"]
    assert len(results) > 80
    for where, run in results.items():
        assert (where, differences(whole.thread.records, run.thread.records)) == (where, [])
        assert (run.status, run.record, list(run.outcomes)) == (whole.status, whole.record, list(whole.outcomes))


@pytest.mark.rule("D13", "S9")
async def test_the_keys_of_all_calls_are_the_same_whatever_was_cut_off() -> None:
    undisturbed, counted = Everything(), Crashing(MemoryStore())
    await undisturbed.stage(counted).run()
    for number in range(1, counted.commits, 7):
        world, store = Everything(), MemoryStore()
        with pytest.raises(Crash):
            await world.stage(Crashing(store, number)).run()
        await world.stage(store).resume()
        assert world.effects == undisturbed.effects


@pytest.mark.rule("D13")
async def test_a_run_that_dies_at_every_commit_in_turn_comes_to_its_end() -> None:
    world, store = Everything(), MemoryStore()
    whole = await world.stage().run()
    with pytest.raises(Crash):
        await world.stage(Crashing(store, 3)).run()
    for _ in range(200):
        try:
            run = await world.stage(Crashing(store, 3)).resume()
        except Crash:
            continue
        break
    else:
        raise AssertionError("it comes to no end")
    assert differences(whole.thread.records, run.thread.records) == []


@pytest.mark.rule("D13", "R40")
@pytest.mark.parametrize("gate", GATES)
async def test_a_cancelled_firing_leaves_what_a_crash_leaves(gate: Any) -> None:
    world = World()
    stage = stage_of(world, step("one", "b", gate))
    acts = stage.machine.rows[0]

    async def slow(record: Any, call: Call) -> Any:
        world.calls.append(call)
        await stage.clock.sleep(100)
        return record

    stage.machine = Machine("a", [replace(acts, guard=None, on_entry=slow)])

    class Over(Exception):
        pass

    async def hurry() -> Run:
        with stage.clock.move_on_after(10):
            return await stage.run()
        raise Over

    await stage.over_time(lambda: stage.fails(Over, hurry))
    phases = [decode(state.data)["phase"] for state in await stage.store.states("t")]
    assert phases[-1] == ("confirmed" if gate == "before" else "firing")
    later = stage.reborn()
    later.machine = stage.machine
    run = await stage.over_time(later_resumes(later, stage))
    assert (world.attempts, run.outcomes["one"].attempts) == ([1, 2], 2)


def later_resumes(later: Stage, stage: Stage) -> Callable[[], Any]:
    later.options["clock"] = stage.clock
    later.options["peers"] = {
        name: ScriptedPeer(peer._identity, [Wait(1), "fine"], clock=stage.clock)
        for name, peer in later.options["peers"].items()
    }
    return later.resume
