"""Compaction by hand and by itself: frames, failures, the back-off, and what is stored."""

import asyncio
import json
import logging
import operator
import sqlite3
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from session_support import Note, Owner, opened, text

from actors.errors import CalledFromInside, NoCompaction, NotSupported
from actors.session import Session
from actors.session.history import History
from compaction import (
    CompactContext,
    CompactResult,
    InvalidTokenCount,
    create_compact_function,
    estimate_message_tokens,
    is_compaction_message,
)
from compaction.errors import TokenCountTimeout
from storage import AgentSessionProvider
from storage.errors import Fenced

Messages = list[dict[str, Any]]
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 300_000  # 3 MB


class Summarizer:
    """A compaction function whose answers are given; it can be held at its gate."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[list[str]] = []
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, messages: Messages) -> Any:
        self.seen.append([message["id"] for message in messages])
        self.entered.set()
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def fold(first: str, last: str, summary: str = "s") -> dict[str, str]:
    return {"fromMessageId": first, "toMessageId": last, "summary": summary}


async def ids(session: Session) -> list[str]:
    history = await session.get_history()
    return ["summary" if message["id"].startswith("compaction_") else message["id"] for message in history]


async def append(session: Session, *names: str) -> None:
    for name in names:
        await session.append_message(text(name))
        await session.settled()


def automatic(owner: Owner, function: Any, threshold: float = 20, **options: Any) -> Session:
    return Session.create(owner).on_compaction(function).compact_after(threshold, **options)


async def test_a_failed_automatic_run_tells_the_handler_and_ends_in_idle(tmp_path: Path) -> None:  # D10
    told: list[Exception] = []
    async with opened(tmp_path) as owner:
        error = OSError("summary service down")
        session = automatic(owner, Summarizer(error), threshold=1).on_compaction_error(told.append)
        await append(session, "m1")
        assert owner.phases() == ["idle", "compacting", "error", "idle"]
        assert owner.frames[2] == {"type": "cf_agent_session_error", "error": "summary service down"}
        assert told == [error]
        assert await ids(session) == ["m1"]


async def test_a_failed_manual_run_gives_none_and_ends_in_idle(tmp_path: Path) -> None:  # D10
    told: list[Exception] = []
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(Summarizer(OSError("down"))).on_compaction_error(told.append)
        assert await session.compact() is None
        assert owner.phases() == ["compacting", "error", "idle"]
        assert told == []


async def test_an_answer_that_is_no_summary_is_an_error_of_the_function(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        assert await Session.create(owner).on_compaction(Summarizer({"summary": 1})).compact() is None
        assert owner.phases() == ["compacting", "error", "idle"]


async def test_only_automatic_compaction_calls_the_handler(tmp_path: Path) -> None:  # D10
    told: list[str] = []

    def broken(**_: Any) -> int:
        raise ValueError("tokenizer broke")

    async with opened(tmp_path) as owner:
        session = automatic(owner, Summarizer(), token_counter=broken)
        session.on_compaction_error(lambda error: told.append(str(error)))
        await append(session, "m1")
        assert told == ["tokenizer broke"]
        await session.update_message(text("m1", "other"))
        await session.compact()
        assert told == ["tokenizer broke"]


async def test_without_a_function_compacting_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        with pytest.raises(NoCompaction):
            await Session.create(owner).compact()


async def test_appends_during_a_run_succeed_and_keep_their_order(tmp_path: Path) -> None:  # B07, B22
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m2"))
        session = automatic(owner, summarizer)
        summarizer.gate.clear()
        for name in ("m1", "m2", "m3", "m4"):
            await session.append_message(text(name))
        await summarizer.entered.wait()
        assert session.is_compacting
        await session.append_message(text("m5"))
        assert await ids(session) == ["m1", "m2", "m3", "m4", "m5"]
        summarizer.gate.set()
        await session.settled()
        assert not session.is_compacting
        assert await ids(session) == ["summary", "m3", "m4", "m5"]
        assert len(summarizer.seen) == 1


async def test_a_summary_whose_range_has_gone_meanwhile_is_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m2"))
        session = Session.create(owner).on_compaction(summarizer)
        await append(session, "m1", "m2", "m3")
        summarizer.gate.clear()
        run = asyncio.create_task(session.compact())
        await summarizer.entered.wait()
        await session.delete_messages(["m2"])
        summarizer.gate.set()
        assert await run is None
        assert await session.get_compactions() == []
        assert owner.phases()[-1] == "idle"


async def while_running(session: Session, summarizer: Summarizer, *changes: Any) -> CompactResult | None:
    """The result of a run during which these calls are made."""
    summarizer.entered.clear()
    summarizer.gate.clear()
    run = asyncio.create_task(session.compact())
    await summarizer.entered.wait()
    for change in changes:
        await change
    summarizer.gate.set()
    return await run


@pytest.mark.parametrize("is_builtin", [True, False])
async def test_a_summary_of_what_has_changed_meanwhile_is_dropped(tmp_path: Path, is_builtin: bool) -> None:
    """Else what a user has deleted, or cleared, would come back as a summary."""
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(*[fold("m1", "m3")] * 6)
        provider: Any = AgentSessionProvider(owner)
        session = Session.create(provider if is_builtin else Documented(provider)).on_compaction(summarizer)
        await append(session, "m1", "m2", "m3", "m4")
        assert await while_running(session, summarizer, session.update_message(text("m2", "changed"))) is None
        assert await while_running(session, summarizer, session.delete_messages(["m2"])) is None
        again = [session.append_message(text(name, "anew")) for name in ("m1", "m3", "m4")]
        assert await while_running(session, summarizer, session.clear_messages(), *again) is None
        assert await session.get_compactions() == []
        assert await ids(session) == ["m1", "m3", "m4"]
        changed_elsewhere = [session.update_message(text("m4", "changed")), session.append_message(text("m5"))]
        assert await while_running(session, summarizer, *changed_elsewhere) is not None
        assert await ids(session) == ["summary", "m4", "m5"]


async def test_a_summary_that_was_added_by_hand_meanwhile_is_not_folded_unread(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m3"))
        session = Session.create(owner).on_compaction(summarizer)
        await append(session, "m1", "m2", "m3", "m4")
        assert await while_running(session, summarizer, session.add_compaction("by hand", "m1", "m2")) is None
        assert [row["summary"] for row in await session.get_compactions()] == ["by hand"]


async def test_a_manual_run_waits_for_the_automatic_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m2", "one"), fold("m1", "m3", "two"))
        session = automatic(owner, summarizer)
        summarizer.gate.clear()
        for name in ("m1", "m2", "m3", "m4"):
            await session.append_message(text(name))
        await summarizer.entered.wait()
        manual = asyncio.create_task(session.compact())
        await asyncio.sleep(0)
        assert len(summarizer.seen) == 1
        summarizer.gate.set()
        assert await manual == CompactResult(fromMessageId="m1", toMessageId="m3", summary="two")
        assert summarizer.seen[0][:2] == ["m1", "m2"]
        assert summarizer.seen[1][0].startswith("compaction_")


async def test_a_cancelled_run_leaves_clients_on_idle_and_nothing_stored(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m2"))
        session = automatic(owner, summarizer, threshold=1)
        summarizer.gate.clear()
        await session.append_message(text("m1"))
        await session.cancel_compaction()  # before it has begun
        await session.settled()
        assert not session.is_compacting
        await session.append_message(text("m2"))
        await summarizer.entered.wait()
        await session.cancel_compaction()
        assert owner.phases()[-1] == "idle"
        assert await session.get_compactions() == []


async def test_after_a_fruitless_run_the_next_waits_for_a_tenth_of_the_threshold(tmp_path: Path) -> None:  # B19, B20
    count = 0

    def counter(**_: Any) -> int:
        return count

    summarizer = Summarizer()
    async with opened(tmp_path) as owner:
        session = automatic(owner, summarizer, threshold=100, token_counter=counter)
        runs = []
        for count in (100, 101, 105, 110, 111, 112, 120, 121):
            await append(session, f"m{count}")
            runs.append(len(summarizer.seen))
        assert runs == [0, 1, 1, 1, 2, 2, 2, 3]
    async with opened(tmp_path) as owner:  # an awakening changes nothing
        session = automatic(owner, summarizer, threshold=100, token_counter=counter)
        count = 130
        await append(session, "after the night")
        assert len(summarizer.seen) == 3
        count = 131
        await append(session, "and grown")
        assert len(summarizer.seen) == 4


async def test_after_a_failed_run_the_next_waits_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(OSError("down"))
        session = automatic(owner, summarizer, threshold=100, token_counter=lambda **_: 105)
        await append(session, "m1", "m2", "m3")
        assert len(summarizer.seen) == 1


async def test_below_the_threshold_a_fruitless_run_is_forgotten_also_after_an_awakening(tmp_path: Path) -> None:
    count = 200

    def counter(**_: Any) -> int:
        return count

    summarizer = Summarizer()
    async with opened(tmp_path) as owner:
        await append(automatic(owner, summarizer, threshold=100, token_counter=counter), "m1")
    async with opened(tmp_path) as owner:
        session = automatic(owner, summarizer, threshold=100, token_counter=counter)
        count = 50
        await session.clear_messages()
        count = 101
        await append(session, "m2")
        assert len(summarizer.seen) == 2


async def test_a_summary_that_shortens_nothing_is_followed_by_the_same_wait(tmp_path: Path) -> None:
    count = 105

    def counter(**_: Any) -> int:
        return count

    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m1"), fold("m1", "m2"))
        session = automatic(owner, summarizer, threshold=100, token_counter=counter)
        await append(session, "m1", "m2", "m3")
        assert len(await session.get_compactions()) == 1
        count = 115
        await append(session, "m4")
        assert len(await session.get_compactions()) == 2


async def test_runs_in_vain_are_warned_of_once_until_one_has_shortened_something(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = 0

    def counter(messages: Messages, **_: Any) -> int:
        is_short = any(message["id"].startswith("compaction_") for message in messages)
        return count - 50 if is_short else count

    def warnings() -> int:
        return sum("shortened nothing" in record.getMessage() for record in caplog.records)

    caplog.set_level(logging.WARNING, "perdure.session")
    summarizer = Summarizer(None, None, None, OSError("down"), fold("m101", "m201"), None)
    for counts, expected in (((101, 201), 1), ((50, 301, 401), 1), ((501, 601), 2)):
        async with opened(tmp_path) as owner:  # an awakening changes nothing
            session = automatic(owner, summarizer, threshold=100, token_counter=counter)
            for number in counts:
                count = number
                await append(session, f"m{count}")
            assert warnings() == expected
    assert len(summarizer.seen) == 6
    assert "give create_compact_function a smaller tail_token_budget" in caplog.text


async def test_a_run_that_shortens_may_be_followed_by_another_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(*(fold("m1", f"m{number}") for number in range(2, 9)))
        session = automatic(owner, summarizer, threshold=25)
        await append(session, *(f"m{number}" for number in range(1, 9)))
        assert len(await session.get_compactions()) > 1
        assert (await session.get_history())[0]["parts"] == [{"type": "text", "text": "s"}]


@pytest.mark.parametrize("is_builtin", [True, False])
@pytest.mark.parametrize(
    ("result", "stored"),
    [
        (fold("m2", "m3"), ("m2", "m3")),
        (fold("m5", "m6"), ("m2", "m6")),  # extends the earliest that applies
        (fold("m1", "m6"), ("m1", "m6")),  # begins before it
        (fold("summary", "m6"), ("m2", "m6")),  # begins at its message
        (fold("summary", "summary"), ("m2", "m3")),
        (fold("m1", "summary"), ("m1", "m3")),  # ends at it
        (fold("m5", "summary"), None),
        (fold("m6", "m5"), None),
        (fold("m1", "m3"), None),  # ends inside one that applies
        (fold("missing", "m5"), None),
        (fold("m1", "missing"), None),
    ],
)
async def test_a_summary_is_stored_where_it_can_apply_or_not_at_all(
    tmp_path: Path, result: dict[str, str], stored: tuple[str, str] | None, is_builtin: bool
) -> None:  # D27
    async with opened(tmp_path) as owner:
        provider: Any = AgentSessionProvider(owner)
        summarizer = Summarizer()
        session = Session.create(provider if is_builtin else Documented(provider)).on_compaction(summarizer)
        await append(session, *(f"m{number}" for number in range(1, 8)))
        if result != fold("m2", "m3"):
            overlay = await session.add_compaction("first", "m2", "m3")
            result = {key: value.replace("summary", f"compaction_{overlay['id']}") for key, value in result.items()}
        before = await session.get_compactions()
        summarizer.answers = [result]
        compacted = await session.compact()
        after = await session.get_compactions()
        if stored is None:
            assert (compacted, after) == (None, before)
        else:
            assert compacted == CompactResult(fromMessageId=stored[0], toMessageId=stored[1], summary=result["summary"])
            assert [(row["fromMessageId"], row["toMessageId"]) for row in after[len(before) :]] == [stored]


async def test_a_summary_of_one_branch_starts_on_that_branch(tmp_path: Path) -> None:  # D27, B14
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("b1", "b2", "of b"))
        session = Session.create(owner).on_compaction(summarizer)
        await append(session, "m1", "a1", "a2")
        await session.add_compaction("of a", "a1", "a2")
        await session.append_message(text("b1"), "m1")
        await append(session, "b2", "b3")
        assert await session.compact() == CompactResult(fromMessageId="b1", toMessageId="b2", summary="of b")
        assert await ids(session) == ["m1", "summary", "b3"]
        assert [message["id"][:3] for message in await session.get_history("a2")] == ["m1", "com"]


async def test_the_originals_of_a_summary_stay_readable_and_it_can_be_told_from_them(tmp_path: Path) -> None:  # B23
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(Summarizer(fold("m1", "m2")))
        await append(session, "m1", "m2", "m3")
        await session.append_message(text("b"), "m1")
        await session.append_message(text("c"), "m3")
        await session.compact()
        shown = await session.get_history()
        assert [is_compaction_message(message) for message in shown] == [True, False, False]
        assert shown[0]["createdAt"] == (await session.get_compactions())[0]["createdAt"]
        assert await session.get_raw_history() == [text("m1"), text("m2"), text("m3"), text("c")]
        assert await session.get_raw_history("b") == [text("m1"), text("b")]
        assert await session.get_message("m1") == text("m1")
        assert await session.get_path_length() == 4


async def test_storage_that_shows_no_originals_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(Documented(AgentSessionProvider(owner))).on_compaction(Summarizer(fold("m1", "m1")))
        await append(session, "m1", "m2")
        assert await session.get_raw_history() == [text("m1"), text("m2")]
        await session.compact()
        with pytest.raises(NotSupported):
            await session.get_raw_history()


async def test_a_summary_keeps_the_time_at_which_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # D9
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        await append(session, "m1", "m2")
        begun = datetime.now(UTC)
        stored = await session.add_compaction("s", "m1", "m1")
        ended = datetime.now(UTC)
        made = datetime.fromisoformat(stored["createdAt"])
        assert begun - timedelta(milliseconds=1) <= made <= ended
    async with opened(tmp_path) as owner:
        (summary, _) = await Session.create(owner).get_history()
        assert summary["createdAt"] == stored["createdAt"]


async def test_a_transcript_sent_back_by_a_client_stores_no_summary_as_a_message(tmp_path: Path) -> None:  # D11, B13
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(Summarizer(fold("m1", "m2"), fold("m1", "m3")))
        await append(session, "m1", "m2", "m3", "m4")
        await session.compact()
        seen = await session.get_history()
        for message in seen:
            await session.append_message(message)
        assert await session.get_history() == seen
        await session.compact()
        assert await ids(session) == ["summary", "m4"]


async def test_the_estimate_counts_the_prompt_so_that_large_blocks_compact_in_time(tmp_path: Path) -> None:  # B53
    async with opened(tmp_path) as owner:
        summarizer = Summarizer()
        session = automatic(owner, summarizer, threshold=1_000).with_context("memory", provider=Note("word " * 1_000))
        await append(session, "m1")
        assert owner.frames[0]["tokenEstimate"] > 1_300
        assert len(summarizer.seen) == 1


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "mediaType": "image/png", "url": PICTURE},
        {"type": "tool-shot", "toolCallId": "c", "input": {}, "output": PICTURE, "state": "output-available"},
    ],
)
async def test_one_picture_starts_no_compaction(tmp_path: Path, part: dict[str, Any]) -> None:  # B50
    async with opened(tmp_path) as owner:
        summarizer = Summarizer()
        session = automatic(owner, summarizer, threshold=20_000)
        await session.append_message({"id": "m1", "role": "assistant", "parts": [part]})
        await session.settled()
        assert summarizer.seen == []
        assert owner.frames[-1]["tokenEstimate"] < 1_100


async def test_nothing_of_what_is_gone_stays_in_the_estimate(tmp_path: Path) -> None:  # B52
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        provider = AgentSessionProvider(owner)
        assert await provider.path_tokens() == 0
        await append(session, "m1", "m2", "m3")
        await session.append_message(text("b", "on a branch of its own"), "m1")
        await session.add_compaction("of the other branch", "m2", "m3")
        for gone, left in ((["b"], ["m1", "summary"]), (["m3"], ["m1", "summary"]), (["m2"], ["m1"]), (["m1"], [])):
            await session.delete_messages(gone)
            assert await ids(session) == left
            assert owner.frames[-1]["tokenEstimate"] == estimate_message_tokens(await session.get_history())
        await append(session, "m4")
        await session.add_compaction("s", "m4", "m4")
        await session.clear_messages()
        assert owner.frames[-1]["tokenEstimate"] == await provider.path_tokens() == 0
        assert await session.get_compactions() == []


async def test_compacting_renders_the_prompt_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("memory").with_cached_prompt()
        session.on_compaction(Summarizer(None, fold("m1", "m1")))
        await session.freeze_system_prompt()
        await session.replace_context_block("memory", "fresh")
        await append(session, "m1", "m2")
        await session.compact()
        assert "fresh" not in await session.freeze_system_prompt()
        await session.compact()
        assert "fresh" in await session.freeze_system_prompt()


class FullStore:
    """Keeps a prompt that it was given, and takes no other."""

    def get(self) -> str:
        return "the prompt"

    def set(self, text: str) -> None:
        raise OSError("disk full")


async def test_a_summary_is_stored_though_the_prompt_cannot_be_rendered_again(tmp_path: Path) -> None:
    told: list[Exception] = []
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m2"), fold("m1", "m3"))
        session = automatic(owner, summarizer, threshold=100, token_counter=lambda messages, **_: 60 * len(messages))
        session.with_cached_prompt(FullStore()).on_compaction_error(told.append)
        await append(session, "m1", "m2")
        assert owner.phases()[-4:] == ["idle", "compacting", "error", "idle"]
        assert owner.frames[-1]["compacted"] == {"tokensBefore": 120}
        assert [str(error) for error in told] == ["disk full"]
        await append(session, "m3")  # at once, as after any run that has shortened something
        assert len(await session.get_compactions()) == 2
        assert len(told) == 2


async def test_compacting_by_hand_returns_a_stored_summary_though_the_prompt_fails(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_cached_prompt(FullStore()).on_compaction(Summarizer(fold("m1", "m2")))
        await append(session, "m1", "m2", "m3")
        stored = await session.compact()
        assert stored is not None
        assert stored.to_message_id == "m2"
        assert await ids(session) == ["summary", "m3"]
        assert owner.phases()[-3:] == ["compacting", "error", "idle"]
        assert "compacted" in owner.frames[-1]


@pytest.mark.parametrize("is_builtin", [True, False])
async def test_a_summary_of_what_the_function_was_not_given_is_dropped(tmp_path: Path, is_builtin: bool) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "new"), fold("m1", "m2"))
        provider: Any = AgentSessionProvider(owner)
        session = Session.create(provider if is_builtin else Documented(provider)).on_compaction(summarizer)
        await append(session, "m1", "m2", "m3", "m4")
        assert await while_running(session, summarizer, session.append_message(text("new"))) is None
        assert await session.get_compactions() == []
        assert await while_running(session, summarizer, session.append_message(text("newer"))) is not None


async def test_a_range_may_begin_at_what_a_summary_hides_if_nothing_before_its_end_changes(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m2"), *[fold("m2", "m4")] * 3)
        session = Session.create(owner).on_compaction(summarizer)
        await append(session, "m0", "m1", "m2", "m3", "m4", "m5")
        assert await session.compact() is not None
        assert await while_running(session, summarizer, session.update_message(text("m0", "changed"))) is None
        assert await while_running(session, summarizer, session.update_message(text("m3", "changed"))) is None
        assert await while_running(session, summarizer, session.update_message(text("m5", "changed"))) is not None
        assert await ids(session) == ["m0", "summary", "m5"]


async def test_a_function_that_takes_a_context_is_given_the_counter(tmp_path: Path) -> None:
    given: list[Any] = []

    def counter(messages: Messages, **_: Any) -> int:
        return len(messages)

    def compact(messages: Messages, context: CompactContext) -> None:
        given.append(context.token_counter)

    async with opened(tmp_path) as owner:
        await automatic(owner, compact, token_counter=counter).compact()
        assert given == [counter]


class Documented:
    """Only what the documentation demands of a session provider, over the built-in one."""

    def __init__(self, provider: AgentSessionProvider) -> None:
        for name in (
            "get_message get_history get_latest_leaf get_branches get_path_length append_message update_message "
            "delete_messages clear_messages add_compaction get_compactions"
        ).split():
            setattr(self, name, getattr(provider, name))


async def test_a_provider_of_the_user_works_by_the_documented_methods_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m2"))
        session = Session.create(Documented(AgentSessionProvider(owner))).on_compaction(summarizer).compact_after(20)
        await append(session, "m1", "m2", "m3")
        assert await ids(session) == ["summary", "m3"]
        await session.append_message(text("m3"))
        await session.append_message(text("root"), None)
        assert await ids(session) == ["root"]
        assert (await session.get_recent_history(1))["truncated"] is False
        assert await session.get_history_row_stats() is None
        assert isinstance(History(Documented(AgentSessionProvider(owner))), History)


async def test_a_manual_run_that_is_cancelled_leaves_clients_on_idle(tmp_path: Path) -> None:  # D10
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m2"))
        session = Session.create(owner).on_compaction(summarizer)
        await append(session, "m1", "m2")
        summarizer.gate.clear()
        run = asyncio.create_task(session.compact())
        await summarizer.entered.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert owner.phases()[-2:] == ["compacting", "idle"]
        assert not session.is_compacting


async def test_a_write_that_is_stored_does_not_fail_by_what_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next owner would run it once more, over newer writes."""
    async with opened(tmp_path) as owner:
        session = automatic(owner, Summarizer(), threshold=1_000)
        await append(session, "m1")

        async def fenced(*_: Any) -> None:
            raise Fenced()

        monkeypatch.setattr(session._parts.compactor, "_tell", fenced)
        await session.update_message(text("m1", "new"))
        await session.append_message(text("m2"))
        assert await ids(session) == ["m1", "m2"]


