"""One SQLite file, opened the right way, and its group commits.

All access to the file goes through one thread (aiosqlite's). Operations are functions of a ``sqlite3.Connection``; they are
queued in the order in which they were submitted and run in groups, one thread hop a group: a group that writes is one
transaction, each operation in it a savepoint, so one that raises undoes only itself. Nothing of a group is answered, reads
included, before the whole group is confirmed (the output gate: DESIGN.md section 4, point 4).

While the store cannot confirm a group, its bytes are sent again and again. After ``store_deadline_seconds`` the database is
*down*: waiters get OutcomeUnknown, new writes StoreUnavailable, and reads come from a second connection that holds the last
confirmed state. It comes up by itself when the store confirms. When another writer took over it is *lost*, for good.

This module is the only one that imports aiosqlite.
"""

import asyncio
import functools
import logging
import sqlite3
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from storage.connections import ConfirmedReader, connect_writer
from storage.deadline import Deadline, StoreWatch
from storage.errors import (
    Closed,
    CorruptDatabase,
    Fenced,
    LocalDiskFailed,
    OutcomeUnknown,
    Overloaded,
    StorageError,
    StoreUnavailable,
)
from storage.groups import Operation, run_group
from storage.replication import BEAT_SECONDS, Replicator, StorageOptions

__all__ = ["Database", "Replicator", "StorageOptions", "open_database", "open_replicated"]

T = TypeVar("T")
OnLost = Callable[[StorageError], None]

GROUP_OPERATIONS = 256
GROUP_BYTES = 1024 * 1024
_FIRST_BACKOFF_SECONDS = 0.02
_LAST_BACKOFF_SECONDS = 1.0
_RELEASE_SECONDS = 1.0

log = logging.getLogger("perdure.storage")


