"""What a compaction function is given besides the messages, and what it returns."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Messages: TypeAlias = list[dict[str, Any]]

TokenCounter: TypeAlias = Callable[..., float | Awaitable[float]]
"""``counter(messages=…, system_prompt=…, context_blocks=…)``: tokens of a model's whole input; may be async."""


class CompactResult(BaseModel):
    """A summary and the first and last message that it stands for."""

    model_config = ConfigDict(populate_by_name=True, frozen=True)

    from_message_id: str = Field(alias="fromMessageId")
    to_message_id: str = Field(alias="toMessageId")
    summary: str

    def at(self, from_message_id: str, to_message_id: str) -> Self:
        """The same summary for another range."""
        return self.model_copy(update={"from_message_id": from_message_id, "to_message_id": to_message_id})


@dataclass(frozen=True, slots=True)
class CompactContext:
    """The session's own counter, so that one counter can decide both when to compact and what."""

    token_counter: TokenCounter | None = None


CompactFunction: TypeAlias = Callable[..., Any]
"""``compact(messages)`` or ``compact(messages, context)``: a `CompactResult`, an object of its wire names, or None when there is
nothing to fold. May be async."""
