"""Cases of the stage body: what one record shows by itself once its signature held."""

from tests.vectorcases.bounds import CROWD
from tests.vectorcases.build import ABSENT, Ref, digest, encode, key, keys
from tests.vectorcases.case import negative
from tests.vectorcases.moves import (
    after,
    became,
    card,
    craft,
    put,
    settle,
    step,
)
from tests.vectorcases.wire import relabelled

REQUEST = "thread.request"
SINGLE = "thread.single"

# Kind and version

negative(
    "body.kind", "later", REQUEST,
    "A message is of the kind poem.",
    relabelled("ask", typ="application/vnd.envelope.poem+cose"), at="ask",
)  # fmt: skip
negative(
    "body.kind", "longest", REQUEST,
    "The seal is of a kind of 32 characters.",
    relabelled("end", typ="application/vnd.envelope.seal-" + "0" * 27 + "+cose"), at="end",
)  # fmt: skip
negative(
    "body.kind", "opaque", REQUEST,
    "A message is of the kind note, and its payload is no CBOR.",
    relabelled("ask", typ="application/vnd.envelope.note+cose"), craft("ask", payload=lambda data: b"\xff"), at="ask",
)  # fmt: skip
negative(
    "body.kind", "then-broken", REQUEST,
    "A message is of the kind poem, and the seal's signature is one of other bytes.",
    relabelled("ask", typ="application/vnd.envelope.poem+cose"), craft("end", signed=lambda right: right + b"\x00"),
    at="ask", later=[("signature.invalid", "end")],
)  # fmt: skip
negative("body.version", "two", REQUEST, "A message has version 2.", put("ask", v=2), at="ask")
negative("body.version", "zero", REQUEST, "The seal has version 0.", put("end", v=0), at="end")
negative(
    "body.version", "later-fields", REQUEST,
    "An acknowledgement has version 2, and a field that version 1 does not know.",
    put("bob-yes", v=2, mood="calm"), at="bob-yes",
)  # fmt: skip

# Types

negative("body.type", "boolean-version", REQUEST, "The version is true.", put("ask", v=True), at="ask")
negative("body.type", "text-time", REQUEST, "A time is text.", put("ask", sent_at="1760000000000"), at="ask")
negative(
    "body.type", "array", REQUEST,
    "The body is an array of the fields' values.",
    craft("ask", payload=lambda data: encode([1, 1_760_000_000_000])), at="ask",
)  # fmt: skip
negative(
    "body.type", "bytes", REQUEST,
    "A restatement is a byte string.",
    put("bob-yes", restatement=b"yes"), at="bob-yes",
)  # fmt: skip
negative("body.type", "text-key", SINGLE, "A recipient is named by text.", put("ask", to=["k" * 32]), at="ask")
negative("body.type", "integer-flag", REQUEST, "A flag is 1.", put("ask", ack_required=1), at="ask")
negative("body.type", "boolean-number", REQUEST, "The confidence is true.", put("ask", confidence=True), at="ask")
negative("body.type", "map-for-list", SINGLE, "The recipients are a map.", put("ask", to={"bob": key("bob")}), at="ask")
negative("body.type", "list-for-map", REQUEST, "The extension is a list.", put("ask", ext=[1]), at="ask")

# Fields

negative("body.missing", "time", REQUEST, "A message has no time.", put("ask", sent_at=ABSENT), at="ask")
negative("body.missing", "version", REQUEST, "A message has no version.", put("ask", v=ABSENT), at="ask")
negative(
    "body.missing", "restatement", REQUEST,
    "An ack restates nothing.",
    put("bob-yes", restatement=ABSENT), at="bob-yes",
)  # fmt: skip
negative("body.missing", "thread", REQUEST, "A settle names no thread.", put("done", thread=ABSENT), at="done")
negative("body.missing", "seq-of-open", REQUEST, "The open has no seq.", put("open", seq=ABSENT), at="open")
negative("body.missing", "payload", REQUEST, "A message has no payload.", put("ask", payload=ABSENT), at="ask")
negative(
    "body.missing", "member-name", "thread.smallest",
    "A member has no name.",
    put("open", members=[{"key": key("ada"), "role": "moderator"}]), at="open",
)  # fmt: skip
negative(
    "body.missing", "settled-outcome", REQUEST,
    "A settlement has no outcome.",
    put("done", settled=[{"message": Ref("ask")}]), at="done",
)  # fmt: skip
negative(
    "body.missing", "blob-length", "thread.blobs",
    "A blob is named without its length.",
    put("first", restatement={"address": digest("a restatement")}), at="first",
)  # fmt: skip
negative("body.unknown", "message", REQUEST, "A message has a field note.", put("ask", note="urgent"), at="ask")
negative(
    "body.unknown", "prev-of-open", REQUEST,
    "The open has a prev.",
    put("open", prev=digest("nothing")), at="open",
)  # fmt: skip
negative(
    "body.unknown", "kind", REQUEST,
    "A ruling states its kind in the body.",
    put("bob-ok", kind="ruling"), at="bob-ok",
)  # fmt: skip
negative(
    "body.unknown", "member", "thread.smallest",
    "A member has a field did.",
    put("open", members=[{"key": key("ada"), "role": "moderator", "name": "ada", "did": "x"}]), at="open",
)  # fmt: skip
negative(
    "body.unknown", "settled", REQUEST,
    "A settlement has a field cost.",
    put("done", settled=[became("ask", cost=1)]), at="done",
)  # fmt: skip
negative(
    "body.unknown", "receipts-of-ack", REQUEST,
    "An acknowledgement has a prev.",
    put("bob-yes", prev=Ref("ask")), at="bob-yes",
)  # fmt: skip

