"""The bus's events as CloudEvents 1.0 (https://github.com/cloudevents/spec), for programs that watch a run.

An event says which records it is about, who answered what, and what became of a step. Payloads stay where they are
signed: a message is named by its address.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from envelope import Ack, Envelope, Message, Ruling, ThreadVerdict, address_text, did_key
from flow.bus import Event
from flow.clock import rfc3339
from flow.run import Outcome, ThreadCopy

_TOLD_APART_BY = ("message", "left", "step", "source", "target", "beating", "since")


def cloud_event(event: Event, now_ms: int) -> dict[str, Any]:
    """Return an event as CloudEvents' JSON format has it.

    What `source` and `id` say is the same wherever and however often an event of a thread is told, so a consumer can
    drop what it has seen.

    Args:
        event: of a bus.
        now_ms: the time at which it was told, in ms since the epoch.
    """
    source = f"/threads/{quote(str(event.data.get('thread', '')), safe='')}"
    what = (
        address_text(event.address)
        if event.address
        else "/".join(_text(event.data[name]) for name in _TOLD_APART_BY if name in event.data)
    )
    return {
        "specversion": "1.0",
        "id": f"{event.name}/{what}",
        "source": source,
        "type": event.name,
        "time": rfc3339(now_ms),
        "datacontenttype": "application/json",
        "data": {name: _plain(value) for name, value in event.data.items()},
    }


def _text(value: Any) -> str:
    return address_text(value.address) if isinstance(value, Envelope) else str(value)


def _plain(value: Any) -> Any:
    """Return a value of an event as JSON data."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return address_text(value)
    if isinstance(value, Envelope):
        return {"address": address_text(value.address), "signer": did_key(value.signer), **_record(value.record)}
    if isinstance(value, Outcome):
        return _outcome(value)
    if isinstance(value, ThreadCopy):
        return {"address": address_text(value.address), "records": len(value.records)}
    if isinstance(value, ThreadVerdict):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return repr(value)


def _record(record: object) -> dict[str, Any]:
    match record:
        case Message():
            said = {"id": record.id, "intent": record.intent, "step": record.step, "bytes": record.payload_bytes}
            return {**said, "to": [did_key(key) for key in record.to or ()]}
        case Ack():
            return {"answer": record.answer, "restatement": _content(record.restatement)}
        case Ruling():
            return {"ruling": record.ruling, "correction": _content(record.correction)}
    return {}


def _content(content: Any) -> Any:
    return content if content is None or isinstance(content, str) else {"blob": address_text(content.address)}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "step": outcome.step,
        "became": outcome.became,
        "status": outcome.status,
        "attempts": outcome.attempts,
        "message": address_text(outcome.message.address) if outcome.message else None,
        "acks": {name: address_text(ack.address) for name, ack in outcome.acks.items()},
        "failure": {"step": outcome.failure.step, "error": outcome.failure.error, "text": outcome.failure.text}
        if outcome.failure
        else None,
    }
