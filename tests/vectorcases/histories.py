"""Threads that are in order, continued: rosters, settlements, seals, and what surrounds a thread."""

from tests.vectorcases.build import START, Move, Ref, digest, key
from tests.vectorcases.case import positive
from tests.vectorcases.moves import (
    ack,
    became,
    card,
    confirm,
    correct,
    message,
    roster,
    seal,
    settle,
    step,
)
from tests.vectorcases.positives import answered, crew

RESTATED = {"address": digest("a restatement"), "bytes": 1 << 20}

# The roster

positive(
    "roster.changes",
    "Members are admitted, get other roles, are removed, leave and come back.",
    crew("changes"),
    roster("admit-eve", "ada", "admit", "eve", role="member"),
    message("hello", "eve", "Hello."),
    roster("raise-eve", "hal", "role", "eve", role="moderator"),
    roster("remove-cyd", "eve", "remove", "cyd"),
    roster("bob-leaves", "bob", "leave", "bob"),
    roster("dan-leaves", "dan", "leave", "dan"),
    roster("fay-leaves", "fay", "leave", "fay"),
    roster("cyd-again", "eve", "admit", "cyd", role="approver"),
    roster("bob-again", "eve", "admit", "bob", role="member", name="robert"),
    roster("lower-eve", "eve", "role", "eve", role="member"),
    message("here", "bob", "I am back."),
    seal(),
    rules=["roster.role", "roster.moderator"],
)

positive(
    "roster.owner-leaves",
    "The owner leaves, another moderator seals.",
    crew("owner-leaves"),
    message("bye", "ada", "Hal takes over."),
    roster("ada-leaves", "ada", "leave", "ada"),
    seal(by="hal"),
    rules=["roster.moderator"],
)

positive(
    "roster.leaver-commits",
    "An observer leaves, and its record commits what stands.",
    crew("leaver-commits"),
    message("ask", "ada", to=["bob"]),
    *answered("ask", "bob"),
    roster("dan-leaves", "dan", "leave", "dan"),
    settle("done", "ada", became("ask")),
    seal(),
    rules=["roster.role", "receipts.committed"],
)

positive(
    "roster.removed-reviewer",
    "A reviewer is removed before it answered; its request is settled failed.",
    crew("removed-reviewer"),
    message("ask", "ada", to=["bob"]),
    roster("remove-bob", "ada", "remove", "bob"),
    settle("failed", "ada", became("ask", "failed")),
    seal(outcome="failed"),
    outcome="failed",
)

positive(
    "roster.name-again",
    "A key that had left is admitted under the name it had before, then under another of its own.",
    crew("name-again"),
    roster("remove-bob", "ada", "remove", "bob"),
    roster("bob-again", "ada", "admit", "bob", role="observer"),
    roster("bob-leaves", "bob", "leave", "bob"),
    roster("bob-third", "hal", "admit", "bob", role="member", name="bobby"),
    message("hello", "bob", "Hello."),
    seal(),
    rules=["roster.name"],
)

positive(
    "roster.demoted-leaves",
    "A moderator is made an approver and leaves.",
    crew("demoted-leaves"),
    message("word", "hal", "I am going."),
    roster("lower-hal", "ada", "role", "hal", role="approver"),
    roster("hal-leaves", "hal", "leave", "hal"),
    seal(),
    rules=["roster.role"],
)

positive(
    "roster.second-moderator",
    "A second moderator asks, admits, settles and seals.",
    crew("second-moderator"),
    message("ask", "hal", to=["ada"]),
    *answered("ask", "ada", by="hal"),
    roster("admit-eve", "hal", "admit", "eve", role="observer", settled=[became("ask")]),
    seal(by="hal"),
    rules=["roster.role"],
)

# Settling, retracting, challenging

positive(
    "settle.steps",
    "Steps with and without messages are settled, rounds of a loop among them.",
    crew("steps"),
    message("ask", "ada", to=["bob"], step=["release", "build"]),
    *answered("ask", "bob"),
    settle("done", "ada", became("ask", attempts=1, status="green", result="All 42 tests passed.")),
    settle(
        "steps",
        "ada",
        step("release/fetch", attempts=1),
        step("release/test#2", "failed", attempts=3, result="Two tests failed."),
        step("release/deploy", "skipped", status="not-due"),
    ),
    seal(settled=[step("release")]),
    rules=["step.repeated", "step.owner"],
)

positive(
    "settle.by-any-record",
    "Messages of all kinds of authors are settled by messages, roster records and the seal.",
    crew("any-record"),
    message("one", "ada"),
    message("two", "hal"),
    message("three", "ada", settled=[became("one")]),
    roster("admit-eve", "hal", "admit", "eve", role="member", settled=[became("two", "failed")]),
    seal(settled=[became("three"), step("tidy")]),
)