# Values

negative("body.value", "confidence", REQUEST, "The confidence is 101.", put("ask", confidence=101), at="ask")
negative("body.value", "negative-time", REQUEST, "A time is -1.", put("ask", sent_at=-1), at="ask")
negative("body.value", "seq-zero", REQUEST, "The seq of a message is 0.", put("ask", seq=0), at="ask")
negative("body.value", "seq-of-open", REQUEST, "The seq of the open is 1.", put("open", seq=1), at="open")
negative("body.value", "false-flag", REQUEST, "A flag is false.", put("ask", ack_required=False), at="ask")
negative("body.value", "intent", REQUEST, "A message has the intent order.", put("ask", intent="order"), at="ask")
negative("body.value", "label", REQUEST, "A message has the label certain.", put("ask", epistemic="certain"), at="ask")
negative("body.value", "answer", REQUEST, "An ack has the answer maybe.", put("bob-yes", answer="maybe"), at="bob-yes")
negative("body.value", "outcome", REQUEST, "A seal has the outcome done.", put("end", outcome="done"), at="end")
negative("body.value", "short-address", REQUEST, "An address has 31 bytes.", put("ask", context=[bytes(31)]), at="ask")
negative(
    "body.value", "long-key", SINGLE,
    "A recipient's key has 33 bytes.",
    put("ask", to=[key("bob") + b"\0"]), at="ask",
)  # fmt: skip
negative("body.value", "short-nonce", REQUEST, "The nonce has 15 bytes.", put("open", nonce=bytes(15)), at="open")
negative(
    "body.value", "zero-limit", "bounds.numbers-low",
    "A limit is 0.",
    put("open", limits={"messages": 0}), at="open",
)  # fmt: skip
negative(
    "body.value", "zero-attempts", REQUEST,
    "Attempts are 0.",
    put("done", settled=[became("ask", attempts=0)]), at="done",
)  # fmt: skip
negative(
    "body.value", "blob-length", "thread.blobs",
    "A blob has 16 bytes, no more than its random ones.",
    put("first", restatement={"address": digest("a restatement"), "bytes": 16}), at="first",
)  # fmt: skip
negative(
    "body.value", "role", "thread.smallest",
    "A member has the role admin.",
    put("open", members=[{"key": key("ada"), "role": "admin", "name": "ada"}]), at="open",
)  # fmt: skip
negative("body.empty", "recipients", "message.query", "The list of recipients is empty.", put("ask", to=[]), at="ask")
negative("body.empty", "extension", REQUEST, "The extension is empty.", put("ask", ext={}), at="ask")
negative("body.empty", "receipts", "message.query", "The list of receipts is empty.", put("ask", receipts=[]), at="ask")
negative("body.empty", "settled", REQUEST, "The list of settlements is empty.", put("ask", settled=[]), at="ask")
negative(
    "body.empty", "limits", "bounds.numbers-low",
    "The limits are an empty map.",
    put("open", limits={}), at="open",
)  # fmt: skip
negative("body.empty", "members", "thread.smallest", "There are no members.", put("open", members=[]), at="open")
negative("body.empty", "context", REQUEST, "The context is empty.", put("ask", context=[]), at="ask")
negative(
    "body.empty", "step", "settle.steps",
    "The step's path is empty.",
    put("steps", settled=[{"step": [], "outcome": "succeeded"}]), at="steps",
)  # fmt: skip
negative(
    "body.order", "descending", REQUEST,
    "The recipients descend.",
    put("ask", to=keys(["bob", "cyd"])[::-1]), at="ask",
)  # fmt: skip
negative("body.order", "twice", SINGLE, "A recipient is named twice.", put("ask", to=[key("bob")] * 2), at="ask")


