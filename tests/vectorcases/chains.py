"""Cases of the stage chain: where a record stands."""

from tests.vectorcases import curve
from tests.vectorcases.build import ABSENT, Craft, Move, Ref, address, digest, key, seed
from tests.vectorcases.case import CASES, negative
from tests.vectorcases.moves import (
    ack,
    after,
    again,
    before,
    card,
    confirm,
    drop,
    exchange,
    hide,
    message,
    opening,
    put,
    seal,
    signed_by,
)
from tests.vectorcases.positives import CREW

REQUEST = "thread.request"
REPLIES = "thread.replies"

OTHER = digest("another thread")
ORIGINAL = address(CASES["thread.pinned"].script.build()[0].raw)

# The open

negative(
    "chain.no_open", "empty", "thread.smallest",
    "There is no record at all.",
    drop("open", "end"), at=0,
)  # fmt: skip
negative(
    "chain.no_open", "message-first", REQUEST,
    "The open is left out of the file.",
    hide("open"), at=0,
)  # fmt: skip
negative(
    "chain.no_open", "ack-first", REQUEST,
    "The open and the request are left out of the file.",
    hide("open", "ask"), at=0,
)  # fmt: skip
negative(
    "chain.pinned", "other", "thread.pinned",
    "The verifier means another thread.",
    at="open", thread=OTHER, tip=None,
)  # fmt: skip
negative(
    "chain.pinned", "twin", "thread.pinned",
    "The thread was opened again, with another nonce.",
    put("open", nonce=bytes(16)), at="open", thread=ORIGINAL, tip=None,
)  # fmt: skip
negative(
    "chain.pinned", "tip", "thread.pinned",
    "The verifier names the seal where it should name the open.",
    at="open", thread="end", tip=None,
)  # fmt: skip
negative(
    "chain.second_open", "again", REQUEST,
    "The open stands twice.",
    after("open", again("twice", "open")), at="twice",
)  # fmt: skip
negative(
    "chain.second_open", "other", REQUEST,
    "Another thread of the same members begins in the midst of this one.",
    after("ask", Move("second", "open", "ada", opening("second", CREW).body)), at="second",
)  # fmt: skip
negative(
    "chain.second_open", "by-member", REQUEST,
    "A member opens a thread of its own within this one.",
    after("ask", Move("second", "open", "bob", opening("second", {"bob": "moderator"}).body)), at="second",
)  # fmt: skip

# Kinds

negative("chain.kind", "card", REQUEST, "A card stands in the thread.", after("ask", card("card", "bob")), at="card")
negative(
    "chain.kind", "witness", REQUEST,
    "A witness stands in the thread.",
    after("ask", Move("seen", "witness", "cyd", {"thread": Ref("open"), "seq": 1, "tip": Ref("ask"), "seen_at": 0})),
    at="seen",
)  # fmt: skip
negative(
    "chain.kind", "revocation", "thread.pending",
    "A revocation stands in the thread.",
    after("bob-yes", Move("lost", "revocation", "bob", {"key": key("bob"), "reason": "Lost.", "revoked_at": 0})),
    at="lost",
)  # fmt: skip
negative(
    "chain.sealed", "message", REQUEST,
    "A message follows the seal.",
    after("end", message("late", "bob")), at="late", completeness="sealed", outcome="completed",
)  # fmt: skip
negative(
    "chain.sealed", "seal", "seal.failed",
    "A second seal follows, with another outcome.",
    after("end", seal("end2")), at="end2", completeness="sealed", outcome="failed",
)  # fmt: skip
negative(
    "chain.sealed", "ack", "seal.failed",
    "An acknowledgement follows the seal.",
    after("end", ack("bob-yes", "bob", "ask")), at="bob-yes", completeness="sealed", outcome="failed",
)  # fmt: skip
negative(
    "chain.sealed", "ruling", "ack.unneeded",
    "A ruling follows the seal.",
    after("end", confirm("fay-ok", "ada", "fay-yes")), at="fay-ok",
    completeness="sealed", outcome="completed",
)  # fmt: skip

# Links

negative("chain.thread", "message", REQUEST, "A message is of another thread.", put("ask", thread=OTHER), at="ask")
negative(
    "chain.thread", "ack", REQUEST,
    "An acknowledgement is of another thread.",
    put("bob-yes", thread=OTHER), at="bob-yes",
)  # fmt: skip
negative("chain.thread", "ruling", REQUEST, "A ruling is of another thread.", put("bob-ok", thread=OTHER), at="bob-ok")
negative(
    "chain.thread", "prev", REQUEST,
    "The seal names a message as its thread.",
    put("end", thread=Ref("ask")), at="end",
)  # fmt: skip
negative(
    "chain.repeated", "at-once", REPLIES,
    "A message stands twice in a row.",
    after("answer", again("twice", "answer")), at="twice",
)  # fmt: skip
negative(
    "chain.repeated", "later", REPLIES,
    "A settle stands again after other records.",
    after("remark", again("twice", "done")), at="twice",
)  # fmt: skip
negative(
    "chain.repeated", "roster", "roster.changes",
    "An admission stands twice.",
    after("bob-leaves", again("twice", "admit-eve")), at="twice",
)  # fmt: skip


negative(
    "chain.fork", "same-author", "thread.plan",
    "The owner signs a second record on the open.",
    after("ask", message("other", "ada", prev=Ref("open"), seq=1)), at="other", plan="unchecked",
    notes=[("plan.unchecked", 0)],
)  # fmt: skip
negative(
    "chain.fork", "two-authors", "message.query",
    "Two members answer at the same place.",
    after("answer", message("other", "dan", prev=Ref("ask"), seq=2)), signed_by("other", "hal"), at="other",
)  # fmt: skip
negative(
    "chain.fork", "later", REPLIES,
    "A message stands on the open, long after it.",
    after("remark", message("other", "cyd", prev=Ref("open"), seq=1)), at="other",
)  # fmt: skip
negative(
    "chain.fork", "merged", "message.query",
    "A seal of another copy stands behind the seal's place: it follows the question.",
    before("end", seal("early", "hal", prev=Ref("ask"), seq=2)), at="early",
)  # fmt: skip


