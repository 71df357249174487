"""An agent is an identity, its card and a plan, checked in this order; a run checks the rest before it begins."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from envelope import Card, Identity
from flow import Agent, FlowError, Job, Limits, Machine, MemoryStore, Plan, PlanError, Step, StoreError
from flow.errors import MachineError
from flow.testing import ScriptedPeer
from tests.flow.stage import (
    ANNA,
    BEN,
    CARA,
    CARD,
    OWNER,
    ROW,
    STRANGER,
    Stage,
    assert_ended,
    confirm,
    on_the_way,
    opened,
)

PLAN = Plan(on_the_way())


class Untouched:
    """Fails whoever looks at it."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was looked at")


def refused(*args: Any) -> tuple[str, str]:
    with pytest.raises(FlowError) as raised:
        Agent(*args)
    return raised.value.code, str(raised.value)


def posing(raw: bytes) -> Any:
    """The card's parsed form, over other bytes."""
    card = CARD.envelope
    return type(card)(card.record, card.signer, card.address, raw)


# Building one


@pytest.mark.rule("A1")
def test_an_agent_is_an_identity_its_card_and_a_plan() -> None:
    agent = Agent(OWNER, CARD, PLAN)
    assert (agent.identity, agent.card, agent.plan) == (OWNER, CARD, PLAN)


@pytest.mark.rule("A1")
@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((None, None, None), "agent.identity"),
        ((OWNER.public_key, CARD, PLAN), "agent.identity"),
        ((OWNER, None, None), "agent.card"),
        ((OWNER, CARD.raw, PLAN), "agent.card"),
        ((OWNER, CARD, None), "agent.plan"),
        ((OWNER, CARD, list(PLAN.steps)), "agent.plan"),
    ],
)
def test_identity_card_and_plan_are_checked_in_this_order(args: tuple[Any, ...], code: str) -> None:
    assert refused(*args)[0] == code


@pytest.mark.rule("A1")
@pytest.mark.parametrize("missing", ["identity", "card", "plan"])
def test_an_agent_without_one_of_the_three_is_not_built(missing: str) -> None:
    parts = {"identity": OWNER, "card": CARD, "plan": PLAN}
    del parts[missing]
    with pytest.raises(TypeError, match=missing):
        Agent(**parts)  # type: ignore[arg-type]


@pytest.mark.rule("A1")
def test_an_agent_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Agent(OWNER, CARD, PLAN).plan = PLAN  # type: ignore[misc]


@pytest.mark.rule("A2")
def test_the_card_of_another_key_is_refused() -> None:
    other = Card.issue(STRANGER, name="owner", capabilities=["test"])
    assert refused(OWNER, other, PLAN) == (
        "agent.card",
        "agent.card: the card is of another key than the identity's: issue one for it",
    )


@pytest.mark.rule("A2")
def test_a_card_of_the_key_may_be_signed_by_an_issuer() -> None:
    issued = Card.issue(STRANGER, name="owner", capabilities=["test"], key=OWNER.public_key)
    assert Agent(OWNER, issued, PLAN).card is issued


@pytest.mark.rule("A2")
def test_a_card_that_the_identity_signed_for_another_key_is_refused() -> None:
    other = Card.issue(OWNER, name="owner", capabilities=["test"], key=STRANGER.public_key)
    assert refused(OWNER, other, PLAN)[0] == "agent.card"


@pytest.mark.rule("A2")
def test_a_card_that_does_not_verify_is_refused() -> None:
    raw = CARD.raw[:-1] + bytes([CARD.raw[-1] ^ 1])
    broken = Card(posing(raw))
    code, text = refused(OWNER, broken, PLAN)
    assert (code, "signature.invalid" in text) == ("agent.card", True)


@pytest.mark.rule("A2")
def test_a_cards_parsed_form_counts_for_nothing_beside_its_bytes() -> None:
    other = Card.issue(STRANGER, name="owner", capabilities=["test"])
    assert refused(OWNER, Card(posing(other.raw)), PLAN)[0] == "agent.card"


@pytest.mark.rule("A3")
def test_name_and_capabilities_are_the_cards() -> None:
    card = Card.issue(OWNER, name="Olga Owner", capabilities=["write", "edit"])
    agent = Agent(OWNER, card, PLAN)
    assert (agent.name, agent.capabilities) == ("Olga Owner", ("edit", "write"))


@pytest.mark.rule("A4")
@pytest.mark.anyio
async def test_an_agent_may_run_again_under_another_name() -> None:
    stage = Stage()
    agent = stage.agent
    for name in ("t", "u"):
        run = await agent.run(name, ROW, {}, **{**stage.options, "peers": {"anna": ScriptedPeer(ANNA)}})
        assert_ended(run.thread, "completed")
    assert await stage.store.names() == ["t", "u"]


@pytest.mark.rule("A4")
@pytest.mark.anyio
async def test_an_agent_without_a_store_begins_anew_each_time() -> None:
    stage = Stage()
    for _ in range(2):
        options = {**stage.options, "store": None, "peers": {"anna": ScriptedPeer(ANNA)}}
        assert_ended((await stage.agent.run("t", ROW, {}, **options)).thread, "completed")


