"""Finds the actor whose event loop hangs: a call may last as long as it likes, the loop may not."""

from collections.abc import Callable

from actors.cluster.clock import Clock, Timer


class Pulse:
    """Watches one actor while something is expected of it; silent, and free of timers, while nothing is.

    After ``hang / 2`` without a sign of life it sends a ping, after as much again it calls ``hangs``, once. A sign of
    life is anything that arrives. An answer that has a deadline (sleeping, waking) may also be late though the loop
    lives: `expect_until`.
    """

    def __init__(
        self,
        clock: Clock,
        hang_seconds: float,
        *,
        is_expected: Callable[[], bool],
        ping: Callable[[], None],
        hangs: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._half = hang_seconds / 2
        self._is_expected = is_expected
        self._ping = ping
        self._hangs = hangs
        self._timer: Timer | None = None
        self._deadline: Timer | None = None
        self._heard = 0.0
        self._pinged: float | None = None
        self._is_over = False

    def heard(self) -> None:
        self._heard = self._clock.time()

    def expect(self) -> None:
        """Something was sent that has to be answered some time."""
        if self._timer is None and not self._is_over:
            self._heard = max(self._heard, self._clock.time())
            self._timer = self._clock.call_later(self._half, self._look)

    def expect_until(self, seconds: float | None) -> None:
        """The one answer that is expected now has to come within that time; None: it has come."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None and not self._is_over:
            self._deadline = self._clock.call_later(seconds, lambda: self._end("gave no answer in time"))
            self.expect()

    def stop(self) -> None:
        self._is_over = True
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timer = self._deadline = None

    def _look(self) -> None:
        self._timer = None
        now = self._clock.time()
        if self._pinged is not None and self._heard < self._pinged:
            self._end("hangs")
            return
        self._pinged = None
        if not self._is_expected():
            return
        due = self._heard + self._half
        if now < due:
            self._timer = self._clock.call_later(due - now, self._look)
            return
        self._pinged = now
        self._ping()
        self._timer = self._clock.call_later(self._half, self._look)

    def _end(self, why: str) -> None:
        if not self._is_over:
            self.stop()
            self._hangs(why)
