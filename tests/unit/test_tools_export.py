"""The tools as model providers take them, and whatever a model may send them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from session_support import Library, load_result, opened

from actors.chat.model_messages import model_messages
from actors.session import Session, Tool, anthropic_tools, openai_tools
from actors.session.keys import entry_key
from actors.session.manager import SessionManager
from actors.session.tools import Schema
from storage import AgentSearchProvider, R2SkillProvider
from storage.errors import InvalidArgument

NAMES = ["set_context", "load_context", "unload_context", "search_context", "session_search"]


class Counted(Library):
    """Counts its writes."""

    writes = 0

    async def set(self, key: str, content: str, description: str | None = None) -> None:
        self.writes += 1
        await super().set(key, content, description)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Session, dict[str, Tool], Counted]]:
    """A session with a block of every kind, its tools with the manager's, and its skills."""
    library = Counted(guide="the guide")
    async with opened(tmp_path) as owner:
        session = (
            Session.create(owner)
            .with_context("soul", provider="Be nice.")
            .with_context("memory", description="Facts", max_tokens=100)
            .with_context("docs", provider=library)
            .with_context("kb", provider=AgentSearchProvider(owner))
            .with_cached_prompt()
        )
        manager = SessionManager.create(owner)
        yield session, {**await session.tools(), **await manager.tools()}, library


World = tuple[Session, dict[str, Tool], Counted]


async def test_every_schema_is_a_valid_one_and_says_what_each_input_is(world: World) -> None:
    _, tools, _ = world
    assert list(tools) == NAMES
    for tool in tools.values():
        Draft202012Validator.check_schema(tool.input_schema)
        assert tool.input_schema["type"] == "object"
        assert all(schema["description"] for schema in tool.input_schema["properties"].values())
        assert set(tool.input_schema["required"]) <= set(tool.input_schema["properties"])
        assert tool.description.endswith(".") or "- " in tool.description
    Draft202012Validator(tools["set_context"].input_schema).validate({"label": "memory", "content": "x"})
    assert not Draft202012Validator(tools["set_context"].input_schema).is_valid({"label": "nope", "content": "x"})


