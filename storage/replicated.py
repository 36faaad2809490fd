"""A database whose commits survive its file: the output gate, and what is answered while the store gives no answer.

Nothing of a group is answered, reads included, before the group is confirmed (DESIGN.md section 4, point 4).

While the store cannot confirm a group, its bytes are sent again and again. After ``store_deadline_seconds`` the database is
*down*: waiters get OutcomeUnknown, new writes StoreUnavailable, and reads come from a second connection that holds the last
confirmed state. It comes up by itself when the store confirms. When another writer took over it is *lost*, for good.
"""

import asyncio
import functools
import logging
import sqlite3
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

from storage.connections import ConfirmedReader, connect_writer
from storage.database import Database, FileThread
from storage.deadline import Deadline, StoreWatch
from storage.errors import (
    Closed,
    CorruptDatabase,
    Fenced,
    LocalDiskFailed,
    OutcomeUnknown,
    StorageError,
    StoreUnavailable,
)
from storage.groups import GroupResult, Operation, deliver, fail, run_replicated_group
from storage.replication import BEAT_SECONDS, Replicator, StorageOptions

OnLost = Callable[[StorageError], None]

_FIRST_BACKOFF_SECONDS = 0.02
_LAST_BACKOFF_SECONDS = 1.0
_RELEASE_SECONDS = 1.0

log = logging.getLogger("perdure.storage")


class ReplicatedDatabase(Database):
    """Made by `open_replicated`."""

    def __init__(
        self,
        thread: FileThread,
        connection: sqlite3.Connection,
        path: Path,
        replicator: Replicator,
        options: StorageOptions | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        super().__init__(thread, connection, path, options)
        self._replicator = replicator
        self._on_lost = on_lost
        self.on_resumed: Callable[[], None] | None = None
        """Called when writes whose waiters got OutcomeUnknown are confirmed after all: memory may be older than the file."""
        self._has_given_up = False
        self._reader = ConfirmedReader(path)
        self._watch = StoreWatch(self._loop.time)
        self._stale_reads: set[asyncio.Task[None]] = set()
        self._is_released = False
        self._is_ended = False  # the file is closed
        self._down: StoreUnavailable | None = None
        self._lost: StorageError | None = None
        self._beat()

    @property
    def is_lost(self) -> bool:
        """Another writer took over, or confirming broke: nothing will ever be stored through this object again."""
        return self._lost is not None

    @property
    def is_down(self) -> bool:
        """The store has not confirmed for longer than the deadline."""
        return self._down is not None

    async def abandon(self) -> None:
        """Let go of the file at once: nothing more is written, waiters get Closed or OutcomeUnknown. Idempotent."""
        self._is_closed = True
        if self._lost is None:
            self._lost = Closed()
            self._refuse_queued(Closed())
        await self._release(cleanly=False)

    # ---- groups ----

    async def _submit(self, operation: Operation) -> Any:
        if self._lost is not None:
            raise copy(self._lost)  # each its own: one that is raised again keeps the frames of all earlier callers
        if self._down is None or self._is_closed:
            return await super()._submit(operation)
        if operation.writes:
            raise copy(self._down)
        self._answer_from_confirmed(operation)
        return await operation.future

    async def _run_group(self, group: list[Operation]) -> None:
        if self._lost is not None:
            return
        deadline = Deadline(self._watch, self.options.store_deadline_seconds, functools.partial(self._give_up, group))
        try:
            result = await self._execute(group)
            if result is not None and (result.unconfirmed is None or await self._confirm(group)):
                deliver(group, result.outcomes)
        except Exception as exc:
            self._lose(OutcomeUnknown(), exc, group)
        finally:
            deadline.cancel()
            self._watch.end()
        self._down = None
        if self._lost is None and self._has_given_up:
            self._has_given_up = False
            if self.on_resumed is not None:
                self.on_resumed()
        if self._lost is None and self._replicator.needs_settling:
            await self._settle()

    async def _execute(self, group: list[Operation]) -> GroupResult | None:
        """Run a group in the thread; None when everybody has an answer already."""
        try:
            return await self._thread.run(
                run_replicated_group, self._connection, group, self._replicator, self._reader, self._watch
            )
        except Fenced as exc:
            self._lose(exc, exc, group)
        except CorruptDatabase as exc:  # a copy: the store has the truth, and the next wake restores it
            self._lose(LocalDiskFailed(str(exc)), exc, group)
        except StorageError as exc:  # certainly not executed
            deliver(group, [exc] * len(group))
        return None

    async def _confirm(self, group: list[Operation]) -> bool:
        """Send what was committed again until the store confirms it; False when that can never be."""
        backoff = _FIRST_BACKOFF_SECONDS
        while self._lost is None:
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _LAST_BACKOFF_SECONDS)
            try:
                await self._thread.run(self._retry_in_thread)
                return True
            except StoreUnavailable:
                continue
            except Fenced as exc:
                self._lose(exc, exc, group)
        return False

    def _retry_in_thread(self) -> None:
        self._replicator.retry()
        self._reader.renew()

    async def _settle(self) -> None:
        try:
            await self._thread.run(self._settle_in_thread)
        except Exception:  # nothing that was promised depends on it; it is due again after the next group
            log.exception("a checkpoint or snapshot failed")

    def _settle_in_thread(self) -> None:
        self._reader.release()
        try:
            self._replicator.settle(self._connection)
        finally:
            self._reader.renew()

    # ---- when the store gives no answer ----

    def _give_up(self, group: list[Operation]) -> None:
        """The deadline has passed: answer everybody; the group stays the next thing that the store has to confirm."""
        self._down = StoreUnavailable("it has not confirmed the last write in time")
        self._has_given_up = any(operation.writes for operation in group)
        waiting: list[tuple[Operation, StorageError]] = [(operation, OutcomeUnknown()) for operation in group]
        waiting += [(operation, copy(self._down)) for operation in self._queue]
        self._queue.clear()
        self._queued_bytes = 0
        for operation, answer in waiting:
            if operation.writes:
                fail(operation, answer)
            else:
                self._answer_from_confirmed(operation)

    def _answer_from_confirmed(self, operation: Operation) -> None:
        task = self._loop.create_task(self._read_confirmed(operation))
        self._stale_reads.add(task)
        task.add_done_callback(self._stale_reads.discard)

    async def _read_confirmed(self, operation: Operation) -> None:
        if operation.future.done():
            return
        try:
            if not self._replicator.proof.allows_stale_reads():
                raise copy(self._down) or StoreUnavailable("it has not answered for too long")
            if not any(other.writes for other in self._running):  # then the file is the confirmed state
                await asyncio.to_thread(self._reader.open)
            result = await asyncio.to_thread(self._reader.read, operation.run)
        except Exception as exc:
            fail(operation, exc)
        else:
            deliver([operation], [(result,)])

    def _beat(self) -> None:
        self._replicator.proof.beat()
        self._beat_handle = self._loop.call_later(BEAT_SECONDS, self._beat)

    # ---- the end ----

    def _lose(self, waiters_get: StorageError, reason: Exception, group: list[Operation]) -> None:
        """Nothing can be stored any more: ``group`` gets ``waiters_get``, whatever waits behind was not executed."""
        if self._lost is not None:
            return
        self._lost = reason if isinstance(reason, StorageError) else Closed()
        if not isinstance(reason, StorageError):
            log.error("the database is given up", exc_info=reason)
        if self._on_lost is not None:
            self._loop.call_soon(self._on_lost, self._lost)  # before any waiter goes on
        for operation in group:
            fail(operation, waiters_get)
        self._refuse_queued(self._lost if isinstance(self._lost, Fenced) else Closed())

    async def _close(self) -> StorageError | None:
        limit = self._loop.time() + self.options.store_deadline_seconds
        if self._pump_task is not None:
            await asyncio.wait({self._pump_task}, timeout=self.options.store_deadline_seconds)
        problem = self._lost
        if problem is None and self._pump_task is not None:
            problem = StoreUnavailable("it has not confirmed the last write in time")
        if problem is None:
            problem = await self._write_close(limit)
        if self._lost is None:
            self._lost = problem
            self._refuse_queued(Closed())
        await self._release(cleanly=problem is None)
        return problem

    async def _write_close(self, limit: float) -> StorageError | None:
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(limit):
                    await self._thread.run(self._close_in_thread)
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

    def _close_in_thread(self) -> None:
        self._reader.close()
        self._replicator.closing(self._connection)
        self._end_in_thread(True)

    async def _release(self, *, cleanly: bool) -> None:
        """Close everything, in the database's thread. Gives up waiting when that thread hangs in the store."""
        if self._is_released:
            return
        self._is_released = True
        self._beat_handle.cancel()
        if self._pump_task is not None:
            self._pump_task.cancel()
            for operation in self._running:
                fail(operation, OutcomeUnknown() if operation.writes else Closed())
        ending = self._loop.create_task(self._end(cleanly))
        done, _ = await asyncio.wait({ending}, timeout=_RELEASE_SECONDS)
        if not done:
            log.warning("a thread still waits for the store; its file is closed when the store answers")
            ending.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _end(self, cleanly: bool) -> None:
        try:
            if not self._is_ended:
                await self._thread.run(self._end_in_thread, cleanly)
        except Exception:
            log.exception("closing the file failed")
        finally:
            await self._thread.stop()

    def _end_in_thread(self, cleanly: bool) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._replicator.stop()
        self._reader.close()
        self._connection.close()
        self._replicator.closed(cleanly=cleanly)


