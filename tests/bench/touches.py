"""Many conversations touched in turn: connect, append one message, wait for the answer, close.

8 clients, `max_awake` 20, 1,000 conversations, twice (new ones, then known ones). Afterwards every conversation is read and
must hold exactly what was acknowledged; processes, descriptors and memory are printed before and after.
"""

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from serving import Server, open_files, resident_mb
from wire import Socket, message


async def touch(url: str, name: str, identity: str) -> float:
    begun = time.perf_counter()
    async with Socket(url, name) as socket:
        await socket.call("appendMessage", message(identity))
    return (time.perf_counter() - begun) * 1000


async def in_turn(url: str, names: list[str], identity: str, clients: int) -> tuple[float, list[float]]:
    """Touches a second, and the time of each in ms."""
    queue = iter(names)
    times: list[float] = []

    async def client() -> None:
        for name in queue:
            times.append(await touch(url, name, identity))

    begun = time.perf_counter()
    await asyncio.gather(*[client() for _ in range(clients)])
    return len(names) / (time.perf_counter() - begun), times


async def verify(url: str, names: list[str], expected: list[str]) -> int:
    """How many conversations do not hold exactly the acknowledged messages."""
    wrong = 0
    for name in names:
        async with Socket(url, name) as socket:
            history = await socket.call("getHistory")
        wrong += [entry["id"] for entry in history] != expected
    return wrong


def figures(server: Server) -> str:
    family = server.family()
    actors, gateways = server.actors(), server.gateways()
    memory = statistics.mean([resident_mb(process.pid) for process in actors] or [0])
    files = statistics.mean([open_files(process.pid) for process in actors] or [0])
    gateway = "".join(f", gateway {resident_mb(p.pid):.0f} MB and {open_files(p.pid)} descriptors" for p in gateways)
    return f"{len(family)} processes, {len(actors)} actors of {memory:.1f} MB and {files:.1f} descriptors{gateway}"


async def start_all_actors(server: Server, max_awake: int) -> None:
    """Ask for more conversations at a time than may be awake, until the actors that there may be are there."""
    deadline = time.monotonic() + 120
    while len(server.actors()) < max_awake and time.monotonic() < deadline:
        names = [f"warm-up-{number}" for number in range(2 * max_awake)]
        await in_turn(server.url, names, f"w{time.monotonic()}", 2 * max_awake)


async def measure(server: Server, options: argparse.Namespace) -> list[str]:
    count, clients = options.conversations, options.clients
    lines = []
    await start_all_actors(server, options.max_awake)
    warming = [f"warm-up-{number}" for number in range(200)]
    await in_turn(server.url, warming, "w2", options.clients)
    names = [f"conversation-{number}" for number in range(count)]
    lines.append(f"  before: {figures(server)}")
    for label, identity in (("new", "m1"), ("known", "m2")):
        rate, times = await in_turn(server.url, names, identity, clients)
        p99 = statistics.quantiles(times, n=100)[98]
        lines.append(f"  {label:6}: {rate:6.0f} a second, p50 {statistics.median(times):.1f} ms, p99 {p99:.1f} ms")
    lines.append(f"  after:  {figures(server)}")
    wrong = await verify(server.url, names, ["m1", "m2"])
    lines.append(f"  wrong conversations: {wrong} of {count}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--max-awake", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    with Server(None, "--max-awake", str(options.max_awake), "--idle-seconds", "600") as server:
        lines = asyncio.run(measure(server, options))
    print(f"{options.conversations:,} conversations in turn, max_awake {options.max_awake}, {options.clients} clients:")
    print("\n".join(lines))
    print("  (promised: at least 100 a second, 0 wrong, no growth)")


if __name__ == "__main__":
    main()
