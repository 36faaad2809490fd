"""One end of a lane on a real socket pair."""

import asyncio
import socket

import pytest

from actors.cluster.connection import LaneConnection
from actors.cluster.control import Awake, Hello, Ping
from actors.cluster.lane import Body
from actors.conversation.events import Rpc


class Owner:
    def __init__(self) -> None:
        self.found: list[tuple[int, Body]] = []
        self.something = asyncio.Event()
        self.end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.is_resumed = asyncio.Event()
        self.trouble: Exception | None = None

    def received(self, lane: LaneConnection, lease: int, body: Body) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.found.append((lease, body))
        self.something.set()

    def resumed(self, lane: LaneConnection) -> None:
        self.is_resumed.set()

    def ended(self, lane: LaneConnection, error: Exception | None) -> None:
        self.end.set_result(error)

    async def until(self, count: int) -> None:
        while len(self.found) < count:
            self.something.clear()
            await self.something.wait()


async def _connect(end: socket.socket) -> tuple[LaneConnection, Owner]:
    owner = Owner()
    _, lane = await asyncio.get_running_loop().create_unix_connection(lambda: LaneConnection(owner), sock=end)
    return lane, owner


async def _pair() -> tuple[LaneConnection, Owner, LaneConnection, Owner]:
    left, right = socket.socketpair()
    return (*await _connect(left), *await _connect(right))


def _transport(lane: LaneConnection) -> asyncio.Transport:
    assert lane._transport is not None
    return lane._transport


async def test_messages_arrive_in_order_both_ways_and_the_end_is_told_to_both() -> None:
    left, left_owner, right, right_owner = await _pair()
    for n in range(1000):
        left.send(n, Rpc(n, b"x" * n, b"1"))
        right.send(n, Ping(n))
    left.send(1000, Awake(1))
    await left_owner.until(1000)
    assert left_owner.found == [(n, Ping(n)) for n in range(1000)]
    left.close()
    assert await right_owner.end is None
    assert await left_owner.end is None
    assert right_owner.found == [(n, Rpc(n, b"x" * n, b"1")) for n in range(1000)] + [(1000, Awake(1))]


async def test_what_is_sent_in_one_turn_of_the_loop_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    left, _, right, right_owner = await _pair()
    writes: list[int] = []
    transport = _transport(left)
    write = transport.write

    def counted(data: bytes) -> None:
        writes.append(len(data))
        write(data)

    monkeypatch.setattr(transport, "write", counted)
    for n in range(50):
        left.send(1, Ping(n))
    await right_owner.until(50)
    assert len(writes) == 1
    left.abort()
    right.abort()
    await right_owner.end


async def test_a_slow_reader_congests_the_lane_until_it_reads_again() -> None:
    left, left_owner, right, right_owner = await _pair()
    _transport(right).pause_reading()
    for n in range(5):
        left.send(1, Rpc(n, bytes(1024 * 1024), b"1"))
    assert left.is_congested
    await asyncio.sleep(0.01)
    assert left.is_congested
    assert not left_owner.is_resumed.is_set()
    _transport(right).resume_reading()
    await left_owner.is_resumed.wait()
    assert not left.is_congested
    await right_owner.until(5)
    left.close()
    right.close()
    await left_owner.end


async def test_nothing_hangs_and_nothing_is_raised_when_the_other_end_is_gone() -> None:
    left, left_owner, right, _ = await _pair()
    _transport(right).pause_reading()
    for n in range(5):
        left.send(1, Rpc(n, bytes(1024 * 1024), b"1"))
    right.abort()
    await left_owner.end
    left.send(1, Ping(1))
    left.close()
    left.abort()


async def test_bytes_that_are_no_lane_end_it() -> None:
    ours, theirs = socket.socketpair()
    _lane, owner = await _connect(ours)
    theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert await owner.end is not None
    theirs.close()


async def test_an_owner_that_fails_ends_the_lane() -> None:
    left, left_owner, _right, right_owner = await _pair()
    right_owner.trouble = ValueError("no")
    left.send(1, Hello(1, "t"))
    assert await right_owner.end is right_owner.trouble
    await left_owner.end
