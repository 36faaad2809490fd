"""What a keeper tells the gateway that it serves."""

from collections.abc import Collection
from typing import Protocol

from actors.conversation.events import ConnectionId, Event, Push


class Front(Protocol):
    """Called on the event loop, in the order in which things happened; must not block. It may call the keeper back."""

    def event(self, event: Event) -> None:
        """For one connection: `Connected` (once), `Result`, `Failure`, `StateRefused`, `Direct` or `Close`."""

    def push(self, connections: Collection[ConnectionId], event: Push) -> None:
        """To these, which are connected; ``event.besides`` is not among them, nor who wants no protocol frames."""

    def lost(self, connection: ConnectionId, code: int, reason: str) -> None:
        """Close this socket with that close code; nothing that it sent and that is unanswered will be answered."""
