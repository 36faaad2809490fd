"""Sends transcripts to a server, several conversations at once. Resumable: what is there already is left alone.

A message is appended to the id of the one before it, one after another, so the part of a transcript that the server has
is always its beginning. A second run finds the end by asking, and sends only what is missing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.errors import ConnectionLost, UnknownAgent
from actors.transcripts import Step, Transcript
from storage.errors import StorageError


class Chat(Protocol):
    """What the importer needs of `actors.client.Client`."""

    async def get_message(self, message_id: str, /) -> dict[str, Any] | None: ...
    async def append_message(self, message: dict[str, Any], parent_id: str | None, /) -> object: ...


OpenChat = Callable[[str, str], AbstractAsyncContextManager[Chat]]
"""(agent, name) -> a connection to that conversation."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the rest of one conversation was not sent, and the line that it failed at."""

    line: int
    name: str
    reason: str


@dataclass(slots=True)
class Report:
    conversations: int = 0
    sent: int = 0
    already_there: int = 0
    troubles: list[Trouble] = field(default_factory=list)


async def send_all(
    transcripts: Iterable[Transcript], agent: str, open_chat: OpenChat, *, parallel: int, advance: Callable[[int], None]
) -> Report:
    """Sends every transcript; at most ``parallel`` conversations are open and in memory at a time.

    ``advance(n)`` is told of every n messages that are done (sent, or there already). A message that the server refuses
    ends its own conversation only. Raises `ConnectionLost` or TimeoutError when the server is gone, `UnknownAgent`; the
    same run again goes on where this one stopped.
    """
    report, source = Report(), iter(transcripts)

    async def work() -> None:
        # All workers draw from one iterator: between two awaits nobody else runs, so no lock is needed.
        for transcript in source:
            await _send(transcript, transcript.agent or agent, open_chat, report, advance)

    async with _plain_errors(), asyncio.TaskGroup() as workers:
        for _ in range(parallel):
            workers.create_task(work())
    return report


@asynccontextmanager
async def _plain_errors() -> AsyncIterator[None]:
    """The first error of a group of tasks instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group


async def _send(
    transcript: Transcript, agent: str, open_chat: OpenChat, report: Report, advance: Callable[[int], None]
) -> None:
    steps = transcript.steps
    if not steps:
        report.conversations += 1
        return
    line = steps[0].line
    try:
        async with open_chat(agent, transcript.name) as chat:
            first = await _first_missing(chat, steps)
            report.already_there += first
            advance(first)
            for step in steps[first:]:
                line = step.line
                await chat.append_message(step.message, step.parent_id)
                report.sent += 1
                advance(1)
        report.conversations += 1
    except (ConnectionLost, UnknownAgent):
        raise
    except StorageError as exc:
        report.troubles.append(Trouble(line, transcript.name, str(exc)))


async def _first_missing(chat: Chat, steps: list[Step]) -> int:
    """The place of the first step that the server does not have. Asks once when all or none are there."""
    low, high = 0, len(steps)  # steps before low are there; the step at high, if any, is not
    probe = high - 1
    while low < high:
        if await chat.get_message(steps[probe].message["id"]) is not None:
            low = probe + 1
        else:
            high = probe
        probe = (low + high) // 2 if low else 0
    return low
