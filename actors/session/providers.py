"""The seams for message storage and for context blocks, told apart by the methods they have."""

from typing import Any, Final, Protocol, TypeGuard, runtime_checkable

from storage.maybe_async import MaybeAwaitable
from storage.records import LATEST, JsonObject, Latest, StoredCompaction

SESSION_METHODS: Final = (
    "get_message",
    "get_history",
    "get_latest_leaf",
    "get_branches",
    "get_path_length",
    "append_message",
    "update_message",
    "delete_messages",
    "clear_messages",
    "add_compaction",
    "get_compactions",
)
"""What a `SessionProvider` must have."""


class ContextProvider(Protocol):
    """A read-only block. Every provider may also have ``init(label)``, called before its first use.

    Methods may be async; one that is not must return at once, since it holds up every conversation of its process. Nothing but
    what needs the answer waits for a slow one, and nothing limits its time: a provider that talks to a network does that itself.
    What a method raises is raised by the call that needed it, with nothing changed; a tool answers it as its result. A method
    must not wait for a call of its own session that waits for it (its prompt, its own block, a compaction; from a ``get``
    also a write of messages): that call raises CalledItself.
    A block's text is a str; None stands for none. Anything else is refused with InvalidArgument.
    """

    def get(self) -> MaybeAwaitable[str | None]: ...


class WritableContextProvider(ContextProvider, Protocol):
    """A block that is replaced as a whole."""

    def set(self, content: str) -> MaybeAwaitable[None]: ...


class SkillProvider(ContextProvider, Protocol):
    """Documents loaded on demand. May also have ``set(key, content, description)``."""

    def load(self, key: str) -> MaybeAwaitable[str | None]: ...


class SearchProvider(ContextProvider, Protocol):
    """Entries found by search. May also have ``set(key, content)``."""

    def search(self, query: str) -> MaybeAwaitable[str | None]: ...


@runtime_checkable
class SessionProvider(Protocol):
    """Message storage. May also have ``search_messages``, ``get_recent_history`` and ``get_history_row_stats``.

    Methods may be async or not. Messages are plain objects or `SessionMessage`, overlays are `StoredCompaction`.
    """

    async def get_message(self, id: str) -> JsonObject | None: ...
    async def get_history(self, leaf_id: str | None = None) -> list[JsonObject]: ...
    async def get_latest_leaf(self) -> JsonObject | None: ...
    async def get_branches(self, message_id: str) -> list[JsonObject]: ...
    async def get_path_length(self, leaf_id: str | None = None) -> int: ...
    async def append_message(self, message: Any, parent_id: str | Latest | None = LATEST) -> None: ...
    async def update_message(self, message: Any) -> None: ...
    async def delete_messages(self, ids: list[str]) -> None: ...
    async def clear_messages(self) -> None: ...
    async def add_compaction(self, summary: str, from_id: str, to_id: str) -> Any: ...
    async def get_compactions(self) -> list[StoredCompaction]: ...


class SqlProvider(Protocol):
    """Anything that has a `Database`; if it also has ``broadcast(frame)``, the session tells its status there."""

    @property
    def database(self) -> Any: ...


class TextProvider:
    """A read-only block of fixed text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get(self) -> str:
        return self._text


def is_writable_provider(provider: object) -> TypeGuard[WritableContextProvider]:
    return _has(provider, "get", "set")


def is_skill_provider(provider: object) -> TypeGuard[SkillProvider]:
    return _has(provider, "get", "load")


def is_search_provider(provider: object) -> TypeGuard[SearchProvider]:
    return _has(provider, "get", "search")


def is_keyed_provider(provider: object) -> bool:
    """Whether it holds entries by key (skills, search) and not one text."""
    return is_skill_provider(provider) or is_search_provider(provider)


def _has(provider: object, *names: str) -> bool:
    return all(callable(getattr(provider, name, None)) for name in names)
