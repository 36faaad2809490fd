"""The Session API from outside: what Python handles and WebSocket clients have in common."""

from typing import Any

from pydantic import BaseModel

from storage.records import LATEST, Latest

Json = dict[str, Any]


class SessionCalls:
    """Each method is the one of `Session` with that name, for conversations whose agent offers it (`SessionMethods`).

    Reads, `append_message` and `delete_messages` may be repeated without harm, so a call of these whose outcome is
    unknown is repeated; any other raises OutcomeUnknown.
    """

    async def _invoke(self, method: str, arguments: list[Any], *, is_idempotent: bool) -> Any:
        raise NotImplementedError

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call any method of the agent. What is certainly not executed is repeated, an unknown outcome is raised."""
        return await self._invoke(method, list(arguments), is_idempotent=False)

    async def _repeatable(self, method: str, *arguments: Any) -> Any:
        return await self._invoke(method, list(arguments), is_idempotent=True)

    # ---- messages ---------------------------------------------------------------------------------------------

    async def append_message(self, message: Json | BaseModel, parent_id: str | Latest | None = LATEST) -> None:
        """Returns when the message is durable. ``parent_id`` left out = the latest leaf; None = a new root."""
        if parent_id is LATEST:
            await self._repeatable("appendMessage", _plain(message))
        else:
            await self._repeatable("appendMessage", _plain(message), parent_id)

    async def update_message(self, message: Json | BaseModel) -> None:
        await self.call("updateMessage", _plain(message))

    async def delete_messages(self, message_ids: list[str]) -> None:
        await self._repeatable("deleteMessages", message_ids)

    async def clear_messages(self) -> None:
        await self.call("clearMessages")

    async def get_message(self, message_id: str) -> Any:
        return await self._repeatable("getMessage", message_id)

    async def get_history(self, leaf_id: str | None = None) -> Any:
        return await self._repeatable("getHistory", leaf_id)

    async def get_raw_history(self, leaf_id: str | None = None) -> Any:
        return await self._repeatable("getRawHistory", leaf_id)

    async def get_messages(self) -> Any:
        return await self._repeatable("getMessages")

    async def get_latest_leaf(self) -> Any:
        return await self._repeatable("getLatestLeaf")

    async def get_branches(self, message_id: str) -> Any:
        return await self._repeatable("getBranches", message_id)

    async def get_path_length(self, leaf_id: str | None = None) -> Any:
        return await self._repeatable("getPathLength", leaf_id)

    async def get_recent_history(self, max_content_bytes: float, min_recent_messages: float = 1) -> Any:
        return await self._repeatable("getRecentHistory", max_content_bytes, min_recent_messages)

    async def get_history_row_stats(self) -> Any:
        return await self._repeatable("getHistoryRowStats")

    async def page_messages(
        self, limit: int = 100, cursor: str | None = None, *, order: str = "newest", leaf_id: str | None = None
    ) -> Any:
        options = {"limit": limit, "cursor": cursor, "order": order, "leafId": leaf_id}
        return await self._repeatable("pageMessages", options)

    async def search(self, query: str, limit: int = 20) -> Any:
        return await self._repeatable("search", query, limit)

    # ---- compaction -------------------------------------------------------------------------------------------

    async def add_compaction(self, summary: str, from_message_id: str, to_message_id: str) -> Any:
        return await self.call("addCompaction", summary, from_message_id, to_message_id)

    async def get_compactions(self) -> Any:
        return await self._repeatable("getCompactions")

    async def compact(self) -> Any:
        return await self.call("compact")

    # ---- context ----------------------------------------------------------------------------------------------

    async def get_context_block(self, label: str) -> Any:
        return await self._repeatable("getContextBlock", label)

    async def get_context_blocks(self) -> Any:
        return await self._repeatable("getContextBlocks")

    async def replace_context_block(self, label: str, content: str) -> Any:
        return await self.call("replaceContextBlock", label, content)

    async def append_context_block(self, label: str, content: str) -> Any:
        return await self.call("appendContextBlock", label, content)

    async def freeze_system_prompt(self) -> Any:
        return await self.call("freezeSystemPrompt")

    async def refresh_system_prompt(self) -> Any:
        return await self.call("refreshSystemPrompt")

    async def unload_skill(self, label: str, key: str) -> Any:
        return await self.call("unloadSkill", label, key)

    async def get_loaded_skill_keys(self) -> Any:
        return await self._repeatable("getLoadedSkillKeys")


def _plain(message: Json | BaseModel) -> Json:
    if isinstance(message, BaseModel):
        return message.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return message
