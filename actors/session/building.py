"""How a session is put together: builder methods, the direct constructor, and the parts made from them on first use."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypedDict

from actors.session.blocks import ContextBlocks, ContextConfig
from actors.session.builtin_history import history_of
from actors.session.compactor import Compactor
from actors.session.configuration import Configurable, Configuration, block_configs, checked_counter
from actors.session.history import History
from actors.session.plain_provider import PlainProvider
from actors.session.prompt import SystemPrompt
from actors.session.provider_checks import check_prompt_store, check_session_provider, missing_methods
from actors.session.providers import SESSION_METHODS
from actors.session.skills import LoadedSkills
from actors.session.status import Status
from actors.session.tools import ContextTools
from compaction import TokenCounter
from storage.contexts import AgentContextProvider
from storage.database import Database
from storage.errors import InvalidArgument, shown
from storage.messages import AgentSessionProvider
from storage.postgres import PostgresSessionProvider
from storage.records import clean
from storage.replication import StorageOptions

log = logging.getLogger("perdure.session")

PROMPT_KEY = "_system_prompt"
_OF_OWNER: Any = object()
"""In place of a provider: the owner's database is used."""


class SessionContextOptions(TypedDict, total=False):
    """The options of `Session.with_context` and `Session.add_context`."""

    description: str | None
    max_tokens: float | None
    provider: Any


class SessionOptions(TypedDict, total=False):
    """The options of the direct constructor."""

    context: Iterable[ContextConfig | Mapping[str, Any]]
    prompt_store: Any
    token_counter: TokenCounter | None


@dataclass(slots=True)
class Parts:
    """What a session is made of, once it is used."""

    history: History
    blocks: ContextBlocks
    prompt: SystemPrompt
    status: Status
    skills: LoadedSkills
    compactor: Compactor
    tools: ContextTools

    @property
    def session_id(self) -> str | None:
        """Whose messages these are in the built-in storage; None in any other."""
        provider = self.history.provider
        return provider.session_id if isinstance(provider, AgentSessionProvider) else None

    async def end(self) -> None:
        """The session is going to be deleted: from here on nothing is started, and no prompt is kept."""
        self.prompt.end()
        await self.compactor.end()

    def reopen(self) -> None:
        """It was not deleted after all."""
        self.prompt.reopen()
        self.compactor.reopen()


