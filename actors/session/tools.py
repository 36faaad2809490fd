"""The tools that a session offers to a model: they write, load, unload and search its context blocks."""

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from actors.errors import BlockNotWritable, BlockTooLarge
from actors.redaction import what_failed
from actors.session.blocks import ContextBlock, ContextBlocks
from actors.session.keys import entry_key
from actors.session.prompt import number, percentage
from actors.session.provider_checks import text_of
from actors.session.skills import LOAD_TOOL, UNLOAD_TOOL, LoadedSkills, not_found
from compaction.checks import is_number
from storage import json_text
from storage.errors import InvalidArgument, StorageError
from storage.maybe_async import settle

Schema = dict[str, Any]

logger = logging.getLogger("perdure.session")


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool for a model. `execute` never raises for what a model may do wrong: it answers ``Error: …``."""

    name: str
    description: str
    input_schema: Schema
    """JSON Schema of the input."""
    run: Callable[[dict[str, Any]], Any]
    """What the tool does with an input that fits the schema's types; async or not."""

    async def execute(self, input: Any) -> str:
        """Run the tool on a model's input, whatever it is; its answer as text."""
        try:
            arguments, _ = json_text.dump(input)
        except (TypeError, ValueError) as exc:
            return f"Error: the input is no JSON ({exc})"
        mistake = _mistake(self.input_schema, arguments, "the input")
        if mistake is not None:
            return f"Error: {mistake}"
        task = asyncio.current_task()
        try:
            answer = await settle(self.run(arguments))
        except BlockTooLarge as exc:
            label, tokens, limit = exc.args
            return f'Error: Block "{label}" exceeds maxTokens: {tokens} > {number(limit)}'
        except BaseException as exc:
            if comes_from_outside(exc, task):
                raise
            if not isinstance(exc, StorageError):  # those say all there is to say
                logger.warning("The tool %s failed: %s", self.name, what_failed(exc))
            return f"Error: {str(exc) or type(exc).__name__}"
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)

    def to_openai(self) -> Schema:
        """As an entry of ``tools`` of OpenAI's chat completions."""
        function = {"name": self.name, "description": self.description, "parameters": deepcopy(self.input_schema)}
        return {"type": "function", "function": function}

    def to_anthropic(self) -> Schema:
        """As an entry of ``tools`` of Anthropic's messages."""
        return {"name": self.name, "description": self.description, "input_schema": deepcopy(self.input_schema)}


