"""Searchable entries of a context block in SQLite."""

import pytest

from storage import AgentSearchProvider, open_database, search
from storage.errors import CorruptDatabase, InvalidArgument


@pytest.fixture
async def database(tmp_path):
    database = await open_database(tmp_path / "chat.db")
    yield database
    await database.close()


async def test_there_is_no_summary_without_entries(database):
    provider = AgentSearchProvider(database, "kb")
    assert await provider.get() is None
    await provider.set("one", "text")
    await provider.set("two", "text")
    assert await provider.get() == "2 entries indexed."


async def test_an_entry_replaces_the_earlier_one_of_its_key(database):
    provider = AgentSearchProvider(database, "kb")
    await provider.set("one", "apple")
    await provider.set("one", "pear")
    assert await provider.get() == "1 entries indexed."
    assert await provider.search("apple") is None
    assert await provider.search("pears") == "[one]\npear"


async def test_all_words_must_match_and_nothing_is_an_operator(database):
    provider = AgentSearchProvider(database, "kb")
    await provider.set("fox", "the quick brown fox")
    await provider.set("cjk", "東京タワー 🎉")
    assert await provider.search("fox quick") == "[fox]\nthe quick brown fox"
    assert await provider.search("fox OR cat") is None
    assert await provider.search('"; -- \0') is None
    assert await provider.search("") is None
    assert await provider.search("京タ 🎉") == "[cjk]\n東京タワー 🎉"


async def test_the_ten_best_are_shown(database):
    provider = AgentSearchProvider(database, "kb")
    for number in range(13):
        await provider.set(f"t{number}", "needle " + "pad " * number)
    found = await provider.search("needles")
    assert [part.split("]")[0] for part in found.split("\n\n")] == [f"[t{number}" for number in range(10)]


async def test_entries_belong_to_a_label_and_a_session(database):
    given = AgentSearchProvider(database)
    given.init("kb")
    given.init("later labels change nothing")
    await given.set("k", "apple")
    other_session = given.for_session("s")
    other_label = AgentSearchProvider(database, "kb2")
    for other in (other_session, other_label):
        assert await other.search("apple") is None
        assert await other.get() is None
        await other.set("k", "apple too")
    assert await given.search("apple") == "[k]\napple"
    assert await other_session.search("apple") == "[k]\napple too"
    await database.write(lambda connection: search.clear_entries(connection, "s"))
    assert await other_session.get() is None
    assert await given.search("apple") == "[k]\napple"
    query = "SELECT count(*) FROM cf_agents_search_fts WHERE cf_agents_search_fts MATCH 'too'"
    assert await database.read(lambda connection: connection.execute(query).fetchone()[0]) == 1


async def test_what_is_no_text_is_refused(database):
    provider = AgentSearchProvider(database, "kb")
    for key, content in ((None, "x"), ("x", 5)):
        with pytest.raises(InvalidArgument):
            await provider.set(key, content)
    assert await provider.get() is None


async def test_a_broken_index_is_an_error(database):
    provider = AgentSearchProvider(database, "kb")
    await provider.set("k", "apple")
    await database.write(lambda connection: connection.execute("DELETE FROM cf_agents_search_fts_data"))
    with pytest.raises(CorruptDatabase):
        await provider.search("apple")
