"""A store that hangs, refuses, loses answers, or belongs to somebody else by now: who is told what, and what is read."""

import asyncio
import sqlite3
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_fakes import FaultyStore

from storage.checkpoints import (
    ConversationKey,
    OpenedConversation,
    StorageOptions,
    abandon_conversation,
    close_conversation,
    open_conversation,
)
from storage.checkpoints.replica import Replica
from storage.errors import Closed, Fenced, OutcomeUnknown, StoreUnavailable
from storage.replicated import open_replicated

KEY = ConversationKey("conversation", "alice")
DEADLINE = 0.2
OPTIONS = StorageOptions(store_deadline_seconds=DEADLINE, stale_read_seconds=60)
PATIENT = StorageOptions(store_deadline_seconds=20)


def migrate(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v)")


def insert(value: object) -> Callable[[sqlite3.Connection], Any]:
    return lambda c: c.execute("INSERT INTO t(v) VALUES(?)", (value,)).lastrowid


def values(connection: sqlite3.Connection) -> list[object]:
    return [row[0] for row in connection.execute("SELECT v FROM t ORDER BY id")]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def wake(
    store: FaultyStore, tmp_path: Path, options: StorageOptions = OPTIONS, clock: Clock | None = None, **more: Any
) -> OpenedConversation:
    if clock is None:
        return await open_conversation(store, KEY, tmp_path / "work", prepare=migrate, options=options, **more)
    replica = Replica(store, KEY, tmp_path / "work", prepare=migrate, options=options, clock=clock)
    return OpenedConversation(KEY, await open_replicated(replica, options=options, **more), replica)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.002)


async def hang(store: FaultyStore) -> None:
    store.is_waiting.clear()
    store.gate.clear()


async def hung(store: FaultyStore) -> None:
    assert await asyncio.to_thread(store.is_waiting.wait, 20)


async def recovered(opened: OpenedConversation, store: FaultyStore) -> None:
    store.gate.set()
    store.refuses = False
    await until(lambda: not opened.database.is_down)


# ---- hanging ----


async def test_a_read_during_a_hung_put_never_shows_what_is_on_its_way(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("confirmed"))
    await hang(store)
    write = asyncio.create_task(opened.database.write(insert("on its way")))
    await hung(store)
    read = asyncio.create_task(opened.database.read(values))
    assert await read == ["confirmed"], "from the last confirmed state"
    assert opened.database.is_down, "the gate is shut for reads too, until the deadline"
    with pytest.raises(OutcomeUnknown):
        await write
    assert opened.database.is_down
    assert await opened.database.read(values) == ["confirmed"]
    with pytest.raises(StoreUnavailable):
        await opened.database.write(insert("refused at once"))
    await recovered(opened, store)
    assert await opened.database.read(values) == ["confirmed", "on its way"]
    await opened.database.write(insert("after"))
    assert await close_conversation(opened) is None
    again = await wake(store, tmp_path)
    assert await again.database.read(values) == ["confirmed", "on its way", "after"]
    await close_conversation(again)


async def test_a_refused_write_leaves_nothing_in_the_next_ones_error(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path)
    await hang(store)
    with pytest.raises(OutcomeUnknown):
        await opened.database.write(insert("on its way"))

    async def lengths(kind: type[Exception]) -> list[int]:
        found = []
        for _ in range(3):
            with pytest.raises(kind) as caught:
                await opened.database.write(insert("refused at once"))
            found.append(len(list(traceback.walk_tb(caught.tb))))
        return found

    assert len(set(await lengths(StoreUnavailable))) == 1
    await recovered(opened, store)
    await abandon_conversation(opened)
    assert len(set(await lengths(Closed))) == 1


async def test_what_waits_behind_a_hung_put_was_certainly_not_executed(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("confirmed"))
    await hang(store)
    first = asyncio.create_task(opened.database.write(insert("unknown")))
    await hung(store)
    behind = asyncio.create_task(opened.database.write(insert("behind")))
    with pytest.raises(StoreUnavailable):
        await behind
    with pytest.raises(OutcomeUnknown):
        await first
    await recovered(opened, store)
    assert await opened.database.read(values) == ["confirmed", "unknown"]
    await close_conversation(opened)


async def test_a_hung_put_that_ends_in_time_is_an_ordinary_answer(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path, PATIENT)
    await hang(store)
    write = asyncio.create_task(opened.database.write(insert("slow")))
    await hung(store)
    store.gate.set()
    assert await write == 1
    assert not opened.database.is_down
    await close_conversation(opened)


