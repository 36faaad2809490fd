"""Tables, versions, and that reading leaves nothing behind."""

import re
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage import AgentContextProvider, AgentSessionProvider, open_database, schema
from storage.errors import ForeignDatabase, InvalidArgument

MESSAGE = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}

DOCUMENTED = {
    "assistant_messages": "id session_id parent_id role content created_at",
    "assistant_compactions": "id session_id summary from_message_id to_message_id created_at",
    "assistant_sessions": "id name parent_session_id model source input_tokens output_tokens estimated_cost end_reason "
    "created_at updated_at",
    "cf_agents_context_blocks": "label content updated_at",
    "cf_agents_search_entries": "label key content created_at updated_at",
}


@pytest.fixture
def connection():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


def dump(connection):
    return connection.execute("SELECT * FROM sqlite_schema").fetchall()


def test_the_documented_tables_have_their_columns(connection):
    schema.migrate(connection)
    for table, columns in DOCUMENTED.items():
        found = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        assert set(columns.split()) <= found, table
    for table in ("assistant_fts", "cf_agents_search_fts"):
        (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        assert re.search("tokenize *= *'porter unicode61'", sql)


def test_migrating_twice_changes_nothing(connection):
    schema.migrate(connection)
    before = dump(connection)
    schema.migrate(connection)
    assert dump(connection) == before
    assert schema.version(connection) == schema.NEWEST


def test_migration_belongs_to_the_transaction_of_the_caller(connection):
    connection.execute("BEGIN")
    schema.migrate(connection)
    connection.execute("ROLLBACK")
    assert dump(connection) == []
    assert schema.version(connection) == 0


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE other (x)",
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 1",
        f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = {schema.NEWEST + 1}",
    ],
)
def test_a_file_of_another_program_or_version_is_left_untouched(connection, statement):
    connection.executescript(statement)
    before = dump(connection), connection.total_changes
    with pytest.raises(ForeignDatabase):
        schema.migrate(connection)
    assert (dump(connection), connection.total_changes) == before


async def test_reading_a_file_that_was_never_written_answers_empty_and_writes_nothing(tmp_path: Path):
    database = await open_database(tmp_path / "a.db")
    provider, context = AgentSessionProvider(database), AgentContextProvider(database, "memory")
    assert await provider.get_history() == []
    assert await provider.search_messages("x") == []
    assert await provider.get_recent_history(100) == {"messages": [], "truncated": False, "totalContentBytes": 0}
    assert await provider.path_tokens() == 0
    assert await context.get() is None
    assert await database.read(dump) == []
    assert not database.is_migrated
    await database.close()


async def test_the_first_write_makes_the_tables_even_if_it_is_refused(tmp_path: Path):
    database = await open_database(tmp_path / "a.db")
    provider = AgentSessionProvider(database)
    with pytest.raises(Exception, match="ghost"):
        await provider.update_message(MESSAGE | {"id": "ghost"})
    await provider.append_message(MESSAGE)
    assert database.is_migrated
    assert await provider.get_history() == [MESSAGE]
    await database.close()


async def test_a_second_opening_reads_what_the_first_wrote(tmp_path: Path):
    database = await open_database(tmp_path / "a.db")
    await AgentSessionProvider(database).append_message(MESSAGE)
    await database.close()
    database = await open_database(tmp_path / "a.db")
    assert await AgentSessionProvider(database).get_history() == [MESSAGE]
    assert database.is_migrated
    await database.close()


async def test_a_provider_takes_whatever_has_a_database(tmp_path: Path):
    owner = SimpleNamespace(database=await open_database(tmp_path / "a.db"))
    await AgentContextProvider(owner, "k").set("text")
    assert await AgentContextProvider(owner.database, "k").get() == "text"
    await owner.database.close()
    with pytest.raises(InvalidArgument):
        AgentSessionProvider(object())  # type: ignore[arg-type]
