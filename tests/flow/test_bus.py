import logging
from dataclasses import FrozenInstanceError

import anyio
import anyio.lowlevel
import pytest

from flow import bus as names
from flow.bus import Bus, Event

pytestmark = pytest.mark.anyio

NEWS = Event("news")


@pytest.mark.rule("B1")
async def test_sync_and_async_handlers_are_awaited_in_subscription_order() -> None:
    told: list[str] = []

    async def slow(event: Event) -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        told.append("slow")

    bus = Bus()
    bus.subscribe(slow)
    bus.subscribe(lambda event: told.append("quick"))
    await bus.emit(NEWS)
    assert told == ["slow", "quick"]


@pytest.mark.rule("B1")
async def test_a_handler_gets_the_event_itself() -> None:
    told: list[Event] = []
    bus = Bus()
    bus.subscribe(told.append)
    await bus.emit(NEWS)
    assert told[0] is NEWS


@pytest.mark.rule("B2")
async def test_a_failing_handler_is_logged_and_stops_neither_the_rest_nor_the_emitter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Event] = []

    async def fail_later(event: Event) -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("late")

    def fail_now(event: Event) -> None:
        raise ValueError("now")

    bus = Bus()
    for handler in (fail_now, fail_later, told.append):
        bus.subscribe(handler)
    with caplog.at_level(logging.ERROR, "flow.bus"):
        await bus.emit(NEWS)
    assert told == [NEWS]
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["now", "late"]


@pytest.mark.rule("B3")
async def test_a_cancel_during_a_handler_passes_through_and_ends_the_telling() -> None:
    told: list[Event] = []
    bus = Bus()

    async def hang(event: Event) -> None:
        scope.cancel()
        await anyio.sleep_forever()

    bus.subscribe(hang)
    bus.subscribe(told.append)
    with anyio.CancelScope() as scope:
        await bus.emit(NEWS)
    assert scope.cancelled_caught
    assert told == []


@pytest.mark.rule("B4")
async def test_an_event_without_subscriber_is_no_error() -> None:
    await Bus().emit(NEWS)


@pytest.mark.rule("B5")
async def test_a_subscription_for_one_name_hears_no_other() -> None:
    told: list[str] = []
    bus = Bus()
    bus.subscribe(lambda event: told.append(event.name), "a")
    for name in ("a", "b", "a"):
        await bus.emit(Event(name))
    assert told == ["a", "a"]


@pytest.mark.rule("B5")
async def test_ending_a_subscription_ends_it_alone_and_only_once() -> None:
    told: list[Event] = []
    bus = Bus()
    end = bus.subscribe(told.append)
    bus.subscribe(told.append)
    end()
    end()
    await bus.emit(NEWS)
    assert told == [NEWS]


@pytest.mark.rule("B5")
async def test_a_subscription_that_begins_or_ends_during_an_event_counts_from_the_next() -> None:
    told: list[str] = []
    bus = Bus()

    def change(event: Event) -> None:
        end_early()
        end_other()
        bus.subscribe(lambda event: told.append("new"))

    end_early = bus.subscribe(change)
    end_other = bus.subscribe(lambda event: told.append("other"))
    await bus.emit(NEWS)
    assert told == ["other"]
    await bus.emit(NEWS)
    assert told == ["other", "new"]


@pytest.mark.rule("B6")
def test_an_event_cannot_be_changed() -> None:
    given = {"step": "review"}
    event = Event("news", given)
    given["step"] = "ship"
    with pytest.raises(FrozenInstanceError):
        event.name = "old"  # type: ignore[misc]
    with pytest.raises(TypeError):
        event.data["step"] = "ship"  # type: ignore[index]
    assert event.data == {"step": "review"}


@pytest.mark.rule("B6")
def test_an_event_carries_the_address_of_its_record_if_there_is_one() -> None:
    assert Event("news", address=bytes(32)).address == bytes(32)
    assert NEWS.address is None


@pytest.mark.rule("B7")
def test_the_names_of_events_stay_as_they_are() -> None:
    constants = {name for key, name in vars(names).items() if key.isupper()}
    assert constants == {
        "agent.message_delivered",
        "agent.message_acked",
        "agent.thread_verified",
        "flow.step_completed",
        "machine.move",
        "agent.ack_due",
        "budget.low",
        "heartbeat.missed",
        "heartbeat.recovered",
    }
