"""Writes `spec/rules.toml` from the registry: `python -m tests.specgen`, or `--check` to compare only."""

import json
import sys
from pathlib import Path

from envelope.rules import RULES, STAGES

TARGET = Path(__file__).parents[1] / "spec" / "rules.toml"

HEADER = """\
# The rules of the envelope protocol, as data. Written by `python -m tests.specgen` from envelope/rules.py; the
# statements an implementer needs are in protocol.md, under the anchors given here.
"""


def rules_toml() -> str:
    """Return the text of `spec/rules.toml`."""
    parts = [HEADER, f"stages = {json.dumps(STAGES)}\n"]
    for rule in RULES:
        fields = ("number", "stage", "code", "effect", "anchor", "text")
        lines = (f"{field} = {json.dumps(getattr(rule, field), ensure_ascii=False)}" for field in fields)
        parts.append("\n".join(("[[rules]]", *lines)) + "\n")
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` return 1 if it is not up to date."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m tests.specgen [--check]", file=sys.stderr)
        return 2
    if arguments:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else None
        if current != rules_toml():
            print(f"{TARGET.name} is not up to date: run python -m tests.specgen", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(rules_toml(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
