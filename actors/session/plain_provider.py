"""A user's own message storage, as a session uses it."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from actors.session.provider_checks import article
from storage.errors import InvalidArgument
from storage.maybe_async import settle
from storage.records import JsonObject


class PlainProvider:
    """A `SessionProvider` of a user's own as the session uses it: all async, messages as plain objects, mistakes said.

    Methods that are not mandatory are the provider's own.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def get_message(self, id: str) -> JsonObject | None:
        return self._message_or_none("get_message", await settle(self._provider.get_message(id)))

    async def get_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        return self._messages("get_history", await settle(self._provider.get_history(leaf_id)))

    async def get_latest_leaf(self) -> JsonObject | None:
        return self._message_or_none("get_latest_leaf", await settle(self._provider.get_latest_leaf()))

    async def get_branches(self, message_id: str) -> list[JsonObject]:
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

    def _messages(self, method: str, value: Any) -> list[JsonObject]:
        if not isinstance(value, list | tuple):
            raise self._wrong(method, value, "a list of messages")
        return [self._message(method, item) for item in value]

    def _message_or_none(self, method: str, value: Any) -> JsonObject | None:
        return None if value is None else self._message(method, value)

    def _message(self, method: str, value: Any) -> JsonObject:
        if isinstance(value, BaseModel):
            return value.model_dump(by_alias=True, exclude_unset=True)
        if not isinstance(value, Mapping) or not isinstance(value.get("id"), str):
            raise self._wrong(method, value, "a message with an id")
        return value if isinstance(value, dict) else dict(value)

    def _wrong(self, method: str, value: Any, wanted: str) -> InvalidArgument:
        what = f"{article(value)} without one" if isinstance(value, Mapping) else article(value)
        return InvalidArgument(f"The session provider's {method} must give {wanted}, not {what}.")