async def poison(folder: Path) -> list[str]:
    """A conversation whose summary was sent back by a client and stored by a program that refuses nothing. The right ids."""
    async with opened(folder) as owner:
        session = Session.create(owner)
        await append(session, "m1", "m2", "m3")
        overlay = await session.add_compaction("the summary", "m1", "m2")
        await session.append_message(text("echo", "echo"))
        await append(session, "m4")
        await session.append_message(text("branch"), "m3")
        await session.append_message(text("m5"), "m4")
        summary = {
            "id": f"compaction_{overlay['id']}",
            "role": "assistant",
            "parts": [{"type": "text", "text": "echo"}],
        }

        def store_echoes(connection: sqlite3.Connection) -> None:
            change = "UPDATE assistant_messages SET id = ?, content = ? WHERE id = 'echo'"
            connection.execute(change, (summary["id"], json.dumps(summary)))
            connection.execute("UPDATE assistant_messages SET parent_id = ? WHERE parent_id = 'echo'", (summary["id"],))

        assert len(await session.search("echo")) == 1  # everything is indexed
        await owner.database.write(store_echoes)
        return [summary["id"], "m3", "m4", "m5"]


@pytest.mark.parametrize("first", ["get_history", "append", "get_raw_history", "search"])
async def test_a_file_with_a_summary_stored_as_a_message_heals_on_its_first_use(
    tmp_path: Path, first: str
) -> None:  # B13
    expected = await poison(tmp_path)
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(Summarizer(fold("m1", "m4", "both")))
        match first:
            case "get_history":
                assert [message["id"] for message in await session.get_history()] == expected
            case "get_raw_history":
                assert [message["id"] for message in await session.get_raw_history()] == ["m1", "m2", "m3", "m4", "m5"]
            case "append":
                await session.append_message(text("m3"))
            case "search":
                assert await session.search("echo") == []
        assert [message["id"] for message in await session.get_history()] == expected
        assert await session.get_path_length() == 5
        assert await session.get_branches("m3") == [text("m4"), text("branch")]
        provider = AgentSessionProvider(owner)
        assert await provider.path_tokens() == estimate_message_tokens(await session.get_history())
        await session.compact()
        assert await ids(session) == ["summary", "m5"]


