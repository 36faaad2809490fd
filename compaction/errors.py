"""What can go wrong in a compaction. In every case nothing was stored and the history is as it was.

::

    CompactionError             a StorageError too, so that one ``except`` catches what Perdure raises
    ├── EmptySummary            the summarizer answered with nothing
    ├── InvalidSummary          the summarizer answered with something that is no text
    ├── LongSummary             a summary longer than what it stands for, or than any may be
    ├── InvalidTokenCount       the token counter answered with something that is no number
    └── TokenCountTimeout       the token counter did not answer

Options and usage figures of the wrong kind are `storage.errors.InvalidArgument`. What the summarizer or the counter raises
itself is passed on as it is.
"""

from storage.errors import StorageError


class CompactionError(StorageError):
    """Base of all errors of this layer."""

    code = "compaction_failed"


class EmptySummary(CompactionError):
    code = "empty_summary"
    is_retryable = True
    sentence = "The summary is an empty text; it was not stored and the history is unchanged."


class InvalidSummary(CompactionError):
    code = "invalid_summary"
    sentence = "The summarizer answered with a {0}; it must return a str or a Summary. No summary was stored."


class LongSummary(CompactionError):
    code = "long_summary"
    is_retryable = True
    sentence = "A summary of {0} {2} is over the limit of {1}; it was not stored and the history is unchanged."


class InvalidTokenCount(CompactionError):
    code = "invalid_token_count"
    sentence = "The token counter answered with a {0}; it must return a number. Nothing was compacted."


class TokenCountTimeout(CompactionError):
    code = "token_count_timeout"
    is_retryable = True
    sentence = (
        "The token counter gave no answer within {0} seconds; it is not asked again for {1}. Nothing was compacted."
    )
