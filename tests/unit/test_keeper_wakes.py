"""Waking: one wake however many ask, FIFO, limits, actors that die or refuse."""

import asyncio

import pytest
from keeper_world import World

from actors.cluster.control import Awake, Wake, WakeRefused
from actors.cluster.rooms import RoomState
from actors.conversation.events import Connect, Connected, Disconnect, Failure, Rpc, StateRefused
from actors.errors import Busy
from storage.checkpoints.keys import ConversationKey
from storage.errors import CorruptRecord, StoreUnavailable


async def test_a_hundred_first_touches_are_one_wake() -> None:
    world = World()
    for n in range(100):
        world.connect("a", n)
        world.call(n, f"c{n}")
    await world.settle()
    assert world.wakes == {"a": 1}
    assert world.executed["a"] == [(n, f"c{n}") for n in range(100)]
    assert all(world.answers(n) == [(f"c{n}", "ok")] and world.connecteds(n) == 1 for n in range(100))


async def test_actors_are_begun_one_at_a_time_and_only_as_many_as_are_wanted() -> None:
    world = World(starts_itself=False, max_awake=3, spares=1)
    for n in range(10):
        world.connect(str(n), n)
    for count in range(1, 5):
        await world.settle()
        assert len(world.starting) == 1
        world.arrive()
        assert world.keeper.statistics()["actors"] == count
    await world.settle()
    assert world.starting == []


async def test_spares_are_begun_before_anyone_asks() -> None:
    world = World(max_awake=5, spares=2)
    world.keeper.start()
    await world.settle()
    assert world.keeper.statistics()["spares"] == 2


async def test_waiters_are_served_in_the_order_in_which_they_came() -> None:
    world = World(starts_itself=False, max_awake=1, spares=0, linger_seconds=0.01)
    for n in range(5):
        world.connect(str(n), n)
    await world.settle()
    world.arrive()
    await world.advance(1.0)
    order = [event.connection for event in world.events if isinstance(event, Connected)]
    assert order == [0, 1, 2, 3, 4]


async def test_who_waits_longer_than_wake_seconds_is_told_busy() -> None:
    world = World(starts_itself=False, wake_seconds=10)
    world.connect("a", 1)
    world.call(1, "x")
    world.set_state(1)
    asking = asyncio.ensure_future(world.keeper.acquire(ConversationKey("chat", "a")))
    await world.advance(9.9)
    assert world.losses == []
    assert world.answers(1) == []
    await world.advance(0.2)
    assert world.losses == [(1, 1013, "busy")]
    assert world.answers(1) == [("x", "busy")]
    assert [type(event) for event in world.events if isinstance(event, StateRefused)] == [StateRefused]
    with pytest.raises(Busy):
        await asking
    assert world.keeper.statistics()["conversations"] == 0


async def test_only_so_many_conversations_may_wait() -> None:
    world = World(starts_itself=False, max_waiting_wakes=3)
    for n in range(5):
        world.connect(str(n), n)
    assert world.losses == [(3, 1013, "busy"), (4, 1013, "busy")]
    world.call(0, "x")
    assert world.answers(0) == [], "who waits already may ask more"
    with pytest.raises(Busy):
        await world.keeper.acquire(ConversationKey("chat", "4"))
    assert world.keeper.statistics()["conversations"] == 3


async def test_a_given_up_socket_gets_refusals_until_it_has_left() -> None:
    world = World(starts_itself=False, max_waiting_wakes=1)
    world.sends_disconnect_when_lost = False
    world.connect("a", 1)
    world.connect("b", 2)
    world.call(2, "x")
    assert world.losses == [(2, 1013, "busy")]
    assert world.answers(2) == [("x", "busy")]
    world.leave(2)
    assert world.state("b") is None


@pytest.mark.parametrize(("setting", "value"), [("max_queued_operations", 5), ("max_queued_bytes", 1200)])
async def test_a_full_queue_is_a_definite_refusal_of_the_newest(setting: str, value: int) -> None:
    world = World(starts_itself=False, **{setting: value})
    world.connect("a", 1)
    for n in range(10):
        world.call(1, f"c{n}", size=240)
    refused = [call for call, code in world.answers(1) if code == "busy"]
    assert refused == [f"c{n}" for n in range(4, 10)]
    world.starts_itself = True
    await world.settle()
    assert [call for _, call in world.executed["a"]] == ["c0", "c1", "c2", "c3"]


async def test_one_command_larger_than_the_whole_queue_still_passes_alone() -> None:
    world = World(max_queued_bytes=100)
    world.connect("a", 1)
    await world.settle()
    world.call(1, "large", size=10_000)
    await world.settle()
    assert world.answers(1) == [("large", "ok")]


async def test_what_an_awake_conversation_has_not_answered_counts_as_queued() -> None:
    world = World(max_queued_operations=5)
    world.connect("a", 1)
    await world.settle()
    for n in range(8):
        world.call(1, f"c{n}", "long")
    await world.settle()
    assert world.answers(1) == [("c5", "busy"), ("c6", "busy"), ("c7", "busy")]


