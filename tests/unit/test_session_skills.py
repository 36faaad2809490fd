"""Loaded documents: found again in the history, taken out of it everywhere."""

from pathlib import Path
from typing import Any

import pytest
from session_support import Library, Owner, load_result, opened, text

from actors.session import Session
from actors.session.skills import loaded_in

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
