"""The gateway: sockets in, commands to the keeper, plain HTTP, start and drain. It owns no state that matters."""

import asyncio
import errno
import itertools
import logging
import ssl as tls
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from actors.cluster.errors import CannotStart
from actors.cluster.ports import holder_of_port
from actors.conversation.events import (
    Connect,
    Disconnect,
    Message,
    Rpc,
    SetState,
)
from actors.errors import Draining, NotFound
from actors.gateway import protocol
from actors.gateway.access import ANYBODY, Principal, authorize, verbs_of
from actors.gateway.asking import Asking, Conversations
from actors.gateway.delivery import Delivery
from actors.gateway.http import Answer, Pages, answer_of, is_upgrade
from actors.gateway.origins import OriginRules, check_bind, is_loopback
from actors.gateway.protocol import Received, RpcFrame, StateFrame, UnreadableFrame, parse
from actors.gateway.routing import Refusal, Route, Target, client_id, find, without_token
from actors.gateway.socket import ServedAgent, Socket, Timing, Wire
from actors.gateway.socket_log import SocketLog
from actors.redaction import quiet_logger
from actors.settings import Settings
from storage.checkpoints.keys import ConversationKey

logger = logging.getLogger("perdure.gateway")

_ENVELOPE_BYTES = 64 * 1024  # what surrounds a message of the largest size in its frame
_WRITE_BUFFER = (256 * 1024, 64 * 1024)  # above the first frames wait in the outbox, below the second they go on
_INBOUND_FRAMES = 4  # read ahead per socket; each may be as large as a message
_BACKLOG = 1024  # after a restart the official clients all return at the same moment
_CLOSE_BATCH = 50
_CLOSE_PAUSE_SECONDS = 0.05
_YIELD_EVERY = 32  # frames handled in a row before others get their turn


async def _nothing_to_ask() -> None:
    return None


