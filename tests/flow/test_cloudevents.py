"""Events as CloudEvents 1.0."""

import json
from collections import Counter
from typing import Any

import pytest

from envelope import address_text
from flow import Declined, Event, Failure, Machine, Rejected, Step, Transition
from flow.bus import HEARTBEAT_MISSED, MACHINE_MOVE, MESSAGE_ACKED, MESSAGE_DELIVERED, STEP_COMPLETED, THREAD_VERIFIED
from flow.cloudevents import cloud_event
from flow.run import Outcome
from tests.flow.stage import ANNA, OWNER, Stage, on_the_way

NOW = 1_700_000_000_123


def as_json(stage: Stage) -> list[dict[str, Any]]:
    """Return the events of a run as a program reads them."""
    return [json.loads(json.dumps(cloud_event(event, NOW), allow_nan=False)) for event in stage.bus.events]


@pytest.mark.rule("B8")
@pytest.mark.anyio
async def test_every_event_of_a_run_has_what_cloudevents_asks_for() -> None:
    stage = Stage(*on_the_way(2), Step("report", target="d", gate="after", payload="done"))
    await stage.run()
    told = as_json(stage)
    assert {event["type"] for event in told} == {
        MESSAGE_DELIVERED, MESSAGE_ACKED, MACHINE_MOVE, STEP_COMPLETED, THREAD_VERIFIED,
    }  # fmt: skip
    assert {(event["specversion"], event["source"], event["time"]) for event in told} == {
        ("1.0", "/threads/t", "2023-11-14T22:13:20.123Z")
    }
    assert Counter(event["id"] for event in told).most_common(1)[0][1] == 1


@pytest.mark.rule("B8")
@pytest.mark.anyio
async def test_what_is_told_again_has_the_same_source_and_id() -> None:
    stage = Stage(*on_the_way(2))
    await stage.dies(stage.run, "confirmed")
    first = stage.bus.events[:]
    reborn = stage.reborn()
    await reborn.resume()
    before = {(event["source"], event["id"]) for event in (cloud_event(event, NOW) for event in first)}
    after = {(event["source"], event["id"]) for event in (cloud_event(event, NOW + 9) for event in reborn.bus.events)}
    assert before & after


@pytest.mark.rule("B8")
@pytest.mark.anyio
async def test_an_event_names_a_message_by_its_address_and_has_no_payload() -> None:
    stage = Stage(Step("s", target="b", payload="the secret plan", to=["anna"]))
    await stage.run()
    assert "secret" not in json.dumps(as_json(stage))
    message = stage.bus.events[0].data["message"]
    (delivered,) = [event for event in as_json(stage) if event["type"] == MESSAGE_DELIVERED]
    assert delivered["data"]["message"] == {
        "address": address_text(message.address),
        "signer": OWNER.did,
        "id": "s",
        "intent": "request",
        "step": ["s"],
        "bytes": 15,
        "to": [ANNA.did],
    }


@pytest.mark.anyio
async def test_an_ack_says_what_was_understood_and_a_ruling_what_was_meant() -> None:
    stage = Stage(*on_the_way(1, to=["anna"]), anna=[Declined("not today")])
    await stage.fails(Rejected)
    (acked,) = [event["data"] for event in as_json(stage) if event["type"] == MESSAGE_ACKED]
    assert (acked["recipient"], acked["ack"]["answer"], acked["ack"]["restatement"]) == ("anna", "decline", "not today")
    assert acked["ruling"] is None


@pytest.mark.anyio
async def test_a_failed_step_says_of_what() -> None:
    def fail(record: Any, call: Any) -> Any:
        raise ValueError("broken")

    machine = Machine("a", [Transition("a", "go", "b", on_entry=fail), ("a", "other", "c")])
    rescue = Step("rescue", target="c", needs=["s"], when="failed", payload="help")
    stage = Stage(Step("s", target="b", payload="do it"), rescue, machine=machine)
    await stage.run()
    outcomes = [event["data"]["outcome"] for event in as_json(stage) if event["type"] == STEP_COMPLETED]
    assert outcomes[0]["failure"] == {"step": "s", "error": "ValueError", "text": "broken"}
    assert [outcome["became"] for outcome in outcomes] == ["failed", "succeeded"]


def test_an_event_without_a_thread_is_told_apart_by_what_it_says() -> None:
    one, two = (cloud_event(Event(HEARTBEAT_MISSED, {"beating": "a", "since": since}), NOW) for since in (1.5, 2.5))
    assert (one["source"], one["id"]) == ("/threads/", "heartbeat.missed/a/1.5")
    assert one["id"] != two["id"]


def test_a_programs_own_event_is_written_as_far_as_json_goes() -> None:
    data = {"thread": "a b/c", "number": 1, "odd": object, "bytes": bytes(32), "list": (1, {"x": None})}
    told = cloud_event(Event("mine", data), NOW)
    assert told["source"] == "/threads/a%20b%2Fc"
    assert told["data"]["list"] == [1, {"x": None}]
    assert told["data"]["odd"] == repr(object)
    assert told["data"]["bytes"] == "b3:" + "00" * 32


def test_an_outcome_without_a_message_names_none() -> None:
    outcome = Outcome("s", "b", failure=Failure("s", "E", "t", None))
    assert cloud_event(Event(STEP_COMPLETED, {"outcome": outcome}), NOW)["data"]["outcome"]["message"] is None


def test_an_event_that_nothing_tells_apart_goes_by_its_time() -> None:
    first, second = (cloud_event(Event("mine", {"thread": "t"}), now)["id"] for now in (NOW, NOW + 1))
    assert (first, second) == (f"mine/{NOW}", f"mine/{NOW + 1}")
