"""Whether a test that an index names is there, is collected, is never skipped and asserts something; read from the source."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

TESTS = Path(__file__).parents[1]
SKIPPING = {"skip", "skipif", "xfail", "importorskip"}

AUTOMATIC = "autouse"
"""The name under which fixtures stand that every test uses."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def fault_of(path: str, name: str, *, root: Path = TESTS) -> str | None:
    """What is wrong with a named test, None if nothing is.

    A test may skip itself by a mark of its own or of its module, by a call, and by a fixture; and it may assert through a helper
    of its module or of `tests/support` and `conftest.py`.
    """
    module = root / path
    if not module.is_file():
        return f"there is no {path}"
    if not (module.name.startswith("test_") and name.startswith("test_")):
        return f"{path}::{name} is not collected"
    found = [node for node in _tree(module).body if isinstance(node, Function) and node.name == name]
    if len(found) != 1:
        return f"{path} has {len(found)} tests {name}"
    marks = [node.value for node in _tree(module).body if isinstance(node, ast.Assign) and _is_marks(node)]
    if any(_names(mark) & SKIPPING for mark in (*marks, *found[0].decorator_list)):
        return f"{path}::{name} is marked to be skipped or to fail"
    used = list(_reachable(found[0], _helpers(module, root)))
    if any(_skips(node) for function in used for node in ast.walk(function)):
        return f"{path}::{name} may skip itself"
    if not any(_asserts(node) for function in used for node in ast.walk(function)):
        return f"{path}::{name} asserts nothing"
    return None


def _is_marks(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def _names(node: ast.AST) -> set[str]:
    """All names and attributes of an expression."""
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def _skips(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_pytest(node.func, SKIPPING)


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_pytest(node.func, {"raises"})


def _is_pytest(function: ast.Attribute, names: set[str]) -> bool:
    return isinstance(function.value, ast.Name) and function.value.id == "pytest" and function.attr in names


def _reachable(test: Function, helpers: dict[str, list[ast.AST]]) -> Iterator[ast.AST]:
    """The test, and every helper or fixture that it, or one of them, mentions."""
    waiting: list[ast.AST] = [test, *helpers.get(AUTOMATIC, [])]
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        yield function
        parameters = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
        for name in _names(function) | parameters:
            waiting += helpers.get(name, [])


def _helpers(module: Path, root: Path) -> dict[str, list[ast.AST]]:
    """The functions and classes that a test of this module may use, by name."""
    conftests = [folder / "conftest.py" for folder in module.parents if folder.is_relative_to(root)]
    imported = {
        (folder / f"{node.module}.py")
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.ImportFrom) and node.module and "." not in node.module
        for folder in (module.parent, root / "support")
    }
    helpers: dict[str, list[ast.AST]] = {}
    for source in (module, *conftests, *sorted(imported)):
        for node in _tree(source).body if source.is_file() else []:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("test_"):
                is_automatic = any("autouse" in ast.dump(decorator) for decorator in node.decorator_list)
                helpers.setdefault(AUTOMATIC if is_automatic else node.name, []).append(node)
    return helpers


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
