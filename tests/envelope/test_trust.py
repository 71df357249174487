"""The verifier's own store of keys."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope import EnvelopeError, Identity, TrustedKey, TrustStore, did_key
from envelope.keys import SMALL_ORDER

ADA, BOB = (Identity.from_seed(bytes([n]) * 32).public_key for n in (1, 2))
ENTRY = f'[[keys]]\nkey = "{did_key(ADA)}"\nname = "Ada Lovelace"\nrole = "human"\n'

HIDDEN = [
    *range(0x20), *range(0x7F, 0xA0), *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF,
]  # fmt: skip


def load(tmp_path: Path, text: str | bytes) -> TrustStore:
    path = tmp_path / "trust.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
    return TrustStore.load(path)


def refused(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(EnvelopeError) as caught:
        load(tmp_path, text)
    assert caught.value.code == "trust.file"
    return caught.value.text


def test_a_trust_file_gives_keys_names_and_roles(tmp_path: Path) -> None:
    text = f'version = 1\n\n{ENTRY}\n[[keys]]\nkey = "{did_key(BOB)}"\nname = "Bób"\nrole = "agent"\n'
    store = load(tmp_path, text)
    assert dict(store) == {ADA: TrustedKey("Ada Lovelace", "human"), BOB: TrustedKey("Bób", "agent")}
    assert (len(store), list(store), store[BOB].name) == (2, [ADA, BOB], "Bób")


@pytest.mark.parametrize("role", ["agent", "human", "issuer", "witness"])
def test_every_role_of_a_trust_file_is_read(tmp_path: Path, role: str) -> None:
    assert load(tmp_path, f"version = 1\n{ENTRY}".replace("human", role))[ADA].role == role


def test_a_trust_file_without_keys_trusts_nobody(tmp_path: Path) -> None:
    assert dict(load(tmp_path, "version = 1\n")) == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "version"),
        (ENTRY, "version"),
        ("version = 2\n", "version"),
        ("version = 0\n", "version"),
        ("version = true\n", "version"),
        ("version = 1.0\n", "version"),
        ('version = "1"\n', "version"),
        ("version = 2026-01-01\n", "version"),
        ("version = 1\nowner = 1\n", "owner"),
        ("version = 1\nkeys = 3\n", "keys"),
        ("version = 1\nkeys = [3]\n", "keys.0"),
        ("version = 1\n[[keys]]\n", "keys.0.key"),
        ("version = 1\n" + ENTRY.replace('name = "Ada Lovelace"\n', ""), "keys.0.name"),
        ("version = 1\n" + ENTRY.replace('role = "human"\n', ""), "keys.0.role"),
        ("version = 1\n" + ENTRY.replace("human", "owner"), "keys.0.role"),
        ("version = 1\n" + ENTRY.replace("human", "Human"), "keys.0.role"),
        ("version = 1\n" + ENTRY + "trusted = true\n", "keys.0.trusted"),
        ("version = 1\n" + ENTRY.replace("did:key:", "did:web:"), "keys.0.key"),
        ("version = 1\n" + ENTRY.replace(did_key(ADA), ADA.hex()), "keys.0.key"),
        ("version = 1\n" + ENTRY.replace("Ada Lovelace", ""), "keys.0.name"),
        ("version = 1\n" + ENTRY.replace("Ada Lovelace", "a" * 129), "keys.0.name"),
        ("version = 1\n" + ENTRY.replace("Ada Lovelace", "ä" * 65), "keys.0.name"),
        ("version = 1\n" + ENTRY.replace('"Ada Lovelace"', "7"), "keys.0.name"),
        ("version = 1\n" + ENTRY + ENTRY, "keys.1"),
        ("version = 1\n" + ENTRY.replace("[[keys]]", "[keys]"), "keys"),
    ],
)
def test_a_trust_file_that_is_not_well_formed_is_refused_with_the_field(tmp_path: Path, text: str, named: str) -> None:
    assert f": {named}: " in refused(tmp_path, text)


@pytest.mark.parametrize("point", sorted(SMALL_ORDER))
def test_a_key_of_small_order_is_no_trusted_key(tmp_path: Path, point: bytes) -> None:
    assert "small order" in refused(tmp_path, "version = 1\n" + ENTRY.replace(did_key(ADA), did_key(point)))
    with pytest.raises(EnvelopeError, match=r"key\.small_order"):
        TrustStore({point: TrustedKey("Nobody", "agent")})


@pytest.mark.parametrize("code", HIDDEN)
def test_a_name_with_a_character_that_does_not_show_is_refused(tmp_path: Path, code: int) -> None:
    assert "name" in refused(tmp_path, "version = 1\n" + ENTRY.replace("Ada Lovelace", f"Ada\\U{code:08x}"))


@pytest.mark.parametrize(
    "data",
    [
        b"version = 1\n\xff",
        b"version 1",
        b"\xef\xbb\xbfversion = 1\n",
        "version = 1\n".encode("utf-16"),
        b"version = 1\nversion = 1\n",
        b"\0" * 100,
        b"version = " + b"[" * 3000,
        b"version = " + b"1" * 5000,
        b"[[keys]]\nname = '\xed\xa0\x80'\n",
        b"a." * 3000 + b"a = 1\n",
    ],
    ids=lambda data: repr(data[:14]),
)
def test_bytes_that_are_no_toml_of_that_form_are_refused(tmp_path: Path, data: bytes) -> None:
    assert str(tmp_path / "trust.toml") in refused(tmp_path, data)


def test_a_trust_file_of_more_than_a_mebibyte_is_refused_before_it_is_read_as_toml(tmp_path: Path) -> None:
    assert re.search(r"more than \d+ bytes", refused(tmp_path, b"version = [" + b"#" * (1 << 20)))


@pytest.mark.parametrize("place", ["missing.toml", ".", "missing/trust.toml", "n" * 300, "nul\0.toml"])
def test_a_trust_file_that_cannot_be_read_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        TrustStore.load(tmp_path / place)
    assert caught.value.code == "trust.file"


@given(st.binary(max_size=60))
def test_any_bytes_are_a_trust_file_or_refused(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(data)
    with pytest.raises(EnvelopeError):
        TrustStore.load(path)


display_names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="".join(map(chr, HIDDEN))), min_size=1, max_size=40
).filter(lambda name: len(name.encode()) <= 128)


@given(
    st.dictionaries(
        st.integers(0, 50).map(lambda n: Identity.from_seed(n.to_bytes(32, "big")).public_key),
        st.builds(TrustedKey, display_names, st.sampled_from(["agent", "human", "issuer", "witness"])),
        max_size=4,
    )
)
def test_what_is_dumped_reads_back_as_the_same_store(tmp_path_factory: Any, keys: dict[bytes, TrustedKey]) -> None:
    path = tmp_path_factory.getbasetemp() / "dumped.toml"
    path.write_bytes(TrustStore(keys).dump().encode())
    assert list(TrustStore.load(path).items()) == list(keys.items())


def test_plain_keys_are_trusted_as_agents_under_their_did() -> None:
    assert dict(TrustStore.of(key for key in (ADA, BOB))) == {
        ADA: TrustedKey(did_key(ADA), "agent"),
        BOB: TrustedKey(did_key(BOB), "agent"),
    }


def test_a_store_is_taken_as_it_is_and_a_mapping_says_who_is_who() -> None:
    known = {ADA: TrustedKey("Ada", "human")}
    store = TrustStore(known)
    assert TrustStore.of(store) is store
    assert dict(TrustStore.of(known)) == known


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(EnvelopeError, match=r"key\.length"):
        TrustStore.of([ADA[:31]])


def test_a_store_does_not_change_with_the_mapping_it_was_made_from() -> None:
    keys = {ADA: TrustedKey("Ada", "human")}
    store = TrustStore(keys)
    keys[BOB] = TrustedKey("Bob", "human")
    assert BOB not in store


def test_a_key_that_is_not_there_is_not_trusted() -> None:
    store = TrustStore({ADA: TrustedKey("Ada", "human")})
    assert (store.get(BOB), BOB in store) == (None, False)
    with pytest.raises(KeyError):
        store[BOB]
