"""The registry of a SessionManager: what sessions are, how they are listed, what they cost, and that nothing of one stays."""

import asyncio
import gc
import pydoc
import unicodedata

import pytest
from session_support import Owner, opened, text

from actors import Session, SessionManager
from actors.session.life import SessionsInUse
from compaction import CompactResult, Usage
from storage.errors import InvalidArgument, LimitExceeded, UnknownSession

DOCUMENTED = (
    "id name parent_session_id model source input_tokens output_tokens estimated_cost end_reason created_at updated_at"
).split()


@pytest.fixture
async def owner(tmp_path):
    async with opened(tmp_path) as owner:
        yield owner


@pytest.fixture
def manager(owner):
    return SessionManager.create(owner)


async def names(manager, **filters):
    return [info.name for info in await manager.list(**filters)]


async def rows(owner, session_id=None):
    """How many rows each table has, of a session if one is given."""

    def count(connection):
        found = {}
        for table in (
            "assistant_messages",
            "assistant_compactions",
            "cf_agents_context_blocks",
            "cf_agents_search_entries",
        ):
            where = "" if session_id is None else f"WHERE session_id = '{session_id}'"
            found[table] = connection.execute(f"SELECT count(*) FROM {table} {where}").fetchone()[0]
        where = "" if session_id is None else f"WHERE id = '{session_id}'"
        found["assistant_sessions"] = connection.execute(f"SELECT count(*) FROM assistant_sessions {where}").fetchone()[
            0
        ]
        notes = "SELECT count(*) FROM perdure_state WHERE key LIKE 'session:%'"
        found["notes"] = connection.execute(notes).fetchone()[0]
        return found

    return await owner.database.read(count)


async def test_the_class_makes_a_manager_and_a_manager_makes_sessions(owner):
    manager = SessionManager.create(owner)
    assert isinstance(manager, SessionManager)
    info = await manager.create("My chat", model="m", source="web", parent_session_id="p")
    assert (info.name, info.model, info.source, info.parent_session_id) == ("My chat", "m", "web", "p")
    assert await manager.get(info.id) == info
    assert await manager.get("missing") is None


async def test_a_manager_needs_a_database():
    with pytest.raises(InvalidArgument, match="Database"):
        SessionManager.create(object())


async def test_on_the_wire_a_session_has_the_documented_fields_and_no_others(manager):
    info = await manager.create("a")
    assert list(info.model_dump()) == DOCUMENTED
    assert list(info.model_dump(mode="json", by_alias=True, exclude_none=True)) == DOCUMENTED
    described = await manager.set_metadata(info.id, owner="alice", tags=["x"])
    assert described.model_dump() == {
        **info.model_dump(),
        "updated_at": described.updated_at,
        "owner": "alice",
        "tags": ["x"],
    }


async def test_reading_and_silent_verbs_leave_a_new_file_empty(manager, owner):
    assert await manager.list() == []
    assert await manager.get_history("x") == []
    assert await manager.get_message_count("x") == 0
    assert await manager.get_compactions("x") == []
    assert await manager.search("x") == []
    assert await owner.database.read(lambda c: c.execute("SELECT count(*) FROM sqlite_schema").fetchone()) == (0,)


async def test_the_session_that_changed_last_is_listed_first_whatever_the_clock_says(manager, owner):  # D6
    infos = [await manager.create(str(number)) for number in range(5)]
    assert await names(manager) == ["4", "3", "2", "1", "0"]
    await manager.append(infos[1].id, text("m"))
    await manager.add_usage(infos[3].id, 1, 1, 0.5)
    await manager.rename(infos[0].id, "zero")
    assert await names(manager) == ["zero", "3", "1", "4", "2"]
    same = "UPDATE assistant_sessions SET updated_at = '2001-01-01T00:00:00.000Z'"
    await owner.database.write(lambda connection: connection.execute(same))
    assert await names(manager) == ["zero", "3", "1", "4", "2"]


