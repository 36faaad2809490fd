"""Waiting for a port of this machine, and the one sentence that says who holds it."""

import contextlib
import errno
import os
import socket
import time
from pathlib import Path

from actors.cluster.errors import CannotStart

_MOMENT_SECONDS = 0.3
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def holder_of_port(port: int) -> str | None:
    """``"process 123 (name)"``, or None when this system or the process's owner does not let us know."""
    sockets = {name for name, found in _listeners().items() if found == port}
    if not sockets:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and sockets & _sockets(process):
            try:
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
            except OSError:
                return None
    return None


def listeners_of_session() -> list[str]:
    """``"port (process name)"`` of all TCP sockets that the processes of our session listen on."""
    found = []
    sockets = _listeners()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or _session_of(process) != os.getsid(0):
            continue
        try:
            name = (process / "comm").read_text().strip()
        except OSError:
            continue
        found += [f"{sockets[inode]} ({name})" for inode in _sockets(process) if inode in sockets]
    return sorted(found)


def _session_of(process: Path) -> int:
    try:
        return os.getsid(int(process.name))
    except OSError:
        return -1


def _sockets(process: Path) -> set[str]:
    found = set()
    try:
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(os.readlink(descriptor))
    except OSError:  # not ours, or gone
        pass
    return found


def _listeners() -> dict[str, int]:
    """Port by the name that the socket has as an open file."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN:
                found[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    return found


def ports_of(pid: int) -> list[int]:
    """All TCP ports that a process listens on."""
    mine = _sockets(Path(f"/proc/{pid}"))
    return sorted({port for name, port in _listeners().items() if name in mine})


def is_served(host: str, port: int) -> bool:
    """Whether something answers HTTP there, and still does a moment later: a gateway that drains has closed its port."""
    if not _answers(host, port):
        return False
    time.sleep(_MOMENT_SECONDS)
    return _answers(host, port)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_MOMENT_SECONDS) as probe:
            probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return probe.recv(5) == b"HTTP/"
    except OSError:
        return False


def refuse_port_in_use(host: str, port: int) -> None:
    """A look, without waiting for anybody who may be going away. Raises `CannotStart`."""
    try:
        wait_for_port(host, port, 0)
    except CannotStart as exc:
        cause = exc.__cause__
        if not (isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE) or is_served(host, port):
            raise


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
