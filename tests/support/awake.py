"""An awake conversation without Ray and sockets, for tests: commands in, events collected."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agents_for_tests import Probe

from actors.agent import Agent
from actors.conversation.awake import AwakeConversation
from actors.conversation.events import Connect, Connected, Event, Failure, Result, Rpc
from actors.rpc import VERBS
from actors.settings import Settings
from storage.checkpoints import CheckpointStore, ConversationKey, MemoryStore
from storage.errors import Fenced

KEY = ConversationKey("probe", "alice")


class Hall:
    """The place where an awake conversation's events arrive."""

    def __init__(self) -> None:
        self.conversation: AwakeConversation
        self.events: list[Event] = []
        self.lost: list[BaseException] = []
        self._arrived = asyncio.Event()

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self._arrived.set()

    def lose(self, error: BaseException) -> None:
        self.lost.append(error)
        self._arrived.set()

    async def until_lost(self) -> BaseException:
        while not self.lost:
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), 10)
        return self.lost[0]

    async def until(self, kind: type, **facts: Any) -> Any:
        """The first event of this kind with these facts, now or later."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and all(getattr(event, name) == value for name, value in facts.items()):
                    return event
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), 10)

    async def connect(self, number: int = 1, **facts: Any) -> Connected:
        given = {"client_id": f"pk{number}", "url": "/", "principal": "", "is_readonly": False, "verbs": VERBS, **facts}
        self.conversation.submit(Connect(number, **given))
        return await self.until(Connected, connection=number)

    def send(self, call: str, method: str, *arguments: Any, connection: int = 1) -> None:
        frame = {"type": "rpc", "id": call, "method": method, "args": arguments}
        self.conversation.submit(Rpc(connection, json.dumps(frame).encode(), json.dumps(call).encode()))

    async def answer(self, call: str) -> Result | Failure:
        """The last event of a call."""
        wanted = json.dumps(call).encode()
        while True:
            for event in self.events:
                if isinstance(event, Failure) and event.call == wanted:
                    return event
                if isinstance(event, Result) and event.call == wanted and event.is_done:
                    return event
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), 10)

    async def call(self, method: str, *arguments: Any, connection: int = 1) -> Any:
        """The result of a call; AssertionError with its text if it failed."""
        call = f"{method}-{len(self.events)}"
        self.send(call, method, *arguments, connection=connection)
        answer = await self.answer(call)
        assert isinstance(answer, Result), answer
        return None if answer.result is None else json.loads(answer.result)


@asynccontextmanager
async def awake(
    folder: Path,
    agent_class: type[Agent] = Probe,
    *,
    store: CheckpointStore | None = None,
    key: ConversationKey = KEY,
    **settings: Any,
) -> AsyncIterator[Hall]:
    """Wakes; at the end hibernates, unless the test has done so or has lost the conversation."""
    work = folder / "work"
    work.mkdir(mode=0o700, exist_ok=True)
    hall = Hall()
    hall.conversation = await AwakeConversation.wake(
        key,
        agent_class,
        store=store or MemoryStore(),
        work_dir=work,
        settings=Settings(data=folder, **settings),
        node=bytes(16),
        emit=hall.emit,
        on_lost=hall.lose,
    )
    try:
        yield hall
    finally:
        if not hall.conversation._is_closing and not hall.lost:
            try:
                await hall.conversation.hibernate()
            except Fenced as exc:  # somebody else owns it by now
                hall.lost.append(exc)
