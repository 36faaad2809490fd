"""Forks and continuations: one transaction, copies made by SQLite, ids of their own."""

import json
import os
import sqlite3
import tracemalloc
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_support import opened, text
from test_message_costs import steps

from actors import SessionManager
from storage import compactions, forks, full_text, history, leaves, open_database, schema, sessions
from storage import message_tree as tree
from storage.errors import InvalidArgument, LimitExceeded, UnknownMessage, UnknownSession
from storage.records import LATEST, clean
from storage.replication import StorageOptions
from storage.sessions import NewSession
from storage.tokens import estimate_message_tokens

OPTIONS = StorageOptions()


@pytest.fixture
async def owner(tmp_path):
    async with opened(tmp_path) as owner:
        yield owner


@pytest.fixture
def manager(owner):
    return SessionManager.create(owner)


async def ids(manager, session_id):
    return [message["id"] for message in await manager.get_history(session_id)]


def without_ids(messages):
    return [{name: value for name, value in message.items() if name not in ("id", "createdAt")} for message in messages]


async def filled(manager, count=4):
    info = await manager.create("a", owner="alice", tags=["t"], model="m", source="web")
    await manager.append_all(info.id, [text(f"m{number}", f"word{number}") for number in range(1, count + 1)])
    return info


async def test_a_fork_has_a_copy_under_new_ids_and_lives_apart(manager):
    info = await filled(manager)
    fork = await manager.fork(info.id, "m2", "F")
    assert (fork.name, fork.parent_session_id, fork.owner, fork.tags) == ("F", info.id, "alice", ["t"])
    assert (fork.model, fork.source) == (None, None)
    assert await manager.get(fork.id) == fork
    copied = await manager.get_history(fork.id)
    assert without_ids(copied) == without_ids((await manager.get_history(info.id))[:2])
    assert all(uuid.UUID(message["id"]).version == 4 for message in copied)
    await manager.append(fork.id, text("own"))
    await manager.delete_messages(info.id, ["m1"])
    assert len(await ids(manager, fork.id)) == 3
    assert await ids(manager, info.id) == ["m2", "m3", "m4"]
    assert len(await manager.search("word1")) == 1


async def test_a_fork_tells_one_estimate(manager, owner):  # D14
    info = await filled(manager)
    owner.frames.clear()
    fork = await manager.fork(info.id, "m4", "F")
    (frame,) = owner.frames
    assert frame["phase"] == "idle"
    assert frame["tokenEstimate"] == estimate_message_tokens(await manager.get_history(fork.id))


async def test_a_fork_runs_no_compaction_on_the_way(owner):  # D14
    runs = []
    manager = SessionManager.create(owner).on_compaction(runs.append).compact_after(1)
    info = await filled(manager)
    await manager.get_session(info.id).settled()
    runs.clear()
    fork = await manager.fork(info.id, "m4", "F")
    await manager.get_session(fork.id).settled()
    assert runs == []


@pytest.mark.parametrize("at", ["missing", "", "compaction_missing", "other"])
async def test_a_fork_at_an_unknown_message_makes_no_session(manager, owner, at):  # D14
    info = await filled(manager)
    other = await manager.create("b")
    await manager.append(other.id, text("other"))
    before = await manager.list()
    with pytest.raises(UnknownMessage):
        await manager.fork(info.id, at, "F")
    with pytest.raises(InvalidArgument):
        await manager.fork(info.id, None, "F")  # type: ignore[arg-type]
    assert await manager.list() == before


async def test_a_fork_or_a_split_of_an_unknown_session_makes_none(manager):  # D14, D15
    await manager.get_session("unregistered").append_message(text("m1"))
    for session_id in ("missing", "unregistered", ""):
        with pytest.raises(UnknownSession):
            await manager.fork(session_id, "m1", "F")
        with pytest.raises(UnknownSession):
            await manager.compact_and_split(session_id, "s")
    assert await manager.list() == []


async def test_twenty_forks_of_one_message_within_a_second_are_twenty_sessions(manager):  # B89
    info = await filled(manager)
    made = [await manager.fork(info.id, "m3", "same name") for _ in range(20)]
    assert len({fork.id for fork in made}) == 20
    messages = [identity for fork in made for identity in await ids(manager, fork.id)]
    assert len(messages) == len(set(messages)) == 60
    assert len(await manager.list()) == 21


async def test_branches_share_messages_until_one_is_deleted(manager):  # B92
    info = await manager.create("a")
    await manager.append_all(info.id, [text("root"), text("shared"), text("left")])
    await manager.append_all(info.id, [text("right")], "shared")
    fork = await manager.fork(info.id, "right", "F")
    await manager.delete_messages(info.id, ["right"])
    assert await ids(manager, info.id) == ["root", "shared", "left"]
    await manager.append_all(info.id, [text("right")], "shared")
    await manager.delete_messages(info.id, ["shared"])
    assert await ids(manager, info.id) == ["root", "right"]
    assert [message["id"] for message in await manager.get_history(info.id, "left")] == ["root", "left"]
    assert await manager.get_message_count(fork.id) == 3
    await manager.delete(info.id)
    assert await manager.get_message_count(fork.id) == 3


