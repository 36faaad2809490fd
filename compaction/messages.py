"""Messages as callers may give them: plain objects, or `SessionMessage`."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from storage.errors import InvalidArgument
from storage.records import SessionMessage

Message: TypeAlias = Mapping[str, Any]
Given: TypeAlias = Mapping[str, Any] | SessionMessage


def plain(messages: Iterable[Given]) -> list[Message]:
    """All of them as plain objects; those that are already are not copied. Raises InvalidArgument for what is none."""
    if isinstance(messages, (Mapping, SessionMessage, str)) or not isinstance(messages, Iterable):
        raise InvalidArgument(f"messages must be a list of messages, not {_kind(messages)}.")
    return list(map(_plain, messages))


def _plain(message: Given) -> Message:
    if isinstance(message, SessionMessage):
        return message.model_dump(by_alias=True, exclude_unset=True)
    if not isinstance(message, Mapping):
        raise InvalidArgument(f"messages must be a list of messages; one of these is {_kind(message)}.")
    return message


def _kind(value: Any) -> str:
    return "one message" if isinstance(value, (Mapping, SessionMessage)) else f"of type {type(value).__name__}"
