"""The local file of a conversation: where it lies while awake, and when the next wake on this node may use it again.

Below the work folder, one folder a conversation: ``live-<id>.sqlite`` while awake, ``warm.sqlite`` and ``clean.json`` after a
clean end. Taking a warm file is a rename, so only one taker gets it, and a file that ``clean.json`` does not describe, by
inode, size and time, is never trusted: after an unclean stop, or a loss of power (the file is not synced; the boot id
tells), it is restored afresh. So whatever is warm may be removed at any moment; `sweep_warm` does that.
"""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import orjson

from storage.checkpoints.keys import ConversationKey
from storage.checkpoints.records import ZERO
from storage.checkpoints.replay import Base
from storage.replication import StorageOptions

_WARM = "warm.sqlite"
_CLEAN = "clean.json"
_LIVE = "live-"
_LOGS = ("-wal", "-shm")
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Clean:
    """What is known of a file at its clean end."""

    boot_id: str
    slot: int  # of the CLOSE record
    digest: str
    epoch: int
    snapshot_slot: int
    snapshot_size: int
    log_bytes: int
    inode: int
    size: int
    mtime_ns: int


class LocalFile:
    """The folder of one conversation on this node."""

    def __init__(self, work_dir: Path, key: ConversationKey) -> None:
        self.folder = work_dir / key.prefix
        self.path = self.folder / f"{_LIVE}{secrets.token_hex(8)}.sqlite"

    def take(self) -> Clean | None:
        """Make the live file; what is known of it when it is a warm one, else None, and then it is empty.

        Removes what unclean stops have left. Raises OSError.
        """
        _make_private(self.folder)
        with contextlib.suppress(FileNotFoundError):  # somebody else has removed the folder just now
            for name in os.listdir(self.folder):
                if name.startswith(_LIVE):
                    (self.folder / name).unlink(missing_ok=True)
        clean = None
        try:
            os.rename(self.folder / _WARM, self.path)
        except FileNotFoundError:
            self._create()
        else:
            clean = self._read_clean()
            if clean is None:
                os.truncate(self.path, 0)
        self._take_logs(clean)
        return clean

    def _take_logs(self, clean: Clean | None) -> None:
        """The log files that `keep_logs` has put by. Only a clean end says that nobody has them open any more."""
        for suffix in _LOGS:
            put_by = Path(f"{self.folder / _WARM}{suffix}")
            with contextlib.suppress(FileNotFoundError):
                if clean is None or (suffix == "-wal" and put_by.stat().st_size):  # frames would poison the file
                    put_by.unlink()
                else:
                    put_by.rename(f"{self.path}{suffix}")

    def fill(self, content: bytes) -> None:
        """What a new conversation begins with. Raises OSError."""
        if content:
            self.path.write_bytes(content)

    def _create(self) -> None:
        for _ in range(_ATTEMPTS):
            _make_private(self.folder)
            try:
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                return
            except FileNotFoundError:  # again
                continue
        raise FileNotFoundError(errno.ENOENT, "the folder goes away again and again", str(self.folder))

    def keep_logs(self) -> None:
        """The file is about to be closed: put its log files by under a second name, so that SQLite's delete does not end them.

        To make two files and delete two at every wake costs more than the rest of it on some file systems (ext4 without a
        journal searches all inodes that were deleted lately).
        """
        for suffix in _LOGS:
            with contextlib.suppress(OSError):
                os.link(f"{self.path}{suffix}", self.folder / f"{_WARM}{suffix}")

    def keep(self, *, slot: int, digest: bytes, epoch: int, snapshot: Base, log_bytes: int) -> None:
        """The file is closed and has no log beside it: keep it for the next wake. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.folder / f"{_WARM}-shm", 0)  # SQLite's first open makes it anew, whatever it holds
        facts = os.stat(self.path)
        clean = Clean(
            boot_id=boot_id(),
            slot=slot,
            digest=digest.hex(),
            epoch=epoch,
            snapshot_slot=snapshot.slot,
            snapshot_size=snapshot.size,
            log_bytes=log_bytes,
            inode=facts.st_ino,
            size=facts.st_size,
            mtime_ns=facts.st_mtime_ns,
        )
        # a half-written one after a kill is not readable, and then the file is not used
        descriptor = os.open(self.folder / _CLEAN, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(orjson.dumps(clean))
        os.rename(self.path, self.folder / _WARM)

    def drop(self) -> None:
        """Remove the live file and its logs, and the folder when nothing else is in it."""
        for path in (str(self.path), *(f"{self.path}{suffix}" for suffix in _LOGS)):
            Path(path).unlink(missing_ok=True)
        for name in (_CLEAN, *(f"{_WARM}{suffix}" for suffix in _LOGS)):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def put_aside(self) -> Path:
        """Keep the live file for somebody to look at, in place of an earlier one of this conversation; its new place."""
        folder = self.folder.parent.parent / "quarantine"
        _make_private(folder)
        target = folder / f"{self.folder.name}.sqlite"
        os.rename(self.path, target)
        return target

    def _read_clean(self) -> Clean | None:
        try:
            clean = Clean(**orjson.loads((self.folder / _CLEAN).read_bytes()))
            _check(clean)
            facts = os.stat(self.path)
        except (OSError, ValueError, TypeError):
            return None
        is_same = (clean.inode, clean.size, clean.mtime_ns) == (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        return clean if is_same and clean.boot_id == boot_id() and not self.path.is_symlink() else None


def _check(clean: Clean) -> None:
    """Raises ValueError or TypeError for what `LocalFile.keep` does not write."""
    for field in fields(Clean):
        value = getattr(clean, field.name)
        if type(value) is not field.type:
            raise TypeError(field.name)
        if type(value) is int and value < (-1 if field.name == "snapshot_slot" else 0):
            raise ValueError(field.name)
    if len(bytes.fromhex(clean.digest)) != len(ZERO):
        raise ValueError("digest")


def _make_private(folder: Path) -> None:
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def sweep_warm(work_dir: Path, options: StorageOptions) -> int:
    """Remove warm files, the least recently used first, until the rest is not over ``max_warm_bytes``; how many went.

    Not for the event loop: it looks at every file. It may run beside everything that happens there. Whoever takes a file
    that it removes starts cold, and where it comes too late it leaves everything alone; where its file was put by again
    meanwhile, that loses its description at worst, and then it is not used.
    """
    found = sorted(_warm_files(work_dir))
    total, count = sum(size for _, size, _ in found), 0
    for _, size, folder in found:
        if total <= options.max_warm_bytes:
            break
        total -= size
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/{_WARM}")
            count += 1
            for name in (_CLEAN, *(f"{_WARM}{suffix}" for suffix in _LOGS)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{folder}/{name}")
            os.rmdir(folder)
    return count


def _warm_files(work_dir: Path) -> Iterator[tuple[int, int, str]]:
    """When each was put by (the rename sets the time of change), its size and its folder."""
    for group in _folders(work_dir):
        for folder in _folders(group):
            with contextlib.suppress(OSError):
                facts = os.stat(f"{folder}/{_WARM}")
                yield facts.st_ctime_ns, facts.st_size, folder


def _folders(folder: str | Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def forget_warm(work_dir: Path, key: ConversationKey) -> None:
    """Remove whatever this node keeps of a conversation that is not awake here."""
    shutil.rmtree(work_dir / key.prefix, ignore_errors=True)


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
