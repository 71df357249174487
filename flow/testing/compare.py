"""Whether two threads tell the same."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from envelope import Envelope, did_key, open_envelope, verify_thread

_OF_ATTEMPTS = frozenset(("attempts", "result"))


def differences(one: Iterable[bytes], other: Iterable[bytes]) -> list[str]:
    """Return in what two threads differ, a line for each record; empty if they tell the same.

    They tell the same if they have the same kinds of records, by the same signers, with the same contents in the same
    order, but for when each was signed, how often an action was started, and what was said of one in doubt. For threads
    that are to be the same bytes, compare their records.

        assert not differences(undisturbed.thread.records, resumed.thread.records)

    Args:
        one: the records of a thread.
        other: of another.
    """
    told = [_told("the first", one), _told("the second", other)]
    return [
        f"record {place}: {was or 'none'} / {became or 'none'}"
        for place, (was, became) in enumerate(zip_longest(*told))
        if was != became
    ]


def _told(which: str, records: Iterable[bytes]) -> Iterator[str]:
    """Yield what each record says, with its place in the thread for each address."""
    records = list(records)
    verdict = verify_thread(records, trust=None)
    if verdict.integrity != "valid":
        yield f"{which} is no valid thread: {verdict}"
        return
    places: dict[bytes, str] = {}
    for place, envelope in enumerate(map(open_envelope, records)):
        places[envelope.address] = f"record {place}"
        yield _line(envelope, places)


def _line(envelope: Envelope[Any], places: dict[bytes, str]) -> str:
    said = envelope.record.model_dump(exclude_none=True, exclude={"sent_at"})
    return f"{envelope.kind} of {did_key(envelope.signer)}: {_plain(said, places)}"


def _plain(value: Any, places: dict[bytes, str]) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner, places) for name, inner in value.items() if name not in _OF_ATTEMPTS}
    if isinstance(value, list | tuple):
        return [_plain(inner, places) for inner in value]
    return places.get(value, value) if isinstance(value, bytes) else value
