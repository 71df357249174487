import json
import math
from copy import deepcopy
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from flow.errors import GuardRefused, MachineError
from flow.machine import Call, Machine, Slot, Transition, check_record

pytestmark = pytest.mark.anyio


class Release(BaseModel):
    notes: list[str] = []


@dataclass
class Parcel:
    stops: list[str] = field(default_factory=list)


def call(slot: Slot) -> Call:
    return Call(("review",), slot.encode().ljust(32))


def machine_of(**hooks: Any) -> tuple[Machine, Transition]:
    row = Transition("draft", "review", "reviewed", **hooks)
    return Machine("draft", [row]), row


def adding(text: str) -> Any:
    def act(record: Any, call: Call) -> Any:
        record["log"].append(text)
        return record

    return act


@pytest.mark.rule("M1")
@pytest.mark.parametrize("rows", [[], (), iter(())])
def test_a_machine_without_rows_is_refused(rows: Any) -> None:
    with pytest.raises(MachineError, match="at least one") as caught:
        Machine("draft", rows)
    assert caught.value.code == "machine.rows"


@pytest.mark.rule("M1")
@pytest.mark.parametrize("row", ["abc", ("draft", "review"), ("draft", "review", "reviewed", None), None, 7])
def test_what_is_no_row_is_refused_and_shown(row: Any) -> None:
    with pytest.raises(MachineError, match="is no row") as caught:
        Machine("draft", [row])
    assert caught.value.code == "machine.rows"
    assert repr(row) in str(caught.value)


@pytest.mark.rule("M1")
def test_a_text_in_place_of_the_rows_is_refused() -> None:
    with pytest.raises(MachineError, match="give a list"):
        Machine("draft", "abc")  # type: ignore[arg-type]


@pytest.mark.rule("M1")
def test_a_tuple_is_short_for_a_row_without_hooks() -> None:
    row = ("draft", "review", "reviewed")
    assert Machine("draft", [row]).rows == (Transition(*row),)


@pytest.mark.rule("M2")
@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a#2", "é", "a\n", "x" * 65, None, 3, ["draft"]])
@pytest.mark.parametrize("place", range(4))
def test_a_status_or_trigger_that_is_no_name_is_refused_and_shown(name: Any, place: int) -> None:
    names: list[Any] = ["draft", "draft", "review", "reviewed"]
    names[place] = name
    with pytest.raises(MachineError) as caught:
        Machine(names[0], [(names[1], names[2], names[3])])
    assert caught.value.code == "machine.name"
    assert repr(name) in str(caught.value)


@pytest.mark.rule("M2")
def test_a_name_of_64_characters_is_taken() -> None:
    name = "0" + "aZ._-"[:4] * 15 + "abc"
    assert Machine("draft", [("draft", name, name)]).statuses == {"draft", name}


@pytest.mark.rule("M3")
def test_a_row_that_leads_to_its_own_source_is_refused() -> None:
    with pytest.raises(MachineError, match=r"\('reviewed', 'again'\) -> 'reviewed'") as caught:
        Machine("draft", [("draft", "review", "reviewed"), ("reviewed", "again", "reviewed")])
    assert caught.value.code == "machine.self_loop"


@pytest.mark.rule("M4")
@pytest.mark.parametrize("second", ["reviewed", "dropped"])
def test_a_source_and_trigger_given_twice_are_refused(second: str) -> None:
    with pytest.raises(MachineError, match=r"\('draft', 'review'\)") as caught:
        Machine("draft", [("draft", "review", "reviewed"), ("draft", "review", second)])
    assert caught.value.code == "machine.duplicate"


@pytest.mark.rule("M4")
def test_one_trigger_may_leave_several_sources() -> None:
    assert len(Machine("a", [("a", "go", "b"), ("b", "go", "a")]).rows) == 2


@pytest.mark.parametrize("second", [("a", "go", "c"), ("b", "stay", "b"), ("x", "go", "b"), ("b", "no name", "c")])
def test_an_error_tells_the_number_of_its_row(second: tuple[str, str, str]) -> None:
    with pytest.raises(MachineError) as caught:
        Machine("a", [("a", "go", "b"), second])
    assert caught.value.row == 1


def test_an_error_of_no_row_tells_no_number() -> None:
    with pytest.raises(MachineError) as caught:
        Machine("no name", [("a", "go", "b")])
    assert caught.value.row is None


