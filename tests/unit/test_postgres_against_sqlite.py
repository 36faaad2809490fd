"""Random operations on PostgreSQL and on SQLite side by side: whatever is done, both show the same."""

import asyncio
import contextlib
import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import server
from psycopg import AsyncConnection

from actors.session.builtin_history import history_of
from compaction import CompactResult
from storage import LATEST, AgentSessionProvider, PostgresSessionProvider, open_database
from storage.errors import StorageError
from storage.postgres.texts import escape

EXAMPLES = 150 if os.environ.get("TESTS_LONG") == "1" else 25

texts = st.text(st.sampled_from("ab \0?%é東🎉\ufdd0"), max_size=6)
names = st.sampled_from([f"m{number}\0" for number in range(12)])
numbers = st.integers(0, 11)
written = st.one_of(
    st.tuples(st.just("append"), names, texts, st.just(LATEST)),
    st.tuples(st.just("append"), names, texts, st.none() | names),
    st.tuples(st.just("update"), names, texts),
)
folded = st.one_of(
    st.tuples(st.just("fold"), names, numbers, numbers, texts),
    st.tuples(st.just("compact"), names, names, texts),
)
summarized = st.tuples(
    st.just("summarize"), numbers, numbers, written | st.tuples(st.just("delete"), st.lists(names, max_size=2))
)
paged = st.tuples(st.just("page"), st.sampled_from(["newest", "oldest", "inserted"]), st.none() | names)
removed = st.one_of(
    st.tuples(st.just("delete"), st.lists(names, max_size=4)),
    st.tuples(st.just("delete_end"), numbers),
    st.tuples(st.just("echo"), numbers, names),
)
tree = st.lists(st.tuples(st.just("grow"), numbers), min_size=5, max_size=8)
more = st.lists(st.one_of(written, folded, removed, summarized, paged), min_size=5, max_size=15)
weighted = st.builds(lambda *parts: list(itertools.chain(*parts)), tree, st.lists(folded, min_size=1, max_size=4), more)
cleared = st.builds(lambda before, after: [*before, ("clear",), *after], weighted, more)


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
        self.grown = 0
        self.cursors: dict[tuple[str, str | None], list[str | None]] = {}

    def close(self) -> None:
        self.runner.run(self.database.close())
        self.runner.run(self.connection.close())
        self.runner.close()

    def both(self, name: str, *args: Any) -> Any:
        """Call a method of both; the outcomes must be equal."""
        outcome = self.outcome(0, name, *args)
        assert outcome == self.outcome(1, name, *args)
        return outcome

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
        newest = self.outcome(0, "get_latest_leaf")
        self.operate(operation)
        if newest is not None and self.outcome(0, "get_message", newest["id"]) is None:
            self.cursors.clear()  # SQLite gives the numbers of the newest messages again when they go

    def operate(self, operation: tuple[Any, ...]) -> None:
        match operation:
            case "append", name, text, parent:
                self.both("append_message", self.message(name, text), parent)
            case "grow", number:  # below one of the last four
                name, count = f"m{self.grown}\0", self.grown
                parent = f"m{max(0, count - 1 - number // 3)}\0" if count else None
                self.both("append_message", self.message(name, ""), parent)
                self.grown += 1
            case "fold", leaf, first, last, summary:
                if path := self.outcome(0, "get_raw_history", leaf):
                    ends = sorted((first % len(path), last % len(path)))
                    self.both("add_compaction", summary, *(path[end]["id"] for end in ends))
            case "summarize", first, last, meanwhile:
                assert self.summarize(0, first, last, meanwhile) == self.summarize(1, first, last, meanwhile)
            case "page", order, leaf:
                self.page(order, None if order == "inserted" else leaf)
            case "delete_end", number:
                if rows := self.both("get_compactions"):
                    self.both("delete_messages", [rows[number % len(rows)]["toMessageId"]])
            case "update", name, text:
                self.both("update_message", self.message(name, text))
            case "delete", deleted:
                self.both("delete_messages", deleted)
            case "echo", number, parent:
                self.echo(number, parent)
            case "compact", first, last, summary:
                self.both("add_compaction", summary, first, last)
            case _:
                self.both("clear_messages")

    def summarize(self, which: int, first: int, last: int, meanwhile: tuple[Any, ...]) -> Any:
        """Store a summary, with a write in between: in PostgreSQL between what the summary is decided by and its storing."""
        provider = self.providers[which]
        history = history_of(provider)
        messages, seen = self.runner.run(history.snapshot())
        if not messages:
            return None
        first, last = sorted((first % len(messages), last % len(messages)))
        ends = {"fromMessageId": messages[first]["id"], "toMessageId": messages[last]["id"]}
        result = CompactResult.model_validate({**ends, "summary": "in short"})
        waiting = [meanwhile]

        async def write() -> None:
            if waiting:
                name, *args = waiting.pop()
                with contextlib.suppress(StorageError):
                    match name:
                        case "append":
                            await provider.append_message(self.message(args[0], args[1]), args[2])
                        case "update":
                            await provider.update_message(self.message(args[0], args[1]))
                        case _:
                            await provider.delete_messages(args[0])

        async def store() -> CompactResult | None:
            if isinstance(provider, PostgresSessionProvider):
                change = provider.change_overlays

                async def late(*args: Any) -> bool:
                    await write()
                    return await change(*args)

                with patch.object(provider, "change_overlays", late):
                    stored = await history.store_summary(result, seen)
                assert not waiting
                return stored
            await write()
            return await history.store_summary(result, seen)

        stored = self.runner.run(store())
        return stored and (stored.from_message_id, stored.to_message_id)

    def page(self, order: str, leaf: str | None) -> None:
        """Two more rows of a walk, or the first two of a new one."""
        cursors = self.cursors.get((order, leaf), [None, None])
        pages = [
            self.runner.run(provider.page_messages(2, cursors[which], order=order, leaf_id=leaf))
            for which, provider in enumerate(self.providers)
        ]
        assert self.plain(0, pages[0]["messages"]) == self.plain(1, pages[1]["messages"])
        assert ("nextCursor" in pages[0]) == ("nextCursor" in pages[1])
        self.cursors[order, leaf] = [found.get("nextCursor") for found in pages]

    def walk(self, order: str, leaf: str | None) -> None:
        self.cursors.pop((order, leaf), None)
        self.page(order, leaf)
        while self.cursors[order, leaf] != [None, None]:
            self.page(order, leaf)

    def echo(self, number: int, parent: str) -> None:
        """Another program stores a summary as a message, below a message that is there, and both are opened again."""
        stored = [self.outcome(which, "get_message", parent) for which in (0, 1)]
        rows = [self.runner.run(provider.get_compactions()) for provider in self.providers]
        if stored[0] is None or not rows[0]:
            return
        for which, provider in enumerate(self.providers):
            identity = f"compaction_{rows[which][number % len(rows[0])]['id']}"
            content = orjson.dumps({**self.message(identity, "echo"), "id": identity}).decode()
            self.runner.run(self.store(which, provider.session_id, identity, content, parent))
        self.providers = [
            AgentSessionProvider(self.database, self.providers[0].session_id),
            PostgresSessionProvider(self.connection, self.providers[1].session_id),
        ]

    async def store(self, which: int, session: str, identity: str, content: str, parent: str) -> None:
        if which == 1:
            statement = """INSERT INTO assistant_messages (id, session_id, parent_id, role, content, created_at)
                SELECT %s, %s, %s, 'user', %s, max(created_at) + interval '1 microsecond'
                FROM assistant_messages WHERE session_id = %s"""
            async with self.connection.transaction():
                await self.connection.execute(statement, (identity, session, escape(parent), content, session))
            return
        renamed = {**orjson.loads(content), "id": "echo"}

        def rename(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE assistant_messages SET id = ?, content = ? WHERE session_id = ? AND id = 'echo'",
                (identity, content, session),
            )

        await AgentSessionProvider(self.database, session).append_message(renamed, parent)
        await self.database.write(rename)

    def compare(self) -> None:
        self.both("get_latest_leaf")
        self.both("get_compactions")
        self.both("path_tokens")
        for order in ("newest", "oldest", "inserted"):
            self.walk(order, None)
        for order in ("newest", "oldest"):
            self.walk(order, "m3\0")
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


@given(done=weighted | cleared)
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
