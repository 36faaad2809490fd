"""Pure decisions about what to fold into a summary: no files, no clock, no network."""

from compaction.boundaries import compute_summary_budget
from compaction.overlays import COMPACTION_PREFIX, is_compaction_message
from compaction.result import CompactContext, CompactFunction, CompactResult, TokenCounter
from compaction.tokens import estimate_message_tokens, estimate_string_tokens

__all__ = [
    "COMPACTION_PREFIX",
    "CompactContext",
    "CompactFunction",
    "CompactResult",
    "TokenCounter",
    "compute_summary_budget",
    "estimate_message_tokens",
    "estimate_string_tokens",
    "is_compaction_message",
]
