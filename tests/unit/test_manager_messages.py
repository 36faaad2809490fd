"""Messages through a SessionManager: the same as in the session, in one transaction with its row."""

import asyncio
import sqlite3

import pytest
from session_support import Note, opened, text
from test_message_costs import steps

from actors import SessionManager
from storage import AgentContextProvider, AgentSearchProvider, schema, sessions
from storage import message_tree as tree
from storage.errors import InvalidMessage, LimitExceeded, UnknownMessage, UnknownParent
from storage.replication import StorageOptions
from storage.sessions import NewSession


@pytest.fixture
async def owner(tmp_path):
    async with opened(tmp_path) as owner:
        yield owner


@pytest.fixture
def manager(owner):
    return SessionManager.create(owner)


async def ids(manager, session_id, leaf_id=None):
    return [message["id"] for message in await manager.get_history(session_id, leaf_id)]


async def test_the_newest_part_of_one_batch_is_recent(manager):  # B02
    info = await manager.create("a")
    assert await manager.append_all(info.id, [text(f"m{number}") for number in range(1, 26)]) == "m25"
    recent = await manager.get_session(info.id).get_recent_history(0, min_recent_messages=10)
    assert [message["id"] for message in recent["messages"]] == [f"m{number}" for number in range(16, 26)]


async def test_a_batch_goes_on_at_the_latest_leaf_and_none_starts_a_root(manager):  # D25
    info = await manager.create("a")
    await manager.append(info.id, text("m1"))
    await manager.append_all(info.id, [text("m2"), text("m3")])
    assert await ids(manager, info.id) == ["m1", "m2", "m3"]
    await manager.append_all(info.id, [text("m4"), text("m5")], "m1")
    assert await ids(manager, info.id) == ["m1", "m4", "m5"]
    assert [message["id"] for message in await manager.get_branches(info.id, "m1")] == ["m2", "m4"]
    await manager.append_all(info.id, [text("m6"), text("m7")], None)
    assert await ids(manager, info.id) == ["m6", "m7"]
    assert await manager.append_all(info.id, []) is None
    assert await manager.append_all(info.id, [], "m2") == "m2"


@pytest.mark.parametrize(
    ("batch", "parent", "error"),
    [
        ([text("m1"), {"id": "m2", "role": "user"}], None, InvalidMessage),
        ([text("m1"), text("compaction_x")], None, InvalidMessage),
        ([text("m1"), text("m2")], "missing", UnknownParent),
    ],
)
async def test_a_batch_is_stored_as_a_whole_or_not_at_all(manager, owner, batch, parent, error):
    info = await manager.create("a")
    with pytest.raises(error):
        await manager.append_all(info.id, batch, parent)
    assert await manager.get_history(info.id) == []
    assert await manager.search("hello") == []
    assert owner.frames == []
    assert await manager.get(info.id) == info


async def test_an_append_and_its_time_are_one_transaction(manager, monkeypatch):
    info = await manager.create("a")

    def fail(*_):
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr("storage.messages.append", fail)
        with pytest.raises(OSError, match="no"):
            await manager.append(info.id, text("m1"))
    assert await manager.get(info.id) == info
    with monkeypatch.context() as patch:
        patch.setattr("storage.sessions.require_and_touch", fail)
        with pytest.raises(OSError, match="no"):
            await manager.append(info.id, text("m1"))
    assert await manager.get_history(info.id) == []


async def test_a_transcript_that_is_sent_back_whole_changes_nothing_and_goes_on(manager):
    info = await manager.create("a")
    await manager.append_all(info.id, [text(f"m{number}") for number in range(5)])
    await manager.add_compaction(info.id, "s", "m1", "m3")
    visible = await manager.get_history(info.id)
    assert [message["id"][:10] for message in visible] == ["m0", "compaction", "m4"]
    await manager.append_all(info.id, visible)
    for message in visible:
        await manager.upsert(info.id, message)
    assert await manager.get_history(info.id) == visible
    await manager.append_all(info.id, [*visible, text("m5")])
    assert (await manager.get_history(info.id))[:-1] == visible
    await manager.append_all(info.id, [visible[1], text("m6")])  # a summary stands for the last message of its range
    assert [message["id"] for message in await manager.get_branches(info.id, "m3")] == ["m4", "m6"]


async def test_upsert_replaces_where_the_message_is(manager):
    info = await manager.create("a")
    assert await manager.upsert(info.id, text("m1")) == "m1"
    await manager.upsert(info.id, text("m2"))
    await manager.upsert(info.id, text("m1", "edited"), "m2")
    assert await ids(manager, info.id) == ["m1", "m2"]
    assert [found["content"] for found in await manager.search("edited")] == ["edited"]
    assert await manager.search("missing") == []
    with pytest.raises(UnknownParent):
        await manager.upsert(info.id, text("m3"), "nowhere")
    with pytest.raises(InvalidMessage):
        await manager.upsert(info.id, text("compaction_nothing"))


async def test_message_ids_are_those_of_their_session(manager):  # D12
    first, second = await manager.create("a"), await manager.create("b")
    await manager.append(first.id, text("m", "in the first"))
    await manager.append(second.id, text("m", "in the second"))
    await manager.upsert(second.id, text("m", "changed"))
    await manager.delete_messages(first.id, ["m"])
    assert await ids(manager, first.id) == []
    assert (await manager.get_history(second.id))[0]["parts"][0]["text"] == "changed"
    assert await manager.search("first") == []
    assert len(await manager.search("changed")) == 1