async def test_a_long_operation_is_not_taken_for_a_hung_store(tmp_path: Path) -> None:
    store, hung_store = FaultyStore(), FaultyStore()
    opened, other = await wake(store, tmp_path), await wake(hung_store, tmp_path / "other")
    begun, slow = threading.Event(), threading.Event()

    def run(connection: sqlite3.Connection) -> None:
        begun.set()
        slow.wait(20)
        insert("slow")(connection)

    write = asyncio.create_task(opened.database.write(run))
    assert await asyncio.to_thread(begun.wait, 20)
    await hang(hung_store)
    with pytest.raises(OutcomeUnknown):  # that long is a hung store waited for
        await other.database.write(insert("unknown"))
    assert not write.done()
    assert not opened.database.is_down
    slow.set()
    await write
    hung_store.gate.set()
    await close_conversation(opened)
    await close_conversation(other)


async def test_a_hung_proof_lets_reads_go_on_from_the_confirmed_state(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("confirmed"))
    opened.replica.proof._proved_at -= 5
    await hang(store)
    assert await opened.database.read(values) == ["confirmed"]
    await recovered(opened, store)
    await opened.database.write(insert("more"))
    await close_conversation(opened)


async def test_closing_during_a_hang_ends_in_time_and_loses_nothing(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("confirmed"))
    await hang(store)
    write = asyncio.create_task(opened.database.write(insert("unknown")))
    await hung(store)
    assert isinstance(await close_conversation(opened), StoreUnavailable)
    with pytest.raises(OutcomeUnknown):
        await write
    with pytest.raises((Closed, StoreUnavailable)):
        await opened.database.read(values)
    store.gate.set()
    again = await wake(store, tmp_path)
    assert (await again.database.read(values))[0] == "confirmed"
    assert await close_conversation(again) is None


async def test_abandoning_during_a_hang_answers_everybody(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path, PATIENT)
    await hang(store)
    first = asyncio.create_task(opened.database.write(insert("unknown")))
    await hung(store)
    second = asyncio.create_task(opened.database.write(insert("behind")))
    third = asyncio.create_task(opened.database.read(values))
    await asyncio.sleep(0)
    await abandon_conversation(opened)
    results = await asyncio.gather(first, second, third, return_exceptions=True)
    assert [type(result) for result in results] == [OutcomeUnknown, Closed, Closed]
    store.gate.set()


# ---- refusing and losing answers ----


async def test_a_refused_record_is_sent_again_as_it_was_into_the_same_slot(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path, PATIENT)
    await opened.database.write(insert("one"))
    store.attempts.clear()
    store.loses_answers = 1
    assert await opened.database.write(insert("two")) == 2
    assert len(store.attempts) == 2
    assert store.attempts[0] == store.attempts[1]
    assert await opened.database.read(values) == ["one", "two"]
    assert await close_conversation(opened) is None


async def test_a_store_that_is_down_for_the_first_write_of_a_name_is_got_over(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path)
    store.refuses = True
    with pytest.raises(OutcomeUnknown):
        await opened.database.write(insert("first"))
    assert await opened.database.read(values) == []
    await recovered(opened, store)
    assert await opened.database.read(values) == ["first"]
    await opened.database.write(insert("second"))
    assert await close_conversation(opened) is None
    again = await wake(store, tmp_path / "elsewhere")
    assert await again.database.read(values) == ["first", "second"]
    await close_conversation(again)


async def test_a_write_that_changes_nothing_waits_for_a_proof_as_a_read_does(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("one"))
    opened.replica.proof._proved_at -= 5
    store.refuses = True
    with pytest.raises(OutcomeUnknown):
        await opened.database.write(lambda c: c.execute("DELETE FROM t WHERE id = 99").rowcount)
    assert not opened.replica.proof.is_fresh
    await recovered(opened, store)
    assert opened.replica.proof.is_fresh
    await close_conversation(opened)


async def test_closing_while_the_store_refuses_says_so_and_the_next_wake_has_everything(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("one"))
    store.refuses = True
    assert isinstance(await close_conversation(opened), StoreUnavailable)
    store.refuses = False
    again = await wake(store, tmp_path)
    assert not again.replica.started_warm
    assert not again.replica.log.was_closed
    assert await again.database.read(values) == ["one"]
    await close_conversation(again)


async def test_a_close_whose_answer_was_lost_is_a_close(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path, PATIENT)
    await opened.database.write(insert("one"))
    store.loses_answers = 1
    assert await close_conversation(opened) is None
    again = await wake(store, tmp_path)
    assert again.replica.started_warm
    assert again.replica.log.was_closed
    await close_conversation(again)


