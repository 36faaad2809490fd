"""Messages as callers may give them: plain objects, or `SessionMessage`."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from storage.records import SessionMessage

Message: TypeAlias = Mapping[str, Any]
Given: TypeAlias = Mapping[str, Any] | SessionMessage


def plain(messages: Iterable[Given]) -> list[Message]:
    """All of them as plain objects; those that are already are not copied."""
    return [
        message.model_dump(by_alias=True, exclude_unset=True) if isinstance(message, SessionMessage) else message
        for message in messages
    ]
