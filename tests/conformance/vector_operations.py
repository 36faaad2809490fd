"""Performs one operation of FORMAT.md sections 4.1 and 4.3 on a session and gives its value as plain JSON."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from vector_setup import Harness, block_options

import compaction
from actors.session import Session

Args = dict[str, Any]

UTILITIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "estimate_string_tokens": ("estimate_string_tokens", ("text",)),
    "estimate_message_tokens": ("estimate_message_tokens", ("messages",)),
    "align_boundary_forward": ("align_boundary_forward", ("messages", "index")),
    "align_boundary_backward": ("align_boundary_backward", ("messages", "index")),
    "find_tail_cut_by_tokens": (
        "find_tail_cut_by_tokens",
        ("messages", "head_end", "tail_token_budget", "min_tail_messages"),
    ),
    "compute_summary_budget": ("compute_summary_budget", ("messages",)),
    "sanitize_tool_pairs": ("sanitize_tool_pairs", ("messages",)),
    "is_compaction_message": ("is_compaction_message", ("message",)),
    "truncate_older_messages": (
        "truncate_older_messages",
        ("messages", "keep_recent", "max_tool_output_chars", "max_text_chars"),
    ),
}
"""Operations that are plain functions of `compaction`, and the names of their arguments."""

DELEGATED: dict[str, tuple[str, ...]] = {
    "append_message": ("message", "parent_id"),
    "update_message": ("message",),
    "delete_messages": ("message_ids",),
    "clear_messages": (),
    "get_history": ("leaf_id",),
    "get_message": ("id",),
    "get_latest_leaf": (),
    "get_path_length": ("leaf_id",),
    "get_branches": ("message_id",),
    "get_history_row_stats": (),
    "add_compaction": ("summary", "from_id", "to_id"),
    "get_compactions": (),
    "compact": (),
    "freeze_system_prompt": (),
    "refresh_system_prompt": (),
    "get_context_block": ("label",),
    "get_context_blocks": (),
    "replace_context_block": ("label", "content"),
    "append_context_block": ("label", "content"),
    "remove_context": ("label",),
    "unload_skill": ("label", "key"),
}
"""Operations that are methods of Session with the same name and these positional arguments."""


async def perform(session: Session, harness: Harness, owner: Any, op: str, args: Args) -> Any:
    if op in UTILITIES:
        name, order = UTILITIES[op]
        given = {argument: args[argument] for argument in order if argument in args}
        return plain(getattr(compaction, name)(**given))
    if op in DELEGATED:
        given = [args[argument] for argument in DELEGATED[op] if argument in args]
        return plain(await getattr(session, op)(*given))
    if op == "add_context":
        return plain(await session.add_context(args["label"], **block_options(harness, owner, args)))
    return plain(await COMPOSED[op](session, args))


def plain(value: Any) -> Any:
    """Models as they write themselves, by their wire names: what has no value they must leave out; the rest as it is."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value


async def _append_many(session: Session, args: Args) -> None:
    start = args.get("start", 0)
    for number in range(start, start + args["count"]):
        part = {"type": "text", "text": f"{args['text']} {number}"}
        role = "assistant" if number % 2 else "user"
        await session.append_message({"id": f"{args['prefix']}{number}", "role": role, "parts": [part]})


async def _append_parallel(session: Session, args: Args) -> None:
    await asyncio.gather(*(session.append_message(message) for message in args["messages"]))


async def _history_ids(session: Session, args: Args) -> list[str]:
    return [message["id"] for message in await session.get_history(*args.values())]


async def _history_summary(session: Session, args: Args) -> dict[str, Any]:
    history = await session.get_history()
    ids = [message["id"] for message in history] or [None]
    return {"count": len(history), "first_id": ids[0], "last_id": ids[-1]}


async def _recent_history(session: Session, args: Args) -> Any:
    options = {key: args[key] for key in ("min_recent_messages",) if key in args}
    return await session.get_recent_history(args["max_content_bytes"], **options)


async def _search(session: Session, args: Args) -> Any:
    options = {"limit": args["limit"]} if "limit" in args else {}
    return await session.search(args["query"], **options)


async def _loaded_skill_keys(session: Session, args: Args) -> list[str]:
    return sorted(await session.get_loaded_skill_keys())


async def _tools(session: Session, args: Args) -> dict[str, Any]:
    return {name: reduce_schema(tool.input_schema) for name, tool in (await session.tools()).items()}


async def _call_tool(session: Session, args: Args) -> str:
    tools = await session.tools()
    if args["name"] not in tools:
        raise LookupError(f"no such tool: {args['name']}")
    return await tools[args["name"]].execute(args["input"])


async def _tool_description_contains(session: Session, args: Args) -> bool:
    return args["text"] in (await session.tools())[args["name"]].description


COMPOSED: dict[str, Callable[[Session, Args], Awaitable[Any]]] = {
    "append_many": _append_many,
    "append_parallel": _append_parallel,
    "get_history_ids": _history_ids,
    "get_history_summary": _history_summary,
    "get_recent_history": _recent_history,
    "search": _search,
    "get_loaded_skill_keys": _loaded_skill_keys,
    "tools": _tools,
    "call_tool": _call_tool,
    "tool_description_contains": _tool_description_contains,
}

SESSION_OPERATIONS = {*DELEGATED, *COMPOSED, "add_context"}


def reduce_schema(schema: Any) -> Any:
    """A JSON schema without what FORMAT.md 4.1 leaves open."""
    if isinstance(schema, list):
        return [reduce_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    reduced: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$schema" or (key == "description" and isinstance(value, str)):
            continue
        if key == "additionalProperties" and value == {}:
            continue
        if key == "const":
            reduced["enum"] = [value]
        else:
            reduced[key] = reduce_schema(value)
    return reduced
