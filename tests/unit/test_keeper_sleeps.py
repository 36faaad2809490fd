"""Sleeping: who leaves for whom, who may stay, and what sockets notice of it (nothing)."""

import asyncio

from keeper_world import World

from actors.cluster.control import Sleep, Wake
from actors.cluster.eviction import Resident, choose
from actors.cluster.rooms import RoomState
from actors.conversation.events import Close, Connect, Failure
from storage.checkpoints.keys import ConversationKey


def _resident(name: str, since: float = 0.0, touched: float = 0.0, **facts: object) -> Resident[str]:
    is_busy = bool(facts.pop("is_busy", False))
    return Resident(
        name,
        since,
        touched,
        is_busy,
        is_owed=bool(facts.pop("is_owed", False)),
        busy_since=touched if is_busy else None,
        not_before=float(facts.pop("not_before", 0.0)),  # type: ignore[arg-type]
    )


def _choose(residents: list[Resident[str]], now: float, wanted: int) -> tuple[list[str], float | None, float | None]:
    choice = choose(residents, now=now, wanted=wanted, linger=0.01, quantum=0.1, patience=0.1, idle=30)
    return choice.leaving, choice.again_at, choice.idle_at


def test_the_least_recently_used_leaves_first_and_only_as_many_as_are_wanted() -> None:
    residents = [_resident("new", touched=2), _resident("old", touched=0), _resident("middle", touched=1)]
    assert _choose(residents, 3.0, 2)[0] == ["old", "middle"]


def test_nobody_leaves_within_linger_and_the_decision_is_due_when_it_is_over() -> None:
    assert _choose([_resident("a", since=5.0, touched=5.0)], 5.005, 1)[:2] == ([], 5.01)


def test_a_busy_one_leaves_only_after_its_quantum_the_longest_resident_first() -> None:
    residents = [
        _resident("second", since=1.0, touched=1.15, is_busy=True),
        _resident("first", since=0.9, touched=1.15, is_busy=True),
    ]
    assert _choose(residents, 0.95, 1)[:2] == ([], 1.0)
    assert _choose(residents, 1.2, 1)[0] == ["first"]
    assert _choose(residents, 1.2, 0)[0] == []


def test_one_at_a_long_call_one_that_must_stay_and_one_that_is_owed_are_left_alone() -> None:
    residents = [
        _resident("long", touched=1.0, is_busy=True),
        _resident("staying", not_before=9.0),
        _resident("owed", is_owed=True),
    ]
    assert _choose(residents, 5.0, 3)[:2] == ([], 9.0)


def test_the_idle_leave_without_being_wanted() -> None:
    residents = [_resident("a", touched=0.0), _resident("b", touched=10.0), _resident("c", touched=1, is_busy=True)]
    assert _choose(residents, 30.0, 0) == (["a"], None, 40.0)


async def test_a_conversation_sleeps_when_idle_and_its_socket_notices_nothing() -> None:
    world = World(idle_seconds=30)
    world.connect("a", 1)
    await world.settle()
    await world.advance(29)
    assert world.state("a") is RoomState.AWAKE
    await world.advance(2)
    assert world.state("a") is RoomState.DORMANT
    world.call(1, "x")
    await world.settle()
    assert world.answers(1) == [("x", "ok")]
    assert world.connecteds(1) == 1
    assert world.wakes["a"] == 2
    assert [connect.saved for connect in world.connects[1]] == [None, b'{"saved":1}']


async def test_being_used_postpones_the_sleep() -> None:
    world = World(idle_seconds=30)
    world.connect("a", 1)
    for n in range(10):
        await world.advance(20)
        world.call(1, f"c{n}")
    await world.settle()
    assert world.wakes["a"] == 1


async def test_a_socket_that_leaves_while_its_conversation_sleeps_wakes_nobody() -> None:
    world = World(idle_seconds=1)
    world.connect("a", 1)
    await world.advance(2)
    world.leave(1)
    await world.settle()
    assert world.wakes["a"] == 1
    assert world.state("a") is None


async def test_a_newcomer_takes_the_place_of_the_least_recently_used() -> None:
    world = World(max_awake=2, spares=1)
    for n in range(3):
        world.connect(f"r{n}", n)
        await world.advance(0.05)
    assert [world.state(f"r{n}") for n in range(3)] == [RoomState.DORMANT, RoomState.AWAKE, RoomState.AWAKE]


