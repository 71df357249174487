"""Ed25519 identities and the one signature rule.

Signing and verifying use libsodium. What a key and a signature may be is decided here (`spec/protocol.md`, "Ed25519"),
since libraries differ: canonical encodings, no point of small order, S < L, the cofactorless equation of RFC 8032.
Keys of mixed order are accepted. Key files are PKCS#8 PEM through `cryptography`.
"""

import os
from pathlib import Path
from typing import Final

from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.bindings import crypto_sign, crypto_sign_open
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey

from envelope.errors import EnvelopeError
from envelope.files import write_whole

PublicKey = bytes
"""A raw Ed25519 public key, 32 bytes."""

_ORDER: Final = (1 << 252) + 27742317777372353535851937790883648493
_P: Final = (1 << 255) - 19
_SIGN: Final = 1 << 255
_Y8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7

SMALL_ORDER: Final = frozenset(
    (y | sign).to_bytes(32, "little") for y in (0, 1, _Y8, _P - _Y8, _P - 1, _P, _P + 1) for sign in (0, _SIGN)
)
"""The 14 encodings of points of small order: 8 canonical ones, and 6 with y >= p or with x = 0 and the sign bit set."""

_MAX_KEY_FILE: Final = 65_536
_MAX_PASSPHRASE: Final = 1000

_DID: Final = "did:key:z"
_MULTICODEC: Final = b"\xed\x01"
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def verify(public_key: PublicKey, signature: bytes, message: bytes) -> None:
    """Return if `signature` over `message` holds under `public_key` (rules 5.1 to 6.5).

    Raises:
        EnvelopeError: `key.*` or `signature.*`.
    """
    check_public_key(public_key)
    check_signature(public_key, signature, message)


def check_signature(public_key: PublicKey, signature: bytes, message: bytes) -> None:
    """Return if `signature` over `message` holds under a key that `check_public_key` let pass (rules 6.1 to 6.5).

    Raises:
        EnvelopeError: `signature.*`.
    """
    if len(signature) != 64:
        raise EnvelopeError("signature.length", f"the signature is {len(signature)} bytes, not 64")
    if signature[63] >= 0x10 and int.from_bytes(signature[32:], "little") >= _ORDER:
        raise EnvelopeError("signature.scalar", "the signature's S is not less than the group order")
    point = signature[:32]
    if point in SMALL_ORDER:
        raise EnvelopeError("signature.small_order", "the signature's R is a point of small order")
    if point[31] & 0x7F == 0x7F and _noncanonical(point):
        raise EnvelopeError("signature.noncanonical", "the y coordinate of the signature's R is not less than p")
    try:
        crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        raise EnvelopeError("signature.invalid", "the signature does not hold for these bytes and this key") from None


def check_public_key(public_key: bytes) -> None:
    """Return if the bytes are acceptable as a key (rules 5.1 to 5.3); the point itself is not decoded.

    Raises:
        EnvelopeError: `key.length`, `key.small_order`, `key.noncanonical`.
    """
    if len(public_key) != 32:
        raise EnvelopeError("key.length", f"the public key is {len(public_key)} bytes, not 32")
    if public_key in SMALL_ORDER:
        raise EnvelopeError("key.small_order", "the public key is a point of small order")
    if public_key[31] & 0x7F == 0x7F and _noncanonical(public_key):
        raise EnvelopeError("key.noncanonical", "the public key's y coordinate is not less than p")


def _noncanonical(point: bytes) -> bool:
    return int.from_bytes(point, "little") & (_SIGN - 1) >= _P


