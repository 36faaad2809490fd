"""How long a group may wait for the checkpoint store before those who wait are told so."""

import asyncio
from collections.abc import Callable


class StoreWatch:
    """Since when the database's thread has been waiting for the store (None = it is not); read by the event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.since: float | None = None

    def begin(self) -> None:
        if self.since is None:
            self.since = self._now()

    def end(self) -> None:
        self.since = None


class Deadline:
    """Calls ``ring`` once the watch says that the store has let a group wait too long; a long operation does not count."""

    def __init__(self, watch: StoreWatch, seconds: float, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._seconds = seconds
        self._ring = ring
        self._handle = self._loop.call_later(seconds, self._look)

    def cancel(self) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        since = self._watch.since
        left = self._seconds if since is None else since + self._seconds - self._loop.time()
        if left > 0.001:
            self._handle = self._loop.call_later(left, self._look)
        else:
            self._ring()
