"""A client as thin as it can be, so that a benchmark measures the server: raw frames over `websockets`."""

import itertools
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

_ids = itertools.count()


def message(identity: str, text: str = "x" * 400, role: str = "user") -> dict[str, Any]:
    return {"id": identity, "role": role, "parts": [{"type": "text", "text": text}]}


class Socket:
    """One connection to one conversation; `call` waits for the answer and drops all other frames."""

    def __init__(self, url: str, name: str, agent: str = "conversation") -> None:
        self.address = f"{url}/agents/{agent}/{name}"

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
        while True:
            frame = json.loads(await self.connection.recv())
            if frame.get("id") == identity and frame.get("type") == "rpc":
                if not frame["success"]:
                    raise RuntimeError(frame["error"])
                return frame.get("result")

    async def call(self, method: str, *arguments: Any) -> Any:
        return await self.answer(await self.send(method, *arguments))

    async def fill(self, count: int, prefix: str = "m", window: int = 64) -> None:
        """Append `count` messages of 400 characters, at most `window` in flight."""
        pending: list[str] = []
        for number in range(count):
            pending.append(await self.send("appendMessage", message(f"{prefix}{number}")))
            if len(pending) == window:
                await self._answers(pending)
        await self._answers(pending)

    async def _answers(self, pending: list[str]) -> None:
        wanted = set(pending)
        while wanted:
            frame = json.loads(await self.connection.recv())
            if frame.get("type") == "rpc":
                if not frame["success"]:
                    raise RuntimeError(frame["error"])
                wanted.discard(frame["id"])
        pending.clear()
