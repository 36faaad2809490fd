"""What a keeper tells the gateway that it serves."""

import logging
from collections.abc import Collection
from typing import Protocol

from actors.conversation.events import ConnectionId, Event, Push

logger = logging.getLogger("perdure.keeper")


class Front(Protocol):
    """Called on the event loop, in the order in which things happened; must not block. It may call the keeper back."""

    def event(self, event: Event) -> None:
        """For one connection: `Connected` (once), `Result`, `Failure`, `StateRefused`, `Direct` or `Close`."""

    def push(self, connections: Collection[ConnectionId], event: Push) -> None:
        """To these, which are connected; ``event.besides`` is not among them, nor who wants no protocol frames."""

    def lost(self, connection: ConnectionId, code: int, reason: str) -> None:
        """Close this socket with that close code. Its calls are answered all the same, perhaps after this."""


class GuardedFront:
    """Passes on to a front. What that raises is logged and ends there: it must not end the lane of an innocent actor."""

    def __init__(self, front: Front | None) -> None:
        self._front = front

    def event(self, event: Event) -> None:
        if self._front is not None:
            try:
                self._front.event(event)
            except Exception:
                logger.exception("The gateway could not take an event of a conversation")

    def push(self, connections: Collection[ConnectionId], event: Push) -> None:
        if self._front is not None:
            try:
                self._front.push(connections, event)
            except Exception:
                logger.exception("The gateway could not take a push of a conversation")

    def lost(self, connection: ConnectionId, code: int, reason: str) -> None:
        if self._front is not None:
            try:
                self._front.lost(connection, code, reason)
            except Exception:
                logger.exception("The gateway could not take the loss of a connection")
