"""What writes the summaries of a compaction: a model where one is configured, else the embedded extractive summarizer.

A summarizer is any function that takes a prompt and returns a text (or a `compaction.Summary`, with what it cost), async or not:
``create_compact_function(summarize=...)``.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import SecretStr

from actors.models import DEFAULT_URL, Model, open_model
from actors.settings import Settings
from compaction import (
    CompactContext,
    CompactFunction,
    CompactResult,
    Summary,
    create_compact_function,
    estimate_message_tokens,
)
from compaction.boundaries import TAIL_TOKEN_BUDGET
from compaction.summarize import Fold, choose_fold
from compaction.summary_prompt import MAX_PROMPT_CHARS, MIN_PROMPT_CHARS, turn_text
from storage.errors import InvalidArgument
from storage.records import clean

TAIL_SHARE = 4
"""The newest quarter stays as it is, at most 20,000 tokens: else nothing of a small conversation could be folded."""

CHARS_PER_TOKEN = 4
"""A prompt for a model is no longer than a conversation at the threshold ``compact_after``, which the model is meant to read
(but 10,000 characters at least, 400,000 at most: `compaction.create_compact_function`)."""

SENTENCE_CHARACTERS = 200
SUMMARY_LINES = 60
LINE_CHARACTERS = 500  # of an earlier summary, which may be a model's

LABEL = "[Extractive summary: no model is configured, so this lists the first sentence of each folded message.]"

Message = dict[str, Any]


def default_compaction(settings: Settings) -> CompactFunction:
    """The compaction function of these settings: summaries by the configured model, extractive ones without a model."""
    model = Model.of(settings)
    if model is None:
        return compact_extractively
    summarize = model_summarizer(model)
    longest = max(MIN_PROMPT_CHARS, min(MAX_PROMPT_CHARS, settings.compact_after * CHARS_PER_TOKEN))

    async def compact_by_model(
        messages: Sequence[Message], context: CompactContext | None = None
    ) -> CompactResult | None:
        budget = await _tail_budget(messages)
        compact = create_compact_function(summarize=summarize, tail_token_budget=budget, max_prompt_chars=longest)
        return await compact(messages, context)

    return compact_by_model


async def _tail_budget(messages: Sequence[Message]) -> int:
    tokens = await asyncio.to_thread(estimate_message_tokens, messages)  # a long history must not hold up the loop
    return min(TAIL_TOKEN_BUDGET, tokens // TAIL_SHARE)


def openai_summarizer(
    base_url: str = DEFAULT_URL,
    *,
    model: str,
    api_key: str | SecretStr = "",
    timeout_seconds: float = 120.0,
    max_retries: int = 2,
) -> Callable[[str], Awaitable[Summary]]:
    """A summarizer that asks a model behind any OpenAI-compatible endpoint, and says what it cost.

    Needs the extra ``perdure[openai]``. What it cannot do is raised as a `ModelError`, without the key and the messages.
    """
    if not model:
        raise InvalidArgument("The model of a summarizer needs a name.")
    key = api_key if isinstance(api_key, SecretStr) else SecretStr(api_key)
    return model_summarizer(Model(model, base_url, key, timeout_seconds, max_retries))


def model_summarizer(model: Model) -> Callable[[str], Awaitable[Summary]]:
    """`openai_summarizer` for a `Model`."""

    async def summarize(prompt: str) -> Summary:
        async with open_model(model) as client:
            text, usage = await client.complete([{"role": "user", "content": prompt}])
        return Summary(text, usage)

    return summarize


async def compact_extractively(
    messages: Sequence[Message], context: CompactContext | None = None
) -> CompactResult | None:
    """The embedded default: fold what `create_compact_function` would, and keep the first sentence of each message.

    The summary says what it is in its first line, so that nobody takes it for a model's work.
    """
    fold = await choose_fold(messages, context, tail_token_budget=await _tail_budget(messages))
    if fold is None:
        return None
    summary = clean("\n".join([LABEL, *_lines(fold)]))
    return CompactResult(fromMessageId=fold.from_id, toMessageId=fold.to_id, summary=summary)


def _lines(fold: Fold) -> list[str]:
    earlier = (fold.previous_summary or "").splitlines()
    lines = [_at_most(LINE_CHARACTERS, line) for line in earlier if line != LABEL]
    for message in fold.turns:
        text = turn_text(message).strip()
        if text:
            lines.append(f"{message.get('role')}: {_first_sentence(text)}")
    return lines[-SUMMARY_LINES:]


def _first_sentence(text: str) -> str:
    return _at_most(SENTENCE_CHARACTERS, re.split(r"(?<=[.!?。！？])\s|\n", text, maxsplit=1)[0])


def _at_most(characters: int, line: str) -> str:
    return line if len(line) <= characters else line[:characters].rstrip() + "…"
