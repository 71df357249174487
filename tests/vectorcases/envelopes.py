"""Cases of the stages cose to signature: structure, protected header, keys and signatures.

Where a defect leaves the bounds of the record unknown, the record is the file's last one.
"""

from tests.vectorcases import curve
from tests.vectorcases.build import encode, key, seed
from tests.vectorcases.case import negative
from tests.vectorcases.moves import Change, craft, swap
from tests.vectorcases.wire import header, outer, relabelled

REQUEST = "thread.request"

# COSE


def tagged(label: str, tag: bytes) -> Change:
    """Put another tag, or none, before the array."""
    return craft(label, raw=lambda data: tag + data[1:])


negative(
    "cose.tag", "none", REQUEST,
    "The last envelope is an untagged COSE_Sign1.",
    tagged("end", b""), at="end",
)  # fmt: skip
negative(
    "cose.tag", "mac", REQUEST,
    "The last envelope has the tag of COSE_Mac0, 17.",
    tagged("end", b"\xd1"), at="end",
)  # fmt: skip
negative(
    "cose.tag", "long", REQUEST,
    "The tag 18 of the last envelope is written in two bytes.",
    tagged("end", b"\xd8\x12"), at="end",
)  # fmt: skip
negative(
    "cose.shape", "unsigned", REQUEST,
    "The envelope has no signature: it is an array of three.",
    outer("end", lambda *parts: b"\xd2\x83" + parts[0] + b"\xa0" + parts[1]), at="end",
)  # fmt: skip
negative(
    "cose.shape", "five", REQUEST,
    "The envelope has a fifth element.",
    outer("end", lambda *parts: b"\xd2\x85" + parts[0] + b"\xa0" + parts[1] + parts[2] + b"\x40"), at="end",
)  # fmt: skip
negative(
    "cose.shape", "open-header", REQUEST,
    "The protected header is empty text.",
    outer("end", lambda *parts: b"\xd2\x84" + b"\x60" + b"\xa0" + parts[1] + parts[2]), at="end",
)  # fmt: skip
negative(
    "cose.shape", "signatures", REQUEST,
    "The signature stands in an array.",
    outer("end", lambda *parts: b"\xd2\x84" + parts[0] + b"\xa0" + parts[1] + b"\x81" + parts[2]), at="end",
)  # fmt: skip
negative(
    "cose.shape", "map", REQUEST,
    "The tag encloses an empty map.",
    outer("end", lambda *parts: b"\xd2\xa0"), at="end",
)  # fmt: skip
negative(
    "cose.unprotected", "algorithm", REQUEST,
    "The unprotected header names the algorithm once more.",
    outer("end", lambda *parts: b"\xd2\x84" + parts[0] + b"\xa1\x01\x32" + parts[1] + parts[2]), at="end",
)  # fmt: skip
negative(
    "cose.unprotected", "key", REQUEST,
    "The unprotected header names another key.",
    outer("end", lambda *parts: b"\xd2\x84" + parts[0] + encode({4: key("mal")}) + parts[1] + parts[2]), at="end",
)  # fmt: skip

# Header

