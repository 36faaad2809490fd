"""A keeper with everything around it in memory: actors, a gateway, a store, and a clock that a test turns itself."""

import asyncio
import heapq
import itertools
import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from actors.cluster.control import Asleep, Awake, Hello, Lost, Ping, Pong, Sleep, Stay, Wake, WakeRefused
from actors.cluster.keeper import Keeper
from actors.cluster.lane import Body
from actors.cluster.rooms import HOLDING, RoomState
from actors.conversation.events import (
    Close,
    Command,
    Connect,
    Connected,
    ConnectionId,
    Disconnect,
    Event,
    Failure,
    Push,
    Result,
    Returned,
    Rpc,
    Saved,
    SetState,
    StateRefused,
)
from actors.settings import Settings
from storage.checkpoints.keys import ConversationKey


@dataclass(order=True)
class FakeTimer:
    at: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[FakeTimer] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> FakeTimer:
        timer = FakeTimer(self.now + delay, next(self._numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def next_at(self) -> float | None:
        while self._timers and self._timers[0].is_cancelled:
            heapq.heappop(self._timers)
        return self._timers[0].at if self._timers else None

    def fire_next(self, until: float) -> bool:
        """Goes on to the next timer that is due by then, and runs it."""
        at = self.next_at()
        if at is None or at > until:
            self.now = max(self.now, until)
            return False
        self.now = max(self.now, at)
        heapq.heappop(self._timers).callback()
        return True


class FakeActor:
    """Behaves as a ConversationActor does, one message at a time, and writes what it executes into the world's store."""

    def __init__(self, world: "World", token: str, pid: int) -> None:
        self.world = world
        self.token = token
        self.pid = pid
        self.inbox: deque[tuple[int, Body]] = deque()
        self.log: list[Body] = []
        self.lease = 0
        self.key: ConversationKey | None = None
        self.joined: set[ConnectionId] = set()
        self.running: list[tuple[ConnectionId, str]] = []  # long calls
        self.is_hung = False
        self.is_dead = False
        self.is_closed = False  # by the keeper
        self.is_congested = False

    # the keeper's end of its lane
    def send(self, lease: int, body: Body) -> None:
        if not self.is_dead:
            self.inbox.append((lease, body))

    def abort(self) -> None:
        self.is_closed = True

    # the actor's end
    def say(self, body: Body, lease: int | None = None) -> None:
        if not self.is_dead:
            self.world.keeper.received(self, self.lease if lease is None else lease, body)

    def die(self) -> None:
        """The end of file."""
        if not self.is_dead:
            self.is_dead = True
            self.inbox.clear()
            self.world.keeper.ended(self, None)

    def step(self) -> bool:
        """Handles one message; False: there is nothing that it would do now."""
        if self.is_closed:
            was_dead = self.is_dead
            self.die()
            return not was_dead
        if self.is_dead or self.is_hung or not self.inbox:
            return False
        if isinstance(self.inbox[0][1], self.world.stops_at):
            return self._answer_pings()
        lease, body = self.inbox.popleft()
        self.log.append(body)
        match body:
            case Ping():
                self.say(Pong(body.number), lease)
            case Wake():
                self._wake(lease, body)
            case Sleep():
                self._sleep(lease, body)
            case Connect() | Disconnect() | Rpc() | SetState():
                self._command(lease, body)
        return True

    def _answer_pings(self) -> bool:
        """Busy with what it does not get done; its loop lives."""
        pings = [(lease, body) for lease, body in self.inbox if isinstance(body, Ping)]
        for lease, body in pings:
            self.inbox.remove((lease, body))
            self.log.append(body)
            self.say(Pong(body.number), lease)
        return bool(pings)

    def _wake(self, lease: int, body: Wake) -> None:
        assert self.key is None, "woken while holding"
        self.lease, self.key = lease, ConversationKey(body.agent, body.name)
        assert self.key not in self.world.held, "two actors hold one conversation"
        refusal = self.world.refusals.get(body.name)
        if refusal is not None:
            self.key = None
            self.say(refusal)
            return
        self.world.held[self.key] = self
        self.world.wakes[body.name] += 1
        self.say(Awake(self.world.wakes[body.name]))

    def _command(self, lease: int, body: Command) -> None:
        if lease != self.lease or self.key is None:
            self.say(Returned(body), lease)
            return
        match body:
            case Connect():
                assert body.connection not in self.joined, "joined twice under one lease"
                self.joined.add(body.connection)
                self.world.connects[body.connection].append(body)
                self.say(Connected(body.connection, None, body.is_readonly, sends_protocol=body.client_id != "quiet"))
                if body.saved is None:
                    self.say(Saved(body.connection, b'{"saved":%d}' % body.connection))
            case Disconnect():
                self.joined.discard(body.connection)
            case SetState():
                self.world.executed[self.key.name].append((body.connection, "state"))
            case Rpc():
                self._rpc(body)

    def _rpc(self, body: Rpc) -> None:
        assert self.key is not None
        assert body.connection in self.joined, "a call of a connection that has not joined"
        request = json.loads(body.frame)
        if request["method"] == "long":
            self.running.append((body.connection, request["id"]))
            self.world.long_calls.add((body.connection, request["id"]))
            return
        self.world.executed[self.key.name].append((body.connection, request["id"]))
        if request["method"] == "push":
            self.say(Push(body.frame, False, body.connection, "idle", is_status=True))
        self.say(Result(body.connection, json.dumps(request["id"]).encode(), b"1", is_done=True))

    def finish(self) -> None:
        """Answers the oldest long call."""
        assert self.key is not None
        connection, call = self.running.pop(0)
        self.world.executed[self.key.name].append((connection, call))
        self.say(Result(connection, json.dumps(call).encode(), b"1", is_done=True))

    def _sleep(self, lease: int, body: Sleep) -> None:
        if lease != self.lease or self.key is None:
            return
        if body.may_stay and (self.running or self.key.name in self.world.busy):
            self.say(Stay())
            return
        for connection, call in self.running:
            self.say(Failure(connection, json.dumps(call).encode(), "unknown", "outcome_unknown", was_executed=True))
        self.drop()
        is_spare_ok = not body.is_last and not self.world.is_dirty
        self.say(Asleep(is_spare_ok))
        if not is_spare_ok:
            self.world.dying.append(self)

    def drop(self) -> None:
        if self.key is not None and self.world.held.get(self.key) is self:
            del self.world.held[self.key]
        self.key = None
        self.joined.clear()
        self.running.clear()

    def fence(self, returned: list[Command]) -> None:
        """Another writer has taken over: these were not executed. The host says `Lost` when they have come back."""
        for command in returned:
            self.say(Returned(command))
        self.say(Lost("taken over"))


class World:
    """What is there. It is the `ActorSource` and the `Front` too."""

    def __init__(self, *, starts_itself: bool = True, **settings: object) -> None:
        self.clock = FakeClock()
        self.starts_itself = starts_itself
        self.start_error: Exception | None = None
        self.starting: list[str] = []
        self.forgotten: list[str] = []
        self.actors: list[FakeActor] = []
        self.dying: list[FakeActor] = []
        self.killed: list[int] = []
        self._pids = itertools.count(100)
        # the store and how actors behave
        self.held: dict[ConversationKey, FakeActor] = {}
        self.wakes: dict[str, int] = defaultdict(int)
        self.executed: dict[str, list[tuple[ConnectionId, str]]] = defaultdict(list)
        self.long_calls: set[tuple[ConnectionId, str]] = set()
        self.connects: dict[ConnectionId, list[Connect]] = defaultdict(list)
        self.refusals: dict[str, WakeRefused] = {}
        self.busy: set[str] = set()  # names that answer Stay
        self.is_dirty = False  # actors are no good as spares after a conversation
        self.stops_at: tuple[type, ...] = ()  # actors get no further than messages of these kinds
        # what the gateway was told
        self.events: list[Event] = []
        self.pushes: list[tuple[Collection[ConnectionId], Push]] = []
        self.losses: list[tuple[ConnectionId, int, str]] = []
        self.sends_disconnect_when_lost = True
        self.left: set[ConnectionId] = set()
        self.where: dict[ConnectionId, ConversationKey] = {}
        self.settings = Settings(**{"max_awake": 2, "spares": 1, **settings})  # type: ignore[arg-type]
        self.keeper = Keeper(self, self.settings, self.clock)
        self.keeper.attach(self)

    # ---- ActorSource

    async def start(self, token: str) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.starting.append(token)

    def kill(self, pid: int) -> None:
        self.killed.append(pid)
        self.dying += [actor for actor in self.actors if actor.pid == pid]

    def handle(self, token: str) -> object:
        return token

    def forget(self, token: str) -> None:
        self.forgotten.append(token)
        if token in self.starting:
            self.starting.remove(token)

    # ---- Front

    def event(self, event: Event) -> None:
        self.events.append(event)

    def push(self, connections: Collection[ConnectionId], event: Push) -> None:
        self.pushes.append((connections, event))

    def lost(self, connection: ConnectionId, code: int, reason: str) -> None:
        self.losses.append((connection, code, reason))
        if self.sends_disconnect_when_lost:
            self.leave(connection)

    # ---- a client's side

    def connect(self, name: str, connection: ConnectionId, client_id: str = "pk") -> None:
        self.where[connection] = ConversationKey("chat", name)
        self.keeper.submit(self.where[connection], Connect(connection, client_id, "/", "", False, ()))

    def call(self, connection: ConnectionId, call: str, method: str = "append", size: int = 0) -> None:
        frame = json.dumps({"id": call, "method": method, "args": ["x" * size]}).encode()
        self.keeper.submit(self.where[connection], Rpc(connection, frame, json.dumps(call).encode()))

    def set_state(self, connection: ConnectionId) -> None:
        self.keeper.submit(self.where[connection], SetState(connection, b'{"state":1}'))

    def leave(self, connection: ConnectionId) -> None:
        self.left.add(connection)
        self.keeper.submit(self.where[connection], Disconnect(connection))

    def answers(self, connection: ConnectionId) -> list[tuple[str, str]]:
        """Ids of the calls that were answered, each with "ok" or the code of its failure."""
        found = []
        for event in self.events:
            if isinstance(event, Result) and event.connection == connection:
                found.append((json.loads(event.call), "ok"))
            elif isinstance(event, Failure) and event.connection == connection:
                found.append((json.loads(event.call), event.code))
        return found

    def connecteds(self, connection: ConnectionId) -> int:
        return sum(isinstance(event, Connected) and event.connection == connection for event in self.events)

    # ---- time

    def arrive(self) -> FakeActor:
        """The actor that is being started says Hello."""
        token = self.starting.pop(0)
        actor = FakeActor(self, token, next(self._pids))
        self.actors.append(actor)
        actor.say(Hello(actor.pid, token), 0)
        return actor

    async def settle(self) -> None:
        """All that happens without time going by."""
        is_moving = True
        while is_moving:
            for _ in range(4):  # a start that has been begun, its callbacks, and what they begin
                await asyncio.sleep(0)
            is_moving = False
            while self.starts_itself and self.starting:
                self.arrive()
                is_moving = True
            while self.dying:
                actor = self.dying.pop()
                actor.drop()
                actor.die()
                is_moving = True
            for actor in list(self.actors):
                while actor.step():
                    is_moving = True
            self.actors = [actor for actor in self.actors if not actor.is_dead]
            self.check()

    async def advance(self, seconds: float) -> None:
        await self.settle()
        until = self.clock.now + seconds
        while self.clock.fire_next(until):
            await self.settle()

    def check(self) -> None:
        """What is so at all times."""
        rooms = list(self.keeper._rooms)
        stuck = self.keeper.stuck()
        assert stuck is None, stuck
        using = [room for room in rooms if room.state in (RoomState.WAKING, RoomState.AWAKE, RoomState.DRAINING)]
        stays = self.keeper.statistics()["stays"]
        assert stays or len(using) <= self.settings.max_awake, "more are awake than may be"
        assert len(self.keeper._crew) <= self.settings.max_awake + self.settings.spares
        for room in rooms:
            assert (room.actor is not None) == (room.state in HOLDING), room
            assert room.actor is None or room.actor.room is room
            assert not room.is_forgettable(), f"{room} should be forgotten"
            assert room.line_bytes >= 0
            assert room in self.keeper._rooms.among(room.state)
        assert sum(self.keeper._rooms.count(state) for state in RoomState) == len(rooms)

    def state(self, name: str) -> RoomState | None:
        room = self.keeper._rooms.find(ConversationKey("chat", name))
        return room.state if room is not None else None

    def actor_of(self, name: str) -> FakeActor:
        return self.held[ConversationKey("chat", name)]


__all__ = ["Close", "FakeActor", "FakeClock", "StateRefused", "World"]
