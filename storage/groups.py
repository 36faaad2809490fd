"""Groups of operations, as they run in the database's thread: one transaction a group, a savepoint an operation."""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from storage.connections import ConfirmedReader
from storage.deadline import StoreWatch
from storage.errors import CorruptDatabase, Fenced, LimitExceeded, LocalDiskFailed, StorageError, StoreUnavailable
from storage.replication import Replicator

_ROOM = 64 * 1024 * 1024
_SQLITE_MAX_PAGES = 1_073_741_823  # the default of every SQLite since 3.0

Outcome = tuple[Any] | BaseException
"""What one operation came to: a result in a 1-tuple, or what it raised."""


@dataclass(slots=True, eq=False)
class Operation:
    run: Callable[[sqlite3.Connection], Any]
    writes: bool
    size: int
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class GroupResult:
    outcomes: list[Outcome]
    unconfirmed: StoreUnavailable | None  # the group is committed here, but not confirmed


class _TransactionLost(Exception):
    """SQLite rolled the whole transaction back on its own (full disk, ON CONFLICT ROLLBACK)."""


def run_group(connection: sqlite3.Connection, group: list[Operation]) -> list[Outcome]:
    """Run one group on a file that is durable by itself. Raises only when nothing of it was stored."""
    if any(operation.writes for operation in group):
        return commit_group(connection, group)
    return _read(connection, group)


def run_replicated_group(
    connection: sqlite3.Connection,
    group: list[Operation],
    replicator: Replicator,
    reader: ConfirmedReader,
    watch: StoreWatch,
) -> GroupResult:
    """Run one group and have it confirmed. Raises a StorageError only when nothing of it was stored, or (Fenced) ever will be."""
    if not any(operation.writes for operation in group):
        refusal = _prove(replicator, watch)
        if refusal is not None:
            return GroupResult([refusal] * len(group), None)
        return GroupResult(_read(connection, group), None)
    reader.open()
    outcomes = commit_group(connection, group)
    watch.begin()
    try:
        replicator.ship(connection)
    except StoreUnavailable as exc:
        return GroupResult(outcomes, exc)
    except Fenced:
        raise
    except StorageError as exc:  # it is committed here, so nobody may be told that it was not executed
        raise RuntimeError("a commit could not be shipped") from exc
    reader.renew()
    watch.end()
    return GroupResult(outcomes, None)


def _prove(replicator: Replicator, watch: StoreWatch) -> StoreUnavailable | None:
    """None when reads may be answered: ownership is proved, or the last confirmed state may still be told."""
    watch.begin()
    try:
        replicator.prove()
    except StoreUnavailable as exc:
        return None if replicator.proof.allows_stale_reads() else exc
    finally:
        watch.end()
    return None


def commit_group(connection: sqlite3.Connection, group: list[Operation]) -> list[Outcome]:
    """Run a group in one transaction and commit it; one by one when SQLite threw the whole transaction away."""
    try:
        return _commit(connection, group)
    except _TransactionLost as exc:
        if len(group) == 1:
            return [_explain(connection, exc.__cause__ or exc)]
    outcomes: list[Outcome] = []
    for operation in group:
        try:
            outcomes += _commit(connection, [operation])
        except _TransactionLost as exc:
            outcomes.append(_explain(connection, exc.__cause__ or exc))
        except StorageError as exc:
            outcomes.append(exc)
    return outcomes


def _commit(connection: sqlite3.Connection, group: list[Operation]) -> list[Outcome]:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as exc:
        raise as_storage_error(exc) from exc
    try:
        outcomes = [_attempt_in_savepoint(connection, op) if op.writes else _attempt(connection, op) for op in group]
        _raise_if_damaged(outcomes)
        connection.execute("COMMIT")
    except BaseException as exc:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(exc, sqlite3.Error):
            raise as_storage_error(exc) from exc
        raise
    return outcomes


def _read(connection: sqlite3.Connection, group: list[Operation]) -> list[Outcome]:
    """Run reads in a transaction that is rolled back: one that writes after all must not slip past the output gate."""
    changes = connection.total_changes
    connection.execute("BEGIN")
    try:
        outcomes = [_attempt(connection, operation) for operation in group]
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if connection.total_changes != changes:
        return [RuntimeError("a read must not write")] * len(group)
    _raise_if_damaged(outcomes)
    return outcomes


def _attempt(connection: sqlite3.Connection, operation: Operation) -> Outcome:
    try:
        return (operation.run(connection),)
    except Exception as exc:
        return _explain(connection, exc)


def _attempt_in_savepoint(connection: sqlite3.Connection, operation: Operation) -> Outcome:
    connection.execute("SAVEPOINT operation")
    try:
        result = operation.run(connection)
    except Exception as exc:
        if not connection.in_transaction:
            raise _TransactionLost() from exc
        connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")
        return _explain(connection, exc)
    if not connection.in_transaction:
        raise _TransactionLost() from RuntimeError("an operation must not commit or roll back")
    connection.execute("RELEASE operation")
    return (result,)


def _explain(connection: sqlite3.Connection, exc: BaseException) -> BaseException:
    """A full database is a limit when it is as big as it may be, otherwise it is the disk; a damaged one is damaged."""
    if isinstance(exc, sqlite3.DatabaseError) and _is_damage(exc):
        return _caused(CorruptDatabase("The local file", str(exc)), exc)
    if isinstance(exc, sqlite3.OperationalError) and getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        limit = _size_limit(connection)
        if limit is not None:
            return _caused(LimitExceeded("The size of this conversation", f"{limit} bytes"), exc)
        return _caused(LocalDiskFailed(str(exc)), exc)
    return exc


def _size_limit(connection: sqlite3.Connection) -> int | None:
    """The limit of the database in bytes, when it is that which is full; None when it is the disk."""
    pages, page_size = (
        int(connection.execute(f"PRAGMA {n}").fetchall()[0][0]) for n in ("max_page_count", "page_size")
    )
    path = connection.execute("PRAGMA database_list").fetchall()[0][2]
    disk = os.statvfs(path)
    has_room = disk.f_bavail * disk.f_frsize > _ROOM
    return pages * page_size if pages < _SQLITE_MAX_PAGES and has_room else None


def as_storage_error(exc: sqlite3.Error) -> StorageError:
    """Of what fails at the begin or the end of a transaction: it is the file, not a statement."""
    return CorruptDatabase("The local file", str(exc)) if _is_damage(exc) else LocalDiskFailed(str(exc))


def _is_damage(exc: sqlite3.Error) -> bool:
    """Of the file; full-text tables use the same code for a query that contradicts their content."""
    code = getattr(exc, "sqlite_errorcode", 0)
    return code != sqlite3.SQLITE_CORRUPT_VTAB and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _raise_if_damaged(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, CorruptDatabase):
            raise outcome


def _caused(exc: StorageError, cause: BaseException) -> StorageError:
    exc.__cause__ = cause
    return exc


def deliver(group: list[Operation], outcomes: list[Outcome]) -> None:
    """In the event loop: answer everybody who has no answer yet."""
    for operation, outcome in zip(group, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            fail(operation, outcome)
        elif not operation.future.done():
            operation.future.set_result(outcome[0])


def fail(operation: Operation, exc: BaseException) -> None:
    if not operation.future.done():
        operation.future.set_exception(exc)
