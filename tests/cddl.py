"""Checks bytes against `spec/envelope.cddl` with pycddl, apart from the package's own models.

Three things stand between the file and the validator, and each is made up for here:

- it matches a `.regexp` anywhere in a text, where RFC 8610 means the whole text;
- it knows no `.regexp` on map keys and no recursion, so keys of `ext` are checked one by one and its values not;
- it merges the keys of the alternatives of a choice of maps, so the alternative is chosen here, by name.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import cbor2
from pycddl import Schema

SOURCE = Path(__file__).parents[1] / "spec" / "envelope.cddl"
TYP = re.compile(r"application/vnd\.envelope\.([a-z]+)\+cose")


@cache
def schema(root: str) -> Schema:
    """Return the schema whose root is the rule `root` of the file."""
    text = re.sub(r'(\.regexp )"([^"]*)"', r'\1"^(\2)$"', SOURCE.read_text(encoding="utf-8"))
    text, found = re.subn(r"^ext = .*$", "ext = { + tstr => any }", text, flags=re.MULTILINE)
    assert found == 1
    return Schema(f"start = {root}\n{text}")


def validate_envelope(data: bytes) -> None:
    """Return if the envelope's shape, its protected header and its body are of the schema.

    Raises:
        pycddl.ValidationError: the header or the body is not.
        AssertionError: the outer shape is not.
    """
    envelope = cbor2.loads(data)
    assert isinstance(envelope, cbor2.CBORTag)
    assert envelope.tag == 18
    protected, unprotected, payload, signature = envelope.value
    assert unprotected == {}
    assert isinstance(signature, bytes)
    assert len(signature) == 64
    schema("header").validate_cbor(protected)
    match = TYP.fullmatch(cbor2.loads(protected)[16])
    assert match is not None
    validate_body(match[1], payload)


def validate_body(kind: str, payload: bytes) -> None:
    """Return if the bytes are a body of that kind.

    Raises:
        pycddl.ValidationError: they are not.
    """
    body = cbor2.loads(payload)
    schema(_root(kind, body)).validate_cbor(payload)
    for key in body.get("ext", ()):
        schema("ext-key").validate_cbor(cbor2.dumps(key))
    for entry in body.get("settled", ()):
        schema(_settled_root(entry)).validate_cbor(cbor2.dumps(entry))
    if limits := body.get("limits"):
        schema("limit-of-" + ("both" if len(limits) > 1 else next(iter(limits)))).validate_cbor(cbor2.dumps(limits))


def _root(kind: str, body: Any) -> str:
    """Return the name of the alternative that a body of that kind has to be."""
    if kind == "message":
        acked = "acked" if "ack_required" in body else "plain"
        return {
            "assert": f"statement-{acked}", "query": f"statement-{acked}", "request": "request",
            "challenge": f"reply-{acked}", "retract": f"reply-{acked}", "escalate": "escalation",
        }.get(body.get("intent"), "message-body")  # fmt: skip
    if kind == "roster":
        names = {"admit": "admission", "role": "role-change", "remove": "removal", "leave": "leave"}
        return names.get(body.get("change"), "roster-body")
    if kind == "settle":
        return "settle-with-receipts" if "receipts" in body else "settle-with-settled"
    if kind == "ruling":
        return {"confirm": "confirmation", "correct": "correction"}.get(body.get("ruling"), "ruling-body")
    return f"{kind}-body"


def _settled_root(entry: Any) -> str:
    if "step" in entry:
        return "settled-step"
    return "settled-approved" if entry["outcome"] == "approved" else "settled-message"
