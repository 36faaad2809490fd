"""Replays a golden transcript against a server: per socket, what is received must be what was recorded.

Ignored: token numbers, key order, the extension, `seq` and `epoch` of session frames (tests/protocol_data and DEVIATIONS).
"""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

FOLDER = Path(__file__).parent.parent / "protocol_data" / "transcripts"
WAIT_SECONDS = 5.0

_NUMBERS = {"tokenEstimate", "tokensBefore", "seq", "epoch"}
_PLACEHOLDER = re.compile(r"<(?:timestamp|uuid-\d+)>")


def load(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return entries


def comparable(value: Any) -> Any:
    """A frame without what may differ."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if key not in _NUMBERS}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return value


def matches(expected: Any, received: Any) -> bool:
    if isinstance(expected, str) and _PLACEHOLDER.fullmatch(expected):
        return isinstance(received, str)
    if isinstance(expected, dict) and isinstance(received, dict):
        return expected.keys() == received.keys() and all(matches(expected[key], received[key]) for key in expected)
    if isinstance(expected, list) and isinstance(received, list):
        return len(expected) == len(received) and all(map(matches, expected, received))
    return bool(expected == received)


class Replay:
    """One run over a transcript. ``skip(entry)``: recorded steps that this server does otherwise."""

    def __init__(self, url: str, skip: Callable[[dict[str, Any]], bool] = lambda entry: False) -> None:
        self._url = url
        self._skip = skip
        self._sockets: dict[str, ClientConnection] = {}
        self._refused: dict[str, InvalidStatus] = {}
        self._asked: dict[str, tuple[int, str]] = {}

    async def run(self, entries: list[dict[str, Any]]) -> None:
        try:
            for number, entry in enumerate(entries):
                if not self._skip(entry):
                    try:
                        await self._step(entry)
                    except Exception as exc:
                        raise AssertionError(f"step {number}: {entry}") from exc
        finally:
            for socket in self._sockets.values():
                await socket.close()

    async def _step(self, entry: dict[str, Any]) -> None:
        event = entry.get("event")
        if event == "open-request":
            await self._open(entry)
        elif event == "upgrade":
            assert self._sockets[entry["conn"]].subprotocol is None
        elif event == "http-reject":
            response = self._refused[entry["conn"]].response
            assert (response.status_code, response.body.decode()) == (entry["status"], entry["body"])
        elif event == "close" and entry["dir"] == "c2s":
            self._asked[entry["conn"]] = (entry["code"], entry["reason"])
            await self._close(self._sockets[entry["conn"]], entry)
        elif event == "close":
            await self._closed(entry)
        elif event is None and entry["dir"] == "c2s":
            await self._send(entry)
        elif event is None:
            await self._receive(entry)

    async def _open(self, entry: dict[str, Any]) -> None:
        subprotocols = entry.get("protocols")
        try:
            self._sockets[entry["conn"]] = await connect(
                self._url + entry["path"].replace("<", "").replace(">", ""),
                subprotocols=subprotocols,
                proxy=None,
                max_size=None,
            )
        except InvalidStatus as exc:
            self._refused[entry["conn"]] = exc

    async def _send(self, entry: dict[str, Any]) -> None:
        socket = self._sockets[entry["conn"]]
        if "binary_hex" in entry:
            await socket.send(bytes.fromhex(entry["binary_hex"]))
        else:
            await socket.send(entry["text"] if "text" in entry else json.dumps(entry["frame"], separators=(",", ":")))

    async def _receive(self, entry: dict[str, Any]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            received = await self._sockets[entry["conn"]].recv()
        if "binary_hex" in entry:
            assert received == bytes.fromhex(entry["binary_hex"])
        elif "text" in entry:
            assert received == entry["text"]
        else:
            frame = json.loads(received)
            assert matches(comparable(entry["frame"]), comparable(frame)), frame

    async def _close(self, socket: ClientConnection, entry: dict[str, Any]) -> None:
        if entry["code"] == 1005:
            async with socket.send_context():
                socket.protocol.send_close()
            return
        async with asyncio.timeout(WAIT_SECONDS):
            await socket.close(entry["code"], entry["reason"])

    async def _closed(self, entry: dict[str, Any]) -> None:
        socket = self._sockets[entry["conn"]]
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                extra = await socket.recv()
            except ConnectionClosed:
                extra = None
        assert extra is None, f"not recorded: {extra!r}"
        # a close without a code is answered by one without a code, where the reference leaves the peer waiting
        code = 1005 if self._asked.get(entry["conn"], (0, ""))[0] == 1005 else entry["code"]
        assert socket.close_code == code
        assert socket.close_reason == (entry["reason"] or "")
