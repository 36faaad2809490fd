"""What conversations say, delivered to sockets: the `Front` that the keeper calls.

Order on a socket: identity, state (if there is one), mcp; then everything in the order in which the conversation produced it. A
socket is in the audience of broadcasts from the moment at which its state was read, so it misses nothing and sees nothing twice.
"""

import asyncio
from collections.abc import Collection

from websockets.asyncio.server import broadcast

from actors.conversation.events import (
    Close,
    Connected,
    ConnectionId,
    Direct,
    Event,
    Failure,
    Push,
    Result,
    StateRefused,
)
from actors.gateway import protocol
from actors.gateway.asking import Asking
from actors.gateway.outbox import Frame
from actors.gateway.socket import Socket, Wire


class Delivery:
    """Knows the open sockets by their numbers. Nothing here waits."""

    def __init__(self, asking: Asking) -> None:
        self._sockets: dict[ConnectionId, Socket] = {}
        self._asking = asking
        self._is_draining = False
        self._all_answered = asyncio.Event()

    def event(self, event: Event) -> None:
        """An event for one connection; one that is gone meanwhile gets nothing."""
        assert not isinstance(event, Push)
        number = getattr(event, "connection", None)
        if number is None:
            return
        socket = self._sockets.get(number)
        if socket is not None:
            self._deliver(socket, event)
        else:
            self._asking.event(event, number)

    def _deliver(self, socket: Socket, event: Event) -> None:
        if isinstance(event, Result):
            frame = protocol.result(event.call, event.result, is_done=event.is_done)
            socket.send_text(frame, is_answer=event.is_done)
            if event.is_done:
                self._answered(socket)
        elif isinstance(event, Failure):
            socket.send_text(protocol.failure(event.call, event.error), is_answer=True)
            self._answered(socket)
        elif isinstance(event, Connected):
            self._join(socket, event)
        elif isinstance(event, StateRefused):
            socket.send_text(protocol.state_error(event.error))
        elif isinstance(event, Direct):
            socket.send(Frame(event.payload, event.is_text))
        elif isinstance(event, Close):
            socket.close(event.code, event.reason)

    def _join(self, socket: Socket, event: Connected) -> None:
        if socket.is_joined:  # its conversation slept and woke: the client has all this
            return
        socket.is_joined = True
        socket.sends_protocol = event.sends_protocol
        if not event.sends_protocol:
            return
        if socket.agent.sends_identity and not socket.is_identified:
            self._identify(socket)
        if event.state is not None:
            socket.send_text(protocol.state(event.state))
        socket.send_text(protocol.MCP)

    def _identify(self, socket: Socket) -> None:
        socket.is_identified = True
        socket.send_text(protocol.identity(socket.key.agent, socket.key.name))

    def _answered(self, socket: Socket) -> None:
        socket.answered()
        if self._is_draining and not socket.in_flight:
            socket.close(protocol.RESTART, "restarting")
            self._all_answered.set()

    def push(self, connections: Collection[ConnectionId], event: Push) -> None:
        """A frame for these sockets. One that does not keep up holds up none of the others."""
        clear: list[Wire] = []
        for number in connections:
            socket = self._sockets.get(number)
            if socket is None or not socket.is_joined or number == event.besides:
                continue
            if event.is_protocol and not socket.sends_protocol:
                continue
            if socket.is_clear:
                clear.append(socket.wire)
            else:
                socket.send_text(event.frame, phase=event.phase)
        broadcast(clear, event.frame, text=True)

    def lost(self, connection: ConnectionId, code: int, reason: str) -> None:
        """The keeper gives a connection up: there is no room to wake its conversation, or the node stops."""
        socket = self._sockets.get(connection)
        if socket is not None:
            socket.close(code, reason)
