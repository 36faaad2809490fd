"""Shortens old messages for a model's input: long texts and tool outputs. What is stored does not change.

Lengths are UTF-16 code units, and no cut splits a character. A structured output keeps its shape: an object stays an object and
a list a list, so that code that reads it goes on working.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from compaction.checks import check_whole
from compaction.cut import cut
from compaction.messages import Given, Message, plain
from compaction.tool_pairs import is_tool_part, parts
from storage.records import javascript_json
from storage.tokens import utf16_length

KEEP_RECENT = 4
MAX_TOOL_OUTPUT_CHARS = 500
MAX_TEXT_CHARS = 10_000

MAX_DEPTH = 8
"""Containers of a shortened output that lie deeper are omitted."""

LEAST_STRING = 80
"""A text inside a structured output is first cut to a quarter of what is allowed, but not below this."""

NOTE = "Tool output omitted because it was too large to preserve structurally."


def truncate_older_messages(
    messages: Sequence[Given],
    keep_recent: int = KEEP_RECENT,
    max_tool_output_chars: int = MAX_TOOL_OUTPUT_CHARS,
    max_text_chars: int = MAX_TEXT_CHARS,
) -> list[dict[str, Any]]:
    """`messages` with all but the newest ``keep_recent`` shortened; the given messages are not changed.

    Each text part is cut to ``max_text_chars`` and says so, each tool output is brought down to about ``max_tool_output_chars``.
    Raises InvalidArgument for messages and numbers that are none.
    """
    check_whole(keep_recent=keep_recent, max_tool_output_chars=max_tool_output_chars, max_text_chars=max_text_chars)
    history = plain(messages)
    old = max(0, len(history) - max(0, keep_recent))
    return [
        _shortened(message, max_tool_output_chars, max_text_chars) if index < old else dict(message)
        for index, message in enumerate(history)
    ]


def _shortened(message: Message, max_output: int, max_text: int) -> dict[str, Any]:
    shortened = [_shortened_part(part, max_output, max_text) for part in parts(message)]
    return {**message, "parts": shortened}


def _shortened_part(part: Mapping[str, Any], max_output: int, max_text: int) -> dict[str, Any]:
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return {**part, "text": _cut_text(part["text"], max_text)}
    field = "result" if part.get("type") == "tool-result" and "output" not in part else "output"
    if is_tool_part(part) and field in part:
        return {**part, field: truncate_output(part[field], max_output)}
    return dict(part)


def _cut_text(text: str, limit: int) -> str:
    length = utf16_length(text)
    return text if length <= limit else cut(text, limit) + _mark(length)


def truncate_output(value: Any, limit: int) -> Any:
    """A tool's output, shortened to about ``limit`` UTF-16 code units of compact JSON; numbers, booleans and null stay."""
    if isinstance(value, str):
        return _cut_string(value, limit)
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    length = _length(value)
    if length <= limit:
        return value
    lighter = _cut_strings(value, max(LEAST_STRING, limit // 4))
    if _length(lighter) <= limit:
        return lighter
    if isinstance(value, Mapping):
        return _smaller_object(lighter, length, limit)
    return _smaller_list(lighter, length, limit)


def _cut_string(text: str, limit: int) -> str:
    """At most ``limit``, the mark included."""
    length = utf16_length(text)
    if length <= limit:
        return text
    mark = _mark(length)
    return cut(text, limit - len(mark)) + mark if limit > len(mark) else cut(mark, limit)


def _mark(length: int) -> str:
    return f"... [truncated {length} chars]"


def _length(value: Any) -> int:
    return utf16_length(javascript_json(value))


def _cut_strings(value: Any, limit: int, depth: int = 0) -> Any:
    if isinstance(value, str):
        return _cut_string(value, limit)
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if depth >= MAX_DEPTH:
        return f"[Nested output omitted {_mark(_length(value))}]"
    if isinstance(value, Mapping):
        return {key: _cut_strings(item, limit, depth + 1) for key, item in value.items()}
    return [_cut_strings(item, limit, depth + 1) for item in value]


def _smaller_object(value: Mapping[str, Any], length: int, limit: int) -> dict[str, Any]:
    """Each field brought down to a quarter of the limit, or the whole object omitted."""
    smaller = {key: _smaller_field(item, limit) for key, item in value.items()}
    return smaller if _length(smaller) <= limit else _omitted(length, limit)


def _smaller_field(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return _cut_string(value, limit // 4)
    if not isinstance(value, (Mapping, list)) or _length(value) <= limit // 4:
        return value
    omitted = _omitted(_length(value), limit)
    return [omitted] if isinstance(value, list) else omitted


def _smaller_list(value: list[Any], length: int, limit: int) -> list[Any]:
    """As many of the first items as fit with a mark behind them, or the whole list omitted."""
    mark = f"Array output truncated {_mark(length)}"
    kept: list[Any] = []
    spent = 2 + _length(mark)
    for item in value[:-1]:
        spent += _length(item) + 1
        if spent > limit:
            break
        kept.append(item)
    if kept:
        return [*kept, mark]
    omitted = [_omitted(length, limit)]
    return omitted if _length(omitted) <= limit else [cut(_mark(length), limit)]


def _omitted(length: int, limit: int) -> dict[str, Any]:
    omitted: dict[str, Any] = {"__truncated": True, "__truncatedChars": length}
    explained = {**omitted, "note": NOTE}
    return explained if _length(explained) <= limit else omitted
