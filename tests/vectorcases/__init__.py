"""The cases behind `vectors/`: each written by hand, with what a verifier must say of it."""

from importlib import import_module

from tests.vectorcases.case import CASES, Case

_MODULES = (
    "positives", "histories", "bounds",
    "wire", "envelopes", "bodies", "chains", "rosters", "rounds", "settling", "verdicts",
)  # fmt: skip


def cases() -> list[Case]:
    """Return every case, positive ones first."""
    for name in _MODULES:
        import_module(f"tests.vectorcases.{name}")
    return list(CASES.values())