async def test_a_summary_that_no_overlay_holds_is_never_removed(tmp_path: Path) -> None:
    """Whoever stored it: it is the only place where its text is."""
    async with opened(tmp_path) as owner:
        await append(Session.create(owner), "m1", "m2")
        change = "UPDATE assistant_messages SET id = 'compaction_lost' WHERE id = 'm2'"
        await owner.database.write(lambda connection: connection.execute(change) and None)
        assert len(await Session.create(owner).get_history()) == 2


# ---- functions of the user's that misbehave -------------------------------------------------------------------


async def test_a_handler_may_use_the_session(tmp_path: Path) -> None:
    told: list[Any] = []
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(OSError("down"), fold("m1", "m2"))
        session = automatic(owner, summarizer)

        async def handler(error: Exception) -> None:
            await session.settled()
            told.append((str(error), session.is_compacting, await session.compact()))

        session.on_compaction_error(handler)
        async with asyncio.timeout(10):
            await append(session, "m1", "m2", "m3")
        assert told == [("down", False, CompactResult(fromMessageId="m1", toMessageId="m2", summary="s"))]
        assert await ids(session) == ["summary", "m3"]


async def test_a_handler_whose_own_append_fails_to_compact_is_not_called_again(tmp_path: Path) -> None:
    told: list[str] = []

    async def broken(**_: Any) -> int:
        raise ValueError("tokenizer broke")

    async with opened(tmp_path) as owner:
        session = automatic(owner, Summarizer(), token_counter=broken)

        async def handler(error: Exception) -> None:
            told.append(str(error))
            await session.append_message(text("note"))

        session.on_compaction_error(handler)
        async with asyncio.timeout(10):
            await append(session, "m1")
        assert told == ["tokenizer broke"]
        assert await ids(session) == ["m1", "note"]


