"""Options of every builder method and constructor: what is of the wrong kind is one sentence, before anything is stored."""

import logging
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from session_support import Note, Owner, opened, text

from actors import ContextConfig, Session, SessionManager
from actors.errors import BlockTooLarge
from storage import AgentSessionProvider
from storage.errors import InvalidArgument

Take = Callable[[Owner, Any], Any]

NO_NUMBERS = [None, True, "100", b"1", math.nan, [], Decimal(5), object()]
NO_FUNCTIONS = [5, "fold", {}, object(), lambda: None, lambda a, b, c: None]

TAKERS: dict[str, list[Take]] = {
    "threshold": [
        lambda owner, value: Session.create(owner).compact_after(value),
        lambda owner, value: SessionManager.create(owner).compact_after(value),
        lambda owner, value: SessionManager(owner, compact_after=value),
    ],
    "compaction function": [
        lambda owner, value: Session.create(owner).on_compaction(value),
        lambda owner, value: SessionManager.create(owner).on_compaction(value),
        lambda owner, value: SessionManager(owner, compaction=value),
    ],
    "token_counter": [
        lambda owner, value: Session.create(owner).compact_after(1, token_counter=value),
        lambda owner, value: SessionManager.create(owner).compact_after(1, token_counter=value),
        lambda owner, value: SessionManager(owner, token_counter=value),
        lambda owner, value: Session(AgentSessionProvider(owner), token_counter=value),
    ],
    "handler of compaction errors": [
        lambda owner, value: Session.create(owner).on_compaction_error(value),
        lambda owner, value: SessionManager.create(owner).on_compaction_error(value),
        lambda owner, value: SessionManager(owner, on_compaction_error=value),
    ],
    "max_tokens": [
        lambda owner, value: Session.create(owner).with_context("memory", max_tokens=value),
        lambda owner, value: SessionManager.create(owner).with_context("memory", max_tokens=value),
        lambda owner, value: SessionManager(owner, context=[{"label": "memory", "maxTokens": value}]),
        lambda owner, value: Session(AgentSessionProvider(owner), context=[ContextConfig("memory", max_tokens=value)]),
    ],
    "description": [
        lambda owner, value: Session.create(owner).with_context("memory", description=value),
        lambda owner, value: SessionManager(owner, context=[{"label": "memory", "description": value}]),
    ],
    "label": [
        lambda owner, value: Session.create(owner).with_context(value),
        lambda owner, value: SessionManager.create(owner).with_searchable_history(value),
        lambda owner, value: SessionManager(owner, searchable_history=value),
        lambda owner, value: SessionManager(owner, context=[{"label": value}]),
    ],
    "context": [
        lambda owner, value: SessionManager(owner, context=value),
        lambda owner, value: Session(AgentSessionProvider(owner), context=value),
    ],
    "cached prompt": [
        lambda owner, value: Session.create(owner).with_cached_prompt(value),
        lambda owner, value: SessionManager.create(owner).with_cached_prompt(value),
        lambda owner, value: SessionManager(owner, cached_prompt=value),
        lambda owner, value: Session(AgentSessionProvider(owner), prompt_store=value),
    ],
}
WRONG = {
    "threshold": [*NO_NUMBERS, -1, -math.inf],
    "compaction function": NO_FUNCTIONS,
    "token_counter": [5, "count", object(), lambda messages: 1],
    "handler of compaction errors": [*NO_FUNCTIONS[:-1], lambda a, b: None],
    "max_tokens": NO_NUMBERS,
    "description": [5, b"x", []],
    "label": ["", 5, b"x", []],
    "context": [5, "memory", None, {"label": "memory"}, [5], ["memory"], [{}], [{1: 2, "label": "memory"}]],
    "cached prompt": [object(), 5, "text", Note],
}
LEFT_OUT = {("threshold", 2), *(("max_tokens", place) for place in range(4))}
"""Where None is the default."""
CASES = [
    pytest.param(take, value, what, id=f"{what}-{place}-{number}")
    for what, takers in TAKERS.items()
    for place, take in enumerate(takers)
    for number, value in enumerate(WRONG[what])
    if not (value is None and (what, place) in LEFT_OUT)
]


@pytest.mark.parametrize(("take", "value", "what"), CASES)
async def test_an_option_of_the_wrong_kind_is_one_sentence_that_names_it(
    tmp_path: Path, take: Take, value: Any, what: str
) -> None:
    async with opened(tmp_path) as owner:
        with pytest.raises(InvalidArgument, match=what) as refused:
            take(owner, value)
        assert len(str(refused.value).splitlines()) == 1
        assert await owner.database.read(lambda c: c.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]) == 0


