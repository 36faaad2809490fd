"""Sessions over PostgreSQL: summaries and late results are stored at one moment, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson
import postgres_clients
import pytest
from postgres_server import server

from actors.session import Session
from compaction import create_compact_function, is_compaction_message
from compaction.tool_pairs import ABANDONED_AFTER
from storage import PostgresSessionProvider
from storage.errors import InvalidArgument, InvalidMessage, Overloaded
from storage.tokens import estimate_message_tokens

JsonObject = dict[str, Any]
Write = Callable[[PostgresSessionProvider], Coroutine[Any, Any, Any]]


def text(identity: str, content: str = "hello there") -> JsonObject:
    return {"id": identity, "role": "user", "parts": [{"type": "text", "text": content}]}


def call(message_id: str, *call_ids: str) -> JsonObject:
    parts = [
        {"type": "tool-look", "toolCallId": call_id, "toolName": "look", "input": {}, "state": "input-available"}
        for call_id in call_ids
    ]
    return {"id": message_id, "role": "assistant", "parts": parts}


def result(message_id: str, *call_ids: str, output: Any = "42") -> JsonObject:
    parts = [
        {"type": "tool-look", "toolCallId": call_id, "output": output, "state": "output-available"}
        for call_id in call_ids
    ]
    return {"id": message_id, "role": "tool", "parts": parts}


def ids(messages: list[JsonObject]) -> list[str]:
    return ["summary" if is_compaction_message(message) else message["id"] for message in messages]


async def summarize(prompt: str) -> str:
    return "in short"


COMPACT = create_compact_function(summarize=summarize, protect_head=1, tail_token_budget=30, min_tail_messages=1)


def fold(first: str, last: str) -> Callable[[list[JsonObject]], JsonObject]:
    return lambda messages: {"fromMessageId": first, "toMessageId": last, "summary": "in short"}


@pytest.fixture
def schema() -> str:
    return server().schema()


@pytest.fixture(params=postgres_clients.KINDS)
async def provider(request: pytest.FixtureRequest, schema: str) -> AsyncIterator[PostgresSessionProvider]:
    async with postgres_clients.client(request.param, schema) as client:
        yield PostgresSessionProvider(client, "s\0")


@asynccontextmanager
async def opened(schema: str) -> AsyncIterator[PostgresSessionProvider]:
    """The same session, as another process has it."""
    async with postgres_clients.client("autocommit", schema) as client:
        yield PostgresSessionProvider(client, "s\0")


def interrupted(
    provider: PostgresSessionProvider, name: str, write: Callable[[], Coroutine[Any, Any, Any]]
) -> list[int]:
    """Run `write` before each call of a method of `provider`: after what it is decided by was read. How often it was."""
    method = getattr(provider, name)
    count: list[int] = []

    async def first_write(*args: Any) -> Any:
        count.append(1)
        await write()
        return await method(*args)

    setattr(provider, name, first_write)
    return count


CHANGES: dict[str, Write] = {
    "the end is deleted": lambda other: other.delete_messages(["m3"]),
    "a message of the range is replaced": lambda other: other.update_message(text("m2", "another")),
    "a message of the range is deleted": lambda other: other.delete_messages(["m2"]),
    "all is cleared": lambda other: other.clear_messages(),
    "the path is another": lambda other: other.append_message(text("b"), "m1"),
    "the range is inside a newer summary": lambda other: other.add_compaction("newer", "m1", "m4"),
    "a call is answered": lambda other: other.append_message(result("r", "c1")),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_summary_is_not_stored_if_what_it_tells_of_changes_before_it_is(
    provider: PostgresSessionProvider, schema: str, change: str
) -> None:
    for message in (text("m0"), text("m1"), call("m2", "c1"), text("m3"), text("m4"), text("m5")):
        await provider.append_message(message)
    session = Session.create(provider).on_compaction(fold("m1", "m3"))
    async with opened(schema) as other:
        is_done = asyncio.Event()

        async def write() -> None:
            if not is_done.is_set():
                is_done.set()
                await CHANGES[change](other)

        interrupted(provider, "change_overlays", write)
        assert await session.compact() is None
        assert is_done.is_set()
        assert [row["summary"] for row in await other.get_compactions() if row["summary"] == "in short"] == []


async def test_a_summary_extends_one_that_came_while_it_was_decided(
    provider: PostgresSessionProvider, schema: str
) -> None:
    for number in range(6):
        await provider.append_message(text(f"m{number}"))
    session = Session.create(provider).on_compaction(fold("m3", "m4"))
    async with opened(schema) as other:
        is_done = asyncio.Event()

        async def write() -> None:
            if not is_done.is_set():
                is_done.set()
                await other.add_compaction("newer", "m1", "m2")

        interrupted(provider, "change_overlays", write)
        stored = await session.compact()
        assert stored is not None
        assert (stored.from_message_id, stored.to_message_id) == ("m1", "m4")
        assert ids(await other.get_history()) == ["m0", "summary", "m5"]


async def test_appends_hold_up_no_summary_and_endless_changes_end_in_an_error(
    provider: PostgresSessionProvider, schema: str
) -> None:
    for number in range(6):
        await provider.append_message(text(f"m{number}"))
    session = Session.create(provider).on_compaction(fold("m1", "m2"))
    async with opened(schema) as other:
        count = interrupted(provider, "change_overlays", lambda: other.append_message(text(f"more{len(count)}")))
        assert await session.compact() is not None
        assert len(count) == 1
        assert ids(await other.get_history()) == ["m0", "summary", "m3", "m4", "m5", "more1"]
        session = Session.create(provider).on_compaction(fold("m3", "m4"))
        interrupted(provider, "change_overlays", lambda: other.update_message(text("m0", f"no {len(count)}")))
        with pytest.raises(Overloaded):
            await session.compact()
        assert len(await other.get_compactions()) == 1


# ---- late results, see actors/session/late_results.py -----------------------------------------------------------


async def abandoned(provider: PostgresSessionProvider) -> Session:
    """A call without a result has been folded: m0, the summary, the last messages."""
    session = Session.create(provider).on_compaction(COMPACT)
    await session.append_message(text("m0"))
    await session.append_message(call("c", "c1"))
    for number in range(ABANDONED_AFTER + 5):
        await session.append_message(text(f"n{number}"))
    assert await session.compact() is not None
    assert "c" not in ids(await session.get_history())
    return session


async def test_a_result_whose_call_was_folded_is_told_as_text(provider: PostgresSessionProvider) -> None:
    session = await abandoned(provider)
    late = result("late", "c1", output="4\0 degrees")
    for _ in range(2):
        await session.append_message(late)
    *_, told = await session.get_history()
    assert told["parts"] == [{"type": "text", "text": "[Late result of an earlier call of look: 4\0 degrees]"}]
    assert (await session.get_raw_history())[-1] == late
    assert len(await session.get_compactions()) == 2
    await session.append_message(call("d", "d1"))
    with pytest.raises(InvalidMessage, match="in a message of its own"):
        await session.append_message(result("both", "c1", "d1"))
    assert await session.get_message("both") is None
    await session.append_message(result("one", "d1"))
    await session.append_message(call("again", "c1"))
    await session.append_message(result("answer", "c1"))  # belongs to the newer call
    await session.append_message(result("nobody's", "x1"))
    assert ids(await session.get_history())[-6:] == ["summary", "d", "one", "again", "answer", "nobody's"]


async def test_a_result_whose_call_is_folded_while_it_is_appended_is_told_as_text(
    provider: PostgresSessionProvider, schema: str
) -> None:
    session = Session.create(provider)
    for message in (text("m0"), call("c", "c1"), text("m1"), text("m2")):
        await session.append_message(message)
    async with opened(schema) as other:
        is_done = asyncio.Event()

        async def write() -> None:
            if not is_done.is_set():
                is_done.set()
                await other.add_compaction("in short", "c", "m1")

        count = interrupted(provider, "append_if", write)
        await session.append_message(result("late", "c1"))
        assert len(count) == 2
        assert ids(await other.get_history()) == ["m0", "summary", "m2", "summary"]


async def test_a_late_result_is_shown_as_it_is_when_its_call_is_visible_again(
    provider: PostgresSessionProvider,
) -> None:
    session = await abandoned(provider)
    (overlay,) = await session.get_compactions()
    await session.append_message(result("late", "c1"))
    end = overlay["toMessageId"]
    path = ids(await session.get_raw_history())
    await session.append_message(text("branch"), path[path.index(end) - 1])
    await session.delete_messages([end])  # the summary goes: it must not come to the other branch
    assert await session.get_compactions() == []
    assert (await session.get_history("late"))[-1] == result("late", "c1")
    assert "c" in ids(await session.get_history("late"))


async def test_a_second_result_of_a_folded_call_is_told_as_text_however_it_comes(
    provider: PostgresSessionProvider,
) -> None:
    async def answer_again(messages: Any) -> Any:
        if await provider.get_message("m6") is not None and not await provider.get_message("m7"):
            await provider.append_message(result("m7", "c"))
        return fold("m2", "m4")(messages)

    session = Session.create(provider).on_compaction(answer_again)
    for message in (text("m1"), call("m2", "c"), result("m3", "c"), text("m4"), result("m5", "c")):
        await session.append_message(message)
    await session.append_message(text("m6"), "m4")
    assert await session.compact() is None  # one has come meanwhile
    await session.delete_messages(["m7"])
    await session.append_message(text("m7"))
    assert await session.compact() is not None
    told = "[Late result of an earlier call of look: {}]"
    assert (await session.get_history("m5"))[-1]["parts"][0]["text"] == told.format(42)
    for how, output in ((session.update_message, 43), (session.upsert_message, 44)):
        await how(result("m7", "c", output=output))
        assert (await session.get_history())[-1]["parts"][0]["text"] == told.format(output)
    with pytest.raises(InvalidMessage, match="in a message of its own"):
        await session.update_message({**result("m7", "c"), "parts": result("m7", "c", "x")["parts"]})
    await session.update_message(text("m7"))
    assert ids(await session.get_history()) == ["m1", "summary", "m6", "m7"]
    await session.update_message(text("m2"))
    assert ids(await session.get_history("m5")) == ["m1", "summary", "m5"]
    await session.update_message(call("m2", "c"))
    assert ids(await session.get_history("m5")) == ["m1", "summary", "summary"]


async def test_a_late_result_whose_call_is_gone_stays_told_as_text(provider: PostgresSessionProvider) -> None:
    session = await abandoned(provider)
    await session.append_message(result("late", "c1"))
    await session.delete_messages(["c"])
    assert ids(await session.get_history())[-1] == "summary"


async def test_a_result_on_another_branch_of_a_call_folded_here_is_told_as_text_there(
    provider: PostgresSessionProvider,
) -> None:
    session = Session.create(provider)
    for message in (text("m0"), call("c", "c1"), *(text(f"n{number}") for number in range(5))):
        await session.append_message(message)
    await session.append_message(result("answer", "c1"), "n4")
    await session.append_message(text("side"), "answer")
    await session.append_message(text("main"), "n4")
    assert await Session.create(provider).on_compaction(fold("c", "n4")).compact() is not None
    assert ids(await session.get_history("side")) == ["m0", "summary", "summary", "side"]
    assert (await session.get_history("side"))[2]["parts"][0]["text"] == "[Late result of an earlier call of look: 42]"
    assert ids(await session.get_history()) == ["m0", "summary", "main"]


# ---- estimates --------------------------------------------------------------------------------------------------


async def test_an_estimate_is_exact_whoever_wrote_and_reads_only_what_is_new(
    provider: PostgresSessionProvider, schema: str
) -> None:
    reads: list[int] = []
    contents = provider._contents

    async def counting(wanted: list[str], *, is_most: bool) -> dict[str, str]:
        reads.append(len(wanted))
        return await contents(wanted, is_most=is_most)

    async def check(count: int) -> None:
        expected = estimate_message_tokens(await provider.get_history())
        reads.clear()
        assert await provider.path_tokens() == expected
        assert reads == [count]

    for number in range(8):
        await provider.append_message(text(f"m{number}"))
    provider._contents = counting  # type: ignore[method-assign]
    await check(8)
    await provider.append_message(text("m8", "more"))
    await check(1)
    async with opened(schema) as other:
        await other.update_message(text("m3", "quite another text"))
        await check(1)
        await other.append_message(text("side"), "m2")
        await check(1)
        await other.add_compaction("in short", "m1", "m2")
        await check(0)
        await other.delete_messages(["m1", "side"])
        await check(6)  # what a switch of branches brings back
    await provider.clear_messages()
    await check(0)


# ---- pages and estimates where the order is that of times ---------------------------------------------------------


async def test_without_the_order_column_pages_and_conditional_writes_go_by_the_times(schema: str) -> None:
    async with opened(schema) as provider, opened(schema) as other:
        for each in (provider, other):
            for columns in (await each._tables())._columns.values():
                columns.discard("seq")  # as for a role that may not add it
        for number in range(6):
            await provider.append_message(text(f"m{number}"))
        server().execute(
            "UPDATE assistant_messages SET created_at = '2001-02-03' WHERE id IN ('m0', 'm1')", schema=schema
        )
        for order, expected in (("inserted", range(6)), ("oldest", range(6)), ("newest", range(5, -1, -1))):
            cursor, seen = None, []
            while cursor is not None or not seen:
                page = await provider.page_messages(1, cursor, order=order)  # type: ignore[arg-type]
                seen += ids(page["messages"])
                cursor = page.get("nextCursor")
            assert seen == [f"m{number}" for number in expected]
        session = Session.create(provider).on_compaction(fold("m1", "m3"))
        count = interrupted(provider, "change_overlays", lambda: other.append_message(text(f"more{len(count)}")))
        assert await session.compact() is not None
        assert ids(await other.get_history()) == ["m0", "summary", "m4", "m5", "more1"]
        state = await provider.get_state()
        await other.update_message(text("m5", "changed"))
        assert not await provider.append_if(state, text("late"), "m5", [], ())
        assert await other.get_message("late") is None


async def test_pages_refuse_what_they_cannot_be(provider: PostgresSessionProvider) -> None:
    session = Session.create(provider)
    for number in range(3):
        await session.append_message(text(f"m{number}"))
    page = await session.page_messages(2)
    row = page["messages"][0]
    assert (row["id"], row["parentId"], row["role"], row["tokens"]) == ("m2", "m1", "user", 7)
    assert row["bytes"] == len(orjson.dumps(text("m2")))
    assert row["createdAt"].endswith("Z")
    assert ids((await session.page_messages(2, page["nextCursor"]))["messages"]) == ["m0"]
    for arguments in ({"limit": 0}, {"order": "random"}, {"cursor": "x"}, {"order": "inserted", "leaf_id": "m1"}):
        with pytest.raises(InvalidArgument):
            await session.page_messages(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        await session.page_messages(2, page["nextCursor"], order="oldest")
    assert await session.page_messages(leaf_id="missing") == {"messages": []}
    assert await session.get_history_row_stats() is None
