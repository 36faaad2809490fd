"""`Client`: a conversation over WebSocket, from any program. No Ray.

It survives what a server goes through. A lost socket is opened again; calls that had not been sent wait for it; calls that had
been sent and whose outcome is unknown are sent again if they are idempotent, and raise `OutcomeUnknown` if not.
"""

import asyncio
import random
import ssl as tls
import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from actors.calling import Call, Calls, Status, Stream
from actors.conversation.json_text import decode
from actors.errors import ConnectionLost, UnknownAgent
from actors.redaction import quiet_logger
from actors.session_calls import SessionCalls
from storage.errors import InvalidArgument, StorageError

__all__ = ["Client", "Status", "Stream"]

_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
_TERMINAL = {1008, *range(4000, 5000)}
_RETRIED_STATUSES = {408, 425, 429}
_TOO_BIG = 1009
_MAX_ANSWER_BYTES = 2**30
_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 5.0

# What a URL standard parser leaves alone in a path, but for the slash: so this client and the JavaScript ones reach the
# same conversation by the same name. A percent sign is kept: a name may be given as its server knows it.
_KEPT_IN_NAMES = "!$%&'()*+,-.:;=@[]^_|~"


def as_in_url(name: str) -> str:
    """The name by which a server knows what a client calls ``name``: the server takes the segment as it is."""
    return quote(name, safe=_KEPT_IN_NAMES)


