"""Pages of messages without their content: complete, in order, valid while messages come and go, at the cost of their rows."""

import json
import os
import random
import sqlite3
from types import SimpleNamespace

import pytest
from awake import awake
from hypothesis import given, settings
from hypothesis import strategies as st
from session_support import opened, text
from test_manager_sessions import BAD_CURSORS
from test_message_costs import steps

from actors import Session, SessionManager
from actors.errors import NotSupported
from actors.session.providers import SESSION_METHODS
from storage import AgentSessionProvider, history, message_pages, schema, sessions
from storage import message_tree as tree
from storage.errors import InvalidArgument
from storage.records import LATEST


def walk(connection, session_id, limit, between=lambda page: None, **options):
    """The ids of all pages; `between` is called after each."""
    ids, cursor = [], None
    while True:
        page = message_pages.page(connection, session_id, limit, cursor, **options)
        ids += [row["id"] for row in page["messages"]]
        assert len(page["messages"]) <= limit
        if "nextCursor" not in page:
            return ids
        cursor = page["nextCursor"]
        between(page)


@pytest.fixture
def connection():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    yield connection
    connection.close()


@pytest.fixture
async def owner(tmp_path):
    async with opened(tmp_path) as owner:
        yield owner


async def test_a_row_tells_of_a_message_and_has_nothing_of_its_content(owner):
    session = Session.create(owner)
    await session.append_message(text("m1", "hello there"))
    await session.append_message(text("m2", "ünïcode", role="assistant"))
    page = await session.page_messages()
    rows = page["messages"]
    assert list(page) == ["messages"]
    assert [(row["id"], row["parentId"], row["role"]) for row in rows] == [
        ("m2", "m1", "assistant"),
        ("m1", None, "user"),
    ]
    stats = await session.get_history_row_stats()
    assert [row["bytes"] for row in rows] == [stat["bytes"] for stat in stats[::-1]]
    assert sum(row["tokens"] for row in rows) == owner.frames[-1]["tokenEstimate"]
    assert all(row["createdAt"] > "2020" for row in rows)
    assert all(row.keys() == {"id", "parentId", "role", "bytes", "tokens", "createdAt"} for row in rows)


async def test_an_empty_session_and_an_unknown_leaf_have_one_empty_page(owner):
    session = Session.create(owner)
    for order in ("newest", "oldest", "inserted"):
        assert await session.page_messages(order=order) == {"messages": []}
    await session.append_message(text("m1"))
    assert await session.page_messages(leaf_id="missing") == {"messages": []}


@pytest.mark.parametrize("limit", [0, -1, 1001, 2.5, float("nan"), None, "5", True])
async def test_the_limit_of_a_page_has_bounds(owner, limit):
    with pytest.raises(InvalidArgument, match="limit"):
        await Session.create(owner).page_messages(limit)


async def test_a_cursor_that_is_none_or_of_another_listing_is_one_clear_error(owner):
    session, other = Session.create(owner), Session.create(owner).for_session("x")
    for number in range(4):
        await session.append_message(text(f"m{number}"))
        await other.append_message(text(f"m{number}"))
    good = (await session.page_messages(1))["nextCursor"]
    for cursor in [*BAD_CURSORS, good[:-2], good + "AA"]:
        for order in ("newest", "oldest", "inserted"):
            with pytest.raises(InvalidArgument, match="cursor"):
                await session.page_messages(1, cursor, order=order)
    for options in ({"order": "oldest"}, {"order": "inserted"}, {"leaf_id": "m2"}):
        with pytest.raises(InvalidArgument, match="cursor"):
            await session.page_messages(1, good, **options)
    with pytest.raises(InvalidArgument, match="cursor"):
        await other.page_messages(1, good)
    with pytest.raises(InvalidArgument, match="order"):
        await session.page_messages(1, order="random")
    with pytest.raises(InvalidArgument, match="leaf"):
        await session.page_messages(1, order="inserted", leaf_id="m2")


async def test_storage_that_has_no_pages_says_so(owner):
    provider = AgentSessionProvider(owner)
    mandatory = SimpleNamespace(**{name: getattr(provider, name) for name in SESSION_METHODS})
    with pytest.raises(NotSupported, match="page"):
        await Session(mandatory).page_messages()


