"""Tables that are missing, roles that may little, connections that are lost: what PostgreSQL's providers do then."""

import asyncio
import contextlib
import logging
import re
import traceback
from collections.abc import AsyncIterator
from typing import Any

import postgres_clients
import pytest
from postgres_server import PostgresServer, server
from psycopg import AsyncConnection, OperationalError, sql
from psycopg.errors import LockNotAvailable
from psycopg_pool import AsyncConnectionPool

from storage import PostgresContextProvider, PostgresSearchProvider, PostgresSessionProvider
from storage.errors import NotExecuted, OutcomeUnknown, StorageError, StoreUnavailable
from storage.postgres import ORDER_COLUMN, TABLES
from storage.postgres.errors import (
    MissingTables,
    PoolNotOpen,
    PostgresFailed,
    PostgresUnavailable,
    UnsuitableServer,
)
from storage.postgres.statements import LOCK_MILLISECONDS

DOCUMENTED = """
CREATE TABLE assistant_messages (
  id TEXT NOT NULL,
  session_id TEXT NOT NULL DEFAULT '',
  parent_id TEXT,
  role TEXT NOT NULL,
  content TEXT NOT NULL,
  text_content TEXT NOT NULL DEFAULT '',
  created_at TIMESTAMPTZ DEFAULT NOW(),
  content_tsv TSVECTOR GENERATED ALWAYS AS (to_tsvector('english', text_content)) STORED,
  PRIMARY KEY (session_id, id)
);
CREATE TABLE assistant_compactions (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL DEFAULT '',
  summary TEXT NOT NULL,
  from_message_id TEXT NOT NULL,
  to_message_id TEXT NOT NULL,
  created_at TIMESTAMPTZ DEFAULT NOW()
);
CREATE TABLE cf_agents_context_blocks (
  label TEXT PRIMARY KEY,
  content TEXT NOT NULL,
  updated_at TIMESTAMPTZ DEFAULT NOW()
);
CREATE TABLE cf_agents_search_entries (
  label TEXT NOT NULL,
  key TEXT NOT NULL,
  content TEXT NOT NULL,
  content_tsv TSVECTOR GENERATED ALWAYS AS (to_tsvector('english', content)) STORED,
  created_at TIMESTAMPTZ DEFAULT NOW(),
  updated_at TIMESTAMPTZ DEFAULT NOW(),
  PRIMARY KEY (label, key)
);
"""
"""As the documentation gives them, without ``seq``."""

USER = "limited"
SECRET = "hunter2-very-secret"


def message(identity: str, text: str = "") -> dict[str, Any]:
    return {"id": identity, "role": "user", "parts": [{"type": "text", "text": text}]}


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in messages]


