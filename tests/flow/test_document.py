import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.cbor import decode, encode
from flow.budget import Limits
from flow.document import document, documents, read_document
from flow.errors import PlanError
from flow.machine import Machine, Transition
from flow.plan import Loop, Panel, Plan, Retry, Step
from tests.flow.plandraw import again, choose, merge, say, step, told_plans

MACHINE = Machine("draft", [("draft", "review", "reviewed"), ("reviewed", "ship", "released")])


def judge(message: object, ack: object) -> None: ...


def ready(record: Any, call: Any) -> bool:
    return True


def entered(record: Any, call: Any) -> Any:
    return record


def said(name: str, *needs: str, target: str = "reviewed", **more: Any) -> Step:
    return Step(name, **{"target": target, "needs": needs, "payload": f"Do {name}", **more})


def release() -> Plan:
    return Plan([said("review", to=["reviewer"]), said("ship", "review", target="released", to=["reviewer"])])


def written(plan: Plan, machine: Machine = MACHINE, limits: Limits = Limits(), **more: Any) -> Any:  # noqa: B008
    return decode(document(plan, machine, limits, judge, **more))


# What stands in a document


@pytest.mark.rule("P17", "P18")
def test_the_document_of_a_small_plan_holds_what_was_given_and_nothing_else() -> None:
    assert written(release()) == {
        "v": 1,
        "plan": [
            {
                "id": "review",
                "target": "reviewed",
                "to": ["reviewer"],
                "payload": "Do review",
                "gate": "before",
                "corrections": 1,
            },
            {
                "id": "ship",
                "target": "released",
                "needs": ["review"],
                "to": ["reviewer"],
                "payload": "Do ship",
                "gate": "before",
                "corrections": 1,
            },
        ],
        "machine": {
            "initial": "draft",
            "rows": [
                {"source": "draft", "trigger": "review", "target": "reviewed"},
                {"source": "reviewed", "trigger": "ship", "target": "released"},
            ],
        },
        "judge": "judge",
    }


SUB = Plan([step("inner", "reviewed")])


@pytest.mark.rule("P17", "P18", "P36")
def test_the_document_holds_every_field_of_plan_machine_and_limits() -> None:
    machine = Machine("draft", [Transition("draft", "review", "reviewed", ready, adapt := partial(entered), entered)])
    retry = Retry(3, delay=0.25, factor=1.5, longest=10, jitter=20)
    plan = Plan(
        [
            said("a", payload=None, payload_from=say, to=["b", "a"], capability="review", gate="after",
                 ack_timeout=2.5, corrections=0, route=choose, retry=retry, once=True),
            Step("b", sub=SUB, loop=Loop(5, again), needs=["a"], when="finished", gate="none"),
            step("y", "released", "b"),
            step("x", "released", "b"),
            step("z", "released", "b", "a", when="failed"),
        ],
        [Panel(["x", "y"], merge)],
    )  # fmt: skip
    found = written(plan, machine, Limits(100, 10), names={"adapt": adapt})
    (sub,) = list(documents(plan, machine, Limits(), judge, {"adapt": adapt}))[1:]
    plain = {"target": "released", "gate": "none", "corrections": 1}
    assert found["plan"] == [
        {
            "id": "a",
            "target": "reviewed",
            "payload_from": "say",
            "to": ["a", "b"],
            "capability": "review",
            "gate": "after",
            "ack_timeout_ms": 2500,
            "corrections": 0,
            "route": "choose",
            "retry": {
                "attempts": 3,
                "delay_ms": 250,
                "factor_percent": 150,
                "longest_ms": 10_000,
                "jitter_percent": 20,
            },
            "once": True,
        },
        {
            "id": "b",
            "sub": sub,
            "loop": {"max": 5, "guard": "again"},
            "needs": ["a"],
            "when": "finished",
            "gate": "none",
            "corrections": 1,
        },
        {"id": "y", "needs": ["b"], **plain},
        {"id": "x", "needs": ["b"], **plain},
        {"id": "z", "needs": ["a", "b"], "when": "failed", **plain},
    ]
    assert found["panels"] == [{"steps": ["y", "x"], "reducer": "merge"}]
    assert found["machine"]["rows"][0] == {
        "source": "draft",
        "trigger": "review",
        "target": "reviewed",
        "guard": "ready",
        "on_exit": "adapt",
        "on_entry": "entered",
    }
    assert found["limits"] == {"bytes": 100, "messages": 10}
    assert read_document(document(plan, machine, Limits(100, 10), judge, {"adapt": adapt}))


