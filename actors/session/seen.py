"""The history as a compaction function was given it, kept to see what has become of it when the summary is there."""

from dataclasses import dataclass
from typing import Self

import orjson

from compaction import CompactResult
from compaction.tool_pairs import unanswered
from storage.records import JsonObject


@dataclass(frozen=True, slots=True)
class SeenHistory:
    """``text``: the messages as JSON, ``ids`` theirs. ``open_calls``: message id and call id of each call without a result."""

    text: bytes
    ids: frozenset[str]
    open_calls: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, messages: list[JsonObject], text: bytes | None = None) -> Self:
        ids = frozenset(message["id"] for message in messages)
        open_calls = tuple((messages[place.message]["id"], place.call_id) for place in unanswered(messages))
        return cls(as_text(messages) if text is None else text, ids, open_calls)

    def still_holds(self, result: CompactResult, now: bytes) -> bool:
        """Whether the messages that were summarized are in the history `now` as they were.

        A range that ends at a message that was not given tells of something unseen: False. One that begins at such a message
        (it may name what an earlier summary hides) begins at the first one.
        """
        if result.to_message_id not in self.ids:
            return False
        if now.startswith(self.text[:-1]):  # nothing but appends since, which is seen without reading the messages
            return True
        before = _between(result, orjson.loads(self.text))
        return before is not None and before == _between(result, orjson.loads(now))


def as_text(messages: list[JsonObject]) -> bytes:
    return orjson.dumps(messages, default=str, option=orjson.OPT_NON_STR_KEYS)


def _between(result: CompactResult, messages: list[JsonObject]) -> list[JsonObject] | None:
    """The messages of the range; None if its end is not among them."""
    order = {message["id"]: index for index, message in enumerate(messages)}
    last = order.get(result.to_message_id)
    return None if last is None else messages[order.get(result.from_message_id, 0) : last + 1]