@pytest.mark.rule("M5")
def test_a_row_that_cannot_be_reached_is_refused() -> None:
    rows = [("draft", "review", "reviewed"), ("lost", "find", "draft")]
    with pytest.raises(MachineError, match="'lost' cannot be reached from 'draft'") as caught:
        Machine("draft", rows)
    assert caught.value.code == "machine.unreachable"


@pytest.mark.rule("M5")
def test_two_statuses_that_only_reach_each_other_are_refused() -> None:
    rows = [("draft", "review", "reviewed"), ("x", "go", "y"), ("y", "go", "x")]
    with pytest.raises(MachineError, match="'x' cannot be reached"):
        Machine("draft", rows)


@pytest.mark.rule("M5")
def test_rows_may_be_declared_in_any_order() -> None:
    rows = [("c", "go", "d"), ("b", "go", "c"), ("a", "go", "b")]
    assert Machine("a", rows).statuses == {"a", "b", "c", "d"}


@pytest.mark.rule("M6")
def test_a_machine_gives_all_rows_between_two_statuses() -> None:
    machine = Machine("a", [("a", "walk", "b"), ("a", "run", "b"), ("b", "back", "a")])
    assert [row.trigger for row in machine.rows_to("a", "b")] == ["walk", "run"]
    assert [row.trigger for row in machine.rows_to("b", "a")] == ["back"]
    assert machine.rows_to("a", "nowhere") == ()


@pytest.mark.rule("M7")
async def test_guard_then_exit_then_entry_are_called_and_the_target_is_reached() -> None:
    seen: list[tuple[str, list[str]]] = []

    async def guard(record: Any, call: Call) -> bool:
        await anyio.lowlevel.checkpoint()
        seen.append(("guard", list(record["log"])))
        return True

    def leave(record: Any, call: Call) -> Any:
        seen.append(("exit", list(record["log"])))
        return {"log": [*record["log"], "left"]}

    async def enter(record: Any, call: Call) -> Any:
        await anyio.lowlevel.checkpoint()
        seen.append(("entry", list(record["log"])))
        return {"log": [*record["log"], "entered"]}

    machine, row = machine_of(guard=guard, on_exit=leave, on_entry=enter)
    assert await machine.fire("draft", {"log": []}, row, call) == ("reviewed", {"log": ["left", "entered"]})
    assert seen == [("guard", []), ("exit", []), ("entry", ["left"])]


@pytest.mark.rule("M7")
async def test_a_row_without_hooks_only_moves() -> None:
    machine, row = machine_of()
    assert await machine.fire("draft", {"n": 1}, row, call) == ("reviewed", {"n": 1})


@pytest.mark.rule("M8")
@pytest.mark.parametrize("record", [{"log": []}, [[]], Release(), Parcel()])
async def test_no_hook_gets_at_the_record_of_another(record: Any) -> None:
    original = deepcopy(record)

    def spoil(record: Any, call: Call) -> bool:
        match record:
            case {"log": log}:
                log.append("spoilt")
            case Release(notes=log) | Parcel(stops=log) | [log]:
                log.append("spoilt")
        return True

    def check(record: Any, call: Call) -> Any:
        assert record == original
        return record

    machine, row = machine_of(guard=spoil, on_exit=check)
    assert await machine.fire("draft", record, row, call) == ("reviewed", original)
    assert record == original


@pytest.mark.rule("M8")
async def test_an_entry_action_does_not_get_the_object_that_the_exit_action_kept() -> None:
    kept: list[Any] = []

    def leave(record: Any, call: Call) -> Any:
        kept.append(record)
        return record

    machine, row = machine_of(on_exit=leave, on_entry=adding("entered"))
    await machine.fire("draft", {"log": []}, row, call)
    assert kept == [{"log": []}]


@pytest.mark.rule("M8")
async def test_what_firing_returns_shares_nothing_with_what_came_in_or_an_action_kept() -> None:
    kept: list[Any] = []

    def enter(record: Any, call: Call) -> Any:
        kept.append(record)
        return record

    machine, row = machine_of(on_entry=enter)
    fired: dict[str, Any]
    _, fired = await machine.fire("draft", {"log": []}, row, call)
    kept[0]["log"].append("later")
    assert fired == {"log": []}
    plain, row = machine_of()
    _, again = await plain.fire("draft", fired, row, call)
    again["log"].append("later")
    assert fired == {"log": []}