@pytest.mark.rule("P17")
def test_the_document_is_canonical_and_its_bytes_stay_as_they_are() -> None:
    made = document(release(), MACHINE, Limits(), judge)
    assert encode(decode(made)) == made
    assert blake3(made).hexdigest() == "9bce8bc2ea49b6181d3678590b9253b303fe114b9324385478cfeba181ea1bb7"


@pytest.mark.rule("P17")
def test_another_process_makes_the_same_document() -> None:
    program = (
        "from flow.plan import *; from flow.document import *; from flow.machine import *; from flow.budget import *\n"
        "def judge(m, a): ...\n"
        "p = Plan([Step('review', target='reviewed', payload='Do review', to=['c', 'a', 'b'])])\n"
        "m = Machine('draft', [('draft', 'review', 'reviewed')])\n"
        "print(document(p, m, Limits(5), judge).hex())"
    )
    plan = Plan([said("review", to=["b", "a", "c"])])
    machine = Machine("draft", [("draft", "review", "reviewed")])
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert made == document(plan, machine, Limits(5), judge).hex()


@pytest.mark.rule("P17")
def test_the_order_of_needs_and_members_and_panels_does_not_matter_and_that_of_steps_and_rows_does() -> None:
    def made(*needs: str, swap: bool = False, rows: int = 1, panels: int = 1, members: int = 1) -> bytes:
        steps = [said("a"), said("b"), *(step(name, "released") for name in "wxyz")][:: -1 if swap else 1]
        machine = Machine("draft", [("draft", "x", "reviewed"), ("draft", "y", "reviewed")][::rows])
        groups = [Panel(["w", "y"][::members], merge), Panel(["x", "z"][::members], merge)][::panels]
        plan = Plan([*steps, said("c", *needs, to=needs)], groups)
        return document(plan, machine, Limits(), judge)

    assert made("a", "b") == made("b", "a") == made("a", "b", panels=-1) == made("a", "b", members=-1)
    assert len({made("a", "b"), made("a", "b", swap=True), made("a", "b", rows=-1)}) == 3


@pytest.mark.rule("P18")
@pytest.mark.parametrize(
    ("seconds", "ms"), [(0.001, 1), (0.0015, 2), (0.1 * 3, 300), (30, 30_000), (2**50 / 1000, 2**50)]
)
def test_times_stand_in_whole_milliseconds(seconds: float, ms: int) -> None:
    assert written(Plan([said("review", ack_timeout=seconds)]))["plan"][0]["ack_timeout_ms"] == ms


@pytest.mark.rule("P17")
def test_a_plan_of_ten_thousand_steps_has_a_document() -> None:
    plan = Plan([step(f"s{number}", "reviewed") for number in range(10_000)])
    assert len(read_document(document(plan, MACHINE, Limits(), judge)).plan) == 10_000


@pytest.mark.rule("P17")
def test_a_plan_that_no_document_can_hold_is_refused() -> None:
    with pytest.raises(PlanError, match="too long for one document") as caught:
        document(
            Plan([step(f"s{n}", "reviewed", gate="before", payload="x" * 600_000) for n in range(30)]),
            MACHINE,
            Limits(),
            judge,
        )
    assert caught.value.code == "plan.document"


# Names


@pytest.mark.rule("P19")
def test_a_registered_name_stands_before_a_functions_own() -> None:
    plan = Plan([said("review", payload=None, payload_from=say)])
    assert written(plan, names={"release.text": say})["plan"][0]["payload_from"] == "release.text"
    assert written(plan)["plan"][0]["payload_from"] == "say"


@pytest.mark.rule("P19")
@pytest.mark.parametrize("nameless", [lambda record: "x", partial(say)])
def test_a_function_without_a_name_is_refused_until_it_is_registered(nameless: Callable[..., str]) -> None:
    plan = Plan([said("review", payload=None, payload_from=nameless)])
    with pytest.raises(PlanError, match="use a def, or name it") as caught:
        written(plan)
    assert caught.value.code == "plan.function"
    assert written(plan, names={"text": nameless})["plan"][0]["payload_from"] == "text"


