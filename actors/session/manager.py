"""SessionManager: the sessions of one database, by id, with what they have in common.

Each verb is one transaction. What is written through the manager needs the session's row and tells the time of the change in
that same transaction; a `Session` from `get_session` knows nothing of rows.
"""

import logging
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias, TypedDict, TypeVar, overload

from actors.session import arguments
from actors.session.blocks import ContextConfig
from actors.session.building import Parts
from actors.session.configuration import (
    Configurable,
    Configuration,
    block_configs,
    checked_counter,
    checked_function,
    checked_handler,
    checked_label,
    checked_threshold,
)
from actors.session.held import HeldSessions
from actors.session.history import Written
from actors.session.past import PastSessions, search_tool
from actors.session.session import Message, Session
from actors.session.tools import Tool
from compaction import CompactFunction, TokenCounter, Usage
from storage import access, forks, sessions
from storage.access import database_of
from storage.errors import CorruptDatabase, InvalidArgument, UnknownSession
from storage.messages import AgentSessionProvider, search_messages
from storage.records import LATEST, JsonObject, Latest, SearchResult, SessionInfo, StoredCompaction, clean
from storage.sessions import KEEP, Keep, NewSession, Order

log = logging.getLogger("perdure.session")

T = TypeVar("T")
Infos: TypeAlias = list[SessionInfo]  # `list` is a method of the manager
Messages: TypeAlias = list[JsonObject]
Ids: TypeAlias = list[str]
Overlays: TypeAlias = list[StoredCompaction]
Results: TypeAlias = list[SearchResult]


