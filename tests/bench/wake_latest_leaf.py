"""Is a wake slower for a long conversation? `getLatestLeaf` right after a wake, 10 messages against 5,000, warm and cold.

Between two wakes the conversation is put to sleep by touching others until it is the least recently used. Cold: the local
files are removed before the wake, so that the conversation is restored from the checkpoint store.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from serving import Server
from wire import Socket, message

MAX_AWAKE = 4


async def put_to_sleep(url: str, round_number: int) -> None:
    """Touch more other conversations than may be awake."""
    for number in range(MAX_AWAKE + 2):
        async with Socket(url, f"other-{number}") as socket:
            await socket.call("appendMessage", message(f"o{round_number}"))


async def touch(url: str, name: str) -> float:
    begun = time.perf_counter()
    async with Socket(url, name) as socket:
        await socket.call("getLatestLeaf")
    return (time.perf_counter() - begun) * 1000


async def measure(server: Server, long: int, rounds: int) -> dict[tuple[str, str], float]:
    sizes = {"10 messages": 10, f"{long:,} messages": long}
    for name, count in sizes.items():
        async with Socket(server.url, name.replace(" ", "-").replace(",", "")) as socket:
            await socket.fill(count)
    figures: dict[tuple[str, str], list[float]] = {}
    for state in ("warm", "cold"):
        for round_number in range(rounds):
            for name in sizes:
                await put_to_sleep(server.url, round_number)
                if state == "cold":
                    assert remove_local_files(server.data) >= len(sizes)
                figures.setdefault((state, name), []).append(
                    await touch(server.url, name.replace(" ", "-").replace(",", ""))
                )
    return {key: statistics.median(times) for key, times in figures.items()}


def remove_local_files(data: Path) -> int:
    """Those of conversations that went to sleep cleanly; how many there were."""
    asleep = list(data.glob("node-*/work/*/*/warm.sqlite"))
    for marker in asleep:
        shutil.rmtree(marker.parent)
    return len(asleep)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with Server(None, "--max-awake", str(MAX_AWAKE), "--idle-seconds", "600") as server:
        figures = asyncio.run(measure(server, options.long, options.rounds))
    short, long = "10 messages", f"{options.long:,} messages"
    print(f"connect, wake, latest leaf, close; median of {options.rounds}:")
    for state in ("warm", "cold"):
        ratio = figures[state, long] / figures[state, short]
        print(
            f"  {state}: {figures[state, short]:7.2f} ms at {short}, {figures[state, long]:7.2f} ms at {long}: ratio {ratio:.2f}"
        )
    print("  (promised: at most 3)")


if __name__ == "__main__":
    main()
