"""Cases of the stage settle that refuse: what is settled, retracted, escalated, spent and sealed."""

from tests.vectorcases.build import Ref, digest, keys
from tests.vectorcases.case import negative
from tests.vectorcases.moves import (
    after,
    approved,
    became,
    before,
    drop,
    message,
    put,
    reorder,
    roster,
    seal,
    settle,
    signed_by,
    step,
)

REQUEST = "thread.request"
READY = "thread.ready"
MEMBER = "thread.member-request"
STEPS = "settle.steps"
RETRACT = "retract.messages"
APPROVED = "escalate.approved"
PENDING = "escalate.pending"
TWO = "escalate.two-people"
LIMITS = "bounds.limits"
DECLINED = [("message.declined", "ask")]

# Settlements

negative(
    "settle.unknown", "missing", REQUEST,
    "What is not there is settled.",
    put("done", settled=[{"message": digest("x"), "outcome": "failed"}]), at="done",
)  # fmt: skip
negative("settle.unknown", "open", REQUEST, "The open is settled.", put("done", settled=[became("open")]), at="done")
negative(
    "settle.unknown", "ack", REQUEST,
    "An acknowledgement is settled.",
    put("done", settled=[became("bob-yes")]), at="done",
)  # fmt: skip
negative(
    "settle.author", "member", MEMBER,
    "The owner settles a member's request.",
    signed_by("done", "ada"), at="done",
)  # fmt: skip
negative(
    "settle.author", "moderator", REQUEST,
    "A second moderator settles the owner's request.",
    signed_by("done", "hal"), at="done",
)  # fmt: skip
negative(
    "settle.author", "seal", "thread.single",
    "A recipient that became a moderator settles as it seals.",
    before("end", roster("raise-bob", "ada", "role", "bob", role="moderator")), signed_by("end", "bob"), at="end",
)  # fmt: skip
negative(
    "settle.repeated", "one-record", REQUEST,
    "A settle settles a message twice.",
    put("done", settled=[became("ask"), became("ask")]), at="done",
)  # fmt: skip
negative(
    "settle.repeated", "two-records", REQUEST,
    "The seal settles once more.",
    put("end", settled=[became("ask")]), at="end",
)  # fmt: skip
negative(
    "settle.repeated", "undone", REQUEST,
    "The seal settles failed what succeeded.",
    put("end", settled=[became("ask", "failed")]), at="end",
)  # fmt: skip
negative(
    "settle.retracted", "succeeded", RETRACT,
    "A retracted request succeeds.",
    put("failed", settled=[became("ask")]), at="failed",
)  # fmt: skip
negative(
    "settle.retracted", "assertion", RETRACT,
    "A retracted assertion succeeds.",
    put("failed", settled=[became("say")]), at="failed",
)  # fmt: skip
negative(
    "settle.retracted", "approved", "escalate.failed-although-approved",
    "A request that people approved is retracted, then settled approved.",
    before("failed", message("never", "ada", "Do not.", intent="retract", reply_to=Ref("ask"))),
    put("failed", settled=[approved("ask", "call")]), at="failed",
)  # fmt: skip
negative(
    "settle.unacknowledged", "one-of-two", REQUEST,
    "One of two recipients does not acknowledge.",
    drop("cyd-yes", "cyd-ok"), at="done",
)  # fmt: skip
negative(
    "settle.unacknowledged", "unconfirmed", REQUEST,
    "One of two acceptances is not confirmed.",
    drop("cyd-ok"), at="done",
)  # fmt: skip
negative(
    "settle.unacknowledged", "declined", "ack.declined",
    "A request that was declined succeeds.",
    put("failed", settled=[became("ask")]), at="failed",
)  # fmt: skip
negative(
    "settle.unacknowledged", "removed", "roster.removed-reviewer",
    "A request succeeds after its reviewer was removed.",
    put("failed", settled=[became("ask")]), at="failed",
)  # fmt: skip
negative(
    "settle.unacknowledged", "corrected", "ack.correction",
    "A request succeeds although its recipient was corrected last.",
    drop("second", "bob-ok"), at="done",
)  # fmt: skip
negative(
    "settle.unacknowledged", "too-early", REQUEST,
    "A request succeeds before its last confirmation stands.",
    reorder("cyd-ok", behind="done"), at="done",
)  # fmt: skip
negative(
    "settle.unacknowledged", "escalation", APPROVED,
    "An escalation succeeds without the second approver.",
    drop("gus-yes", "gus-ok"), put("done", settled=[became("call")]), at="done", notes=DECLINED,
)  # fmt: skip
negative(
    "settle.approved", "no-escalation", REQUEST,
    "A request is approved without an escalation.",
    put("done", settled=[became("ask", "approved", by=digest("x"))]), at="done",
)  # fmt: skip
negative(
    "settle.approved", "other", TWO,
    "An approval names the request in the escalation's place.",
    put("done", settled=[approved("ask", "ask")]), at="done",
)  # fmt: skip
negative(
    "settle.approved", "one-of-two", TWO,
    "The second approver has not answered.",
    drop("gus-yes", "gus-ok"), at="done",
)  # fmt: skip
negative("settle.approved", "unconfirmed", TWO, "The second approver is not confirmed.", drop("gus-ok"), at="done")
negative(
    "settle.approved", "failed", TWO,
    "The escalation is settled failed just before.",
    put("done", settled=[became("call", "failed"), approved("ask", "call")]), at="done",
)  # fmt: skip
negative(
    "settle.approved", "failed-earlier", "escalate.failed-although-approved",
    "The escalation is settled failed in an earlier record.",
    before("failed", settle("first", "ada", became("call", "failed"))),
    put("failed", settled=[approved("ask", "call")]), at="failed",
)  # fmt: skip
negative(
    "settle.approved", "declined", "escalate.declined",
    "A request is approved although the approver declined.",
    put("failed", settled=[approved("ask", "call")]), at="failed",
)  # fmt: skip
negative(
    "settle.approved", "not-its-own", TWO,
    "Another request is approved by this escalation.",
    after("ask", message("ask2", "ada", to=["cyd"])), put("done", settled=[approved("ask2", "call")]),
    at="done",
)  # fmt: skip
negative(
    "step.repeated", "one-record", STEPS,
    "A step is settled twice in a record.",
    put("steps", settled=[step("fetch"), step("fetch", "failed")]), at="steps",
)  # fmt: skip
negative(
    "step.repeated", "two-records", STEPS,
    "The seal settles a step once more.",
    put("end", settled=[step("release/fetch", "skipped")]), at="end",
)  # fmt: skip
negative(
    "step.repeated", "message-then-step", STEPS,
    "A step that has a message is settled without it.",
    put("steps", settled=[step("release/build")]), at="steps",
)  # fmt: skip
negative(
    "step.repeated", "asked-again", STEPS,
    "The step is asked again, of somebody else.",
    after("done", message("friend", "ada", to=["cyd"], step=["release", "build"])), at="friend",
)  # fmt: skip
negative(
    "step.repeated", "same-record", STEPS,
    "A message settles the step that it then begins.",
    after("steps", message("more", "ada", to=["cyd"], step=["tidy"], settled=[step("tidy")])), at="more",
)  # fmt: skip

