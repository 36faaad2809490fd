"""A session's message storage, whichever it is: the built-in provider by its fast ways, any other by the documented methods."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from actors.errors import NotSupported
from actors.session import late_results
from actors.session.providers import settle
from actors.session.snapshot import Snapshot, as_text
from compaction import COMPACTION_PREFIX, CompactResult, Usage, is_compaction_message
from compaction.overlays import Applied, place_overlay, resolve
from compaction.tool_pairs import places
from storage import access, compactions, containing, leaves, message_tree, paths, sessions
from storage.full_text import whole_limit
from storage.history import visible_json
from storage.messages import AgentSessionProvider
from storage.overlays import Overlay
from storage.records import LATEST, Appended, JsonObject, Latest, encode
from storage.tokens import estimate_message_tokens

T = TypeVar("T")
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
        await settle(self.provider.update_message(plain))
        return Written(False)

    async def update(self, message: Any) -> Written:
        plain, _ = encode(message)
        await settle(self.provider.update_message(plain))
        return Written(True)

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

    async def snapshot(self) -> tuple[list[JsonObject], Snapshot]:
        """The history to be summarized, and what `store_summary` needs to see whether it has changed."""
        messages = await self.get_history()
        return messages, Snapshot.of(messages)

    async def store_summary(self, result: CompactResult, seen: Snapshot) -> CompactResult | None:
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
        folded = range(order.get(result.from_message_id, 0), order.get(result.to_message_id, -1) + 1)
        open_calls = {call_id for message_id, call_id in seen.open_calls if order.get(message_id) in folded}
        if any(open_calls & late_results.lone_results(message) for message in messages):
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


class BuiltinHistory(History):
    """Over `AgentSessionProvider`: every write is one operation of the database and costs the same whatever the history."""

    def __init__(self, provider: AgentSessionProvider) -> None:
        super().__init__(provider)
        self._database = provider.database
        self._session_id = provider.session_id

    async def append(self, message: Any, parent_id: str | Latest | None) -> Written:
        then = self._cover if late_results.has_tool_parts(message) else None
        return _written(await self.provider.append_and_estimate(message, parent_id, then=then))

    async def append_all(self, messages: Sequence[Any], parent_id: str | Latest | None) -> list[Written]:
        appended = await self.provider.append_all_and_estimate(messages, parent_id, then=self._cover)
        return [_written(each) for each in appended]

    async def upsert(self, message: Any, parent_id: str | Latest | None) -> Written:
        return _written(await self.provider.upsert_and_estimate(message, parent_id, then=self._cover))

    def _cover(self, connection: sqlite3.Connection, message: JsonObject) -> None:
        """In the transaction of a new message: what it answers late is summarized with the calls."""
        if late_results.lone_results(message):
            late_results.cover_appended(connection, self._session_id, message)

    async def update(self, message: Any) -> Written:
        return _written(await self.provider.update_and_estimate(message))

    async def delete(self, message_ids: list[str]) -> Written:

        def uncover(connection: sqlite3.Connection) -> None:
            late_results.uncover(connection, self._session_id)

        return _written(await self.provider.delete_and_estimate(message_ids, then=uncover))

    async def path_tokens(self) -> int:
        tokens: int = await self.provider.path_tokens()
        return tokens

    async def get_history_json(self, leaf_id: str | None = None) -> bytes:
        text: bytes = await self.provider.get_history_json(leaf_id)
        return text

    async def snapshot(self) -> tuple[list[JsonObject], Snapshot]:
        text = await self.get_history_json()
        messages = orjson.loads(text)
        return messages, Snapshot.of(messages, text)

    async def store_summary(self, result: CompactResult, seen: Snapshot) -> CompactResult | None:
        session_id = self._session_id

        def store(connection: sqlite3.Connection) -> CompactResult | None:
            if result.usage is not None:  # was spent, whether the summary can be used or not
                sessions.add_usage(connection, session_id, result.usage)
            leaf = leaves.latest(connection, session_id)
            if leaf is None or not seen.still_holds(result, visible_json(connection, session_id)):
                return None

            def position(message_id: str) -> int | None:
                seq = leaves.seq_of(connection, session_id, message_id)
                return seq if seq is not None and paths.is_on_path(connection, seq, leaf.seq) else None

            applied = compactions.applied(connection, session_id, leaf.seq)
            placed = place_overlay(result.from_message_id, result.to_message_id, position, applied)
            if placed is None:
                return None
            late = self._answers(connection, seen, *placed)
            if any(paths.is_on_path(connection, seq, leaf.seq) for seq, _ in late):
                return None  # an answer has come meanwhile
            compactions.add(connection, session_id, result.summary, *placed)
            late_results.cover(connection, session_id, late)
            late_results.uncover(connection, session_id)
            return result.at(*placed)

        return await self._write(store)

    def _answers(
        self, connection: sqlite3.Connection, seen: Snapshot, from_id: str, to_id: str
    ) -> list[tuple[int, JsonObject]]:
        """Results, on any branch, of calls that are to be folded without one."""
        first, last = (leaves.seq_of(connection, self._session_id, end) or 0 for end in (from_id, to_id))
        found: list[tuple[int, JsonObject]] = []
        for message_id, call_id in seen.open_calls:
            call = leaves.seq_of(connection, self._session_id, message_id)
            if call is not None and first <= call <= last:
                answers = late_results.answers(connection, self._session_id, call_id, call)
                found += [(seq, message) for seq, message in answers if not first <= seq <= last]
        return found

    async def tool_messages(self, name: str) -> list[JsonObject]:
        return await self._read(lambda connection: containing.on_path(connection, self._session_id, name))

    async def rewrite(self, name: str, rewrite: Rewrite) -> Written:
        def work(connection: sqlite3.Connection) -> Written:
            is_changed = False
            for message in containing.anywhere(connection, self._session_id, name):
                rewritten = rewrite(message)
                if rewritten is not None:
                    message_tree.update(connection, self._session_id, rewritten)
                    is_changed = True
            return Written(is_changed, message_tree.path_tokens(connection, self._session_id))

        return await self._write(work)

    async def get_note(self, key: str) -> str | None:
        return await self._read(lambda connection: _get_note(connection, self._note(key)))

    async def take_note(self, key: str) -> str | None:
        text = await self.get_note(key)
        if text is not None:
            await self.put_note(key, None)
        return text

    async def put_note(self, key: str, text: str | None) -> None:
        await self._write(lambda connection: _put_note(connection, self._note(key), text))

    async def record_usage(self, usage: Usage) -> bool:
        session_id = self._session_id
        if await self._read(lambda connection: sessions.get(connection, session_id)) is None:
            return False
        return await self._write(lambda connection: sessions.add_usage(connection, session_id, usage))

    def _note(self, key: str) -> str:
        return sessions.note_key(self._session_id, key)

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await access.read(self._database, work)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await access.write(self._database, work)


def history_of(provider: Any) -> History:
    return BuiltinHistory(provider) if isinstance(provider, AgentSessionProvider) else History(provider)


def _written(appended: Appended) -> Written:
    return Written(appended.inserted, appended.tokens)


def _get_note(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM perdure_state WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def _put_note(connection: sqlite3.Connection, key: str, text: str | None) -> None:
    if text is None:
        connection.execute("DELETE FROM perdure_state WHERE key = ?", (key,))
    else:
        connection.execute("INSERT OR REPLACE INTO perdure_state (key, value) VALUES (?, ?)", (key, text))


def _plain(row: Any) -> JsonObject:
    return row if isinstance(row, dict) else row.model_dump(by_alias=True)


def _overlay(row: JsonObject, order: int = 0) -> Overlay:
    return Overlay(order, row["id"], row["summary"], row["fromMessageId"], row["toMessageId"], row.get("createdAt", ""))
