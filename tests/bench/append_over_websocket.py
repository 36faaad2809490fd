"""Does an append over WebSocket cost more in a long conversation? One conversation of 10 messages, one of 5,000, a watcher each.

The two are measured in turn, in slices, in one run on one server; printed is the ratio of the medians.
"""

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from serving import Server
from wire import Socket, message

SLICES = 10


async def drain(socket: Socket) -> None:
    async for _ in socket.connection:
        pass


async def timed(socket: Socket, prefix: str, count: int) -> list[float]:
    times = []
    for number in range(count):
        text = message(f"{prefix}-{number}")
        begun = time.perf_counter()
        await socket.call("appendMessage", text)
        times.append((time.perf_counter() - begun) * 1000)
    return times


async def measure(url: str, long: int, appends: int) -> tuple[float, float]:
    async with Socket(url, "short") as a, Socket(url, "long") as b:
        async with Socket(url, "short") as watcher_a, Socket(url, "long") as watcher_b:
            drains = [asyncio.create_task(drain(watcher_a)), asyncio.create_task(drain(watcher_b))]
            await a.fill(10)
            await b.fill(long)
            short_times: list[float] = []
            long_times: list[float] = []
            for index in range(SLICES):
                # the short one is cleared between slices: it must stay short
                await a.call("clearMessages")
                await a.fill(10, f"again{index}-")
                short_times += await timed(a, f"s{index}", appends // SLICES)
                long_times += await timed(b, f"l{index}", appends // SLICES)
            for task in drains:
                task.cancel()
    return statistics.median(short_times), statistics.median(long_times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", type=int, default=5_000)
    parser.add_argument("--appends", type=int, default=400)
    options = parser.parse_args()
    with Server() as server:
        short, long = asyncio.run(measure(server.url, options.long, options.appends))
    print(f"append over WebSocket with a watcher, median of {options.appends}:")
    print(f"  at 10 messages      {short:8.2f} ms")
    print(f"  at {options.long:,} messages   {long:8.2f} ms")
    print(f"  ratio               {long / short:8.2f}    (promised: at most 1.3)")


if __name__ == "__main__":
    main()
