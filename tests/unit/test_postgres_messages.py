"""PostgresSessionProvider on a real server, over every kind of client."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import postgres_clients
import pytest
from postgres_server import PostgresServer, server
from psycopg import AsyncConnection

from actors.session import Session
from storage import AgentSessionProvider, PostgresSessionProvider, open_database
from storage.errors import InvalidArgument, InvalidMessage, LimitExceeded, UnknownMessage, UnknownParent
from storage.postgres.errors import PostgresFailed
from storage.replication import StorageOptions

SUPPORT = Path(__file__).parents[1] / "support"


def message(identity: str, text: str = "", role: str = "user") -> dict[str, Any]:
    return {"id": identity, "role": role, "parts": [{"type": "text", "text": text}]}


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in messages]


@pytest.fixture
def postgres() -> PostgresServer:
    return server()


@pytest.fixture
def schema(postgres: PostgresServer) -> str:
    return postgres.schema()


@pytest.fixture(params=postgres_clients.KINDS)
async def client(request: pytest.FixtureRequest, schema: str) -> AsyncIterator[Any]:
    async with postgres_clients.client(request.param, schema) as client:
        yield client


@pytest.fixture
async def connection(schema: str) -> AsyncIterator[AsyncConnection]:
    async with postgres_clients.client("connection", schema) as connection:
        yield connection


async def test_messages_form_a_tree(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    assert await provider.get_latest_leaf() is None
    for identity in ("a", "b", "c"):
        await provider.append_message(message(identity))
    await provider.append_message(message("d"), "b")
    await provider.append_message(message("root"), None)
    await provider.append_message(message("e"), "d")
    assert ids(await provider.get_history()) == ["a", "b", "d", "e"]
    assert ids(await provider.get_history("c")) == ["a", "b", "c"]
    assert ids(await provider.get_history("root")) == ["root"]
    assert await provider.get_history("nowhere") == []
    assert ids(await provider.get_branches("b")) == ["c", "d"]
    assert await provider.get_path_length() == 4
    assert await provider.get_message("c") == message("c")
    assert await provider.get_latest_leaf() == message("e")
    await provider.clear_messages()
    assert await provider.get_history() == []


async def test_an_append_is_idempotent_by_id_and_refuses_parents_that_are_not_there(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    await provider.append_message(message("a", "first"))
    await provider.append_message(message("a", "second"), None)
    await provider.append_message(message("a", "third"), "nowhere")
    with pytest.raises(UnknownParent):
        await provider.append_message(message("b"), "nowhere")
    await PostgresSessionProvider(client, "other").append_message(message("theirs"))
    with pytest.raises(UnknownParent):
        await provider.append_message(message("b"), "theirs")
    assert await provider.get_history() == [message("a", "first")]


async def test_sessions_have_their_own_ids(client: Any) -> None:
    first, second = PostgresSessionProvider(client, "x"), PostgresSessionProvider(client, "y")
    await first.append_message(message("m", "apple"))
    await second.append_message(message("m", "bridge"))
    await second.delete_messages(["m"])
    assert await first.get_history() == [message("m", "apple")]
    assert await second.search_messages("apple") == []
    assert ids(await first.search_messages("apples")) == ["m"]


async def test_a_deletion_leaves_messages_of_the_same_id_in_other_sessions_where_they_are(client: Any) -> None:
    first, second = PostgresSessionProvider(client, "x"), PostgresSessionProvider(client, "y")
    for identity in "abcd":
        await first.append_message(message(identity))
    for identity, parent in (("b", None), ("d", "b")):
        await second.append_message(message(identity), parent)
    await second.add_compaction("sum", "b", "d")
    await first.delete_messages(["b"])
    assert ids(await first.get_history()) == ["a", "c", "d"]
    assert ids(await second.get_raw_history()) == ["b", "d"]
    assert [row["fromMessageId"] for row in await second.get_compactions()] == ["b"]


async def test_an_update_of_an_unknown_message_stores_nothing(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    await provider.append_message(message("a", "apple"))
    await provider.update_message(message("a", "bridge", "assistant"))
    with pytest.raises(UnknownMessage):
        await provider.update_message(message("b", "bridge"))
    assert await provider.search_messages("apple") == []
    assert ids(await provider.search_messages("bridge")) == ["a"]
    assert await provider.get_history() == [message("a", "bridge", "assistant")]


async def test_children_of_deleted_messages_take_the_nearest_ancestor_that_stays(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    for identity in "abcdef":
        await provider.append_message(message(identity))
    await provider.append_message(message("g"), "c")
    await provider.delete_messages(["c", "b", "d", "d", "nowhere"])
    assert ids(await provider.get_history("f")) == ["a", "e", "f"]
    assert ids(await provider.get_branches("a")) == ["e", "g"]
    await provider.delete_messages(["a"])
    assert ids(await provider.get_history()) == ["g"]
    assert ids(await provider.get_history("f")) == ["e", "f"]


async def test_an_overlay_keeps_what_is_left_of_its_range(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    for identity in "abcdef":
        await provider.append_message(message(identity))
    stored = await provider.add_compaction("sum", "b", "d")
    assert (await provider.get_history())[1] == {
        "id": f"compaction_{stored['id']}",
        "role": "assistant",
        "parts": [{"type": "text", "text": "sum"}],
        "createdAt": stored["createdAt"],
    }
    await provider.add_compaction("never applies", "nowhere", "d")
    await provider.delete_messages(["b"])
    assert ids(await provider.get_history()) == ["a", f"compaction_{stored['id']}", "e", "f"]
    await provider.delete_messages(["d"])
    ends = [(row["fromMessageId"], row["toMessageId"]) for row in await provider.get_compactions()]
    assert ends == [("c", "c"), ("nowhere", "d")]
    await provider.delete_messages(["c"])
    assert ids(await provider.get_history()) == ["a", "e", "f"]
    assert [row["summary"] for row in await provider.get_compactions()] == ["never applies"]


async def test_a_summary_does_not_come_to_another_branch_when_its_end_is_deleted(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    for identity in ("m1", "m2", "a1", "a2"):
        await provider.append_message(message(identity))
    await provider.append_message(message("b1"), "m2")
    await provider.add_compaction("of a", "m1", "a1")
    await provider.delete_messages(["a1"])
    assert ids(await provider.get_history("b1")) == ["m1", "m2", "b1"]
    assert ids(await provider.get_history("a2")) == ["m1", "m2", "a2"]
    assert await provider.get_compactions() == []


async def test_a_deletion_of_several_is_one_of_each_in_turn_and_all_or_none(client: Any, schema: str) -> None:
    provider = PostgresSessionProvider(client)
    for identity in ("m1", "m2", "a1", "a2"):
        await provider.append_message(message(identity))
    await provider.append_message(message("b1"), "m2")
    await provider.add_compaction("of a", "m1", "a1")
    server().execute(
        """CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE 'no'; END $$ LANGUAGE plpgsql;
           CREATE TRIGGER refuse BEFORE DELETE ON assistant_messages FOR EACH ROW WHEN (OLD.id = 'a1')
           EXECUTE FUNCTION refuse()""",
        schema=schema,
    )
    with pytest.raises(PostgresFailed):
        await provider.delete_messages(["b1", "a1"])
    assert ids(await provider.get_history("b1")) == ["m1", "m2", "b1"]
    server().execute("DROP TRIGGER refuse ON assistant_messages", schema=schema)
    await provider.delete_messages(["b1", "a1"])  # the other branch is gone before the end is
    assert [(row["fromMessageId"], row["toMessageId"]) for row in await provider.get_compactions()] == [("m1", "m2")]


@pytest.mark.parametrize("first", ["get_history", "append", "get_raw_history", "search"])
async def test_summaries_that_are_stored_as_messages_go_on_first_use(schema: str, client: Any, first: str) -> None:
    writer = PostgresSessionProvider(client, "s")
    for identity in ("m1", "m2", "m3"):
        await writer.append_message(message(identity))
    overlay = await writer.add_compaction("sum", "m1", "m2")
    shown = f"compaction_{overlay['id']}"
    for identity, parent in ((shown, "m3"), ("m4", shown), ("compaction_lost", "m4")):
        server().execute(
            """INSERT INTO assistant_messages (id, session_id, parent_id, role, content, text_content)
               VALUES (%s, 's', %s, 'user', %s, 'echo')""",
            *(identity, parent, orjson.dumps(message(identity, "echo")).decode()),
            schema=schema,
        )
    provider = PostgresSessionProvider(client, "s")
    match first:
        case "get_history":
            assert ids(await provider.get_history()) == [shown, "m3", "m4", "compaction_lost"]
        case "get_raw_history":
            assert ids(await provider.get_raw_history()) == ["m1", "m2", "m3", "m4", "compaction_lost"]
        case "append":
            await provider.append_message(message("m4"))
        case "search":
            assert set(ids(await provider.search_messages("echo"))) == {"m4", "compaction_lost"}
    found = server().execute("SELECT id FROM assistant_messages ORDER BY seq", schema=schema)
    assert [row[0] for row in found] == ["m1", "m2", "m3", "m4", "compaction_lost"]
    assert ids(await provider.get_branches("m3")) == ["m4"]


async def test_a_role_that_may_only_read_reads_in_spite_of_summaries_stored_as_messages(schema: str) -> None:
    postgres = server()
    async with postgres_clients.client("connection", schema) as connection:
        writer = PostgresSessionProvider(connection)
        await writer.append_message(message("m1"))
        overlay = await writer.add_compaction("sum", "m1", "m1")
    shown = f"compaction_{overlay['id']}"
    content = orjson.dumps(message(shown)).decode()
    statement = "INSERT INTO assistant_messages (id, parent_id, role, content) VALUES (%s, 'm1', 'user', %s)"
    postgres.execute(statement, shown, content, schema=schema)
    role = f"reader_{schema}"
    postgres.execute(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    postgres.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    async with await AsyncConnection.connect(postgres.dsn(schema, role)) as connection:
        provider = PostgresSessionProvider(connection)
        assert ids(await provider.get_history()) == [shown, shown]
        with pytest.raises(PostgresFailed):
            await provider.append_message(message("m2"))


async def test_the_id_of_an_overlay_is_no_message(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    await provider.append_message(message("a"))
    stored = await provider.add_compaction("sum", "a", "a")
    (shown,) = await provider.get_history()
    await provider.append_message(shown)
    await provider.update_message(shown)
    assert ids(await provider.get_raw_history()) == ["a"]
    with pytest.raises(InvalidMessage):
        await provider.append_message(message("compaction_x"))
    with pytest.raises(InvalidMessage):
        await PostgresSessionProvider(client, "other").append_message(message(f"compaction_{stored['id']}"))
    with pytest.raises(UnknownMessage):
        await provider.update_message(message("compaction_x"))


ODD = [
    "?",
    "100% of %s, $1",
    'it\'s \\ "quoted" $perdure$ $statement$',
    "a\0b",
    "\0",
    "\ufdd0 \0 \ufdd0\ufdd0",
    "日本 🎉 é",
]


@pytest.mark.parametrize("odd", ODD)
async def test_any_text_comes_back_as_it_was(client: Any, odd: str) -> None:
    provider = PostgresSessionProvider(client, f"session {odd}")
    first = {**message(f"id {odd}", odd, f"role {odd}"), "extra": {odd: [odd]}}
    await provider.append_message(first)
    await provider.append_message(message(f"second {odd}"), f"id {odd}")
    await provider.update_message(first)
    stored = await provider.add_compaction(odd, f"second {odd}", f"second {odd}")
    assert (await provider.get_history())[0] == first
    assert (await provider.get_history())[1]["parts"][0]["text"] == odd
    assert await provider.get_compactions() == [stored]
    assert (stored["summary"], stored["fromMessageId"]) == (odd, f"second {odd}")
    assert ids(await provider.get_branches(f"id {odd}")) == [f"second {odd}"]
    await provider.delete_messages([f"id {odd}"])
    assert ids(await provider.get_raw_history(f"second {odd}")) == [f"second {odd}"]
    with pytest.raises(UnknownParent) as caught:
        await provider.append_message(message("third"), f"id {odd}")
    assert caught.value.args == (f"id {odd}",)


async def test_lone_surrogates_are_replaced_and_pairs_of_them_joined(client: Any) -> None:
    provider = PostgresSessionProvider(client, "\ud800")
    await provider.append_message(message("\udc00", "a\ud83d\ude00b\ud800c"))
    assert await provider.get_history("\udc00") == [message("\ufffd", "a😀b\ufffdc")]
    assert provider.session_id == "\ufffd"


async def test_words_after_a_nul_are_found(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    await provider.append_message(message("a", "alpha\0omega"))
    for word in ("alpha", "omega"):
        (found,) = await provider.search_messages(word)
        assert found["content"] == "alpha\0omega"
    assert ids(await provider.search_messages("alpha\0omega")) == ["a"]


async def test_search_takes_every_word_of_a_query_in_any_form(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    await provider.append_message(message("a", "The deployment is planned for Friday"))
    await provider.append_message(message("b", "Deploying on Monday, ticket POL-358"))
    await provider.append_message({**message("c", "東京タワーの写真 🎉👍"), "createdAt": "2001-02-03T04:05:06.789Z"})
    assert ids(await provider.search_messages("deployment Friday")) == ["a"]
    assert ids(await provider.search_messages("deploy")) == ["a", "b"]
    assert ids(await provider.search_messages("deploy", 1)) == ["a"]
    assert ids(await provider.search_messages("POL-358")) == ["b"]
    for query in ("京タ", "東京 写真", "🎉", "👍 京"):
        assert ids(await provider.search_messages(query)) == ["c"]
    assert await provider.search_messages("東京 写真 deploy") == []
    assert await provider.search_messages("写京") == []
    for query in ("", " ", "the", "\0", "zebra", "' & | ! ( :* \\ % ?"):
        assert await provider.search_messages(query) == []
    assert (await provider.search_messages("🎉"))[0]["createdAt"] == "2001-02-03T04:05:06.789Z"
    with pytest.raises(InvalidArgument):
        await provider.search_messages("deploy", -1)


async def test_recent_history_fits_a_budget(client: Any) -> None:
    provider = PostgresSessionProvider(client)
    for identity in "abcd":
        await provider.append_message(message(identity, "é"))
    size = len('{"id":"a","role":"user","parts":[{"type":"text","text":"é"}]}'.encode())
    found = await provider.get_recent_history(2 * size)
    assert (ids(found["messages"]), found["truncated"], found["totalContentBytes"]) == (["c", "d"], True, 4 * size)
    assert ids((await provider.get_recent_history(0, 3))["messages"]) == ["b", "c", "d"]
    assert (await provider.get_recent_history(4 * size))["truncated"] is False
    await provider.add_compaction("sum", "b", "c")
    assert len((await provider.get_recent_history(3 * size))["messages"]) == 2
    assert ids((await provider.get_recent_history(2 * size))["messages"]) == ["c", "d"]


async def test_a_text_too_long_for_an_index_is_stored_and_found_by_its_beginning(connection: AsyncConnection) -> None:
    provider = PostgresSessionProvider(connection)
    text = " ".join(f"w{number}" for number in range(300_000))
    await provider.append_message(message("a", text))
    assert (await provider.get_message("a")) == message("a", text)
    assert ids(await provider.search_messages("w17")) == ["a"]
    with pytest.raises(LimitExceeded):
        await provider.append_message(message("b", "x" * (9 * 1024 * 1024)))
    with pytest.raises(LimitExceeded):
        await provider.append_message(message("".join(chr(0x4E00 + number) for number in range(5000))))
    assert ids(await provider.get_history()) == ["a"]


@pytest.mark.parametrize("kind", postgres_clients.KINDS)
async def test_two_writers_at_once_neither_lose_nor_double_nor_fork(kind: str, schema: str) -> None:
    async with postgres_clients.client(kind, schema) as one, postgres_clients.client(kind, schema) as two:
        providers = [PostgresSessionProvider(one, "s"), PostgresSessionProvider(two, "s")]
        await providers[0].append_message(message("root"))

        async def write(provider: PostgresSessionProvider, name: str) -> None:
            for number in range(25):
                await provider.append_message(message(f"{name}{number}"))
                await provider.append_message(message(f"both{number}"))

        await asyncio.gather(*(write(provider, name) for provider, name in zip(providers, "ab", strict=True)))
        expected = {f"{name}{number}" for name in ("a", "b", "both") for number in range(25)} | {"root"}
        path = ids(await providers[1].get_history())
        assert (set(path), len(path)) == (expected, len(expected))
        for name in "ab":
            assert [identity for identity in path if identity.rstrip("0123456789") == name] == [
                f"{name}{number}" for number in range(25)
            ]


async def test_two_processes_at_once_make_one_path(schema: str, connection: AsyncConnection) -> None:
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(SUPPORT)!r})
from psycopg import AsyncConnection
from storage import AgentSessionProvider, PostgresSessionProvider, open_database

async def main(name):
    async with await AsyncConnection.connect({server().dsn(schema)!r}) as connection:
        provider = PostgresSessionProvider(connection)
        for number in range(40):
            await provider.append_message({{"id": f"{{name}}{{number}}", "role": "user", "parts": []}})

asyncio.run(main(sys.argv[1]))
"""
    processes = [await asyncio.create_subprocess_exec(sys.executable, "-c", program, name) for name in "ab"]
    assert [await process.wait() for process in processes] == [0, 0]
    path = ids(await PostgresSessionProvider(connection).get_history())
    assert sorted(path) == sorted(f"{name}{number}" for name in "ab" for number in range(40))


