"""Threads that mislead whoever looks at them through the commands: several copies at once, and rows of a terminal."""

import ctypes
import itertools
import locale
import sys
import unicodedata
from pathlib import Path

import pytest

from envelope.show import escape, quoted
from tests.attacks.test_forgeries import OWNER, REVIEWER, Forger, run_verify, settled


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_a_third_copy_does_not_hide_that_two_others_contradict_each_other(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Rows 5 and 34: a copy that both others go on from stands between them."""
    start = Forger()
    message = start.message(OWNER, "ask", [REVIEWER])
    start.agree(REVIEWER, OWNER, message)
    branches = [start, start.copy(), start.copy()]
    branches[1].seal(settled=[settled(message)])
    branches[2].seal("failed")
    paths = [tmp_path / f"{number}.thread" for number in range(3)]
    for path, branch in zip(paths, branches, strict=True):
        path.write_bytes(b"".join(branch.records))
    result = run_verify(tmp_path, *(paths[number] for number in order))
    assert (result.returncode, "it is forked" in result.stderr) == (1, True), result


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the C library how wide characters are")
def test_no_row_of_free_text_is_wider_than_the_terminal_whatever_it_is_written_in() -> None:
    """Row 17: what a terminal wraps by itself begins at its left margin, where no bar stands.

    Terminals differ. The C library counts vowel signs of Indic scripts, for one, as a cell each, others as none.
    """
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    library = ctypes.CDLL(None)
    library.wcwidth.argtypes = [ctypes.c_wchar]
    shown = [char for char in map(chr, range(0x20, 0x110000)) if escape(char) == char]
    assert library.wcwidth("\u0940") == 1
    marks = [char for char in shown if unicodedata.category(char)[0] in "MNS"]
    texts = ("".join(shown), *(before + char * 90 for char in marks for before in ("x", "")))
    rows = [row.plain for text in texts for row in quoted(text, "", 42, whole=True)]
    assert not [row for row in rows if sum(map(library.wcwidth, row)) > 42][:4]
