"""One SQLite file, opened the right way, and its group commits.

All access to the file goes through one thread (aiosqlite's). Operations are functions of a ``sqlite3.Connection``; they are
queued in the order in which they were submitted and run in groups, one thread hop a group: a group that writes is one
transaction, each operation in it a savepoint, so one that raises undoes only itself. Nothing of a group is answered, reads
included, before the whole group is confirmed (the output gate: DESIGN.md section 4, point 4).

This module is the only one that imports aiosqlite.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiosqlite

from storage.errors import Closed

T = TypeVar("T")

GROUP_OPERATIONS = 256


class Replicator(Protocol):
    """Makes commits survive the file. Every method is called in the database's thread and may block."""

    def opened(self, connection: sqlite3.Connection, path: Path) -> None:
        """The file is open; nothing has been written through this connection yet."""

    def ship(self) -> None:
        """After a COMMIT: return once what it changed is confirmed.

        Raises StoreUnavailable (call `retry` later; nothing else may be committed meanwhile) or Fenced (for good).
        """

    def retry(self) -> None:
        """Try once more to confirm what `ship` could not: the same bytes in the same place. Raises like `ship`."""

    def prove(self) -> None:
        """Before a read: return if ownership was proved less than a second ago or can be proved now; else Fenced or StoreUnavailable."""


@dataclass(slots=True, eq=False)
class _Operation:
    run: Callable[[sqlite3.Connection], Any]
    writes: bool
    future: asyncio.Future[Any]


class Database:
    """One open SQLite file. Made by `open_database`."""

    def __init__(self, connection: aiosqlite.Connection, path: Path, replicator: Replicator | None) -> None:
        self.path = path
        self._connection = connection
        self._replicator = replicator
        self._queue: deque[_Operation] = deque()
        self._pump_task: asyncio.Task[None] | None = None
        self._closed = False

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run `run(connection)` after everything submitted before; its answer comes when that is confirmed."""
        return await self._submit(run, writes=False)  # type: ignore[no-any-return]

    async def write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run `run(connection)` in a transaction; returns once it is durable. An exception undoes this operation only.

        Cancelling the wait does not undo an operation that has been submitted.
        """
        return await self._submit(run, writes=True)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Finish what was submitted, then close the file. Idempotent."""
        if self._closed:
            return
        self._closed = True
        while self._pump_task is not None:
            await asyncio.shield(self._pump_task)
        await self._connection.close()

    async def _submit(self, run: Callable[[sqlite3.Connection], Any], *, writes: bool) -> Any:
        if self._closed:
            raise Closed()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append(_Operation(run, writes, future))
        if self._pump_task is None:
            self._pump_task = asyncio.create_task(self._pump())
        return await future

    async def _pump(self) -> None:
        try:
            while self._queue:
                group = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_OPERATIONS))]
                try:
                    outcomes = await self._connection._execute(
                        _run_group, self._connection._conn, group, self._replicator
                    )  # type: ignore[no-untyped-call]
                except BaseException as exc:
                    outcomes = [exc] * len(group)
                for operation, outcome in zip(group, outcomes, strict=True):
                    if operation.future.done():
                        continue
                    if isinstance(outcome, BaseException):
                        operation.future.set_exception(outcome)
                    else:
                        operation.future.set_result(outcome[0])
        finally:
            self._pump_task = None


def _run_group(connection: sqlite3.Connection, group: list[_Operation], replicator: Replicator | None) -> list[Any]:
    """In the database's thread: run one group; one outcome per operation, an exception or a 1-tuple."""
    if not any(operation.writes for operation in group):
        if replicator is not None:
            replicator.prove()
        return [_attempt(connection, operation) for operation in group]
    connection.execute("BEGIN IMMEDIATE")
    try:
        outcomes = [_attempt_in_savepoint(connection, op) if op.writes else _attempt(connection, op) for op in group]
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    if replicator is not None:
        replicator.ship()
    return outcomes


def _attempt(connection: sqlite3.Connection, operation: _Operation) -> Any:
    try:
        return (operation.run(connection),)
    except Exception as exc:
        return exc


def _attempt_in_savepoint(connection: sqlite3.Connection, operation: _Operation) -> Any:
    connection.execute("SAVEPOINT operation")
    try:
        result = operation.run(connection)
    except Exception as exc:
        connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")
        return exc
    connection.execute("RELEASE operation")
    return (result,)


async def open_database(path: str | Path, *, replicator: Replicator | None = None) -> Database:
    """Open (or create) one SQLite file.

    Without a replicator every commit is synced to this file (``synchronous=FULL``); with one, the replicator makes it durable.
    """
    path = Path(path)
    connection = await aiosqlite.connect(path, isolation_level=None)

    def prepare(raw: sqlite3.Connection) -> None:
        raw.execute("PRAGMA page_size=4096")
        raw.execute("PRAGMA journal_mode=WAL")
        raw.execute(f"PRAGMA synchronous={'OFF' if replicator else 'FULL'}")
        raw.execute("PRAGMA cache_spill=OFF")  # SQLite 3.40.1 loses commits otherwise: savepoint rollback + spill
        raw.execute("PRAGMA foreign_keys=ON")
        raw.execute("PRAGMA trusted_schema=OFF")
        raw.execute("PRAGMA busy_timeout=5000")
        if replicator is not None:
            raw.execute("PRAGMA wal_autocheckpoint=0")
            replicator.opened(raw, path)

    await connection._execute(prepare, connection._conn)  # type: ignore[no-untyped-call]
    return Database(connection, path, replicator)