async def test_pushes_go_to_who_has_joined_except_besides_and_reach_sockets_of_an_earlier_wake() -> None:
    world = World(idle_seconds=1)
    world.connect("a", 1)
    world.connect("a", 2)
    world.connect("a", 3, client_id="quiet")
    await world.advance(2)
    world.call(1, "x", "push")
    await world.settle()
    assert [connections for connections, _ in world.pushes] == [(2, 3)]
    world.leave(2)
    world.call(1, "y", "push")
    await world.settle()
    assert [connections for connections, _ in world.pushes] == [(2, 3), (3,)]


async def test_eviction_of_a_conversation_in_use_shows_no_error_and_loses_nothing() -> None:
    world = World(max_awake=1, spares=1, quantum_seconds=0.1)
    world.connect("a", 1)
    world.connect("b", 2)
    for n in range(200):
        world.call(1, f"a{n}")
        world.call(2, f"b{n}")
        await world.advance(0.007)
    await world.advance(1)
    assert world.executed["a"] == [(1, f"a{n}") for n in range(200)]
    assert world.executed["b"] == [(2, f"b{n}") for n in range(200)]
    assert world.answers(1) == [(f"a{n}", "ok") for n in range(200)]
    assert world.wakes["a"] > 3
    assert world.wakes["b"] > 3


async def test_a_draining_conversation_gets_nothing_more_until_its_next_wake() -> None:
    world = World(max_awake=1, spares=1)
    world.connect("a", 1)
    await world.settle()
    world.call(1, "long", "long")
    await world.advance(0.05)
    actor = world.actor_of("a")
    world.connect("b", 2)
    await world.advance(0.06)
    assert world.state("a") is RoomState.DRAINING
    world.call(1, "later")
    await world.settle()
    assert world.executed["a"] == []
    actor.finish()
    await world.advance(0.02)
    assert [type(body) for body in actor.log].count(Sleep) == 1
    await world.advance(1)
    assert world.answers(1) == [("long", "ok"), ("later", "ok")]
    assert world.wakes == {"a": 2, "b": 1}


async def test_a_long_call_is_not_cut_short_and_holds_up_nobody_of_its_own_conversation() -> None:
    world = World(max_awake=1, spares=1, wake_seconds=5)
    world.connect("a", 1)
    await world.settle()
    world.call(1, "long", "long")
    await world.settle()
    actor = world.actor_of("a")
    world.connect("b", 2)
    for n in range(20):
        world.call(1, f"c{n}")
        await world.advance(0.1)
    assert len(world.answers(1)) == 20
    await world.advance(4)
    assert world.losses == [(2, 1013, "busy")]
    actor.finish()
    await world.settle()
    assert ("long", "ok") in world.answers(1)
    assert world.wakes["a"] == 1


async def test_an_actor_that_stays_is_asked_less_and_less_often() -> None:
    world = World(idle_seconds=1)
    world.busy.add("a")
    world.connect("a", 1)
    await world.advance(60)
    stays = world.keeper.statistics()["stays"]
    assert 10 < stays < 25
    assert world.state("a") is RoomState.AWAKE
    world.busy.clear()
    await world.advance(6)
    assert world.state("a") is RoomState.DORMANT


async def test_what_comes_between_sleep_and_stay_goes_on_under_the_same_lease() -> None:
    world = World(idle_seconds=1)
    world.busy.add("a")
    world.stops_at = (Sleep,)
    world.connect("a", 1)
    await world.advance(1.5)
    assert world.state("a") is RoomState.HIBERNATING
    world.call(1, "x")
    asking = asyncio.ensure_future(world.keeper.acquire(ConversationKey("chat", "a")))
    await world.settle()
    assert world.answers(1) == []
    world.stops_at = ()
    await world.settle()
    assert world.answers(1) == [("x", "ok")]
    assert (await asking)[1] == world.actor_of("a").lease
    assert world.wakes["a"] == 1


async def test_a_socket_that_leaves_meanwhile_is_told_to_an_actor_that_stays_however_late() -> None:
    world = World(idle_seconds=1, wake_seconds=2)
    world.busy.add("a")
    world.stops_at = (Sleep,)
    world.connect("a", 1)
    world.connect("a", 2)
    await world.advance(1.5)
    actor = world.actor_of("a")
    world.leave(1)
    world.call(2, "x")
    await world.advance(3)
    assert world.answers(2) == [("x", "busy")], "falling asleep takes too long"
    world.stops_at = ()
    await world.settle()
    assert actor.joined == {2}


