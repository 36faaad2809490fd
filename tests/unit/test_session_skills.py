"""Loaded documents: found again in the history, taken out of it everywhere."""

from pathlib import Path
from typing import Any

import pytest
from awake import awake
from session_support import Library, Owner, load_result, opened, text

from actors import Agent, SessionMethods, rpc
from actors.session import Session
from actors.session.providers import SESSION_METHODS
from actors.session.skills import loaded_in
from storage import AgentSessionProvider
from storage.checkpoints import MemoryStore

MARKER = "[skill unloaded: guide]"


def session_of(owner: Owner) -> Session:
    return Session.create(owner).with_context("skills", provider=Library(guide="the guide", plain="plain text"))


async def outputs(session: Session, *message_ids: str) -> list[Any]:
    messages = [await session.get_message(message_id) for message_id in message_ids]
    return [part["output"] for message in messages if message for part in message["parts"]]


async def test_a_load_hidden_by_a_summary_is_unloaded_too(tmp_path: Path) -> None:  # D19
    async with opened(tmp_path) as owner:
        writer = session_of(owner)
        for message in (text("m1"), load_result("m2", "guide"), text("m3"), text("m4")):
            await writer.append_message(message)
        await writer.add_compaction("summary", "m1", "m3")
        session = session_of(owner)
        assert await session.get_loaded_skill_keys() == {"skills:guide"}
        assert await session.unload_skill("skills", "guide")
        assert await outputs(session, "m2") == [MARKER]
        assert await session_of(owner).get_loaded_skill_keys() == set()


async def test_every_load_result_of_the_key_is_rewritten_on_every_branch(tmp_path: Path) -> None:  # D31
    async with opened(tmp_path) as owner:
        writer = session_of(owner)
        await writer.append_message(text("m1"))
        for message in (load_result("a", "guide"), load_result("b", "guide"), load_result("c", "plain")):
            await writer.append_message(message, "m1")
        await writer.append_message(load_result("d", "guide"))
        session = session_of(owner)
        assert await session.unload_skill("skills", "guide")
        assert await outputs(session, "a", "b", "c", "d") == [MARKER, MARKER, "the document", MARKER]
        assert await session.get_loaded_skill_keys() == {"skills:plain"}
        assert not await session.unload_skill("skills", "guide")


@pytest.mark.parametrize(
    ("message", "loaded"),
    [
        (load_result("m", "guide"), True),
        (load_result("m", "guide", {"structured": True}), True),
        (load_result("m", "guide", ""), True),
        (load_result("m", "guide", type="dynamic-tool", toolName="load_context"), True),
        (load_result("m", "guide", type="dynamic-tool"), False),
        (load_result("m", "guide", toolName="other"), False),
        (load_result("m", "guide", "Not found: guide"), False),
        (load_result("m", "guide", "Error: bucket offline"), False),
        (load_result("m", "guide", MARKER), False),
        (load_result("m", "guide", state="input-available"), False),
        (load_result("m", "guide", preliminary=True), False),
        (load_result("m", "guide", input={"label": "skills"}), False),
        (load_result("m", "guide", input="guide"), False),
        ({**load_result("m", "guide"), "role": "user"}, False),
    ],
)
def test_only_a_finished_successful_load_counts(message: dict[str, Any], loaded: bool) -> None:  # D19, B25
    assert (("skills", "guide") in loaded_in([message])) is loaded


async def test_what_the_tool_loads_counts_at_once_and_failures_do_not(tmp_path: Path) -> None:  # D19
    async with opened(tmp_path) as owner:
        session = session_of(owner)
        tool = (await session.tools())["load_context"]
        assert await tool.execute({"label": "skills", "key": "nope"}) == "Not found: nope"
        assert await session.get_loaded_skill_keys() == set()
        assert await tool.execute({"label": "skills", "key": "guide"}) == "the guide"
        assert await session.get_loaded_skill_keys() == {"skills:guide"}
        assert "skills:guide" in (await session.tools())["unload_context"].description


