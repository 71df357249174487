"""Whatever the plan, and whatever recipients, judge and code do, a run ends as the model of the spec says.

FLOW_CASES=20000 looks at that many cases more.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

import anyio
import pytest
from hypothesis import given, settings

from envelope import address
from envelope.cbor import encode
from flow import PlanError, validate
from tests.flow.acting import SLOTS, Theatre, over_time, story
from tests.flow.cases import case_at, cases
from tests.flow.model import Case, Line, Model, Script, Story

T = TypeVar("T")

MORE = int(os.environ.get("FLOW_CASES", "0"))


async def compare(case: Case) -> None:
    theatre = Theatre(case)
    ended = await over_time(theatre.clock, theatre.run)
    if any(finding.severity == "error" for finding in validate(theatre.plan, theatre.machine)):
        assert type(ended) is PlanError
        assert await theatre.store.names() == []
        return
    expected = Model(case).play()
    if isinstance(ended, Exception) and type(ended).__name__ != expected.raised:
        raise ended
    told = await story(theatre, ended)
    if told.raised != "Broken":  # which knows nothing of runs
        assert (told.status, told.log, told.step) == (expected.status, expected.log, expected.step)
    assert told.raised == expected.raised
    assert tidy(told.lines) == tidy(expected.lines)
    assert told.calls == expected.calls
    assert told.reads == expected.reads
    assert list(in_order(told.events, acked)) == list(in_order(expected.events, acked))
    if told.raised is None:
        assert told.outcomes == expected.outcomes
    assert len(theatre.monitor.forgotten) == case.heart
    thread = (await theatre.store.head("t")).thread
    for (path, slot), keys in theatre.keys.items():
        assert keys == {address(encode([thread, list(path), SLOTS.get(slot, slot)]))}


def tidy(lines: Sequence[Line]) -> list[Line]:
    """Put in an order what the spec gives none: skips that one unit brought about, and acks that were cut short."""
    following = [*(line.kind for line in lines[1:]), ""]
    pairs = list(zip(lines, following, strict=True))
    told: list[Line] = []
    for cut, group in groupby(pairs, lambda pair: pair[0].kind == "ack" and pair[1] not in ("confirm", "correct")):
        some = [line for line, _ in group]
        told += sorted(some, key=lambda line: (line.who, line.what, line.path)) if cut else some
    return [replace(line, settled=tuple(in_order(line.settled, lambda one: one.outcome == "skipped"))) for line in told]


def in_order(entries: Iterable[T], loose: Callable[[T], bool]) -> Iterator[T]:
    for alike, group in groupby(entries, loose):
        some = list(group)
        yield from sorted(some) if alike else some  # type: ignore[type-var]


def acked(event: tuple[str, str]) -> bool:
    return event[0] == "acked"


RULES = pytest.mark.rule(
    "M7", "M8", "M9", "M10", "M13", "P11", "P13", "R5", "R6", "R7", "R8", "R9", "R12", "R14", "R15", "R17", "R18",
    "R19", "R20", "R21", "R22", "R23", "R24", "R25", "R26", "R27", "R28", "R30", "R31", "R32", "R33", "R34",
    "R35", "R39", "R41", "R42", "R43", "R44", "R46", "R47", "R48", "R49", "R50", "R51", "R52", "R53", "R55",
    "R56", "R57", "R58", "R59", "R60", "R61", "R62", "S9",
)  # fmt: skip


@RULES
@settings(max_examples=300)
@given(case=cases())
def test_a_run_ends_as_the_model_says(case: Case) -> None:
    anyio.run(compare, case)


@RULES
def test_a_run_ends_as_the_model_says_on_trio_too() -> None:
    for seed in range(60 + MORE // 10):
        anyio.run(compare, case_at(seed), backend="trio")


@pytest.mark.skipif(not MORE, reason="FLOW_CASES says how many")
def test_many_more_runs_end_as_the_model_says() -> None:
    for seed in range(1_000_000, 1_000_000 + MORE):
        anyio.run(compare, case_at(seed))


def test_the_cases_come_to_every_ending_and_through_every_feature() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1500):
        case = case_at(seed)
        seen.update(features(case.script, Model(case).play()))
    wanted = (
        "None StepFailed NoTransition Rejected OverBudget Escalated AckTimeout Broken before after none panel reducer "
        "route loop again handled failed-caught skipped stays retried second-id approver"
    )
    assert {name: seen[name] for name in wanted.split() if seen[name] < 10} == {}


def features(script: Script, told: Story) -> Iterator[str]:
    """Name what a run went through."""
    yield str(told.raised)
    for path, outcome in told.outcomes.items():
        yield {"failed": "failed-caught"}.get(outcome.became, outcome.became)
        if told.reads.get(path):
            yield "handled"
        if outcome.message and "#" in outcome.message:
            yield "second-id"
        if outcome.became == "succeeded" and outcome.attempts is None:
            yield "stays"
        if (outcome.attempts or 0) > 1:
            yield "retried"
        if "#" in path:
            yield "again"
    for line in told.lines:
        yield {"request": "before", "assert": "after", "escalate": "approver"}.get(line.kind, line.kind)
        yield from ("none" for one in line.settled if one.what in told.outcomes and not told.outcomes[one.what].message)
    yield from (slot for slot, *_ in told.calls if isinstance(slot, str))
    yield from ("panel" for _ in script.panels)
