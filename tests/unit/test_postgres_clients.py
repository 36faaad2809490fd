"""What needs no server: placeholders, escaped texts, which objects are clients, which errors mean what."""

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from actors.session import is_search_provider, is_writable_provider
from storage import PostgresConnection, PostgresContextProvider, PostgresSearchProvider, PostgresSessionProvider
from storage.errors import InvalidArgument, LimitExceeded, OutcomeUnknown
from storage.postgres.clients import BareClient, client_of
from storage.postgres.errors import PostgresFailed, PostgresUnavailable, failure_of
from storage.postgres.statements import block, formatted, numbered
from storage.postgres.texts import escape, label_of, query_words, unescape


@pytest.mark.parametrize(
    ("statement", "as_numbers", "as_formats"),
    [
        ("SELECT ?, ?", "SELECT $1, $2", "SELECT %s, %s"),
        ("SELECT '?', 'it''s ?', ?", "SELECT '?', 'it''s ?', $1", "SELECT '?', 'it''s ?', %s"),
        (r"SELECT E'\'?', ?", r"SELECT E'\'?', $1", r"SELECT E'\'?', %s"),
        ('SELECT "a?" -- why?\n, ?', 'SELECT "a?" -- why?\n, $1', 'SELECT "a?" -- why?\n, %s'),
        ("SELECT /* ? */ $$?$$, $x$ ? $$ $x$, ?", "SELECT /* ? */ $$?$$, $x$ ? $$ $x$, $1", None),
        ("SELECT 5 % 2, '100%', ?", "SELECT 5 % 2, '100%', $1", "SELECT 5 %% 2, '100%%', %s"),
    ],
)
def test_only_placeholders_are_rewritten(statement: str, as_numbers: str, as_formats: str | None) -> None:
    assert numbered(statement) == as_numbers
    if as_formats is not None:
        assert formatted(statement) == as_formats


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
def test_no_value_becomes_text_of_a_block(values: list[str]) -> None:
    statement = block("lock ?%'", "SELECT " + ", ".join("?" * len(values)), values)
    assert "?" not in statement
    assert "%" not in statement
    assert statement.count("$perdure$") == 2
    assert statement.isascii()


@given(st.text(st.sampled_from("\0\ufdd0 ab") | st.characters(exclude_categories=["Cs"])))
@settings(max_examples=500)
def test_an_escaped_text_has_no_nul_and_comes_back(text: str) -> None:
    assert "\0" not in escape(text)
    assert unescape(escape(text)) == text


@given(st.text(st.sampled_from("\0\ufdd0 "), max_size=8), st.text(st.sampled_from("\0\ufdd0 "), max_size=8))
@settings(max_examples=500)
def test_two_texts_never_share_an_escape(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(
    st.text("[]ab,\"'", max_size=5),
    st.text("[]ab,\"'", max_size=5),
    st.text("[]ab", max_size=5),
    st.text("[]a", max_size=5),
)
def test_two_labels_of_two_sessions_never_share_a_row(one: str, session: str, other: str, second: str) -> None:
    assert (label_of(one, session) == label_of(other, second)) == ((one, session) == (other, second))


def test_a_query_keeps_its_words_and_sets_apart_what_is_found_as_a_substring() -> None:
    assert query_words("deploy  Friday\0now") == ("deploy  Friday now", [])
    assert query_words("deploy 東京 a🎉b") == ("deploy", ["東京", "a🎉b"])
    with pytest.raises(InvalidArgument):
        query_words(5)


class Nothing:
    pass


class Driver:
    """Has a cursor's methods: what its ``execute`` gives has no rows."""

    def execute(self, query: str) -> None: ...
    def fetchone(self) -> None: ...


def clients_that_are_none() -> list[Any]:
    pool = ConnectionPool("host=nowhere", open=False)
    return [None, "postgresql://me:hunter2@host/db", 5, Nothing(), Nothing, Driver(), psycopg.AsyncConnection, pool]


@pytest.mark.parametrize("client", clients_that_are_none(), ids=repr)
@pytest.mark.parametrize(
    "provider",
    [PostgresSessionProvider, lambda client: PostgresContextProvider(client, "x"), PostgresSearchProvider],
    ids=["session", "context", "search"],
)
def test_anything_else_is_refused_at_construction(provider: Any, client: Any) -> None:
    with pytest.raises(InvalidArgument, match="PostgreSQL client") as caught:
        provider(client)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("session_id", [None, 5, b"x"])
def test_a_session_id_is_a_text(session_id: Any) -> None:
    with pytest.raises(InvalidArgument):
        PostgresSessionProvider(Answers(), session_id)


class Answers:
    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def execute(self, query: str, args: Any = ()) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [None, 5, [], {"rows": None}, {"rows": [(1,)]}, "INSERT 0 1"], ids=repr)
