"""A folder as the store: flipped bits, torn files, full disks."""

import errno
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoints import (
    ConversationKey,
    DirectoryStore,
    OpenedConversation,
    StorageOptions,
    abandon_conversation,
    close_conversation,
    open_conversation,
    read_conversation,
)
from storage.errors import CorruptRecord, LocalDiskFailed, OutcomeUnknown, StorageError, StoreUnavailable

KEY = ConversationKey("conversation", "alice")
OPTIONS = StorageOptions(store_deadline_seconds=1.0, snapshot_slots=8, retention_seconds=3600)


def migrate(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v)")


def insert(value: object) -> Callable[[sqlite3.Connection], Any]:
    return lambda c: c.execute("INSERT INTO t(v) VALUES(?)", (value,)).lastrowid


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])


async def filled(store: DirectoryStore, work: Path, rows: int) -> None:
    opened = await open_conversation(store, KEY, work, prepare=migrate, options=OPTIONS)
    for number in range(rows):
        await opened.database.write(insert(f"{number}" * 50))
        await opened.database.read(count)
        opened.replica.stop()
    await abandon_conversation(opened)


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


async def test_a_flipped_bit_anywhere_is_refused_or_harmless_and_never_wrong(tmp_path: Path) -> None:
    """After a snapshot the older slots are not read; the newest snapshot has an older one and the slots to fall back on."""
    store = DirectoryStore(tmp_path / "store")
    await filled(store, tmp_path / "work", 20)
    folder = tmp_path / "store" / KEY.prefix
    newest = max(int(path.name) for path in folder.glob("snap/*"))
    refused = 0
    for path in sorted(folder.glob("*/*")):
        if path.parent.name == "floor":
            continue
        whole = path.read_bytes()
        path.write_bytes(whole[:70] + bytes([whole[70] ^ 4]) + whole[71:])
        before = everything(tmp_path / "store")
        try:
            found = read_conversation(store, KEY, tmp_path)
            assert found is not None
            connection = sqlite3.connect(found[0])
            assert count(connection) == 20
            connection.close()
        except CorruptRecord:
            refused += 1
            with pytest.raises(CorruptRecord, match=path.name):
                await open_conversation(store, KEY, tmp_path / "work", prepare=migrate)
        assert everything(tmp_path / "store") == before
        path.write_bytes(whole)
    assert refused == 20 - newest > 1, "the slots after the newest snapshot"
    store.close()


async def test_torn_temporary_files_are_never_taken_for_records(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store", anonymous=False)
    await filled(store, tmp_path / "work", 3)
    (tmp_path / "store" / ".t" / "99-torn").write_bytes(b"PdR1 torn")
    (tmp_path / "store" / KEY.prefix / "log" / ".torn").write_bytes(b"PdR1 torn")
    opened = await open_conversation(store, KEY, tmp_path / "work", prepare=migrate)
    assert await opened.database.read(count) == 3
    assert await close_conversation(opened) is None
    store.close()


@pytest.mark.parametrize("call", ["write", "fdatasync", "link", "fsync"])
@pytest.mark.parametrize("anonymous", [True, False])
async def test_a_full_disk_under_the_store_acknowledges_nothing_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, anonymous: bool
) -> None:
    store = DirectoryStore(tmp_path / "store", anonymous=anonymous)
    opened = await open_conversation(store, KEY, tmp_path / "work", prepare=migrate, options=OPTIONS)
    await opened.database.write(insert("one"))
    opened.replica.stop()
    with monkeypatch.context() as patch:

        def fail(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, call, fail)
        with pytest.raises(OutcomeUnknown):
            await opened.database.write(insert("two"))
        with pytest.raises(StoreUnavailable):
            await opened.database.write(insert("three"))
        assert await opened.database.read(count) == 1
        assert not list((tmp_path / "store" / ".t").iterdir())
    while opened.database.is_down:
        await opened.database.read(count)
    assert await opened.database.read(count) == 2
    assert await close_conversation(opened) is None
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no small disk can be mounted here; the injected errors cover it")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def fill_up(opened: OpenedConversation) -> tuple[int, StorageError]:
    """Write until it fails: how many writes were acknowledged, and what the last one was told."""
    for acked in range(1000):
        try:
            await opened.database.write(insert(os.urandom(20_000)))
        except StorageError as exc:
            assert acked > 10
            return acked, exc
    raise AssertionError("the small disk never filled up")


async def test_a_disk_that_really_fills_up_under_the_store(tmp_path: Path, small_disk: Path) -> None:
    store = DirectoryStore(small_disk / "store")
    opened = await open_conversation(store, KEY, tmp_path / "work", prepare=migrate, options=OPTIONS)
    acked, problem = await fill_up(opened)
    assert isinstance(problem, OutcomeUnknown)
    assert await close_conversation(opened) is not None
    found = read_conversation(store, KEY, tmp_path)
    assert found is not None
    connection = sqlite3.connect(found[0])
    assert count(connection) == acked
    connection.close()
    store.close()


async def test_a_disk_that_really_fills_up_under_the_local_file(tmp_path: Path, small_disk: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    opened = await open_conversation(store, KEY, small_disk / "work", prepare=migrate, options=OPTIONS)
    acked, problem = await fill_up(opened)
    assert isinstance(problem, LocalDiskFailed)
    assert await opened.database.read(count) == acked
    await close_conversation(opened)
    again = await open_conversation(store, KEY, tmp_path / "work", prepare=migrate)
    assert await again.database.read(count) == acked
    assert await close_conversation(again) is None
    store.close()


@pytest.mark.parametrize("lost", ["slot 0", "log"])
async def test_a_conversation_that_lost_its_beginning_is_not_served_as_an_empty_one(tmp_path: Path, lost: str) -> None:
    store = DirectoryStore(tmp_path / "store")
    await filled(store, tmp_path / "work", 20)
    folder = tmp_path / "store" / KEY.prefix
    if lost == "log":
        shutil.rmtree(folder / "log")
    else:
        (folder / "log" / f"{0:016d}").unlink()
    before = everything(tmp_path / "store")
    with pytest.raises(CorruptRecord):
        await open_conversation(store, KEY, tmp_path / "work", prepare=migrate, options=OPTIONS)
    assert everything(tmp_path / "store") == before


async def test_a_log_that_is_lost_between_the_wake_and_the_first_write_gets_no_new_one(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    opened = await open_conversation(store, KEY, tmp_path / "one", prepare=migrate, options=OPTIONS)
    await filled(store, tmp_path / "two", 20)
    shutil.rmtree(tmp_path / "store" / KEY.prefix / "log")
    with pytest.raises(OutcomeUnknown):
        await opened.database.write(insert("over the old ones"))
    assert not (tmp_path / "store" / KEY.prefix / "log").exists()
    await abandon_conversation(opened)
