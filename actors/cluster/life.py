"""The life of one room, step by step: waiting, waking, sending, falling asleep, being lost.

`Life.pump` is the only thing that wakes, sends and puts to sleep; whoever changes something about a room calls it
afterwards, and it ends by calling `want`. Nothing here waits: each step is what one event makes of a room, so that
at every moment its state says all.
"""

import logging
from collections.abc import Callable
from itertools import count

from actors.cluster.clock import Clock
from actors.cluster.control import Sleep, Wake
from actors.cluster.crew import Actor, Crew
from actors.cluster.front import Front
from actors.cluster.refusals import Refusal, refuse, refuse_all, unknown
from actors.cluster.rooms import HOLDING, Room, Rooms, RoomState, Socket
from actors.cluster.status import StatusBoard
from actors.conversation.events import Command, Connect, Disconnect, Rpc
from actors.errors import Busy, Draining, NotMine
from actors.settings import Settings

logger = logging.getLogger("perdure.keeper")

MAX_NEW_WAKES = 3
"""So often a wake whose actor died is tried again with another one."""
ACQUIRED_SECONDS = 0.05
"""An actor that a Python caller was just given is not asked to sleep before this, or its call would often come too late."""
PATIENCE_SECONDS = 0.5
"""So long a conversation that has to give way waits for its outstanding replies; what takes longer is a long call."""
FIRST_STAY_SECONDS = 0.1
LAST_STAY_SECONDS = 5.0
"""How long a conversation that had to stay is left alone; it doubles from the first to the last."""


