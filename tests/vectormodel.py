"""The form of a vector: pydantic models, from which `vectors/schema.json` is generated."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema

Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]
Address = Annotated[str, Field(pattern=r"^b3:[0-9a-f]{64}$")]
Code = Annotated[str, Field(pattern=r"^[a-z]+\.[a-z0-9_]+$")]
Number = Annotated[str, Field(pattern=r"^[1-9][0-9]*\.[1-9][0-9]*$")]
Index = Annotated[int, Field(ge=0)]
Sentence = Annotated[str, Field(min_length=1)]


def _absent(**constraints: Any) -> Any:
    """Return a field that is absent or of its type, never null."""
    return Field(default=None, json_schema_extra=lambda schema: schema.pop("default"), **constraints)


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class TrustedKey(_Model):
    """One key of the verifier's trust file."""

    key: Annotated[str, Field(pattern=r"^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$")]
    name: Annotated[str, Field(min_length=1)]
    role: Literal["agent", "human", "issuer", "witness"]


class Input(_Model):
    """What the verifier is given."""

    records: Annotated[list[Hex], Field(description="The envelopes in file order; joined, they are the file.")]
    trust: Annotated[list[TrustedKey] | None, Field(description="The trust file; null if none is given.")]
    now: Annotated[int, Field(ge=0, description="The time of the verification, in ms since 1970-01-01T00:00:00Z.")]
    thread: Address = _absent(description="The thread that is meant.")
    tip: Address = _absent(description="A record known to exist.")
    proofs: list[Hex] = _absent(min_length=1, description="Sidecar records.")
    other: list[Hex] = _absent(min_length=1, description="Another copy of the thread.")


class Finding(_Model):
    """A finding: its code, and the index of the record it is at."""

    code: Code
    index: Index | None


class Expect(_Model):
    """The verdict: its five axes, its code and the record that the code is at, all findings in order."""

    integrity: Literal["valid", "invalid", "unverifiable"]
    completeness: Literal["sealed", "open", "truncated", "forked"]
    outcome: Literal["completed", "failed", "rejected", "over_budget", "cancelled"] | None
    trust: Literal["trusted", "unknown", "expired", "revoked"]
    plan: Literal["none", "followed", "departed", "unchecked"]
    code: Code | None
    at: Index | None
    findings: list[Finding]


class Derive(_Model):
    """Which positive case a case was made from, and by what one change."""

    from_: Annotated[str, Field(alias="from", pattern=r"^[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)+$")]
    mutation: Sentence


class Intermediates(_Model):
    """Of the record that the code is at, else of the last one: the bytes that are signed, and its address."""

    sig_structure: Hex
    address: Address


class Vector(_Model):
    """One case."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)+$")]
    title: Sentence
    rules: Annotated[list[Number], Field(description="The numbers of the rules that the case pins.")]
    input: Input
    expect: Expect
    derive: Derive = _absent()
    intermediates: Intermediates = _absent()


class _Generator(GenerateJsonSchema):
    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a vector."""
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **Vector.model_json_schema(by_alias=True, schema_generator=_Generator),
    }
