"""One end of a lane on a socket: writes are gathered, back-pressure is told, an end of file is told once."""

import asyncio
import logging
from typing import Protocol

from actors.cluster.lane import Body, LaneDecoder, LaneError, encode_batches, encode_message

logger = logging.getLogger("perdure.lane")

WRITE_BUFFER_BYTES = 1024 * 1024
"""More than this unsent: the other end is slow."""


class LaneOwner(Protocol):
    """Who reads a `LaneConnection`. Called on the event loop; must not block."""

    def received(self, lane: "LaneConnection", lease: int, body: Body) -> None: ...

    def resumed(self, lane: "LaneConnection") -> None:
        """`LaneConnection.is_congested` is over."""

    def ended(self, lane: "LaneConnection", error: Exception | None) -> None:
        """The end of file: called exactly once, as the last call; nothing that was sent later arrives."""


class LaneConnection(asyncio.Protocol):
    """All that is sent within one turn of the event loop leaves in one write.

    ``send`` never waits and never fails: after the end nothing leaves. Its caller looks at `is_congested` when it has much
    to send. What the owner raises ends the lane.
    """

    def __init__(self, owner: LaneOwner) -> None:
        self._owner = owner
        self._decoder = LaneDecoder()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_paused = False
        self._is_ended = False
        self._error: Exception | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    @property
    def is_congested(self) -> bool:
        """More is unsent than the socket takes: send no more until ``resumed``."""
        return self._is_paused or self._unsent_bytes > WRITE_BUFFER_BYTES

    def send(self, lease: int, body: Body) -> None:
        """Puts one message behind all earlier ones. `LaneError` if it is too long to travel; then nothing is sent."""
        message = encode_message(lease, body)
        if self._is_ended or self._transport is None:
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(message)
        self._unsent_bytes += len(message)

    def close(self) -> None:
        """Sends what was put in before, then ends; the owner hears of the end."""
        self._write()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends now; unsent messages are dropped."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        was_congested = self.is_congested
        self._write()
        if was_congested and not self.is_congested and not self._is_ended:
            self._owner.resumed(self)  # the transport never paused, so nobody else says it

    def _write(self) -> None:
        if not self._unsent or self._is_ended or self._transport is None:
            return
        messages, self._unsent, self._unsent_bytes = self._unsent, [], 0
        self._transport.write(encode_batches(messages))

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        try:
            for lease, body in self._decoder.feed(data):
                self._owner.received(self, lease, body)
        except Exception as exc:
            if not isinstance(exc, LaneError):
                logger.exception("A lane ends, since its owner failed")
            self._error = exc
            self.abort()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._owner.resumed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ended = True
        self._unsent.clear()
        self._owner.ended(self, self._error or exc)