def comes_from_outside(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether what a tool's function raised was meant for those who run it, in ``task``: they are cancelled, closed or
    interrupted. A function can raise the same on its own, say because what it waits for was cancelled: then it has failed."""
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        return asyncio.current_task() is not task
    return isinstance(error, KeyboardInterrupt)


def openai_tools(tools: Mapping[str, Tool]) -> list[Schema]:
    """All of ``await session.tools()`` (and others) as ``tools`` of OpenAI's chat completions. Raises InvalidArgument."""
    return [tool.to_openai() for tool in _all_of(tools)]


def anthropic_tools(tools: Mapping[str, Tool]) -> list[Schema]:
    """All of ``await session.tools()`` (and others) as ``tools`` of Anthropic's messages. Raises InvalidArgument."""
    return [tool.to_anthropic() for tool in _all_of(tools)]


def _all_of(tools: Any) -> list[Tool]:
    if inspect.isawaitable(tools):
        raise InvalidArgument("The tools are not there yet: write openai_tools(await session.tools()), with the await.")
    if not isinstance(tools, Mapping) or not all(isinstance(tool, Tool) for tool in tools.values()):
        raise InvalidArgument(
            "The tools must be a mapping of names to Tool objects, as await session.tools() gives it."
        )
    return list(tools.values())


class ContextTools:
    """Makes the tools that fit the blocks as they are now."""

    def __init__(self, blocks: ContextBlocks, skills: LoadedSkills) -> None:
        self._blocks = blocks
        self._skills = skills

    async def all(self) -> dict[str, Tool]:
        blocks = await self._blocks.all()
        tools: list[Tool] = []
        if any(block.writable for block in blocks):
            tools.append(self._set_tool([block for block in blocks if block.writable]))
        skills = [block for block in blocks if block.is_skill]
        if skills:
            tools += [self._load_tool(skills), await self._unload_tool(skills)]
        searchable = [block for block in blocks if block.is_searchable]
        if searchable:
            tools.append(self._search_tool(searchable))
        return {tool.name: tool for tool in tools}

    def _set_tool(self, blocks: list[ContextBlock]) -> Tool:
        properties: Schema = {
            "label": _choice(blocks),
            "content": {"type": "string", "description": "The text to write."},
            "action": {
                "type": "string",
                "enum": ["replace", "append"],
                "description": "Replace the block (the default) or add to it. Entries of keyed blocks are always replaced.",
            },
        }
        if any(_is_keyed(block) for block in blocks):
            title = "Names the entry; writing under the same title again updates it."
            properties["metadata"] = {
                "type": "object",
                "description": "For blocks of entries.",
                "properties": {
                    "title": {"type": "string", "description": title},
                    "description": {"type": "string", "description": "One line for the listing."},
                },
            }
        lines = "\n".join(_set_line(block) for block in blocks)
        description = (
            f"Write to a block of your context. It keeps what you write beyond this conversation turn.\n{lines}"
        )
        return Tool("set_context", description, _schema(properties, "label", "content"), self._set)

    def _load_tool(self, blocks: list[ContextBlock]) -> Tool:
        properties = {"label": _choice(blocks), "key": {"type": "string", "description": "Key from the listing."}}
        description = "Load the full text of a document that a loadable block of your context lists by key."
        return Tool(LOAD_TOOL, description, _schema(properties, "label", "key"), self._load)

    async def _unload_tool(self, blocks: list[ContextBlock]) -> Tool:
        properties = {"label": _choice(blocks), "key": {"type": "string", "description": "Key of a loaded document."}}
        labels = {block.label for block in blocks}
        loaded = sorted(f"{label}:{key}" for label, key in await self._skills.restore() if label in labels)
        description = (
            "Give back the room that a loaded document takes; it can be loaded again later. "
            f"Loaded now: {', '.join(loaded) or 'none'}."
        )
        return Tool(UNLOAD_TOOL, description, _schema(properties, "label", "key"), self._unload_one)

    def _search_tool(self, blocks: list[ContextBlock]) -> Tool:
        properties = {"label": _choice(blocks), "query": {"type": "string", "description": "Words that must occur."}}
        description = "Search the entries of a searchable block of your context; at most ten come back, the best first."
        return Tool("search_context", description, _schema(properties, "label", "query"), self._search)

    async def _set(self, arguments: dict[str, Any]) -> str:
        label, content = arguments["label"], arguments["content"]
        block = await self._blocks.get(label)
        if block is None:
            return f'Error: block "{label}" not found'
        if _is_keyed(block):
            return await self._set_entry(block, content, arguments.get("metadata"))
        try:
            if arguments.get("action") == "append":
                block = await self._blocks.append(label, content)
            else:
                block = await self._blocks.replace(label, content)
        except BlockNotWritable:
            return f'Error: Block "{label}" is readonly'
        return f"Written to {label}. Usage: {_usage(block)}"

    async def _set_entry(self, block: ContextBlock, content: str, metadata: Any) -> str:
        title, description = _metadata(metadata)
        key = entry_key(title, content)
        try:
            await self._blocks.write_entry(block.label, key, content, title if description is None else description)
        except BlockNotWritable:
            return f'Error: Block "{block.label}" does not support writes'
        return f'Indexed "{key}" in {block.label}.'

    async def _load(self, arguments: dict[str, Any]) -> str:
        label, key = arguments["label"], arguments["key"]
        refusal = await self._not_a_skill(label)
        if refusal is not None:
            return refusal
        await self._skills.restore()
        content = text_of(await settle(self._blocks.provider(label).load(key)), _of(label))
        if content is None:
            return not_found(key)
        self._skills.add((label, key))
        return content

    async def _unload_one(self, arguments: dict[str, Any]) -> str:
        label, key = arguments["label"], arguments["key"]
        refusal = await self._not_a_skill(label)
        if refusal is not None:
            return refusal
        if not await self._skills.unload((label, key)):
            return f'Skill "{key}" is not currently loaded in "{label}".'
        return f'Unloaded "{key}" from {label}. Context reclaimed.'

    async def _search(self, arguments: dict[str, Any]) -> str:
        label = arguments["label"]
        block = await self._blocks.get(label)
        if block is None or not block.is_searchable:
            labels = [other.label for other in self._blocks.loaded() if other.is_searchable]
            return f'Error: "{label}" is not searchable. Searchable blocks: {", ".join(labels)}'
        found = text_of(await settle(self._blocks.provider(label).search(arguments["query"])), _of(label))
        return found or "No results found."

    async def _not_a_skill(self, label: str) -> str | None:
        block = await self._blocks.get(label)
        if block is not None and block.is_skill:
            return None
        labels = [other.label for other in self._blocks.loaded() if other.is_skill]
        return f'Error: "{label}" is not a skill block. Skill blocks: {", ".join(labels)}'


def _schema(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _choice(blocks: list[ContextBlock]) -> Schema:
    return {"type": "string", "enum": [block.label for block in blocks], "description": "Label of the block."}


def _is_keyed(block: ContextBlock) -> bool:
    return block.is_skill or block.is_searchable


def _set_line(block: ContextBlock) -> str:
    about = f": {block.description}" if block.description else ""
    limit = f", at most {number(block.max_tokens)} tokens" if block.max_tokens else ""
    kind = "documents by title" if block.is_skill else "searchable entries by title" if block.is_searchable else "text"
    return f'- "{block.label}"{about} ({kind}{limit})'


def _usage(block: ContextBlock) -> str:
    if not block.max_tokens:
        return f"{block.tokens} tokens"
    share = percentage(block.tokens, block.max_tokens)
    return f"{share}% ({block.tokens}/{number(block.max_tokens)} tokens)"


def _of(label: str) -> str:
    return f"of the context block {label!r}"


def _metadata(metadata: Any) -> tuple[str | None, str | None]:
    """Title and description."""
    return (None, None) if metadata is None else (metadata.get("title"), metadata.get("description"))


_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "string": ("a string", lambda value: isinstance(value, str)),
    "object": ("an object", lambda value: isinstance(value, dict)),
    "array": ("an array", lambda value: isinstance(value, list)),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "number": ("a number", is_number),
    "integer": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
}


def _mistake(schema: Schema, value: Any, place: str) -> str | None:
    """The first thing of a wrong type; a property that is not required may be null."""
    said, fits = _TYPES.get(schema.get("type", ""), ("", lambda _: True))
    required = schema.get("required", [])
    if not fits(value):
        with_names = f" with {' and '.join(required)}" if required else ""
        return f"{place} must be {said}{with_names}"
    if not isinstance(value, dict):
        return None
    for name, property_schema in schema.get("properties", {}).items():
        item = value.get(name)
        if item is not None or name in required:
            mistake = _mistake(property_schema, item, name if place == "the input" else f"{place}.{name}")
            if mistake is not None:
                return mistake
    return None
