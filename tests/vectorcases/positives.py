"""Threads that are in order: requests, acknowledgements and approvals, and what looks wrong there and is right."""

from tests.vectorcases.build import Move, Ref, digest, key, keys
from tests.vectorcases.case import positive
from tests.vectorcases.moves import (
    ack,
    approved,
    became,
    confirm,
    correct,
    decline,
    message,
    opening,
    roster,
    seal,
    settle,
)

CREW = {
    "ada": "moderator",
    "hal": "moderator",
    "bob": "member",
    "cyd": "member",
    "dan": "observer",
    "fay": "approver",
    "gus": "approver",
}
"""Two moderators, the first of them the owner; two members, an observer and two approvers."""


def crew(name: str, **fields: object) -> Move:
    """Return the open of a thread of the whole crew."""
    return opening(name, CREW, **fields)


def answered(of: str, who: str, by: str = "ada") -> tuple[Move, Move]:
    """Return an acceptance and its confirmation."""
    return ack(f"{who}-yes", who, of), confirm(f"{who}-ok", by, f"{who}-yes")


# Requests and their acknowledgements

positive("thread.open-only", "A thread of an open alone is open.", crew("only"), completeness="open", outcome=None)

positive(
    "thread.smallest",
    "One member opens a thread and seals it.",
    opening("smallest", {"ada": "moderator"}),
    seal(),
)

positive(
    "thread.request",
    "Two recipients accept, the author confirms, settles and seals.",
    crew("request"),
    message("ask", "ada", "Check the build.", to=["bob", "cyd"]),
    ack("bob-yes", "bob", "ask"),
    ack("cyd-yes", "cyd", "ask"),
    confirm("bob-ok", "ada", "bob-yes"),
    confirm("cyd-ok", "ada", "cyd-yes"),
    settle("done", "ada", became("ask", attempts=1)),
    seal(),
)

positive(
    "thread.single",
    "A request of one recipient is acknowledged, settled by the seal itself and closed.",
    opening("single", {"ada": "moderator", "bob": "member"}),
    message("ask", "ada", "Check the build.", to=["bob"]),
    *answered("ask", "bob"),
    seal(settled=[became("ask")]),
)

positive(
    "thread.panel",
    "Five recipients of two requests acknowledge in whatever order they come.",
    opening("panel", {"ada": "moderator"} | dict.fromkeys(("bob", "cyd", "dan", "eve", "ivy"), "member")),
    message("plan", "ada", "Review the plan.", to=["bob", "cyd", "dan", "eve", "ivy"]),
    ack("cyd-plan", "cyd", "plan"),
    ack("bob-plan", "bob", "plan"),
    message("cost", "ada", "Review the cost.", to=["bob", "cyd"]),
    ack("ivy-plan", "ivy", "plan"),
    ack("cyd-cost", "cyd", "cost"),
    confirm("bob-plan-ok", "ada", "bob-plan"),
    ack("dan-plan", "dan", "plan"),
    confirm("cyd-cost-ok", "ada", "cyd-cost"),
    confirm("ivy-plan-ok", "ada", "ivy-plan"),
    ack("eve-plan", "eve", "plan"),
    ack("bob-cost", "bob", "cost"),
    confirm("cyd-plan-ok", "ada", "cyd-plan"),
    confirm("eve-plan-ok", "ada", "eve-plan"),
    message("word", "bob", "I have nothing to add."),
    confirm("bob-cost-ok", "ada", "bob-cost"),
    confirm("dan-plan-ok", "ada", "dan-plan"),
    settle("done", "ada", became("plan"), became("cost")),
    seal(),
)

positive(
    "thread.member-request",
    "A member asks the owner and another member, and settles what it asked.",
    crew("member-request"),
    message("ask", "bob", "May I restart the server?", to=["ada", "cyd"]),
    ack("ada-yes", "ada", "ask"),
    ack("cyd-yes", "cyd", "ask"),
    confirm("ada-ok", "bob", "ada-yes"),
    confirm("cyd-ok", "bob", "cyd-yes"),
    settle("done", "bob", became("ask")),
    seal(),
)

