"""Time as the keeper sees it: an argument, so that tests turn the hands themselves."""

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """A running event loop is one; seconds of a clock that never goes back."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...