async def test_a_message_of_another_session_is_no_parent_and_is_not_updated(manager):  # B17, D2, D4
    first, second = await manager.create("a"), await manager.create("b")
    await manager.append(first.id, text("m1"))
    for verb in (manager.append, manager.upsert):
        with pytest.raises(UnknownParent):
            await verb(second.id, text("m2"), "m1")
    with pytest.raises(UnknownMessage):
        await manager.get_session(second.id).update_message(text("m1"))
    assert await manager.get_history(second.id) == []
    assert await ids(manager, first.id) == ["m1"]


async def test_parallel_appends_to_many_sessions_keep_their_orders(manager):
    infos = [await manager.create(str(number)) for number in range(5)]
    await asyncio.gather(*(manager.append(info.id, text(f"m{n}")) for n in range(20) for info in infos))
    for info in infos:
        assert await ids(manager, info.id) == [f"m{number}" for number in range(20)]


async def test_a_batch_tells_every_estimate_and_compacts_at_most_once(owner):
    runs = []
    manager = SessionManager.create(owner).on_compaction(lambda messages: runs.append(len(messages))).compact_after(1)
    info = await manager.create("a")
    await manager.append_all(info.id, [text(f"m{number}") for number in range(4)])
    await manager.get_session(info.id).settled()
    assert runs == [4]
    assert owner.phases() == ["idle"] * 4 + ["compacting", "idle"]


async def test_a_limit_on_messages_counts_all_sessions(tmp_path):
    from storage import open_database

    database = await open_database(tmp_path / "chat.db", options=StorageOptions(max_messages=5))
    manager = SessionManager.create(database)
    first, second = await manager.create("a"), await manager.create("b")
    await manager.append_all(first.id, [text("m1"), text("m2"), text("m3")])
    for verb in (
        manager.append_all(second.id, [text("m1"), text("m2"), text("m3")]),
        manager.fork(first.id, "m3", "f"),
    ):
        with pytest.raises(LimitExceeded):
            await verb
    await manager.append_all(second.id, [text("m1"), text("m2")])
    for verb in (
        manager.append(second.id, text("x")),
        manager.upsert(second.id, text("x")),
        manager.compact_and_split(second.id, "s"),
    ):
        with pytest.raises(LimitExceeded):
            await verb
    assert [info.name for info in await manager.list()] == ["b", "a"]
    await database.close()


# ---- what each session has of its own -----------------------------------------------------------------------------


async def test_search_entries_and_prompts_are_of_their_session(owner):  # D29
    manager = (
        SessionManager.create(owner)
        .with_context("memory")
        .with_context("kb", provider=AgentSearchProvider(owner))
        .with_cached_prompt(AgentContextProvider(owner, "one-prompt"))
    )
    first, second = manager.get_session("s1"), manager.get_session("s2")
    entry = {"label": "kb", "content": "the deployment failed", "metadata": {"title": "T"}}
    await (await first.tools())["set_context"].execute(entry)
    question = {"label": "kb", "query": "deployment"}
    assert "failed" in await (await first.tools())["search_context"].execute(question)
    assert await (await second.tools())["search_context"].execute(question) == "No results found."
    await first.replace_context_block("memory", "of the first")
    assert "of the first" in await first.freeze_system_prompt()
    assert "of the first" not in await second.freeze_system_prompt()


async def test_blocks_of_sessions_whose_ids_look_alike_are_not_confused(owner):
    manager = SessionManager.create(owner).with_context("memory").with_context("memory_a")
    await manager.get_session("b").replace_context_block("memory_a", "of b")
    assert (await manager.get_session("a_b").get_context_block("memory")).content == ""


async def test_a_provider_object_is_one_for_all_sessions(owner):  # D29
    note = Note("start")
    manager = SessionManager.create(owner).with_context("memory", provider=note)
    await manager.get_session("s1").replace_context_block("memory", "set by one")
    assert "set by one" in await manager.get_session("s2").freeze_system_prompt()


async def test_every_session_may_have_as_many_blocks_as_are_allowed(tmp_path):
    from storage import open_database

    database = await open_database(tmp_path / "chat.db", options=StorageOptions(max_blocks=2))
    manager = SessionManager.create(database).with_context("a").with_context("b")
    for number in range(4):
        session = manager.get_session(str(number))
        await session.replace_context_block("a", "x")
        await session.replace_context_block("b", "x")
    await database.close()


# ---- costs --------------------------------------------------------------------------------------------------------


def registered(count, others=50):
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    for number in range(others):
        sessions.create(connection, f"s{number}", NewSession("n"))
    for number in range(count):
        tree.append(connection, "s1", text(f"m{number}"))
        if number % 10 == 0:
            tree.append(connection, "s2", text(f"m{number}"))
    return connection


def manager_append(connection, session_id, message_id):
    sessions.require_and_touch(connection, session_id)
    tree.append(connection, session_id, text(message_id))


def manager_upsert(connection, session_id, message_id):
    sessions.require_and_touch(connection, session_id)
    tree.upsert(connection, session_id, tree.prepare(text(message_id, "other")))


def test_an_append_costs_the_same_whatever_the_history_and_the_number_of_sessions():
    small, large = registered(60), registered(6_000, others=5_000)
    for work in (manager_append, manager_upsert):
        for session_id in ("s1", "s2", "s3"):
            costs = [steps(c, lambda c=c, w=work, s=session_id: w(c, s, "new")) for c in (small, large)]
            assert costs[1] <= costs[0] * 1.2, (work, session_id)
            assert costs[1] < 400


def test_a_batch_costs_its_messages():
    connection = registered(600)
    prepared = [tree.prepare(text(f"n{number}")) for number in range(200)]
    one = steps(connection, lambda: tree.append_all(connection, "s1", prepared[:1]))
    many = steps(connection, lambda: tree.append_all(connection, "s1", prepared))
    assert many <= 200 * one * 1.2
