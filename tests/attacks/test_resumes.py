"""Runs that are resumed from a store whose private state somebody edited by hand, with every digest in order.

The thread is signed and the state is not. What the thread can tell, it tells; a state that says something else is
refused as damaged (rule D14), before anything is appended, fired or told.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from envelope.cbor import decode, encode
from flow import Call, Declined, FlowError, Machine, Panel, Plan, SqliteStore, State, Step, StoreError, Transition
from flow.store.commits import Commit, Standing, _digest
from flow.testing import Crash, Crashing
from tests.flow.stage import Stage, on_the_way

pytestmark = [pytest.mark.anyio, pytest.mark.rule("D14")]

Edit = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Fired:
    """A machine along a row that notes what it fired."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        rows = [("a", "b"), ("b", "c"), ("c", "d"), ("x", "y")]
        acting = [Transition(here, "go", there, on_entry=self._note) for here, there in rows]
        self.machine = Machine("a", [*acting, Transition("b", "break", "x", on_entry=self._fail)])

    def _note(self, record: Any, call: Call) -> Any:
        self.steps.append("/".join(call.step))
        return record

    def _fail(self, record: Any, call: Call) -> Any:
        raise ValueError("broken")


def choose(record: Any) -> str:
    return "left"


def first(record: Any, records: Sequence[Any]) -> Any:
    return records[0]


async def cut(*steps: Step, at: str | None, number: int = 1, **options: Any) -> tuple[Stage, Fired]:
    """Return the stage of a run that died once such a commit was made, or ended, as another process finds it."""
    stage = Stage(*steps, machine=Fired().machine, **options)
    if at == "begun":
        stage.options["store"] = Crashing(stage.store, 1)
        await stage.fails(Crash)
    elif at is not None:
        return await stage.cut(at, number), Fired()
    else:
        with suppress(FlowError):
            await stage.run()
    return stage.reborn(), Fired()


def states(stage: Stage) -> list[State]:
    return stage.store.store._threads["t"].states  # type: ignore[attr-defined, no-any-return]


def edit(stage: Stage, phase: str, change: Edit) -> None:
    """Change the last entry of a phase."""
    stored = states(stage)
    place = max(at for at, state in enumerate(stored) if decode(state.data)["phase"] == phase)
    stored[place] = stored[place]._replace(data=encode(change(decode(stored[place].data))))


def forge(stage: Stage, **entry: Any) -> None:
    """Add an entry to the state."""
    stored = states(stage)
    stored.append(stored[-1]._replace(data=encode({"run": bytes(8), **entry})))


def drop(stage: Stage, phase: str) -> None:
    stored = states(stage)
    stored[:] = [state for state in stored if decode(state.data)["phase"] != phase]


async def refused(found: tuple[Stage, Fired], code: str = "store.state", **options: Any) -> None:
    """Resume, and be refused with everything left alone: nothing appended, fired, asked or told."""
    stage, fired = found
    stage.machine = fired.machine
    before = list(await stage.records()), list(states(stage))
    with pytest.raises(FlowError) as raised:
        await stage.resume(**options)
    assert raised.value.code == code, raised.value
    assert (list(await stage.records()), list(states(stage))) == before
    assert (fired.steps, stage.anna.deliveries, stage.bus.events) == ([], [], [])


def done(*path: str, status: str = "b", **fields: Any) -> dict[str, Any]:
    return {"phase": "done", "at": [list(path)], "outcome": "succeeded", "status": status, **fields}


def entered(*path: str, outcome: str = "succeeded", status: str = "b") -> dict[str, Any]:
    return {"step": list(path), "outcome": outcome, "status": status}


# A step that is claimed to be done


async def test_a_gated_step_that_was_never_said_is_not_taken_for_done() -> None:
    """Else its thread is sealed completed, and nobody was ever asked."""
    found = await cut(*on_the_way(2), at="begun")
    forge(found[0], **done("to-b", settled=[entered("to-b")]))
    await refused(found)


async def test_a_done_that_settles_nothing_is_refused() -> None:
    found = await cut(*on_the_way(2), at="begun")
    forge(found[0], **done("to-b"))
    await refused(found)


async def test_a_step_whose_message_is_not_acknowledged_is_not_taken_for_done_and_nothing_after_it_fires() -> None:
    after = Step("next", target="c", gate="none", needs=["to-b"])
    found = await cut(*on_the_way(1), after, at="message")
    message = (await found[0].store.head("t")).tip
    forge(found[0], **done("to-b", settled=[{"message": message, "outcome": "succeeded", "status": "b"}]))
    await refused(found)


