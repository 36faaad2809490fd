"""`perdure import`: conversations of other programs, sent to a server with a progress bar."""

import asyncio
import enum
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actors.commands.options import DEFAULT_URL, Token, Url
from actors.commands.target import DEFAULT_AGENT, Server, require_listener, server

if TYPE_CHECKING:
    from actors.importer import Chat, Report
    from actors.transcripts import Reader, Transcript


MOST_NAMED = 20
"""So many bad lines are named one by one."""


class Format(enum.StrEnum):
    openai_chat = "openai-chat"
    ui_messages = "ui-messages"
    jsonl = "jsonl"


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True, help="The file of lines.")
    ],
    format: Annotated[Format, typer.Option("--format", help="What the lines of FILE are.")],
    agent: Annotated[
        str, typer.Option("--agent", metavar="A", help="The agent that gets the conversations.")
    ] = DEFAULT_AGENT,
    url: Url = DEFAULT_URL,
    token: Token = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, max=256, help="Conversations sent at the same time.")
    ] = 8,
) -> int:
    """Load conversations from a file of lines. Running it again sends only what is missing."""
    from actors.commands.terminal import count, say
    from actors.errors import CommandFailed, ConnectionLost
    from actors.transcripts import FORMATS

    target, read = server(url, token), FORMATS[format]
    bad, good, messages = _first_look(file, read)
    if not good:
        raise CommandFailed(
            f"{file} has no line that is a conversation in the format {format.value}." if bad else f"{file} is empty."
        )
    try:
        report = asyncio.run(_send(file, read, agent, target, parallel, messages))
    except (ConnectionLost, TimeoutError) as exc:
        reason = str(exc).rstrip(".") or "The server gives no answer"
        raise CommandFailed(f"{reason}; the same command again goes on where this one stopped.") from exc
    for trouble in report.troubles:
        say(f"line {trouble.line}: {trouble.name}: {trouble.reason}")
    failed = bad + len(report.troubles)
    typer.echo(
        f"{count(report.conversations, 'conversation')}: {count(report.sent, 'message')} sent, "
        f"{report.already_there:,} already there" + (f"; {count(failed, 'line')} failed." if failed else ".")
    )
    return 1 if failed else 0


def _first_look(file: Path, read: "Reader") -> tuple[int, int, int]:
    """Says which lines are bad, before anything is sent. Returns the numbers of bad and good lines, and of messages."""
    from actors.commands.terminal import count, say
    from actors.transcripts import BadLine

    bad = good = messages = 0
    for item in read(file):
        if isinstance(item, BadLine):
            bad += 1
            if bad <= MOST_NAMED:
                say(f"line {item.line}: {item.reason}.")
        else:
            good += 1
            messages += len(item.steps)
    if bad > MOST_NAMED:
        say(f"{count(bad - MOST_NAMED, 'more line')} cannot be used; is this the right --format?")
    return bad, good, messages


async def _send(file: Path, read: "Reader", agent: str, target: Server, parallel: int, messages: int) -> "Report":
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from actors.client import Client
    from actors.commands.terminal import console
    from actors.importer import send_all

    def open_chat(agent: str, name: str) -> "AbstractAsyncContextManager[Chat]":
        return Client(target.url, agent, name, token=target.token)

    await require_listener(target)
    columns = (TextColumn("importing"), BarColumn(), MofNCompleteColumn(), TextColumn("messages"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console(is_error=True)) as progress:
        task = progress.add_task("", total=messages)
        return await send_all(
            _transcripts(file, read), agent, open_chat, parallel=parallel, advance=lambda n: progress.advance(task, n)
        )


def _transcripts(file: Path, read: "Reader") -> "Iterator[Transcript]":
    from actors.transcripts import Transcript

    return (item for item in read(file) if isinstance(item, Transcript))
