"""Cases that stay valid and show a finding: what a verdict tells beside its integrity."""

from tests.vectorcases.build import NOW, START, Ref, address, digest
from tests.vectorcases.case import CASES, TRUST, shown
from tests.vectorcases.moves import (
    ack,
    after,
    approved,
    became,
    before,
    confirm,
    cut,
    drop,
    message,
    put,
    reorder,
)

REQUEST = "thread.request"
MEMBER = "thread.member-request"
DECLINED = ("message.declined", "ask")
UNTRUSTED = {"trust_axis": "unknown"}
LAST = address(CASES["thread.tip-is-seal"].script.build()[-1].raw)


def known(**changes: str | None) -> dict[str, str]:
    """Return whom the verifier knows, with changes; None takes a key out."""
    return {name: role for name, role in (TRUST | changes).items() if role is not None}


# Another member's requests, challenges

shown(
    "seal.open_request", "unanswered", MEMBER,
    "The member's request is neither acknowledged nor settled.",
    drop("ada-yes", "cyd-yes", "ada-ok", "cyd-ok", "done"), findings=[("seal.open_request", "ask")],
)  # fmt: skip
shown(
    "seal.open_request", "unsettled", MEMBER,
    "The member's request is acknowledged, but not settled.",
    drop("done"), findings=[("seal.open_request", "ask")],
)  # fmt: skip
shown(
    "seal.open_request", "declined", MEMBER,
    "The member's request is declined and settled failed.",
    put("ada-yes", answer="decline"), drop("ada-ok"), put("done", settled=[became("ask", "failed")]),
    findings=[DECLINED, ("seal.open_request", "ask")],
)  # fmt: skip
shown(
    "seal.open_request", "cleared-too-late", "escalate.by-moderator",
    "The request is settled before its escalation is answered, so that the answer clears nothing.",
    reorder("failed", behind="call"), findings=[("seal.open_request", "ask")],
)  # fmt: skip
shown(
    "seal.open_challenge", "unanswered", "challenge.answered",
    "Nobody answers the challenge.",
    drop("answer"), findings=[("seal.open_challenge", "doubt")],
)  # fmt: skip
shown(
    "seal.open_challenge", "third", "challenge.answered",
    "Another member than the challenged one answers.",
    drop("answer"), before("end", message("answer", "hal", "That of today.", reply_to=Ref("doubt"))),
    findings=[("seal.open_challenge", "doubt")],
)  # fmt: skip
shown(
    "seal.open_challenge", "beside", "challenge.answered",
    "The challenged member replies to its own message, not to the challenge.",
    put("answer", reply_to=Ref("say")), findings=[("seal.open_challenge", "doubt")],
)  # fmt: skip

shown(
    "seal.open_challenge", "of-retracted", "retract.messages",
    "A message that was retracted before is challenged, and nobody answers.",
    after("oops", message("doubt", "cyd", "Why?", intent="challenge", reply_to=Ref("say"))),
    findings=[("seal.open_challenge", "doubt")],
)  # fmt: skip

# What people decided

shown(
    "message.approved", "acknowledged", "escalate.failed-although-approved",
    "The request that people approved is settled approved.",
    put("failed", settled=[approved("ask", "call"), became("call")]), findings=[("message.approved", "ask")],
)  # fmt: skip
shown(
    "message.approved", "both", "seal.escalation-not-settled",
    "The request is acknowledged and approved, and settled approved.",
    before("done", ack("fay-yes", "fay", "call"), confirm("fay-ok", "ada", "fay-yes")),
    put("done", settled=[approved("ask", "call")]), findings=[("message.approved", "ask")],
)  # fmt: skip
shown(
    "message.declined", "two-recipients", "ack.declined",
    "The second recipient declines as well.",
    drop("cyd-ok"), put("cyd-yes", answer="decline"), findings=[DECLINED, DECLINED],
)  # fmt: skip
shown(
    "message.declined", "unneeded", "ack.unneeded",
    "A message that needs no answer is declined.",
    put("fay-yes", answer="decline"), findings=[("message.declined", "tell")],
)  # fmt: skip

shown(
    "message.declined", "after-settling", "escalate.declined",
    "The request fails before its approver declines, and the escalation is not settled.",
    reorder("fay-no", behind="failed"), put("failed", settled=[became("ask", "failed")]), findings=[DECLINED],
)  # fmt: skip

# Clocks