# Retractions

negative(
    "retract.author", "member", RETRACT,
    "A member retracts the owner's message.",
    signed_by("oops", "bob"), at="oops",
)  # fmt: skip
negative(
    "retract.author", "moderator", RETRACT,
    "A moderator retracts the owner's request.",
    signed_by("never", "hal"), at="never",
)  # fmt: skip
negative(
    "retract.settled", "before", REQUEST,
    "A settled request is retracted.",
    after("done", message("never", "ada", "Do not.", intent="retract", reply_to=Ref("ask"))), at="never",
)  # fmt: skip
negative(
    "retract.settled", "same-record", RETRACT,
    "A retraction settles what it retracts.",
    put("never", settled=[became("ask", "failed")]), at="never",
)  # fmt: skip
negative(
    "retract.target", "step", STEPS,
    "A step's request is retracted.",
    after("ask", message("never", "ada", "No.", intent="retract", reply_to=Ref("ask"))), at="never",
)  # fmt: skip
negative(
    "retract.target", "escalation", PENDING,
    "An escalation is retracted.",
    after("call", message("never", "ada", "No.", intent="retract", reply_to=Ref("call"))), at="never",
)  # fmt: skip
negative(
    "retract.target", "retraction", RETRACT,
    "A retraction is retracted.",
    after("oops", message("undo", "ada", "It is green.", intent="retract", reply_to=Ref("oops"))), at="undo",
)  # fmt: skip
negative(
    "retract.target", "twice", RETRACT,
    "A message is retracted twice.",
    after("oops", message("oops2", "ada", "Red.", intent="retract", reply_to=Ref("say"))), at="oops2",
)  # fmt: skip
negative(
    "retract.declined", "recipient", "ack.declined",
    "A request that a recipient declined is retracted.",
    before("failed", message("never", "ada", "Never mind.", intent="retract", reply_to=Ref("ask"))), at="never",
)  # fmt: skip
negative(
    "retract.declined", "approver", "escalate.declined",
    "A request whose escalation an approver declined is retracted.",
    before("failed", message("never", "ada", "Never mind.", intent="retract", reply_to=Ref("ask"))), at="never",
)  # fmt: skip
negative(
    "retract.declined", "unneeded", "ack.unneeded",
    "A message that needed no answer is retracted after it was declined.",
    put("fay-yes", answer="decline"),
    before("done", message("never", "ada", "Never mind.", intent="retract", reply_to=Ref("tell"))), at="never",
)  # fmt: skip