async def test_a_quantum_of_nothing_does_not_hang() -> None:
    world = World(max_awake=2, spares=0, quantum_seconds=0, linger_seconds=0)
    for n in range(20):
        world.connect(f"r{n}", n)
        for call in range(5):
            world.call(n, f"c{call}")
    await world.advance(2)
    assert all(world.executed[f"r{n}"] == [(n, f"c{call}") for call in range(5)] for n in range(20))
    assert world.keeper.statistics()["waiting"] == 0


async def test_what_was_queued_for_a_wake_runs_before_the_next_eviction() -> None:
    world = World(max_awake=1, spares=1, quantum_seconds=0, linger_seconds=0)
    world.stops_at = (Wake,)
    world.connect("a", 1)
    for n in range(3):
        world.call(1, f"a{n}")
    world.connect("b", 2)
    await world.settle()
    [holder] = [actor for actor in world.actors if actor.inbox]
    holder.is_congested = True
    world.stops_at = ()
    await world.advance(0.5)
    assert world.state("a") is RoomState.AWAKE, "it has not had what it was woken for"
    assert world.executed["a"] == []
    holder.is_congested = False
    world.keeper.resumed(holder)
    await world.advance(0.5)
    assert world.executed["a"] == [(1, "a0"), (1, "a1"), (1, "a2")]
    assert world.wakes == {"a": 1, "b": 1}


async def test_conversations_that_are_all_in_use_take_turns_fairly() -> None:
    world = World(max_awake=3, spares=1, quantum_seconds=0.05)
    done = dict.fromkeys(range(12), 0)
    for n in done:
        world.connect(f"r{n}", n)
        world.call(n, "c0")
    for _ in range(3000):
        await world.advance(0.002)
        for event in world.events:
            if type(event).__name__ == "Result":
                connection = event.connection  # type: ignore[union-attr]
                done[connection] += 1
                world.call(connection, f"c{done[connection]}")
        world.events.clear()
    assert min(done.values()) > 100
    assert max(done.values()) < 2 * min(done.values()), done


async def test_an_actor_serves_so_many_conversations_and_is_replaced() -> None:
    world = World(max_awake=1, spares=0, recycle=3)
    for n in range(7):
        world.connect(f"r{n}", n)
        await world.advance(0.1)
    statistics = world.keeper.statistics()
    assert statistics["wakes"] == 7
    assert statistics["starts"] == 3
    assert statistics["kills"] == 0


async def test_an_actor_that_left_something_behind_is_replaced() -> None:
    world = World(max_awake=1, spares=0)
    world.is_dirty = True
    for n in range(4):
        world.connect(f"r{n}", n)
        await world.advance(0.1)
    assert world.keeper.statistics()["starts"] == 4


async def test_spares_that_nobody_needs_any_more_end_after_a_while() -> None:
    world = World(max_awake=8, spares=1, idle_seconds=5)
    for n in range(8):
        world.connect(f"r{n}", n)
    await world.advance(6)
    assert world.keeper.statistics()["spares"] >= 8
    await world.advance(70)
    assert world.keeper.statistics()["actors"] == 1


async def test_no_timer_is_left_when_nothing_is_awake() -> None:
    world = World(idle_seconds=1, spares=1)
    world.connect("a", 1)
    world.call(1, "x")
    await world.advance(120)
    assert world.clock.next_at() is None


async def test_a_python_caller_has_time_for_its_call_before_an_eviction() -> None:
    world = World(max_awake=1, spares=1, linger_seconds=0, quantum_seconds=0)
    asking = asyncio.ensure_future(world.keeper.acquire(ConversationKey("chat", "a")))
    await world.settle()
    await asking
    world.connect("b", 2)
    await world.advance(0.04)
    assert world.state("a") is RoomState.AWAKE
    await world.advance(0.02)
    assert world.state("b") is RoomState.AWAKE


async def test_a_connection_refused_by_the_agent_does_not_keep_the_conversation_busy() -> None:
    world = World(idle_seconds=1)
    world.stops_at = (Connect,)
    world.connect("a", 1)
    await world.settle()
    actor = world.actor_of("a")
    world.stops_at = ()
    actor.inbox.clear()
    actor.say(Close(1, 1011, "internal error"))
    world.leave(1)
    await world.advance(2)
    assert world.state("a") is None
    assert not [event for event in world.events if isinstance(event, Failure)]