# Its name in a thread


@pytest.mark.rule("A5")
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "taken", "member"),
    [
        ("olga", "anna", "olga"),
        ("Olga Owner", "anna", "owner"),
        ("anna", "anna", "owner"),
        ("owner", "owner", "owner-2"),
        ("Olga Owner", "owner", "owner-2"),
    ],
)
async def test_an_agent_is_a_member_under_its_cards_name_where_that_will_do(name: str, taken: str, member: str) -> None:
    agent = Agent(OWNER, Card.issue(OWNER, name=name, capabilities=["test"]), PLAN)
    run = await agent.run("t", ROW, {}, peers={taken: ScriptedPeer(ANNA)}, judge=confirm)
    members = {m.key: m.name for m in opened(run.thread.records, "open")[0].members}
    assert members == {OWNER.public_key: member, ANNA.public_key: taken}


# What a run checks before it begins


BAD = {
    "peers": {"peers": {"anna": ScriptedPeer(OWNER)}},
    "name": {"name": "no name"},
    "limits": {"limits": {"max_bytes": 1}},
    "room": {"room": "no room"},
}


@pytest.mark.rule("R1")
@pytest.mark.anyio
@pytest.mark.parametrize(
    "wrong", [["peers", "name", "limits", "room"], ["name", "limits", "room"], ["limits", "room"], ["room"]]
)
async def test_peers_name_limits_and_room_are_checked_in_this_order(wrong: list[str]) -> None:
    options: dict[str, Any] = {"name": "t", "peers": {"anna": ScriptedPeer(ANNA)}, "limits": Limits(), "room": None}
    for part in wrong:
        options |= BAD[part]
    store = MemoryStore()
    with pytest.raises(FlowError) as raised:
        await Agent(OWNER, CARD, PLAN).run(
            options.pop("name"), Untouched(), Untouched(), judge=confirm, store=store, **options  # type: ignore[arg-type]
        )  # fmt: skip
    assert (raised.value.code, await store.names()) == (f"run.{wrong[0]}", [])


@pytest.mark.rule("R1")
@pytest.mark.anyio
async def test_the_identity_is_checked_before_everything_else() -> None:
    agent = Agent(OWNER, CARD, PLAN)
    object.__setattr__(agent, "identity", None)
    with pytest.raises(FlowError) as raised:
        await agent.run("no name", Untouched(), Untouched(), peers=Untouched(), judge=confirm)  # type: ignore[arg-type]
    assert raised.value.code == "run.identity"


@pytest.mark.rule("R1")
@pytest.mark.anyio
async def test_the_plan_is_not_looked_at_before_the_arguments_are_in_order() -> None:
    agent = Agent(OWNER, CARD, PLAN)
    object.__setattr__(agent, "plan", Untouched())
    with pytest.raises(FlowError) as raised:
        await agent.run("no name", ROW, {}, peers={}, judge=confirm)
    assert raised.value.code == "run.name"


@pytest.mark.rule("A6")
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("peers", "approvers"),
    [
        ({"no name": ScriptedPeer(ANNA)}, {}),
        ({7: ScriptedPeer(ANNA)}, {}),
        ({"anna": object()}, {}),
        ({"anna": ScriptedPeer(ANNA), "ben": ScriptedPeer(ANNA)}, {}),
        ({"me": ScriptedPeer(OWNER)}, {}),
        ({"anna": ScriptedPeer(ANNA)}, {"anna": BEN.public_key}),
        ({"anna": ScriptedPeer(ANNA)}, {"boss": ANNA.public_key}),
        ({"anna": ScriptedPeer(ANNA)}, {"boss": OWNER.public_key}),
        ({"anna": ScriptedPeer(ANNA)}, {"no name": CARA.public_key}),
        ({"anna": ScriptedPeer(ANNA)}, {"boss": b"short"}),
        ({"anna": ScriptedPeer(ANNA)}, {"boss": bytes(32)}),
        ({"anna": ScriptedPeer(ANNA)}, {"boss": "x" * 32}),
        ([ScriptedPeer(ANNA)], {}),
        ({"anna": ScriptedPeer(ANNA)}, [CARA.public_key]),
    ],
)
async def test_each_member_has_a_name_and_an_acceptable_key_of_its_own(peers: Any, approvers: Any) -> None:
    store = MemoryStore()
    with pytest.raises(FlowError) as raised:
        await Agent(OWNER, CARD, PLAN).run("t", ROW, {}, peers=peers, approvers=approvers, judge=confirm, store=store)
    assert (raised.value.code, await store.names()) == ("run.peers", [])


