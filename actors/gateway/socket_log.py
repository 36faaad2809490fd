"""The life of sockets in the log: told together, since a line for each costs a tenth of a gateway's time."""

import asyncio
import logging

from actors.conversation.events import ConnectionId
from storage.checkpoints.keys import ConversationKey

_TOLD_AFTER_SECONDS = 1.0
_MOST_IN_A_LINE = 100


class SocketLog:
    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._news: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, number: ConnectionId, key: ConversationKey) -> None:
        self._add(f"{number} opened {str(key)!r}")

    def closed(self, number: ConnectionId, code: int | None) -> None:
        self._add(f"{number} closed {code}")

    def flush(self) -> None:
        """Tells what is not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._news:
            self._logger.info("sockets: %s", "; ".join(self._news))
            self._news.clear()

    def _add(self, text: str) -> None:
        self._news.append(text)
        if len(self._news) >= _MOST_IN_A_LINE:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TOLD_AFTER_SECONDS, self.flush)
