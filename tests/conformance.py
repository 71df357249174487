"""Grades a verifier against `vectors/`."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from envelope.audit import verify_thread
from envelope.cose import parse_address
from envelope.keys import parse_did
from envelope.trust import TrustedKey, TrustStore
from envelope.verdict import ThreadVerdict

VECTORS = Path(__file__).parents[1] / "vectors"
AXES = ("integrity", "completeness", "outcome", "trust", "plan")

Verifier = Callable[[dict[str, Any]], dict[str, Any]]


@cache
def vectors() -> dict[str, dict[str, Any]]:
    """Return every vector by its id."""
    paths = (path for path in sorted(VECTORS.glob("*.json")) if path.name != "schema.json")
    return {path.stem: json.loads(path.read_text(encoding="ascii")) for path in paths}


def grade(verifier: Verifier, among: Iterable[dict[str, Any]] | None = None) -> list[str]:
    """Return what a verifier gets wrong, a line each: verdict and code apart, and a crash like a wrong answer.

    Args:
        verifier: takes a vector's `input` and returns what is in its `expect`.
        among: the vectors; all of them where it is not given.
    """
    failures = []
    for vector in vectors().values() if among is None else among:
        expected = vector["expect"]
        try:
            given = verifier(vector["input"])
        except Exception as error:  # a crash is a failure like any other
            failures.append(f"{vector['id']}: crash: {error!r:.200}")
            continue
        failures += [
            f"{vector['id']}: {part} is {given[part]!r}, not {expected[part]!r}"
            for part in (*AXES, "code", "at", "findings")
            if given[part] != expected[part]
        ]
    return failures


def arguments(given: dict[str, Any], store: type[TrustStore] = TrustStore) -> dict[str, Any]:
    """Return the keyword arguments of the package's verifier for a vector's `input`, without the records."""
    trust = given["trust"]
    return {
        "trust": None
        if trust is None
        else store({parse_did(key["key"]): TrustedKey(key["name"], key["role"]) for key in trust}),
        "thread": parse_address(given["thread"]) if "thread" in given else None,
        "tip": parse_address(given["tip"]) if "tip" in given else None,
        "now": given["now"],
    }


def answer(verdict: ThreadVerdict) -> dict[str, Any]:
    """Return a verdict of the package in the form of a vector's `expect`."""
    refusals = [finding for finding in verdict.findings if finding.effect in ("invalid", "unverifiable")]
    return {
        **{axis: getattr(verdict, axis) for axis in AXES},
        "code": verdict.code,
        "at": refusals[0].index if refusals else None,
        "findings": [{"code": finding.code, "index": finding.index} for finding in verdict.findings],
    }


def package(given: dict[str, Any]) -> dict[str, Any]:
    """The package's own verifier."""
    return answer(verify_thread(map(bytes.fromhex, given["records"]), **arguments(given)))