async def test_a_step_that_was_declined_is_not_taken_for_done_and_nothing_after_it_fires() -> None:
    after = Step("next", target="c", gate="none", needs=["to-b"])
    found = await cut(*on_the_way(1, to=["anna"]), after, at="ack", anna=[Declined("no")])
    message = (await found[0].store.head("t")).tip
    forge(found[0], **done("to-b", settled=[{"message": message, "outcome": "succeeded", "status": "b"}]))
    await refused(found)


async def test_a_member_of_a_panel_is_not_done_without_the_others() -> None:
    steps = [Step("one", target="b", gate="none"), Step("two", target="b", gate="none")]
    found = await cut(*steps, at="begun", panels=[Panel(["one", "two"], first)])
    forge(found[0], **done("one", settled=[entered("one")]))
    await refused(found)


async def test_a_step_is_not_done_twice() -> None:
    found = await cut(*on_the_way(2), at="done")
    failure = {"step": "to-b", "error": "E", "text": "t"}
    forge(found[0], **done("to-b") | {"outcome": "failed", "failure": failure})
    await refused(found)


async def test_a_step_that_the_plan_does_not_have_is_not_done() -> None:
    found = await cut(*on_the_way(1), at="begun")
    forge(found[0], **done("other", settled=[entered("other")]))
    await refused(found)


async def test_a_step_whose_needs_are_open_is_not_done() -> None:
    steps = [Step("one", target="b", gate="none"), Step("two", target="c", gate="none", needs=["one"])]
    found = await cut(*steps, at="begun")
    forge(found[0], **done("two", status="c", settled=[entered("two", status="c")]))
    await refused(found)


# What became of it


async def test_a_status_is_where_the_last_step_of_a_sub_plan_led() -> None:
    outer = Step("outer", sub=Plan([Step("one", target="b", gate="none")]), gate="none")
    found = await cut(outer, Step("then", target="c", needs=["outer"], payload="so"), at="message")
    edit(found[0], "done", lambda entry: entry | {"status": "c", "settled": [entered("outer", status="c")]})
    await refused(found)


async def test_a_failure_that_the_thread_tells_of_is_not_turned_into_a_success() -> None:
    steps = [
        Step("one", target="b", gate="none"),
        Step("two", target="x", needs=["one"], gate="none"),
        Step("then", target="y", needs=["two"], gate="none"),
        Step("rescue", target="c", needs=["two"], when="failed", payload="help"),
    ]
    found = await cut(*steps, at="message")

    def succeeded(entry: dict[str, Any]) -> dict[str, Any]:
        del entry["failure"]
        return entry | {"outcome": "succeeded", "status": "x", "settled": [entered("two", status="x")]}

    edit(found[0], "done", succeeded)
    await refused(found)


async def test_a_done_and_its_settlement_say_the_same() -> None:
    found = await cut(*on_the_way(2), at="done")
    edit(found[0], "done", lambda entry: entry | {"status": "c"})
    await refused(found)


ROUTED = [
    Step("one", target="b", gate="none", route=choose),
    Step("left", target="c", gate="none", needs=["one"]),
    Step("right", target="c", gate="none", needs=["one"]),
]


@pytest.mark.parametrize("chosen", [[], ["right"], ["left", "right"], ["other"], None])
async def test_what_a_route_chose_is_what_the_settlements_do_not_skip(chosen: list[str] | None) -> None:
    """Else a plan is sealed completed though nothing of it was done, skipped or said."""
    found = await cut(*ROUTED, at="done")
    drop_or_set = {"chosen": chosen} if chosen is not None else {}
    edit(found[0], "done", lambda entry: {k: v for k, v in entry.items() if k != "chosen"} | drop_or_set)
    await refused(found)


# A firing


async def test_a_step_is_not_fired_and_reported_without_its_report() -> None:
    found = await cut(*on_the_way(1, gate="after"), at="firing")
    forge(found[0], phase="fired", at=[["to-b"]], status="b", record='{"n":0}', attempts=1)
    await refused(found)


async def test_a_step_that_was_reported_is_not_fired_again_though_the_state_forgot_that_it_fired() -> None:
    found = await cut(*on_the_way(1, gate="after"), at="fired")
    drop(found[0], "fired")
    await refused(found)


