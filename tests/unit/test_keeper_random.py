"""Thousands of random events on a keeper: nothing is lost, nothing doubled, nothing overtakes, nobody waits for ever.

Every step checks what must hold at all times (`World.check`, with the keeper's own liveness assertion). A seed that
fails is printed by pytest as the test's parameter.
"""

import asyncio
import random
from collections.abc import Callable

import pytest
from keeper_world import FakeActor, World

from actors.cluster.control import Sleep, Wake, WakeRefused
from actors.conversation.events import Command, Connect, Connected, Disconnect, Rpc, SetState

STEPS = 1500


class Chaos:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(
            max_awake=self.random.choice((1, 2, 4)),
            spares=self.random.choice((0, 1, 2)),
            quantum_seconds=self.random.choice((0.0, 0.05, 0.1)),
            linger_seconds=self.random.choice((0.0, 0.01)),
            recycle=self.random.choice((2, 1000)),
            max_waiting_wakes=self.random.choice((3, 1000)),
            max_queued_operations=self.random.choice((20, 1000)),
            idle_seconds=1.0,
        )
        self.world.starts_itself = self.random.random() < 0.3
        self.names = [f"r{n}" for n in range(self.random.choice((2, 6, 12)))]
        self.world.sends_disconnect_when_lost = self.random.random() < 0.5
        self.asked: dict[int, list[str]] = {}
        self.next = 0
        wildness = self.random.choice((0.0, 0.2, 1.0))
        self.kinds: list[tuple[Callable[[], None], float]] = [
            (self.call, 40),
            (self.connect, 8),
            (self.leave, 5),
            (self.state, 5),
            (self.finish, 15),
            (self.arrive, 8),
            (self.stay, 2),
            (self.slow, 4),
            (self.refuse, 1),
            (self.fail_starts, 1),
            (self.heal, 6),
            (self.crash, 2 * wildness),
            (self.hang, 0.3 * wildness),
            (self.fence, 2 * wildness),
            (self.congest, 2),
        ]

    @property
    def live(self) -> list[int]:
        """Connections that have not left. Those that were told that they are lost may go on asking until they leave."""
        return [connection for connection in self.asked if connection not in self.world.left]

    # ---- events

    def connect(self) -> None:
        self.next += 1
        self.asked[self.next] = []
        self.world.connect(self.random.choice(self.names), self.next)

    def call(self) -> None:
        if self.live:
            connection = self.random.choice(self.live)
            call = f"{connection}-{len(self.asked[connection])}"
            self.asked[connection].append(call)
            self.world.call(connection, call, self.random.choice(("append", "append", "append", "push", "long")))

    def state(self) -> None:
        if self.live:
            self.world.set_state(self.random.choice(self.live))

    def leave(self) -> None:
        if self.live:
            self.world.leave(self.random.choice(self.live))

    def finish(self) -> None:
        running = [actor for actor in self.world.actors if actor.running and not actor.is_hung]
        if running:
            self.random.choice(running).finish()

    def crash(self) -> None:
        actors = [actor for actor in self.world.actors if not actor.is_dead]
        if actors:
            actor = self.random.choice(actors)
            actor.drop()
            actor.die()

    def hang(self) -> None:
        if self.world.actors:
            self.random.choice(self.world.actors).is_hung = True

    def stay(self) -> None:
        self.world.busy ^= {self.random.choice(self.names)}

    def slow(self) -> None:
        self.world.stops_at = self.random.choice(((), (Sleep,), (Wake,), (Connect,), (Rpc,), (Sleep, SetState)))

    def refuse(self) -> None:
        name = self.random.choice(self.names)
        if self.world.refusals.pop(name, None) is None:
            self.world.refusals[name] = WakeRefused("store_unavailable", "", self.random.random() < 0.5)

    def fail_starts(self) -> None:
        self.world.start_error = None if self.world.start_error else OSError("no memory")

    def heal(self) -> None:
        self.world.stops_at, self.world.start_error = (), None
        self.world.refusals.clear()

    def arrive(self) -> None:
        if self.world.starting:
            self.world.arrive()

    def fence(self) -> None:
        held = [actor for actor in self.world.actors if actor.key is not None and not actor.is_dead]
        if held:
            self._fence(self.random.choice(held))

    def _fence(self, actor: FakeActor) -> None:
        """What it had not got to comes back; what it had begun gets no answer."""
        unread: list[Command] = [
            body for _, body in actor.inbox if isinstance(body, (Connect, Disconnect, Rpc, SetState))
        ]
        actor.inbox.clear()
        actor.drop()
        actor.fence(unread)

    def congest(self) -> None:
        if self.world.actors:
            actor = self.random.choice(self.world.actors)
            actor.is_congested = not actor.is_congested
            if not actor.is_congested and not actor.is_dead:
                self.world.keeper.resumed(actor)

    async def step(self) -> None:
        kind = self.random.choices(
            [kind for kind, _ in self.kinds],
            [weight for _, weight in self.kinds],
        )[0]
        kind()
        if self.random.random() < 0.5:
            await self.world.advance(self.random.choice((0, 0.002, 0.02, 0.15, 1.2)))

    async def calm(self) -> None:
        """All obstacles go; everything asked has to be answered soon."""
        world = self.world
        self.heal()
        world.starts_itself = True
        world.busy.clear()
        for actor in list(world.actors):
            if actor.is_congested:
                actor.is_congested = False
                world.keeper.resumed(actor)
        for _ in range(40):
            await world.advance(1)
            for actor in list(world.actors):
                while actor.running and not actor.is_hung:
                    actor.finish()
            await world.settle()

    async def drain(self) -> None:
        draining = asyncio.ensure_future(self.world.keeper.drain(5))
        for _ in range(50):
            self.call()
            self.finish()
            await self.world.advance(2)
        await draining
        assert self.world.held == {}

    def check_answers(self) -> None:
        world = self.world
        lost = {connection for connection, _, _ in world.losses}
        executed = [entry for name in self.names for entry in world.executed[name] if entry[1] != "state"]
        assert len(executed) == len(set(executed)), "something was executed twice"
        for connection, asked in self.asked.items():
            answers = world.answers(connection)
            assert len(answers) == len({call for call, _ in answers}), "two answers to one call"
            assert {call for call, _ in answers} == set(asked), "a call without an answer"
            done = [call for by, call in executed if by == connection]
            said = [call for call, code in answers if code == "ok"]
            assert set(said) <= set(done), "said to be done and is not"
            certainly_not = {call for call, code in answers if code not in ("ok", "outcome_unknown")}
            assert not certainly_not & set(done), "said not to be executed and was"
            assert world.connecteds(connection) <= 1
            assert world.connecteds(connection) == 1 or connection in lost or connection not in self.live
        self._check_order(executed)

    def check_rest(self) -> None:
        statistics = self.world.keeper.statistics()
        assert statistics["waiting"] == statistics["waking"] == statistics["draining"] == 0

    def _check_order(self, executed: list[tuple[int, str]]) -> None:
        """Short calls of one connection ran in the order in which they were sent (long ones end when they end)."""
        last: dict[int, int] = {}
        for connection, call in executed:
            number = int(call.split("-")[1])
            if (connection, call) in self.world.long_calls:
                continue
            assert number > last.get(connection, -1), f"{call} was overtaken"
            last[connection] = number


@pytest.mark.parametrize("seed", range(12))
async def test_nothing_is_lost_doubled_overtaken_or_stuck(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(STEPS):
        await chaos.step()
    await chaos.calm()
    chaos.check_answers()
    chaos.check_rest()
    connected = {event.connection for event in chaos.world.events if isinstance(event, Connected)}
    assert connected, "the run did something"


@pytest.mark.parametrize("seed", range(100, 112))
async def test_a_drain_at_any_moment_answers_everything_and_leaves_nobody_behind(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(200):
        await chaos.step()
    await chaos.drain()
    chaos.check_answers()
    assert [actor for actor in chaos.world.actors if actor.key is not None] == []
