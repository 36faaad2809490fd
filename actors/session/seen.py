"""The history as a compaction function was given it, kept to see what has become of it when the summary is there."""

from dataclasses import dataclass
from typing import Self

import orjson

from actors.session.late_results import calls_of, lone_results
from compaction import CompactResult
from compaction.tool_pairs import places
from storage.records import JsonObject


@dataclass(frozen=True, slots=True)
class SeenHistory:
    """``text``: the messages as JSON, ``order`` the index of each. ``calls``: the calls in it, of which message and its id."""

    text: bytes
    order: dict[str, int]
    calls: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, messages: list[JsonObject], text: bytes | None = None) -> Self:
        order = {message["id"]: index for index, message in enumerate(messages)}
        calls = tuple((place.message, place.call_id) for place in places(messages) if place.is_call)
        return cls(as_text(messages) if text is None else text, order, calls)

    def still_holds(self, result: CompactResult, now: bytes) -> bool:
        """Whether the messages that were summarized are in the history `now` as they were, and no call of them has got an
        answer behind them since.

        A range that ends at a message that was not given tells of something unseen: False. One that begins at such a message
        (it may name what an earlier summary hides) begins at the first one.
        """
        if result.to_message_id not in self.order:
            return False
        calls = self.calls_in(result)
        if now.startswith(self.text[:-1]):  # nothing but appends since, which is seen without reading the messages
            came = orjson.loads(b"[" + now[len(self.text) - 1 :].removeprefix(b","))
            last = self.order[result.to_message_id]
            return not _answered(calls - {call_id for index, call_id in self.calls if index > last}, came)
        before, after = (_parted(result, orjson.loads(text)) for text in (self.text, now))
        if before is None or after is None or before[0] != after[0]:
            return False
        return _answered(calls, after[1]) <= _answered(calls, before[1])

    def calls_in(self, result: CompactResult) -> frozenset[str]:
        """The calls that the range holds."""
        first, last = self.order.get(result.from_message_id, 0), self.order.get(result.to_message_id, -1)
        return frozenset(call_id for index, call_id in self.calls if first <= index <= last)


def as_text(messages: list[JsonObject]) -> bytes:
    return orjson.dumps(messages, default=str, option=orjson.OPT_NON_STR_KEYS)


def _parted(result: CompactResult, messages: list[JsonObject]) -> tuple[list[JsonObject], list[JsonObject]] | None:
    """The messages of the range and those behind it; None if its end is not among them."""
    order = {message["id"]: index for index, message in enumerate(messages)}
    last = order.get(result.to_message_id)
    return None if last is None else (messages[order.get(result.from_message_id, 0) : last + 1], messages[last + 1 :])


def _answered(calls: frozenset[str], behind: list[JsonObject]) -> set[tuple[str, str]]:
    """Which messages behind the range answer these calls of it: a call that is made again is another."""
    found: set[tuple[str, str]] = set()
    for message in behind:
        found |= {(message["id"], call_id) for call_id in lone_results(message) & calls}
        calls = calls - calls_of(message)
    return found
