"""Waiting for a port of this machine, and the one sentence that says who holds it."""

import errno
import os
import socket
import time
from pathlib import Path

from actors.cluster.errors import CannotStart

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def holder_of_port(port: int) -> str | None:
    """``"process 123 (name)"``, or None when this system or the process's owner does not let us know."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    if not inodes:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _holds(process, inodes):
            try:
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
            except OSError:
                return None
    return None


def _listening(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(descriptor) in inodes for descriptor in (process / "fd").iterdir())
    except OSError:  # not ours, or gone
        return False


def wait_for_port(host: str, port: int, wait_seconds: float) -> None:
    """Blocks until the port can be bound, at most ``wait_seconds``, then `CannotStart` says who holds it."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
            return
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise port_error(host, port, exc) from exc
        time.sleep(0.1)


def port_error(host: str, port: int, exc: OSError) -> CannotStart:
    """One sentence for an address that cannot be bound."""
    if exc.errno != errno.EADDRINUSE:
        return CannotStart(f"Port {port} on {host} cannot be opened: {exc.strerror or exc}.")
    return CannotStart(f"Port {port} on {host} is taken by {holder_of_port(port) or 'another program'}.")