@pytest.mark.parametrize("call", ["compact", "settled", "hibernate"])
@pytest.mark.parametrize("by_hand", [True, False])
async def test_a_compaction_function_that_waits_for_its_own_session_is_refused(
    tmp_path: Path, call: str, by_hand: bool
) -> None:
    raised: list[Exception] = []
    async with opened(tmp_path) as owner:

        async def function(messages: Messages) -> None:
            try:
                await asyncio.create_task(getattr(session, call)())
            except Exception as exc:
                raised.append(exc)
                raise

        session = automatic(owner, function, threshold=10**6 if by_hand else 1)
        async with asyncio.timeout(10):
            await append(session, "m1")
            if by_hand:
                assert await session.compact() is None
        assert [type(error) for error in raised] == [CalledFromInside]
        assert "was called from inside of a compaction function of the same session" in owner.frames[-2]["error"]
        assert owner.phases()[-3:] == ["compacting", "error", "idle"]


def call(message_id: str, call_id: str) -> dict[str, Any]:
    part = {"type": "tool-call", "toolCallId": call_id, "toolName": "find", "input": {}}
    return {"id": message_id, "role": "assistant", "parts": [part]}


def answer(message_id: str, call_id: str) -> dict[str, Any]:
    part = {"type": "tool-result", "toolCallId": call_id, "toolName": "find", "result": "found"}
    return {"id": message_id, "role": "tool", "parts": [part]}


