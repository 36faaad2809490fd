"""PostgresContextProvider and PostgresSearchProvider on a real server, and sessions that use them."""

from collections.abc import AsyncIterator
from typing import Any

import postgres_clients
import pytest
from postgres_server import server

from actors.errors import NotSupported
from actors.session import Session
from storage import PostgresContextProvider, PostgresSearchProvider, PostgresSessionProvider
from storage.errors import InvalidArgument, LimitExceeded


@pytest.fixture(params=["connection", "pool", "execute", "query"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    async with postgres_clients.client(request.param, server().schema()) as client:
        yield client


@pytest.mark.parametrize("text", ["", "plain", "?% '$1", "a\0b\ufdd0", "日本 🎉"])
async def test_a_block_is_kept_as_it_was_written(client: Any, text: str) -> None:
    block = PostgresContextProvider(client, f"memory {text}")
    assert await block.get() is None
    await block.set("first")
    await block.set(text)
    assert await block.get() == text
    assert await PostgresContextProvider(client, "other").get() is None
    with pytest.raises(InvalidArgument):
        await block.set(5)  # type: ignore[arg-type]


async def test_entries_are_found_by_every_word_in_any_form(client: Any) -> None:
    entries = PostgresSearchProvider(client, "kb")
    assert await entries.get() is None
    assert await entries.search("anything") is None
    await entries.set("one", "The deployment failed on Friday")
    await entries.set("two", "alpha\0omega 東京タワー 🎉 POL-358")
    assert await entries.get() == "2 entries indexed."
    assert await entries.search("deploying friday") == "[one]\nThe deployment failed on Friday"
    for query in ("omega", "京タ", "🎉", "pol-358 alpha", "東京 omega"):
        assert await entries.search(query) == "[two]\nalpha\0omega 東京タワー 🎉 POL-358"
    for query in ("", "the", "deployment zebra", "東京 zebra", "' | & !", "\0"):
        assert await entries.search(query) is None
    await entries.set("one", "replaced")
    assert await entries.search("deployment") is None
    assert await entries.get() == "2 entries indexed."


async def test_the_ten_best_entries_are_given_ties_in_the_order_of_writing(client: Any) -> None:
    entries = PostgresSearchProvider(client, "kb")
    for number in reversed(range(12)):
        await entries.set(f"k{number}", "same words")
    await entries.set("best", "words words words")
    found = await entries.search("words")
    assert found is not None
    keys = [line[1:-1] for line in found.splitlines() if line.startswith("[")]
    assert keys == ["best", *(f"k{number}" for number in range(11, 2, -1))]


async def test_entries_belong_to_a_label_and_a_session(client: Any) -> None:
    shared = PostgresSearchProvider(client)
    shared.init("kb")
    theirs = PostgresSearchProvider(client, "kb").for_session("x")
    await shared.set("k", "apple")
    await theirs.set("k", "bridge")
    assert await shared.search("bridge") is None
    assert await theirs.search("bridges") == "[k]\nbridge"
    assert await theirs.search("apple") is None
    assert await PostgresSearchProvider(client, "kb2").get() is None


async def test_an_entry_too_long_for_the_index_is_refused_and_the_old_one_stays(client: Any) -> None:
    entries = PostgresSearchProvider(client, "kb")
    await entries.set("k", "apple")
    with pytest.raises(LimitExceeded):
        await entries.set("k", " ".join(f"w{number}" for number in range(300_000)))
    assert await entries.search("apple") == "[k]\napple"


async def test_a_session_keeps_blocks_prompt_and_entries_there(client: Any) -> None:
    def session(session_id: str) -> Session:
        return (
            Session.create(PostgresSessionProvider(client, session_id))
            .for_session(session_id)
            .with_context("soul", provider="You are helpful.")
            .with_context("memory", max_tokens=50, provider=PostgresContextProvider(client, f"memory_{session_id}"))
            .with_context("kb", provider=PostgresSearchProvider(client))
            .with_cached_prompt(PostgresContextProvider(client, "_prompt"))
        )

    first, second = session("one"), session("two")
    prompt = await first.freeze_system_prompt()
    await first.replace_context_block("memory", "likes coffee")
    tools = await first.tools()
    await tools["set_context"].execute({"label": "kb", "content": "a fact", "metadata": {"title": "Fact"}})
    assert "likes coffee" not in await second.freeze_system_prompt()
    again = session("one")
    assert await again.freeze_system_prompt() == prompt
    refreshed = await again.refresh_system_prompt()
    assert "likes coffee" in refreshed
    assert "1 entries indexed." in refreshed
    assert refreshed != await session("two").freeze_system_prompt()
    assert await (await session("two").tools())["search_context"].execute({"label": "kb", "query": "fact"}) == (
        "No results found."
    )
    with pytest.raises(NotSupported):
        await again.add_context("later")


@pytest.mark.parametrize("named", ["orig\0", ""])
async def test_a_session_is_not_named_otherwise_than_its_provider(client: Any, named: str) -> None:
    session = Session.create(PostgresSessionProvider(client, named))
    with pytest.raises(InvalidArgument, match="already names its session; make it for 'other'"):
        session.for_session("other")
    await session.for_session(named).append_message({"id": "m", "role": "user", "parts": []})
    assert len(await PostgresSessionProvider(client, named).get_history()) == 1
