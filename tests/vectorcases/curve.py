"""Ed25519 by the equations of RFC 8032, slow and complete: for signatures that no library would make."""

import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, P - 2, P) % P
_SQRT_MINUS_1 = pow(2, (P - 1) // 4, P)

Point = tuple[int, int]

IDENTITY: Point = (0, 1)
OF_ORDER_2: Point = (0, P - 1)


def _recover_x(y: int, sign: int) -> int:
    square = (y * y - 1) * pow(_D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * _SQRT_MINUS_1 % P
    if (x * x - square) % P:
        raise ValueError("not a point of the curve")
    return P - x if x % 2 != sign else x


BASE: Point = (_recover_x(4 * pow(5, P - 2, P) % P, 0), 4 * pow(5, P - 2, P) % P)


def add(a: Point, b: Point) -> Point:
    """Return the sum of two points."""
    product = _D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + product, P - 2, P)
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, P - 2, P)
    return x % P, y % P


def times(factor: int, point: Point) -> Point:
    """Return the multiple of a point."""
    total = IDENTITY
    while factor:
        if factor & 1:
            total = add(total, point)
        point = add(point, point)
        factor >>= 1
    return total


def encode(point: Point) -> bytes:
    """Return the 32 bytes of a point."""
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def decode(data: bytes) -> Point:
    """Return the point of 32 bytes."""
    number = int.from_bytes(data, "little")
    y = number & ((1 << 255) - 1)
    return _recover_x(y, number >> 255), y


def scalar_of(seed: bytes) -> int:
    """Return the secret scalar of a seed (RFC 8032 §5.1.5)."""
    low = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    return low & ((1 << 254) - 8) | 1 << 254


def challenge(commitment: bytes, key: bytes, message: bytes) -> int:
    """Return k, reduced modulo the group order."""
    return int.from_bytes(hashlib.sha512(commitment + key + message).digest(), "little") % ORDER


def sign(scalar: int, key: bytes, message: bytes, nonce: int, commitment: bytes | None = None) -> bytes:
    """Return the signature that a scalar makes under `key` with a nonce of one's choice.

    `commitment` stands in for the encoding of [nonce]B where it is given.
    """
    commitment = encode(times(nonce, BASE)) if commitment is None else commitment
    s = (nonce + challenge(commitment, key, message) * scalar) % ORDER
    return commitment + s.to_bytes(32, "little")