@pytest.mark.parametrize(
    "verb",
    [
        lambda m, i: m.append(i, text("n")),
        lambda m, i: m.append(i, text("m")),
        lambda m, i: m.upsert(i, text("m", "other")),
        lambda m, i: m.append_all(i, [text("n")]),
        lambda m, i: m.clear_messages(i),
        lambda m, i: m.delete_messages(i, ["m"]),
        lambda m, i: m.add_compaction(i, "s", "m", "m"),
        lambda m, i: m.add_usage(i, 1, 1),
        lambda m, i: m.rename(i, "other"),
        lambda m, i: m.set_metadata(i, tags=["t"]),
        lambda m, i: m.compact_and_split(i, "s"),
    ],
)
async def test_every_write_of_the_manager_tells_the_time_of_the_change(manager, owner, verb):
    info = await manager.create("a")
    await manager.append(info.id, text("m"))
    old = "UPDATE assistant_sessions SET updated_at = '2001-01-01T00:00:00.000Z'"
    await owner.database.write(lambda connection: connection.execute(old))
    await verb(manager, info.id)
    assert (await manager.get(info.id)).updated_at > "2020"


async def test_a_write_that_fails_leaves_the_time_of_the_change_alone(manager):
    first, second = await manager.create("first"), await manager.create("second")
    with pytest.raises(InvalidArgument):
        await manager.append_all(first.id, [text("m1"), text("m2")], 7)  # type: ignore[arg-type]
    assert (await manager.get(first.id)).updated_at == first.updated_at
    assert await names(manager) == ["second", "first"]
    assert await manager.get_history(first.id) == []
    assert await manager.get(second.id) == second


# ---- metadata ---------------------------------------------------------------------------------------------------


async def test_sessions_are_filtered_by_owner_and_tag(manager):
    await manager.create("a", owner="alice", tags=["work", "urgent", "work"])
    b = await manager.create("b", owner="alice")
    await manager.create("c", owner="bob", tags=["work"])
    assert await names(manager, owner="alice") == ["b", "a"]
    assert await names(manager, tag="work") == ["c", "a"]
    assert await names(manager, owner="alice", tag="work") == ["a"]
    assert await names(manager, owner="carol") == []
    assert await names(manager, tag="wor") == []
    await manager.set_metadata(b.id, owner="bob", tags=["urgent", "late"], name="B")
    assert await names(manager, owner="bob") == ["B", "c"]
    assert await names(manager, tag="urgent") == ["B", "a"]
    changed = await manager.set_metadata(b.id, owner=None, tags=[])
    assert (changed.name, changed.owner, changed.tags) == ("B", None, [])
    assert await names(manager, owner="bob") == ["c"]


@pytest.mark.parametrize("tags", ["work", [1], [""], None, [["x"]]])
async def test_tags_that_are_no_texts_are_refused(manager, tags):
    info = await manager.create("a")
    with pytest.raises(InvalidArgument):
        await manager.create("b", tags=tags)
    with pytest.raises(InvalidArgument):
        await manager.set_metadata(info.id, tags=tags)
    assert await manager.list() == [info]


async def test_metadata_of_an_unknown_session_cannot_be_changed(manager):
    with pytest.raises(UnknownSession):
        await manager.set_metadata("missing", owner="a")
    assert await manager.list() == []


@pytest.mark.parametrize("name", ["", "  ", "\u200b", "x" * 10_000, "a\0b", "日本 😀", "\ud800"])
async def test_a_session_of_any_name_can_be_deleted(manager, name):  # B91
    info = await manager.create(name)
    assert (await manager.get(info.id)).name == name.replace("\ud800", "\ufffd")
    await manager.delete(info.id)
    assert await manager.list() == []


async def test_what_is_beyond_all_reason_is_refused(manager):
    for arguments in (
        {"name": "x" * 20_000},
        {"name": "a", "owner": "é" * 9_000},
        {"name": "a", "tags": map(str, range(101))},
    ):
        with pytest.raises(LimitExceeded):
            await manager.create(**arguments)
    with pytest.raises(InvalidArgument):
        await manager.create(7)  # type: ignore[arg-type]
    assert await manager.list() == []