async def test_an_actor_that_dies_while_waking_is_replaced_three_times() -> None:
    world = World(max_awake=4, spares=2)
    world.stops_at = (Wake,)
    world.connect("a", 1)
    world.call(1, "x")
    for _ in range(3):
        await world.settle()
        [holder] = [actor for actor in world.actors if actor.inbox]
        holder.die()
        await world.advance(1)
    world.stops_at = ()
    await world.settle()
    assert world.answers(1) == [("x", "ok")]
    assert world.losses == []


async def test_a_wake_that_kills_every_actor_is_given_up() -> None:
    world = World(max_awake=4, spares=2, wake_seconds=100)
    world.stops_at = (Wake,)
    world.connect("a", 1)
    world.call(1, "x")
    for _ in range(4):
        await world.advance(0.5)
        [holder] = [actor for actor in world.actors if actor.inbox]
        holder.die()
    await world.settle()
    assert world.answers(1) == [("x", "busy")]
    assert world.losses == [(1, 1013, "busy")]
    assert world.state("a") is None


async def test_a_waiter_whose_actor_died_is_served_before_later_ones() -> None:
    world = World(starts_itself=False, max_awake=3, spares=0)
    world.stops_at = (Wake,)
    for n in range(3):
        world.connect(str(n), n)
    await world.settle()
    world.arrive().die()
    world.stops_at = ()
    await world.settle()
    world.arrive()
    await world.settle()
    assert next(event.connection for event in world.events if isinstance(event, Connected)) == 0


async def test_a_refused_wake_refuses_what_waits_and_the_actor_is_a_spare_again() -> None:
    world = World()
    world.refusals["a"] = WakeRefused("store_unavailable", str(StoreUnavailable("it is away")), True)
    world.connect("a", 1)
    world.call(1, "x")
    asking = asyncio.ensure_future(world.keeper.acquire(ConversationKey("chat", "a")))
    await world.settle()
    assert world.answers(1) == [("x", "store_unavailable")]
    assert world.losses == [(1, 1013, "store_unavailable")]
    with pytest.raises(StoreUnavailable):
        await asking
    assert world.keeper.statistics()["spares"] >= 1
    del world.refusals["a"]
    world.connect("a", 2)
    await world.settle()
    assert world.connecteds(2) == 1


async def test_a_damaged_conversation_keeps_its_sockets_and_says_so_to_each_call() -> None:
    """A socket that was closed would come back at once, for ever, and each time would cost a process."""
    world = World()
    damage = CorruptRecord("log/7", "its hash is wrong")
    world.refusals["a"] = WakeRefused(damage.code, str(damage), False)
    world.connect("a", 1)
    world.call(1, "x")
    asking = asyncio.ensure_future(world.keeper.acquire(ConversationKey("chat", "a")))
    await world.settle()
    world.call(1, "y")
    world.connect("a", 2)
    await world.settle()
    assert world.losses == []
    assert world.answers(1) == [("x", "corrupt_record"), ("y", "corrupt_record")]
    assert {event.error for event in world.events if isinstance(event, Failure)} == {str(damage)}
    with pytest.raises(CorruptRecord, match=r"log/7 is damaged \(its hash is wrong\)"):
        await asking
    world.leave(2)
    del world.refusals["a"]  # an operator has restored it
    world.call(1, "z")
    await world.settle()
    assert world.answers(1)[2:] == [("z", "ok")]
    assert (world.connecteds(1), world.connecteds(2)) == (1, 0)


async def test_a_damaged_conversation_is_forgotten_with_its_last_socket() -> None:
    world = World()
    damage = CorruptRecord("log/7", "its hash is wrong")
    world.refusals["a"] = WakeRefused(damage.code, str(damage), False)
    for connection in (1, 2):
        world.connect("a", connection)
        world.call(connection, "x")
        if connection == 2:
            world.leave(2)  # before it could be woken
    await world.settle()
    world.leave(1)
    await world.settle()
    assert len(world.keeper._rooms) == 0


async def test_a_wake_that_an_agent_fails_answers_the_calls_before_it_closes_the_sockets() -> None:
    world = World()
    order: list[str] = []
    world.refusals["a"] = WakeRefused("error", str(Busy()), False)
    world.connect("a", 1)
    world.call(1, "x")
    world.event = lambda event: order.append(event.error)  # type: ignore[method-assign,attr-defined,assignment]
    world.lost = lambda connection, code, reason: order.append(f"{code} {reason}")  # type: ignore[method-assign]
    await world.settle()
    assert order == [str(Busy()), "1011 error"]


async def test_starts_that_fail_are_tried_again_with_growing_pauses() -> None:
    world = World(wake_seconds=1000)
    world.start_error = OSError("no memory")
    world.connect("a", 1)
    await world.advance(0.1)
    assert world.keeper.statistics()["starts"] == 1
    await world.advance(60)
    assert 5 < world.keeper.statistics()["starts"] < 15
    world.start_error = None
    await world.advance(11)
    assert world.connecteds(1) == 1


