"""spec/flow.md and its tests tell of the same rules."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SPEC = HERE.parents[1] / "spec" / "flow.md"


def stated() -> Counter[str]:
    return Counter(re.findall(r"^- \*\*([A-Z]\d+)\*\* ", SPEC.read_text("utf-8"), re.MULTILINE))


def pinned() -> Iterator[tuple[str, str]]:
    for path in sorted((*HERE.rglob("test_*.py"), *(HERE.parent / "attacks").rglob("test_*.py"))):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.rule":
                yield from ((ast.literal_eval(number), path.name) for number in node.args)


def test_every_rule_is_stated_once() -> None:
    assert [number for number, times in stated().items() if times > 1] == []
    assert len(stated()) > 50


def test_every_rule_has_a_test() -> None:
    assert sorted(stated().keys() - {number for number, _ in pinned()}) == []


def test_every_mark_names_a_rule() -> None:
    assert sorted((number, name) for number, name in pinned() if number not in stated()) == []
