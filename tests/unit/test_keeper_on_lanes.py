"""A keeper on real lanes: actors that answer at once, over unix sockets."""

import asyncio
import json
import tempfile
from collections.abc import Collection
from pathlib import Path

from actors.cluster.connection import LaneConnection
from actors.cluster.control import Awake, Hello, Ping, Pong, Sleep, Stay, Wake
from actors.cluster.keeper import Keeper
from actors.cluster.lane import Body
from actors.conversation.events import Connect, Connected, ConnectionId, Event, Failure, Push, Result, Rpc
from actors.settings import Settings
from storage.checkpoints.keys import ConversationKey

ALICE = ConversationKey("chat", "alice")


class Actor:
    """The other end of a lane. It says that it is awake when the test lets it."""

    def __init__(self) -> None:
        self.may_wake = asyncio.Event()
        self.wakings: set[asyncio.Task[None]] = set()

    def received(self, lane: LaneConnection, lease: int, body: Body) -> None:
        match body:
            case Wake():
                self.wakings.add(asyncio.ensure_future(self._wake(lane, lease)))
            case Connect():
                lane.send(lease, Connected(body.connection, None, body.is_readonly, sends_protocol=True))
            case Rpc():
                lane.send(lease, Result(body.connection, body.call, b"1", is_done=True))
            case Ping():
                lane.send(lease, Pong(body.number))
            case Sleep():
                lane.send(lease, Stay())

    async def _wake(self, lane: LaneConnection, lease: int) -> None:
        await self.may_wake.wait()
        lane.send(lease, Awake(1))

    def resumed(self, lane: LaneConnection) -> None: ...
    def ended(self, lane: LaneConnection, error: Exception | None) -> None: ...


class World:
    """The source of actors and the front."""

    def __init__(self) -> None:
        self.tokens: asyncio.Queue[str] = asyncio.Queue()
        self.answers: asyncio.Queue[Result | Failure] = asyncio.Queue()

    async def start(self, token: str) -> None:
        self.tokens.put_nowait(token)

    def handle(self, token: str) -> object:
        return token

    def kill(self, pid: int) -> None: ...
    def forget(self, token: str) -> None: ...

    def event(self, event: Event) -> None:
        if isinstance(event, (Result, Failure)):
            self.answers.put_nowait(event)

    def push(self, connections: Collection[ConnectionId], event: Push) -> None: ...
    def lost(self, connection: ConnectionId, code: int, reason: str) -> None: ...


async def test_a_long_line_at_a_wake_is_answered_though_the_socket_never_pauses() -> None:
    """More than a lane's buffer of 1 MiB is queued; the kernel takes it as fast as it comes."""
    loop, world, actor = asyncio.get_running_loop(), World(), Actor()
    keeper = Keeper(world, Settings(spares=1, max_awake=1))
    keeper.attach(world)
    with tempfile.TemporaryDirectory(prefix="perdure-lane-") as folder:
        path = str(Path(folder) / "lane")
        server = await loop.create_unix_server(lambda: LaneConnection(keeper), path)
        keeper.start()
        _, lane = await loop.create_unix_connection(lambda: LaneConnection(actor), path)
        lane.send(0, Hello(1, await world.tokens.get()))
        keeper.submit(ALICE, Connect(1, "pk", "/", "", False, ("read", "append")))
        for number in range(60):
            frame = {"type": "rpc", "id": str(number), "method": "append", "args": ["x" * 30_000]}
            keeper.submit(ALICE, Rpc(1, json.dumps(frame).encode(), b'"%d"' % number))
        actor.may_wake.set()
        async with asyncio.timeout(5):
            answers = [await world.answers.get() for _ in range(60)]
        assert [(type(answer), answer.call) for answer in answers] == [(Result, b'"%d"' % n) for n in range(60)]
        lane.abort()
        server.close()
