"""The verifier's speed against a bare loop of signature checks over the same records, and its memory a message."""

import gc
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.signing import VerifyKey

from envelope import Identity, ThreadWriter, verify_file, verify_thread
from envelope.cose import split
from envelope.threadfile import write_records

PAYLOAD = "x" * 200
SLICE = 1024


def measure(records: int, rounds: int) -> dict[str, float]:
    author, reviewer = Identity.generate(), Identity.generate()
    thread = build(records, author, reviewer)
    trust = [author.public_key, reviewer.public_key]
    parts = [split(raw) for raw in thread]
    nacl = [(VerifyKey(part.signer), part.signed, part.signature) for part in parts]
    openssl = [(Ed25519PublicKey.from_public_bytes(part.signer), part.signature, part.signed) for part in parts]
    gc.collect()
    gc.freeze()  # what was built for the bare loops is no work of the verifier's
    seconds = [interleaved(thread, trust, nacl, openssl) for _ in range(rounds)]
    nacl_s, openssl_s, ours_s = (statistics.median(times) for times in zip(*seconds, strict=True))
    return {
        "records": len(thread),
        "pynacl_per_s": len(thread) / nacl_s,
        "cryptography_per_s": len(thread) / openssl_s,
        "envelope_per_s": len(thread) / ours_s,
        "ratio_pynacl": statistics.median(nacl / ours for nacl, _, ours in seconds),
        "ratio_cryptography": statistics.median(openssl / ours for _, openssl, ours in seconds),
        "bytes_per_message": bytes_per_message(records, author, reviewer),
    }


def interleaved(
    thread: list[bytes],
    trust: list[bytes],
    nacl: list[tuple[VerifyKey, bytes, bytes]],
    openssl: list[tuple[Ed25519PublicKey, bytes, bytes]],
) -> tuple[float, float, float]:
    """Return the seconds of the two bare loops and of `verify_thread` over the thread, taking turns slice by slice."""
    nacl_s = openssl_s = 0.0

    def slices() -> Iterator[bytes]:
        nonlocal nacl_s, openssl_s
        for start in range(0, len(thread), SLICE):
            begin = time.perf_counter()
            for key, message, signature in nacl[start : start + SLICE]:
                key.verify(message, signature)
            middle = time.perf_counter()
            for public, signature, message in openssl[start : start + SLICE]:
                public.verify(signature, message)
            nacl_s += middle - begin
            openssl_s += time.perf_counter() - middle
            yield from thread[start : start + SLICE]

    begin = time.perf_counter()
    verdict = verify_thread(slices(), trust=trust)
    ours_s = time.perf_counter() - begin - nacl_s - openssl_s
    assert verdict.exit_code == 0
    return nacl_s, openssl_s, ours_s


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
