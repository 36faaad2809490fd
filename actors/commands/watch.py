"""`perdure watch`: live token usage of many conversations.

One connection for each conversation, which wakes it once; it may go to sleep again under the watching eye. Without names,
the conversations found in the checkpoint store when the command starts.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actors.commands.options import DEFAULT_URL, Config, Data, Store, Token, Url
from actors.commands.target import Server, conversation, require_listener, server, title

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from actors.client import Status


@dataclass(slots=True)
class Row:
    """What is known of one conversation. ``tokens`` None = it has not said anything yet."""

    agent: str
    name: str
    tokens: int | None = None
    threshold: int | None = None
    phase: str = ""
    changed: float = 0.0  # time.monotonic()
    folded: int = 0  # compactions seen

    @property
    def title(self) -> str:
        return title(self.agent, self.name)

    def take(self, status: "Status") -> None:
        self.tokens, self.threshold, self.phase = status.token_estimate, status.token_threshold, status.phase
        self.folded += status.tokens_before is not None
        self.changed = time.monotonic()


def watch(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="NAME or AGENT/NAME; without any, all that the store holds now."),
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    store: Store = None,
    config: Config = None,
) -> int:
    """Show live token usage: a bar against the compaction threshold, and what is going on. Ctrl-C ends it."""
    target = server(url, token)
    rows = [Row(*conversation(name)) for name in names] if names else _rows_of_store(data, store, config)
    try:
        asyncio.run(_watch(target, rows))
    except KeyboardInterrupt:
        return 0
    return 0


def _rows_of_store(data: Path | None, store: str | None, config: Path | None) -> list[Row]:
    from actors.errors import CommandFailed
    from actors.inspection import conversations
    from actors.settings import load_settings

    settings = load_settings({"data": data, "store": store}, config)
    rows = [Row(c.agent, c.name, c.tokens or None) for c in conversations(settings.store)]
    if not rows:
        raise CommandFailed(f"{settings.store} holds no conversation yet; name one, or try `perdure demo`.")
    return rows


async def _watch(target: Server, rows: list[Row]) -> None:
    from rich.live import Live

    from actors.commands.terminal import console

    await require_listener(target)
    out = console()
    async with asyncio.TaskGroup() as group:
        if not out.is_terminal:
            for row in rows:
                group.create_task(_follow(target, row, partial(_print_line, out, row)))
            return
        for row in rows:
            group.create_task(_follow(target, row, lambda: None))
        with Live(_table(rows), console=out, auto_refresh=False) as live:
            while True:
                live.update(_table(rows), refresh=True)
                await asyncio.sleep(0.25)


async def _follow(target: Server, row: Row, changed: Callable[[], None]) -> None:
    from actors.client import Client
    from storage.errors import StorageError

    try:
        async with Client(target.url, row.agent, row.name, token=target.token) as chat:
            async for status in chat.status():
                row.take(status)
                changed()
    except StorageError as exc:
        row.phase = str(exc)
        changed()


def _table(rows: list[Row]) -> "RenderableType":
    from rich.table import Table

    from actors.commands.gauge import bar, numbers

    table = Table(box=None, pad_edge=False)
    for heading in ("conversation", "phase", "", "tokens", "folded", "last change"):
        table.add_column(heading, justify="right" if heading in ("tokens", "folded") else "left", no_wrap=True)
    now = time.monotonic()
    for row in sorted(rows, key=lambda row: -row.changed)[: _visible_rows()]:
        tokens = numbers(row.tokens, row.threshold) if row.tokens is not None else "?"
        ago = f"{now - row.changed:.0f} s ago" if row.changed else "none since the start"
        table.add_row(
            row.title,
            row.phase or "-",
            bar(row.tokens or 0, row.threshold),
            tokens,
            str(row.folded or ""),
            ago,
        )
    if len(rows) > _visible_rows():
        table.caption = f"{len(rows) - _visible_rows()} more"
    return table


def _visible_rows() -> int:
    return max(3, shutil.get_terminal_size().lines - 4)


def _print_line(out: "Console", row: Row) -> None:
    """For a pipe or a file: a line for every change."""
    out.print(f"{row.title}\t{row.phase}\t{row.tokens}\t{row.threshold or ''}")
    out.file.flush()
