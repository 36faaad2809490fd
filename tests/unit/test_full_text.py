"""Search over messages: words, CJK text and emoji, and an index that holds nothing of what is gone."""

import asyncio
import sqlite3

import pytest

from storage import AgentSessionProvider, full_text, open_database, schema
from storage import message_tree as tree
from storage.errors import CorruptDatabase, InvalidArgument, StoreUnavailable
from storage.search_words import fold, match_expression


def message(message_id, text):
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


@pytest.fixture
async def database(tmp_path):
    database = await open_database(tmp_path / "chat.db")
    yield database
    await database.close()


@pytest.fixture
def provider(database):
    return AgentSessionProvider(database)


async def store(provider, *texts):
    for number, text in enumerate(texts):
        await provider.append_message(message(f"m{number}", text))


async def found(provider, query, limit=20):
    return [item["content"] for item in await provider.search_messages(query, limit)]


async def index_rows(database, word=None):
    """What the index itself holds, whether or not a message belongs to it."""
    query = "SELECT count(*) FROM assistant_fts" + (" WHERE assistant_fts MATCH ?" if word else "")
    return await database.read(lambda c: c.execute(query, (word,) if word else ()).fetchone()[0])


async def test_all_words_must_match_in_any_order(provider):
    await store(provider, "deployment is planned for Friday", "deployment failed", "Friday")
    assert await found(provider, "deployment Friday") == ["deployment is planned for Friday"]
    assert await found(provider, "friday DEPLOYMENTS") == ["deployment is planned for Friday"]
    assert await found(provider, "deployment monday") == []


@pytest.mark.parametrize(
    "query",
    ["POL-358", "pol-358", "POL 358", '"POL-358"', "ticket POL-358", "POL-358 !!! --", "POL-358*", "POL-358 & ticket"],
)
async def test_punctuation_is_no_operator(provider, query):
    await store(provider, "ticket POL-358", "POL and 3580")
    assert await found(provider, query) == ["ticket POL-358"]


@pytest.mark.parametrize("query", ["", " ", "\0", '"', '""', "*", "- - -", "()", "\ufeff", "{}:^"])
async def test_a_query_without_words_finds_nothing(provider, query):
    await store(provider, "text", "")
    assert await found(provider, query) == []


@pytest.mark.parametrize(
    "query", ["content:text", "NEAR(some text)", "text NOT other", "text OR absent", "text AND", "te*"]
)
async def test_operators_are_words(provider, query):
    await store(provider, "some text")
    assert await found(provider, query) == []


@pytest.mark.parametrize(
    "query", ["'; DROP TABLE assistant_messages; --", '"' * 99, "a" * 100_000, "x " * 50_000, "\ud800"]
)
async def test_no_query_breaks_the_search(provider, query):
    await store(provider, "text")
    assert await found(provider, query) == []
    assert await found(provider, " ".join(f"w{n}" for n in range(5_000))) == []
    assert await found(provider, "text") == ["text"]


async def test_what_follows_a_nul_is_found(provider):
    await store(provider, "before\0after", "\0only")
    assert await found(provider, "after") == ["before\0after"]
    assert await found(provider, "before after") == ["before\0after"]
    assert await found(provider, "bef\0ore") == []
    assert await found(provider, "only\0") == ["\0only"]


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        ("東京タワーに行きました", ["東京", "タワー", "行き", "京タ", "東", "東京 行き", "東京タワーに行きました"]),
        ("我今天在北京吃烤鸭。", ["北京", "烤鸭", "今天", "鸭"]),
        ("한국어 텍스트를 찾습니다", ["한국", "텍스트", "찾습니다", "국어"]),
        ("ﾊﾝｶｸ と 全角ＡＢＣ", ["ﾊﾝ", "全角"]),
        ("新しいiPhone15を買う", ["iphone15", "新しい", "iPhone15を", "買"]),
        ("が", ["か\u3099"]),
        ("か\u3099っこう", ["がっこう"]),
        ("한", ["\u1112\u1161\u11ab"]),
        ("𠮷野家で", ["𠮷野", "野家"]),
        ("party 🎉 time 🚀", ["🎉", "🚀", "party 🎉 time", "🎉 🚀", "party time"]),
        ("ok👍🏽done", ["👍", "👍🏽", "ok", "done", "ok👍", "🏽done"]),
        ("👨‍👩‍👧‍👦 family", ["👨‍👩‍👧", "👩", "family"]),
        ("I ❤️ it ✅ ⭐", ["❤️", "❤", "✅", "⭐", "it"]),
        ("flag 🇯🇵 here", ["🇯🇵", "flag"]),
        ("©️ ↔️", ["©️", "↔️"]),
    ],
)
async def test_substrings_of_cjk_text_and_emoji_are_found(provider, text, queries):
    await store(provider, "nothing of that 中 あ 😀", text)
    for query in queries:
        assert await found(provider, query) == [text], query


@pytest.mark.parametrize(
    ("text", "query"),
    [("東京タワー", "京東"), ("東京タワー", "東タ"), ("🎉🚀", "🚀🎉"), ("🎉", "🚀"), ("大阪", "東京")],
)
async def test_other_cjk_text_and_emoji_are_not_found(provider, text, query):
    await store(provider, text)
    assert await found(provider, query) == []


def test_other_text_is_indexed_as_it_is():
    for text in [
        "plain English",
        "Café naïve – “quoted” … 5°C © ™ → ² ﬁ",
        "Ünïcode Привет שלום",
        "a\u0301\u0301",
        "日本"[:0],
    ]:
        assert fold(text) == text


