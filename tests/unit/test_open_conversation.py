"""A conversation between the store and its local file: lazy claim, warm and cold wakes, reading, hints, the end."""

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from store_fakes import FaultyStore

from storage import replicated, schema
from storage.checkpoints import (
    ConversationKey,
    MemoryStore,
    OpenedConversation,
    StorageOptions,
    abandon_conversation,
    close_conversation,
    forget_warm,
    list_conversations,
    open_conversation,
    read_conversation,
    read_meta,
)
from storage.checkpoints.layout import slot_key, slots_in
from storage.checkpoints.records import Kind, decode
from storage.checkpoints.replica import Replica
from storage.errors import CorruptDatabase, CorruptRecord, Fenced, ForeignDatabase, LocalDiskFailed

KEY = ConversationKey("conversation", "alice")
WARM = ["clean.json", "warm.sqlite", "warm.sqlite-shm", "warm.sqlite-wal"]
SMALL = StorageOptions(snapshot_slots=8, retention_seconds=0)


def migrate(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v)")


def insert(value: object) -> Callable[[sqlite3.Connection], Any]:
    return lambda c: c.execute("INSERT INTO t(v) VALUES(?)", (value,)).lastrowid


def values(connection: sqlite3.Connection) -> list[object]:
    return [row[0] for row in connection.execute("SELECT v FROM t ORDER BY id")]


async def wake(store: MemoryStore, tmp_path: Path, **more: Any) -> OpenedConversation:
    return await open_conversation(store, KEY, tmp_path / "work", prepare=migrate, **more)


async def settled(opened: OpenedConversation) -> None:
    """Wait for what follows a confirmed write: a snapshot that was due is made."""
    await opened.database.read(lambda c: None)
    opened.replica.stop()


def folder(tmp_path: Path) -> Path:
    return tmp_path / "work" / KEY.prefix


def kinds(store: MemoryStore) -> str:
    letters = {Kind.OPEN: "O", Kind.DATA: "D", Kind.CLOSE: "C"}
    slots = slots_in(store, f"{KEY.prefix}/log")
    return "".join(letters[decode(store.get(slot_key(KEY.prefix, slot)), "x").header.kind] for slot in slots)


# ---- names that were never written ----


