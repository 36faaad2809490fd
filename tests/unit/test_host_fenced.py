"""A real conversation under a host that loses it to another writer: what the keeper hears, in which order."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from agents_for_tests import Probe

from actors.cluster.connection import LaneConnection
from actors.cluster.control import Awake, Hello, Lost, Wake
from actors.cluster.host import ConversationHost
from actors.cluster.lane import Body
from actors.conversation.awake import AwakeConversation
from actors.conversation.events import Connect, Connected, Result, Returned, Rpc
from actors.rpc import VERBS
from actors.settings import Settings
from storage.checkpoints import ConversationKey, MemoryStore, abandon_conversation

ALICE = ConversationKey("probe", "alice")


class Keeper:
    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Body | None] = asyncio.Queue()

    def received(self, lane: LaneConnection, lease: int, body: Body) -> None:
        self.inbox.put_nowait(body)

    def resumed(self, lane: LaneConnection) -> None: ...

    def ended(self, lane: LaneConnection, error: Exception | None) -> None:
        self.inbox.put_nowait(None)

    async def until(self, kind: type | None) -> list[Body | None]:
        """What comes up to one of this kind, or (None) to the end of the lane."""
        heard: list[Body | None] = []
        while not heard or type(heard[-1]) is not (kind or type(None)):
            heard.append(await asyncio.wait_for(self.inbox.get(), 10))
        return heard


def call(number: int, method: str, *arguments: Any) -> Rpc:
    frame = {"type": "rpc", "id": str(number), "method": method, "args": arguments}
    return Rpc(1, json.dumps(frame).encode(), b'"%d"' % number)


def append(number: int) -> Rpc:
    text = {"type": "text", "text": "hello"}
    return call(number, "appendMessage", {"id": f"m{number}", "role": "user", "parts": [text]})


async def test_appends_to_an_owner_that_was_fenced_come_back_before_it_is_lost(tmp_path: Path) -> None:
    loop, store, keeper = asyncio.get_running_loop(), MemoryStore(), Keeper()
    ended: asyncio.Future[int] = loop.create_future()
    woken: list[AwakeConversation] = []

    async def wake(folder: str, key: ConversationKey, **hooks: Any) -> AwakeConversation:
        work = tmp_path / folder
        work.mkdir(mode=0o700)
        settings = Settings(data=tmp_path)
        woken.append(
            await AwakeConversation.wake(
                key, Probe, store=store, work_dir=work, settings=settings, node=bytes(16), **hooks
            )
        )
        return woken[-1]

    with tempfile.TemporaryDirectory(prefix="perdure-host-") as folder:
        lanes: list[LaneConnection] = []

        def connected() -> LaneConnection:
            lanes.append(LaneConnection(keeper))
            return lanes[0]

        path = str(Path(folder) / "lane")
        server = await loop.create_unix_server(connected, path)
        host = ConversationHost(lambda key, **hooks: wake("old", key, **hooks), ended.set_result)
        await host.connect(path, 1, "token")
        await keeper.until(Hello)
        [lane] = lanes
        lane.send(1, Wake("probe", "alice"))
        await keeper.until(Awake)
        lane.send(1, Connect(1, "pk", "/", "", False, VERBS))
        await keeper.until(Connected)
        lane.send(1, append(1))
        await keeper.until(Result)

        other = await wake("new", ALICE, emit=lambda event: None, on_lost=lambda error: None)
        lane.send(1, call(2, "wait", 30))
        for number in (3, 4, 5):
            lane.send(1, append(number))
        heard = [body for body in await keeper.until(None) if isinstance(body, (Returned, Result, Lost, type(None)))]
        assert heard[:3] == [Returned(append(number)) for number in (3, 4, 5)]
        assert [type(body) for body in heard[3:]] == [Lost, type(None)], "the call that waits is not waited for"
        assert await asyncio.wait_for(ended, 5) == 0
        await other.hibernate()
        await abandon_conversation(woken[0]._opened)
        server.close()
        loop.set_task_factory(None)
