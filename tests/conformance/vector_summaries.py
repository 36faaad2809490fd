"""The compaction function of kind ``summarize`` (FORMAT.md 3.3): `create_compact_function` with a scripted ``summarize``.

What the summarizer saw is read from the prompt, whose wording is free: what stands between the markers of the previous summary,
whose texts stand between those of the conversation, in which order, and no others; and the number named as the target size.
"""

import re
from typing import Any

from compaction import create_compact_function

LONG = 20
TARGET = re.compile(r"about (\d+) tokens")
SECTION = r"^(=+) {title} \1\n\n(?:(?P<content>.*)\n\n)?\1 END OF {title} \1$"


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

    The turns are those visible messages whose texts are whole lines of the conversation, in the order of the prompt, so one that
    was left out, shown twice or moved makes another list. Where a text is anywhere else too, or the target size is not clear,
    the prompt itself is recorded, which equals nothing.
    """
    previous, conversation = section(prompt, "PREVIOUS SUMMARY"), section(prompt, "CONVERSATION")
    if conversation is None:
        return {"unclear_prompt": prompt}
    targets = TARGET.findall(prompt[: min(found.start() for found in sections(prompt))])
    texts = {text for text in map(text_of, visible) if text}
    shown = shown_in(conversation, texts)
    told = [*shown, previous or ""]
    strays = [
        text for text in texts if len(text) >= LONG and prompt.count(text) != sum(one.count(text) for one in told)
    ]
    if len(targets) != 1 or strays:
        return {"unclear_prompt": prompt}
    return {"previous_summary": previous, "turn_texts": shown, "budget": int(targets[0])}


def sections(prompt: str, *titles: str) -> list[re.Match[str]]:
    patterns = [SECTION.format(title=title) for title in titles or ("PREVIOUS SUMMARY", "CONVERSATION")]
    found = [re.search(pattern, prompt, re.MULTILINE | re.DOTALL) for pattern in patterns]
    return [match for match in found if match is not None]


def section(prompt: str, title: str) -> str | None:
    """What stands between the markers of this title."""
    return next((found["content"] or "" for found in sections(prompt, title)), None)


def shown_in(conversation: str, texts: set[str]) -> list[str]:
    """Those of the texts that are whole lines of the conversation, in its order; where two begin at one place, the longer."""
    longest_first = sorted(texts, key=len, reverse=True)
    either = "|".join(map(re.escape, longest_first))
    return re.findall(rf"^(?:{either})$", conversation, re.MULTILINE) if either else []


def text_of(message: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in message["parts"] if part.get("type") == "text")