async def test_a_walk_keeps_to_its_path_while_messages_are_appended_on_another(owner):
    manager = SessionManager.create(owner)
    info = await manager.create("a")
    await manager.append_all(info.id, [text(f"m{number}") for number in range(6)])
    session = manager.get_session(info.id)
    for order, wanted in (("newest", "543210"), ("oldest", "012345")):
        page = await session.page_messages(2, order=order)
        seen = [row["id"] for row in page["messages"]]
        await manager.append_all(info.id, [text(f"{order}1"), text(f"{order}2")], "m1")
        while "nextCursor" in page:
            page = await session.page_messages(2, page["nextCursor"], order=order)
            seen += [row["id"] for row in page["messages"]]
        assert seen == [f"m{digit}" for digit in wanted]
        await manager.delete_messages(info.id, [f"{order}2", f"{order}1"])


def build(connection, source, count=30):
    """A random forest in two sessions; the parent of each message that is left, in the order of insertion."""
    parents = {}
    for number in range(count):
        session_id = source.choice(["", "", "a"]) if number > 5 else ""
        mine = [key for key in parents if key[0] == session_id]
        latest = mine[-1][1] if mine else None
        parent = source.choice([LATEST, LATEST, None, *(key[1] for key in mine[-4:])])
        tree.append(connection, session_id, text(f"m{number}"), parent)
        parents[session_id, f"m{number}"] = latest if parent is LATEST else parent
    return parents


def delete(connection, parents, key):
    tree.delete(connection, key[0], [key[1]])
    above = parents.pop(key)
    for other, parent in parents.items():
        if other[0] == key[0] and parent == key[1]:
            parents[other] = above


def path_of(parents, session_id, leaf):
    path = []
    while leaf is not None:
        path.append(leaf)
        leaf = parents[session_id, leaf]
    return path


