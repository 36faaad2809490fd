"""Peers that send too much or read too little are bounded, told by a documented code, and harm nobody else."""

import asyncio
import json
import socket as sockets
from contextlib import suppress

import pytest
from gateway_clients import answer, call, closed, joined, open_socket, receive
from gateway_fakes import FakeKeeper, running_gateway

from actors.conversation.events import Connect, Disconnect, Push, Rpc
from actors.gateway.socket import Timing

QUICK = Timing(ping_seconds=0.05, pong_seconds=0.05, stall_seconds=0.1, close_seconds=0.2, abort_seconds=0.1)
LIMIT = 256 * 1024
KIB = b"x" * 1024


def small_buffers(url: str) -> sockets.socket:
    """A connected TCP socket that takes little while its owner does not read."""
    host, port = url.removeprefix("ws://").split(":")
    sock = sockets.socket()
    sock.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    return sock


async def stop_reading(socket) -> None:
    socket.transport.pause_reading()


def push(gateway, keeper: FakeKeeper, frame: bytes, phase: str = "") -> None:
    numbers = [command.connection for command in keeper.commands(Connect)]
    gateway.push(numbers, Push(frame, is_protocol=False, besides=None, phase=phase))


async def test_only_so_many_calls_of_one_socket_run_at_once_and_the_rest_waits_unread():
    async with running_gateway(max_in_flight=8) as (_, keeper, url):
        socket = await joined(url)
        for number in range(50):
            await call(socket, "block", "gate", id=str(number))
        other = await joined(url)
        await call(other, "add", 1, 1)
        assert (await answer(other))["result"] == 2
        assert len(keeper.conversation("conv-agent", "alice").calls) == 8 + 1
        keeper.gates["gate"].set()
        assert sorted([int((await receive(socket))["id"]) for _ in range(50)]) == list(range(50))


async def test_a_call_nested_beyond_what_is_read_is_answered_and_the_next_one_is_served():
    async with running_gateway() as (_, keeper, url):
        socket = await joined(url)
        await socket.send('{"type":"rpc","id":"deep","method":"add","args":' + "[" * 2_000 + "]" * 2_000 + "}")
        told = await answer(socket, "deep")
        assert (told["id"], told["success"]) == ("deep", False)
        assert told["error"] == "The call was not executed: it is nested too deeply."
        await call(socket, "add", 1, 1)
        assert (await answer(socket))["result"] == 2
        assert len(keeper.commands(Rpc)) == 1


async def test_a_socket_that_goes_while_it_is_not_read_is_noticed():
    async with running_gateway(max_in_flight=1) as (_, keeper, url):
        socket = await joined(url)
        await call(socket, "block", "gate")
        await keeper.until(lambda: len(keeper.commands(Rpc)) == 1)
        socket.transport.abort()
        await keeper.until(lambda: bool(keeper.commands(Disconnect)))


async def test_a_flood_is_held_back_by_tcp():
    """100 MB of calls while the conversation does nothing: only what may be in flight is taken."""
    async with running_gateway(max_in_flight=4, timing=Timing(close_seconds=0.2)) as (_, keeper, url):
        keeper.hold()
        socket = await open_socket(url)
        frame = json.dumps({"type": "rpc", "id": "1", "method": "add", "args": ["x" * 1_000_000]})
        sent = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while sent < 100:
                    await socket.send(frame)
                    sent += 1
        assert len(keeper.commands(Rpc)) == 4
        assert sent < 40
        socket.transport.abort()


async def test_an_oversized_message_closes_its_socket_with_1009_and_no_other():
    async with running_gateway(max_message_bytes=100_000) as (_, _, url):
        socket, other = await joined(url), await joined(url)
        await call(socket, "appendMessage", {"id": "m", "text": "x" * 100_000})
        assert (await answer(socket))["success"]
        await socket.send("x" * 200_000)
        assert (await closed(socket))[0] == 1009
        await call(other, "add", 1, 1)
        assert (await answer(other))["result"] == 2


async def test_a_reader_that_is_slow_gets_the_newest_status_instead_of_a_backlog():
    async with running_gateway(max_send_buffer_bytes=LIMIT) as (gateway, keeper, url):
        socket = await joined(url, sock=small_buffers(url))
        await stop_reading(socket)
        for number in range(20_000):
            push(gateway, keeper, b'{"type":"cf_agent_session","n":%d,"pad":"%b"}' % (number, KIB), "idle")
        assert gateway.statistics()["bytes_waiting"] < 2 * LIMIT
        socket.transport.resume_reading()
        seen = []
        while not seen or seen[-1] != 19_999:
            seen.append((await receive(socket))["n"])
        assert seen == sorted(seen)
        assert len(seen) < 10_000
        await call(socket, "add", 1, 1)
        assert (await answer(socket))["result"] == 2