async def test_a_summary_becomes_a_message_of_the_fork_and_can_be_forked_at(manager):
    info = await filled(manager, 5)
    await manager.add_compaction(info.id, "the gist", "m2", "m3")
    visible = await manager.get_history(info.id)
    fork = await manager.fork(info.id, "m5", "F")
    copied = await manager.get_history(fork.id)
    assert without_ids(copied) == without_ids(visible)
    assert copied[1]["createdAt"] == visible[1]["createdAt"]
    assert not any(message["id"].startswith("compaction_") for message in copied)
    assert await manager.get_compactions(fork.id) == []
    assert [found["id"] for found in await manager.search("gist")] == [copied[1]["id"]]
    at_summary = await manager.fork(info.id, visible[1]["id"], "G")
    assert without_ids(await manager.get_history(at_summary.id)) == without_ids(visible[:2])


async def test_a_split_ends_one_session_and_begins_the_next_at_once(manager, owner, monkeypatch):  # D15
    info = await filled(manager)
    await manager.add_usage(info.id, 5, 5, 1)
    owner.frames.clear()
    split = await manager.compact_and_split(info.id, "the gist")
    assert (split.name, split.parent_session_id, split.model, split.source) == ("a", info.id, "m", "web")
    assert (split.owner, split.tags, split.input_tokens, split.end_reason) == ("alice", ["t"], 0, None)
    assert (await manager.get(info.id)).end_reason == "compaction"
    (message,) = await manager.get_history(split.id)
    assert message["parts"] == [{"type": "text", "text": "[Context from previous session]\n\nthe gist"}]
    assert [frame["tokenEstimate"] for frame in owner.frames] == [estimate_message_tokens([message])]
    assert len(await ids(manager, info.id)) == 4

    def fail(*_, **__):
        raise OSError("no")

    before = await manager.list()
    monkeypatch.setattr("storage.message_tree.append", fail)
    with pytest.raises(OSError, match="no"):
        await manager.compact_and_split(split.id, "s")
    with pytest.raises(OSError, match="no"):
        await manager.compact_and_split(info.id, "s", "n")
    assert await manager.list() == before


async def test_a_fork_that_fails_half_way_leaves_nothing(manager, monkeypatch):
    info = await filled(manager)
    before = await manager.list()

    def fail(*_):
        raise OSError("no")

    monkeypatch.setattr("storage.forks._Copy.finish", fail)
    with pytest.raises(OSError, match="no"):
        await manager.fork(info.id, "m4", "F")
    assert await manager.list() == before
    assert len(await manager.search("word1")) == 1


async def test_a_continuation_needs_a_text(manager):
    info = await filled(manager)
    with pytest.raises(InvalidArgument):
        await manager.compact_and_split(info.id, None)  # type: ignore[arg-type]
    assert (await manager.get(info.id)).end_reason is None


# ---- the copy itself ------------------------------------------------------------------------------------------------


def registered():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    sessions.create(connection, "a", NewSession("n"))
    return connection


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.text(max_size=6).filter(lambda name: name not in ("id", "role", "parts")), JSON, max_size=3)


@settings(max_examples=500 if os.environ.get("TESTS_LONG") else 25, deadline=None)
@given(
    st.lists(
        st.tuples(st.text(min_size=1), FIELDS, JSON, st.booleans()), min_size=1, max_size=5, unique_by=lambda m: m[0]
    )
)
def test_a_copy_differs_from_its_original_in_the_id_only(messages):
    connection = registered()
    stored = []
    for identity, fields, value, is_first in messages:
        if identity.startswith("compaction_"):
            continue
        parts = [{"type": "text", "text": identity, "value": value, "id": "not this"}]
        rest = {"role": "user", "parts": parts, **fields}
        message = {"id": identity, **rest} if is_first else {**rest, "id": identity}
        tree.append(connection, "a", message)
        stored.append(clean(identity))
    if not stored:
        return
    fork = forks.fork(connection, "a", stored[-1], "F", options=OPTIONS)
    query = "SELECT content, bytes, tok FROM assistant_messages WHERE session_id = ? ORDER BY seq"
    originals = connection.execute(query, ("a",)).fetchall()
    copies = connection.execute(query, (fork.info.id,)).fetchall()
    assert len(originals) == len(copies)
    for (original, _, tokens), (copied, size, copied_tokens) in zip(originals, copies, strict=True):
        new = json.loads(copied)["id"]
        old = json.loads(original)
        as_bytes = json.dumps(old["id"], ensure_ascii=False)
        assert json.loads(copied) == {**old, "id": new}
        assert list(json.loads(copied)) == list(old)
        assert (size, copied_tokens) == (len(copied.encode()), tokens)
        assert original.count(as_bytes) != 1 or copied == original.replace(as_bytes, json.dumps(new))
    check_sums(connection, fork.info.id)
    connection.close()