def another_say() -> Callable[..., str]:
    def say(record: Any) -> str:
        return "y"

    return say


@pytest.mark.rule("P19")
@pytest.mark.parametrize("below", [False, True])
def test_two_functions_of_one_name_are_refused_until_one_is_registered(below: bool) -> None:
    second = another_say()
    other = said("b", payload=None, payload_from=second, target="released")
    plan = Plan(
        [said("a", payload=None, payload_from=say), Step("b", sub=Plan([other]), gate="none") if below else other]
    )
    with pytest.raises(PlanError, match="two functions are called 'say'") as caught:
        written(plan)
    assert caught.value.code == "plan.function"
    made = list(documents(plan, MACHINE, Limits(), judge, {"other": second}).values())
    assert decode(made[-1])["plan"][-1]["payload_from"] == "other"


@pytest.mark.rule("P19")
def test_one_function_may_stand_in_several_places() -> None:
    plan = Plan([said("a", payload=None, payload_from=say), said("b", payload=None, payload_from=say)])
    assert [found["payload_from"] for found in written(plan)["plan"]] == ["say", "say"]


# Sub-plans


@pytest.mark.rule("P36")
def test_each_plan_below_has_one_document_found_by_its_address() -> None:
    inner, twin = Plan([step("x", "b")]), Plan([step("x", "b")])
    middle = Plan([Step("in", sub=inner, gate="none")])
    plan = Plan([Step("one", sub=middle, gate="none"), Step("two", sub=twin, gate="none")])
    made = documents(plan, MACHINE, Limits(), judge)
    main, low, mid = made
    assert all(blake3(data).digest() == address for address, data in made.items())
    assert made[main] == document(plan, MACHINE, Limits(), judge)
    assert [found["sub"] for found in decode(made[main])["plan"]] == [mid, low]
    assert decode(made[mid]) == {"v": 1, "plan": [{"id": "in", "sub": low, "gate": "none", "corrections": 1}]}
    assert decode(made[low]) == {"v": 1, "plan": [{"id": "x", "target": "b", "gate": "none", "corrections": 1}]}


@pytest.mark.rule("P36")
def test_plans_nested_as_deep_as_they_may_have_documents() -> None:
    plan = SUB
    for _ in range(7):
        plan = Plan([Step("outer", sub=plan, gate="none")])
    made = documents(plan, MACHINE, Limits(), judge)
    assert len(made) == 8
    assert [read_document(data).plan[0].id for data in made.values()] == ["outer", "inner", *["outer"] * 6]


# One field, one address


def other(record: Any, *more: Any) -> Any: ...


LIGHT = Retry(3, delay=0.25, factor=1.5, longest=10, jitter=20)
BASE: dict[str, Any] = {
    "id": "b", "target": "reviewed", "needs": ["a"], "to": ["anna"], "payload": "do it", "payload_from": None,
    "capability": "review", "gate": "before", "when": "succeeded", "route": choose, "retry": LIGHT, "loop": None,
    "sub": None, "ack_timeout": 30, "corrections": 2, "once": False,
}  # fmt: skip
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("id", {"id": "b2"}),
    ("target", {"target": "released"}),
    ("needs", {"needs": []}),
    ("needs", {"needs": ["a", "a2"]}),
    ("to", {"to": ["ben"]}),
    ("to", {"to": []}),
    ("payload", {"payload": "do it "}),
    ("payload_from", {"payload": None, "payload_from": say}),
    ("payload_from", {"payload": None, "payload_from": other}),
    ("capability", {"capability": None}),
    ("gate", {"gate": "after"}),
    ("when", {"when": "finished"}),
    ("when", {"when": "failed"}),
    ("route", {"route": other}),
    ("route", {"route": None}),
    ("retry", {"retry": None}),
    ("retry", {"retry": replace(LIGHT, attempts=4)}),
    ("retry", {"retry": replace(LIGHT, delay=0.251)}),
    ("retry", {"retry": replace(LIGHT, factor=1.51)}),
    ("retry", {"retry": replace(LIGHT, longest=11)}),
    ("retry", {"retry": replace(LIGHT, jitter=21)}),
    ("ack_timeout", {"ack_timeout": 30.001}),
    ("ack_timeout", {"ack_timeout": None}),
    ("corrections", {"corrections": 3}),
    ("once", {"once": True}),
]
NESTING: dict[str, Any] = {"target": None, "route": None, "retry": None}
CHANGES += [
    ("sub", {**NESTING, "sub": SUB}),
    ("sub", {**NESTING, "sub": Plan([step("inner", "released")])}),
    ("loop", {**NESTING, "sub": SUB, "loop": Loop(3, again)}),
    ("loop", {**NESTING, "sub": SUB, "loop": Loop(4, again)}),
    ("loop", {**NESTING, "sub": SUB, "loop": Loop(3, other)}),
]


