"""The tools for tests do what they say, and notice what they are there to notice."""

import os
import signal
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

import pytest

from envelope import Identity, ThreadWriter
from flow import FlowError, MemoryStore, Step, ThreadStore
from flow.testing import Crash, Crashing, crash_everywhere, differences, kill
from flow.testing.crash import When
from tests.flow.stage import ANNA, OWNER, Stage, on_the_way

pytestmark = pytest.mark.anyio


def stage_on(store: ThreadStore, *steps: Step) -> Stage:
    stage = Stage(*(steps or on_the_way(2)))
    stage.store.store = store
    return stage


# A store that dies


async def test_a_store_that_is_not_told_when_to_die_counts_commits() -> None:
    store = Crashing(MemoryStore())
    stage = stage_on(store)
    await stage.run()
    assert (store.commits, store.dead) == (len(stage.store.log), False)


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_dies_at_the_commit_that_it_is_told(at: int, when: When) -> None:
    kept = MemoryStore()
    stage = stage_on(Crashing(kept, at, when))
    await stage.fails(Crash)
    made = at if when == "after" else at - 1
    assert len(stage.store.sent) == at
    assert len(await kept.names()) == min(made, 1)
    if made:
        whole = Stage(*on_the_way(2))
        await whole.run()
        assert len(await kept.read("t")) == sum(len(records) for records in whole.store.sent[:made])


async def test_a_refused_commit_is_not_counted() -> None:
    store = Crashing(MemoryStore(), 3)
    head = await store.create("t", _thread().records[0], b"begun")
    for _ in range(3):
        with pytest.raises(Exception, match=r"store\.refused"):
            await store.commit("t", head, [b"garbage"], None)
    assert (store.commits, store.dead) == (1, False)


async def test_a_dead_store_stays_dead() -> None:
    store = Crashing(MemoryStore(), 1)
    raw = _thread().records[0]
    with pytest.raises(Crash):
        await store.create("t", raw, b"begun")
    uses: list[Callable[[], Any]] = [
        lambda: store.create("u", raw, b"begun"),
        lambda: store.adopt("u", [raw]),
        lambda: store.head("t"),
        lambda: store.read("t"),
        lambda: store.states("t"),
        lambda: store.names(),
    ]
    for use in uses:
        with pytest.raises(Crash):
            await use()


async def test_taking_a_thread_in_counts_as_a_commit() -> None:
    kept = MemoryStore()
    store = Crashing(kept, 1, "before")
    with pytest.raises(Crash):
        await store.adopt("t", _thread().records)
    assert await kept.names() == []


async def test_a_store_may_be_made_to_die_from_elsewhere() -> None:
    store = Crashing(MemoryStore())
    with pytest.raises(Crash):
        store.die()
    with pytest.raises(Crash):
        await store.names()


async def test_nothing_that_catches_errors_catches_a_crash() -> None:
    assert not issubclass(Crash, Exception)


def test_a_killed_process_dies_by_the_signal_that_cannot_be_caught() -> None:
    child = os.fork()
    if child == 0:
        try:
            kill()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


async def test_a_run_is_crashed_before_and_after_each_of_its_commits() -> None:
    whole = Stage(*on_the_way(2))
    await whole.run()
    results = await crash_everywhere(lambda store: stage_on(store).run(), lambda store: stage_on(store).resume())
    commits = range(1, len(whole.store.log) + 1)
    assert set(results) == {"undisturbed", *(f"{when} {at}" for when in ("before", "after") for at in commits)}
    assert {run.status for run in results.values()} == {"c"}


async def test_what_a_resume_raises_is_raised() -> None:
    with pytest.raises(FlowError, match=r"run\.plan"):
        await crash_everywhere(
            lambda store: stage_on(store).run(), lambda store: stage_on(store, *on_the_way(1)).resume()
        )


async def test_a_run_that_is_another_one_each_time_is_refused() -> None:
    lengths = chain([3], repeat(1))
    with pytest.raises(AssertionError, match="let it do the same every time"):
        await crash_everywhere(
            lambda store: stage_on(store, *on_the_way(next(lengths))).run(), lambda store: _anything(store)
        )


async def _anything(store: ThreadStore) -> Any:
    return None


# Comparing threads


def _open(who: Identity = ANNA) -> ThreadWriter:
    members = [
        {"key": OWNER.public_key, "role": "moderator", "name": "owner"},
        {"key": who.public_key, "role": "member", "name": "anna"},
    ]
    return ThreadWriter.open(OWNER, "t", members, nonce=bytes(16))


