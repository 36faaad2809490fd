"""Whatever is over a limit gets a typed error; what is there stays as it is."""

import pytest
from wire import message

from actors import Session
from storage import AgentContextProvider, AgentSessionProvider, open_database
from storage.database import StorageOptions
from storage.errors import LimitExceeded


@pytest.fixture
async def database(tmp_path):
    options = StorageOptions(max_message_bytes=1_000, max_messages=3, max_blocks=2)
    database = await open_database(tmp_path / "chat.db", options=options)
    yield database
    await database.close()


async def test_a_message_over_the_limit_is_refused_whole(database):
    provider = AgentSessionProvider(database)
    await provider.append_message(message("m1", "short"))
    with pytest.raises(LimitExceeded, match="1,000 bytes"):
        await provider.append_message(message("m2", "é" * 500))
    with pytest.raises(LimitExceeded, match="1,000 bytes"):
        await provider.update_message(message("m1", "x" * 1_000))
    assert await provider.get_history() == [message("m1", "short")]


async def test_one_message_too_many_is_refused_and_there_is_room_again_after_a_delete(database):
    provider = AgentSessionProvider(database)
    for number in range(3):
        await provider.append_message(message(f"m{number}", "x"))
    with pytest.raises(LimitExceeded, match="over the limit of 3"):
        await provider.append_message(message("m3", "x"))
    await provider.append_message(message("m1", "x"))  # it is there already: nothing to store
    await provider.delete_messages(["m0"])
    await provider.append_message(message("m4", "x"))
    assert [entry["id"] for entry in await provider.get_history()] == ["m1", "m2", "m4"]
    assert await provider.search_messages("x", 10) != []


async def test_one_block_too_many_is_refused_but_the_prompt_is_kept_and_blocks_can_be_written_again(database):
    for label in ("one", "two"):
        await AgentContextProvider(database, label).set("text")
    with pytest.raises(LimitExceeded, match="context blocks"):
        await AgentContextProvider(database, "three").set("text")
    await AgentContextProvider(database, "_system_prompt").set("prompt")
    await AgentContextProvider(database, "two").set("other")
    assert await AgentContextProvider(database, "three").get() is None


async def test_a_block_added_to_a_session_counts_against_the_limit_of_its_database(database):
    for session in (Session.create(database), Session(AgentSessionProvider(database))):
        await session.add_context("one", provider="text")
        await session.add_context("two", provider="text")
        with pytest.raises(LimitExceeded, match="over the limit of 2"):
            await session.add_context("three", provider="text")
        await session.remove_context("one")
        await session.add_context("three", provider="text")
