"""Where a compacted range may begin and end, and how long its summary may be."""

from typing import Any

from storage.tokens import estimate_message_tokens

SUMMARY_SHARE = 5
MIN_SUMMARY_TOKENS = 100


def compute_summary_budget(messages: list[dict[str, Any]]) -> int:
    """How many tokens a summary of these messages may take: a fifth of theirs, at least 100."""
    return max(MIN_SUMMARY_TOKENS, estimate_message_tokens(messages) // SUMMARY_SHARE)