async def test_an_action_that_runs_once_is_in_doubt_though_the_state_forgot_that_it_was_confirmed() -> None:
    """The thread tells that all were confirmed, and with the last confirmation the firing began."""
    found = await cut(*on_the_way(1, once=True), at="confirmed")
    drop(found[0], "confirmed")
    stage, fired = found
    stage.machine = fired.machine
    with pytest.raises(FlowError) as raised:
        await stage.resume()
    assert raised.value.code in ("run.in_doubt", "store.state")
    assert fired.steps == []


# The end


@pytest.mark.parametrize(
    "lie",
    [
        {"error": "OverBudget", "code": "run.over_budget", "text": "too much"},
        {"error": "Any"},
        {"error": "__doc__"},
        {"error": "Declined"},
        {"error": None, "code": None, "text": None},
    ],
)
async def test_a_seal_that_rejects_is_given_again_as_nothing_else(lie: dict[str, Any]) -> None:
    found = await cut(*on_the_way(1), at=None, anna=[Declined("no")])

    def told(entry: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in (entry | lie).items() if value is not None}

    edit(found[0], "sealed", told)
    await refused(found)


async def test_a_run_that_was_completed_is_not_given_again_as_rejected() -> None:
    found = await cut(*on_the_way(1), at=None)
    edit(found[0], "sealed", lambda entry: entry | {"error": "Rejected", "code": "run.rejected", "text": "no"})
    await refused(found)


async def test_a_status_that_the_seal_does_not_tell_is_not_given_again() -> None:
    found = await cut(*on_the_way(1), at=None)
    edit(found[0], "sealed", lambda entry: entry | {"status": "z"})
    await refused(found)


async def test_a_run_that_claims_to_be_sealed_has_a_seal() -> None:
    found = await cut(*on_the_way(2), at="done")
    forge(found[0], phase="sealed", status="c", record='{"n":0}')
    await refused(found)


async def test_what_a_sealed_thread_does_not_settle_is_not_given_as_settled() -> None:
    found = await cut(*on_the_way(1), at=None)
    edit(found[0], "sealed", lambda entry: entry | {"settled": [{"step": ["zz"], "outcome": "succeeded"}]})
    await refused(found)


async def test_an_outcome_that_a_sealed_thread_does_not_bear_out_is_not_given_again() -> None:
    found = await cut(*on_the_way(2), at=None)
    edit(found[0], "done", lambda entry: entry | {"status": "x"})
    await refused(found)


async def test_a_state_begins_once() -> None:
    found = await cut(*on_the_way(2), at="done")
    states(found[0]).append(states(found[0])[0])
    await refused(found)


# Entries of every shape


NOTHING: Any = object()
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("begun", {"status": "c"}),
    ("begun", {"settled": [{"step": ["zz"], "outcome": "succeeded"}]}),
    ("begun", {"attempt": 3}),
    ("confirmed", {"attempt": -1}),
    ("confirmed", {"attempt": 0}),
    ("confirmed", {"attempt": 2**53 - 1}),
    ("confirmed", {"at": []}),
    ("confirmed", {"at": [["to-z"]]}),
    ("confirmed", {"at": [["no such name"]]}),
    ("confirmed", {"phase": "round"}),
    ("confirmed", {"phase": "begun"}),
    ("done", {"outcome": NOTHING}),
    ("done", {"outcome": "failed"}),
    ("done", {"status": NOTHING}),
    ("done", {"status": "no such name"}),
    ("done", {"move": ["a"]}),
    ("done", {"move": []}),
    ("done", {"settled": NOTHING}),
    ("done", {"chosen": ["x"]}),
    ("done", {"failure": {"step": "to-b", "error": "E", "text": "t"}}),
    ("done", {"error": "Rejected"}),
]


@pytest.mark.parametrize(
    ("phase", "change"), SHAPES, ids=[f"{number} {phase}" for number, (phase, _) in enumerate(SHAPES)]
)
async def test_an_entry_of_a_shape_that_no_run_writes_is_refused(phase: str, change: dict[str, Any]) -> None:
    found = await cut(*on_the_way(2), at="done")
    edit(found[0], phase, lambda entry: {k: v for k, v in (entry | change).items() if v is not NOTHING})
    await refused(found)


# A file that was edited by hand