async def test_an_answer_that_is_told_as_text_stays_so_when_an_older_branch_is_compacted(tmp_path: Path) -> None:
    compact = create_compact_function(summarize=lambda _: "S", protect_head=1, tail_token_budget=0, min_tail_messages=1)
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(compact)
        for message in (text("m1"), call("m2", "c"), answer("m3", "c")):
            await session.append_message(message)
        await session.append_message(text("b4"), "m3")
        await session.append_message(text("m4"), "m3")
        await session.append_message(text("m5"))
        result = await session.compact()
        assert result is not None
        assert (result.from_message_id, result.to_message_id) == ("m2", "m4")
        await session.append_message(answer("m6", "c"))  # once more
        late = (await session.get_history())[-1]
        assert late["parts"][0]["text"] == "[Late result of an earlier call of find: found]"

        await session.append_message(text("b5"), "b4")
        result = await session.compact()
        assert result is not None
        assert (result.from_message_id, result.to_message_id) == ("m2", "b4")
        assert await ids(session) == ["m1", "summary", "b5"]
        assert (await session.get_history("m6"))[-1] == late
        await append(session, "b6")
        assert await session.compact() is not None
        assert (await session.get_history("m6"))[-1] == late


class End(BaseException):
    """Nobody expects it."""


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, End, "cancelled task"])
async def test_what_a_compaction_function_raises_is_its_failure_and_cancels_nobody(
    tmp_path: Path, kind: Any, by_hand: bool
) -> None:
    told: list[Exception] = []

    async def function(messages: Messages) -> None:
        if isinstance(kind, str):
            task = asyncio.create_task(asyncio.sleep(9))
            task.cancel()
            await task
        raise kind

    async with opened(tmp_path) as owner:
        session = automatic(owner, function, threshold=10**6 if by_hand else 1).on_compaction_error(told.append)
        await append(session, "m1")
        if by_hand:
            assert await session.compact() is None
        else:
            assert len(told) == 1
        assert owner.phases()[-3:] == ["compacting", "error", "idle"]
        name = "CancelledError" if isinstance(kind, str) else kind.__name__
        assert owner.frames[-2]["error"] == f"it ended with {name}"


