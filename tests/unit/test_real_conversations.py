"""Real conversations with tool calls, imported and compacted again and again: pairs intact, nothing lost."""

import json
from pathlib import Path
from typing import Any

import pytest
from real_conversations import DATA, MISSING
from session_support import opened

from actors import Session
from actors.openai_chat import to_ui_messages
from actors.transcripts import Transcript, read_openai_chat
from compaction import create_compact_function, estimate_message_tokens, is_compaction_message
from storage.tokens import estimate_one

JsonObject = dict[str, Any]
THRESHOLD = 2_000

pytestmark = pytest.mark.skipif(not DATA.is_file(), reason=MISSING)


def as_separate_messages(source: list[JsonObject], name: str) -> list[JsonObject]:
    """The same conversation as other clients store it: each result in a message of its own, call ids used once."""
    uses: dict[str, int] = {}
    messages: list[JsonObject] = []
    for index, item in enumerate(source):
        parts: list[JsonObject] = [{"type": "text", "text": item["content"]}] if item.get("content") else []
        if item["role"] == "tool":
            call_id = f"{item['tool_call_id']}#{uses[item['tool_call_id']]}"
            parts = [
                {
                    "type": "dynamic-tool",
                    "toolCallId": call_id,
                    "toolName": item.get("name", "tool"),
                    "output": item["content"],
                    "state": "output-available",
                }
            ]
        for call in item.get("tool_calls") or []:
            uses[call["id"]] = uses.get(call["id"], 0) + 1
            parts.append(
                {
                    "type": "dynamic-tool",
                    "toolCallId": f"{call['id']}#{uses[call['id']]}",
                    "toolName": call["function"]["name"],
                    "input": json.loads(call["function"]["arguments"]),
                    "state": "input-available",
                }
            )
        messages.append({"id": f"{name}-{index}", "role": item["role"], "parts": parts})
    return messages


def sources() -> list[tuple[str, list[JsonObject]]]:
    lines = DATA.read_text(encoding="utf-8").splitlines()
    return [(line["id"], line["messages"]) for line in map(json.loads, lines)]


class Recorder:
    """Summarizes in about a hundred words, each summary with a number, and keeps what it was asked."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.summaries: list[str] = []

    async def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        self.summaries.append(f"Summary <{len(self.summaries)}> of an airline conversation. " + "It went on. " * 30)
        return self.summaries[-1]


def broken(history: list[JsonObject], path: list[JsonObject]) -> list[str]:
    """Results whose call, and calls whose result, the path has and the history has not."""
    found = []
    here, everywhere = halves(history), halves(path)
    for call_id, (is_called, is_answered) in here.items():
        if is_answered and not is_called:
            found.append(f"{call_id} is answered and not called")
        if is_called and not is_answered and everywhere[call_id][1]:
            found.append(f"{call_id} is called and not answered")
    return found


def halves(messages: list[JsonObject]) -> dict[str, tuple[bool, bool]]:
    found: dict[str, tuple[bool, bool]] = {}
    for message in messages:
        for part in message["parts"]:
            if "toolCallId" in part:
                called, answered = found.get(part["toolCallId"], (False, False))
                is_answer = "output" in part
                assert called or not is_answer or "input" in part, "a result comes before its call"
                found[part["toolCallId"]] = called or "input" in part, answered or is_answer
    return found


@pytest.mark.parametrize("convert", [to_ui_messages, as_separate_messages])
async def test_fifty_conversations_are_compacted_repeatedly_and_lose_nothing(tmp_path: Path, convert: Any) -> None:
    conversations = sources()
    assert len(conversations) == 50
    runs: list[int] = []
    async with opened(tmp_path) as owner:
        for name, source in conversations:
            recorder = Recorder()
            fold = create_compact_function(
                summarize=recorder, protect_head=1, tail_token_budget=300, min_tail_messages=2
            )
            session = Session.create(owner).for_session(name).on_compaction(fold).compact_after(THRESHOLD)
            written = convert(source, name)
            for number, message in enumerate(written, 1):
                await session.append_message(message)
                await session.settled()
                history = await session.get_history()
                assert broken(history, written[:number]) == []
                assert sum(map(is_compaction_message, history)) <= 1
            assert await session.get_raw_history() == written
            for previous, prompt in zip(recorder.summaries, recorder.prompts[1:], strict=False):
                assert previous in prompt
            (first, *_), stored = recorder.prompts or [""], await session.get_compactions()
            assert "Summary <" not in first
            assert [row["summary"] for row in stored] == recorder.summaries
            assert expanded(history, stored, written) == written
            assert await session._parts.history.path_tokens() == estimate_message_tokens(history)
            runs.append(len(stored))
    print(f"{sum(runs)} summaries of {len(runs)} conversations, up to {max(runs)} of one")
    assert sum(count > 1 for count in runs) >= 40


def expanded(history: list[JsonObject], stored: list[JsonObject], written: list[JsonObject]) -> list[JsonObject]:
    """The history with the messages that its summary stands for in its place."""
    order = [message["id"] for message in written]
    result: list[JsonObject] = []
    for message in history:
        if is_compaction_message(message):
            row = stored[-1]
            assert message["id"] == f"compaction_{row['id']}"
            result += written[order.index(row["fromMessageId"]) : order.index(row["toMessageId"]) + 1]
        else:
            result.append(message)
    return result


async def test_the_importer_reads_all_of_them() -> None:
    transcripts = list(read_openai_chat(DATA))
    assert all(isinstance(transcript, Transcript) for transcript in transcripts)
    assert len(transcripts) == 50
    assert max(estimate_one(step.message) for transcript in transcripts for step in transcript.steps) > THRESHOLD / 2