async def test_a_document_loaded_before_its_message_was_stored_survives_a_good_night(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = session_of(owner)
        await (await session.tools())["load_context"].execute({"label": "skills", "key": "guide"})
        await session.hibernate()
    async with opened(tmp_path) as owner:
        awake = session_of(owner)
        await awake.resume()
        assert await awake.get_loaded_skill_keys() == {"skills:guide"}
        # and a crash after that loses what only memory held
        assert await session_of(owner).get_loaded_skill_keys() == set()


async def test_unloading_tells_the_smaller_estimate_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        writer = session_of(owner)
        await writer.append_message(load_result("m1", "guide", "word " * 200))
        await writer.append_message(load_result("m2", "guide", "word " * 200))
        session = session_of(owner)
        before = owner.frames[-1]["tokenEstimate"]
        owner.frames.clear()
        await session.unload_skill("skills", "guide")
        assert owner.phases() == ["idle"]
        assert owner.frames[0]["tokenEstimate"] < before - 400


async def test_a_session_without_skill_blocks_does_not_scan_its_history(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        await session.append_message(load_result("m1", "guide"))
        assert await session.get_loaded_skill_keys() == set()
        assert not await session.unload_skill("skills", "guide")
        assert await outputs(session, "m1") == ["the document"]


class Reader(SessionMethods, Agent):
    """Has skills in memory of the process, and a tool call as a method."""

    library = Library(guide="the guide", plain="plain text")

    def configure(self) -> Session:
        return Session.create(self).with_context("skills", provider=self.library).with_cached_prompt()

    @rpc
    async def tool(self, name: str, input: Any) -> str:
        return await (await self.session.tools())[name].execute(input)

    @rpc
    async def described(self, name: str) -> str:
        return (await self.session.tools())[name].description

    @rpc
    async def add(self, label: str) -> bool:
        await self.session.add_context(label, provider=Library(extra="more"))
        return True

    @rpc
    async def remove(self, label: str) -> bool:
        return await self.session.remove_context(label)


class Writer(SessionMethods, Agent):
    """The same conversation when it has no skills yet: what it stores is found in the history later."""


GUIDE = {"label": "skills", "key": "guide"}


async def test_loads_are_unloaded_everywhere_after_any_number_of_nights(tmp_path: Path) -> None:  # D19, D31
    store = MemoryStore()
    async with awake(tmp_path, Writer, store=store) as hall:
        await hall.connect()
        await hall.call("appendMessage", text("m1"))
        for message in (load_result("a", "guide"), load_result("b", "guide"), load_result("c", "plain")):
            await hall.call("appendMessage", message, "m1")  # three branches, the last goes on
        await hall.call("appendMessage", load_result("d", "guide", toolName="load_context", type="dynamic-tool"))
        await hall.call("appendMessage", load_result("e", "nope", "Not found: nope"))
        await hall.call("addCompaction", "summary", "m1", "d")
    async with awake(tmp_path, Reader, store=store) as hall:
        await hall.connect()
        assert await hall.call("getLoadedSkillKeys") == ["skills:guide", "skills:plain"]
        assert await hall.call("unloadSkill", "skills", "guide")
    async with awake(tmp_path, Reader, store=store) as hall:
        await hall.connect()
        messages = {key: (await hall.call("getMessage", key))["parts"][0]["output"] for key in "abcde"}
        assert messages == {"a": MARKER, "b": MARKER, "c": "the document", "d": MARKER, "e": "Not found: nope"}
        assert await hall.call("getLoadedSkillKeys") == ["skills:plain"]
        assert not await hall.call("unloadSkill", "skills", "guide")


async def test_what_a_tool_loaded_is_known_after_a_night_before_its_message_is_stored(tmp_path: Path) -> None:
    store = MemoryStore()
    async with awake(tmp_path, Reader, store=store) as hall:
        await hall.connect()
        await hall.call("appendMessage", text("m1"))
        assert await hall.call("tool", "load_context", GUIDE) == "the guide"
    async with awake(tmp_path, Reader, store=store) as hall:
        await hall.connect()
        assert "skills:guide" in await hall.call("described", "unload_context")
        await hall.call("appendMessage", load_result("m2", "guide", "the guide"))
    async with awake(tmp_path, Reader, store=store) as hall:
        await hall.connect()
        assert await hall.call("tool", "unload_context", GUIDE) == 'Unloaded "guide" from skills. Context reclaimed.'
        assert (await hall.call("getMessage", "m2"))["parts"][0]["output"] == MARKER
    async with awake(tmp_path, Reader, store=store) as hall:
        await hall.connect()
        assert await hall.call("getLoadedSkillKeys") == []
        assert "none" in await hall.call("described", "unload_context")
        assert await hall.call("tool", "load_context", GUIDE) == "the guide"  # it can be loaded again


async def test_a_block_added_at_run_time_lives_until_the_night_and_its_loads_are_forgotten_with_it(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    extra = {"label": "more", "key": "extra"}
    async with awake(tmp_path, Reader, store=store) as hall:
        await hall.connect()
        before = await hall.call("freezeSystemPrompt")
        await hall.call("add", "more")
        assert await hall.call("freezeSystemPrompt") == before  # until it is refreshed
        assert await hall.call("tool", "load_context", extra) == "more"
        assert await hall.call("getLoadedSkillKeys") == ["more:extra"]
        await hall.call("appendMessage", load_result("m1", "extra", input=extra))
        assert await hall.call("remove", "more")
        assert not await hall.call("remove", "more")
        assert await hall.call("getLoadedSkillKeys") == []
        assert (await hall.call("getMessage", "m1"))["parts"][0]["output"] == "the document"  # history stays
        await hall.call("add", "more")
        assert "MORE" in await hall.call("refreshSystemPrompt")
    async with awake(tmp_path, Reader, store=store) as hall:
        await hall.connect()
        assert [block["label"] for block in await hall.call("getContextBlocks")] == ["skills"]
        assert "MORE" in await hall.call("freezeSystemPrompt")  # frozen, also over the night
        assert "MORE" not in await hall.call("refreshSystemPrompt")


async def test_loads_of_a_removed_block_are_forgotten_also_if_it_is_the_first_thing_done(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        await Session.create(owner).append_message(load_result("m1", "guide"))
        session = session_of(owner).with_context("others", provider=Library())
        assert await session.remove_context("skills")
        assert await session.get_loaded_skill_keys() == set()
        assert not await session.unload_skill("skills", "guide")
        assert await outputs(session, "m1") == ["the document"]


async def test_unloading_over_storage_of_ones_own_rewrites_the_path(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        store = AgentSessionProvider(owner)

        class Wrapped:
            """The mandatory methods only, and not the built-in class."""

            def __getattr__(self, name: str) -> Any:
                if name not in SESSION_METHODS:
                    raise AttributeError(name)
                return getattr(store, name)

        for message in (text("m1"), load_result("m2", "guide"), load_result("m3", "guide")):
            await Session.create(Wrapped()).append_message(message)
        session = Session.create(Wrapped()).with_context("skills", provider=Library(guide="g"))
        assert await session.unload_skill("skills", "guide")
        assert await outputs(session, "m2", "m3") == [MARKER, MARKER]
        assert await session.get_loaded_skill_keys() == set()
