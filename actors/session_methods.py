"""The Session API as callable methods, for agents that offer it to clients: ``class MyAgent(SessionMethods, Agent)``.

Names, order of arguments and results are those of the documentation (spec/sessions.md); `get_messages` is the alias that
existing front ends call.
"""

from typing import Any

import orjson

from actors.rpc import rpc
from actors.session import Session
from storage.records import LATEST, Latest

Json = dict[str, Any]


class SessionMethods:
    """Each method is the one of `Session` with that name."""

    session: Session

    # ---- messages ---------------------------------------------------------------------------------------------

    @rpc(verb="append", single=True)
    async def append_message(self, message: dict[str, Any], parent_id: str | Latest | None = LATEST) -> None:
        await self.session.append_message(message, parent_id)

    @rpc(single=True)
    async def update_message(self, message: dict[str, Any]) -> None:
        await self.session.update_message(message)

    @rpc(verb="delete", single=True)
    async def delete_messages(self, message_ids: list[str]) -> None:
        await self.session.delete_messages(message_ids)

    @rpc(verb="delete")
    async def clear_messages(self) -> None:
        await self.session.clear_messages()

    @rpc(verb="read", single=True)
    async def get_message(self, message_id: str) -> Any:
        return await self.session.get_message(message_id)

    @rpc(verb="read", single=True)
    async def get_history(self, leaf_id: str | None = None) -> Any:
        return orjson.Fragment(await self.session.get_history_json(leaf_id))

    @rpc(verb="read", single=True)
    async def get_raw_history(self, leaf_id: str | None = None) -> Any:
        return await self.session.get_raw_history(leaf_id)

    @rpc(verb="read", single=True)
    async def get_messages(self) -> Any:
        return orjson.Fragment(await self.session.get_history_json())

    @rpc(verb="read", single=True)
    async def get_latest_leaf(self) -> Any:
        return await self.session.get_latest_leaf()

    @rpc(verb="read", single=True)
    async def get_branches(self, message_id: str) -> Any:
        return await self.session.get_branches(message_id)

    @rpc(verb="read", single=True)
    async def get_path_length(self, leaf_id: str | None = None) -> int:
        return await self.session.get_path_length(leaf_id)

    @rpc(verb="read", single=True)
    async def get_recent_history(self, max_content_bytes: float, min_recent_messages: float = 1) -> Any:
        return await self.session.get_recent_history(max_content_bytes, min_recent_messages=min_recent_messages)

    @rpc(verb="read", single=True)
    async def get_history_row_stats(self) -> Any:
        return await self.session.get_history_row_stats()

    @rpc(verb="read", single=True)
    async def page_messages(
        self, limit: int = 100, cursor: str | None = None, order: str = "newest", leaf_id: str | None = None
    ) -> Any:
        return await self.session.page_messages(limit, cursor, order=order, leaf_id=leaf_id)

    @rpc(verb="read", single=True)
    async def search(self, query: str, limit: int = 20) -> Any:
        return await self.session.search(query, limit=limit)

    # ---- compaction -------------------------------------------------------------------------------------------

    @rpc(single=True)
    async def add_compaction(self, summary: str, from_message_id: str, to_message_id: str) -> Any:
        return await self.session.add_compaction(summary, from_message_id, to_message_id)

    @rpc(verb="read", single=True)
    async def get_compactions(self) -> Any:
        return await self.session.get_compactions()

    @rpc
    async def compact(self) -> Any:
        return await self.session.compact()

    # ---- context ----------------------------------------------------------------------------------------------

    @rpc(verb="read")
    async def get_context_block(self, label: str) -> Any:
        return await self.session.get_context_block(label)

    @rpc(verb="read")
    async def get_context_blocks(self) -> Any:
        return await self.session.get_context_blocks()

    @rpc
    async def replace_context_block(self, label: str, content: str) -> Any:
        return await self.session.replace_context_block(label, content)

    @rpc
    async def append_context_block(self, label: str, content: str) -> Any:
        return await self.session.append_context_block(label, content)

    @rpc
    async def freeze_system_prompt(self) -> str:
        return await self.session.freeze_system_prompt()

    @rpc
    async def refresh_system_prompt(self) -> str:
        return await self.session.refresh_system_prompt()

    @rpc
    async def unload_skill(self, label: str, key: str) -> bool:
        return await self.session.unload_skill(label, key)

    @rpc(verb="read")
    async def get_loaded_skill_keys(self) -> Any:
        return sorted(await self.session.get_loaded_skill_keys())
