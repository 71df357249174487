"""Writes what is generated in `spec/`: `python -m tests.specgen`, or `--check` to compare only.

`rules.toml` is made from the registry of rules, `agent.schema.json` from the tables of agent documents.
"""

import json
import sys
from pathlib import Path

from envelope.rules import RULES, STAGES
from flow.agenttables import json_schema

SPEC = Path(__file__).parents[1] / "spec"
TARGET = SPEC / "rules.toml"
SCHEMA = SPEC / "agent.schema.json"

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


def schema_json() -> str:
    """Return the text of `spec/agent.schema.json`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=True) + "\n"


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` return 1 if one is not up to date."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m tests.specgen [--check]", file=sys.stderr)
        return 2
    status = 0
    for target, text in ((TARGET, rules_toml()), (SCHEMA, schema_json())):
        if not arguments:
            target.write_text(text, encoding="utf-8", newline="\n")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"{target.name} is not up to date: run python -m tests.specgen", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
