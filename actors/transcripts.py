"""Conversations of other programs, read from a file of lines and turned into messages in the AI-SDK UI shape.

Pure but for reading the file: no sockets, no clock. A line that cannot be used becomes a `BadLine`; the rest goes on.

``openai-chat``: a line is ``{"id", "messages": [...]}`` in the chat-completions format. The name of the conversation
is the id of the line, or ``<file>-<line number>`` where it has none. A tool call and its result become one
``dynamic-tool`` part. ``ui-messages``: the same envelope, its messages already in the UI shape. ``jsonl``: a line is
one message, ``{"conversation", "message", "parentId"?, "agent"?}``; without ``parentId`` it follows the one before it.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from actors.openai_chat import ConversionError, to_ui_messages

MAX_NAME_BYTES = 512


@dataclass(frozen=True, slots=True)
class Step:
    """One message and the id of the message that it follows (None = it begins a conversation)."""

    message: dict[str, Any]
    parent_id: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Transcript:
    name: str
    agent: str | None  # None = whatever the caller says
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BadLine:
    line: int
    reason: str


Reader: TypeAlias = Callable[[Path], Iterator[Transcript | BadLine]]


def read_openai_chat(path: Path) -> Iterator[Transcript | BadLine]:
    return _read_envelopes(path, to_ui_messages)


def read_ui_messages(path: Path) -> Iterator[Transcript | BadLine]:
    return _read_envelopes(path, _checked_ui_messages)


def read_jsonl(path: Path) -> Iterator[Transcript | BadLine]:
    """Reads the whole file before the first answer, since the lines of a conversation may lie apart."""
    found: dict[tuple[str | None, str], Transcript] = {}
    for number, value in _lines(path):
        if isinstance(value, BadLine):
            yield value
            continue
        try:
            agent, name = _optional_text(value, "agent"), _name(value.get("conversation"), path, number)
            message = _with_id(value.get("message"), f"{name}-{number}")
            transcript = found.setdefault((agent, name), Transcript(name, agent))
            parent_id = _optional_text(value, "parentId") if "parentId" in value else _last_id(transcript)
            transcript.steps.append(Step(message, parent_id, number))
        except ConversionError as exc:
            yield BadLine(number, str(exc))
    yield from found.values()


FORMATS: dict[str, Reader] = {"openai-chat": read_openai_chat, "ui-messages": read_ui_messages, "jsonl": read_jsonl}


def _read_envelopes(
    path: Path, convert: Callable[[list[Any], str], list[dict[str, Any]]]
) -> Iterator[Transcript | BadLine]:
    seen: dict[str, int] = {}
    for number, value in _lines(path):
        if isinstance(value, BadLine):
            yield value
            continue
        try:
            name = _name(value.get("id"), path, number)
            if name in seen:
                raise ConversionError(f"its id {name!r} is that of line {seen[name]} already")
            if not isinstance(value.get("messages"), list):
                raise ConversionError('it has no list "messages"')
            messages = convert(value["messages"], name)
            _refuse_twins(messages)
        except ConversionError as exc:
            yield BadLine(number, str(exc))
            continue
        seen[name] = number
        yield Transcript(name, None, list(_chain(messages, number)))


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            text = raw.removeprefix(b"\xef\xbb\xbf").strip()
            if text:
                yield number, _parse(text, number)


def _parse(text: bytes, number: int) -> dict[str, Any] | BadLine:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        return BadLine(number, "it is not UTF-8 text")
    except (ValueError, RecursionError) as exc:
        return BadLine(number, f"it is not JSON ({exc})")
    return value if isinstance(value, dict) else BadLine(number, "it is not a JSON object")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _name(value: object, path: Path, number: int) -> str:
    if value is None:
        return f"{path.stem}-{number}"
    name = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(name, str) or not 1 <= len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        raise ConversionError(f"its id is not a text of 1 to {MAX_NAME_BYTES} bytes")
    return name


def _optional_text(value: dict[str, Any], key: str) -> str | None:
    text = value.get(key)
    if text is None or isinstance(text, str):
        return text
    raise ConversionError(f"its {key!r} is not a text")


def _with_id(message: object, default_id: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ConversionError("a message is not a JSON object")
    if not isinstance(message.get("role"), str) or not isinstance(message.get("parts"), list):
        raise ConversionError('a message has no "role" or no list "parts"')
    if message.get("id") in (None, ""):
        return {"id": default_id, **{key: value for key, value in message.items() if key != "id"}}
    if not isinstance(message["id"], str):
        raise ConversionError("the id of a message is not a text")
    return message


def _checked_ui_messages(messages: list[Any], name: str) -> list[dict[str, Any]]:
    return [_with_id(message, f"{name}-{index}") for index, message in enumerate(messages)]


def _refuse_twins(messages: Iterable[dict[str, Any]]) -> None:
    # Appending is idempotent by id, so the second of two twins would vanish in silence.
    seen: set[str] = set()
    for message in messages:
        if message["id"] in seen:
            raise ConversionError(f"the message id {message['id']!r} is in it twice")
        seen.add(message["id"])


def _chain(messages: Iterable[dict[str, Any]], line: int) -> Iterator[Step]:
    parent_id = None
    for message in messages:
        yield Step(message, parent_id, line)
        parent_id = message["id"]


def _last_id(transcript: Transcript) -> str | None:
    return transcript.steps[-1].message["id"] if transcript.steps else None
