"""Where the keys of a TOML text stand."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow.tomlplaces import KeyPath, places

TEXT = '''\
version = 1  # [not.a.table]
"odd \\u0041" . b.'c' = "x#]\\"" # a comment

[top]
list = [ 1,  # one
  { x = 1, y = ["""
a "quoted" word"""] },
  1979-05-27 07:32:00,
]
literal = \'\'\'
[no]\'\'\'

[[rows]]
id = "a"
[rows.inner]
deep = {}
[[rows.more]]
[[rows]]
id = "b"
[over.under]
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("version",), 1),
        (("odd A", "b", "c"), 2),
        (("top",), 4),
        (("top", "list", 0), 5),
        (("top", "list", 1, "x"), 6),
        (("top", "list", 1, "y", 0), 6),
        (("top", "list", 2), 8),
        (("top", "literal"), 10),
        (("rows", 0, "id"), 14),
        (("rows", 0, "inner", "deep"), 16),
        (("rows", 0, "more", 0), 17),
        (("rows", 1), 18),
        (("rows", 1, "id"), 19),
        (("over",), 20),
        (("over", "under"), 20),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_key_stands_on_its_line(path: KeyPath, line: int, newline: str) -> None:
    assert places(TEXT.replace("\n", newline))[path] == line


def test_keys_are_those_that_tomllib_reads() -> None:
    assert set(places(TEXT)) == set(paths(tomllib.loads(TEXT)))


def paths(value: Any, above: KeyPath = ()) -> Iterator[KeyPath]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*above, key)
        yield from paths(inner, (*above, key))


PIECES = ['"""', "'''", '"', "'", "a", ".", " ", "=", "[", "]", "[[", "]]", "{", "}", ",", "\n", "#", "1", "\\", "\\\\"]


@given(st.lists(st.sampled_from([*PIECES, "\na=1\n", "\n[t]\n", "\n[[s]]\n", "\nb.c=[{d=1},\n2]\n", '"""a"""'])))
def test_whatever_tomllib_reads_has_the_same_keys(pieces: list[str]) -> None:
    text = "".join(pieces)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(places(text)) == set(paths(tables))


KEYS = st.text(min_size=0, max_size=4).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


def quoted(text: str) -> str:
    return '"' + "".join(char if char.isalnum() else f"\\U{ord(char):08x}" for char in text) + '"'


@given(st.dictionaries(KEYS, st.recursive(KEYS | st.booleans(), st.lists, max_leaves=5), max_size=4))
def test_values_of_any_text_are_passed_over(tables: dict[str, Any]) -> None:
    def written(value: Any) -> str:
        if isinstance(value, list):
            return "[" + ",\n".join(map(written, value)) + "]"
        return str(value).lower() if isinstance(value, bool) else quoted(value)

    text = "".join(f"{quoted(key)} = {written(value)}\n" for key, value in tables.items())
    assert tomllib.loads(text) == tables
    assert set(places(text)) == set(paths(tables))
