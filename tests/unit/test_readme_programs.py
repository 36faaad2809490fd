"""The programs of the README's section about sessions run as they are printed."""

import ast
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any

import postgres_server
import pytest

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
DSN = "postgresql://user:password@host/db"


def programs() -> tuple[list[str], list[str]]:
    """The blocks on SQLite, and those on PostgreSQL."""
    section = README.split("\n## Sessions in Python\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    return [block for block in blocks if DSN not in block], [block for block in blocks if DSN in block]


async def run(block: str, names: dict[str, Any]) -> None:
    code = compile(block, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)
    result = eval(code, names)  # the program of the README itself
    if inspect.isawaitable(result):
        await result


async def test_sessions_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in programs()[0]:
        await run(block, names)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "['Another trip', 'A trip']",
        "['Two days in Lyon?', 'Two days in Lyon?']",
        "A parcel may be sent back within 30 days.",
    ]
    assert [message["id"] for message in names["history"]] == ["m1"]
    assert {tool["function"]["name"] for tool in names["tools"]} == {"set_context"}


async def test_a_session_in_postgresql(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = postgres_server.server()
    (block,) = programs()[1]
    await run(block.replace(DSN, server.dsn(server.schema(str(tmp_path)))), {})
    assert "'content': 'hello'" in capsys.readouterr().out
