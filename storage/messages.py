"""AgentSessionProvider: the messages of one session in SQLite.

The work is done by functions of a connection (`message_tree`, `history`, `compactions`, `full_text`), which compose into larger
transactions; this module runs them in the database's thread.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import orjson

from storage import compactions, full_text, history, message_pages, overlays, sessions
from storage.access import Owner, Work, database_of, read, write
from storage.database import Database
from storage.errors import InvalidArgument, LimitExceeded, StorageError, StoreUnavailable
from storage.message_tree import (
    Parent,
    Prepared,
    Replaced,
    append,
    append_all,
    check_count,
    clear,
    delete,
    path_tokens,
    prepare,
    update,
    upsert,
)
from storage.records import (
    LATEST,
    Appended,
    JsonObject,
    MessagePage,
    RecentHistory,
    RowStat,
    SearchResult,
    SessionMessage,
    StoredCompaction,
    clean,
    decode,
)

T = TypeVar("T")

_log = logging.getLogger("perdure.storage")


class AgentSessionProvider:
    """The built-in storage of a session's messages.

    `owner`: a Database or anything with one as ``.database``. Writes return after they are durable, in the order in which they
    were submitted; cancelling a wait does not undo a write that was submitted.

    ``is_registered``: writes are for sessions that a `SessionManager` knows. They raise UnknownSession for any other, and
    tell the time of the change in the same transaction.
    """

    def __init__(self, owner: Owner, session_id: str = "", *, is_registered: bool = False) -> None:
        self.session_id = clean(session_id)
        self.database = database_of(owner)
        self._is_registered = is_registered
        self._catching_up: asyncio.Task[None] | None = None
        self._is_sound = False

    async def get_message(self, message_id: str) -> JsonObject | None:
        return await self._read(lambda connection: history.message(connection, self.session_id, message_id))

    async def get_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        """What is visible from the root to a leaf; None or "" is the latest one."""
        result: list[JsonObject] = orjson.loads(await self.get_history_json(leaf_id))
        return result

    async def get_history_json(self, leaf_id: str | None = None) -> bytes:
        """`get_history` as JSON text."""
        return await self._read(lambda connection: history.visible_json(connection, self.session_id, leaf_id))

    async def get_raw_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        """All messages of the path, as if there were no overlays."""
        text = await self._read(lambda connection: history.raw_json(connection, self.session_id, leaf_id))
        result: list[JsonObject] = orjson.loads(text)
        return result

    async def get_latest_leaf(self) -> JsonObject | None:
        return await self._read(lambda connection: history.latest_leaf(connection, self.session_id))

    async def get_branches(self, message_id: str) -> list[JsonObject]:
        """The children of a message, oldest first."""
        return await self._read(lambda connection: history.branches(connection, self.session_id, message_id))

    async def get_path_length(self, leaf_id: str | None = None) -> int:
        """How many messages there are from the root to a leaf, overlays not applied."""
        return await self._read(lambda connection: history.path_length(connection, self.session_id, leaf_id))

    async def append_message(self, message: Mapping[str, Any] | SessionMessage, parent_id: Parent = LATEST) -> None:
        """Store a message below `parent_id` (left out: the latest leaf; None: a new root).

        An id that is there already changes nothing, so repeating a call is safe. Raises InvalidMessage, UnknownParent.
        """
        await self.append_and_estimate(message, parent_id)

    async def append_and_estimate(
        self,
        message: Mapping[str, Any] | SessionMessage,
        parent_id: Parent = LATEST,
        *,
        then: Callable[[sqlite3.Connection, JsonObject], None] | None = None,
    ) -> Appended:
        """`append_message`, and the estimate of the visible path after it, without the prompt.

        `then`: what else to do after a message that is new.
        """
        prepared = self._prepare(message)

        def work(connection: sqlite3.Connection) -> tuple[Appended, bool]:
            appended, is_due = self._append(connection, prepared, parent_id)
            if then is not None and appended.inserted:
                then(connection, decode(prepared.text))
                appended = Appended(True, path_tokens(connection, self.session_id))
            return appended, is_due

        appended, is_due = await self._write(work, size=prepared.sums.bytes)
        if is_due:
            self._catch_up_later()
        return appended

    async def append_all_and_estimate(
        self,
        messages: Iterable[Mapping[str, Any] | SessionMessage],
        parent_id: Parent = LATEST,
        *,
        then: Callable[[sqlite3.Connection, JsonObject], None] | None = None,
    ) -> list[Appended]:
        """Store messages in one transaction, each below the one before it; what `append_and_estimate` says of each.

        `then`: what else to do after a message that is new. Raises InvalidMessage, UnknownParent.
        """
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
            raise InvalidArgument("messages must be a list of messages")
        prepared = [self._prepare(message) for message in messages]

        def work(connection: sqlite3.Connection) -> list[Appended]:
            results = append_all(connection, self.session_id, prepared, parent_id, then)
            check_count(connection, self.database.options.max_messages)
            return results

        return await self._write(work, size=sum(message.sums.bytes for message in prepared))

    async def upsert_and_estimate(
        self,
        message: Mapping[str, Any] | SessionMessage,
        parent_id: Parent = LATEST,
        *,
        then: Callable[[sqlite3.Connection, JsonObject], None] | None = None,
        replaced: Replaced | None = None,
    ) -> Appended:
        """Replace the message of that id where it is, or append it, with `then` if it is new.

        Raises InvalidMessage, UnknownParent.
        """
        prepared = self._prepare(message)

        def work(connection: sqlite3.Connection) -> Appended:
            appended = upsert(connection, self.session_id, prepared, parent_id, then, replaced)
            check_count(connection, self.database.options.max_messages)
            return appended

        return await self._write(work, size=prepared.sums.bytes)

    async def update_message(self, message: Mapping[str, Any] | SessionMessage) -> None:
        """Replace the message of that id. Raises InvalidMessage, UnknownMessage."""
        await self.update_and_estimate(message)

    async def update_and_estimate(
        self, message: Mapping[str, Any] | SessionMessage, *, replaced: Replaced | None = None
    ) -> Appended:
        prepared = self._prepare(message)
        return await self._write(
            lambda connection: update(connection, self.session_id, prepared, replaced), size=prepared.sums.bytes
        )

    async def delete_messages(self, message_ids: Iterable[str]) -> None:
        """Remove messages; their children take their parents. Unknown ids are ignored."""
        await self.delete_and_estimate(message_ids)

    async def delete_and_estimate(self, message_ids: Iterable[str]) -> Appended:
        """`delete_messages`, and the estimate after it."""
        if not isinstance(message_ids, (str, bytes)) and isinstance(message_ids, Iterable):
            message_ids = list(message_ids)
        return await self._write(lambda connection: delete(connection, self.session_id, message_ids))

    async def clear_messages(self) -> None:
        """Remove all messages and overlays of the session."""
        await self.clear_and_estimate()

    async def clear_and_estimate(self) -> Appended:
        return await self._write(lambda connection: clear(connection, self.session_id))

    async def path_tokens(self) -> int:
        """The estimate of the visible path to the latest leaf, without the prompt."""
        return await self._read(lambda connection: path_tokens(connection, self.session_id))

    async def add_compaction(self, summary: str, from_id: str, to_id: str) -> StoredCompaction:
        """Store an overlay. One whose ends are not on a path, in order, never applies to it and hides nothing.

        Raises InvalidArgument, and LimitExceeded for a summary that is over the limit of a message.
        """
        if isinstance(summary, str):
            overlays.check_size(clean(summary), self.database.options.max_message_bytes)
        stored = await self._write(
            lambda connection: compactions.add(connection, self.session_id, summary, from_id, to_id)
        )
        return cast(StoredCompaction, stored)

    async def get_compactions(self) -> list[StoredCompaction]:
        """All overlays, oldest first, whether they apply or not."""
        found = await self._read(
            lambda connection: [compactions.record(item) for item in compactions.stored(connection, self.session_id)]
        )
        return cast(list[StoredCompaction], found)

    async def search_messages(self, query: str, limit: int = 20) -> list[SearchResult]:
        """The messages, on all branches, that contain every word of `query`; the best first.

        Raises InvalidArgument for a negative limit, CorruptDatabase if the index cannot be read.
        """
        await self._read(lambda _: None)  # which heals the file if it must be
        return await search_messages(self.database, self.session_id, query, limit)

    async def get_recent_history(self, max_content_bytes: float, min_recent_messages: float = 1) -> RecentHistory:
        """The newest messages that fit a budget of bytes, at least `min_recent_messages` (1 or more) of them."""
        result: RecentHistory = orjson.loads(await self.get_recent_history_json(max_content_bytes, min_recent_messages))
        return result

    async def get_recent_history_json(self, max_content_bytes: float, min_recent_messages: float = 1) -> bytes:
        """`get_recent_history` as JSON text."""
        found = await self._read(
            lambda connection: history.recent(connection, self.session_id, max_content_bytes, min_recent_messages)
        )
        truncated = b"true" if found.truncated else b"false"
        tail = b',"truncated":%b,"totalContentBytes":%d}' % (truncated, found.total_bytes)
        return b'{"messages":' + found.json + tail

    async def get_history_row_stats(self) -> list[RowStat]:
        """Id, role and size of every message from the root to the latest leaf."""
        stats = await self._read(lambda connection: history.row_stats(connection, self.session_id))
        return cast(list[RowStat], stats)

    async def page_messages(
        self,
        limit: int = 100,
        cursor: str | None = None,
        *,
        order: message_pages.Order = "newest",
        leaf_id: str | None = None,
    ) -> MessagePage:
        """A page of the messages without their content; see `storage.message_pages`."""
        return await self._read(
            lambda connection: message_pages.page(
                connection, self.session_id, limit, cursor, order=order, leaf_id=leaf_id
            )
        )

    def _append(self, connection: sqlite3.Connection, message: Prepared, parent_id: Parent) -> tuple[Appended, bool]:
        appended = append(connection, self.session_id, message, parent_id)
        (seq,) = connection.execute("SELECT last_insert_rowid()").fetchone()
        if appended.inserted and seq > self.database.options.max_messages:
            check_count(connection, self.database.options.max_messages)
        return appended, appended.inserted and seq % full_text.BATCH == 0

    def _prepare(self, message: Mapping[str, Any] | SessionMessage) -> Prepared:
        """Raises InvalidMessage, LimitExceeded."""
        prepared = prepare(message)
        limit = self.database.options.max_message_bytes
        if prepared.sums.bytes > limit:
            raise LimitExceeded(f"A message of {prepared.sums.bytes:,} bytes", f"{limit:,} bytes")
        return prepared

    def _catch_up_later(self) -> None:
        """Bring the index up to date, after what is waiting and off the way of any answer."""
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        try:
            await write(self.database, lambda connection: full_text.catch_up(connection, 2 * full_text.BATCH))
        except (StorageError, sqlite3.Error) as exc:  # the next search catches up, or says what is wrong
            _log.debug("the full-text index was not brought up to date: %s", exc)

    async def _read(self, work: Work[T]) -> T:
        if self._is_sound:
            return await read(self.database, work)
        echoes, result = await read(self.database, lambda connection: (self._echoes(connection), work(connection)))
        if echoes:
            try:
                await self._write(lambda connection: None)
            except StoreUnavailable:  # reads go on while nothing can be written
                return result
            return await read(self.database, work)
        self._is_sound = True
        return result

    async def _write(self, work: Work[T], *, size: int = 0) -> T:
        if self._is_sound and not self._is_registered:
            return await write(self.database, work, size=size)

        def prepare_first(connection: sqlite3.Connection) -> T:
            if self._is_registered:
                sessions.require_and_touch(connection, self.session_id)
            if not self._is_sound and (echoes := self._echoes(connection)):
                delete(connection, self.session_id, echoes)
            return work(connection)

        result = await write(self.database, prepare_first, size=size)
        self._is_sound = True
        return result

    def _echoes(self, connection: sqlite3.Connection) -> list[str]:
        return compactions.echoes(connection, self.session_id)


async def search_messages(
    database: Database, session_id: str | None, query: str, limit: float = 20
) -> list[SearchResult]:
    """The messages of a session (None: of all sessions of the database) that contain every word of `query`; the best first.

    Raises InvalidArgument for a negative limit, CorruptDatabase if the index cannot be read.
    """
    try:
        while (missing := await read(database, full_text.missing)) > full_text.MOST:
            # in several writes, so that others come in between
            await write(database, lambda connection: full_text.catch_up(connection, full_text.MOST))
        if missing:
            await write(database, full_text.catch_up)
    except StoreUnavailable:  # reads go on while nothing can be written
        search = full_text.search_unwritten
    else:
        search = full_text.search
    return cast(
        list[SearchResult], await read(database, lambda connection: search(connection, session_id, query, limit))
    )
