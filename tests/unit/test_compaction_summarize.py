"""`create_compact_function`: what it asks the summarizer and the counter, and what it makes of their answers."""

import math
from pathlib import Path
from typing import Any

import pytest
from histories import Message, call, overlay, result, talk, text
from pydantic import ValidationError
from session_support import opened

from actors.session import Session
from compaction import (
    CompactContext,
    CompactionError,
    CompactOptions,
    CompactResult,
    EmptySummary,
    InvalidSummary,
    InvalidTokenCount,
    LongSummary,
    Summary,
    Usage,
    build_summary_prompt,
    create_compact_function,
    estimate_message_tokens,
    is_compaction_message,
)
from compaction.result import MAX_SUMMARY_CHARS
from storage.errors import InvalidArgument
from storage.records import SessionMessage

TIGHT: dict[str, Any] = {"protect_head": 1, "tail_token_budget": 0, "min_tail_messages": 1}


def says(summary: Any) -> Any:
    return create_compact_function(summarize=lambda prompt: summary, **TIGHT)


async def test_the_summarizer_may_be_async_or_not_and_say_what_it_cost() -> None:
    async def later(prompt: str) -> str:
        return "later"

    for summarize, expected in ((later, "later"), (lambda prompt: "now", "now")):
        result = await create_compact_function(summarize=summarize, **TIGHT)(talk(5))
        assert result == CompactResult(fromMessageId="m1", toMessageId="m3", summary=expected)
        assert "usage" not in result.model_dump(by_alias=True)
    usage = Usage(120, 40, 0.002)
    result = await says(Summary("known", usage))(talk(5))
    assert (result.summary, result.usage, result.at("a", "b").usage) == ("known", usage, usage)
    dumped = result.model_dump(by_alias=True)
    assert dumped["usage"] == {"input_tokens": 120, "output_tokens": 40, "cost": 0.002}
    assert CompactResult.model_validate(dumped) == result


@pytest.mark.parametrize("blank", ["", " \n\t ", Summary("  ")])
async def test_an_empty_answer_is_an_error(blank: Any) -> None:
    with pytest.raises(EmptySummary):
        await says(blank)(talk(5))


@pytest.mark.parametrize("answer", [None, 3, b"text", ["text"], {"text": "t"}, Summary(None)])  # type: ignore[arg-type]
async def test_an_answer_that_is_no_text_is_an_error(answer: Any) -> None:
    with pytest.raises(InvalidSummary):
        await says(answer)(talk(5))
    assert issubclass(InvalidSummary, CompactionError)


async def test_what_the_summarizer_or_the_counter_raises_is_passed_on() -> None:
    def fail(_: Any) -> Any:
        raise ConnectionError("model unavailable")

    with pytest.raises(ConnectionError):
        await create_compact_function(summarize=fail, **TIGHT)(talk(5))
    with pytest.raises(ConnectionError):
        await create_compact_function(summarize=str, token_counter=fail, **TIGHT)(talk(5))


async def test_a_summary_is_sound_unicode_and_otherwise_as_it_was_written() -> None:
    assert (await says(" a\ud83d b\ud83d\ude00 ")(talk(5))).summary == " a\ufffd b😀 "


async def test_an_earlier_summary_is_handed_on_whole_and_only_what_followed_it_is_retold() -> None:
    prompts: list[str] = []

    def summarize(prompt: str) -> str:
        prompts.append(prompt)
        return "new"

    compact = create_compact_function(summarize=summarize, **TIGHT)
    for number in range(4):
        followed = talk(4, f"r{number}-")
        result = await compact([text("first"), overlay("o", f"## Topic\nsummary {number}"), *followed])
        assert (result.from_message_id, result.to_message_id) == (f"r{number}-0", f"r{number}-2")
        assert prompts.pop() == build_summary_prompt(followed[:3], f"## Topic\nsummary {number}", 100)


async def test_nothing_to_fold_asks_nobody() -> None:
    def never(_: Any) -> Any:
        raise AssertionError("it was asked")

    for messages in ([], talk(1), talk(5), [*talk(3), overlay("1"), *talk(2, "n")]):
        assert await create_compact_function(summarize=never)(messages) is None
        assert await create_compact_function(summarize=never, tail_token_budget=0)(messages) is None


async def test_the_own_counter_comes_before_the_session_s_and_the_estimate() -> None:
    asked: list[tuple[str, str]] = []

    def own(messages: list[Message]) -> int:
        asked.extend(("own", message["id"]) for message in messages)
        return 10

    async def session(*, messages: list[Message], system_prompt: str, context_blocks: list[Any]) -> float:
        assert (len(messages), system_prompt, context_blocks) == (1, "", [])
        asked.append(("session", messages[0]["id"]))
        return 25.5

    options: Any = {"summarize": lambda _: "s", "protect_head": 1, "tail_token_budget": 30, "min_tail_messages": 1}
    context = CompactContext(session)
    assert (await create_compact_function(token_counter=own, **options)(talk(9), context)).to_message_id == "m5"
    assert asked == [("own", "m8"), ("own", "m7"), ("own", "m6"), ("own", "m5")]
    asked.clear()
    assert (await create_compact_function(**options)(talk(9), context)).to_message_id == "m7"
    assert asked == [("session", "m8"), ("session", "m7")]
    for counted in (None, CompactContext()):
        assert (await create_compact_function(**options)(talk(9), counted)).to_message_id == "m5"


