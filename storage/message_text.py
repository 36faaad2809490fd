"""The text of a message, as search finds and shows it."""

from collections.abc import Mapping
from typing import Any

from storage import json_text


def message_text(message: Mapping[str, Any], separator: str = " ") -> str:
    """The text parts, joined; reasoning, tools and files are not searched."""
    return separator.join(_text(part.get("text")) for part in message["parts"] if part.get("type") == "text")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None or isinstance(value, (list, dict)) else json_text.javascript_json(value)