shown(
    "time.backwards", "message", "thread.clock-backwards",
    "The message says it was sent a millisecond earlier.",
    put("say", sent_at=START - 1), findings=[("time.backwards", "say")],
)  # fmt: skip
shown(
    "time.backwards", "day", REQUEST,
    "The open says it was sent a day later.",
    put("open", sent_at=START + 86_400_000), findings=[("time.backwards", "ask"), ("time.future", "open")],
)  # fmt: skip
shown(
    "time.future", "seal", "thread.clock-backwards",
    "The seal says it was sent a millisecond later.",
    put("end", sent_at=NOW + 300_001), findings=[("time.future", "end")],
)  # fmt: skip
shown(
    "time.future", "pending", "thread.pending",
    "A pending acknowledgement says it was sent a day later.",
    put("bob-yes", sent_at=NOW + 86_400_000), findings=[("time.future", "bob-yes")],
)  # fmt: skip
shown(
    "time.future", "verifier", REQUEST,
    "The verifier's clock stands an hour before the thread.",
    findings=[("time.future", index) for index in range(8)], now=START - 3_600_000,
)  # fmt: skip

# Trust

shown(
    "trust.none", "sealed", REQUEST,
    "The verifier is given no keys.",
    findings=[("trust.none", None)], trust=None, **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.none", "open", "thread.open-only",
    "The verifier is given no keys for an open thread.",
    findings=[("trust.none", None)], trust=None, **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.unknown", "owner", REQUEST,
    "The verifier does not know the owner.",
    findings=[("trust.unknown", "open")], trust=known(ada=None), **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.unknown", "recipient", REQUEST,
    "The verifier does not know a recipient, whose acknowledgement is committed.",
    findings=[("trust.unknown", "cyd-yes")], trust=known(cyd=None), **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.unknown", "nobody", "thread.single",
    "The verifier's file of trusted keys is empty.",
    findings=[("trust.unknown", "open"), ("trust.unknown", "bob-yes")], trust={}, **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.unknown", "own-card", "proofs.all",
    "A key that has a card beside the thread is unknown to the verifier.",
    findings=[("trust.unknown", "say")], trust=known(bob=None), **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.role", "witness", REQUEST,
    "The verifier knows the owner as a witness.",
    findings=[("trust.role", "open")], trust=known(ada="witness"), **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.role", "issuer", REQUEST,
    "The verifier knows a recipient as an issuer.",
    findings=[("trust.role", "bob-yes")], trust=known(bob="issuer"), **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.human", "escalation", "escalate.unanswered",
    "The verifier knows the approver as an agent.",
    findings=[("trust.human", "fay-yes"), ("message.approved", "ask")], trust=known(fay="agent"), **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.human", "request", "ack.by-approver",
    "The verifier knows as an agent the approver who acknowledges a plain request.",
    findings=[("trust.human", "fay-yes")], trust=known(fay="agent"), **UNTRUSTED,
)  # fmt: skip
shown(
    "trust.human", "witness", "ack.by-approver",
    "The verifier knows the approver as a witness.",
    findings=[("trust.human", "fay-yes")], trust=known(fay="witness"), **UNTRUSTED,
)  # fmt: skip
shown(
    "tip.missing", "cut", "thread.tip-is-seal",
    "The seal that the verifier knows is cut off.",
    cut("say"), findings=[("tip.missing", None)], tip=LAST, completeness="truncated", outcome=None,
)  # fmt: skip
shown(
    "tip.missing", "other", "thread.tip-is-seal",
    "The record that the verifier knows is of another thread.",
    findings=[("tip.missing", None)], tip=digest("another record"), completeness="truncated",
)  # fmt: skip
shown(
    "tip.missing", "receipt", REQUEST,
    "The verifier knows a receipt, which is no record of the chain.",
    findings=[("tip.missing", None)], tip="bob-ok", completeness="truncated",
)  # fmt: skip

# Plans

shown(
    "plan.unchecked", "named", REQUEST,
    "The open names a plan.",
    put("open", plan=digest("a plan")), findings=[("plan.unchecked", "open")], plan="unchecked",
)  # fmt: skip
shown(
    "plan.unchecked", "nothing-done", "thread.smallest",
    "A plan is named, nothing is done, and the thread is sealed completed.",
    put("open", plan=digest("a plan")), findings=[("plan.unchecked", "open")], plan="unchecked",
)  # fmt: skip
