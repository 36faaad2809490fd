"""Losing actors: what is certain, what is unknown, and that the order holds."""

import json

import pytest
from keeper_world import FakeActor, World

from actors.cluster.control import Asleep, Ping, Sleep, Wake
from actors.cluster.rooms import RoomState
from actors.conversation.events import Command, Connect, Disconnect, Failure, Push, Result, Returned, Rpc


def _rpc(connection: int, call: str, method: str = "append") -> Rpc:
    frame = json.dumps({"id": call, "method": method, "args": [""]}).encode()
    return Rpc(connection, frame, json.dumps(call).encode())


async def _awake(**settings: object) -> tuple[World, FakeActor]:
    world = World(**settings)  # type: ignore[arg-type]
    world.connect("a", 1)
    await world.settle()
    return world, world.actor_of("a")


def _die(world: World, actor: FakeActor) -> None:
    actor.drop()
    actor.die()


async def test_calls_sent_and_unanswered_are_unknown_and_never_sent_again() -> None:
    world, actor = await _awake()
    world.stops_at = (Rpc,)
    world.call(1, "x")
    world.call(1, "y")
    await world.settle()
    _die(world, actor)
    world.stops_at = ()
    await world.settle()
    failures = [event for event in world.events if isinstance(event, Failure)]
    assert [(f.call, f.code, f.was_executed) for f in failures] == [
        (b'"x"', "outcome_unknown", True),
        (b'"y"', "outcome_unknown", True),
    ]
    assert world.executed["a"] == []
    assert world.state("a") is RoomState.DORMANT, "nobody asked for another wake"
    world.call(1, "z")
    await world.settle()
    assert world.executed["a"] == [(1, "z")]
    assert world.connecteds(1) == 1


async def test_a_connect_that_was_not_answered_is_sent_again_as_a_first_one() -> None:
    world = World()
    world.stops_at = (Connect,)
    world.connect("a", 1)
    await world.settle()
    _die(world, world.actor_of("a"))
    world.stops_at = ()
    await world.settle()
    assert world.connecteds(1) == 1
    assert [connect.saved for connect in world.connects[1]] == [None]
    assert world.losses == []


async def test_a_socket_whose_connect_kills_every_actor_is_closed() -> None:
    world = World(max_awake=3, spares=1)
    world.stops_at = (Connect,)
    world.connect("a", 1)
    for _ in range(2):
        await world.advance(1)
        _die(world, world.actor_of("a"))
    await world.settle()
    assert world.losses == [(1, 1013, "not_mine")]
    assert world.state("a") is None


async def test_a_closed_socket_takes_what_it_had_asked_with_it() -> None:
    world = World(max_awake=3, spares=1)
    world.stops_at = (Connect,)
    world.connect("a", 1)
    await world.settle()
    _die(world, world.actor_of("a"))
    await world.settle()
    second = world.actor_of("a")
    world.call(1, "x")
    world.call(1, "y")
    await world.settle()
    second.drop()
    second.say(Returned(_rpc(1, "x")))
    second.fence([])
    world.call(1, "z")
    world.stops_at = ()
    await world.settle()
    assert world.losses == [(1, 1013, "not_mine")]
    assert sorted(world.answers(1)) == [("x", "not_mine"), ("y", "outcome_unknown"), ("z", "not_mine")]
    assert world.executed["a"] == []


async def test_an_actor_that_dies_while_falling_asleep_shows_no_error() -> None:
    world, actor = await _awake(idle_seconds=1)
    world.stops_at = (Sleep,)
    await world.advance(1.5)
    world.call(1, "x")
    world.call(1, "y")
    _die(world, actor)
    world.stops_at = ()
    await world.settle()
    assert world.answers(1) == [("x", "ok"), ("y", "ok")]
    assert world.wakes["a"] == 2


async def test_an_actor_that_dies_while_draining_leaves_its_queue_to_the_next() -> None:
    world, actor = await _awake(max_awake=1, spares=1)
    await world.advance(0.2)
    world.call(1, "long", "long")
    await world.settle()
    world.connect("b", 2)
    await world.settle()
    assert world.state("a") is RoomState.DRAINING
    world.call(1, "later")
    _die(world, actor)
    await world.advance(1)
    assert world.answers(1) == [("long", "outcome_unknown"), ("later", "ok")]
    assert world.connecteds(2) == 1


