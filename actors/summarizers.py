"""What writes the summaries of a compaction: a model where one is configured, else the embedded extractive summarizer.

A summarizer is any function that takes a prompt and returns a text (or a `compaction.Summary`, with what it cost), async or not:
``create_compact_function(summarize=...)``.
"""

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
    is_compaction_message,
)
from compaction.boundaries import TAIL_TOKEN_BUDGET
from storage.errors import InvalidArgument

TAIL_SHARE = 4
"""The newest quarter stays as it is, at most 20,000 tokens: else nothing of a small conversation could be folded."""

SENTENCE_CHARACTERS = 200
SUMMARY_LINES = 60

LABEL = "[Extractive summary: no model is configured, so this lists the first sentence of each folded message.]"

Message = dict[str, Any]


def default_compaction(settings: Settings) -> CompactFunction:
    """The compaction function of these settings: summaries by the configured model, extractive ones without a model."""
    model = Model.of(settings)
    if model is None:
        return compact_extractively
    summarize = model_summarizer(model)

    async def compact_by_model(
        messages: Sequence[Message], context: CompactContext | None = None
    ) -> CompactResult | None:
        budget = _tail_budget(messages)
        return await create_compact_function(summarize=summarize, tail_token_budget=budget)(messages, context)

    return compact_by_model


def _tail_budget(messages: Sequence[Message]) -> int:
    return min(TAIL_TOKEN_BUDGET, estimate_message_tokens(list(messages)) // TAIL_SHARE)


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


async def compact_extractively(messages: Sequence[Message], *_: Any) -> CompactResult | None:
    """The embedded default: fold what `create_compact_function` would, and keep the first sentence of each message.

    The summary says what it is in its first line, so that nobody takes it for a model's work.
    """
    choose = create_compact_function(summarize=lambda _: LABEL, tail_token_budget=_tail_budget(messages))
    chosen = await choose(messages)
    if chosen is None:
        return None
    ids = [message["id"] for message in messages]
    start, end = ids.index(chosen.from_message_id), ids.index(chosen.to_message_id)
    # Summaries before the range are taken into it, wherever they are.
    folded = [
        message for index, message in enumerate(messages[: end + 1]) if index >= start or is_compaction_message(message)
    ]
    return chosen.model_copy(update={"summary": "\n".join([LABEL, *_lines(folded)])})


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
