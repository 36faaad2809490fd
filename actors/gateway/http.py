"""Plain HTTP on the gateway's port: whether it lives, whether it can serve, one page, and a conversation's messages."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from actors.errors import CallRefused
from actors.gateway.origins import OriginRules
from actors.gateway.routing import Refusal, Route, Target, is_page, without_token
from storage.errors import StorageError

logger = logging.getLogger("perdure.gateway")

AGENTS_HEADER = "X-Perdure-Agents"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

ABOUT = """\
This is Perdure: durable AI conversations, one actor and one SQLite file each.

It speaks WebSocket. In another terminal:

    perdure demo            play a small conversation: token gauge, compaction, hibernation, wake
    perdure watch           live token usage of the conversations here

From a program:

    import actors
    async with actors.Client("ws://{host}", {agent!r}, "alice") as chat:
        await chat.append_message({{"id": "m1", "role": "user", "parts": [{{"type": "text", "text": "hi"}}]}})
        print(await chat.get_history())

The agents served here: {agents}
Paths: /agents/AGENT/NAME (WebSocket), /agents/AGENT/NAME/get-messages, /healthz, /readyz
"""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    kind: str = TEXT


NOT_IMPLEMENTED = Answer(404, b"Not implemented")
UNAVAILABLE = Answer(503, b"Not available now, try again")


def answer_of(refusal: Refusal) -> Answer:
    return Answer(refusal.status, refusal.text.encode())


def is_upgrade(request: Request) -> bool:
    """Whether a request asks for a WebSocket (or tries to: the library then says what is wrong with it)."""
    return any("websocket" in value.lower() for value in request.headers.get_all("Upgrade"))


class Pages:
    """Answers plain requests. What it needs of the gateway comes in as functions.

    ``ask(route, url, method)`` -> JSON text, or raises a StorageError. ``probe()`` raises when conversations cannot be served.
    """

    def __init__(
        self,
        rules: OriginRules,
        agents: tuple[str, ...],
        ask: Callable[[Route, str, str], Awaitable[bytes]],
        probe: Callable[[], Awaitable[None]],
        probe_seconds: float,
    ) -> None:
        self._rules = rules
        self._agents = agents
        self._ask = ask
        self._probe = probe
        self._probe_seconds = probe_seconds

    async def respond(self, request: Request, target: Target) -> Response:
        """The response to a request that is not for a WebSocket and whose Origin and Host were accepted."""
        answer = await self._answer(request, target)
        return self.response(answer, request)

    async def _answer(self, request: Request, target: Target) -> Answer:
        origin = request.headers.get("Origin")
        if request.method == "OPTIONS" and origin is not None and self._rules.is_listed(origin):
            return Answer(200, b"")
        if request.method in ("GET", "HEAD"):
            if is_page(request.path, "/", ""):
                return self._about(request.headers.get("Host", ""))
            if is_page(request.path, "/healthz"):
                return Answer(200, b"ok\n")
            if is_page(request.path, "/readyz"):
                return await self._readiness()
        if isinstance(target, Refusal):
            return answer_of(target)
        if request.method in ("GET", "HEAD") and target.rest == ("get-messages",):
            return await self._messages(target, without_token(request.path))
        return NOT_IMPLEMENTED

    def _about(self, host: str) -> Answer:
        names = ", ".join(self._agents) or "none"
        first = self._agents[0] if self._agents else "conversation"
        return Answer(200, ABOUT.format(host=host, agent=first, agents=names).encode())

    async def _readiness(self) -> Answer:
        try:
            async with asyncio.timeout(self._probe_seconds):
                await self._probe()
        except TimeoutError:
            return Answer(503, b"not ready: no answer in time\n")
        except Exception as exc:
            logger.warning("not ready: %s", exc)
            return Answer(503, b"not ready\n")
        return Answer(200, b"ready\n")

    async def _messages(self, route: Route, url: str) -> Answer:
        try:
            return Answer(200, await self._ask(route, url, "getMessages"), JSON)
        except TimeoutError:
            return UNAVAILABLE
        except StorageError as exc:
            status = 503 if exc.is_retryable else 404 if isinstance(exc, CallRefused) else 500
            return Answer(status, str(exc).encode())

    def response(self, answer: Answer, request: Request) -> Response:
        headers = Headers()
        headers["Content-Type"] = answer.kind
        headers["Content-Length"] = str(len(answer.body))
        headers["Cache-Control"] = "no-store"
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Connection"] = "close"
        if answer.status == HTTPStatus.BAD_REQUEST:  # an agent that is not served: for clients to say which are
            headers[AGENTS_HEADER] = quote(", ".join(self._agents), safe=", ")
        origins = request.headers.get_all("Origin")
        if len(origins) == 1 and self._rules.is_listed(origins[0]):
            headers["Access-Control-Allow-Origin"] = origins[0]
            headers["Access-Control-Allow-Methods"] = "GET, HEAD, OPTIONS"
            headers["Access-Control-Allow-Headers"] = "*"
            headers["Vary"] = "Origin"
        body = b"" if request.method == "HEAD" else answer.body
        return Response(answer.status, HTTPStatus(answer.status).phrase, headers, body)
