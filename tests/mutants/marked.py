"""A pytest plugin that keeps the tests which are marked with the rule that the environment names, and writes down which
of them failed: pytest's exit code tells of other things too, such as a warning while it shuts down.
"""

import os
from pathlib import Path

import pytest

RULE = "MUTANT_RULE"
FAILED = "MUTANT_FAILED"
SLOW = ("test_model.py", "test_crashes.py", "test_kill.py", "test_races.py")
"""Files whose tests are run last: they notice much, but take their time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rule = os.environ[RULE]
    marked = [item for item in items if any(rule in mark.args for mark in item.iter_markers("rule"))]
    items[:] = sorted(marked, key=lambda item: item.path.name in SLOW)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        with Path(os.environ[FAILED]).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid} ({report.when})\n")
