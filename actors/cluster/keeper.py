"""The keeper of a node: which conversations are awake here, in which actor; commands in, events out.

It promises to the gateway and to Python callers:

* commands of one connection reach the conversation in the order in which they were submitted, each at most once,
  whatever sleeps and wakes lie between; events come in the order in which they were produced, and none of an earlier
  lease after a later one has begun;
* each `Rpc` gets exactly one final answer while the keeper lives: the actor's own, a definite refusal
  (``was_executed`` False), or outcome unknown when its actor died with it;
* whoever waits is served, or refused as busy within ``wake_seconds``.

It runs on one event loop, does no I/O of its own and knows nothing of Ray. `rooms` has the table, `life` the steps of
one room, `want` decides who wakes and who leaves, `crew` has the actors; this file is their common face.
"""

import asyncio
import logging

from actors.cluster.clock import Clock
from actors.cluster.control import Asleep, Awake, Hello, Lost, Pong, Stay, WakeRefused
from actors.cluster.crew import Crew, Lane
from actors.cluster.front import Front, GuardedFront
from actors.cluster.lane import Body
from actors.cluster.life import Life
from actors.cluster.refusals import Refusal
from actors.cluster.rooms import Room, Rooms, RoomState, size_of
from actors.cluster.source import ActorSource
from actors.cluster.status import StatusBoard, StatusSubscription
from actors.cluster.want import Want
from actors.conversation.events import (
    Close,
    Command,
    Connected,
    Direct,
    Disconnect,
    Failure,
    Push,
    Result,
    Returned,
    Saved,
    StateRefused,
)
from actors.errors import Busy, Draining
from actors.settings import Settings
from storage.checkpoints.keys import ConversationKey
from storage.errors import StorageError

logger = logging.getLogger("perdure.keeper")

_ASLEEP_FROM = (RoomState.AWAKE, RoomState.DRAINING, RoomState.HIBERNATING)


