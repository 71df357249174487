"""Cases of the stage receipts: which acknowledgements and rulings stand, and who commits them."""

from tests.vectorcases.bounds import CROWD
from tests.vectorcases.build import ABSENT, START, Ref, digest
from tests.vectorcases.case import negative
from tests.vectorcases.moves import (
    ack,
    after,
    again,
    before,
    confirm,
    correct,
    decline,
    drop,
    exchange,
    hide,
    put,
    reorder,
)

REQUEST = "thread.request"
CORRECTION = "ack.correction"
MANY = "bounds.receipts"

# Committed, all of them

negative(
    "receipts.committed", "none", REQUEST,
    "The settle lists no receipts.",
    put("done", receipts=ABSENT), at="done",
)  # fmt: skip
negative(
    "receipts.committed", "one-missing", REQUEST,
    "The settle leaves the last receipt out of its list.",
    put("done", receipts=[Ref("bob-yes"), Ref("cyd-yes"), Ref("bob-ok")]), at="done",
)  # fmt: skip
negative(
    "receipts.committed", "order", REQUEST,
    "The settle lists the receipts in another order than that in which they stand.",
    put("done", receipts=[Ref("cyd-yes"), Ref("bob-yes"), Ref("bob-ok"), Ref("cyd-ok")]), at="done",
)  # fmt: skip
negative(
    "receipts.committed", "foreign", REQUEST,
    "The settle lists a receipt that does not stand in the file.",
    put("done", receipts=[Ref("bob-yes"), Ref("cyd-yes"), Ref("bob-ok"), Ref("cyd-ok"), digest("an ack")]), at="done",
)  # fmt: skip
negative(
    "receipts.committed", "twice", "settle.committed-by-another",
    "The settle lists receipts that the record before it has committed.",
    put("done", receipts=[Ref("bob-yes"), Ref("bob-ok")]), at="done",
)  # fmt: skip
negative(
    "receipts.committed", "stripped-decline", "ack.declined",
    "The decline is taken out of the file.",
    hide("bob-no"), at="failed",
)  # fmt: skip
negative(
    "receipts.committed", "stripped-seal", "thread.single",
    "The confirmation is taken out of the file that a seal closes.",
    hide("bob-ok"), at="end",
)  # fmt: skip
negative(
    "receipts.committed", "exchanged", REQUEST,
    "Two acknowledgements have changed places in the file.",
    exchange("bob-yes", "cyd-yes"), at="done",
)  # fmt: skip
negative(
    "receipts.committed", "moved", "ack.by-gone-member",
    "The confirmation is moved in the file behind the removal.",
    exchange("bob-ok", "remove-bob"), at="remove-bob",
)  # fmt: skip

# How many

negative(
    "receipts.many", "ack", MANY,
    "One more recipient acknowledges.",
    before("commit", ack("one-more", CROWD[16], "m16", "!", sent_at=START)), at="one-more",
)  # fmt: skip
negative(
    "receipts.many", "ruling", MANY,
    "The author confirms one acknowledgement.",
    before("commit", confirm("one-more", "ada", f"{CROWD[0]}-m0", sent_at=START)), at="one-more",
)  # fmt: skip
negative(
    "receipts.repeated", "ack", REQUEST,
    "An acknowledgement stands twice.",
    after("cyd-yes", again("twice", "bob-yes")), at="twice",
)  # fmt: skip
negative(
    "receipts.repeated", "ruling", REQUEST,
    "A ruling stands twice.",
    after("cyd-ok", again("twice", "bob-ok")), at="twice",
)  # fmt: skip
negative(
    "receipts.repeated", "committed-ack", "ack.correction-across-records",
    "An acknowledgement that was committed stands again.",
    after("word2", again("twice", "first")), at="twice",
)  # fmt: skip

# Rounds