def _members(*names: str) -> list[dict[str, object]]:
    return [{"key": key(name), "role": "moderator", "name": name} for name in names]


DESCENDING = sorted(["ada", "bob"], key=key, reverse=True)

negative(
    "body.order", "members", SINGLE,
    "The members descend by key.",
    put("open", members=_members(*DESCENDING)), at="open",
)  # fmt: skip
negative(
    "body.order", "member-twice", SINGLE,
    "A key is a member twice, under two names.",
    put("open", members=[*_members("ada"), {"key": key("ada"), "role": "member", "name": "bob"}]), at="open",
)  # fmt: skip

# Texts

negative("body.name", "id-space", REQUEST, "An id holds a space.", put("ask", id="ask me"), at="ask")
negative("body.name", "id-long", "bounds.names", "An id has 129 characters.", put("long", id="A" * 129), at="long")
negative("body.name", "id-empty", REQUEST, "An id is empty.", put("ask", id=""), at="ask")
negative("body.name", "id-homoglyph", REQUEST, "An id has a Cyrillic letter.", put("ask", id="\u0430sk"), at="ask")
negative("body.name", "id-newline", REQUEST, "An id ends in a line feed.", put("ask", id="ask\n"), at="ask")
negative("body.name", "id-dots", REQUEST, "An id begins with dots.", put("ask", id="../ask"), at="ask")
negative(
    "body.name", "name-long", "bounds.names",
    "The thread's name has 65 characters.",
    put("open", name="N" * 65), at="open",
)  # fmt: skip
negative(
    "body.name", "name-hash", "thread.room",
    "The room's name has a number sign.",
    put("open", room="ops#2"), at="open",
)  # fmt: skip
negative(
    "body.name", "status", REQUEST,
    "A status holds a slash.",
    put("done", settled=[became("ask", status="a/b")]), at="done",
)  # fmt: skip
negative("body.name", "capability", REQUEST, "A capability has a capital.", put("ask", capability="Deploy"), at="ask")
negative(
    "body.name", "media-type", REQUEST,
    "A media type has a parameter.",
    put("ask", media_type="text/html; q=1"), at="ask",
)  # fmt: skip
negative(
    "body.name", "media-upper", REQUEST,
    "A media type has a capital.",
    put("ask", media_type="text/HTML"), at="ask",
)  # fmt: skip
negative(
    "body.name", "round-one", "settle.steps",
    "A step names its first round.",
    put("steps", settled=[step("test#1")]), at="steps",
)  # fmt: skip
negative(
    "body.name", "round-zero", "settle.steps",
    "A round has a leading zero.",
    put("steps", settled=[step("test#02")]), at="steps",
)  # fmt: skip
negative(
    "body.name", "round-long", "settle.steps",
    "A round has ten digits.",
    put("steps", settled=[step("test#1234567890")]), at="steps",
)  # fmt: skip
negative("body.name", "extension", REQUEST, "An extension's key has no dot.", put("ask", ext={"note": 1}), at="ask")
negative(
    "body.name", "extension-upper", REQUEST,
    "An extension's domain has a capital.",
    put("ask", ext={"Org.x": 1}), at="ask",
)  # fmt: skip


def _card_with(**fields: object) -> object:
    return after("say", card("card", "bob", **fields))