async def test_a_count_that_is_not_finite_or_negative_is_none_and_one_that_is_no_number_an_error() -> None:
    def counting(count: Any) -> Any:
        return create_compact_function(summarize=lambda _: "s", token_counter=lambda _: count, protect_head=0)

    for count in (math.nan, math.inf, -5, 10**400, -(10**400)):
        assert await counting(count)(talk(9)) is None
    for count in (None, "12", True):
        with pytest.raises(InvalidTokenCount):
            await counting(count)(talk(9))


async def test_a_summary_longer_than_what_it_stands_for_is_an_error_unless_it_is_short() -> None:
    short, long = "word " * 700, "word " * 900  # 910 and 1,170 tokens
    assert (await says(short)(talk(9))).summary == short
    with pytest.raises(LongSummary, match=r"^A summary of 1170 tokens is over the limit of \d\d; it was not stored"):
        await says(long)(talk(9))
    assert (await says(long)([text(f"m{number}", words="word " * 200) for number in range(9)])).summary == long
    held = overlay("1", "word " * 1_000)
    assert (await says(long)([text("m0"), held, *talk(5, "n")])).summary == long  # an earlier summary is replaced too


@pytest.mark.parametrize("character", ["x", "é", "😀"])
async def test_no_summary_is_over_the_limit_whoever_wrote_it(character: str) -> None:
    most = MAX_SUMMARY_CHARS // (2 if character == "😀" else 1)
    assert CompactResult(fromMessageId="a", toMessageId="b", summary=character * most)
    given = {"fromMessageId": "a", "toMessageId": "b", "summary": character * (most + 1)}
    with pytest.raises(LongSummary, match="characters is over the limit of 400000;"):
        CompactResult.model_validate(given)
    messages = [text(f"m{number}", words="word " * 200_000) for number in range(4)]
    with pytest.raises(LongSummary):
        await says(given["summary"])(messages)


@pytest.mark.parametrize("blank", ["", " \n\t", "\u2003"])
def test_no_result_has_an_empty_summary(blank: str) -> None:
    with pytest.raises(EmptySummary):
        CompactResult(fromMessageId="a", toMessageId="b", summary=blank)


@pytest.mark.parametrize("answer", [EmptySummary, LongSummary])
async def test_a_function_of_one_s_own_stores_no_empty_and_no_long_summary(tmp_path: Path, answer: type) -> None:
    summary = " " if answer is EmptySummary else "x" * (MAX_SUMMARY_CHARS + 1)
    told: list[Exception] = []
    async with opened(tmp_path) as owner:
        session = Session.create(owner).compact_after(10).on_compaction_error(told.append)
        session.on_compaction(lambda messages: {"fromMessageId": "m0", "toMessageId": "m1", "summary": summary})
        for message in talk(3):
            await session.append_message(message)
            await session.settled()
        assert told
        assert {type(error) for error in told} == {answer}
        assert await session.compact() is None
        assert await session.get_history() == talk(3)


# ---- the protected tail --------------------------------------------------------------------------------------


def without_budget(**options: Any) -> Any:
    return create_compact_function(summarize=lambda _: "s", **options)


async def test_the_tail_is_at_most_a_quarter_of_the_threshold_where_no_budget_is_given() -> None:
    async def kept(threshold: float | None, **options: Any) -> int | None:
        context = CompactContext(lambda **_: 100, threshold)
        result = await without_budget(**options)(talk(400), context)
        return None if result is None else 399 - int(result.to_message_id.removeprefix("m"))

    assert await kept(None) == 200
    assert await kept(2_000) == 5
    assert await kept(2_099.5) == 5
    assert await kept(80_000) == 200
    for large in (10**6, 10**400, math.inf, math.nan):
        assert await kept(large) == 200
    for small in (0, 3, -5):
        assert await kept(small) == 2
    assert await kept(2_000, tail_token_budget=20_000) == 200
    assert await kept(2_000, tail_token_budget=None) == 5
    assert await kept(80_000, tail_token_budget=1_000) == 10


async def test_a_session_with_a_small_threshold_is_compacted_without_any_other_option(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).compact_after(2_000)
        session.on_compaction(create_compact_function(summarize=lambda prompt: "what was said"))
        messages = [text(f"m{number}", words="word " * 60) for number in range(40)]
        assert 3_200 < estimate_message_tokens(messages) < 3_400
        for message in messages:
            await session.append_message(message)
            await session.settled()
            assert estimate_message_tokens(await session.get_history()) <= 2_000
        history = await session.get_history()
        assert [message["id"] for message in history[:3]] == ["m0", "m1", "m2"]
        assert [message["id"] for message in history if is_compaction_message(message)] == [history[3]["id"]]
        assert history[-1]["id"] == "m39"


