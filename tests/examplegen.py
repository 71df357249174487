"""Writes the example in `spec/protocol.md`, an envelope explained byte by byte: `python -m tests.examplegen`, or
`--check` to compare only."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from envelope import Envelope, Identity, ThreadWriter, address_text, did_key

TARGET = Path(__file__).parents[1] / "spec" / "protocol.md"
BEGIN, END = "<!-- example:begin -->\n", "<!-- example:end -->"

ADA, BOB = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
START = 1_760_000_000_000
BYTES_A_LINE = 16

ADDRESSES = ("thread", "prev")
LABELS = {1: "alg", 4: "kid", 16: "typ"}
NAMES = {ADA.public_key: "Ada's public key", BOB.public_key: "Bob's public key"}


class Line(NamedTuple):
    """Bytes of one meaning, and how deep they stand."""

    offset: int
    data: bytes
    depth: int
    meaning: str


def example() -> Envelope:
    """Return the envelope that the example explains: a request in a thread of two."""
    members = [
        {"key": ADA.public_key, "role": "moderator", "name": "ada"},
        {"key": BOB.public_key, "role": "member", "name": "bob"},
    ]
    writer = ThreadWriter.open(ADA, "release-42", members, nonce=bytes(16), sent_at=START)
    return writer.message(
        ADA, "m1", "Deploy build 7 to staging.", to=[BOB.public_key], epistemic="inferred", sent_at=START + 1000
    )


def explained(raw: bytes) -> list[Line]:
    """Return the lines that explain an envelope; their bytes, joined, are the envelope."""
    lines = [Line(0, raw[:1], 0, "tag 18, COSE_Sign1"), Line(1, raw[1:2], 0, "an array of 4")]
    inside, end = _string(raw, 2)
    lines.append(Line(2, raw[2:inside], 1, f"the protected header: a byte string of {end - inside}"))
    lines += _item(raw, inside, 2, header=True)[0]
    lines.append(Line(end, raw[end : end + 1], 1, "the unprotected header: an empty map"))
    start = end + 1
    inside, end = _string(raw, start)
    lines.append(Line(start, raw[start:inside], 1, f"the payload: a byte string of {end - inside}"))
    lines += _item(raw, inside, 2)[0]
    lines.append(Line(end, raw[end : end + 2], 1, "the signature: a byte string of 64"))
    lines.append(Line(end + 2, raw[end + 2 : end + 34], 2, "R"))
    lines.append(Line(end + 34, raw[end + 34 :], 2, "S"))
    return lines


def signed_bytes(raw: bytes) -> list[Line]:
    """Return the lines of the Sig_structure, cut from the envelope's own bytes."""
    _, header_end = _string(raw, 2)
    _, payload_end = _string(raw, header_end + 1)
    parts = [
        (b"\x84", "an array of 4"),
        (b"\x6aSignature1", '"Signature1"'),
        (raw[2:header_end], f"the protected header, the envelope's bytes 2 to {header_end - 1}"),
        (b"\x40", "external_aad: an empty byte string"),
        (
            raw[header_end + 1 : payload_end],
            f"the payload, its bytes {header_end + 1} to {payload_end - 1}",
        ),
    ]
    lines, offset = [], 0
    for data, meaning in parts:
        lines.append(Line(offset, data, 0, meaning))
        offset += len(data)
    return lines


def text() -> str:
    """Return what stands between the marks."""
    envelope = example()
    raw = envelope.raw
    structure = signed_bytes(raw)
    parts = [
        "This is a `message` in a thread of Ada, its owner, and Bob: a request to Bob. Ada's secret key, the 32-byte",
        "seed of RFC 8032, is 32 times the byte `01`, Bob's is 32 times `02`. The thread's open has `sent_at`",
        "1760000000000, `name` `release-42`, a `nonce` of 16 zero bytes, and the members `ada`, moderator, and `bob`,",
        "member.",
        "",
        f"    Ada        {did_key(ADA.public_key)}",
        f"    Bob        {did_key(BOB.public_key)}",
        f"    thread     {address_text(envelope.record.thread)}",
        f"    address    {address_text(envelope.address)}",
        "",
        f"The envelope has {len(raw)} bytes. Offsets are decimal; the first row of a string begins with its head.",
        "",
        *_table(explained(raw)),
        "",
        f"What Ada signed is the Sig_structure, {sum(len(line.data) for line in structure)} bytes:",
        "",
        *_table(structure),
    ]
    return "\n".join(parts) + "\n"


def _table(lines: list[Line]) -> Iterator[str]:
    for line in lines:
        for start in range(0, len(line.data), BYTES_A_LINE):
            piece = line.data[start : start + BYTES_A_LINE].hex(" ")
            meaning = "  " * line.depth + line.meaning if start == 0 else ""
            yield f"    {line.offset + start:>4}  {piece:<{3 * BYTES_A_LINE}} {meaning}".rstrip()


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """Return major type, argument and where the head ends."""
    major, info = divmod(data[at], 32)
    if info < 24:
        return major, info, at + 1
    end = at + 1 + (1 << info - 24)
    return major, int.from_bytes(data[at + 1 : end], "big"), end


def _string(data: bytes, at: int) -> tuple[int, int]:
    """Return where a byte string's content begins and ends."""
    _, length, inside = _head(data, at)
    return inside, inside + length


def _item(data: bytes, at: int, depth: int, name: str = "", *, header: bool = False) -> tuple[list[Line], int]:
    """Return the lines of the item at `at`, and where it ends."""
    major, argument, inside = _head(data, at)
    if major in (4, 5):
        plural = "s" if argument > 1 else ""
        what = f"an array of {argument}" if major == 4 else f"a map of {argument} pair{plural}"
        lines, end = [Line(at, data[at:inside], depth, what)], inside
        for _ in range(argument):
            label = name
            if major == 5:
                key = _head(data, end)[1] if header else data[slice(*_string(data, end))].decode()
                _, key_end = _item(data, end, depth)
                label = LABELS[key] if header else str(key)
                meaning = f"label {key}, {label}" if header else f'"{label}"'
                lines.append(Line(end, data[end:key_end], depth + 1, meaning))
                end = key_end
            more, end = _item(data, end, depth + (2 if major == 5 else 1), label)
            lines += more
        return lines, end
    end = inside + argument if major in (2, 3) else inside
    return [Line(at, data[at:end], depth, _meaning(major, argument, data[inside:end], name))], end


def _meaning(major: int, argument: int, content: bytes, name: str) -> str:
    if major == 0:
        return str(argument)
    if major == 1:
        return f"{-1 - argument}, Ed25519" if name == "alg" else str(-1 - argument)
    if major == 3:
        return f'"{content.decode()}"'
    return NAMES.get(content) or ("the address of the open" if name in ADDRESSES else f"{argument} bytes")


def main(arguments: list[str]) -> int:
    """Write the example into its place, or with `--check` return 1 if it is not up to date."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m tests.examplegen [--check]", file=sys.stderr)
        return 2
    before, _, rest = TARGET.read_text(encoding="utf-8").partition(BEGIN)
    current, _, after = rest.partition(END)
    if arguments:
        if current != text():
            print(f"the example in {TARGET.name} is not up to date: run python -m tests.examplegen", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(before + BEGIN + text() + END + after, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
