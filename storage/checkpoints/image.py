"""The SQLite file that a replay builds, page by page."""

import errno
import os
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

from storage.checkpoints.records import Codec, Record
from storage.errors import CorruptDatabase, CorruptRecord, ForeignDatabase

APPLICATION_ID = 0x50657264  # "Perd"
_MAGIC = b"SQLite format 3\0"
_RUN = 256
_APPLICATION_ID_OFFSET = 68


class FileImage:
    """See `storage.checkpoints.log.Image`. The file is created 0600; nobody may have it open as a database."""

    def __init__(self, path: Path, name: str, before_open: Callable[[], None] = lambda: None) -> None:
        """``name`` is what errors call the database; ``before_open`` may raise instead of letting a claim go on."""
        self.path = path
        self._before_open = before_open
        self._name = name
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode=0o600)
        self._is_checked = True

    def reset(self) -> None:
        os.ftruncate(self._descriptor, 0)

    def apply(self, record: Record, codec: Codec) -> None:
        header = record.header
        if not header.pages:
            return
        self._is_checked = False
        size = header.page_size
        run: list[bytes] = []  # pages that follow one another, to be written at once
        first = 1
        for number, image in codec.pages(record):
            if not 1 <= number <= header.db_pages:
                raise CorruptRecord(f"record {header.slot}", f"page {number} of {header.db_pages}")
            if run and (number != first + len(run) or len(run) == _RUN):
                self._write(run, (first - 1) * size)
                run = []
            if not run:
                first = number
            run.append(image)
        self._write(run, (first - 1) * size)
        os.ftruncate(self._descriptor, header.db_pages * size)

    def _write(self, run: list[bytes], offset: int) -> None:
        if run and os.pwritev(self._descriptor, run, offset) != sum(map(len, run)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))  # only a full disk writes less

    def check(self) -> None:
        """Raises ForeignDatabase or CorruptDatabase; the file stays where it is."""
        self._before_open()
        if self._is_checked:
            return
        head = os.pread(self._descriptor, 100, 0)
        if not head:
            return
        if len(head) < 100 or not head.startswith(_MAGIC):
            raise CorruptDatabase(self._name, "it has no SQLite header")
        (application_id,) = struct.unpack_from(">I", head, _APPLICATION_ID_OFFSET)
        if application_id not in (0, APPLICATION_ID):
            raise ForeignDatabase(self._name, f"its application id is {application_id:#x}")
        quick_check(self.path, self._name)
        self._is_checked = True

    def facts(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def quick_check(path: Path, name: str) -> None:
    """Let SQLite look over a file that nobody has open. Raises CorruptDatabase."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as exc:
        raise CorruptDatabase(name, str(exc)) from exc
    finally:
        connection.close()
    if answer != "ok":
        raise CorruptDatabase(name, str(answer).strip().splitlines()[-1])