positive(
    "thread.pending",
    "An acknowledgement that no record commits yet is pending.",
    crew("pending"),
    message("ask", "ada", to=["bob"]),
    ack("bob-yes", "bob", "ask"),
    completeness="open",
    outcome=None,
    rules=["receipts.committed"],
)

positive(
    "thread.pending-decline",
    "A decline that no record commits yet is pending, and no finding.",
    crew("pending-decline"),
    message("ask", "ada", to=["bob"]),
    decline("bob-no", "bob", "ask"),
    completeness="open",
    outcome=None,
    rules=["message.declined"],
)

positive(
    "thread.pending-unknown",
    "Whose acknowledgement is pending, and who never signed, need not be known to the verifier.",
    crew("pending-unknown"),
    message("ask", "ada", to=["bob"]),
    ack("bob-yes", "bob", "ask"),
    completeness="open",
    outcome=None,
    trust={"ada": "agent"},
    rules=["trust.unknown"],
)

positive(
    "thread.ready",
    "Everything is acknowledged and nothing settled yet: the thread is open.",
    crew("ready"),
    message("ask", "ada", to=["bob", "cyd"]),
    ack("bob-yes", "bob", "ask"),
    ack("cyd-yes", "cyd", "ask"),
    confirm("bob-ok", "ada", "bob-yes"),
    confirm("cyd-ok", "ada", "cyd-yes"),
    completeness="open",
    outcome=None,
)

positive(
    "thread.replies",
    "Several authors answer one another, to a settled request as well.",
    crew("replies"),
    message("ask", "ada", to=["bob"]),
    *answered("ask", "bob"),
    settle("done", "ada", became("ask")),
    message("answer", "bob", "It is checked.", reply_to=Ref("ask")),
    message("remark", "hal", "Well done.", reply_to=Ref("answer")),
    seal(),
    rules=["message.reply_to"],
)

positive(
    "ack.correction",
    "A recipient is corrected once and confirmed in the second round.",
    crew("correction"),
    message("ask", "ada", to=["bob"]),
    ack("first", "bob", "ask", "I am to run the tests."),
    correct("not-so", "ada", "first"),
    ack("second", "bob", "ask", "I am to check the whole build.", after=Ref("not-so")),
    confirm("bob-ok", "ada", "second"),
    settle("done", "ada", became("ask")),
    seal(),
    rules=["ack.after", "ruling.repeated"],
)

positive(
    "ack.correction-across-records",
    "Rounds of one acknowledgement are committed by several records.",
    crew("across"),
    message("ask", "ada", to=["bob"]),
    ack("first", "bob", "ask"),
    message("word", "cyd", "I am listening."),
    correct("not-so", "ada", "first"),
    settle("commit", "ada"),
    ack("second", "bob", "ask", after=Ref("not-so")),
    message("word2", "hal", "So am I."),
    confirm("bob-ok", "ada", "second"),
    seal(settled=[became("ask")]),
    rules=["ack.after", "receipts.committed"],
)


def rounds(last: int) -> list[Move]:
    """Return the acks of bob from the first to the one before the last, each corrected, and the last."""
    moves = []
    for number in range(1, last + 1):
        after = {} if number == 1 else {"after": Ref(f"fix{number - 1}")}
        moves.append(ack(f"round{number}", "bob", "ask", f"In round {number} I see it so.", **after))
        if number < last:
            moves.append(correct(f"fix{number}", "ada", f"round{number}"))
    return moves


positive(
    "ack.sixteen-rounds",
    "A recipient acknowledges a message sixteen times, which is as often as it may.",
    crew("sixteen"),
    message("ask", "ada", to=["bob", "cyd"]),
    *rounds(16),
    confirm("bob-ok", "ada", "round16"),
    *answered("ask", "cyd"),
    settle("done", "ada", became("ask")),
    seal(),
    rules=["ack.rounds"],
)

