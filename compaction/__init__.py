"""Pure decisions about what to fold into a summary: no files, no network.

No clock either, with one exception that decides nothing: the stubs of `sanitize_tool_pairs` say when they were
made.
"""

from compaction.boundaries import (
    align_boundary_backward,
    align_boundary_forward,
    compute_summary_budget,
    find_tail_cut_by_tokens,
)
from compaction.errors import CompactionError, EmptySummary, InvalidSummary, InvalidTokenCount, LongSummary
from compaction.overlays import COMPACTION_PREFIX, is_compaction_message
from compaction.result import CompactContext, CompactFunction, CompactResult, Summary, TokenCounter, Usage
from compaction.sanitize import sanitize_tool_pairs
from compaction.summarize import CompactOptions, create_compact_function
from compaction.summary_prompt import build_summary_prompt
from compaction.tokens import estimate_message_tokens, estimate_string_tokens
from compaction.truncate import truncate_older_messages

__all__ = [
    "COMPACTION_PREFIX",
    "CompactContext",
    "CompactFunction",
    "CompactOptions",
    "CompactResult",
    "CompactionError",
    "EmptySummary",
    "InvalidSummary",
    "InvalidTokenCount",
    "LongSummary",
    "Summary",
    "TokenCounter",
    "Usage",
    "align_boundary_backward",
    "align_boundary_forward",
    "build_summary_prompt",
    "compute_summary_budget",
    "create_compact_function",
    "estimate_message_tokens",
    "estimate_string_tokens",
    "find_tail_cut_by_tokens",
    "is_compaction_message",
    "sanitize_tool_pairs",
    "truncate_older_messages",
]
