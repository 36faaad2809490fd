"""The actor's end of the lane, with a conversation that does what the test says and a keeper that is the test."""

import asyncio
import contextlib
import logging
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from actors.cluster.connection import LaneConnection
from actors.cluster.control import Asleep, Awake, Hello, Lost, Ping, Pong, Sleep, Stay, Wake, WakeRefused
from actors.cluster.host import ConversationHost, waker_of
from actors.cluster.lane import Body
from actors.conversation.events import Command, Event, Push, Returned, Rpc
from actors.errors import NotMine
from storage.checkpoints.keys import ConversationKey
from storage.errors import Closed, Fenced, OutcomeUnknown, StoreUnavailable

ALICE = ConversationKey("conversation", "alice")


def rpc(text: str) -> Rpc:
    return Rpc(1, text.encode(), b'"1"')


def push(text: str) -> Push:
    return Push(text.encode(), is_protocol=False, besides=None, phase="")


class FakeConversation:
    """Tells each command that it gets as a push, and can be told to misbehave."""

    def __init__(self, emit: Callable[[Event], None], on_lost: Callable[[BaseException], None]) -> None:
        self.emit = emit
        self.on_lost = on_lost
        self.epoch = 7
        self.is_busy = False
        self.commands: list[Command] = []
        self.hibernating = asyncio.Event()
        self.may_hibernate = asyncio.Event()
        self.may_hibernate.set()
        self.settled = asyncio.Event()
        self.error: Exception | None = None

    def submit(self, command: Command) -> None:
        self.commands.append(command)
        if isinstance(command, Rpc):
            self.emit(push(f"ran {command.frame.decode()}"))

    async def call(self, name: str, arguments: list[Any]) -> bytes | None:
        if name == "fail":
            raise KeyError("of the agent")
        return f"{name} {arguments}".encode()

    async def settle_calls(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.settled.wait(), seconds)

    async def hibernate(self, grace_seconds: float) -> None:
        self.hibernating.set()
        await self.may_hibernate.wait()
        if self.error is not None:
            raise self.error


