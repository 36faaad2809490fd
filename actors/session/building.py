"""How a session is put together: builder methods, the direct constructor, and the parts made from them on first use."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypedDict

from actors.session.blocks import ContextBlocks, ContextConfig
from actors.session.compactor import Compactor
from actors.session.history import History, history_of
from actors.session.prompt import SystemPrompt
from actors.session.providers import (
    SESSION_METHODS,
    PlainProvider,
    TextProvider,
    check_prompt_store,
    check_provider,
    check_session_provider,
    missing_methods,
)
from actors.session.skills import LoadedSkills
from actors.session.status import Status
from actors.session.tools import ContextTools
from compaction import CompactFunction, TokenCounter
from storage.contexts import AgentContextProvider
from storage.database import Database
from storage.errors import InvalidArgument
from storage.messages import AgentSessionProvider
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


class SessionBuilder:
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
        self._provider: Any = None if provider is _OF_OWNER else provider
        self._owner: Any = None
        self._session_id = ""
        self._context = [block_config(item) for item in context]
        self._prompt_store = prompt_store
        self._has_cached_prompt = prompt_store is not None
        self._function: CompactFunction | None = None
        self._threshold: float | None = None
        self._counter = token_counter
        self._on_compaction_error: Callable[[Exception], Any] | None = None
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
        """Give the session an id of its own: several can live in one database."""
        self._refuse_once_used()
        if not isinstance(session_id, str):
            raise InvalidArgument("A session id must be a text.")
        self._session_id = session_id
        return self

    def with_context(
        self,
        label: str,
        *,
        description: str | None = None,
        max_tokens: float | None = None,
        provider: Any = None,
    ) -> Self:
        """Add a context block. ``provider``: an object with ``get`` (and ``set``, ``load``, ``search``), or a fixed text."""
        self._refuse_once_used()
        self._context.append(block_config(ContextConfig(label, description, max_tokens, provider)))
        return self

    def with_cached_prompt(self, provider: Any = None) -> Self:
        """Keep the frozen prompt where it survives this object: in the database, or in a provider with get and set."""
        self._refuse_once_used()
        if provider is not None:
            check_prompt_store(provider)
        self._has_cached_prompt = True
        self._prompt_store = provider
        return self

    def on_compaction(self, function: CompactFunction) -> Self:
        """Register the function that folds messages: ``function(messages[, context])``, async or not."""
        self._refuse_once_used()
        self._function = function
        return self

    def compact_after(self, threshold: float, *, token_counter: TokenCounter | None = None) -> Self:
        """Compact by itself when an append leaves the estimate above `threshold`. Needs `on_compaction`.

        ``token_counter(messages=…, system_prompt=…, context_blocks=…)`` replaces the heuristic.
        """
        self._refuse_once_used()
        self._threshold = threshold
        if token_counter is not None:
            self._counter = token_counter
        return self

    def on_compaction_error(self, handler: Callable[[Exception], Any]) -> Self:
        """Be told of errors of automatic compaction. What the handler raises is logged and goes no further."""
        self._refuse_once_used()
        self._on_compaction_error = handler
        return self

    @property
    def _parts(self) -> Parts:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> Parts:
        provider = self._provider
        if provider is None:
            provider = AgentSessionProvider(self._owner, self._session_id)
        elif not isinstance(provider, AgentSessionProvider):
            provider = PlainProvider(provider)
        history = history_of(provider)
        database = getattr(provider, "database", None)
        options = database.options if isinstance(database, Database) else StorageOptions()
        blocks = ContextBlocks([self.wired(config) for config in self._context], options.max_blocks)
        prompt = SystemPrompt(blocks, self._wired_prompt_store())
        status = Status(
            history,
            blocks,
            prompt,
            broadcast=getattr(self._owner, "broadcast", None),
            threshold=self._threshold,
            counter=self._counter,
        )
        if self._threshold is not None and self._function is None:
            log.warning("compact_after has no effect without on_compaction")
        compactor = Compactor(
            history,
            prompt,
            status,
            function=self._function,
            threshold=self._threshold,
            counter=self._counter,
            on_error=self._on_compaction_error,
        )
        compactor.holder = self
        if isinstance(database, Database):
            database.users.add(self)
        skills = LoadedSkills(history, compactor.after_write)
        return Parts(
            history=history,
            blocks=blocks,
            prompt=prompt,
            status=status,
            skills=skills,
            compactor=compactor,
            tools=ContextTools(blocks, skills),
        )

    def wired(self, config: ContextConfig) -> ContextConfig:
        """With the storage of the session's own for a block that was given none."""
        provider = config.provider
        if provider is None and self._owner is not None:
            provider = AgentContextProvider(self._owner, self._key(config.label), session_id=self._session_id)
        return ContextConfig(config.label, config.description, config.max_tokens, self._namespaced(provider))

    def _wired_prompt_store(self) -> Any:
        if not self._has_cached_prompt:
            return None
        store = self._prompt_store
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


def block_config(item: ContextConfig | Mapping[str, Any]) -> ContextConfig:
    if isinstance(item, Mapping):
        names = {"maxTokens": "max_tokens"}
        options = {names.get(name, name): value for name, value in item.items()}
        unknown = sorted(options.keys() - {field.name for field in fields(ContextConfig)})
        if unknown or "label" not in options:
            raise InvalidArgument(f"A context block has a label, description, max_tokens and provider, not {unknown}.")
        item = ContextConfig(**options)
    if not isinstance(item.label, str) or not item.label:
        raise InvalidArgument("The label of a context block must be a text that is not empty.")
    of = f"of the context block {item.label!r}"
    if item.description is not None and not isinstance(item.description, str):
        raise InvalidArgument(f"The description {of} must be a text.")
    limit = item.max_tokens
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or limit != limit):
        raise InvalidArgument(f"max_tokens {of} must be a number.")
    if isinstance(item.provider, str):
        return ContextConfig(item.label, item.description, limit, TextProvider(item.provider))
    if item.provider is not None:
        check_provider(item.provider, of)
    return item
