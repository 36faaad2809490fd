"""What a fold leaves is sound: over random histories with tool pairs, parallel calls, existing summaries and budgets."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

from histories import History, Message, Pair, call, histories, overlay, result, talk, text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction import CompactResult, create_compact_function, is_compaction_message
from compaction.boundaries import foldable, head_end
from compaction.tool_pairs import ABANDONED_AFTER, APPROVAL_ABANDONED_AFTER, pairs, waiting_and_abandoned

EXAMPLES = 5_000 if os.environ.get("TESTS_LONG") else 75
bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not os.environ.get("TESTS_LONG"),
    suppress_health_check=list(HealthCheck),
)


def compacted(messages: list[Message], **options: Any) -> tuple[CompactResult | None, str]:
    """What the compaction function returns, and the prompt that the summarizer saw."""
    prompts = [""]

    def summarize(prompt: str) -> str:
        prompts.append(prompt)
        return "what was said"

    compact = create_compact_function(summarize=summarize, **options)
    return asyncio.run(compact(messages)), prompts[-1]


def hidden_by(messages: list[Message], fold: CompactResult) -> range:
    """Indexes that storage replaces: the fold's range, from the earliest existing summary if that comes before."""
    ids = [message["id"] for message in messages]
    start, end = ids.index(fold.from_message_id), ids.index(fold.to_message_id)
    summaries = [index for index in range(start) if is_compaction_message(messages[index])]
    assert start <= end
    return range(min([start, *summaries]), end + 1)


def is_waiting(history: History, pair: Pair) -> bool:
    if pair.result is not None and any(message["id"] == pair.result for message in history.messages):
        return False
    bound = APPROVAL_ABANDONED_AFTER if pair.state == "approval-requested" else ABANDONED_AFTER
    return history.later(pair.call) < bound


def check_fold(history: History, hidden: range) -> None:
    """No pair is parted, and no call that waits is hidden."""
    ids = {message["id"]: index for index, message in enumerate(history.messages)}
    for pair in history.pairs:
        if pair.call not in ids:
            continue
        is_call_hidden = ids[pair.call] in hidden
        if pair.result in ids and not (pair.stands_alone and is_call_hidden):
            assert (ids[pair.result] in hidden) == is_call_hidden, pair
        if is_waiting(history, pair):
            assert not is_call_hidden, pair


budgets = {
    "protect_head": st.integers(0, 6),
    "min_tail_messages": st.integers(0, 5),
    "tail_token_budget": st.integers(0, 300),
}


@bounded
@given(histories(), st.fixed_dictionaries(budgets))
def test_a_fold_parts_no_pair_and_hides_no_call_that_waits(history: History, options: dict[str, int]) -> None:
    fold, _ = compacted(history.messages, **options)
    if fold is not None:
        check_fold(history, hidden_by(history.messages, fold))


def is_sound(messages: list[Message], start: int, end: int) -> bool:
    """The invariant of `foldable`, in the words of its docstring."""
    inside = range(start, end)
    waiting = {place.message for place in waiting_and_abandoned(messages)[0]}
    for pair in pairs(messages):
        if pair.call in inside and pair.result >= end and pair.needs_call:
            return False
        if pair.call < start and pair.result in inside:
            return False
    return waiting.isdisjoint(inside) and not is_compaction_message(messages[end - 1])


@bounded
@given(histories(), st.integers(0, 6), st.integers(0, 30))
def test_a_range_is_sound_and_as_large_as_it_can_be(history: History, protect_head: int, cut: int) -> None:
    messages = history.messages
    head, cut = head_end(messages, protect_head), min(cut, len(messages))
    found = foldable(messages, head, cut)
    if found is not None:
        assert is_sound(messages, *found)
        assert found[1] <= cut
    is_answered_later = any(pair.call < head <= pair.result < cut for pair in pairs(messages))
    if not is_answered_later and not any(map(is_compaction_message, messages)):
        ends = [end for end in range(head + 1, cut + 1) if is_sound(messages, head, end)]
        assert found == ((head, max(ends)) if ends else None)


