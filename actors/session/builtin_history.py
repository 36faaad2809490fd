"""`History` over the built-in storage: each operation is one transaction and costs the same whatever the history."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from actors.session import late_results
from actors.session.history import History, Rewrite, Written
from actors.session.postgres_history import PostgresHistory
from actors.session.seen import SeenHistory
from compaction import CompactResult, Usage
from compaction.overlays import place_overlay
from storage import access, compactions, containing, leaves, message_tree, notes, paths, sessions, visibility
from storage.history import visible_json
from storage.messages import AgentSessionProvider
from storage.postgres import PostgresSessionProvider
from storage.records import Appended, JsonObject, Latest

T = TypeVar("T")


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
        return _written(
            await self.provider.upsert_and_estimate(message, parent_id, then=self._cover, replaced=self._renew)
        )

    def _cover(self, connection: sqlite3.Connection, message: JsonObject) -> None:
        """In the transaction of a new message: what it answers late is summarized with the calls."""
        late_results.cover_appended(connection, self._session_id, message)

    async def update(self, message: Any) -> Written:
        return _written(await self.provider.update_and_estimate(message, replaced=self._renew))

    def _renew(self, connection: sqlite3.Connection, seq: int, before: JsonObject, after: JsonObject) -> None:
        late_results.cover_updated(connection, self._session_id, seq, before, after)

    async def delete(self, message_ids: list[str]) -> Written:
        return _written(await self.provider.delete_and_estimate(message_ids))

    async def path_tokens(self) -> int:
        tokens: int = await self.provider.path_tokens()
        return tokens

    async def get_history_json(self, leaf_id: str | None = None) -> bytes:
        text: bytes = await self.provider.get_history_json(leaf_id)
        return text

    async def snapshot(self) -> tuple[list[JsonObject], SeenHistory]:
        text = await self.get_history_json()
        messages = orjson.loads(text)
        return messages, SeenHistory.of(messages, text)

    async def store_summary(self, result: CompactResult, seen: SeenHistory) -> CompactResult | None:
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

            applied = visibility.applied(connection, session_id, leaf.seq)
            placed = place_overlay(result.from_message_id, result.to_message_id, position, applied)
            if placed is None:
                return None
            compactions.add(connection, session_id, result.summary, *placed)
            last = leaves.seq_of(connection, session_id, placed[1])
            assert last is not None
            late_results.cover_beside(connection, session_id, leaf.seq, last, seen.calls_in(result))
            return result.at(*placed)

        return await self._write(store)

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
        return await self._read(lambda connection: notes.get(connection, self._session_id, key))

    async def take_note(self, key: str) -> str | None:
        if await self.get_note(key) is None:
            return None
        return await self._write(lambda connection: notes.take(connection, self._session_id, key))

    async def put_note(self, key: str, text: str | None) -> None:
        await self._write(lambda connection: notes.put(connection, self._session_id, key, text))

    async def record_usage(self, usage: Usage) -> bool:
        session_id = self._session_id
        if await self._read(lambda connection: sessions.get(connection, session_id)) is None:
            return False
        return await self._write(lambda connection: sessions.add_usage(connection, session_id, usage))

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await access.read(self._database, work)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await access.write(self._database, work)


def history_of(provider: Any) -> History:
    if isinstance(provider, AgentSessionProvider):
        return BuiltinHistory(provider)
    return PostgresHistory(provider) if isinstance(provider, PostgresSessionProvider) else History(provider)


def _written(appended: Appended) -> Written:
    return Written(appended.inserted, appended.tokens)
