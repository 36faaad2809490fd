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

    from actors.client import Client, Status


_SHORTEST_BAR = 4
_LONGEST_BAR = 24


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
    trouble: str = ""  # why it is not followed any more

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
        with Live(_table(rows, out.width), console=out, auto_refresh=False) as live:
            while True:
                live.update(_table(rows, out.width), refresh=True)
                await asyncio.sleep(0.25)


async def _follow(target: Server, row: Row, changed: Callable[[], None]) -> None:
    from actors.client import Client
    from storage.errors import StorageError

    try:
        async with Client(target.url, row.agent, row.name, token=target.token) as chat:
            if await _is_new(chat):
                row.phase = "new"
                changed()
            async for status in chat.status():
                row.take(status)
                changed()
    except (StorageError, TimeoutError) as exc:
        row.phase, row.trouble = "failed", str(exc)
        changed()


async def _is_new(chat: "Client") -> bool:
    """Whether nothing has been said in it; False where the agent has no such method."""
    from actors.errors import CallFailed, CallRefused

    try:
        return await chat.get_latest_leaf() is None
    except (CallRefused, CallFailed):
        return False


def _table(rows: list[Row], width: int) -> "RenderableType":
    """In the order of `ls`. Where they do not all fit, those that changed last are chosen."""
    from rich.console import Group
    from rich.text import Text

    from actors.commands.gauge import bar, numbers
    from actors.commands.terminal import aligned, cut, printable

    now, room = time.monotonic(), _visible_rows()
    chosen = sorted(sorted(rows, key=lambda row: (-row.changed, row.title))[:room], key=lambda row: row.title)
    before = [("conversation", "phase")] + [(row.title, row.phase or "-") for row in chosen]
    after = [("tokens", "folded", "changed")] + [
        (
            numbers(row.tokens, row.threshold) if row.tokens is not None else "?",
            str(row.folded or ""),
            f"{now - row.changed:.0f} s ago" if row.changed else "",
        )
        for row in chosen
    ]
    # The bar takes what the rest leaves, and then the names are cut.
    taken = [line.cell_len for line in aligned([(*a, *b) for a, b in zip(before, after, strict=True)], 10_000)]
    bar_width = min(_LONGEST_BAR, max(_SHORTEST_BAR, width - max(taken) - 2))
    bars: list[str | Text] = ["", *(bar(row.tokens or 0, row.threshold, bar_width) for row in chosen)]
    cells = [(*a, gauge, *b) for a, gauge, b in zip(before, bars, after, strict=True)]
    lines = aligned(cells, width, right=(3, 4, 5))
    lines += [Text(cut(f"{row.title}: {printable(row.trouble)}", width), style="red") for row in chosen if row.trouble]
    if len(rows) > len(chosen):
        lines.append(
            Text(f"{len(rows) - len(chosen):,} more do not fit; shown are those that changed last.", style="dim")
        )
    return Group(*lines)


def _visible_rows() -> int:
    return max(3, shutil.get_terminal_size().lines - 4)


def _print_line(out: "Console", row: Row) -> None:
    """For a pipe or a file: a line for every change."""
    tokens = "" if row.tokens is None else row.tokens
    out.print(f"{row.title}\t{row.trouble or row.phase}\t{tokens}\t{row.threshold or ''}")
    out.file.flush()
