"""Context blocks: what providers hold, loaded once and kept in memory; writes go to the provider first."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from actors.errors import BlockNotWritable, BlockTooLarge, NotSupported, UnknownBlock
from actors.session.locks import OwnLock
from actors.session.provider_checks import text_of
from actors.session.providers import (
    is_keyed_provider,
    is_search_provider,
    is_skill_provider,
    is_writable_provider,
)
from storage.errors import InvalidArgument, LimitExceeded, shown
from storage.maybe_async import settle
from storage.records import clean
from storage.tokens import estimate_string_tokens

log = logging.getLogger("perdure.session")


class ContextBlock(BaseModel):
    """One block as it is now. On the wire: ``label``, ``maxTokens``, ``isSkill``, …; absent fields are left out."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

    label: str
    description: str | None = None
    content: str = ""
    tokens: int = 0
    max_tokens: int | float | None = None
    writable: bool = False
    is_skill: bool = False
    is_searchable: bool = False

    @model_serializer(mode="wrap")
    def _to_wire(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """How a block was registered. ``provider`` None: a read-only block without content."""

    label: str
    description: str | None = None
    max_tokens: int | float | None = None
    provider: Any = None


class ContextBlocks:
    """The blocks of one session. Nothing is loaded before it is needed; then all are, in the order of registration.

    Writes of one block come one after another. Nothing waits for a slow provider but the first load, and what is about its block.
    A provider must not wait for its own session: a call that would is refused with CalledItself.
    """

    def __init__(self, configs: Iterable[ContextConfig], max_blocks: int) -> None:
        self._configs = list(configs)
        self._max_blocks = max_blocks
        self._check_count(len(self._configs))
        self._blocks: dict[str, ContextBlock] = {}
        self._fresh: dict[str, ContextBlock] | None = None
        """What a reload has read so far."""
        self._initialized: set[tuple[str, int]] = set()
        self._loading = OwnLock("a context block")
        self._locks: dict[str, OwnLock] = {}
        self._is_loaded = False
        self.version = 0
        """Grows with every change of any block."""

    @property
    def has_skills(self) -> bool:
        return any(is_skill_provider(config.provider) for config in self._configs)

    async def load(self) -> None:
        """Load all blocks unless they are. Raises what a provider raises; then nothing counts as loaded."""
        if not self._is_loaded:
            async with self._loading:
                if not self._is_loaded:
                    await self._load_all()

    async def reload(self) -> None:
        """Read every provider again; all blocks stay as they are if one raises."""
        async with self._loading:
            await self._load_all()

    async def get(self, label: str) -> ContextBlock | None:
        await self.load()
        return self._blocks.get(label)

    async def all(self) -> list[ContextBlock]:
        await self.load()
        return list(self._blocks.values())

    def loaded(self) -> list[ContextBlock]:
        """The blocks in memory; empty before `load`."""
        return list(self._blocks.values())

    def provider(self, label: str) -> Any:
        """The provider of a loaded block, or None."""
        config = self._config(label)
        return None if config is None else config.provider

    async def replace(self, label: str, content: str) -> ContextBlock:
        """Write a whole block; in memory only after the provider has it."""
        await self.load()
        async with self._writing(label):
            return await self._write(label, clean(content))

    async def append(self, label: str, content: str) -> ContextBlock:
        """Add to a block, on a new line."""
        await self.load()
        async with self._writing(label):
            block = self._plain_writable(label)
            joint = "\n" if block.content and not content.startswith("\n") else ""
            return await self._write(label, block.content + joint + clean(content))

    async def write_entry(self, label: str, key: str, content: str, description: str | None) -> None:
        """Write one entry of a keyed block. Its content, and its description, may each have as many tokens as the block."""
        await self.load()
        async with self._writing(label):
            block = self._existing(label)
            config = self._config(label)
            if config is None or not (is_keyed_provider(config.provider) and block.writable):
                raise BlockNotWritable(label)
            content, description = clean(content), description and clean(description)
            _check_size(block, content)
            if is_skill_provider(config.provider):
                _check_size(block, description or "")
                await settle(config.provider.set(key, content, description))  # type: ignore[attr-defined]
            else:
                await settle(config.provider.set(key, content))
            try:
                self._put(config, await self._read(config))
            except Exception:  # the entry is written; only its listing is old
                log.warning("the listing of the context block %r could not be read again", label, exc_info=True)

    async def add(self, config: ContextConfig) -> ContextBlock:
        """Register one more block and load it."""
        await self.load()
        async with self._loading:
            if any(existing.label == config.label for existing in self._configs):
                raise InvalidArgument(f"There is already a context block {shown(config.label)}.")
            self._check_count(len(self._configs) + 1)
            block = await self._read(config)
            self._configs.append(config)
            self._put(config, block)
            return block

    def remove(self, label: str) -> bool:
        """Unregister a block; what its provider holds stays. A write that is on its way reaches the provider only."""
        for index, config in enumerate(self._configs):
            if config.label == label:
                del self._configs[index]
                self._initialized.discard((label, id(config.provider)))
                self._blocks.pop(label, None)
                self.version += 1
                return True
        return False

    async def _load_all(self) -> None:
        self._fresh = {}
        try:
            for config in list(self._configs):
                async with self._writing(config.label):
                    self._fresh[config.label] = await self._read(config)
            registered = {config.label for config in self._configs}
            self._blocks = {label: block for label, block in self._fresh.items() if label in registered}
        finally:
            self._fresh = None
        self._is_loaded = True
        self.version += 1

    async def _read(self, config: ContextConfig) -> ContextBlock:
        provider = config.provider
        block = ContextBlock(
            label=config.label,
            description=config.description,
            max_tokens=config.max_tokens,
            writable=is_writable_provider(provider),
            is_skill=is_skill_provider(provider),
            is_searchable=is_search_provider(provider),
        )
        if provider is None:
            return block
        if (config.label, id(provider)) not in self._initialized:
            if callable(getattr(provider, "init", None)):
                await settle(provider.init(config.label))
            self._initialized.add((config.label, id(provider)))
        content = text_of(await settle(provider.get()), f"of the context block {shown(config.label)}")
        return _with_content(block, clean(content or ""))

    async def _write(self, label: str, content: str) -> ContextBlock:
        block = self._plain_writable(label)
        config = self._config(label)
        assert config is not None
        _check_size(block, content)
        await settle(config.provider.set(content))
        block = _with_content(block, content)
        self._put(config, block)
        return block

    def _put(self, config: ContextConfig, block: ContextBlock) -> None:
        """Take a block into memory, unless it was removed meanwhile."""
        if any(existing is config for existing in self._configs):
            self._blocks[config.label] = block
            if self._fresh is not None and config.label in self._fresh:
                self._fresh[config.label] = block
            self.version += 1

    def refuse_inside_load(self) -> None:
        """Raise CalledItself in a provider that is being read for all: every write of a message may wait for that."""
        self._loading.refuse_inside()

    def refuse_inside(self) -> None:
        """Raise CalledItself in any provider that is being read or written: a refresh of the prompt waits for each."""
        for lock in (*self._locks.values(), self._loading):
            lock.refuse_inside()

    def _writing(self, label: str) -> OwnLock:
        if label not in self._locks:
            self._locks[label] = OwnLock(f"the context block {shown(label)}")
        return self._locks[label]

    def _existing(self, label: str) -> ContextBlock:
        if label not in self._blocks:
            raise UnknownBlock(label, ", ".join(map(shown, self._blocks)) or "none")
        return self._blocks[label]

    def _plain_writable(self, label: str) -> ContextBlock:
        block = self._existing(label)
        if not block.writable:
            raise BlockNotWritable(label)
        if block.is_skill or block.is_searchable:
            raise NotSupported(f"The context block {shown(label)} is written entry by entry, with a key.")
        return block

    def _config(self, label: str) -> ContextConfig | None:
        return next((config for config in reversed(self._configs) if config.label == label), None)

    def _check_count(self, count: int) -> None:
        if count > self._max_blocks:
            raise LimitExceeded("The number of context blocks", f"{self._max_blocks:,}")


def _with_content(block: ContextBlock, content: str) -> ContextBlock:
    return block.model_copy(update={"content": content, "tokens": estimate_string_tokens(content)})


def _check_size(block: ContextBlock, content: str) -> None:
    tokens = estimate_string_tokens(content)
    if block.max_tokens is not None and tokens > block.max_tokens:
        raise BlockTooLarge(block.label, tokens, block.max_tokens)