async def test_many_tasks_may_share_one_connection(connection: AsyncConnection) -> None:
    provider = PostgresSessionProvider(connection)
    await asyncio.gather(
        *(provider.append_message(message(f"m{number}")) for number in range(30)),
        *(provider.get_history() for _ in range(30)),
    )
    assert await provider.get_path_length() == 30


async def test_a_read_while_messages_go_shows_a_state_that_was(schema: str) -> None:
    async with postgres_clients.client("pool", schema) as pool:
        provider = PostgresSessionProvider(pool)
        names = [f"m{number}" for number in range(40)]
        for name in names:
            await provider.append_message(message(name))

        async def shrink() -> None:
            for name in names[1:-1]:
                await provider.delete_messages([name])

        task = asyncio.create_task(shrink())
        seen = []
        while not task.done():
            seen.append(ids(await provider.get_history()))
        await task
        assert all(path == [names[0], *names[-len(path) + 1 :]] for path in seen)
        assert ids(await provider.get_history()) == [names[0], names[-1]]


async def test_a_read_ends_however_fast_messages_go(connection: AsyncConnection) -> None:
    """Between any two statements of the read another message goes."""

    names = [f"m{number}" for number in range(1, 20)]

    class Shrinking(postgres_clients.ExecuteClient):
        async def execute(self, query: str, args: Any = ()) -> Any:
            answer = await super().execute(query, args)
            if "json_agg" in query:
                await writer.delete_messages([names.pop(0)])
            return answer

    await connection.set_autocommit(True)
    writer = PostgresSessionProvider(connection)
    for number in range(21):
        await writer.append_message(message(f"m{number}"))
    client = Shrinking(connection)
    path = ids(await PostgresSessionProvider(client).get_history())
    assert path == ["m0", *(f"m{number}" for number in range(22 - len(path), 21))]
    assert 10 < len(path) < 21


