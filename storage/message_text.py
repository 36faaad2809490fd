"""The text of a message, as search finds and shows it."""

from collections.abc import Mapping
from typing import Any

from storage import json_text


def message_text(message: Mapping[str, Any]) -> str:
    """The text parts, joined by a space; reasoning, tools and files are not searched."""
    texts = [part.get("text") for part in message["parts"] if part.get("type") == "text"]
    return " ".join(
        "" if text is None else text if isinstance(text, str) else json_text.javascript_json(text) for text in texts
    )