positive(
    "settle.committed-by-another",
    "Another member's record commits the acknowledgements that the author then relies on.",
    crew("by-another"),
    message("ask", "ada", to=["bob"]),
    *answered("ask", "bob"),
    message("word", "cyd", "Meanwhile, the tests are green."),
    settle("done", "ada", became("ask")),
    seal(),
    rules=["receipts.committed", "settle.unacknowledged"],
)

positive(
    "settle.failed-after-agreement",
    "What was agreed fails in the doing; the thread still completes.",
    crew("failed-after"),
    message("ask", "ada", to=["bob"]),
    *answered("ask", "bob"),
    settle("failed", "ada", became("ask", "failed", attempts=3)),
    seal(),
    rules=["seal.unacknowledged"],
)

positive(
    "retract.messages",
    "An assertion and an unanswered request are taken back; one of them is also settled failed.",
    crew("retract"),
    message("say", "ada", "The build is green."),
    message("oops", "ada", "It is red.", intent="retract", reply_to=Ref("say")),
    message("ask", "ada", to=["bob"]),
    message("never", "ada", "Do not.", intent="retract", reply_to=Ref("ask")),
    settle("failed", "ada", became("ask", "failed")),
    seal(),
    rules=["settle.retracted", "seal.unacknowledged"],
)

positive(
    "retract.accepted-request",
    "A request that was accepted but not confirmed is taken back.",
    crew("retract-accepted"),
    message("ask", "ada", to=["bob"]),
    ack("bob-yes", "bob", "ask"),
    message("never", "ada", "Do not.", intent="retract", reply_to=Ref("ask")),
    seal(),
    rules=["retract.declined"],
)

positive(
    "challenge.answered",
    "A claim is challenged, and its author answers.",
    crew("challenge"),
    message("say", "bob", "The build is green."),
    message("doubt", "cyd", "Which build?", intent="challenge", reply_to=Ref("say")),
    message("answer", "bob", "That of today.", reply_to=Ref("doubt")),
    seal(),
    rules=["seal.open_challenge"],
)

positive(
    "challenge.countered",
    "A challenge is answered with a challenge, and that one by its own.",
    crew("countered"),
    message("say", "bob", "The build is green."),
    message("doubt", "cyd", "Which build?", intent="challenge", reply_to=Ref("say")),
    message("counter", "bob", "Why do you ask?", intent="challenge", reply_to=Ref("doubt")),
    message("answer", "cyd", "There are two.", reply_to=Ref("counter")),
    seal(),
    rules=["seal.open_challenge"],
)

positive(
    "challenge.retracted",
    "One challenged claim is taken back, and one challenge is.",
    crew("challenge-retracted"),
    message("say", "bob", "The build is green."),
    message("doubt", "cyd", "Which build?", intent="challenge", reply_to=Ref("say")),
    message("oops", "bob", "None, in fact.", intent="retract", reply_to=Ref("say")),
    message("claim", "bob", "The tests pass."),
    message("query", "cyd", "All of them?", intent="challenge", reply_to=Ref("claim")),
    message("sorry", "cyd", "I see they do.", intent="retract", reply_to=Ref("query")),
    seal(),
    rules=["seal.open_challenge"],
)

# Seals

positive(
    "seal.failed",
    "A thread is sealed failed with its request unanswered.",
    crew("failed"),
    message("ask", "ada", to=["bob"]),
    seal(outcome="failed", status="timeout", reason="Nobody answered."),
    outcome="failed",
    rules=["seal.unacknowledged"],
)

positive(
    "seal.over-budget",
    "A thread is sealed over budget.",
    crew("over-budget"),
    message("ask", "ada", to=["bob"], cost_budget=1),
    seal(outcome="over_budget", reason={"address": digest("a reason"), "bytes": 17}),
    outcome="over_budget",
)

positive("seal.cancelled", "A thread is cancelled.", crew("cancelled"), seal(outcome="cancelled"), outcome="cancelled")

positive(
    "seal.rejected",
    "A thread is sealed rejected by a second moderator.",
    crew("rejected"),
    message("ask", "ada", to=["bob"]),
    seal(by="hal", outcome="rejected", status="too-risky"),
    outcome="rejected",
)

positive(
    "seal.escalation-not-settled",
    "An escalation that nobody needs any more bars no seal.",
    crew("escalation-open"),
    message("ask", "ada", to=["bob"]),
    message("call", "ada", "Bob is away.", to=["fay"], intent="escalate", reply_to=Ref("ask")),
    *answered("ask", "bob"),
    settle("done", "ada", became("ask")),
    seal(),
    rules=["seal.unacknowledged"],
)