def _thread(
    *said: str, ids: Sequence[str] = (), attempts: int = 1, who: Identity = ANNA, **fields: Any
) -> ThreadWriter:
    """A thread in which each text is said, acknowledged and settled."""
    writer = _open(who)
    for number, text in enumerate(said):
        name = ids[number] if ids else f"m{number}"
        message = writer.message(OWNER, name, text, to=[who.public_key], **fields)
        writer.ruling(OWNER, writer.ack(who, message, "understood"))
        writer.settle(OWNER, [{"message": message.address, "outcome": "succeeded", "attempts": attempts}])
    writer.seal(OWNER, "completed")
    return writer


TOLD = ("one", "two", "three")


def test_a_thread_does_not_differ_from_itself() -> None:
    records = _thread(*TOLD).records
    assert differences(records, list(records)) == []
    assert differences(iter(records), iter(records)) == []


def test_what_may_differ_is_when_it_was_signed_and_how_often_it_was_attempted() -> None:
    one, other = _thread(*TOLD), _thread(*TOLD, attempts=2, sent_at=77)
    assert one.records != other.records
    assert differences(one.records, other.records) == []


def other_threads() -> dict[str, ThreadWriter]:
    retold = _thread("one", "two", "two", "three", ids=("m0", "m1", "m1#2", "m2"))
    return {
        "a dropped message": _thread("one", "two"),
        "a message dropped in between": _thread("one", "three", ids=("m0", "m2")),
        "a doubled message": retold,
        "an altered message": _thread("one", "twO", "three"),
        "a message under another id": _thread(*TOLD, ids=("m0", "m1", "m3")),
        "messages in another order": _thread("two", "one", "three", ids=("m1", "m0", "m2")),
        "another recipient": _thread(*TOLD, who=Identity.from_seed(bytes([9] * 32))),
        "another capability": _thread(*TOLD, capability="other"),
    }


@pytest.mark.parametrize("other", other_threads())
def test_a_thread_that_says_something_else_is_noticed(other: str) -> None:
    records = other_threads()[other].records
    assert differences(_thread(*TOLD).records, records) != []
    assert differences(records, _thread(*TOLD).records) != []


def test_a_message_that_is_settled_otherwise_is_noticed() -> None:
    def settled(outcome: str, **fields: Any) -> list[bytes]:
        writer = _open()
        message = writer.message(OWNER, "m", "say it", to=[ANNA.public_key])
        writer.ruling(OWNER, writer.ack(ANNA, message, "understood"))
        writer.settle(OWNER, [{"message": message.address, "outcome": outcome, **fields}])
        return writer.records

    assert differences(settled("succeeded"), settled("failed")) != []
    assert differences(settled("succeeded"), settled("succeeded", status="b")) != []
    assert differences(settled("succeeded"), settled("succeeded", attempts=3, result="the caller said: done")) == []


def test_a_message_that_is_acked_for_another_one_is_noticed() -> None:
    def acked(first: int) -> list[bytes]:
        writer = _open()
        messages = [writer.message(OWNER, f"m{n}", "say it", to=[ANNA.public_key]) for n in range(2)]
        writer.ruling(OWNER, writer.ack(ANNA, messages[first], "understood"))
        return writer.records

    assert differences(acked(0), acked(1)) != []


@pytest.mark.parametrize("place", range(11))
@pytest.mark.parametrize(
    "spoil",
    [
        lambda records, place: [*records[:place], *records[place + 1 :]],
        lambda records, place: [*records[: place + 1], *records[place:]],
        lambda records, place: [
            *records[:place],
            records[place][:-1] + bytes([records[place][-1] ^ 1]),
            *records[place + 1 :],
        ],
    ],
    ids=["dropped", "doubled", "altered"],
)
def test_a_record_of_a_thread_that_is_dropped_doubled_or_altered_is_noticed(
    spoil: Callable[[list[bytes], int], list[bytes]], place: int
) -> None:
    records = _thread(*TOLD).records
    assert differences(records, spoil(records, place)) != []
    assert differences(spoil(records, place), records) != []


def _altered(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


async def test_a_run_that_says_something_twice_or_never_is_noticed() -> None:
    two = (await Stage(*on_the_way(2)).run()).thread.records
    three = (await Stage(*on_the_way(3)).run()).thread.records
    other = (await Stage(*on_the_way(2, payload="do that")).run()).thread.records
    assert [bool(differences(two, one)) for one in (two, three, other)] == [False, True, True]
