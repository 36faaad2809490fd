"""The tree of messages: what each write does, and what is refused with nothing stored."""

import asyncio
import sqlite3

import pytest

from storage import AgentSessionProvider, history, message_tree, open_database
from storage.errors import InvalidArgument, InvalidMessage, UnknownMessage, UnknownParent


def message(message_id, text="hello", role="user"):
    return {"id": message_id, "role": role, "parts": [{"type": "text", "text": text}]}


@pytest.fixture
async def database(tmp_path):
    database = await open_database(tmp_path / "chat.db")
    yield database
    await database.close()


@pytest.fixture
def provider(database):
    return AgentSessionProvider(database)


async def fill(provider, *ids):
    for message_id in ids:
        await provider.append_message(message(message_id))


async def ids(provider, leaf_id=None):
    return [item["id"] for item in await provider.get_history(leaf_id)]


async def all_rows(provider):
    return await provider.database.read(
        lambda connection: connection.execute("SELECT session_id, id FROM assistant_messages ORDER BY seq").fetchall()
    )


async def test_children_of_a_deleted_message_take_its_parent(provider):
    await fill(provider, "m1", "m2", "m3", "m4")
    await provider.append_message(message("b"), "m2")
    await provider.delete_messages(["m2"])
    assert await ids(provider, "m4") == ["m1", "m3", "m4"]
    assert await ids(provider) == ["m1", "b"]
    assert [item["id"] for item in await provider.get_branches("m1")] == ["m3", "b"]
    assert await provider.get_branches("m2") == []
    rows = await provider.database.read(lambda c: c.execute("SELECT id, parent_id FROM assistant_messages").fetchall())
    assert dict(rows) == {"m1": None, "m3": "m1", "m4": "m3", "b": "m1"}


async def test_children_of_a_deleted_root_become_roots(provider):
    await fill(provider, "m1", "m2")
    await provider.append_message(message("b"), "m1")
    await provider.delete_messages(["m1"])
    assert await ids(provider) == ["b"]
    assert await ids(provider, "m2") == ["m2"]


@pytest.mark.parametrize("parent", ["missing", "", "m1 ", "\ud800"])
async def test_an_unknown_parent_is_refused_and_nothing_is_stored(provider, parent):
    await fill(provider, "m1")
    with pytest.raises(UnknownParent):
        await provider.append_message(message("m2"), parent)
    assert await all_rows(provider) == [("", "m1")]


async def test_a_parent_of_another_session_is_refused(database, provider):
    other = AgentSessionProvider(database, "other")
    await fill(provider, "m1")
    with pytest.raises(UnknownParent):
        await other.append_message(message("x"), "m1")
    assert await all_rows(provider) == [("", "m1")]


async def test_repeating_an_append_changes_nothing(provider):
    await fill(provider, "m1", "m2")
    for parent in ("m1", None, "unknown"):
        appended = await provider.append_and_estimate(message("m2", "another text"), parent)
        assert not appended.inserted
        assert appended.tokens == await provider.path_tokens()
    assert await provider.get_history() == [message("m1"), message("m2")]


async def test_a_turn_that_is_tried_again_has_one_question_and_one_answer(provider):
    await provider.append_message(message("question"))
    await provider.append_message(message("question"))
    await provider.append_message(message("answer", role="assistant"))
    assert await ids(provider) == ["question", "answer"]


async def test_an_invalid_message_is_refused_before_anything_is_written(provider):
    await fill(provider, "m1")
    for bad in ({"id": "m2", "role": "user"}, {"role": "user", "parts": []}, message("")):
        with pytest.raises(InvalidMessage):
            await provider.append_message(bad)
        with pytest.raises(InvalidMessage):
            await provider.update_message(bad)
    with pytest.raises(InvalidArgument):
        await provider.append_message(message("m2"), 5)
    assert await all_rows(provider) == [("", "m1")]


async def test_updating_an_unknown_message_is_refused_and_leaves_no_ghost(provider):
    await fill(provider, "m1")
    with pytest.raises(UnknownMessage):
        await provider.update_message(message("ghost", "phantom"))
    assert await provider.search_messages("phantom") == []
    assert await all_rows(provider) == [("", "m1")]


async def test_the_row_has_the_role_of_the_newest_content(provider):
    await fill(provider, "m1")
    await provider.update_message(message("m1", role="system"))
    assert [stat["role"] for stat in await provider.get_history_row_stats()] == ["system"]


async def test_a_message_id_belongs_to_its_session_only(database, provider):
    other = AgentSessionProvider(database, "other")
    await provider.append_message(message("same", "one"))
    await other.append_message(message("same", "two"))
    await fill(provider, "m2")
    await other.delete_messages(["m2"])
    assert await provider.get_message("same") == message("same", "one")
    assert await other.get_message("same") == message("same", "two")
    await other.clear_messages()
    assert await ids(provider) == ["same", "m2"]
    assert await ids(other) == []


