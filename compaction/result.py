"""What a compaction function is given besides the messages, and what it returns."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    field_validator,
    model_serializer,
)

from compaction.errors import EmptySummary, LongSummary
from storage.records import check_amounts
from storage.tokens import utf16_length

MAX_SUMMARY_CHARS = 400_000
"""UTF-16 code units of a summary, whoever wrote it: about 100,000 tokens."""

Messages: TypeAlias = list[dict[str, Any]]

TokenCounter: TypeAlias = Callable[..., float | Awaitable[float]]
"""``counter(messages=…, system_prompt=…, context_blocks=…)``: tokens of a model's whole input; may be async."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call of a model cost. Raises InvalidArgument for what the totals of a session cannot take."""

    input_tokens: Annotated[int, Strict()]
    output_tokens: Annotated[int, Strict()]
    cost: Annotated[float, Strict()] = 0.0

    def __post_init__(self) -> None:
        check_amounts(self.input_tokens, self.output_tokens, self.cost)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a summarizer may return instead of a bare text, if it knows what it cost."""

    text: str
    usage: Usage | None = None


class CompactResult(BaseModel):
    """A summary, the first and last message that it stands for, and what it cost (left out of JSON when not known).

    Raises EmptySummary, and LongSummary for one of more than `MAX_SUMMARY_CHARS`.
    """

    model_config = ConfigDict(populate_by_name=True, frozen=True)

    from_message_id: str = Field(alias="fromMessageId")
    to_message_id: str = Field(alias="toMessageId")
    summary: str
    usage: Usage | None = None

    @field_validator("summary")
    @classmethod
    def _check_summary(cls, summary: str) -> str:
        if not summary.strip():
            raise EmptySummary()
        if len(summary) > MAX_SUMMARY_CHARS // 2 and (length := utf16_length(summary)) > MAX_SUMMARY_CHARS:
            raise LongSummary(length, MAX_SUMMARY_CHARS, "characters")
        return summary

    @model_serializer(mode="wrap")
    def _without_unknown_usage(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = serialize(self)
        if plain.get("usage") is None:
            plain.pop("usage", None)
        return plain

    def at(self, from_message_id: str, to_message_id: str) -> Self:
        """The same summary for another range."""
        return self.model_copy(update={"from_message_id": from_message_id, "to_message_id": to_message_id})


@dataclass(frozen=True, slots=True)
class CompactContext:
    """What the session knows. Its own counter: so one counter can decide both when to compact and what.

    ``threshold``: the estimate above which it compacts by itself; None if it does not.
    """

    token_counter: TokenCounter | None = None
    threshold: float | None = None


CompactFunction: TypeAlias = Callable[..., Any]
"""``compact(messages)`` or ``compact(messages, context)``: a `CompactResult`, an object of its wire names, or None when there is
nothing to fold. May be async."""
