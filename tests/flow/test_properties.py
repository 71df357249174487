"""Whatever the plan and whatever the recipients do, a run ends as a small model of it says, and its thread verifies."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope import Identity, open_envelope
from flow import (
    AckTimeout,
    Call,
    Declined,
    Escalated,
    Limits,
    Machine,
    OverBudget,
    Rejected,
    Run,
    Step,
    StepFailed,
    Transition,
)
from flow.bus import STEP_COMPLETED
from flow.testing import ScriptedPeer, Wait
from tests.flow.stage import (
    ANNA,
    BEN,
    CARA,
    DORA,
    Stage,
    Watched,
    assert_ended,
    opened,
    settled,
    story,
    unless_wrong,
)

WHO: dict[str, Identity] = {"anna": ANNA, "ben": BEN, "dora": DORA}
DELAYS = {"anna": 1.0, "ben": 1.3717, "dora": 1.7129}
PAUSES = (0.1, 0.5, 2.0)
TIMEOUT = 60.0


class Broken(Exception):
    pass


# What happens


@dataclass(frozen=True)
class Answer:
    """What one recipient does about one step: nonsense first, then so many wrong restatements, then the last word."""

    last: str
    nonsense: int = 0
    wrong: int = 0

    def script(self, name: str) -> list[object]:
        wait = Wait(DELAYS[name])
        last = {
            "accept": "right",
            "decline": Declined("no"),
            "escalate": Escalated("ask"),
            "raise": Broken("broken"),
            "silence": Wait(1000),
        }[self.last]
        answers: list[object] = [None] * self.nonsense + ["wrong"] * self.wrong + [last]
        return [part for answer in answers for part in (wait, answer)]


@dataclass(frozen=True)
class Part:
    """One step of a plan, and what happens to it."""

    id: str
    needs: tuple[str, ...]
    gate: str
    payload: str
    corrections: int
    answers: dict[str, Answer]
    firing: str


@dataclass(frozen=True)
class Case:
    parts: tuple[Part, ...]
    statuses: tuple[int, ...]
    limits: Limits
    approvers: bool
    heart: bool


ANSWERS = st.builds(
    Answer,
    st.sampled_from(["accept"] * 24 + ["decline", "escalate", "raise", "silence"]),
    nonsense=st.sampled_from([0, 0, 0, 1, 3]),
    wrong=st.sampled_from([0] * 9 + [1, 1, 2]),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 5))
    names = draw(st.permutations([f"s{number}" for number in range(count)]))
    parts = []
    for place, name in enumerate(names):
        to = draw(st.lists(st.sampled_from(sorted(WHO)), min_size=1, unique=True))
        parts.append(
            Part(
                name,
                tuple(draw(st.lists(st.sampled_from(names[:place]), unique=True))) if place else (),
                draw(st.sampled_from(["before", "before", "after", "none"])),
                "x" * draw(st.integers(1, 9)),
                draw(st.sampled_from([0, 1, 1, 2])),
                {who: draw(ANSWERS) for who in to},
                draw(st.sampled_from(["fine"] * 18 + ["refused", "broken"])),
            )
        )
    statuses, here = [], 0
    for _ in parts:
        here = draw(st.sampled_from([status for status in range(4) if status != here]))
        statuses.append(here)
    limits = Limits(draw(st.sampled_from([0, 0, 9, 20])), draw(st.sampled_from([0, 0, 1, 3])))
    declared = tuple(draw(st.permutations(parts)))
    return Case(declared, tuple(statuses), limits, draw(st.booleans()), draw(st.booleans()))


# What should come of it: the model, which knows nothing of stores, journals, gates and tasks


@dataclass
class Model:
    raised: type[Exception] | None = None
    sealed: str | None = "completed"
    status: int = 0
    fired: int = 0
    step: str | None = None
    settled: dict[str, tuple[str, int | None, str]] = field(default_factory=dict)
    completed: list[str] = field(default_factory=list)
    receipts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    escalated: bool = False
    bytes: int = 0
    messages: int = 0


def in_order(parts: tuple[Part, ...]) -> list[Part]:
    done: list[Part] = []
    while len(done) < len(parts):
        ids = {part.id for part in done}
        done.append(next(part for part in parts if part.id not in ids and ids >= set(part.needs)))
    return done


def model(case: Case) -> Model:
    run = Model()
    for part, target in zip(in_order(case.parts), case.statuses, strict=True):
        run.step = part.id
        before, size = run.status, len(part.payload)
        if part.gate == "before":
            if not affordable(case, run, size):
                return stopped(run, OverBudget, "over_budget")
            said(run, size)
            if not acknowledged(case, run, part, None, before):
                return run
        if part.gate == "after" and not affordable(case, run, 0):
            return stopped(run, OverBudget, "over_budget")
        if part.firing != "fine":
            attempts = 1 if part.firing == "broken" else None
            return stopped(run, StepFailed, "failed", part.id, attempts, before)
        run.status, run.fired = target, run.fired + 1
        if part.gate == "after":
            if not affordable(case, run, size):
                return stopped(run, OverBudget, "over_budget", part.id, 1, target)
            said(run, size)
            if not acknowledged(case, run, part, 1, target):
                return run
        run.settled[part.id] = ("succeeded", 1, f"s{target}")
        run.completed.append(part.id)
    run.step = None
    return run


def affordable(case: Case, run: Model, size: int) -> bool:
    return not (
        (case.limits.max_bytes and run.bytes + size > case.limits.max_bytes)
        or (case.limits.max_messages and run.messages + 1 > case.limits.max_messages)
    )


def said(run: Model, size: int) -> None:
    run.bytes += size
    run.messages += 1


def stopped(
    run: Model, raised: type[Exception], sealed: str | None, step: str = "", attempts: int | None = None, at: int = 0
) -> Model:
    run.raised, run.sealed = raised, sealed
    if step:
        run.settled[step] = ("failed", attempts, f"s{at}")
    return run


def acknowledged(case: Case, run: Model, part: Part, attempts: int | None, at: int) -> bool:
    """Play out who answers when; whatever ends the step cuts off all that would come later."""
    answers: list[tuple[float, str, str]] = []
    over: list[tuple[float, str]] = []
    for name, answer in part.answers.items():
        time = sum(DELAYS[name] + PAUSES[number] for number in range(answer.nonsense))
        words = ["wrong"] * answer.wrong + [answer.last]
        for number, word in enumerate(words):
            time += DELAYS[name]
            if word in ("wrong", "accept"):
                answers.append((time, name, word))
            elif word == "decline":
                answers.append((time, name, word))
                over.append((time, "rejected"))
            else:
                over.append((TIMEOUT if word == "silence" else time, word))
            if word == "wrong" and number == part.corrections:
                over.append((time, "rejected"))
                break
    end, why = min((event for event in over if event[1] in ("rejected", "raise")), default=(TIMEOUT, ""))
    for time, name, word in answers:
        if time <= end:
            run.receipts[part.id, name, "declines" if word == "decline" else "accepts"] += 1
            if word != "decline":
                run.receipts[part.id, name, "correct" if word == "wrong" else "confirm"] += 1
    kinds = {kind for _, kind in over}
    if why == "rejected":
        stopped(run, Rejected, "rejected", part.id, attempts, at)
    elif why == "raise":
        stopped(run, Broken, None)
    elif "escalate" in kinds:
        stopped(run, Escalated, None)
        run.escalated = case.approvers
    elif "silence" in kinds:
        stopped(run, AckTimeout, None)
    return run.raised is None


# The run itself


def told(part: Part) -> dict[str, Any]:
    """Return what a step is told with; one that is not gated says nothing."""
    if part.gate == "none":
        return {}
    return {
        "to": list(part.answers), "payload": part.payload, "corrections": part.corrections, "ack_timeout": TIMEOUT,
    }  # fmt: skip


def staged(case: Case) -> Stage:
    firing = {part.id: part.firing for part in case.parts}

    def guard(record: Any, call: Call) -> bool:
        return firing[call.step[0]] != "refused"

    def act(record: Any, call: Call) -> Any:
        if firing[call.step[0]] == "broken":
            raise Broken("broken")
        return {"n": record["n"] + 1}

    targets = dict(zip([part.id for part in in_order(case.parts)], case.statuses, strict=True))
    pairs = dict.fromkeys(zip((0, *case.statuses), case.statuses, strict=False))
    rows = [Transition(f"s{a}", f"to-{b}", f"s{b}", guard=guard, on_entry=act) for a, b in pairs]
    steps = [
        Step(part.id, target=f"s{targets[part.id]}", needs=part.needs, gate=part.gate, **told(part))  # type: ignore[arg-type]
        for part in case.parts
    ]
    stage = Stage(*steps, machine=Machine("s0", rows), judge=unless_wrong)
    asked = [part for part in in_order(case.parts) if part.gate != "none"]
    stage.options["peers"] = {
        name: ScriptedPeer(
            who,
            [word for part in asked if name in part.answers for word in part.answers[name].script(name)],
            clock=stage.clock,
        )
        for name, who in WHO.items()
    }
    stage.options["approvers"] = {"cara": CARA.public_key} if case.approvers else {}
    stage.options["limits"] = case.limits
    stage.monitor = Watched(25.0)
    stage.options["heartbeat"] = stage.monitor if case.heart else None
    return stage


async def compare(case: Case) -> None:
    expected, stage = model(case), staged(case)
    ended: Any = None
    try:
        ended = await stage.over_time(stage.run)
    except Exception as error:
        ended = error
    records = await stage.records()
    told = story(records)
    assert type(ended) is (expected.raised or Run)
    if not isinstance(ended, Broken):
        assert (ended.status, ended.record) == (f"s{expected.status}", {"n": expected.fired})
        assert_ended(ended.thread, expected.sealed)
        assert ended.thread.records == tuple(records)
    if isinstance(ended, Run):
        assert list(ended.outcomes) == expected.completed
    elif not isinstance(ended, Broken):
        assert ended.step == expected.step
    seals = opened(records, "seal")
    assert [seal.outcome for seal in seals] == ([expected.sealed] if expected.sealed else [])
    assert [seal.status for seal in seals] == ([f"s{expected.status}"] if expected.sealed else [])
    assert settled(records) == expected.settled
    assert receipts(records) == expected.receipts
    assert any(line.startswith("escalate") for line in told) == expected.escalated
    assert [event.data["outcome"].step for event in stage.bus.named(STEP_COMPLETED)] == expected.completed
    assert len(stage.monitor.forgotten) == case.heart


def receipts(records: Any) -> Counter[tuple[str, str, str]]:
    names = {who.public_key: name for name, who in WHO.items()}
    messages: dict[bytes, str] = {}
    acks: dict[bytes, tuple[str, str]] = {}
    found: Counter[tuple[str, str, str]] = Counter()
    for envelope in map(open_envelope, records):
        match envelope.kind:
            case "message":
                messages[envelope.address] = envelope.record.id
            case "ack":
                acks[envelope.address] = (messages[envelope.record.message], names[envelope.signer])
                found[*acks[envelope.address], f"{envelope.record.answer}s"] += 1
            case "ruling":
                found[*acks[envelope.record.ack], envelope.record.ruling] += 1
    return found


@pytest.mark.rule("R5", "R7", "R12", "R14", "R18", "R20", "R22", "R24", "R25", "R39", "R41")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(case=cases())
def test_a_run_ends_as_the_model_says_and_its_thread_verifies(backend: str, case: Case) -> None:
    anyio.run(compare, case, backend=backend)
