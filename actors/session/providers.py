"""What a session is made of: the seams for message storage and for context blocks, told apart by the methods they have."""

import inspect
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

from pydantic import BaseModel

from storage.errors import InvalidArgument
from storage.records import LATEST, Latest

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]
Json = dict[str, Any]

_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "get": (),
    "set": ("content",),
    "load": ("key",),
    "search": ("query",),
    "init": ("label",),
}
SET_BLOCK: Final = ("content",)
SET_SKILL: Final = ("key", "content", "description")
SET_ENTRY: Final = ("key", "content")
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


class ContextProvider(Protocol):
    """A read-only block. Every provider may also have ``init(label)``, called before its first use.

    Methods may be async; one that is not must return at once, since it holds up every conversation of its process. Nothing but
    what needs the answer waits for a slow one, and nothing limits its time: a provider that talks to a network does that itself.
    What a method raises is raised by the call that needed it, with nothing changed; a tool answers it as its result.
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

    Methods may be async or not. Messages and overlays are plain objects (or `SessionMessage`, `StoredCompaction`).
    """

    async def get_message(self, id: str) -> Json | None: ...
    async def get_history(self, leaf_id: str | None = None) -> list[Json]: ...
    async def get_latest_leaf(self) -> Json | None: ...
    async def get_branches(self, message_id: str) -> list[Json]: ...
    async def get_path_length(self, leaf_id: str | None = None) -> int: ...
    async def append_message(self, message: Any, parent_id: str | Latest | None = LATEST) -> None: ...
    async def update_message(self, message: Any) -> None: ...
    async def delete_messages(self, ids: list[str]) -> None: ...
    async def clear_messages(self) -> None: ...
    async def add_compaction(self, summary: str, from_id: str, to_id: str) -> Any: ...
    async def get_compactions(self) -> list[Any]: ...


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


