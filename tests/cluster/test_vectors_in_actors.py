"""Thirty recorded scenarios through real Ray actors that hibernate between any two steps, seen from a WebSocket."""

import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from wire import CallFailed, Socket, message

sys.path.append(str(Path(__file__).parents[1] / "conformance"))

from vector_agent import conversation_name, scenarios
from vector_files import Scenario, storage_only
from vector_runner import run
from vector_world import World

COUNT = 30
SCRIPTED = ("compaction", "token_counter", "searchable_history")  # lists of the harness live outside the conversation


def through_actors() -> list[Scenario]:
    """Some of every area, thirty in all, whose harness keeps nothing itself."""
    by_area: dict[str, list[Scenario]] = {}
    for scenario in scenarios().values():
        kinds = {(block.get("provider") or {}).get("kind") for block in scenario.setup.get("context", [])}
        suits = storage_only(scenario) and scenario.setup["mode"] in ("session", "manager")
        if suits and "bucket_skill" not in kinds and not any(name in scenario.setup for name in SCRIPTED):
            by_area.setdefault(scenario.area, []).append(scenario)
    chosen: list[Scenario] = []
    while len(chosen) < COUNT:
        for rest in by_area.values():
            if rest and len(chosen) < COUNT:
                chosen.append(rest.pop(0))
    return chosen


class ActorWorld(World):
    """The conversation is wherever the keeper puts it; this end only has a socket."""

    def __init__(self, scenario: Scenario, directory: Path, url: str) -> None:
        super().__init__(scenario, directory)
        self.url = url
        self.name = conversation_name(scenario, uuid.uuid4().hex[:8])
        self.sleeps = 0
        self.socket: Socket

    async def open(self) -> None:
        self.socket = await Socket(self.url, self.name, "vector").__aenter__()

    async def close(self) -> None:
        await self.socket.connection.close()

    async def hibernate(self) -> None:
        """With `max_awake` 1, a touch of another conversation puts this one to sleep. Its socket stays open."""
        async with Socket(self.url, "other", "conversation") as other:
            await other.call("appendMessage", message(uuid.uuid4().hex, "x"))
        self.sleeps += 1

    async def restart(self) -> None:
        pid = (await self.socket.call("where"))["pid"]
        os.kill(pid, signal.SIGKILL)

    async def perform(self, op: str, args: dict[str, Any], session_id: str | None) -> Any:
        for _ in range(5):
            try:
                return await self.socket.call("perform", op, args, session_id)
            except CallFailed as exc:
                if "It is not known whether" not in str(exc):
                    raise
        raise AssertionError("no answer")

    async def settled(self) -> None:
        for frame in self.socket.others:
            if str(frame.get("type", "")).startswith("cf_agent_session"):
                self.frames.append({name: value for name, value in frame.items() if name not in ("seq", "epoch")})
        self.socket.others.clear()


@pytest.fixture(scope="module")
def one_awake(local_ray, tmp_path_factory):
    from ray_node import serving

    with serving(tmp_path_factory.mktemp("one-awake"), max_awake=1, spares=1, idle_seconds=600.0) as node:
        yield node


@pytest.mark.parametrize("scenario", through_actors(), ids=lambda scenario: f"{scenario.area}/{scenario.name}")
async def test_a_scenario_through_real_actors_that_sleep_between_any_two_steps(scenario, one_awake, tmp_path):
    world = ActorWorld(scenario, tmp_path, one_awake.url)
    outcome = await run(scenario, world, hibernating=True)
    assert not outcome.failures, "\n".join(outcome.failures)
    assert world.sleeps == len(scenario.steps) - 1
    async with Socket(one_awake.url, world.name, "vector") as socket:
        epoch = (await socket.call("where"))["epoch"]
    writes = sum(
        step["op"].startswith(("append", "update", "delete", "clear", "add", "replace")) for step in scenario.steps
    )
    assert epoch > 1 or writes < 2, "it was never asleep"
