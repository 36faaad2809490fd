"""The live table of `perdure watch`: what is cut where it is narrow, and in which order."""

import io
import time
from typing import Any

import pytest
from rich.console import Console

from actors.commands import watch
from actors.commands.watch import Row


def drawn(rows: list[Row], width: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width, highlight=False)
    out.print(watch._table(rows, width))
    file: Any = out.file
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_at_80_columns_the_bar_shrinks_then_names_are_cut_and_never_a_number() -> None:
    now = time.monotonic()
    rows = [
        Row("conversation", "z" * 70, 123_456, 1_000_000, "compacting", now - 2, 17),
        Row("conversation", "alice", 5, 100_000, "idle"),
    ]
    heading, alice, long = drawn(rows, 80)
    assert heading.split() == ["conversation", "phase", "tokens", "folded", "changed"]
    assert alice.split()[:2] == ["alice", "idle"]
    assert "5 of 100,000" in alice
    assert "z…" in long
    assert long.endswith("123,456 of 1,000,000      17  2 s ago")
    assert max(map(len, (heading, alice, long))) <= 80
    assert "█" * 3 in drawn(rows, 200)[2]


def test_what_does_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_visible_rows", lambda: 3)
    rows = [Row("conversation", f"c{index}", 1, 10) for index in range(5)]
    rows[4].changed = time.monotonic()
    lines = drawn(rows, 80)
    assert [line.split()[0] for line in lines[1:-1]] == ["c0", "c1", "c4"]
    assert lines[-1] == "2 more do not fit; shown are those that changed last."


def test_a_failure_is_told_below_the_table() -> None:
    lines = drawn([Row("robot", "x", phase="failed", trouble="No agent named 'robot' is served here.")], 80)
    assert lines[-1] == "robot/x: No agent named 'robot' is served here."
