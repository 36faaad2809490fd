"""What is stored and returned: messages, search results, overlays, sessions.

Reads return plain JSON objects: messages exactly as stored (`SessionMessage.model_validate` gives typed access), all else as the
TypedDicts here say, by the names on the wire. `encode` is the border: nothing is stored that has not passed it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Final, NotRequired, TypeAlias, TypedDict

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from storage import json_text
from storage.errors import InvalidArgument, InvalidMessage, shown
from storage.json_text import clean, javascript_json, parse

__all__ = [
    "COMPACTION_PREFIX",
    "LATEST",
    "MOST_SPENT",
    "Appended",
    "JsonObject",
    "Latest",
    "MessagePage",
    "MessageRow",
    "RecentHistory",
    "RowStat",
    "SearchResult",
    "SessionInfo",
    "SessionMessage",
    "SessionMessagePart",
    "StoredCompaction",
    "check_amounts",
    "clean",
    "decode",
    "encode",
    "javascript_json",
    "parse",
    "timestamp",
]

JsonObject: TypeAlias = dict[str, Any]
COMPACTION_PREFIX: Final = "compaction_"
"""Ids that begin with this belong to overlays; no stored message has one."""


MOST_SPENT: Final = 2**53
"""The most that one call of a model can have cost, in tokens or money."""


class Latest(Enum):
    """The type of `LATEST`."""

    LATEST = "latest"

    def __repr__(self) -> str:
        return "LATEST"


LATEST: Final = Latest.LATEST
"""`parent_id` left out: append after the latest leaf. (None is a new root.)"""

_Name: TypeAlias = Annotated[str, Field(min_length=1)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)


class SessionMessagePart(_Wire):
    type: str | None = None


class SessionMessage(_Wire):
    """A message; unknown fields and part types are kept."""

    id: _Name
    role: _Name
    parts: list[JsonObject]
    created_at: Any = Field(None, alias="createdAt")


class SessionInfo(_Wire):
    """A session of a `SessionManager`. ``name`` is its title. On the wire ``owner`` and ``tags`` are absent when not set."""

    id: str
    name: str
    parent_session_id: str | None = None
    model: str | None = None
    source: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    estimated_cost: float = 0.0
    end_reason: str | None = None
    created_at: str
    updated_at: str
    owner: str | None = None
    tags: list[str] = Field(default_factory=list)

    @model_serializer(mode="wrap")
    def _to_wire(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        fields = dict.fromkeys(_DOCUMENTED) | handler(self)
        return {name: value for name, value in fields.items() if name in _DOCUMENTED or value not in (None, [])}


_DOCUMENTED = [name for name in SessionInfo.model_fields if name not in ("owner", "tags")]


class SearchResult(TypedDict):
    """A message that a search found. ``content``: its text. ``createdAt``: its own, else the time of its writing."""

    id: str
    role: str
    content: str
    createdAt: NotRequired[str | None]


class StoredCompaction(TypedDict):
    """An overlay: a summary that stands for the messages from one to another."""

    id: str
    summary: str
    fromMessageId: str
    toMessageId: str
    createdAt: str


class RecentHistory(TypedDict):
    """The newest messages that fit a budget. ``totalContentBytes`` counts the whole path, ``truncated``: there are more."""

    messages: list[JsonObject]
    truncated: bool
    totalContentBytes: int


class RowStat(TypedDict):
    """How many bytes the JSON of a message has."""

    id: str
    role: str
    bytes: int


class MessageRow(TypedDict):
    """A message without its content. ``parentId`` None: a root. ``tokens``: the estimate of the message alone."""

    id: str
    parentId: str | None
    role: str
    bytes: int
    tokens: int
    createdAt: str


class MessagePage(TypedDict):
    """``nextCursor`` is absent on the last page."""

    messages: list[MessageRow]
    nextCursor: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Appended:
    """What a write did. ``tokens``: the estimate of the visible path to the latest leaf, without the prompt."""

    inserted: bool
    tokens: int


def check_amounts(input_tokens: Any, output_tokens: Any, cost: Any) -> None:
    """What a call of a model cost, as it can be added up: nothing negative, infinite or above 2**53. Raises InvalidArgument."""
    for name, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_SPENT:
            raise InvalidArgument(f"{name} must be a whole number from 0 to 2**53, not {shown(value)}")
    if not isinstance(cost, int | float) or isinstance(cost, bool) or not 0 <= cost <= MOST_SPENT:
        raise InvalidArgument(f"cost must be a number from 0 to 2**53, not {shown(cost)}")


def encode(message: Mapping[str, Any] | SessionMessage) -> tuple[JsonObject, str]:
    """The message as plain JSON and its text. Raises InvalidMessage; nothing is stored before this has passed."""
    if isinstance(message, BaseModel):
        message = message.model_dump(by_alias=True, exclude_unset=True)
    elif not isinstance(message, Mapping):
        raise InvalidMessage(f"it is of type {type(message).__name__}, not an object")
    elif type(message) is not dict:
        message = dict(message)
    _check(message)
    try:
        plain, text = json_text.dump(message)
    except (TypeError, ValueError) as exc:
        raise InvalidMessage(str(exc)) from exc
    return plain, text


def decode(text: str | bytes) -> JsonObject:
    """The message of a text that `encode` made."""
    return json_text.load(text)  # type: ignore[no-any-return]


def _check(message: Mapping[str, Any]) -> None:
    for name in ("id", "role"):
        value = message.get(name)
        if not isinstance(value, str) or not value:
            raise InvalidMessage(f"its {name} must be a text that is not empty")
    parts = message.get("parts")
    if not isinstance(parts, (list, tuple)):
        raise InvalidMessage("its parts must be a list")
    if not all(isinstance(part, Mapping) for part in parts):
        raise InvalidMessage("each of its parts must be an object")


def timestamp() -> str:
    """Now, as messages carry it in ``createdAt``. It is a label; nothing is decided by it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