@bounded
@given(histories(), st.fixed_dictionaries(budgets))
def test_a_fold_that_is_made_smaller_to_fit_a_prompt_parts_no_pair(history: History, options: dict[str, int]) -> None:
    for message in history.messages:
        if "text" in message["parts"][0]:
            message["parts"][0]["text"] += " and so on" * 200
    fold, prompt = compacted(history.messages, max_prompt_chars=10_000, **options)
    assert len(prompt) <= 10_000
    if fold is not None:
        check_fold(history, hidden_by(history.messages, fold))


@bounded
@given(histories(), st.fixed_dictionaries(budgets))
def test_the_prompt_holds_exactly_what_the_fold_hides(history: History, options: dict[str, int]) -> None:
    fold, prompt = compacted(history.messages, **options)
    if fold is None:
        assert prompt == ""
        return
    hidden = hidden_by(history.messages, fold)
    texts = [message["parts"][0].get("text") for message in history.messages]
    assert [text in prompt for text in texts if text] == [index in hidden for index, text in enumerate(texts) if text]
    spoken = [
        prompt.index(texts[index])
        for index in hidden
        if texts[index] and not is_compaction_message(history.messages[index])
    ]
    assert spoken == sorted(spoken)


@bounded
@given(histories(overlays=False), st.fixed_dictionaries(budgets))
def test_head_and_tail_are_kept(history: History, options: dict[str, int]) -> None:
    fold, _ = compacted(history.messages, **options)
    if fold is not None:
        hidden = hidden_by(history.messages, fold)
        assert hidden.start >= options["protect_head"]
        assert len(history.messages) - hidden.stop >= max(1, options["min_tail_messages"])


