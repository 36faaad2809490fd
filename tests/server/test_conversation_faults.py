"""Kills, stops and evictions of real actors under a real server: nothing acknowledged is lost or doubled."""

import asyncio
import contextlib
import os
import signal
import time

import pytest
from awake import awake
from serving import Server
from websockets.exceptions import ConnectionClosed
from wire import CallFailed, Socket, message

from actors import Client
from storage.checkpoints import ConversationKey, open_store

AGENTS = ("agents_for_tests:Probe", "agents_for_tests:Crashing")
HANG_SECONDS = 2.0
RETRYABLE = ("It is not known whether", "Too busy", "repeat the call")


@pytest.fixture(scope="module")
def server():
    options = ("--max-awake", "6", "--spares", "2", "--idle-seconds", "600", "--compact-after", "1000000000")
    with Server(None, *options, agents=AGENTS, PERDURE_HANG_SECONDS=str(HANG_SECONDS)) as running:
        yield running


async def append_until_acknowledged(socket: Socket, entry: dict, retries: list[str]) -> None:
    """What a careful client does: repeat with the same message id until there is an answer."""
    for _ in range(50):
        try:
            await socket.call("appendMessage", entry)
        except CallFailed as exc:
            if not any(sentence in str(exc) for sentence in RETRYABLE):
                raise
            retries.append(str(exc))
        else:
            return
    raise AssertionError(f"{entry['id']} was never acknowledged")


async def history(url: str, name: str) -> list[str]:
    async with Socket(url, name, "probe") as socket:
        return [entry["id"] for entry in await socket.call("getHistory")]


def assert_in_order_per_client(ids: list[str], clients: int, count: int) -> None:
    assert len(ids) == len(set(ids)) == clients * count
    for client in range(clients):
        own = [int(identity.split("-")[1]) for identity in ids if identity.startswith(f"c{client}-")]
        assert own == list(range(count))


async def test_kill_of_the_conversations_process_loses_nothing_acknowledged(server):
    clients, count = 4, 500
    retries: list[str] = []
    acknowledged = 0
    milestone = asyncio.Event()

    async def client(number: int) -> None:
        nonlocal acknowledged
        async with Socket(server.url, "killed", "probe") as socket:
            for index in range(count):
                await append_until_acknowledged(socket, message(f"c{number}-{index}"), retries)
                acknowledged += 1
                if acknowledged % 250 == 0:
                    milestone.set()

    async def killer() -> int:
        kills = 0
        async with Socket(server.url, "killed", "probe") as socket:
            while True:
                await milestone.wait()
                milestone.clear()
                if acknowledged >= clients * count:
                    return kills
                with contextlib.suppress(CallFailed):
                    os.kill(await socket.call("pid"), signal.SIGKILL)
                    kills += 1

    killing = asyncio.create_task(killer())
    await asyncio.gather(*[client(number) for number in range(clients)])
    kills = await killing
    print(f"{kills} kills, {len(retries)} calls with unknown outcome, {clients * count} messages")
    assert kills >= 3
    assert_in_order_per_client(await history(server.url, "killed"), clients, count)


async def test_evictions_with_work_in_flight_show_no_client_an_error(server):
    """16 conversations, 6 of them awake at a time: all of them busy, none sees an error, none loses a message."""
    names = [f"crowd-{number}" for number in range(16)]

    async def client(name: str) -> None:
        async with Socket(server.url, name, "probe") as socket:
            for start in range(0, 60, 4):
                calls = [await socket.send("appendMessage", message(f"c0-{start + offset}")) for offset in range(4)]
                for call in calls:
                    await socket.answer(call)

    await asyncio.gather(*[client(name) for name in names])
    for name in names:
        assert_in_order_per_client(await history(server.url, name), 1, 60)