def check_sums(connection, session_id):
    leaf = leaves.latest(connection, session_id)
    visible = json.loads(history.visible_json(connection, session_id))
    raw = json.loads(history.raw_json(connection, session_id))
    assert leaf.sums.tokens == estimate_message_tokens(visible)
    assert leaf.sums.count == len(raw)
    assert leaf.sums.bytes == sum(row["bytes"] for row in history.row_stats(connection, session_id))


@pytest.mark.parametrize("seed", range(20))
def test_a_fork_of_any_tree_has_what_is_visible_there(seed):
    import random

    source = random.Random(seed)
    connection = registered()
    names = []
    for number in range(40):
        parent = source.choice([LATEST, LATEST, LATEST, *names[-5:], *([None] if source.random() < 0.2 else [])])
        tree.append(connection, "a", text(f"m{number}", f"word{number} " * source.randrange(4)), parent)
        names.append(f"m{number}")
        if source.random() < 0.2:
            tree.append(connection, "", text(f"x{number}"))
        if source.random() < 0.1:
            gone = names.pop(source.randrange(len(names)))
            tree.delete(connection, "a", [gone])
        if source.random() < 0.15 and len(names) > 3:
            path = [m["id"] for m in json.loads(history.raw_json(connection, "a"))]
            ends = sorted(source.choices(range(len(path)), k=2))
            compactions.add(connection, "a", f"gist{number}", path[ends[0]], path[ends[1]])
    full_text.catch_up(connection)
    for at in source.sample(names, 6):
        begun = forks.fork(connection, "a", at, "F", options=OPTIONS)
        wanted = json.loads(history.visible_json(connection, "a", at))
        copied = json.loads(history.visible_json(connection, begun.info.id))
        assert without_ids(copied) == without_ids(wanted)
        assert begun.appended.tokens == estimate_message_tokens(copied)
        check_sums(connection, begun.info.id)
        tree.append(connection, begun.info.id, text("next"))
        check_sums(connection, begun.info.id)
        full_text.catch_up(connection)
        for message in copied:
            word = message["parts"][0]["text"].split(" ")[0]
            if word:
                found = full_text.search(connection, begun.info.id, word, 100)
                assert message["id"] in [hit["id"] for hit in found]
    connection.close()


def test_a_fork_costs_what_it_copies():
    costs = {}
    for count in (500, 4_000):
        connection = registered()
        for number in range(count):
            tree.append(connection, "a", text(f"m{number}"))
        costs[count] = [
            steps(connection, lambda c=connection, at=at: forks.fork(c, "a", at, "F", options=OPTIONS))
            for at in ("m99", "m399")
        ]
        connection.close()
    short, long = costs[4_000]
    assert short <= costs[500][0] * 1.2  # whatever the history
    assert long <= 4.4 * short  # in proportion to what is copied
    assert long < 400 * 250


def test_a_split_costs_the_same_whatever_the_history():
    costs = []
    for count in (50, 4_000):
        connection = registered()
        for number in range(count):
            tree.append(connection, "a", text(f"m{number}"))
        costs.append(steps(connection, lambda c=connection: forks.split(c, "a", "s", None, options=OPTIONS)))
        connection.close()
    assert costs[1] <= costs[0] * 1.2


def test_what_is_copied_is_not_loaded_into_python():
    connection = registered()
    for number in range(100):
        tree.append(connection, "a", text(f"m{number}", "x" * 100_000))
    tracemalloc.start()
    try:
        begun = forks.fork(connection, "a", "m99", "F", options=OPTIONS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert leaves.latest(connection, begun.info.id).sums.bytes > 10_000_000
    assert peak < 200_000
    connection.close()


async def test_a_summary_has_the_limit_of_a_message_on_every_way_into_a_session(tmp_path):
    """Also one that was stored when the limit was larger."""
    at, over = "x" * 1_700, "x" * 2_100
    database = await open_database(tmp_path / "a.db", options=StorageOptions(max_message_bytes=8_000))
    info = await SessionManager(database).create("a")
    for number in range(3):
        await SessionManager(database).append(info.id, text(f"m{number}"))
    await SessionManager(database).add_compaction(info.id, over, "m0", "m1")
    await database.close()
    database = await open_database(tmp_path / "a.db", options=StorageOptions(max_message_bytes=2_048))
    manager = SessionManager(database)
    for refused in (
        lambda: manager.fork(info.id, "m2", "F"),
        lambda: manager.compact_and_split(info.id, over),
        lambda: manager.add_compaction(info.id, over, "m0", "m2"),
        lambda: manager.get_session(info.id).add_compaction(over, "m0", "m2"),
    ):
        with pytest.raises(LimitExceeded, match=r"summary of .* bytes is over the limit of 2,048 bytes"):
            await refused()
    assert await manager.count() == 1
    assert (await manager.get(info.id)).end_reason is None
    assert len(await manager.get_compactions(info.id)) == 1
    await manager.add_compaction(info.id, at, "m0", "m1")
    assert await manager.get_message_count((await manager.fork(info.id, "m2", "F")).id) == 2
    assert await manager.get_message_count((await manager.compact_and_split(info.id, at)).id) == 1
    await database.close()