def test_every_word_is_quoted_and_said_once():
    assert match_expression('say "hi" say') == '"say" """hi"""'
    assert match_expression("\u3000 \n") is None
    with pytest.raises(InvalidArgument):
        match_expression(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [-1, -0.5, float("nan"), "5", None, True])
async def test_a_limit_that_is_no_count_is_refused(provider, limit):
    await store(provider, "text")
    with pytest.raises(InvalidArgument):
        await provider.search_messages("text", limit)


async def test_a_limit_is_cut_to_a_whole_number(provider):
    await store(provider, *["text"] * 4)
    assert [len(await found(provider, "text", limit)) for limit in (0, 0.9, 1.9, 3, float("inf"), 10**30)] == [
        0,
        0,
        1,
        3,
        4,
        4,
    ]


async def test_equal_matches_come_in_the_order_of_insertion(provider):
    await store(provider, *["same text"] * 30)
    results = await provider.search_messages("same", 100)
    assert [item["id"] for item in results] == [f"m{number}" for number in range(30)]


async def test_results_tell_when_the_message_was_made(provider):
    await provider.append_message(message("a", "word") | {"createdAt": "2001-02-03T04:05:06.789Z"})
    await provider.append_message(message("b", "word"))
    own, stored = [item["createdAt"] for item in await provider.search_messages("word")]
    assert own == "2001-02-03T04:05:06.789Z"
    assert stored[:2] == "20"
    assert stored.endswith("Z")


async def test_nothing_of_a_message_that_is_gone_stays_in_the_index(database, provider):
    await store(provider, "unique0", "unique1", "unique2", "unique3")
    other = AgentSessionProvider(database, "other")
    await other.append_message(message("x", "foreign"))
    assert await found(provider, "unique1") == ["unique1"]
    await provider.update_message(message("m0", "replaced"))
    await provider.delete_messages(["m1"])
    for word, count in {"unique0": 0, "unique1": 0, "replaced": 1, "unique2": 1, "foreign": 1}.items():
        assert await index_rows(database, word) == count, word
    await provider.clear_messages()
    for word, count in {"replaced": 0, "unique2": 0, "unique3": 0, "foreign": 1}.items():
        assert await index_rows(database, word) == count, word
    await other.clear_messages()
    assert await index_rows(database) == 0
    await other.append_message(message("x", "unique0 again"))
    assert await found(other, "unique0") == ["unique0 again"]


async def test_a_number_that_is_given_again_is_indexed_again(provider):
    await store(provider, "first", "second")
    assert await found(provider, "second") == ["second"]
    await provider.delete_messages(["m1"])
    await provider.append_message(message("m9", "third"))
    assert await found(provider, "second") == []
    assert await found(provider, "third") == ["third"]


async def test_an_append_does_not_touch_the_index(database, provider):
    await store(provider, "text")
    assert await index_rows(database) == 0
    await provider.update_message(message("m0", "other"))
    assert await found(provider, "text") == []
    assert await found(provider, "other") == ["other"]
    assert await index_rows(database) == 1


async def test_the_index_follows_in_the_background(database, provider):
    await asyncio.gather(*(provider.append_message(message(f"m{n}", "text")) for n in range(full_text.BATCH)))
    assert provider._catching_up is not None
    await provider._catching_up
    assert await index_rows(database) == full_text.BATCH


async def test_closing_before_the_index_followed_is_harmless(tmp_path):
    database = await open_database(tmp_path / "a.db")
    provider = AgentSessionProvider(database)
    appends = [provider.append_message(message(f"m{n}", "text")) for n in range(full_text.BATCH)]
    await asyncio.gather(*appends)
    await database.close()
    if provider._catching_up is not None:
        await provider._catching_up


async def test_a_long_lag_is_caught_up_in_several_writes(database, provider, monkeypatch):
    monkeypatch.setattr(full_text, "MOST", 10)
    await store(provider, *[f"text {number}" for number in range(35)])
    assert len(await found(provider, "text", 100)) == 35


async def test_an_index_that_is_broken_is_an_error_and_not_an_empty_result(database, provider):
    await store(provider, "text")
    assert await found(provider, "text") == ["text"]
    await database.write(lambda c: c.execute("DELETE FROM assistant_fts_data"))
    with pytest.raises(CorruptDatabase):
        await provider.search_messages("text")
    await store(provider, "", "more")
    with pytest.raises(CorruptDatabase):
        await provider.search_messages("more")


async def test_search_goes_on_while_nothing_can_be_written(database, provider, monkeypatch):
    await store(provider, "apple one", "apple two")
    assert len(await found(provider, "apple")) == 2
    await provider.append_message(message("new", "apple pie 東京"))
    await AgentSessionProvider(database, "other").append_message(message("x", "apple of another"))

    async def refuse(work, *, size=0):
        raise StoreUnavailable("down")

    monkeypatch.setattr(database, "write", refuse)
    assert await found(provider, "apple") == ["apple one", "apple two", "apple pie 東京"]
    assert await found(provider, "apple", 1) == ["apple one"]
    assert await found(provider, "東京") == ["apple pie 東京"]
    assert await found(provider, "!") == []


def test_a_single_huge_message_is_indexed():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    tree.append(connection, "", message("m", "word " * 200_000 + "東京" * 50_000))
    full_text.catch_up(connection)
    assert len(full_text.search(connection, "", "京東 word")) == 1
    tree.delete(connection, "", ["m"])
    assert connection.execute("SELECT count(*) FROM assistant_fts").fetchone() == (0,)
