"""A scripted local endpoint that speaks OpenAI's chat completions: streamed or not, with every way to misbehave."""

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


def problems(messages: Sequence[Json]) -> list[str]:
    """What a strict endpoint refuses in the messages of a request."""
    found = []
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role != "tool" and open_calls:
            found.append(f"{number}: calls without answers: {open_calls}")
            open_calls = []
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                found.append(f"{number}: an answer without its call right before it")
            else:
                open_calls.remove(message["tool_call_id"])
            if not isinstance(content, str):
                found.append(f"{number}: an answer that is no text")
        elif role == "assistant" and message.get("tool_calls"):
            open_calls = [call["id"] for call in message["tool_calls"]]
            found += [f"{number}: {problem}" for call in message["tool_calls"] for problem in _call_problems(call)]
            if len(set(open_calls)) < len(open_calls) or not all(open_calls):
                found.append(f"{number}: call ids that are empty or occur twice")
        elif role not in ("system", "user", "assistant") or not content:
            found.append(f"{number}: an unknown role or an empty message")
    return [*found, *(["calls without answers at the end"] if open_calls else [])]


def _call_problems(call: Json) -> list[str]:
    function = call["function"]
    is_named = re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function["name"])
    is_object = isinstance(json.loads(function["arguments"]), dict)
    return [*([] if is_named else ["a bad name"]), *([] if is_object else ["arguments that are no object"])]


class Cut(Exception):
    """The connection is to be closed in the middle."""


@dataclass
class Reply:
    """One answer. ``pieces`` are streamed one by one; ``calls`` are (id, name, arguments as text)."""

    pieces: Sequence[str] = ()
    calls: Sequence[tuple[str, str, str]] = ()
    usage: tuple[Any, Any] = (10, 5)
    finish: str | None = None  # left out: stop, or tool_calls
    status: int = 200
    error: Json = field(default_factory=lambda: {"message": "no", "type": "scripted", "code": "scripted_error"})
    headers: Sequence[tuple[str, str]] = ()
    pause_before: int | None = None  # wait for `go` before this piece
    cut_before: int | None = None  # close the connection before this piece
    raw_before: dict[int, str] = field(default_factory=dict)  # bytes of the stream before a piece, as they are
    endless: str = ""  # sent again and again in place of an end, until the client goes
    silent: bool = False  # accept, and never answer
    has_end: bool = True  # whether there is a finish_reason
    go: asyncio.Event = field(default_factory=asyncio.Event)
    is_paused: asyncio.Event = field(default_factory=asyncio.Event)
    is_gone: asyncio.Event = field(default_factory=asyncio.Event)
    """The client has closed its connection before the end."""

    @property
    def reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


class ModelServer:
    """`script` holds the answers to come; without any, the answer is ``ok``. `requests` holds what was asked.

    `summary`: what answers requests that are not streamed, if set; then the script is for the streamed ones alone.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.script: deque[Reply] = deque()
        self.summary: Reply | None = None
        self.requests: list[Json] = []
        self.refused: list[str] = []
        self.keys: list[str] = []
        self.connections: set[asyncio.Task[Any]] = set()
        self._asked = asyncio.Event()

    def answer(self, *pieces: str, **facts: Any) -> Reply:
        reply = Reply(pieces, **facts)
        self.script.append(reply)
        return reply

    async def asked(self, number: int) -> Json:
        """The request of that number, now or later."""
        while len(self.requests) <= number:
            self._asked.clear()
            await asyncio.wait_for(self._asked.wait(), 20)
        return self.requests[number]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (Cut, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        request = json.loads(await reader.readexactly(int(headers.get("content-length", 0))))
        assert lines[0].startswith("POST /v1/chat/completions"), lines[0]
        self.keys.append(headers.get("authorization", ""))
        self.requests.append(request)
        self._asked.set()
        if self.summary is not None and not request.get("stream"):
            reply = self.summary
        else:
            reply = self.script.popleft() if self.script else Reply(["ok"])
        wrong = problems(request["messages"])
        if wrong:
            self.refused += wrong
            reply = Reply(status=400, error={"message": "; ".join(wrong), "code": "invalid_messages"})
        if reply.silent:
            await reader.read()
            reply.is_gone.set()
            return False
        if reply.status != 200:
            _send(writer, reply.status, "application/json", json.dumps({"error": reply.error}).encode(), reply.headers)
        elif request.get("stream"):
            await self._stream(reader, writer, reply)
            return False
        else:
            _send(writer, 200, "application/json", json.dumps(_whole(reply)).encode())
        await writer.drain()
        return True

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n"
        )
        watching = asyncio.create_task(_watch(reader, reply))
        try:
            for index, piece in enumerate([*reply.pieces, None]):
                if index in reply.raw_before:
                    _chunk(writer, reply.raw_before[index])
                if index == reply.cut_before:
                    raise Cut
                if index == reply.pause_before:
                    reply.is_paused.set()
                    await reply.go.wait()
                if piece is not None:
                    _event(writer, {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
                    await writer.drain()
            while reply.endless and not reply.is_gone.is_set():
                _chunk(writer, reply.endless)
                await writer.drain()
                await asyncio.sleep(0.01)  # its pace
            for event in _ending(reply):
                _event(writer, event)
            _chunk(writer, "data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
        finally:
            watching.cancel()
            await asyncio.wait([watching])


async def _watch(reader: asyncio.StreamReader, reply: Reply) -> None:
    """A client sends nothing more on this connection; its end means that the client has gone."""
    with contextlib.suppress(ConnectionError):  # it went with something unread
        await reader.read()
    reply.is_gone.set()
    reply.go.set()


def _ending(reply: Reply) -> list[Json]:
    """The calls, each in three pieces as real endpoints send them, the reason, and the usage."""
    events: list[Json] = []
    for index, (identity, name, arguments) in enumerate(reply.calls):
        half = len(arguments) // 2
        first = {"index": index, "id": identity, "type": "function", "function": {"name": name, "arguments": ""}}
        rest = [{"index": index, "function": {"arguments": text}} for text in (arguments[:half], arguments[half:])]
        events += [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in (first, *rest)]
    if reply.has_end:
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reply.reason}]})
    return [*events, {"choices": [], "usage": _usage(reply)}]


def _whole(reply: Reply) -> Json:
    message = {"role": "assistant", "content": "".join(reply.pieces)}
    choice = {"index": 0, "message": message, "finish_reason": reply.reason}
    return {"id": "c", "object": "chat.completion", "created": 1, "choices": [choice], "usage": _usage(reply)}


def _usage(reply: Reply) -> Json:
    tokens_in, tokens_out = reply.usage
    return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}


def _event(writer: asyncio.StreamWriter, event: Json) -> None:
    _chunk(writer, f"data: {json.dumps({'id': 'c', 'object': 'chat.completion.chunk', **event})}\n\n")


def _chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _send(
    writer: asyncio.StreamWriter, status: int, kind: str, body: bytes, headers: Sequence[tuple[str, str]] = ()
) -> None:
    lines = [f"HTTP/1.1 {status} Scripted", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)


@asynccontextmanager
async def model_server() -> AsyncIterator[ModelServer]:
    """Listens on a free port of the loopback address."""
    holder: list[ModelServer] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await holder[0].serve(reader, writer)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server = ModelServer(listener.sockets[0].getsockname()[1])
    holder.append(server)
    try:
        yield server
    finally:
        listener.close()
        for task in list(server.connections):
            task.cancel()
        if server.connections:
            await asyncio.wait(server.connections)
        await listener.wait_closed()
