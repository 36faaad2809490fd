"""The calls of one conversation that were sent to its actor and have no final answer yet."""

from collections import deque
from dataclasses import dataclass

from actors.conversation.events import ConnectionId, Rpc


@dataclass(frozen=True, slots=True)
class Sent:
    connection: ConnectionId
    call: bytes
    size: int
    at: float  # when it was sent


class Outstanding:
    """Pairs answers with calls by (connection, id). A client that uses an id twice at once gets two answers.

    Answers to the same id are taken as coming in the order of the calls; a returned call is the newest of its id.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[ConnectionId, bytes], deque[Sent]] = {}
        self._order: dict[int, Sent] = {}  # oldest first, by identity
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def oldest(self) -> Sent | None:
        return next(iter(self._order.values()), None)

    def sent(self, rpc: Rpc, now: float) -> None:
        entry = Sent(rpc.connection, rpc.call, len(rpc.frame), now)
        self._calls.setdefault((entry.connection, entry.call), deque()).append(entry)
        self._order[id(entry)] = entry
        self.bytes += entry.size

    def answered(self, connection: ConnectionId, call: bytes) -> Sent | None:
        """The call that this final answer belongs to; it is no longer outstanding. None: nobody asked."""
        return self._take(connection, call, is_newest=False)

    def returned(self, rpc: Rpc) -> Sent | None:
        return self._take(rpc.connection, rpc.call, is_newest=True)

    def drop_all(self) -> list[Sent]:
        """All of them, oldest first; nothing is outstanding any more."""
        entries = list(self._order.values())
        self._calls.clear()
        self._order.clear()
        self.bytes = 0
        return entries

    def _take(self, connection: ConnectionId, call: bytes, *, is_newest: bool) -> Sent | None:
        entries = self._calls.get((connection, call))
        if entries is None:
            return None
        entry = entries.pop() if is_newest else entries.popleft()
        if not entries:
            del self._calls[connection, call]
        del self._order[id(entry)]
        self.bytes -= entry.size
        return entry
