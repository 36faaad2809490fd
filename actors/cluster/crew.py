"""The keeper's actors: begun one at a time, spare, holding a conversation, or on their way out."""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from actors.cluster.clock import Clock, Timer
from actors.cluster.control import Hello, Ping
from actors.cluster.lane import Body
from actors.cluster.pulse import Pulse
from actors.cluster.rooms import Room, RoomState
from actors.cluster.source import ActorSource

logger = logging.getLogger("perdure.keeper")

SURPLUS_SECONDS = 60.0
"""A spare above the wanted number ends after this long without use."""
FIRST_PAUSE_SECONDS = 0.25
LAST_PAUSE_SECONDS = 10.0
"""Pause after a start that failed; it doubles from the first to the last."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MAX_LINE = 300


class Lane(Protocol):
    """The keeper's end of an actor's lane (`LaneConnection`)."""

    @property
    def is_congested(self) -> bool: ...

    def send(self, lease: int, body: Body) -> None: ...

    def abort(self) -> None: ...


class ActorState(Enum):
    SPARE = "spare"
    HOLDING = "holding"
    LEAVING = "leaving"  # gets nothing more; its lane will end


@dataclass(slots=True, eq=False)
class Actor:
    token: str
    pid: int
    lane: Lane
    since: float  # of its present state
    state: ActorState = ActorState.SPARE
    room: Room | None = None
    served: int = 0  # conversations so far
    number: int = 0  # of its last ping
    pulse: Pulse | None = None

    def is_expected_to_answer(self) -> bool:
        room = self.room
        if self.state is ActorState.LEAVING or room is None:
            return self.state is ActorState.LEAVING
        return room.state in (RoomState.WAKING, RoomState.HIBERNATING) or room.is_busy()


@dataclass(slots=True, eq=False)
class _Start:
    token: str
    task: asyncio.Future[None]
    timer: Timer


class Crew:
    """Who there is to hold conversations.

    ``changed`` is called when a start may be tried again, ``killed`` with the room whose actor is being killed.
    """

    def __init__(
        self,
        source: ActorSource,
        clock: Clock,
        *,
        hang_seconds: float,
        start_seconds: float,
        changed: Callable[[], None],
        killed: Callable[[Room], None],
    ) -> None:
        self._source = source
        self._clock = clock
        self._hang_seconds = hang_seconds
        self._start_seconds = start_seconds
        self._changed = changed
        self._killed = killed
        self._actors: dict[Lane, Actor] = {}
        self._spares: list[Actor] = []  # the warmest last
        self._start: _Start | None = None
        self._pause: Timer | None = None  # after a start that failed
        self._pause_seconds = 0.0
        self.starts = 0
        self.failed_starts = 0
        self.kills = 0

    # ---- numbers

    def __len__(self) -> int:
        """All there are and the one that is being started."""
        return len(self._actors) + (self._start is not None)

    @property
    def actors(self) -> list[Actor]:
        return list(self._actors.values())

    @property
    def spares(self) -> int:
        return len(self._spares)

    @property
    def leaving(self) -> int:
        """How many are on their way out; each ends, or is killed, in time."""
        return sum(actor.state is ActorState.LEAVING for actor in self._actors.values())

    @property
    def is_starting(self) -> bool:
        return self._start is not None

    @property
    def is_pausing(self) -> bool:
        return self._pause is not None

    # ---- starting

    def start_one(self) -> None:
        """Begins one more, unless one is being started or the last start has just failed."""
        if self._start is not None or self._pause is not None:
            return
        token = secrets.token_hex(16)
        self.starts += 1
        task = asyncio.ensure_future(self._source.start(token))
        timer = self._clock.call_later(self._start_seconds, lambda: self._start_failed(token, "did not come in time"))
        self._start = _Start(token, task, timer)
        task.add_done_callback(lambda done: self._begun(token, done))

    def _begun(self, token: str, task: asyncio.Future[None]) -> None:
        if task.cancelled():
            self._start_failed(token, "was cancelled")
        elif (error := task.exception()) is not None:
            self._start_failed(token, _in_a_line(error))

    def _start_failed(self, token: str, why: str) -> None:
        if self._start is None or self._start.token != token:
            return
        start, self._start = self._start, None
        start.timer.cancel()
        start.task.cancel()
        self._source.forget(token)
        logger.warning("A conversation actor could not be started: %s", why)
        self._pause_after_failure()
        self._changed()

    def _pause_after_failure(self) -> None:
        self.failed_starts += 1
        doubled = max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds)
        self._pause_seconds = min(doubled, LAST_PAUSE_SECONDS)
        if self._pause is None:
            self._pause = self._clock.call_later(self._pause_seconds, self._pause_over)

    def _pause_over(self) -> None:
        self._pause = None
        self._changed()

    def hello(self, lane: Lane, hello: Hello) -> Actor | None:
        """The actor that was being started; None, and its lane ends, when nobody waits for that token."""
        start = self._start
        if start is None or not secrets.compare_digest(start.token.encode(), hello.token.encode("utf-8", "replace")):
            lane.abort()
            return None
        self._start = None
        start.timer.cancel()
        actor = Actor(hello.token, hello.pid, lane, self._clock.time())
        actor.pulse = Pulse(
            self._clock,
            self._hang_seconds,
            is_expected=actor.is_expected_to_answer,
            ping=lambda: self._ping(actor),
            hangs=lambda why: self.kill(actor, why),
        )
        self._actors[lane] = actor
        self._spares.append(actor)
        return actor

    # ---- using

    def find(self, lane: Lane) -> Actor | None:
        return self._actors.get(lane)

    def take(self, room: Room) -> Actor:
        """The spare that was used last; it holds that room now."""
        actor = self._spares.pop()
        actor.state, actor.room, actor.since = ActorState.HOLDING, room, self._clock.time()
        actor.served += 1
        self._pause_seconds = 0.0
        return actor

    def release(self, actor: Actor, *, is_spare_ok: bool) -> None:
        """It holds nothing any more."""
        actor.room = None
        if is_spare_ok and actor.state is ActorState.HOLDING:
            actor.state, actor.since = ActorState.SPARE, self._clock.time()
            self._spares.append(actor)
        else:
            self.leave(actor)

    def leave(self, actor: Actor) -> None:
        """It is expected to end itself; if it has not by the time a loop may hang, it is killed."""
        if actor.state is ActorState.SPARE:
            self._spares.remove(actor)
        actor.state = ActorState.LEAVING
        assert actor.pulse is not None
        actor.pulse.expect_until(self._hang_seconds)

    def dismiss_spares(self) -> None:
        """At the end: the end of file of its lane ends an actor."""
        for actor in list(self._spares):
            self.leave(actor)
            actor.lane.abort()

    def trim(self, wanted: int) -> float | None:
        """Ends the coldest spare that nobody has needed for long; returns when to look again."""
        if len(self._spares) <= wanted:
            return None
        coldest, now = self._spares[0], self._clock.time()
        if coldest.since + SURPLUS_SECONDS > now:
            return coldest.since + SURPLUS_SECONDS
        self.leave(coldest)
        coldest.lane.abort()
        return self.trim(wanted)

    def handle(self, actor: Actor) -> object:
        return self._source.handle(actor.token)

    def _ping(self, actor: Actor) -> None:
        actor.number += 1
        actor.lane.send(actor.room.lease if actor.room is not None else 0, Ping(actor.number))

    def kill(self, actor: Actor, why: str) -> None:
        """SIGKILL; whatever follows, follows from the end of file of its lane, since only that proves that it is dead."""
        logger.warning("Killing conversation actor %d: %s", actor.pid, why)
        self.kills += 1
        if actor.state is ActorState.SPARE:
            self._spares.remove(actor)
        actor.state = ActorState.LEAVING
        if actor.pulse is not None:
            actor.pulse.stop()
        self._source.kill(actor.pid)
        if actor.room is not None:
            self._killed(actor.room)

    def ended(self, lane: Lane, error: Exception | None) -> Actor | None:
        """Its process is dead. Returns it, with the room that it held."""
        actor = self._actors.pop(lane, None)
        if actor is None:
            return None
        if error is not None:
            self._source.kill(actor.pid)  # the lane was ended from here, or broke: that alone proves nothing
        if actor.state is ActorState.SPARE:
            self._spares.remove(actor)
        if actor.served == 0 and actor.state is ActorState.SPARE:
            self._pause_after_failure()  # else one that dies at once would be started for ever
        assert actor.pulse is not None
        actor.pulse.stop()
        self._source.forget(actor.token)
        return actor

    def stop(self) -> None:
        """No more starts and no more timers."""
        if self._start is not None:
            start, self._start = self._start, None
            start.timer.cancel()
            start.task.cancel()
            self._source.forget(start.token)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for actor in self._actors.values():
            assert actor.pulse is not None
            actor.pulse.stop()


def _in_a_line(error: BaseException) -> str:
    """Ray tells an error of an actor as a paragraph: its kind, a traceback, and what was raised at the end."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    is_traceback = any(line.startswith(("File ", "Traceback ")) for line in lines)
    said = lines[-1] if is_traceback else lines[0]
    return f"{type(error).__name__}: {said[:_MAX_LINE]}"