async def open_replicated(
    replicator: Replicator, *, options: StorageOptions | None = None, on_lost: OnLost | None = None
) -> ReplicatedDatabase:
    """Bring a conversation's file into place and open it: one hop to the thread that stays the database's.

    Raises what `Replicator.restore` raises. When cancelled, what was opened is closed again.
    """
    options = options or StorageOptions()
    path: list[Path] = []

    def connect() -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            path.append(replicator.restore())
            # must exist: a file that vanished since must not come back empty, as if the conversation were
            connection = connect_writer(
                path[0], is_replicated=True, must_exist=True, max_bytes=options.max_conversation_bytes
            )
            replicator.opened(connection)
        except BaseException:
            if connection is not None:
                connection.close()
            replicator.closed(cleanly=False)
            raise
        return connection

    thread = FileThread(connect)
    starting = asyncio.ensure_future(thread.start())
    try:
        connection = await asyncio.shield(starting)
    except asyncio.CancelledError:
        replicator.cancel()
        _ending.add(undoing := asyncio.ensure_future(_undo(thread, starting, replicator)))
        undoing.add_done_callback(_ending.discard)
        raise
    return ReplicatedDatabase(thread, connection, path[0], replicator, options, on_lost)


async def _undo(thread: FileThread, starting: "asyncio.Future[sqlite3.Connection]", replicator: Replicator) -> None:
    try:
        connection = await starting
    except Exception:  # then there is nothing to undo, and nobody who waits for the reason
        return

    def close() -> None:
        connection.close()
        replicator.closed(cleanly=False)

    await thread.run(close)
    await thread.stop()


_ending: set["asyncio.Future[None]"] = set()
"""What is being undone while nobody waits for it; a task must be referenced by somebody."""