@pytest.mark.rule("M9")
@pytest.mark.parametrize("slot", ["guard", "on_exit", "on_entry"])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_what_a_hook_raises_comes_out_as_it_was_and_the_record_stands(slot: str, kind: str) -> None:
    error = LookupError("no such release")

    def fail(record: Any, call: Call) -> Any:
        record["log"].append("spoilt")
        raise error

    async def fail_async(record: Any, call: Call) -> Any:
        return fail(record, call)

    machine, row = machine_of(**{"on_exit": adding("left"), slot: fail if kind == "sync" else fail_async})
    record: dict[str, Any] = {"log": []}
    with pytest.raises(LookupError) as caught:
        await machine.fire("draft", record, row, call)
    assert caught.value is error
    assert record == {"log": []}


@pytest.mark.rule("M9")
async def test_nothing_is_called_after_a_hook_that_raises() -> None:
    called: list[str] = []

    def enter(record: Any, call: Call) -> Any:
        called.append("entry")
        return record

    def fail(record: Any, call: Call) -> Any:
        raise LookupError

    machine, row = machine_of(on_exit=fail, on_entry=enter)
    with pytest.raises(LookupError):
        await machine.fire("draft", {}, row, call)
    assert called == []


@pytest.mark.rule("M10")
async def test_a_guard_that_says_no_ends_the_firing_before_any_action() -> None:
    called: list[str] = []
    machine, row = machine_of(guard=lambda record, call: False, on_exit=lambda record, call: called.append("exit"))
    with pytest.raises(GuardRefused, match=r"\('draft', 'review'\) -> 'reviewed' said no") as caught:
        await machine.fire("draft", {}, row, call)
    assert caught.value.code == "machine.guard_no"
    assert called == []


@pytest.mark.rule("M10")
@pytest.mark.parametrize("answer", [None, 0, 1, "yes"])
async def test_a_guard_that_answers_neither_true_nor_false_is_a_fault(answer: Any) -> None:
    machine, row = machine_of(guard=lambda record, call: answer)
    with pytest.raises(MachineError, match="return True or False") as caught:
        await machine.fire("draft", {}, row, call)
    assert caught.value.code == "machine.guard"


@pytest.mark.rule("M11")
@pytest.mark.parametrize(
    "record",
    [Release(), Parcel(), {}, [], "text", 1, 1.5, True, None, {"a": [{"b": None}, 1.0, False, "c"]}],
)
def test_models_dataclasses_and_json_data_are_records(record: Any) -> None:
    check_record(record)


class Odd:
    pass


@pytest.mark.rule("M11")
@pytest.mark.parametrize(
    ("record", "named"),
    [
        (Odd(), "a Odd"),
        (Parcel, "a type"),
        (Release, "a ModelMetaclass"),
        ((1, 2), "a tuple"),
        ({"a": {1, 2}}, "a set"),
        ([{"a": b"bytes"}], "a bytes"),
        ({1: "a"}, "the key 1"),
        ({"a": {None: 1}}, "the key None"),
        (math.nan, "nan"),
        ([math.inf], "inf"),
        ({"a": Release()}, "a Release"),
    ],
)
def test_what_is_no_record_is_refused_and_named(record: Any, named: str) -> None:
    with pytest.raises(MachineError, match=named) as caught:
        check_record(record)
    assert caught.value.code == "machine.record"


@pytest.mark.rule("M11")
def test_a_record_that_holds_itself_is_refused() -> None:
    record: list[Any] = []
    record.append(record)
    with pytest.raises(MachineError, match="nested without end"):
        check_record(record)


@pytest.mark.rule("M11")
async def test_firing_refuses_what_is_no_record_before_any_hook() -> None:
    called: list[str] = []
    machine, row = machine_of(guard=lambda record, call: called.append("guard"))
    with pytest.raises(MachineError, match="a Odd"):
        await machine.fire("draft", Odd(), row, call)
    assert called == []


@pytest.mark.rule("M11")
@pytest.mark.parametrize("slot", ["on_exit", "on_entry"])
@pytest.mark.parametrize("made", [None, [], Parcel()])
async def test_an_action_that_returns_another_type_is_a_fault(slot: str, made: Any) -> None:
    machine, row = machine_of(**{slot: lambda record, call: made})
    with pytest.raises(MachineError, match=f"{slot} of .* return the record") as caught:
        await machine.fire("draft", {}, row, call)
    assert caught.value.code == "machine.action"


