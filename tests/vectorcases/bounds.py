"""Threads that reach the bounds of the protocol exactly, and use what it leaves free."""

from typing import Any

from tests.vectorcases import curve
from tests.vectorcases.build import START, Move, Ref, digest, encode, key, seed
from tests.vectorcases.case import TRUST, positive
from tests.vectorcases.moves import (
    ack,
    became,
    confirm,
    message,
    opening,
    roster,
    seal,
    settle,
    step,
)
from tests.vectorcases.positives import answered, crew

MAX = 2**53 - 1
LARGEST = 1 << 20

positive(
    "bounds.names",
    "Ids, names, paths, capabilities and media types are as long as they may be.",
    opening("N" * 64, {"ada": "moderator", "bob": "member"}, room="r" * 64),
    message(
        "long",
        "ada",
        to=["bob"],
        room="r" * 64,
        id="A#." + "z" * 125,
        step=["s" * 64 + "#999999999"] * 8,
        capability="c" * 64,
        media_type="t" * 127 + "/" + "s" * 127,
    ),
    *answered("long", "bob"),
    roster("admit-eve", "ada", "admit", "eve", role="observer", name="E" + "_" * 62 + "-"),
    message("short", "bob", room="r" * 64, id="0", capability="0", media_type="0/0"),
    seal(settled=[became("long", status="S" * 64), step("s#2"), step("s")]),
    rules=["body.name"],
)

positive(
    "bounds.numbers-high",
    "Times, limits and counts are the greatest there are.",
    crew("high", limits={"bytes": MAX, "messages": MAX}, sent_at=MAX),
    message("ask", "ada", to=["bob"], sent_at=MAX, confidence=100, max_hops=MAX, cost_budget=MAX),
    *answered("ask", "bob"),
    settle("done", "ada", became("ask", attempts=MAX), sent_at=MAX),
    seal(sent_at=MAX),
    now=MAX,
    rules=["body.value", "cbor.integer"],
)

positive(
    "bounds.numbers-low",
    "Times, limits and counts are the least there are.",
    crew("low", limits={"bytes": 1, "messages": 1}, sent_at=0),
    message("ask", "ada", "?", to=["bob"], sent_at=0, confidence=0, max_hops=1, cost_budget=1),
    *answered("ask", "bob"),
    settle("done", "ada", became("ask", attempts=1), sent_at=0),
    seal(sent_at=0),
    now=3_600_000_000_000,
    rules=["body.value"],
)

positive(
    "bounds.lists",
    "Contexts, evidence and chains have 64 elements.",
    crew("lists"),
    message(
        "long",
        "bob",
        epistemic="verified",
        context=[digest(str(63 - number)) for number in range(64)],
        provenance={
            "source": "\u00e9" * 128,
            "chain": [key("bob")] * 64,
            "evidence": [digest("one")] * 64,
        },
        max_hops=64,
    ),
    message("short", "bob", context=[digest("one")], provenance={"source": "x", "chain": [key("ada")]}),
    seal(),
    rules=["body.size", "message.hops"],
)

CROWD = [f"crowd{number}" for number in range(255)]

positive(
    "bounds.members",
    "A thread has 256 members, and a message has 255 recipients.",
    opening("members", {"ada": "moderator"} | dict.fromkeys(CROWD, "observer")),
    message("tell", "ada", to=CROWD, intent="assert"),
    seal(),
    rules=["body.size"],
)

positive(
    "bounds.texts",
    "Restatements, corrections, results and reasons have 65,536 bytes.",
    crew("texts"),
    message("ask", "ada", "?", to=["bob"]),
    ack("bob-yes", "bob", "ask", "\u4e2d" * 21845 + "x"),
    confirm("bob-ok", "ada", "bob-yes"),
    seal(settled=[became("ask", result="r" * 65536)], reason="\t\n\r " * 16383 + "   x"),
    rules=["body.size", "body.blank"],
)

LENGTHS = (1, 23, 24, 255, 256, 65535, 65536)

positive(
    "bounds.payload-lengths",
    "Payloads have lengths around which the heads of CBOR change.",
    crew("payload-lengths"),
    *(message(f"m{length}", "bob", "x" * length) for length in LENGTHS),
    seal(),
    rules=["cbor.shortest"],
)


def filled(label: str, size: int, **fields: Any) -> Move:
    """Return a message whose body is `size` bytes."""

    def fill(payload: bytes) -> bytes:
        start = payload.index(encode("payload")) + len(encode("payload"))
        for width in (1, 2, 3, 5):
            text = encode("x" * (size - len(payload) + 2 - width))
            if len(text) == size - len(payload) + 2:
                return payload[:start] + text + payload[start + 2 :]
        raise AssertionError("no text makes a body of this size")

    move = message(label, "bob", "?", **fields)
    move.craft.payload = fill
    return move


positive(
    "bounds.body-lengths",
    "Bodies have lengths around which the heads of CBOR change.",
    crew("body-lengths"),
    *(filled(f"m{size}", size) for size in (255, 256, 65535, 65536)),
    seal(),
    rules=["cbor.shortest"],
)

_HEADER = {1: -19, 4: bytes(32), 16: "application/vnd.envelope.message+cose"}
ENVELOPE_OVERHEAD = 2 + len(encode(encode(_HEADER))) + 1 + 5 + 66
"""What an envelope of a large message has beside its body."""

positive(
    "bounds.envelope",
    "An envelope has 1,048,576 bytes.",
    opening("envelope", {"ada": "moderator", "bob": "member"}),
    filled("large", LARGEST - ENVELOPE_OVERHEAD),
    seal(),
    rules=["size.envelope"],
)