class Life:
    def __init__(
        self,
        rooms: Rooms,
        crew: Crew,
        board: StatusBoard,
        clock: Clock,
        settings: Settings,
        *,
        front: Callable[[], Front],
        want: Callable[[], None],
        quiet: Callable[[], None],
    ) -> None:
        self._rooms = rooms
        self._crew = crew
        self._board = board
        self._clock = clock
        self._settings = settings
        self._front = front
        self._want = want
        self._quiet = quiet
        self._leases = count(1)
        self._grace_ends: float | None = None  # set when this node stops
        self.wakes = 0
        self.sleeps = 0
        self.stays = 0
        self.unknown = 0
        self.returned = 0

    @property
    def patience(self) -> float:
        """How long a draining room waits for its outstanding replies before it goes on."""
        return max(self._settings.quantum_seconds, PATIENCE_SECONDS)

    # ---- the pump

    def pump(self, room: Room) -> None:
        """Does what the room's state and its line ask for."""
        if room.state is not RoomState.AWAKE and room.deadline is None and room.wants_actor():
            room.deadline = self._clock.call_later(self._settings.wake_seconds, lambda: self._too_late(room))
        match room.state:
            case RoomState.DORMANT if room.wants_actor():
                self._wait(room)
            case RoomState.WAITING if not room.wants_actor():
                self._rest(room)
            case RoomState.AWAKE if self._grace_ends is not None:
                self.drain(room)
            case RoomState.AWAKE:
                self._send_line(room)
            case RoomState.DRAINING if room.is_forced or not room.is_busy():
                self._sleep(room)
            case RoomState.DORMANT if room.is_forgettable() and self._rooms.find(room.key) is room:
                self._rooms.forget(room)
            case _:
                pass

    def _wait(self, room: Room, *, is_first: bool = False) -> None:
        self._rooms.move(room, RoomState.WAITING, is_first=is_first)
        self._want()

    def _rest(self, room: Room) -> None:
        self._stop_waiting(room)
        self._rooms.move(room, RoomState.DORMANT)
        self.pump(room)
        self._want()

    def _stop_waiting(self, room: Room) -> None:
        room.attempts = 0
        if room.deadline is not None:
            room.deadline.cancel()
            room.deadline = None

    def _too_late(self, room: Room) -> None:
        room.deadline = None
        self.refuse_line(room, Refusal.of(Busy()))

    def refuse_line(self, room: Room, why: Refusal) -> None:
        """All that waits there gets a definite refusal; nobody needs an actor for it any more."""
        refuse_all(self._front(), room, why)
        self.pump(room)

    # ---- waking

    def wake(self, room: Room, actor: Actor) -> None:
        """Hands a spare, already taken, the name."""
        self.wakes += 1
        room.actor, room.lease = actor, next(self._leases)
        self._rooms.move(room, RoomState.WAKING)
        actor.lane.send(room.lease, Wake(room.key.agent, room.key.name))
        self._pulse(actor, self._settings.start_seconds)

    def woken(self, room: Room) -> None:
        """`Awake`: sockets that had joined join again, then the line goes out, and Python callers get what they asked for."""
        actor = self._actor(room)
        self._pulse(actor, None)
        self._stop_waiting(room)
        self._rooms.move(room, RoomState.AWAKE)
        room.awake_since = room.touched = self._clock.time()
        room.not_before, room.stay_seconds = 0.0, 0.0
        room.owed = len(room.line)
        for socket in list(room.sockets.values()):
            self._send(room, socket.rejoin())
        self._give(room, actor)
        self._board.awake(room.key, is_awake=True)
        self.pump(room)
        self._want()

    def wake_refused(self, room: Room, why: Refusal, *, is_spare_ok: bool) -> None:
        actor = self._actor(room)
        self._pulse(actor, None)
        room.actor = None
        self._crew.release(actor, is_spare_ok=is_spare_ok)
        self._stop_waiting(room)
        self._rooms.move(room, RoomState.DORMANT)
        refuse_all(self._front(), room, why)
        self.pump(room)
        self._want()

    def wake_lost(self, room: Room) -> None:
        """The actor died while it was waking this: nothing was sent, so another one may."""
        room.actor = None
        room.attempts += 1
        if room.attempts <= MAX_NEW_WAKES and room.wants_actor() and self._grace_ends is None:
            self._wait(room, is_first=True)
            return
        self._stop_waiting(room)
        self._rooms.move(room, RoomState.DORMANT)
        refuse_all(self._front(), room, Refusal.of(Busy() if self._grace_ends is None else Draining()))
        self.pump(room)
        self._want()

    def _give(self, room: Room, actor: Actor) -> None:
        acquirers, room.acquirers = room.acquirers, []
        for acquirer in acquirers:
            if not acquirer.done():
                acquirer.set_result(self.acquired(room, actor))

    def acquired(self, room: Room, actor: Actor) -> tuple[object, int]:
        room.touched = self._clock.time()
        room.not_before = max(room.not_before, room.touched + ACQUIRED_SECONDS)
        return self._crew.handle(actor), room.lease

    # ---- sending

    def _send_line(self, room: Room) -> None:
        lane = self._actor(room).lane
        was_owed = room.owed
        while room.line and room.state is RoomState.AWAKE and not lane.is_congested:
            self._send(room, room.take())
            room.owed = max(0, room.owed - 1)
        if was_owed and not room.owed:
            self._give(room, self._actor(room))  # who asked for it while it could not be given
            self._want()

    def _send(self, room: Room, command: Command) -> None:
        actor = self._actor(room)
        now = room.touched = self._clock.time()
        match command:
            case Connect():
                room.sockets.setdefault(command.connection, Socket(command))
                room.joining.add(command.connection)
            case Disconnect():
                room.depart(command.connection)
            case Rpc():
                room.outstanding.sent(command, now)
            case _:
                pass
        actor.lane.send(room.lease, command)
        if room.is_busy() and actor.pulse is not None:
            actor.pulse.expect()

    def answered(self, room: Room) -> None:
        """A final answer has come."""
        room.touched = self._clock.time()
        if room.is_busy():
            return
        if room.stay_seconds:  # what it had to stay for may be over
            room.not_before = min(room.not_before, room.touched)
        if room.state is RoomState.DRAINING:
            self.pump(room)
        else:
            self._quiet()

    def came_back(self, room: Room, command: Command) -> None:
        """`Returned`: it waits, in front, for the next wake; this lease gets nothing more, or later ones would overtake it."""
        self.returned += 1
        if isinstance(command, Rpc):
            room.outstanding.returned(command)
        if isinstance(command, Connect):
            room.joining.discard(command.connection)
        room.returned.append(command)
        if room.state is RoomState.AWAKE:
            self.drain(room)
        elif room.state is RoomState.DRAINING:
            self.pump(room)

    # ---- falling asleep

    def drain(self, room: Room) -> None:
        """It gets nothing more, and is asked to sleep when its outstanding replies have come."""
        if self._grace_ends is not None:
            room.is_forced = True
        self._rooms.move(room, RoomState.DRAINING)
        if not room.is_forced:
            room.patience = self._clock.call_later(self.patience, lambda: self._out_of_patience(room))
        self.pump(room)
        self._want()

    def _out_of_patience(self, room: Room) -> None:
        room.patience = None
        if room.state is RoomState.DRAINING:
            self._go_on(room)

    def _sleep(self, room: Room) -> None:
        actor = self._actor(room)
        self._lose_patience(room)
        self._rooms.move(room, RoomState.HIBERNATING)
        grace = max(0.0, self._grace_ends - self._clock.time()) if self._grace_ends is not None else 0.0
        is_last = actor.served >= self._settings.recycle or self._grace_ends is not None
        actor.lane.send(room.lease, Sleep(may_stay=not room.is_forced, grace_seconds=grace, is_last=is_last))
        self._pulse(actor, self.sleep_seconds(grace))
        self._want()

    def sleep_seconds(self, grace: float) -> float:
        """The longest that an actor may take to fall asleep before it is killed."""
        return grace + self._settings.store_deadline_seconds + self._settings.hang_seconds

    def stayed(self, room: Room) -> None:
        """`Stay`: something is running there that must not be cut short."""
        if room.is_forced:
            return
        self.stays += 1
        self._pulse(self._actor(room), None)
        self._go_on(room)

    def _go_on(self, room: Room) -> None:
        """Awake again under the same lease; what had come back goes out again, first."""
        room.stay_seconds = min(max(FIRST_STAY_SECONDS, 2 * room.stay_seconds), LAST_STAY_SECONDS)
        room.not_before = self._clock.time() + room.stay_seconds
        self._rooms.move(room, RoomState.AWAKE)
        self._stop_waiting(room)
        room.owed = self._put_back(room, room.returned)
        self._give(room, self._actor(room))
        self.pump(room)
        self._want()

    def asleep(self, room: Room, *, is_spare_ok: bool) -> None:
        self.sleeps += 1
        actor = self._actor(room)
        self._pulse(actor, None)
        is_spare_ok = is_spare_ok and actor.served < self._settings.recycle and self._grace_ends is None
        room.actor = None
        self._crew.release(actor, is_spare_ok=is_spare_ok)
        self.lease_ended(room)

    def killed(self, room: Room) -> None:
        """Its actor is being killed: the room waits for the end of it, since only then its file may be used again."""
        self._lose_patience(room)
        room.is_forced = True
        if room.state is not RoomState.WAKING:
            self._rooms.move(room, RoomState.HIBERNATING)
        self._want()

    def taken_over(self, room: Room) -> None:
        """`Lost`: its actor has said all that it had to say."""
        self._crew.kill(self._actor(room), "its conversation was taken over")

    def lease_ended(self, room: Room) -> None:
        """No actor holds it any more. What was sent and is unanswered stays unknown; the rest waits for the next wake."""
        room.actor = None
        self._lose_patience(room)
        lost = room.outstanding.drop_all()
        self.unknown += len(lost)
        room.is_forced, room.owed = False, 0
        room.joining.clear()
        self._rooms.move(room, RoomState.DORMANT)
        self._put_back(room, room.left_over())
        room.forget_departed()
        if not room.wants_actor():
            self._stop_waiting(room)
        self._board.awake(room.key, is_awake=False)
        unknown(self._front(), lost)
        if self._grace_ends is not None:
            refuse_all(self._front(), room, Refusal.of(Draining()))
        self.pump(room)
        self._want()

    def _put_back(self, room: Room, commands: list[Command]) -> int:
        """In front of the line; how many. What had been put back before is refused: each is sent once more, not for ever."""
        twice = [command for command in commands if command in room.retried]
        unjoined = {command.connection for command in twice if isinstance(command, Connect)}
        again = [command for command in commands if command not in twice and command.connection not in unjoined]
        refused = [command for command in commands if command not in again]
        refused += room.take_out(unjoined)
        room.returned, room.retried = [], again
        room.put_back(again)
        for command in refused:
            refuse(self._front(), room, command, Refusal.of(NotMine()))
        return len(again)

    def _lose_patience(self, room: Room) -> None:
        if room.patience is not None:
            room.patience.cancel()
            room.patience = None

    # ---- stopping

    def stop_all(self, grace_seconds: float) -> None:
        """No more wakes; every queue gets a definite refusal; what is awake is told to sleep."""
        self._grace_ends = self._clock.time() + grace_seconds
        for room in self._rooms:
            self.refuse_line(room, Refusal.of(Draining()))
            if room.state is RoomState.WAKING:
                self._pulse(self._actor(room), self.sleep_seconds(grace_seconds))
            elif room.state is RoomState.DRAINING:
                room.is_forced = True
            self.pump(room)

    def is_anyone_held(self) -> bool:
        return self._rooms.count(*HOLDING) > 0

    def refuse(self, room: Room, command: Command, why: Refusal) -> None:
        refuse(self._front(), room, command, why)
        self.pump(room)

    def _pulse(self, actor: Actor, seconds: float | None) -> None:
        if actor.pulse is not None:
            actor.pulse.expect_until(seconds)

    @staticmethod
    def _actor(room: Room) -> Actor:
        assert room.actor is not None, room
        return room.actor