positive(
    "ack.declined",
    "A recipient declines; the request fails and the thread is sealed rejected.",
    crew("declined"),
    message("ask", "ada", to=["bob", "cyd"]),
    decline("bob-no", "bob", "ask"),
    *answered("ask", "cyd"),
    settle("failed", "ada", became("ask", "failed", attempts=2, status="declined")),
    seal(outcome="rejected"),
    outcome="rejected",
    findings=[("message.declined", "ask")],
    rules=["message.declined"],
)

positive(
    "ack.declined-after-correction",
    "A recipient that was corrected declines in the second round.",
    crew("declined-late"),
    message("ask", "ada", to=["bob"]),
    ack("first", "bob", "ask"),
    correct("not-so", "ada", "first"),
    decline("second", "bob", "ask", after=Ref("not-so")),
    settle("failed", "ada", became("ask", "failed")),
    seal(outcome="failed"),
    outcome="failed",
    findings=[("message.declined", "ask")],
    rules=["message.declined"],
)

positive(
    "ack.unneeded",
    "A message that needs no acknowledgement is acknowledged and confirmed by its recipients.",
    crew("unneeded"),
    message("tell", "ada", to=["bob", "dan", "fay"], intent="assert"),
    ack("bob-yes", "bob", "tell"),
    confirm("bob-ok", "ada", "bob-yes"),
    ack("fay-yes", "fay", "tell"),
    settle("done", "ada", became("tell")),
    seal(),
    rules=["ack.recipient", "settle.unacknowledged"],
)

positive(
    "ack.required",
    "A query and an assertion ask for acknowledgements.",
    crew("required"),
    message("ask", "ada", to=["bob"], intent="query", ack_required=True),
    *answered("ask", "bob"),
    message("tell", "ada", to=["cyd"], intent="assert", ack_required=True),
    *answered("tell", "cyd"),
    settle("done", "ada", became("ask"), became("tell")),
    seal(),
    rules=["message.to_required"],
)

positive(
    "ack.by-approver",
    "An approver acknowledges a plain request.",
    crew("by-approver"),
    message("ask", "ada", to=["bob", "fay"]),
    *answered("ask", "bob"),
    *answered("ask", "fay"),
    settle("done", "ada", became("ask")),
    seal(),
    rules=["roster.unable", "trust.human"],
)

positive(
    "ack.by-gone-member",
    "The acceptance of a recipient that is removed afterwards stands.",
    crew("gone"),
    message("ask", "ada", to=["bob"]),
    *answered("ask", "bob"),
    roster("remove-bob", "hal", "remove", "bob"),
    settle("done", "ada", became("ask")),
    seal(),
    rules=["settle.unacknowledged"],
)

positive(
    "ack.confirmed-after-demotion",
    "The acceptance of a recipient is confirmed after it became an observer.",
    crew("demoted"),
    message("ask", "ada", to=["bob"]),
    ack("bob-yes", "bob", "ask"),
    roster("demote-bob", "hal", "role", "bob", role="observer"),
    confirm("bob-ok", "ada", "bob-yes"),
    settle("done", "ada", became("ask")),
    seal(),
    rules=["settle.unacknowledged"],
)

positive(
    "message.query",
    "A query without recipients is asked and answered.",
    crew("query"),
    message("ask", "bob", "What is the version?", intent="query"),
    message("answer", "cyd", "It is 42.", epistemic="inferred", reply_to=Ref("ask"), confidence=90),
    seal(),
)

positive(
    "message.labels",
    "Each label of how something is known is used, verified with evidence.",
    crew("labels"),
    message("checked", "bob", epistemic="verified", provenance={"source": "ci", "evidence": [digest("log")]}),
    message("thought", "bob", epistemic="inferred", provenance={"source": "model", "chain": [key("cyd"), key("cyd")]}),
    message("taken", "bob", epistemic="assumed"),
    message("heard", "bob", epistemic="untrusted-input", provenance={"source": "web"}, max_hops=1),
    message("passed", "cyd", provenance={"source": "peer", "chain": keys(["bob", "dan"])}, max_hops=2),
    seal(),
    rules=["message.verified", "message.hops"],
)

