"""Try the mutants of a package, each alone in a copy of the tree, with the tests that are marked with its rule.

`python -m tests.mutants flow [--rule R47 ...] [--jobs 2]` fails if a mutant survives, if the source text that a mutant
replaces is not there exactly once, or if a rule has neither a mutant nor a reason.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants import ROOT, Mutant, complaints, table
from tests.mutants.marked import FAILED, RULE

_COPIED = ("envelope", "flow", "tests", "spec", "vectors", "README.md", "LICENSE", "pyproject.toml")
_LONGEST = 300.0


def survives(rule: str, mutant: Mutant) -> str | None:
    """Return why a mutant is not noticed, or None if tests fail."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder)
        for name in _COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, root / name)
        mutant.apply(root)
        files = [
            str(path.relative_to(root)) for path in sorted((root / "tests").rglob("test_*.py")) if _has(path, rule)
        ]
        if not files:
            return "no test is marked with the rule"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "tests.mutants.marked",
            "-p",
            "no:cacheprovider",
            "-n0",
        ]
        failed = root / "failed.txt"
        there = {**os.environ, RULE: rule, FAILED: str(failed), "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [*command, *files], cwd=root, env=there, capture_output=True, text=True, timeout=_LONGEST
            )
        except subprocess.TimeoutExpired:
            return None  # a run that never ends is noticed
        if failed.exists():
            return None
        return f"pytest ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}"


def _has(path: Path, rule: str) -> bool:
    return re.search(rf'"{rule}"', path.read_text("utf-8")) is not None


def main() -> int:
    parser = argparse.ArgumentParser(description="Break each rule, and see its tests fail.")
    parser.add_argument("package", choices=["flow"])
    parser.add_argument("--rule", action="append", help="only these rules", default=[])
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    chosen = parser.parse_args()
    wrong = list(complaints(chosen.package))
    mutants = [
        (rule, mutant)
        for rule, mutant in table(chosen.package).items()
        if isinstance(mutant, Mutant) and mutant.found == 1 and (not chosen.rule or rule in chosen.rule)
    ]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        runs = pool.map(lambda one: survives(*one), mutants)
        for (rule, _), why in zip(mutants, runs, strict=True):
            print(rule, "noticed" if why is None else f"SURVIVES: {why}", flush=True)
            wrong += [] if why is None else [f"{rule} survives"]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