class Database:
    """One open SQLite file. Made by `open_database`, or by `storage.checkpoints` for a conversation."""

    def __init__(
        self,
        connection: aiosqlite.Connection,
        path: Path,
        replicator: Replicator | None = None,
        options: StorageOptions | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        self.path = path
        self.is_migrated = False  # kept by storage.schema
        self._connection = connection
        self._raw: sqlite3.Connection = connection._conn
        self._replicator = replicator
        self.options = options or StorageOptions()
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = ConfirmedReader(path) if replicator else None
        self._watch = StoreWatch(self._loop.time)
        self._queue: deque[Operation] = deque()
        self._queued_bytes = 0
        self._running: list[Operation] = []  # the group that is in the thread, or waits for the store
        self._pump_task: asyncio.Task[None] | None = None
        self._closing_task: asyncio.Task[StorageError | None] | None = None
        self._stale_reads: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._is_released = False
        self._is_ended = False  # the file is closed
        self._down: StoreUnavailable | None = None
        self._lost: StorageError | None = None
        self._beat_handle: asyncio.TimerHandle | None = None
        if replicator is not None:
            self._beat()

    # ---- what callers use ----

    async def read(self, run: Callable[[sqlite3.Connection], T], *, size: int = 0) -> T:
        """Run `run(connection)` after everything submitted before; its answer comes when that is confirmed.

        ``run`` must not write. Raises like `write`, but never OutcomeUnknown.
        """
        return await self._submit(Operation(run, False, size, self._loop.create_future()))  # type: ignore[no-any-return]

    async def write(self, run: Callable[[sqlite3.Connection], T], *, size: int = 0) -> T:
        """Run `run(connection)` in a transaction; returns once it is durable. An exception undoes this operation only.

        ``size``: about how many bytes wait with it, for the limits of queue and group. ``run`` must not commit or roll
        back. Cancelling the wait does not undo an operation that has been submitted.

        Raises what ``run`` raises, or NotExecuted (Overloaded, StoreUnavailable, Fenced, LocalDiskFailed, Closed),
        LimitExceeded, or OutcomeUnknown.
        """
        return await self._submit(Operation(run, True, size, self._loop.create_future()))  # type: ignore[no-any-return]

    @property
    def is_lost(self) -> bool:
        """Another writer took over, or confirming broke: nothing will ever be stored through this object again."""
        return self._lost is not None

    @property
    def is_down(self) -> bool:
        """The store has not confirmed for longer than the deadline."""
        return self._down is not None

    async def close(self) -> StorageError | None:
        """Finish what was submitted, then close the file. Idempotent; raises nothing; goes on when the wait is cancelled.

        Of a replicated file: None when it ended with a CLOSE record, else why it did not (what was acknowledged is safe
        all the same). Waits at most ``store_deadline_seconds`` for the store.
        """
        self._is_closed = True
        if self._closing_task is None:
            self._closing_task = self._loop.create_task(
                self._close_plain() if self._replicator is None else self._close_replicated()
            )
        return await asyncio.shield(self._closing_task)

    async def abandon(self) -> None:
        """Let go of the file at once: nothing more is written, waiters get Closed or OutcomeUnknown. Idempotent."""
        self._is_closed = True
        if self._lost is None:
            self._lost = Closed()
            self._refuse_all(Closed())
        for operation in self._running:
            _fail(operation, OutcomeUnknown() if operation.writes else Closed())
        await self._release(cleanly=False)

    # ---- the queue and its groups ----

    async def _submit(self, operation: Operation) -> Any:
        if self._lost is not None:
            raise self._lost
        if self._is_closed:
            raise Closed()
        if self._down is not None:
            if operation.writes:
                raise self._down
            self._answer_from_confirmed(operation)
            return await operation.future
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
        while (
            self._queue and len(group) < GROUP_OPERATIONS and (not group or size + self._queue[0].size <= GROUP_BYTES)
        ):
            operation = self._queue.popleft()
            size += operation.size
            group.append(operation)
        self._queued_bytes -= size
        return group

    async def _pump(self) -> None:
        try:
            while self._queue and self._lost is None:
                self._running = self._take_group()
                if self._replicator is None:
                    await self._run_group(self._running)
                else:
                    await self._run_replicated(self._running, self._replicator)
        except Exception as exc:
            self._lose(OutcomeUnknown(), exc, self._running)
        finally:
            self._running = []
            self._pump_task = None

    async def _run_replicated(self, group: list[Operation], replicator: Replicator) -> None:
        limit = self.options.store_deadline_seconds
        deadline = Deadline(self._watch, limit, functools.partial(self._give_up, group))
        try:
            await self._run_group(group)
        finally:
            deadline.cancel()
            self._watch.end()
        self._down = None
        if self._lost is None and replicator.needs_settling:
            await self._settle()

    async def _run_group(self, group: list[Operation]) -> None:
        try:
            result = await self._in_thread(run_group, self._raw, group, self._replicator, self._reader, self._watch)
        except Fenced as exc:
            self._lose(exc, exc, group)
            return
        except CorruptDatabase as exc:
            if self._replicator is not None:  # a copy: the store has the truth, and the next wake restores it
                self._lose(LocalDiskFailed(str(exc)), exc, group)
            _deliver(group, [exc] * len(group))
            return
        except StorageError as exc:  # certainly not executed
            _deliver(group, [exc] * len(group))
            return
        except BaseException as exc:
            if self._replicator is None:
                _deliver(group, [exc] * len(group))
                return
            self._lose(OutcomeUnknown(), exc, group)
            return
        if result.unconfirmed is not None and not await self._confirm(group):
            return
        _deliver(group, result.outcomes)

    async def _confirm(self, group: list[Operation]) -> bool:
        """Send what was committed again until the store confirms it; False when that can never be."""
        backoff = _FIRST_BACKOFF_SECONDS
        while self._lost is None:
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _LAST_BACKOFF_SECONDS)
            try:
                await self._in_thread(self._retry)
                return True
            except StoreUnavailable:
                continue
            except Fenced as exc:
                self._lose(exc, exc, group)
            except BaseException as exc:
                self._lose(OutcomeUnknown(), exc, group)
        return False

    def _retry(self) -> None:
        assert self._replicator is not None
        assert self._reader is not None
        self._replicator.retry()
        self._reader.renew()

    async def _settle(self) -> None:
        try:
            await self._in_thread(self._settle_in_thread)
        except Exception:  # nothing that was promised depends on it; it is due again after the next group
            log.exception("a checkpoint or snapshot failed")

    def _settle_in_thread(self) -> None:
        assert self._replicator is not None
        assert self._reader is not None
        self._reader.release()
        try:
            self._replicator.settle(self._raw)
        finally:
            self._reader.renew()

    async def _in_thread(self, run: Callable[..., Any], *args: Any) -> Any:
        return await self._connection._execute(run, *args)  # type: ignore[no-untyped-call]

    # ---- when the store gives no answer ----

    def _give_up(self, group: list[Operation]) -> None:
        """The deadline has passed: answer everybody; the group stays the next thing that the store has to confirm."""
        self._down = StoreUnavailable("it has not confirmed the last write in time")
        for operation in group:
            if operation.writes:
                _fail(operation, OutcomeUnknown())
            else:
                self._answer_from_confirmed(operation)
        while self._queue:
            operation = self._queue.popleft()
            if operation.writes:
                _fail(operation, self._down)
            else:
                self._answer_from_confirmed(operation)
        self._queued_bytes = 0

    def _answer_from_confirmed(self, operation: Operation) -> None:
        task = self._loop.create_task(self._read_confirmed(operation))
        self._stale_reads.add(task)
        task.add_done_callback(self._stale_reads.discard)

    async def _read_confirmed(self, operation: Operation) -> None:
        assert self._reader is not None
        assert self._replicator is not None
        if operation.future.done():
            return
        try:
            if not self._replicator.proof.allows_stale_reads():
                raise self._down or StoreUnavailable("it has not answered for too long")
            if not any(other.writes for other in self._running):  # then the file is the confirmed state
                await asyncio.to_thread(self._reader.open)
            result = await asyncio.to_thread(self._reader.read, operation.run)
        except Exception as exc:
            _fail(operation, exc)
        else:
            _deliver([operation], [(result,)])

    def _beat(self) -> None:
        assert self._replicator is not None
        self._replicator.proof.beat()
        self._beat_handle = self._loop.call_later(BEAT_SECONDS, self._beat)

    # ---- the end ----

    def _lose(self, waiters_get: StorageError, reason: BaseException, group: list[Operation]) -> None:
        """Nothing can be stored any more: ``group`` gets ``waiters_get``, whatever waits behind was not executed."""
        if self._lost is not None:
            return
        self._lost = reason if isinstance(reason, StorageError) else Closed()
        if not isinstance(reason, StorageError) and isinstance(reason, Exception):
            log.error("the database is given up", exc_info=reason)
        if self._on_lost is not None:
            self._loop.call_soon(self._on_lost, self._lost)  # before any waiter goes on
        for operation in group:
            _fail(operation, waiters_get)
        self._refuse_all(self._lost if isinstance(self._lost, Fenced) else Closed())

    def _refuse_all(self, exc: StorageError) -> None:
        while self._queue:
            _fail(self._queue.popleft(), exc)
        self._queued_bytes = 0

    async def _close_plain(self) -> None:
        while self._pump_task is not None:
            await asyncio.shield(self._pump_task)
        await self._connection.close()

    async def _close_replicated(self) -> StorageError | None:
        limit = self._loop.time() + self.options.store_deadline_seconds
        if self._pump_task is not None:
            await asyncio.wait({self._pump_task}, timeout=self.options.store_deadline_seconds)
        problem: StorageError | None = self._lost
        if problem is None and self._pump_task is not None:
            problem = StoreUnavailable("it has not confirmed the last write in time")
        if problem is None:
            problem = await self._write_close(limit)
        if problem is not None and self._lost is None:
            self._lost = problem
            self._refuse_all(Closed())
        await self._release(cleanly=problem is None)
        return problem

    async def _write_close(self, limit: float) -> StorageError | None:
        assert self._replicator is not None
        assert self._reader is not None
        step: Callable[[], None] = self._closing_in_thread
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                await asyncio.wait_for(self._in_thread(step), max(0.0, limit - self._loop.time()))
                return None
            except StoreUnavailable as exc:
                if self._loop.time() + backoff > limit:
                    return exc
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LAST_BACKOFF_SECONDS)
            except TimeoutError:
                return StoreUnavailable("it has not confirmed the end in time")
            except StorageError as exc:
                return exc
            except Exception as exc:
                log.error("closing failed", exc_info=exc)
                return Closed()

    def _closing_in_thread(self) -> None:
        assert self._replicator is not None
        assert self._reader is not None
        self._reader.close()
        self._replicator.closing(self._raw)
        self._end_in_thread(True)

    async def _release(self, *, cleanly: bool) -> None:
        """Close everything, in the database's thread. Gives up waiting when that thread hangs in the store."""
        if self._is_released:
            return
        self._is_released = True
        if self._beat_handle is not None:
            self._beat_handle.cancel()
        if self._pump_task is not None:
            self._pump_task.cancel()
            for operation in self._running:
                _fail(operation, OutcomeUnknown() if operation.writes else Closed())
        ending = self._loop.create_task(self._end(cleanly))
        done, _ = await asyncio.wait({ending}, timeout=_RELEASE_SECONDS)
        if not done:
            log.warning("a thread still waits for the store; its file is closed when the store answers")
            ending.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _end(self, cleanly: bool) -> None:
        try:
            if not self._is_ended:
                await self._in_thread(self._end_in_thread, cleanly)
        except Exception:
            log.exception("closing the file failed")
        finally:
            stopped = self._connection.stop()
            if stopped is not None:
                await stopped
            self._connection._thread.join(1)  # it has said its last word: whoever counts threads now must not see it

    def _end_in_thread(self, cleanly: bool) -> None:
        self._is_ended = True
        assert self._replicator is not None
        assert self._reader is not None
        self._replicator.stop()
        self._reader.close()
        self._raw.close()
        self._replicator.closed(cleanly=cleanly)