# What surrounds a thread

positive(
    "thread.room",
    "A thread takes place in a room.",
    crew("in-room", room="ops"),
    message("say", "bob", room="ops"),
    message("answer", "cyd", room="ops", reply_to=Ref("say")),
    seal(),
    rules=["message.room"],
)

positive(
    "thread.follows",
    "A thread says which one it follows; that is not judged.",
    crew("follows", follows=digest("a seal of an earlier thread")),
    message("say", "bob"),
    seal(),
)

positive(
    "thread.plan",
    "A thread names its plan, which no one checks here.",
    crew("plan", plan=digest("a plan")),
    message("ask", "ada", to=["bob"], step=["build"]),
    *answered("ask", "bob"),
    settle("done", "ada", became("ask")),
    seal(),
    plan="unchecked",
    findings=[("plan.unchecked", 0)],
    rules=["plan.unchecked"],
)

positive(
    "thread.pinned",
    "The verifier names the thread that it means, and a record that it knows.",
    crew("pinned"),
    message("say", "bob"),
    message("answer", "cyd", reply_to=Ref("say")),
    seal(),
    thread="open",
    tip="say",
    rules=["chain.pinned", "tip.missing"],
)

positive(
    "thread.tip-is-seal",
    "The record that the verifier knows is the last one.",
    crew("tip"),
    message("say", "bob"),
    seal(),
    tip="end",
    rules=["tip.missing"],
)

positive(
    "thread.clock-backwards",
    "A clock that is five minutes slow is within what is borne.",
    crew("clock", sent_at=START + 300_000),
    message("say", "bob", sent_at=START),
    seal(sent_at=START + 3_900_000),
    rules=["time.backwards", "time.future"],
)

positive(
    "thread.extensions",
    "Extensions of every type stand in records of every kind.",
    crew("extensions", ext={"org.example": True, "org.example/Build-Id": "42", "a-b.c-d.e": [1, -1, b"\x00", ["x"]]}),
    message("ask", "ada", to=["bob"], ext={"org.example": {"": {}, "k": [[], {}, "", b"", 0, False]}}),
    ack("bob-yes", "bob", "ask", ext={"org.example": 2**53 - 1}),
    confirm("bob-ok", "ada", "bob-yes", ext={"org.example": 1 - 2**53}),
    settle("done", "ada", became("ask"), ext={"org.example": "\u202e\ufeff\x00\U0010ffff"}),
    roster("admit-eve", "ada", "admit", "eve", role="member", ext={"org.example": []}),
    seal(ext={"org.example/_._": ""}),
    rules=["body.name"],
)

positive(
    "thread.blobs",
    "Payloads, restatements, corrections, results and reasons stand outside the thread, by address.",
    crew("blobs"),
    message("ask", "ada", {"address": digest("a payload"), "bytes": 2**53 - 1}, to=["bob"], media_type="image/png"),
    ack("first", "bob", "ask", RESTATED),
    correct("not-so", "ada", "first", {"address": digest("a correction"), "bytes": 17}),
    ack("second", "bob", "ask", RESTATED, after=Ref("not-so")),
    confirm("bob-ok", "ada", "second"),
    settle("done", "ada", became("ask", result={"address": digest("a result"), "bytes": 18})),
    seal(reason={"address": digest("a reason"), "bytes": 100}),
)

positive(
    "proofs.all",
    "Cards, a revocation and a witness stand beside the thread and change nothing.",
    crew("proofs"),
    message("say", "bob"),
    seal(),
    proofs=[
        card("card", "bob", name="Bob \u00e9\u4e2d", description="Builds.", capabilities=["a", "b"], not_after=9),
        card("issued", "hal", key=key("bob"), name="B" * 128, supersedes=Ref("card"), ext={"org.example": 1}),
        Move("revoked", "revocation", "bob", {"key": key("bob"), "reason": "It was lost.", "revoked_at": START}),
        Move(
            "moved",
            "revocation",
            "cyd",
            {"key": key("cyd"), "reason": "New key.", "revoked_at": 0, "successor": key("zoe")},
        ),
        Move("seen", "witness", "zoe", {"thread": Ref("open"), "seq": 2, "tip": Ref("end"), "seen_at": START + 9000}),
        Move("seen-early", "witness", "zoe", {"thread": Ref("open"), "seq": 0, "tip": Ref("open"), "seen_at": 0}),
    ],
    rules=["body.display"],
)
