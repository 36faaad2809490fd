"""Small helpers for tests that speak to a gateway over raw sockets."""

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

WAIT_SECONDS = 5.0


async def open_socket(url: str, path: str = "/agents/conv-agent/alice", **options: Any) -> ClientConnection:
    return await connect(url + path, proxy=None, compression=None, max_size=None, **options)


async def joined(url: str, path: str = "/agents/conv-agent/alice", **options: Any) -> ClientConnection:
    """A socket that has received its mcp frame, the last of a connect."""
    socket = await open_socket(url, path, **options)
    while (await receive(socket))["type"] != "cf_agent_mcp_servers":
        pass
    return socket


async def receive(socket: ClientConnection) -> Any:
    async with asyncio.timeout(WAIT_SECONDS):
        return json.loads(await socket.recv())


async def call(socket: ClientConnection, method: str, *args: Any, id: str = "1") -> None:
    await socket.send(json.dumps({"type": "rpc", "id": id, "method": method, "args": args}))


async def answer(socket: ClientConnection, id: str = "1") -> Any:
    """The last frame of a call; other frames are passed over."""
    while True:
        frame = await receive(socket)
        if frame.get("type") == "rpc" and frame["id"] == id and frame.get("done", True):
            return frame


async def closed(socket: ClientConnection) -> tuple[int | None, str | None]:
    """Close code and reason, once the server has closed; what was still received is passed over."""
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed:
            return socket.close_code, socket.close_reason


async def http(url: str, request: str) -> str:
    """The raw response to a raw request."""
    host, port = url.removeprefix("ws://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request.replace("\n", "\r\n").encode())
        async with asyncio.timeout(WAIT_SECONDS):
            return (await reader.read()).decode()
    finally:
        writer.close()
        await writer.wait_closed()


async def get(url: str, path: str, *headers: str, method: str = "GET") -> str:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {url.removeprefix('ws://')}", *headers, "", ""]
    return await http(url, "\n".join(lines))