def everything_said(error: BaseException) -> str:
    """The error, what it keeps, its causes and its traceback."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.args)


@pytest.fixture
def postgres() -> PostgresServer:
    running = server()
    if not running.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", USER):
        running.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(USER)).as_string())
    return running


@pytest.fixture
def schema(postgres: PostgresServer) -> str:
    schema = postgres.schema()
    postgres.execute(f"GRANT USAGE ON SCHEMA {schema} TO {USER}")
    return schema


@pytest.fixture(params=["connection", "pool", "execute", "query"])
async def limited(request: pytest.FixtureRequest, schema: str) -> AsyncIterator[Any]:
    """A client whose role may create nothing."""
    async with postgres_clients.client(request.param, schema, USER) as client:
        yield client


def make_documented(postgres: PostgresServer, schema: str) -> None:
    postgres.execute(DOCUMENTED, schema=schema)
    postgres.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {USER}")


def columns(postgres: PostgresServer, schema: str, table: str) -> set[str]:
    query = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
    return {name for (name,) in postgres.execute(query, schema, table)}


async def test_tables_that_are_neither_there_nor_permitted_are_one_clear_error(limited: Any) -> None:
    for call in (
        PostgresSessionProvider(limited).get_history(),
        PostgresSessionProvider(limited).append_message(message("a")),
        PostgresContextProvider(limited, "memory").get(),
        PostgresSearchProvider(limited, "kb").set("key", "content"),
    ):
        with pytest.raises(MissingTables, match=r"lacks the table \w+.*run the statements of storage.postgres.TABLES"):
            await call


async def test_once_somebody_made_the_tables_the_same_provider_works(
    postgres: PostgresServer, schema: str, limited: Any
) -> None:
    provider = PostgresSessionProvider(limited)
    with pytest.raises(MissingTables):
        await provider.append_message(message("a"))
    postgres.execute(TABLES, schema=schema)
    postgres.execute(TABLES, schema=schema)  # safe to repeat
    postgres.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {USER}")
    await provider.append_message(message("a"))
    assert ids(await provider.get_history()) == ["a"]


async def test_documented_tables_do_without_the_order_column_where_it_is_not_permitted(
    postgres: PostgresServer, schema: str, limited: Any
) -> None:
    make_documented(postgres, schema)
    provider = PostgresSessionProvider(limited)
    for number in range(5):
        await provider.append_message(message(f"m{number}", "apple"))
    await provider.append_message(message("branch"), "m1")
    for summary in ("first", "second"):
        await provider.add_compaction(summary, "m0", "m1")
    await provider.update_message(message("m0", "apple"))  # moves the row, not the message
    assert "seq" not in columns(postgres, schema, "assistant_messages")
    assert [item["parts"][0]["text"] for item in await provider.get_history()] == ["second", ""]
    assert ids(await provider.get_raw_history("m4")) == [f"m{number}" for number in range(5)]
    assert ids(await provider.get_branches("m1")) == ["m2", "branch"]
    assert [row["summary"] for row in await provider.get_compactions()] == ["first", "second"]
    assert ids(await provider.search_messages("apple")) == [f"m{number}" for number in range(5)]
    search = PostgresSearchProvider(limited, "kb")
    for key in "ba":
        await search.set(key, "same words")
    assert await search.search("words") == "[b]\nsame words\n\n[a]\nsame words"


async def test_appends_of_one_transaction_keep_their_order_without_the_order_column(
    postgres: PostgresServer, schema: str
) -> None:
    make_documented(postgres, schema)
    async with postgres_clients.client("connection", schema, USER) as connection:
        provider = PostgresSessionProvider(connection)
        async with connection.transaction():
            for number in range(5):
                await provider.append_message(message(f"m{number}"))
        assert ids(await provider.get_history()) == [f"m{number}" for number in range(5)]


async def test_documented_tables_get_the_order_column_and_keep_their_order(
    postgres: PostgresServer, schema: str
) -> None:
    make_documented(postgres, schema)
    async with postgres_clients.client("connection", schema, USER) as connection:
        provider = PostgresSessionProvider(connection)
        for number in range(4):
            await provider.append_message(message(f"m{number}"))
        await provider.update_message(message("m0", "moved to the end of the table"))
        async with postgres_clients.client("execute", schema) as owner:
            other = PostgresSessionProvider(owner)
            await other.append_message(message("m4"))
            assert "seq" in columns(postgres, schema, "assistant_messages")
            assert "seq" in columns(postgres, schema, "assistant_compactions")
            await provider.append_message(message("m5"))  # does not know of the column yet
            await other.append_message(message("m6"))
            for reader in (provider, other, PostgresSessionProvider(owner)):
                assert ids(await reader.get_history()) == [f"m{number}" for number in range(7)]


@pytest.mark.parametrize("with_tables", [False, True], ids=["no tables", "documented tables"])
async def test_operators_make_the_tables_and_the_order_column_beforehand_and_providers_then_define_nothing(
    postgres: PostgresServer, schema: str, with_tables: bool
) -> None:
    if with_tables:
        make_documented(postgres, schema)
        async with postgres_clients.client("connection", schema, USER) as connection:
            for number in range(4):
                await PostgresSessionProvider(connection).append_message(message(f"m{number}"))
    for statement in (ORDER_COLUMN, ORDER_COLUMN, TABLES, TABLES, ORDER_COLUMN):
        postgres.execute(statement, schema=schema)
    for table in ("assistant_messages", "assistant_compactions", "cf_agents_search_entries"):
        assert "seq" in columns(postgres, schema, table)
    postgres.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {USER}")
    async with postgres_clients.client("execute", schema) as owner:
        provider = PostgresSessionProvider(owner)
        await provider.append_message(message("m4"))
        await PostgresSearchProvider(owner, "kb").set("k", "content")
        expected = [f"m{number}" for number in range(4)] * with_tables + ["m4"]
        assert ids(await provider.get_history()) == expected
        assert [statement for statement in owner.statements if re.search("CREATE|ALTER|LOCK TABLE", statement)] == []
    async with postgres_clients.client("execute", schema, USER) as limited:
        await PostgresSessionProvider(limited).append_message(message("m5"))
        assert ids(await PostgresSessionProvider(limited).get_history()) == [*expected, "m5"]


async def test_the_order_column_waits_for_no_table_that_is_held(postgres: PostgresServer, schema: str) -> None:
    make_documented(postgres, schema)
    statement = ORDER_COLUMN.replace(str(LOCK_MILLISECONDS), "50")
    assert statement != ORDER_COLUMN
    async with await AsyncConnection.connect(postgres.dsn(schema)) as holder:
        await holder.execute("LOCK TABLE assistant_compactions IN ACCESS SHARE MODE")
        with pytest.raises(LockNotAvailable):
            postgres.execute(statement, schema=schema)
        assert "seq" not in columns(postgres, schema, "assistant_messages")
    postgres.execute(statement, schema=schema)
    assert "seq" in columns(postgres, schema, "assistant_messages")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_is_not_in_utf8_is_refused_before_anything_is_made(
    postgres: PostgresServer, encoding: str
) -> None:
    name = f"other_{encoding.lower()}"
    if not postgres.execute("SELECT 1 FROM pg_database WHERE datname = %s", name):
        postgres.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    dsn = postgres.dsn("public").replace("dbname=postgres", f"dbname={name} client_encoding=UTF8")
    async with await AsyncConnection.connect(dsn, autocommit=True) as connection:
        provider = PostgresSessionProvider(connection)
        for call in (provider.append_message(message("a")), PostgresContextProvider(connection, "x").get()):
            with pytest.raises(UnsuitableServer, match=f"a database in {encoding}, and one in UTF8 is needed"):
                await call
        cursor = await connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        assert await cursor.fetchone() == (0,)


class OldServer:
    def __init__(self, number: str, version: str) -> None:
        self.row = {"number": number, "version": version, "encoding": "UTF8"}
        self.statements: list[str] = []

    async def execute(self, query: str, args: Any = ()) -> Any:
        self.statements.append(query)
        return {"rows": [self.row] if "server_version" in query else []}


async def test_a_server_that_is_too_old_is_refused_before_anything_is_made() -> None:
    old = OldServer("120022", "12.22 (Debian)")
    with pytest.raises(UnsuitableServer, match=r"version 12.22 \(Debian\), and 13 or newer is needed") as caught:
        await PostgresSessionProvider(old).append_message(message("a"))
    assert not caught.value.is_retryable
    assert len(old.statements) == 1
    with pytest.raises(MissingTables):  # goes on
        await PostgresSessionProvider(OldServer("130000", "13.0")).append_message(message("a"))


async def test_many_that_start_at_once_make_the_tables_once(schema: str) -> None:
    async def start(number: int) -> None:
        kind = ["connection", "execute", "pool", "query"][number % 4]
        async with postgres_clients.client(kind, schema) as client:
            await PostgresSessionProvider(client).append_message(message(f"m{number}"))
            await PostgresContextProvider(client, "memory").set("text")
            await PostgresSearchProvider(client, "kb").set("key", "text")

    await asyncio.gather(*map(start, range(8)))
    async with postgres_clients.client("connection", schema) as connection:
        assert await PostgresSessionProvider(connection).get_path_length() == 8


async def test_a_table_of_another_shape_is_named(postgres: PostgresServer, schema: str) -> None:
    postgres.execute("CREATE TABLE assistant_messages (id TEXT PRIMARY KEY, content TEXT)", schema=schema)
    async with postgres_clients.client("connection", schema) as connection:
        with pytest.raises(MissingTables, match=r"assistant_messages\.content_tsv"):
            await PostgresSessionProvider(connection).get_history()


@pytest.mark.parametrize("kind", ["connection", "pool", "execute"])
async def test_tables_that_vanish_are_made_again_by_the_next_call(
    kind: str, postgres: PostgresServer, schema: str
) -> None:
    async with postgres_clients.client(kind, schema) as client:
        provider = PostgresSessionProvider(client)
        await provider.append_message(message("a"))
        postgres.execute("DROP TABLE assistant_messages", schema=schema)
        with pytest.raises(PostgresFailed, match="42P01"):
            await provider.append_message(message("b"))
        await provider.append_message(message("b"))
        assert ids(await provider.get_history()) == ["b"]


async def test_a_table_that_is_held_is_done_without_the_order_column_for_now(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.postgres.statements.LOCK_MILLISECONDS", 50)
    make_documented(postgres, schema)
    async with (
        postgres_clients.client("connection", schema) as holder,
        postgres_clients.client("connection", schema) as connection,
    ):
        async with holder.transaction():
            await holder.execute("SELECT count(*) FROM assistant_messages")
            await PostgresSessionProvider(connection).append_message(message("a"))
        assert "seq" not in columns(postgres, schema, "assistant_messages")
        assert ids(await PostgresSessionProvider(connection).get_history()) == ["a"]


def terminate(postgres: PostgresServer, schema: str) -> None:
    """End every connection that works in a schema."""
    query = (
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE %s"
    )
    assert postgres.execute(query, f"%{schema}%")


async def marked(connection: Any, schema: str) -> None:
    await connection.execute(f"SELECT '{schema}'")


async def test_a_lost_connection_is_one_error_and_a_pool_has_another(postgres: PostgresServer, schema: str) -> None:
    dsn = postgres.dsn(schema, password=SECRET)
    options = {"autocommit": True}
    async with AsyncConnectionPool(dsn, kwargs=options, min_size=3, max_size=3, open=False) as pool:
        await pool.wait()
        provider = PostgresSessionProvider(pool)
        await provider.append_message(message("a"))
        async with pool.connection() as one, pool.connection() as two, pool.connection() as three:
            for connection in (one, two, three):
                await marked(connection, schema)
        terminate(postgres, schema)
        with pytest.raises(PostgresUnavailable) as caught:
            await provider.append_message(message("b"))
        assert isinstance(caught.value, StoreUnavailable)
        assert caught.value.is_retryable
        assert SECRET not in everything_said(caught.value)
        await provider.append_message(message("b"))
        assert ids(await provider.get_history()) == ["a", "b"]


@pytest.mark.parametrize("kind", ["connection", "autocommit", "execute", "query"])
async def test_a_single_connection_that_is_lost_stays_a_typed_error(
    kind: str, postgres: PostgresServer, schema: str
) -> None:
    async with await AsyncConnection.connect(postgres.dsn(schema), autocommit=True) as connection:
        client = {"execute": postgres_clients.ExecuteClient, "query": postgres_clients.QueryClient}.get(kind)
        provider = PostgresSessionProvider(client(connection) if client else connection)
        await provider.append_message(message("a"))
        await marked(connection, schema)
        terminate(postgres, schema)
        for _ in range(2):
            with pytest.raises((PostgresUnavailable, OutcomeUnknown)) as caught:
                await provider.append_message(message("b"))
            assert caught.value.is_retryable
            with pytest.raises(PostgresUnavailable):
                await provider.get_history()


async def test_a_server_that_is_not_there_is_a_typed_error_without_the_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "perdure")
    dsn = f"postgresql://somebody:{SECRET}@127.0.0.1:1/nowhere"
    pool = AsyncConnectionPool(dsn, min_size=0, max_size=1, open=False, timeout=0.2, reconnect_timeout=0.2)
    async with pool:
        with pytest.raises(PostgresUnavailable) as caught:
            await PostgresSessionProvider(pool).get_history()
    assert SECRET not in everything_said(caught.value)
    assert SECRET not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("perdure"))


@pytest.mark.parametrize("is_used", [False, True], ids=["never opened", "closed"])
async def test_a_pool_that_is_not_open_is_said_to_be_and_repeating_is_not_advised(schema: str, is_used: bool) -> None:
    pool = AsyncConnectionPool(server().dsn(schema), min_size=1, open=False)
    provider = PostgresSessionProvider(pool)
    if is_used:
        async with pool:
            await provider.append_message(message("a"))
    for call in (provider.append_message(message("b")), provider.get_history(), PostgresSearchProvider(pool).get()):
        with pytest.raises(PoolNotOpen, match="pool is not open: use `async with pool`") as caught:
            await call
        assert not caught.value.is_retryable
        assert "repeat" not in str(caught.value)


class FailingClient:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def execute(self, query: str, args: Any = ()) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(f"postgresql://me:{SECRET}@db/x went away"),
        OperationalError(f"connection to host=db password={SECRET} failed"),
        TimeoutError(),
        RuntimeError(f"cannot use postgres://me:{SECRET}@db/x or password='{SECRET} x'"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_driver_says_is_told_without_secrets(error: Exception) -> None:
    with pytest.raises(StorageError) as caught:
        await PostgresSessionProvider(FailingClient(error)).get_history()
    assert SECRET not in everything_said(caught.value)
    assert isinstance(caught.value, PostgresFailed if isinstance(error, RuntimeError) else PostgresUnavailable)


class LosesTheAnswer(postgres_clients.ExecuteClient):
    """The statement is run, and then the connection is gone."""

    is_lossy = False

    async def execute(self, query: str, args: Any = ()) -> Any:
        answer = await super().execute(query, args)
        if self.is_lossy:
            raise ConnectionResetError
        return answer


async def test_a_write_whose_answer_is_lost_has_an_unknown_outcome_and_may_be_repeated(schema: str) -> None:
    async with postgres_clients.client("autocommit", schema) as connection:
        client = LosesTheAnswer(connection)
        provider = PostgresSessionProvider(client)
        await provider.append_message(message("a"))
        client.is_lossy = True
        with pytest.raises(OutcomeUnknown):
            await provider.append_message(message("b"))
        client.is_lossy = False
        await provider.append_message(message("b"))
        assert ids(await provider.get_history()) == ["a", "b"]


@pytest.mark.parametrize("kind", ["connection", "pool"])
async def test_a_connection_lost_while_it_commits_leaves_the_outcome_unknown(
    kind: str, postgres: PostgresServer, schema: str
) -> None:
    async with postgres_clients.client(kind, schema) as client:
        provider = PostgresSessionProvider(client)
        await provider.append_message(message("a"))
        postgres.execute(
            """CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
               'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'""",
            schema=schema,
        )
        postgres.execute(
            """CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON assistant_messages
               DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()""",
            schema=schema,
        )
        with pytest.raises(OutcomeUnknown):
            await provider.append_message(message("b"))
        postgres.execute("DROP TRIGGER at_commit ON assistant_messages", schema=schema)
    async with postgres_clients.client(kind, schema) as client:
        provider = PostgresSessionProvider(client)
        await provider.append_message(message("b"))
        assert ids(await provider.get_history()) == ["a", "b"]


async def test_other_isolation_levels_are_set_right_or_refused(postgres: PostgresServer, schema: str) -> None:
    role = f"strict_{schema}"
    postgres.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    postgres.execute(f"ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'")
    async with postgres_clients.client("connection", schema, role) as connection:
        provider = PostgresSessionProvider(connection)
        await provider.append_message(message("a"))
        async with connection.transaction():
            with pytest.raises(PostgresFailed, match="READ COMMITTED"):
                await provider.append_message(message("b"))
        assert ids(await provider.get_history()) == ["a"]
    async with postgres_clients.client("execute", schema, role) as client:
        with pytest.raises(PostgresFailed, match="READ COMMITTED"):
            await PostgresSessionProvider(client).append_message(message("b"))


@pytest.mark.parametrize("kind", ["connection", "execute"])
async def test_a_refusal_keeps_nothing_of_an_earlier_one(postgres: PostgresServer, schema: str, kind: str) -> None:
    role = f"strict_{kind}_{schema}"
    postgres.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    postgres.execute(f"ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'")
    async with postgres_clients.client(kind, schema, role) as client:
        provider = PostgresSessionProvider(client)
        await provider.get_history()
        begun = client.transaction() if kind == "connection" else contextlib.nullcontext()
        lengths = []
        async with begun:
            for _ in range(3):
                with pytest.raises(PostgresFailed, match="READ COMMITTED") as caught:
                    await provider.append_message(message("b"))
                lengths.append(len(list(traceback.walk_tb(caught.tb))))
        assert lengths == [lengths[0]] * 3


async def test_a_statement_that_is_refused_is_told_without_what_was_stored(
    postgres: PostgresServer, schema: str
) -> None:
    make_documented(postgres, schema)
    postgres.execute(f"REVOKE INSERT ON assistant_messages FROM {USER}", schema=schema)
    async with postgres_clients.client("connection", schema, USER) as connection:
        with pytest.raises(PostgresFailed, match=r"42501.*permission denied for table assistant_messages") as caught:
            await PostgresSessionProvider(connection).append_message(message("a", " ".join(["private", "words"])))
    assert "private words" not in everything_said(caught.value)
    assert not isinstance(caught.value, NotExecuted)