async def test_opening_while_the_store_refuses_is_one_typed_error(tmp_path: Path) -> None:
    store = FaultyStore()
    store.refuses = True
    with pytest.raises(StoreUnavailable):
        await wake(store, tmp_path)


# ---- proofs ----


async def test_reads_ask_the_store_at_most_once_a_second(tmp_path: Path) -> None:
    store, clock = FaultyStore(), Clock()
    opened = await wake(store, tmp_path, clock=clock)
    await opened.database.write(insert("one"))
    await opened.database.read(values)
    store.calls.clear()
    for _ in range(5):
        await opened.database.read(values)
    assert store.calls == []
    clock.now += 1.0
    for _ in range(5):
        await opened.database.read(values)
    assert store.calls == [f"exists {KEY.prefix}/log/{opened.slot + 1:016d}"]
    await close_conversation(opened)


async def test_a_thawed_zombie_reads_and_writes_nothing(tmp_path: Path) -> None:
    store, clock = FaultyStore(), Clock()
    lost: list[BaseException] = []
    zombie = await wake(store, tmp_path / "one", clock=clock, on_lost=lost.append)
    await zombie.database.write(insert("old"))
    owner = await wake(store, tmp_path / "two")
    await owner.database.write(insert("new"))
    clock.now += 1.0
    results = await asyncio.gather(
        zombie.database.read(values), zombie.database.write(insert("zombie")), return_exceptions=True
    )
    assert [type(result) for result in results] == [Fenced, Fenced]
    with pytest.raises(Fenced):
        await zombie.database.read(values)
    assert [type(exc) for exc in lost] == [Fenced]
    assert isinstance(await close_conversation(zombie), Fenced)
    assert not list((tmp_path / "one").rglob("*.sqlite"))
    assert await owner.database.read(values) == ["old", "new"]
    assert await close_conversation(owner) is None


async def test_a_fence_met_in_the_middle_of_an_outage_is_definite(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path / "one", PATIENT)
    await opened.database.write(insert("old"))
    store.refuses = True
    write = asyncio.create_task(opened.database.write(insert("never")))
    await until(lambda: opened.replica.log.has_pending)
    behind = asyncio.create_task(opened.database.write(insert("behind")))
    await asyncio.sleep(0)
    other = FaultyStore()
    other.objects = store.objects
    successor = await wake(other, tmp_path / "two")
    store.refuses = False
    results = await asyncio.gather(write, behind, return_exceptions=True)
    assert [type(result) for result in results] == [Fenced, Fenced]
    assert await successor.database.read(values) == ["old"]
    await close_conversation(opened)
    await close_conversation(successor)


async def test_stale_reads_end_after_their_time(tmp_path: Path) -> None:
    store, clock = FaultyStore(), Clock()
    opened = await wake(store, tmp_path, clock=clock)
    await opened.database.write(insert("one"))
    store.refuses = True
    for _ in range(59):
        clock.now += 1.0
        opened.replica.proof.beat()
        assert await opened.database.read(values) == ["one"]
    clock.now += 1.0
    opened.replica.proof.beat()
    with pytest.raises(StoreUnavailable):
        await opened.database.read(values)
    store.refuses = False
    clock.now += 1.0
    assert await opened.database.read(values) == ["one"]
    await close_conversation(opened)


async def test_after_a_pause_of_the_process_the_store_must_answer_first(tmp_path: Path) -> None:
    store, clock = FaultyStore(), Clock()
    opened = await wake(store, tmp_path, clock=clock)
    await opened.database.write(insert("one"))
    store.refuses = True
    clock.now += 1.0
    assert await opened.database.read(values) == ["one"]
    clock.now += 1.5
    with pytest.raises(StoreUnavailable):
        await opened.database.read(values)
    store.refuses = False
    clock.now += 0.6
    assert await opened.database.read(values) == ["one"]
    await close_conversation(opened)


async def test_a_read_that_must_not_be_stale_is_refused_after_a_pause_while_a_write_hangs(tmp_path: Path) -> None:
    store, clock = FaultyStore(), Clock()
    opened = await wake(store, tmp_path, clock=clock)
    await opened.database.write(insert("one"))
    await hang(store)
    write = asyncio.create_task(opened.database.write(insert("two")))
    with pytest.raises(OutcomeUnknown):
        await write
    assert await opened.database.read(values) == ["one"]
    clock.now += 5
    with pytest.raises(StoreUnavailable):
        await opened.database.read(values)
    await recovered(opened, store)
    clock.now += 1
    assert await opened.database.read(values) == ["one", "two"]
    await close_conversation(opened)
