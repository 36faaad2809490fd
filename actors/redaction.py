"""What must not be in logs: tokens, which travel in query strings, and what exceptions of an agent's own code say."""

import logging
import re
import traceback
from pathlib import PurePath

_MAX_CAUSES = 4
_MAX_PLACES = 12
_TOKEN = re.compile(r"([?&]token=)[^&\s\"'#<>]*", re.IGNORECASE)


def without_tokens(text: str) -> str:
    """``text`` with the value of every ``token=`` query parameter replaced."""
    return _TOKEN.sub(r"\1(hidden)", text)


def what_failed(error: BaseException) -> str:
    """An exception's class and where it was raised, innermost place first, but not its text, which may quote a message."""
    told, found = [], list[BaseException]()
    cause: BaseException | None = error
    while cause is not None and cause not in found and len(found) < _MAX_CAUSES:
        found.append(cause)
        frames = traceback.extract_tb(cause.__traceback__)[-_MAX_PLACES:]
        places = [f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in reversed(frames)]
        number = f" {cause.errno}" if isinstance(cause, OSError) and cause.errno is not None else ""
        told.append(type(cause).__name__ + number + (" at " + ", ".join(places) if places else ""))
        cause = cause.__cause__ or cause.__context__
    return " after ".join(told)


def quiet_logger(name: str) -> logging.Logger:
    """A logger for a library that prints request lines: what is logged through it has no tokens."""
    logger = logging.getLogger(name)
    if _hide not in logger.filters:
        logger.addFilter(_hide)
    return logger


def _hide(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if "token=" in text.lower():
        record.msg, record.args = without_tokens(text), ()
    return True
