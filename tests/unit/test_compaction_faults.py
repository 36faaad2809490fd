"""Whatever happens while a summary is being written, or to what it holds afterwards: nothing is lost, doubled or held up."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from awake import Hall, awake
from session_support import Owner, opened, text
from test_session_compaction import Documented

from actors import Agent, Session
from actors.conversation.events import Push
from actors.session_methods import SessionMethods
from compaction import (
    CompactContext,
    CompactResult,
    Usage,
    create_compact_function,
    estimate_message_tokens,
    is_compaction_message,
    tool_pairs,
)
from compaction.tool_pairs import ABANDONED_AFTER
from storage import AgentSessionProvider, containing, sessions
from storage.checkpoints import DirectoryStore, abandon_conversation
from storage.errors import InvalidMessage

JsonObject = dict[str, Any]


class Scribe:
    """Folds everything but the last message; waits at its gate with the pen in its hand."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.runs = 0

    async def __call__(self, messages: list[JsonObject], context: CompactContext) -> CompactResult:
        self.runs += 1
        self.begun.set()
        await self.gate.wait()
        return CompactResult(fromMessageId=messages[0]["id"], toMessageId=messages[-2]["id"], summary="in short")


def agent_with(scribe: Any, threshold: float) -> type[Agent]:
    class Chat(SessionMethods, Agent):
        def configure(self) -> Session:
            return Session.create(self).with_cached_prompt().on_compaction(scribe).compact_after(threshold)

    return Chat


@asynccontextmanager
async def writing(folder: Path, scribe: Scribe) -> AsyncIterator[Hall]:
    """An awake conversation of ten messages whose summary is being written."""
    async with awake(folder, agent_with(scribe, 60), store=DirectoryStore(folder / "store")) as hall:
        await hall.connect()
        for number in range(10):
            await hall.call("appendMessage", text(f"m{number}"))
        await asyncio.wait_for(scribe.begun.wait(), 10)
        assert hall.conversation._agent.session.is_compacting
        yield hall
        scribe.gate.set()


@asynccontextmanager
async def woken(folder: Path, scribe: Scribe) -> AsyncIterator[Hall]:
    """The same conversation, from the store alone."""
    shutil.rmtree(folder / "work")
    async with awake(folder, agent_with(scribe, 10**9), store=DirectoryStore(folder / "store")) as hall:
        await hall.connect()
        yield hall


async def shown(hall: Hall) -> list[str]:
    return ["summary" if is_compaction_message(entry) else entry["id"] for entry in await hall.call("getHistory")]


async def raw(hall: Hall) -> list[str]:
    return [entry["id"] for entry in await hall.call("getRawHistory")]


def frames(hall: Hall) -> list[JsonObject]:
    return [json.loads(event.frame) for event in hall.events if isinstance(event, Push)]


NAMES = [f"m{number}" for number in range(10)]


async def test_reads_and_appends_go_on_while_a_summary_is_being_written(tmp_path: Path) -> None:  # B07, B22
    """The summarizer does not move at all here: whatever waited for it would never end."""
    scribe = Scribe()
    async with writing(tmp_path, scribe) as hall:
        for number in range(10, 60):
            await hall.call("appendMessage", text(f"m{number}"))
            assert await hall.call("getPathLength") == number + 1
            assert (await hall.call("getLatestLeaf"))["id"] == f"m{number}"
        await hall.call("updateMessage", text("m55", "changed"))
        assert len(await hall.call("search", "changed")) == 1
        assert scribe.runs == 1
        scribe.gate.set()
        await hall.conversation._agent.session.settled()
        stored = await hall.call("getCompactions")
        assert [(row["fromMessageId"], row["summary"]) for row in stored] == [("m0", "in short")]
        assert await raw(hall) == [f"m{number}" for number in range(60)]
        expected = [f"m{number}" for number in range(60)]
        assert await shown(hall) == ["summary", *expected[expected.index(stored[0]["toMessageId"]) + 1 :]]


