"""The record kinds of the protocol as frozen, strict models (`spec/protocol.md`, "Records").

A model states what one record must satisfy by itself; what depends on the thread around it is `envelope.thread`'s.
Fields are Python values of the CBOR profile: keys and addresses 32 bytes, times milliseconds since the epoch.
An optional field is absent (`None`) or holds something: a list or map is never empty, a flag never false.
"""

from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticSerializationError

from envelope import cbor
from envelope.errors import EnvelopeError
from envelope.keys import check_public_key
from envelope.rules import BY_CODE

_BLANK: Final = "\t\n\r "
_PLAIN: Final = frozenset((bytes, str, int, bool))
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"

T = TypeVar("T")


def _acceptable(key: bytes) -> bytes:
    try:
        check_public_key(key)
    except EnvelopeError as error:
        raise PydanticCustomError("body.key", "{why}", {"why": error.text}) from None
    return key


def _ascending(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(values) > 1 and any(a >= b for a, b in pairwise(values)):  # type: ignore[operator]
        raise PydanticCustomError("body.order", "the list does not ascend strictly")
    return values


def _not_blank(text: str) -> str:
    if not text.strip(_BLANK):
        raise PydanticCustomError("body.blank", "the text is blank")
    return text


def _bounded(limit: int) -> AfterValidator:
    def check(text: str) -> str:
        if len(text) * 4 > limit and len(text.encode("utf-8", "surrogatepass")) > limit:
            raise PydanticCustomError("body.size", "the text is longer than {limit} bytes", {"limit": limit})
        return text

    return AfterValidator(check)


def _displayable(text: str) -> str:
    if not text or len(text.encode("utf-8", "surrogatepass")) > 128:
        raise PydanticCustomError("body.display", "a display name is 1 to 128 bytes")
    for char in text:
        if char in _HIDDEN:
            raise PydanticCustomError("body.display", "a display name holds U+{code}", {"code": f"{ord(char):04X}"})
    return text


_HIDDEN: Final = frozenset(
    chr(code)
    for first, last in (
        (0x0, 0x1F), (0x7F, 0x9F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2069), (0xFEFF, 0xFEFF),
    )
    for code in range(first, last + 1)
)  # fmt: skip


def _freeze(value: Any, depth: int = 1) -> Any:
    if depth > cbor.MAX_DEPTH:
        raise PydanticCustomError("cbor.depth", "ext nests too deep")
    if isinstance(value, dict | MappingProxyType):
        return MappingProxyType({key: _freeze(item, depth + 1) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_freeze(item, depth + 1) for item in value)
    return value


def _thaw(value: Any) -> Any:
    if isinstance(value, dict | MappingProxyType):
        return {key: _thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_thaw(item) for item in value]
    return value


def _not_default(media_type: str) -> str:
    if media_type == "text/plain":
        raise PydanticCustomError("body.default", "text/plain is the default and is not written")
    return media_type


def _raised(flag: bool) -> bool:
    if not flag:
        raise PydanticCustomError("body.value", "a flag is absent or true")
    return flag


def _text_or(limit: int | None) -> WrapValidator:
    """Take text of at most `limit` bytes that is not blank, and leave anything else to the model of blobs."""

    def check(value: Any, blob: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, str):
            return blob(value)
        if limit is not None and len(value) * 4 > limit and len(value.encode("utf-8", "surrogatepass")) > limit:
            raise PydanticCustomError("body.size", "the text is longer than {limit} bytes", {"limit": limit})
        return _not_blank(value)

    return WrapValidator(check)


def _upto(most: int | None) -> Any:
    """Bound a list that is never empty; one bad item is enough to refuse it."""
    return Field(fail_fast=True, min_length=1, max_length=most)


Address = Annotated[bytes, Field(min_length=32, max_length=32)]
Key = Annotated[bytes, Field(min_length=32, max_length=32), AfterValidator(_acceptable)]
Time = Annotated[int, Field(ge=0)]
Limit = Annotated[int, Field(ge=1)]
Flag = Annotated[bool, AfterValidator(_raised)]
Id = Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._#-]{0,127}\z")]
Name = Annotated[str, Field(pattern=rf"\A{_NAME}\z")]
PathElement = Annotated[str, Field(pattern=rf"\A{_NAME}(#([2-9]|[1-9][0-9]{{1,8}}))?\z")]
Capability = Annotated[str, Field(pattern=r"\A[a-z0-9][a-z0-9._-]{0,63}\z")]
MediaType = Annotated[
    str,
    Field(pattern=r"\A[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}\z"),
    AfterValidator(_not_default),
]
DisplayName = Annotated[str, AfterValidator(_displayable)]
Text = Annotated[str, AfterValidator(_not_blank)]
Path = Annotated[tuple[PathElement, ...], Strict(False), _upto(8)]
Keys = Annotated[tuple[Key, ...], Strict(False), _upto(256), AfterValidator(_ascending)]
Addresses64 = Annotated[tuple[Address, ...], Strict(False), _upto(64)]
Receipts = Annotated[tuple[Address, ...], Strict(False), _upto(4096)]
Ext = Annotated[
    dict[
        Annotated[str, Field(pattern=r"\A[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9._-]+)?\z")],
        Any,
    ],
    Field(min_length=1),
    AfterValidator(_freeze),
    PlainSerializer(_thaw),
]

Role = Literal["moderator", "member", "approver", "observer"]
Intent = Literal["assert", "query", "request", "challenge", "retract", "escalate"]
Epistemic = Literal["verified", "inferred", "assumed", "untrusted-input"]
Outcome = Literal["completed", "failed", "rejected", "over_budget", "cancelled"]


class _Map(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", revalidate_instances="always")


class Blob(_Map):
    """Content that stands outside the thread: 16 random bytes and the content, by address; `bytes` is its length."""

    address: Address
    bytes: Annotated[int, Field(ge=17)]


Content = Annotated[str | Annotated[Blob, Strict(False)], Field(union_mode="left_to_right"), _text_or(65_536)]
Payload = Annotated[str | Annotated[Blob, Strict(False)], Field(union_mode="left_to_right"), _text_or(None)]


class Member(_Map):
    """One entry of an open: who takes part, as what, under which name."""

    key: Key
    role: Role
    name: Name
    card: Address | None = None


def _roster(members: tuple[Member, ...]) -> tuple[Member, ...]:
    if any(a.key >= b.key for a, b in pairwise(members)):
        raise PydanticCustomError("body.order", "the members do not ascend by key")
    if len({member.name for member in members}) < len(members):
        raise PydanticCustomError("open.names", "two members have one name")
    return members


class Limits(_Map):
    """What the owner may send: bytes of payload and number of messages."""

    bytes: Limit | None = None
    messages: Limit | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.bytes is None and self.messages is None:
            raise PydanticCustomError("body.empty", "limits are stated but empty")
        return self


class Provenance(_Map):
    """Where a payload comes from: a source, the keys it passed through (oldest first), addresses of evidence."""

    source: Annotated[Text, _bounded(256)]
    chain: Annotated[tuple[Key, ...], Strict(False), _upto(64)] | None = None
    evidence: Addresses64 | None = None


class Settled(_Map):
    """What became of a message, or of a step that sent none."""

    message: Address | None = None
    step: Path | None = None
    outcome: Literal["succeeded", "failed", "approved", "skipped"]
    by: Address | None = None
    attempts: Limit | None = None
    status: Name | None = None
    result: Content | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.message is None) == (self.step is None):
            raise PydanticCustomError("body.fields", "a settlement is of a message or of a step")
        if self.outcome == ("skipped" if self.step is None else "approved"):
            raise PydanticCustomError("body.fields", "a message is not skipped, a step not approved")
        if (self.by is None) == (self.outcome == "approved"):
            raise PydanticCustomError("body.fields", "by goes with approved, and only with it")
        return self


Settlements = Annotated[tuple[Annotated[Settled, Strict(False)], ...], Strict(False), _upto(None)]


class Record(_Map):
    """What every record has. `sent_at` is self-reported; order never comes from it."""

    kind: ClassVar[str]
    constants: ClassVar[dict[str, int]] = {}

    v: Annotated[int, Field(ge=1, le=1)] = 1
    sent_at: Time
    ext: Ext | None = None


class Open(Record):
    """The first chain record: who takes part, under what name, plan and limits."""

    kind = "open"
    constants = {"seq": 0}

    seq: Annotated[int, Field(ge=0, le=0)]
    name: Name
    nonce: Annotated[bytes, Field(min_length=16, max_length=16)]
    members: Annotated[
        tuple[Annotated[Member, Strict(False)], ...],
        Strict(False),
        _upto(256),
        AfterValidator(_roster),
    ]
    room: Name | None = None
    plan: Address | None = None
    limits: Annotated[Limits, Strict(False)] | None = None
    follows: Address | None = None


class Chained(Record):
    """A chain record after the open: its place, the receipts it commits, what it settles."""

    thread: Address
    seq: Annotated[int, Field(ge=1)]
    prev: Address
    receipts: Receipts | None = None
    settled: Settlements | None = None


class Message(Chained):
    """Somebody says something to somebody."""

    kind = "message"

    id: Id
    intent: Intent
    epistemic: Epistemic
    payload: Payload
    media_type: MediaType | None = None
    to: Keys | None = None
    room: Name | None = None
    reply_to: Address | None = None
    step: Path | None = None
    capability: Capability | None = None
    confidence: Annotated[int, Field(ge=0, le=100)] | None = None
    context: Addresses64 | None = None
    provenance: Annotated[Provenance, Strict(False)] | None = None
    max_hops: Limit | None = None
    cost_budget: Limit | None = None
    ack_required: Flag | None = None

    @property
    def needs_ack(self) -> bool:
        """Whether every recipient must acknowledge it."""
        return self.ack_required is True or self.intent == "request" or self.intent == "escalate"

    @property
    def payload_bytes(self) -> int:
        """The payload's size as limits count it: the text's UTF-8, or the blob's whole length."""
        payload: Any = self.payload
        return len(payload.encode()) if type(payload) is str else int(payload.bytes)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.to is None and self.needs_ack:
            raise PydanticCustomError("message.to_required", "the message needs acknowledgements but has no to")
        if self.reply_to is None and self.intent in ("challenge", "retract", "escalate"):
            raise PydanticCustomError("message.reply_required", "a {intent} has no reply_to", {"intent": self.intent})
        if self.epistemic == "verified" and (self.provenance is None or self.provenance.evidence is None):
            raise PydanticCustomError("message.verified", "the message is labelled verified but names no evidence")
        if self.max_hops is not None and self.provenance is not None:
            if len(self.provenance.chain or ()) > self.max_hops:
                raise PydanticCustomError("message.hops", "the provenance chain is longer than max_hops")
        if self.step is not None and (not self.needs_ack or self.intent == "escalate"):
            raise PydanticCustomError("message.step", "a step stands on a message that gates nothing")
        if self.intent == "escalate" and (isinstance(self.payload, Blob) or len(self.payload.encode()) > 4096):
            raise PydanticCustomError("message.escalation_payload", "the escalation's payload is no text of 4 KiB")
        return self


class Roster(Chained):
    """A change of the membership."""

    kind = "roster"

    change: Literal["admit", "role", "remove", "leave"]
    key: Key
    role: Role | None = None
    name: Name | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.role is None) == (self.change in ("admit", "role")):
            raise PydanticCustomError("body.fields", "role goes with admit and role, and only with them")
        if (self.name is None) == (self.change == "admit"):
            raise PydanticCustomError("body.fields", "name goes with admit, and only with it")
        return self


class Settle(Chained):
    """Carries receipts and settlements when no other record is due."""

    kind = "settle"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.receipts is None and self.settled is None:
            raise PydanticCustomError("body.fields", "a settle carries receipts or settlements")
        return self


class Seal(Chained):
    """The end of a thread, with its outcome."""

    kind = "seal"

    outcome: Outcome
    status: Name | None = None
    reason: Content | None = None


class Ack(Record):
    """A recipient's answer to a message: yes or no, and what it understood."""

    kind = "ack"

    thread: Address
    message: Address
    answer: Literal["accept", "decline"]
    restatement: Content
    after: Address | None = None


class Ruling(Record):
    """The author's word on an ack: understood, or corrected."""

    kind = "ruling"

    thread: Address
    ack: Address
    ruling: Literal["confirm", "correct"]
    correction: Content | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.correction is None) == (self.ruling == "correct"):
            raise PydanticCustomError("body.fields", "correction goes with correct, and only with it")
        return self