# ---- usage ------------------------------------------------------------------------------------------------------


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    "usage",
    [
        (-1, 0, 0.0),
        (0, -1, 0.0),
        (0, 0, -0.1),
        (NAN, 0, 0),
        (0, INFINITE, 0),
        (0, 0, NAN),
        (1.5, 0, 0),
        ("1", 0, 0),
        (True, 0, 0),
        (2**53 + 1, 0, 0),
        (0, 2**60, 0),
        (0, 0, 1e300),
    ],
)
async def test_impossible_usage_is_refused(manager, usage):  # D16
    info = await manager.create("a")
    with pytest.raises(InvalidArgument):
        await manager.add_usage(info.id, *usage)
    assert await manager.get(info.id) == info


async def test_what_can_be_told_of_a_summary_can_be_added_up(owner):
    most = Usage(2**53, 2**53, 2.0**53)
    result = CompactResult(fromMessageId="m1", toMessageId="m1", summary="s", usage=most)
    manager = SessionManager.create(owner).on_compaction(lambda _: result)
    info = await manager.create("a")
    await manager.append(info.id, text("m1"))
    assert await manager.get_session(info.id).compact() is not None
    assert (await manager.get(info.id)).input_tokens == 2**53
    with pytest.raises(InvalidArgument, match="input_tokens"):
        Usage(2**53 + 1, 0)


async def test_usage_of_an_unknown_session_is_refused(manager):  # D16
    with pytest.raises(UnknownSession):
        await manager.add_usage("missing", 1, 1, 1)
    assert await manager.list() == []


async def test_usage_is_what_was_spent_whatever_becomes_of_the_messages(manager):  # B52
    info = await manager.create("a")
    await manager.add_usage(info.id, 10, 5, 0.1)  # a session without a turn
    await manager.append(info.id, text("m"))
    await manager.add_usage(info.id, 1, 2, 0.2)
    fork = await manager.fork(info.id, "m", "b")
    await manager.delete_messages(info.id, ["m"])
    await manager.clear_messages(info.id)
    known = await manager.get(info.id)
    assert (known.input_tokens, known.output_tokens, known.estimated_cost) == (11, 7, pytest.approx(0.3))
    assert await manager.get_message_count(info.id) == 0
    fork = await manager.get(fork.id)
    assert (fork.input_tokens, fork.output_tokens, fork.estimated_cost) == (0, 0, 0)


# ---- deletion ---------------------------------------------------------------------------------------------------


def furnished(owner: Owner) -> SessionManager:
    from storage import AgentSearchProvider

    return (
        SessionManager.create(owner)
        .with_context("memory")
        .with_context("kb", provider=AgentSearchProvider(owner))
        .with_cached_prompt()
        .on_compaction(lambda messages: None)
        .compact_after(1)
    )


async def fill(manager, session_id, word):
    session = manager.get_session(session_id)
    await session.append_message(text("m1", word))
    await session.append_message(text("m2", word))
    await session.settled()  # which leaves a note: the run was in vain
    await session.add_compaction(f"about {word}", "m1", "m1")
    await session.replace_context_block("memory", f"remember {word}")
    await (await session.tools())["set_context"].execute({"label": "kb", "content": word, "metadata": {"title": "t"}})
    await session.freeze_system_prompt()


@pytest.mark.parametrize("others", [["a_b", "a:b", "a:b:c", "A", "a%", "_a", "a' OR '1"]])
async def test_nothing_of_a_deleted_session_stays_and_nothing_else_goes(owner, others):  # D23, B47, B49, B88
    manager = furnished(owner)
    info = await manager.create("doomed")
    ids = [info.id, "", *others, f"{info.id}_x", f"{info.id}:x", unicodedata.normalize("NFD", "é"), "é"]
    for session_id in ids:
        await fill(manager, session_id, "apple")
    await manager.search("apple")  # which indexes all of it
    before = await rows(owner)
    prompts = {session_id: await manager.get_session(session_id).freeze_system_prompt() for session_id in ids}

    await manager.delete(info.id)

    left = await rows(owner, info.id)
    assert {table for table in left if left[table]} == {"notes"}  # those of the others
    after = await rows(owner)
    gone = {table: before[table] - after[table] for table in before}
    assert gone == {
        "assistant_messages": 2,
        "assistant_compactions": 1,
        "cf_agents_context_blocks": 2,
        "cf_agents_search_entries": 1,
        "assistant_sessions": 1,
        "notes": 1,
    }
    fts = "SELECT count(*) FROM {0} WHERE {0} MATCH 'apple'"
    for table, each in (("assistant_fts", 2), ("cf_agents_search_fts", 1)):
        found = await owner.database.read(lambda c, t=table: c.execute(fts.format(t)).fetchone()[0])
        assert found == each * (len(ids) - 1), table
    again = furnished(owner)
    for session_id in ids[1:]:
        session = again.get_session(session_id)
        assert await session.freeze_system_prompt() == prompts[session_id]
        assert len(await session.get_history()) == 2
    assert "apple" not in await again.get_session(info.id).freeze_system_prompt()


