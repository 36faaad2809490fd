"""What a `Database` calls to make a conversation's commits survive: the WAL tail in front of the slot log."""

import contextlib
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from storage.checkpoints.image import FileImage
from storage.checkpoints.keys import ConversationKey
from storage.checkpoints.layout import slot_key
from storage.checkpoints.log import SlotLog
from storage.checkpoints.meta import write_meta
from storage.checkpoints.records import HEADER_SIZE, decode_header
from storage.checkpoints.replay import Base
from storage.checkpoints.snapshots import Cut, collect, write_snapshot
from storage.checkpoints.store import CheckpointStore, NotFound
from storage.checkpoints.tail import Change, TailLost, WalTail
from storage.checkpoints.warm import Clean, LocalFile
from storage.connections import PAGE_SIZE
from storage.errors import (
    Closed,
    CorruptDatabase,
    Fenced,
    ForeignDatabase,
    LocalDiskFailed,
    StorageError,
    StoreUnavailable,
)
from storage.groups import as_storage_error
from storage.replication import Proof, StorageOptions, boottime

Prepare = Callable[[sqlite3.Connection], None]
Describe = Callable[[sqlite3.Connection], Mapping[str, int]]

_MAX_WAL_BYTES = 16 * 1024 * 1024
_SLOTS_BETWEEN_ATTEMPTS = 16
_SNAPSHOTS_PER_RETENTION = 24