negative(
    "header.labels", "critical", REQUEST,
    "The protected header has an empty list of critical labels.",
    header("ask", lambda right: right | {2: []}), at="ask",
)  # fmt: skip
negative(
    "header.labels", "no-key", REQUEST,
    "The protected header names no key.",
    header("ask", lambda right: {1: right[1], 16: right[16]}), at="ask",
)  # fmt: skip
negative(
    "header.labels", "empty", REQUEST,
    "The protected header is the empty map.",
    header("ask", lambda right: {}), at="ask",
)  # fmt: skip
negative(
    "header.labels", "array", REQUEST,
    "The protected header is an array.",
    header("end", lambda right: [*right.values()]), at="end",
)  # fmt: skip
negative(
    "header.labels", "content-type", REQUEST,
    "The protected header has a content type under label 3.",
    header("bob-yes", lambda right: right | {3: "text/plain"}), at="bob-yes",
)  # fmt: skip
negative(
    "header.alg_eddsa", "open", "thread.smallest",
    "The algorithm of the open is EdDSA.",
    relabelled("open", alg=-8), at="open",
)  # fmt: skip
negative(
    "header.alg_eddsa", "ack", REQUEST,
    "The algorithm of an acknowledgement is EdDSA.",
    relabelled("bob-yes", alg=-8), at="bob-yes",
)  # fmt: skip
negative(
    "header.alg", "es256", REQUEST,
    "The algorithm is ES256 (-7).",
    relabelled("ask", alg=-7), at="ask",
)  # fmt: skip
negative(
    "header.alg", "text", REQUEST,
    "The algorithm is the text Ed25519.",
    relabelled("ask", alg="Ed25519"), at="ask",
)  # fmt: skip
negative(
    "header.alg", "none", REQUEST,
    "The algorithm is the reserved 0.",
    relabelled("end", alg=0), at="end",
)  # fmt: skip
negative(
    "header.kid", "short", REQUEST,
    "The key id lacks its last byte.",
    header("ask", lambda right: right | {4: right[4][:-1]}), at="ask",
)  # fmt: skip
negative(
    "header.kid", "long", REQUEST,
    "The key id has a byte more, as with a multicodec.",
    header("ask", lambda right: right | {4: b"\xed\x01" + right[4]}), at="ask",
)  # fmt: skip
negative(
    "header.kid", "text", REQUEST,
    "The key id is a text of 32 bytes.",
    relabelled("bob-ok", kid="k" * 32), at="bob-ok",
)  # fmt: skip
negative(
    "header.typ", "other", REQUEST,
    "The type is application/cose.",
    relabelled("ask", typ="application/cose"), at="ask",
)  # fmt: skip
negative(
    "header.typ", "upper-case", REQUEST,
    "The kind in the type has a capital.",
    relabelled("ask", typ="application/vnd.envelope.Message+cose"), at="ask",
)  # fmt: skip
negative(
    "header.typ", "parameter", REQUEST,
    "The type has a parameter.",
    relabelled("ask", typ="application/vnd.envelope.message+cose; v=1"), at="ask",
)  # fmt: skip
negative(
    "header.typ", "no-kind", REQUEST,
    "The kind in the type is empty.",
    relabelled("end", typ="application/vnd.envelope.+cose"), at="end",
)  # fmt: skip
negative(
    "header.typ", "number", REQUEST,
    "The type is the number of a content format.",
    relabelled("end", typ=18), at="end",
)  # fmt: skip

# Keys


def weak_key(label: str, kid: bytes, order: int) -> Change:
    """Sign under a key of small order, for which anybody finds signatures that the equation accepts."""

    def sign(message: bytes) -> bytes:
        nonce = 1
        while curve.challenge(commitment := curve.encode(curve.times(nonce, curve.BASE)), kid, message) % order:
            nonce += 1
        return commitment + nonce.to_bytes(32, "little")

    return craft(label, kid=kid, sign=sign)


def coordinate(y: int, sign: int = 0) -> bytes:
    """Return the encoding of a y coordinate, canonical or not."""
    return (y | sign << 255).to_bytes(32, "little")


ORDER_8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")

negative(
    "key.small_order", "identity", REQUEST,
    "A message is signed under the neutral element, for which one signature fits every message.",
    weak_key("ask", coordinate(1), 1), at="ask",
)  # fmt: skip
negative(
    "key.small_order", "order-8", REQUEST,
    "A message is signed under a point of order 8, with a signature that the equation accepts.",
    weak_key("ask", ORDER_8, 8), at="ask",
)  # fmt: skip
negative(
    "key.small_order", "twin", REQUEST,
    "A message is signed under a second encoding of the neutral element.",
    weak_key("ask", coordinate(curve.P + 1), 1), at="ask",
)  # fmt: skip
negative(
    "key.noncanonical", "p-plus-3", REQUEST,
    "The key id encodes a y coordinate of p + 3.",
    craft("ask", kid=coordinate(curve.P + 3)), at="ask",
)  # fmt: skip
negative(
    "key.noncanonical", "highest", REQUEST,
    "The key id is 32 bytes ff: y is p + 18 and the sign bit is set.",
    craft("end", kid=b"\xff" * 32), at="end",
)  # fmt: skip

# Signatures


def own_signature(label: str, by: str, nonce: int, commitment: bytes | None = None) -> Change:
    """Sign with the right key, but with a nonce of one's own, and a commitment that need not be the nonce's."""
    scalar = curve.scalar_of(seed(by))
    return craft(label, sign=lambda message: curve.sign(scalar, key(by), message, nonce, commitment))


def plus_order(label: str, times: int) -> Change:
    """Add a multiple of the group order to S."""

    def change(signature: bytes) -> bytes:
        s = int.from_bytes(signature[32:], "little") + times * curve.ORDER
        return signature[:32] + s.to_bytes(32, "little")

    return craft(label, signature=change)