class CardBody(Record):
    """What a key, or an issuer, claims of the key: its name and capabilities."""

    kind = "card"

    name: DisplayName
    description: Annotated[Text, _bounded(65_536)] | None = None
    capabilities: Annotated[
        tuple[Capability, ...],
        Strict(False),
        _upto(256),
        AfterValidator(_ascending),
    ]
    key: Key
    not_before: Time
    not_after: Time | None = None
    supersedes: Address | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.not_after is not None and self.not_after < self.not_before:
            raise PydanticCustomError("body.fields", "not_after is before not_before")
        return self


class Revocation(Record):
    """A key is no longer to be trusted."""

    kind = "revocation"

    key: Key
    reason: Annotated[Text, _bounded(65_536)]
    revoked_at: Time
    successor: Key | None = None


class Witness(Record):
    """Somebody outside the thread saw its tip at a time."""

    kind = "witness"

    thread: Address
    seq: Annotated[int, Field(ge=0)]
    tip: Address
    seen_at: Time


R = TypeVar("R", bound=Record)

KINDS: Final[dict[str, type[Record]]] = {
    model.kind: model for model in (Open, Message, Roster, Settle, Seal, Ack, Ruling, CardBody, Revocation, Witness)
}

_CODES: Final = {
    "missing": "body.missing",
    "extra_forbidden": "body.unknown",
    "string_pattern_mismatch": "body.name",
    "too_short": "body.empty",
    "too_long": "body.size",
}


