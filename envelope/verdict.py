"""What a verification found: five axes, never one boolean, and findings that say where and what to do."""

from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, get_args

from envelope.cose import address_text
from envelope.errors import EnvelopeError
from envelope.keys import PublicKey, did_key
from envelope.records import Outcome

Integrity = Literal["valid", "invalid", "unverifiable"]
Completeness = Literal["sealed", "open", "truncated"]
Trust = Literal["trusted", "unknown"]
PlanState = Literal["none", "unchecked"]

_WORDS: Final = (
    *get_args(Integrity), *get_args(Completeness), *get_args(Outcome), *get_args(Trust),
)  # fmt: skip
"""What `ThreadVerdict.require` knows."""

_ADVICE: Final = {
    "size": "Ask the sender for the file again; this is no thread file, or a broken one.",
    "cbor": "Ask the sender for the file again; these bytes were cut or changed after signing.",
    "cose": "Ask the sender for the file again; these bytes were never a signed envelope of this protocol.",
    "header": "Do not rely on this record; it was made by other software, or changed.",
    "key": "Do not rely on this record; nobody can be held to this key.",
    "signature": "Do not rely on this record; its bytes are not those that were signed.",
    "body": "Do not rely on this record; its signer's software breaks the protocol.",
    "chain": "Ask another party for their copy of the thread and verify that.",
    "roster": "Do not rely on this record or any after it; its signer had no say here.",
    "receipts": "Ask another party for their copy; receipts were added, dropped or moved, or break the rounds.",
    "settle": "Do not rely on this record; it claims what the acknowledgements before it do not show.",
    "trust": "Find out by another way whose key this is, then add it to the trust file.",
    "plan": "This version cannot check plan documents; nothing shows that the plan was followed.",
}
_ADVICE_BY_CODE: Final = {
    "body.kind": "Verify with a later version of the software.",
    "body.version": "Verify with a later version of the software.",
    "trust.none": "Give a trust file that names the keys you trust.",
    "trust.human": "If you know this key to be a person's, say human in the trust file.",
    "trust.role": "If you know this key to be an agent's or a person's, say so in the trust file.",
    "tip.missing": "Ask for the rest of the thread.",
    "message.approved": "Decide whether this approval is enough for you.",
    "message.declined": "Read the decline before you rely on the thread.",
    "seal.open_request": "Ask that member why the request was left open.",
    "seal.open_challenge": "Read the challenge before you rely on what it disputes.",
    "time.backwards": "Do not read times as an order; only the chain is one.",
    "time.future": "Do not rely on this time; a clock is wrong.",
}


