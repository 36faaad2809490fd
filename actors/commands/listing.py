"""`perdure ls` and `perdure show`: what the checkpoint store holds, read without claiming anything."""

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actors.commands.options import AsJson, Config, Data, Store
from actors.commands.target import conversation, title

if TYPE_CHECKING:
    from rich.console import Console

    from actors.inspection import Content, Listed


def ls(data: Data = None, store: Store = None, config: Config = None, as_json: AsJson = False) -> int:
    """List the conversations: name, messages, tokens, awake or asleep, last change.

    The numbers of one that is awake are from when it last slept; `?` = it has not slept yet.
    """
    from actors.inspection import conversations
    from actors.settings import load_settings

    found = conversations(load_settings({"data": data, "store": store}, config).store)
    if as_json:
        for one in found:
            typer.echo(json.dumps(one.as_json(), ensure_ascii=False))
    else:
        _print_list(list(found))
    return 0


def _print_list(found: "list[Listed]") -> None:
    from actors.commands.terminal import aligned, console

    out = console()
    if not found:
        out.print("No conversation yet.")
        return
    rows = [
        (
            title(one.agent, one.name),
            _number(one.messages),
            _number(one.tokens),
            "asleep" if one.is_asleep else "awake",
            _when(one.updated_ms),
        )
        for one in found
    ]
    for line in aligned([("name", "messages", "tokens", "", "last change"), *sorted(rows)], out.width, right=(1, 2)):
        out.print(line)
    if not all(one.is_asleep for one in found):
        out.print("Numbers of what is awake are from when it last slept; ? = it has not slept yet.", style="dim")


def _number(value: int | None) -> str:
    return f"{value:,}" if value is not None else "?"


def _when(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "?"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="NAME or AGENT/NAME.")],
    data: Data = None,
    store: Store = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Print one conversation: its context blocks, and its history as a reader gets it, summaries in their places."""
    from actors.commands.terminal import console
    from actors.errors import CommandFailed, NotFound
    from actors.inspection import read
    from actors.settings import load_settings

    agent, plain_name = conversation(name)
    settings = load_settings({"data": data, "store": store}, config)
    try:
        content = asyncio.run(read(settings.store, agent, plain_name))
    except NotFound as exc:
        raise CommandFailed(f"There is no conversation {title(agent, plain_name)!r} here; see `perdure ls`.") from exc
    if as_json:
        typer.echo(json.dumps(content.as_json(), ensure_ascii=False))
    else:
        _print_content(content, console())
    return 0


def _print_content(content: "Content", out: "Console") -> None:
    from actors.commands.terminal import count, printable

    for label, text in content.blocks.items():
        out.print("\n".join(f"[{printable(label)}] {line}" for line in _lines(text)), style="dim")
    for message in content.history:
        folded = content.folded.get(message["id"])
        out.print(f"{printable(message['id'])}  {printable(message['role'])}", style="bold")
        if folded:
            out.print(f"  stands for {printable(folded[0])} to {printable(folded[1])}", style="dim")
        for part in message["parts"]:
            out.print(f"  {_describe(part)}")
    summaries = f", {len(content.history):,} entries with its summaries" if content.folded else ""
    out.print(f"{count(content.messages, 'message')}{summaries}, {content.tokens:,} tokens")


def _describe(part: Any) -> str:
    if not isinstance(part, dict):
        return _one_line(json.dumps(part, ensure_ascii=False))
    if isinstance(part.get("text"), str):
        return _one_line(part["text"])
    if part.get("toolCallId"):
        tool = part.get("toolName") or str(part.get("type", "")).removeprefix("tool-")
        given = json.dumps(part.get("input"), ensure_ascii=False)
        answer = json.dumps(part["output"], ensure_ascii=False) if "output" in part else f"({part.get('state')})"
        return _one_line(f"{tool}({given}) -> {answer}")
    return _one_line(json.dumps(part, ensure_ascii=False))


def _lines(text: str) -> list[str]:
    """Of a context block or the system prompt, without the empty ones."""
    return [_one_line(line) for line in text.splitlines() if line.strip()] or [""]


def _one_line(text: str, width: int = 400) -> str:
    from actors.commands.terminal import printable

    line = printable(" ".join(text.split()))
    return line if len(line) <= width else f"{line[:width]}... ({len(text):,} characters)"
