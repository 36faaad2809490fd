"""A client as thin as it can be, so that a benchmark measures the server: raw frames over `websockets`."""

import itertools
import json
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

_ids = itertools.count()


class CallFailed(Exception):
    """A failure frame: its error text."""


def message(identity: str, text: str = "x" * 400, role: str = "user") -> dict[str, Any]:
    return {"id": identity, "role": role, "parts": [{"type": "text", "text": text}]}


class Socket:
    """One connection to one conversation. Answers may come in any order; `others` keeps all frames that are no answers."""

    def __init__(self, url: str, name: str, agent: str = "conversation") -> None:
        self.address = f"{url}/agents/{agent}/{name}"
        self.others: list[dict[str, Any]] = []
        self._answers: dict[str, dict[str, Any]] = {}

    async def __aenter__(self) -> "Socket":
        self.connection: ClientConnection = await connect(
            self.address, compression=None, max_size=None, max_queue=None, ping_interval=None
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def send(self, method: str, *arguments: Any) -> str:
        identity = f"b{next(_ids)}"
        frame = {"type": "rpc", "id": identity, "method": method, "args": arguments}
        await self.connection.send(json.dumps(frame))
        return identity

    async def answer(self, identity: str) -> Any:
        """The result of a call that was sent. Raises CallFailed."""
        while identity not in self._answers:
            await self._read()
        frame = self._answers.pop(identity)
        if not frame["success"]:
            raise CallFailed(frame["error"])
        return frame.get("result")

    async def call(self, method: str, *arguments: Any) -> Any:
        return await self.answer(await self.send(method, *arguments))

    async def frames_until(self, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """All frames that are no answers, up to the first that is wanted."""
        while not any(wanted(frame) for frame in self.others):
            await self._read()
        return self.others

    async def fill(self, count: int, prefix: str = "m", window: int = 64) -> None:
        """Append `count` messages of 400 characters, at most `window` in flight."""
        pending: list[str] = []
        for number in range(count):
            pending.append(await self.send("appendMessage", message(f"{prefix}{number}")))
            if len(pending) == window:
                await self.answer(pending.pop(0))
        for identity in pending:
            await self.answer(identity)
        self.others.clear()

    async def _read(self) -> None:
        frame = json.loads(await self.connection.recv())
        if frame.get("type") == "rpc" and frame.get("done", True):
            self._answers[frame["id"]] = frame
        else:
            self.others.append(frame)