async def test_an_actor_that_never_says_hello_is_given_up_and_cannot_come_later() -> None:
    world = World(starts_itself=False, wake_seconds=1000, start_seconds=60)
    world.connect("a", 1)
    await world.settle()
    late = world.starting[0]
    await world.advance(61)
    assert world.forgotten == [late]
    world.starting.insert(0, late)
    actor = world.arrive()
    assert actor.is_closed
    assert world.keeper.statistics()["actors"] == 0


async def test_a_hello_that_nobody_waits_for_ends_its_lane() -> None:
    world = World(max_awake=1, spares=0)
    world.starting.append("guess")
    actor = world.arrive()
    assert actor.is_closed
    assert world.keeper.statistics()["actors"] == 0


async def test_spares_that_die_at_once_are_not_begun_for_ever() -> None:
    world = World(spares=2)
    world.keeper.start()
    for _ in range(10):
        await world.settle()
        for actor in world.actors:
            actor.die()
    assert world.keeper.statistics()["starts"] <= 3


async def test_a_client_that_leaves_before_the_wake_wakes_nobody() -> None:
    world = World(starts_itself=False)
    world.connect("a", 1)
    world.leave(1)
    assert world.keeper.statistics()["conversations"] == 0
    world.connect("b", 2)
    world.call(2, "x")
    world.leave(2)
    world.starts_itself = True
    await world.settle()
    assert world.executed["b"] == [(2, "x")], "what it had asked is done all the same"
    assert "a" not in world.wakes


async def test_an_actor_that_says_what_it_may_not_changes_nothing() -> None:
    world = World()
    world.connect("a", 1)
    await world.settle()
    actor = world.actor_of("a")
    actor.say(Awake(9))
    actor.say(WakeRefused("x", "y", True))
    assert world.state("a") is RoomState.AWAKE


async def test_acquire_wakes_and_gives_the_lease_and_leaves_no_room_behind() -> None:
    world = World()
    key = ConversationKey("chat", "a")
    asking = asyncio.ensure_future(world.keeper.acquire(key))
    await world.settle()
    actor = world.actor_of("a")
    assert await asking == (actor.token, actor.lease)
    assert await world.keeper.acquire(key) == (actor.token, actor.lease)
    await world.advance(60)
    assert world.state("a") is None
    asking = asyncio.ensure_future(world.keeper.acquire(key))
    await world.settle()
    assert (await asking)[1] > actor.lease or world.wakes["a"] == 2


async def test_only_so_many_python_callers_wait_for_one_conversation() -> None:
    world = World(starts_itself=False, max_queued_operations=3)
    waiting = [asyncio.ensure_future(world.keeper.acquire(ConversationKey("chat", "a"))) for _ in range(4)]
    await world.settle()
    with pytest.raises(Busy):
        await waiting[3]
    world.starts_itself = True
    await world.settle()
    assert len(set(await asyncio.gather(*waiting[:3]))) == 1


async def test_a_cancelled_acquire_wakes_nobody() -> None:
    world = World(starts_itself=False)
    asking = asyncio.ensure_future(world.keeper.acquire(ConversationKey("chat", "a")))
    await world.settle()
    asking.cancel()
    await world.settle()
    assert world.keeper.statistics()["conversations"] == 0


async def test_commands_of_one_connection_go_out_in_order_behind_a_congested_lane() -> None:
    world = World()
    world.connect("a", 1)
    await world.settle()
    actor = world.actor_of("a")
    actor.is_congested = True
    for n in range(5):
        world.call(1, f"c{n}")
    await world.settle()
    assert world.answers(1) == []
    actor.is_congested = False
    world.keeper.resumed(actor)
    world.call(1, "c5")
    await world.settle()
    assert world.executed["a"] == [(1, f"c{n}") for n in range(6)]


async def test_acquire_while_the_line_of_a_wake_is_held_up_is_answered_when_it_has_gone_out() -> None:
    world = World()
    world.stops_at = (Wake,)
    world.connect("a", 1)
    world.call(1, "c")
    await world.settle()
    [actor] = [actor for actor in world.actors if actor.inbox]
    actor.is_congested, world.stops_at = True, ()
    await world.settle()
    asking = asyncio.ensure_future(world.keeper.acquire(ConversationKey("chat", "a")))
    await world.settle()
    assert not asking.done()
    actor.is_congested = False
    world.keeper.resumed(actor)
    await world.settle()
    assert asking.done()
    assert asking.result() == (actor.token, actor.lease)


async def test_only_connect_rpc_and_disconnect_reach_an_actor_in_that_order() -> None:
    world = World()
    world.connect("a", 1)
    world.call(1, "x")
    world.leave(1)
    await world.settle()
    [actor] = [actor for actor in world.actors if actor.log]
    assert [type(body) for body in actor.log] == [Wake, Connect, Rpc, Disconnect]
