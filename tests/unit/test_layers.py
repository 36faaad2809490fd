"""Imports point one way (DESIGN.md section 1)."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("session", "conversation", "chat", "cluster", "gateway", "commands")  # each may import those before it
COMPACTION_MAY_IMPORT = (
    "storage.records",
    "storage.tokens",
    "storage.overlays",
    "storage.errors",
    "storage.maybe_async",
)
ONLY_IN = {
    "aiosqlite": ("storage/database.py",),
    "ray": ("actors/cluster/",),
    "psycopg": (),  # a connection is given, and is not imported
    "openai": ("actors/models.py",),
    "obstore": ("storage/",),
}


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def imports(path: Path) -> list[str]:
    """Every module that a file imports, anywhere in it; ``from a import b`` counts as a and a.b.

    Where `importlib.import_module` is used, so do all texts beside it that could be the module's name.
    """
    return [name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for name in imported(path, node)]


def imported(path: Path, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path} imports relatively"
        assert node.module is not None
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and any(is_importing(part) for part in (node.func, *node.args)):
        yield from (part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str))


def is_importing(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
    return name in ("import_module", "__import__")


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def offences(folder: str, *forbidden: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(folder)
        for name in imports(path)
        if any(is_in(name, package) for package in forbidden)
    ]


def test_storage_knows_nothing_above_it() -> None:
    assert offences("storage", "actors", "compaction", "ray", "websockets") == []


def test_compaction_imports_only_the_pure_parts_of_storage() -> None:
    used = {name for path in modules("compaction") for name in imports(path) if is_in(name, "storage")}
    assert [name for name in used if not any(is_in(name, allowed) for allowed in COMPACTION_MAY_IMPORT)] == []
    assert offences("compaction", "actors", "aiosqlite", "sqlite3", "ray", "websockets", "time", "datetime") == []


def test_compaction_looks_at_a_clock_only_to_date_the_stubs_of_lost_results() -> None:
    users = [path.name for path in modules("compaction") if "storage.records.timestamp" in imports(path)]
    assert users == ["sanitize.py"]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_of_actors_imports_no_layer_above_it(layer: str) -> None:
    above = LAYERS[LAYERS.index(layer) + 1 :]
    assert offences(f"actors/{layer}", *(f"actors.{other}" for other in above)) == []


def test_sessions_work_without_ray_sockets_and_the_rest_of_actors() -> None:
    used = {name for path in modules("actors/session") for name in imports(path) if is_in(name, "actors")}
    allowed = ("actors.session", "actors.errors", "actors.redaction")  # the last two stand alone
    assert [name for name in used if not any(is_in(name, each) for each in allowed)] == []
    assert offences("actors/session", "ray", "websockets") == []


def test_sessions_speak_no_sql() -> None:
    """They hand functions of a connection to the storage, and know of `sqlite3` only how the connection is called."""
    nodes = [node for path in modules("actors/session") for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    assert [node.attr for node in attributes if node.attr in ("execute", "executemany", "executescript")] == []
    assert {node.attr for node in attributes if getattr(node.value, "id", None) == "sqlite3"} <= {"Connection"}
    assert not any(is_in(name, "sqlite3") for path in modules("actors/chat") for name in imports(path))
    assert not any(is_in(name, "sqlite3.dbapi2") for path in modules("actors/session") for name in imports(path))


@pytest.mark.parametrize("package", sorted(ONLY_IN))
def test_a_third_party_package_is_imported_only_in_its_place(package: str) -> None:
    importers = [
        path.relative_to(ROOT).as_posix()
        for folder in ("actors", "compaction", "storage")
        for path in modules(folder)
        if any(is_in(name, package) for name in imports(path))
    ]
    places = ONLY_IN[package]
    assert [path for path in importers if not path.startswith(places)] == []
    assert [place for place in places if not any(path.startswith(place) for path in importers)] == []


def test_a_call_is_an_import_too(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        'to_thread(importlib.import_module, "openai")\nimport_module("psycopg.rows")\n__import__("ray")\n'
    )
    assert imports(module) == ["openai", "psycopg.rows", "ray"]


def test_every_folder_of_actors_is_a_layer() -> None:
    assert {path.parent.name for path in modules("actors") if path.parent != ROOT / "actors"} == set(LAYERS)


def test_the_three_folders_have_modules_to_look_at() -> None:
    assert all(len(modules(folder)) > 3 for folder in ("actors", "compaction", "storage"))