@pytest.mark.rule("M11")
@pytest.mark.parametrize("slot", ["on_exit", "on_entry"])
async def test_an_action_that_puts_something_else_into_json_data_is_a_fault(slot: str) -> None:
    machine, row = machine_of(**{slot: lambda record, call: {"when": Odd()}})
    with pytest.raises(MachineError, match="a Odd") as caught:
        await machine.fire("draft", {}, row, call)
    assert caught.value.code == "machine.record"


@pytest.mark.rule("M12")
async def test_a_row_that_does_not_leave_the_present_status_is_not_fired() -> None:
    machine = Machine("draft", [("draft", "review", "reviewed"), ("reviewed", "ship", "released")])
    with pytest.raises(MachineError, match="does not leave 'draft'") as caught:
        await machine.fire("draft", {}, machine.rows[1], call)
    assert caught.value.code == "machine.row"


@pytest.mark.rule("M12")
async def test_a_row_of_another_machine_is_not_fired() -> None:
    machine, row = machine_of()
    with pytest.raises(MachineError, match="does not leave 'draft' in this machine"):
        await machine.fire("draft", {}, Transition("draft", "review", "reviewed", on_exit=adding("x")), call)
    assert (await machine.fire("draft", {}, row, call))[0] == "reviewed"


@pytest.mark.rule("M12")
def test_a_row_cannot_be_changed_under_its_machine() -> None:
    _, row = machine_of()
    with pytest.raises(FrozenInstanceError):
        row.target = "draft"  # type: ignore[misc]


@pytest.mark.rule("M13")
def test_a_call_is_the_first_attempt_without_message_or_failure_unless_it_says_otherwise() -> None:
    made = Call(("review",), bytes(32))
    assert (made.attempt, made.message, made.failure) == (1, None, None)


@pytest.mark.rule("M13")
def test_a_call_cannot_be_changed() -> None:
    made = Call(("review",), bytes(32), attempt=2, message="m", failure="f")
    assert (made.step, made.key, made.attempt, made.message, made.failure) == (("review",), bytes(32), 2, "m", "f")
    with pytest.raises(FrozenInstanceError):
        made.attempt = 3  # type: ignore[misc]


@pytest.mark.rule("M13")
async def test_each_hook_has_a_call_of_its_own() -> None:
    told: list[Call] = []

    def hook(record: Any, call: Call) -> Any:
        told.append(call)
        return record

    machine, row = machine_of(guard=hook, on_exit=hook, on_entry=hook)
    await machine.fire("draft", True, row, call)
    assert told == [call("guard"), call("on_exit"), call("on_entry")]


NAMES = st.sampled_from("abcdef")
ROWS = st.lists(st.tuples(NAMES, NAMES, NAMES), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def reachable(initial: str, rows: list[tuple[str, str, str]]) -> set[str]:
    reached = {initial}
    for _ in rows:
        reached |= {target for source, _, target in rows if source in reached}
    return reached


@pytest.mark.rule("M1", "M3", "M4", "M5")
@given(NAMES, ROWS)
def test_exactly_the_machines_that_keep_the_rules_are_built(initial: str, rows: list[tuple[str, str, str]]) -> None:
    sound = (
        rows != []
        and all(source != target for source, _, target in rows)
        and len({(source, trigger) for source, trigger, _ in rows}) == len(rows)
        and {source for source, _, _ in rows} <= reachable(initial, rows)
    )
    try:
        machine = Machine(initial, rows)
    except MachineError:
        assert not sound
    else:
        assert sound
        assert machine.statuses == reachable(initial, rows)


@pytest.mark.rule("M11")
@given(JSON)
def test_all_json_data_is_a_record_and_survives_writing(record: Any) -> None:
    check_record(record)
    assert json.loads(json.dumps(record)) == record


@pytest.mark.rule("M8", "M9")
@given(JSON, st.sampled_from(["guard", "on_exit", "on_entry"]), st.booleans())
async def test_no_firing_changes_the_record_it_was_given(record: Any, slot: str, failing: bool) -> None:
    def spoil(record: Any, call: Call) -> Any:
        if isinstance(record, list | dict):
            record.clear()
        if failing:
            raise LookupError
        return True if slot == "guard" else record

    before = deepcopy(record)
    machine, row = machine_of(**{slot: spoil})
    try:
        status, fired = await machine.fire("draft", record, row, call)
    except LookupError:
        assert failing
    else:
        assert status == "reviewed"
        assert type(fired) is type(record)
    assert record == before
