"""Which conversations leave so that others may come: a pure decision on facts, no clock and no side effects.

1. The least recently used one that has nothing in flight and was not touched for ``linger``.
2. For a waiter also the longest resident once it has had its ``quantum``, though it is in use: it gets no more
   commands and sleeps after its outstanding replies. Not one that has been at a call for longer than ``patience``:
   that is a stream or a summary, which no eviction cuts short.
3. Nobody now: the earliest time at which that changes by itself.

What was queued for a wake runs first (``is_owed``), and an actor that said it must stay is not asked before ``not_before``.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Resident(Generic[R]):
    """What decides about one awake conversation; times are seconds of the keeper's clock."""

    room: R
    awake_since: float
    touched: float  # when something was last sent to it or answered by it
    is_busy: bool  # sent and unanswered
    is_owed: bool  # what was queued for this wake has not all been sent
    busy_since: float | None  # when the oldest unanswered call was sent
    not_before: float


@dataclass(frozen=True, slots=True)
class Choice(Generic[R]):
    leaving: list[R]
    again_at: float | None  # when more can leave for waiters, if nothing happens before; None = not by itself
    idle_at: float | None  # nobody else will have been idle for long enough before this; None = nobody else is here


def choose(
    residents: Iterable[Resident[R]],
    *,
    now: float,
    wanted: int,
    linger: float,
    quantum: float,
    patience: float,
    idle: float,
) -> Choice[R]:
    """All that were unused for ``idle``, and more until ``wanted`` leave, if there are so many."""
    left = list(residents)
    leaving, left = _split(_quiet(left), left, lambda r: _unused_at(r, idle), now, len(left))
    times: list[float] = []
    if len(leaving) < wanted:
        more, left = _split(_quiet(left), left, lambda r: _unused_at(r, linger), now, wanted - len(leaving))
        leaving += more
        times += [_unused_at(r, linger) for r in _quiet(left)]
    if len(leaving) < wanted:
        more, left = _split(_turns(left, now, patience), left, lambda r: _had(r, quantum), now, wanted - len(leaving))
        leaving += more
        times += [_had(r, quantum) for r in _turns(left, now, patience)]
    return Choice(
        leaving=[r.room for r in leaving],
        again_at=min((at for at in times if at > now), default=None),
        idle_at=min((_idle_at(r, now, idle) for r in left), default=None),
    )


def _split(
    candidates: list[Resident[R]], left: list[Resident[R]], at: Callable[[Resident[R]], float], now: float, most: int
) -> tuple[list[Resident[R]], list[Resident[R]]]:
    """The first candidates whose time has come, and who is left without them."""
    leaving = [r for r in candidates if at(r) <= now][:most]
    rooms = {r.room for r in leaving}
    return leaving, [r for r in left if r.room not in rooms]


def _quiet(residents: list[Resident[R]]) -> list[Resident[R]]:
    """Those with nothing in flight, the least recently used first."""
    return sorted((r for r in residents if not r.is_busy and not r.is_owed), key=lambda r: r.touched)


def _turns(residents: list[Resident[R]], now: float, patience: float) -> list[Resident[R]]:
    """Those that may be asked to give way though they are in use, the longest resident first."""
    return sorted(
        (r for r in residents if not r.is_owed and not _is_long(r, now, patience)), key=lambda r: r.awake_since
    )


def _unused_at(resident: Resident[R], seconds: float) -> float:
    """When it may leave for having been unused that long."""
    return max(resident.touched + seconds, resident.not_before)


def _idle_at(resident: Resident[R], now: float, idle: float) -> float:
    """Not later than it may leave for being idle, whatever happens until then: a busy one is touched once more."""
    if resident.is_busy or resident.is_owed:
        return now + idle
    return min(_unused_at(resident, idle), now + idle)


def _had(resident: Resident[R], quantum: float) -> float:
    """When it has had its turn."""
    return max(resident.awake_since + quantum, resident.not_before)


def _is_long(resident: Resident[R], now: float, patience: float) -> bool:
    return resident.busy_since is not None and now - resident.busy_since > patience