def read_body(kind: str, payload: bytes) -> Record:
    """Return the record that a signed payload holds.

    Raises:
        EnvelopeError: `body.*`, `message.*`, `open.names`; `cbor.*` with stage body.
    """
    body = decode_body(kind, payload)
    return build(KINDS[kind], body)


def decode_body(kind: str, payload: bytes) -> Any:
    """Return what the payload of a known kind encodes, of this version if it is a map.

    Raises:
        EnvelopeError: `body.kind`, `body.missing`, `body.version`; `cbor.*` with stage body.
    """
    _check_kind(kind)
    try:
        body = cbor.decode(payload)
    except EnvelopeError as error:
        raise EnvelopeError(error.code, f"in the payload, {error.text}", stage="body") from None
    _check_version(kind, body)
    return body


def make(kind: str, body: Any) -> Record:
    """Return the record of a kind that a map of fields makes, as reading its encoding would.

    Raises:
        EnvelopeError: `body.*`, `message.*`, `open.names`.
    """
    _check_kind(kind)
    _check_version(kind, body)
    return build(KINDS[kind], body)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise EnvelopeError("body.kind", f"the kind {kind} is none of version 1; a later version may know it")


def _check_version(kind: str, body: Any) -> None:
    if type(body) is dict:
        version = body.get("v")
        if version is None:
            raise EnvelopeError("body.missing", f"v of the {kind} is missing")
        if type(version) is int and version != 1:
            raise EnvelopeError("body.version", f"the {kind} has version {version}; this verifier knows version 1")


