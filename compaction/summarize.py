"""`create_compact_function`: chooses what to fold, asks the summarizer, and hands back the summary with its range.

Choosing and writing the prompt take time that grows with the history: that is done in a thread, so that the loop goes on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

from compaction.boundaries import (
    MIN_TAIL_MESSAGES,
    PROTECT_HEAD,
    TAIL_TOKEN_BUDGET,
    compute_summary_budget,
    foldable,
    head_end,
)
from compaction.checks import check_number, check_whole, finite, is_number
from compaction.errors import EmptySummary, InvalidSummary, InvalidTokenCount, LongSummary
from compaction.messages import Given, Message, plain
from compaction.result import CompactContext, CompactResult, Messages, Summary
from compaction.summary_prompt import (
    MAX_PROMPT_CHARS,
    MIN_PROMPT_CHARS,
    build_summary_prompt,
    room_for_turns,
    turn_text,
    turns_of,
)
from compaction.tokens import estimate_message_tokens
from compaction.tool_pairs import waiting_and_abandoned
from storage.errors import InvalidArgument
from storage.maybe_async import settle
from storage.overlays import is_compaction_message
from storage.records import clean
from storage.tokens import estimate_one, estimate_string_tokens, utf16_length

log = logging.getLogger("perdure.compaction")

TAIL_SHARE = 4
"""The protected tail takes at most this part of the threshold, if nothing else is asked for."""

FREE_SUMMARY_TOKENS = 1_000
"""A summary up to this may be longer than what it stands for: the sections that are asked for take some room."""

Summarize: TypeAlias = Callable[[str], "str | Summary | Awaitable[str | Summary]"]
MessageCounter: TypeAlias = Callable[[Messages], "float | Awaitable[float]"]
Compact: TypeAlias = Callable[..., Awaitable[CompactResult | None]]


class CompactOptions(TypedDict, total=False):
    """The options of `create_compact_function`; only ``summarize`` is required."""

    summarize: Summarize
    protect_head: int
    tail_token_budget: float | None
    min_tail_messages: int
    token_counter: MessageCounter | None
    max_prompt_chars: int


def create_compact_function(
    *,
    summarize: Summarize,
    protect_head: int = PROTECT_HEAD,
    tail_token_budget: float | None = None,
    min_tail_messages: int = MIN_TAIL_MESSAGES,
    token_counter: MessageCounter | None = None,
    max_prompt_chars: int = MAX_PROMPT_CHARS,
) -> Compact:
    """A compaction function for `Session.on_compaction` that lets ``summarize`` write a summary of the middle of a history.

    Kept as they are: the first ``protect_head`` messages; the newest messages that fit ``tail_token_budget``, at least
    ``min_tail_messages`` and never less than one; calls that wait for an answer or an approval, until they are abandoned
    (`compaction.tool_pairs.ABANDONED_AFTER`); and, with them, what belongs to a kept call or result. What an earlier
    summary says reaches ``summarize`` as the previous summary, to be updated.

    Without ``tail_token_budget`` the tail is 20,000 tokens; in a session that compacts by itself (``compact_after``) at most a
    quarter of its threshold, for a tail as large as the threshold would leave nothing to fold.

    ``summarize(prompt)`` returns a str or a `Summary`, async or not. ``token_counter([message])`` costs a message of the tail;
    without it the session's own counter does, and without that the estimate. One that is not async holds up the event loop,
    and with it every conversation of the process, until it returns: what takes time should be async.

    A prompt has at most ``max_prompt_chars`` UTF-16 code units, so that a model can read it however long the history is. For that
    fewer messages are folded, the oldest; the next compaction goes on. Of texts longer than a quarter of that, and of
    messages that cannot be parted, the middle is left out (see `build_summary_prompt`).

    A summary must be shorter than what it stands for, unless it has no more than 1,000 tokens (as estimated), and have no more
    than 400,000 characters: a longer one is a LongSummary.

    Raises InvalidArgument for options of the wrong kind. The function returns None when there is nothing to fold, and raises
    EmptySummary, InvalidSummary, LongSummary, InvalidTokenCount and what ``summarize`` or the counter raise; then nothing has
    changed.
    """
    _check_functions(summarize, token_counter)
    if tail_token_budget is not None:
        check_number(0, tail_token_budget=tail_token_budget)
    check_whole(0, protect_head=protect_head, min_tail_messages=min_tail_messages)
    check_whole(MIN_PROMPT_CHARS, max_prompt_chars=max_prompt_chars)

    async def compact(messages: Sequence[Given], context: CompactContext | None = None) -> CompactResult | None:
        fold = await choose_fold(
            messages,
            context,
            protect_head=protect_head,
            tail_token_budget=_tail_budget(context) if tail_token_budget is None else tail_token_budget,
            min_tail_messages=min_tail_messages,
            token_counter=token_counter,
            max_prompt_chars=max_prompt_chars,
        )
        if fold is None:
            return None
        prompt = await asyncio.to_thread(fold.prompt, max_prompt_chars)
        summary = _checked(await settle(summarize(prompt)))
        tokens = estimate_string_tokens(summary.text)
        if tokens > FREE_SUMMARY_TOKENS and tokens >= (folded := await asyncio.to_thread(fold.tokens)):
            raise LongSummary(tokens, folded, "tokens")
        return CompactResult(
            fromMessageId=fold.from_id, toMessageId=fold.to_id, summary=summary.text, usage=summary.usage
        )

    return compact


@dataclass(frozen=True, slots=True)
class Fold:
    """What is to be folded: messages, and the earlier summaries among them, which the new one replaces."""

    turns: list[Message]
    summaries: list[Message]

    @property
    def from_id(self) -> str:
        return str(self.turns[0].get("id"))

    @property
    def to_id(self) -> str:
        return str(self.turns[-1].get("id"))

    @property
    def previous_summary(self) -> str | None:
        return "\n\n".join(map(turn_text, self.summaries)) or None

    def tokens(self) -> int:
        """What the messages and the earlier summaries count that a new summary stands for."""
        return estimate_message_tokens([*self.turns, *self.summaries])

    def prompt(self, max_prompt_chars: int) -> str:
        budget = compute_summary_budget(self.turns)
        return build_summary_prompt(self.turns, self.previous_summary, budget, max_prompt_chars=max_prompt_chars)


async def choose_fold(
    messages: Sequence[Given],
    context: CompactContext | None = None,
    *,
    protect_head: int = PROTECT_HEAD,
    tail_token_budget: float = TAIL_TOKEN_BUDGET,
    min_tail_messages: int = MIN_TAIL_MESSAGES,
    token_counter: MessageCounter | None = None,
    max_prompt_chars: int | None = None,
) -> Fold | None:
    """What `create_compact_function` folds of these messages, or None; without ``max_prompt_chars`` all of it at once."""
    history = plain(messages)
    if len(history) <= protect_head + min_tail_messages:
        return None
    head = head_end(history, protect_head)
    tail = await _tail_length(history[head:], _counter(token_counter, context), tail_token_budget)
    end = len(history) - max(tail, min_tail_messages)
    return await asyncio.to_thread(_fold, history, head, end, max_prompt_chars)


def _fold(history: Sequence[Message], head: int, end: int, max_prompt_chars: int | None) -> Fold | None:
    """What can be folded of the messages from `head` to `end`."""
    folded = foldable(history, head, end)
    if folded is None:
        return None
    fold = _of(history[slice(*folded)])
    if max_prompt_chars is not None:
        start, end = folded
        fitting = start + _fitting(fold, history[start:end], max_prompt_chars)
        if (
            fitting < end
        ):  # where nothing can be folded up to there without parting a pair, the prompt leaves something out
            folded = foldable(history, head, fitting) or folded
            fold = _of(history[slice(*folded)])
    _warn_of_abandoned(history, *folded)
    return fold


def _of(middle: Sequence[Message]) -> Fold:
    turns = [message for message in middle if not is_compaction_message(message)]
    return Fold(turns, [message for message in middle if is_compaction_message(message)])


def _fitting(fold: Fold, middle: Sequence[Message], max_prompt_chars: int) -> int:
    """How many of the first messages fit a prompt."""
    room = room_for_turns(fold.previous_summary, max_prompt_chars)
    told = iter(turns_of(fold.turns, max_prompt_chars))
    for count, message in enumerate(middle):
        if not is_compaction_message(message):
            turn = next(told)
            room -= utf16_length(turn) + len("\n\n") if turn else 0
            if room < 0:
                return count
    return len(middle)


def _tail_budget(context: CompactContext | None) -> float:
    threshold = None if context is None else context.threshold
    if threshold is None or not threshold < TAIL_TOKEN_BUDGET * TAIL_SHARE:
        return TAIL_TOKEN_BUDGET
    return max(0, threshold / TAIL_SHARE)


def _check_functions(summarize: Any, counter: Any) -> None:
    if not callable(summarize):
        raise InvalidArgument("summarize must be a function that takes the prompt and returns the summary.")
    if counter is not None and not callable(counter):
        raise InvalidArgument("token_counter must be a function that takes a list of messages and returns a number.")


def _counter(own: MessageCounter | None, context: CompactContext | None) -> Callable[[Message], Any]:
    """What counts one message: the function's own counter, the session's, or the estimate."""
    if own is not None:
        return lambda message: own([dict(message)])
    session = context.token_counter if context is not None else None
    if session is not None:
        return lambda message: session(messages=[message], system_prompt="", context_blocks=[])
    return estimate_one


async def _tail_length(messages: Sequence[Message], count: Callable[[Message], Any], budget: float) -> int:
    """How many of the newest messages fit the budget, but at least one. No more are counted than are needed to know."""
    length, spent = 0, 0.0
    for message in reversed(messages):
        spent += _number(await settle(count(message)))
        if length and spent > budget:
            break
        length += 1
    return length


def _number(count: Any) -> float:
    """A count as the session takes it too: what is not finite (or too large to be) or below 0 is 0."""
    if not is_number(count):
        raise InvalidTokenCount(type(count).__name__)
    return max(0.0, finite(count) or 0.0)


def _warn_of_abandoned(messages: Sequence[Message], start: int, end: int) -> None:
    ids = {
        str(messages[place.message].get("id"))
        for place in waiting_and_abandoned(messages)[1]
        if start <= place.message < end
    }
    if ids:
        log.warning(
            "%d message(s) with tool calls that never got a result are folded as abandoned: %s", len(ids), sorted(ids)
        )


def _checked(answer: Any) -> Summary:
    summary = Summary(answer) if isinstance(answer, str) else answer
    if not isinstance(summary, Summary) or not isinstance(summary.text, str):
        raise InvalidSummary(type(summary.text if isinstance(summary, Summary) else answer).__name__)
    if not summary.text.strip():
        raise EmptySummary()
    return Summary(clean(summary.text), summary.usage)
