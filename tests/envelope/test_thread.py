"""The state machine of a thread, held against a model made of plain dicts.

The model keeps what happened and works everything out anew whenever it is asked; the code under test keeps counters
and forgets. A random walk compares the two after every step, and looks at the whole state around every refusal.
"""

import gc
import random
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from envelope import (
    Ack,
    CardBody,
    Envelope,
    EnvelopeError,
    Identity,
    Message,
    Open,
    Ruling,
    Settle,
    Thread,
    ThreadWriter,
    TrustedKey,
    TrustStore,
    address,
    address_text,
    open_envelope,
    sign_record,
    verify_file,
    verify_thread,
)
from envelope.digests import DigestTable
from envelope.rules import BY_CODE
from envelope.threadfile import write_records

START = 1_760_000_000_000
NAMES = ("ada", "bob", "cy", "dee", "pat", "pam", "obs", "eve")
PEOPLE = {name: Identity.from_seed(name.encode().ljust(32, b".")) for name in NAMES}
KEY = {name: identity.public_key for name, identity in PEOPLE.items()}
WHO = {key: name for name, key in KEY.items()}
OWNER = "ada"
ROLES = ("moderator", "member", "approver", "observer")
APPEND = ("moderator", "member")
ABLE = ("moderator", "member", "approver")
PATHS = (("build",), ("build", "test"), ("build", "test#2"), ("ship",))
NOWHERE = address(b"nowhere")
DEFECTS = ("thread", "prev", "seq", "fork", "dropped", "added", "moved")
SEEDS = st.integers(0, 2**64 - 1)