@settings(bounded, max_examples=EXAMPLES // 5)
@given(histories(overlays=False), st.integers(0, 4), st.integers(1, 9))
def test_compacting_again_and_again_while_answers_come_late_parts_no_pair(
    history: History, protect_head: int, every: int
) -> None:
    """Messages come one by one, and each few of them a compaction; what is visible then is what the next one sees."""
    visible: list[Message] = []
    coming = [*history.messages, *talk(APPROVAL_ABANDONED_AFTER + 20, "later")]
    for number, message in enumerate(coming):
        visible.append(message)
        if number % every:
            continue
        fold, prompt = compacted(visible, protect_head=protect_head, tail_token_budget=30, min_tail_messages=1)
        if fold is None:
            continue
        hidden = hidden_by(visible, fold)
        check_fold(History(visible, history.pairs), hidden)
        assert all(visible[index]["parts"][0].get("text", "") in prompt for index in hidden)
        visible[hidden.start : hidden.stop] = [overlay(str(number), f"summary <{number}>")]
    summaries = [message for message in visible if is_compaction_message(message)]
    assert len(summaries) == 1
    # nothing holds up compaction for ever: of what came last, only the tail is left, what came since, or what is in the head
    assert sum(message["id"].startswith("later") for message in visible) <= protect_head + 4 + every


def folded_ids(messages: list[Message], **options: Any) -> list[str]:
    fold, _ = compacted(messages, **options)
    return [] if fold is None else [messages[index]["id"] for index in hidden_by(messages, fold)]


TIGHT: dict[str, Any] = {"protect_head": 1, "tail_token_budget": 0, "min_tail_messages": 1}


def test_thirty_results_of_one_message_stay_with_their_calls_wherever_the_cut_falls() -> None:
    keys = [f"k{number}" for number in range(30)]
    group = [call("c", *keys), *(result(f"r{key}", key) for key in keys)]
    messages = [*talk(3), *group, *talk(6, "n")]
    whole = {message["id"] for message in group}
    for min_tail in range(len(messages)):
        folded = set(folded_ids(messages, **{**TIGHT, "min_tail_messages": min_tail}))
        assert folded.isdisjoint(whole) or whole <= folded, min_tail
    for head in range(len(messages)):
        folded = set(folded_ids(messages, **{**TIGHT, "protect_head": head}))
        assert folded.isdisjoint(whole) or whole <= folded, head


def test_calls_whose_answers_cross_are_all_kept_or_all_folded() -> None:
    crossing = [call("c0", "k0")]  # each is answered after the next one is made
    for number in range(1, 6):
        crossing += [call(f"c{number}", f"k{number}"), result(f"r{number - 1}", f"k{number - 1}")]
    crossing.append(result("r5", "k5"))
    messages = [*talk(3), *crossing, *talk(4, "n")]
    whole = {message["id"] for message in crossing}
    for min_tail in range(1, len(messages)):
        folded = set(folded_ids(messages, **{**TIGHT, "min_tail_messages": min_tail}))
        assert folded.isdisjoint(whole) or whole <= folded, min_tail
    for head in range(len(messages)):
        folded = set(folded_ids(messages, **{**TIGHT, "protect_head": head}))
        assert folded.isdisjoint(whole) or whole <= folded, head


def test_a_result_that_came_many_messages_later_holds_its_call_out_of_the_fold() -> None:
    messages = [*talk(4), call("c", "k"), *talk(20, "n"), result("r", "k"), *talk(1, "z")]
    assert folded_ids(messages, protect_head=1, tail_token_budget=0, min_tail_messages=2) == ["m1", "m2", "m3"]
    assert "c" in folded_ids(messages, **TIGHT)


def test_a_call_without_its_result_is_not_folded_and_neither_is_what_follows() -> None:
    for state in ("input-streaming", "input-available", "approval-requested", "approval-responded"):
        messages = [*talk(4), call("c", "k", state=state), *talk(9, "n")]
        assert folded_ids(messages, **TIGHT) == ["m1", "m2", "m3"]
    assert folded_ids([*talk(1), call("c", "k"), *talk(9, "n")], **TIGHT) == []


def test_a_preliminary_output_leaves_a_call_open_until_the_final_one_has_come() -> None:
    so_far = {
        "type": "tool-f",
        "toolCallId": "k",
        "input": {},
        "output": 1,
        "state": "output-available",
        "preliminary": True,
    }
    in_part = {"id": "c", "role": "assistant", "parts": [so_far]}
    pending = {"id": "p", "role": "tool", "parts": [{**so_far, "output": "pending"}]}
    for opened in ([in_part], [call("c", "k"), pending]):
        messages = [*talk(4), *opened, *talk(9, "n")]
        assert folded_ids(messages, **TIGHT) == ["m1", "m2", "m3"]
        assert folded_ids([*messages, result("r", "k"), *talk(2, "z")], **TIGHT)[-1] == "z0"
    done = {**in_part, "parts": [{key: value for key, value in so_far.items() if key != "preliminary"}]}
    assert "c" in folded_ids([*talk(4), done, *talk(9, "n")], **TIGHT)


def test_the_message_that_crosses_the_threshold_may_be_a_call() -> None:
    messages = [*talk(9), call("c", "k")]
    assert folded_ids(messages, **TIGHT) == [f"m{number}" for number in range(1, 9)]
    assert folded_ids([*messages, result("r", "k")], **TIGHT) == [f"m{number}" for number in range(1, 9)]


def test_an_orphaned_call_is_folded_with_a_stub_after_a_bounded_age(caplog: Any) -> None:
    messages = [*talk(2), call("c", "k"), *talk(ABANDONED_AFTER - 1, "n")]
    assert folded_ids(messages, **TIGHT) == ["m1"]
    assert caplog.messages == []
    messages.append(text("last"))
    fold, prompt = compacted(messages, **TIGHT)
    assert fold is not None
    assert fold.to_message_id == f"n{ABANDONED_AFTER - 2}"
    assert "[no result: the call was abandoned]" in prompt
    assert len(caplog.messages) == 1
    assert "'c'" in caplog.messages[0]


def test_results_alone_make_no_call_older_and_an_approval_may_wait_longer() -> None:
    keys = [f"k{number}" for number in range(ABANDONED_AFTER)]
    results = [result(f"r{key}", key) for key in keys]
    assert folded_ids([*talk(2), call("c", "open", *keys), *results, *talk(3, "n")], **TIGHT) == ["m1"]
    asked = [*talk(2), call("c", "k", state="approval-requested"), *talk(APPROVAL_ABANDONED_AFTER - 1, "n")]
    assert folded_ids(asked, **TIGHT) == ["m1"]
    assert "c" in folded_ids([*asked, text("last")], **TIGHT)


def test_an_answer_to_a_call_of_the_head_stays_visible() -> None:
    messages = [text("m0"), call("c", "k"), *talk(3, "n"), result("r", "k"), *talk(6, "z")]
    assert folded_ids(messages, protect_head=2, tail_token_budget=0, min_tail_messages=1) == [f"z{n}" for n in range(5)]


def test_an_answer_that_came_after_a_summary_takes_its_call_of_the_head_along() -> None:
    messages = [text("m0"), call("c", "k"), overlay("1"), *talk(3, "n"), result("r", "k"), *talk(3, "z")]
    folded = folded_ids(messages, protect_head=2, tail_token_budget=0, min_tail_messages=1)
    assert folded[:2] == ["c", "compaction_1"]
    assert folded[-1] == "z1"


def test_a_call_that_waits_in_the_head_is_not_taken_along() -> None:
    head = [text("m0"), call("c", "k"), call("w", "open")]
    messages = [*head, overlay("1"), *talk(3, "n"), result("r", "k"), *talk(3, "z")]
    folded = folded_ids(messages, protect_head=3, tail_token_budget=0, min_tail_messages=1)
    assert folded == ["compaction_1", "n0", "n1", "n2"]


def test_an_id_that_is_used_again_belongs_to_the_nearest_call() -> None:
    turns = [part for n in range(6) for part in (text(f"t{n}"), call(f"c{n}", "call_0"), result(f"r{n}", "call_0"))]
    assert folded_ids(turns, protect_head=1, tail_token_budget=0, min_tail_messages=3) == [
        message["id"] for message in turns[1:15]
    ]


def test_a_call_that_holds_its_own_result_belongs_to_no_earlier_call_of_that_id() -> None:
    done = {"type": "tool-f", "toolCallId": "call_0", "input": {}, "output": 1, "state": "output-available"}
    messages = [{"id": f"c{number}", "role": "assistant", "parts": [done]} for number in range(8)]
    assert folded_ids(messages, protect_head=2, tail_token_budget=0) == ["c2", "c3", "c4", "c5"]


def test_a_result_that_repeats_its_call_can_stand_alone_in_the_tail_but_not_be_taken_from_a_head() -> None:
    done = {"type": "tool-f", "toolCallId": "k", "input": {}, "output": 1, "state": "output-available"}
    messages = [text("m0"), call("c", "k"), {"id": "d", "role": "assistant", "parts": [done]}, *talk(2, "n")]
    assert folded_ids(messages, protect_head=1, tail_token_budget=0, min_tail_messages=3) == ["c"]
    assert folded_ids(messages, protect_head=2, tail_token_budget=0, min_tail_messages=1) == ["n0"]


def test_a_summary_in_the_protected_head_is_folded_with_all_that_follows_it() -> None:
    messages = [overlay("1", "the old days"), *talk(8)]
    fold, prompt = compacted(messages, protect_head=3, tail_token_budget=0, min_tail_messages=2)
    assert fold is not None
    assert (fold.from_message_id, fold.to_message_id) == ("m0", "m5")
    assert "the old days" in prompt
    assert [text["parts"][0]["text"] in prompt for text in messages] == [True] * 7 + [False] * 2


def test_a_summary_that_is_the_last_before_the_tail_is_no_end() -> None:
    messages = [*talk(4), overlay("1"), *talk(2, "n")]
    assert folded_ids(messages, protect_head=1, tail_token_budget=0, min_tail_messages=2) == ["m1", "m2", "m3"]
    assert folded_ids([text("m0"), overlay("1"), *talk(2, "n")], protect_head=1, tail_token_budget=0) == []


def test_what_a_model_is_given_after_a_compaction_is_never_empty() -> None:
    everything: dict[str, Any] = {"protect_head": 0, "tail_token_budget": 0, "min_tail_messages": 0}
    build: Callable[[int], list[Message]]
    for build in (
        talk,
        lambda count: [*talk(count - 2), call("c", "k"), result("r", "k")] if count > 1 else talk(count),
    ):
        for count in range(7):
            messages = build(count)
            fold, _ = compacted(messages, **everything)
            kept = [] if fold is None else messages[hidden_by(messages, fold).stop :]
            assert fold is None or kept
            assert not kept or kept[0]["role"] != "tool"