async def test_writes_are_part_of_a_transaction_that_the_caller_began(schema: str) -> None:
    async with (
        postgres_clients.client("connection", schema) as connection,
        postgres_clients.client("connection", schema) as other,
    ):
        provider, reader = PostgresSessionProvider(connection), PostgresSessionProvider(other)
        await provider.append_message(message("kept"))
        async with connection.transaction(force_rollback=True):
            await provider.append_message(message("dropped"))
            assert ids(await provider.get_history()) == ["kept", "dropped"]
            with pytest.raises(UnknownParent):
                await provider.append_message(message("x"), "nowhere")
            assert ids(await reader.get_history()) == ["kept"]
        assert ids(await provider.get_history()) == ["kept"]
        assert ids(await reader.get_history()) == ["kept"]


@pytest.mark.parametrize("kind", ["connection", "pool"])
async def test_a_write_that_is_cancelled_while_it_waits_stores_nothing_and_the_next_works(
    kind: str, schema: str
) -> None:
    async with (
        postgres_clients.client(kind, schema) as client,
        postgres_clients.client("connection", schema) as holder,
        postgres_clients.client("autocommit", schema) as watcher,
    ):
        provider, holding = PostgresSessionProvider(client), PostgresSessionProvider(holder)
        await provider.append_message(message("a"))
        async with holder.transaction():
            await holding.append_message(message("b"))  # has the session's lock until the end of the transaction
            task = asyncio.create_task(provider.append_message(message("cancelled")))
            query = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while not await (await watcher.execute(query)).fetchall():
                assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await provider.append_message(message("c"))
        assert ids(await provider.get_history()) == ["a", "b", "c"]


