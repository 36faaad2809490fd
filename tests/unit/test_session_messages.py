"""Messages and status frames of a session, and what an append costs."""

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from session_support import Library, Owner, opened, text

from actors.errors import NotSupported
from actors.session import Session, SessionManager
from actors.session.providers import SESSION_METHODS
from compaction import estimate_message_tokens, estimate_string_tokens
from storage import (
    AgentSessionProvider,
    MessagePage,
    MessageRow,
    RecentHistory,
    RowStat,
    SearchResult,
    SessionMessage,
    StoredCompaction,
)
from storage.errors import InvalidArgument, InvalidMessage, UnknownMessage, UnknownParent


def count_hops(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every operation that goes to the database from here on."""
    hops: list[str] = []
    for kind in ("read", "write"):
        original = getattr(owner.database, kind)

        def counted(run: Any, kind: str = kind, original: Any = original, **options: Any) -> Any:
            hops.append(kind)
            return original(run, **options)

        monkeypatch.setattr(owner.database, kind, counted)
    return hops


@pytest.mark.parametrize("earlier", [3, 300])
async def test_an_append_is_one_write_whatever_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:  # D13
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("memory").with_cached_prompt()
        session.on_compaction(lambda messages: None).compact_after(1_000_000)
        await asyncio.gather(*(session.append_message(text(f"m{number}")) for number in range(earlier)))
        hops = count_hops(owner, monkeypatch)
        await session.append_message(text("one more"))
        assert hops == ["write"]
        await session.update_message(text("one more", "changed"))
        await session.delete_messages(["one more"])
        assert hops == ["write"] * 3


async def test_the_estimate_of_every_frame_is_that_of_the_whole_history(tmp_path: Path) -> None:  # D13
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("memory")

        async def expected() -> int:
            prompt = estimate_string_tokens(await session.freeze_system_prompt())
            return estimate_message_tokens(await session.get_history()) + prompt

        for number in range(1, 7):
            await session.append_message(text(f"m{number}", "word " * number))
            assert owner.frames[-1]["tokenEstimate"] == await expected()
        await session.add_compaction("short", "m2", "m4")
        await session.append_message(text("m3b"), "m3")
        assert owner.frames[-1]["tokenEstimate"] == await expected()
        await session.append_message(text("m7"), "m6")
        assert owner.frames[-1]["tokenEstimate"] == await expected()
        await session.update_message(text("m1", "much longer " * 9))
        assert owner.frames[-1]["tokenEstimate"] == await expected()
        await session.delete_messages(["m4", "m6"])
        assert owner.frames[-1]["tokenEstimate"] == await expected()
        await session.clear_messages()
        assert owner.frames[-1]["tokenEstimate"] == await expected()


async def test_frames_and_answers_come_in_the_order_of_the_appends(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("memory").with_cached_prompt()
        answered: list[int] = []

        async def append(number: int) -> None:
            await session.append_message(text(f"m{number}"))
            answered.append(number)

        await asyncio.gather(*(append(number) for number in range(50)))
        assert answered == list(range(50))
        estimates = [frame["tokenEstimate"] for frame in owner.frames]
        assert estimates == sorted(set(estimates))
        assert [message["id"] for message in await session.get_history()] == [f"m{number}" for number in range(50)]


async def test_writes_of_a_session_with_skills_keep_their_order_while_the_first_looks_for_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("skills", provider=Library())

        async def late(number: int) -> None:
            for _ in range(number % 7):
                await asyncio.sleep(0)
            started.append(f"m{number}")
            await session.append_message(text(f"m{number}"))

        started: list[str] = []
        await asyncio.gather(*(late(number) for number in range(40)))
        assert [message["id"] for message in await session.get_history()] == started


async def test_a_frame_is_sent_only_when_its_message_is_durable(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        durable: list[bool] = []

        def look(frame: dict[str, Any]) -> None:
            rows = owner.database  # the write has returned: a second connection sees the row
            import sqlite3

            with sqlite3.connect(rows.path) as connection:
                durable.append(connection.execute("SELECT count(*) FROM assistant_messages").fetchone()[0] == 1)

        owner.broadcast = look  # type: ignore[method-assign]
        await session.append_message(text("m1"))
        assert durable == [True]


@pytest.mark.parametrize(
    "bad", [{}, {"id": "m", "role": "user"}, {"id": "", "role": "user", "parts": []}, "text", None]
)
async def test_a_message_that_is_none_is_refused_before_anything_is_stored(tmp_path: Path, bad: Any) -> None:  # D3
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        for call in (session.append_message, session.update_message):
            with pytest.raises(InvalidMessage):
                await call(bad)
        assert await session.get_path_length() == 0
        assert owner.frames == []


async def test_refused_writes_send_no_frame(tmp_path: Path) -> None:  # D2, D4
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        with pytest.raises(UnknownParent):
            await session.append_message(text("m1"), "nobody")
        with pytest.raises(UnknownMessage):
            await session.update_message(text("m1"))
        assert owner.frames == []
        assert await session.search("hello") == []


async def test_a_parent_of_another_session_is_refused(tmp_path: Path) -> None:  # D2, B17
    async with opened(tmp_path) as owner:
        a, b = (Session.create(owner).for_session(name) for name in "ab")
        await a.append_message(text("m1"))
        with pytest.raises(UnknownParent):
            await b.append_message(text("m2"), "m1")
        await b.append_message(text("m1", "same id, other session"))
        assert [len(await session.get_history()) for session in (a, b)] == [1, 1]


class Delegating:
    """A provider of one's own, which may or may not name a session."""

    def __init__(self, provider: AgentSessionProvider) -> None:
        for name in SESSION_METHODS:
            setattr(self, name, getattr(provider, name))


class Named(Delegating):
    session_id = "orig"


@pytest.mark.parametrize("kind", [lambda provider: provider, Named], ids=["built-in", "own"])
async def test_a_session_is_not_named_otherwise_than_its_provider(tmp_path: Path, kind: Callable[[Any], Any]) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(kind(AgentSessionProvider(owner, "orig")))
        with pytest.raises(InvalidArgument, match="already names its session; make it for 'other' instead of 'orig'"):
            session.for_session("other")
        await session.for_session("orig").append_message(text("m1"))
        assert len(await Session.create(owner).for_session("orig").get_history()) == 1


async def test_a_provider_that_names_no_session_is_one_for_any(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(Delegating(AgentSessionProvider(owner, "there"))).for_session("blocks")
        await session.append_message(text("m1"))
        assert len(await Session.create(owner).for_session("there").get_history()) == 1


async def test_repeating_an_append_changes_nothing_and_starts_no_compaction(tmp_path: Path) -> None:  # D3, B10
    runs: list[int] = []
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(lambda messages: runs.append(len(messages))).compact_after(1)
        for _ in range(3):
            await session.append_message(text("m1"))
            await session.settled()
        assert len(runs) == 1
        assert owner.phases() == ["idle", "compacting", "idle", "idle", "idle"]
        assert await session.get_path_length() == 1


async def test_messages_may_be_models(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        message = {**text("m1"), "createdAt": "2001-02-03T04:05:06.789Z", "extra": {"kept": [1, None]}}
        await session.append_message(SessionMessage.model_validate(message))
        assert await session.get_message("m1") == message


async def test_an_owner_that_cannot_broadcast_is_estimated_for_nobody(tmp_path: Path) -> None:
    calls: list[int] = []

    def counter(**_: Any) -> int:
        calls.append(1)
        return 1

    async with opened(tmp_path) as owner:
        session = Session.create(owner.database).compact_after(10, token_counter=counter)
        await session.append_message(text("m1"))
        assert calls == []
        session = Session.create(owner.database).on_compaction(lambda _: None).compact_after(10, token_counter=counter)
        await session.append_message(text("m2"))
        assert calls == [1]


@pytest.mark.parametrize(("count", "told"), [(1.2, 2), (-5, 0), (float("nan"), 0), (float("inf"), 0), ("7", 0)])
async def test_an_odd_answer_of_a_counter_is_a_whole_number_of_tokens(tmp_path: Path, count: Any, told: int) -> None:
    async def counter(**_: Any) -> Any:
        return count

    async with opened(tmp_path) as owner:
        await Session.create(owner).compact_after(5, token_counter=counter).append_message(text("m1"))
        assert owner.frames[-1]["tokenEstimate"] == told


async def test_storage_that_cannot_search_says_so(tmp_path: Path) -> None:
    class Silent(AgentSessionProvider):
        search_messages = None  # type: ignore[assignment]

    async with opened(tmp_path) as owner:
        with pytest.raises(NotSupported):
            await Session.create(Silent(owner)).search("x")


async def test_history_as_json_is_the_history(tmp_path: Path) -> None:
    import json

    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        await session.append_message(text("m1", "ünï 😀"))
        assert json.loads(await session.get_history_json()) == await session.get_history()


@pytest.mark.parametrize("kind", [Session, SessionManager])
def test_every_method_says_what_it_gives(kind: type) -> None:
    methods = inspect.getmembers(kind, lambda member: inspect.iscoroutinefunction(member))
    untyped = [
        name
        for name, method in methods
        if not name.startswith("_") and get_type_hints(method).get("return", Any) is Any
    ]
    assert len(methods) > 20
    assert untyped == []


async def test_results_have_the_fields_that_their_types_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        for number in range(3):
            await session.append_message(text(f"m{number}"))
        page = await session.page_messages(2)
        stored = await session.add_compaction("s", "m0", "m1")
        results: list[tuple[Any, type]] = [
            (await session.get_recent_history(1_000), RecentHistory),
            ((await session.get_history_row_stats() or [])[0], RowStat),
            (page, MessagePage),
            (page["messages"][0], MessageRow),
            ((await session.search("hello"))[0], SearchResult),
            ((await SessionManager.create(owner).search("hello"))[0], SearchResult),
            (stored, StoredCompaction),
            ((await session.get_compactions())[0], StoredCompaction),
        ]
        for value, kind in results:
            assert set(value) == set(kind.__annotations__), kind