class Keeper:
    """The other end of the lane."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[tuple[int, Body] | None] = asyncio.Queue()
        self.lane: LaneConnection

    def received(self, lane: LaneConnection, lease: int, body: Body) -> None:
        self.inbox.put_nowait((lease, body))

    def resumed(self, lane: LaneConnection) -> None: ...

    def ended(self, lane: LaneConnection, error: Exception | None) -> None:
        self.inbox.put_nowait(None)

    async def next(self) -> tuple[int, Body] | None:
        return await asyncio.wait_for(self.inbox.get(), 5)

    def send(self, lease: int, body: Body) -> None:
        self.lane.send(lease, body)


class World:
    def __init__(self) -> None:
        self.keeper = Keeper()
        self.conversations: list[FakeConversation] = []
        self.wake_error: Exception | None = None
        self.on_wake: Callable[[], None] = lambda: None
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.host = ConversationHost(waker_of({"conversation": object}, self.open), self.end)

    def end(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    async def open(self, key: ConversationKey, agent: Any, **hooks: Any) -> FakeConversation:
        self.on_wake()
        if self.wake_error is not None:
            raise self.wake_error
        self.conversations.append(FakeConversation(**hooks))
        return self.conversations[-1]

    async def wake(self, lease: int = 1, key: ConversationKey = ALICE) -> FakeConversation:
        self.keeper.send(lease, Wake(key.agent, key.name))
        assert await self.keeper.next() == (lease, Awake(7))
        return self.conversations[-1]

    async def sleep(self, lease: int = 1, *, may_stay: bool = False, is_last: bool = False) -> tuple[int, Body] | None:
        self.keeper.send(lease, Sleep(may_stay, 1.0, is_last))
        return await self.keeper.next()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="perdure-host-") as folder:
        world = World()

        def connected() -> LaneConnection:
            world.keeper.lane = LaneConnection(world.keeper)
            return world.keeper.lane

        path = str(Path(folder) / "lane")
        server = await loop.create_unix_server(connected, path)
        await world.host.connect(path, 42, "token")
        assert await world.keeper.next() == (0, Hello(42, "token"))
        yield world
        world.keeper.lane.abort()
        await asyncio.wait_for(world.ended, 5)
        server.close()
        loop.set_task_factory(None)


async def test_a_woken_conversation_gets_its_commands_and_its_events_carry_its_lease(world: World) -> None:
    await world.wake(5)
    world.keeper.send(5, rpc("one"))
    world.keeper.send(5, rpc("two"))
    assert await world.keeper.next() == (5, push("ran one"))
    assert await world.keeper.next() == (5, push("ran two"))


async def test_a_command_of_another_lease_comes_back_not_executed(world: World) -> None:
    conversation = await world.wake(5)
    world.keeper.send(4, rpc("late"))
    assert await world.keeper.next() == (4, Returned(rpc("late")))
    assert conversation.commands == []


async def test_a_command_for_nothing_held_comes_back_not_executed(world: World) -> None:
    world.keeper.send(1, rpc("x"))
    assert await world.keeper.next() == (1, Returned(rpc("x")))


async def test_a_busy_conversation_stays_when_it_may_and_goes_when_it_must(world: World) -> None:
    conversation = await world.wake()
    conversation.is_busy = True
    assert await world.sleep(may_stay=True) == (1, Stay())
    world.keeper.send(1, rpc("still served"))
    assert await world.keeper.next() == (1, push("ran still served"))
    assert await world.sleep(may_stay=False) == (1, Asleep(is_spare_ok=True))


async def test_commands_behind_a_sleep_come_back_and_those_before_it_run(world: World) -> None:
    conversation = await world.wake()
    conversation.may_hibernate.clear()
    world.keeper.send(1, rpc("before"))
    world.keeper.send(1, Sleep(False, 1.0, False))
    world.keeper.send(1, rpc("behind"))
    assert await world.keeper.next() == (1, push("ran before"))
    assert await world.keeper.next() == (1, Returned(rpc("behind")))
    conversation.emit(push("last word"))
    conversation.may_hibernate.set()
    assert await world.keeper.next() == (1, push("last word"))
    assert await world.keeper.next() == (1, Asleep(is_spare_ok=True))


async def test_a_late_word_of_a_former_conversation_is_heard_by_nobody(world: World) -> None:
    first = await world.wake(1)
    assert await world.sleep(1) == (1, Asleep(True))
    second = await world.wake(2, ConversationKey("conversation", "bob"))
    first.emit(push("late"))
    second.emit(push("mine"))
    assert await world.keeper.next() == (2, push("mine"))


async def test_the_last_sleep_ends_the_process(world: World) -> None:
    await world.wake()
    assert await world.sleep(is_last=True) == (1, Asleep(is_spare_ok=False))
    assert await world.keeper.next() is None
    assert await asyncio.wait_for(world.ended, 5) == 0


async def test_tasks_of_a_conversation_are_cancelled_when_it_sleeps(world: World) -> None:
    started: list[asyncio.Task[Any]] = []

    def start_task() -> None:
        started.append(asyncio.create_task(asyncio.sleep(3600)))

    world.on_wake = start_task
    await world.wake()
    assert await world.sleep() == (1, Asleep(is_spare_ok=True))
    assert started[0].cancelled()


async def test_an_actor_with_a_task_that_will_not_end_is_no_spare(world: World) -> None:
    stop = asyncio.Event()

    async def stubborn() -> None:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    started: list[asyncio.Task[None]] = []
    world.on_wake = lambda: started.append(asyncio.create_task(stubborn()))
    await world.wake()
    assert await world.sleep() == (1, Asleep(is_spare_ok=False))
    assert await asyncio.wait_for(world.ended, 5) == 0
    stop.set()
    await started[0]


async def test_an_actor_with_a_file_left_open_is_no_spare(world: World, tmp_path: Path) -> None:
    opened: list[Any] = []
    world.on_wake = lambda: opened.append(open(tmp_path / "leak", "w"))
    await world.wake()
    assert await world.sleep() == (1, Asleep(is_spare_ok=False))
    opened[0].close()


async def test_an_ordinary_error_of_a_wake_leaves_a_spare(world: World) -> None:
    world.wake_error = StoreUnavailable("timeout")
    world.keeper.send(1, Wake("conversation", "alice"))
    assert await world.keeper.next() == (1, WakeRefused("store_unavailable", str(StoreUnavailable("timeout")), True))
    world.wake_error = None
    await world.wake(2)


async def test_an_unknown_agent_is_refused(world: World) -> None:
    world.keeper.send(1, Wake("nobody", "alice"))
    answer = await world.keeper.next()
    assert answer is not None
    assert isinstance(answer[1], WakeRefused)
    assert (answer[1].code, answer[1].is_spare_ok) == ("unknown_agent", True)
    assert answer[1].sentence == "No agent named 'nobody' is served here; there are: conversation."


@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("no such column: secret"), OSError(28, "No", "/data/secret")]
)
async def test_what_sqlite_or_the_system_says_at_a_wake_is_told_to_nobody(
    world: World, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world.wake_error = error
    world.keeper.send(1, Wake("conversation", "alice"))
    refused = WakeRefused("error", f"Internal error ({type(error).__name__})", False)
    assert await world.keeper.next() == (1, refused)
    assert f"({type(error).__name__}" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("error", [Fenced(), RuntimeError("broken")])
async def test_a_wake_that_was_fenced_or_broke_retires_the_actor(world: World, error: Exception) -> None:
    world.wake_error = error
    world.keeper.send(1, Wake("conversation", "alice"))
    answer = await world.keeper.next()
    assert answer is not None
    assert isinstance(answer[1], WakeRefused)
    assert not answer[1].is_spare_ok
    assert await world.keeper.next() is None
    await asyncio.wait_for(world.ended, 5)


async def test_a_fenced_conversation_is_told_as_lost_behind_what_it_gave_back(world: World) -> None:
    conversation = await world.wake()
    conversation.on_lost(Fenced())  # those who wait for the database hear it afterwards
    world.keeper.send(1, rpc("later"))
    assert await world.keeper.next() == (1, Returned(rpc("later")))
    conversation.emit(Returned(rpc("x")))
    conversation.settled.set()
    assert await world.keeper.next() == (1, Returned(rpc("x")))
    assert await world.keeper.next() == (1, Lost(str(Fenced())))
    assert await world.keeper.next() is None
    assert await asyncio.wait_for(world.ended, 5) == 0


async def test_a_fence_found_while_hibernating_is_told_as_lost(world: World) -> None:
    (await world.wake()).error = Fenced()
    assert await world.sleep() == (1, Lost(str(Fenced())))


async def test_a_lost_conversation_in_which_a_call_goes_on_is_told_all_the_same(world: World) -> None:
    conversation = await world.wake()
    conversation.on_lost(Closed())
    conversation.on_lost(Closed())
    assert await world.keeper.next() == (1, Lost(str(Closed())))
    assert await world.keeper.next() is None


async def test_a_failure_of_the_machinery_ends_the_process(world: World) -> None:
    (await world.wake()).on_lost(OSError("disk"))
    assert await asyncio.wait_for(world.ended, 5) == 1


@pytest.mark.parametrize("error", [StoreUnavailable("timeout"), OutcomeUnknown()])
async def test_a_hibernation_without_a_close_is_one_line_and_leaves_a_spare(
    world: World, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    (await world.wake()).error = error
    assert await world.sleep() == (1, Asleep(is_spare_ok=True))
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.levelno == logging.WARNING
    assert record.exc_info is None
    assert f"(lease 1, {type(error).__name__})" in record.getMessage()
    assert "\n" not in record.getMessage()
    await world.wake(2)


async def test_a_hibernation_that_fails_ends_the_process_without_a_word(world: World) -> None:
    (await world.wake()).error = RuntimeError("broken")
    world.keeper.send(1, Sleep(False, 1.0, False))
    assert await asyncio.wait_for(world.ended, 5) == 1
    assert world.keeper.inbox.empty()


async def test_the_end_of_the_lane_ends_the_process(world: World) -> None:
    await world.wake()
    world.keeper.lane.abort()
    assert await asyncio.wait_for(world.ended, 5) == 0


async def test_a_ping_is_answered_while_a_conversation_hibernates(world: World) -> None:
    conversation = await world.wake()
    conversation.may_hibernate.clear()
    world.keeper.send(1, Sleep(False, 1.0, False))
    await asyncio.wait_for(conversation.hibernating.wait(), 5)
    world.keeper.send(1, Ping(3))
    assert await world.keeper.next() == (1, Pong(3))
    conversation.may_hibernate.set()
    assert await world.keeper.next() == (1, Asleep(True))


async def test_a_handle_is_served_only_under_the_lease_that_it_was_given(world: World) -> None:
    await world.wake(5)
    assert await world.host.call(ALICE, 5, "getMessages", [1]) == b"getMessages [1]"
    with pytest.raises(NotMine):
        await world.host.call(ALICE, 4, "getMessages", [])
    with pytest.raises(NotMine):
        await world.host.call(ConversationKey("conversation", "bob"), 5, "getMessages", [])
    with pytest.raises(KeyError):
        await world.host.call(ALICE, 5, "fail", [])


async def test_a_handle_is_refused_once_the_conversation_was_told_to_sleep(world: World) -> None:
    conversation = await world.wake(5)
    conversation.may_hibernate.clear()
    world.keeper.send(5, Sleep(False, 1.0, False))
    await asyncio.wait_for(conversation.hibernating.wait(), 5)
    with pytest.raises(NotMine):
        await world.host.call(ALICE, 5, "getMessages", [])
    conversation.may_hibernate.set()


async def test_many_conversations_leave_an_actor_as_it_was(world: World) -> None:
    for lease in range(1, 201):
        await world.wake(lease, ConversationKey("conversation", str(lease)))
        assert await world.sleep(lease) == (lease, Asleep(True))
    assert len(asyncio.all_tasks()) <= 2