async def test_deleting_one_session_after_the_other_leaves_empty_tables(owner):  # B88
    manager = furnished(owner)
    for info in [await manager.create("a"), await manager.create("b")]:
        await fill(manager, info.id, "pear")
        await manager.delete(info.id)
    assert set((await rows(owner)).values()) == {0}


async def test_deleting_what_is_not_there_is_silent_and_removes_an_unregistered_session_too(owner):  # D23
    manager = furnished(owner)
    await manager.delete("never")
    await fill(manager, "unregistered", "plum")
    await manager.delete("unregistered")
    await manager.delete("unregistered")
    assert set((await rows(owner)).values()) == {0}
    with pytest.raises(InvalidArgument, match="default session"):
        await manager.delete("")


async def test_a_deletion_is_undone_as_a_whole_when_it_fails(owner, monkeypatch):
    manager = furnished(owner)
    info = await manager.create("a")
    await fill(manager, info.id, "fig")
    before = await rows(owner)

    def fail(*_):
        raise OSError("no")

    monkeypatch.setattr("storage.notes.clear", fail)
    with pytest.raises(OSError, match="no"):
        await manager.delete(info.id)
    assert await rows(owner) == before
    assert [found["id"] for found in await manager.search("fig")] == ["m1", "m2"]


async def test_a_session_whose_deletion_failed_is_as_it_was(owner, monkeypatch):
    runs = []
    manager = SessionManager.create(owner).on_compaction(runs.append).compact_after(1)
    info = await manager.create("a")
    session = manager.get_session(info.id)

    def fail(*_):
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr("storage.notes.clear", fail)
        with pytest.raises(OSError, match="no"):
            await manager.delete(info.id)
    assert manager.get_session(info.id) is session
    await manager.append(info.id, text("m1"))
    await session.settled()
    assert len(runs) == 1


async def test_a_refused_write_takes_no_session_away_from_who_has_it(manager):
    refused = asyncio.create_task(manager.append("early", text("m1")))
    await asyncio.sleep(0)
    session = manager.get_session("early")
    with pytest.raises(UnknownSession):
        await refused
    assert manager.get_session("early") is session


async def test_appends_at_the_time_of_a_deletion_leave_nothing(owner):
    for turn in range(20):
        manager = (
            SessionManager.create(owner).with_cached_prompt().on_compaction(lambda messages: None).compact_after(1)
        )
        info = await manager.create("a")
        if turn % 2:
            await manager.append(info.id, text("m0"))

        async def late(number, turns, manager=manager, session_id=info.id):
            for _ in range(turns):
                await asyncio.sleep(0)
            await manager.append(session_id, text(f"m{number}", "more and more words" * (number + 1)))

        tasks = [asyncio.create_task(late(number, turn * number % 7)) for number in range(6)]
        for _ in range(turn % 5):
            await asyncio.sleep(0)
        await manager.delete(info.id)
        await asyncio.gather(*tasks, return_exceptions=True)
        await SessionsInUse(owner.database).settled()
        assert set((await rows(owner)).values()) == {0}
        assert len(manager._sessions) == 0