async def test_a_whole_set_of_tools_is_exported_for_openai(world: World) -> None:
    _, tools, _ = world
    exported = openai_tools(tools)
    assert [entry["function"]["name"] for entry in exported] == NAMES
    for entry, tool in zip(exported, tools.values(), strict=True):
        assert entry == {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
    exported[0]["function"]["parameters"].clear()  # whoever changes what was exported changes no tool
    assert tools["set_context"].input_schema["required"] == ["label", "content"]


async def test_a_whole_set_of_tools_is_exported_for_anthropic(world: World) -> None:
    _, tools, _ = world
    exported = anthropic_tools(tools)
    assert exported == [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in tools.values()
    ]


async def test_the_description_of_unloading_lists_what_is_loaded(world: World) -> None:
    session, tools, _ = world
    assert "Loaded now: none." in tools["unload_context"].description
    await tools["load_context"].execute({"label": "docs", "key": "guide"})
    assert "Loaded now: docs:guide." in (await session.tools())["unload_context"].description
    assert await tools["unload_context"].execute({"label": "docs", "key": "guide"}) == (
        'Unloaded "guide" from docs. Context reclaimed.'
    )
    assert "Loaded now: none." in (await session.tools())["unload_context"].description


async def test_descriptions_tell_what_each_writable_block_is(world: World) -> None:
    _, tools, _ = world
    lines = tools["set_context"].description.splitlines()
    assert '- "memory": Facts (text, at most 100 tokens)' in lines
    assert '- "docs" (documents by title)' in lines
    assert '- "kb" (searchable entries by title)' in lines
    assert "soul" not in tools["set_context"].description


@pytest.mark.parametrize(
    ("name", "input", "answer"),
    [
        ("set_context", None, "Error: the input must be an object with label and content"),
        ("set_context", '{"label": "memory"}', "Error: the input must be an object with label and content"),
        ("set_context", {"label": "memory"}, "Error: content must be a string"),
        ("set_context", {"label": ["memory"], "content": "x"}, "Error: label must be a string"),
        ("set_context", {"label": "memory", "content": "x", "action": 5}, "Error: action must be a string"),
        ("set_context", {"label": "docs", "content": "x", "metadata": "t"}, "Error: metadata must be an object"),
        (
            "set_context",
            {"label": "docs", "content": "x", "metadata": {"title": 5}},
            "Error: metadata.title must be a string",
        ),
        ("set_context", {"label": "nope", "content": "x"}, 'Error: block "nope" not found'),
        ("set_context", {"label": "soul", "content": "x"}, 'Error: Block "soul" is readonly'),
        ("load_context", [], "Error: the input must be an object with label and key"),
        ("load_context", {"label": "kb", "key": "x"}, 'Error: "kb" is not a skill block. Skill blocks: docs'),
        ("load_context", {"label": "docs", "key": "absent"}, "Not found: absent"),
        ("load_context", {"label": "docs", "key": "\ud800"}, "Not found: \ufffd"),
        ("unload_context", {"label": "nope", "key": "x"}, 'Error: "nope" is not a skill block. Skill blocks: docs'),
        ("unload_context", {"label": "docs", "key": "x"}, 'Skill "x" is not currently loaded in "docs".'),
        ("search_context", {"label": "docs", "query": "x"}, 'Error: "docs" is not searchable. Searchable blocks: kb'),
        ("search_context", {"label": "kb", "query": 5}, "Error: query must be a string"),
        ("search_context", {"label": "kb", "query": '" OR *'}, "No results found."),
        ("session_search", {"query": None}, "Error: query must be a string"),
        ("session_search", {"query": "NEAR("}, "No results found."),
    ],
)
async def test_a_wrong_input_is_answered_with_one_sentence(world: World, name: str, input: Any, answer: str) -> None:
    session, tools, library = world  # B37
    assert await tools[name].execute(input) == answer
    assert library.writes == 0
    assert (await session.get_context_block("memory")).content == ""  # type: ignore[union-attr]


async def test_an_optional_input_may_be_null(world: World) -> None:
    _, tools, library = world
    arguments = {"label": "docs", "content": "text", "action": None, "metadata": {"title": "T", "description": None}}
    assert await tools["set_context"].execute(arguments) == 'Indexed "t" in docs.'
    assert await tools["set_context"].execute({"label": "docs", "content": "text", "metadata": None}) == (
        f'Indexed "{entry_key(None, "text")}" in docs.'
    )
    assert set(library.documents) == {"guide", "t", entry_key(None, "text")}


async def test_an_input_that_is_no_json_is_answered_too(world: World) -> None:
    _, tools, library = world
    ring: list[Any] = []
    ring.append(ring)
    for input in ({"label": object()}, ring, {"label": "docs", "content": {"a": {1, 2}}}):
        for tool in tools.values():
            assert (await tool.execute(input)).startswith("Error: ")
    assert library.writes == 0


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_NEAR = st.fixed_dictionaries(
    {},
    optional={
        "label": st.sampled_from(["memory", "docs", "kb", "soul", "nope", ""]) | _JSON,
        "content": _JSON,
        "key": st.sampled_from(["guide", ""]) | _JSON,
        "query": _JSON,
        "action": _JSON,
        "metadata": st.fixed_dictionaries({}, optional={"title": _JSON, "description": _JSON}) | _JSON,
    },
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), input=_JSON | _NEAR)
async def test_no_input_of_any_shape_breaks_a_tool_and_a_wrong_one_writes_nothing(
    world: World, name: str, input: Any
) -> None:
    session, tools, library = world
    writes = library.writes
    memory = await session.get_context_block("memory")
    entries = await session.get_context_block("kb")
    answer = await tools[name].execute(input)
    assert answer == "" or isinstance(answer, str)
    answer.encode()  # no lone surrogates either
    if answer.startswith("Error: "):
        assert "\n" not in answer.strip() or "\n" in str(input)
        assert library.writes == writes
        assert await session.get_context_block("memory") == memory
        assert await session.get_context_block("kb") == entries
    else:
        Draft202012Validator({"type": "object", "required": tools[name].input_schema["required"]}).validate(input)


async def test_a_tool_of_ones_own_may_be_a_plain_function_and_answer_any_json() -> None:
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    tool = Tool("double", "Doubles.", schema, lambda arguments: {"doubled": 2 * arguments["count"]})
    assert await tool.execute({"count": 4}) == '{"doubled": 8}'
    assert await tool.execute({"count": True}) == "Error: count must be a whole number"
    assert await tool.execute({}) == "Error: count must be a whole number"
    silent = Tool("t", "", {"type": "object"}, lambda _: (_ for _ in ()).throw(KeyError()))
    assert await silent.execute({}) == "Error: KeyError"


