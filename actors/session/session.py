"""A session: messages, context blocks, system prompt and compaction of one conversation, over any storage."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from actors.errors import NotSupported
from actors.session import arguments
from actors.session.blocks import ContextBlock, ContextConfig
from actors.session.building import SessionBuilder
from actors.session.configuration import block_config
from actors.session.history import Written
from actors.session.provider_checks import article
from actors.session.tools import Tool
from compaction import CompactResult, Usage
from storage.cursors import checked_limit
from storage.errors import InvalidArgument
from storage.records import (
    LATEST,
    JsonObject,
    Latest,
    MessagePage,
    RecentHistory,
    RowStat,
    SearchResult,
    SessionMessage,
    StoredCompaction,
)

Message = Mapping[str, Any] | SessionMessage


class Session(SessionBuilder):
    """One conversation's messages, context blocks, system prompt and compaction.

    Made by `Session.create` and builder methods, in any order, or directly from a provider. Nothing is read before the first
    call. Messages are plain objects (or `SessionMessage`); reads give plain objects. After each write, and before it returns, a
    status frame with the estimate of tokens goes to the owner's ``broadcast`` if it has one.
    """

    # ---- messages ---------------------------------------------------------------------------------------------

    async def append_message(self, message: Message, parent_id: str | Latest | None = LATEST) -> None:
        """Add a message after the latest leaf, after `parent_id`, or (None) as a new root; once per id.

        Returns when it is durable and its idle frame is out. Automatic compaction goes on in the background: `settled`.
        Raises InvalidMessage, UnknownParent.
        """
        parts = self._parts
        await self._before_write()
        await parts.compactor.after_append(await parts.history.append(message, arguments.parent(parent_id)))

    async def append_messages(self, messages: Sequence[Message], parent_id: str | Latest | None = LATEST) -> None:
        """`append_message` for several, each after the one before it, all of them or none.

        There is a status frame for each; automatic compaction is considered once, at the end.
        """
        given, parent_id = arguments.messages(messages), arguments.parent(parent_id)
        parts = self._parts
        await self._before_write()
        written = await parts.history.append_all(given, parent_id)
        for each in written[:-1]:
            await parts.compactor.after_write(each)
        if written:
            is_changed = any(each.is_changed for each in written)
            await parts.compactor.after_append(Written(is_changed, written[-1].path_tokens))

    async def upsert_message(self, message: Message, parent_id: str | Latest | None = LATEST) -> None:
        """Replace the message of that id where it is, or `append_message` it."""
        parts = self._parts
        await self._before_write()
        await parts.compactor.after_append(await parts.history.upsert(message, arguments.parent(parent_id)))

    async def update_message(self, message: Message) -> None:
        """Replace the message of that id. Raises InvalidMessage, UnknownMessage."""
        parts = self._parts
        await self._before_write()
        await parts.compactor.after_write(await parts.history.update(message))

    async def delete_messages(self, message_ids: list[str]) -> None:
        """Remove messages; their children take their parents. Unknown ids are ignored."""
        given = arguments.ids(message_ids)
        parts = self._parts
        await self._before_write()
        await parts.compactor.after_write(await parts.history.delete(given))

    async def clear_messages(self) -> None:
        """Remove all messages, overlays and what was loaded, and render the prompt again."""
        parts = self._parts
        parts.status.refuse_refresh_inside("A write")
        await parts.history.clear()
        parts.skills.reset()
        await parts.prompt.refresh()
        await parts.compactor.after_write(Written(True))

    async def get_message(self, message_id: str) -> JsonObject | None:
        return await self._parts.history.provider.get_message(arguments.text(message_id, "message_id"))  # type: ignore[no-any-return]

    async def get_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        """The path from the root to a leaf (None: the latest), overlays in place of what they summarize."""
        return await self._parts.history.get_history(arguments.text_or_none(leaf_id, "leaf_id"))

    async def get_history_json(self, leaf_id: str | None = None) -> bytes:
        """`get_history` as JSON text."""
        return await self._parts.history.get_history_json(arguments.text_or_none(leaf_id, "leaf_id"))

    async def get_raw_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        """The path as it was written, with the messages that overlays stand for and without the overlays."""
        return await self._parts.history.get_raw_history(arguments.text_or_none(leaf_id, "leaf_id"))

    async def get_latest_leaf(self) -> JsonObject | None:
        """The newest message."""
        return await self._parts.history.provider.get_latest_leaf()  # type: ignore[no-any-return]

    async def get_branches(self, message_id: str) -> list[JsonObject]:
        """The children of a message, oldest first."""
        return await self._parts.history.provider.get_branches(arguments.text(message_id, "message_id"))  # type: ignore[no-any-return]

    async def get_path_length(self, leaf_id: str | None = None) -> int:
        """How many messages are on a path, overlays not applied."""
        leaf_id = arguments.text_or_none(leaf_id, "leaf_id") or None
        return await self._parts.history.provider.get_path_length(leaf_id)  # type: ignore[no-any-return]

    async def get_recent_history(self, max_content_bytes: float, min_recent_messages: float = 1) -> RecentHistory:
        """The newest messages that fit a budget, at least `min_recent_messages`.

        As ``messages``, oldest first; ``truncated``, whether there are more; ``totalContentBytes`` of the whole path.
        """
        max_content_bytes = arguments.number(max_content_bytes, "max_content_bytes")
        min_recent_messages = arguments.number(min_recent_messages, "min_recent_messages")
        return await self._parts.history.get_recent_history(max_content_bytes, min_recent_messages)  # type: ignore[no-any-return]

    async def get_history_row_stats(self) -> list[RowStat] | None:
        """``id``, ``role`` and ``bytes`` of every message of the path; None if the storage does not know."""
        return await self._parts.history.get_history_row_stats()  # type: ignore[no-any-return]

    async def page_messages(
        self, limit: int = 100, cursor: str | None = None, *, order: str = "newest", leaf_id: str | None = None
    ) -> MessagePage:
        """A page of the messages without their content: up to `limit` (1 to 1,000) rows of `id`, `parentId`, `role`, `bytes`,
        `tokens` and `createdAt` as ``messages``, and ``nextCursor`` unless they are the last.

        ``order``: "newest" (the path to a leaf, from the leaf), "oldest" (the same, from the root), or "inserted" (every
        branch, as written). ``leaf_id`` None: the latest leaf; a walk keeps to the one with which it began. Give a cursor
        back with the same order and leaf; it stays valid while messages come and go. Raises InvalidArgument, NotSupported.
        """
        cursor, leaf_id = arguments.text_or_none(cursor, "cursor"), arguments.text_or_none(leaf_id, "leaf_id")
        limit, order = checked_limit(limit), arguments.text(order, "order")
        return cast(MessagePage, await self._parts.history.page_messages(limit, cursor, order, leaf_id))

    async def search(self, query: str, limit: int = 20) -> list[SearchResult]:
        """Up to `limit` messages, on all branches, that hold every word of `query`, the best first: ``id``, ``role``, ``content``
        (the text) and ``createdAt`` of each.

        Raises InvalidArgument for a limit below zero, NotSupported if the storage cannot search.
        """
        query = arguments.text(query, "query")
        return await self._parts.history.search(query, limit)  # type: ignore[no-any-return]

    # ---- compaction -------------------------------------------------------------------------------------------

    async def add_compaction(self, summary: str, from_id: str, to_id: str) -> StoredCompaction:
        """Store an overlay for a range as it is given; it applies to paths that hold both ends in order.

        As it is stored: ``id``, ``summary``, ``fromMessageId``, ``toMessageId``, ``createdAt``. A storage of the user's own may
        give what it likes.
        """
        summary = arguments.text(summary, "summary")
        from_id, to_id = arguments.text(from_id, "from_id"), arguments.text(to_id, "to_id")
        return await self._parts.history.provider.add_compaction(summary, from_id, to_id)  # type: ignore[no-any-return]

    async def get_compactions(self) -> list[StoredCompaction]:
        """All stored overlays, oldest first, also those that are superseded; the fields are those of `add_compaction`."""
        return await self._parts.history.provider.get_compactions()  # type: ignore[no-any-return]

    async def compact(self) -> CompactResult | None:
        """Run the compaction function now, after a run that is going on; None if nothing was folded or it failed.

        Raises NoCompaction, and CalledItself in a provider.
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

    async def record_usage(self, usage: Usage) -> bool:
        """Add what a call of a model cost to this session's totals; whether it is registered (`SessionManager`), else nothing is
        kept. Compactions do so by themselves."""
        if not isinstance(usage, Usage):
            raise InvalidArgument(f"usage must be a Usage, not {article(usage)}.")
        return await self._parts.history.record_usage(usage)

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
        return await self._parts.blocks.get(arguments.text(label, "label"))

    async def get_context_blocks(self) -> list[ContextBlock]:
        return await self._parts.blocks.all()

    async def replace_context_block(self, label: str, content: str) -> ContextBlock:
        """Write a block. The frozen prompt stays as it is. Raises UnknownBlock, BlockNotWritable, BlockTooLarge."""
        return await self._parts.blocks.replace(arguments.text(label, "label"), _text(content))

    async def append_context_block(self, label: str, content: str) -> ContextBlock:
        """Add to a block, on a new line. Raises like `replace_context_block`."""
        return await self._parts.blocks.append(arguments.text(label, "label"), _text(content))

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
        config = self._wired(block_config(ContextConfig(label, description, max_tokens, provider)))
        return await parts.blocks.add(config)

    async def remove_context(self, label: str) -> bool:
        """Remove a block; whether there was one. What its provider holds, and the history, stay."""
        label = arguments.text(label, "label")
        await self._restore_skills()
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
        skill = (arguments.text(label, "label"), arguments.text(key, "key"))
        parts = self._parts
        parts.status.refuse_write_inside()
        return parts.blocks.has_skills and await parts.skills.unload(skill)

    async def tools(self) -> dict[str, Tool]:
        """The tools that fit the blocks as they are now, by name."""
        return await self._parts.tools.all()

    # ---- inside -----------------------------------------------------------------------------------------------

    async def _before_write(self) -> None:
        self._parts.status.refuse_write_inside()
        await self._restore_skills()

    async def _restore_skills(self) -> None:
        """What was loaded before a change counts as loaded after it."""
        if self._parts.blocks.has_skills:
            await self._parts.skills.restore()


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise InvalidArgument("The content of a context block must be a text.")
    return content
