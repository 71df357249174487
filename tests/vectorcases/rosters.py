"""Cases of the stage roster: who may say what at its place."""

from tests.vectorcases.build import key, keys
from tests.vectorcases.case import negative
from tests.vectorcases.moves import (
    ack,
    after,
    became,
    before,
    decline,
    message,
    opening,
    put,
    roster,
    signed_by,
    step,
)

REQUEST = "thread.request"
SINGLE = "thread.single"
CHANGES = "roster.changes"
STEPS = "settle.steps"

# Signers

negative("roster.owner", "stranger", SINGLE, "The opener is no member.", signed_by("open", "hal"), at="open")
negative(
    "roster.owner", "member", SINGLE,
    "The opener is a member, not a moderator.",
    signed_by("open", "bob"), at="open",
)  # fmt: skip
negative(
    "roster.owner", "no-moderator", "thread.smallest",
    "The only member is an approver.",
    put("open", members=opening("x", {"ada": "approver"}).body["members"]), at="open",
)  # fmt: skip
negative("roster.stranger", "message", REQUEST, "A stranger sends the request.", signed_by("ask", "mal"), at="ask")
negative("roster.stranger", "ack", REQUEST, "A stranger acknowledges.", signed_by("bob-yes", "mal"), at="bob-yes")
negative("roster.stranger", "ruling", REQUEST, "A stranger confirms.", signed_by("bob-ok", "mal"), at="bob-ok")
negative("roster.stranger", "seal", REQUEST, "A stranger seals.", signed_by("end", "mal"), at="end")
negative(
    "roster.stranger", "removed", "ack.by-gone-member",
    "A member that was removed sends a message.",
    after("remove-bob", message("word", "bob")), at="word",
)  # fmt: skip
negative(
    "roster.stranger", "removed-ack", "roster.removed-reviewer",
    "A reviewer acknowledges after it was removed.",
    after("remove-bob", ack("bob-yes", "bob", "ask")), at="bob-yes",
)  # fmt: skip
negative(
    "roster.stranger", "left", "roster.owner-leaves",
    "The owner seals after it left.",
    signed_by("end", "ada"), at="end",
)  # fmt: skip
negative(
    "roster.role", "observer-message", REQUEST,
    "An observer sends the request.",
    signed_by("ask", "dan"), at="ask",
)  # fmt: skip
negative("roster.role", "approver-message", "message.query", "An approver asks.", signed_by("ask", "fay"), at="ask")
negative("roster.role", "member-seal", REQUEST, "A member seals.", signed_by("end", "bob"), at="end")
negative("roster.role", "member-admits", CHANGES, "A member admits.", signed_by("admit-eve", "bob"), at="admit-eve")
negative(
    "roster.role", "approver-settles", REQUEST,
    "An approver commits receipts.",
    signed_by("done", "fay"), at="done",
)  # fmt: skip
negative(
    "roster.role", "observer-ack", "ack.unneeded",
    "An observer to whom a message is acknowledges it.",
    after("tell", ack("dan-yes", "dan", "tell")), at="dan-yes",
)  # fmt: skip
negative(
    "roster.role", "approver-ruling", "ack.by-approver",
    "An approver confirms its own acknowledgement.",
    signed_by("fay-ok", "fay"), at="fay-ok",
)  # fmt: skip
negative(
    "roster.role", "demoted-moderator", CHANGES,
    "A moderator that became a member seals.",
    signed_by("end", "eve"), at="end",
)  # fmt: skip
negative(
    "roster.role", "demoted-author", "roster.second-moderator",
    "A moderator that was made an approver confirms an acknowledgement of its own request.",
    before("ada-ok", roster("lower-hal", "ada", "role", "hal", role="approver")), at="ada-ok",
)  # fmt: skip
negative(
    "roster.role", "leaver-settles", "roster.demoted-leaves",
    "The approver that leaves settles the message that it sent as a moderator.",
    put("hal-leaves", settled=[became("word")]), at="hal-leaves",
)  # fmt: skip

# Recipients

negative(
    "roster.to", "stranger", SINGLE,
    "The request is to a key that is no member.",
    put("ask", to=keys(["zoe"])), at="ask",
)  # fmt: skip
negative("roster.to", "author", SINGLE, "The request is to its author.", put("ask", to=keys(["ada", "bob"])), at="ask")
negative(
    "roster.to", "only-author", SINGLE,
    "The request is to its author alone.",
    put("ask", to=keys(["ada"])), at="ask",
)  # fmt: skip
negative(
    "roster.to", "removed", "ack.by-gone-member",
    "A message is to a member that was removed.",
    after("remove-bob", message("word", "ada", to=["bob", "cyd"], intent="assert")), at="word",
)  # fmt: skip
negative(
    "roster.to", "not-yet", CHANGES,
    "A message is to a member that is admitted after it.",
    before("admit-eve", message("word", "ada", to=["eve"])), at="word",
)  # fmt: skip
negative(
    "roster.unable", "observer", REQUEST,
    "An observer is asked.",
    put("ask", to=keys(["bob", "cyd", "dan"])), at="ask",
)  # fmt: skip
negative(
    "roster.unable", "flag", "ack.unneeded",
    "An observer is to acknowledge.",
    put("tell", ack_required=True), at="tell",
)  # fmt: skip
negative(
    "roster.unable", "demoted", "ack.confirmed-after-demotion",
    "A member that became an observer is asked.",
    after("demote-bob", message("word", "ada", to=["bob"])), at="word",
)  # fmt: skip
negative(
    "roster.unable", "escalation", "escalate.pending",
    "An escalation is to an observer.",
    put("call", to=keys(["dan", "fay"])), at="call",
)  # fmt: skip

