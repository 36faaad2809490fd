"""Tokens travel in query strings; this keeps them out of logs and error texts."""

import logging
import re

_TOKEN = re.compile(r"([?&]token=)[^&\s\"'#<>]*", re.IGNORECASE)


def without_tokens(text: str) -> str:
    """``text`` with the value of every ``token=`` query parameter replaced."""
    return _TOKEN.sub(r"\1(hidden)", text)


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
