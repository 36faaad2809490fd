"""The one place that decides which actors are begun and who has to sleep so that others can wake."""

from actors.cluster.clock import Clock, Timer
from actors.cluster.crew import Crew
from actors.cluster.eviction import choose
from actors.cluster.life import Life
from actors.cluster.rooms import Rooms, RoomState
from actors.settings import Settings

_LEAVING = (RoomState.DRAINING, RoomState.HIBERNATING)
_USING = (RoomState.WAKING, RoomState.AWAKE, RoomState.DRAINING)


class Want:
    """Called after every transition. It keeps no number: it looks at the rooms and the crew as they are now.

    At most ``max_awake`` conversations are awake, not counting those that have been asked to sleep: the next one wakes
    on a spare meanwhile. There are at most so many actors, and the spares besides.
    """

    def __init__(self, rooms: Rooms, crew: Crew, life: Life, clock: Clock, settings: Settings) -> None:
        self._rooms = rooms
        self._crew = crew
        self._life = life
        self._clock = clock
        self._settings = settings
        self._is_deciding = False
        self._is_stale = False
        self._timer: Timer | None = None
        self._timer_at: float | None = None
        self._idle_at: float | None = None  # nobody will have been idle for long enough before this
        self._is_stopped = False
        self.evictions = 0

    def __call__(self) -> None:
        self._is_stale = True
        if self._is_deciding or self._is_stopped:
            return
        self._is_deciding = True
        again_at: float | None = None
        try:
            while self._is_stale:
                self._is_stale = False
                again_at = self._decide()
        finally:
            self._is_deciding = False
        self._look_again(again_at)

    def quiet(self) -> None:
        """A conversation has nothing in flight any more: it can give way after ``linger``, so mostly there is time."""
        if self._rooms.first(RoomState.WAITING) is None:
            return
        if self._timer_at is None or self._timer_at > self._clock.time() + self._settings.linger_seconds:
            self()

    def stop(self) -> None:
        """Nobody is woken, evicted or begun from now on."""
        self._is_stopped = True
        self._look_again(None)

    def _decide(self) -> float | None:
        """One round; transitions that it causes ask for another. Returns when to look again if nothing happens."""
        self._wake_waiters()
        evict_at = self._evict()
        if self._missing() > 0 and len(self._crew) < self._settings.max_awake + self._settings.spares:
            self._crew.start_one()
        trim_at = self._crew.trim(self._settings.spares)
        return min((at for at in (evict_at, trim_at) if at is not None), default=None)

    def _free(self) -> int:
        """How many more conversations may be awake."""
        return self._settings.max_awake - self._rooms.count(*_USING)

    def _missing(self) -> int:
        """How many more actors it takes to serve who waits, and to have the spares, when all who are leaving have left."""
        waiting = self._rooms.count(RoomState.WAITING)
        return waiting + self._settings.spares - self._crew.spares - self._rooms.count(*_LEAVING)

    def _wake_waiters(self) -> None:
        while self._crew.spares and self._free() > 0:
            room = self._rooms.first(RoomState.WAITING)
            if room is None:
                return
            self._life.wake(room, self._crew.take(room))

    def _evict(self) -> float | None:
        waiting = self._rooms.count(RoomState.WAITING)
        wanted = 0
        if waiting:
            places = self._free() + self._rooms.count(RoomState.DRAINING)
            actors = self._crew.spares + self._rooms.count(*_LEAVING)
            wanted = max(waiting - min(places, actors), 0)
        now = self._clock.time()
        if not wanted and self._idle_at is not None and now < self._idle_at:
            return self._idle_at
        choice = choose(
            [room.facts() for room in self._rooms.among(RoomState.AWAKE)],
            now=now,
            wanted=wanted,
            linger=self._settings.linger_seconds,
            quantum=self._settings.quantum_seconds,
            patience=self._life.patience,
            idle=self._settings.idle_seconds,
        )
        self._idle_at = choice.idle_at
        for room in choice.leaving:
            self.evictions += 1
            self._life.drain(room)
        return min((at for at in (choice.again_at, choice.idle_at) if at is not None), default=None)

    def _look_again(self, at: float | None) -> None:
        if at is not None and self._timer is not None and at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at is not None:
            self._timer = self._clock.call_later(max(0.0, at - self._clock.time()), self._again)

    def _again(self) -> None:
        self._timer = self._timer_at = None
        self()

    # ---- liveness

    def stuck(self) -> str | None:
        """A sentence when someone waits and nothing will ever happen by itself: always a bug of this program."""
        if self._is_stopped or self._rooms.first(RoomState.WAITING) is None:
            return None
        if self._crew.spares and self._free() > 0:
            return f"{self._rooms.count(RoomState.WAITING)} wait, and {self._crew.spares} spares do nothing"
        is_moving = (
            self._rooms.count(RoomState.WAKING, *_LEAVING) > 0
            or self._crew.is_starting
            or self._crew.is_pausing
            or self._crew.leaving > 0
            or self._timer is not None
            or any(room.is_busy() or room.owed for room in self._rooms.among(RoomState.AWAKE))
        )
        return None if is_moving else f"{self._rooms.count(RoomState.WAITING)} wait, and nothing is under way"
