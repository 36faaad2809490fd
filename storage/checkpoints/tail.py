"""Reads what the last commits changed out of SQLite's write-ahead log, as page images.

The position comes from ``mxFrame`` in the header of the ``-shm`` file, never from the size of the log or from salts and
checksums of frames: a rolled-back transaction can leave frames behind the last committed one, and SQLite 3.40 can leave
frames without a salt inside the committed region.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

_COPY = struct.Struct("=III BBH II 2I 8s 2I")  # version, -, change, isInit, bigEndCksum, szPage, mxFrame, nPage, …
_WAL_HEADER = 32
_FRAME_HEADER = 24
_FRAME = struct.Struct(">II")  # page number, size of the database in pages after a commit, else 0
_VERSION = 3007000
_ATTEMPTS = 1000


class TailLost(RuntimeError):
    """The log is not what it must be; what the last commit changed cannot be told."""


@dataclass(frozen=True, slots=True)
class Change:
    """What commits changed: the last image of every page, and the size of the database after them in pages."""

    page_size: int
    db_pages: int
    pages: dict[int, bytes]


@dataclass(frozen=True, slots=True)
class _Index:
    page_size: int
    frames: int
    db_pages: int
    salt: bytes


class WalTail:
    """The write-ahead log of one open database, from a position on.

    Its descriptors must be closed after every connection of this process to the file: closing any descriptor of a file
    drops the POSIX locks that SQLite holds on it.
    """

    def __init__(self, database: Path) -> None:
        """The database must be open in WAL mode and have been read once."""
        self._wal = os.open(f"{database}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._shm = os.open(f"{database}-shm", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._wal)
            raise
        self._salt = b""
        self._frames = 0
        self._page_size = 0

    @property
    def size(self) -> int:
        """Bytes of the log that were read so far since its last restart."""
        return self._frames * (_FRAME_HEADER + self._page_size)

    def skip(self) -> None:
        """Take everything that was committed up to now as read."""
        index = self._index()
        self._salt, self._frames, self._page_size = index.salt, index.frames, index.page_size

    def read(self) -> Change | None:
        """What was committed since the last call; None when nothing was. No transaction may be open for writing."""
        index = self._index()
        if index.salt != self._salt:
            # the log was restarted by a checkpoint, which is only done when everything in it has been read
            self._salt, self._frames = index.salt, 0
        self._page_size = index.page_size
        if index.frames == self._frames:
            return None
        if index.frames < self._frames:
            raise TailLost("the write-ahead log went backwards")
        change = self._read_frames(index)
        self._frames = index.frames
        return change

    def close(self) -> None:
        for descriptor in (self._wal, self._shm):
            if descriptor >= 0:
                os.close(descriptor)
        self._wal = self._shm = -1

    def _read_frames(self, index: _Index) -> Change:
        size = _FRAME_HEADER + index.page_size
        length = (index.frames - self._frames) * size
        data = _pread(self._wal, length, _WAL_HEADER + self._frames * size)
        if len(data) != length or self._index() != index:
            raise TailLost("the write-ahead log is shorter than its index says")
        pages: dict[int, bytes] = {}
        committed = 0
        for offset in range(0, length, size):
            number, committed = _FRAME.unpack_from(data, offset)
            pages[number] = data[offset + _FRAME_HEADER : offset + size]
        if committed == 0 or committed != index.db_pages:
            raise TailLost("the last frame of the write-ahead log is not a commit")
        return Change(index.page_size, committed, {n: image for n, image in pages.items() if n <= committed})

    def _index(self) -> _Index:
        for _ in range(_ATTEMPTS):
            data = os.pread(self._shm, 2 * _COPY.size, 0)
            if len(data) == 2 * _COPY.size and data[: _COPY.size] == data[_COPY.size :]:
                version, _, _, is_init, _, page_size, frames, db_pages, _, _, salt, _, _ = _COPY.unpack_from(data)
                if version == _VERSION and is_init:
                    return _Index(65536 if page_size == 1 else page_size, frames, db_pages, salt)
        raise TailLost("the index of the write-ahead log is not readable")


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
        data += more
    return data
