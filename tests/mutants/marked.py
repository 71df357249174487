"""A pytest plugin that keeps the tests which are marked with the rule that the environment names."""

import os

import pytest

RULE = "MUTANT_RULE"
SLOW = ("test_model.py", "test_crashes.py", "test_kill.py", "test_races.py")
"""Files whose tests are run last: they notice much, but take their time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rule = os.environ[RULE]
    marked = [item for item in items if any(rule in mark.args for mark in item.iter_markers("rule"))]
    items[:] = sorted(marked, key=lambda item: item.path.name in SLOW)