async def test_a_stopped_actor_costs_its_client_one_retryable_answer_and_its_neighbours_nothing(server):
    async with Socket(server.url, "stopped", "probe") as victim, Socket(server.url, "neighbour", "probe") as neighbour:
        await victim.call("appendMessage", message("m0"))
        await neighbour.call("appendMessage", message("n0"))
        pid = await victim.call("pid")
        os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        outcome = asyncio.create_task(victim.call("appendMessage", message("m1")))
        slowest, number = 0.0, 1
        while not outcome.done():
            asked = time.monotonic()
            await neighbour.call("appendMessage", message(f"n{number}"))
            slowest, number = max(slowest, time.monotonic() - asked), number + 1
        took = time.monotonic() - begun
        with pytest.raises(CallFailed, match="It is not known whether"):
            await outcome
        assert took <= HANG_SECONDS + 1.0
        assert slowest < 1.0, f"a neighbour waited {slowest:.2f} s"
        await victim.call("appendMessage", message("m1"))
        assert [entry["id"] for entry in await victim.call("getHistory")] == ["m0", "m1"]
        print(f"answered after {took:.2f} s; {number} calls of the neighbour, slowest {slowest * 1000:.0f} ms")


async def test_a_call_that_holds_the_loop_is_ended_and_the_conversation_goes_on(server):
    async with Socket(server.url, "blocked", "probe") as socket:
        await socket.call("appendMessage", message("m0"))
        with pytest.raises(CallFailed, match="It is not known whether"):
            await socket.call("block", 30)
        assert (await socket.call("getLatestLeaf"))["id"] == "m0"


async def test_all_actors_killed_at_once_are_replaced(server):
    async with Socket(server.url, "survivor", "probe") as socket:
        await socket.call("appendMessage", message("m0"))
        for actor in server.actors():
            os.kill(actor.pid, signal.SIGKILL)
        retries: list[str] = []
        await append_until_acknowledged(socket, message("m1"), retries)
        assert [entry["id"] for entry in await socket.call("getHistory")] == ["m0", "m1"]


async def test_a_hundred_first_touches_of_one_name_make_one_epoch_one_actor_and_one_file(server):
    async def touch(number: int) -> int:
        async with Socket(server.url, "rush", "probe") as socket:
            await socket.call("appendMessage", message(f"m{number}"))
            return await socket.call("pid")

    pids = await asyncio.gather(*[touch(number) for number in range(100)])
    assert len(set(pids)) == 1
    ids = await history(server.url, "rush")
    assert sorted(ids) == sorted(f"m{number}" for number in range(100))
    async with Socket(server.url, "rush", "probe") as socket:
        await socket.send("appendMessage", message("last"))
        frames = await socket.frames_until(lambda frame: frame.get("type") == "cf_agent_session")
    assert frames[-1]["epoch"] == 1


async def test_a_recycled_actor_shows_the_next_conversation_nothing_of_the_last(server):
    """Attribute, open file, and a task that broadcasts late: gone, or the process is not used again.

    What ends cleanly lets its process be used again; the state of the class, which stays, tells that it was.
    """
    async with Socket(server.url, "careless", "probe") as socket:
        await socket.call("leaveTraces", "canary-4711")
    reused = 0
    for number in range(24):
        async with Socket(server.url, f"next-{number}", "probe") as socket:
            traces = await socket.call("findTraces")
            await socket.call("appendMessage", message("m"))
            assert [frame for frame in socket.others if "canary" in str(frame)] == []
            assert (traces["secret"], traces["trace"], traces["tasks"], traces["connection"]) == (None, None, [], 1)
            reused += traces["last"] is not None
            await socket.call("leaveTidily", f"canary-{number}")
    assert reused > 0


async def test_a_socket_keeps_its_order_and_its_connection_over_every_sleep(server):
    """B67: three sockets send at the moment of sleep and of wake; every message once, in order per socket."""
    async with contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(Socket(server.url, "tidal", "probe")) for _ in range(3)]
        for tide in range(30):
            calls = []
            for number, socket in enumerate(sockets):
                for index in range(2):
                    entry = message(f"c{number}-{tide * 2 + index}")
                    calls.append((socket, await socket.send("appendMessage", entry)))
            crowd = asyncio.gather(*[touch_other(server.url, f"tide-{number}") for number in range(8)])
            for socket, call in calls:
                await socket.answer(call)
            await crowd
    assert_in_order_per_client(await history(server.url, "tidal"), 3, 60)