def did_key(public_key: PublicKey) -> str:
    """Return the did:key of a public key: `did:key:z6Mk…` (multicodec 0xed01, base58btc)."""
    number = int.from_bytes(_MULTICODEC + public_key, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return _DID + digits


def parse_did(text: str) -> PublicKey:
    """Return the public key of a did:key.

    Raises:
        EnvelopeError: `did.malformed`, or `key.*` for a key that the signature rule refuses.
    """
    digits = text.removeprefix(_DID)
    if not text.startswith(_DID) or len(digits) != 47 or any(digit not in _BASE58 for digit in digits):
        raise EnvelopeError("did.malformed", f"{text[:80]!r} is no did:key of an Ed25519 key (did:key:z6Mk…)")
    number = 0
    for digit in digits:
        number = number * 58 + _BASE58.index(digit)
    raw = number.to_bytes(35, "big").lstrip(b"\0")
    if len(raw) != 34 or raw[:2] != _MULTICODEC:
        raise EnvelopeError("did.malformed", f"{text!r} does not hold the 34 bytes of an Ed25519 key")
    check_public_key(raw[2:])
    return raw[2:]


def _passphrase(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        secret = text.encode()
    except UnicodeEncodeError:
        raise EnvelopeError("key.passphrase", "the passphrase is no text that UTF-8 can encode") from None
    if not 1 <= len(secret) <= _MAX_PASSPHRASE:
        raise EnvelopeError("key.passphrase", f"the passphrase is not 1 to {_MAX_PASSPHRASE} bytes")
    return secret


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


class Identity:
    """An Ed25519 key pair that signs. Its secret is shown by nothing but `save`."""

    __slots__ = ("_secret", "public_key")

    public_key: PublicKey

    def __init__(self, key: SigningKey) -> None:
        self.public_key = bytes(key.verify_key)
        self._secret = bytes(key) + self.public_key  # as libsodium holds it

    def __repr__(self) -> str:
        return f"<Identity {self.did}>"

    @classmethod
    def generate(cls) -> "Identity":
        """Return a new identity from the system's randomness."""
        return cls(SigningKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        """Return the identity of a 32-byte seed (RFC 8032 §5.1.5); for published test keys.

        Raises:
            EnvelopeError: `key.length`.
        """
        if len(seed) != 32:
            raise EnvelopeError("key.length", f"the seed is {len(seed)} bytes, not 32")
        return cls(SigningKey(seed))

    @classmethod
    def load(cls, path: str | os.PathLike[str], passphrase: str | None = None) -> "Identity":
        """Read a PKCS#8 PEM key file.

        Raises:
            EnvelopeError: `key.file`, `key.passphrase`.
        """
        try:
            with Path(path).open("rb") as file:
                data = file.read(_MAX_KEY_FILE)
        except (OSError, ValueError) as error:
            raise EnvelopeError("key.file", f"{path}: {_reason(error)}") from None
        encrypted = b"ENCRYPTED" in data
        if encrypted and not passphrase:
            raise EnvelopeError("key.passphrase", f"{path}: the key is encrypted; give its passphrase")
        if not encrypted and passphrase is not None:
            raise EnvelopeError("key.passphrase", f"{path}: the key is not encrypted; give no passphrase")
        secret = _passphrase(passphrase) if encrypted else None
        try:
            key = serialization.load_pem_private_key(data, secret)
        except (ValueError, TypeError, UnsupportedAlgorithm, InternalError):
            if encrypted:
                raise EnvelopeError("key.passphrase", f"{path}: another passphrase, or a broken file") from None
            raise EnvelopeError("key.file", f"{path}: no PKCS#8 PEM private key") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise EnvelopeError("key.file", f"{path}: a private key, but not of Ed25519")
        return cls.from_seed(key.private_bytes_raw())

    def save(self, path: str | os.PathLike[str], passphrase: str | None = None) -> None:
        """Write a new PKCS#8 PEM key file, readable by its owner only; never over an existing file.

        Raises:
            EnvelopeError: `key.file`; nothing is left behind then. `key.passphrase` for one that is empty or too long.
        """
        secret = _passphrase(passphrase)
        data = Ed25519PrivateKey.from_private_bytes(self._secret[:32]).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption(),
        )
        try:
            write_whole(Path(path), [data], replace=False, mode=0o600)
        except (OSError, ValueError) as error:
            raise EnvelopeError("key.file", f"{path}: {_reason(error)}; nothing was written") from None

    @property
    def did(self) -> str:
        """The public key as a did:key."""
        return did_key(self.public_key)

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte deterministic Ed25519 signature of `message` (RFC 8032)."""
        return crypto_sign(message, self._secret)[:64]
