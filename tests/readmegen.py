"""The README's picture of a verified thread: `python -m tests.readmegen [--check]` draws it anew from fixed keys."""

import sys
from pathlib import Path

from envelope import Identity, ThreadWriter, TrustedKey, TrustStore, verify_thread
from envelope.audit import Verifier
from envelope.show import Timeline, render_verdict

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- picture:begin -->\n", "<!-- picture:end -->\n"
TIME = 1_767_261_600_000


def picture() -> str:
    """Return the output of `envelope show` for a small thread, as a code block."""
    releaser, reviewer, ada = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
    roster = [
        {"key": releaser.public_key, "role": "moderator", "name": "releaser"},
        {"key": reviewer.public_key, "role": "member", "name": "reviewer"},
        {"key": ada.public_key, "role": "approver", "name": "ada"},
    ]
    clock = iter(range(TIME, TIME + 1_000_000, 7_000))
    writer = ThreadWriter.open(releaser, "release-1.4", roster, nonce=bytes(16), sent_at=next(clock))
    review = writer.message(
        releaser, "review", "Check release 1.4.", to=[reviewer.public_key], step=("review",), sent_at=next(clock)
    )
    ack = writer.ack(reviewer, review, "Check some release.", sent_at=next(clock))
    ruling = writer.ruling(releaser, ack, "Release 1.4, not any.", sent_at=next(clock))
    ack = writer.ack(reviewer, review, "I checked release 1.4.", after=ruling.address, sent_at=next(clock))
    writer.ruling(releaser, ack, sent_at=next(clock))
    ship = writer.message(
        releaser,
        "ship",
        "Ship release 1.4 today.",
        to=[reviewer.public_key],
        step=("ship",),
        settled=[{"message": review.address, "outcome": "succeeded", "status": "reviewed"}],
        sent_at=next(clock),
    )
    asked = writer.message(
        releaser,
        "ship#escalate",
        "The reviewer is away. May it ship?",
        intent="escalate",
        to=[ada.public_key],
        reply_to=ship.address,
        sent_at=next(clock),
    )
    writer.ruling(releaser, writer.ack(ada, asked, "It may ship today.", sent_at=next(clock)), sent_at=next(clock))
    settled = [
        {"message": asked.address, "outcome": "succeeded"},
        {"message": ship.address, "outcome": "approved", "by": asked.address, "status": "released"},
    ]
    writer.seal(releaser, "completed", status="released", settled=settled, sent_at=next(clock))
    trust = TrustStore(
        {
            releaser.public_key: TrustedKey("releaser", "agent"),
            reviewer.public_key: TrustedKey("reviewer", "agent"),
            ada.public_key: TrustedKey("Ada Lovelace", "human"),
        }
    )
    timeline = Timeline(trust)
    verifier = Verifier(trust=trust, now=TIME, observe=timeline.observe)
    for raw in writer.records:
        verifier.feed(raw)
    verdict = verifier.finish()
    assert verdict == verify_thread(writer.records, trust=trust, now=TIME)
    lines = [*render_verdict("release.thread", verdict), "", *timeline.render()]
    return "```text\n" + "".join(f"{str(line).rstrip()}\n" for line in lines) + "```\n"


def drawn(text: str) -> str:
    """Return a README with its picture drawn anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + picture() + END + rest.split(END)[1]


def main() -> None:
    text = README.read_text("utf-8")
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if drawn(text) == text else "README.md: the picture is not what the code shows")
    README.write_text(drawn(text), "utf-8")


if __name__ == "__main__":
    main()
