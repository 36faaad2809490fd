"""Faults that products of this kind have had, in the library: what no other test here shows. Cases: test_fault_index.py."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import textwrap

import pytest
from awake import awake
from wire import message

from actors import Session
from actors.summarizers import compact_extractively
from storage import open_database
from storage.checkpoints import MemoryStore


@pytest.fixture
async def session(tmp_path):
    database = await open_database(tmp_path / "chat.db")
    yield Session.create(database).with_context("memory", max_tokens=1_000)
    await database.close()


async def ids(session):
    return [entry["id"] for entry in await session.get_history()]


async def test_the_recent_history_of_one_batch_is_its_newest_part_in_order(session):  # B02, B04
    await asyncio.gather(*[session.append_message(message(f"m{number}", "x")) for number in range(25)])
    recent = await session.get_recent_history(0, min_recent_messages=10)
    assert [entry["id"] for entry in recent["messages"]] == [f"m{number}" for number in range(15, 25)]


async def test_appends_within_one_tick_of_the_clock_are_both_accepted(session):  # B05
    await asyncio.gather(session.append_message(message("a")), session.append_message(message("b")))
    assert await ids(session) == ["a", "b"]


async def test_a_stream_a_second_client_and_a_tool_write_side_by_side(tmp_path):  # B08
    async with awake(tmp_path) as hall:
        await hall.connect(1)
        await hall.connect(2)
        hall.send("stream", "count", 200)
        hall.send("append", "appendMessage", message("m1"), connection=2)
        tool = (await hall.conversation._agent.session.tools())["set_context"]
        written = await tool.execute({"label": "memory", "content": "tea", "action": "append"})
        await hall.answer("append")
        await hall.answer("stream")
        assert "Written to memory" in written
        assert [entry["id"] for entry in await hall.call("getHistory")] == ["m1"]
        assert (await hall.call("getContextBlock", "memory"))["content"] == "tea"


async def test_a_result_that_could_not_be_stored_is_stored_once_by_the_retry(session, monkeypatch):  # B11
    call = {"type": "dynamic-tool", "toolCallId": "c1", "toolName": "t", "input": {}, "state": "input-available"}
    done = {**call, "output": "42", "state": "output-available"}
    await session.append_message({"id": "a1", "role": "assistant", "parts": [call]})
    database = session._owner

    async def disk_full(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", disk_full)
        with pytest.raises(sqlite3.OperationalError):
            await session.update_message({"id": "a1", "role": "assistant", "parts": [done]})
    assert (await session.get_message("a1"))["parts"] == [call]
    for _ in range(2):
        await session.update_message({"id": "a1", "role": "assistant", "parts": [done]})
    assert [entry["parts"] for entry in await session.get_history()] == [[done]]


async def test_one_bad_code_unit_changes_nothing_else(session):  # B56
    text = "航班\ud83d已经取消了，请重新预订。"
    await session.append_message(message("m1", text))
    stored = (await session.get_message("m1"))["parts"][0]["text"]
    assert stored == text.replace("\ud83d", "�")


@pytest.mark.parametrize("given", [None, "", [], '{"a": 1}', 7])
async def test_a_tool_input_of_any_kind_is_stored_untouched(session, given):  # B61
    part = {"type": "dynamic-tool", "toolCallId": "c", "toolName": "t", "input": given, "state": "input-available"}
    await session.append_message({"id": "m1", "role": "assistant", "parts": [part]})
    assert (await session.get_message("m1"))["parts"] == [part]


async def test_a_summary_of_emoji_never_cuts_a_character():  # B55
    for length in range(190, 210):
        messages = [message(f"m{number}", "😀" * length) for number in range(10)]
        result = await compact_extractively(messages)
        assert set(result.summary.splitlines()[1].removeprefix("user: ")) <= {"😀", "…"}
        result.summary.encode()


async def test_readers_backups_and_the_writer_never_lock_each_other_out(tmp_path):  # B85
    """An inspector and a backup from other connections, for the largest number of writes that takes seconds."""
    database = await open_database(tmp_path / "chat.db")
    session = Session.create(database)
    await session.append_message(message("first"))
    stop = False
    looks = 0

    def inspect() -> None:
        nonlocal looks
        with contextlib.closing(sqlite3.connect(f"file:{database.path}?mode=ro", uri=True, timeout=0)) as inspector:
            while not stop:
                inspector.execute("SELECT count(*) FROM assistant_messages").fetchone()
                with contextlib.closing(sqlite3.connect(":memory:")) as copy:
                    inspector.backup(copy)
                looks += 1

    inspecting = asyncio.create_task(asyncio.to_thread(inspect))
    try:
        for start in range(0, 2_000, 50):
            numbers = range(start, start + 50)
            await asyncio.gather(*[session.append_message(message(f"m{number}")) for number in numbers])
    finally:
        stop = True
        await inspecting
    assert looks > 5
    assert await session.get_path_length() == 2_001
    await database.close()


async def test_a_compaction_during_a_recovery_confuses_nothing(tmp_path):  # B74
    """Progress is the slot, not the length of the history: a wake after a compaction holds what was there."""
    store = MemoryStore()
    async with awake(tmp_path, store=store) as hall:
        await hall.connect()
        for number in range(8):
            await hall.call("appendMessage", message(f"m{number}"))
        before = hall.conversation._opened.slot
        assert (await hall.call("compact"))["toMessageId"] == "m5"
        assert hall.conversation._opened.slot > before
    async with awake(tmp_path, store=store) as hall:
        await hall.connect()
        visible = [entry["id"] for entry in await hall.call("getHistory")]
        assert [visible[0][:11], *visible[1:]] == ["compaction_", "m6", "m7"]
        assert await hall.call("getPathLength") == 8


def test_a_wake_of_a_large_conversation_needs_memory_for_its_window_only(tmp_path):  # B59
    """100 MB in 1,000 messages, restored from the store in a fresh process; then its newest 4 MB and a status frame."""
    program = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        sys.path[:0] = [sys.argv[2]]
        from awake import awake
        from wire import message
        from storage.checkpoints import open_store

        def peak():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

        async def main(folder, fill):
            async with awake(folder, store=open_store(str(folder / "store")), compact_after=10**9) as hall:
                await hall.connect()
                if fill:
                    for number in range(1_000):
                        hall.send(str(number), "appendMessage", message(f"m{number}", f"{number:08d}" * 12_500))
                        if number % 20 == 19:
                            await hall.answer(str(number))
                            hall.events.clear()
                    return
                recent = await hall.call("getRecentHistory", 4_000_000)
                assert len(recent["messages"]) >= 30, len(recent["messages"])
                hall.send("last", "appendMessage", message("last"))
                await hall.answer("last")
                print(peak())

        async def small(folder):
            folder.mkdir(exist_ok=True)
            async with awake(folder) as hall:
                await hall.connect()
                await hall.call("appendMessage", message("m"))
                await hall.call("getRecentHistory", 4_000_000)
            print(peak())

        folder = Path(sys.argv[1])
        asyncio.run(small(folder / "small") if sys.argv[3] == "small" else main(folder, sys.argv[3] == "fill"))
        """
    )
    support = str(__import__("pathlib").Path(__file__).parents[1] / "support")

    def run(what: str) -> str:
        command = [sys.executable, "-c", program, str(tmp_path), support, what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    run("fill")
    work = tmp_path / "work"
    for path in sorted(work.rglob("*"), reverse=True):  # cold: nothing but the store
        path.rmdir() if path.is_dir() else path.unlink()
    grown = float(run("wake")) - float(run("small"))
    print(f"a wake of 100 MB needs {grown:.0f} MB more than one of a single message")
    assert grown < 64