async def test_a_client_that_counts_frames_misses_none_over_a_compaction(tmp_path: Path) -> None:  # B34
    scribe = Scribe()
    async with writing(tmp_path, scribe) as hall:
        scribe.gate.set()
        await hall.conversation._agent.session.settled()
        cursor = frames(hall)[-1]["seq"]
        await hall.call("appendMessage", text("after"))
        await hall.call("getHistory")
        news = [frame for frame in frames(hall) if frame["seq"] > cursor]
        assert [frame["phase"] for frame in news][:1] == ["idle"]
        numbers = [frame["seq"] for frame in frames(hall)]
        assert numbers == sorted(set(numbers))


Fault = Callable[[Hall], Awaitable[Any]]


@pytest.mark.parametrize(
    ("fault", "path", "compacted"),
    [
        (lambda hall: hall.call("appendMessage", text("new")), [*NAMES, "new"], True),
        (lambda hall: hall.call("appendMessage", text("branch"), "m0"), ["m0", "branch"], False),
        (lambda hall: hall.call("deleteMessages", ["m0"]), NAMES[1:], False),
        (lambda hall: hall.call("deleteMessages", ["m1"]), [NAMES[0], *NAMES[2:]], False),
        (lambda hall: hall.call("deleteMessages", NAMES[:9]), NAMES[9:], False),
        (lambda hall: hall.call("clearMessages"), [], False),
        (lambda hall: hall.conversation._agent.session.cancel_compaction(), NAMES, False),
    ],
    ids=["append", "branch", "delete the anchor", "delete inside", "delete the range", "clear", "cancel"],
)
async def test_what_happens_while_a_summary_is_being_written_wins(
    tmp_path: Path, fault: Fault, path: list[str], compacted: bool
) -> None:
    scribe = Scribe()
    async with writing(tmp_path, scribe) as hall:
        await fault(hall)
        scribe.gate.set()
        await hall.conversation._agent.session.settled()
        assert await raw(hall) == path
        assert ("summary" in await shown(hall)) is compacted
        assert len(await hall.call("getCompactions")) == int(compacted)
        assert [frame["phase"] for frame in frames(hall)][-1] == "idle"
        await hall.call("appendMessage", text("later"))
        assert (await raw(hall))[-1] == "later"
    async with woken(tmp_path, scribe) as hall:
        assert await raw(hall) == [*path, "later"]
        assert len(await hall.call("getCompactions")) <= 1


async def test_hibernating_waits_for_the_summary(tmp_path: Path) -> None:
    scribe = Scribe()
    async with writing(tmp_path, scribe) as hall:
        sleeping = asyncio.create_task(hall.conversation.hibernate())
        await asyncio.sleep(0)
        scribe.gate.set()
        await sleeping
    async with woken(tmp_path, scribe) as hall:
        assert (await shown(hall))[0] == "summary"
        assert await raw(hall) == NAMES


async def test_hibernating_at_the_end_of_its_patience_drops_the_summary_and_nothing_else(tmp_path: Path) -> None:
    scribe = Scribe()
    async with writing(tmp_path, scribe) as hall:
        await hall.conversation.hibernate(grace_seconds=0)
        assert not hall.conversation._agent.session.is_compacting
    async with woken(tmp_path, scribe) as hall:
        assert await shown(hall) == NAMES


async def test_a_process_killed_while_it_summarizes_leaves_the_history_and_the_next_run_folds_it(
    tmp_path: Path,
) -> None:
    scribe = Scribe()
    async with writing(tmp_path, scribe) as hall:
        await abandon_conversation(hall.conversation._opened)
        hall.lost.append(ConnectionError("killed"))
        scribe.gate.set()
        await hall.conversation._agent.session.settled()
    async with woken(tmp_path, scribe) as hall:
        assert await shown(hall) == NAMES
        assert (await hall.call("compact"))["toMessageId"] == "m8"
        assert await shown(hall) == ["summary", "m9"]
        assert await raw(hall) == NAMES


# ---- results that come late -----------------------------------------------------------------------------------


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


async def summarize(prompt: str) -> str:
    return "in short"


COMPACT = create_compact_function(summarize=summarize, protect_head=1, tail_token_budget=30, min_tail_messages=1)


