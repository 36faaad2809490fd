"""A node's own folder, DATA/node-K, and the lock that makes it so.

Invariant: at most one living process holds the lock of a folder, and it lets go only by ending (or by `release`). The
file descriptor is close-on-exec and never handed on, so no child can keep a dead gateway's lock alive.
"""

import fcntl
import os
import time
from pathlib import Path

from actors.cluster.errors import CannotStart
from actors.cluster.ports import is_served, ports_of
from actors.cluster.ray_environment import private_folder

_LOCK = "lock"


class NodeFolder:
    """A locked folder. ``work`` holds the files of awake and warm conversations, ``logs`` what the processes say."""

    def __init__(self, path: Path, number: int, descriptor: int) -> None:
        self.path = path
        self.number = number
        self._descriptor = descriptor
        self.work = private_folder(path / "work")
        self.logs = private_folder(path / "logs")

    @classmethod
    def lock(cls, data: Path, *, wait_seconds: float, may_share: bool) -> "NodeFolder":
        """Lock DATA/node-0, or with ``may_share`` the first that is free. Raises `CannotStart`.

        Blocks up to ``wait_seconds`` for a holder that may be going away; one that serves is not waited for.
        """
        is_looked_at = False
        deadline = time.monotonic() + wait_seconds
        number = 0
        while True:
            path = private_folder(private_folder(data) / f"node-{number}")
            descriptor = _try_lock(path)
            if descriptor is not None:
                return cls(path, number, descriptor)
            if may_share:
                number += 1
            elif time.monotonic() >= deadline or (not is_looked_at and _is_serving(path)):
                raise CannotStart(f"The data folder {data} is already served by process {_holder(path)}.")
            else:
                is_looked_at = True
                time.sleep(0.05)  # the kernel tells nobody when a lock becomes free without blocking a thread for ever

    def release(self) -> None:
        os.close(self._descriptor)


def _try_lock(path: Path) -> int | None:
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise CannotStart(f"The lock file {path / _LOCK} cannot be opened: {exc.strerror}.") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as exc:
        os.close(descriptor)
        raise CannotStart(f"{path} is on a file system without locks ({exc.strerror}).") from exc
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _is_serving(path: Path) -> bool:
    holder = _holder(path)
    return holder.isdigit() and any(is_served("127.0.0.1", port) for port in ports_of(int(holder)))


def _holder(path: Path) -> str:
    try:
        return (path / _LOCK).read_text().strip() or "(unknown)"
    except OSError:
        return "(unknown)"