# Escalations

negative(
    "escalate.author", "moderator", PENDING,
    "Another moderator escalates the owner's request.",
    signed_by("call", "hal"), at="call",
)  # fmt: skip
negative(
    "escalate.author", "recipient", PENDING,
    "The recipient escalates the request that it was sent.",
    signed_by("call", "bob"), at="call",
)  # fmt: skip
negative(
    "escalate.target", "assertion", PENDING,
    "An assertion is escalated.",
    put("call", reply_to=Ref("say")), at="call",
)  # fmt: skip
negative(
    "escalate.target", "escalation", PENDING,
    "An escalation is escalated.",
    after("call", message("call2", "ada", "Fay is away.", to=["gus"], intent="escalate", reply_to=Ref("call"))),
    at="call2",
)  # fmt: skip
negative(
    "escalate.target", "unneeded", "ack.unneeded",
    "A message that needs no acknowledgement, though it has recipients, is escalated.",
    after("bob-ok", message("call", "ada", "Dan is away.", to=["gus"], intent="escalate", reply_to=Ref("tell"))),
    at="call",
)  # fmt: skip
negative(
    "escalate.late", "settled", REQUEST,
    "A settled request is escalated.",
    after("done", message("call", "ada", "One more look.", to=["fay"], intent="escalate", reply_to=Ref("ask"))),
    at="call",
)  # fmt: skip
negative(
    "escalate.late", "retracted", "retract.accepted-request",
    "A retracted request is escalated.",
    after("never", message("call", "ada", "Bob is away.", to=["fay"], intent="escalate", reply_to=Ref("ask"))),
    at="call",
)  # fmt: skip
negative(
    "escalate.late", "same-record", PENDING,
    "An escalation settles what it escalates.",
    put("call", settled=[became("ask", "failed")]), at="call",
)  # fmt: skip
negative(
    "escalate.repeated", "other-approver", PENDING,
    "A second escalation is to another approver.",
    after("call", message("call2", "ada", "And you?", to=["gus"], intent="escalate", reply_to=Ref("ask"))), at="call2",
)  # fmt: skip
negative(
    "escalate.repeated", "after-decline", "escalate.declined",
    "After the approver declined, another one is asked.",
    after("fay-no", message("call2", "ada", "And you?", to=["gus"], intent="escalate", reply_to=Ref("ask"))),
    at="call2",
)  # fmt: skip
negative(
    "escalate.repeated", "after-failure", "escalate.failed-although-approved",
    "An escalation is settled failed, and another one sent.",
    before("failed", settle("first", "ada", became("call", "failed"))),
    before("failed", message("call2", "ada", "Again?", to=["fay"], intent="escalate", reply_to=Ref("ask"))),
    at="call2",
)  # fmt: skip
negative(
    "escalate.approver", "member", PENDING,
    "An escalation is to a member.",
    put("call", to=keys(["cyd"])), at="call",
)  # fmt: skip
negative(
    "escalate.approver", "afterwards", PENDING,
    "An approver is admitted after the request, and the escalation is to it.",
    before("call", roster("admit-eve", "ada", "admit", "eve", role="approver")), put("call", to=keys(["eve"])),
    at="call",
)  # fmt: skip
negative(
    "escalate.approver", "interrupted", PENDING,
    "The approver was a member for a while since the request.",
    before("call", roster("raise-fay", "ada", "role", "fay", role="member")),
    before("call", roster("lower-fay", "ada", "role", "fay", role="approver")), at="call",
)  # fmt: skip
negative(
    "escalate.approver", "returned", PENDING,
    "The approver left and was admitted again since the request.",
    before("call", roster("fay-leaves", "fay", "leave", "fay")),
    before("call", roster("fay-again", "ada", "admit", "fay", role="approver")), at="call",
)  # fmt: skip
negative(
    "escalate.approver", "one-of-two", PENDING,
    "One of the two whom an escalation is to is a moderator.",
    put("call", to=keys(["fay", "hal"])), at="call",
)  # fmt: skip
negative(
    "escalate.recipient", "only", PENDING,
    "The request was to the approver whom the escalation is to.",
    put("ask", to=keys(["fay"])), at="call",
)  # fmt: skip
negative(
    "escalate.recipient", "one-of-two", APPROVED,
    "One of two approvers is a recipient of the request.",
    put("ask", to=keys(["bob", "gus"])), at="call",
)  # fmt: skip