async def test_a_loop_that_hangs_is_pinged_then_killed_and_its_name_waits_for_the_end_of_file() -> None:
    world, actor = await _awake(hang_seconds=4)
    actor.is_hung = True
    world.call(1, "x")
    await world.advance(1.9)
    assert not any(isinstance(body, Ping) for _, body in actor.inbox)
    await world.advance(0.2)
    assert any(isinstance(body, Ping) for _, body in actor.inbox)
    assert world.killed == []
    world.dying = _Slow()
    await world.advance(2)
    assert world.killed == [actor.pid]
    world.call(1, "y")
    await world.settle()
    assert world.wakes["a"] == 1, "its process may still write"
    world.dying = []
    _die(world, actor)
    await world.settle()
    assert world.answers(1) == [("x", "outcome_unknown"), ("y", "ok")]


class _Slow(list[FakeActor]):
    """Processes that are killed and do not die yet."""

    def __bool__(self) -> bool:
        return False


async def test_a_long_call_of_a_living_loop_is_pinged_and_not_killed() -> None:
    world, actor = await _awake(hang_seconds=4)
    world.call(1, "long", "long")
    await world.advance(600)
    assert world.killed == []
    assert sum(isinstance(body, Ping) for body in actor.log) > 100
    actor.finish()
    assert world.answers(1) == [("long", "ok")]


async def test_nobody_is_pinged_while_all_is_quiet() -> None:
    world, actor = await _awake(idle_seconds=1000)
    world.call(1, "x")
    await world.advance(900)
    assert not any(isinstance(body, Ping) for body in actor.log)


@pytest.mark.parametrize(("kind", "seconds"), [(Wake, 59), (Sleep, 14)])
async def test_a_wake_or_a_sleep_that_never_ends_is_killed_though_the_loop_lives(kind: type, seconds: float) -> None:
    world = World(idle_seconds=1, max_awake=1, spares=0)
    world.connect("a", 1)
    if kind is Sleep:
        await world.settle()
    swallow = FakeActor.step

    def step(actor: FakeActor) -> bool:
        if actor.inbox and isinstance(actor.inbox[0][1], kind):
            actor.inbox.popleft()
        return swallow(actor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeActor, "step", step)
        await world.advance(seconds)
        assert world.killed == []
        await world.advance(2)
        assert len(world.killed) == 1


async def test_what_an_actor_says_of_an_earlier_lease_is_dropped() -> None:
    world = World(max_awake=1, spares=0)
    world.connect("a", 1)
    await world.settle()
    actor = world.actor_of("a")
    old = actor.lease
    world.connect("b", 2)
    await world.advance(1)
    assert world.actor_of("b") is actor
    events = len(world.events)
    actor.say(Result(2, b'"x"', b"1", True), old)
    actor.say(Push(b"{}", False, None, "idle"), old)
    actor.say(Asleep(True), old)
    assert (len(world.events), world.pushes) == (events, [])
    assert world.state("b") is RoomState.AWAKE
    assert world.keeper.statistics()["stale_dropped"] == 3


async def test_what_a_spare_says_is_dropped() -> None:
    world = World()
    world.keeper.start()
    await world.settle()
    world.actors[0].say(Push(b"{}", False, None, "idle"), 0)
    assert world.pushes == []


async def test_commands_that_come_back_run_first_and_in_order_at_the_next_wake() -> None:
    world, actor = await _awake()
    world.stops_at = (Rpc,)
    for n in range(4):
        world.call(1, f"c{n}")
    await world.settle()
    actor.inbox.clear()
    world.stops_at = ()
    actor.drop()
    actor.fence([_rpc(1, f"c{n}") for n in range(4)])
    world.call(1, "c4")
    assert world.wakes["a"] == 1, "not before the fenced process is dead"
    assert world.killed == [actor.pid]
    await world.settle()
    assert world.executed["a"] == [(1, f"c{n}") for n in range(5)]
    assert world.answers(1) == [(f"c{n}", "ok") for n in range(5)]