async def test_what_a_summary_cost_is_in_the_totals_once(owner):  # B35
    def fold(messages):
        usage = Usage(100, 20, 0.5)
        return CompactResult(fromMessageId="m1", toMessageId="m2", summary="s", usage=usage)

    manager = SessionManager.create(owner).on_compaction(fold)
    info = await manager.create("a")
    await manager.append_all(info.id, [text("m1"), text("m2"), text("m3")])
    assert await manager.get_session(info.id).compact() is not None
    await manager.add_usage(info.id, 1, 1, 0.25)
    known = await manager.get(info.id)
    assert (known.input_tokens, known.output_tokens, known.estimated_cost) == (101, 21, 0.75)


async def test_a_compaction_that_runs_when_its_session_is_deleted_leaves_nothing(owner):
    began, gate = asyncio.Event(), asyncio.Event()

    async def slow(messages):
        began.set()
        await gate.wait()
        return {"fromMessageId": "m1", "toMessageId": "m1", "summary": "s"}

    manager = SessionManager.create(owner).with_cached_prompt().on_compaction(slow).compact_after(1)
    info = await manager.create("a")
    session = manager.get_session(info.id)
    await manager.append(info.id, text("m1"))
    await began.wait()
    by_hand = asyncio.create_task(session.compact())
    late = asyncio.create_task(manager.append(info.id, text("m2")))
    deletion = asyncio.create_task(manager.delete(info.id))
    gate.set()
    await asyncio.gather(by_hand, late, deletion, return_exceptions=True)
    await session.settled()
    assert set((await rows(owner)).values()) == {0}
    assert owner.frames[-1]["phase"] == "idle"


async def test_a_session_that_was_deleted_compacts_no_more(owner):
    runs = []
    manager = SessionManager.create(owner).on_compaction(runs.append).compact_after(1)
    info = await manager.create("a")
    held = manager.get_session(info.id)
    await manager.append(info.id, text("m1"))
    await held.settled()
    assert len(runs) == 1
    await manager.delete(info.id)
    await held.append_message(text("m2", "much longer than before, so that another run would be due " * 3))
    await held.settled()
    assert len(runs) == 1
    assert (await rows(owner))["notes"] == 0


@pytest.mark.parametrize("is_own", [True, False], ids=["of the manager", "made by another"])
async def test_a_prompt_that_is_rendered_when_its_session_is_deleted_leaves_nothing(owner, is_own):  # D23
    """A compaction by hand has stored its summary, and reads the blocks again: as long as that takes the session is deleted."""
    reading, gate = asyncio.Event(), asyncio.Event()

    class Slow:
        is_slow = False

        async def get(self):
            if self.is_slow:
                reading.set()
                await gate.wait()
            return "known"

    def fold(messages):
        block.is_slow = True
        return {"fromMessageId": "m1", "toMessageId": "m1", "summary": "s"}

    block = Slow()
    manager = SessionManager.create(owner).with_context("soul", provider=block).with_cached_prompt().on_compaction(fold)
    info = await manager.create("a")
    session = manager.get_session(info.id)
    if not is_own:
        session = Session.create(owner).for_session(info.id).with_context("soul", provider=block)
        session.with_cached_prompt().on_compaction(fold)
    await session.append_message(text("m1"))
    await session.freeze_system_prompt()
    by_hand = asyncio.create_task(session.compact())
    await reading.wait()
    block.is_slow = False
    assert (await rows(owner))["assistant_compactions"] == 1
    await manager.delete(info.id)
    gate.set()
    await by_hand
    assert set((await rows(owner)).values()) == {0}


async def test_a_prompt_is_kept_again_when_a_deletion_failed(owner, monkeypatch):
    def fail(*_):
        raise OSError("no")

    manager = SessionManager.create(owner).with_context("memory").with_cached_prompt()
    info = await manager.create("a")
    with monkeypatch.context() as patch:
        patch.setattr("storage.notes.clear", fail)
        with pytest.raises(OSError, match="no"):
            await manager.delete(info.id)
    await manager.get_session(info.id).freeze_system_prompt()
    assert (await rows(owner))["cf_agents_context_blocks"] == 1


# ---- sessions in memory -------------------------------------------------------------------------------------------


