"""On which line of a TOML text each key and each element of an array stands, which `tomllib` does not tell.

The text is one that `tomllib` has read, so nothing is checked again: it is cut into keys and values, and each is noted
with its path from the root: keys as text, elements of arrays by their number from 0.
"""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

KeyPath = tuple[str | int, ...]

_GAP: Final = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY: Final = re.compile(r"""[ \t]*([A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*""")
_SCALAR: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"{3,5}'
    r"|'''(?:[^']|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'[^'\n]*'"
    r"|\d{4}-\d\d-\d\d[ ]\d[^,\]}\s#]*"  # a date and a time with a space in between
    r"|[^,\]}\s#]+",
    re.DOTALL,
)


def places(text: str) -> Mapping[KeyPath, int]:
    """The line, from 1, of every key and element; of a table that stands in several places, the first.

    Args:
        text: what `tomllib` has read without error.

    Raises:
        RecursionError: arrays are nested without end; `tomllib` mostly raises it first.
    """
    return _Scan(text.replace("\r\n", "\n")).lines


class _Scan:
    def __init__(self, text: str) -> None:
        self.lines: Final[dict[KeyPath, int]] = {}
        self._text = text
        self._at = 0
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._elements: dict[KeyPath, int] = {}  # how many tables each [[array]] has so far
        table: KeyPath = ()
        while not self._ends():
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _ends(self) -> bool:
        self._skip()
        return self._at >= len(self._text)

    def _header(self) -> KeyPath:
        start = self._at
        brackets = 2 if self._text.startswith("[[", start) else 1
        self._at += brackets
        *above, last = self._key()
        self._at += brackets
        table: KeyPath = ()
        for part in above:
            table = (*table, part)
            self._note(table, start)
            table = self._newest(table)
        table = (*table, last)
        if brackets == 2:
            self._note(table, start)
            self._elements[table] = self._elements.get(table, 0) + 1
        table = self._newest(table)
        self._note(table, start)
        return table

    def _newest(self, table: KeyPath) -> KeyPath:
        """Return the path itself, or if it is that of an array of tables, of the table that came last in it."""
        return (*table, self._elements[table] - 1) if table in self._elements else table

    def _pair(self, table: KeyPath) -> None:
        start = self._at
        path = table
        for part in self._key():
            path = (*path, part)
            self._note(path, start)
        self._at += 1  # the equals sign
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while match := _KEY.match(self._text, self._at):
            part = match[1]
            parts.append(str(tomllib.loads(f"key = {part}")["key"]) if part[0] in "\"'" else part)
            self._at = match.end()
            if not self._text.startswith(".", self._at):
                break
            self._at += 1
        return parts

    def _value(self, path: KeyPath) -> None:
        self._skip()
        if self._text[self._at] in "[{":
            self._items(path, "]" if self._text[self._at] == "[" else "}")
        elif match := _SCALAR.match(self._text, self._at):
            self._at = match.end()

    def _items(self, path: KeyPath, end: str) -> None:
        """Cut an array or an inline table."""
        self._at += 1
        number = 0
        while not self._closed(end):
            if end == "]":
                self._note((*path, number), self._at)
                self._value((*path, number))
                number += 1
            else:
                self._pair(path)
            self._skip()
            if self._text[self._at] == ",":
                self._at += 1

    def _closed(self, end: str) -> bool:
        self._skip()
        closed = self._text[self._at] == end
        self._at += closed
        return closed

    def _skip(self) -> None:
        if match := _GAP.match(self._text, self._at):
            self._at = match.end()

    def _note(self, path: KeyPath, at: int) -> None:
        self.lines.setdefault(path, bisect_right(self._newlines, at) + 1)
