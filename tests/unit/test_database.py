"""One SQLite file: pragmas, groups, savepoints, limits, the end. The file as a library opens it, without a store."""

import asyncio
import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.connections import connect_writer
from storage.database import Database, StorageOptions, open_database
from storage.errors import (
    Closed,
    CorruptDatabase,
    ForeignDatabase,
    InvalidArgument,
    LimitExceeded,
    Overloaded,
)


async def opened(tmp_path: Path, options: StorageOptions | None = None) -> Database:
    database = await open_database(tmp_path / "db.sqlite", options=options)
    await database.write(lambda c: c.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v)").rowcount)
    return database


def insert(value: object) -> Callable[[sqlite3.Connection], Any]:
    return lambda c: c.execute("INSERT INTO t(v) VALUES(?)", (value,)).lastrowid


def values(connection: sqlite3.Connection) -> list[object]:
    return [row[0] for row in connection.execute("SELECT v FROM t ORDER BY id")]


async def test_what_was_written_is_read_after_a_reopen(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    assert await database.write(insert("x")) == 1
    await database.close()
    database = await opened(tmp_path)
    assert await database.read(values) == ["x"]
    await database.close()


async def test_operations_run_in_the_order_of_submission(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    results = await asyncio.gather(*(database.write(insert(n)) if n % 3 else database.read(values) for n in range(60)))
    for number in range(0, 60, 3):
        assert results[number] == [n for n in range(number) if n % 3]
    await database.close()


async def test_an_operation_that_raises_undoes_only_itself(tmp_path: Path) -> None:
    database = await opened(tmp_path)

    def bad(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t(v) VALUES('half')")
        raise KeyError("no")

    results = await asyncio.gather(
        database.write(insert("a")), database.write(bad), database.write(insert("b")), return_exceptions=True
    )
    assert isinstance(results[1], KeyError)
    assert await database.read(values) == ["a", "b"]
    await database.close()


async def test_a_whole_group_is_one_transaction(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    await database.read(lambda c: c.set_trace_callback(count))
    await asyncio.gather(*(database.write(insert(n)) for n in range(100)))
    assert commits == 1
    await database.close()


async def test_a_group_ends_at_its_byte_limit(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    await database.read(lambda c: c.set_trace_callback(count))
    await asyncio.gather(*(database.write(insert(n), size=400_000) for n in range(10)))
    assert commits == 5
    await database.close()


async def test_an_operation_whose_statement_rolls_everything_back_spares_its_neighbours(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    await database.write(lambda c: c.execute("CREATE UNIQUE INDEX u ON t(v)").rowcount)
    clash = "INSERT OR ROLLBACK INTO t(v) VALUES('a')"
    results = await asyncio.gather(
        database.write(insert("a")),
        database.write(lambda c: c.execute(clash).rowcount),
        database.write(insert("b")),
        return_exceptions=True,
    )
    assert isinstance(results[1], sqlite3.IntegrityError)
    assert await database.read(values) == ["a", "b"]
    await database.close()


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_an_operation_that_ends_the_transaction_is_an_error_of_its_own(tmp_path: Path, statement: str) -> None:
    database = await opened(tmp_path)
    results = await asyncio.gather(
        database.write(insert("a")),
        database.write(lambda c: c.execute(statement).rowcount),
        database.write(insert("b")),
        return_exceptions=True,
    )
    assert isinstance(results[1], Exception)
    assert set(await database.read(values)) >= {"a", "b"}
    await database.close()


async def test_a_read_that_writes_is_refused_and_undone(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    with pytest.raises(RuntimeError, match="must not write"):
        await database.read(insert("sneaky"))
    assert await database.read(values) == []
    await database.close()


async def test_a_cancelled_wait_does_not_undo_the_operation(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    task = asyncio.create_task(database.write(insert("x")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await database.read(values) == ["x"]
    await database.close()


async def test_close_finishes_what_was_submitted_and_refuses_the_rest(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    task = asyncio.create_task(database.write(insert("x")))
    await asyncio.sleep(0)
    await asyncio.gather(database.close(), database.close())
    await task
    with pytest.raises(Closed):
        await database.read(values)
    assert sorted(os.listdir(tmp_path)) == ["db.sqlite"]


async def test_too_many_operations_are_refused_at_once(tmp_path: Path) -> None:
    database = await opened(tmp_path, StorageOptions(max_queued_operations=10))
    results = await asyncio.gather(*(database.write(insert(n)) for n in range(50)), return_exceptions=True)
    refused = [r for r in results if isinstance(r, Overloaded)]
    assert 0 < len(refused) < 50
    assert len(await database.read(values)) == 50 - len(refused)
    await database.close()


async def test_too_many_bytes_are_refused_but_a_single_big_one_is_not(tmp_path: Path) -> None:
    database = await opened(tmp_path, StorageOptions(max_queued_bytes=1000))
    await database.write(insert("big"), size=5000)
    results = await asyncio.gather(*(database.write(insert(n), size=600) for n in range(3)), return_exceptions=True)
    assert [isinstance(r, Overloaded) for r in results] == [False, True, True]
    await database.close()


def test_the_writer_has_every_pragma_that_the_rest_relies_on(tmp_path: Path) -> None:
    for is_replicated, synchronous in ((False, 2), (True, 0)):
        connection = connect_writer(tmp_path / f"{is_replicated}.sqlite", is_replicated=is_replicated)
        found = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "cache_spill", "foreign_keys", "trusted_schema", "page_size")
        }
        assert found == {
            "journal_mode": "wal",
            "synchronous": synchronous,
            "cache_spill": 0,
            "foreign_keys": 1,
            "trusted_schema": 0,
            "page_size": 4096,
        }
        connection.close()


async def test_files_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        database = await opened(tmp_path)
        for name in os.listdir(tmp_path):
            assert os.stat(tmp_path / name).st_mode & 0o777 == 0o600
        await database.close()
    finally:
        os.umask(old)


async def test_a_file_that_is_not_sqlite_is_foreign_and_stays_untouched(tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite"
    path.write_bytes(b"certainly not a database" * 100)
    with pytest.raises(ForeignDatabase, match=r"db\.sqlite"):
        await open_database(path)
    assert path.read_bytes() == b"certainly not a database" * 100


async def test_a_folder_that_is_not_there_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"no folder .*nowhere"):
        await open_database(tmp_path / "nowhere" / "db.sqlite")


async def test_damage_found_while_running_is_told_and_keeps_the_file(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    for number in range(300):
        await database.write(insert("v" * 500 + str(number)))
    await database.close()
    path = tmp_path / "db.sqlite"
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 30] = b"\xff" * 4096 * 27
    path.write_bytes(data)
    database = await open_database(path)
    with pytest.raises(CorruptDatabase):
        await database.read(values)
    await database.close()
    assert path.exists()


def test_a_full_database_is_a_limit_and_the_group_around_it_is_stored(tmp_path: Path) -> None:
    from storage.groups import Operation, commit_group

    connection = connect_writer(tmp_path / "db.sqlite", is_replicated=True, max_bytes=20 * 4096)
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    loop = asyncio.new_event_loop()
    group = [Operation(insert(v), True, 0, loop.create_future()) for v in ("a", "x" * 4096 * 30, "b")]
    outcomes = commit_group(connection, group)
    assert isinstance(outcomes[1], LimitExceeded)
    assert values(connection) == ["a", "b"]
    connection.close()
    loop.close()


def _open_and_insert(path: str, start: object, failures: object) -> None:
    async def run() -> None:
        database = await open_database(path)
        await database.write(lambda c: c.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v)").rowcount)
        await database.write(insert(os.getpid()))
        await database.close()

    start.wait()  # type: ignore[attr-defined]
    try:
        asyncio.run(run())
    except BaseException as exc:
        failures.put(repr(exc))  # type: ignore[attr-defined]
        raise


def test_many_processes_that_open_one_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    """B86: the switch to the write-ahead log does not wait for locks by itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "storage.database"])  # once, and not in each of them
    for round_number in range(1):
        path = tmp_path / f"{round_number}.sqlite"
        start, failures = context.Barrier(8), context.SimpleQueue()
        processes = [context.Process(target=_open_and_insert, args=(str(path), start, failures)) for _ in range(8)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert failures.empty(), failures.get()
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (8,)
        connection.close()


async def test_a_folder_is_no_database_and_said_to_be_one(tmp_path: Path) -> None:
    for path in (tmp_path, str(tmp_path)):
        with pytest.raises(InvalidArgument, match="is a folder; name a file in it"):
            await open_database(path)
    for odd in (None, 5, b"a.db", []):
        with pytest.raises(InvalidArgument, match="must be a text or a path, not "):
            await open_database(odd)  # type: ignore[arg-type]
