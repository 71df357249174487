"""Break the code on purpose, rule by rule, and see the tests of that rule fail: what a mutant is, and what a table of
them must be.

`python -m tests.mutants flow` tries those of `tests/flow/mutants.py`.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One change to the code.

    Attributes:
        file: below the root.
        text: stands there exactly once.
        instead: what breaks the rule.
    """

    file: str
    text: str
    instead: str

    @property
    def found(self) -> int:
        """How often the text stands in the file."""
        return (ROOT / self.file).read_text("utf-8").count(self.text)

    def apply(self, root: Path) -> None:
        """Break the rule in a copy of the tree."""
        path = root / self.file
        path.write_text(path.read_text("utf-8").replace(self.text, self.instead), "utf-8")


Table = Mapping[str, Mutant | str]
"""For each rule a mutant, or the reason why it has none."""


def stated(package: str) -> list[str]:
    """Return the numbers of the rules that a spec states."""
    text = (ROOT / "spec" / f"{package}.md").read_text("utf-8")
    return re.findall(r"^- \*\*([A-Z]\d+)\*\* ", text, re.MULTILINE)


def table(package: str) -> Table:
    """Return the mutants of a package."""
    found: Table = import_module(f"tests.{package}.mutants").MUTANTS
    return found


def complaints(package: str) -> Iterator[str]:
    """Yield what is wrong with a table itself."""
    rules, mutants = stated(package), table(package)
    yield from (f"{rule} has neither a mutant nor a reason" for rule in rules if rule not in mutants)
    yield from (f"{rule} is no rule" for rule in mutants if rule not in rules)
    for rule, mutant in mutants.items():
        if isinstance(mutant, Mutant) and mutant.found != 1:
            yield f"{rule}: {mutant.text!r} stands {mutant.found} times in {mutant.file}"