class Keeper:
    """Made on its event loop, which is its clock unless another is given. It is the owner of all lanes (`LaneOwner`)."""

    def __init__(self, source: ActorSource, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock: Clock = clock if clock is not None else asyncio.get_running_loop()
        self._front: Front = GuardedFront(None)
        self._rooms = Rooms()
        self._board = StatusBoard()
        self._crew = Crew(
            source,
            self._clock,
            hang_seconds=settings.hang_seconds,
            start_seconds=settings.start_seconds,
            changed=self._changed,
            killed=lambda room: self._life.killed(room),
        )
        self._life = Life(
            self._rooms,
            self._crew,
            self._board,
            self._clock,
            settings,
            front=lambda: self._front,
            want=self._changed,
            quiet=lambda: self._want.quiet(),
        )
        self._want = Want(self._rooms, self._crew, self._life, self._clock, settings)
        self._is_draining = False
        self._at_rest: asyncio.Future[None] | None = None
        self._refused = 0
        self._stale = 0

    def attach(self, front: Front) -> None:
        """From now on events go there; the gateway calls this before its first `submit`."""
        self._front = GuardedFront(front)

    def start(self) -> None:
        """Begins the first spares, before anyone asks."""
        self._want()

    # ---- what the gateway and Python callers want

    def submit(self, key: ConversationKey, command: Command) -> None:
        """Never waits and never raises; what cannot be taken is refused through the front.

        The first command of a connection is its `Connect`, the last its `Disconnect`, also after the front was told
        that it is lost.
        """
        room = self._rooms.open(key)
        if isinstance(command, Disconnect):
            self._disconnect(room, command)
            return
        why = self._objection(room, command)
        if why is not None:
            self._refused += 1
            self._life.refuse(room, command, Refusal.of(why))
            return
        room.queue(command)
        self._life.pump(room)

    def _objection(self, room: Room, command: Command) -> StorageError | None:
        s = self._settings
        if self._is_draining:
            return Draining()
        operations = len(room.line) + len(room.outstanding)
        size = room.line_bytes + room.outstanding.bytes + size_of(command)
        is_full = operations >= s.max_queued_operations or (operations > 0 and size > s.max_queued_bytes)
        is_given_up = command.connection in room.lost_sockets
        return Busy() if is_full or is_given_up or self._has_no_place_to_wait(room) else None

    def _has_no_place_to_wait(self, room: Room) -> bool:
        is_newcomer = room.state is RoomState.DORMANT
        return is_newcomer and self._rooms.count(RoomState.WAITING) >= self._settings.max_waiting_wakes

    def _disconnect(self, room: Room, command: Disconnect) -> None:
        connection = command.connection
        room.lost_sockets.discard(connection)
        if connection in room.sockets or any(waiting.connection == connection for waiting in room.line):
            room.queue(command)
            if room.actor is None:
                room.forget_departed()
        self._life.pump(room)

    async def acquire(self, key: ConversationKey) -> tuple[object, int]:
        """The actor that holds this conversation, woken if need be, and the present lease; keeps nothing awake.

        A call with a lease that is over is refused by the actor as not executed: acquire again. Raises `Busy`,
        `Draining`, or what kept the conversation from waking.
        """
        if self._is_draining:
            raise Draining
        room = self._rooms.open(key)
        if room.state is RoomState.AWAKE and room.actor is not None and not room.owed:
            return self._life.acquired(room, room.actor)
        if self._has_no_place_to_wait(room) or len(room.acquirers) >= self._settings.max_queued_operations:
            self._life.pump(room)
            raise Busy
        acquirer: asyncio.Future[tuple[object, int]] = asyncio.get_running_loop().create_future()
        room.acquirers.append(acquirer)
        self._life.pump(room)
        try:
            return await acquirer
        finally:
            if acquirer in room.acquirers:
                room.acquirers.remove(acquirer)
                self._life.pump(room)

    def status(self, key: ConversationKey | None = None) -> StatusSubscription:
        """What is and becomes of one conversation, or of all; close it after use. Never wakes anyone."""
        return self._board.subscribe(key)

    # ---- what actors say (LaneOwner)

    def received(self, lane: Lane, lease: int, body: Body) -> None:
        actor = self._crew.find(lane)
        if actor is None:
            if isinstance(body, Hello) and self._crew.hello(lane, body) is not None:
                self._changed()
            return
        if actor.pulse is not None:
            actor.pulse.heard()
        room = actor.room
        if isinstance(body, Pong):
            return
        if room is None or room.lease != lease:
            self._stale += 1  # of a conversation that this actor does not hold any more
            return
        self._dispatch(room, body)

    def _dispatch(self, room: Room, body: Body) -> None:
        match body:
            case Push():
                self._board.pushed(room.key, body)
                audience = room.audience(is_protocol=body.is_protocol, besides=body.besides)
                if audience:
                    self._front.push(audience, body)
            case Result():
                self._answer(room, body, is_final=body.is_done)
            case Failure():
                self._answer(room, body, is_final=True)
            case Connected():
                self._joined(room, body)
            case StateRefused() | Direct():
                self._front.event(body)
            case Close():
                room.joining.discard(body.connection)  # a socket that could not be set up gets no Connected
                self._front.event(body)
                self._life.answered(room)
            case Saved():
                socket = room.sockets.get(body.connection)
                if socket is not None:
                    socket.saved = body.saved
            case Returned():
                self._life.came_back(room, body.command)
            case _:
                self._dispatch_control(room, body)

    def _dispatch_control(self, room: Room, body: Body) -> None:
        match body:
            case Awake() if room.state is RoomState.WAKING:
                self._life.woken(room)
            case WakeRefused() if room.state is RoomState.WAKING:
                self._life.wake_refused(room, Refusal.of(body), is_spare_ok=body.is_spare_ok)
            case Asleep() if room.state in _ASLEEP_FROM:
                self._life.asleep(room, is_spare_ok=body.is_spare_ok)
            case Stay() if room.state is RoomState.HIBERNATING:
                self._life.stayed(room)
            case Lost():
                self._life.taken_over(room)
            case _:
                logger.error("A conversation actor said %s, which it may not now", type(body).__name__)

    def _answer(self, room: Room, event: Result | Failure, *, is_final: bool) -> None:
        if is_final:
            room.outstanding.answered(event.connection, event.call)
        self._front.event(event)
        if is_final:
            self._life.answered(room)

    def _joined(self, room: Room, event: Connected) -> None:
        if room.join(event):
            self._front.event(event)
        self._life.answered(room)

    def resumed(self, lane: Lane) -> None:
        actor = self._crew.find(lane)
        if actor is not None and actor.room is not None:
            self._life.pump(actor.room)

    def ended(self, lane: Lane, error: Exception | None) -> None:
        actor = self._crew.ended(lane, error)
        if actor is None:
            return
        room, actor.room = actor.room, None
        if room is not None:
            logger.warning("Conversation actor %d ended while its conversation was %s", actor.pid, room.state.value)
        if room is None:
            self._changed()
        elif room.state is RoomState.WAKING:
            self._life.wake_lost(room)
        else:
            self._life.lease_ended(room)

    def _changed(self) -> None:
        self._want()
        if self._at_rest is not None and not self._at_rest.done() and not self._life.is_anyone_held():
            self._at_rest.set_result(None)

    # ---- stopping, and numbers

    async def drain(self, grace_seconds: float) -> None:
        """Puts all to sleep and ends all actors; new commands and what is queued get a definite refusal.

        Calls that run may go on for ``grace_seconds`` and end as outcome unknown then. Whoever is still not asleep
        when the store had its time too is killed. Sockets stay as they are: closing them is the gateway's.
        """
        if self._at_rest is not None:
            await asyncio.wait((self._at_rest,))
            return
        self._is_draining = True
        self._want.stop()
        self._at_rest = asyncio.get_running_loop().create_future()
        self._life.stop_all(grace_seconds)
        self._changed()
        await self._within(self._at_rest, self._life.sleep_seconds(grace_seconds))
        if not self._at_rest.done():
            for actor in self._crew.actors:
                if actor.room is not None:
                    self._crew.kill(actor, "did not fall asleep before the end")
            await self._within(self._at_rest, self._settings.hang_seconds)
        self._crew.dismiss_spares()
        self._crew.stop()
        self._board.close()

    async def _within(self, done: asyncio.Future[None], seconds: float) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(seconds, lambda: None if over.done() else over.set_result(None))
        await asyncio.wait((done, over), return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()

    def stuck(self) -> str | None:
        """A sentence if someone waits and nothing will happen by itself, which is always a bug; see `Want.stuck`."""
        return self._want.stuck()

    def statistics(self) -> dict[str, int]:
        """Gauges (what is now) and totals since the start (named by what happened)."""
        rooms = {state.value: self._rooms.count(state) for state in RoomState}
        return {
            "conversations": len(self._rooms),
            **rooms,
            "actors": len(self._crew.actors),
            "spares": self._crew.spares,
            "starting": int(self._crew.is_starting),
            "starts": self._crew.starts,
            "failed_starts": self._crew.failed_starts,
            "kills": self._crew.kills,
            "wakes": self._life.wakes,
            "sleeps": self._life.sleeps,
            "evictions": self._want.evictions,
            "stays": self._life.stays,
            "outcomes_unknown": self._life.unknown,
            "returned": self._life.returned,
            "refused": self._refused,
            "stale_dropped": self._stale,
        }