# Changes

negative(
    "roster.present", "member", CHANGES,
    "A member is admitted again.",
    put("admit-eve", key=key("bob")), at="admit-eve",
)  # fmt: skip
negative(
    "roster.present", "self", CHANGES,
    "A moderator admits itself.",
    put("admit-eve", key=key("ada"), name="ada"), at="admit-eve",
)  # fmt: skip
negative(
    "roster.present", "twice", CHANGES,
    "A key is admitted twice.",
    after("hello", roster("admit-eve2", "ada", "admit", "eve", role="moderator")), at="admit-eve2",
)  # fmt: skip
negative(
    "roster.absent", "remove", CHANGES,
    "A key that is no member is removed.",
    put("remove-cyd", key=key("zoe")), at="remove-cyd",
)  # fmt: skip
negative(
    "roster.absent", "role", CHANGES,
    "A key that is no member gets a role.",
    put("raise-eve", key=key("zoe")), at="raise-eve",
)  # fmt: skip
negative(
    "roster.absent", "gone", CHANGES,
    "A member is removed twice.",
    after("bob-leaves", roster("again", "hal", "remove", "bob")), at="again",
)  # fmt: skip
negative(
    "roster.same_role", "member", CHANGES,
    "A member is made a member.",
    put("raise-eve", role="member"), at="raise-eve",
)  # fmt: skip
negative(
    "roster.same_role", "moderator", CHANGES,
    "A moderator is made a moderator.",
    put("lower-eve", role="moderator"), at="lower-eve",
)  # fmt: skip
negative(
    "roster.leave", "other", CHANGES,
    "A member leaves for another.",
    put("bob-leaves", key=key("cyd")), at="bob-leaves",
)  # fmt: skip
negative(
    "roster.leave", "moderator", CHANGES,
    "A moderator signs that a member leaves.",
    signed_by("bob-leaves", "hal"), at="bob-leaves",
)  # fmt: skip
negative(
    "roster.leave", "observer", CHANGES,
    "An observer signs that a moderator leaves.",
    put("dan-leaves", key=key("ada")), at="dan-leaves",
)  # fmt: skip
negative(
    "roster.name", "present", CHANGES,
    "A key is admitted under a member's name.",
    put("admit-eve", name="bob"), at="admit-eve",
)  # fmt: skip
negative(
    "roster.name", "gone", CHANGES,
    "A key is admitted under the name of one that left.",
    put("bob-again", name="dan"), at="bob-again",
)  # fmt: skip
negative(
    "roster.name", "former", "roster.name-again",
    "A key is admitted under a name that another one had before its present one.",
    after("bob-third", roster("admit-eve", "ada", "admit", "eve", role="member", name="bob")), at="admit-eve",
)  # fmt: skip
negative(
    "roster.moderator", "leaves", SINGLE,
    "The last moderator leaves.",
    after("bob-ok", roster("leave", "ada", "leave", "ada")), at="leave",
)  # fmt: skip
negative(
    "roster.moderator", "demoted", SINGLE,
    "The last moderator makes itself a member.",
    after("bob-ok", roster("lower", "ada", "role", "ada", role="member")), at="lower",
)  # fmt: skip
negative(
    "roster.moderator", "removed", "roster.owner-leaves",
    "The moderator that remained removes itself.",
    after("ada-leaves", roster("remove-hal", "hal", "remove", "hal")), at="remove-hal",
)  # fmt: skip

# Steps, acks, rulings

negative(
    "step.owner", "message", "thread.member-request",
    "A member puts a step on its request.",
    put("ask", step=["build"]), at="ask",
)  # fmt: skip
negative(
    "step.owner", "settled", "thread.member-request",
    "A member settles a step.",
    put("done", settled=[became("ask"), step("build")]), at="done",
)  # fmt: skip
negative(
    "step.owner", "moderator", "roster.second-moderator",
    "A second moderator settles a step as it seals.",
    put("end", settled=[step("build", "skipped")]), at="end",
)  # fmt: skip
negative(
    "ack.recipient", "member", "thread.member-request",
    "A member that was not asked acknowledges.",
    signed_by("cyd-yes", "hal"), at="cyd-yes",
)  # fmt: skip
negative(
    "ack.recipient", "author", "thread.member-request",
    "The author acknowledges its own message.",
    signed_by("ada-yes", "bob"), at="ada-yes",
)  # fmt: skip
negative(
    "ack.recipient", "nobody", "escalate.pending",
    "A message without recipients is acknowledged.",
    after("say", ack("bob-yes", "bob", "say")), at="bob-yes",
)  # fmt: skip
negative(
    "ack.recipient", "settled-without-recipients", "settle.by-any-record",
    "A settled message without recipients is acknowledged.",
    after("three", ack("bob-yes", "bob", "one")), at="bob-yes",
)  # fmt: skip
negative(
    "ack.recipient", "approver", "escalate.approved",
    "An approver declines the request, which was not to it.",
    after("bob-no", decline("fay-early", "fay", "ask")), at="fay-early",
)  # fmt: skip
negative(
    "ruling.author", "recipient", REQUEST,
    "A recipient confirms its own acknowledgement.",
    signed_by("bob-ok", "bob"), at="bob-ok",
)  # fmt: skip
negative(
    "ruling.author", "moderator", REQUEST,
    "A second moderator confirms for the author.",
    signed_by("bob-ok", "hal"), at="bob-ok",
)  # fmt: skip
negative(
    "ruling.author", "owner", "thread.member-request",
    "The owner confirms an acknowledgement of another member's request.",
    signed_by("cyd-ok", "ada"), at="cyd-ok",
)  # fmt: skip