@settings(max_examples=500 if os.environ.get("TESTS_LONG") else 30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_pages_come_to_the_whole_in_every_order_while_messages_come_and_go(seed, limit):
    source = random.Random(seed)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    parents = build(connection, source)
    for session_id in ("", "a"):
        for order in ("newest", "oldest", "inserted"):
            mine = [key[1] for key in parents if key[0] == session_id]
            if not mine:
                continue
            leaf = None if order == "inserted" else source.choice([None, *mine])
            path = path_of(parents, session_id, leaf or mine[-1])
            wanted = {"newest": path, "oldest": path[::-1], "inserted": mine}[order]
            added = []

            def change(_, session_id=session_id, keep=leaf or mine[-1], added=added):
                for _ in range(source.randrange(3)):
                    key = source.choice(list(parents))
                    if key[1] != keep and len(parents) > 3:  # the leaf stays; another test takes it
                        delete(connection, parents, key)
                name = f"new{source.getrandbits(60)}"
                parent = source.choice([key[1] for key in parents if key[0] == session_id])
                tree.append(connection, session_id, text(name), parent)
                parents[session_id, name] = parent
                added.append(name)

            ids = walk(connection, session_id, limit, change, order=order, leaf_id=leaf)
            assert len(ids) == len(set(ids))
            left = {key[1] for key in parents if key[0] == session_id}
            old = [identity for identity in ids if identity not in added]
            assert [identity for identity in old if identity in left] == [i for i in wanted if i in left]
            assert set(old) <= set(wanted)
            assert set(ids) - set(old) <= (set(added) if order == "inserted" else set())
    connection.close()


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_walk_goes_on_when_all_that_its_cursor_tells_of_is_gone(connection, order):
    for number in range(10):
        tree.append(connection, "", text(f"m{number}"))
        tree.append(connection, "x", text(f"m{number}"))
    page = message_pages.page(connection, "", 4, order=order)
    seen = [row["id"] for row in page["messages"]]
    tree.delete(connection, "", [*seen, "m9"])
    tree.append(connection, "x", text("reuses the number"))
    ids = []
    while "nextCursor" in page:
        page = message_pages.page(connection, "", 4, page["nextCursor"], order=order)
        ids += [row["id"] for row in page["messages"]]
    wanted = [f"m{number}" for number in range(10) if f"m{number}" not in [*seen, "m9"]]
    assert ids == (wanted[::-1] if order == "newest" else wanted)


def test_a_number_that_was_given_again_does_not_lead_a_walk_astray(connection):
    for number in range(10):
        tree.append(connection, "", text(f"m{number}"))
    page = message_pages.page(connection, "", 4)
    assert [row["id"] for row in page["messages"]] == ["m9", "m8", "m7", "m6"]
    tree.delete(connection, "", ["m9", "m8", "m7", "m6"])
    tree.append(connection, "", text("other"), "m2")  # in the place of m6
    ids = [row["id"] for row in message_pages.page(connection, "", 10, page["nextCursor"])["messages"]]
    assert ids == ["m5", "m4", "m3", "m2", "m1", "m0"]


@pytest.mark.parametrize("order", ["newest", "oldest", "inserted"])
def test_a_walk_ends_when_everything_was_cleared(connection, order):
    for number in range(10):
        tree.append(connection, "", text(f"m{number}"))
    page = message_pages.page(connection, "", 4, order=order)
    tree.clear(connection, "")
    assert message_pages.page(connection, "", 4, page["nextCursor"], order=order) == {"messages": []}
    for number in range(3):
        tree.append(connection, "", text(f"n{number}"))
    ids = [row["id"] for row in message_pages.page(connection, "", 4, page["nextCursor"], order=order)["messages"]]
    assert set(ids) <= {"n0", "n1", "n2"}


def filled(count, sessions=("",)):
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    for number in range(count):
        for session_id in sessions:
            tree.append(connection, session_id, text(f"m{number}"))
    return connection


@pytest.mark.parametrize("order", ["newest", "oldest", "inserted"])
@pytest.mark.parametrize("sessions", [("",), ("", "x"), ("x", "y")])
def test_a_page_costs_its_rows_whatever_the_history(order, sessions):
    costs = []
    for count in (150, 3_000):
        connection = filled(count, sessions)
        session_id = sessions[-1]
        first = message_pages.page(connection, session_id, 20, order=order)
        second = message_pages.page(connection, session_id, 20, first["nextCursor"], order=order)
        for cursor in (None, first["nextCursor"], second["nextCursor"]):
            costs.append(
                (
                    count,
                    steps(
                        connection,
                        lambda c=connection, s=session_id, k=cursor: message_pages.page(c, s, 20, k, order=order),
                    ),
                )
            )
        connection.close()
    small = max(cost for count, cost in costs if count == 150)
    large = max(cost for count, cost in costs if count == 3_000)
    assert large <= small * 1.3


def test_a_page_of_a_default_session_that_has_company_costs_its_rows(connection):
    for number in range(30):
        tree.append(connection, "", text(f"m{number}"))
    for number in range(3_000):
        tree.append(connection, "busy", text(f"b{number}"))
    for number in range(30, 60):
        tree.append(connection, "", text(f"m{number}"))
    for order in ("newest", "oldest", "inserted"):
        assert len(walk(connection, "", 7, order=order)) == 60
        cursor = message_pages.page(connection, "", 25, order=order)["nextCursor"]
        for given_cursor in (None, cursor):
            cost = steps(connection, lambda c=given_cursor, o=order: message_pages.page(connection, "", 25, c, order=o))
            assert cost < 1_500


async def test_pages_over_the_server(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect()
        for number in range(5):
            await hall.call("appendMessage", text(f"m{number}"))
        page = await hall.call("pageMessages", 2)
        assert [row["id"] for row in page["messages"]] == ["m4", "m3"]
        page = await hall.call("pageMessages", {"limit": 2, "cursor": page["nextCursor"]})
        assert [row["id"] for row in page["messages"]] == ["m2", "m1"]
        page = await hall.call("pageMessages", 2, page["nextCursor"], "newest", None)
        assert page == {"messages": [row for row in page["messages"] if row["id"] == "m0"]}
        assert [row["id"] for row in (await hall.call("pageMessages", {"order": "oldest"}))["messages"]] == [
            f"m{number}" for number in range(5)
        ]
        with pytest.raises(AssertionError, match="cursor"):
            await hall.call("pageMessages", 2, "nonsense")


def test_the_order_of_a_path_is_that_of_the_history(connection):
    build(connection, random.Random(1), 60)
    for session_id in ("", "a"):
        raw = [message["id"] for message in json.loads(history.raw_json(connection, session_id))]
        assert walk(connection, session_id, 5, order="oldest") == raw
        assert walk(connection, session_id, 5, order="newest") == raw[::-1]


def test_a_page_of_sessions_reads_no_more_of_the_registry_than_it_says():
    """Steps of SQLite for a page of ten of 3,000 sessions."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    for number in range(3_000):
        new = sessions.NewSession("s", owner="rare" if number % 300 == 0 else "common", tags=("all", f"t{number % 2}"))
        sessions.create(connection, f"s{number}", new)

    def cost(**filters):
        found = []
        return steps(connection, lambda: found.extend(sessions.page(connection, 10, **filters)[0])), len(found)

    whole, found = cost()
    assert (whole < 1_000, found) == (True, 10)
    assert cost(owner="rare")[0] < 1_000
    assert cost(owner="common", tag="all")[0] < 2_000
    half, found = cost(tag="t1")
    assert (half < 3_000, found) == (True, 10)  # about twice ten sessions are looked at
    assert cost(owner="rare", tag="none")[0] < 2_000  # those of the owner
    never, found = cost(tag="none")
    assert (20_000 < never < 300_000, found) == (True, 0)  # all of them: the price of a tag that nobody has
