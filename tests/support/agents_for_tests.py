"""Agents that tests serve: the Session API and hooks for what a test must bring about."""

import asyncio
import os
import time
from typing import Any, ClassVar

from actors import Agent, Session, rpc
from actors.agent import Connection, Stream, current_connection
from actors.session_methods import SessionMethods

LEAKED: list[Any] = []


class Probe(SessionMethods, Agent):
    """One writable block, a cached prompt, a low threshold, a compaction that folds everything but the last two messages."""

    initial_state: ClassVar[Any] = {"count": 0}
    last: ClassVar[str | None] = None  # class state, which the conversations of a process share

    def configure(self) -> Session:
        self.secret = None
        return (
            Session.create(self)
            .with_context("memory", max_tokens=1100)
            .with_cached_prompt()
            .on_compaction(self.fold)
            .compact_after(self.settings.compact_after)
        )

    async def fold(self, messages: list[dict[str, Any]], *_: Any) -> dict[str, str] | None:
        if len(messages) < 4:
            return None
        return {
            "fromMessageId": messages[0]["id"],
            "toMessageId": messages[-3]["id"],
            "summary": f"{len(messages) - 2} messages",
        }

    @rpc(verb="read")
    async def pid(self) -> int:
        return os.getpid()

    @rpc
    async def wait(self, seconds: float) -> str:
        """A call that waits without holding the loop."""
        await asyncio.sleep(seconds)
        return "waited"

    @rpc
    async def block(self, seconds: float) -> str:
        """A call that holds the loop: what the keeper must notice."""
        time.sleep(seconds)  # noqa: ASYNC251
        return "blocked"

    @rpc(streaming=True)
    async def count(self, stream: Stream, to: int) -> None:
        for number in range(to):
            await stream.send(number)
        await stream.end({"total": to})

    @rpc
    async def increase(self) -> int:
        value = {"count": self.state["count"] + 1}
        await self.set_state(value)
        return int(value["count"])

    @rpc
    async def fail(self, text: str) -> None:
        raise ValueError(text)

    @rpc
    async def circle(self) -> Any:
        value: list[Any] = []
        value.append(value)
        return value

    @rpc
    async def close_me(self, code: int, reason: str) -> None:
        connection: Connection | None = current_connection.get()
        assert connection is not None
        connection.close(code, reason)

    @rpc
    async def leave_traces(self, secret: str) -> None:
        """What a careless agent leaves behind: an attribute, an open file, and a task that answers late."""
        self.secret = secret
        self.file = open("/dev/null")  # noqa: ASYNC230
        self.task = asyncio.create_task(self._late(secret))

    async def _late(self, secret: str) -> None:
        for _ in range(50):
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                pass
            self.broadcast({"type": "late", "secret": secret})

    @rpc
    async def leave_tidily(self, secret: str) -> None:
        """What an ordinary agent leaves behind: attributes, of itself and of its class."""
        self.trace = secret
        type(self).last = secret

    @rpc(verb="read")
    async def find_traces(self) -> dict[str, Any]:
        tasks = [
            task.get_coro().__qualname__ for task in asyncio.all_tasks() if "_late" in task.get_coro().__qualname__
        ]
        return {
            "secret": self.secret,
            "trace": getattr(self, "trace", None),
            "last": self.last,
            "tasks": tasks,
            "pid": os.getpid(),
            "connection": len(self.connections),
        }


class Slow(Probe):
    """Says when it begins to summarize, and ends when it is told to."""

    def configure(self) -> Session:
        self.may_end = asyncio.Event()
        return super().configure()

    async def fold(self, messages: list[dict[str, Any]], *_: Any) -> dict[str, str] | None:
        self.broadcast({"type": "summarizing", "pid": os.getpid()})
        await self.may_end.wait()
        return await super().fold(messages)

    @rpc
    async def end_summary(self) -> None:
        self.may_end.set()
        await self.session.settled()


class Crashing(SessionMethods, Agent):
    """Ends its process while it is waking, as one that runs out of memory there does."""

    async def on_start(self) -> None:
        if self.name.startswith("poisoned"):
            os._exit(1)