@pytest.mark.parametrize("name", ["a:b", "A:B", "é", "e\u0301", "%61", "x" * 10_000, " ", "\0", "'; --"])
async def test_a_session_id_is_taken_as_it_is(database, provider, name):
    session = AgentSessionProvider(database, name)
    await fill(provider, "m0")
    await fill(session, "m1")
    for other in ("a:B", "e", "a", "", "A%"):
        assert "m1" not in await ids(AgentSessionProvider(database, other))
    await session.clear_messages()
    assert await all_rows(provider) == [("", "m0")]


async def test_order_does_not_depend_on_the_clock(database, provider):
    """All messages of one instant come back in the order of insertion, also from a new connection."""
    expected = [f"m{number}" for number in range(50)]
    await asyncio.gather(*(provider.append_message(message(name)) for name in expected))
    await database.write(lambda c: c.execute("UPDATE assistant_messages SET created_at = '2001-01-01T00:00:00.000Z'"))
    assert await ids(provider) == expected
    recent = await provider.get_recent_history(0, 10)
    assert [item["id"] for item in recent["messages"]] == expected[-10:]
    await database.close()
    database = await open_database(database.path)
    assert await ids(AgentSessionProvider(database)) == expected
    await database.close()


async def test_a_path_may_have_any_length(provider):
    def fill_many(connection):
        for number in range(10_050):
            message_tree.append(connection, "", message(f"m{number}"))

    await provider.append_message(message("first"))
    await provider.database.write(fill_many)
    assert await provider.get_path_length() == 10_051
    history = await ids(provider)
    assert (len(history), history[0], history[-1]) == (10_051, "first", "m10049")


async def test_texts_come_back_exactly(provider):
    odd = ["nul \0 inside", "\ufeff\u2028\x85", bytes(range(256)).decode("latin-1"), "👩🏽‍🚀", "e\u0301 é", "\\\"'`"]
    for number, text in enumerate(odd):
        await provider.append_message(message(f"{number}{text}", text))
    await provider.append_message(message("lone", "a\ud800b"))
    history = await provider.get_history()
    assert [item["parts"][0]["text"] for item in history] == [*odd, "a\ufffdb"]
    assert await provider.get_message(f"0{odd[0]}") == message(f"0{odd[0]}", odd[0])


async def test_an_id_with_a_lone_surrogate_is_the_same_id_everywhere(provider):
    await provider.append_message(message("x\ud800"))
    assert (await provider.get_message("x\ud800"))["id"] == "x\ufffd"
    await provider.append_message(message("y"), "x\ud800")
    await provider.delete_messages(["x\udfff"])
    assert await ids(provider) == ["y"]


async def test_an_overlay_that_a_client_sends_back_is_not_stored(provider):
    await fill(provider, "m1", "m2", "m3")
    await provider.add_compaction("what was said", "m1", "m2")
    for item in await provider.get_history():
        await provider.append_message(item)
    await provider.update_message((await provider.get_history())[0])
    assert len(await provider.get_history()) == 2
    assert len(await all_rows(provider)) == 3
    assert [item["id"] for item in await provider.get_raw_history()] == ["m1", "m2", "m3"]


async def test_other_ids_with_the_reserved_prefix_are_refused(database, provider):
    other = AgentSessionProvider(database, "other")
    await fill(other, "m1")
    foreign = await other.add_compaction("s", "m1", "m1")
    for name in ("compaction_fake", "compaction_", f"compaction_{foreign['id']}"):
        with pytest.raises(InvalidMessage):
            await provider.append_message(message(name))
        with pytest.raises(UnknownMessage):
            await provider.update_message(message(name))


async def test_deleting_an_anchor_moves_it_inside_the_range(provider):
    await fill(provider, "m1", "m2", "m3", "m4", "m5")
    stored = await provider.add_compaction("sum", "m2", "m4")
    await provider.delete_messages(["m2"])
    await provider.delete_messages(["m4"])
    (left,) = await provider.get_compactions()
    assert left == stored | {"fromMessageId": "m3", "toMessageId": "m3"}
    assert await ids(provider) == ["m1", f"compaction_{stored['id']}", "m5"]
    await provider.delete_messages(["m3"])
    assert await provider.get_compactions() == []
    assert await ids(provider) == ["m1", "m5"]


async def test_a_summary_does_not_come_to_another_branch_when_its_end_is_deleted(provider):
    await fill(provider, "m1", "m2", "a1", "a2")
    await provider.append_message(message("b1"), "m2")
    await provider.add_compaction("of a", "m1", "a1")
    await provider.delete_messages(["a1"])
    assert await ids(provider, "b1") == ["m1", "m2", "b1"]
    assert await ids(provider, "a2") == ["m1", "m2", "a2"]
    assert await provider.get_compactions() == []


async def test_the_anchor_follows_the_branch_of_its_range(provider):
    await fill(provider, "m1", "m2", "m3")
    await provider.append_message(message("b1"), "m1")
    await provider.append_message(message("b2"))
    stored = await provider.add_compaction("sum", "m1", "b2")
    await provider.delete_messages(["m1"])
    assert (await provider.get_compactions())[0]["fromMessageId"] == "b1"
    assert await ids(provider) == [f"compaction_{stored['id']}"]
    assert await ids(provider, "m3") == ["m2", "m3"]