negative(
    "signature.length", "short", REQUEST,
    "The signature has 63 bytes.",
    craft("end", signature=lambda right: right[:-1]), at="end",
)  # fmt: skip
negative(
    "signature.length", "long", REQUEST,
    "The signature has 65 bytes.",
    craft("end", signature=lambda right: right + b"\x00"), at="end",
)  # fmt: skip
negative(
    "signature.length", "empty", REQUEST,
    "The signature is empty.",
    craft("end", signature=lambda right: b""), at="end",
)  # fmt: skip
negative(
    "signature.scalar", "plus-order", REQUEST,
    "The group order is added to S.",
    plus_order("ask", 1), at="ask",
)  # fmt: skip
negative(
    "signature.scalar", "plus-fourteen", REQUEST,
    "The group order is added to S fourteen times.",
    plus_order("ask", 14), at="ask",
)  # fmt: skip
negative(
    "signature.scalar", "all-ones", REQUEST,
    "The signature is 64 bytes ff.",
    craft("end", signature=lambda right: b"\xff" * 64), at="end",
)  # fmt: skip
negative(
    "signature.small_order", "identity", REQUEST,
    "R is the neutral element, and the equation holds.",
    own_signature("ask", "ada", 0, coordinate(1)), at="ask",
)  # fmt: skip
negative(
    "signature.small_order", "twin", REQUEST,
    "R is a second encoding of the neutral element, and the equation holds for the point.",
    own_signature("ask", "ada", 0, coordinate(curve.P + 1)), at="ask",
)  # fmt: skip
negative(
    "signature.small_order", "order-8", REQUEST,
    "R is a point of order 8, and the equation holds once multiplied by the cofactor.",
    own_signature("ask", "ada", 0, ORDER_8), at="ask",
)  # fmt: skip
negative(
    "signature.noncanonical", "p-plus-3", REQUEST,
    "R encodes a y coordinate of p + 3.",
    own_signature("ask", "ada", 1, coordinate(curve.P + 3)), at="ask",
)  # fmt: skip
negative(
    "signature.noncanonical", "highest", REQUEST,
    "R encodes a y coordinate of p + 18, with the sign bit set.",
    own_signature("ask", "ada", 1, coordinate(curve.P + 18, 1)), at="ask",
)  # fmt: skip
negative(
    "signature.invalid", "cofactor", REQUEST,
    "R has a component of order 2, so that the equation holds only once multiplied by the cofactor.",
    own_signature("ask", "ada", 1, curve.encode(curve.add(curve.BASE, curve.OF_ORDER_2))), at="ask",
)  # fmt: skip
negative(
    "signature.invalid", "payload", REQUEST,
    "One letter of a message is changed after signing.",
    craft("ask", raw=lambda data: swap(data, b"Check the build.", b"Check the guild.")), at="ask",
)  # fmt: skip
negative(
    "signature.invalid", "two", REQUEST,
    "The signatures of two records are those of other bytes.",
    craft("ask", signed=lambda right: right + b"\x00"), craft("end", signed=lambda right: right + b"\x00"), at="ask",
    later=[("signature.invalid", "end")],
)  # fmt: skip
negative(
    "signature.invalid", "tip-behind", "thread.tip-is-seal",
    "A message before the seal that the verifier knows is changed after signing.",
    craft("say", raw=lambda data: swap(data, b"is green.", b"is greed.")), at="say",
    notes=[("tip.missing", None)], completeness="truncated",
)  # fmt: skip
negative(
    "signature.invalid", "kind", REQUEST,
    "A settle is called a roster record after signing.",
    craft("done", raw=lambda data: swap(data, b"envelope.settle+cose", b"envelope.roster+cose")), at="done",
)  # fmt: skip
negative(
    "signature.invalid", "signer", REQUEST,
    "A message is signed by another member than its header names.",
    craft("ask", kid=key("hal")), at="ask",
)  # fmt: skip
negative(
    "signature.invalid", "context", REQUEST,
    "What is signed is the Sig_structure of another COSE structure.",
    craft("end", signed=lambda right: swap(right, b"\x6aSignature1", b"\x69Signature")), at="end",
)  # fmt: skip
negative(
    "signature.invalid", "bare", REQUEST,
    "What is signed is the header and the payload without the Sig_structure around them.",
    craft("end", signed=lambda right: right[12:]), at="end",
)  # fmt: skip
negative(
    "signature.invalid", "zero", REQUEST,
    "All bits of S are zero.",
    craft("end", signature=lambda right: right[:32] + bytes(32)), at="end",
)  # fmt: skip