class Gateway(Delivery):
    """Serves the agents over WebSocket and HTTP.

    ``probe`` raises when conversations cannot be served now (for /readyz). One gateway is started once.
    """

    def __init__(
        self,
        keeper: Conversations,
        agents: Mapping[str, ServedAgent],
        settings: Settings,
        *,
        probe: Callable[[], Awaitable[None]] = _nothing_to_ask,
        timing: Timing | None = None,
    ) -> None:
        self._numbers = itertools.count(1)
        super().__init__(Asking(keeper, self._numbers))
        self._keeper = keeper
        self._agents = agents
        self._settings = settings
        self._probe = probe
        self._timing = timing or Timing()
        self._socket_log = SocketLog(logger)
        keeper.attach(self)

    # ---- life -----------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int, ssl: tls.SSLContext | None = None) -> int:
        """Listen; returns the port. Raises CannotStart with one sentence."""
        check_bind(host)
        scheme = "https" if ssl is not None else ("http" if is_loopback(host) else None)
        self._rules = OriginRules(self._settings.allow_origin, is_loopback_bind=is_loopback(host), scheme=scheme)
        self._pages = Pages(self._rules, tuple(self._agents), self._ask, self._probe, self._timing.probe_seconds)
        try:
            self._server: Server = await self._listen(host, port, ssl)
        except OSError as exc:
            raise CannotStart(_why_not_listening(exc, host, port)) from exc
        return int(self._server.sockets[0].getsockname()[1])

    def _listen(self, host: str, port: int, ssl: tls.SSLContext | None) -> Server:
        timing = self._timing
        more: dict[str, Any] = {"ssl": ssl, "ssl_handshake_timeout": timing.open_seconds} if ssl is not None else {}
        return serve(
            self._handle,
            host,
            port,
            compression=None,
            process_request=self._process_request,
            server_header=None,
            open_timeout=None,  # Wire has its own, since plain requests may take longer than a handshake
            ping_interval=None,  # Socket has its own heartbeat
            close_timeout=timing.close_seconds,
            max_size=self._settings.max_message_bytes + _ENVELOPE_BYTES,
            max_queue=_INBOUND_FRAMES,
            write_limit=_WRITE_BUFFER,
            logger=quiet_logger("perdure.gateway.wire"),
            create_connection=Wire.factory(timing.open_seconds),
            backlog=_BACKLOG,
            **more,
        )

    async def drain(self, seconds: float | None = None) -> None:
        """Take no new sockets and calls, let running calls finish for at most ``seconds``, close each socket with 1012.

        Sockets whose calls still run afterwards stay open for their last frames: let the keeper drain, then `close`.
        """
        limit = self._settings.drain_seconds if seconds is None else seconds
        self._is_draining = True
        self._server.close(close_connections=False)
        idle = [socket for socket in self._sockets.values() if not socket.in_flight]
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._close_in_batches(idle)
                while any(socket.in_flight for socket in self._sockets.values()):
                    self._all_answered.clear()
                    await self._all_answered.wait()

    async def close(self) -> None:
        """Close what is left and wait until all of it is gone."""
        self._is_draining = True
        self._server.close(close_connections=False)
        await self._close_in_batches(list(self._sockets.values()))
        await self._server.wait_closed()
        self._socket_log.flush()

    async def _close_in_batches(self, sockets: list[Socket]) -> None:
        """In small batches, so that the clients do not all come back at the same moment."""
        for batch in _batches(sockets):
            for socket in batch:
                socket.close(protocol.RESTART, "restarting")
            await asyncio.sleep(_CLOSE_PAUSE_SECONDS)

    def statistics(self) -> dict[str, int]:
        sockets = self._sockets.values()
        return {
            "sockets": len(sockets),
            "calls_in_flight": sum(socket.in_flight for socket in sockets),
            "bytes_waiting": sum(socket.waiting_bytes for socket in sockets),
        }

    # ---- requests and sockets -------------------------------------------------------------------------------

    def _target(self, request: Request) -> Target:
        return find(request.path, self._agents, self._settings.max_name_bytes)

    async def _process_request(self, wire: ServerConnection, request: Request) -> Response | None:
        """Refuse, or answer what is plain HTTP; None: go on with the WebSocket handshake."""
        assert isinstance(wire, Wire)
        refused = self._rules.refusal(request.headers.get_all("Origin"), request.headers.get_all("Host"))
        if refused is not None:
            return self._pages.response(Answer(403, refused.encode()), request)
        target = self._target(request)
        if not is_upgrade(request):
            wire.expect_within(self._timing.answer_seconds + self._timing.close_seconds)
            wire.close_timeout = self._timing.answer_seconds
            return await self._pages.respond(request, target)
        if isinstance(target, Refusal) and not target.is_terminal:
            return self._pages.response(answer_of(target), request)
        return None

    async def _ask(self, route: Route, url: str, method: str) -> bytes:
        key = ConversationKey(route.agent, route.name)
        if not authorize(ANYBODY, key.agent, key.name, "read"):
            raise NotFound(key.name)
        return await self._asking.ask(key, url, ANYBODY.name, ("read",), method, self._timing.answer_seconds)

    async def _handle(self, wire: ServerConnection) -> None:
        """One WebSocket, from its handshake to its end. Nothing that goes wrong here concerns another socket."""
        assert isinstance(wire, Wire)
        assert wire.request is not None
        wire.expect_within(None)
        target, principal = self._target(wire.request), ANYBODY
        if isinstance(target, Refusal):
            await wire.close(protocol.NOT_FOUND, target.text)
            return
        if not authorize(principal, target.agent, target.name, "read"):
            await wire.close(protocol.NOT_FOUND, "There is no such conversation")
            return
        key = ConversationKey(target.agent, target.name)
        limit = self._settings.max_send_buffer_bytes
        number = next(self._numbers)
        socket = Socket(number, key, self._agents[target.agent], wire, limit, self._timing)
        self._sockets[number] = socket
        self._socket_log.opened(number, key)
        heartbeat = asyncio.create_task(socket.run_heartbeat())
        try:
            self._connect(socket, principal, wire.request.path)
            await self._read(socket)
        except ConnectionClosed:
            pass
        except Exception:
            logger.exception("socket %d failed", number)
            socket.close(protocol.INTERNAL_ERROR, "internal error")
        finally:
            heartbeat.cancel()
            del self._sockets[number]
            self._all_answered.set()
            self._keeper.submit(key, Disconnect(number))
            self._socket_log.closed(number, wire.close_code)
        await wire.wait_closed()
        socket.finish()

    def _connect(self, socket: Socket, principal: Principal, path: str) -> None:
        key = socket.key
        # The agent may have a hook that keeps protocol frames from some sockets; then identity waits for its word.
        if socket.agent.sends_identity and not socket.agent.has_protocol_hook:
            self._identify(socket)
        verbs = verbs_of(principal, key.agent, key.name)
        is_readonly = "edit" not in verbs
        command = Connect(
            socket.number, client_id(path), without_token(path), principal.name, is_readonly=is_readonly, verbs=verbs
        )
        self._keeper.submit(key, command)

    async def _read(self, socket: Socket) -> None:
        for count in itertools.count(1):
            await socket.until_readable(self._settings.max_in_flight)
            self._receive(socket, parse(await socket.wire.recv()))
            if count % _YIELD_EVERY == 0:  # frames that are here already are handed out without a pause
                await asyncio.sleep(0)

    def _receive(self, socket: Socket, received: Received) -> None:
        if isinstance(received, RpcFrame):
            if self._is_draining:
                socket.send_text(protocol.failure(received.call, str(Draining())))
                return
            socket.in_flight += 1
            self._keeper.submit(socket.key, Rpc(socket.number, received.frame, received.call))
        elif isinstance(received, UnreadableFrame):
            socket.send_text(received.answer)
        elif self._is_draining:
            return
        elif isinstance(received, StateFrame):
            self._keeper.submit(socket.key, SetState(socket.number, received.frame))
        elif socket.agent.has_message_hook:
            self._keeper.submit(socket.key, Message(socket.number, received.payload, received.is_text))


def _batches(sockets: list[Socket]) -> list[list[Socket]]:
    return [sockets[start : start + _CLOSE_BATCH] for start in range(0, len(sockets), _CLOSE_BATCH)]


def _why_not_listening(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = holder_of_port(port)
        return f"Port {port} on {host} is in use" + (f" by {holder}." if holder else "; choose another with --port.")
    if error.errno == errno.EACCES:
        return f"Port {port} may not be opened by this user; choose one above 1023."
    return f"It is not possible to listen on {host}:{port} ({error.strerror or error})."