async def test_a_conversation_that_crashes_its_process_at_every_wake_is_given_up_and_harms_nobody(server):  # B71
    async with Socket(server.url, "bystander", "probe") as bystander:
        await bystander.call("appendMessage", message("m0"))
        begun = time.monotonic()
        with pytest.raises((CallFailed, ConnectionClosed)):
            async with Socket(server.url, "poisoned", "crashing") as socket:
                await socket.call("getHistory")
        assert time.monotonic() - begun < 10
        assert (await bystander.call("getLatestLeaf"))["id"] == "m0"
    async with Socket(server.url, "sound", "crashing") as socket:
        await socket.call("appendMessage", message("m0"))


async def test_a_frozen_owner_with_a_successor_tells_nothing_stale_and_ends(server, tmp_path):  # B76, B79
    """The successor is an owner of our own on the same store; the frozen actor thaws before it is noticed."""
    hall_folder = tmp_path / "elsewhere"
    hall_folder.mkdir()
    async with Socket(server.url, "frozen", "probe") as socket:
        await socket.call("appendMessage", message("m1"))
        pid = await socket.call("pid")
        os.kill(pid, signal.SIGSTOP)
        store = open_store(str(server.data / "store"))
        async with awake(hall_folder, store=store, key=ConversationKey("probe", "frozen")) as successor:
            await successor.connect()
            await successor.call("appendMessage", message("m2"))
            read = asyncio.create_task(socket.call("getHistory"))
            await asyncio.sleep(1.1)  # the frozen owner's proof is older than a second now
            os.kill(pid, signal.SIGCONT)
            with contextlib.suppress(CallFailed):  # one retryable error at most
                assert [entry["id"] for entry in await read] == ["m1", "m2"]
            seen = await socket.call("getHistory")
            assert [entry["id"] for entry in seen] == ["m1", "m2"]
            assert await socket.call("pid") != pid
        await socket.call("appendMessage", message("m3"))
        assert [entry["id"] for entry in await socket.call("getHistory")] == ["m1", "m2", "m3"]


async def test_two_owners_that_take_the_conversation_from_each_other_lose_and_double_nothing(server, tmp_path):
    key, store = ConversationKey("probe", "contested"), open_store(str(server.data / "store"))
    async with Socket(server.url, "contested", "probe") as socket:
        for number in range(0, 20, 2):
            retries: list[str] = []
            await append_until_acknowledged(socket, message(f"c0-{number}"), retries)
            assert len(retries) <= 1
            folder = tmp_path / str(number)
            folder.mkdir()
            async with awake(folder, store=store, key=key) as other:
                await other.connect()
                await other.call("appendMessage", message(f"c0-{number + 1}"))
        # a read alone could be up to a second old: that long is a proof of ownership good for
        await append_until_acknowledged(socket, message("c0-20"), [])
        assert_in_order_per_client([entry["id"] for entry in await socket.call("getHistory")], 1, 21)


async def test_watchers_see_every_frame_once_in_order_whatever_is_stored(server):  # B64
    noise = bytes(range(256)).decode("latin-1") * 4_096  # 1 MiB of a binary output
    part = {"type": "dynamic-tool", "toolCallId": "c", "toolName": "unzip", "input": {}, "output": noise}
    async with contextlib.AsyncExitStack() as stack:
        watchers = [await stack.enter_async_context(Socket(server.url, "noisy", "probe")) for _ in range(3)]
        writer = await stack.enter_async_context(Socket(server.url, "noisy", "probe"))
        for number in range(5):
            entry = {"id": f"m{number}", "role": "assistant", "parts": [{**part, "state": "output-available"}]}
            await writer.call("appendMessage", entry)
        assert (await writer.call("getLatestLeaf"))["parts"][0]["output"] == noise
        for watcher in watchers:
            await watcher.frames_until(lambda frame: frame.get("seq") == 5)
            frames = [frame for frame in watcher.others if frame["type"] == "cf_agent_session"]
            assert [frame["seq"] for frame in frames] == [1, 2, 3, 4, 5]
            assert all(len(str(frame)) < 1_000 for frame in frames)