@pytest.mark.rule("A6")
@pytest.mark.anyio
async def test_a_thread_has_256_members_at_most() -> None:
    many = {f"p-{n}": ScriptedPeer(Identity.from_seed(bytes([9, n]) + bytes(30))) for n in range(256)}
    agent = Agent(OWNER, CARD, Plan([Step("s", target="b", gate="none")]))
    with pytest.raises(FlowError, match="255 at most") as raised:
        await agent.run("t", ROW, {}, peers=many, judge=confirm)
    assert raised.value.code == "run.peers"
    del many["p-0"]
    run = await agent.run("t", ROW, {}, peers=many, judge=confirm)
    assert len(opened(run.thread.records, "open")[0].members) == 256


@pytest.mark.rule("A7")
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("step", "peers"),
    [
        (Step("s", target="b", payload="do it", to=["zoe"]), {"anna": ScriptedPeer(ANNA)}),
        (Step("s", target="b", payload="do it", to=["anna", "zoe"]), {"anna": ScriptedPeer(ANNA)}),
        (Step("s", target="b", payload="do it", to=["boss"]), {"anna": ScriptedPeer(ANNA)}),
        (Step("s", target="b", payload="do it"), {}),
        (Step("s", target="b", payload="do it", gate="after"), {}),
    ],
)
async def test_a_gated_step_is_to_peers_of_the_run(step: Step, peers: Any) -> None:
    store = MemoryStore()
    with pytest.raises(PlanError, match="no peer of this run") as raised:
        await Agent(OWNER, CARD, Plan([step])).run(
            "t", ROW, {}, peers=peers, approvers={"boss": CARA.public_key}, judge=confirm, store=store
        )
    assert (raised.value.code, await store.names()) == ("plan.to", [])


@pytest.mark.rule("A7")
@pytest.mark.anyio
async def test_steps_that_are_not_gated_need_no_peer() -> None:
    agent = Agent(OWNER, CARD, Plan([Step("s", target="b", gate="none")]))
    assert_ended((await agent.run("t", ROW, {}, peers={}, judge=confirm)).thread, "completed")


@pytest.mark.rule("R2")
@pytest.mark.anyio
async def test_a_plan_that_does_not_fit_the_machine_is_refused_before_anything_is_appended() -> None:
    stage = Stage(Step("s", target="c", payload="do it"), Step("u", target="e", payload="do it"))
    error = await stage.fails(PlanError)
    assert (error.code, "step 's'" in str(error), "step 'u'" in str(error)) == ("plan.machine", True, True)
    assert (await stage.store.names(), stage.bus.events, stage.monitor.beats) == ([], [], [])


@pytest.mark.rule("R2")
@pytest.mark.anyio
async def test_a_record_that_is_none_is_refused_before_anything_is_appended() -> None:
    stage = Stage(record={"when": object()})
    error = await stage.fails(MachineError)
    assert (error.code, await stage.store.names()) == ("machine.record", [])


@pytest.mark.rule("R4")
@pytest.mark.anyio
async def test_a_name_that_the_store_holds_is_refused_and_the_thread_left_alone() -> None:
    stage = Stage()
    first = await stage.run()
    error = await stage.fails(StoreError)
    assert error.code == "store.exists"
    assert (error.status, error.record, error.step, error.thread) == (None, None, None, None), "nothing was begun"
    assert tuple(await stage.records()) == first.thread.records


@pytest.mark.rule("R3")
@pytest.mark.anyio
async def test_a_run_without_a_store_keeps_its_thread_in_memory() -> None:
    stage = Stage(store=None)
    assert_ended((await stage.run()).thread, "completed")


@pytest.mark.rule("R2")
@pytest.mark.anyio
async def test_a_machine_that_has_other_statuses_only_is_refused() -> None:
    stage = Stage(machine=Machine("x", [("x", "go", "y")]))
    assert (await stage.fails(PlanError)).code == "plan.machine"


@pytest.mark.rule("R2")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"record": {"when": object()}}, "machine.record"),
        ({"machine": Machine("x", [("x", "go", "y")])}, "plan.machine"),
        ({"peers": {"anna": ScriptedPeer(OWNER)}}, "run.peers"),
        ({"peers": {}}, "plan.to"),
        ({"room": "no room"}, "run.room"),
    ],
)
def test_what_a_run_would_refuse_is_refused_by_a_check_too(changes: dict[str, Any], code: str | None) -> None:
    job = Job(Agent(OWNER, CARD, PLAN), ROW, {}, peers={"anna": ScriptedPeer(ANNA)}, judge=confirm)
    try:
        replace(job, **changes).check()
        found = None
    except FlowError as error:
        found = error.code
    assert found == code


def test_a_step_of_a_sub_plan_that_is_to_nobody_is_told_by_its_path() -> None:
    inner = Plan([Step("deep", target="b", payload="do it", to=["nobody"])])
    agent = Agent(OWNER, CARD, Plan([Step("s", sub=inner, payload="do it")]))
    with pytest.raises(PlanError) as raised:
        Job(agent, ROW, {}, peers={"anna": ScriptedPeer(ANNA)}, judge=confirm).check()
    assert (raised.value.code, raised.value.step) == ("plan.to", "s/deep")