EXIT_CODES: Final = """Exit codes: 0 verified, completed and trusted; 1 invalid or unverifiable; 2 usage, or unreadable;
3 incomplete; 4 a signer is not trusted; 5 verified, but sealed with another outcome or with an open request of another
member. Of several, the first of 2, 1, 4, 3, 5."""
"""What a command that verifies ends with, as its help says."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: a stable code and its rule, the record's index, byte offset and address, and a sentence.

    `stage` is the one that found it; `effect` what it does to the verdict (`note` does nothing).
    """

    code: str
    rule: str
    stage: str
    effect: str
    index: int | None
    offset: int | None
    address: bytes | None
    text: str

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _ADVICE_BY_CODE.get(self.code) or _ADVICE[self.stage]

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "code": self.code,
            "rule": self.rule,
            "stage": self.stage,
            "effect": self.effect,
            "index": self.index,
            "offset": self.offset,
            "address": address_text(self.address) if self.address else None,
            "text": self.text,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that signed chain records or committed receipts, as the verifier knows it and as the thread calls it."""

    key: PublicKey
    trust: Trust
    name: str | None
    role: str | None
    claimed_name: str

    def as_json(self) -> dict[str, Any]:
        """Return the signer as plain data."""
        return {
            "key": did_key(self.key),
            "trust": self.trust,
            "name": self.name,
            "role": self.role,
            "claimed_name": self.claimed_name,
        }


@dataclass(frozen=True, slots=True)
class ThreadVerdict:
    """What a verification of one thread found.

    Attributes:
        integrity: whether every byte and every rule holds (`unverifiable`: made by a later version).
        completeness: whether the thread ends in its seal; of an invalid thread, whether its valid part does.
        outcome: the seal's, or None.
        trust: the worst over the signers.
        plan: whether a plan is named; its document is not checked in this version.
        code: the code of the first failing record, or None.
        thread: the thread's address; name: what its open calls it; tip: the address of its last valid chain record.
        records: how many were read; pending: how many receipts stand at the end, shown but not counted.
        messages, acknowledged, approved, declined, ungated: messages sent, acknowledged by every recipient, approved
            by people instead, declined by somebody; steps settled without a message.
        findings: failures first, then the rest; `omitted` counts those left out beyond the first 64 of a code.
        signers: the keys that signed, in order of appearance.
    """

    integrity: Integrity
    completeness: Completeness
    outcome: str | None
    trust: Trust
    plan: PlanState
    code: str | None
    thread: bytes | None
    name: str | None
    tip: bytes | None
    records: int
    pending: int
    messages: int
    acknowledged: int
    approved: int
    declined: int
    ungated: int
    findings: tuple[Finding, ...]
    omitted: int
    signers: tuple[Signer, ...]

    @property
    def exit_code(self) -> int:
        """0 verified, completed, trusted; 1 invalid or unverifiable; 4 trust; 3 incomplete; 5 another outcome."""
        if self.integrity != "valid":
            return 1
        if self.trust != "trusted":
            return 4
        if self.completeness != "sealed":
            return 3
        return 0 if self.outcome == "completed" and not self._open_request else 5

    @property
    def _open_request(self) -> bool:
        return any(finding.effect == "outcome" for finding in self.findings)

    def __bool__(self) -> NoReturn:
        """Refuse: a verdict that passed for a truth value would pass for every thread (TypeError)."""
        raise TypeError("a verdict is no truth value: ask verdict.require(...) or look at verdict.exit_code")

    def require(self, *wanted: str) -> None:
        """Return if the thread is valid and each wanted word is the value of one of the verdict's axes.

        Args:
            wanted: of `valid`, `sealed`, `completed` (or another outcome), `trusted`. `completed` also demands that no
                request of another member was left open.

        Raises:
            EnvelopeError: `verdict.unmet`, naming what is not so.
        """
        values = {self.integrity, self.completeness, self.outcome or "", self.trust}
        if unknown := [word for word in wanted if word not in _WORDS]:
            raise EnvelopeError("verdict.unmet", f"{unknown[0]!r} is no word for a verdict: one of {', '.join(_WORDS)}")
        unmet = [word for word in ("valid", *wanted) if word not in values]
        if "completed" in wanted and self._open_request:
            unmet.append("completed without an open request of another member")
        if unmet:
            raise EnvelopeError("verdict.unmet", f"the thread is not {', not '.join(unmet)}: {self}")

    def __str__(self) -> str:
        plan = f", plan {self.plan}" if self.plan != "none" else ""
        code = f" ({self.code})" if self.code else ""
        return (
            f"{self.integrity}{code}, {self.completeness}, outcome {self.outcome or 'none'}, trust {self.trust}{plan}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as plain data, as `envelope verify --json` prints it."""
        return {
            "integrity": self.integrity,
            "completeness": self.completeness,
            "outcome": self.outcome,
            "trust": self.trust,
            "plan": self.plan,
            "code": self.code,
            "exit_code": self.exit_code,
            "thread": address_text(self.thread) if self.thread else None,
            "name": self.name,
            "tip": address_text(self.tip) if self.tip else None,
            "records": self.records,
            "pending": self.pending,
            "messages": self.messages,
            "acknowledged": self.acknowledged,
            "approved": self.approved,
            "declined": self.declined,
            "ungated": self.ungated,
            "findings": [finding.as_json() for finding in self.findings],
            "omitted": self.omitted,
            "signers": [signer.as_json() for signer in self.signers],
        }