class Client(SessionCalls):
    """The conversation ``name`` of ``agent`` on the server at ``url`` (``ws://``, ``wss://``).

    Use it as an async context manager; entering waits until the server answers, at most ``open_seconds``. A call takes at most
    ``call_seconds`` with all that is repeated, then it raises TimeoutError. Calls awaited one after another keep their order.
    """

    def __init__(
        self,
        url: str,
        agent: str = "conversation",
        name: str = "default",
        token: str | None = None,
        *,
        call_seconds: float = 30.0,
        open_seconds: float = 10.0,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise InvalidArgument("The URL of a server looks like ws://127.0.0.1:8787.")
        self.agent = agent
        self.name = name
        self._server = f"{_SCHEMES[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}"
        self._query = f"_pk={uuid.uuid4()}" + (f"&token={quote(token, safe='')}" if token else "")
        self._is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        self._call_seconds = call_seconds
        self._open_seconds = open_seconds
        self._ssl = ssl
        self._calls = Calls()
        self._wire: ClientConnection | None = None
        self._opened = asyncio.Event()
        self._problem = "no answer"
        self._runner: asyncio.Task[None] | None = None
        self.connections = 0
        """How many sockets have been opened so far: 1 until the first one is lost."""

    def __repr__(self) -> str:
        return f"Client({self._server!r}, {self.agent!r}, {self.name!r})"

    # ---- life -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._runner = asyncio.create_task(self._run())
        try:
            await self._until_opened()
        except BaseException:  # whoever did not enter does not exit
            await self.close()
            raise
        return self

    async def _until_opened(self) -> None:
        try:
            async with asyncio.timeout(self._open_seconds):
                await self._opened.wait()
        except TimeoutError:
            self._calls.end(ConnectionLost(f"{self._server}: {self._problem} within {self._open_seconds:g} s"))
        if self._calls.ended is not None:
            raise self._calls.ended

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the socket for good. Calls that still wait raise ConnectionLost; `status` ends."""
        self._calls.end(ConnectionLost("this client was closed"), is_wanted=True)
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait([self._runner])
        if self._wire is not None:
            await self._wire.close()

    # ---- calls ----------------------------------------------------------------------------------------------

    async def call(
        self, method: str, *arguments: Any, timeout: float | None = None, is_idempotent: bool = False
    ) -> Any:
        """Call any method of the agent. Raises the typed error it failed with, `CallFailed` for the agent's own.

        ``timeout``: seconds, instead of ``call_seconds``. ``is_idempotent``: repeat it also when its outcome is unknown.
        """
        self._require_entered()
        call = Call(method, list(arguments), is_idempotent=is_idempotent)
        return await self._calls.run(call, self._call_seconds if timeout is None else timeout)

    def stream(self, method: str, *arguments: Any) -> Stream:
        """Call a streaming method: iterate over its chunks; `Stream.result` is its last value afterwards."""
        self._require_entered()
        return Stream(self._calls, Call(method, list(arguments), is_idempotent=False))

    def _require_entered(self) -> None:
        if self._runner is None and self._calls.ended is None:  # nobody opens a socket
            raise InvalidArgument("Enter the client first: `async with Client(...) as chat:`.")

    async def _invoke(self, method: str, arguments: list[Any], *, is_idempotent: bool) -> Any:
        return await self.call(method, *arguments, is_idempotent=is_idempotent)

    # ---- what the server tells ------------------------------------------------------------------------------

    async def status(self) -> AsyncIterator[Status]:
        """Live token usage: the last status that was seen, if any, then each new one, until the client is closed.

        A consumer that does not keep up misses old ones, never the newest. Raises ConnectionLost when the server ends the
        connection for good.
        """
        self._require_entered()
        with self._calls.subscribe() as queue:
            while (status := await queue.get()) is not None:
                yield status

    @property
    def state(self) -> Any:
        """The agent's state as this client saw it last; None before it saw one."""
        return self._calls.state

    def set_state(self, value: Any) -> None:
        """Replace the agent's state. There is no acknowledgement; a refusal is in `state_error`."""
        self._require_entered()
        self._calls.set_state(value)

    @property
    def state_error(self) -> str | None:
        """Why the server refused the last state that it refused."""
        return self._calls.state_error

    # ---- connection -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Keep a socket open until the client is closed or the server ends it for good."""
        attempt = 0
        while self._calls.ended is None:
            try:
                wire = await self._connect()
            except (OSError, TimeoutError, InvalidHandshake, EOFError) as exc:
                self._not_connected(exc)
            else:
                self._wire = wire
                self.connections += 1
                self._opened.set()
                answered = self._calls.answered
                await self._talk(wire)
                if self._calls.answered > answered:
                    attempt = 0
            if self._calls.ended is None:
                await asyncio.sleep(_delay(attempt))
                attempt += 1
        self._opened.set()

    async def _connect(self) -> ClientConnection:
        segments = "/".join(as_in_url(part) for part in ("agents", self.agent, self.name))
        more: dict[str, Any] = {} if self._ssl is None else {"ssl": self._ssl}
        return await connect(
            f"{self._server}/{segments}?{self._query}",
            compression=None,
            proxy=None if self._is_local else True,
            open_timeout=self._open_seconds,
            max_size=_MAX_ANSWER_BYTES,
            logger=quiet_logger("perdure.client.wire"),
            **more,
        )

    def _not_connected(self, error: Exception) -> None:
        self._problem = _problem(error)
        if isinstance(error, tls.SSLCertVerificationError):
            self._calls.end(ConnectionLost(f"{self._server}: its certificate is not trusted"))
        elif isinstance(error, InvalidStatus):
            status = error.response.status_code
            if status == 400:
                served = unquote(error.response.headers.get("X-Perdure-Agents", ""))
                self._calls.end(UnknownAgent(self.agent, served or "(the server does not say)"))
            elif 400 < status < 500 and status not in _RETRIED_STATUSES:
                self._calls.end(ConnectionLost(f"{self._server}: {self._problem}"))

    async def _talk(self, wire: ClientConnection) -> None:
        """Send what waits, receive what comes, until the socket is lost."""
        sending = asyncio.create_task(self._send(wire))
        try:
            while True:
                self._receive(await wire.recv())
        except ConnectionClosed:
            code, reason = wire.close_code or 1006, wire.close_reason or ""
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        if code in _TERMINAL:
            self._calls.end(ConnectionLost(f"{code} {reason}".strip()))
        else:
            self._problem = f"closed with {code}"
            self._calls.lost(is_too_big=code == _TOO_BIG)

    async def _send(self, wire: ClientConnection) -> None:
        try:
            while True:
                await wire.send(await self._calls.next_frame(), text=True)
        except ConnectionClosed:
            pass  # the receiving side deals with it

    def _receive(self, message: str | bytes) -> None:
        if isinstance(message, str):
            try:
                frame = decode(message.encode())
            except ValueError:
                return
            if isinstance(frame, dict):
                self._calls.receive(frame)


def _delay(attempt: int) -> float:
    """Seconds before the next attempt; no two clients of a restarted server come back at the same moment."""
    return random.uniform(0.5, 1.0) * min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** min(attempt, 10))


def _problem(error: Exception) -> str:
    """What kept a socket from opening, without its URL (which may hold a token)."""
    if isinstance(error, InvalidStatus):
        text = bytes(error.response.body).decode("utf-8", "replace").strip()[:200]
        return f"HTTP {error.response.status_code} {text}".strip()
    if isinstance(error, StorageError):
        return str(error)
    return "connection refused" if isinstance(error, ConnectionRefusedError) else f"no answer ({type(error).__name__})"
