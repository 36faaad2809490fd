"""Search over all sessions of a manager: for programs, as a tool, and as a block of every session."""

import logging
import random

import pytest
from session_support import opened, text

from actors import SessionManager
from storage.errors import Closed, InvalidArgument, UnknownMessage


@pytest.fixture
async def owner(tmp_path):
    async with opened(tmp_path) as owner:
        yield owner


@pytest.fixture
def manager(owner):
    return SessionManager.create(owner).with_searchable_history("history")


async def found(manager, query, **options):
    return [message["id"] for message in await manager.search(query, **options)]


async def test_every_session_is_searched_and_every_word_must_occur(manager):
    first, second = await manager.create("a"), await manager.create("b")
    await manager.append(first.id, text("m1", "the deployment is planned for Friday"))
    await manager.append(second.id, text("m2", "no deployment", role="assistant"))
    await manager.get_session("").append_message(text("m3", "ticket POL-358 ships Friday 東京タワー"))
    assert sorted(await found(manager, "deployment")) == ["m1", "m2"]
    assert await found(manager, "Friday deployment") == ["m1"]
    assert await found(manager, "POL-358") == ["m3"]
    assert await found(manager, "タワー") == ["m3"]
    assert await found(manager, "deployment", limit=0) == []
    assert len(await found(manager, "deployment", limit=1)) == 1
    (hit,) = await manager.search("planned")
    assert hit.keys() == {"id", "role", "content", "createdAt"}
    assert hit["createdAt"] > "2020"


async def test_a_limit_below_zero_is_refused(manager):
    with pytest.raises(InvalidArgument):
        await manager.search("x", limit=-1)
    with pytest.raises(InvalidArgument):
        await manager.search(None)


async def test_only_live_messages_are_found(manager):  # D17, D4
    info, other = await manager.create("a"), await manager.create("b")
    await manager.append_all(info.id, [text("m1", "apple"), text("m2", "apple"), text("m3", "apple")])
    await manager.append(other.id, text("m1", "apple"))
    assert len(await found(manager, "apple")) == 4
    with pytest.raises(UnknownMessage):
        await manager.get_session(info.id).update_message(text("ghost", "apple"))
    await manager.upsert(info.id, text("m1", "pear"))
    await manager.delete_messages(info.id, ["m2"])
    assert sorted(await found(manager, "apple")) == ["m1", "m3"]
    await manager.clear_messages(info.id)
    assert await found(manager, "apple") == ["m1"]
    await manager.delete(other.id)
    assert await found(manager, "apple") == []
    await manager.append(info.id, text("m9", "new"))  # whose number in the file was an indexed one's
    assert await found(manager, "apple") == []
    assert await found(manager, "new") == ["m9"]


async def test_another_conversation_is_never_searched(manager, tmp_path):  # D17
    (tmp_path / "other").mkdir()
    async with opened(tmp_path / "other") as owner:
        other = SessionManager.create(owner)
        await other.append((await other.create("x")).id, text("m1", "secret"))
        assert await found(other, "secret") == ["m1"]
        assert await found(manager, "secret") == []


async def test_an_index_that_cannot_be_read_is_told_once_and_counted(manager, owner, caplog):  # B43
    info = await manager.create("a")
    await manager.append(info.id, text("m1", "apple"))
    assert await found(manager, "apple") == ["m1"]
    assert manager.failed_searches == 0
    await owner.database.write(lambda connection: connection.execute("DROP TABLE assistant_fts"))
    with caplog.at_level(logging.WARNING, "perdure.session"):
        assert await manager.search("apple") == []
        assert await manager.search("apple") == []
        assert await (await manager.tools())["session_search"].execute({"query": "apple"}) == "No results found."
    assert [record.levelname for record in caplog.records if "searched" in record.getMessage()] == ["WARNING"]
    assert manager.failed_searches == 3


async def test_other_failures_of_a_search_are_not_swallowed(manager, owner):
    await owner.database.close()
    with pytest.raises(Closed):
        await manager.search("apple")
    assert manager.failed_searches == 0


async def test_random_queries_raise_nothing(manager):
    info = await manager.create("a")
    await manager.append(info.id, text("m1", 'say "hi" AND (NOT) near* me: x^2 -y'))
    source = random.Random(3)
    alphabet = "\"'()*:^-+{}[]~\\ \0\t\n,.;aANDORNEARNOT東😀é\ud800"
    for _ in range(500):
        query = "".join(source.choices(alphabet, k=source.randrange(12)))
        assert set(await found(manager, query)) <= {"m1"}
    assert manager.failed_searches == 0


async def test_the_tool_and_the_block_show_the_ten_best(manager):
    infos = [await manager.create(str(number)) for number in range(2)]
    for number in range(12):
        await manager.append(infos[number % 2].id, text(f"m{number}", "needle" + " pad" * number))
    tools = await manager.tools()
    assert list(tools) == ["session_search"]
    answer = await tools["session_search"].execute({"query": "needle"})
    lines = answer.split("\n---\n")
    assert lines[:2] == ["[user] needle", "[user] needle pad"]
    assert len(lines) == 10
    assert await tools["session_search"].execute({"query": "zebra"}) == "No results found."
    assert await tools["session_search"].execute({}) == "Error: query must be a string"
    session_tools = await manager.get_session(infos[0].id).tools()
    assert not session_tools.keys() & tools.keys()
    question = {"label": "history", "query": "needle"}
    assert await session_tools["search_context"].execute(question) == answer


async def test_the_block_says_how_many_sessions_there_are(manager):
    session = manager.get_session("early")
    assert "available" not in await session.refresh_system_prompt()
    await manager.create("a")
    assert "1 session available for search." in await session.refresh_system_prompt()
    await manager.create("b")
    assert "2 sessions available for search." in await session.refresh_system_prompt()
    assert (await session.get_context_block("history")).writable is False
