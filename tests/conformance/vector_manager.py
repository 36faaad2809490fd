"""Mode ``manager`` (FORMAT.md 3.2, 4.2): a session manager built from the setup, and its operations."""

from typing import Any

from vector_operations import plain, reduce_schema

from actors.session import SessionManager

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "create": ("name", "parent_session_id", "model", "source"),
    "get": ("session_id",),
    "list": (),
    "rename": ("session_id", "name"),
    "delete": ("session_id",),
    "append": ("session_id", "message", "parent_id"),
    "upsert": ("session_id", "message", "parent_id"),
    "append_all": ("session_id", "messages", "parent_id"),
    "get_history": ("session_id", "leaf_id"),
    "get_message_count": ("session_id",),
    "get_branches": ("session_id", "message_id"),
    "clear_messages": ("session_id",),
    "delete_messages": ("session_id", "message_ids"),
    "fork": ("session_id", "at_message_id", "name"),
    "add_compaction": ("session_id", "summary", "from_id", "to_id"),
    "get_compactions": ("session_id",),
    "compact_and_split": ("session_id", "summary", "name"),
    "add_usage": ("session_id", "input_tokens", "output_tokens", "cost"),
    "search": ("query", "limit"),
}
"""Operations that are methods of SessionManager with the same name, and their arguments."""

MANAGER_OPERATIONS: set[str] = {*ARGUMENTS, "get_history_ids", "tools", "call_tool"}


def build_manager(harness: Any, owner: Any) -> SessionManager:
    from vector_setup import block_options, build_provider, with_compaction

    setup = harness.setup
    manager = SessionManager.create(owner)
    for block in setup.get("context", []):
        manager = manager.with_context(block["label"], **block_options(harness, owner, block))
    cached_prompt = setup.get("cached_prompt")
    if cached_prompt:
        store = None if cached_prompt is True else build_provider(harness, owner, cached_prompt, "prompt")
        manager = manager.with_cached_prompt(store)
    if setup.get("searchable_history"):
        manager = manager.with_searchable_history(setup["searchable_history"])
    configured: SessionManager = with_compaction(harness, manager, counter=True)
    return configured


async def perform_on_manager(manager: SessionManager, harness: Any, op: str, args: dict[str, Any]) -> Any:
    """One operation of section 4.2; its value as plain JSON."""
    if op == "get_history_ids":
        return [message["id"] for message in await manager.get_history(*args.values())]
    if op == "tools":
        return {name: reduce_schema(tool.input_schema) for name, tool in (await manager.tools()).items()}
    if op == "call_tool":
        return await (await manager.tools())[args["name"]].execute(args["input"])
    unknown = args.keys() - set(ARGUMENTS[op])
    if unknown:
        raise KeyError(unknown)
    return plain(await getattr(manager, op)(**args))