def picture(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Return all that can be reached from `value` as nested tuples; what was met before by its number."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, int | str | bytes):
        return value
    if isinstance(value, DigestTable):
        return bytes(value._rows)  # its index follows from them
    if isinstance(value, array):
        return value.tobytes()
    if isinstance(value, Envelope):
        return ("envelope", value.address)
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        items = tuple((picture(key, seen), picture(item, seen)) for key, item in value.items())
        return (items, picture(vars(value), seen)) if hasattr(value, "__dict__") else items
    if isinstance(value, list | tuple):
        return tuple(picture(item, seen) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(picture(item, seen) for item in value)
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    fields = {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}
    return (type(value).__name__, *((name, picture(item, seen)) for name, item in sorted(fields.items())))


# -------------------------------------------------------------------------------------------------------- the model


class Model:
    """What happened in a thread, and what follows from it, as `spec/protocol.md` says."""

    def __init__(self, roles: dict[str, str], limits: dict[str, int], room: str | None) -> None:
        self.roles = dict(roles)
        self.since = dict.fromkeys(roles, 0)
        self.called = {name: name for name in roles}
        self.limits = limits
        self.room = room
        self.chain: list[bytes] = []
        self.messages: dict[bytes, dict[str, Any]] = {}
        self.acks: dict[bytes, dict[str, Any]] = {}
        self.standing: list[bytes] = []
        self.committed: set[bytes] = set()
        self.steps: list[tuple[str, ...]] = []
        self.outcome: str | None = None
        self.times: list[int] = []

    # What follows from what happened

    def rounds(self, message: bytes, who: str) -> list[dict[str, Any]]:
        return [ack for ack in self.acks.values() if ack["message"] == message and ack["by"] == who]

    def agreed(self, message: bytes, who: str, *, committed: bool = False) -> bool:
        for ack in self.rounds(message, who)[-1:]:
            counts = not committed or {ack["address"], ack["ruling"]} <= self.committed
            return ack["answer"] == "accept" and ack["ruled"] == "confirm" and counts
        return False

    def all_agreed(self, message: bytes, *, committed: bool = False) -> bool:
        return all(self.agreed(message, who, committed=committed) for who in self.messages[message]["to"])

    def escalation(self, message: bytes) -> bytes | None:
        for at, other in self.messages.items():
            if other["intent"] == "escalate" and other["reply_to"] == message:
                return at
        return None

    def cleared(self, message: bytes) -> bool:
        escalation = self.escalation(message)
        return self.all_agreed(message) or (escalation is not None and self.all_agreed(escalation))

    def retracted(self, message: bytes) -> bool:
        return any(m["intent"] == "retract" and m["reply_to"] == message for m in self.messages.values())

    def live(self, message: bytes) -> bool:
        return self.messages[message]["settled"] is None and not self.retracted(message)

    def declined(self, message: bytes | None, *, committed: bool = False) -> list[bytes]:
        return [
            ack["address"]
            for ack in self.acks.values()
            if ack["message"] == message
            and ack["answer"] == "decline"
            and (not committed or ack["address"] in self.committed)
        ]

    def target(self, message: bytes) -> bytes:
        found = self.messages[message]
        return found["reply_to"] if found["intent"] == "escalate" else message

    def paths(self) -> list[tuple[str, ...]]:
        return [*self.steps, *(m["step"] for m in self.messages.values() if m["step"])]

    def gating(self, *, owners: bool) -> list[bytes]:
        return [
            at
            for at, m in self.messages.items()
            if m["needs"] and m["intent"] != "escalate" and (m["by"] == OWNER) == owners
        ]

    def unanswered(self) -> list[bytes]:
        found = []
        order = list(self.messages)
        for at, challenge in self.messages.items():
            if challenge["intent"] != "challenge" or self.retracted(at):
                continue
            author = self.messages[challenge["reply_to"]]["by"]
            later = [self.messages[other] for other in order[order.index(at) + 1 :]]
            if not any(
                m["by"] == author
                and (m["reply_to"] == at or (m["intent"] == "retract" and m["reply_to"] == challenge["reply_to"]))
                for m in later
            ):
                found.append(at)
        return found

    def counts(self) -> dict[str, int]:
        own = [at for at, m in self.messages.items() if m["to"] and m["intent"] != "escalate"]
        said_no = {self.target(ack["message"]) for ack in self.acks.values() if ack["address"] in self.committed
                   and ack["answer"] == "decline"}  # fmt: skip
        return {
            "messages": len(self.messages),
            "acknowledged": sum(self.all_agreed(at, committed=True) for at in own),
            "approved": sum(m["settled"] == "approved" for m in self.messages.values()),
            "declined": len(said_no),
            "ungated": len(self.steps),
        }

    def notes(self) -> Counter[tuple[str, bytes]]:
        found: Counter[tuple[str, bytes]] = Counter()
        for at, m in self.messages.items():
            found["message.declined", self.target(at)] += len(self.declined(at, committed=True))
            found["message.approved", at] += m["settled"] == "approved"
        for number, (before, now) in enumerate(zip(self.times, self.times[1:], strict=False), start=1):
            found["time.backwards", self.chain[number]] += now + 300_000 < before
        if self.outcome == "completed":
            for at in self.gating(owners=False):
                done = self.retracted(at) or self.messages[at]["cleared"]
                found["seal.open_request", at] += not done
            for at in self.unanswered():
                found["seal.open_challenge", at] += 1
        return +found

    # Who may do what: the code of the rule that is broken first, or None

    def _signer(self, by: str, roles: tuple[str, ...]) -> str | None:
        if by not in self.roles:
            return "roster.stranger"
        return None if self.roles[by] in roles else "roster.role"

    def _entries(self, by: str, entries: list[dict[str, Any]], done: dict[Any, str]) -> str | None:
        for entry in entries:
            if "step" in entry:
                if entry["step"] in self.paths() or entry["step"] in done:
                    return "step.repeated"
                done[entry["step"]] = entry["outcome"]
                continue
            at, outcome = entry["message"], entry["outcome"]
            message = self.messages.get(at)
            if message is None:
                return "settle.unknown"
            if message["by"] != by:
                return "settle.author"
            if message["settled"] or at in done:
                return "settle.repeated"
            if self.retracted(at) and outcome != "failed":
                return "settle.retracted"
            if outcome == "succeeded" and message["needs"] and not self.all_agreed(at):
                return "settle.unacknowledged"
            if outcome == "approved":
                escalation = self.escalation(at)
                if escalation is None or escalation != entry["by"] or not self.all_agreed(escalation):
                    return "settle.approved"
                if "failed" in (self.messages[escalation]["settled"], done.get(escalation)):
                    return "settle.approved"
            done[at] = outcome
        return None

    def judge_message(self, by: str, m: dict[str, Any], entries: list[dict[str, Any]]) -> str | None:
        if self.outcome:
            return "chain.sealed"
        if m["id"] in [other["id"] for other in self.messages.values()]:
            return "message.id"
        if m["room"] != self.room:
            return "message.room"
        if m["reply_to"] is not None and m["reply_to"] not in self.messages:
            return "message.reply_to"
        if code := self._signer(by, APPEND):
            return code
        for who in sorted(m["to"], key=KEY.__getitem__):
            if who not in self.roles or who == by:
                return "roster.to"
            if m["needs"] and self.roles[who] not in ABLE:
                return "roster.unable"
        if by != OWNER and (m["step"] or any("step" in entry for entry in entries)):
            return "step.owner"
        done: dict[Any, str] = {}
        if code := self._entries(by, entries, done):
            return code
        if m["step"] and (m["step"] in self.paths() or m["step"] in done):
            return "step.repeated"
        if m["intent"] == "retract" and (code := self._retraction(by, m["reply_to"], done)):
            return code
        if m["intent"] == "escalate":
            return self._escalation(by, m, done)
        if by == OWNER:
            spent = [o["bytes"] for o in self.messages.values() if o["by"] == OWNER and o["intent"] != "escalate"]
            if sum(spent) + m["bytes"] > self.limits.get("bytes", 1 << 60):
                return "limit.bytes"
            if len(spent) + 1 > self.limits.get("messages", 1 << 60):
                return "limit.messages"
        return None

    def _retraction(self, by: str, at: bytes, done: dict[Any, str]) -> str | None:
        target = self.messages[at]
        if target["by"] != by:
            return "retract.author"
        if target["settled"] or at in done:
            return "retract.settled"
        if target["step"] or target["intent"] in ("escalate", "retract") or self.retracted(at):
            return "retract.target"
        if self.declined(at) or self.declined(self.escalation(at)):
            return "retract.declined"
        return None

    def _escalation(self, by: str, m: dict[str, Any], done: dict[Any, str]) -> str | None:
        at = m["reply_to"]
        target = self.messages[at]
        if target["by"] != by:
            return "escalate.author"
        if not target["needs"] or target["intent"] == "escalate":
            return "escalate.target"
        if not self.live(at) or at in done:
            return "escalate.late"
        if self.escalation(at) is not None:
            return "escalate.repeated"
        for who in sorted(m["to"], key=KEY.__getitem__):
            if self.roles[who] != "approver" or self.since[who] >= target["seq"]:
                return "escalate.approver"
            if who in target["to"]:
                return "escalate.recipient"
        return None

    def judge_ack(self, by: str, at: bytes, after: bytes | None) -> str | None:
        if self.outcome:
            return "chain.sealed"
        if at not in self.messages:
            return "ack.message"
        if code := self._signer(by, ABLE):
            return code
        to = self.messages[at]["to"]
        if not to or (self.live(at) and by not in to):
            return "ack.recipient"
        if not self.live(at):
            return "ack.settled"
        before = self.rounds(at, by)
        if any(ack["answer"] == "decline" for ack in before):
            return "ack.declined"
        if before and (before[-1]["ruled"] != "correct" or after != before[-1]["ruling"]):
            return "ack.after"
        if not before and after is not None:
            return "ack.after"
        return "ack.rounds" if len(before) >= 16 else None

    def judge_ruling(self, by: str, at: bytes) -> str | None:
        if self.outcome:
            return "chain.sealed"
        if at not in self.acks or not self.live(self.acks[at]["message"]):
            return "ruling.ack"
        if code := self._signer(by, APPEND):
            return code
        ack = self.acks[at]
        if self.messages[ack["message"]]["by"] != by:
            return "ruling.author"
        if ack["answer"] == "decline":
            return "ruling.declined"
        return "ruling.repeated" if ack["ruled"] else None

    def judge_roster(self, by: str, change: dict[str, Any], entries: list[dict[str, Any]]) -> str | None:
        if self.outcome:
            return "chain.sealed"
        what, who = change["change"], change["who"]
        if code := self._signer(by, ROLES if what == "leave" else ("moderator",)):
            return code
        if entries and self.roles[by] not in APPEND:
            return "roster.role"
        role = self.roles.get(who)
        if what == "admit" and role:
            return "roster.present"
        if what == "leave" and who != by:
            return "roster.leave"
        if what in ("role", "remove") and not role:
            return "roster.absent"
        if what == "role" and role == change["role"]:
            return "roster.same_role"
        if what == "admit" and self.called.get(change["name"], who) != who:
            return "roster.name"
        if what != "admit" and role == "moderator" and list(self.roles.values()).count("moderator") == 1:
            return "roster.moderator"
        if by != OWNER and any("step" in entry for entry in entries):
            return "step.owner"
        return self._entries(by, entries, {})

    def judge_settle(self, by: str, entries: list[dict[str, Any]]) -> str | None:
        if not entries and not self.standing:
            return "body.fields"
        if self.outcome:
            return "chain.sealed"
        if code := self._signer(by, APPEND):
            return code
        if by != OWNER and any("step" in entry for entry in entries):
            return "step.owner"
        return self._entries(by, entries, {})

    def judge_seal(self, by: str, outcome: str, entries: list[dict[str, Any]]) -> str | None:
        if self.outcome:
            return "chain.sealed"
        if code := self._signer(by, ("moderator",)):
            return code
        if by != OWNER and any("step" in entry for entry in entries):
            return "step.owner"
        done: dict[Any, str] = {}
        if code := self._entries(by, entries, done):
            return code
        if outcome == "completed":
            for at in self.gating(owners=True):
                settled = self.cleared(at) if at in done else self.messages[at]["cleared"]
                if not settled and not self.retracted(at):
                    return "seal.unacknowledged"
        return None

    # What happens

    def take(self, at: bytes, sent_at: int, entries: list[dict[str, Any]]) -> None:
        """A chain record: its receipts, then what it settles."""
        self.chain.append(at)
        self.times.append(sent_at)
        self.committed.update(self.standing)
        self.standing.clear()
        for entry in entries:
            if "step" in entry:
                self.steps.append(entry["step"])
            else:
                message = self.messages[entry["message"]]
                message["settled"] = entry["outcome"]
                message["cleared"] = self.cleared(entry["message"])


# --------------------------------------------------------------------------------------------------- the random walk


class Walk(RuleBasedStateMachine):
    """Random people do random things, most of them allowed."""

    met: ClassVar[Counter[str]] = Counter()

    @initialize(
        roles=st.fixed_dictionaries(
            {"bob": st.sampled_from(ROLES), "cy": st.sampled_from(APPEND), "pat": st.just("approver")},
            optional={"dee": st.sampled_from(APPEND), "pam": st.just("approver"), "obs": st.just("observer")},
        ),
        limits=st.fixed_dictionaries({}, optional={"bytes": st.integers(60, 900), "messages": st.integers(1, 20)}),
        room=st.sampled_from((None, None, "room-1")),
    )
    def begin(self, roles: dict[str, str], limits: dict[str, int], room: str | None) -> None:
        roles = {OWNER: "moderator", **roles}
        members = [{"key": KEY[name], "role": role, "name": name} for name, role in roles.items()]
        self.clock, self.turns = START, 0
        self.model = Model(roles, limits, room)
        self.writer = ThreadWriter.open(
            PEOPLE[OWNER], "walk", members, nonce=bytes(16), sent_at=START, room=room, limits=limits or None
        )
        self.model.take(self.writer.opening.address, START, [])
        self.known: list[Envelope[Any]] = [self.writer.opening]
        self.picture = picture(self.writer.thread)

    # Choices

    def _chance(self, seed: int) -> random.Random:
        """Return a source of choices that differ although the seeds that shrinking likes do not."""
        self.turns += 1
        return random.Random(f"{seed} {self.turns}")

    def _time(self, chance: random.Random) -> int:
        self.clock += 1
        return self.clock + chance.choice((0, 0, 0, 0, 0, 400_000))

    def _choose(self, chance: random.Random, right: list[Any], others: list[Any]) -> Any:
        """Draw one of `right`, or now and then any of `others`."""
        return chance.choice(others if not right or chance.randrange(10) == 0 else right)

    def _entries(self, chance: random.Random, by: str, most: int = 2) -> list[dict[str, Any]]:
        model, entries = self.model, []
        for _ in range(chance.randrange(most + 1)):
            if chance.randrange(5) == 0:
                path = self._choose(chance, [p for p in PATHS if p not in model.paths()], list(PATHS))
                outcome = chance.choice(("succeeded", "failed", "skipped"))
                entries.append({"step": path, "outcome": outcome})
                continue
            own = [at for at, m in model.messages.items() if m["by"] == by and not m["settled"]]
            if not own and chance.randrange(6):
                continue
            at = self._choose(chance, own, [*model.messages, NOWHERE])
            right = ["failed"]
            if at in own and model.all_agreed(at):
                right = ["succeeded", "succeeded", "failed"]
            elif at in own and (escalation := model.escalation(at)) and model.all_agreed(escalation):
                right = ["approved", "approved", "failed"]
            outcome = self._choose(chance, right, ["succeeded", "failed", "approved"])
            entry = {"message": at, "outcome": outcome}
            if outcome == "approved":
                escalations = [a for a, m in model.messages.items() if m["intent"] == "escalate"]
                proper = [e for e in (model.escalation(at),) if e]
                entry["by"] = self._choose(chance, proper, [*escalations, NOWHERE])
            entries.append(entry)
        return entries

    # One attempt

    def _attempt(
        self, expected: str | None, call: Callable[[], Envelope[Any]], happens: Callable[[Envelope[Any]], None]
    ) -> None:
        records = list(self.writer.records)
        try:
            envelope = call()
        except EnvelopeError as error:
            assert error.code == expected, error  # noqa: PT017
            assert picture(self.writer.thread) == self.picture, "a refused record left a trace"
            assert self.writer.records == records
            self.met[error.code] += 1
            return
        assert expected is None, f"{expected} was not noticed"
        happens(envelope)
        self.known.append(envelope)
        self.met[envelope.kind] += 1
        self.picture = picture(self.writer.thread)

    @rule(seed=SEEDS)
    def message(self, seed: int) -> None:
        chance = self._chance(seed)
        model = self.model
        present = [name for name, role in model.roles.items() if role in APPEND]
        by = self._choose(chance, [OWNER, *present], list(NAMES))
        messages = list(model.messages)
        own = [at for at, m in model.messages.items() if m["by"] == by and model.live(at)]
        intents = ["request", "request", "request", "assert", "query"]
        intents += ["challenge"] * bool(messages) + ["retract", "escalate", "escalate"] * bool(own)
        intent = self._choose(chance, intents, [*intents, "challenge", "retract", "escalate"])
        reply_to = None
        if intent in ("retract", "escalate"):
            reply_to = self._choose(chance, own, [*messages, NOWHERE, model.chain[0]])
        elif intent == "challenge" or chance.randrange(4) == 0:
            reply_to = self._choose(chance, messages, [*messages, NOWHERE, model.chain[0]])
        needs = intent in ("request", "escalate") or (intent != "retract" and chance.randrange(8) == 0)
        able = [who for who, role in model.roles.items() if role in ABLE and who != by]
        if intent == "escalate":
            mine = model.messages.get(reply_to or b"", {"to": (), "seq": 0})
            able = [w for w, r in model.roles.items() if r == "approver" and w not in mine["to"]]
        to: tuple[str, ...] = ()
        if needs or chance.randrange(4) == 0:
            first = self._choose(chance, able, list(NAMES))
            more = [self._choose(chance, able, list(NAMES)) for _ in range(chance.randrange(2))]
            to = tuple(sorted({first, *more}))
        step = None
        if needs and intent != "escalate" and chance.randrange(4) == 0:
            step = self._choose(chance, [p for p in PATHS if p not in model.paths()], list(PATHS))
        payload = "x" * chance.choice((1, 20, 60))
        room = self._choose(chance, [model.room], [None, "room-1", "room-2"])
        entries = self._entries(chance, by, most=1)
        used = sorted({m["id"] for m in model.messages.values()})
        number = self._choose(chance, [f"m{len(self.known)}"], used or ["m0"])
        said = {
            "by": by, "id": number, "intent": intent, "to": to, "needs": needs, "reply_to": reply_to, "step": step,
            "room": room, "bytes": len(payload), "seq": len(model.chain), "settled": None, "cleared": False,
        }  # fmt: skip
        sent_at = self._time(chance)

        def happens(envelope: Envelope[Any]) -> None:
            model.take(envelope.address, sent_at, entries)
            model.messages[envelope.address] = said

        self._attempt(
            model.judge_message(by, said, entries),
            lambda: self.writer.message(
                PEOPLE[by], number, payload, to=[KEY[who] for who in to], intent=intent, reply_to=reply_to, step=step,
                room=room, settled=entries or None, sent_at=sent_at, ack_required=True if needs else None,
            ),
            happens,
        )  # fmt: skip

    @precondition(lambda self: self.model.messages)
    @rule(seed=SEEDS)
    def receipts(self, seed: int) -> None:
        chance = self._chance(seed)
        for _ in range(chance.randrange(1, 6)):
            if self.model.acks and chance.randrange(2):
                self._ruling(chance)
            else:
                self._ack(chance)

    def _ack(self, chance: random.Random) -> None:
        model = self.model
        due = [
            at
            for at, m in model.messages.items()
            if model.live(at) and any(model.judge_ack(who, at, self._after(at, who)) is None for who in m["to"])
        ]
        if not due and chance.randrange(4):
            return
        at = self._choose(chance, due, [*model.messages, NOWHERE, model.chain[0]])
        to = model.messages[at]["to"] if at in model.messages else ()
        right = [who for who in to if model.judge_ack(who, at, self._after(at, who)) is None]
        by = self._choose(chance, right, [*NAMES, *to])
        corrections = [ack["ruling"] for ack in model.acks.values() if ack["ruled"] == "correct"]
        after = self._choose(chance, [self._after(at, by)], [None, NOWHERE, *corrections])
        answer = self._choose(chance, ["accept"] * 7 + ["decline"], ["accept"])
        sent_at = self._time(chance)
        expected = model.judge_ack(by, at, after)

        def happens(envelope: Envelope[Any]) -> None:
            model.standing.append(envelope.address)
            model.acks[envelope.address] = {
                "address": envelope.address, "message": at, "by": by, "answer": answer, "ruled": None, "ruling": None,
            }  # fmt: skip

        def call() -> Envelope[Any]:
            fields = {"thread": self.writer.thread.address, "message": at, "restatement": "So be it.", "after": after}
            return self.writer.append(sign_record(Ack, PEOPLE[by], answer=answer, sent_at=sent_at, **fields))

        self._attempt(expected, call, happens)

    def _after(self, at: bytes, who: str) -> bytes | None:
        for ack in self.model.rounds(at, who)[-1:]:
            return ack["ruling"] if ack["ruled"] == "correct" else None
        return None

    def _ruling(self, chance: random.Random) -> None:
        model = self.model
        due = [a for a, ack in model.acks.items() if model.judge_ruling(self._author(ack), a) is None]
        if not due and chance.randrange(4):
            return
        at = self._choose(chance, due, [*model.acks, NOWHERE])
        right = [self._author(model.acks[at])] if at in model.acks else []
        by = self._choose(chance, right, list(NAMES))
        what = chance.choice(("confirm", "confirm", "confirm", "correct"))
        sent_at = self._time(chance)

        def happens(envelope: Envelope[Any]) -> None:
            model.standing.append(envelope.address)
            model.acks[at].update(ruled=what, ruling=envelope.address)

        def call() -> Envelope[Any]:
            fields = {"ruling": what, "correction": "Not so." if what == "correct" else None, "sent_at": sent_at}
            thread = self.writer.thread.address
            return self.writer.append(sign_record(Ruling, PEOPLE[by], thread=thread, ack=at, **fields))

        self._attempt(model.judge_ruling(by, at), call, happens)

    def _author(self, ack: dict[str, Any]) -> str:
        return str(self.model.messages[ack["message"]]["by"])

    @precondition(lambda self: self.model.standing or self.model.messages)
    @rule(seed=SEEDS)
    def settle(self, seed: int) -> None:
        chance = self._chance(seed)
        able = [who for who, role in self.model.roles.items() if role in APPEND]
        by = self._choose(chance, [OWNER, *able], list(NAMES))
        entries = self._entries(chance, by)
        sent_at = self._time(chance)
        self._attempt(
            self.model.judge_settle(by, entries),
            lambda: self.writer.settle(PEOPLE[by], entries, sent_at=sent_at),
            lambda envelope: self.model.take(envelope.address, sent_at, entries),
        )

    @rule(seed=SEEDS)
    def roster(self, seed: int) -> None:
        chance = self._chance(seed)
        model = self.model
        change = chance.choice(("admit", "admit", "role", "remove", "leave"))
        moderators = [who for who, role in model.roles.items() if role == "moderator"]
        by = self._choose(chance, list(model.roles) if change == "leave" else moderators, list(NAMES))
        present = [who for who in model.roles if who != OWNER]
        right = {"admit": [n for n in NAMES if n not in model.roles], "leave": [by]}.get(change, present)
        who = self._choose(chance, right, list(NAMES))
        fields: dict[str, Any] = {}
        if change in ("admit", "role"):
            fields["role"] = chance.choice(ROLES)
        if change == "admit":
            mine = [name for name, owner in model.called.items() if owner == who]
            fields["name"] = self._choose(chance, [who, *mine, f"{who}-{len(model.chain)}"], list(model.called))
        entries = self._entries(chance, by, most=1) if chance.randrange(6) == 0 else []
        sent_at = self._time(chance)

        def happens(envelope: Envelope[Any]) -> None:
            model.take(envelope.address, sent_at, entries)
            if change in ("admit", "role"):
                model.roles[who] = fields["role"]
                model.since[who] = len(model.chain) - 1
                if change == "admit":
                    model.called[fields["name"]] = who
            else:
                del model.roles[who]

        self._attempt(
            model.judge_roster(by, {"change": change, "who": who, **fields}, entries),
            lambda: self.writer.roster(
                PEOPLE[by], change, KEY[who], sent_at=sent_at, settled=tuple(entries) or None, **fields
            ),
            happens,
        )

    @precondition(lambda self: len(self.model.chain) > 10)
    @rule(seed=SEEDS, outcome=st.sampled_from(("completed", "completed", "failed", "cancelled")))
    def seal(self, seed: int, outcome: str) -> None:
        chance = self._chance(seed)
        model = self.model
        if chance.randrange(3):
            return
        moderators = [who for who, role in model.roles.items() if role == "moderator"]
        by = self._choose(chance, moderators, list(NAMES))
        entries = self._entries(chance, by, most=1)
        sent_at = self._time(chance)

        def happens(envelope: Envelope[Any]) -> None:
            model.take(envelope.address, sent_at, entries)
            model.outcome = outcome
            self.met[f"sealed {outcome}"] += 1

        self._attempt(
            model.judge_seal(by, outcome, entries),
            lambda: self.writer.seal(PEOPLE[by], outcome, sent_at=sent_at, settled=tuple(entries) or None),
            happens,
        )

    @rule(seed=SEEDS, defect=st.sampled_from(("again", *DEFECTS)))
    def misplaced(self, seed: int, defect: str) -> None:
        chance = self._chance(seed)
        if defect == "again":
            self._a_record_that_stood_before(chance)
        else:
            self._a_record_in_the_wrong_place(chance, defect)

    def _a_record_that_stood_before(self, chance: random.Random) -> None:
        envelope = chance.choice(self.known[-12:])
        model = self.model
        if envelope.kind == "open":
            expected = "chain.second_open"
        elif model.outcome:
            expected = "chain.sealed"
        elif envelope.kind == "ack":
            message = model.messages[envelope.record.message]
            expected = "ack.settled" if not model.live(envelope.record.message) else "receipts.repeated"
            expected = model._signer(WHO[envelope.signer], ABLE) or expected
            assert message["to"]
        elif envelope.kind == "ruling":
            live = model.live(model.acks[envelope.record.ack]["message"])
            standing = envelope.address in model.standing
            expected = model._signer(WHO[envelope.signer], APPEND) if live else "ruling.ack"
            expected = expected or ("receipts.repeated" if standing else "ruling.repeated")
        else:
            expected = "chain.repeated"
        self._attempt(expected, lambda: self.writer.append(envelope), lambda _: None)

    def _a_record_in_the_wrong_place(self, chance: random.Random, defect: str) -> None:
        model, links = self.model, self.writer.thread.links()
        standing = tuple(model.standing)
        expected = "receipts.committed"
        if defect == "thread":
            links["thread"], expected = NOWHERE, "chain.thread"
        elif defect == "prev":
            links["prev"], expected = chance.choice((NOWHERE, *standing)), "chain.prev"
        elif defect == "seq":
            links["seq"] += chance.choice((1, 2, 1000))
            expected = "chain.seq"
        elif defect == "fork":
            if len(model.chain) < 2:
                return
            place = chance.randrange(1, len(model.chain))
            links.update(prev=model.chain[place - 1], seq=place)
            expected = "chain.fork"
        elif defect == "dropped":
            if not standing:
                return
            place = chance.randrange(len(standing))
            links["receipts"] = (standing[:place] + standing[place + 1 :]) or None
        elif defect == "added":
            links["receipts"] = (*standing, chance.choice((NOWHERE, *model.acks)))
        else:
            if len(standing) < 2:
                return
            links["receipts"] = standing[1:] + standing[:1]
        settled = [{"step": ("aside", f"n{len(self.known)}"), "outcome": "skipped"}]
        if model.outcome:
            expected = "chain.sealed"
        elif expected == "receipts.committed":
            expected = model._signer(OWNER, APPEND) or expected
        sent_at = self._time(chance)
        self._attempt(
            expected,
            lambda: self.writer.append(
                sign_record(Settle, PEOPLE[OWNER], sent_at=sent_at, settled=tuple(settled), **links)
            ),
            lambda _: None,
        )

    # What must be so after every step

    @invariant()
    def the_thread_is_what_the_model_says(self) -> None:
        thread, model = self.writer.thread, self.model
        assert {who: thread.role(KEY[who]) for who in NAMES} == {who: model.roles.get(who) for who in NAMES}
        assert thread.standing == tuple(model.standing)
        assert (thread.seq, thread.tip, thread.outcome) == (len(model.chain), model.chain[-1], model.outcome)
        assert {name: getattr(thread, name) for name in model.counts()} == model.counts()
        assert all(thread.has_id(m["id"]) for m in model.messages.values())
        assert [path for path in PATHS if thread.has_path(path)] == [path for path in PATHS if path in model.paths()]
        assert [thread.find(at) for at in model.chain] == list(range(len(model.chain)))
        assert thread.find(NOWHERE) == -1

    def teardown(self) -> None:
        if not hasattr(self, "writer"):
            return
        model, writer = self.model, self.writer
        everybody = TrustStore({KEY[name]: TrustedKey(name.title(), "human") for name in NAMES})
        verdict = verify_thread(writer.records, trust=everybody, now=self.clock + 400_000)
        assert (verdict.integrity, verdict.code, verdict.trust) == ("valid", None, "trusted")
        assert verdict.completeness == ("sealed" if model.outcome else "open")
        assert verdict.outcome == model.outcome
        assert verdict.pending == len(model.standing)
        assert {name: getattr(verdict, name) for name in model.counts()} == model.counts()
        assert Counter((f.code, f.address) for f in verdict.findings) == model.notes()
        again = Thread()
        for raw in writer.records:
            again.apply(open_envelope(raw))
        assert picture(again) == self.picture, "the refused records left a trace"
        for name in model.counts():
            self.met[name] += getattr(verdict, name)
        self.met.update(finding.code for finding in verdict.findings)


def test_whatever_hypothesis_does_to_a_thread_it_is_as_the_model_says() -> None:
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    examples = settings().max_examples // 3
    run_state_machine_as_test(
        Walk, settings=settings(stateful_step_count=50, max_examples=examples, suppress_health_check=slow)
    )


def test_a_long_random_walk_meets_every_rule_and_is_as_the_model_says_at_every_step() -> None:
    Walk.met.clear()
    for number in range(45):
        chance = random.Random(number)
        walk = Walk()
        roles = {"bob": chance.choice(APPEND), "cy": "member", "dee": chance.choice(ROLES), "pat": "approver"}
        limits = chance.choice(({}, {}, {"bytes": 160}, {"messages": 5}))
        walk.begin({**roles, "pam": "approver"}, limits, chance.choice((None, "room-1")))
        rules = [walk.message] * 4 + [walk.receipts] * 5 + [walk.settle] * 2 + [walk.roster, walk.misplaced, walk.seal]
        for turn in range(110):
            if walk.model.outcome and chance.randrange(3) == 0:
                break
            step = chance.choice(rules)
            if step == walk.misplaced:
                step(turn, chance.choice(("again", "again", *DEFECTS)))
            elif step == walk.seal:
                if turn > 40:
                    step(turn + number, chance.choice(("completed", "completed", "failed")))
            elif walk.model.messages or step == walk.message:
                step(turn + number)
            walk.the_thread_is_what_the_model_says()
        walk.teardown()
    rare = {"chain.no_open", "chain.pinned", "chain.kind", "roster.owner", "receipts.many", "ack.rounds", "time.future"}
    staged = {code for code, rule in BY_CODE.items() if rule.stage in ("chain", "roster", "receipts", "settle")}
    wanted = {"sealed completed", "sealed failed", "acknowledged", "approved", "declined", "ungated"}
    assert sorted(((staged - rare) | wanted) - set(+Walk.met)) == [], "the walk no longer gets about"


# ------------------------------------------------------------------------------------------- what no walk comes to


def _member(name: str, role: str) -> dict[str, Any]:
    return {"key": KEY[name], "role": role, "name": name}


def _writer(**roles: str) -> ThreadWriter:
    members = [_member(OWNER, "moderator"), *(_member(name, role) for name, role in roles.items())]
    return ThreadWriter.open(PEOPLE[OWNER], "thread", members, nonce=bytes(16), sent_at=START)


def _refused(code: str, call: Callable[[], Any], thread: Thread) -> EnvelopeError:
    before = picture(thread)
    with pytest.raises(EnvelopeError) as caught:
        call()
    assert caught.value.code == code
    assert picture(thread) == before
    return caught.value


@pytest.mark.parametrize("kind", ["message", "ack"])
def test_a_thread_that_does_not_begin_with_an_open_is_refused(kind: str) -> None:
    writer = _writer(bob="member")
    said = writer.message(PEOPLE["ada"], "m1", "Please.", to=[KEY["bob"]], sent_at=START)
    envelope = said if kind == "message" else writer.ack(PEOPLE["bob"], said, "I will.", sent_at=START)
    thread = Thread()
    _refused("chain.no_open", lambda: thread.apply(envelope), thread)


def test_another_thread_than_the_pinned_one_is_refused() -> None:
    thread = Thread(pinned=NOWHERE)
    error = _refused("chain.pinned", lambda: thread.apply(_writer().opening), thread)
    assert address_text(_writer().opening.address) in error.text


def test_the_pinned_thread_is_taken() -> None:
    thread = Thread(pinned=_writer().opening.address)
    thread.apply(_writer().opening)
    assert thread.address == thread.pinned


@pytest.mark.parametrize("opener", ["bob", "eve"])
def test_an_opener_who_is_no_moderator_of_the_thread_is_refused(opener: str) -> None:
    members = sorted([_member("ada", "moderator"), _member("bob", "member")], key=lambda m: m["key"])
    opening = sign_record(Open, PEOPLE[opener], name="t", nonce=bytes(16), members=tuple(members), sent_at=START)
    thread = Thread()
    _refused("roster.owner", lambda: thread.apply(opening), thread)


def test_a_card_does_not_stand_in_a_thread() -> None:
    writer = _writer()
    card = sign_record(
        CardBody, PEOPLE["ada"], name="Ada", capabilities=("x",), key=KEY["ada"], not_before=0, sent_at=START
    )
    _refused("chain.kind", lambda: writer.append(card), writer.thread)


def test_a_fork_names_both_records_and_accuses_only_a_key_that_signed_both() -> None:
    writer = _writer(bob="member")
    prev = writer.thread.tip
    first = writer.message(PEOPLE["ada"], "m1", "One.", sent_at=START)
    fields = {"thread": writer.thread.address, "prev": prev, "seq": 1, "intent": "assert", "epistemic": "assumed"}
    for name, accused in (("ada", True), ("bob", False)):
        other = sign_record(Message, PEOPLE[name], id="m2", payload="Two.", sent_at=START, **fields)
        error = _refused("chain.fork", lambda other=other: writer.append(other), writer.thread)
        assert address_text(first.address) in error.text
        assert address_text(other.address) in error.text
        assert ("signed both" in error.text) is accused


def test_a_recipient_acknowledges_a_message_sixteen_times_and_no_more() -> None:
    writer = _writer(bob="member")
    said = writer.message(PEOPLE["ada"], "m1", "Please.", to=[KEY["bob"]], sent_at=START)
    after = None
    for number in range(16):
        ack = writer.ack(PEOPLE["bob"], said, f"Try {number}.", after=after, sent_at=START)
        after = writer.ruling(PEOPLE["ada"], ack, "No.", sent_at=START).address
    again = lambda: writer.ack(PEOPLE["bob"], said, "Once more.", after=after, sent_at=START)  # noqa: E731
    _refused("ack.rounds", again, writer.thread)


def test_after_4096_receipts_a_chain_record_is_due_which_commits_them_all() -> None:
    writer = _writer(bob="member")
    said = [writer.message(PEOPLE["ada"], f"m{n}", "Please.", to=[KEY["bob"]], sent_at=START) for n in range(2049)]
    acks = [writer.ack(PEOPLE["bob"], message, "Yes.", sent_at=START) for message in said[:2048]]
    for ack in acks:
        writer.ruling(PEOPLE["ada"], ack, sent_at=START)
    thread = writer.thread
    _refused("receipts.many", lambda: writer.ack(PEOPLE["bob"], said[2048], "Yes.", sent_at=START), thread)
    writer.settle(PEOPLE["ada"], sent_at=START)
    assert (thread.standing, thread.acknowledged) == ((), 2048)
    writer.ack(PEOPLE["bob"], said[2048], "Yes.", sent_at=START)


def test_an_escalation_approves_what_the_recipients_did_not_acknowledge() -> None:
    writer = _writer(bob="member", pat="approver")
    said = writer.message(PEOPLE["ada"], "m1", "Please.", to=[KEY["bob"]], sent_at=START)
    asked = writer.message(
        PEOPLE["ada"], "m2", "May I?", to=[KEY["pat"]], intent="escalate", reply_to=said.address, sent_at=START
    )
    entry = {"message": said.address, "outcome": "approved", "by": asked.address}
    _refused("settle.approved", lambda: writer.settle(PEOPLE["ada"], [entry], sent_at=START), writer.thread)
    writer.ruling(PEOPLE["ada"], writer.ack(PEOPLE["pat"], asked, "You may.", sent_at=START), sent_at=START)
    writer.settle(PEOPLE["ada"], [entry], sent_at=START)
    thread = writer.thread
    assert (thread.approved, thread.acknowledged) == (1, 0)
    assert [note.code for note in thread.notes] == ["message.approved"]
    assert thread.signers[KEY["pat"]]
    writer.seal(PEOPLE["ada"], "completed", sent_at=START)


def _escalated(writer: ThreadWriter, answer: str = "accept") -> tuple[Envelope[Message], Envelope[Message]]:
    """Append a request to Bob and its escalation to Pat, who answers; an acceptance is confirmed."""
    said = writer.message(PEOPLE["ada"], "m1", "Please.", to=[KEY["bob"]], sent_at=START)
    asked = writer.message(
        PEOPLE["ada"], "m2", "May I?", to=[KEY["pat"]], intent="escalate", reply_to=said.address, sent_at=START
    )
    ack = writer.ack(PEOPLE["pat"], asked, "So I say.", answer=answer, sent_at=START)
    if answer == "accept":
        writer.ruling(PEOPLE["ada"], ack, sent_at=START)
    return said, asked


@pytest.mark.parametrize("together", [True, False])
def test_an_escalation_that_was_settled_failed_approves_nothing(together: bool) -> None:
    writer = _writer(bob="member", pat="approver")
    said, asked = _escalated(writer)
    failed = {"message": asked.address, "outcome": "failed"}
    approved = {"message": said.address, "outcome": "approved", "by": asked.address}
    entries = [failed, approved]
    if not together:
        writer.settle(PEOPLE["ada"], [failed], sent_at=START)
        entries = [approved]
    _refused("settle.approved", lambda: writer.settle(PEOPLE["ada"], entries, sent_at=START), writer.thread)


def test_an_escalation_that_is_settled_failed_afterwards_has_approved_before() -> None:
    writer = _writer(bob="member", pat="approver")
    said, asked = _escalated(writer)
    entries = [
        {"message": said.address, "outcome": "approved", "by": asked.address},
        {"message": asked.address, "outcome": "failed"},
    ]
    writer.settle(PEOPLE["ada"], entries, sent_at=START)
    assert writer.thread.approved == 1


@pytest.mark.parametrize("way", ["admitted", "promoted", "to and fro", "readmitted"])
def test_nobody_approves_who_was_not_an_approver_since_before_the_message(way: str) -> None:
    writer = _writer(bob="member", pat="approver", pam="member")
    ada = PEOPLE["ada"]
    said = writer.message(ada, "m1", "Please.", to=[KEY["bob"]], sent_at=START)
    who = "pam" if way == "promoted" else "dee" if way == "admitted" else "pat"
    if way == "admitted":
        writer.roster(ada, "admit", KEY["dee"], role="approver", name="dee", sent_at=START)
    elif way == "promoted":
        writer.roster(ada, "role", KEY["pam"], role="approver", sent_at=START)
    elif way == "to and fro":
        writer.roster(ada, "role", KEY["pat"], role="member", sent_at=START)
        writer.roster(ada, "role", KEY["pat"], role="approver", sent_at=START)
    else:
        writer.roster(ada, "remove", KEY["pat"], sent_at=START)
        writer.roster(ada, "admit", KEY["pat"], role="approver", name="pat", sent_at=START)
    fields = {"intent": "escalate", "to": [KEY[who]], "sent_at": START}
    late = lambda: writer.message(ada, "m2", "May I?", reply_to=said.address, **fields)  # noqa: E731
    _refused("escalate.approver", late, writer.thread)
    again = writer.message(ada, "m3", "Please.", to=[KEY["bob"]], sent_at=START)
    writer.message(ada, "m4", "May I?", reply_to=again.address, **fields)


def test_a_message_that_an_approver_declined_is_not_retracted() -> None:
    writer = _writer(bob="member", pat="approver")
    said, _ = _escalated(writer, "decline")
    fields = {"intent": "retract", "reply_to": said.address, "sent_at": START}
    _refused("retract.declined", lambda: writer.message(PEOPLE["ada"], "m3", "No.", **fields), writer.thread)


@pytest.mark.parametrize("role", ["approver", "observer"])
def test_who_was_demoted_may_leave_but_not_settle_on_the_way(role: str) -> None:
    writer = _writer(bob="member")
    said = writer.message(PEOPLE["bob"], "m1", "So it is.", sent_at=START)
    writer.roster(PEOPLE["ada"], "role", KEY["bob"], role=role, sent_at=START)
    fields = {"settled": ({"message": said.address, "outcome": "failed"},), "sent_at": START}
    leave = lambda: writer.roster(PEOPLE["bob"], "leave", KEY["bob"], **fields)  # noqa: E731
    _refused("roster.role", leave, writer.thread)
    writer.roster(PEOPLE["bob"], "leave", KEY["bob"], sent_at=START)


@pytest.mark.parametrize("together", [True, False])
def test_a_request_that_was_settled_without_being_cleared_is_not_sealed_completed(together: bool) -> None:
    writer = _writer(bob="member")
    said = writer.message(PEOPLE["ada"], "m1", "Please.", to=[KEY["bob"]], sent_at=START)
    settled: Any = ({"message": said.address, "outcome": "failed"},)
    if not together:
        writer.settle(PEOPLE["ada"], settled, sent_at=START)
        settled = None
    seal = lambda outcome: writer.seal(PEOPLE["ada"], outcome, settled=settled, sent_at=START)  # noqa: E731
    _refused("seal.unacknowledged", lambda: seal("completed"), writer.thread)
    seal("failed")


def test_a_request_that_was_cleared_and_then_failed_is_sealed_completed() -> None:
    writer = _writer(bob="member")
    said = writer.message(PEOPLE["ada"], "m1", "Please.", to=[KEY["bob"]], sent_at=START)
    writer.ruling(PEOPLE["ada"], writer.ack(PEOPLE["bob"], said, "Yes.", sent_at=START), sent_at=START)
    settled = ({"message": said.address, "outcome": "failed"},)
    writer.seal(PEOPLE["ada"], "completed", settled=settled, sent_at=START)


@pytest.mark.parametrize("answer", ["reply", "retract the target", "retract the challenge", None])
def test_a_challenge_is_answered_by_a_reply_or_by_a_retraction(answer: str | None) -> None:
    writer = _writer(bob="member", cy="member")
    said = writer.message(PEOPLE["ada"], "m1", "So it is.", sent_at=START)
    fields = {"intent": "challenge", "reply_to": said.address, "sent_at": START}
    doubts = [writer.message(PEOPLE[who], f"{who}-1", "Is it?", **fields) for who in ("bob", "cy")]
    for number, doubt in enumerate(doubts):
        if answer == "reply":
            writer.message(PEOPLE["ada"], f"r{number}", "It is.", reply_to=doubt.address, sent_at=START)
        elif answer == "retract the challenge":
            back = {"intent": "retract", "reply_to": doubt.address, "sent_at": START}
            writer.message(PEOPLE[WHO[doubt.signer]], f"r{number}", "Never mind.", **back)
        elif answer is None:
            writer.message(PEOPLE["cy"], f"r{number}", "I wonder too.", reply_to=doubt.address, sent_at=START)
    if answer == "retract the target":
        writer.message(PEOPLE["ada"], "r", "It is not.", intent="retract", reply_to=said.address, sent_at=START)
    writer.seal(PEOPLE["ada"], "completed", sent_at=START)
    found = [note.address for note in writer.thread.notes if note.code == "seal.open_challenge"]
    assert found == ([doubt.address for doubt in doubts] if answer is None else [])


def test_notes_beyond_sixty_four_of_a_code_are_counted_and_those_of_other_codes_still_kept() -> None:
    writer = _writer(bob="member")
    for number in range(70):
        sent_at = START + 1_000_000 * (1 - number % 2)
        writer.message(PEOPLE["ada"], f"m{number}", "Tick.", sent_at=sent_at)
    for number in range(66):
        said = writer.message(PEOPLE["ada"], f"n{number}", "Please.", to=[KEY["bob"]], sent_at=START + 1_000_000)
        writer.ack(PEOPLE["bob"], said, "No.", answer="decline", sent_at=START)
    writer.settle(PEOPLE["ada"], sent_at=START + 1_000_000)
    kept = Counter(note.code for note in writer.thread.notes)
    assert kept == {"time.backwards": 35, "message.declined": 64}
    assert writer.thread.omitted == 2
    assert writer.thread.declined == 66


# ------------------------------------------------------------------------------------------------- the compact table


def test_a_table_finds_what_was_added_under_its_number_through_every_growth() -> None:
    chooser = random.Random(1)
    digests = [chooser.randbytes(32) for _ in range(3000)]
    table, numbers = DigestTable(32), {}
    for number, digest in enumerate(digests):
        assert table.find(digest) == -1
        table.add(digest)
        numbers[digest] = number
        if number % 97 == 0 or number < 200:
            assert all(table.find(known) == row for known, row in numbers.items())
    assert [table[row] for row in range(len(digests))] == digests
    assert table.count == 3000
    assert all(table.find(chooser.randbytes(32)) == -1 for _ in range(1000))


def test_a_table_finds_digests_whose_hashes_end_alike() -> None:
    chooser = random.Random(2)
    alike: list[bytes] = []
    while len(alike) < 120:
        digest = chooser.randbytes(16)
        if hash(digest) & 0x3FF == 0x3FF:  # so that looking further also wraps around the end
            alike.append(digest)
    table = DigestTable(16)
    for number, digest in enumerate(alike[:100]):
        table.add(digest)
        assert [table.find(known) for known in alike[: number + 1]] == list(range(number + 1))
    assert all(table.find(stranger) == -1 for stranger in alike[100:])


def test_a_table_is_never_so_full_that_a_search_does_not_end() -> None:
    table = DigestTable(16)
    for number in range(5000):
        table.add(number.to_bytes(16, "big"))
        if number % 500 == 0:
            assert table.find(number.to_bytes(16, "big")) == number
            assert sum(1 for slot in table._slots if slot) == table.count
            assert 3 * table.count <= 2 * len(table._slots)


def test_a_table_tells_digests_apart_that_differ_in_one_bit() -> None:
    table, digest = DigestTable(32), bytes(32)
    table.add(digest)
    for bit in range(256):
        assert table.find((1 << bit).to_bytes(32, "big")) == -1
    assert table.find(digest) == 0


# ------------------------------------------------------------------------------------------------------------ memory


def test_a_settled_message_costs_at_most_200_bytes_while_a_file_is_streamed(tmp_path: Path) -> None:
    few, many = 2000, 6000
    writer = _writer(bob="member")
    settled = None
    for number in range(many):
        to = [KEY["bob"]] if number % 3 == 0 else []
        said = writer.message(PEOPLE["ada"], f"message-{number:05}", "So.", to=to, settled=settled, sent_at=START)
        if to:
            ack = writer.ack(PEOPLE["bob"], said, "I will do it.", sent_at=START)
            writer.ruling(PEOPLE["ada"], ack, sent_at=START)
        settled = ({"message": said.address, "outcome": "succeeded"},)
    path = tmp_path / "long.thread"
    writer.export(path)
    del writer, said, ack
    peaks: dict[int, int] = {}
    messages = 0

    def observe(envelope: Envelope[Any], index: int, offset: int) -> None:
        nonlocal messages
        if envelope.kind == "message":
            messages += 1
            if messages in (few - 600, many - 600):
                gc.collect()
                tracemalloc.reset_peak()
            elif messages in (few, many):
                peaks[messages] = tracemalloc.get_traced_memory()[1]

    gc.collect()
    tracemalloc.start()
    try:
        verdict = verify_file(path, trust=None, observe=observe)
    finally:
        tracemalloc.stop()
    assert (verdict.integrity, verdict.messages, verdict.acknowledged) == ("valid", many, many // 3)
    assert (peaks[many] - peaks[few]) / (many - few) <= 200


def test_of_what_is_settled_no_acknowledgement_is_remembered() -> None:
    writer = _writer(bob="member")
    said, acks = [], []
    for number in range(9):
        said.append(writer.message(PEOPLE["ada"], f"m{number}", "Please.", to=[KEY["bob"]], sent_at=START))
        acks.append(writer.ack(PEOPLE["bob"], said[-1], "Yes.", sent_at=START))
        writer.ruling(PEOPLE["ada"], acks[-1], sent_at=START)
    passing = {envelope.address for envelope in (*said, *acks)}
    assert passing <= set(_flat(picture(writer.thread)))
    entries = [{"message": message.address, "outcome": "succeeded"} for message in said]
    writer.settle(PEOPLE["ada"], entries, sent_at=START)
    assert passing.isdisjoint(_flat(picture(writer.thread)))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, tuple | frozenset):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def test_the_records_of_a_thread_are_refused_where_they_are_moved_dropped_or_doubled(tmp_path: Path) -> None:
    writer = _writer(bob="member")
    said = writer.message(PEOPLE["ada"], "m1", "Please.", to=[KEY["bob"]], sent_at=START)
    writer.ruling(PEOPLE["ada"], writer.ack(PEOPLE["bob"], said, "Yes.", sent_at=START), sent_at=START)
    writer.settle(PEOPLE["ada"], [{"message": said.address, "outcome": "succeeded"}], sent_at=START)
    writer.seal(PEOPLE["ada"], "completed", sent_at=START)
    records = writer.records
    changed = [records[:n] + records[n + 1 :] for n in range(len(records) - 1)]
    changed += [records[: n + 1] + records[n:] for n in range(len(records))]
    changed += [[*records[:n], records[n + 1], records[n], *records[n + 2 :]] for n in range(len(records) - 1)]
    for number, wrong in enumerate(changed):
        path = tmp_path / f"{number}.thread"
        write_records(path, wrong)
        assert verify_file(path, trust=None).integrity == "invalid"
