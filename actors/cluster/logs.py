"""Where the processes of a node write their logs: files below DATA/node-K/logs."""

import logging
from pathlib import Path

_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
_TOO_LONG = 16 * 1024 * 1024


def log_to(path: Path) -> None:
    """Send the loggers ``perdure.*``, and warnings of all others, to this file. Several processes may append to one."""
    logger = logging.getLogger("perdure")
    if logger.handlers:
        return
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.getLogger().addHandler(handler)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def rotate(path: Path) -> None:
    """Put a long log aside as ``NAME.1``; to be called while nobody writes to it."""
    if path.exists() and path.stat().st_size > _TOO_LONG:
        path.replace(path.with_name(path.name + ".1"))
