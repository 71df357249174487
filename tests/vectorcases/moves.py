"""The moves of a script, each named after the record that it makes, and the changes that spoil a script."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tests.vectorcases.build import Move, Raw, Ref, Script, digest, encode, key, keys

Change = Callable[[Script], None]


def opening(name: str, members: dict[str, str], by: str = "ada", **fields: Any) -> Move:
    """Return the open of a thread; members are names with roles."""
    entries = [{"key": key(who), "role": role, "name": who} for who, role in members.items()]
    body = {"name": name, "nonce": digest(name)[:16], "members": sorted(entries, key=lambda entry: entry["key"])}
    return Move("open", "open", by, body | fields)


def message(label: str, by: str, payload: Any = "The build is green.", to: Iterable[str] = (), **fields: Any) -> Move:
    """Return a message: a request where it has recipients, otherwise an assertion."""
    body: dict[str, Any] = {"id": label, "intent": "assert", "epistemic": "assumed", "payload": payload}
    if recipients := keys(to):
        body |= {"intent": "request", "to": recipients}
    return Move(label, "message", by, body | fields)


def ack(label: str, by: str, of: str, restatement: Any = "I am to check the build.", **fields: Any) -> Move:
    """Return an acceptance."""
    return Move(label, "ack", by, {"message": Ref(of), "answer": "accept", "restatement": restatement} | fields)


def decline(label: str, by: str, of: str, restatement: Any = "I will not release this.", **fields: Any) -> Move:
    """Return an acknowledgement that declines."""
    return ack(label, by, of, restatement, answer="decline", **fields)


def confirm(label: str, by: str, of: str, **fields: Any) -> Move:
    """Return a ruling that confirms."""
    return Move(label, "ruling", by, {"ack": Ref(of), "ruling": "confirm"} | fields)


def correct(label: str, by: str, of: str, correction: Any = "The whole build, not the tests.", **fields: Any) -> Move:
    """Return a ruling that corrects."""
    return Move(label, "ruling", by, {"ack": Ref(of), "ruling": "correct", "correction": correction} | fields)


def roster(label: str, by: str, change: str, who: str, **fields: Any) -> Move:
    """Return a change of the roster."""
    body = {"change": change, "key": key(who)} | ({"name": who} if change == "admit" else {})
    return Move(label, "roster", by, body | fields)


def settle(label: str, by: str, *settled: dict[str, Any], **fields: Any) -> Move:
    """Return a settle."""
    return Move(label, "settle", by, ({"settled": list(settled)} if settled else {}) | fields)


def seal(label: str = "end", by: str = "ada", outcome: str = "completed", **fields: Any) -> Move:
    """Return a seal."""
    return Move(label, "seal", by, {"outcome": outcome} | fields)


def became(of: str, outcome: str = "succeeded", **fields: Any) -> dict[str, Any]:
    """Return the settlement of a message."""
    return {"message": Ref(of), "outcome": outcome} | fields


def approved(of: str, by: str, **fields: Any) -> dict[str, Any]:
    """Return the settlement of a message that people approved."""
    return became(of, "approved", by=Ref(by), **fields)


def step(path: str, outcome: str = "succeeded", **fields: Any) -> dict[str, Any]:
    """Return the settlement of a step."""
    return {"step": path.split("/"), "outcome": outcome} | fields


def card(label: str, by: str, **fields: Any) -> Move:
    """Return a card."""
    body = {"name": "Bob", "capabilities": ["deploy"], "key": key(by), "not_before": 0}
    return Move(label, "card", by, body | fields)


# Changes


def put(label: str, **fields: Any) -> Change:
    """Set fields of a body."""
    return lambda script: script.move(label).body.update(fields)


def craft(label: str, **how: Any) -> Change:
    """Make an envelope otherwise than it should be."""

    def change(script: Script) -> None:
        move = script.move(label)
        move.craft = replace(move.craft, **how)

    return change


def payload_swap(label: str, old: bytes, new: bytes) -> Change:
    """Replace bytes of a payload before it is signed."""
    return craft(label, payload=lambda data: swap(data, old, new))


def header_swap(label: str, old: bytes, new: bytes) -> Change:
    """Replace bytes of a protected header before it is signed."""
    return craft(label, header=lambda header: Raw(swap(encode(header), old, new)))


def swap(data: bytes, old: bytes, new: bytes) -> bytes:
    """Return the data with the only occurrence of `old` replaced."""
    assert data.count(old) == 1, f"{old!r} occurs {data.count(old)} times"
    return data.replace(old, new)


def before(label: str, *moves: Move) -> Change:
    """Insert moves before another."""

    def change(script: Script) -> None:
        place = script.place(label)
        script.moves[place:place] = moves

    return change


def after(label: str, *moves: Move) -> Change:
    """Insert moves behind another."""

    def change(script: Script) -> None:
        place = script.place(label) + 1
        script.moves[place:place] = moves

    return change


def drop(*labels: str) -> Change:
    """Leave moves out, as if they had never been made."""

    def change(script: Script) -> None:
        script.moves = [move for move in script.moves if move.label not in labels]

    return change


def hide(*labels: str) -> Change:
    """Leave records out of the file, although later ones are linked to them."""

    def change(script: Script) -> None:
        for label in labels:
            script.move(label).hidden = True

    return change


def exchange(first: str, second: str) -> Change:
    """Let two records change places in the file, without linking them anew."""
    return lambda script: script.exchanged.append((first, second))


def reorder(label: str, behind: str) -> Change:
    """Make a move at another place."""

    def change(script: Script) -> None:
        move = script.moves.pop(script.place(label))
        script.moves.insert(script.place(behind) + 1, move)

    return change


def signed_by(label: str, who: str) -> Change:
    """Let another key sign."""

    def change(script: Script) -> None:
        script.move(label).by = who

    return change


def cut(label: str) -> Change:
    """Make no move behind this one."""

    def change(script: Script) -> None:
        del script.moves[script.place(label) + 1 :]

    return change


def again(label: str, of: str) -> Move:
    """Return the same bytes a second time."""
    return Move(label, "copy", "", {"of": of})


def junk(label: str, raw: bytes) -> Move:
    """Return bytes that are no record."""
    return Move(label, "bytes", "", {"raw": raw})