async def test_a_read_leaves_no_transaction_open(connection: AsyncConnection) -> None:
    await PostgresSessionProvider(connection).get_history()
    assert connection.info.transaction_status == 0


async def test_a_history_of_ten_thousand_costs_no_more_than_its_length(
    postgres: PostgresServer, schema: str, connection: AsyncConnection
) -> None:
    provider = PostgresSessionProvider(connection)
    await provider.append_message(message("m0"))
    postgres.execute(
        """INSERT INTO assistant_messages (id, parent_id, role, content, text_content)
           SELECT 'm' || n, 'm' || (n - 1), 'user', '{"id":"m' || n || '","role":"user","parts":[]}', 'word ' || n
           FROM generate_series(1, 10050) AS n""",
        schema=schema,
    )
    began = time.monotonic()
    await provider.append_message(message("last"))
    assert await provider.get_path_length() == 10_052
    assert ids(await provider.get_history()) == [*(f"m{number}" for number in range(10_051)), "last"]
    await provider.add_compaction("sum", "m1", "m10000")
    assert len(await provider.get_history()) == 53
    await provider.delete_messages(["m1", "m5000", "m10000"])  # walks the whole range
    (overlay,) = await provider.get_compactions()
    assert (overlay["fromMessageId"], overlay["toMessageId"]) == ("m2", "m9999")
    assert await provider.get_path_length() == 10_049
    took = time.monotonic() - began
    assert took < 10, f"{took:.1f} s: something grows with the square of the history"


