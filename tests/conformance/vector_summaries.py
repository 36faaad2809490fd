"""The compaction function of kind ``summarize`` (FORMAT.md 3.3): `create_compact_function` with a scripted ``summarize``.

What the summarizer saw is read from the prompt, whose wording is free: which messages' texts are in it, in which order, and
no others; and the number that it names as the target size.
"""

import re
from typing import Any

from compaction import create_compact_function, is_compaction_message

LONG = 20
TARGET = re.compile(r"about (\d+) tokens")


def compact_function(harness: Any) -> Any:
    spec = harness.setup["compaction"]
    visible: list[dict[str, Any]] = []

    async def summarize(prompt: str) -> str:
        harness.last_summary_prompt = prompt
        harness.compaction_calls.append(seen_in(prompt, visible))
        if harness.compaction_position >= len(spec["summaries"]):
            raise RuntimeError("script exhausted")
        summary = spec["summaries"][harness.compaction_position]
        harness.compaction_position += 1
        if isinstance(summary, dict):
            raise RuntimeError(summary["error"])
        return str(summary)

    options = {name: spec[name] for name in ("protect_head", "tail_token_budget", "min_tail_messages") if name in spec}
    if "token_counter" in spec:
        options["token_counter"] = lambda messages: count(spec["token_counter"], messages)
    compact = create_compact_function(summarize=summarize, **options)

    async def recorded(messages: list[dict[str, Any]], context: Any = None) -> Any:
        visible[:] = messages
        return await compact(messages, context)

    return recorded


def count(counter: dict[str, Any], messages: list[dict[str, Any]]) -> float:
    """The counter of `create_compact_function`."""
    match counter["kind"]:
        case "per_message":
            return float(counter["value"]) * len(messages)
        case "chars":
            return sum(len(text.encode("utf-16-le")) // 2 for text in map(text_of, messages))
        case "error":
            raise RuntimeError(counter["message"])
    raise ValueError(counter)


def seen_in(prompt: str, visible: list[dict[str, Any]]) -> dict[str, Any]:
    """``{previous_summary, turn_texts, budget}`` as the prompt shows them.

    The turns are the run of neighbours among the visible messages whose texts are in the prompt in their order and exactly as
    often as in the run, while the text of no other message is; messages without any text do not show. Where there is no such
    run, the prompt itself is recorded, which equals nothing.
    """
    targets = TARGET.findall(prompt)
    runs = [
        visible[start:end]
        for start in range(len(visible))
        for end in range(start + 1, len(visible) + 1)
        if is_shown(prompt, visible, visible[start:end])
    ]
    if len(targets) != 1 or not runs:
        return {"unclear_prompt": prompt}
    run = min(runs, key=len)
    summaries = [text_of(message) for message in run if is_compaction_message(message)]
    return {
        "previous_summary": "\n\n".join(summaries) or None,
        "turn_texts": [
            text for text in (text_of(message) for message in run if not is_compaction_message(message)) if text
        ],
        "budget": int(targets[0]),
    }


def is_shown(prompt: str, visible: list[dict[str, Any]], run: list[dict[str, Any]]) -> bool:
    """Whether the prompt holds the texts of this run, each as often as the run does, in order, and no text of another message."""
    shown = "\n\n".join(text for text in map(text_of, run) if text)
    if any(occurrences(prompt, text) != occurrences(shown, text) for text in map(text_of, visible) if text):
        return False
    position = 0
    for text in filter(None, map(text_of, run)):
        position = prompt.find(text, position)
        if position < 0:
            return False
        position += len(text)
    return True


def occurrences(where: str, text: str) -> int:
    """How often a text is there; one that is short enough to be a word of the instructions only where it is whole lines."""
    return where.count(text) if len(text) >= LONG else len(re.findall(rf"^{re.escape(text)}$", where, re.MULTILINE))


def text_of(message: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in message["parts"] if part.get("type") == "text")
