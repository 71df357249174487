"""Writes `vectors/`: `python -m tests.vectorgen`, or `--check` to compare only.

Keys come from fixed seeds, times and nonces are fixed, and Ed25519 signatures are deterministic, so the files are the
same on every run.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests import vectorcases
from tests.vectormodel import schema

TARGET = Path(__file__).parents[1] / "vectors"
SCHEMA = "schema.json"


def render(document: Any) -> str:
    """Return the text of a JSON file."""
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True) + "\n"


def files() -> dict[str, str]:
    """Return the text of every file of `vectors/` by its name."""
    texts = {f"{case.id}.json": render(case.render()) for case in vectorcases.cases()}
    texts[SCHEMA] = render(schema())
    return texts


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` name those that are not up to date and return 1."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m tests.vectorgen [--check]", file=sys.stderr)
        return 2
    texts = files()
    present = {path.name: path for path in TARGET.glob("*.json")}
    superfluous = sorted(set(present) - set(texts))
    changed = [
        name
        for name, text in sorted(texts.items())
        if name not in present or present[name].read_bytes() != text.encode("ascii")
    ]
    if arguments:
        for name in changed:
            print(f"{name}: {'differs' if name in present else 'missing'}", file=sys.stderr)
        for name in superfluous:
            print(f"{name}: superfluous", file=sys.stderr)
        return 1 if changed or superfluous else 0
    TARGET.mkdir(exist_ok=True)
    for name in superfluous:
        present[name].unlink()
    for name in changed:
        (TARGET / name).write_text(texts[name], encoding="ascii", newline="\n")
    print(f"{len(texts) - 1} vectors, {len(changed)} files written, {len(superfluous)} removed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
