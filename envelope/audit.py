"""The audit of a thread: from bytes to a verdict.

`verify_thread` goes in batches, and takes a whole batch through one step before the next, since curve arithmetic,
decoding and what is interpreted evict each other's caches:

1. cut each envelope into its parts (stages size to key);
2. check the signatures (stage signature);
3. read the records (stage body);
4. apply them to the thread (stages chain to settle);

and after the last batch:

5. judge the signers by the verifier's keys (stage trust), the tip, and the plan.

The first record that fails decides integrity and code. Records after it are checked up to their signature only.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any, Final, TypeVar

from envelope.cose import Envelope, Parts, address, address_text, split
from envelope.errors import EnvelopeError
from envelope.keys import PublicKey, check_signature, did_key
from envelope.records import KINDS, build, decode_body
from envelope.rules import BY_CODE
from envelope.thread import CLOCK_TOLERANCE_MS, MAX_NOTES, Thread
from envelope.threadfile import read_records
from envelope.trust import TrustStore
from envelope.verdict import Finding, Integrity, Signer, ThreadVerdict, Trust

Observer = Callable[[Envelope[Any], int, int], None]

T = TypeVar("T")

_BATCH_BYTES: Final = 1 << 18
_RECORD_SHARE: Final = _BATCH_BYTES // 1024  # so that a batch is of 1024 records at most


def verify_thread(
    records: Iterable[bytes],
    *,
    trust: TrustStore | Iterable[PublicKey] | None,
    thread: bytes | None = None,
    tip: bytes | None = None,
    now: int | None = None,
) -> ThreadVerdict:
    """Verify the envelopes of one thread, in file order.

    Args:
        records: the bytes of each envelope; an iterator is consumed once and not held.
        trust: the keys that the verifier trusts, or None: trust is then unknown.
        thread: the address that the thread must have.
        tip: the address of a chain record known to exist, such as the last one seen by the verifier.
        now: the verifier's time, in ms since the epoch; the system's where it is not given.

    Returns:
        The verdict. Bad records never raise; they are findings.
    """
    verifier = Verifier(trust=trust, thread=thread, tip=tip, now=now)
    for raw in records:
        verifier.feed(raw)
    return verifier.finish()


def verify_file(
    path: str | os.PathLike[str],
    *,
    trust: TrustStore | Iterable[PublicKey] | None,
    thread: bytes | None = None,
    tip: bytes | None = None,
    now: int | None = None,
    observe: Observer | None = None,
) -> ThreadVerdict:
    """Verify a thread file, read as a stream; arguments as of `verify_thread`.

    `observe`, where given, is called with each envelope that the thread accepts, its index and its offset.

    Raises:
        EnvelopeError: `file.unreadable`.
    """
    verifier = Verifier(trust=trust, thread=thread, tip=tip, now=now, observe=observe)
    try:
        for _, raw in read_records(path):
            verifier.feed(raw)
    except EnvelopeError as error:
        if error.code == "file.unreadable":
            raise
        verifier.refuse(error)
    return verifier.finish()


class Verifier:
    """A verification in progress: feed it record after record, then ask for the verdict."""

    def __init__(
        self,
        *,
        trust: TrustStore | Iterable[PublicKey] | None,
        thread: bytes | None = None,
        tip: bytes | None = None,
        now: int | None = None,
        observe: Observer | None = None,
    ) -> None:
        self._observe = observe
        self.thread = Thread(thread)
        self._trust = None if trust is None else TrustStore.of(trust)
        self._tip = tip
        self._latest = (time.time_ns() // 1_000_000 if now is None else now) + CLOCK_TOLERANCE_MS
        self._batch: list[bytes] = []
        self._room = _BATCH_BYTES
        self._records = 0
        self._offset = 0
        self._failures: list[Finding] = []
        self._failed: Counter[str] = Counter()
        self._late: list[Finding] = []
        self._omitted = 0
        self._first_seen: dict[PublicKey, tuple[int, int, bytes]] = {}

    def feed(self, raw: bytes) -> None:
        """Take the next record's bytes."""
        if type(raw) is not bytes:
            raise TypeError(f"a record is bytes, not {type(raw).__name__}; give the records of a thread one by one")
        self._batch.append(raw)
        self._room -= len(raw) + _RECORD_SHARE
        if self._room <= 0:
            self._work()

    def refuse(self, error: EnvelopeError) -> None:
        """Take note that the bytes at this place are no record that could be fed."""
        self._work()
        self._fail(error, None)
        self._records += 1

    def finish(self) -> ThreadVerdict:
        """Return the verdict on all that was fed."""
        self._work()
        if self._records == 0:
            self._fail(EnvelopeError("chain.no_open", "there is no record"), None)
        return self._verdict()

    def _work(self) -> None:
        batch, self._batch, self._room = self._batch, [], _BATCH_BYTES
        # 1. to key
        fronts: list[Parts | EnvelopeError] = []
        for raw in batch:
            try:
                fronts.append(split(raw))
            except EnvelopeError as error:
                fronts.append(error)
        # 2. signature
        for place, front in enumerate(fronts):
            if type(front) is Parts:
                try:
                    check_signature(front.signer, front.signature, front.signed)
                except EnvelopeError as error:
                    fronts[place] = error
        taken = 0 if self._failures else self._extend(fronts)
        for raw, front in zip(batch[taken:], fronts[taken:], strict=True):
            if type(front) is EnvelopeError:
                self._fail(front, raw)
            self._records += 1
            self._offset += len(raw)

    def _extend(self, fronts: list[Parts | EnvelopeError]) -> int:
        """Let the thread take the records before the first that fails, and put its failure in its place.

        Returns:
            How many the thread took.
        """
        # 3. body
        sound = [front for front in takewhile(_is_sound, fronts) if type(front) is Parts]
        kinds = [parts.kind for parts in sound]
        bodies, refusal = _as_far(decode_body, kinds, [parts.payload for parts in sound])
        records, earlier = _as_far(build, map(KINDS.get, kinds), bodies)
        refusal = earlier or refusal
        envelopes = [
            Envelope(record, parts.signer, address(parts.raw), parts.raw)
            for record, parts in zip(records, sound, strict=False)
        ]
        # 4. chain to settle
        seen, latest = self._first_seen, self._latest
        for taken, envelope in enumerate(envelopes):
            try:
                self.thread.apply(envelope, self._offset)
                if self._observe or envelope.signer not in seen or envelope.record.sent_at > latest:
                    self._note(envelope)
            except EnvelopeError as error:
                fronts[taken] = error
                return taken
            self._records += 1
            self._offset += len(envelope.raw)
        if refusal is not None:
            fronts[len(envelopes)] = refusal
        return len(envelopes)

    def _note(self, envelope: Envelope[Any]) -> None:
        if envelope.signer not in self._first_seen:
            self._first_seen[envelope.signer] = (self._records, self._offset, envelope.address)
        if self._observe is not None:
            self._observe(envelope, self._records, self._offset)
        if envelope.record.sent_at > self._latest:
            ahead = envelope.record.sent_at - self._latest + CLOCK_TOLERANCE_MS
            if len(self._late) < MAX_NOTES:
                place = (self._records, self._offset, envelope.address)
                self._late.append(_finding("time.future", *place, f"sent_at is {ahead} ms after this verification"))
            else:
                self._omitted += 1

    def _fail(self, error: EnvelopeError, raw: bytes | None) -> None:
        self._failed[error.code] += 1
        if self._failed[error.code] > MAX_NOTES:
            self._omitted += 1
            return
        torn = error.code == "file.torn"
        self._failures.append(
            Finding(
                error.code,
                error.rule,
                error.stage,
                error.effect,
                self._records,
                self._offset,
                address(raw) if raw is not None and not torn else None,
                f"{error.text}; valid up to record {self._records}" if torn else error.text,
            )
        )

    # 5. after the last batch

    def _verdict(self) -> ThreadVerdict:
        thread = self.thread
        opening = thread.opening.record if thread.opening else None
        signers, findings = self._judge_signers()
        if self._tip is not None and thread.find(self._tip) < 0:
            findings.append(
                _finding("tip.missing", None, None, self._tip, f"{address_text(self._tip)} is not in the thread")
            )
        if opening and opening.plan is not None:
            text = f"the thread names the plan {address_text(opening.plan)}, whose document was not given"
            findings.append(_finding("plan.unchecked", 0, 0, thread.address, text))
        notes = [_finding(note.code, note.index, note.offset, note.address, note.text) for note in thread.notes]
        integrity: Integrity = "valid"
        if self._failures:
            integrity = "unverifiable" if self._failures[0].effect == "unverifiable" else "invalid"
        truncated = any(finding.effect == "incomplete" for finding in findings)
        return ThreadVerdict(
            integrity=integrity,
            completeness="truncated" if truncated else "open" if thread.outcome is None else "sealed",
            outcome=thread.outcome,
            trust="trusted" if signers and all(signer.trust == "trusted" for signer in signers) else "unknown",
            plan="unchecked" if opening and opening.plan is not None else "none",
            code=self._failures[0].code if self._failures else None,
            thread=thread.address or None,
            name=opening.name if opening else None,
            tip=thread.tip or None,
            records=self._records,
            pending=len(thread.standing),
            messages=thread.messages,
            acknowledged=thread.acknowledged,
            approved=thread.approved,
            declined=thread.declined,
            ungated=thread.ungated,
            findings=(*self._failures, *findings, *notes, *self._late),
            omitted=self._omitted + thread.omitted,
            signers=tuple(signers),
        )

    def _judge_signers(self) -> tuple[list[Signer], list[Finding]]:
        signers, findings = [], []
        if self._trust is None:
            findings.append(
                _finding("trust.none", None, None, None, "no trusted keys were given, so nobody in it is known")
            )
        for key, as_approver in self.thread.signers.items():
            known = self._trust.get(key) if self._trust is not None else None
            code = None
            if self._trust is not None and known is None:
                code, text = "trust.unknown", f"{did_key(key)} is not among the trusted keys"
            elif known is not None and as_approver and known.role != "human":
                code, text = "trust.human", f"{did_key(key)} approved, but is trusted as {known.role}, not as human"
            elif known is not None and known.role not in ("agent", "human"):
                code, text = "trust.role", f"{did_key(key)} is trusted as {known.role}, which does not sign threads"
            if code is not None:
                findings.append(_finding(code, *self._first_seen[key], text))
            judged: Trust = "trusted" if known is not None and code is None else "unknown"
            claimed = self.thread.members[key].name
            signers.append(Signer(key, judged, known.name if known else None, known.role if known else None, claimed))
        return signers, findings


def _is_sound(front: Parts | EnvelopeError) -> bool:
    return type(front) is Parts


def _as_far(step: Callable[..., T], *columns: Iterable[Any]) -> tuple[list[T], EnvelopeError | None]:
    """Take a step row by row until it refuses one; return what it gave and the refusal."""
    taken: list[T] = []
    try:
        for value in map(step, *columns):
            taken.append(value)  # noqa: PERF402
    except EnvelopeError as error:
        return taken, error
    return taken, None


def _finding(code: str, index: int | None, offset: int | None, address: bytes | None, text: str) -> Finding:
    rule = BY_CODE[code]
    return Finding(code, rule.number, rule.stage, rule.effect, index, offset, address, text)