async def test_compaction_works_over_it(connection: AsyncConnection) -> None:
    def fold(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"fromMessageId": messages[0]["id"], "toMessageId": messages[-2]["id"], "summary": "short"}

    session = Session.create(PostgresSessionProvider(connection)).on_compaction(fold).compact_after(60)
    for number in range(6):
        await session.append_message(message(f"m{number}", "some words that count " * 3))
        await session.settled()
    history = await session.get_history()
    assert [item["id"].split("_")[0] for item in history][:1] == ["compaction"]
    assert history[-1]["id"] == "m5"
    assert ids(await session.get_raw_history()) == [f"m{number}" for number in range(6)]
    result = await session.compact()
    assert result is not None
    assert (result.from_message_id, result.to_message_id) == ("m0", "m4")
    assert len(await session.get_history()) == 2


async def test_a_document_is_unloaded_on_every_branch_and_under_overlays(connection: AsyncConnection) -> None:
    class Skills:
        async def get(self) -> str:
            return "- g: a document"

        async def load(self, key: str) -> str:
            return "the document"

    def loaded(identity: str) -> dict[str, Any]:
        part = {
            "type": "tool-load_context",
            "toolCallId": identity,
            "toolName": "load_context",
            "input": {"label": "skills", "key": "g"},
            "output": "the document",
            "state": "output-available",
        }
        return {"id": identity, "role": "assistant", "parts": [part]}

    provider = PostgresSessionProvider(connection)
    await provider.append_message(message("a"))
    await provider.append_message(loaded("b"), "a")
    await provider.append_message(loaded("c"), "a")
    await provider.append_message(message("d"))
    await provider.add_compaction("sum", "a", "c")
    session = Session.create(provider).with_context("skills", provider=Skills())
    assert await session.get_loaded_skill_keys() == {"skills:g"}
    assert await session.unload_skill("skills", "g")
    for identity in "bc":
        found = await session.get_message(identity)
        assert found is not None
        assert found["parts"][0]["output"] == "[skill unloaded: g]"


