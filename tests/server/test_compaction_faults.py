"""A real server whose conversation's process is killed while it writes a summary."""

import os
import signal
import statistics
import time

from serving import Server
from wire import CallFailed, Socket, message

AGENTS = ("agents_for_tests:Slow", "agents_for_tests:Crashing")
RETRYABLE = ("It is not known whether", "repeat the call")


async def append_until_acknowledged(socket: Socket, entry: dict) -> None:
    for _ in range(50):
        try:
            await socket.call("appendMessage", entry)
        except CallFailed as exc:
            if not any(sentence in str(exc) for sentence in RETRYABLE):
                raise
        else:
            return
    raise AssertionError(f"{entry['id']} was never acknowledged")


async def summarizing(socket: Socket) -> dict:
    """The next frame that says that a summary is being written."""
    frames = await socket.frames_until(lambda frame: frame["type"] == "summarizing")
    frame = next(frame for frame in frames if frame["type"] == "summarizing")
    socket.others.clear()
    return frame


async def seconds(socket: Socket, entry: dict) -> float:
    begun = time.perf_counter()
    await socket.call("appendMessage", entry)
    await socket.call("getPathLength")
    return time.perf_counter() - begun


async def test_kill_of_a_process_that_summarizes_loses_and_doubles_nothing_and_the_next_run_folds_all() -> None:
    """Until then appends and reads go on at their usual speed, which is that of a conversation like it that never summarizes."""
    with Server(None, "--compact-after", "5000", agents=AGENTS) as server:
        async with Socket(server.url, "written", "slow") as socket, Socket(server.url, "twin", "crashing") as twin:
            names = [f"m{number}" for number in range(100)]
            for name in names[:60]:  # of some 100 tokens each
                await socket.call("appendMessage", message(name))
                await twin.call("appendMessage", message(name))
            first = await summarizing(socket)
            times = [(await seconds(socket, message(name)), await seconds(twin, message(name))) for name in names[60:]]
            summarized, usual = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"an append and a read take {summarized / usual:.2f} times as long while a summary is being written")
            assert summarized < 2 * usual
            os.kill(first["pid"], signal.SIGKILL)
            await append_until_acknowledged(socket, message("after"))
            again = await summarizing(socket)
            assert again["pid"] != first["pid"]
            assert await socket.call("getCompactions") == []
            assert [entry["id"] for entry in await socket.call("getHistory")] == [*names, "after"]
            await socket.call("endSummary")
            visible = [entry["id"] for entry in await socket.call("getHistory")]
            assert visible[0].startswith("compaction_")
            assert visible[1:] == ["m99", "after"]
            assert [entry["id"] for entry in await socket.call("getRawHistory")] == [*names, "after"]
            assert len(await socket.call("getCompactions")) == 1