negative(
    "ack.settled", "approved", "escalate.unanswered",
    "A recipient acknowledges a request that was approved in its place.",
    after("done", ack("bob-yes", "bob", "ask")), at="bob-yes", notes=[("message.approved", "ask")],
)  # fmt: skip
negative(
    "ack.settled", "not-a-recipient", REQUEST,
    "A settled request is acknowledged by a member that was not asked: whom it was to is forgotten.",
    after("done", ack("hal-yes", "hal", "ask")), at="hal-yes",
)  # fmt: skip
negative(
    "ack.settled", "retracted", "retract.accepted-request",
    "The acknowledgement stands behind the retraction.",
    reorder("bob-yes", behind="never"), at="bob-yes",
)  # fmt: skip
negative(
    "ack.settled", "failed", "escalate.declined",
    "A request that failed is acknowledged.",
    after("failed", ack("bob-yes", "bob", "ask")), at="bob-yes", notes=[("message.declined", "ask")],
)  # fmt: skip
negative(
    "ack.declined", "accept", "ack.declined",
    "A recipient that declined accepts.",
    after("bob-no", ack("bob-yes", "bob", "ask")), at="bob-yes",
)  # fmt: skip
negative(
    "ack.declined", "again", "ack.declined",
    "A recipient declines twice.",
    after("bob-no", decline("bob-no2", "bob", "ask", "I said no.")), at="bob-no2",
)  # fmt: skip
negative(
    "ack.declined", "approver", "escalate.declined",
    "An approver that declined accepts after all.",
    after("fay-no", ack("fay-yes", "fay", "call")), at="fay-yes",
)  # fmt: skip
negative(
    "ack.after", "first", REQUEST,
    "A first acknowledgement has after.",
    put("bob-yes", after=digest("x")), at="bob-yes",
)  # fmt: skip
negative(
    "ack.after", "none", CORRECTION,
    "The second acknowledgement has no after.",
    put("second", after=ABSENT), at="second",
)  # fmt: skip
negative(
    "ack.after", "other", CORRECTION,
    "The second acknowledgement names the first.",
    put("second", after=Ref("first")), at="second",
)  # fmt: skip
negative(
    "ack.after", "uncorrected", REQUEST,
    "A recipient acknowledges once more before the author ruled.",
    after("cyd-yes", ack("bob-yes2", "bob", "ask", "That is, the whole build.")), at="bob-yes2",
)  # fmt: skip
negative(
    "ack.after", "confirmed", REQUEST,
    "A recipient that was confirmed acknowledges once more, and names the confirmation.",
    after("cyd-ok", ack("bob-yes2", "bob", "ask", after=Ref("bob-ok"))), at="bob-yes2",
)  # fmt: skip
negative(
    "ack.after", "other-recipient", "ack.sixteen-rounds",
    "A recipient names the correction of another one.",
    put("cyd-yes", after=Ref("fix15")), at="cyd-yes",
)  # fmt: skip
negative(
    "ack.after", "older", "ack.sixteen-rounds",
    "A recipient names the correction of the round before the last.",
    put("round16", after=Ref("fix14")), at="round16",
)  # fmt: skip

SIXTEEN = "ack.sixteen-rounds"

negative(
    "ack.rounds", "accept", SIXTEEN,
    "The sixteenth acknowledgement is corrected, and a seventeenth accepts.",
    drop("bob-ok"),
    after("round16", correct("fix16", "ada", "round16"), ack("round17", "bob", "ask", after=Ref("fix16"))),
    at="round17",
)  # fmt: skip
negative(
    "ack.rounds", "decline", SIXTEEN,
    "The sixteenth acknowledgement is corrected, and a seventeenth declines.",
    drop("bob-ok"),
    after("round16", correct("fix16", "ada", "round16"), decline("round17", "bob", "ask", after=Ref("fix16"))),
    at="round17",
)  # fmt: skip

# Rulings

negative(
    "ruling.declined", "confirm", "ack.declined",
    "The author confirms a decline as understood.",
    after("bob-no", confirm("bob-ok", "ada", "bob-no")), at="bob-ok",
)  # fmt: skip
negative(
    "ruling.declined", "correct", "ack.declined-after-correction",
    "The author corrects a decline.",
    after("second", correct("not-so2", "ada", "second")), at="not-so2",
)  # fmt: skip
negative(
    "ruling.repeated", "confirm-correct", REQUEST,
    "The author corrects what it confirmed.",
    after("bob-ok", correct("bob-wrong", "ada", "bob-yes")), at="bob-wrong",
)  # fmt: skip
negative(
    "ruling.repeated", "correct-confirm", CORRECTION,
    "The author confirms what it corrected.",
    after("not-so", confirm("so", "ada", "first")), at="so",
)  # fmt: skip
negative(
    "ruling.repeated", "twice", REQUEST,
    "The author confirms twice, in two records.",
    after("bob-ok", confirm("bob-ok2", "ada", "bob-yes")), at="bob-ok2",
)  # fmt: skip
negative(
    "ruling.repeated", "committed", "ack.correction-across-records",
    "A ruling that was committed stands again.",
    after("word2", again("twice", "not-so")), at="twice",
)  # fmt: skip
