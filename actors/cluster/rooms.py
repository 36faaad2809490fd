"""The conversations that a keeper knows: those that are awake, wanted, or have open sockets."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from actors.cluster.clock import Timer
from actors.cluster.eviction import Resident
from actors.cluster.outstanding import Outstanding
from actors.conversation.events import Command, Connect, Connected, ConnectionId, Disconnect, Message, Rpc, SetState
from storage.checkpoints.keys import ConversationKey

if TYPE_CHECKING:
    from actors.cluster.crew import Actor


class RoomState(Enum):
    DORMANT = "dormant"  # no actor, and nothing wants one
    WAITING = "waiting"  # wants an actor
    WAKING = "waking"  # an actor is claiming and opening it
    AWAKE = "awake"
    DRAINING = "draining"  # gets nothing more; asked to sleep when all is answered
    HIBERNATING = "hibernating"  # asked to sleep, or lost and its actor not yet known to be dead


HOLDING = (RoomState.WAKING, RoomState.AWAKE, RoomState.DRAINING, RoomState.HIBERNATING)
"""States in which an actor holds the conversation."""


MAX_DEPARTED = 256


@dataclass(slots=True)
class Socket:
    """A connection whose `Connect` was sent at least once. ``connected``: its first `Connected`; the gateway has it."""

    connect: Connect
    connected: Connected | None = None
    saved: bytes = b"null"

    def rejoin(self) -> Connect:
        """The `Connect` that it gets at the next wake."""
        c = self.connect
        saved = None if self.connected is None else self.saved
        return Connect(c.connection, c.client_id, c.url, c.principal, c.is_readonly, c.verbs, saved)


def size_of(command: Command) -> int:
    match command:
        case Rpc() | SetState():
            return len(command.frame)
        case Message():
            return len(command.payload)
        case _:
            return 0


class Room:
    """One conversation. It never acts by itself: the keeper's pump does, and moves it by `Rooms.move`.

    Equal only to itself.
    """

    def __init__(self, key: ConversationKey) -> None:
        self.key = key
        self.state = RoomState.DORMANT
        # what waits to be sent, in order
        self.line: deque[Command] = deque()
        self.line_bytes = 0
        self.acquirers: list[asyncio.Future[tuple[object, int]]] = []
        # who listens
        self.sockets: dict[ConnectionId, Socket] = {}
        self.lost_sockets: set[ConnectionId] = set()  # told to close, their Disconnect has not come
        self._audiences: dict[bool, tuple[ConnectionId, ...]] = {}
        # the present lease
        self.actor: Actor | None = None
        self.lease = 0
        self.outstanding = Outstanding()
        self.joining: set[ConnectionId] = set()  # a Connect was sent and not yet answered
        self.owed = 0  # how many at the head of the line were queued for this wake
        self.departed: OrderedDict[ConnectionId, Socket] = OrderedDict()  # the last that left during this lease
        self.returned: list[Command] = []  # not executed, in the order in which they came back
        self.retried: list[Command] = []  # came back from an earlier lease and were sent again in this one
        self.awake_since = 0.0
        self.touched = 0.0
        self.is_forced = False  # the pending Sleep may not be refused
        # timing of wakes and sleeps
        self.attempts = 0  # actors lost in the present wake
        self.deadline: Timer | None = None  # of the wait for an actor
        self.patience: Timer | None = None  # of a drain
        self.not_before = 0.0  # do not ask it to sleep earlier
        self.stay_seconds = 0.0  # how long the last Stay was respected

    def __repr__(self) -> str:
        return f"<room {self.key.digest[:8]} {self.state.value} lease {self.lease} line {len(self.line)}>"

    # ---- the line

    def queue(self, command: Command) -> None:
        self.line.append(command)
        self.line_bytes += size_of(command)

    def take(self) -> Command:
        command = self.line.popleft()
        self.line_bytes -= size_of(command)
        return command

    def put_back(self, commands: Collection[Command]) -> None:
        """In front of all others, in this order."""
        self.line.extendleft(reversed(list(commands)))
        self.line_bytes += sum(size_of(command) for command in commands)

    def empty_line(self) -> list[Command]:
        commands = list(self.line)
        self.line.clear()
        self.line_bytes = 0
        return commands

    def take_out(self, connections: Collection[ConnectionId]) -> list[Command]:
        """All that these have in the line."""
        if not connections:
            return []
        line = self.empty_line()
        self.put_back([command for command in line if command.connection not in connections])
        return [command for command in line if command.connection in connections]

    def forget_departed(self) -> None:
        """While no actor holds it: sockets that have left and asked nothing before need nobody to wake."""
        gone = {c.connection for c in self.line if isinstance(c, Disconnect)}
        if not gone:
            return
        gone -= {c.connection for c in self.line if isinstance(c, (Rpc, SetState, Message))}
        self.take_out(gone)
        for connection in gone:
            self.leave(connection)

    def wants_actor(self) -> bool:
        return bool(self.line or self.acquirers)

    def is_forgettable(self) -> bool:
        return self.state is RoomState.DORMANT and not (self.wants_actor() or self.sockets or self.lost_sockets)

    # ---- who listens

    def leave(self, connection: ConnectionId) -> None:
        self.joining.discard(connection)
        if self.sockets.pop(connection, None) is not None:
            self._audiences.clear()

    def depart(self, connection: ConnectionId) -> None:
        """Its `Disconnect` is being sent. It is remembered in case something that it asked comes back unexecuted."""
        socket = self.sockets.get(connection)
        if socket is not None:
            self.departed[connection] = socket
            if len(self.departed) > MAX_DEPARTED:
                self.departed.popitem(last=False)
        self.leave(connection)

    def left_over(self) -> list[Command]:
        """What the lease that has just ended leaves to the next one, besides the line and the sockets that had joined.

        Sockets that had not joined begin anew. A socket that has left comes back for what it had asked, since a
        command is run with the rights of its connection.
        """
        unjoined = [socket.connect for socket in self.sockets.values() if socket.connected is None]
        for connect in unjoined:
            self.leave(connect.connection)
        asked = [c for c in self.returned if isinstance(c, (Rpc, SetState, Message))]
        back = {c.connection: self.departed[c.connection] for c in asked if c.connection in self.departed}
        self.departed.clear()
        for connection, socket in back.items():
            if socket.connected is None:
                unjoined.append(socket.connect)
            else:
                self.sockets[connection] = socket
                self._audiences.clear()
        present = self.sockets.keys() | {connect.connection for connect in unjoined}
        kept = [c for c in asked if c.connection in present]
        line = [c for c in self.empty_line() if not (isinstance(c, Connect) and c.connection in self.sockets)]
        self.put_back(line)
        return [*unjoined, *kept, *(Disconnect(connection) for connection in back)]

    def join(self, event: Connected) -> bool:
        """True when the gateway has to be told: the first `Connected` of a socket that is still here."""
        self.joining.discard(event.connection)
        socket = self.sockets.get(event.connection)
        if socket is None or socket.connected is not None:
            return False
        socket.connected = event
        self._audiences.clear()
        return True

    def audience(self, *, is_protocol: bool, besides: ConnectionId | None) -> tuple[ConnectionId, ...]:
        """The connections that a push goes to."""
        everyone = self._audiences.get(is_protocol)
        if everyone is None:
            everyone = self._audiences[is_protocol] = tuple(
                connection
                for connection, socket in self.sockets.items()
                if socket.connected is not None and (socket.connected.sends_protocol or not is_protocol)
            )
        if besides is None:
            return everyone
        return tuple(connection for connection in everyone if connection != besides)

    # ---- the present lease

    def is_busy(self) -> bool:
        """Something was sent that gets an answer, and has none yet."""
        return len(self.outstanding) > 0 or len(self.joining) > 0

    def facts(self) -> Resident["Room"]:
        oldest = self.outstanding.oldest
        return Resident(
            room=self,
            awake_since=self.awake_since,
            touched=self.touched,
            is_busy=self.is_busy(),
            is_owed=self.owed > 0,
            busy_since=oldest.at if oldest is not None else None,
            not_before=self.not_before,
        )


@dataclass(slots=True)
class Rooms:
    """The table. Every number about rooms comes from here, and is a length: nothing is counted by hand."""

    _table: dict[ConversationKey, Room] = field(default_factory=dict)
    _by_state: dict[RoomState, OrderedDict[Room, None]] = field(
        default_factory=lambda: {state: OrderedDict() for state in RoomState}
    )

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Room]:
        return iter(list(self._table.values()))

    def find(self, key: ConversationKey) -> Room | None:
        return self._table.get(key)

    def open(self, key: ConversationKey) -> Room:
        room = self._table.get(key)
        if room is None:
            room = self._table[key] = Room(key)
            self._by_state[room.state][room] = None
        return room

    def move(self, room: Room, state: RoomState, *, is_first: bool = False) -> None:
        """The only place that changes a room's state. ``is_first``: before all others that are in that state."""
        del self._by_state[room.state][room]
        room.state = state
        self._by_state[state][room] = None
        if is_first:
            self._by_state[state].move_to_end(room, last=False)

    def forget(self, room: Room) -> None:
        """Nothing is known of it that a new room would not know."""
        del self._table[room.key]
        del self._by_state[room.state][room]

    def among(self, *states: RoomState) -> list[Room]:
        """In the order in which they came into the state."""
        return [room for state in states for room in self._by_state[state]]

    def count(self, *states: RoomState) -> int:
        return sum(len(self._by_state[state]) for state in states)

    def first(self, state: RoomState) -> Room | None:
        return next(iter(self._by_state[state]), None)