class PlainProvider:
    """A `SessionProvider` of a user's own as the session uses it: all async, messages as plain objects, mistakes said.

    Methods that are not mandatory are the provider's own.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def get_message(self, id: str) -> Json | None:
        return self._message_or_none("get_message", await settle(self._provider.get_message(id)))

    async def get_history(self, leaf_id: str | None = None) -> list[Json]:
        return self._messages("get_history", await settle(self._provider.get_history(leaf_id)))

    async def get_latest_leaf(self) -> Json | None:
        return self._message_or_none("get_latest_leaf", await settle(self._provider.get_latest_leaf()))

    async def get_branches(self, message_id: str) -> list[Json]:
        return self._messages("get_branches", await settle(self._provider.get_branches(message_id)))

    async def get_path_length(self, leaf_id: str | None = None) -> int:
        length = await settle(self._provider.get_path_length(leaf_id))
        if isinstance(length, bool) or not isinstance(length, int):
            raise self._wrong("get_path_length", length, "a whole number")
        return length

    async def append_message(self, message: Any, *parent_id: Any) -> None:
        await settle(self._provider.append_message(message, *parent_id))

    async def update_message(self, message: Any) -> None:
        await settle(self._provider.update_message(message))

    async def delete_messages(self, ids: list[str]) -> None:
        await settle(self._provider.delete_messages(ids))

    async def clear_messages(self) -> None:
        await settle(self._provider.clear_messages())

    async def add_compaction(self, summary: str, from_id: str, to_id: str) -> Any:
        return await settle(self._provider.add_compaction(summary, from_id, to_id))

    async def get_compactions(self) -> list[Any]:
        rows = await settle(self._provider.get_compactions())
        if not isinstance(rows, list | tuple):
            raise self._wrong("get_compactions", rows, "a list of overlays")
        return list(rows)

    def _messages(self, method: str, value: Any) -> list[Json]:
        if not isinstance(value, list | tuple):
            raise self._wrong(method, value, "a list of messages")
        return [self._message(method, item) for item in value]

    def _message_or_none(self, method: str, value: Any) -> Json | None:
        return None if value is None else self._message(method, value)

    def _message(self, method: str, value: Any) -> Json:
        if isinstance(value, BaseModel):
            return value.model_dump(by_alias=True, exclude_unset=True)
        if not isinstance(value, Mapping) or not isinstance(value.get("id"), str):
            raise self._wrong(method, value, "a message with an id")
        return value if isinstance(value, dict) else dict(value)

    def _wrong(self, method: str, value: Any, wanted: str) -> InvalidArgument:
        what = f"{_article(value)} without one" if isinstance(value, Mapping) else _article(value)
        return InvalidArgument(f"The session provider's {method} must give {wanted}, not {what}.")


def is_writable_provider(provider: object) -> TypeGuard[WritableContextProvider]:
    return _has(provider, "get", "set")


def is_skill_provider(provider: object) -> TypeGuard[SkillProvider]:
    return _has(provider, "get", "load")


def is_search_provider(provider: object) -> TypeGuard[SearchProvider]:
    return _has(provider, "get", "search")


def is_keyed_provider(provider: object) -> bool:
    """Whether it holds entries by key (skills, search) and not one text."""
    return is_skill_provider(provider) or is_search_provider(provider)


def check_provider(provider: object, of: str) -> None:
    """Refuse what cannot be the provider `of` something: without ``get``, half of a kind, a class. Raises InvalidArgument."""
    _refuse_class(provider, of)
    present = [name for name in _ARGUMENTS if getattr(provider, name, None) is not None]
    if not present:
        raise InvalidArgument(
            f"{_said(of)} has none of a provider's methods (get, set, load, search), but is {_article(provider)}."
        )
    uncallable = [name for name in present if not callable(getattr(provider, name))]
    if uncallable:
        raise InvalidArgument(f"{_said(of)} must have {_listed(uncallable)} as a method, not as a value.")
    if "get" not in present:
        raise InvalidArgument(f"{_said(of)} has {_listed(present)} but no get: every provider has that.")
    for name in present:
        arguments = _ARGUMENTS[name]
        if name == "set":
            arguments = SET_SKILL if "load" in present else SET_ENTRY if "search" in present else SET_BLOCK
        if not _takes(getattr(provider, name), len(arguments)):
            raise InvalidArgument(f"{_said(of)} must take {name}({', '.join(arguments)}).")


def check_prompt_store(store: object) -> None:
    """Refuse what cannot keep a prompt: it needs get and set of one text. Raises InvalidArgument."""
    check_provider(store, "of the cached prompt")
    if not is_writable_provider(store) or is_keyed_provider(store):
        raise InvalidArgument("The provider of the cached prompt needs get and set of one text, and no load or search.")


def missing_methods(provider: object) -> list[str]:
    """The mandatory methods of a `SessionProvider` that an object does not have."""
    return [name for name in SESSION_METHODS if not callable(getattr(provider, name, None))]


def check_session_provider(provider: object) -> None:
    """Refuse what cannot store messages, and name the methods that it lacks. Raises InvalidArgument."""
    if isinstance(provider, type):
        raise InvalidArgument(f"{provider.__name__} is a class; give the session an object of it.")
    missing = missing_methods(provider)
    if missing:
        raise InvalidArgument(f"A session provider needs {_listed(missing)}; {_article(provider)} lacks that.")


def text_of(value: object, provider_of: str) -> str | None:
    """What a provider gave, if it is a text or None. Raises InvalidArgument."""
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{_said(provider_of)} gave {_article(value)}, not a text.")
    return value


async def settle(value: Any) -> Any:
    """The value of a call that may be async; does not yield to the loop if it was not."""
    return await value if inspect.isawaitable(value) else value


def _has(provider: object, *names: str) -> bool:
    return all(callable(getattr(provider, name, None)) for name in names)


def _refuse_class(provider: object, of: str) -> None:
    if isinstance(provider, type):
        raise InvalidArgument(f"{_said(of)} is the class {provider.__name__}; give an object of it.")


def _takes(method: Any, count: int) -> bool:
    """Whether a method can be called with so many arguments; yes where Python cannot tell."""
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _said(of: str) -> str:
    return f"The provider {of}"


def _listed(names: list[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1]) if len(names) > 1 else names)


def _article(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