async def test_a_cancelled_caller_of_a_manual_run_is_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer()
        session = Session.create(owner).on_compaction(summarizer)
        await append(session, "m1")
        summarizer.gate.clear()
        run = asyncio.create_task(session.compact())
        await summarizer.entered.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert owner.phases()[-1] == "idle"
        assert not session.is_compacting


@pytest.mark.parametrize("error", [OSError("socket gone"), asyncio.CancelledError(), End()])
async def test_a_broadcast_that_raises_makes_no_write_fail(
    tmp_path: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as owner:

        def broadcast(frame: dict[str, Any]) -> None:
            raise error

        owner.broadcast = broadcast  # type: ignore[method-assign]
        session = automatic(owner, Summarizer(fold("m1", "m1")), threshold=1)
        await append(session, "m1", "m2")
        assert (await session.get_raw_history()) == [text("m1"), text("m2")]
        assert len(await session.get_compactions()) == 1
        assert [type(error).__name__ in record.getMessage() for record in caplog.records].count(True) == 1


async def test_an_untyped_error_after_a_write_makes_no_append_look_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as owner:
        session = automatic(owner, Summarizer())

        async def broken(*_: Any, **__: Any) -> None:
            raise KeyError("a fault")

        monkeypatch.setattr(session._parts.status, "report", broken)
        await session.append_message(text("m1"))
        assert await session.get_message("m1") == text("m1")
        assert "a write was stored and not told of: KeyError" in caplog.text
        assert "a fault" not in caplog.text


async def test_a_counter_that_never_answers_holds_up_one_append_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Exception] = []
    asked = 0

    async def stuck(**_: Any) -> int:
        nonlocal asked
        asked += 1
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if asked > 10:
                    raise

    async with opened(tmp_path) as owner:
        monkeypatch.setattr("actors.session.status.COUNT_SECONDS", 0.05)
        session = automatic(owner, Summarizer(), token_counter=stuck).on_compaction_error(told.append)
        async with asyncio.timeout(5):
            await asyncio.gather(*(session.append_message(text(f"m{number}")) for number in range(20)))
            await session.settled()
        assert asked == 1
        assert await session.get_path_length() == 20
        assert [type(error) for error in told] == [TokenCountTimeout] * 20
        asked = 11  # let it be cancelled
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "guests.call" in repr(task):
                task.cancel()