async def test_clients_outlive_the_gateways_process_and_append_exactly_once(server):  # B83
    async def client(number: int) -> None:
        async with Client(server.url, "probe", "patient") as chat:
            for index in range(60):
                await chat.append_message(message(f"c{number}-{index}"))
                if number == 0 and index == 20:
                    (gateway,) = server.gateways()
                    os.kill(gateway.pid, signal.SIGKILL)

    await asyncio.wait_for(asyncio.gather(*[client(number) for number in range(4)]), 60)
    assert_in_order_per_client(await history(server.url, "patient"), 4, 60)


async def touch_other(url: str, name: str) -> None:
    async with Socket(url, name, "probe") as socket:
        await socket.call("appendMessage", message("m"))


async def test_a_second_server_on_the_same_folder_is_refused_with_one_sentence(server):
    with pytest.raises(RuntimeError) as refused:
        Server(server.data, agents=AGENTS)
    text = str(refused.value)
    assert "Traceback" not in text
    assert str(server.data) in text


async def test_a_killed_server_restarted_on_its_folder_serves_every_acknowledged_message():
    clients, acknowledged = 4, [0] * 4
    with Server(None, "--max-awake", "4", agents=AGENTS) as server:
        enough = asyncio.Event()

        async def client(number: int) -> None:
            with contextlib.suppress(ConnectionClosed):
                async with Socket(server.url, f"durable-{number % 2}", "probe") as socket:
                    for index in range(100_000):
                        await socket.call("appendMessage", message(f"c{number}-{index}"))
                        acknowledged[number] = index + 1
                        if sum(acknowledged) > 600:
                            enough.set()

        running = [asyncio.create_task(client(number)) for number in range(clients)]
        await asyncio.wait_for(enough.wait(), 60)
        await asyncio.to_thread(server.kill)
        await asyncio.gather(*running)
        await asyncio.to_thread(server.start)
        for number in range(clients):
            ids = await history(server.url, f"durable-{number % 2}")
            own = [identity for identity in ids if identity.startswith(f"c{number}-")]
            assert own[: acknowledged[number]] == [f"c{number}-{index}" for index in range(acknowledged[number])]
            assert len(own) <= acknowledged[number] + 1
        assert len(server.gateways()) == 1


async def test_a_store_that_is_gone_does_not_come_back_as_an_empty_one(tmp_path):
    """Neither for the actors that are started afterwards, nor for a gateway or a server that is started again."""
    store, away = tmp_path / "store", tmp_path / "away"
    data = tmp_path / "data"
    with Server(data, "--store", str(store), agents=AGENTS, PERDURE_STORE_DEADLINE_SECONDS="1") as server:
        async with Socket(server.url, "steady", "probe") as socket:
            await socket.call("appendMessage", message("m0"))
            store.rename(away)
            for actor in server.actors():
                os.kill(actor.pid, signal.SIGKILL)
            store.mkdir()  # the bare mount point
            for number in range(3):
                with pytest.raises(CallFailed, match=r"gives no answer|It is not known whether"):
                    await socket.call("appendMessage", message(f"lost{number}"))
        assert list(store.iterdir()) == []
        server.stop()
        with pytest.raises(RuntimeError, match="is it mounted"):
            server.start()
        assert list(store.iterdir()) == []
        store.rmdir()
        away.rename(store)
        server.start()
        assert await history(server.url, "steady") == ["m0"]