async def test_an_answer_without_rows_is_said_to_be_one(answer: Any) -> None:
    with pytest.raises(InvalidArgument, match="must give an object with rows"):
        await PostgresSessionProvider(Answers(answer)).get_history()


def test_providers_over_one_object_share_what_is_known_of_it() -> None:
    client = Answers()
    assert client_of(client).tables is client_of(client).tables
    assert client_of(client).tables is not client_of(Answers()).tables
    assert isinstance(client_of(client), BareClient)


def pool() -> Any:
    return AsyncConnectionPool("host=nowhere", open=False)


def connection() -> Any:
    bare = psycopg.pq.PGconn.connect_start(b"host=127.0.0.1 port=1")
    bare.finish()  # an open one warns when it goes
    return psycopg.AsyncConnection(bare)


@pytest.mark.parametrize("make", [Answers, pool, connection])
async def test_a_client_goes_once_nobody_holds_it_or_its_providers(make: Callable[[], Any]) -> None:
    clients = [make() for _ in range(100)]
    for client in clients:
        PostgresSessionProvider(client)
        PostgresContextProvider(client, "x")
        PostgresSearchProvider(client)
    left = weakref.WeakSet(clients)
    assert len(left) == 100
    del client
    clients.clear()
    gc.collect()
    assert len(left) == 0


async def test_a_pool_is_told_from_a_connection() -> None:
    pool = AsyncConnectionPool("host=nowhere", open=False)
    assert type(client_of(pool)).__name__ == "PoolClient"


def test_kinds_of_providers() -> None:
    assert is_writable_provider(PostgresContextProvider(Answers(), "x"))
    assert is_search_provider(PostgresSearchProvider(Answers()))
    assert hasattr(PostgresConnection, "execute")


class Said(Exception):
    def __init__(self, state: str) -> None:
        super().__init__("text")
        self.sqlstate = state


@pytest.mark.parametrize(
    ("error", "kind", "kind_if_uncertain"),
    [
        (Said("08006"), PostgresUnavailable, OutcomeUnknown),
        (Said("57P01"), PostgresUnavailable, OutcomeUnknown),
        (Said("40001"), PostgresUnavailable, PostgresUnavailable),
        (Said("40P01"), PostgresUnavailable, PostgresUnavailable),
        (Said("53300"), PostgresUnavailable, PostgresUnavailable),
        (Said("57014"), PostgresUnavailable, PostgresUnavailable),
        (Said("25006"), PostgresUnavailable, PostgresUnavailable),
        (Said("54000"), LimitExceeded, LimitExceeded),
        (Said("42501"), PostgresFailed, PostgresFailed),
        (OSError("x"), PostgresUnavailable, OutcomeUnknown),
        (EOFError(), PostgresUnavailable, OutcomeUnknown),
        (psycopg.OperationalError("x"), PostgresUnavailable, OutcomeUnknown),
        (psycopg.InterfaceError("x"), PostgresUnavailable, OutcomeUnknown),
        (ValueError("x"), PostgresFailed, PostgresFailed),
        (InvalidArgument("x"), InvalidArgument, InvalidArgument),
    ],
    ids=str,
)
def test_what_an_error_of_a_driver_means(error: Exception, kind: type, kind_if_uncertain: type) -> None:
    assert type(failure_of(error)) is kind
    assert type(failure_of(error, is_uncertain=True)) is kind_if_uncertain


def test_the_providers_are_there_without_a_driver() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = sys.modules['psycopg_pool'] = None\n"
        "from storage import PostgresSessionProvider, PostgresContextProvider, PostgresSearchProvider\n"
        "import actors\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


async def test_cancelling_a_wait_is_no_error_of_the_storage() -> None:
    class Slow:
        async def execute(self, query: str, args: Any = ()) -> Any:
            await asyncio.Event().wait()

    task = asyncio.create_task(PostgresSessionProvider(Slow()).get_history())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
