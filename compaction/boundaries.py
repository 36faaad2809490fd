"""Where a compacted range may begin and end, and how long its summary may be."""

from collections.abc import Iterable, Sequence

from compaction.checks import check_number, check_whole
from compaction.messages import Given, Message, plain
from compaction.tokens import estimate_message_tokens
from compaction.tool_pairs import Pair, is_call, is_result, pairs, parts, tool_call_id, waiting_and_abandoned
from storage.overlays import is_compaction_message
from storage.tokens import estimate_one

SUMMARY_SHARE = 5
MIN_SUMMARY_TOKENS = 100

PROTECT_HEAD = 3
TAIL_TOKEN_BUDGET = 20_000
MIN_TAIL_MESSAGES = 2


def compute_summary_budget(messages: Sequence[Given]) -> int:
    """How many tokens a summary of these messages may take: a fifth of theirs, at least 100."""
    return max(MIN_SUMMARY_TOKENS, estimate_message_tokens(messages) // SUMMARY_SHARE)


def align_boundary_forward(messages: Sequence[Given], index: int) -> int:
    """``index``, or the first index after the results that follow the calls right before it.

    A range may begin there: the message before it is not a call whose results the range would take away.
    """
    check_whole(index=index)
    whole = plain(messages)
    if not 0 < index < len(whole):
        return index
    calls = _calls(whole[index - 1])
    while index < len(whole) and calls & _results(whole[index]):
        index += 1
    return index


def align_boundary_backward(messages: Sequence[Given], index: int) -> int:
    """``index``, or the index of the calls right before it if its message is the first of their results.

    A range may end before it: the message after it is not a result whose call the range would take away.
    """
    check_whole(index=index)
    whole = plain(messages)
    while 0 < index < len(whole) and _calls(whole[index - 1]) & _results(whole[index], alone=True):
        index -= 1
    return index


def _calls(message: Message) -> set[str]:
    return {part["toolCallId"] for part in parts(message) if is_call(message, part)}


def _results(message: Message, *, alone: bool = False) -> set[str]:
    """Ids of the calls that a message answers; with ``alone`` without results that repeat their call in the same part."""
    return {
        part["toolCallId"]
        for part in parts(message)
        if tool_call_id(part) is not None and is_result(message, part) and not (alone and is_call(message, part))
    }


def find_tail_cut_by_tokens(
    messages: Sequence[Given],
    head_end: int,
    tail_token_budget: float = TAIL_TOKEN_BUDGET,
    min_tail_messages: int = MIN_TAIL_MESSAGES,
) -> int:
    """Index of the first message of the protected tail.

    The tail is the newest messages that fit the budget, but at least one, and at least ``min_tail_messages`` where the
    messages after ``head_end`` are that many. It does not begin with the results of the call right before it.
    """
    check_whole(head_end=head_end, min_tail_messages=min_tail_messages)
    check_number(tail_token_budget=tail_token_budget)
    history = plain(messages)
    tail = newest_that_fit(map(estimate_one, reversed(history[max(0, head_end) :])), tail_token_budget)
    cut = len(history) - tail
    if tail < min_tail_messages and len(history) - min_tail_messages >= head_end:
        cut = len(history) - min_tail_messages
    return max(align_boundary_backward(history, cut), min(head_end, cut))


def newest_that_fit(costs: Iterable[float], budget: float) -> int:
    """How many of these costs, newest first, fit the budget: at least one, if there is any."""
    count, spent = 0, 0.0
    for cost in costs:
        spent += cost
        if count and spent > budget:
            break
        count += 1
    return count


def head_end(messages: Sequence[Message], protect_head: int) -> int:
    """Index of the first message after the protected head: an existing summary ends it, for a new one replaces that too."""
    return next(
        (index for index, message in enumerate(messages[:protect_head]) if is_compaction_message(message)),
        min(protect_head, len(messages)),
    )


def foldable(messages: Sequence[Message], head: int, cut: int) -> tuple[int, int] | None:
    """The range ``start … end`` (exclusive, at most ``cut``) that may be replaced by one summary, or None.

    Invariant of a range, so that after the replacement each result has its call before it, and each call its result, where they
    had one:

    1. It holds no call whose result is behind it (unless that result can stand alone).
    2. It holds no result whose call is before it.
    3. It holds no call that waits.
    4. Its last message is no summary.

    The range begins at ``head`` (see `head_end`), or after it where a call of the head has its answer later. But a new summary
    replaces the earliest one that applies, so where the range cannot begin after that one, it takes such a call along.

    Why the order of the steps is right: 2 and 3 hold for every smaller end as well, and `_end` establishes 1 and 4. So the
    start is made right for an end (2), and ends are only taken back from there, each time by `_end`.
    """
    waiting = [place.message for place in waiting_and_abandoned(messages)[0]]
    bound = pairs(messages)
    summary = next((index for index in range(head, cut) if is_compaction_message(messages[index])), None)

    last = _end(messages, bound, head, cut)
    start = _advance(bound, head, last)  # has 2 with `last`, and so with every end before it
    end = _end(messages, bound, start, _before(waiting, start, last))  # not after `last`

    if summary is not None and start > summary:
        # The range must hold the summary, so it cannot begin after the calls of the head that broke 2: it takes them along.
        start, end = head, _end(messages, bound, head, _before(waiting, head, last))
        wider = _extend(bound, head, end)
        if _is_closed(bound, waiting, wider, end):
            start = wider
        else:  # they bring in what breaks 1 or 3, so the range ends before the first of their results
            first = min(pair.result for pair in bound if pair.call < head <= pair.result)
            end = _end(messages, bound, head, min(end, first))
    if all(is_compaction_message(message) for message in messages[start:end]):
        return None
    return start, end


def _before(waiting: list[int], start: int, cut: int) -> int:
    """``cut``, or the first call from ``start`` on that waits if it comes before: there no range can go on (3)."""
    return min([cut, *(index for index in waiting if index >= start)])


def _end(messages: Sequence[Message], bound: list[Pair], start: int, cut: int) -> int:
    """The last end, at most ``cut``, of a range from ``start`` that has 1 and 4."""
    cut = _retreat(bound, start, cut)
    while cut > start and is_compaction_message(messages[cut - 1]):
        cut -= 1  # a summary is no part of a pair, so 1 still holds
    return cut


def _retreat(bound: list[Pair], start: int, cut: int) -> int:
    """The last end that leaves each result behind it its call (1): later calls first, for each only brings in earlier ones."""
    for pair in sorted(bound, key=lambda pair: -pair.call):
        if pair.needs_call and start <= pair.call < cut <= pair.result:
            cut = pair.call
    return cut


def _advance(bound: list[Pair], start: int, cut: int) -> int:
    """The first start that leaves each call before it its results (2): in the order of results, for each only adds later ones."""
    for pair in bound:
        if pair.call < start <= pair.result < cut:
            start = pair.result + 1
    return start


def _extend(bound: list[Pair], start: int, cut: int) -> int:
    """The last start, at most ``start``, that takes along each call whose result the range holds (2)."""
    for pair in sorted(bound, key=lambda pair: -pair.call):
        if pair.call < start <= pair.result < cut:
            start = pair.call
    return start


def _is_closed(bound: list[Pair], waiting: list[int], start: int, cut: int) -> bool:
    """Whether the range has 1 and 3."""
    inside = range(start, cut)
    return not any(index in inside for index in waiting) and not any(
        pair.call in inside and pair.result >= cut and pair.needs_call for pair in bound
    )