async def test_reading_a_new_name_leaves_nothing_anywhere(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    assert await opened.database.read(values) == []
    assert (opened.epoch, opened.slot, opened.is_claimed) == (0, -1, False)
    assert await close_conversation(opened) is None
    assert store.objects == {}
    assert not folder(tmp_path).exists()


async def test_a_write_that_changes_nothing_does_not_claim(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(lambda c: c.execute("DELETE FROM t WHERE id = 5").rowcount)
    assert await close_conversation(opened) is None
    assert store.objects == {}


async def test_the_first_write_claims_and_carries_the_tables(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    assert (opened.epoch, opened.slot, opened.is_claimed) == (1, 1, True)
    await abandon_conversation(opened)
    again = await wake(store, tmp_path)
    assert await again.database.read(values) == ["x"]
    assert not again.replica.started_warm
    assert await close_conversation(again) is None


async def test_an_eager_claim_writes_its_fence_at_once(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path, claim="eager")
    assert opened.epoch == 1
    assert kinds(store) == "O"
    await opened.database.write(insert("x"))
    assert await close_conversation(opened) is None
    assert kinds(store) == "ODC"


async def test_tables_that_were_never_stored_are_not_taken_for_stored_by_the_next_wake(tmp_path: Path) -> None:
    """Claimed, but never written: the local tables are in no slot, so the file must not stay."""
    store = MemoryStore()
    opened = await wake(store, tmp_path, claim="eager")
    assert await close_conversation(opened) is None
    opened = await wake(store, tmp_path)
    assert not opened.replica.started_warm
    await opened.database.write(insert("x"))
    await close_conversation(opened)
    forget_warm(tmp_path / "work", KEY)
    opened = await wake(store, tmp_path)
    assert await opened.database.read(values) == ["x"]
    await close_conversation(opened)


async def test_two_first_writers_of_one_name_are_told_apart(tmp_path: Path) -> None:
    store = MemoryStore()
    first = await wake(store, tmp_path / "one")
    lost: list[BaseException] = []
    second = await wake(store, tmp_path / "two", on_lost=lost.append)
    await first.database.write(insert("first"))
    with pytest.raises(Fenced):
        await second.database.write(insert("second"))
    assert isinstance(lost[0], Fenced)
    assert isinstance(await close_conversation(second), Fenced)
    assert await first.database.read(values) == ["first"]
    assert await close_conversation(first) is None


async def test_an_unclaimed_reader_ends_when_somebody_has_written(tmp_path: Path) -> None:
    store = MemoryStore()
    reader = await wake(store, tmp_path / "one")
    writer = await wake(store, tmp_path / "two")
    await writer.database.write(insert("x"))
    reader.replica.proof._proved_at = float("-inf")
    with pytest.raises(Fenced):
        await reader.database.read(values)
    await close_conversation(reader)
    await close_conversation(writer)


# ---- warm and cold ----


async def test_a_warm_wake_reuses_the_file_and_a_cold_one_restores_it(tmp_path: Path) -> None:
    store = MemoryStore()
    for number in range(6):
        opened = await wake(store, tmp_path)
        assert opened.replica.started_warm is (number in (1, 2, 4, 5))
        assert await opened.database.read(values) == list(range(number))
        await opened.database.write(insert(number))
        assert await close_conversation(opened) is None
        assert sorted(os.listdir(folder(tmp_path))) == WARM
        if number == 2:
            forget_warm(tmp_path / "work", KEY)
    assert kinds(store) == "ODC" * 6


@pytest.mark.parametrize("how", ["abandoned", "changed", "no clean", "other boot", "elsewhere"])
async def test_an_untrustworthy_file_is_never_reused(tmp_path: Path, how: str) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("good"))
    if how == "abandoned":
        await abandon_conversation(opened)
        assert not folder(tmp_path).exists()
    else:
        await close_conversation(opened)
    warm = folder(tmp_path) / "warm.sqlite"
    clean = folder(tmp_path) / "clean.json"
    if how == "changed":
        connection = sqlite3.connect(warm)
        connection.execute("INSERT INTO t(v) VALUES('evil')")
        connection.commit()
        connection.close()
    elif how == "no clean":
        clean.unlink()
    elif how == "other boot":
        clean.write_text(clean.read_text().replace('"boot_id":"', '"boot_id":"0'))
    elif how == "elsewhere":
        other = await wake(store, tmp_path / "other node")
        await other.database.write(insert("newer"))
        await close_conversation(other)
    opened = await wake(store, tmp_path)
    assert opened.replica.started_warm is (how == "elsewhere"), (
        "the log's tip of then is still there: only the rest is replayed"
    )
    assert await opened.database.read(values) == (["good", "newer"] if how == "elsewhere" else ["good"])
    assert await close_conversation(opened) is None


async def test_a_file_that_an_unclean_stop_left_is_swept(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    await close_conversation(opened)
    for suffix in ("", "-wal", "-shm"):
        (folder(tmp_path) / f"live-dead.sqlite{suffix}").write_bytes(b"left behind")
    opened = await wake(store, tmp_path)
    assert opened.replica.started_warm
    assert not list(folder(tmp_path).glob("live-dead*"))
    await close_conversation(opened)


async def test_everything_local_is_private_and_no_name_becomes_a_path(tmp_path: Path) -> None:
    store = MemoryStore()
    old = os.umask(0)
    try:
        for name in ("../../etc/x", "\0", "é" * 256, "A", "a", "\ud800"):
            key = ConversationKey("conversation", name)
            opened = await open_conversation(store, key, tmp_path / "work", prepare=migrate)
            await opened.database.write(insert(1))
            for directory, _, files in os.walk(tmp_path / "work"):
                assert os.stat(directory).st_mode & 0o777 == 0o700
                assert all(os.stat(Path(directory, file)).st_mode & 0o777 == 0o600 for file in files)
            assert await close_conversation(opened) is None
    finally:
        os.umask(old)
    assert sorted(meta.name for meta in list_conversations(store)) == sorted(
        ["../../etc/x", "\0", "é" * 256, "A", "a", "\ud800"]
    )
    assert all(key.isascii() and ".." not in key for key in store.objects)


async def test_descriptors_and_threads_are_back_after_the_end(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    await close_conversation(opened)
    before = (len(os.listdir("/proc/self/fd")), threading.active_count())
    for _ in range(10):
        opened = await wake(store, tmp_path)
        await opened.database.write(insert("x"))
        await close_conversation(opened)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


# ---- snapshots ----


async def test_snapshots_are_made_beside_the_writing_and_old_ones_collected(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path, options=SMALL)
    for number in range(120):
        await opened.database.write(insert(number))
        await settled(opened)
    snapshots = slots_in(store, f"{KEY.prefix}/snap")
    assert len(snapshots) == 2, "two are kept, and with no retention no more"
    slots = slots_in(store, f"{KEY.prefix}/log")
    assert slots[0] == 0
    assert slots[1] == snapshots[0] + 1
    await abandon_conversation(opened)
    opened = await wake(store, tmp_path)
    assert await opened.database.read(values) == list(range(120))
    assert opened.replica.log.snapshot.slot == snapshots[-1]
    await close_conversation(opened)


async def test_a_snapshot_holds_exactly_the_state_of_its_slot(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path, options=replace(SMALL, retention_seconds=3600))
    for number in range(60):
        await opened.database.write(insert(number))
    await close_conversation(opened)
    every = slots_in(store, f"{KEY.prefix}/snap")
    assert every
    for slot in every:
        past = MemoryStore()
        past.objects = {
            key: data
            for key, data in store.objects.items()
            if ("/snap/" in key and key.endswith(f"{slot:016d}")) or ("/log/" in key and int(key[-16:]) <= slot)
        }
        with_snapshot = read_conversation(past, KEY, tmp_path)
        assert with_snapshot is not None
        first = with_snapshot[0].read_bytes()
        past.objects = {key: data for key, data in past.objects.items() if "/snap/" not in key}
        without = read_conversation(past, KEY, tmp_path)
        assert without is not None
        assert without[0].read_bytes() == first


async def test_a_due_snapshot_is_made_at_hibernation(tmp_path: Path) -> None:
    store = MemoryStore()
    for _ in range(4):  # three slots each
        opened = await wake(store, tmp_path, options=SMALL)
        await opened.database.write(insert("x"))
        await close_conversation(opened)
    assert slots_in(store, f"{KEY.prefix}/snap") == [10]


async def test_a_reader_that_pins_the_log_delays_the_snapshot_only(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path, options=SMALL)
    await opened.database.write(insert("x"))
    inspector = sqlite3.connect(f"{opened.database.path.as_uri()}?mode=ro", uri=True)
    inspector.execute("BEGIN")
    inspector.execute("SELECT * FROM t").fetchall()
    for number in range(40):
        await opened.database.write(insert(number))
    assert slots_in(store, f"{KEY.prefix}/snap") == []
    inspector.close()
    for number in range(40):
        await opened.database.write(insert(number))
        await settled(opened)
    assert slots_in(store, f"{KEY.prefix}/snap")
    await close_conversation(opened)


async def test_a_failing_snapshot_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore()

    def refuse(key: str) -> None:
        if "/snap/" in key:
            raise OSError("no snapshots today")

    store.before_create = refuse
    opened = await wake(store, tmp_path, options=SMALL)
    for number in range(30):
        await opened.database.write(insert(number))
    assert await close_conversation(opened) is None
    assert "no snapshot" in caplog.text


async def test_inspectors_and_backups_beside_a_writer_never_meet_a_lock(tmp_path: Path) -> None:
    """B85: other connections read the file of an awake conversation while it writes, checkpoints and hibernates."""
    opened = await wake(MemoryStore(), tmp_path, options=SMALL)
    await opened.database.write(insert("x"))
    address = f"{opened.database.path.as_uri()}?mode=ro"
    is_over = threading.Event()

    def inspect() -> int:
        rounds = 0
        while not is_over.is_set():
            connection = sqlite3.connect(address, uri=True, timeout=0)
            values(connection)
            copy = sqlite3.connect(":memory:")
            connection.backup(copy)
            assert copy.execute("PRAGMA quick_check").fetchone() == ("ok",)
            copy.close()
            connection.close()
            rounds += 1
        return rounds

    inspectors = [asyncio.create_task(asyncio.to_thread(inspect)) for _ in range(2)]
    for number in range(300):
        await opened.database.write(insert(number))
    is_over.set()
    assert all(rounds > 0 for rounds in await asyncio.gather(*inspectors))
    assert len(await opened.database.read(values)) == 301
    assert await close_conversation(opened) is None


# ---- damage ----


async def _damaged(store: MemoryStore, tmp_path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    await opened.database.write(change)
    await abandon_conversation(opened)


async def test_a_foreign_database_is_refused_untouched_and_put_aside(tmp_path: Path) -> None:
    store = MemoryStore()
    await _damaged(store, tmp_path, lambda c: c.execute("PRAGMA application_id=77").fetchall())
    before = dict(store.objects)
    with pytest.raises(ForeignDatabase, match="conversation/alice"):
        await wake(store, tmp_path)
    assert store.objects == before
    assert len(list((tmp_path / "work" / "quarantine").iterdir())) == 1


async def test_a_corrupt_database_is_refused_untouched_and_put_aside(tmp_path: Path) -> None:
    def corrupt(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_schema SET rootpage = 99 WHERE name = 't'")

    store = MemoryStore()
    await _damaged(store, tmp_path, corrupt)
    before = dict(store.objects)
    for _ in range(2):
        with pytest.raises(CorruptDatabase, match=r"conversation/alice.*a copy is in .*quarantine"):
            await wake(store, tmp_path)
    assert store.objects == before
    assert len(list((tmp_path / "work" / "quarantine").iterdir())) == 1


async def test_a_failed_migration_keeps_the_conversation(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    await close_conversation(opened)

    def bad(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE t")
        raise ForeignDatabase("it", "too new")

    with pytest.raises(ForeignDatabase):
        await open_conversation(store, KEY, tmp_path / "work", prepare=bad)
    opened = await wake(store, tmp_path)
    assert await opened.database.read(values) == ["x"]
    await close_conversation(opened)


async def test_a_migration_of_a_stored_conversation_is_stored(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    await close_conversation(opened)

    def more(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE t ADD COLUMN w DEFAULT 7")

    opened = await open_conversation(store, KEY, tmp_path / "work", prepare=more)
    await abandon_conversation(opened)
    opened = await wake(store, tmp_path)
    assert await opened.database.read(lambda c: c.execute("SELECT v, w FROM t").fetchall()) == [("x", 7)]
    await close_conversation(opened)


# ---- reading and hints ----


async def test_a_copy_is_read_beside_a_writer_without_claiming(tmp_path: Path) -> None:
    store = MemoryStore()
    assert read_conversation(store, KEY, tmp_path) is None
    opened = await wake(store, tmp_path)
    for number in range(3):
        await opened.database.write(insert(number))
        found = read_conversation(store, KEY, tmp_path)
        assert found is not None
        connection = sqlite3.connect(found[0])
        assert values(connection) == list(range(number + 1))
        connection.close()
    assert await close_conversation(opened) is None
    assert kinds(store) == "ODDDC"


async def test_a_damaged_log_cannot_be_read_either(tmp_path: Path) -> None:
    store = MemoryStore()
    await _damaged(store, tmp_path, insert("y"))
    store.objects[slot_key(KEY.prefix, 2)] = b"junk"
    with pytest.raises(CorruptRecord):
        read_conversation(store, KEY, tmp_path)


async def test_the_hint_tells_name_counts_and_place_in_the_log(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path, describe=lambda _: {"messages": 12, "tokens": 345})
    await opened.database.write(insert("x"))
    await settled(opened)
    meta = read_meta(store, KEY)
    assert meta is not None
    assert (meta.agent, meta.name, meta.slot, meta.messages) == ("conversation", "alice", 1, None)
    await close_conversation(opened)
    (listed,) = list_conversations(store)
    assert (listed.messages, listed.tokens, listed.slot, listed.epoch) == (12, 345, 2, 1)
    assert listed.created == meta.created
    opened = await wake(store, tmp_path)
    await close_conversation(opened)
    again = read_meta(store, KEY)
    assert again is not None
    assert (again.messages, again.created, again.epoch) == (12, meta.created, 2)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_vanishes_between_restore_and_open_is_not_taken_for_an_empty_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    await close_conversation(opened)
    real = Replica.restore

    def restore(self: Replica) -> Path:
        path = real(self)
        path.unlink()
        if replaced:
            path.touch()
        return path

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "restore", restore)
        with pytest.raises(LocalDiskFailed):
            await wake(store, tmp_path)
    opened = await wake(store, tmp_path)
    assert await opened.database.read(values) == ["x"]
    await close_conversation(opened)
    assert "D" not in kinds(store)[2:]


async def test_a_cancelled_open_lets_go_of_everything(tmp_path: Path) -> None:
    store = FaultyStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    await close_conversation(opened)
    store.gate.clear()
    store.is_waiting.clear()
    task = asyncio.create_task(wake(store, tmp_path))
    await asyncio.to_thread(store.is_waiting.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.gate.set()
    await asyncio.gather(*replicated._ending)
    opened = await wake(store, tmp_path)
    assert await opened.database.read(values) == ["x"]
    await close_conversation(opened)


async def test_log_files_of_somebody_who_did_not_end_are_never_taken_over(tmp_path: Path) -> None:
    """A process that is stopped between putting its log files by and its end still has them mapped."""
    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    mine = [Path(f"{opened.database.path}{suffix}") for suffix in ("-wal", "-shm")]
    for path, name in zip(mine, ("warm.sqlite-wal", "warm.sqlite-shm"), strict=True):
        os.link(path, path.with_name(name))
    inodes = {os.stat(path).st_ino for path in mine}
    other = await wake(store, tmp_path)
    assert not {os.stat(f"{other.database.path}{suffix}").st_ino for suffix in ("-wal", "-shm")} & inodes
    assert await other.database.read(values) == ["x"]
    await close_conversation(other)
    await abandon_conversation(opened)


async def test_a_file_that_cannot_be_kept_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = MemoryStore()
    opened = await wake(store, tmp_path)
    await opened.database.write(insert("x"))
    with monkeypatch.context() as patch:
        patch.setattr("storage.checkpoints.warm.orjson", SimpleNamespace(dumps=full))
        assert await close_conversation(opened) is None
    assert not folder(tmp_path).exists()
    opened = await wake(store, tmp_path)
    assert await opened.database.read(values) == ["x"]
    await close_conversation(opened)


class _FullAt:
    """A connection whose disk is full when it comes to one statement."""

    def __init__(self, connection: sqlite3.Connection, at: str) -> None:
        self._connection = connection
        self._at = at

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str) -> sqlite3.Cursor:
        if sql.startswith(self._at):
            if self.in_transaction:
                self._connection.execute("ROLLBACK")  # as SQLite does by itself then
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full
        return self._connection.execute(sql)


@pytest.mark.parametrize("at", ["BEGIN", "CREATE", "COMMIT"])
async def test_a_disk_that_is_full_at_the_open_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    real = Replica.opened

    def opened(self: Replica, connection: sqlite3.Connection) -> None:
        real(self, _FullAt(connection, at))  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "opened", opened)
        with pytest.raises(LocalDiskFailed, match="database or disk is full"):
            await wake(MemoryStore(), tmp_path)
    assert not folder(tmp_path).exists()


async def test_a_new_name_begins_with_its_template_and_ships_it_with_the_first_write(tmp_path: Path) -> None:
    store = MemoryStore()
    image = schema.template()
    opened = await open_conversation(store, KEY, tmp_path / "work", template=image)
    assert list(store.list("")) == []
    assert await opened.database.read(schema.version) == schema.NEWEST
    await opened.database.write(lambda c: c.execute("INSERT INTO perdure_state VALUES ('k', 'v')").rowcount)
    await close_conversation(opened)
    forget_warm(tmp_path / "work", KEY)
    opened = await open_conversation(store, KEY, tmp_path / "work", template=image)
    assert await opened.database.read(lambda c: c.execute("SELECT value FROM perdure_state").fetchall()) == [("v",)]
    await close_conversation(opened)
