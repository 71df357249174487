"""An agent document to start from, and the folder and program that it needs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envelope import Ack, Identity, Message
from flow import Call, Confirm

DOCUMENT = """\
version = 1
judge = "judge"

[agent]
name = "author"
capabilities = ["release"]
key = "author.pem"

[machine]
initial = "draft"

[[machine.rows]]
source = "draft"
trigger = "review"
target = "reviewed"

[[machine.rows]]
source = "reviewed"
trigger = "ship"
target = "released"
on_entry = "ship"

[[steps]]
id = "review"
target = "reviewed"
to = ["ben"]
payload = "Check it."

[[steps]]
id = "ship"
needs = ["review"]
target = "released"
payload = "Ship it."

[peers.ben]
handler = "restate"
key_file = "ben.pem"

[approvers.ada]
key = "{ada}"
"""

AUTHOR, BEN, ADA = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2, 3))


def judge(message: Message, ack: Ack) -> Confirm:
    return Confirm()


def ship(record: Any, call: Call) -> Any:
    return {**record, "shipped": call.step[0]}


def restate(message: Message) -> str:
    return f"I agree: {message.payload}"


REGISTRY: Mapping[str, Any] = {"judge": judge, "ship": ship, "restate": restate, "unused": print}


def written(folder: Path, *changes: tuple[str, str], more: str = "") -> Path:
    """Write the document with changes, each of which must fit, and both key files; return its path."""
    text = DOCUMENT.replace("{ada}", ADA.did)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    for name, identity in (("author.pem", AUTHOR), ("ben.pem", BEN)):
        if not (folder / name).exists():
            identity.save(folder / name)
    path = folder / "agent.toml"
    path.write_text(text + more, encoding="utf-8")
    return path


def as_toml(tables: Mapping[str, Any]) -> str:
    """Return tables as a document, each key at the top with an inline value."""
    return "".join(f"{key} = {_value(value)}\n" for key, value in tables.items())


def _value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f") if value.isascii() else _escaped(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _escaped(text: str) -> str:
    return '"' + "".join(f"\\U{ord(char):08x}" for char in text) + '"'