async def test_a_reader_that_does_not_keep_up_is_closed_and_the_others_are_served():
    async with running_gateway(max_send_buffer_bytes=LIMIT, timing=QUICK) as (gateway, keeper, url):
        slow = await joined(url, sock=small_buffers(url))
        other = await joined(url)
        await stop_reading(slow)

        async def read(count: int) -> int:
            for _ in range(count):
                await receive(other)
            return count

        reading = asyncio.create_task(read(10_000))
        largest = 0
        for number in range(10_000):
            push(gateway, keeper, b'{"n":%d,"pad":"%b"}' % (number, KIB))
            largest = max(largest, gateway.statistics()["bytes_waiting"])
            if number % 50 == 0:
                await asyncio.sleep(0.001)
        assert await reading == 10_000
        assert largest < 4 * LIMIT  # both sockets, outbox and transport
        await keeper.until(lambda: len(keeper.commands(Disconnect)) == 1)
        slow.transport.resume_reading()
        assert (await closed(slow))[0] in (1013, 1006)


async def test_a_client_that_asks_for_much_and_reads_it_gets_it():
    async with running_gateway(max_send_buffer_bytes=4 * LIMIT) as (_, _, url):
        socket = await joined(url)
        for number in range(20):
            await call(socket, "payload", 400_000, id=str(number))
        frames = [await receive(socket) for _ in range(20)]
        assert [len(frame["result"]) for frame in frames] == [400_000] * 20


async def test_answers_larger_than_the_buffer_pass_whole_and_in_order():
    async with running_gateway(max_send_buffer_bytes=LIMIT) as (_, _, url):
        socket = await joined(url, sock=small_buffers(url))
        await call(socket, "payload", 3_000_000, id="big")
        await call(socket, "appendMessage", {"id": "m1"}, id="small")
        assert len((await receive(socket))["result"]) == 3_000_000
        assert (await receive(socket))["type"] == "cf_agent_session"
        assert (await receive(socket))["id"] == "small"


async def test_a_peer_that_reads_nothing_at_all_is_dropped_even_without_a_backlog():
    async with running_gateway(timing=QUICK) as (gateway, keeper, url):
        socket = await joined(url, sock=small_buffers(url))
        await stop_reading(socket)
        push(gateway, keeper, KIB * 8192)
        async with asyncio.timeout(5):
            await keeper.until(lambda: len(keeper.commands(Disconnect)) == 1)
        socket.transport.abort()


async def test_a_mute_peer_is_dropped_after_ping_and_pong_time():
    async with running_gateway(timing=QUICK) as (_, keeper, url):
        socket = await joined(url)
        socket.transport.pause_reading()  # so that pings are not answered
        async with asyncio.timeout(5):
            await keeper.until(lambda: len(keeper.commands(Disconnect)) == 1)
        socket.transport.abort()


async def test_pings_keep_a_quiet_peer_and_wake_nobody():
    async with running_gateway(timing=QUICK) as (_, keeper, url):
        socket = await joined(url)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await socket.recv()
        assert len(keeper.submitted) == 1
        await call(socket, "add", 1, 1)
        assert (await answer(socket))["result"] == 2


async def test_a_healthy_peer_with_long_calls_survives_pings_that_it_cannot_be_heard_to_answer():
    async with running_gateway(max_in_flight=2, timing=QUICK) as (_, keeper, url):
        socket = await joined(url)
        frame = json.dumps({"type": "rpc", "id": "1", "method": "block", "args": ["gate"], "pad": "x" * 100_000})
        for _ in range(20):
            await socket.send(frame)
        await keeper.until(lambda: len(keeper.commands(Rpc)) == 2)
        for count in (1, 2, 3):  # so long that three peers that are mute are found out
            mute = await joined(url)
            mute.transport.pause_reading()
            await keeper.until(lambda count=count: len(keeper.commands(Disconnect)) == count)
            mute.transport.abort()
        keeper.gates["gate"].set()
        assert [(await receive(socket))["result"] for _ in range(20)] == ["gate"] * 20


async def test_a_peer_that_does_not_answer_a_close_is_cut_off():
    async with running_gateway(timing=QUICK) as (gateway, keeper, url):
        socket = await joined(url, sock=small_buffers(url))
        await stop_reading(socket)
        push(gateway, keeper, KIB * 4096)
        gateway.lost(keeper.commands(Connect)[0].connection, 1012, "restarting")
        async with asyncio.timeout(5):
            await keeper.until(lambda: len(keeper.commands(Disconnect)) == 1)
        socket.transport.resume_reading()
        await closed(socket)