# Approvals by people

positive(
    "escalate.approved",
    "A recipient declines, two people approve instead, and the thread completes.",
    crew("approved"),
    message("ask", "ada", "Release it.", to=["bob"]),
    decline("bob-no", "bob", "ask"),
    message("call", "ada", "Bob declines. May I release?", to=["fay", "gus"], intent="escalate", reply_to=Ref("ask")),
    *answered("call", "fay"),
    *answered("call", "gus"),
    settle("done", "ada", became("call"), approved("ask", "call")),
    seal(),
    findings=[("message.declined", "ask"), ("message.approved", "ask")],
    rules=["message.approved", "message.declined"],
)

positive(
    "escalate.unanswered",
    "Nobody answers a request; a person approves it, and the escalation itself is not settled.",
    crew("unanswered"),
    message("ask", "ada", to=["bob", "cyd"]),
    *answered("ask", "cyd"),
    message("call", "ada", "Bob is away.", to=["fay"], intent="escalate", reply_to=Ref("ask"), ack_required=True),
    *answered("call", "fay"),
    settle("done", "ada", approved("ask", "call", attempts=1)),
    seal(),
    findings=[("message.approved", "ask")],
    rules=["message.approved"],
)

positive(
    "escalate.two-people",
    "Two people approve, and the escalation itself is never settled.",
    crew("two-people"),
    message("ask", "ada", to=["bob"]),
    message("call", "ada", "Bob is away.", to=["fay", "gus"], intent="escalate", reply_to=Ref("ask")),
    *answered("call", "fay"),
    *answered("call", "gus"),
    settle("done", "ada", approved("ask", "call")),
    seal(),
    findings=[("message.approved", "ask")],
    rules=["message.approved"],
)

positive(
    "escalate.by-moderator",
    "A second moderator escalates its request, which a person approves and which then fails.",
    crew("by-moderator"),
    message("ask", "hal", to=["bob"]),
    message("call", "hal", "Bob is away.", to=["fay"], intent="escalate", reply_to=Ref("ask")),
    *answered("call", "fay", by="hal"),
    settle("failed", "hal", became("ask", "failed")),
    seal(),
    rules=["seal.open_request"],
)

positive(
    "escalate.declined",
    "An approver declines; the request fails and the thread is sealed failed.",
    crew("not-approved"),
    message("ask", "ada", to=["bob"]),
    message("call", "ada", "Bob is away.", to=["fay"], intent="escalate", reply_to=Ref("ask")),
    decline("fay-no", "fay", "call"),
    settle("failed", "ada", became("call", "failed"), became("ask", "failed")),
    seal(outcome="failed"),
    outcome="failed",
    findings=[("message.declined", "ask")],
    rules=["message.declined"],
)

positive(
    "escalate.failed-although-approved",
    "A request that people approved may still be settled failed, and the thread completes.",
    crew("approved-failed"),
    message("ask", "ada", to=["bob"]),
    message("call", "ada", "Bob is away.", to=["fay"], intent="escalate", reply_to=Ref("ask")),
    *answered("call", "fay"),
    settle("failed", "ada", became("ask", "failed", attempts=3), became("call", "failed")),
    seal(),
    rules=["seal.unacknowledged"],
)

positive(
    "escalate.pending",
    "A request is escalated, and nobody has answered yet.",
    crew("escalate-pending"),
    message("say", "ada", "The build is green."),
    message("ask", "ada", to=["bob"]),
    message("call", "ada", "Bob is away.", to=["fay"], intent="escalate", reply_to=Ref("ask")),
    completeness="open",
    outcome=None,
)
