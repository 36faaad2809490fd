"""A checkpoint store in a folder of a local or shared disk.

An object is written to a file without a name (or a temporary one), synced, then linked to its key, which fails when the
key is taken; then the folder is synced. So an object is whole or absent, and durable before `create` returns.

Everything is reached through one open descriptor of the root, so that a folder that is unmounted or replaced under a
running server gives errors, and not an empty store.
"""

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from storage.checkpoints.store import AlreadyExists, NotFound
from storage.errors import StoreUnavailable

_KEY = re.compile(r"[a-z0-9_-][a-z0-9._-]*(/[a-z0-9_-][a-z0-9._-]*)*")
_TEMPORARY = ".t"
_REMEMBERED_FOLDERS = 1024
_BLOCK = 4096


class DirectoryStore:
    """See `CheckpointStore`. Files are 0600, folders 0700."""

    def __init__(self, root: str | Path, *, anonymous: bool | None = None, must_exist: bool = False) -> None:
        """Open, and create when it is not there; one that ``must_exist`` has a store.json. ``anonymous`` False = never use
        files without a name (for tests). What is there opens on a read-only disk too."""
        self._path = Path(root).absolute()
        try:
            if not must_exist:
                _make_root(self._path)
            if must_exist:
                os.stat(self._path / "store.json")
            self._root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._durable: dict[str, None] = {"": None}  # folders whose own entry is known to be synced
            self._anonymous = anonymous  # None = asked at the first create
        except OSError as exc:
            raise StoreUnavailable(f"{self._path}: {exc.strerror}") from exc
        with contextlib.suppress(OSError):  # neither is needed yet
            self._ensure_folder(_TEMPORARY)
            self._sweep()

    @property
    def name(self) -> str:
        return str(self._path)

    def create(self, key: str, data: bytes) -> None:
        folder = _folder_of(key)
        try:
            self._ensure_folder(folder)
            descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
            try:
                taken = not self._link(folder, key, data)
                # also when the key is taken: who finds its own object there, after a lost answer, may rely on it
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as exc:
            self._durable.pop(folder, None)
            raise self._unavailable(exc) from exc
        if taken:
            raise AlreadyExists(key)

    def get(self, key: str, *, size: int | None = None) -> bytes:
        _check(key)
        try:
            descriptor = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._root)
            try:
                return _read(descriptor, os.fstat(descriptor).st_size if size is None else size)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            self._check_root()
            raise NotFound(key) from None
        except OSError as exc:
            raise self._unavailable(exc) from exc

    def exists(self, key: str) -> bool:
        _check(key)
        try:
            os.stat(key, dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            self._check_root()
            return False
        except OSError as exc:  # "no answer" must never count as "absent"
            raise self._unavailable(exc) from exc
        return True

    def list(self, prefix: str) -> Sequence[str]:
        folder = prefix.rstrip("/")
        if folder:
            _check(folder)
        try:
            descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
            try:
                with os.scandir(descriptor) as entries:
                    names = [entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in entries]
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            self._check_root()
            return []
        except OSError as exc:
            raise self._unavailable(exc) from exc
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, key: str) -> None:
        _check(key)
        try:
            os.unlink(key, dir_fd=self._root)
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise self._unavailable(exc) from exc

    def put_hint(self, key: str, data: bytes) -> None:
        folder = _folder_of(key)
        try:
            if self._overwrite(key, data):
                return
            self._ensure_folder(folder)
            temporary = self._write_temporary(data, sync=False)
            os.replace(temporary, key, src_dir_fd=self._root, dst_dir_fd=self._root)
        except OSError as exc:
            raise self._unavailable(exc) from exc

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _overwrite(self, key: str, data: bytes) -> bool:
        """Replace an object of the same small size in place: a rename over an existing file makes ext4 flush it first."""
        if len(data) > _BLOCK:
            return False
        try:
            descriptor = os.open(key, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._root)
        except FileNotFoundError:
            return False
        try:
            return os.fstat(descriptor).st_size == len(data) == os.pwrite(descriptor, data, 0)
        finally:
            os.close(descriptor)

    def _link(self, folder: str, key: str, data: bytes) -> bool:
        """Write and link one object, unsynced folder; False when the key is taken."""
        if self._anonymous is None:
            self._anonymous = self._can_link_anonymous()
        if self._anonymous:
            descriptor = os.open(
                folder or ".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode=0o600, dir_fd=self._root
            )
            try:
                _write(descriptor, data)
                os.fdatasync(descriptor)
                os.link(f"/proc/self/fd/{descriptor}", key, dst_dir_fd=self._root, follow_symlinks=True)
            except FileExistsError:
                return False
            finally:
                os.close(descriptor)
            return True
        temporary = self._write_temporary(data, sync=True)
        try:
            os.link(temporary, key, src_dir_fd=self._root, dst_dir_fd=self._root)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self._root)
        return True

    def _write_temporary(self, data: bytes, *, sync: bool) -> str:
        self._ensure_folder(_TEMPORARY)
        temporary = f"{_TEMPORARY}/{os.getpid()}-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, mode=0o600, dir_fd=self._root)
        try:
            _write(descriptor, data)
            if sync:
                os.fdatasync(descriptor)
        except BaseException:
            os.unlink(temporary, dir_fd=self._root)
            raise
        finally:
            os.close(descriptor)
        return temporary

    def _ensure_folder(self, folder: str) -> None:
        """Make the folder and see to it that its entry, and those above it, are synced.

        An existing folder is synced once too: whoever made it may have died before the sync.
        """
        if folder in self._durable:
            return
        parent = folder.rpartition("/")[0]
        self._ensure_folder(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, mode=0o700, dir_fd=self._root)
        descriptor = os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if len(self._durable) >= _REMEMBERED_FOLDERS:
            self._durable = {"": None}
        self._durable[folder] = None

    def _can_link_anonymous(self) -> bool:
        """Whether this file system knows files without a name (most do; some network ones do not)."""
        name = f".probe-{secrets.token_hex(8)}"
        try:
            descriptor = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode=0o600, dir_fd=self._root)
        except OSError as exc:
            if exc.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                return False
            raise
        try:
            os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=self._root, follow_symlinks=True)
            os.unlink(name, dir_fd=self._root)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _sweep(self) -> None:
        """Remove temporary files that were there before this process; one still in use is simply written again."""
        started = time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - _process_start())
        descriptor = os.open(_TEMPORARY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
        try:
            for name in os.listdir(descriptor):
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime < started:
                        os.unlink(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)

    def _check_root(self) -> None:
        if os.fstat(self._root).st_nlink == 0:
            raise StoreUnavailable(f"the folder {self._path} was removed")

    def _unavailable(self, exc: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"{self._path}: {exc.strerror or exc}")


def _make_root(path: Path) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        descriptor = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _process_start() -> float:
    """When this process started, in seconds of CLOCK_BOOTTIME."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _check(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"not a key: {key!r}")


def _folder_of(key: str) -> str:
    _check(key)
    return key.rpartition("/")[0]


def _read(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size)
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
