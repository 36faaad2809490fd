"""The token estimate. It lives in storage, where a stored column depends on it; this is its public place."""

from collections.abc import Iterable

from compaction.messages import Given, plain
from storage.tokens import estimate_one, estimate_string_tokens

__all__ = ["estimate_message_tokens", "estimate_string_tokens"]


def estimate_message_tokens(messages: Iterable[Given]) -> int:
    """The sum over messages: 4 each, and their parts (see `storage.tokens`). Raises InvalidArgument for what are no messages."""
    return sum(map(estimate_one, plain(messages)))
