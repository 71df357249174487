"""No rule can be taken out of the verifier unnoticed: at least two vectors change their answer.

A mutant is the package without one rule. Its source is parsed; what raises, notes or reports the rule's code is
replaced by `pass`. Rules that pydantic enforces are loosened by a substitution in the text of the models.
The changed modules, and those that import them, are executed anew beside the real ones.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import envelope.audit
from envelope.errors import EnvelopeError
from envelope.keys import check_public_key
from envelope.rules import RULES, Rule
from tests.conformance import answer, arguments, package, vectors

FOLDER = Path(envelope.audit.__file__).parent
ROOT = "envelope.audit"

LOOSENED: dict[str, list[tuple[str, str]]] = {
    "body.type": [(r"strict=True", "strict=False")],
    "body.missing": [
        (r"(    sent_at: Time)\n", r"\1 = 0\n"),
        (r"(    restatement: Content)\n", r"\1 | None = None\n"),
    ],
    "body.unknown": [(r'extra="forbid"', 'extra="ignore"')],
    "body.value": [(r"Field\(ge=[01](, le=\d+)?\)", "Field()"), (r"min_length=(16|32), max_length=\1", "")],
    "body.empty": [(r"min_length=1\b", "min_length=0")],
    "body.name": [(r"Field\(pattern=", "Field(description=")],
    "body.size": [(r"_upto\(\d+\)", "_upto(None)")],
}
"""What in `records.py` holds a rule that pydantic enforces, and what lets it go."""

BY_CALL: dict[str, Callable[[ModuleType], None]] = {
    "key.length": lambda keys: keys.check_public_key(b"\x05" * 33),
}
"""Rules that no envelope can break, since another rule stands before them: what breaks them, with the module `keys`."""

NOT_BY_THREADS: dict[str, tuple[str, ...]] = {
    "envelope.cbor": ("encode", "_Sorter", "_utf8", "_decode"),
    "envelope.keys": ("check_signature", "check_public_key", "parse_did", "Identity"),
    "envelope.records": ("_freeze", "to_map"),
    "envelope.threadfile": ("",),
}
"""Functions whose checks no list of records reaches: of the encoder, of files, and those that repeat an earlier one."""


class _Remover(ast.NodeTransformer):
    """Replaces by `pass` each statement that raises, notes or reports a code, or only that at one place.

    `places` names the function of each such statement.
    """

    def __init__(self, code: str, only: int | None = None) -> None:
        self.code = code
        self.only = only
        self.places: list[str] = []
        self.removed = 0
        self._path: list[str] = []

    def _is(self, node: ast.AST | None) -> bool:
        return isinstance(node, ast.Constant) and node.value == self.code

    def _names(self, node: ast.AST | None) -> bool:
        """Whether this is a call that is given the code."""
        return isinstance(node, ast.Call) and any(map(self._is, node.args))

    def _pass(self, node: ast.stmt) -> ast.stmt:
        self.places.append(".".join(self._path))
        if self.only not in (None, len(self.places) - 1):
            return node
        self.removed += 1
        return ast.copy_location(ast.Pass(), node)

    def _enter(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        self._path.append(node.name)
        self.generic_visit(node)
        self._path.pop()
        return node

    visit_ClassDef = visit_FunctionDef = _enter  # noqa: N815

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        return self._pass(node) if self._names(node.exc) else node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if self._names(call) or (isinstance(call, ast.Call) and any(self._names(inner) for inner in call.args)):
            return self._pass(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        first = node.value.elts[0] if isinstance(node.value, ast.Tuple) and node.value.elts else node.value
        return self._pass(node) if self._is(first) else node


@cache
def source(module: str) -> str:
    return (FOLDER / f"{module.removeprefix('envelope.')}.py").read_text(encoding="utf-8")


@cache
def imports(module: str) -> tuple[str, ...]:
    """Return the modules of the package that a module imports."""
    found = []
    for node in ast.walk(ast.parse(source(module))):
        if isinstance(node, ast.ImportFrom) and node.module == "envelope":
            found += [f"envelope.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("envelope."):
            found.append(node.module)
    return tuple(found)


@cache
def modules() -> tuple[str, ...]:
    """Return the modules that the verifier is made of, each after those that it imports."""
    order: list[str] = []

    def visit(module: str) -> None:
        if module not in order:
            for other in imports(module):
                visit(other)
            if module not in order:
                order.append(module)

    visit(ROOT)
    return tuple(order)


def without(code: str) -> dict[str, ast.Module]:
    """Return the trees of the modules that change when a rule goes."""
    changed = {}
    for module in modules():
        if module in ("envelope.rules", "envelope.errors"):
            continue
        text = source(module)
        for pattern, loose in LOOSENED.get(code, []) if module == "envelope.records" else []:
            text, count = re.subn(pattern, loose, text)
            assert count > 0, f"{pattern} is not in {module}"
        if f'"{code}"' not in text and text == source(module):
            continue
        remover = _Remover(code)
        tree = ast.fix_missing_locations(remover.visit(ast.parse(text)))
        if remover.removed or text != source(module):
            changed[module] = tree
    return changed


def places(code: str) -> list[tuple[str, int, str]]:
    """Return where a rule is enforced: the module, which of its statements, and the function that this stands in."""
    found = []
    for module in modules():
        remover = _Remover(code)
        remover.visit(ast.parse(source(module)))
        found += [(module, number, function) for number, function in enumerate(remover.places)]
    return found


@contextmanager
def _apart() -> Iterator[ModuleType]:
    """Lend the name of the package to a new one."""
    real = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "envelope"}
    fresh = ModuleType("envelope")
    fresh.__path__ = [str(FOLDER)]
    try:
        sys.modules["envelope"] = fresh
        yield fresh
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "envelope"]:
            del sys.modules[name]
        sys.modules.update(real)


def mutant(changed: dict[str, ast.Module]) -> dict[str, ModuleType]:
    """Return the modules of a package in which some are changed."""
    built: dict[str, ModuleType] = {}
    dirty: set[str] = set()
    with _apart() as fresh:
        for name in modules():
            module = sys.modules[name] if name in sys.modules else __import__(name, fromlist=["_"])
            if name in changed or dirty.intersection(imports(name)):
                dirty.add(name)
                tree = changed.get(name) or ast.parse(source(name))
                module = ModuleType(name)
                module.__file__ = f"<{name} without a rule>"
                sys.modules[name] = module
                exec(compile(tree, module.__file__, "exec"), module.__dict__)  # noqa: S102
            setattr(fresh, name.removeprefix("envelope."), module)
            built[name] = module
    return built


def verifier(built: dict[str, ModuleType]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the verifier of a mutant, in the form that a vector expects."""

    def verify(given: dict[str, Any]) -> dict[str, Any]:
        records = map(bytes.fromhex, given["records"])
        store = built["envelope.trust"].TrustStore
        return answer(built[ROOT].verify_thread(records, **arguments(given, store)))

    return verify


