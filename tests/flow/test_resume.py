"""What a run may go on from, and what is refused and left alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from envelope import Card, Identity, Message, Roster, Seal, open_envelope
from envelope.cbor import decode, encode
from flow import (
    Agent,
    Call,
    Confirm,
    Declined,
    Escalated,
    FlowError,
    Limits,
    Machine,
    NoRecipient,
    NoTransition,
    OverBudget,
    Plan,
    Rejected,
    State,
    Step,
    StepFailed,
    StoreError,
    Superseded,
    Transition,
)
from flow.bus import STEP_COMPLETED, THREAD_VERIFIED
from flow.errors import MachineError
from flow.testing import Crash, ScriptedPeer, differences
from tests.flow.stage import (
    ANNA,
    BEN,
    CARA,
    OWNER,
    STRANGER,
    Stage,
    Until,
    appended,
    assert_ended,
    on_the_way,
    opened,
    settled,
    unless_wrong,
)

pytestmark = pytest.mark.anyio


async def contents(stage: Stage) -> tuple[list[bytes], list[State]]:
    return list(await stage.store.store.read("t")), list(await stage.store.store.states("t"))


async def refused(stage: Stage, code: str, **options: Any) -> FlowError:
    """Resume, and be refused with a code, with the thread and the private state left alone and nobody asked."""
    before = await contents(stage)
    with pytest.raises(FlowError) as raised:
        await stage.resume(**options)
    assert raised.value.code == code
    assert await contents(stage) == before
    assert (stage.anna.deliveries, stage.bus.events) == ([], [])
    return raised.value


async def halfway(*steps: Step, **options: Any) -> Stage:
    """A run of two steps that died once the first was done."""
    return await Stage(*(steps or on_the_way(2)), **options).cut("done")


# What is verified first


@pytest.mark.rule("D1")
async def test_a_thread_that_does_not_verify_is_refused_and_left_alone() -> None:
    stage = await halfway()
    stage.store.forged = True
    error = await refused(stage, "store.invalid")
    assert "does not verify, and is left alone" in str(error)


@pytest.mark.rule("D1")
async def test_verifying_comes_before_all_that_is_asked_of_the_plan() -> None:
    stage = await halfway()
    stage.store.forged = True
    stage.agent = Agent(OWNER, stage.agent.card, Plan(on_the_way(3)))
    await refused(stage, "store.invalid")


@pytest.mark.rule("D1")
async def test_a_thread_that_was_never_begun_is_unknown() -> None:
    with pytest.raises(StoreError) as raised:
        await Stage().resume()
    assert raised.value.code == "store.unknown"


# Another run


def shrug(message: object, ack: object) -> Confirm:
    return Confirm()


OTHER_RUNS: dict[str, Callable[[Stage], dict[str, Any]]] = {
    "another limit": lambda stage: {"limits": Limits(max_messages=9)},
    "another judge": lambda stage: {"judge": shrug},
}


@pytest.mark.rule("D2")
@pytest.mark.parametrize("other", OTHER_RUNS)
async def test_a_run_with_other_terms_is_refused(other: str) -> None:
    stage = await halfway()
    await refused(stage, "run.plan", **OTHER_RUNS[other](stage))


@pytest.mark.rule("D2")
@pytest.mark.parametrize(
    "plan",
    [
        Plan(on_the_way(3)),
        Plan(on_the_way(2, payload="do it!")),
        Plan(on_the_way(2, corrections=2)),
        Plan(on_the_way(2, gate="after")),
        Plan(on_the_way(2, once=True)),
    ],
)
async def test_another_plan_is_refused(plan: Plan) -> None:
    stage = await halfway()
    stage.agent = replace(stage.agent, plan=plan)
    error = await refused(stage, "run.plan")
    assert "resume it with the plan, machine, limits and judge it had then" in str(error)


@pytest.mark.rule("D2")
async def test_another_machine_is_refused() -> None:
    stage = await halfway()
    stage.machine = Machine("a", [("a", "go", "b"), ("b", "go", "c")])
    await refused(stage, "run.plan")


CAST = {"anna": ScriptedPeer(ANNA), "ben": ScriptedPeer(BEN)}


@pytest.mark.rule("D2")
@pytest.mark.parametrize(
    ("peers", "approvers"),
    [
        ({**CAST, "cara": ScriptedPeer(CARA)}, {}),
        ({"anna": CAST["anna"]}, {}),
        ({"anna": CAST["ben"], "ben": CAST["anna"]}, {}),
        ({"anna": CAST["anna"], "ben": ScriptedPeer(CARA)}, {}),
        ({"anna": CAST["anna"], "bert": CAST["ben"]}, {}),
        (CAST, {"cara": CARA.public_key}),
        ({"anna": CAST["anna"]}, {"ben": BEN.public_key}),
    ],
)
async def test_other_members_are_refused(peers: dict[str, Any], approvers: dict[str, Any]) -> None:
    stage = await halfway(*on_the_way(2, to=["anna"]))
    error = await refused(stage, "run.peers", peers=peers, approvers=approvers)
    assert "begun with other members" in str(error)


@pytest.mark.rule("D2")
@pytest.mark.parametrize(("was", "given"), [(None, "ops"), ("ops", None), ("ops", "dev")])
async def test_another_room_is_refused(was: str | None, given: str | None) -> None:
    stage = await halfway(room=was)
    await refused(stage, "run.room", room=given)


def agent_of(identity: Identity, plan: Plan) -> Agent:
    return Agent(identity, Card.issue(identity, name="owner", capabilities=["test"]), plan)


@pytest.mark.rule("D2")
async def test_a_thread_that_another_key_opened_is_refused() -> None:
    stage = await halfway()
    stage.agent = agent_of(STRANGER, stage.agent.plan)
    before = await contents(stage)
    with pytest.raises(FlowError, match=r"run\.key"):
        await stage.resume()
    assert await contents(stage) == before


@pytest.mark.rule("D2")
async def test_the_order_in_which_members_are_given_does_not_matter() -> None:
    stage = await halfway()
    peers = stage.options["peers"]
    run = await stage.resume(peers={name: peers[name] for name in reversed(peers)})
    assert_ended(run.thread, "completed")


@pytest.mark.rule("D8")
@pytest.mark.parametrize("word", ["yes", None, True])
async def test_a_word_that_says_neither_again_nor_done_is_refused(word: Any) -> None:
    stage = await halfway()
    await refused(stage, "run.in_doubt", in_doubt={"to-b": word})


# Two of one run


@pytest.mark.rule("D3")
async def test_going_on_begins_with_an_entry_of_private_state() -> None:
    stage = await halfway()
    records, states = await contents(stage)
    await stage.fails(Superseded, lambda: gone_on_elsewhere(stage))
    assert [decode(state.data)["phase"] for state in (await contents(stage))[1][len(states) :]][:1] == ["resumed"]
    assert (await contents(stage))[0][: len(records)] == records


async def gone_on_elsewhere(stage: Stage) -> None:
    """Resume, and have another process resume to the end as soon as this one has said that it goes on."""

    async def step_in(kinds: list[str]) -> None:
        stage.store.after = None
        assert kinds == ["state"]
        await stage.reborn().resume()

    stage.store.after = step_in
    await stage.resume()


@pytest.mark.rule("D3")
async def test_of_two_that_resume_one_goes_on_and_the_other_appends_nothing_more() -> None:
    stage = await halfway()
    error = await stage.fails(Superseded, lambda: gone_on_elsewhere(stage))
    assert "another run of this key goes on" in str(error)
    assert_ended(error.thread, "completed")
    assert len(opened(await stage.records(), "message")) == 2


@pytest.mark.rule("D3")
async def test_a_run_that_is_still_under_way_is_superseded_by_the_one_that_resumes() -> None:
    stage = Stage(*on_the_way(2, to=["anna"]))

    class Slow(ScriptedPeer):
        async def ack(self, delivery: Any) -> Any:
            await stage.reborn().resume()
            return await super().ack(delivery)

    stage.options["peers"] = {"anna": Slow(ANNA), "ben": stage.ben}
    error = await stage.fails(Superseded)
    assert_ended(error.thread, "completed")
    assert len(opened(await stage.records(), "ack")) == 2


@pytest.mark.rule("D3")
@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_the_entry_alone_takes_the_thread_from_a_run_that_is_under_way(gate: Any) -> None:
    said = {} if gate == "none" else {"payload": "do it"}
    stage = Stage(*[Step(f"to-{there}", target=there, gate=gate, **said) for there in "bc"])
    held: list[bytes] = []

    async def step_in(kinds: list[str]) -> None:
        if "open" not in kinds and not held:
            other = stage.reborn()
            await other.dies(other.resume, "resumed")
            held.extend(await stage.store.store.read("t"))

    stage.store.after = step_in
    error = await stage.fails(Superseded)
    assert_ended(error.thread, None)
    assert list(await stage.records()) == held
    later = stage.reborn()
    assert_ended((await later.resume()).thread, "completed")


@pytest.mark.rule("D3", "R37")
async def test_a_key_that_is_no_moderator_any_more_does_not_go_on() -> None:
    stage = await halfway()
    await appended(stage.store.store, OWNER, Roster, change="role", key=BEN.public_key, role="moderator")
    await appended(stage.store.store, BEN, Roster, change="role", key=OWNER.public_key, role="member")
    before = await contents(stage)
    with pytest.raises(Superseded, match="no moderator"):
        await stage.resume()
    assert await contents(stage) == before


# Sealed threads


def fail(record: Any, call: Call) -> Any:
    raise ValueError("broken")


def grow(record: Any, call: Call) -> Any:
    return {"n": record["n"] + 1}


class Fickle(Machine):
    """A machine that forgets its last row once the run has begun."""

    forgetful = False

    def rows_to(self, status: str, target: str) -> tuple[Transition, ...]:
        return () if self.forgetful and target == "c" else super().rows_to(status, target)


def machine(**second: Any) -> Machine:
    return Fickle("a", [Transition("a", "go", "b", on_entry=grow), Transition("b", "go", "c", **second)])


async def leave(stage: Stage) -> None:
    async def after(kinds: list[str]) -> None:
        if kinds == ["message"] and len(await stage.records()) > 4:
            await appended(stage.store.store, ANNA, Roster, change="leave", key=ANNA.public_key)

    stage.store.after = after


async def forget(stage: Stage) -> None:
    async def after(kinds: list[str]) -> None:
        assert isinstance(stage.machine, Fickle)
        stage.machine.forgetful = kinds != ["open", "state"]

    stage.store.after = after


TO_ANNA = on_the_way(2, to=["anna"])
ENDS: dict[str, tuple[type[FlowError], str, dict[str, Any], Any]] = {
    "failed": (StepFailed, "failed", {"machine": machine(on_entry=fail)}, None),
    "no row": (NoTransition, "failed", {"machine": machine()}, forget),
    "declined": (Rejected, "rejected", {"machine": machine(), "anna": ["yes", Declined("no")]}, None),
    "corrected": (
        Rejected,
        "rejected",
        {"machine": machine(), "anna": ["yes", "wrong", "wrong again"], "judge": unless_wrong},
        None,
    ),
    "over budget": (OverBudget, "over_budget", {"machine": machine(), "limits": Limits(max_messages=1)}, None),
    "unable": (NoRecipient, "failed", {"machine": machine()}, leave),
}


@pytest.mark.rule("D11")
@pytest.mark.parametrize("end", ENDS)
async def test_a_run_that_ended_with_an_error_ends_with_it_again_and_appends_nothing(end: str) -> None:
    kind, outcome, options, prepare = ENDS[end]
    stage = Stage(*TO_ANNA, **options)
    if prepare is not None:
        await prepare(stage)
    first = await stage.fails(kind)
    before = await contents(stage)
    if isinstance(stage.machine, Fickle):
        stage.machine.forgetful = False
    for _ in range(2):
        later = stage.reborn(anna=["never asked"])
        error = await later.fails(kind, later.resume)
        assert_ended(error.thread, outcome)
        assert (str(error), error.code) == (str(first), first.code)
        assert (error.status, error.record, error.step) == ("b", {"n": 1}, "to-c")
        assert (first.status, first.record, first.step) == ("b", {"n": 1}, "to-c")
        assert (error.thread, await contents(later)) == (first.thread, before)
        assert (later.anna.deliveries, later.bus.events) == ([], [])


@pytest.mark.rule("D11")
@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_a_run_that_was_completed_is_given_again(gate: Any) -> None:
    said = {} if gate == "none" else {"payload": "do it"}
    stage = Stage(*[Step(f"to-{there}", target=there, gate=gate, **said) for there in "bc"], machine=machine())
    first = await stage.run()
    before = await contents(stage)
    later = stage.reborn()
    run = await later.resume()
    assert (run.status, run.record, dict(run.outcomes), run.thread) == (
        first.status,
        first.record,
        dict(first.outcomes),
        first.thread,
    )
    assert await contents(later) == before
    assert [event.name for event in later.bus.events] == ([] if gate == "none" else [THREAD_VERIFIED])


@pytest.mark.rule("D11")
@pytest.mark.parametrize("end", ["failed", "declined"])
async def test_a_run_that_died_just_after_it_sealed_ends_as_it_would_have(end: str) -> None:
    kind, outcome, options, _ = ENDS[end]
    undisturbed = Stage(*TO_ANNA, **options)
    first = await undisturbed.fails(kind)
    stage = await Stage(*TO_ANNA, **options).cut("seal")
    error = await stage.fails(kind, stage.resume)
    assert_ended(error.thread, outcome)
    assert (str(error), error.status, error.record, error.step) == (
        str(first),
        first.status,
        first.record,
        first.step,
    )


@pytest.mark.rule("D11")
async def test_a_failure_inside_a_sub_plan_is_given_again_as_it_was() -> None:
    inner = Plan([Step("inner", target="b", payload="inside")])
    rows = [Transition("a", "go", "b", on_entry=fail), ("b", "back", "a")]
    stage = Stage(Step("outer", sub=inner, payload="outside"), machine=Machine("a", rows))
    first = await stage.fails(StepFailed)
    later = stage.reborn()
    error = await later.fails(StepFailed, later.resume)
    assert (str(error), error.step, error.status) == (str(first), "outer/inner", "a")
    assert settled(error.thread.records) == {"inner": ("failed", 1, "a"), "outer": ("failed", None, "a")}


@pytest.mark.rule("D11", "R37")
async def test_a_thread_that_another_moderator_sealed_is_superseded() -> None:
    stage = await halfway()
    await appended(stage.store.store, OWNER, Roster, change="role", key=BEN.public_key, role="moderator")
    await appended(stage.store.store, BEN, Seal, outcome="cancelled", reason="enough")
    before = await contents(stage)
    with pytest.raises(Superseded, match="sealed, and not by its run"):
        await stage.resume()
    assert await contents(stage) == before


# Where private state and thread disagree


@pytest.mark.rule("D12")
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\x00",
        lambda data: encode({**decode(data), "more": 1}),
        lambda data: encode({**decode(data), "phase": "dreamt"}),
        lambda data: encode({key: value for key, value in decode(data).items() if key != "run"}),
        lambda data: encode({**decode(data), "settled": [{"outcome": "succeeded"}]}),
        lambda data: encode([decode(data)]),
    ],
)
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_private_state_that_is_damaged_is_refused(damage: Callable[[bytes], bytes], number: int) -> None:
    stage = await halfway()
    stored = stage.store.store._threads["t"]
    stored.states[number] = stored.states[number]._replace(data=damage(stored.states[number].data))
    error = await refused(stage, "store.state")
    assert f"entry {number}" in str(error)


@pytest.mark.rule("D12")
@pytest.mark.parametrize("left", [lambda states: [], lambda states: states[1:]])
async def test_private_state_without_a_beginning_is_refused(left: Callable[[list[State]], list[State]]) -> None:
    stage = await halfway()
    stored = stage.store.store._threads["t"]
    stored.states = left(stored.states)
    await refused(stage, "store.state")


@pytest.mark.rule("D12")
async def test_a_thread_that_lacks_records_which_its_private_state_knows_is_refused() -> None:
    stage = await halfway()
    stage.store.cut = 5
    error = await refused(stage, "store.stale")
    assert "lacks records that are known to exist" in str(error)


@pytest.mark.rule("D12")
async def test_private_state_that_lacks_settlements_which_the_thread_has_is_refused() -> None:
    stage = await Stage(*on_the_way(2)).cut("message", 2)
    stored = stage.store.store._threads["t"]
    assert decode(stored.states.pop().data)["phase"] == "done"
    error = await refused(stage, "store.stale")
    assert "settles more than the run's private state knows" in str(error)


@pytest.mark.rule("D12")
async def test_private_state_that_lacks_the_seal_of_its_own_run_is_refused() -> None:
    stage = Stage(machine=machine(), anna=[Declined("no")])
    await stage.fails(Rejected)
    later = stage.reborn()
    assert decode(stage.store.store._threads["t"].states.pop().data)["phase"] == "sealed"
    await refused(later, "store.stale")


@pytest.mark.rule("D12")
async def test_a_thread_that_lacks_a_record_the_caller_has_seen_is_refused() -> None:
    stage = await halfway()
    tip = (await stage.store.head("t")).tip
    await refused(stage, "store.stale", seen=bytes(32))
    assert_ended((await stage.resume(seen=tip)).thread, "completed")


@pytest.mark.rule("D12")
async def test_a_run_that_was_completed_elsewhere_is_not_taken_for_open() -> None:
    stage = Stage(*on_the_way(2))
    run = await stage.run()
    old = await halfway()
    await refused(old, "store.stale", seen=open_envelope(run.thread.records[-1]).address)


@pytest.mark.rule("D12")
async def test_what_other_members_said_since_is_taken_in() -> None:
    stage = await halfway()
    fields = {"id": "hers", "intent": "assert", "epistemic": "assumed", "payload": "by the way"}
    await appended(stage.store.store, ANNA, Message, **fields)
    run = await stage.resume()
    assert_ended(run.thread, "completed")
    assert [message.id for message in opened(run.thread.records, "message")] == ["to-b", "hers", "to-c"]


@pytest.mark.rule("D12")
async def test_a_thread_that_was_taken_in_from_elsewhere_has_no_run_to_go_on_with() -> None:
    elsewhere = await halfway()
    stage = Stage(*on_the_way(2))
    await stage.store.store.adopt("t", await elsewhere.records())
    error = await refused(stage, "store.state")
    assert "not its run's private state" in str(error)


# The record's type


class Order(BaseModel):
    n: int


class Other(BaseModel):
    name: str


@pytest.mark.rule("D6", "M14")
@pytest.mark.parametrize(
    ("was", "given"), [(Order(n=0), Other(name="x")), ({"n": 0}, [0]), ({"n": 0}, Other(name="x")), ([0], {"n": 0})]
)
async def test_a_record_of_another_type_than_the_stored_one_is_refused(was: Any, given: Any) -> None:
    stage = await halfway(record=was)
    stage.record = given
    before = await contents(stage)
    with pytest.raises(MachineError) as raised:
        await stage.resume()
    assert (raised.value.code, await contents(stage)) == ("machine.record", before)


@pytest.mark.rule("D6")
async def test_the_stored_record_takes_the_place_of_the_one_that_is_given() -> None:
    stage = await halfway(record=Order(n=7))
    stage.record = Order(n=99)
    assert (await stage.resume()).record == Order(n=7)


# Resuming more than once


@pytest.mark.rule("D3", "D13")
@pytest.mark.parametrize("what", ["resumed", "message", "ack", "done", "seal"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_resume_that_dies_is_resumed(what: str, when: Any) -> None:
    whole = await Stage(*on_the_way(3)).run()
    stage = await Stage(*on_the_way(3)).cut("done")
    deaths = 0
    for _ in range(3):
        stage.options["store"] = Until(stage.store, what, when=when)
        try:
            await stage.resume()
        except Crash:
            deaths += 1
        stage = stage.reborn()
    run = await stage.resume()
    assert (differences(whole.thread.records, run.thread.records), deaths > 0) == ([], True)


@pytest.mark.rule("D3")
async def test_a_run_that_paused_is_resumed_as_often_as_it_takes() -> None:
    stage = Stage(*on_the_way(1, to=["anna"]), anna=[Escalated("ask")])
    await stage.fails(Escalated)
    for _ in range(3):
        stage = stage.reborn(anna=[Escalated("ask again")])
        await stage.fails(Escalated, stage.resume)
    stage = stage.reborn()
    run = await stage.resume()
    assert_ended(run.thread, "completed")
    assert (len(opened(run.thread.records, "message")), len(stage.bus.named(STEP_COMPLETED))) == (1, 1)