negative(
    "body.display", "zero-width", "proofs.all",
    "A card whose display name holds a zero-width space stands in the thread.",
    _card_with(name="Bo\u200bb"), at="card", proofs=[],
)  # fmt: skip
negative(
    "body.display", "direction", "proofs.all",
    "A card whose display name turns the direction of writing stands in the thread.",
    _card_with(name="\u202ebob"), at="card", proofs=[],
)  # fmt: skip
negative(
    "body.display", "empty", "proofs.all",
    "A card with an empty display name stands in the thread.",
    _card_with(name=""), at="card", proofs=[],
)  # fmt: skip
negative(
    "body.display", "long", "proofs.all",
    "A card with a display name of 129 bytes stands in the thread.",
    _card_with(name="x" + "\u00e9" * 64), at="card", proofs=[],
)  # fmt: skip
negative("body.blank", "payload", REQUEST, "A payload is a space.", put("ask", payload=" "), at="ask")
negative("body.blank", "empty", REQUEST, "A restatement is empty.", put("bob-yes", restatement=""), at="bob-yes")
negative("body.blank", "lines", REQUEST, "A reason is made of blanks only.", put("end", reason="\t\n\r "), at="end")
negative(
    "body.blank", "source", REQUEST,
    "The source of a message is blank.",
    put("ask", provenance={"source": "\n"}), at="ask",
)  # fmt: skip
negative(
    "body.size", "restatement", "bounds.texts",
    "A restatement has 65,537 bytes.",
    put("bob-yes", restatement="\u4e2d" * 21845 + "xy"), at="bob-yes",
)  # fmt: skip
negative("body.size", "reason", "bounds.texts", "A reason has 65,537 bytes.", put("end", reason="r" * 65537), at="end")
negative(
    "body.size", "source", "bounds.lists",
    "A source has 257 bytes.",
    put("short", provenance={"source": "x" + "\u00e9" * 128}), at="short",
)  # fmt: skip
negative(
    "body.size", "context", "bounds.lists",
    "A context has 65 addresses.",
    put("long", context=[digest("one")] * 65), at="long",
)  # fmt: skip
negative(
    "body.size", "members", "bounds.members",
    "A thread has 257 members.",
    put("open", members=sorted(
        ({"key": key(who), "role": "moderator", "name": who} for who in ["ada", "bob", *CROWD]),
        key=lambda member: member["key"],
    )), at="open",
)  # fmt: skip
negative(
    "body.size", "path", "settle.steps",
    "A path has nine elements.",
    put("steps", settled=[step("a/" * 8 + "a")]), at="steps",
)  # fmt: skip
negative(
    "body.default", "request", REQUEST,
    "A message states the default type.",
    put("ask", media_type="text/plain"), at="ask",
)  # fmt: skip
negative(
    "body.default", "blob", "thread.blobs",
    "A blob states the default type.",
    put("ask", media_type="text/plain"), at="ask",
)  # fmt: skip

# What belongs together

negative(
    "body.fields", "empty-settle", REQUEST,
    "A settle without receipts and settlements stands after the request.",
    after("ask", settle("idle", "ada")), at="idle",
)  # fmt: skip
negative(
    "body.fields", "remove-role", "roster.changes",
    "A removal names a role.",
    put("remove-cyd", role="member"), at="remove-cyd",
)  # fmt: skip
negative(
    "body.fields", "admit-no-name", "roster.changes",
    "An admission gives no name.",
    put("admit-eve", name=ABSENT), at="admit-eve",
)  # fmt: skip
negative(
    "body.fields", "admit-no-role", "roster.changes",
    "An admission gives no role.",
    put("admit-eve", role=ABSENT), at="admit-eve",
)  # fmt: skip
negative(
    "body.fields", "role-name", "roster.changes",
    "A change of role gives a name.",
    put("raise-eve", name="eva"), at="raise-eve",
)  # fmt: skip
negative(
    "body.fields", "confirm-text", REQUEST,
    "A confirmation corrects.",
    put("bob-ok", correction="No."), at="bob-ok",
)  # fmt: skip
negative(
    "body.fields", "correct-nothing", "ack.correction",
    "A correction is empty.",
    put("not-so", correction=ABSENT), at="not-so",
)  # fmt: skip
negative(
    "body.fields", "by-succeeded", REQUEST,
    "A message that succeeded names an escalation.",
    put("done", settled=[became("ask", by=Ref("ask"))]), at="done",
)  # fmt: skip
negative(
    "body.fields", "approved-by-nobody", "escalate.approved",
    "An approval names no escalation.",
    put("done", settled=[became("call"), became("ask", "approved")]), at="done",
    notes=[("message.declined", "ask")],
)  # fmt: skip
negative(
    "body.fields", "message-and-step", REQUEST,
    "A settlement is of a message and of a step.",
    put("done", settled=[became("ask", step=["build"])]), at="done",
)  # fmt: skip
negative(
    "body.fields", "neither", REQUEST,
    "A settlement is of nothing.",
    put("done", settled=[{"outcome": "failed"}]), at="done",
)  # fmt: skip
negative(
    "body.fields", "skipped-message", REQUEST,
    "A message is skipped.",
    put("done", settled=[became("ask", "skipped")]), at="done",
)  # fmt: skip
negative(
    "body.fields", "approved-step", "settle.steps",
    "A step is approved.",
    put("steps", settled=[step("test", "approved", by=digest("x"))]), at="steps",
)  # fmt: skip
negative(
    "body.fields", "card-times", "proofs.all",
    "A card that ends before it begins stands in the thread.",
    _card_with(not_before=2, not_after=1), at="card", proofs=[],
)  # fmt: skip

