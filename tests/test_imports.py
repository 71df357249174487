"""What the package `envelope` offers, and what it leaves alone when it is imported."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import envelope

ROOT = Path(__file__).parents[1]
ALIASES = {"PublicKey"}
"""Public names that are no classes or functions; a line in the module that defines them says what they are."""


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a statement, beyond those it starts with."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return loaded_by("import envelope")


def test_the_public_names_are_sorted_and_named_once() -> None:
    assert envelope.__all__ == sorted(set(envelope.__all__))


@pytest.mark.parametrize("name", envelope.__all__)
def test_every_public_name_can_be_imported_and_says_what_it_is(name: str) -> None:
    value = getattr(envelope, name)
    if name not in ALIASES:
        assert callable(value)
        text = value.__doc__ or ""
        assert not text.startswith(f"{name}("), "a dataclass that was given no sentence"
        assert re.match(r"[A-Z][^.:]*[.:]", text)


def test_a_public_name_that_is_no_class_or_function_is_explained_where_it_is_defined() -> None:
    tree = ast.parse((ROOT / "envelope" / "keys.py").read_text(encoding="utf-8"))
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.Assign) and [getattr(target, "id", "") for target in before.targets] == ["PublicKey"]:
            assert isinstance(after, ast.Expr)
            assert isinstance(after.value, ast.Constant)
            return
    pytest.fail("PublicKey is not defined in envelope.keys")


def public_functions() -> list[tuple[str, ast.AST]]:
    found: list[tuple[str, ast.AST]] = []
    for path in sorted((ROOT / "envelope").glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        found.append((path.stem, module))
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                found.append((f"{path.stem}.{node.name}", node))
                if isinstance(node, ast.ClassDef):
                    found += [
                        (f"{path.stem}.{node.name}.{method.name}", method)
                        for method in node.body
                        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
                    ]
    return found


@pytest.mark.parametrize(
    ("name", "node"), public_functions(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_module_class_function_and_method_that_is_public_is_documented(name: str, node: ast.Module) -> None:
    assert ast.get_docstring(node), name


def test_importing_the_package_starts_no_event_loop_server_or_database_and_no_flow(loaded: set[str]) -> None:
    unwanted = {"asyncio", "trio", "anyio", "sqlite3", "socketserver", "http.server", "multiprocessing", "flow"}
    assert not {name for name in loaded if name in unwanted or name.split(".")[0] in unwanted - {"http.server"}}


def test_importing_the_package_does_not_load_the_command_or_what_draws_it(loaded: set[str]) -> None:
    assert not loaded & {"envelope.cli", "envelope.show", "rich", "typer", "click"}


def test_importing_the_command_loads_no_event_loop_database_or_flow_either() -> None:
    assert not loaded_by("import envelope.cli") & {"trio", "anyio", "sqlite3", "flow"}


def test_running_the_package_as_a_module_does_nothing_on_import() -> None:
    assert "envelope.cli" in loaded_by("import envelope.__main__")
