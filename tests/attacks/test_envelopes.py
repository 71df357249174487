"""Threads that mislead whoever looks at them through the commands: several copies at once, and rows of a terminal."""

import itertools
from pathlib import Path

import pytest

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