# Limits

negative(
    "limit.bytes", "one-more", LIMITS,
    "The owner's last message is one byte longer.",
    put("last", payload="12345678"), at="last",
)  # fmt: skip
negative(
    "limit.bytes", "blob", LIMITS,
    "The blob is one byte longer than the limit leaves for it.",
    put("blob", payload={"address": digest("limit"), "bytes": 26}), at="blob",
)  # fmt: skip
negative(
    "limit.bytes", "unicode", LIMITS,
    "The last message has as many letters, but more bytes.",
    put("last", payload="123456\u00e9"), at="last",
)  # fmt: skip
negative(
    "limit.bytes", "greatest", LIMITS,
    "The blob is as long as a number can say.",
    put("blob", payload={"address": digest("limit"), "bytes": 2**53 - 1}), at="blob",
)  # fmt: skip
negative(
    "limit.messages", "one-more", "bounds.limit-of-messages",
    "The owner sends a third message.",
    after("other", message("more", "ada")), at="more",
)  # fmt: skip
negative(
    "limit.messages", "retraction", "bounds.limit-of-messages",
    "The owner retracts its second message, which makes a third.",
    after("two", message("oops", "ada", "No.", intent="retract", reply_to=Ref("two"))), at="oops",
)  # fmt: skip

# Seals

negative(
    "seal.unacknowledged", "unanswered", "seal.failed",
    "A request that nobody answered is sealed completed.",
    put("end", outcome="completed"), at="end",
)  # fmt: skip
negative(
    "seal.unacknowledged", "unsettled", READY,
    "A request that is acknowledged, but not settled, is sealed completed.",
    after("cyd-ok", seal()), at="end",
)  # fmt: skip
negative(
    "seal.unacknowledged", "declined", "ack.declined",
    "A declined request is sealed completed.",
    put("end", outcome="completed"), at="end", notes=DECLINED,
)  # fmt: skip
negative(
    "seal.unacknowledged", "not-cleared", "roster.removed-reviewer",
    "A request that failed without an answer is sealed completed.",
    put("end", outcome="completed"), at="end",
)  # fmt: skip
negative(
    "seal.unacknowledged", "escalated", "escalate.declined",
    "A request whose escalation was declined is sealed completed.",
    put("end", outcome="completed"), at="end", notes=DECLINED,
)  # fmt: skip
negative(
    "seal.unacknowledged", "other-moderator", "seal.failed",
    "A second moderator seals the owner's open request completed.",
    put("end", outcome="completed"), signed_by("end", "hal"), at="end",
)  # fmt: skip
negative(
    "seal.unacknowledged", "owner-gone", "roster.owner-leaves",
    "The owner leaves a request behind that is sealed completed.",
    before("ada-leaves", message("ask", "ada", to=["bob"])), at="end",
)  # fmt: skip