@pytest.mark.parametrize("never", [math.inf, 1e300, 10**400])
async def test_a_threshold_without_end_means_never(tmp_path: Path, never: float) -> None:
    async with opened(tmp_path) as owner:
        runs: list[Any] = []
        session = Session.create(owner).on_compaction(runs.append).compact_after(1).compact_after(never)
        managed = SessionManager(owner, compaction=runs.append, compact_after=never).get_session("managed")
        for each in (session, managed):
            await each.append_message(text("m1", "many words " * 1_000))
            assert not each.is_compacting
        assert (runs, [frame["tokenThreshold"] for frame in owner.frames]) == ([], [None, None])


async def test_a_threshold_of_zero_is_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        runs: list[Any] = []
        session = Session.create(owner).on_compaction(runs.append).compact_after(0)
        await session.append_message(text("m1"))
        await session.settled()
        assert (len(runs), owner.frames[0]["tokenThreshold"]) == (1, 0)


@pytest.mark.parametrize(
    ("limit", "header", "fits"),
    [(math.inf, "MEMORY [writable]", True), (-1, "MEMORY [0% — 0/-1 tokens] [writable]", False)],
)
async def test_a_block_without_end_has_no_limit_and_nothing_fits_below_zero(
    tmp_path: Path, limit: float, header: str, fits: bool
) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("memory", max_tokens=limit)
        assert header in await session.freeze_system_prompt()
        if fits:
            assert (await session.replace_context_block("memory", "words " * 10_000)).max_tokens is None
        else:
            with pytest.raises(BlockTooLarge):
                await session.replace_context_block("memory", "")


class Empty(Note):
    """A provider that is false as long as it holds nothing."""

    def __len__(self) -> int:
        return len(self.content or "")


async def test_a_provider_that_is_false_is_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        for number, made in enumerate(
            (
                lambda store: SessionManager(owner, cached_prompt=store).get_session("a"),
                lambda store: SessionManager.create(owner).with_cached_prompt(store).get_session("b"),
                lambda store: Session.create(owner).with_cached_prompt(store),
                lambda store: Session(AgentSessionProvider(owner), prompt_store=store),
            )
        ):
            store = Empty()
            await made(store).add_context("memory", provider=Empty("known"))
            await made(store).freeze_system_prompt()
            assert store.content is not None, number


async def test_a_counter_of_a_manager_needs_no_threshold(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        manager = SessionManager(owner, token_counter=lambda **_: 77)
        await manager.append((await manager.create("a")).id, text("m1"))
        assert owner.frames[-1]["tokenEstimate"] == 77


async def test_what_is_refused_leaves_the_configuration_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(lambda _: None).compact_after(50)
        with pytest.raises(InvalidArgument):
            session.compact_after(7, token_counter=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            session.compact_after("7", token_counter=lambda **_: 9)  # type: ignore[arg-type]
        await session.append_message(text("m1"))
        assert owner.frames[0]["tokenThreshold"] == 50
        assert owner.frames[0]["tokenEstimate"] != 9


async def test_what_an_owner_calls_broadcast_must_be_a_method(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        owner.broadcast = "radio"  # type: ignore[assignment,method-assign]
        session = Session.create(owner)
        await session.append_message(text("m1"))
        assert await session.get_path_length() == 1


async def test_of_two_blocks_of_one_label_the_later_counts_which_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as owner:
        two = [{"label": "memory", "provider": "first"}, {"label": "memory", "provider": "second"}]
        for session in (
            Session(AgentSessionProvider(owner), context=two),
            Session.create(owner).with_context("memory", provider="first").with_context("memory", provider="second"),
            SessionManager(owner, context=two).get_session("a"),
        ):
            assert [block.content for block in await session.get_context_blocks()] == ["second"]
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
        assert {record.getMessage() for record in caplog.records} == {
            "two context blocks have the label 'memory'; the later one counts"
        }


async def test_a_summarizer_in_place_of_a_compaction_function_is_told_what_it_needs(tmp_path: Path) -> None:
    async def summarize(prompt: str) -> str:
        return "short"

    async def say(text: str) -> str:
        return "short"

    async with opened(tmp_path) as owner:
        for take in TAKERS["compaction function"]:
            with pytest.raises(InvalidArgument, match="create_compact_function"):
                take(owner, summarize)
            take(owner, lambda messages, prompt=None: None)
            take(owner, lambda *arguments, **options: None)
        errors: list[Exception] = []
        session = Session.create(owner).on_compaction(say).compact_after(0)  # type: ignore[arg-type]
        session.on_compaction_error(errors.append)
        await session.append_message(text("m1"))
        await session.settled()
        assert [type(error) for error in errors] == [InvalidArgument]
        assert "create_compact_function" in str(errors[0])