def _resigned() -> Move:
    scalar = curve.scalar_of(seed("cyd"))
    twin = CASES["message.query"].script.move("answer")
    return Move(
        "twin", "message", "cyd", twin.body | {"prev": Ref("ask"), "seq": 2, "sent_at": 1_760_000_002_000},
        Craft(sign=lambda signed: curve.sign(scalar, key("cyd"), signed, 7)),
    )  # fmt: skip


negative(
    "chain.fork", "two-signatures", "message.query",
    "The same content stands a second time with another signature of its author.",
    after("answer", _resigned()), at="twin",
)  # fmt: skip
negative(
    "chain.prev", "unknown", REQUEST,
    "A message follows a record that is not there.",
    put("ask", prev=OTHER), at="ask",
)  # fmt: skip
negative("chain.prev", "receipt", REQUEST, "A settle follows a ruling.", put("done", prev=Ref("cyd-ok")), at="done")
negative("chain.prev", "removed", REPLIES, "A message is taken out of the file.", hide("answer"), at="remark")
negative(
    "chain.prev", "swapped", "roster.changes",
    "Two records have changed places.",
    exchange("raise-eve", "remove-cyd"), at="remove-cyd",
)  # fmt: skip
negative("chain.seq", "ahead", REQUEST, "The seq of the request is 2.", put("ask", seq=2), at="ask")
negative(
    "chain.seq", "behind", REPLIES,
    "The seq of a message is that of the record before it.",
    put("answer", seq=2), at="answer",
)  # fmt: skip
negative(
    "chain.seq", "then-body", REQUEST,
    "The seq of the request is 2; the seal has a field too much, which nobody looks for any more.",
    put("ask", seq=2), put("end", note="x"), at="ask",
)  # fmt: skip
negative("chain.seq", "greatest", REQUEST, "The seq of the seal is 2^53-1.", put("end", seq=2**53 - 1), at="end")
negative(
    "chain.seq", "counts-receipts", REQUEST,
    "The seq of the settle counts the receipts.",
    put("done", seq=6), at="done",
)  # fmt: skip

# Messages and receipts

negative("message.id", "same-author", "thread.panel", "The owner uses an id twice.", put("cost", id="plan"), at="cost")
negative("message.id", "other-author", REPLIES, "A member uses the owner's id.", put("answer", id="ask"), at="answer")
negative(
    "message.id", "settled", REPLIES,
    "The id of a settled message is used again.",
    put("remark", id="ask"), at="remark",
)  # fmt: skip
negative("message.room", "other", "thread.room", "A message is of another room.", put("say", room="dev"), at="say")
negative("message.room", "none", "thread.room", "A message names no room.", put("answer", room=ABSENT), at="answer")
negative(
    "message.room", "unasked", REQUEST,
    "A message names a room where there is none.",
    put("ask", room="ops"), at="ask",
)  # fmt: skip
negative("message.room", "case", "thread.room", "A room is written with a capital.", put("say", room="Ops"), at="say")
negative(
    "message.reply_to", "unknown", REPLIES,
    "A reply is to what is not there.",
    put("answer", reply_to=OTHER), at="answer",
)  # fmt: skip
negative(
    "message.reply_to", "open", REPLIES,
    "A reply is to the open.",
    put("answer", reply_to=Ref("open")), at="answer",
)  # fmt: skip
negative(
    "message.reply_to", "ack", REPLIES,
    "A reply is to an acknowledgement.",
    put("answer", reply_to=Ref("bob-yes")), at="answer",
)  # fmt: skip
negative(
    "message.reply_to", "settle", REPLIES,
    "A challenge is of a settle.",
    put("remark", intent="challenge", reply_to=Ref("done")), at="remark",
)  # fmt: skip
negative(
    "ack.message", "unknown", REQUEST,
    "An ack is of what is not there.",
    put("bob-yes", message=OTHER), at="bob-yes",
)  # fmt: skip
negative("ack.message", "open", REQUEST, "An ack is of the open.", put("bob-yes", message=Ref("open")), at="bob-yes")
negative("ack.message", "ack", REQUEST, "An ack is of an ack.", put("cyd-yes", message=Ref("bob-yes")), at="cyd-yes")
negative(
    "ack.message", "roster", "ack.by-gone-member",
    "An ack is of a roster record.",
    after("remove-bob", ack("fay-yes", "fay", "remove-bob")), at="fay-yes",
)  # fmt: skip
negative("ruling.ack", "unknown", REQUEST, "A ruling is of what is not there.", put("bob-ok", ack=OTHER), at="bob-ok")
negative("ruling.ack", "message", REQUEST, "A ruling is of a message.", put("bob-ok", ack=Ref("ask")), at="bob-ok")
negative("ruling.ack", "ruling", REQUEST, "A ruling is of a ruling.", put("cyd-ok", ack=Ref("bob-ok")), at="cyd-ok")
negative(
    "ruling.ack", "settled", "ack.unneeded",
    "A ruling is of an ack of a settled message.",
    after("done", confirm("fay-ok", "ada", "fay-yes")), at="fay-ok",
)  # fmt: skip
negative(
    "ruling.ack", "retracted", "retract.accepted-request",
    "A ruling is of an ack of a retracted message.",
    after("never", confirm("bob-ok", "ada", "bob-yes")), at="bob-ok",
)  # fmt: skip
