"""Random operations on PostgreSQL and on SQLite side by side: whatever is done, both show the same."""

import asyncio
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import server
from psycopg import AsyncConnection

from storage import LATEST, AgentSessionProvider, PostgresSessionProvider, open_database
from storage.errors import StorageError

EXAMPLES = 400 if os.environ.get("PERDURE_LONG") == "1" else 25

texts = st.text(st.sampled_from("ab \0?%é東🎉\ufdd0"), max_size=6)
names = st.sampled_from([f"m{number}\0" for number in range(12)])
operations = st.one_of(
    st.tuples(st.just("append"), names, texts, st.just(LATEST)),
    st.tuples(st.just("append"), names, texts, st.none() | names),
    st.tuples(st.just("update"), names, texts),
    st.tuples(st.just("delete"), st.lists(names, max_size=4)),
    st.tuples(st.just("compact"), names, names, texts),
    st.tuples(st.just("clear")),
)
weighted = st.lists(st.one_of(operations, operations.filter(lambda operation: operation[0] != "clear")), max_size=30)


class Pair:
    """The same session in both, as plain synchronous calls."""

    numbers = itertools.count()

    def __init__(self, directory: Path) -> None:
        self.runner = asyncio.Runner()
        self.database = self.runner.run(open_database(directory / "pair.db"))
        dsn = server().dsn(server().schema())
        self.connection = self.runner.run(AsyncConnection.connect(dsn))
        self.start()

    def start(self) -> None:
        """An empty session in both."""
        session = f"s{next(self.numbers)}"
        self.providers = [
            AgentSessionProvider(self.database, session),
            PostgresSessionProvider(self.connection, session),
        ]
        self.ids: list[dict[str, str]] = [{}, {}]

    def close(self) -> None:
        self.runner.run(self.database.close())
        self.runner.run(self.connection.close())
        self.runner.close()

    def both(self, name: str, *args: Any) -> None:
        """Call a method of both; the outcomes must be equal."""
        assert self.outcome(0, name, *args) == self.outcome(1, name, *args)

    def outcome(self, which: int, name: str, *args: Any) -> Any:
        try:
            value = self.runner.run(getattr(self.providers[which], name)(*args))
        except StorageError as exc:
            return type(exc), exc.args
        return self.plain(which, value)

    def plain(self, which: int, value: Any) -> Any:
        """Without times, and with the ids of overlays by the order in which they came."""
        if isinstance(value, list):
            return [self.plain(which, item) for item in value]
        if not isinstance(value, dict):
            return value
        plain = {key: self.plain(which, item) for key, item in value.items() if key != "createdAt"}
        if "summary" in plain or str(plain.get("id")).startswith("compaction_"):
            known = self.ids[which]
            plain["id"] = known.setdefault(plain["id"].removeprefix("compaction_"), f"overlay {len(known)}")
        return plain

    def perform(self, operation: tuple[Any, ...]) -> None:
        match operation:
            case "append", name, text, parent:
                self.both("append_message", self.message(name, text), parent)
            case "update", name, text:
                self.both("update_message", self.message(name, text))
            case "delete", deleted:
                self.both("delete_messages", deleted)
            case "compact", first, last, summary:
                self.both("add_compaction", summary, first, last)
            case _:
                self.both("clear_messages")

    def compare(self) -> None:
        self.both("get_latest_leaf")
        self.both("get_compactions")
        for leaf in (None, *(f"m{number}\0" for number in range(12))):
            self.both("get_history", leaf)
            self.both("get_raw_history", leaf)
            self.both("get_path_length", leaf)
            self.both("get_branches", leaf or "")
        for budget, least in ((0, 1), (150, 1), (250, 3), (10_000, 1)):
            self.both("get_recent_history", budget, least)

    @staticmethod
    def message(name: str, text: str) -> dict[str, Any]:
        return {"id": name, "role": "user", "parts": [{"type": "text", "text": text}]}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


@given(done=weighted)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_show_the_same_after_any_operations(pair: Pair, done: list[tuple[Any, ...]]) -> None:
    pair.start()
    for operation in done:
        pair.perform(operation)
    pair.compare()


words = st.text(st.characters(), max_size=40) | st.text(st.sampled_from("\"'&|!():*<->\\%?$\0 \ufdd0"), max_size=20)


@given(queries=st.lists(words, min_size=20, max_size=40))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_query_raises_or_finds_another_session(pair: Pair, queries: list[str]) -> None:
    postgres = pair.providers[1]
    assert isinstance(postgres, PostgresSessionProvider)
    other = PostgresSessionProvider(pair.connection, "other")
    for query in queries[:3]:
        pair.runner.run(other.append_message(pair.message(f"theirs{next(pair.numbers)}", query)))
    pair.runner.run(postgres.append_message(pair.message("ours", "apple")))
    for query in queries:
        found = pair.runner.run(postgres.search_messages(query))
        assert [item["id"] for item in found] in ([], ["ours"])