class SessionBuilder(Configurable):
    """The configuration of a session, and its parts."""

    def __init__(
        self,
        provider: Any,
        *,
        context: Iterable[ContextConfig | Mapping[str, Any]] = (),
        prompt_store: Any = None,
        token_counter: TokenCounter | None = None,
    ) -> None:
        """A session over a `SessionProvider`; blocks without a provider are read-only and empty, nothing is broadcast."""
        if provider is not _OF_OWNER:
            check_session_provider(provider)
        if prompt_store is not None:
            check_prompt_store(prompt_store)
        super().__init__(
            Configuration(
                blocks=block_configs(context),
                has_cached_prompt=prompt_store is not None,
                prompt_store=prompt_store,
                token_counter=None if token_counter is None else checked_counter(token_counter),
            )
        )
        self._provider: Any = None if provider is _OF_OWNER else provider
        self._owner: Any = None
        self._session_id = ""
        self._made: Parts | None = None

    @classmethod
    def create(cls, owner: Any) -> Self:
        """A session of a database, of an object with ``.database`` (an `Agent`), or over a `SessionProvider`.

        With a database, blocks and the cached prompt are kept there unless they have providers of their own.
        """
        offered = len(SESSION_METHODS) - len(missing_methods(owner))
        if (
            offered == len(SESSION_METHODS)
            and not isinstance(owner, type)
            and not callable(getattr(owner, "broadcast", None))
        ):
            return cls(owner)  # an agent may offer these methods too, but it broadcasts
        if _is_database(owner) or _is_database(getattr(owner, "database", None)):
            session = cls(_OF_OWNER)
            session._owner = owner
            return session
        if offered:
            check_session_provider(owner)
        if isinstance(owner, type):
            raise InvalidArgument(f"A session needs a database or an object with one, not the class {owner.__name__}.")
        raise InvalidArgument(
            f"A session needs a database, an object with a .database, or a session provider, not {type(owner).__name__}."
        )

    def for_session(self, session_id: str) -> Self:
        """Give the session an id of its own: several can live in one database.

        A provider that names its session keeps its messages there; the same id here gives blocks and prompt their own place.
        """
        self._refuse_once_used()
        if not isinstance(session_id, str):
            raise InvalidArgument("A session id must be a text.")
        session_id = clean(session_id)
        named = getattr(self._provider, "session_id", None)
        if isinstance(named, str) and named != session_id:
            raise InvalidArgument(
                f"This provider already names its session; make it for {shown(session_id)} instead of {shown(named)}."
            )
        self._session_id = session_id
        return self

    @property
    def _parts(self) -> Parts:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> Parts:
        provider = self._storage()
        database = getattr(provider, "database", None)
        options = database.options if isinstance(database, Database) else StorageOptions()
        history = history_of(provider)
        blocks = ContextBlocks([self._wired(config) for config in self._configuration.blocks], options.max_blocks)
        prompt = SystemPrompt(blocks, self._wired_prompt_store())
        status = self._status(history, blocks, prompt)
        compactor = self._compactor(history, prompt, status)
        skills = LoadedSkills(history, compactor.after_write)
        if isinstance(database, Database):
            database.users.add(self)
        return Parts(history, blocks, prompt, status, skills, compactor, ContextTools(blocks, skills))

    def _storage(self) -> Any:
        if self._provider is None:
            return AgentSessionProvider(self._owner, self._session_id)
        is_ours = isinstance(self._provider, AgentSessionProvider | PostgresSessionProvider)
        return self._provider if is_ours else PlainProvider(self._provider)

    def _status(self, history: History, blocks: ContextBlocks, prompt: SystemPrompt) -> Status:
        broadcast = getattr(self._owner, "broadcast", None)
        return Status(
            history,
            blocks,
            prompt,
            broadcast=broadcast if callable(broadcast) else None,
            threshold=self._configuration.threshold,
            counter=self._configuration.token_counter,
        )

    def _compactor(self, history: History, prompt: SystemPrompt, status: Status) -> Compactor:
        configuration = self._configuration
        if configuration.threshold is not None and configuration.compaction is None:
            log.warning("compact_after has no effect without on_compaction")
        compactor = Compactor(
            history,
            prompt,
            status,
            function=configuration.compaction,
            threshold=configuration.threshold,
            counter=configuration.token_counter,
            on_error=configuration.on_compaction_error,
        )
        compactor.holder = self
        return compactor

    def _wired(self, config: ContextConfig) -> ContextConfig:
        """With the storage of the session's own for a block that was given none."""
        provider = config.provider
        if provider is None and self._owner is not None:
            provider = AgentContextProvider(self._owner, self._key(config.label), session_id=self._session_id)
        return ContextConfig(config.label, config.description, config.max_tokens, self._namespaced(provider))

    def _wired_prompt_store(self) -> Any:
        if not self._configuration.has_cached_prompt:
            return None
        store = self._configuration.prompt_store
        if store is not None and isinstance(store, AgentContextProvider) and self._session_id:
            return AgentContextProvider(store.database, self._key(store.key), session_id=self._session_id)
        if self._session_id and callable(getattr(store, "for_prompt_of", None)):
            return store.for_prompt_of(self._session_id)
        if store is None and self._owner is not None:
            return AgentContextProvider(self._owner, self._key(PROMPT_KEY), session_id=self._session_id)
        return store

    def _namespaced(self, provider: Any) -> Any:
        for_session = getattr(provider, "for_session", None)
        return for_session(self._session_id) if self._session_id and callable(for_session) else provider

    def _key(self, key: str) -> str:
        return f"{key}_{self._session_id}" if self._session_id else key

    def _refuse_once_used(self) -> None:
        if self._made is not None:
            raise InvalidArgument("This session is in use already; configure it before its first call.")


def _is_database(value: Any) -> bool:
    return isinstance(value, Database)