@asynccontextmanager
async def abandoned(folder: Path, is_builtin: bool = True) -> AsyncIterator[tuple[Session, Owner]]:
    """A conversation in which a call without a result has been folded: m0, the summary, the last message."""
    async with opened(folder) as owner:
        provider: Any = AgentSessionProvider(owner)
        session = Session.create(provider if is_builtin else Documented(provider)).on_compaction(COMPACT)
        await session.append_message(text("m0"))
        await session.append_message(call("c", "c1"))
        for number in range(ABANDONED_AFTER + 5):
            await session.append_message(text(f"n{number}"))
        assert await session.compact() is not None
        assert "c" not in [entry["id"] for entry in await session.get_history()]
        yield session, owner


@pytest.mark.parametrize("is_builtin", [True, False])
async def test_a_result_whose_call_was_folded_is_told_as_text(tmp_path: Path, is_builtin: bool) -> None:  # B26, B29
    async with abandoned(tmp_path, is_builtin) as (session, owner):
        late = result("late", "c1", output={"degrees": 4})
        for _ in range(2):
            await session.append_message(late)
        *_, told = await session.get_history()
        assert is_compaction_message(told)
        assert told["parts"] == [{"type": "text", "text": '[Late result of an earlier call of look: {"degrees":4}]'}]
        assert await session.get_message("late") == late
        originals = await AgentSessionProvider(owner).get_raw_history()
        assert [entry for entry in originals if entry["id"] in ("c", "late")] == [call("c", "c1"), late]
        for number in range(5):
            await session.append_message(text(f"o{number}"))
        await session.compact()
        assert [is_compaction_message(entry) for entry in await session.get_history()].count(True) == 1


async def test_the_next_summary_takes_up_a_late_result(tmp_path: Path) -> None:
    prompts: list[str] = []

    def recording(prompt: str) -> str:
        prompts.append(prompt)
        return "in short"

    async with abandoned(tmp_path) as (session, owner):
        await session.append_message(result("late", "c1", output="the missing answer"))
        again = create_compact_function(summarize=recording, protect_head=1, tail_token_budget=1, min_tail_messages=1)
        session = Session.create(owner).on_compaction(again)
        await session.append_message(text("o1"))
        await session.append_message(text("o2"))
        await session.compact()
        assert "the missing answer" in prompts[0]
        assert [entry["id"] for entry in await session.get_history()][2:] == ["o2"]


@pytest.mark.parametrize("is_builtin", [True, False])
async def test_a_long_late_result_is_shortened_as_tool_outputs_are(tmp_path: Path, is_builtin: bool) -> None:
    async with abandoned(tmp_path, is_builtin) as (session, _):
        late = result("late", "c1", output="x" * 1_000_000)
        late["parts"].insert(0, {"type": "text", "text": "y" * 600})
        late["parts"].append({"type": "reasoning", "text": "hidden thoughts"})
        await session.append_message(late)
        (told,) = (await session.get_history())[-1]["parts"]
        lines = told["text"].splitlines()
        assert lines[0] == "y" * 600
        answer = lines[1].removeprefix("[Late result of an earlier call of look: ").removesuffix("]")
        assert len(lines) == 2
        assert len(answer) == 500
        assert answer.endswith("... [truncated 1000000 chars]")
        assert await session.get_message("late") == late


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"state": "output-error", "errorText": "no such city"}, "Error: no such city"),
        ({"state": "output-denied"}, tool_pairs.DENIED),
        ({"output": None, "state": "output-available"}, "null"),
    ],
)
async def test_a_late_error_and_a_late_denial_are_told(tmp_path: Path, part: JsonObject, told: str) -> None:
    async with abandoned(tmp_path) as (session, _):
        parts = [{"type": "tool-look", "toolCallId": "c1", **part}]
        await session.append_message({"id": "late", "role": "tool", "parts": parts})
        shown = (await session.get_history())[-1]["parts"][0]["text"]
        assert shown == f"[Late result of an earlier call of look: {told}]"


async def test_a_late_result_written_into_its_call_changes_what_was_said_and_no_summary(tmp_path: Path) -> None:
    async with abandoned(tmp_path) as (session, _):
        before = await session.get_history()
        done = call("c", "c1")
        done["parts"][0] |= {"output": "42", "state": "output-available"}
        await session.update_message(done)
        assert await session.get_history() == before
        assert done in await session.get_raw_history()


