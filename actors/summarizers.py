"""Summaries without a model: the embedded default.

An extractive summary keeps the first sentence of each message that it stands for. It says what it is in its first line, so
that nobody takes it for a model's work.
"""

import re
from typing import Any

from compaction import estimate_message_tokens, is_compaction_message

PROTECT_HEAD = 3
MAX_TAIL_TOKENS = 20_000
MIN_TAIL_MESSAGES = 2
SENTENCE_CHARACTERS = 200
SUMMARY_LINES = 60

LABEL = "[Extractive summary: no model is configured, so this lists the first sentence of each folded message.]"

Message = dict[str, Any]


async def compact_extractively(messages: list[Message], *_: Any) -> dict[str, str] | None:
    """Fold the middle of a history: all but the first 3 messages and the newest quarter (by tokens, at most 20,000).

    Returns ``{fromMessageId, toMessageId, summary}``, or None when there is nothing to fold. Calls that still wait for an
    answer are never folded.
    """
    end = _tail_start(messages)
    start = min(PROTECT_HEAD, end)
    for index in range(start, end):
        if _waits(messages[index]):
            end = index
            break
    folded = messages[start:end]
    if not any(not is_compaction_message(message) for message in folded):
        return None
    return {
        "fromMessageId": folded[0]["id"],
        "toMessageId": folded[-1]["id"],
        "summary": "\n".join([LABEL, *_lines(folded)]),
    }


def _tail_start(messages: list[Message]) -> int:
    """Index of the first message of the protected tail."""
    budget = min(MAX_TAIL_TOKENS, estimate_message_tokens(messages) // 4)
    index = len(messages)
    while index > 0:
        budget -= estimate_message_tokens([messages[index - 1]])
        if budget < 0 and len(messages) - index >= MIN_TAIL_MESSAGES:
            break
        index -= 1
    return index


def _waits(message: Message) -> bool:
    return any(
        part.get("state") in ("input-streaming", "input-available", "approval-requested")
        for part in message["parts"]
        if isinstance(part, dict)
    )


def _lines(messages: list[Message]) -> list[str]:
    lines: list[str] = []
    for message in messages:
        texts = [
            part["text"] for part in message["parts"] if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        text = "\n".join(texts).strip()
        if is_compaction_message(message):
            lines.extend(line for line in text.splitlines() if line != LABEL)
        elif text:
            lines.append(f"{message['role']}: {_first_sentence(text)}")
    return lines[-SUMMARY_LINES:]


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.!?。！？])\s|\n", text, maxsplit=1)[0]
    return sentence if len(sentence) <= SENTENCE_CHARACTERS else sentence[:SENTENCE_CHARACTERS].rstrip() + "…"