@pytest.mark.parametrize("input", [None, "", "text", '{"label": "x"}', [], [1], 5, True])
async def test_a_call_whose_input_is_no_object_is_exported_as_an_empty_one_and_stored_untouched(
    tmp_path: Path, input: Any
) -> None:  # D32, B61
    stored = load_result("m1", "guide", input=input)
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        await session.append_message(stored)
        history = await session.get_history()
    assert history == [stored]
    exported = model_messages(history)
    calls = [call for message in exported for call in message.get("tool_calls", [])]
    assert [call["function"]["arguments"] for call in calls] == ["{}"]


async def test_the_answer_of_a_write_is_the_live_usage_so_that_a_model_ends(tmp_path: Path) -> None:  # B38
    """The prompt stays frozen, so a model sees what it has written by the answers alone."""
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("memory", max_tokens=10)
        frozen = await session.freeze_system_prompt()
        write = (await session.tools())["set_context"].execute
        assert await write({"label": "memory", "content": "a" * 20, "action": "append"}) == (
            "Written to memory. Usage: 50% (5/10 tokens)"
        )
        assert await write({"label": "memory", "content": "b" * 40, "action": "append"}) == (
            'Error: Block "memory" exceeds maxTokens: 16 > 10'
        )
        assert await write({"label": "memory", "content": "c" * 40, "action": "replace"}) == (
            "Written to memory. Usage: 100% (10/10 tokens)"
        )
        assert await session.freeze_system_prompt() == frozen
        assert "c" * 40 in await session.refresh_system_prompt()


async def test_tools_write_skills_to_a_folder(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("skills", provider=R2SkillProvider(tmp_path / "skills"))
        tools = await session.tools()
        arguments = {
            "label": "skills",
            "content": "How to greet",
            "metadata": {"title": "Greeting", "description": "One\nline"},
        }
        assert await tools["set_context"].execute(arguments) == 'Indexed "greeting" in skills.'
        assert "- greeting: One line" in await session.refresh_system_prompt()
        assert await tools["load_context"].execute({"label": "skills", "key": "greeting"}) == "How to greet"
        assert await session.get_loaded_skill_keys() == {"skills:greeting"}
        assert await tools["load_context"].execute({"label": "skills", "key": "../" * 9 + "etc/passwd"}) == (
            "Not found: " + "../" * 9 + "etc/passwd"
        )
        assert await tools["load_context"].execute({"label": "skills", "key": "x" * 5000}) == f"Not found: {'x' * 5000}"


async def test_a_failure_inside_of_a_provider_is_an_error_for_the_model_and_a_cancelled_caller_is_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd:
        error: BaseException
        is_held = asyncio.Event()

        async def get(self) -> str:
            return ""

        async def set(self, content: str) -> None:
            if content == "wait":
                self.is_held.set()
                await asyncio.Event().wait()
            raise self.error

    provider = Odd()
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("memory", provider=provider)
        write = (await session.tools())["set_context"].execute
        for error in (
            asyncio.CancelledError("secret"),
            SystemExit("secret"),
            GeneratorExit("secret"),
            OSError("secret"),
        ):
            provider.error = error
            assert await write({"label": "memory", "content": "x"}) == "Error: secret"
        provider.error = asyncio.CancelledError()
        assert await write({"label": "memory", "content": "x"}) == "Error: CancelledError"
        provider.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            await write({"label": "memory", "content": "x"})

        caller = asyncio.create_task(write({"label": "memory", "content": "wait"}))
        await asyncio.wait_for(provider.is_held.wait(), 5)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await write({"label": "memory", "content": "wait"})
    lines = [record.getMessage() for record in caplog.records if "set_context" in record.getMessage()]
    kinds = ["CancelledError", "SystemExit", "GeneratorExit", "OSError", "CancelledError"]
    assert [line.split(" at ")[0] for line in lines] == [f"The tool set_context failed: {kind}" for kind in kinds]
    assert all("test_tools_export.py:" in line for line in lines)
    assert "secret" not in caplog.text


async def test_a_closed_call_of_a_tool_stays_closed() -> None:
    async def wait(input: Schema) -> None:
        await asyncio.Event().wait()

    call = Tool("wait", "Waits.", {"type": "object"}, wait).execute({})
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    with pytest.raises(GeneratorExit):
        call.throw(GeneratorExit)
    task.cancel()


@pytest.mark.parametrize("export", [openai_tools, anthropic_tools])
async def test_tools_that_were_not_awaited_are_refused_with_one_sentence(world: World, export: Any) -> None:
    session, tools, _ = world
    forgotten = session.tools()
    with pytest.raises(InvalidArgument, match="with the await"):
        export(forgotten)
    assert len(export(await forgotten)) == 4
    for odd in (list(tools.values()), {"f": len}, None):
        with pytest.raises(InvalidArgument, match="mapping of names to Tool objects"):
            export(odd)
