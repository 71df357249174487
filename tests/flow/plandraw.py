"""Plans drawn at random that can be built, for tests of what can be said of any plan."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from flow.plan import Loop, Panel, Plan, Retry, Step


def step(id: str, target: str | None, *needs: str, **fields: Any) -> Step:  # noqa: A002
    return Step(id, **{"target": target, "needs": needs, "gate": "none", **fields})


def choose(record: Any) -> list[str]:
    return []


def merge(original: Any, records: Sequence[Any]) -> Any:
    return original


def again(record: Any, call: Any) -> bool:
    return False


@st.composite
def plans(draw: st.DrawFn, depth: int = 1, most: int = 6, prefix: str = "s") -> Plan:
    """Plans that can be built, steps declared in any order, with conditions, routes, panels and sub-plans.

    Each unit has a target of its own, so that a status tells which unit was the last to succeed.
    """
    names = [f"{prefix}{number}" for number in range(draw(st.integers(1, most)))]
    together = set(draw(st.lists(st.sampled_from(names), max_size=2, unique=True))) if draw(st.booleans()) else set()
    routing = set(draw(st.lists(st.sampled_from(names), max_size=2, unique=True))) - together
    together = together if len(together) == 2 else set()
    steps: list[Step] = []
    behind: set[str] = set()  # what needs a step of the panel, directly or not
    for number, name in enumerate(names):
        before = set(names[:number]) - (behind | together | routing if name in together else set())
        needs = draw(st.lists(st.sampled_from(sorted(before)), unique=True, max_size=3)) if before else []
        if (behind | together) & set(needs):
            behind.add(name)
        whens = ["succeeded", "finished", *(["failed"] if needs and name not in together else [])]
        sub = draw(plans(depth - 1, 3, "u")) if depth and name not in together and not draw(st.integers(0, 5)) else None
        target = None if sub else f"{prefix}-panel" if name in together else f"to-{name}"
        loop = Loop(2, again) if sub is not None and draw(st.booleans()) else None
        steps.append(step(name, target, *needs, when=draw(st.sampled_from(whens)), sub=sub, loop=loop))
    for place, found in enumerate(steps):
        if found.id in routing and found.sub is None and any(found.id in s.needs and s.when != "failed" for s in steps):
            steps[place] = step(found.id, found.target, *found.needs, when=found.when, route=choose)
    return Plan(draw(st.permutations(steps)), [Panel(sorted(together), merge)] if together else [])


def say(record: Any) -> str:
    return "said"


@st.composite
def told_plans(draw: st.DrawFn) -> Plan:
    """The same with all that a step can say besides."""
    return draw(_told(draw(plans())))


@st.composite
def _told(draw: st.DrawFn, plan: Plan) -> Plan:
    together = {name for panel in plan.panels for name in panel.steps}
    gate = draw(st.sampled_from(["before", "none"]))
    steps = [draw(_told_step(of, gate if of.id in together else None)) for of in plan.steps]
    return Plan(steps, plan.panels)


@st.composite
def _told_step(draw: st.DrawFn, of: Step, gate: str | None) -> Step:
    fields: dict[str, Any] = {"gate": gate or draw(st.sampled_from(["before", "after", "none"])), "once": draw(FLAGS)}
    if fields["gate"] != "none":
        fields |= draw(MESSAGES) | {"to": draw(st.lists(st.sampled_from(["anna", "ben", "cara"]), unique=True))}
    if of.sub is not None:
        fields["sub"] = draw(_told(of.sub))
    elif gate is None:
        fields["retry"] = draw(st.none() | RETRIES)
    return replace(of, **fields)


FLAGS = st.booleans()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda t: t.strip("\t\n\r "))
SECONDS = st.integers(1, 2**50).map(lambda ms: ms / 1000)
MESSAGES = st.fixed_dictionaries(
    {"corrections": st.integers(0, 15)},
    optional={"capability": st.sampled_from(["test", "code.review"]), "ack_timeout": SECONDS},
).flatmap(lambda told: st.one_of(TEXTS.map(lambda t: {"payload": t} | told), st.just({"payload_from": say} | told)))
RETRIES = st.builds(
    Retry,
    st.integers(2, 1000),
    delay=st.just(0) | SECONDS,
    factor=st.integers(100, 10_000).map(lambda percent: percent / 100),
    longest=st.just(0) | SECONDS,
    jitter=st.integers(0, 100),
)