async def test_a_counter_that_writes_is_refused(tmp_path: Path) -> None:
    told: list[Exception] = []
    async with opened(tmp_path) as owner:

        async def writing(**_: Any) -> int:
            await session.append_message(text("by the counter"))
            return 1

        session = automatic(owner, Summarizer(), token_counter=writing).on_compaction_error(told.append)
        async with asyncio.timeout(5):
            await append(session, "m1", "m2")
        assert await ids(session) == ["m1", "m2"]
        assert [type(error) for error in told] == [CalledFromInside] * 2
        assert str(told[0]).startswith("A write was called from inside of a token counter of the same session")


@pytest.mark.parametrize("answer", ["900", None, [], True])
async def test_a_count_that_is_no_number_is_told_and_logged_once(
    tmp_path: Path, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Exception] = []
    async with opened(tmp_path) as owner:
        session = automatic(owner, Summarizer(), token_counter=lambda **_: answer).on_compaction_error(told.append)
        await append(session, "m1", "m2")
        assert [type(error) for error in told] == [InvalidTokenCount] * 2
        assert type(answer).__name__ in str(told[0])
        assert [record.getMessage() for record in caplog.records if "estimated" in record.getMessage()] == [
            f"the tokens of the session could not be estimated: {told[0]}"
        ]


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), 10**400])
async def test_a_count_that_is_not_finite_is_0(tmp_path: Path, answer: float) -> None:
    told: list[Exception] = []
    async with opened(tmp_path) as owner:
        session = automatic(owner, Summarizer(), token_counter=lambda **_: answer).on_compaction_error(told.append)
        await append(session, "m1")
        assert told == []
        assert owner.frames[-1]["tokenEstimate"] == 0


