"""Where the processes of a node write their logs: files below DATA/node-K/logs, which are kept short.

Several processes append to one file. When it is put aside, each goes on in the new one with its next line.
"""

import asyncio
import contextlib
import logging
import logging.handlers
from pathlib import Path

_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
_TOO_LONG = 16 * 1024 * 1024
_LOOK_SECONDS = 20.0


def log_to(path: Path) -> None:
    """Send the loggers ``perdure.*``, and warnings of all others, to this file."""
    logger = logging.getLogger("perdure")
    if logger.handlers:
        return
    handler = handler_for(path)
    logging.getLogger().addHandler(handler)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def handler_for(path: Path) -> logging.Handler:
    handler = logging.handlers.WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter(_FORMAT))
    return handler


async def keep_short(folder: Path) -> None:
    """Put each log that has become long aside as ``NAME.1``, for as long as this runs; one process of a node does it."""
    while True:
        _rotate(folder)
        await asyncio.sleep(_LOOK_SECONDS)


def _rotate(folder: Path) -> None:
    for path in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if path.stat().st_size > _TOO_LONG:
                path.replace(path.with_name(path.name + ".1"))
