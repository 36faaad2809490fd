"""The unix socket at which the actors of a node connect to their keeper."""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

from actors.cluster.connection import LaneConnection, LaneOwner
from actors.cluster.errors import CannotStart

MAX_PATH_BYTES = 107
"""What the address of a unix socket has room for."""
_BACKLOG = 128


class LaneListener:
    """Only this user can connect, and an actor has to know its token besides.

    The sockets are closed on exec and never given on, so that the end of file of a lane means that its process is dead.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server: asyncio.Server | None = None

    async def open(self, owner: LaneOwner) -> None:
        """Takes the path over from a listener that is no more. `CannotStart` if it is too long or cannot be bound."""
        if len(os.fsencode(self.path)) > MAX_PATH_BYTES:
            raise CannotStart(f"The path {self.path} is too long for a socket; choose a shorter folder.")
        lane = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(lane.fileno(), 0o600)  # before it has a name; Linux gives the name this mode
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            lane.bind(os.fsencode(self.path))
            os.chmod(self.path, 0o600)
            lane.listen(_BACKLOG)
        except OSError as exc:
            lane.close()
            raise CannotStart(f"The socket {self.path} cannot be made ({exc.strerror}).") from exc
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: LaneConnection(owner), sock=lane)

    async def close(self) -> None:
        """No more actors; the lanes there are go on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