async def test_a_session_that_is_compacted_by_hand_alone_protects_20_000_tokens(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(create_compact_function(summarize=lambda prompt: "s"))
        for number in range(40):
            await session.append_message(text(f"m{number}", words="word " * 60))
        assert await session.compact() is None


async def test_messages_may_be_models() -> None:
    result = await says("s")([SessionMessage.model_validate(message) for message in talk(5)])
    assert (result.from_message_id, result.to_message_id) == ("m1", "m3")


async def test_the_history_it_is_given_is_not_changed() -> None:
    messages = [*talk(3), overlay("1"), *talk(5, "n")]
    before = [dict(message) for message in messages]
    await says("s")(messages)
    assert messages == before


def test_options_of_the_wrong_kind_are_refused_at_once() -> None:
    options: CompactOptions = {"summarize": str, "protect_head": 0, "tail_token_budget": 0.5, "min_tail_messages": 0}
    create_compact_function(**options)
    for wrong in (
        {"summarize": None},
        {"token_counter": 3},
        {"protect_head": -1},
        {"protect_head": 1.5},
        {"protect_head": True},
        {"min_tail_messages": -1},
        {"min_tail_messages": None},
        {"tail_token_budget": -1},
        {"tail_token_budget": math.nan},
        {"tail_token_budget": "9"},
        {"max_prompt_chars": 9_999},
        {"max_prompt_chars": 1e6},
    ):
        with pytest.raises(InvalidArgument):
            create_compact_function(**{"summarize": str, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "figures", [(-1, 0), (0, -1), (1.5, 0), (True, 0), (0, 0, -0.1), (0, 0, math.nan), (0, 0, math.inf), ("1", 0)]
)
def test_usage_that_cannot_be_added_up_is_refused(figures: Any) -> None:
    with pytest.raises(InvalidArgument):
        Usage(*figures)
    with pytest.raises((InvalidArgument, ValidationError)):
        CompactResult.model_validate(
            {
                "fromMessageId": "a",
                "toMessageId": "b",
                "summary": "s",
                "usage": dict(zip(("input_tokens", "output_tokens", "cost"), figures, strict=False)),
            }
        )


# ---- a prompt that a model can read --------------------------------------------------------------------------


class Prompts(list[str]):
    def __call__(self, prompt: str) -> str:
        self.append(prompt)
        return f"summary {len(self)}"


LIMIT = 10_000


@pytest.mark.parametrize("words", [200, 20_000])
async def test_a_long_history_is_folded_piece_by_piece_and_each_message_is_told_once(words: int) -> None:
    prompts = Prompts()
    compact = create_compact_function(summarize=prompts, max_prompt_chars=LIMIT, **TIGHT)
    messages = [text(f"m{number}", words=f"<{number}>" + "w" * words + f"</{number}>") for number in range(40)]
    visible = list(messages)
    while (result := await compact(visible)) is not None:
        ids = [message["id"] for message in visible]
        earlier = [index for index, message in enumerate(visible) if is_compaction_message(message)]
        start = min([ids.index(result.from_message_id), *earlier])
        visible[start : ids.index(result.to_message_id) + 1] = [overlay(str(len(prompts)), result.summary)]
    assert [message["id"] for message in visible] == ["m0", f"compaction_{len(prompts)}", "m39"]
    assert len(prompts) > 1
    assert all(len(prompt) <= LIMIT for prompt in prompts)
    everything = "".join(prompts)
    for number in range(1, 39):
        assert (everything.count(f"<{number}>"), everything.count(f"</{number}>")) == (1, 1)
    assert all(f"summary {number}" in prompt for number, prompt in enumerate(prompts) if number)


async def test_messages_that_cannot_be_parted_are_told_in_one_prompt_that_leaves_their_middle_out() -> None:
    prompts = Prompts()
    keys = [f"k{number}" for number in range(30)]
    called, answered = call("c", *keys), [result(f"r{key}", key, output=key + "o" * 999) for key in keys]
    compact = create_compact_function(summarize=prompts, max_prompt_chars=LIMIT, **TIGHT)
    folded = await compact([text("m0"), called, *answered, *talk(1, "n")])
    assert folded is not None
    assert (folded.from_message_id, folded.to_message_id) == ("c", "rk29")
    (prompt,) = prompts
    assert LIMIT - 10 <= len(prompt) + 2_500 <= LIMIT + 2_500
    assert "is left out ...]" in prompt
    assert "k29ooo" in prompt


async def test_what_fits_is_folded_at_once() -> None:
    prompts = Prompts()
    messages = [text(f"m{number}", words="w" * 10_000) for number in range(35)]
    folded = await create_compact_function(summarize=prompts, **TIGHT)(messages)
    assert folded is not None
    assert (folded.from_message_id, folded.to_message_id) == ("m1", "m33")
    assert prompts[0].count("w" * 10_000) == 33
