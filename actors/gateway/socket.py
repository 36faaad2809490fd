"""One client's socket: what is written to it, in which order, how much of it may wait, and how it ends.

Invariants: everything is written by `Socket.send`, synchronously, so frames leave in the order in which they were sent; a peer
that does not read costs the bytes of its `Outbox` and is closed beyond them; nothing here ever waits for a peer.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from websockets.asyncio.server import ServerConnection, broadcast
from websockets.exceptions import ConnectionClosed

from actors.conversation.events import ConnectionId
from actors.gateway import protocol
from actors.gateway.outbox import Frame, Outbox
from storage.checkpoints.keys import ConversationKey

logger = logging.getLogger("perdure.gateway")


class ServedAgent(Protocol):
    """What the gateway needs to know of an agent class (`actors.agent.AgentInfo`)."""

    @property
    def sends_identity(self) -> bool: ...
    @property
    def has_message_hook(self) -> bool: ...
    @property
    def has_protocol_hook(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the gateway waits, in seconds. The official clients give up opening after 4."""

    open_seconds: float = 3.5
    answer_seconds: float = 10.0  # a plain HTTP request, from its headers to its answer's last byte
    ping_seconds: float = 20.0
    pong_seconds: float = 20.0
    stall_seconds: float = 40.0  # a peer that takes nothing at all of what waits for it
    close_seconds: float = 5.0
    abort_seconds: float = 1.0  # after the close frame to a peer that does not read
    probe_seconds: float = 2.0  # what /readyz asks


class Wire(ServerConnection):
    """The library's connection; it also says when it can be written again and when it is lost, and bounds its opening."""

    def __init__(self, *args: Any, open_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open_seconds = open_seconds
        self._deadline: asyncio.TimerHandle | None = None
        self.on_writable: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None

    @classmethod
    def factory(cls, open_seconds: float) -> type[ServerConnection]:
        return cast(type[ServerConnection], partial(cls, open_seconds=open_seconds))

    def expect_within(self, seconds: float | None) -> None:
        """Give up this connection unless it is told otherwise in time; None: it is open, no limit any more."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.expect_within(self._open_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.expect_within(None)
        if self.on_lost is not None:
            self.on_lost()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_writable is not None:
            # not from here: the transport is in the middle of its own bookkeeping
            self.loop.call_soon(self.on_writable)


class Socket:
    """The gateway's side of one open WebSocket. Owned by its handler, which calls `run_heartbeat` and `finish`."""

    def __init__(
        self, number: ConnectionId, key: ConversationKey, agent: ServedAgent, wire: Wire, limit: int, timing: Timing
    ) -> None:
        self.number = number
        self.key = key
        self.agent = agent
        self.wire = wire
        self.in_flight = 0
        self.is_identified = False
        self.is_joined = False
        self.sends_protocol = True
        self.close_code = 0
        self._timing = timing
        self._outbox = Outbox(limit)
        self._closing: tuple[int, str] | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._abort: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        wire.on_writable = self._flush
        wire.on_lost = self._changed.set

    # ---- writing --------------------------------------------------------------------------------------------

    @property
    def is_clear(self) -> bool:
        """Whether a frame would go straight to the wire."""
        return not self._outbox and not self.wire.paused and self._closing is None

    @property
    def waiting_bytes(self) -> int:
        return self._outbox.size + int(self.wire.transport.get_write_buffer_size())

    def send(self, frame: Frame) -> None:
        """Send behind everything sent before. A peer that has too much to catch up with is closed with 1013."""
        if self.is_clear:
            broadcast([self.wire], frame.payload, text=frame.is_text)
        elif self._closing is None and not self._outbox.add(frame):
            self.shed("too slow")

    def send_text(self, payload: bytes, *, phase: str = "", is_answer: bool = False) -> None:
        self.send(Frame(payload, True, phase, is_answer))

    def _flush(self) -> None:
        while self._outbox and not self.wire.paused:
            frame = self._outbox.take()
            broadcast([self.wire], frame.payload, text=frame.is_text)
        if not self._outbox:
            self._changed.set()
            if self._closing is not None:
                self._start_close()

    # ---- reading --------------------------------------------------------------------------------------------

    async def until_readable(self, max_in_flight: int) -> None:
        """Wait until the peer may send more: it has few calls running and takes what was written to it."""
        while (self.in_flight >= max_in_flight or self._outbox) and not self._is_lost:
            self._changed.clear()
            await self._changed.wait()

    def answered(self) -> None:
        """One of its calls has had its last frame."""
        self.in_flight = max(0, self.in_flight - 1)
        self._changed.set()

    @property
    def _is_lost(self) -> bool:
        return self.wire.connection_lost_waiter.done()

    # ---- ending ---------------------------------------------------------------------------------------------

    def close(self, code: int, reason: str) -> None:
        """Close behind what was sent; by force when the peer does not answer in time. Only the first call counts."""
        if self._closing is None:
            self._closing = (protocol.close_code(code), protocol.close_reason(reason))
            self._abort_within(self._timing.close_seconds + self._timing.abort_seconds)
            if not self._outbox:
                self._start_close()

    def shed(self, reason: str) -> None:
        """Get rid of a peer that does not keep up. It may connect again."""
        logger.warning("socket %d does not keep up (%s): closing it", self.number, reason)
        self._outbox.clear()
        self._closing = (protocol.TRY_LATER, reason)
        self._abort_within(self._timing.abort_seconds)
        self._start_close()

    def _abort_within(self, seconds: float) -> None:
        """An earlier end that was set before stays. (The library's own close waits without limit for a full buffer.)"""
        loop = self.wire.loop
        if self._abort is not None:
            seconds = min(seconds, self._abort.when() - loop.time())
            self._abort.cancel()
        self._abort = loop.call_later(seconds, self.wire.transport.abort)

    def _start_close(self) -> None:
        if self._close_task is None and self._closing is not None:
            self._close_task = asyncio.create_task(self.wire.close(*self._closing))

    def finish(self) -> None:
        """The socket is gone: drop timers and what waited."""
        self.wire.on_writable = self.wire.on_lost = None
        self._outbox.clear()
        if self._abort is not None:
            self._abort.cancel()

    # ---- heartbeat ------------------------------------------------------------------------------------------

    async def run_heartbeat(self) -> None:
        """Ping the peer and drop it when it is dead or takes nothing.

        The library's own keepalive is not used: it waits without limit behind a full buffer, and it kills a healthy peer
        whose pong waits unread while we do not read for back-pressure.
        """
        timing = self._timing
        stalled, last_size = 0.0, 0
        while True:
            await asyncio.sleep(timing.ping_seconds)
            if self.wire.paused:
                size = self.wire.transport.get_write_buffer_size()
                stalled = stalled + timing.ping_seconds if size >= last_size else 0.0
                last_size = size
                if stalled >= timing.stall_seconds:
                    self.shed("nothing was read")
                    return
                continue
            stalled, last_size = 0.0, 0
            if self.wire.transport.is_reading() and not await self._is_alive():
                self.close(protocol.INTERNAL_ERROR, "ping timeout")
                return

    async def _is_alive(self) -> bool:
        try:
            pong = await self.wire.ping()
            async with asyncio.timeout(self._timing.pong_seconds):
                await pong
        except TimeoutError:
            return not self.wire.transport.is_reading()
        except ConnectionClosed:
            pass
        return True