positive(
    "bounds.escalation",
    "An escalation's payload has 4,096 bytes.",
    crew("escalation"),
    message("ask", "ada", to=["bob"]),
    message("call", "ada", "\u00e9" * 2048, to=["fay"], intent="escalate", reply_to=Ref("ask")),
    completeness="open",
    outcome=None,
    rules=["message.escalation_payload"],
)

positive(
    "bounds.limits",
    "The owner reaches both limits exactly; escalations and other members' messages do not count.",
    crew("limits", limits={"bytes": 40, "messages": 4}),
    message("ask", "ada", "\u4e2d" * 5, to=["bob"]),
    message("blob", "ada", {"address": digest("limit"), "bytes": 17}),
    message("word", "bob", "This is longer than forty bytes, but it is another member's."),
    message("oops", "ada", "-", intent="retract", reply_to=Ref("blob")),
    message("call", "ada", "This escalation counts for neither.", to=["fay"], intent="escalate", reply_to=Ref("ask")),
    message("last", "ada", "1234567"),
    *answered("ask", "bob"),
    settle("done", "ada", became("ask")),
    seal(),
    rules=["limit.bytes", "limit.messages"],
)

positive(
    "bounds.limit-of-messages",
    "The owner sends as many messages as it may, of any length.",
    crew("limit-of-messages", limits={"messages": 2}),
    message("one", "ada", "x" * 1000),
    message("two", "ada", {"address": digest("limit"), "bytes": MAX}),
    message("other", "hal"),
    seal(),
    rules=["limit.messages"],
)


def nested(depth: int, inner: Any = 0) -> Any:
    """Return arrays and maps in turn, `depth` of them around `inner`."""
    for level in range(depth):
        inner = [inner] if level % 2 else {"k": inner}
    return inner


positive(
    "bounds.depth",
    "A body nests eight deep.",
    crew("depth", ext={"org.example": nested(6)}),
    message("say", "bob", ext={"org.example": nested(5, [])}),
    seal(),
    rules=["cbor.depth"],
)

SPARE_ITEMS = 16_384 - (1 + 2 * 10) - 2
"""What the bodies of messages below leave for the list in their extension: 10 pairs, and one pair in `ext`."""

positive(
    "bounds.items",
    "A body holds 16,384 items.",
    crew("items"),
    message("say", "bob", ext={"org.example": [0] * SPARE_ITEMS}),
    seal(),
    rules=["cbor.items"],
)

MANY = [(f"m{number}", who) for number in range(16) for who in CROWD] + [("m16", who) for who in CROWD[:16]]

positive(
    "bounds.receipts",
    "4,096 receipts stand between two records, and the second commits them.",
    opening("receipts", {"ada": "moderator"} | dict.fromkeys(CROWD, "member")),
    *(message(f"m{number}", "ada", "?", to=CROWD) for number in range(17)),
    *(ack(f"{who}-{of}", who, of, "!", sent_at=START) for of, who in MANY),
    settle("commit", "ada", sent_at=START),
    completeness="open",
    outcome=None,
    trust=dict.fromkeys(["ada", *CROWD], "agent"),
    rules=["receipts.many"],
)

UNICODE = (
    "\u00df \u0130\u0131 e\u0301 \u00e9 \u4e2d\u6587 \u0645\u0631\u062d\u0628\u0627 \U0001f600",
    "\u00a0",
    "\u200b\u202e\ufeff\u2028",
    "\x00\x1b[31m\x7f\x85",
    "\ud7ff\ue000\ufffd\uffff\U00010000\U0010ffff",
    " x\t",
)

positive(
    "text.unicode",
    "Text of messages is any Unicode, unchanged: no rule knows more than four blanks.",
    crew("unicode"),
    *(message(f"m{number}", "bob", text) for number, text in enumerate(UNICODE)),
    seal(),
    rules=["body.blank", "cbor.utf8"],
)

positive(
    "text.names",
    "Names use every character that they may.",
    opening("0.9_A-z", {"ada": "moderator", "bob": "member"}, room="0"),
    message("a", "bob", room="0", id="0A._#-#", capability="0._-", media_type="a!#$&^_.+-/0!#$&^_.+-"),
    message("b", "bob", room="0", id="a#2"),
    message("c", "ada", to=["bob"], room="0", id="A", step=["a#2", "a#10", "0"], ack_required=True),
    *answered("c", "bob"),
    seal(settled=[became("c", status="0._-")]),
    rules=["body.name"],
)


def _mixed() -> tuple[bytes, int]:
    """Return a public key with a component of order 2, and the secret scalar of the other one."""
    scalar = curve.scalar_of(seed("mixed"))
    return curve.encode(curve.add(curve.times(scalar, curve.BASE), curve.OF_ORDER_2)), scalar


MIXED, _SCALAR = _mixed()


def sign_mixed(message: bytes) -> bytes:
    """Sign so that the component of order 2 vanishes: the challenge is even."""
    nonce = 1
    while True:
        signature = curve.sign(_SCALAR, MIXED, message, nonce)
        if curve.challenge(signature[:32], MIXED, message) % 2 == 0:
            return signature
        nonce += 1


def mixed_opening() -> Move:
    """Return the open of a thread that the key of mixed order owns."""
    move = opening("mixed", {"bob": "member"})
    move.body["members"] = sorted(
        [*move.body["members"], {"key": MIXED, "role": "moderator", "name": "mixed"}], key=lambda entry: entry["key"]
    )
    move.craft.kid, move.craft.sign = MIXED, sign_mixed
    return move


positive(
    "key.mixed-order",
    "A key with a component of small order beside one of large order signs and is accepted.",
    mixed_opening(),
    message("say", "bob"),
    completeness="open",
    outcome=None,
    trust=TRUST,
    trusted_keys={MIXED: "agent"},
    rules=["key.small_order", "signature.invalid"],
)
