"""The system prompt: rendered from the blocks, frozen on first use, kept until it is refreshed."""

import math
import re
from collections.abc import Iterable
from typing import Any

from actors.session.blocks import ContextBlock, ContextBlocks
from actors.session.locks import OwnLock
from actors.session.provider_checks import text_of
from storage.maybe_async import settle
from storage.tokens import estimate_string_tokens

BAR = "═" * 46
_IMITATION = re.compile("(^|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])═")


def render(blocks: Iterable[ContextBlock]) -> str:
    """The prompt. Empty blocks are shown only if they can be written, loaded or searched."""
    return "\n\n".join(_section(block) for block in blocks if _is_shown(block))


def percentage(tokens: int, limit: float) -> int:
    """In whole percent, halves up."""
    return math.floor(tokens / limit * 100 + 0.5)


def number(value: int | float) -> str:
    """Without a fraction when there is none."""
    return str(int(value)) if float(value).is_integer() else str(value)


class SystemPrompt:
    """The frozen prompt of one session. With a store it survives this object."""

    def __init__(self, blocks: ContextBlocks, store: Any) -> None:
        self._blocks = blocks
        self._store = store
        self._frozen: str | None = None
        self._is_store_read = store is None
        self._rendered: tuple[int, str] = (-1, "")
        self._counted: tuple[str, int] = ("", 0)
        self._lock = OwnLock("the system prompt")
        self._is_over = False

    def end(self) -> None:
        """The session is going to be deleted: the prompt is kept in memory only, so that no late one is left behind."""
        self._is_over = True

    def reopen(self) -> None:
        """It was not deleted after all."""
        self._is_over = False

    def refuse_inside(self) -> None:
        """Raise CalledItself in the store, or in a provider, that the prompt waits for."""
        self._lock.refuse_inside()

    async def freeze(self) -> str:
        """The frozen prompt; the first call renders it and stores it."""
        if self._frozen is None:
            async with self._lock:
                if await self._stored() is None:
                    await self._keep(await self._render())
        return self._frozen  # type: ignore[return-value]

    async def refresh(self) -> str:
        """Read every provider again, render, and freeze that."""
        async with self._lock:
            await self._blocks.reload()
            text = await self._render()
            await self._keep(text)
            return text

    async def current(self) -> str:
        """What `freeze` would return, without freezing it. Does not yield to the loop once everything is loaded."""
        if self._frozen is None and not self._is_store_read:
            async with self._lock:
                await self._stored()
        return self._frozen if self._frozen is not None else await self._render()

    async def tokens(self) -> int:
        """The estimate of `current`."""
        text = await self.current()
        if self._counted[0] is not text:
            self._counted = (text, estimate_string_tokens(text))
        return self._counted[1]

    async def _stored(self) -> str | None:
        if self._frozen is None and not self._is_store_read:
            self._frozen = text_of(await settle(self._store.get()), "of the cached prompt")
            self._is_store_read = True
        return self._frozen

    async def _keep(self, text: str) -> None:
        if self._store is not None and not self._is_over:
            await settle(self._store.set(text))
        self._frozen = text
        self._is_store_read = True

    async def _render(self) -> str:
        await self._blocks.load()
        if self._rendered[0] != self._blocks.version:
            self._rendered = (self._blocks.version, render(self._blocks.loaded()))
        return self._rendered[1]


def _is_shown(block: ContextBlock) -> bool:
    return bool(block.content) or block.writable or block.is_skill or block.is_searchable


def _section(block: ContextBlock) -> str:
    header = block.label.upper()
    if block.description:
        header += f" ({block.description})"
    if block.max_tokens:
        usage = percentage(block.tokens, block.max_tokens)
        header += f" [{usage}% — {block.tokens}/{number(block.max_tokens)} tokens]"
    content = _IMITATION.sub(r"\1 ═", block.content)
    return f"{BAR}\n{header} [{_ability(block)}]\n{BAR}\n{content}"


def _ability(block: ContextBlock) -> str:
    if block.is_skill:
        return "loadable"
    if block.is_searchable:
        return "searchable"
    return "writable" if block.writable else "readonly"