@cache
def _real(name: str) -> dict[str, Any]:
    return package(vectors()[name]["input"])


def noticed(verify: Callable[[dict[str, Any]], dict[str, Any]], names: list[str], enough: int) -> list[str]:
    """Return vectors whose answer changes, or whose verification crashes, until there are enough."""
    found: list[str] = []
    for name in names:
        if len(found) >= enough:
            break
        try:
            changed = verify(vectors()[name]["input"]) != _real(name)
        except Exception:
            changed = True
        if changed:
            found.append(name)
    return found


def pinned(rule: Rule) -> list[str]:
    """Return the vectors that name the rule."""
    return sorted(name for name, vector in vectors().items() if rule.number in vector["rules"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_verifier_without_a_rule_is_noticed_by_two_vectors(rule: Rule) -> None:
    changed = without(rule.code)
    assert changed, "nothing in the verifier enforces the rule"
    built = mutant(changed)
    if rule.code in BY_CALL:
        with pytest.raises(EnvelopeError, match=rule.code):
            BY_CALL[rule.code](sys.modules["envelope.keys"])
        BY_CALL[rule.code](built["envelope.keys"])
        return
    assert len(noticed(verifier(built), pinned(rule), 2)) == 2


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_that_is_enforced_at_several_places_is_missed_at_each(rule: Rule) -> None:
    several = places(rule.code)
    if len(several) < 2:
        return  # then it is missed with the whole rule
    for module, number, function in several:
        if any(function.startswith(other) for other in NOT_BY_THREADS.get(module, ())):
            continue
        tree = ast.fix_missing_locations(_Remover(rule.code, number).visit(ast.parse(source(module))))
        assert noticed(verifier(mutant({module: tree})), pinned(rule), 1), f"{module}, {function}"


def test_the_verifier_built_anew_with_every_rule_answers_as_the_real_one() -> None:
    built = mutant({"envelope.cbor": ast.parse(source("envelope.cbor"))})
    assert built[ROOT] is not envelope.audit
    assert noticed(verifier(built), sorted(vectors())[::7], 1) == []


def test_building_a_mutant_leaves_the_real_package_alone() -> None:
    mutant(without("key.small_order"))
    assert sys.modules[ROOT] is envelope.audit
    with pytest.raises(EnvelopeError, match=r"key\.small_order"):
        check_public_key(bytes(32))
