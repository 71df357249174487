"""Every signature and address of the vectors, derived again with cbor2, cryptography and blake3 alone."""

from typing import Any

import cbor2
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.cddl import validate_envelope
from tests.conformance import vectors

ALL = vectors()
POSITIVE = sorted(name for name, vector in ALL.items() if "derive" not in vector)
MEASURED = sorted(name for name, vector in ALL.items() if "intermediates" in vector)


def parts(raw: bytes) -> tuple[bytes, dict[Any, Any], bytes, bytes]:
    """Return protected header, unprotected header, payload and signature of an envelope."""
    envelope = cbor2.loads(raw)
    assert envelope.tag == 18
    protected, unprotected, payload, signature = envelope.value
    return protected, unprotected, payload, signature


def sig_structure(raw: bytes) -> bytes:
    """Return what is signed (RFC 9052 §4.4)."""
    protected, _, payload, _ = parts(raw)
    return cbor2.dumps(["Signature1", protected, b"", payload])


def address(raw: bytes) -> bytes:
    return blake3(raw).digest()


def records(name: str, field: str = "records") -> list[bytes]:
    return [bytes.fromhex(text) for text in ALL[name]["input"].get(field, [])]


@pytest.mark.parametrize("name", POSITIVE)
def test_every_signature_of_a_positive_case_holds(name: str) -> None:
    for raw in records(name) + records(name, "proofs"):
        protected, unprotected, _, signature = parts(raw)
        header = cbor2.loads(protected)
        assert unprotected == {}
        assert list(header) == [1, 4, 16]
        assert header[1] == -19
        Ed25519PublicKey.from_public_bytes(header[4]).verify(signature, sig_structure(raw))


@pytest.mark.parametrize("name", POSITIVE)
def test_every_encoding_of_a_positive_case_is_the_deterministic_one(name: str) -> None:
    for raw in records(name) + records(name, "proofs"):
        protected, _, payload, _ = parts(raw)
        assert cbor2.dumps(cbor2.loads(raw), canonical=True) == raw
        assert cbor2.dumps(cbor2.loads(protected), canonical=True) == protected
        assert cbor2.dumps(cbor2.loads(payload), canonical=True) == payload


@pytest.mark.parametrize("name", POSITIVE)
def test_every_record_of_a_positive_case_is_linked_to_those_before_it(name: str) -> None:
    chain: list[bytes] = []
    standing: list[bytes] = []
    for raw in records(name):
        body = cbor2.loads(parts(raw)[2])
        if "seq" in body:
            assert body["seq"] == len(chain)
            assert body.get("receipts", []) == standing
            if chain:
                assert (body["thread"], body["prev"]) == (chain[0], chain[-1])
            chain.append(address(raw))
            standing = []
        else:
            assert body["thread"] == chain[0]
            standing.append(address(raw))


@pytest.mark.parametrize("name", POSITIVE)
def test_every_record_of_a_positive_case_is_of_the_schema(name: str) -> None:
    for raw in records(name) + records(name, "proofs"):
        validate_envelope(raw)


@pytest.mark.parametrize("name", MEASURED)
def test_intermediates_are_those_of_the_failing_record_or_of_the_last(name: str) -> None:
    vector = ALL[name]
    at = vector["expect"]["at"]
    raw = records(name)[-1 if at is None else at]
    assert bytes.fromhex(vector["intermediates"]["sig_structure"]) == sig_structure(raw)
    assert vector["intermediates"]["address"] == "b3:" + address(raw).hex()


SIGNED = [
    name
    for name in MEASURED
    if (code := ALL[name]["expect"]["code"]) and not code.startswith(("cbor.", "header.", "key.", "signature."))
]


@pytest.mark.parametrize("name", SIGNED)
def test_the_signature_of_a_record_that_is_refused_for_what_it_says_holds(name: str) -> None:
    raw = records(name)[ALL[name]["expect"]["at"]]
    protected, _, _, signature = parts(raw)
    Ed25519PublicKey.from_public_bytes(cbor2.loads(protected)[4]).verify(signature, sig_structure(raw))


def test_nearly_every_case_has_intermediates() -> None:
    assert len(MEASURED) > 0.9 * len(ALL)