def around(machine: Machine = MACHINE, limits: Limits = Limits(7, 9), ruling: Any = judge, **more: Any) -> bytes:  # noqa: B008
    """The document of a plan around one step."""
    made = Step(**BASE | more)
    beside = [step(name, "draft") for name in ("a", "a2", "p", "q")]
    return document(Plan([*beside, made, step("c", "draft", made.id)], PANELS[:1]), machine, limits, ruling)


PANELS = [Panel(["p", "q"], merge), Panel(["p", "q"], other), Panel(["p", "a2"], merge)]


@pytest.mark.rule("P37")
def test_any_two_plans_that_differ_in_one_field_have_different_addresses() -> None:
    assert {name for name, _ in CHANGES} == {field.name for field in fields(Step)} - {"_"}
    made = [around(), *(around(**change) for _, change in CHANGES)]
    rows = [("draft", "review", "reviewed"), ("reviewed", "ship", "released")]
    made.append(around(Machine("reviewed", rows[1:])))
    machines = [
        Machine("draft", [*rows, extra])
        for extra in [
            Transition("reviewed", "back", "draft"),
            Transition("draft", "back", "released"),  # another source
            Transition("reviewed", "undo", "draft"),  # another trigger
            Transition("reviewed", "back", "released"),  # another target
            *[
                Transition("reviewed", "back", "draft", **{slot: code})
                for slot in ("guard", "on_exit", "on_entry")
                for code in (ready, entered)
            ],
        ]
    ]
    made += map(around, machines)
    made += [around(limits=limits) for limits in (Limits(8, 9), Limits(7, 8), Limits(0, 9), Limits())]
    made.append(around(ruling=other))
    steps = [step(name, "draft") for name in ("a", "a2", "p", "q")]
    made += [document(Plan(steps, panels), MACHINE, Limits(), judge) for panels in ([], *([p] for p in PANELS))]
    assert len(set(made)) == len(made)


# Reading


@pytest.mark.rule("P17", "P36", "P38", "P39")
@settings(max_examples=60, deadline=None)
@given(told_plans(), st.builds(Limits, st.integers(0, 5), st.integers(0, 5)))
def test_what_is_written_is_read_and_says_the_same(plan: Plan, limits: Limits) -> None:
    made = documents(plan, MACHINE, limits, judge)
    assert made == documents(plan, MACHINE, limits, judge)
    for data in made.values():
        found = read_document(data)
        assert encode(decode(data)) == data
        assert (found.judge == "judge") == (data == next(iter(made.values())))
    found = read_document(next(iter(made.values())))
    assert [(s.id, s.target, set(s.needs), s.when, s.payload) for s in found.plan] == [
        (s.id, s.target, set(s.needs), s.when, s.payload) for s in plan.steps
    ]
    assert [s.retry and s.retry.attempts for s in found.plan] == [s.retry and s.retry.attempts for s in plan.steps]
    assert [s.ack_timeout_ms and s.ack_timeout_ms / 1000 for s in found.plan] == [s.ack_timeout for s in plan.steps]
    below = [s.sub for s in found.plan]
    assert [address is not None for address in below] == [s.sub is not None for s in plan.steps]
    assert all(address in made for address in below if address is not None)


FULL: dict[str, Any] = decode(around(Machine("draft", [Transition("draft", "go", "reviewed", ready, entered)])))
"""The map of a document in which everything stands."""

FULL["plan"].append(
    {
        "id": "part",
        "sub": bytes(32),
        "loop": {"max": 3, "guard": "again"},
        "when": "finished",
        "once": True,
        "gate": "none",
        "corrections": 1,
    }
)


