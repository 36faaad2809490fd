"""A server of ours on a Ray that a test has started."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AGENTS = (
    "agents_for_tests:Probe",
    "ray_agents:Slow",
    "vector_agent:Vector",
    "actors.default_agent:Conversation",
)


@dataclass
class Node:
    """A gateway with its keeper, in actors of the shared Ray."""

    host: str
    port: int
    data: Path
    gateway: Any
    controller: Any

    @property
    def url(self) -> str:
        return f"ws://{self.host}:{self.port}"

    @property
    def log(self) -> str:
        logs = self.data / "node-0" / "logs"
        return "".join(path.read_text() for path in sorted(logs.iterdir()))


@contextlib.contextmanager
def serving(data: Path, **settings: Any) -> Iterator[Node]:
    """Serves `AGENTS`; everything is drained at the end."""
    import ray  # not before `local_ray` has set Ray's variables

    from actors.cluster.controller import Controller
    from actors.cluster.options import NodeOptions
    from actors.cluster.placement import NAMESPACE, THE_NODE, gateway_name
    from actors.cluster.start import GATEWAY
    from actors.settings import Settings

    given = Settings(
        data=data, port=0, agents=AGENTS, **{"spares": 1, "max_awake": 4, "start_seconds": 60.0, **settings}
    )
    controller = Controller(NodeOptions(given, str(Path(__file__).parent), THE_NODE, GATEWAY, 0))
    host, port = controller.start()
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()
    gateway = ray.get_actor(gateway_name(THE_NODE), namespace=NAMESPACE)
    try:
        yield Node(host, port, data, gateway, controller)
    finally:
        controller.drain()
        thread.join(60)
        assert not thread.is_alive()


def message(identity: str, text: str = "hello") -> dict[str, Any]:
    return {"id": identity, "role": "user", "parts": [{"type": "text", "text": text}]}


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """For what only can be asked for."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)


async def statistics(node: Node) -> dict[str, int]:
    found: dict[str, int] = await asyncio.wait_for(node.gateway.statistics.remote(), 10)
    return found
