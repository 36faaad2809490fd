"""Any text may be given to every method of a session or of a manager that takes one: it is stored, found, or refused by a typed
error."""

import inspect
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from session_support import Library, Owner, opened, text

from actors import Session, SessionManager
from actors.session.manager import SessionPage
from actors.session.tools import Tool
from compaction import Usage
from storage.errors import StorageError
from storage.search import AgentSearchProvider

Call = Callable[[Any, str], Any]

TEXTS = st.text(st.sampled_from("\ud800\udc00\udfffaé東🙂\0:'\"%*_- \n"), max_size=6)

SESSION: dict[str, list[Call]] = {
    "append_message": [
        lambda s, t: s.append_message(text(t)),
        lambda s, t: s.append_message(text(f"{t}-role", role=t)),
        lambda s, t: s.append_message(text(f"{t}-text", t)),
        lambda s, t: s.append_message(text("below"), t),
    ],
    "append_messages": [lambda s, t: s.append_messages([text(f"{t}1"), text(f"{t}2", t)], t)],
    "upsert_message": [lambda s, t: s.upsert_message(text(t, t)), lambda s, t: s.upsert_message(text("up"), t)],
    "update_message": [lambda s, t: s.update_message(text(t, t))],
    "delete_messages": [lambda s, t: s.delete_messages([t, f"x{t}"]), lambda s, t: s.delete_messages(t)],
    "get_message": [lambda s, t: s.get_message(t)],
    "get_history": [lambda s, t: s.get_history(t)],
    "get_history_json": [lambda s, t: s.get_history_json(t)],
    "get_raw_history": [lambda s, t: s.get_raw_history(t)],
    "get_branches": [lambda s, t: s.get_branches(t)],
    "get_path_length": [lambda s, t: s.get_path_length(t)],
    "get_recent_history": [lambda s, t: s.get_recent_history(t), lambda s, t: s.get_recent_history(5, t)],
    "page_messages": [
        lambda s, t: s.page_messages(leaf_id=t),
        lambda s, t: s.page_messages(cursor=t),
        lambda s, t: s.page_messages(order=t),
        lambda s, t: s.page_messages(t),
    ],
    "search": [lambda s, t: s.search(t), lambda s, t: s.search("hello", t)],
    "add_compaction": [lambda s, t: s.add_compaction(t, "m1", "m1"), lambda s, t: s.add_compaction("s", t, t)],
    "record_usage": [lambda s, t: s.record_usage(Usage(1, 1, t)), lambda s, t: s.record_usage(t)],
    "get_context_block": [lambda s, t: s.get_context_block(t)],
    "replace_context_block": [
        lambda s, t: s.replace_context_block("memory", t),
        lambda s, t: s.replace_context_block(t, t),
    ],
    "append_context_block": [
        lambda s, t: s.append_context_block("memory", t),
        lambda s, t: s.append_context_block(t, t),
    ],
    "add_context": [
        lambda s, t: s.add_context(t, description=t),
        lambda s, t: s.add_context(f"fixed {t}", provider=t),
        lambda s, t: s.add_context("limited", max_tokens=t),
    ],
    "remove_context": [lambda s, t: s.remove_context(t)],
    "unload_skill": [lambda s, t: s.unload_skill(t, "guide"), lambda s, t: s.unload_skill("skills", t)],
}
MANAGER: dict[str, list[Call]] = {
    "create": [
        lambda m, t: m.create(t, parent_session_id=t, model=t, source=t, owner=t, tags=[f"a{t}"]),
        lambda m, t: m.create("a", tags=[t]),
        lambda m, t: m.create("a", tags=t),
    ],
    "get": [lambda m, t: m.get(t)],
    "list": [lambda m, t: m.list(owner=t), lambda m, t: m.list(tag=t)],
    "page": [
        lambda m, t: m.page(owner=t),
        lambda m, t: m.page(tag=t),
        lambda m, t: m.page(order=t),
        lambda m, t: m.page(cursor=t),
        lambda m, t: m.page(t),
    ],
    "rename": [lambda m, t: m.rename(t, t), lambda m, t: m.rename("known", t)],
    "set_metadata": [
        lambda m, t: m.set_metadata("known", name=t, owner=t, tags=[f"a{t}"]),
        lambda m, t: m.set_metadata(t),
    ],
    "delete": [lambda m, t: m.delete(f"x{t}")],
    "get_session": [lambda m, t: m.get_session(t).append_message(text("m1"))],
    "append": [lambda m, t: m.append(t, text("m1")), lambda m, t: m.append("known", text(t), t)],
    "upsert": [lambda m, t: m.upsert(t, text("m1")), lambda m, t: m.upsert("known", text(t), t)],
    "append_all": [
        lambda m, t: m.append_all(t, [text("m1")]),
        lambda m, t: m.append_all("known", [text(t)], t),
        lambda m, t: m.append_all("known", [], t),
    ],
    "get_history": [lambda m, t: m.get_history(t), lambda m, t: m.get_history("known", t)],
    "get_message_count": [lambda m, t: m.get_message_count(t)],
    "get_branches": [lambda m, t: m.get_branches(t, t), lambda m, t: m.get_branches("known", t)],
    "clear_messages": [lambda m, t: m.clear_messages(t)],
    "delete_messages": [lambda m, t: m.delete_messages(t, [t]), lambda m, t: m.delete_messages("known", [t])],
    "fork": [
        lambda m, t: m.fork(t, "m1", "f"),
        lambda m, t: m.fork("known", t, "f"),
        lambda m, t: m.fork("known", "m1", t),
    ],
    "add_compaction": [lambda m, t: m.add_compaction(t, t, t, t), lambda m, t: m.add_compaction("known", t, t, t)],
    "get_compactions": [lambda m, t: m.get_compactions(t)],
    "compact_and_split": [
        lambda m, t: m.compact_and_split(t, "s"),
        lambda m, t: m.compact_and_split("known", t),
        lambda m, t: m.compact_and_split("known", "s", t),
    ],
    "add_usage": [lambda m, t: m.add_usage(t, 1, 1), lambda m, t: m.add_usage("known", t, 1)],
    "search": [lambda m, t: m.search(t), lambda m, t: m.search("hello", t)],
}


def plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return value.model_dump()
        case SessionPage():
            return [value.sessions, value.next_cursor]
        case set() | frozenset():
            return sorted(value)
        case bytes():
            return orjson.loads(value)
        case Tool():
            return value.name
    raise TypeError(type(value).__name__)


async def outcome(call: Call, target: Any, given_text: str) -> None:
    """Whatever comes, comes as JSON or as an error of ours, with a sentence."""
    try:
        value = call(target, given_text)
        value = await value if inspect.isawaitable(value) else value
    except StorageError as exc:
        str(exc)
    else:
        orjson.dumps(value, default=plain)


def session_of(owner: Owner, session_id: str = "") -> Session:
    return (
        Session.create(owner)
        .for_session(session_id)
        .with_context("memory")
        .with_context("skills", provider=Library(guide="text"))
        .with_context("found", provider=AgentSearchProvider(owner, "found"))
        .with_cached_prompt()
        .on_compaction(lambda _: None)
        .compact_after(1)
    )


LONG = os.environ.get("TESTS_LONG") == "1"
BOUNDED = settings(max_examples=500 if LONG else 5, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@BOUNDED
@example("\ud800")
@example("\udc00x\ud83d")
@example("\0")
@given(TEXTS)
async def test_any_text_for_a_session(given_text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder)) as owner:
            session = session_of(owner, given_text)
            await session.append_message(text("m1"))
            for calls in SESSION.values():
                for call in calls:
                    await outcome(call, session, given_text)
            for tool in (await session.tools()).values():
                for name in ("label", "key", "query", "content"):
                    fitting = {
                        "label": "memory",
                        "key": "k",
                        "query": "q",
                        "content": "c",
                        "metadata": {"title": given_text},
                    }
                    orjson.dumps(await tool.execute({**fitting, name: given_text}))
            await session.settled()
            assert orjson.dumps([await session.get_history(), await session.refresh_system_prompt()])
            assert orjson.dumps([block.model_dump() for block in await session.get_context_blocks()])


@BOUNDED
@example("\ud800")
@example("\udc00x\ud83d")
@example("\0")
@given(TEXTS)
async def test_any_text_for_a_manager(given_text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder)) as owner:
            manager = SessionManager.create(owner).with_context("memory").with_cached_prompt()
            await manager.create("known")
            await owner.database.write(lambda c: c.execute("UPDATE assistant_sessions SET id = 'known'"))
            await manager.append("known", text("m1"))
            for calls in MANAGER.values():
                for call in calls:
                    await outcome(call, manager, given_text)
            tool = (await manager.tools())["session_search"]
            orjson.dumps(await tool.execute({"query": given_text}))


@pytest.mark.parametrize(("kind", "table"), [(Session, SESSION), (SessionManager, MANAGER)])
def test_no_method_that_takes_a_text_is_forgotten(kind: type, table: dict[str, Any]) -> None:
    """Methods before the first use have tests of their own: test_session_options."""
    builders = {"create", "with_context", "for_session", "with_searchable_history"}
    taking = {
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and set(inspect.signature(method).parameters) - {"self"}
    }
    no_texts = {"compact_after", "on_compaction", "on_compaction_error", "with_cached_prompt", "wired"}
    assert taking - builders - no_texts == set(table) - builders