async def test_sessions_that_nobody_holds_do_not_pile_up(owner, monkeypatch):
    monkeypatch.setattr("actors.session.held.KEPT", 3)
    manager = SessionManager.create(owner)
    infos = [await manager.create(str(number)) for number in range(8)]
    held = manager.get_session(infos[0].id)
    for info in infos:
        await manager.append(info.id, text("m1"))
        manager.get_session(info.id)
    gc.collect()
    assert len(manager._sessions) == 3
    alive = {user for user in owner.database.users if isinstance(user, Session)}
    assert {session._session_id for session in alive} == {infos[0].id, *(info.id for info in infos[-3:])}
    assert manager.get_session(infos[0].id) is held
    for info in infos:
        assert len(await manager.get_history(info.id)) == 1
        await manager.append(info.id, text("m2"))
        assert await manager.get_message_count(info.id) == 2


async def test_a_session_that_compacts_stays_though_nobody_holds_it(owner, monkeypatch):
    monkeypatch.setattr("actors.session.held.KEPT", 1)
    began, gate = asyncio.Event(), asyncio.Event()

    async def slow(messages):
        began.set()
        await gate.wait()
        return {"fromMessageId": "m1", "toMessageId": "m1", "summary": "s"}

    manager = SessionManager.create(owner).on_compaction(slow).compact_after(10)
    info = await manager.create("a")
    await manager.append(info.id, text("m1", "many more words than ten tokens can be " * 3))
    await began.wait()
    for number in range(3):
        await manager.append((await manager.create(str(number))).id, text("m1", "x"))
    gc.collect()
    assert SessionsInUse(owner.database).is_compacting
    assert manager.get_session(info.id).is_compacting
    gate.set()
    await SessionsInUse(owner.database).settled()
    assert [message["id"][:11] for message in await manager.get_history(info.id)] == ["compaction_"]


async def test_an_owner_is_a_filter_and_no_border(owner):
    manager = SessionManager.create(owner)
    mine, other = await manager.create("a", owner="ann"), await manager.create("b", owner="bob")
    await manager.append(mine.id, text("m1", "apples"))
    await manager.append(other.id, text("m2", "apples too"))
    assert [info.id for info in await manager.list(owner="ann")] == [mine.id]
    assert {found["id"] for found in await manager.search("apples")} == {"m1", "m2"}


# ---- what was never created ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb",
    [
        lambda m, i: m.append(i, text("n")),
        lambda m, i: m.upsert(i, text("n")),
        lambda m, i: m.append_all(i, [text("n")]),
        lambda m, i: m.append_all(i, []),
        lambda m, i: m.clear_messages(i),
        lambda m, i: m.delete_messages(i, ["n"]),
        lambda m, i: m.add_compaction(i, "s", "n", "n"),
        lambda m, i: m.add_usage(i, 1, 1),
        lambda m, i: m.fork(i, "n", "f"),
        lambda m, i: m.compact_and_split(i, "s"),
    ],
)
async def test_writes_to_a_session_that_was_never_created_are_refused(manager, owner, verb):  # D28
    for session_id in ("never", ""):
        with pytest.raises(UnknownSession):
            await verb(manager, session_id)
    assert len(manager._sessions) == 0
    assert owner.frames == []
    await manager.rename("never", "x")
    assert await manager.list() == []


async def test_a_session_may_be_used_before_its_row_exists(manager):  # D28
    session = manager.get_session("early")
    assert isinstance(session, Session)
    assert manager.get_session("early") is session
    await session.append_message(text("m1"))
    assert [message["id"] for message in await manager.get_history("early")] == ["m1"]
    assert await manager.list() == []


@pytest.mark.parametrize("bad", [None, 7, b"x"])
async def test_an_id_that_is_no_text_is_refused(manager, bad):
    for verb in (manager.get, manager.delete, manager.get_history):
        with pytest.raises(InvalidArgument):
            await verb(bad)
    with pytest.raises(InvalidArgument):
        manager.get_session(bad)


async def test_a_provider_that_cannot_be_one_is_refused_where_it_is_given(manager):
    for configure in (lambda: manager.with_context("memory", provider=7), lambda: manager.with_cached_prompt(7)):
        with pytest.raises(InvalidArgument, match="provider"):
            configure()
    with pytest.raises(InvalidArgument, match="label"):
        manager.with_searchable_history("")


