"""A session: messages, context blocks, system prompt and compaction of one conversation, over any storage."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypedDict

from actors.errors import NotSupported
from actors.session.blocks import ContextBlock, ContextBlocks, ContextConfig
from actors.session.compactor import Compactor
from actors.session.history import History, history_of
from actors.session.prompt import SystemPrompt
from actors.session.providers import SessionProvider, TextProvider
from actors.session.skills import LoadedSkills
from actors.session.status import Status
from actors.session.tools import ContextTools, Tool
from compaction import CompactFunction, CompactResult, TokenCounter
from storage.contexts import AgentContextProvider
from storage.database import Database
from storage.errors import InvalidArgument
from storage.messages import AgentSessionProvider
from storage.records import LATEST, JsonObject, Latest, SessionMessage

PROMPT_KEY = "_system_prompt"

Message = Mapping[str, Any] | SessionMessage


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
class _Parts:
    """What a session is made of, once it is used."""

    history: History
    blocks: ContextBlocks
    prompt: SystemPrompt
    status: Status
    skills: LoadedSkills
    compactor: Compactor
    tools: ContextTools


class Session:
    """One conversation's messages, context blocks, system prompt and compaction.

    Made by `Session.create` and builder methods, in any order, or directly from a provider. Nothing is read before the first
    call. Messages are plain objects (or `SessionMessage`); reads give plain objects. After each write, and before it returns, a
    status frame with the estimate of tokens goes to the owner's ``broadcast`` if it has one.
    """

    def __init__(
        self,
        provider: Any,
        *,
        context: Iterable[ContextConfig | Mapping[str, Any]] = (),
        prompt_store: Any = None,
        token_counter: TokenCounter | None = None,
    ) -> None:
        """A session over a `SessionProvider`; blocks without a provider are read-only and empty, nothing is broadcast."""
        self._provider: Any = provider
        self._owner: Any = None
        self._session_id = ""
        self._context = [_config(item) for item in context]
        self._prompt_store = prompt_store
        self._has_cached_prompt = prompt_store is not None
        self._function: CompactFunction | None = None
        self._threshold: float | None = None
        self._counter = token_counter
        self._on_compaction_error: Callable[[Exception], Any] | None = None
        self._made: _Parts | None = None

    # ---- builder ----------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, owner: Any) -> Self:
        """A session of a database, of an object with ``.database`` (an `Agent`), or over a `SessionProvider`.

        With a database, blocks and the cached prompt are kept there unless they have providers of their own.
        """
        if isinstance(owner, SessionProvider) and not callable(getattr(owner, "broadcast", None)):
            return cls(owner)  # an agent may offer these methods too, but it broadcasts
        if _is_database(owner) or _is_database(getattr(owner, "database", None)):
            session = cls(None)
            session._owner = owner
            return session
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
        self._context.append(_config(ContextConfig(label, description, max_tokens, provider)))
        return self

    def with_cached_prompt(self, provider: Any = None) -> Self:
        """Keep the frozen prompt where it survives this object: in the database, or in a provider with get and set."""
        self._refuse_once_used()
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

    # ---- messages ---------------------------------------------------------------------------------------------

    async def append_message(self, message: Message, parent_id: str | Latest | None = LATEST) -> None:
        """Add a message after the latest leaf, after `parent_id`, or (None) as a new root; once per id.

        Returns when it is durable and its idle frame is out. Automatic compaction goes on in the background: `settled`.
        Raises InvalidMessage, UnknownParent.
        """
        parts = self._parts
        if parts.blocks.has_skills and not parts.skills.is_restored:
            await parts.skills.restore()
        appended = await parts.history.append(message, parent_id)
        if parts.compactor.reports:
            report = await parts.status.report("idle", path_tokens=appended.tokens)
            if appended.inserted:
                await parts.compactor.consider(report)

    async def update_message(self, message: Message) -> None:
        """Replace the message of that id. Raises InvalidMessage, UnknownMessage."""
        parts = self._parts
        await self._restore_skills()
        updated = await parts.history.update(message)
        await self._report(updated.tokens)

    async def delete_messages(self, message_ids: list[str]) -> None:
        """Remove messages; their children take their parents. Unknown ids are ignored."""
        parts = self._parts
        await self._restore_skills()
        deleted = await parts.history.delete(message_ids)
        await self._report(deleted.tokens)

    async def clear_messages(self) -> None:
        """Remove all messages, overlays and what was loaded, and render the prompt again."""
        parts = self._parts
        await parts.history.clear()
        parts.skills.reset()
        await parts.prompt.refresh()
        await self._report(0)

    async def get_message(self, message_id: str) -> JsonObject | None:
        return await self._parts.history.provider.get_message(message_id)  # type: ignore[no-any-return]

    async def get_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        """The path from the root to a leaf (None: the latest), overlays in place of what they summarize."""
        return await self._parts.history.get_history(leaf_id)

    async def get_history_json(self, leaf_id: str | None = None) -> bytes:
        """`get_history` as JSON text."""
        return await self._parts.history.get_history_json(leaf_id)

    async def get_latest_leaf(self) -> JsonObject | None:
        """The newest message."""
        return await self._parts.history.provider.get_latest_leaf()  # type: ignore[no-any-return]

    async def get_branches(self, message_id: str) -> list[JsonObject]:
        """The children of a message, oldest first."""
        return await self._parts.history.provider.get_branches(message_id)  # type: ignore[no-any-return]

    async def get_path_length(self, leaf_id: str | None = None) -> int:
        """How many messages are on a path, overlays not applied."""
        return await self._parts.history.provider.get_path_length(leaf_id or None)  # type: ignore[no-any-return]

    async def get_recent_history(self, max_content_bytes: float, min_recent_messages: float = 1) -> Any:
        """The newest messages that fit a budget: ``messages``, ``truncated``, ``totalContentBytes``."""
        return await self._parts.history.get_recent_history(max_content_bytes, min_recent_messages)

    async def get_history_row_stats(self) -> Any:
        """``id``, ``role`` and ``bytes`` of every message of the path; None if the storage does not know."""
        return await self._parts.history.get_history_row_stats()

    async def search(self, query: str, limit: int = 20) -> Any:
        """Messages that hold every word of `query`, the best first. Raises NotSupported if the storage cannot search."""
        return await self._parts.history.search(query, limit)

    # ---- compaction -------------------------------------------------------------------------------------------

    async def add_compaction(self, summary: str, from_id: str, to_id: str) -> Any:
        """Store an overlay for a range as it is given; it applies to paths that hold both ends in order."""
        return await self._parts.history.provider.add_compaction(summary, from_id, to_id)

    async def get_compactions(self) -> Any:
        """All stored overlays, oldest first, also those that are superseded."""
        return await self._parts.history.provider.get_compactions()

    async def compact(self) -> CompactResult | None:
        """Run the compaction function now, after a run that is going on; None if nothing was folded or it failed.

        Raises NoCompaction.
        """
        return await self._parts.compactor.run()

    @property
    def is_compacting(self) -> bool:
        return self._made is not None and self._made.compactor.is_running

    async def settled(self) -> None:
        """Return when no compaction runs."""
        if self._made is not None:
            await self._made.compactor.settled()

    async def cancel_compaction(self) -> None:
        """End an automatic compaction that runs; the messages are as if it had not begun."""
        if self._made is not None:
            await self._made.compactor.cancel()

    async def hibernate(self) -> None:
        """Before the session is dropped in good order: keep what only memory holds, for `resume` or the next first call."""
        if self._made is not None:
            await self._made.compactor.settled()
            await self._made.skills.save()

    async def resume(self) -> None:
        """After an awakening: take over what `hibernate` kept; from here on a crash loses it again."""
        await self._restore_skills()

    # ---- context blocks and prompt ----------------------------------------------------------------------------

    async def get_context_block(self, label: str) -> ContextBlock | None:
        return await self._parts.blocks.get(label)

    async def get_context_blocks(self) -> list[ContextBlock]:
        return await self._parts.blocks.all()

    async def replace_context_block(self, label: str, content: str) -> ContextBlock:
        """Write a block. The frozen prompt stays as it is. Raises UnknownBlock, BlockNotWritable, BlockTooLarge."""
        return await self._parts.blocks.replace(label, _text(content))

    async def append_context_block(self, label: str, content: str) -> ContextBlock:
        """Add to a block, on a new line. Raises like `replace_context_block`."""
        return await self._parts.blocks.append(label, _text(content))

    async def add_context(
        self,
        label: str,
        *,
        description: str | None = None,
        max_tokens: float | None = None,
        provider: Any = None,
    ) -> ContextBlock:
        """Add a block while the session is in use, until it is dropped from memory. The frozen prompt stays as it is."""
        if provider is None and self._owner is None:
            raise NotSupported("This session has no database of its own: give the new context block a provider.")
        parts = self._parts
        config = self._wired(_config(ContextConfig(label, description, max_tokens, provider)))
        return await parts.blocks.add(config)

    async def remove_context(self, label: str) -> bool:
        """Remove a block; whether there was one. What its provider holds, and the history, stay."""
        self._parts.skills.forget_block(label)
        return self._parts.blocks.remove(label)

    async def freeze_system_prompt(self) -> str:
        """The system prompt; rendered and kept by the first call."""
        return await self._parts.prompt.freeze()

    async def refresh_system_prompt(self) -> str:
        """Read every provider again, render the prompt and keep that."""
        return await self._parts.prompt.refresh()

    async def get_loaded_skill_keys(self) -> set[str]:
        """``label:key`` of every document that is loaded."""
        parts = self._parts
        if not parts.blocks.has_skills:
            return set()
        return {f"{label}:{key}" for label, key in await parts.skills.restore()}

    async def unload_skill(self, label: str, key: str) -> bool:
        """Take a loaded document out of the history, on every branch; whether it was loaded."""
        parts = self._parts
        if not parts.blocks.has_skills:
            return False
        rewritten = await parts.skills.unload((label, key))
        if rewritten is not None and rewritten.inserted:
            await self._report(rewritten.tokens)
        return rewritten is not None

    async def tools(self) -> dict[str, Tool]:
        """The tools that fit the blocks as they are now, by name."""
        return await self._parts.tools.all()

    # ---- inside -----------------------------------------------------------------------------------------------

    @property
    def _parts(self) -> _Parts:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> _Parts:
        provider = self._provider
        if provider is None:
            provider = AgentSessionProvider(self._owner, self._session_id)
        history = history_of(provider)
        blocks = ContextBlocks([self._wired(config) for config in self._context])
        prompt = SystemPrompt(blocks, self._wired_prompt_store())
        status = Status(
            history,
            blocks,
            prompt,
            broadcast=getattr(self._owner, "broadcast", None),
            threshold=self._threshold,
            counter=self._counter,
        )
        compactor = Compactor(
            history,
            prompt,
            status,
            function=self._function,
            threshold=self._threshold,
            counter=self._counter,
            on_error=self._on_compaction_error,
        )
        skills = LoadedSkills(history)
        return _Parts(
            history=history,
            blocks=blocks,
            prompt=prompt,
            status=status,
            skills=skills,
            compactor=compactor,
            tools=ContextTools(blocks, skills, self.unload_skill),
        )

    def _wired(self, config: ContextConfig) -> ContextConfig:
        """With the storage of the session's own for a block that was given none."""
        provider = config.provider
        if provider is None and self._owner is not None:
            provider = AgentContextProvider(self._owner, self._key(config.label))
        return ContextConfig(config.label, config.description, config.max_tokens, self._namespaced(provider))

    def _wired_prompt_store(self) -> Any:
        if not self._has_cached_prompt:
            return None
        store = self._prompt_store
        if store is not None and isinstance(store, AgentContextProvider) and self._session_id:
            return AgentContextProvider(store.database, self._key(store.key))
        if store is None and self._owner is not None:
            return AgentContextProvider(self._owner, self._key(PROMPT_KEY))
        return store

    def _namespaced(self, provider: Any) -> Any:
        for_session = getattr(provider, "for_session", None)
        return for_session(self._session_id) if self._session_id and callable(for_session) else provider

    def _key(self, key: str) -> str:
        return f"{key}_{self._session_id}" if self._session_id else key

    async def _restore_skills(self) -> None:
        """What was loaded before this change counts as loaded after it."""
        parts = self._parts
        if parts.blocks.has_skills and not parts.skills.is_restored:
            await parts.skills.restore()

    async def _report(self, path_tokens: int) -> None:
        parts = self._parts
        if parts.compactor.reports:
            await parts.status.report("idle", path_tokens=path_tokens)

    def _refuse_once_used(self) -> None:
        if self._made is not None:
            raise InvalidArgument("This session is in use already; configure it before its first call.")


def _is_database(value: Any) -> bool:
    return isinstance(value, Database)


def _config(item: ContextConfig | Mapping[str, Any]) -> ContextConfig:
    if isinstance(item, Mapping):
        names = {"maxTokens": "max_tokens"}
        options = {names.get(name, name): value for name, value in item.items()}
        unknown = sorted(options.keys() - {field.name for field in fields(ContextConfig)})
        if unknown or "label" not in options:
            raise InvalidArgument(f"A context block has a label, description, max_tokens and provider, not {unknown}.")
        item = ContextConfig(**options)
    if not isinstance(item.label, str) or not item.label:
        raise InvalidArgument("The label of a context block must be a text that is not empty.")
    if isinstance(item.provider, str):
        return ContextConfig(item.label, item.description, item.max_tokens, TextProvider(item.provider))
    if item.provider is not None and not callable(getattr(item.provider, "get", None)):
        raise InvalidArgument(f"The provider of the context block {item.label!r} has no method get.")
    return item


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise InvalidArgument("The content of a context block must be a text.")
    return content
