"""The history as a compaction function was given it, kept to see what has become of it when the summary is there."""

from dataclasses import dataclass
from typing import Self

import orjson

from compaction import CompactResult
from compaction.tool_pairs import unanswered
from storage.records import JsonObject


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``text``: the messages as JSON. ``open_calls``: message id and call id of each call that had no result."""

    text: bytes
    open_calls: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, messages: list[JsonObject], text: bytes | None = None) -> Self:
        open_calls = tuple((messages[place.message]["id"], place.call_id) for place in unanswered(messages))
        return cls(as_text(messages) if text is None else text, open_calls)

    def still_holds(self, result: CompactResult, now: bytes) -> bool:
        """Whether the messages that were summarized are in the history `now` as they were."""
        if now.startswith(self.text[:-1]):  # nothing but appends since, which is seen without reading the messages
            return True
        before = _between(result, orjson.loads(self.text))
        return before is None or before == _between(result, orjson.loads(now))


def as_text(messages: list[JsonObject]) -> bytes:
    return orjson.dumps(messages, default=str, option=orjson.OPT_NON_STR_KEYS)


def _between(result: CompactResult, messages: list[JsonObject]) -> list[JsonObject] | None:
    """The messages of the range; None if its ends are not both among them."""
    order = {message["id"]: index for index, message in enumerate(messages)}
    first, last = order.get(result.from_message_id), order.get(result.to_message_id)
    return None if first is None or last is None else messages[first : last + 1]