async def test_an_overlay_whose_end_comes_later_applies_from_then_on(provider):
    await fill(provider, "m1", "m2")
    stored = await provider.add_compaction("sum", "m1", "m3")
    assert await ids(provider) == ["m1", "m2"]
    appended = await provider.append_and_estimate(message("m3", "a long text " * 50))
    assert await ids(provider) == [f"compaction_{stored['id']}"]
    assert appended.tokens == await provider.path_tokens() == 6


async def test_overlays_of_one_instant_are_ordered_by_insertion(provider):
    await fill(provider, "m1", "m2", "m3")
    made = [await provider.add_compaction(f"s{number}", "m1", "m2") for number in range(20)]
    await provider.database.write(lambda c: c.execute("UPDATE assistant_compactions SET created_at = '2001-02-03'"))
    assert [item["id"] for item in await provider.get_compactions()] == [item["id"] for item in made]
    assert (await provider.get_history())[0]["parts"][0]["text"] == "s19"


async def test_the_time_of_an_overlay_is_that_of_its_making(provider):
    await fill(provider, "m1")
    stored = await provider.add_compaction("s", "m1", "m1")
    await provider.database.write(lambda c: c.execute("UPDATE assistant_compactions SET created_at = '2001-02-03'"))
    assert (await provider.get_history())[0]["createdAt"] == "2001-02-03"
    assert stored["createdAt"].endswith("Z")


async def test_an_overlay_on_one_branch_leaves_the_other_alone(provider):
    await fill(provider, *(f"m{number}" for number in range(1, 11)))
    await provider.append_message(message("b1"), "m5")
    await provider.append_message(message("b2"))
    await provider.add_compaction("old branch", "m2", "m8")
    assert await ids(provider) == ["m1", "m2", "m3", "m4", "m5", "b1", "b2"]
    assert len(await ids(provider, "m10")) == 4


async def test_clearing_leaves_no_row_of_the_session(database, provider):
    other = AgentSessionProvider(database, "other")
    await fill(provider, "m1", "m2")
    await fill(other, "x")
    await provider.add_compaction("s", "m1", "m2")
    await provider.search_messages("hello")
    cleared = await provider.clear_and_estimate()
    assert (cleared.inserted, cleared.tokens) == (True, 0)
    assert await all_rows(provider) == [("other", "x")]
    assert await provider.get_compactions() == []
    assert not (await provider.clear_and_estimate()).inserted


async def test_every_depth_is_stored_and_found_or_refused(provider):
    value: object = "leaf"
    for depth in range(1, 1_300):
        value = [value]
        if depth % 97:
            continue
        parts = [{"type": "tool-x", "output": value}, {"type": "text", "text": value}, {"type": "text", "text": "word"}]
        try:
            await provider.append_message({"id": f"m{depth}", "role": "user", "parts": parts})
        except InvalidMessage:
            assert depth > 125, "message, parts and part are three of 128 levels"
            continue
        assert depth <= 125
        assert (await provider.get_history())[-1]["parts"] == parts
        assert (await provider.search_messages("word", 1_000))[-1]["id"] == f"m{depth}"


@pytest.mark.parametrize("bad", ["m1", b"m1", 5, None])
async def test_the_ids_to_delete_must_be_a_list(provider, bad):
    await fill(provider, "m1")
    with pytest.raises(InvalidArgument):
        await provider.delete_messages(bad)
    assert await ids(provider) == ["m1"]


@pytest.mark.parametrize("call", [(float("nan"), 1), ("100", 1), (10, None)])
async def test_a_budget_that_is_no_number_is_refused(provider, call):
    await fill(provider, "m1")
    with pytest.raises(InvalidArgument):
        await provider.get_recent_history(*call)


async def test_a_budget_may_be_infinite(provider):
    await fill(provider, "m1", "m2")
    assert len((await provider.get_recent_history(float("inf")))["messages"]) == 2


async def test_rows_too_large_to_be_joined_are_read_one_by_one(provider):
    await fill(provider, "m1", "m2", "m3")

    def read_with_a_small_limit(connection: sqlite3.Connection):
        old = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 150)
        try:
            return history.visible_json(connection, "")
        finally:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, old)

    assert await provider.database.read(read_with_a_small_limit) == await provider.get_history_json()


async def test_storage_grows_with_what_is_stored_and_not_faster(database, provider):
    """B62: no copy of the history is written with each turn."""
    text = "x" * 1_000
    await fill(provider, "first")

    def fill_many(connection):
        for number in range(1_000):
            message_tree.append(connection, "", message(f"m{number}", text))

    await database.write(fill_many)
    await provider.search_messages("x")
    pages = await database.read(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
    assert pages * 4096 < 1_000 * 1_000 * 2