@pytest.mark.parametrize("method", ["append_message", "update_message"])
@pytest.mark.parametrize("letter", ["a", "日"])
async def test_a_message_over_the_limit_of_size_is_refused_as_by_sqlite(
    connection: AsyncConnection, tmp_path: Path, method: str, letter: str
) -> None:
    limit = StorageOptions().max_message_bytes
    rest = limit - len(orjson.dumps(message("m")))
    width = len(letter.encode())
    largest = message("m", letter * (rest // width) + "b" * (rest % width))
    assert len(orjson.dumps(largest)) == limit == 8 * 2**20
    larger = message("m", largest["parts"][0]["text"] + "b")
    said = []
    database = await open_database(tmp_path / "a.db")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        for provider in (AgentSessionProvider(database), PostgresSessionProvider(connection)):
            await provider.append_message(message("m") if method == "update_message" else message("first"))
            for owner in (provider, Session.create(provider)):
                with pytest.raises(LimitExceeded) as caught:
                    await getattr(owner, method)(larger)
                said.append(str(caught.value))
            assert [len(orjson.dumps(each)) < 100 for each in await provider.get_history()] == [True]
            await getattr(provider, method)(largest)
            assert await provider.get_message("m") == largest
    assert said == [f"A message of {limit + 1:,} bytes is over the limit of {limit:,} bytes; nothing was stored."] * 4


async def test_a_summary_over_the_limit_of_size_is_refused_as_by_sqlite(
    connection: AsyncConnection, tmp_path: Path
) -> None:
    said = []
    database = await open_database(tmp_path / "a.db")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        for provider in (AgentSessionProvider(database), PostgresSessionProvider(connection)):
            await provider.append_message(message("m"))
            with pytest.raises(LimitExceeded, match=r"A summary of .* is over the limit of 8,388,608 bytes") as caught:
                await provider.add_compaction("日" * 2_800_000, "m", "m")
            said.append(str(caught.value))
            assert await provider.get_compactions() == []
    assert said[0] == said[1]
