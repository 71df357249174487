"""What a person sees of a run while it goes on."""

from typing import Any

import pytest
from rich.console import Console

from flow import Confirm, Correct, Declined, Event, Limits, Loop, Monitor, Plan, Rejected, Step
from flow.bus import HEARTBEAT_MISSED, HEARTBEAT_RECOVERED, MESSAGE_ACKED, MESSAGE_DELIVERED
from flow.live import Progress
from tests.flow.stage import ANNA, BEN, OWNER, Stage, on_the_way

NAMES = {ANNA.public_key: "anna", BEN.public_key: "ben", OWNER.public_key: "owner"}


def watching(stage: Stage, limits: Limits = Limits()) -> Progress:  # noqa: B008 - frozen
    progress = Progress("t", stage.agent.plan, limits, NAMES)
    stage.bus.subscribe(lambda event: progress.observe(event, stage.clock.now_ms()))
    return progress


def seen(progress: Progress, now: int = 0) -> list[str]:
    return [line.plain for _, line in progress.lines(now)]


def printed(progress: Progress, now: int = 0) -> str:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(progress.tree(now))
    return capture.get()


@pytest.mark.anyio
async def test_each_step_is_shown_with_what_became_of_it() -> None:
    stage = Stage(*on_the_way(2))
    progress = watching(stage)
    assert seen(progress) == ["· to-b  waiting", "· to-c  waiting"]
    await stage.run()
    assert seen(progress) == ["✓ to-b  succeeded  b", "✓ to-c  succeeded  c"]


@pytest.mark.anyio
async def test_who_is_awaited_is_shown_with_the_seconds_since() -> None:
    stage = Stage(*on_the_way(1))
    progress = watching(stage)
    found: list[str] = []

    def look(event: Event) -> None:
        found.extend(seen(progress, stage.clock.now_ms() + 5400))

    stage.bus.subscribe(look, MESSAGE_DELIVERED)
    stage.bus.subscribe(look, MESSAGE_ACKED)
    await stage.run()
    assert found == [
        "? to-b  asking  awaits anna for 5 s  awaits ben for 5 s",
        "? to-b  asking  awaits ben for 5 s",
        "» to-b  acknowledged",
    ]


@pytest.mark.anyio
async def test_rounds_are_counted() -> None:
    said: list[int] = []

    def judge(message: Any, ack: Any) -> Any:
        said.append(1)
        return Correct("again") if len(said) == 1 else Confirm()

    stage = Stage(*on_the_way(1, to=["anna"]))
    stage.options["judge"] = judge
    progress = watching(stage)
    await stage.run()
    assert seen(progress) == ["✓ to-b  succeeded  corrected 1 times  b"]


@pytest.mark.anyio
async def test_a_decline_is_shown_with_who_declined() -> None:
    stage = Stage(*on_the_way(1, to=["anna"]), anna=[Declined("no")])
    progress = watching(stage)
    await stage.fails(Rejected)
    assert "anna declined" in seen(progress)[0]


@pytest.mark.anyio
async def test_the_steps_of_a_sub_plan_stand_below_theirs_and_each_round_by_itself() -> None:
    inner = Plan([Step("one", target="b", gate="none")])
    rounds = iter([True, False])

    def again(record: Any, call: Any) -> bool:
        return next(rounds)

    stage = Stage(Step("outer", sub=inner, loop=Loop(3, again), payload="round"))
    progress = watching(stage)
    await stage.run()
    lines = printed(progress).splitlines()
    assert [line.strip(" │├└─") for line in lines[1:]] == [
        "✓ outer  succeeded  b", "✓ one  succeeded  b", "✓ one  succeeded  b",
    ]  # fmt: skip


@pytest.mark.anyio
async def test_the_budget_is_shown_and_a_message_told_twice_counts_once() -> None:
    stage = Stage(*on_the_way(1))
    progress = watching(stage, Limits(max_bytes=1000))
    await stage.run()
    for event in list(stage.bus.events):
        progress.observe(event, 0)
    payload = len(stage.bus.events[0].data["message"].record.payload)
    assert printed(progress).startswith(f"t  bytes {payload} of 1,000  messages 1")


def test_a_silence_is_shown_until_it_ends() -> None:
    progress = Progress("t", Plan([Step("s", target="b", gate="none")]), Limits(), {})
    assert Monitor(3).last("x") is None
    progress.observe(Event(HEARTBEAT_MISSED, {"beating": "x", "since": 0.0}), 0)
    assert "silent: x" in printed(progress)
    progress.observe(Event(HEARTBEAT_RECOVERED, {"beating": "x", "since": 1.0}), 0)
    assert "silent" not in printed(progress)


@pytest.mark.anyio
async def test_what_comes_from_elsewhere_is_escaped() -> None:
    stage = Stage(*on_the_way(1))
    progress = Progress("t\x1b[31m", stage.agent.plan, Limits(), {ANNA.public_key: "an\u202ena"})
    progress.observe(Event(HEARTBEAT_MISSED, {"beating": "x\x1b", "since": 0.0}), 0)
    stage.bus.subscribe(lambda event: progress.observe(event, 0), MESSAGE_DELIVERED)
    await stage.run()
    text = printed(progress)
    assert ("\x1b" in text, "\u202e" in text, "an\\u202ena" in text) == (False, False, True)
