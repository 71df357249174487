"""The example in `spec/protocol.md` is what its generator makes, and says of its bytes what is so."""

import re
import shutil
from itertools import pairwise
from pathlib import Path

import cbor2
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from envelope import open_envelope, parse_did
from tests import examplegen

ROW = re.compile(r" {4} *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: {2,}(.*))?")


def stated() -> str:
    """Return the example as it stands in the document."""
    text = examplegen.TARGET.read_text(encoding="utf-8")
    return text.partition(examplegen.BEGIN)[2].partition(examplegen.END)[0]


def tables() -> list[tuple[bytes, list[tuple[int, bytes, str]]]]:
    """Return the bytes of each table of the example, and its rows."""
    found = []
    for block in re.split(r"\n\n", stated()):
        rows = [match for line in block.splitlines() if (match := ROW.fullmatch(line))]
        if rows:
            cells = [(int(row[1]), bytes.fromhex(row[2]), row[3] or "") for row in rows]
            found.append((b"".join(data for _, data, _ in cells), cells))
    return found


def test_the_example_is_what_its_generator_makes() -> None:
    assert stated() == examplegen.text()


def test_the_generator_notices_an_example_that_is_not_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "protocol.md"
    shutil.copy(examplegen.TARGET, copy)
    monkeypatch.setattr(examplegen, "TARGET", copy)
    original = copy.read_text(encoding="utf-8")
    assert examplegen.main(["--check"]) == 0
    copy.write_text(original.replace("COSE_Sign1\n     ", "COSE_Sign\n     "), encoding="utf-8")
    assert examplegen.main(["--check"]) == 1
    assert "not up to date" in capsys.readouterr().err
    assert examplegen.main([]) == 0
    assert copy.read_text(encoding="utf-8") == original
    assert examplegen.main(["--help"]) == 2


def test_the_rows_of_the_first_table_are_an_envelope_that_opens() -> None:
    envelope = open_envelope(tables()[0][0])
    assert envelope == examplegen.example()
    assert f"    address    b3:{blake3(envelope.raw).hexdigest()}\n" in stated()
    assert f"    thread     b3:{envelope.record.thread.hex()}\n" in stated()
    assert f"The envelope has {len(envelope.raw)} bytes." in stated()


def test_the_rows_of_the_second_table_are_the_bytes_that_were_signed() -> None:
    raw, signed = (data for data, _ in tables())
    protected, _, payload, signature = cbor2.loads(raw).value
    assert signed == cbor2.dumps(["Signature1", protected, b"", payload])
    key = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
    assert key.sign(signed) == signature
    Ed25519PublicKey.from_public_bytes(open_envelope(raw).signer).verify(signature, signed)


def test_the_keys_in_text_are_those_of_the_stated_seeds() -> None:
    for name, seed in (("Ada", 1), ("Bob", 2)):
        did = re.search(rf"^    {name} +(did:key:\S+)$", stated(), re.MULTILINE)
        assert did is not None
        public = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32).public_key().public_bytes_raw()
        assert parse_did(did[1]) == public


def test_every_row_stands_at_its_offset() -> None:
    for _, rows in tables():
        place = 0
        for offset, data, _ in rows:
            assert offset == place
            place += len(data)


def test_every_byte_has_a_meaning_and_no_meaning_covers_more_than_one_item() -> None:
    rows = tables()[0][1]
    assert rows[0][2]
    for before, (_, data, meaning) in pairwise(rows):
        assert meaning or len(before[1]) == examplegen.BYTES_A_LINE, data
    said = [meaning.strip() for _, _, meaning in rows if meaning]
    for phrase in ("tag 18, COSE_Sign1", "-19, Ed25519", '"Deploy build 7 to staging."', "Ada's public key", "R", "S"):
        assert phrase in said


def test_the_example_keeps_to_the_document_s_width() -> None:
    assert max(map(len, stated().splitlines())) <= 120