async def test_clients_are_told_what_users_code_raised_and_of_our_own_faults_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def summarize(prompt: str) -> str:
        raise LookupError("the model is asleep")

    async with opened(tmp_path) as owner:
        function = create_compact_function(
            summarize=summarize, protect_head=0, tail_token_budget=0, min_tail_messages=1
        )
        session = Session.create(owner).on_compaction(function)
        await append(session, "m1", "m2", "m3")
        assert await session.compact() is None
        assert owner.frames[-2]["error"] == "the model is asleep"
        monkeypatch.setattr("compaction.summarize.head_end", partial(operator.getitem, {}))
        assert await session.compact() is None
        assert owner.frames[-2]["error"] == "Something went wrong inside of Perdure; the server's log says where."
        assert "TypeError at compaction/summarize.py:" in caplog.text


async def test_closing_the_database_during_an_automatic_run_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as owner:
        summarizer = Summarizer(fold("m1", "m1"))
        session = automatic(owner, summarizer, threshold=1)
        summarizer.gate.clear()
        await append_and_wait(session, summarizer)
        await owner.database.close()
        summarizer.gate.set()
        await session.settled()
        (record,) = [record for record in caplog.records if record.name.startswith("perdure")]
        assert record.exc_info is None
        assert "This database is closed" in record.getMessage()
        assert owner.phases()[-1] == "idle"


async def append_and_wait(session: Session, summarizer: Summarizer) -> None:
    await session.append_message(text("m1"))
    await summarizer.entered.wait()