async def test_a_command_that_comes_back_twice_is_refused_as_not_executed() -> None:
    world, actor = await _awake()
    world.stops_at = (Rpc,)
    world.call(1, "x")
    await world.settle()
    actor.drop()
    actor.fence([_rpc(1, "x")])
    await world.settle()
    second = world.actor_of("a")
    assert second is not actor
    second.drop()
    second.fence([_rpc(1, "x")])
    await world.settle()
    [failure] = [event for event in world.events if isinstance(event, Failure)]
    assert (failure.code, failure.was_executed) == ("not_mine", False)


async def test_nothing_overtakes_a_command_that_came_back_while_the_lease_goes_on() -> None:
    world, actor = await _awake()
    world.busy.add("a")
    world.stops_at = (Rpc,)
    world.call(1, "x")
    await world.settle()
    actor.inbox.clear()
    world.stops_at = ()
    actor.say(Returned(_rpc(1, "x")))
    world.call(1, "y")
    await world.settle()
    assert world.executed["a"] == [(1, "x"), (1, "y")]
    assert world.wakes["a"] == 1


async def test_what_a_socket_that_has_left_had_asked_comes_back_with_its_connection() -> None:
    world, actor = await _awake()
    world.stops_at = (Rpc,)
    world.call(1, "x")
    world.leave(1)
    await world.settle()
    actor.drop()
    world.stops_at = ()
    actor.fence([_rpc(1, "x"), Disconnect(1)])
    await world.settle()
    assert world.executed["a"] == [(1, "x")]
    assert [connect.saved for connect in world.connects[1]] == [None, b'{"saved":1}']
    assert world.connecteds(1) == 1
    await world.advance(60)
    assert world.state("a") is None


async def test_calls_that_had_begun_and_were_not_reported_are_unknown_after_a_fence() -> None:
    world, actor = await _awake()
    world.call(1, "begun", "long")
    world.stops_at = (Rpc,)
    await world.settle()
    actor.drop()
    returned: list[Command] = []
    actor.fence(returned)
    await world.settle()
    assert world.answers(1) == [("begun", "outcome_unknown")]


async def test_the_same_id_twice_at_once_gets_two_answers() -> None:
    world, actor = await _awake()
    world.call(1, "x", "long")
    world.call(1, "x", "long")
    await world.settle()
    actor.finish()
    _die(world, actor)
    await world.settle()
    assert world.answers(1) == [("x", "ok"), ("x", "outcome_unknown")]


async def test_answers_are_paired_by_the_id_that_the_gateway_read() -> None:
    world, actor = await _awake()
    world.keeper.submit(world.where[1], Rpc(1, b'{"id": "\\u00e9", "method": "long", "args": []}', '"é"'.encode()))
    await world.settle()
    actor.running.clear()
    actor.say(Result(1, '"é"'.encode(), b"1", True))
    _die(world, actor)
    await world.settle()
    assert len(world.answers(1)) == 1


async def test_a_chunk_is_not_the_end_of_a_call() -> None:
    world, actor = await _awake()
    world.call(1, "x", "long")
    await world.settle()
    actor.say(Result(1, b'"x"', b"1", False))
    _die(world, actor)
    await world.settle()
    assert world.answers(1) == [("x", "ok"), ("x", "outcome_unknown")]


async def test_a_lane_that_breaks_kills_its_process() -> None:
    world, actor = await _awake()
    actor.drop()
    actor.is_dead = True
    world.keeper.ended(actor, ValueError("no lane"))
    assert world.killed == [actor.pid]


async def test_a_gateway_that_fails_at_one_event_harms_no_actor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world, actor = await _awake()
    with monkeypatch.context() as patch:
        patch.setattr(world, "event", None)
        patch.setattr(world, "push", None)
        world.connect("a", 2)
        await world.settle()
        world.call(1, "x", "push")
        await world.settle()
    assert "could not take" in caplog.text
    world.call(1, "y")
    await world.settle()
    assert world.answers(1) == [("y", "ok")]
    assert world.actor_of("a") is actor