@pytest.mark.parametrize("is_builtin", [True, False])
async def test_a_late_result_together_with_another_is_refused(tmp_path: Path, is_builtin: bool) -> None:
    async with abandoned(tmp_path, is_builtin) as (session, _):
        await session.append_message(call("d", "d1"))
        before = await session.get_history()
        with pytest.raises(InvalidMessage, match="in a message of its own"):
            await session.append_message(result("both", "c1", "d1"))
        assert await session.get_history() == before
        await session.append_message(result("one", "d1"))
        await session.append_message(result("other", "c1"))
        assert [is_compaction_message(entry) for entry in await session.get_history()][-3:] == [False, False, True]


async def test_a_result_whose_call_id_is_used_again_belongs_to_the_newer_call(tmp_path: Path) -> None:
    async with abandoned(tmp_path) as (session, _):
        await session.append_message(call("again", "c1"))
        await session.append_message(result("answer", "c1"))
        assert [entry["id"] for entry in await session.get_history()][-2:] == ["again", "answer"]


@pytest.mark.parametrize("is_builtin", [True, False])
async def test_a_result_that_comes_while_its_call_is_being_folded_makes_the_summary_worthless(
    tmp_path: Path, is_builtin: bool
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def slowly(prompt: str) -> str:
        begun.set()
        await gate.wait()
        return "in short"

    slow = create_compact_function(summarize=slowly, protect_head=1, tail_token_budget=30, min_tail_messages=1)
    async with opened(tmp_path) as owner:
        provider: Any = AgentSessionProvider(owner)
        session = Session.create(provider if is_builtin else Documented(provider)).on_compaction(slow)
        await session.append_message(text("m0"))
        await session.append_message(call("c", "c1"))
        for number in range(ABANDONED_AFTER + 5):
            await session.append_message(text(f"n{number}"))
        run = asyncio.create_task(session.compact())
        await begun.wait()
        await session.append_message(result("late", "c1"))
        gate.set()
        assert await run is None
        assert await session.get_compactions() == []
        assert (await session.get_history())[-1] == result("late", "c1")


async def test_a_late_result_is_shown_as_it_is_when_its_call_is_visible_again(tmp_path: Path) -> None:
    async with abandoned(tmp_path) as (session, _):
        (overlay,) = await session.get_compactions()
        await session.append_message(result("late", "c1"))
        before = (await session.get_raw_history())[-3:]
        end = overlay["toMessageId"]
        path = [entry["id"] for entry in await session.get_raw_history()]
        await session.append_message(text("branch"), path[path.index(end) - 1])
        await session.delete_messages([end])  # the summary goes: it must not come to the other branch
        assert await session.get_compactions() == []
        assert (await session.get_history("late"))[-1] == before[-1] == result("late", "c1")
        assert "c" in [entry["id"] for entry in await session.get_history("late")]


async def branch_off_before_the_end(session: Session) -> str:
    """Make the deletion of the summary's end drop it; that end."""
    (overlay, *_) = await session.get_compactions()
    end: str = overlay["toMessageId"]
    path = [entry["id"] for entry in await session.get_raw_history()]
    await session.append_message(text("branch"), path[path.index(end) - 1])
    return end


async def test_a_late_result_is_known_by_its_call_and_not_by_its_text(tmp_path: Path) -> None:
    async with abandoned(tmp_path) as (session, _):
        for name, call_id in (("late", "c1"), ("own", "unknown")):
            await session.append_message(result(name, call_id))
        told = (await session.get_history())[-2]["parts"][0]["text"]
        await session.add_compaction(told, "own", "own")
        changed = result("late", "c1", output="43")
        await session.update_message(changed)
        await session.delete_messages([await branch_off_before_the_end(session)])
        *_, late, own = await session.get_history("own")
        assert late == changed
        assert own["parts"][0]["text"] == told


async def test_a_late_result_whose_call_was_deleted_stays_told_as_text(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        for message in (text("m0"), call("c", "c1"), text("m1"), text("m2")):
            await session.append_message(message)
        await session.add_compaction("s", "m0", "m2")
        await session.append_message(result("late", "c1"))
        await session.delete_messages(["c"])
        await session.delete_messages([await branch_off_before_the_end(session)])
        assert [row["fromMessageId"] for row in await session.get_compactions()] == ["late"]
        *others, late = await session.get_history("late")
        assert [entry["id"] for entry in others] == ["m0", "m1"]
        assert late["parts"][0]["text"].startswith("[Late result")


async def test_a_summary_by_hand_that_shows_a_call_again_shows_its_late_result(tmp_path: Path) -> None:
    async with abandoned(tmp_path) as (session, owner):
        await session.append_message(text("head"), None)
        for message in (call("d", "d1"), text("o1"), text("o2")):
            await session.append_message(message)
        await session.add_compaction("s", "head", "o1")
        await session.append_message(result("late", "d1"))
        assert is_compaction_message((await session.get_history())[-1])
        await session.add_compaction("s", "head", "head")  # the newer one hides less
        assert await shown_ids(session) == ["summary", "d", "o1", "o2", "late"]
        provider = AgentSessionProvider(owner)
        assert await provider.path_tokens() == estimate_message_tokens(await session.get_history())


@pytest.mark.parametrize("call_id", ['say "hello" \\ twice', "東京 🎉", "\x01"])
async def test_a_late_result_is_found_whatever_the_id_of_its_call(tmp_path: Path, call_id: str) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        for message in (text("m0"), call("c", call_id), text("m1")):
            await session.append_message(message)
        await session.add_compaction("s", "m0", "c")
        await session.append_message(result("late", call_id))
        assert await shown_ids(session) == ["summary", "m1", "summary"]
        found = await owner.database.read(lambda connection: containing.anywhere(connection, "", call_id))
        assert [entry["id"] for entry in found] == ["c", "late"]


async def test_a_summary_that_begins_at_an_answer_goes_on_when_its_call_is_folded_elsewhere(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(COMPACT)
        for message in (text("m0"), call("c", "c1"), text("n0"), text("n1")):
            await session.append_message(message)
        await session.append_message(result("answer", "c1"), "n1")
        await session.append_message(text("side"), "answer")
        await session.append_message(text("tip"), "side")
        await session.add_compaction("what the side says", "answer", "side")
        await session.append_message(text("main"), "n1")
        for number in range(ABANDONED_AFTER + 1):
            await session.append_message(text(f"o{number}"))
        kept = ABANDONED_AFTER + 2
        fold = create_compact_function(summarize=summarize, protect_head=1, tail_token_budget=1, min_tail_messages=kept)
        assert await Session.create(owner).on_compaction(fold).compact() is not None
        side = [entry["parts"][0]["text"] for entry in await session.get_history("tip")]
        assert side[1:3] == ["in short", "what the side says"]
        assert (await session.get_history("answer"))[-1]["parts"][0]["text"].startswith("[Late result")


async def test_a_result_on_another_branch_of_a_call_folded_here_is_told_as_text_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(COMPACT)
        await session.append_message(text("m0"))
        await session.append_message(call("c", "c1"))
        for number in range(5):
            await session.append_message(text(f"n{number}"))
        await session.append_message(result("answer", "c1"), "n4")
        await session.append_message(text("side"), "answer")
        await session.append_message(text("main"), "n4")
        for number in range(ABANDONED_AFTER):
            await session.append_message(text(f"o{number}"))
        # a summary that ends before the branches part, and so applies to both
        kept = ABANDONED_AFTER + 1
        fold = create_compact_function(summarize=summarize, protect_head=1, tail_token_budget=1, min_tail_messages=kept)
        folded = await Session.create(owner).on_compaction(fold).compact()
        assert folded is not None
        assert (folded.from_message_id, folded.to_message_id) == ("c", "n4")
        side = await session.get_history("side")
        assert [is_compaction_message(entry) for entry in side] == [False, True, True, False]
        assert side[2]["parts"][0]["text"] == "[Late result of an earlier call of look: 42]"
        assert [is_compaction_message(entry) for entry in await session.get_history()][:3] == [False, True, False]


KEEP_ONE = {"protect_head": 1, "tail_token_budget": 0, "min_tail_messages": 1}


@asynccontextmanager
async def answered(folder: Path, is_builtin: bool = True, **options: Any) -> AsyncIterator[Session]:
    """A conversation with a call that has its result: m1, the call m2, its result m3, m4."""
    async with opened(folder) as owner:
        provider: Any = AgentSessionProvider(owner)
        fold = create_compact_function(**{"summarize": summarize, **KEEP_ONE, **options})
        session = Session.create(provider if is_builtin else Documented(provider)).on_compaction(fold)
        for message in (text("m1"), call("m2", "c"), result("m3", "c"), text("m4")):
            await session.append_message(message)
        yield session
        assert await provider.path_tokens() == estimate_message_tokens(await session.get_history())


@pytest.mark.parametrize("is_builtin", [True, False])
@pytest.mark.parametrize("how", ["append", "update"])
async def test_a_second_result_that_comes_while_the_summary_is_written_makes_it_worthless(
    tmp_path: Path, is_builtin: bool, how: str
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def waiting(prompt: str) -> str:
        begun.set()
        await gate.wait()
        return "in short"

    async with answered(tmp_path, is_builtin, summarize=waiting) as session:
        if how == "update":
            await session.append_message(text("m5"))
        run = asyncio.create_task(session.compact())
        await begun.wait()
        await (session.append_message if how == "append" else session.update_message)(result("m5", "c"))
        gate.set()
        assert await run is None
        assert await shown_ids(session) == ["m1", "m2", "m3", "m4", "m5"]
        await session.append_message(text("m6"))
        assert await session.compact() is not None
        assert await shown_ids(session) == ["m1", "summary", "m6"]


async def test_a_second_result_of_a_call_that_was_made_again_does_not_drop_the_summary_of_the_first(
    tmp_path: Path,
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def waiting(prompt: str) -> str:
        begun.set()
        await gate.wait()
        return "in short"

    async with answered(tmp_path, summarize=waiting) as session:
        await session.append_message(call("again", "c"))
        run = asyncio.create_task(session.compact())
        await begun.wait()
        await session.append_message(result("m5", "c"))
        gate.set()
        assert await run is not None
        assert await shown_ids(session) == ["m1", "summary", "again", "m5"]


async def test_a_second_result_on_another_branch_is_told_as_text_there(tmp_path: Path) -> None:
    async with answered(tmp_path) as session:
        await session.append_message(result("m5", "c"))
        await session.append_message(text("m6"), "m4")
        await session.append_message(text("m7"))
        first = await session.compact()
        assert first is not None
        assert (first.from_message_id, first.to_message_id) == ("m2", "m6")  # which the other branch does not hold
        assert [entry["id"] for entry in await session.get_history("m5")] == ["m1", "m2", "m3", "m4", "m5"]
    async with answered(tmp_path, min_tail_messages=2) as session:
        await session.clear_messages()
        for message in (text("m1"), call("m2", "c"), result("m3", "c"), text("m4"), result("m5", "c")):
            await session.append_message(message)
        await session.append_message(text("m6"), "m4")
        await session.append_message(text("m7"))
        second = await session.compact()
        assert second is not None
        assert (second.from_message_id, second.to_message_id) == ("m2", "m4")
        *_, told = await session.get_history("m5")
        assert told["parts"][0]["text"] == "[Late result of an earlier call of look: 42]"
        assert await session.get_message("m5") == result("m5", "c")


@pytest.mark.parametrize("is_builtin", [True, False])
@pytest.mark.parametrize("how", ["update_message", "upsert_message"])
async def test_a_message_that_becomes_a_result_of_a_folded_call_is_told_as_text(
    tmp_path: Path, is_builtin: bool, how: str
) -> None:
    async with answered(tmp_path, is_builtin) as session:
        await session.append_message(text("m5"))
        assert await session.compact() is not None
        assert await shown_ids(session) == ["m1", "summary", "m5"]
        await getattr(session, how)(result("m5", "c"))
        *_, told = await session.get_history()
        assert told["parts"][0]["text"] == "[Late result of an earlier call of look: 42]"
        assert await session.get_message("m5") == result("m5", "c")
        if not is_builtin:
            return
        await getattr(session, how)(result("m5", "c", output="43"))
        *_, told = await session.get_history()
        assert told["parts"][0]["text"] == "[Late result of an earlier call of look: 43]"
        await getattr(session, how)(text("m5", "no result any more"))
        assert await shown_ids(session) == ["m1", "summary", "m5"]


async def test_an_update_that_no_text_can_stand_for_is_refused(tmp_path: Path) -> None:
    async with answered(tmp_path) as session:
        await session.append_message(call("m5", "d"))
        await session.append_message(text("m6"))
        assert await session.compact() is not None
        assert await shown_ids(session) == ["m1", "summary", "m5", "m6"]
        with pytest.raises(InvalidMessage, match="in a message of its own"):
            await session.update_message(result("m6", "c", "d"))
        assert await shown_ids(session) == ["m1", "summary", "m5", "m6"]
        await session.update_message(result("m6", "d"))
        assert await shown_ids(session) == ["m1", "summary", "m5", "m6"]


async def test_an_update_that_makes_or_takes_away_a_folded_call_changes_how_its_answers_are_told(
    tmp_path: Path,
) -> None:
    async with answered(tmp_path) as session:
        await session.append_message(text("m5"))
        assert await session.compact() is not None
        await session.append_message(result("m6", "c"))
        assert await shown_ids(session) == ["m1", "summary", "m5", "summary"]
        await session.update_message(text("m2"))
        assert await shown_ids(session) == ["m1", "summary", "m5", "m6"]
        await session.update_message(call("m2", "c"))
        assert await shown_ids(session) == ["m1", "summary", "m5", "summary"]
        await session.update_message(call("m5", "c"))  # the nearest call is visible
        assert await shown_ids(session) == ["m1", "summary", "m5", "m6"]


async def test_compaction_waits_for_the_result_of_the_call_that_crossed_the_threshold(tmp_path: Path) -> None:  # B28
    async with opened(tmp_path) as owner:
        fold = create_compact_function(summarize=summarize, protect_head=1, tail_token_budget=1, min_tail_messages=1)
        session = Session.create(owner).on_compaction(fold).compact_after(25)
        await session.append_message(text("m0"))
        await session.append_message(text("m1"))
        await session.append_message(call("c", "c1"))  # above the threshold with this
        await session.append_message(text("waiting"))
        await session.settled()
        assert "c" in [entry["id"] for entry in await session.get_history()]
        await session.append_message(result("r", "c1"))
        await session.settled()
        await session.append_message(text("m2"))
        await session.append_message(text("m3"))
        await session.settled()
        shown_ids = [entry["id"] for entry in await session.get_history()]
        assert ("c" in shown_ids) == ("r" in shown_ids)


def folding(**options: Any) -> Any:
    defaults = {"protect_head": 1, "tail_token_budget": 1, "min_tail_messages": 1}
    return create_compact_function(summarize=summarize, **{**defaults, **options})


async def shown_ids(session: Session) -> list[str]:
    return ["summary" if is_compaction_message(entry) else entry["id"] for entry in await session.get_history()]


async def test_one_orphaned_call_holds_compaction_up_for_a_while_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # B26
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(folding()).compact_after(60)
        for message in (text("m0"), text("m1"), text("m2"), call("orphan", "c1")):
            await session.append_message(message)
        for number in range(ABANDONED_AFTER - 1):
            await session.append_message(text(f"n{number}"))
            await session.settled()
            assert "orphan" in await shown_ids(session)
        assert "abandoned" not in caplog.text
        for number in range(10):
            await session.append_message(text(f"o{number}"))
            await session.settled()
        assert "orphan" not in await shown_ids(session)
        assert len(await shown_ids(session)) < 8
        assert "folded as abandoned: ['orphan']" in caplog.text
        assert call("orphan", "c1") in await session.get_raw_history()


async def test_a_preliminary_output_leaves_its_call_open(tmp_path: Path) -> None:  # B25
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(folding())
        open_call = call("c", "c1")
        open_call["parts"][0] |= {"output": "half", "preliminary": True, "state": "output-available"}
        for message in (text("m0"), text("m1"), open_call, text("m2"), text("m3")):
            await session.append_message(message)
        await session.compact()
        assert await shown_ids(session) == ["m0", "summary", "c", "m2", "m3"]
        final = call("c", "c1")
        final["parts"][0] |= {"output": "whole", "state": "output-available"}
        await session.update_message(final)
        await session.compact()
        assert await shown_ids(session) == ["m0", "summary", "m3"]


@pytest.mark.parametrize("tail", range(1, 32))
async def test_thirty_parallel_results_stay_with_their_call(tmp_path: Path, tail: int) -> None:  # B31
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(folding(min_tail_messages=tail))
        call_ids = [f"c{number}" for number in range(30)]
        await session.append_message(text("m0"))
        await session.append_message(text("m1"))
        await session.append_message(call("calls", *call_ids))
        for call_id in call_ids:
            await session.append_message(result(f"r-{call_id}", call_id))
        await session.append_message(text("m2"))
        await session.compact()
        shown = await shown_ids(session)
        everything = ["calls", *(f"r-{call_id}" for call_id in call_ids)]
        assert [entry for entry in shown if entry in everything] == ([] if tail == 1 else everything)
        assert "summary" in shown


async def test_a_fold_of_everything_leaves_the_newest_message(tmp_path: Path) -> None:  # B32
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(folding(protect_head=0, tail_token_budget=0, min_tail_messages=0))
        for number in range(4):
            await session.append_message(text(f"m{number}"))
        for _ in range(2):
            await session.compact()
            assert await shown_ids(session) == ["summary", "m3"]


# ---- what a summary costs -------------------------------------------------------------------------------------


async def usage_of(owner: Owner, session_id: str) -> tuple[Any, ...] | None:
    query = "SELECT input_tokens, output_tokens, estimated_cost FROM assistant_sessions WHERE id = ?"
    row: tuple[Any, ...] | None = await owner.database.read(
        lambda connection: connection.execute(query, (session_id,)).fetchone()
    )
    return row


async def test_what_a_summary_costs_is_added_once_whether_it_is_stored_or_dropped(tmp_path: Path) -> None:  # B35
    answers = [("m0", "m1"), ("m0", "missing"), ("m2", "m2")]
    usage = Usage(input_tokens=100, output_tokens=10, cost=0.5)

    def compact(messages: list[JsonObject]) -> CompactResult:
        first, last = answers.pop(0)
        return CompactResult(fromMessageId=first, toMessageId=last, summary="s", usage=usage)

    new = sessions.NewSession(name="x")
    async with opened(tmp_path) as owner:
        for session_id in ("known", "unknown"):
            session = Session.create(owner).for_session(session_id).on_compaction(compact)
            for number in range(4):
                await session.append_message(text(f"m{number}"))
            if session_id == "known":
                await owner.database.write(lambda connection: sessions.create(connection, "known", new))
                assert (await session.compact()) is not None
                assert await usage_of(owner, session_id) == (100, 10, 0.5)
                assert (await session.compact()) is None
                assert await usage_of(owner, session_id) == (200, 20, 1.0)
            else:
                assert (await session.compact()) is not None
                assert await usage_of(owner, session_id) is None
        assert await usage_of(owner, "known") == (200, 20, 1.0)


async def test_a_function_that_rests_after_a_success_blocks_no_message(tmp_path: Path) -> None:  # B19
    runs = 0

    def resting(messages: list[JsonObject]) -> JsonObject | None:
        nonlocal runs
        runs += 1
        return {"fromMessageId": "m0", "toMessageId": "m0", "summary": "s"} if runs == 1 else None

    count = 200
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(resting)
        session.compact_after(100, token_counter=lambda **_: count)
        for number in range(10):
            await session.append_message(text(f"m{number}"))
            await session.settled()
        assert await session.get_path_length() == 10
        assert runs == 1
        count = 210
        await session.append_message(text("m10"))
        await session.settled()
        assert runs == 2
