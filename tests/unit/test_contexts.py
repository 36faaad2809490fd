"""Context blocks in SQLite."""

import pytest

from storage import AgentContextProvider, open_database
from storage.errors import InvalidArgument


@pytest.fixture
async def database(tmp_path):
    database = await open_database(tmp_path / "chat.db")
    yield database
    await database.close()


async def test_a_block_is_none_until_it_is_written(database):
    provider = AgentContextProvider(database, "memory")
    assert await provider.get() is None
    await provider.set("")
    assert await provider.get() == ""
    await provider.set("User likes coffee.")
    assert await provider.get() == "User likes coffee."


@pytest.mark.parametrize(
    "text", ["nul \0 inside", "\ufeff", "日本 😀", "x" * 1_000_000, bytes(range(256)).decode("latin-1")]
)
async def test_text_comes_back_exactly(database, text):
    await AgentContextProvider(database, text[:50]).set(text)
    assert await AgentContextProvider(database, text[:50]).get() == text


async def test_a_lone_surrogate_is_replaced(database):
    await AgentContextProvider(database, "k\ud800").set("a\ud800b")
    assert await AgentContextProvider(database, "k\ufffd").get() == "a\ufffdb"


async def test_keys_are_separate_rows(database):
    await AgentContextProvider(database, "a").set("one")
    await AgentContextProvider(database, "A").set("two")
    assert await AgentContextProvider(database, "a").get() == "one"


async def test_a_block_is_there_after_opening_again(database):
    await AgentContextProvider(database, "a").set("one")
    await database.close()
    again = await open_database(database.path)
    assert await AgentContextProvider(again, "a").get() == "one"
    await again.close()


async def test_content_that_is_no_text_is_refused(database):
    await AgentContextProvider(database, "a").set("one")
    for bad in (None, 5, b"bytes"):
        with pytest.raises(InvalidArgument):
            await AgentContextProvider(database, "a").set(bad)  # type: ignore[arg-type]
    assert await AgentContextProvider(database, "a").get() == "one"