def rewrite(path: Path, change: Callable[[list[tuple[list[bytes], bytes | None]]], None]) -> None:
    """Change the commits of the file's thread, and make every number and digest fit again."""
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [Commit._make(row) for row in connection.execute("SELECT * FROM commits ORDER BY id")]
        commits = [(row.divided(), row.state) for row in rows]
        change(commits)
        connection.execute("DELETE FROM commits")
        standing = Standing(rows[0].id >> 32)
        for records, state in commits:
            row = standing.extend(records, state)
            connection.execute("INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


async def test_a_file_that_was_edited_with_fitting_digests_does_not_complete_what_was_never_said(
    tmp_path: Path,
) -> None:
    stage, path = Stage(*on_the_way(2)), tmp_path / "store"
    async with SqliteStore(path) as store:
        stage.store.store = store
        await stage.dies(stage.run, "message", when="before")
    forged = encode({"run": bytes(8), **done("to-b", settled=[entered("to-b")])})
    rewrite(path, lambda commits: commits.append(([], forged)))
    async with SqliteStore(path) as store:
        with pytest.raises(StoreError) as raised:
            await stage.agent.resume("t", stage.machine, stage.record, **{**stage.options, "store": store})
        assert raised.value.code == "store.state"
        assert len(await store.read("t")) == 1


async def test_a_thread_that_was_given_another_name_is_not_gone_on_with(tmp_path: Path) -> None:
    """Else two threads whose names were swapped are each resumed for the other."""
    stage, path = Stage(*on_the_way(2)), tmp_path / "store"
    async with SqliteStore(path) as store:
        stage.store.store = store
        await stage.dies(stage.run, "done")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE threads SET name = ?", (b"u",))
    async with SqliteStore(path) as store:
        before = await store.head("u")
        with pytest.raises(StoreError) as raised:
            await stage.agent.resume("u", stage.machine, stage.record, **{**stage.options, "store": store})
        assert (raised.value.code, await store.head("u")) == ("store.state", before)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE threads SET number = 1099511627776",
        "UPDATE threads SET number = -1",
        "UPDATE threads SET number = 9223372036854775807",
        "UPDATE threads SET name = 't'",
        "UPDATE threads SET name = 5",
        "UPDATE threads SET name = x'ff'",
        "INSERT INTO threads VALUES (9223372036854775807, x'75')",
        "INSERT INTO commits SELECT 9223372036854775807, place, seq, standing, states, tip, records, state, digest "
        "FROM commits LIMIT 1",
        "UPDATE commits SET records = x'ff'",
        "UPDATE commits SET tip = 'text'",
        "UPDATE commits SET seq = 'text'",
        "UPDATE commits SET digest = 5",
        "DELETE FROM commits",
    ],
)
async def test_a_file_with_odd_values_is_refused_in_words_or_still_right(tmp_path: Path, change: str) -> None:
    stage, path = Stage(*on_the_way(2)), tmp_path / "store"
    async with SqliteStore(path) as store:
        stage.store.store = store
        await stage.dies(stage.run, "done")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    later = Stage(*on_the_way(2))
    for use in ("names", "read", "states", "head", "resume", "create"):
        async with SqliteStore(path) as store:
            options = {**later.options, "store": store}
            with suppress(FlowError):
                if use == "names":
                    await store.names()
                elif use == "resume":
                    await later.agent.resume("t", later.machine, later.record, **options)
                elif use == "create":
                    await later.agent.run("another", later.machine, later.record, **options)
                else:
                    await getattr(store, use)("t")


@pytest.mark.parametrize("use", ["read", "head"])
async def test_records_that_were_edited_with_fitting_digests_are_never_given_out(tmp_path: Path, use: str) -> None:
    stage, path = Stage(*on_the_way(2)), tmp_path / "store"
    async with SqliteStore(path) as store:
        stage.store.store = store
        await stage.dies(stage.run, "done")
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [Commit._make(row) for row in connection.execute("SELECT * FROM commits WHERE length(records)")]
        row = rows[-1]._replace(records=rows[-1].records[:-1] + bytes([rows[-1].records[-1] ^ 1]))
        connection.execute(
            "UPDATE commits SET records = ?, digest = ? WHERE id = ?", (row.records, _digest(row), row.id)
        )
    async with SqliteStore(path) as store:
        with pytest.raises(StoreError) as raised:
            await getattr(store, use)("t")
        assert raised.value.code == "store.corrupt"


# Arguments


@pytest.mark.parametrize("seen", ["x", 5, b"x", bytearray(32)])
async def test_a_record_that_was_seen_is_named_by_its_address(seen: Any) -> None:
    stage, _ = await cut(*on_the_way(2), at="done")
    with pytest.raises(FlowError):
        await stage.resume(seen=seen)


@pytest.mark.parametrize("words", [None, ["to-b"], {1: "done"}, "done"])
async def test_words_on_what_is_in_doubt_come_by_path(words: Any) -> None:
    found = await cut(*on_the_way(2), at="done")
    await refused(found, "run.in_doubt", in_doubt=words)
