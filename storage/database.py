"""One SQLite file, opened the right way, and its group commits.

All access to the file goes through one thread (aiosqlite's). Operations are functions of a ``sqlite3.Connection``; they are
queued in the order in which they were submitted and run in groups, one thread hop a group: a group that writes is one
transaction, each operation in it a savepoint, so one that raises undoes only itself. Nothing of a group is answered, reads
included, before the whole group is durable.

`storage.replicated` has the kind whose commits survive the file. This module is the only one that imports aiosqlite.
"""

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import aiosqlite

from storage.connections import connect_writer
from storage.errors import Closed, InvalidArgument, Overloaded, StorageError, shown
from storage.groups import Operation, deliver, fail, run_group
from storage.replication import StorageOptions

__all__ = ["Database", "FileThread", "StorageOptions", "open_database"]

T = TypeVar("T")

GROUP_OPERATIONS = 256
GROUP_BYTES = 1024 * 1024


class FileThread:
    """The thread that a connection belongs to."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connection = aiosqlite.Connection(connect, 64)
        self._connection._thread.daemon = True  # one that hangs in a store must not keep the process alive

    async def start(self) -> sqlite3.Connection:
        """Run ``connect`` in the new thread; raises what it raises, with the thread gone again."""
        try:
            await self._connection
        except BaseException:
            self._join()
            raise
        return self._connection._conn

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in the thread, after everything that was given to it before."""
        return await self._connection._execute(function, *args)  # type: ignore[no-any-return, no-untyped-call]

    async def stop(self) -> None:
        """Close the connection, if that was not done, and end the thread."""
        stopped = self._connection.stop()
        if stopped is not None:
            await stopped
        self._join()

    def _join(self) -> None:
        # it has said its last word: whoever counts threads after this, or closes the loop, must not meet it
        self._connection._thread.join(1)


class Database:
    """One open SQLite file. Made by `open_database`, or by `storage.checkpoints` for a conversation."""

    def __init__(
        self, thread: FileThread, connection: sqlite3.Connection, path: Path, options: StorageOptions | None = None
    ) -> None:
        self.path = path
        self.options = options or StorageOptions()
        self.is_migrated = False  # kept by storage.schema
        self._thread = thread
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Operation] = deque()
        self._queued_bytes = 0
        self._running: list[Operation] = []  # the group that is in the thread, or waits for a store
        self._pump_task: asyncio.Task[None] | None = None
        self._closing_task: asyncio.Task[StorageError | None] | None = None
        self._is_closed = False
        self.users: WeakSet[Any] = WeakSet()
        """What holds something of this database in memory: sessions enter themselves when they are first used."""

    async def read(self, run: Callable[[sqlite3.Connection], T], *, size: int = 0) -> T:
        """Run `run(connection)` after everything submitted before; its answer comes when that is durable.

        ``run`` must not write. Raises like `write`, but never OutcomeUnknown.
        """
        return await self._submit(Operation(run, False, size, self._loop.create_future()))  # type: ignore[no-any-return]

    async def write(self, run: Callable[[sqlite3.Connection], T], *, size: int = 0) -> T:
        """Run `run(connection)` in a transaction; returns once it is durable. An exception undoes this operation only.

        ``size``: about how many bytes wait with it, for the limits of queue and group. ``run`` must not commit or roll
        back. Cancelling the wait does not undo an operation that has been submitted.

        Raises what ``run`` raises, or NotExecuted (Overloaded, LocalDiskFailed, Closed; of a conversation also
        StoreUnavailable and Fenced), LimitExceeded, or OutcomeUnknown.
        """
        return await self._submit(Operation(run, True, size, self._loop.create_future()))  # type: ignore[no-any-return]

    async def close(self) -> StorageError | None:
        """Finish what was submitted, then close the file. Idempotent; raises nothing; goes on when the wait is cancelled.

        Of a conversation: None when it ended with a CLOSE record, else why it did not (what was acknowledged is safe all
        the same). Waits at most ``store_deadline_seconds`` for the store.
        """
        self._is_closed = True
        if self._closing_task is None:
            self._closing_task = self._loop.create_task(self._close())
        return await asyncio.shield(self._closing_task)

    async def _close(self) -> StorageError | None:
        while self._pump_task is not None:
            await asyncio.shield(self._pump_task)
        await self._thread.stop()
        return None

    async def _submit(self, operation: Operation) -> Any:
        if self._is_closed:
            raise Closed()
        self._check_limits(operation)
        self._queue.append(operation)
        self._queued_bytes += operation.size
        if self._pump_task is None:
            self._pump_task = self._loop.create_task(self._pump())
        return await operation.future

    def _check_limits(self, operation: Operation) -> None:
        if len(self._queue) >= self.options.max_queued_operations:
            raise Overloaded(f"{len(self._queue)} operations")
        if self._queue and self._queued_bytes + operation.size > self.options.max_queued_bytes:
            raise Overloaded(f"{self._queued_bytes} bytes")

    def _take_group(self) -> list[Operation]:
        group: list[Operation] = []
        size = 0
        while self._queue and len(group) < GROUP_OPERATIONS:
            if group and size + self._queue[0].size > GROUP_BYTES:
                break
            group.append(self._queue.popleft())
            size += group[-1].size
        self._queued_bytes -= size
        return group

    async def _pump(self) -> None:
        try:
            while self._queue:
                self._running = self._take_group()
                await self._run_group(self._running)
        finally:
            self._running = []
            self._pump_task = None

    async def _run_group(self, group: list[Operation]) -> None:
        try:
            outcomes = await self._thread.run(run_group, self._connection, group)
        except Exception as exc:
            outcomes = [exc] * len(group)
        deliver(group, outcomes)

    def _refuse_queued(self, exc: StorageError) -> None:
        while self._queue:
            fail(self._queue.popleft(), exc)
        self._queued_bytes = 0


async def open_database(path: str | Path, *, options: StorageOptions | None = None) -> Database:
    """Open (or create) one SQLite file; every commit is synced to it. Makes no table.

    Raises ForeignDatabase or CorruptDatabase, with the file untouched, LocalDiskFailed, or InvalidArgument when there is no
    such folder, or the path is one.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidArgument(f"The path of a database must be a text or a path, not {shown(path)}.")
    path = Path(path)

    def connect() -> sqlite3.Connection:
        if path.is_dir():
            raise InvalidArgument(
                f"{path} is a folder; name a file in it for the database, like {path / 'sessions.db'}."
            )
        if not path.parent.is_dir():
            raise InvalidArgument(f"There is no folder {path.parent} for the database {path.name}.")
        return connect_writer(path, is_replicated=False)

    thread = FileThread(connect)
    return Database(thread, await thread.start(), path, options)
