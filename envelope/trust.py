"""The verifier's side: which keys it trusts, under which names, in which roles. Nothing here comes from a thread."""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from envelope.errors import EnvelopeError
from envelope.keys import PublicKey, check_public_key, did_key, parse_did
from envelope.records import DisplayName

TrustRole = Literal["agent", "human", "issuer", "witness"]

_NAME: Final[TypeAdapter[str]] = TypeAdapter(DisplayName)
_MAX_BYTES: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """How the verifier knows a key."""

    name: str
    role: TrustRole


class TrustStore(Mapping[PublicKey, TrustedKey]):
    """The keys that a verifier trusts."""

    def __init__(self, keys: Mapping[PublicKey, TrustedKey]) -> None:
        for key, known in keys.items():
            check_public_key(key)
            try:
                _NAME.validate_python(known.name, strict=True)
            except ValidationError as error:
                raise EnvelopeError("trust.file", f"the name {known.name!r}: {error.errors()[0]['msg']}") from None
        self._keys = dict(keys)

    @classmethod
    def of(cls, trust: "Mapping[PublicKey, TrustedKey] | Iterable[PublicKey]") -> "TrustStore":
        """Return a store of plain keys, each an agent under its did:key; a mapping says itself who is who."""
        if isinstance(trust, Mapping):
            return trust if isinstance(trust, TrustStore) else cls(trust)
        if isinstance(trust, str | bytes | os.PathLike):
            raise TypeError("trust is a list of public keys or a TrustStore; read a file with TrustStore.load")
        keys = list(trust)
        if odd := [key for key in keys if type(key) is not bytes]:
            raise TypeError(f"a trusted key is the 32 bytes of a public key, not {odd[0]!r:.80}")
        return cls({key: TrustedKey(did_key(key), "agent") for key in keys})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "TrustStore":
        """Read a trust file: `version = 1` and a flat list `[[keys]]` of key (did:key), name and role.

        Raises:
            EnvelopeError: `trust.file`, with the entry and the field that are wrong.
        """
        try:
            with Path(path).open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise EnvelopeError("trust.file", f"{path}: {why}") from None
        if len(data) > _MAX_BYTES:
            raise EnvelopeError("trust.file", f"{path}: more than {_MAX_BYTES} bytes")
        try:
            content = tomllib.loads(data.decode())
        except (ValueError, RecursionError) as error:
            raise EnvelopeError("trust.file", f"{path}: no TOML: {error}") from None
        try:
            document = _Document.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            said = first["msg"].removeprefix("Value error, ")
            raise EnvelopeError("trust.file", f"{path}: {where}: {said}") from None
        keys: dict[PublicKey, TrustedKey] = {}
        for number, entry in enumerate(document.keys):
            key = parse_did(entry.key)
            if key in keys:
                raise EnvelopeError("trust.file", f"{path}: keys.{number}: {entry.key} is listed twice")
            keys[key] = TrustedKey(entry.name, entry.role)
        return cls(keys)

    def dump(self) -> str:
        """Return the text of a trust file with these keys."""
        lines = ["version = 1"]
        for key, known in self._keys.items():
            name = "".join(f"\\u{ord(c):04x}" if c in '"\\' else c for c in known.name)
            lines += ["", "[[keys]]", f'key = "{did_key(key)}"', f'name = "{name}"', f'role = "{known.role}"']
        return "\n".join(lines) + "\n"

    def __getitem__(self, key: PublicKey) -> TrustedKey:
        return self._keys[key]

    def __iter__(self) -> Iterator[PublicKey]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _did(text: str) -> str:
    try:
        parse_did(text)
    except EnvelopeError as error:
        raise ValueError(error.text) from None
    return text


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    key: Annotated[str, AfterValidator(_did)]
    name: DisplayName
    role: TrustRole


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)]
    keys: list[Annotated[_Entry, Strict(False)]] = []