def _deliver(group: list[Operation], outcomes: list[Any]) -> None:
    for operation, outcome in zip(group, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            _fail(operation, outcome)
        elif not operation.future.done():
            operation.future.set_result(outcome[0])


def _fail(operation: Operation, exc: BaseException) -> None:
    if not operation.future.done():
        operation.future.set_exception(exc)


async def open_database(path: str | Path, *, options: StorageOptions | None = None) -> Database:
    """Open (or create) one SQLite file; every commit is synced to it. Makes no table.

    Raises ForeignDatabase or CorruptDatabase, with the file untouched, or LocalDiskFailed.
    """
    path = Path(path)
    connection = await _Opening(lambda: connect_writer(path, is_replicated=False)).run()
    return Database(connection, path, options=options)


async def open_replicated(
    replicator: Replicator, *, options: StorageOptions | None = None, on_lost: OnLost | None = None
) -> Database:
    """Bring a conversation's file into place and open it: one hop to the thread that stays the database's.

    Raises what `Replicator.restore` raises. When cancelled, what was opened is closed again.
    """
    options = options or StorageOptions()
    path: list[Path] = []

    def connect() -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            path.append(replicator.restore())
            connection = connect_writer(path[0], is_replicated=True, max_bytes=options.max_conversation_bytes)
            replicator.opened(connection)
        except BaseException:
            if connection is not None:
                connection.close()
            replicator.closed(cleanly=False)
            raise
        return connection

    connection = await _Opening(connect, lambda: replicator.closed(cleanly=False)).run()
    return Database(connection, path[0], replicator, options, on_lost)


class _Opening:
    """Opens a connection in a thread of its own, and undoes it when the waiting is cancelled meanwhile."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], undo: Callable[[], None] = lambda: None) -> None:
        self._connect = connect
        self._undo = undo

    async def run(self) -> aiosqlite.Connection:
        task = asyncio.ensure_future(self._open())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._close_later)
            raise

    async def _open(self) -> aiosqlite.Connection:
        connection = aiosqlite.Connection(self._connect, 64)
        connection._thread.daemon = True  # one that hangs in the store must not keep the process alive
        try:
            return await connection
        except BaseException:
            connection._thread.join(1)  # it is ending, and tells this loop so, which may be closed soon
            raise

    def _close_later(self, task: "asyncio.Future[aiosqlite.Connection]") -> None:
        if task.cancelled() or task.exception() is not None:
            return
        connection = task.result()

        def close() -> None:
            connection._conn.close()
            self._undo()

        async def end() -> None:
            await connection._execute(close)  # type: ignore[no-untyped-call]
            await connection.close()

        _ending.add(ending := asyncio.ensure_future(end()))
        ending.add_done_callback(_ending.discard)


_ending: set["asyncio.Future[None]"] = set()
"""Closings that nobody waits for; a task must be referenced by somebody."""