def build(model: type[R], fields: Any) -> R:
    """Return the record that a map of fields makes.

    Raises:
        EnvelopeError: `body.*`, `message.*`, `open.names`; of several defects, the one with the lowest rule number.
    """
    try:
        return model.__pydantic_validator__.validate_python(fields)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise _refusal(model.kind, error) from None


def to_map(fields: Any) -> Any:
    """Return what encodes a record, or a map of its fields: without the absent ones, without models.

    Raises:
        EnvelopeError: `cbor.depth`, for fields that hold themselves.
    """
    try:
        return _to_map(fields)
    except (RecursionError, PydanticSerializationError):
        raise EnvelopeError("cbor.depth", "the fields nest without end") from None


def _to_map(fields: Any) -> Any:
    kind = type(fields)
    if kind is dict:
        present = {name: value for name, value in fields.items() if value is not None}
        if not _PLAIN.issuperset(map(type, present.values())):
            for name, value in present.items():
                if type(value) not in _PLAIN:
                    present[name] = _thaw(value) if name == "ext" else _to_map(value)
        return present
    if kind is list or kind is tuple:
        return list(fields) if _PLAIN.issuperset(map(type, fields)) else [_to_map(value) for value in fields]
    return fields.model_dump(exclude_none=True, warnings=False) if isinstance(fields, BaseModel) else fields


def _refusal(kind: str, error: ValidationError) -> EnvelopeError:
    found = []
    items = error.errors(include_url=False, include_context=False, include_input=False)
    inner = {item["loc"][:depth] for item in items for depth in range(len(item["loc"]))}
    for item in items:
        if item["loc"] in inner or item["loc"][-1:] == ("str",):
            continue  # a list is called too short when its items are refused; a blob is called no text
        code = item["type"]
        if code not in BY_CODE:
            code = _CODES.get(code) or ("body.type" if code.endswith(("_type", "_parsing")) else "body.value")
        where = ".".join(str(part)[:80] for part in item["loc"] if part not in ("Blob", "[key]"))
        found.append((_order(code), code, f"{where or 'the body'} of the {kind}: {item['msg']}"))
    _, code, text = min(found)
    return EnvelopeError(code, text)


def _order(code: str) -> tuple[int, ...]:
    return tuple(int(part) for part in BY_CODE[code].number.split("."))
