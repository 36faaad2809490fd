"""A session's message storage by the documented methods of a `SessionProvider`, whichever it is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from actors.errors import NotSupported
from actors.session import late_results
from actors.session.seen import SeenHistory, as_text
from compaction import COMPACTION_PREFIX, CompactResult, Usage, is_compaction_message
from compaction.overlays import Applied, place_overlay, resolve
from compaction.tool_pairs import places
from storage.full_text import whole_limit
from storage.maybe_async import settle
from storage.overlays import Overlay
from storage.records import LATEST, JsonObject, Latest, encode
from storage.tokens import estimate_message_tokens

Rewrite = Callable[[JsonObject], JsonObject | None]
"""The message as it should be, or None to leave it."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did: whether anything was stored, and the tokens of the visible path (None: not known without reading it)."""

    is_changed: bool
    path_tokens: int | None = None


class History:
    """Over any `SessionProvider`."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider

    async def append(self, message: Any, parent_id: str | Latest | None) -> Written:
        plain, _ = encode(message)
        is_known = await settle(self.provider.get_message(plain["id"])) is not None
        arguments = () if parent_id is LATEST else (parent_id,)
        late = "" if is_known else await self._late_results(plain, parent_id)
        await settle(self.provider.append_message(plain, *arguments))
        if late:
            await settle(self.provider.add_compaction(late, plain["id"], plain["id"]))
        return Written(not is_known)

    async def _late_results(self, message: JsonObject, parent_id: str | Latest | None) -> str:
        """The text that will stand for a message whose calls a summary holds; "" if it holds none."""
        answered = late_results.lone_results(message)
        if not answered or parent_id is None:
            return ""
        visible = await self.get_history(None if isinstance(parent_id, Latest) else parent_id)
        if not any(map(is_compaction_message, visible)):
            return ""
        late = answered - {place.call_id for place in places(visible) if place.is_call}
        return late_results.as_summary(message, late) if late else ""

    async def append_all(self, messages: Sequence[Any], parent_id: str | Latest | None) -> list[Written]:
        written: list[Written] = []
        for message in messages:
            written.append(await self.append(message, parent_id))
            parent_id = encode(message)[0]["id"]
        return written

    async def upsert(self, message: Any, parent_id: str | Latest | None) -> Written:
        plain, _ = encode(message)
        if await settle(self.provider.get_message(plain["id"])) is None:
            return await self.append(plain, parent_id)
        await self.update(plain)
        return Written(False)

    async def update(self, message: Any) -> Written:
        plain, _ = encode(message)
        late = await self._became_late(plain)
        await settle(self.provider.update_message(plain))
        if late:
            await settle(self.provider.add_compaction(late, plain["id"], plain["id"]))
        return Written(True)

    async def _became_late(self, message: JsonObject) -> str:
        """`_late_results` of a message of the path that is going to be replaced."""
        if not late_results.lone_results(message):
            return ""
        visible = await self.get_history()
        index = next((index for index, each in enumerate(visible) if each["id"] == message["id"]), None)
        if index is None or not any(map(is_compaction_message, visible[:index])):
            return ""
        answered = late_results.lone_results(message) - late_results.lone_results(visible[index])
        late = answered - {place.call_id for place in places(visible[:index]) if place.is_call}
        return late_results.as_summary(message, late) if late else ""

    async def delete(self, message_ids: list[str]) -> Written:
        await settle(self.provider.delete_messages(message_ids))
        return Written(True)

    async def clear(self) -> None:
        await settle(self.provider.clear_messages())

    async def path_tokens(self) -> int:
        return estimate_message_tokens(await self.get_history())

    async def get_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        return await settle(self.provider.get_history(leaf_id or None))  # type: ignore[no-any-return]

    async def get_history_json(self, leaf_id: str | None = None) -> bytes:
        return orjson.dumps(await self.get_history(leaf_id))

    async def get_recent_history(self, max_content_bytes: float, min_recent_messages: float) -> Any:
        if callable(getattr(self.provider, "get_recent_history", None)):
            return await settle(self.provider.get_recent_history(max_content_bytes, min_recent_messages))
        messages = await self.get_history()
        size = sum(len(encode(message)[1].encode()) for message in messages)
        return {"messages": messages, "truncated": False, "totalContentBytes": size}

    async def get_history_row_stats(self) -> Any:
        if callable(getattr(self.provider, "get_history_row_stats", None)):
            return await settle(self.provider.get_history_row_stats())
        return None

    async def page_messages(self, limit: int, cursor: str | None, order: str, leaf_id: str | None) -> JsonObject:
        if not callable(getattr(self.provider, "page_messages", None)):
            raise NotSupported("This session's storage cannot page through its messages.")
        found = self.provider.page_messages(limit, cursor, order=order, leaf_id=leaf_id)
        return await settle(found)  # type: ignore[no-any-return]

    async def search(self, query: str, limit: int) -> Any:
        if not callable(getattr(self.provider, "search_messages", None)):
            raise NotSupported("This session's storage cannot search its messages.")
        return await settle(self.provider.search_messages(query, whole_limit(limit)))

    async def get_raw_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        """The path without overlays. Raises NotSupported where overlays hide messages and the storage offers no way to them."""
        if callable(getattr(self.provider, "get_raw_history", None)):
            return await settle(self.provider.get_raw_history(leaf_id or None))  # type: ignore[no-any-return]
        messages = await self.get_history(leaf_id)
        if any(map(is_compaction_message, messages)):
            raise NotSupported("This session's storage shows no messages that a summary stands for.")
        return messages

    async def snapshot(self) -> tuple[list[JsonObject], SeenHistory]:
        """The history to be summarized, and what `store_summary` needs to see whether it has changed."""
        messages = await self.get_history()
        return messages, SeenHistory.of(messages)

    async def store_summary(self, result: CompactResult, seen: SeenHistory) -> CompactResult | None:
        """Store an overlay if its range can apply to the path as it is now, and is as it was seen; its range, or None.

        What was deleted, replaced, cleared or answered while the summary was being written is not lost to it. What the summary
        cost is added to the totals of a registered session, once, whether it is stored or not.
        """
        messages = await self.get_history()
        if not seen.still_holds(result, as_text(messages)):
            return None
        order = {message["id"]: index for index, message in enumerate(messages)}
        position, applied = await self._applied(messages, order)
        placed = place_overlay(result.from_message_id, result.to_message_id, position.get, applied)
        if placed is None:
            return None
        await settle(self.provider.add_compaction(result.summary, *placed))
        return result.at(*placed)

    async def _applied(self, messages: list[JsonObject], order: dict[str, int]) -> tuple[dict[str, int], list[Applied]]:
        """Where the messages of the path are, hidden ones too if the storage shows them, and the overlays that apply."""
        rows = list(map(_plain, await settle(self.provider.get_compactions())))
        try:
            path = await self.get_raw_history()
        except NotSupported:
            stored = {COMPACTION_PREFIX + row["id"]: _overlay(row) for row in rows}
            shown = enumerate(message["id"] for message in messages)
            return order, [Applied(stored[identity], index, index) for index, identity in shown if identity in stored]
        position = {message["id"]: index for index, message in enumerate(path)}
        return position, resolve([_overlay(row, index) for index, row in enumerate(rows)], position.get)

    async def tool_messages(self, name: str) -> list[JsonObject]:
        """The messages of the path that may hold a call of a tool of this name, also hidden ones if the storage shows them."""
        try:
            return await self.get_raw_history()
        except NotSupported:
            return await self.get_history()

    async def rewrite(self, name: str, rewrite: Rewrite) -> Written:
        """Rewrite messages that may hold a call of a tool of this name, on every branch that can be reached."""
        is_changed = False
        anywhere = getattr(self.provider, "get_messages_containing", None)
        for message in await (settle(anywhere(name)) if callable(anywhere) else self.tool_messages(name)):
            rewritten = None if is_compaction_message(message) else rewrite(message)
            if rewritten is not None:
                await settle(self.provider.update_message(rewritten))
                is_changed = True
        return Written(is_changed)

    async def get_note(self, key: str) -> str | None:
        """A text that the session left for itself; other storage than the built-in keeps none."""
        return None

    async def take_note(self, key: str) -> str | None:
        """`get_note`, and forget it."""
        return None

    async def put_note(self, key: str, text: str | None) -> None:
        """Leave a text for a later awakening (None: remove it)."""

    async def record_usage(self, usage: Usage) -> bool:
        """Add what a call of a model cost to the session's row in the registry; whether there is one."""
        return False


def _plain(row: Any) -> JsonObject:
    return row if isinstance(row, dict) else row.model_dump(by_alias=True)


def _overlay(row: JsonObject, order: int = 0) -> Overlay:
    return Overlay(order, row["id"], row["summary"], row["fromMessageId"], row["toMessageId"], row.get("createdAt", ""))