log = logging.getLogger("perdure.storage.checkpoints")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Replica:
    """One conversation between its slot log and its local file. See `storage.replication.Replicator`."""

    def __init__(
        self,
        store: CheckpointStore,
        key: ConversationKey,
        work_dir: Path,
        *,
        node: bytes = bytes(16),
        options: StorageOptions | None = None,
        prepare: Prepare | None = None,
        template: bytes = b"",
        describe: Describe | None = None,
        is_lazy: bool = True,
        clock: Callable[[], float] = boottime,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """``prepare`` runs in a transaction right after the open (migrations); on a name that was never written it stays
        local until the first write. ``template``: the database file that such a name begins with. ``describe``: what the
        hint should say of the conversation at its end. ``is_lazy``: such a name is claimed by its first write only."""
        self.key = key
        self.proof = Proof(stale_read_seconds=(options or StorageOptions()).stale_read_seconds, clock=clock)
        self.log = SlotLog(store, key.prefix, nonce=secrets.token_bytes(16), node=node, now_ms=now_ms)
        self._store = store
        self._file = LocalFile(work_dir, key)
        self._options = options or StorageOptions()
        self._prepare = prepare
        self._template = template
        self._describe = describe
        self._facts: Mapping[str, int] = {}
        self._is_lazy = is_lazy
        self._now_ms = now_ms
        self._tail: WalTail | None = None
        self._descriptor = -1  # of the database file; see WalTail about closing it
        self._page_size = PAGE_SIZE
        self._restored = (0, 0)  # inode and size of the file that was restored
        self._is_cancelled = False
        self._is_whole = False  # the next shipment is the whole database: nothing of it is in the log yet
        self._outbox: Change | None = None
        self._is_hinted = False
        self._is_flat = False  # the file holds everything and has no log beside it
        self._snapshot_thread: threading.Thread | None = None
        self._hint_thread: threading.Thread | None = None
        self._next_attempt = 0
        self.started_warm = False

    # ---- opening ----

    def restore(self) -> Path:
        try:
            return self._restore()
        except OSError as exc:
            raise LocalDiskFailed(f"{exc.filename or self._file.folder}: {exc.strerror}") from exc

    def _restore(self) -> Path:
        at = self.proof.now()
        clean = self._file.take()
        if self._is_lazy and clean is None and not self._store.exists(slot_key(self.log.prefix, 0)):
            self.log.check_new()
            self._is_whole = True
            self._file.fill(self._template)
            self._restored = _identity(os.stat(self._file.path))
            self.proof.renew(at)
            return self._file.path
        image = FileImage(self._file.path, f"The conversation {self.key}", self._raise_if_cancelled)
        try:
            at = self.proof.now()
            self._claim(image, clean)
            self.proof.renew(at)
            self._restored = _identity(image.facts())
            self._is_whole = self._restored[1] == 0
        except (CorruptDatabase, ForeignDatabase) as exc:
            name, detail = exc.args
            raise type(exc)(name, f"{detail}; a copy is in {self._file.put_aside()}") from exc
        finally:
            image.close()
        return self._file.path

    def _claim(self, image: FileImage, clean: Clean | None) -> None:
        warm = Base(clean.slot, bytes.fromhex(clean.digest), clean.epoch) if clean else None
        self.started_warm = self._is_hinted = self.log.claim(image, warm) is warm and warm is not None
        if self.started_warm and clean is not None:
            self.log.note_snapshot(Base(clean.snapshot_slot, b"", clean.epoch, clean.snapshot_size), -clean.log_bytes)

    def cancel(self) -> None:
        self._is_cancelled = True

    def _raise_if_cancelled(self) -> None:
        if self._is_cancelled:
            raise Closed()

    def opened(self, connection: sqlite3.Connection) -> None:
        try:
            self._open_files(connection)
        except (OSError, sqlite3.Error, TailLost) as exc:
            raise LocalDiskFailed(f"{self._file.path}: {exc}") from exc
        if self._prepare is not None:
            _transact(connection, self._prepare)
        assert self._tail is not None
        if self._is_whole:
            self._tail.skip()
        elif (change := self._tail.read()) is not None:
            self._send(change)

    def _open_files(self, connection: sqlite3.Connection) -> None:
        self._tail = WalTail(self._file.path)
        self._descriptor = os.open(self._file.path, os.O_RDONLY | os.O_CLOEXEC)
        inode, size = self._restored
        now_inode, now_size = _identity(os.fstat(self._descriptor))
        if now_inode != inode or (size and now_size != size):
            raise OSError("the restored file was replaced before it was opened")
        self._page_size = int(connection.execute("PRAGMA page_size").fetchall()[0][0])

    # ---- while awake ----

    def ship(self, connection: sqlite3.Connection) -> None:
        assert self._tail is not None
        change = self._tail.read()
        if change is None:
            self.prove()
            return
        if self._is_whole:
            change = _whole(connection, self._page_size)
            self._is_whole = False
        self._send(change)

    def retry(self) -> None:
        if self._outbox is None and not self.log.has_pending:
            self._prove_now()  # nothing was changed: it was the proof that had no answer
        else:
            self._send(None)

    def prove(self) -> None:
        if self.proof.is_fresh:
            return
        if self.proof.has_just_failed:
            raise StoreUnavailable("it did not answer a moment ago")
        self._prove_now()

    def _prove_now(self) -> None:
        at = self.proof.now()
        try:
            self.log.prove()
        except StoreUnavailable:
            self.proof.failed()
            raise
        self.proof.renew(at)

    def _send(self, change: Change | None) -> None:
        """Confirm ``change``, or what an earlier call could not confirm."""
        if change is not None:
            self._outbox = change
        at = self.proof.now()
        if not self.log.is_owner and self.log.fenced is None:
            self.log.claim_new()
        if self._outbox is not None:
            change, self._outbox = self._outbox, None
            self.log.append(change)
        else:
            self.log.resend()
        self.proof.renew(at)

    # ---- checkpoints and snapshots ----

    @property
    def needs_settling(self) -> bool:
        return self.log.is_owner and (not self._is_hinted or self._is_snapshot_due or self._is_wal_long)

    @property
    def _is_snapshot_due(self) -> bool:
        if self._is_whole or not self._is_file_free:
            return False
        return self.log.slot >= self._next_attempt and self._is_log_long

    @property
    def _is_file_free(self) -> bool:
        """Whether a checkpoint may change the file: no snapshot is reading it."""
        return self._snapshot_thread is None or not self._snapshot_thread.is_alive()

    @property
    def _is_log_long(self) -> bool:
        base = self.log.snapshot
        return self.log.slot - base.slot > self._options.snapshot_slots or self.log.bytes_since_snapshot > max(
            self._options.snapshot_bytes, base.size // 2
        )

    @property
    def _is_wal_long(self) -> bool:
        return self._is_file_free and self._tail is not None and self._tail.size > _MAX_WAL_BYTES

    def settle(self, connection: sqlite3.Connection) -> None:
        # what may wait for the store has a thread of its own: this one is everybody's
        if not self._is_hinted:
            self._is_hinted = True
            self._hint_thread = _start(self._write_hint, self.log.epoch, self.log.slot)
        if self._is_snapshot_due:
            self._next_attempt = self.log.slot + _SLOTS_BETWEEN_ATTEMPTS
            if self._checkpoint(connection):
                self._snapshot_thread = _start(self._snapshot, self._cut())
        elif self._is_wal_long:
            self._checkpoint(connection)

    def _checkpoint(self, connection: sqlite3.Connection) -> bool:
        """Move the log into the file; False when somebody is reading. The file does not change again before the next one."""
        connection.execute("PRAGMA busy_timeout=0")
        try:
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
        finally:
            connection.execute("PRAGMA busy_timeout=5000")
        return not busy

    def _cut(self) -> Cut:
        return Cut(
            slot=self.log.slot,
            digest=self.log.digest,
            epoch=self.log.epoch,
            descriptor=self._descriptor,
            page_size=self._page_size,
            db_pages=os.fstat(self._descriptor).st_size // self._page_size,
            time_ms=self._now_ms(),
            nonce=self.log.nonce,
            node=self.log.node,
            at_bytes=self.log.bytes,
        )

    def _snapshot(self, cut: Cut) -> None:
        """In a thread of its own: nothing that was promised depends on it."""
        try:
            self._raise_if_fenced()
            size = write_snapshot(self._store, self.log.prefix, cut)
            self.log.note_snapshot(Base(cut.slot, cut.digest, cut.epoch, size), cut.at_bytes)
            self._next_attempt = 0
            retention_ms = int(self._options.retention_seconds * 1000)
            collect(
                self._store,
                self.log.prefix,
                older_than_ms=self._now_ms() - retention_ms,
                prove=self._prove_aside,
                spacing_ms=retention_ms // _SNAPSHOTS_PER_RETENTION,
            )
        except Fenced:
            pass
        except StorageError as exc:
            log.warning("no snapshot of %s: %s", self.key.digest, exc)
        except Exception:
            log.exception("no snapshot of %s", self.key.digest)

    def _raise_if_fenced(self) -> None:
        if self.log.fenced is not None:
            raise self.log.fenced

    def _prove_aside(self) -> None:
        """Like `SlotLog.prove`, beside the thread that may be writing the next slot just now."""
        self._raise_if_fenced()
        key = slot_key(self.log.prefix, self.log.slot + 1)
        try:
            header, _ = decode_header(self._store.get(key, size=HEADER_SIZE), key)
        except NotFound:
            return
        if header.nonce != self.log.nonce:
            raise Fenced(header.node.hex(), header.epoch)

    def _write_hint(self, epoch: int, slot: int) -> None:
        try:
            write_meta(self._store, self.key, self._facts, epoch=epoch, slot=slot, now_ms=self._now_ms())
        except StorageError as exc:
            log.warning("no hint for %s: %s", self.key.digest, exc)

    # ---- the end ----

    def closing(self, connection: sqlite3.Connection) -> None:
        self.stop()
        if self.log.fenced is not None:
            raise self.log.fenced
        if self._outbox is not None:
            raise StoreUnavailable("it has not confirmed the last write")
        if not self.log.is_owner and not self.log.is_closed:
            return  # never claimed
        if self.log.has_pending:
            self.log.resend()
        elif not self.log.is_closed:
            if self._describe is not None:
                self._facts = self._describe(connection)
            if self._is_snapshot_due and self._checkpoint(connection):
                self._next_attempt = self.log.slot + _SLOTS_BETWEEN_ATTEMPTS
                self._snapshot(self._cut())
            self.log.close()
        self._write_hint(self.log.epoch, self.log.slot)
        try:
            self._is_flat = self._checkpoint(connection)
            self._file.keep_logs()
        except sqlite3.Error as exc:
            log.warning("after the end of %s: %s", self.key.digest, exc)

    def stop(self) -> None:
        for thread in (self._hint_thread, self._snapshot_thread):
            if thread is not None:
                thread.join()

    def closed(self, *, cleanly: bool) -> None:
        if self._tail is not None:
            self._tail.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        try:
            # a whole file still to be shipped holds tables that are not in the log: nobody may go on from it
            if cleanly and self._is_flat and self.log.is_closed and not self._is_whole:
                self._file.keep(
                    slot=self.log.slot,
                    digest=self.log.digest,
                    epoch=self.log.epoch,
                    snapshot=self.log.snapshot,
                    log_bytes=self.log.bytes_since_snapshot,
                )
            else:
                self._file.drop()
        except OSError as exc:
            log.warning("the local file of %s: %s", self.key.digest, exc)
            with contextlib.suppress(OSError):
                self._file.drop()


def _transact(connection: sqlite3.Connection, prepare: Prepare) -> None:
    """Raises LocalDiskFailed or CorruptDatabase when it is the file that fails, and what ``prepare`` raises."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as exc:
        raise as_storage_error(exc) from exc
    try:
        prepare(connection)
    except BaseException as exc:
        if connection.in_transaction:  # SQLite may have ended it
            connection.execute("ROLLBACK")
        if isinstance(exc, sqlite3.Error) and _code(exc) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise as_storage_error(exc) from exc
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as exc:
        raise as_storage_error(exc) from exc


def _code(exc: sqlite3.Error) -> int:
    return int(getattr(exc, "sqlite_errorcode", 0)) & 0xFF  # errors of Python's own module have none


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_ino, facts.st_size


def _start(run: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=run, args=args, name="perdure-store", daemon=True)
    thread.start()
    return thread


def _whole(connection: sqlite3.Connection, page_size: int) -> Change:
    data = connection.serialize()
    pages = {n + 1: data[n * page_size : (n + 1) * page_size] for n in range(len(data) // page_size)}
    return Change(page_size, len(pages), pages)
