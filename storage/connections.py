"""SQLite connections, opened the right way: the one that writes, and the one that reads the last confirmed state."""

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from storage.errors import CorruptDatabase, ForeignDatabase, LocalDiskFailed

T = TypeVar("T")

PAGE_SIZE = 4096
BUSY_MS = 5000

log = logging.getLogger("perdure.storage")


def connect_writer(
    path: Path, *, is_replicated: bool, must_exist: bool = False, max_bytes: int | None = None
) -> sqlite3.Connection:
    """Open the file with every pragma that the rest relies on, and check that they took; create it unless it ``must_exist``.

    Raises ForeignDatabase or CorruptDatabase, with the file untouched, or LocalDiskFailed.
    """
    try:
        if must_exist:
            target = f"{path.absolute().as_uri()}?mode=rw"
        else:
            target = str(path)
            if target != ":memory:":
                _create_private(path)
        connection = sqlite3.connect(
            target, uri=must_exist, isolation_level=None, check_same_thread=False, cached_statements=256
        )
    except (OSError, sqlite3.Error) as exc:
        raise LocalDiskFailed(f"{path}: {exc}") from exc
    try:
        _prepare(connection, path, is_replicated=is_replicated, max_bytes=max_bytes)
    except BaseException:
        connection.close()
        raise
    return connection


def _create_private(path: Path) -> None:
    """SQLite gives its log files the mode of the database file. An existing file is not opened here: closing it again
    would drop the locks that another connection of this process holds on it."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare(connection: sqlite3.Connection, path: Path, *, is_replicated: bool, max_bytes: int | None) -> None:
    try:
        connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        connection.execute(f"PRAGMA synchronous={'OFF' if is_replicated else 'FULL'}")  # first: the next ones may sync
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        journal_mode = _switch_to_wal(connection)
        # SQLite 3.40 writes logs that lose commits when a savepoint is rolled back after the cache has spilled
        connection.execute("PRAGMA cache_spill=OFF")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA cell_size_check=ON")
        if is_replicated:
            connection.execute("PRAGMA wal_autocheckpoint=0")
        if max_bytes is not None:
            page_size = _pragma(connection, "page_size")
            connection.execute(f"PRAGMA max_page_count={max(1, max_bytes // int(page_size))}")
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
    except sqlite3.DatabaseError as exc:
        raise _explain(exc, path) from exc
    if is_replicated and journal_mode != "wal":
        raise LocalDiskFailed(f"{path}: SQLite cannot keep a write-ahead log on this file system")
    expected: dict[str, int | str] = {
        "cache_spill": 0,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "locking_mode": "normal",
    }
    if is_replicated:
        expected |= {"synchronous": 0, "wal_autocheckpoint": 0}
    for name, value in expected.items():
        if _pragma(connection, name) != value:
            raise LocalDiskFailed(f"this SQLite ({sqlite3.sqlite_version}) does not obey PRAGMA {name}")


def _switch_to_wal(connection: sqlite3.Connection) -> str:
    """The switch does not wait for other openers as everything else does (busy_timeout), so it is tried again here."""
    deadline = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode=WAL").fetchall()[0][0])
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _pragma(connection: sqlite3.Connection, name: str) -> int | str:
    value: int | str = connection.execute(f"PRAGMA {name}").fetchall()[0][0]
    return value


def _explain(exc: sqlite3.DatabaseError, path: Path) -> Exception:
    if "not a database" in str(exc):
        return ForeignDatabase(str(path), "it is not a SQLite file")
    if "malformed" in str(exc):
        return CorruptDatabase(str(path), str(exc))
    return LocalDiskFailed(f"{path}: {exc}")


class ConfirmedReader:
    """A read-only connection that holds a read transaction on the last confirmed state.

    The writing thread renews it after each confirmed commit, before the next one may begin. For several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False

    def open(self) -> None:
        """Begin to hold the present state, which must be a confirmed one. Nothing happens when it is open already.

        When it cannot be opened, now or at a `renew`, only the reads fail that would have come from it.
        """
        with self._lock:
            if self._connection is None and not self._is_closed:
                try:
                    self._connection = self._connect()
                except sqlite3.Error as exc:
                    log.warning("no reader of the last confirmed state: %s", exc)

    def renew(self) -> None:
        """Hold the present state from now on, if open."""
        with self._lock:
            if self._connection is not None:
                try:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    _hold(self._connection)
                except sqlite3.Error as exc:
                    log.warning("no reader of the last confirmed state: %s", exc)
                    self._connection.close()
                    self._connection = None

    def release(self) -> None:
        """Hold no state until `renew`, so that a checkpoint can restart the log."""
        with self._lock:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function that only reads. Raises LocalDiskFailed when the reader is not open."""
        with self._lock:
            if self._connection is None:
                raise LocalDiskFailed("the last confirmed state is not at hand")
            return run(self._connection)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
            _hold(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _hold(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # only a read begins the transaction
