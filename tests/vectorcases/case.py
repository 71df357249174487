"""A case: a script, what the verifier is given beside it, and what it must say. Written by hand, never copied."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from envelope.keys import did_key
from envelope.rules import BY_CODE
from tests.vectorcases.build import NOW, Move, Script, address, key
from tests.vectorcases.moves import Change

MAX_INTERMEDIATE = 1 << 16

AGENTS = ("ada", "bob", "cyd", "dan", "eve", "hal", "ivy")
PEOPLE = ("fay", "gus")
TRUST = dict.fromkeys(AGENTS, "agent") | dict.fromkeys(PEOPLE, "human")
"""Whom the verifier knows unless a case says otherwise. `mal` and `zoe` are strangers to it."""

At = str | int | None


@dataclass
class Case:
    """One vector before it is built. Labels stand for indices, codes for numbers."""

    id: str
    title: str
    script: Script
    rules: tuple[str, ...] = ()
    integrity: str = "valid"
    completeness: str = "sealed"
    outcome: str | None = "completed"
    trust_axis: str = "trusted"
    plan: str = "none"
    code: str | None = None
    at: At = None
    findings: list[tuple[str, At]] = field(default_factory=list)
    trust: dict[str, str] | None = field(default_factory=lambda: dict(TRUST))
    now: int = NOW
    thread: str | bytes | None = None
    tip: str | bytes | None = None
    proofs: list[Move] = field(default_factory=list)
    origin: str | None = None
    mutation: str | None = None
    trusted_keys: dict[bytes, str] = field(default_factory=dict)

    def render(self) -> dict[str, Any]:
        """Return the vector as plain data."""
        built = self.script.build()
        places = {record.label: index for index, record in enumerate(built)}
        addresses = {record.label: address(record.raw) for record in built}

        def index(at: At) -> int | None:
            return places[at] if isinstance(at, str) else at

        def text(value: str | bytes) -> str:
            return "b3:" + (addresses[value] if isinstance(value, str) else value).hex()

        given: dict[str, Any] = {
            "records": [record.raw.hex() for record in built],
            "trust": self._trust(),
            "now": self.now,
        }
        if self.thread is not None:
            given["thread"] = text(self.thread)
        if self.tip is not None:
            given["tip"] = text(self.tip)
        if self.proofs:
            given["proofs"] = [record.raw.hex() for record in Script(*self.script.copy().moves, *self.proofs).build()]
            given["proofs"] = given["proofs"][len(built) :]
        vector: dict[str, Any] = {
            "id": self.id,
            "title": self.title,
            "rules": sorted((BY_CODE[code].number for code in self.rules), key=lambda n: [*map(int, n.split("."))]),
            "input": given,
            "expect": {
                "integrity": self.integrity,
                "completeness": self.completeness,
                "outcome": self.outcome,
                "trust": self.trust_axis,
                "plan": self.plan,
                "code": self.code,
                "at": index(self.at),
                "findings": [{"code": code, "index": index(at)} for code, at in self.findings],
            },
        }
        if self.origin is not None:
            vector["derive"] = {"from": self.origin, "mutation": self.mutation}
        last = index(self.at) if self.at is not None else len(built) - 1
        if built and (signed := built[last or 0].signed) is not None and len(signed) <= MAX_INTERMEDIATE:
            raw = built[last or 0].raw
            vector["intermediates"] = {"sig_structure": signed.hex(), "address": "b3:" + address(raw).hex()}
        return vector

    def _trust(self) -> list[dict[str, str]] | None:
        if self.trust is None:
            return None
        known = [(key(name), name.capitalize(), role) for name, role in self.trust.items()]
        known += [(public, "Mixed", role) for public, role in self.trusted_keys.items()]
        return [{"key": did_key(public), "name": name, "role": role} for public, name, role in known]


CASES: dict[str, Case] = {}


def positive(
    case_id: str,
    title: str,
    *moves: Move,
    rules: Iterable[str] = (),
    findings: Iterable[tuple[str, At]] = (),
    **more: Any,
) -> None:
    """Add a case of a thread that is in order: sealed, completed and trusted unless said otherwise."""
    _add(Case(case_id, title, Script(*moves), tuple(rules), findings=list(findings), **more))


def negative(
    code: str,
    case: str,
    origin: str,
    mutation: str,
    *changes: Change,
    at: At,
    title: str | None = None,
    notes: Iterable[tuple[str, At]] = (),
    later: Iterable[tuple[str, At]] = (),
    **more: Any,
) -> None:
    """Add a case that breaks the rule with this code, made from a positive one.

    Args:
        code: the code of the rule, and of the verdict.
        case: what follows the code in the id.
        origin: the id of the positive case.
        mutation: what was changed, as a sentence.
        changes: the change.
        at: the label, or the index, of the record that is refused.
        title: a sentence for people; the mutation where it is not given.
        notes: other findings, of the records before.
        later: records behind the refused one that do not stand by themselves either.
        more: axes that are not invalid, open, none, trusted, and other inputs.
    """
    script = CASES[origin].script.copy()
    for change in changes:
        change(script)
    first = (script.place(at) if isinstance(at, str) else at) == 0
    axes: dict[str, Any] = {
        "integrity": "unverifiable" if BY_CODE[code].effect == "unverifiable" else "invalid",
        "completeness": "open",
        "outcome": None,
        "trust_axis": "unknown" if first else "trusted",
    }
    _add(
        Case(
            f"{code}.{case}".replace("_", "-"),
            title or mutation,
            script,
            (code,),
            code=code,
            at=at,
            findings=[(code, at), *later, *notes],
            origin=origin,
            mutation=mutation,
            **_inputs(origin) | axes | more,
        )
    )


def shown(
    code: str,
    case: str,
    origin: str,
    mutation: str,
    *changes: Change,
    findings: Iterable[tuple[str, At]],
    title: str | None = None,
    **more: Any,
) -> None:
    """Add a case that stays valid, made from a positive one, with the finding that a change brings about."""
    script = CASES[origin].script.copy()
    for change in changes:
        change(script)
    base = CASES[origin]
    axes = {
        "completeness": base.completeness,
        "outcome": base.outcome,
        "trust_axis": base.trust_axis,
        "plan": base.plan,
    }
    _add(
        Case(
            f"{code}.{case}".replace("_", "-"),
            title or mutation,
            script,
            (code,),
            findings=list(findings),
            origin=origin,
            mutation=mutation,
            **_inputs(origin) | axes | more,
        )
    )


def _inputs(origin: str) -> dict[str, Any]:
    base = CASES[origin]
    assert base.origin is None, f"{origin} is not a positive case"
    return {name: getattr(base, name) for name in ("trust", "now", "thread", "tip", "proofs", "trusted_keys")}


def _add(case: Case) -> None:
    assert case.id not in CASES, f"{case.id} stands twice"
    CASES[case.id] = case