# Keys in bodies

IDENTITY = (1).to_bytes(32, "little")

negative(
    "body.key", "chain", REQUEST,
    "The provenance passes through a key of small order.",
    put("ask", provenance={"source": "peer", "chain": [IDENTITY]}), at="ask",
)  # fmt: skip
negative(
    "body.key", "admit", "roster.changes",
    "A key of all zeroes is admitted.",
    put("admit-eve", key=bytes(32)), at="admit-eve",
)  # fmt: skip
negative(
    "body.key", "member", SINGLE,
    "A member's key encodes a y coordinate not less than p.",
    put("open", members=[
        *sorted(_members("ada"), key=lambda member: member["key"]),
        {"key": b"\xff" * 32, "role": "member", "name": "bob"},
    ]), at="open",
)  # fmt: skip
negative("body.key", "recipient", SINGLE, "A message is to a key of small order.", put("ask", to=[IDENTITY]), at="ask")

# Opens and messages

negative(
    "open.names", "two-bobs", SINGLE,
    "Both members have one name.",
    put("open", members=sorted(
        [{"key": key("ada"), "role": "moderator", "name": "bob"}, {"key": key("bob"), "role": "member", "name": "bob"}],
        key=lambda member: member["key"],
    )), at="open",
)  # fmt: skip
negative(
    "open.names", "crowd", "bounds.members",
    "The last of 256 members has the first one's name.",
    lambda script: script.move("open").body["members"][-1].update(name=script.move("open").body["members"][0]["name"]),
    at="open",
)  # fmt: skip
negative("message.to_required", "request", SINGLE, "A request has no recipients.", put("ask", to=ABSENT), at="ask")
negative(
    "message.to_required", "flag", "message.query",
    "A query without recipients wants answers.",
    put("ask", ack_required=True), at="ask",
)  # fmt: skip
negative(
    "message.to_required", "escalation", "escalate.approved",
    "An escalation is to nobody.",
    put("call", to=ABSENT), at="call",
)  # fmt: skip
negative(
    "message.reply_required", "challenge", "challenge.answered",
    "A challenge is of nothing.",
    put("doubt", reply_to=ABSENT), at="doubt",
)  # fmt: skip
negative(
    "message.reply_required", "retract", "retract.messages",
    "A retraction is of nothing.",
    put("oops", reply_to=ABSENT), at="oops",
)  # fmt: skip
negative(
    "message.reply_required", "escalate", "escalate.approved",
    "An escalation is of nothing.",
    put("call", reply_to=ABSENT), at="call",
)  # fmt: skip
negative(
    "message.verified", "no-provenance", "message.labels",
    "A verified message names no source.",
    put("checked", provenance=ABSENT), at="checked",
)  # fmt: skip
negative(
    "message.verified", "no-evidence", "message.labels",
    "A verified message names a source, but no evidence.",
    put("checked", provenance={"source": "ci"}), at="checked",
)  # fmt: skip
negative(
    "message.hops", "one", "message.labels",
    "Two keys passed on what may pass one.",
    put("passed", max_hops=1), at="passed",
)  # fmt: skip
negative(
    "message.hops", "many", "bounds.lists",
    "64 keys passed on what may pass 63.",
    put("long", max_hops=63), at="long",
)  # fmt: skip
negative(
    "message.step", "assertion", REQUEST,
    "A step is put on an assertion.",
    put("ask", intent="assert", step=["build"]), at="ask",
)  # fmt: skip
negative(
    "message.step", "escalation", "escalate.approved",
    "A step is put on an escalation.",
    put("call", step=["build"]), at="call",
)  # fmt: skip
negative(
    "message.step", "query", "message.query",
    "The owner puts a step on a query that needs no acknowledgement.",
    put("answer", step=["build"]), at="answer",
)  # fmt: skip
negative(
    "message.escalation_payload", "long", "bounds.escalation",
    "An escalation's payload has 4,097 bytes.",
    put("call", payload="x" + "\u00e9" * 2048), at="call",
)  # fmt: skip
negative(
    "message.escalation_payload", "blob", "bounds.escalation",
    "An escalation's payload is a blob.",
    put("call", payload={"address": digest("a payload"), "bytes": 20}), at="call",
)  # fmt: skip
