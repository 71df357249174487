"""The verifier's speed against a bare loop of signature checks over the same records, and its memory a message."""

import gc
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.signing import VerifyKey

from envelope import Identity, ThreadWriter, verify_file, verify_thread
from envelope.cose import split
from envelope.threadfile import write_records

PAYLOAD = "x" * 200


def measure(records: int, rounds: int) -> dict[str, float]:
    author, reviewer = Identity.generate(), Identity.generate()
    thread = build(records, author, reviewer)
    trust = [author.public_key, reviewer.public_key]
    parts = [split(raw) for raw in thread]
    nacl = [(VerifyKey(part.signer), part.signed, part.signature) for part in parts]
    openssl = [(Ed25519PublicKey.from_public_bytes(part.signer), part.signature, part.signed) for part in parts]

    def bare_nacl() -> None:
        for key, message, signature in nacl:
            key.verify(message, signature)

    def bare_openssl() -> None:
        for key, signature, message in openssl:
            key.verify(signature, message)

    def ours() -> None:
        assert verify_thread(thread, trust=trust).exit_code == 0

    seconds = interleaved([bare_nacl, bare_openssl, ours], rounds)
    nacl_s, openssl_s, ours_s = map(statistics.median, seconds)
    return {
        "records": len(thread),
        "pynacl_per_s": len(thread) / nacl_s,
        "cryptography_per_s": len(thread) / openssl_s,
        "envelope_per_s": len(thread) / ours_s,
        "ratio_pynacl": median_ratio(seconds[0], seconds[2]),
        "ratio_cryptography": median_ratio(seconds[1], seconds[2]),
        "bytes_per_message": bytes_per_message(records, author, reviewer),
    }


def build(records: int, author: Identity, reviewer: Identity) -> list[bytes]:
    """Return a sealed thread: messages of 200 bytes, each acknowledged and ruled on, settled as the thread goes."""
    roster = [
        {"key": author.public_key, "role": "moderator", "name": "author"},
        {"key": reviewer.public_key, "role": "member", "name": "reviewer"},
    ]
    writer = ThreadWriter.open(author, "bench", roster)
    settled = None
    while len(writer.records) + 4 <= max(records, 5):
        message_id = f"message-{writer.thread.seq}"
        message = writer.message(author, message_id, PAYLOAD, to=[reviewer.public_key], settled=settled)
        writer.ruling(author, writer.ack(reviewer, message, f"I agree to {message_id}"))
        settled = ({"message": message.address, "outcome": "succeeded"},)
    writer.seal(author, "completed", settled=settled)
    return writer.records


def bytes_per_message(records: int, author: Identity, reviewer: Identity) -> float:
    """Return by how much the peak of memory grows with each further message of a file that is read as a stream."""
    peaks = []
    for size in (max(records // 4, 5), max(records, 20)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bench.thread"
            write_records(path, build(size, author, reviewer))
            gc.collect()
            tracemalloc.start()
            messages = verify_file(path, trust=[author.public_key, reviewer.public_key]).messages
            peaks.append((tracemalloc.get_traced_memory()[1], messages))
            tracemalloc.stop()
    (small, few), (large, many) = peaks
    return (large - small) / (many - few)


def interleaved(loops: Sequence[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Return the seconds that each loop took in each round, the loops taking turns."""
    seconds: list[list[float]] = [[] for _ in loops]
    for _ in range(rounds):
        for times, loop in zip(seconds, loops, strict=True):
            start = time.perf_counter()
            loop()
            times.append(time.perf_counter() - start)
    return seconds


def median_ratio(baseline: Sequence[float], ours: Sequence[float]) -> float:
    """Return the median over the rounds of how fast ours is against the baseline."""
    return statistics.median(base / our for base, our in zip(baseline, ours, strict=True))
