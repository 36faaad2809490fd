"""Draining a node, looking at it, and the socket at which its actors connect."""

import asyncio
import socket
import stat
from pathlib import Path

import pytest
from keeper_world import World

from actors.cluster.control import Hello, Sleep, Wake
from actors.cluster.errors import CannotStart
from actors.cluster.lane import LaneDecoder, encode_batches, encode_message
from actors.cluster.listener import LaneListener
from actors.cluster.status import Status
from actors.errors import Draining
from storage.checkpoints.keys import ConversationKey

A = ConversationKey("chat", "a")


async def _drained(world: World, grace: float = 20.0) -> None:
    draining = asyncio.ensure_future(world.keeper.drain(grace))
    await world.advance(60)
    await draining


async def test_drain_puts_all_to_sleep_and_ends_all_actors() -> None:
    world = World(max_awake=3, spares=2)
    for n in range(3):
        world.connect(f"r{n}", n)
        world.call(n, "x")
    await world.settle()
    await _drained(world)
    assert world.actors == []
    assert world.held == {}
    assert world.killed == []
    assert world.losses == [], "closing sockets is the gateway's"
    assert all(world.answers(n) == [("x", "ok")] for n in range(3))


async def test_while_draining_everything_new_and_queued_is_definitely_refused() -> None:
    world = World(starts_itself=False)
    world.connect("a", 1)
    world.call(1, "queued")
    await world.settle()
    draining = asyncio.ensure_future(world.keeper.drain(20))
    await asyncio.sleep(0)
    world.connect("b", 2)
    world.call(1, "new")
    with pytest.raises(Draining):
        await world.keeper.acquire(A)
    await draining
    assert world.losses == [(1, 1012, "draining"), (2, 1012, "draining")]
    assert world.answers(1) == [("queued", "draining"), ("new", "draining")]
    assert world.keeper.statistics()["conversations"] == 0


async def test_a_wake_under_way_is_let_finish_and_then_sleeps() -> None:
    world = World()
    world.stops_at = (Wake,)
    world.connect("a", 1)
    await world.settle()
    draining = asyncio.ensure_future(world.keeper.drain(20))
    await asyncio.sleep(0)
    world.stops_at = ()
    await world.settle()
    await draining
    assert (world.actors, world.killed) == ([], [])


async def test_calls_that_run_are_given_the_grace_and_new_ones_are_not() -> None:
    world = World(hang_seconds=100)
    world.connect("a", 1)
    world.call(1, "long", "long")
    await world.settle()
    world.stops_at = (Sleep,)
    actor = world.actor_of("a")
    draining = asyncio.ensure_future(world.keeper.drain(20))
    await world.advance(5)
    world.call(1, "new")
    assert [body for _, body in actor.inbox if isinstance(body, Sleep)] == [Sleep(False, 20.0, True)]
    actor.finish()
    world.stops_at = ()
    await world.settle()
    await draining
    assert world.answers(1) == [("new", "draining"), ("long", "ok")]


async def test_an_actor_that_was_asked_before_and_stays_is_told_at_drain() -> None:
    world = World(idle_seconds=1)
    world.busy.add("a")
    world.connect("a", 1)
    world.stops_at = (Sleep,)
    await world.advance(1.5)
    draining = asyncio.ensure_future(world.keeper.drain(20))
    await asyncio.sleep(0)
    world.stops_at = ()
    await world.settle()
    await draining
    assert (world.actors, world.killed) == ([], [])


async def test_whoever_does_not_fall_asleep_is_killed_at_the_end() -> None:
    world = World(hang_seconds=4, store_deadline_seconds=10)
    world.connect("a", 1)
    world.call(1, "x", "long")
    await world.settle()
    actor = world.actor_of("a")
    actor.is_hung = True
    draining = asyncio.ensure_future(world.keeper.drain(20))
    await world.advance(60)
    await draining
    assert world.killed == [actor.pid]
    assert world.answers(1) == [("x", "outcome_unknown")]


async def test_a_second_drain_waits_for_the_first() -> None:
    world = World()
    world.connect("a", 1)
    await world.settle()
    world.stops_at = (Sleep,)
    both = [asyncio.ensure_future(world.keeper.drain(20)) for _ in range(2)]
    await world.settle()
    assert not any(draining.done() for draining in both)
    world.stops_at = ()
    await world.settle()
    await asyncio.gather(*both)
    assert world.killed == []


async def test_status_tells_the_last_frame_and_who_is_awake_and_wakes_nobody() -> None:
    world = World(idle_seconds=1)
    one, every = world.keeper.status(A), world.keeper.status()
    assert await anext(one) == Status(A, False, None)
    assert world.wakes == {}
    world.connect("a", 1)
    await world.settle()
    assert await anext(one) == Status(A, True, None)
    world.call(1, "x", "push")
    await world.settle()
    frame = b'{"id": "x", "method": "push", "args": [""]}'
    assert await anext(one) == Status(A, True, frame)
    await world.advance(2)
    assert await anext(every) == Status(A, False, frame), "only the newest of each conversation"
    late = world.keeper.status()
    assert await anext(late) == Status(A, False, frame)
    one.close()
    assert [status async for status in one] == [Status(A, False, frame)]
    await _drained(world)
    assert [status async for status in late] == []


async def test_the_listener_lets_only_this_user_in_and_takes_over_an_old_path(tmp_path: Path) -> None:
    path = tmp_path / "lane"
    keeper = World().keeper
    old = LaneListener(path)
    await old.open(keeper)
    new = LaneListener(path)
    await new.open(keeper)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await old.close()
    await new.close()
    assert not path.exists()


async def test_a_path_that_is_too_long_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="too long"):
        await LaneListener(tmp_path / ("x" * 100)).open(World().keeper)


async def test_a_keeper_over_real_sockets_serves_an_actor_and_hears_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(starts_itself=False)
    path = tmp_path / "lane"
    keeper = world.keeper
    ended = asyncio.Event()
    monkeypatch.setattr(world, "forget", lambda token: ended.set())
    listener = LaneListener(path)
    await listener.open(keeper)
    world.connect("a", 1)
    await world.settle()
    stranger = socket.socket(socket.AF_UNIX)
    stranger.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(stranger, str(path))
    await loop.sock_sendall(stranger, encode_batches([encode_message(0, Hello(1, "guess"))]))
    assert await loop.sock_recv(stranger, 10) == b"", "who does not know the token is not let in"
    actor = socket.socket(socket.AF_UNIX)
    actor.setblocking(False)
    await loop.sock_connect(actor, str(path))
    await loop.sock_sendall(actor, encode_batches([encode_message(0, Hello(7, world.starting[0]))]))
    [(lease, wake)] = LaneDecoder().feed(await loop.sock_recv(actor, 1000))
    assert wake == Wake("chat", "a")
    assert lease == 1
    actor.close()
    stranger.close()
    async with asyncio.timeout(5):
        await ended.wait()
    assert keeper.statistics()["waiting"] == 1
    await listener.close()