class SessionManagerOptions(TypedDict, total=False):
    """The options of the direct constructor."""

    context: Iterable[ContextConfig | Mapping[str, Any]]
    cached_prompt: Any
    compaction: CompactFunction | None
    compact_after: float | None
    token_counter: TokenCounter | None
    on_compaction_error: Callable[[Exception], Any] | None
    searchable_history: str | None


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Some sessions, and the cursor of the next page (None: these were the last)."""

    sessions: Infos
    next_cursor: str | None


class _CreateSession(Protocol):
    async def __call__(
        self,
        name: str,
        *,
        parent_session_id: str | None = None,
        model: str | None = None,
        source: str | None = None,
        owner: str | None = None,
        tags: Iterable[str] = (),
    ) -> SessionInfo:
        """`SessionManager._create`."""


class _Create:
    """On the class it makes a manager of an owner, on a manager a session.

    The documented interface has both under the one name ``create``, and a Python class has one attribute of a name.
    """

    @overload
    def __get__(self, instance: None, manager: type["SessionManager"]) -> Callable[[Any], "SessionManager"]: ...
    @overload
    def __get__(self, instance: "SessionManager", manager: type["SessionManager"]) -> _CreateSession: ...
    def __get__(self, instance: "SessionManager | None", manager: type["SessionManager"]) -> Any:
        if instance is not None:
            return instance._create

        def create(owner: Any) -> SessionManager:
            """On the class, ``SessionManager.create(owner)``: a manager of a database or of an object with ``.database``.

            On a manager a session, by its title; the rest may be left out, and only by name::

                await manager.create(name, parent_session_id=…, model=…, source=…, owner=…, tags=[…]) -> SessionInfo

            ``owner`` and ``tags`` are for `list` and `page` to filter by. Raises InvalidArgument, LimitExceeded.
            """
            return manager(owner)

        return create


class SessionManager(Configurable):
    """The sessions of one conversation: made, listed, forked, searched and deleted; all with the same configuration.

    ``SessionManager.create(owner)`` makes a manager of a database or of an object with ``.database`` (an `Agent`); the builder
    methods say what every session has; ``await manager.create("My chat")`` makes a session. A session's documented ``name``
    is its title.

    Writes raise UnknownSession for an id that was never created; reads are then empty, `rename` does nothing, `delete` removes
    what there is. The empty id is the database's default session: built like the others, in no list, and not to be deleted.

    ``owner`` and ``tag`` are filters of lists and no borders: `search`, the searchable history and ``session_search`` go over all
    sessions of the database, whoever owns them. Those who may not see each other's messages need a database each.
    """

    create = _Create()

    def __init__(
        self,
        owner: Any,
        *,
        context: Iterable[ContextConfig | Mapping[str, Any]] = (),
        cached_prompt: Any = False,
        compaction: CompactFunction | None = None,
        compact_after: float | None = None,
        token_counter: TokenCounter | None = None,
        on_compaction_error: Callable[[Exception], Any] | None = None,
        searchable_history: str | None = None,
    ) -> None:
        """``cached_prompt``: True, or a provider with get and set. The rest is as for the builder methods."""
        super().__init__(
            Configuration(
                blocks=block_configs(context),
                compaction=None if compaction is None else checked_function(compaction),
                threshold=None if compact_after is None else checked_threshold(compact_after),
                token_counter=None if token_counter is None else checked_counter(token_counter),
                on_compaction_error=None if on_compaction_error is None else checked_handler(on_compaction_error),
            )
        )
        self._owner = owner
        self._database = database_of(owner)
        self._sessions = HeldSessions(self._build, owner)
        self._history_label: str | None = None
        if cached_prompt is not False and cached_prompt is not None:
            self.with_cached_prompt(None if cached_prompt is True else cached_prompt)
        if searchable_history is not None:
            self.with_searchable_history(searchable_history)
        self._past = PastSessions(self)
        self.failed_searches = 0
        """How many searches found nothing because the index could not be read."""

    # ---- configuration ----------------------------------------------------------------------------------------

    def with_searchable_history(self, label: str) -> Self:
        """Give every session a block through which its model can search the messages of all sessions, whoever owns these."""
        self._refuse_once_used()
        self._history_label = checked_label(label)
        return self

    # ---- sessions ---------------------------------------------------------------------------------------------

    async def _create(
        self,
        name: str,
        *,
        parent_session_id: str | None = None,
        model: str | None = None,
        source: str | None = None,
        owner: str | None = None,
        tags: Iterable[str] = (),
    ) -> SessionInfo:
        """A new session. ``name`` is its title; ``owner`` and ``tags`` are for `list` and `page` to filter by.

        Raises InvalidArgument, LimitExceeded.
        """
        new = NewSession(name, parent_session_id, model, source, owner, sessions.checked_tags(tags))
        return await self._write(lambda connection: sessions.create(connection, str(uuid.uuid4()), new))

    async def get(self, session_id: str) -> SessionInfo | None:
        """What is known of a session, or None."""
        session_id = _id(session_id)
        return await self._read(lambda connection: sessions.get(connection, session_id))

    async def list(self, *, owner: str | None = None, tag: str | None = None) -> Infos:
        """All sessions (of an owner, with a tag), the one that was changed last first."""
        found = await self._read(lambda connection: sessions.listed(connection, owner=owner, tag=tag))
        return [info for _, info in found]

    async def page(
        self,
        limit: int = 100,
        cursor: str | None = None,
        *,
        owner: str | None = None,
        tag: str | None = None,
        order: Order = "updated",
    ) -> SessionPage:
        """Up to `limit` (1 to 1,000) sessions, the last changed first, or with ``order="created"`` the newest first.

        ``cursor``: the `next_cursor` of the page before, with the same filters and order. A walk in the order of creation meets
        every session once that is there all the time; in the order of changes, one that changes meanwhile moves to the front.
        Raises InvalidArgument.
        """
        found = await self._read(
            lambda connection: sessions.page(connection, limit, cursor, owner=owner, tag=tag, order=order)
        )
        return SessionPage(*found)

    async def rename(self, session_id: str, name: str) -> None:
        """Give a session another title."""
        session_id = _id(session_id)
        await self._write(lambda connection: sessions.rename(connection, session_id, name))

    async def set_metadata(
        self,
        session_id: str,
        *,
        name: str | Keep = KEEP,
        owner: str | Keep | None = KEEP,
        tags: Iterable[str] | Keep = KEEP,
    ) -> SessionInfo:
        """Change title, owner or tags; what is left out stays. Raises UnknownSession."""
        session_id = _id(session_id)
        given = tags if isinstance(tags, Keep) else sessions.checked_tags(tags)
        return await self._write(
            lambda connection: sessions.set_metadata(connection, session_id, name=name, owner=owner, tags=given)
        )

    async def delete(self, session_id: str) -> None:
        """Remove a session and all that belongs to it. Its `Session` object must not be used any more."""
        session_id = _id(session_id)
        if not session_id:
            raise InvalidArgument("The default session is not one of the manager's; clear it instead.")
        self._sessions.get(
            session_id
        )  # what others write meanwhile goes through this one, which starts nothing any more
        using = self._using(session_id)
        for parts in using:
            await parts.end()
        try:
            existed = await self._write(lambda connection: sessions.delete(connection, session_id))
        except BaseException:
            for parts in using:
                parts.reopen()
            raise
        self._sessions.forget(session_id)
        if existed:
            await self._build(session_id)._parts.compactor.after_write(Written(True, 0))

    def get_session(self, session_id: str) -> Session:
        """The `Session` of an id, registered or not; the same object as long as somebody holds it or it was used lately."""
        held = self._sessions.get(_id(session_id))
        held.is_given = True
        return held.session

    # ---- messages ---------------------------------------------------------------------------------------------

    async def append(self, session_id: str, message: Message, parent_id: str | Latest | None = LATEST) -> str:
        """`Session.append_message`; the message's id."""
        async with self._sessions.writing(_id(session_id)) as session:
            await session.append_message(message, parent_id)
        return _message_id(message)

    async def upsert(self, session_id: str, message: Message, parent_id: str | Latest | None = LATEST) -> str:
        """Replace the message of that id where it is, or append it; its id."""
        async with self._sessions.writing(_id(session_id)) as session:
            await session.upsert_message(message, parent_id)
        return _message_id(message)

    async def append_all(
        self, session_id: str, messages: Iterable[Message], parent_id: str | Latest | None = LATEST
    ) -> str | None:
        """Append messages, each after the one before it, all or none; the id of the last (if there are none, `parent_id`)."""
        given = arguments.messages(messages)
        async with self._sessions.writing(_id(session_id)) as session:
            await session.append_messages(given, parent_id)
        if given:
            return _message_id(given[-1])
        return clean(parent_id) if isinstance(parent_id, str) else None

    async def get_history(self, session_id: str, leaf_id: str | None = None) -> Messages:
        return await self._provider(session_id).get_history(leaf_id)

    async def get_message_count(self, session_id: str) -> int:
        """How many messages are on the path to the latest leaf, overlays not applied."""
        return await self._provider(session_id).get_path_length()

    async def get_branches(self, session_id: str, message_id: str) -> Messages:
        """The children of a message, oldest first."""
        return await self._provider(session_id).get_branches(message_id)

    async def clear_messages(self, session_id: str) -> None:
        """`Session.clear_messages`."""
        async with self._sessions.writing(_id(session_id)) as session:
            await session.clear_messages()

    async def delete_messages(self, session_id: str, message_ids: Ids) -> None:
        """`Session.delete_messages`."""
        async with self._sessions.writing(_id(session_id)) as session:
            await session.delete_messages(message_ids)

    # ---- forks, compaction, usage -----------------------------------------------------------------------------

    async def fork(self, session_id: str, at_message_id: str, name: str) -> SessionInfo:
        """A new session with a copy of what is visible up to a message, under new ids; the owner and tags are kept.

        Returns the session as it was created. Raises UnknownSession, UnknownMessage, LimitExceeded.
        """
        session_id = _id(session_id)
        options = self._database.options
        return await self._begin(
            lambda connection: forks.fork(connection, session_id, at_message_id, name, options=options)
        )

    async def add_compaction(self, session_id: str, summary: str, from_id: str, to_id: str) -> StoredCompaction:
        """`Session.add_compaction`."""
        async with self._sessions.writing(_id(session_id)) as session:
            return await session.add_compaction(summary, from_id, to_id)

    async def get_compactions(self, session_id: str) -> Overlays:
        """`Session.get_compactions`."""
        return await self._provider(session_id).get_compactions()

    async def compact_and_split(self, session_id: str, summary: str, name: str | None = None) -> SessionInfo:
        """End a session, and continue it in a new one that begins with a summary; model, source, owner and tags are kept.

        ``name`` left out: that of the old one. Raises UnknownSession, LimitExceeded.
        """
        session_id = _id(session_id)
        options = self._database.options
        return await self._begin(lambda connection: forks.split(connection, session_id, summary, name, options=options))

    async def add_usage(self, session_id: str, input_tokens: int, output_tokens: int, cost: float = 0.0) -> None:
        """Add what a call of a model cost to the session's totals, which end at 2**53. Raises UnknownSession, InvalidArgument."""
        session_id = _id(session_id)
        usage = Usage(input_tokens, output_tokens, cost)

        def add(connection: sqlite3.Connection) -> None:
            if not sessions.add_usage(connection, session_id, usage):
                raise UnknownSession(session_id)

        await self._write(add)

    # ---- search -----------------------------------------------------------------------------------------------

    async def search(self, query: str, limit: int = 20) -> Results:
        """Up to `limit` messages of all sessions, whoever owns these, that hold every word of `query`, the best first.

        Empty as well when the index cannot be read: the first time that is logged, every time `failed_searches` counts it.
        Raises InvalidArgument for a limit below zero.
        """
        try:
            return await search_messages(self._database, None, query, limit)
        except CorruptDatabase as exc:
            if not self.failed_searches:
                log.warning("sessions cannot be searched: %s", exc)
            self.failed_searches += 1
            return []

    async def count(self) -> int:
        """How many sessions there are."""
        return await self._read(sessions.count)

    async def tools(self) -> dict[str, Tool]:
        """The tools for a model that concern all sessions: ``session_search``."""
        tool = search_tool(self._past)
        return {tool.name: tool}

    # ---- inside -----------------------------------------------------------------------------------------------

    def _build(self, session_id: str) -> Session:
        session = Session.create(self._owner).for_session(session_id)
        session._configuration = self._configuration.copy()
        if self._history_label is not None:
            session.with_context(
                self._history_label, description="Cross-session conversation history", provider=self._past
            )
        return session

    async def _begin(self, work: Callable[[sqlite3.Connection], forks.Begun]) -> SessionInfo:
        """Make a session out of another one, then tell its estimate, once."""
        begun = await self._write(work)
        parts = self._sessions.get(begun.info.id).parts
        await parts.compactor.after_write(Written(True, begun.appended.tokens))
        return begun.info

    def _using(self, session_id: str) -> tuple[Parts, ...]:
        """What everybody uses who has a `Session` of this id: this manager, and others over the same database."""
        mine = self._sessions.get(session_id).parts
        others = (user._parts for user in list(self._database.users) if isinstance(user, Session))
        return (mine, *(each for each in others if each is not mine and each.session_id == session_id))

    def _provider(self, session_id: str) -> AgentSessionProvider:
        """The messages of a session, to be read; no `Session` is made for it."""
        session_id = _id(session_id)
        held = self._sessions.find(session_id)
        if held is None:
            return AgentSessionProvider(self._owner, session_id)
        provider: AgentSessionProvider = held.parts.history.provider
        return provider

    def _refuse_once_used(self) -> None:
        if self._sessions:
            raise InvalidArgument("This manager is in use already; configure it before its first session is used.")

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await access.read(self._database, work)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await access.write(self._database, work)


def _id(session_id: Any) -> str:
    if not isinstance(session_id, str):
        raise InvalidArgument(f"A session id must be a text, not {type(session_id).__name__}.")
    cleaned: str = clean(session_id)
    return cleaned


def _message_id(message: Message) -> str:
    identity: str = message["id"] if isinstance(message, Mapping) else message.id
    return clean(identity)