def read_refused(changed: Any) -> str:
    with pytest.raises(PlanError) as caught:
        read_document(changed if isinstance(changed, bytes) else encode(changed))
    assert caught.value.code == "plan.document"
    return str(caught.value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def changed_at(value: Any, path: tuple[Any, ...], put: Callable[[Any], Any]) -> Any:
    if not path:
        return put(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed_at(value[path[0]], path[1:], put)
    return copy


@pytest.mark.rule("P38")
def test_the_full_document_is_read() -> None:
    found = read_document(encode(FULL))
    assert (found.plan[-1].sub, found.machine and found.machine.rows[0].on_exit) == (bytes(32), "entered")
    assert (found.limits and found.limits.messages, found.panels[0].steps) == (9, ("p", "q"))


@pytest.mark.rule("P38")
def test_nothing_in_a_document_may_be_of_another_type_or_carry_more() -> None:
    for path in places(FULL):
        for odd in (b"x", "", -1, True, [], {}, [[]], {"more": 1}):
            if isinstance(odd, bool) and path[-1:] == ("once",):
                continue
            text = read_refused(changed_at(FULL, path, lambda was, odd=odd: odd))
            assert text.startswith("plan.document: no plan document: ")
    for path in places(FULL):
        read_refused(changed_at(FULL, path, lambda was: {**was, "more": 1} if isinstance(was, dict) else [was]))


@pytest.mark.rule("P38")
@pytest.mark.parametrize(
    ("path", "put", "told"),
    [
        ((), lambda was: [was], "the document"),
        (("v",), lambda was: 2, "v: "),
        (("plan", 0, "gate"), lambda was: "later", "plan.0.gate"),
        (("plan", 4, "retry", "attempts"), lambda was: 1, "retry, attempts: 1"),
        (("plan", 4, "retry", "attempts"), lambda was: "3", "plan.4.retry.attempts"),
        (("plan", 4, "needs"), lambda was: ["z"], "step 'b', needs: 'z' is no step"),
        (("plan", 0), lambda was: was | {"needs": ["c"]}, "a circle"),
        (("plan", 0), lambda was: was | {"when": "succeeded"}, "plan: not written as it must be"),
        (("plan", 0), lambda was: was | {"once": False}, "plan: not written"),
        (("plan", 0), lambda was: was | {"to": []}, "plan: not written"),
        (("plan", 5), lambda was: was | {"needs": ["b", "a"]}, "plan: not written"),
        (("plan", 4, "to"), lambda was: ["ben", "anna"], "plan: not written"),
        (("panels", 0, "steps"), lambda was: was[::-1], "panels: not written"),
        (("panels",), lambda was: [], "panels: not written"),
        (("limits",), lambda was: {}, "limits: not written"),
        (("limits",), lambda was: {"bytes": 0}, "limits: not written"),
        (("limits", "bytes"), lambda was: -1, "max_bytes=-1"),
        (("machine", "rows", 0, "target"), lambda was: "draft", "stays where it is"),
        (("machine", "rows", 0, "guard"), lambda was: "no name", "has no name that a document can hold"),
        (("judge",), lambda was: "<lambda>", "has no name that a document can hold"),
        ((), lambda was: {k: v for k, v in was.items() if k != "judge"}, "machine and judge stand together"),
        ((), lambda was: {k: v for k, v in was.items() if k not in ("judge", "machine")}, "limits only with them"),
        ((), lambda was: {k: v for k, v in was.items() if k != "plan"}, "plan: "),
    ],
)
def test_what_no_plan_is_written_as_is_refused_with_the_place(
    path: tuple[Any, ...], put: Callable[[Any], Any], told: str
) -> None:
    assert told in read_refused(changed_at(FULL, path, put))


@pytest.mark.rule("P38")
@given(st.binary(max_size=80) | st.tuples(st.integers(0, 2000), st.integers(1, 255)))
def test_bad_bytes_are_refused_and_nothing_else_happens(change: Any) -> None:
    data = bytearray(encode(FULL))
    if isinstance(change, tuple):
        data[change[0] % len(data)] ^= change[1]
    else:
        data = bytearray(change)
    try:
        read_document(bytes(data))
    except PlanError:
        read_refused(bytes(data))
    else:
        assert encode(decode(bytes(data))) == data


@pytest.mark.rule("P38")
def test_a_document_that_ends_early_or_goes_on_is_refused() -> None:
    data = encode(FULL)
    for end in range(len(data)):
        read_refused(data[:end])
    read_refused(data + b"\0")