async def test_configuration_comes_before_use(manager):
    manager.get_session("a")
    with pytest.raises(InvalidArgument, match="in use"):
        manager.with_context("memory")


# ---- pages of sessions --------------------------------------------------------------------------------------------


async def walk(manager, limit, **options):
    found, cursor = [], None
    while True:
        page = await manager.page(limit, cursor, **options)
        found += [info.name for info in page.sessions]
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("order", ["updated", "created"])
@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
async def test_pages_come_to_the_whole_list(manager, limit, order):
    for number in range(7):
        await manager.create(str(number), owner="even" if number % 2 == 0 else "odd", tags=["t"] if number > 2 else [])
    assert await walk(manager, limit, order=order) == ["6", "5", "4", "3", "2", "1", "0"]
    assert await walk(manager, limit, order=order, owner="even") == ["6", "4", "2", "0"]
    assert await walk(manager, limit, order=order, owner="odd", tag="t") == ["5", "3"]


async def test_a_cursor_stays_valid_while_sessions_come_change_and_go(manager):
    infos = [await manager.create(str(number)) for number in range(6)]
    page = await manager.page(2, order="created")
    assert [info.name for info in page.sessions] == ["5", "4"]
    await manager.delete(infos[4].id)  # the one that the cursor tells of
    await manager.delete(infos[3].id)
    await manager.rename(infos[0].id, "zero")
    await manager.create("6")
    page = await manager.page(2, page.next_cursor, order="created")
    assert [info.name for info in page.sessions] == ["2", "1"]
    page = await manager.page(2, page.next_cursor, order="created")
    assert ([info.name for info in page.sessions], page.next_cursor) == (["zero"], None)


BAD_CURSORS = ["", "x", "a b", "é", "W10", "bnVsbA", "e30", "WzFd", "WzEsMl0", "A" * 5_000, 7, b"WzFd", "////", "=="]


async def test_a_cursor_that_is_none_is_one_clear_error(manager):
    for number in range(3):
        await manager.create(str(number))
    good = (await manager.page(1)).next_cursor
    for cursor in [*BAD_CURSORS, good + "A", good[:-1], good[::-1]]:
        with pytest.raises(InvalidArgument, match="cursor"):
            await manager.page(1, cursor)
    for other in ({"order": "created"}, {"owner": "x"}, {"tag": "x"}):
        with pytest.raises(InvalidArgument, match="cursor"):
            await manager.page(1, good, **other)


@pytest.mark.parametrize("limit", [0, -1, 1001, 1.5, float("nan"), float("inf"), None, "5", True])
async def test_the_limit_of_a_page_has_bounds(manager, limit):
    with pytest.raises(InvalidArgument, match="limit"):
        await manager.page(limit)
    with pytest.raises(InvalidArgument, match="order"):
        await manager.page(1, order="name")


async def test_totals_of_usage_end_at_the_last_number_that_is_exact(manager):
    info = await manager.create("a")
    for _ in range(1_100):
        await manager.add_usage(info.id, 2**53, 2**53, 2.0**53)
    found = await manager.get(info.id)
    totals = (found.input_tokens, found.output_tokens, found.estimated_cost)
    assert totals == (2**53, 2**53, 2.0**53)
    assert [type(total) for total in totals] == [int, int, float]


@pytest.mark.parametrize("amounts", [(10**400, 0), (0, 10**400), (0, 0, 10**400), (2**53 + 1, 0), (10**5_000, 0)])
async def test_usage_beyond_all_bounds_is_refused(manager, amounts):
    info = await manager.create("a")
    with pytest.raises(InvalidArgument, match=r"from 0 to 2\*\*53"):
        await manager.add_usage(info.id, *amounts)
    assert (await manager.get(info.id)).input_tokens == 0


def test_help_says_how_a_session_is_created(manager):
    shown = pydoc.plain(pydoc.render_doc(SessionManager))
    assert "SessionManager.create(owner)" in shown
    for option in ("name", "parent_session_id", "model", "source", "owner", "tags"):
        assert f"{option}=…" in shown or f"manager.create({option}" in shown or f"{option}=[…]" in shown
    assert "``name`` is its title" in pydoc.plain(pydoc.render_doc(manager.create))
