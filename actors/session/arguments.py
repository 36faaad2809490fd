"""What calls of a session are given, looked at before any storage sees it: a user's own checks nothing.

Each function gives the value, or raises one InvalidArgument that says what was wanted.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from actors.session.provider_checks import article
from compaction.checks import is_number
from storage.errors import InvalidArgument, shown
from storage.records import Latest, clean


def text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a text, not {article(value)}.")
    cleaned: str = clean(value)
    return cleaned


def text_or_none(value: Any, name: str) -> str | None:
    return None if value is None else text(value, name)


def number(value: Any, name: str) -> float:
    """Any but NaN; what is beyond all that storage can count is as much as it can."""
    if not is_number(value) or value != value:
        raise InvalidArgument(f"{name} must be a number, not {shown(value)}.")
    return max(-(2**62), min(value, 2**62))


def parent(value: Any) -> str | Latest | None:
    return value if isinstance(value, Latest) else text_or_none(value, "parent_id")


def ids(value: Any, name: str = "message_ids") -> list[str]:
    """The texts among them: what is no text is the id of nothing."""
    return [clean(item) for item in listed(value, name, "texts") if isinstance(item, str)]


def messages(value: Any) -> list[Any]:
    return listed(value, "messages", "messages")


def listed(value: Any, name: str, of: str) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidArgument(f"{name} must be a list of {of}, not {article(value)}.")
    try:
        return list(value)
    except TypeError as exc:  # a class whose objects are lists, …
        raise InvalidArgument(f"{name} must be a list of {of}, not {article(value)}.") from exc
