"""Which parts are calls and results, the boundaries that keep them together, and the repair of histories that have lost some."""

import copy
import os
from typing import Any

import pytest
from histories import History, Message, call, histories, result, talk, text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction import (
    align_boundary_backward,
    align_boundary_forward,
    compute_summary_budget,
    estimate_message_tokens,
    find_tail_cut_by_tokens,
    is_compaction_message,
    sanitize_tool_pairs,
)
from compaction.tool_pairs import (
    DENIED,
    Pair,
    answer_of,
    has_any_output,
    input_of,
    is_call,
    is_result,
    links,
    pairs,
    places,
    tool_call_id,
    tool_name,
    unanswered,
)
from storage.records import SessionMessage

bounded = settings(
    max_examples=2_000 if os.environ.get("TESTS_LONG") else 50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TOOL = {"toolCallId": "k", "toolName": "f"}


@pytest.mark.parametrize(
    ("role", "part", "kinds"),
    [
        ("assistant", {"type": "tool-f", "input": {}}, "call"),
        ("assistant", {"type": "tool-f", "output": None}, "call result"),
        ("assistant", {"type": "tool-f", "input": {}, "state": "input-available", "output": None}, "call"),
        ("assistant", {"type": "tool-f", "input": {}, "state": "output-error", "errorText": "e"}, "call result"),
        ("assistant", {"type": "tool-f", "input": {}, "state": "output-denied"}, "call result"),
        ("assistant", {"type": "tool-f", "state": "approval-responded", "approval": {"approved": True}}, "call"),
        ("assistant", {"type": "tool-f", "output": 1, "preliminary": True}, "call"),
        ("assistant", {"type": "tool-f", "output": 1, "preliminary": False}, "call result"),
        ("assistant", {"type": "dynamic-tool", "input": {}}, "call"),
        ("assistant", {"type": "tool-call", "args": {}}, "call"),
        ("assistant", {"type": "tool-result", "result": 1}, "result"),
        ("tool", {"type": "tool-result", "output": 1}, "result"),
        ("tool", {"type": "tool-error", "error": "e"}, "result"),
        ("assistant", {"type": "tool-error", "input": {}, "state": "input-available"}, "call"),
        ("tool", {"type": "tool-f", "output": 1}, "result"),
        ("tool", {"type": "tool-f", "output": 1, "preliminary": True}, ""),
        ("user", {"type": "tool-f", "input": {}}, ""),
        ("assistant", {"type": "tool-approval-request", "approvalId": "a"}, ""),
        ("tool", {"type": "tool-approval-response", "approvalId": "a", "approved": True}, ""),
        ("assistant", {"type": "text", "text": "t", "output": 1}, ""),
        ("assistant", {"type": None, "output": 1}, ""),
    ],
)
def test_a_part_is_a_call_a_result_both_or_neither(role: str, part: dict[str, Any], kinds: str) -> None:
    message = {"id": "m", "role": role, "parts": [{**TOOL, **part}]}
    found = [name for name, ask in (("call", is_call), ("result", is_result)) if ask(message, message["parts"][0])]
    assert found == kinds.split()


@pytest.mark.parametrize(
    ("part", "answer"),
    [
        ({"type": "tool-f", "output": "as it is"}, "as it is"),
        ({"type": "tool-f", "output": "", "state": "output-available"}, ""),
        ({"type": "tool-f", "output": {"n": [1.0, "é", None]}}, '{"n":[1,"é",null]}'),
        ({"type": "tool-f", "output": 0}, "0"),
        ({"type": "tool-f", "output": False, "result": 1}, "false"),
        ({"type": "tool-f", "output": None, "state": "output-available"}, "null"),
        ({"type": "tool-f", "output": None, "errorText": None, "state": "output-available"}, "null"),
        ({"type": "tool-f", "output": None, "result": "r"}, "r"),
        ({"type": "tool-f", "result": [1], "state": "result"}, "[1]"),
        ({"type": "dynamic-tool", "output": 1, "preliminary": True, "state": "output-available"}, "1"),
        ({"type": "tool-f", "output": "o", "errorText": "old", "state": "output-available"}, "o"),
        ({"type": "tool-f", "errorText": "no", "state": "output-error"}, "Error: no"),
        ({"type": "tool-f", "output": "o", "errorText": "no", "state": "output-error"}, "Error: no"),
        ({"type": "tool-f", "output": "o", "state": "output-error"}, "Error: o"),
        ({"type": "tool-f", "error": {"code": 1}, "state": "output-error"}, 'Error: {"code":1}'),
        ({"type": "tool-f", "errorText": "", "state": "output-error"}, "Error: the tool failed"),
        ({"type": "dynamic-tool", "state": "output-error"}, "Error: the tool failed"),
        ({"type": "tool-f", "state": "output-denied"}, DENIED),
        ({"type": "tool-f", "output": "o", "state": "output-denied"}, DENIED),
        ({"type": "tool-result", "output": "o"}, "o"),
        ({"type": "tool-result", "result": {"a": 1}}, '{"a":1}'),
        ({"type": "tool-result", "errorText": "no"}, "Error: no"),
        ({"type": "tool-result"}, "null"),
        ({"type": "tool-error", "error": "no"}, "Error: no"),
        ({"type": "tool-error", "error": None}, "Error: the tool failed"),
        ({"type": "tool-error", "error": ["no"]}, 'Error: ["no"]'),
        (
            {"type": "tool-error", "output": "of a tool named error", "state": "output-available"},
            "of a tool named error",
        ),
    ],
)
def test_what_a_tool_said_is_read_in_one_way(part: dict[str, Any], answer: str) -> None:
    assert has_any_output(part)
    assert answer_of({**TOOL, **part}) == answer


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "tool-f", "input": {"q": 1}}, {"q": 1}),
        ({"type": "tool-call", "args": {"q": 1}}, {"q": 1}),
        ({"type": "tool-call", "input": None, "args": [1]}, [1]),
        ({"type": "tool-call", "input": "raw", "args": {}}, "raw"),
        ({"type": "tool-f", "input": ""}, ""),
        ({"type": "tool-f", "input": None}, {}),
        ({"type": "dynamic-tool"}, {}),
    ],
)
def test_what_a_call_was_given_is_read_in_one_way(part: dict[str, Any], expected: Any) -> None:
    assert input_of({**TOOL, **part}) == expected


def test_an_id_must_be_a_text_and_a_name_is_found_where_it_is() -> None:
    for identity in (None, "", 7):
        assert tool_call_id({"type": "tool-f", "toolCallId": identity}) is None
    assert tool_call_id("no part") is None
    names = [
        {"type": "tool-look_up"},
        {"type": "tool-x", "toolName": "y"},
        {"type": "dynamic-tool"},
        {"type": "tool-result"},
    ]
    assert [tool_name(part) for part in names] == ["look_up", "y", "unknown", "unknown"]


def test_messages_that_are_odd_do_no_harm() -> None:
    odd: list[Any] = [
        {"id": "a"},
        {"id": "b", "role": "assistant", "parts": None},
        {"id": "c", "parts": ["text", None]},
    ]
    assert (pairs(odd), unanswered(odd)) == ([], [])
    assert align_boundary_forward(odd, 1) == align_boundary_backward(odd, 1) == 1
    assert sanitize_tool_pairs(odd) == []


@bounded
@given(histories(), st.integers(-2, 60))
def test_aligned_boundaries_do_not_part_a_call_from_the_result_right_behind_it(history: History, index: int) -> None:
    messages = history.messages
    forward, backward = align_boundary_forward(messages, index), align_boundary_backward(messages, index)
    assert backward <= index <= forward
    ids = {message["id"]: place for place, message in enumerate(messages)}
    for pair in history.pairs:
        if pair.result is not None and pair.result in ids and ids[pair.result] == ids[pair.call] + 1:
            assert forward != ids[pair.result]
            assert backward != ids[pair.result] or pair.stands_alone


@bounded
@given(histories(), st.integers(0, 50), st.integers(0, 400), st.integers(0, 10))
def test_the_tail_holds_what_fits_and_never_less_than_it_must(
    history: History, head: int, budget: int, least: int
) -> None:
    messages = history.messages
    cut = find_tail_cut_by_tokens(messages, head, budget, least)
    assert min(head, len(messages)) <= cut <= len(messages)
    tail = messages[cut:]
    assert tail or head >= len(messages)
    if len(messages) - least >= head:
        assert len(tail) >= least
    if cut > head + 1 and budget:
        assert estimate_message_tokens(messages[cut - 1 :]) > budget or align_boundary_backward(messages, cut) != cut


def test_helpers_take_models_too() -> None:
    plain = [*talk(2), call("c", "k"), result("r", "k"), *talk(2, "n")]
    models = [SessionMessage.model_validate(message) for message in plain]
    assert align_boundary_forward(models, 3) == 4
    assert align_boundary_backward(models, 3) == 2
    assert find_tail_cut_by_tokens(models, 0, 1, 3) == find_tail_cut_by_tokens(plain, 0, 1, 3) == 2
    assert compute_summary_budget(models) == 100
    assert estimate_message_tokens(models) == estimate_message_tokens(plain)
    assert sanitize_tool_pairs(models) == plain
    assert is_compaction_message(SessionMessage(id="compaction_1", role="assistant", parts=[]))


def test_a_summary_may_take_a_fifth() -> None:
    words = text("m", words="word " * 1_000)
    assert compute_summary_budget([words]) == estimate_message_tokens([words]) // 5 == 260
    assert compute_summary_budget([]) == 100


def holds(message: Message) -> list[tuple[str, bool, bool]]:
    return [
        (part["toolCallId"], is_call(message, part), is_result(message, part) or bool(part.get("preliminary")))
        for part in message["parts"]
        if tool_call_id(part)
    ]


def check_pairs(messages: list[Message]) -> None:
    """Each result has a call before it; before a message makes a call again, the calls with that id have as many results."""
    missing: dict[str, int] = {}
    for message in messages:
        own = {key for key, calls, _ in holds(message) if calls}
        for key in own & set(missing):
            is_repeated = all(results for other, calls, results in holds(message) if other == key and calls)
            assert missing[key] <= (1 if is_repeated else 0), key
        for key, calls, results in holds(message):
            assert calls or key in missing
            if calls and not results:
                missing[key] = missing.get(key, 0) + 1
            else:
                missing[key] = max(0, missing.get(key, 0) - 1)
    assert not any(missing.values())


@st.composite
def torn(draw: st.DrawFn) -> list[Message]:
    """A history with some of its messages gone, and some of them out of their order."""
    messages = [message for message in draw(histories()).messages if draw(st.integers(0, 3))]
    return draw(st.permutations(messages)) if draw(st.integers(0, 4)) == 0 else messages


def without_times(messages: list[Message]) -> list[Message]:
    return [{key: value for key, value in message.items() if key != "createdAt"} for message in messages]


@bounded
@given(torn())
def test_a_repaired_history_has_each_pair_whole_and_is_repaired_once(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    repaired = sanitize_tool_pairs(messages)
    assert messages == before
    check_pairs(repaired)
    assert sanitize_tool_pairs(repaired) == repaired
    kept = [message for message in repaired if not message["id"].startswith("stub-")]
    whole = [
        message for message in messages if message["role"] != "tool" and message["parts"][0]["type"] != "tool-result"
    ]
    assert [message for message in kept if message["role"] != "tool"] == whole


@bounded
@given(histories())
def test_a_history_that_lacks_nothing_is_left_as_it_is(history: History) -> None:
    late = {
        pair.call for pair in history.pairs if not any(message["id"] == pair.result for message in history.messages)
    }
    if not late:
        assert sanitize_tool_pairs(history.messages) == history.messages


def done(identity: str, key: str) -> Message:
    part = {"type": "tool-f", "toolCallId": key, "toolName": "f", "input": {}, "output": 1, "state": "output-available"}
    return {"id": identity, "role": "assistant", "parts": [part]}


MADE: dict[str, Any] = {"call": call, "result": result, "done": done}
reused = st.lists(
    st.tuples(st.sampled_from(["call", "call", "result", "done"]), st.sampled_from(["k", "l"]), st.integers(1, 2)),
    max_size=9,
)


@bounded
@given(reused)
def test_a_repaired_history_has_each_pair_whole_where_ids_are_used_again(steps: list[tuple[str, str, int]]) -> None:
    messages = [
        MADE[kind](f"m{number}", *[key] * (1 if kind == "done" else count))
        for number, (kind, key, count) in enumerate(steps)
    ]
    repaired = sanitize_tool_pairs(messages)
    check_pairs(repaired)
    assert unanswered(repaired) == []
    assert sanitize_tool_pairs(repaired) == repaired
    calls = [message for message in messages if message["role"] == "assistant"]
    assert [message for message in repaired if message in calls] == calls


def ids_of(messages: list[Message]) -> list[str]:
    return [message["id"] for message in messages]


def test_each_call_whose_id_is_used_again_without_an_answer_gets_a_stub_of_its_own() -> None:
    turns = [call("c1", "x"), text("t"), call("c2", "x"), result("r", "x")]
    assert ids_of(sanitize_tool_pairs(turns)) == ["c1", "stub-x", "t", "c2", "r"]
    twice = [call("c1", "x"), call("c2", "x"), call("c3", "x")]
    assert ids_of(sanitize_tool_pairs(twice)) == ["c1", "stub-x", "c2", "stub-x", "c3", "stub-x"]
    assert [place.message for place in unanswered(turns)] == [0]
    assert pairs(turns) == [Pair(2, 3, needs_call=True)]


def test_calls_of_one_message_with_one_id_are_answered_in_their_order() -> None:
    messages = [call("c", "x", "x"), result("r", "x"), result("s", "x")]
    assert {result.message: (call.message, call.part) for result, call in links(places(messages)).items()} == {
        1: (0, 0),
        2: (0, 1),
    }
    assert [place.part for place in unanswered(messages[:2])] == [1]
    assert ids_of(sanitize_tool_pairs(messages[:2])) == ["c", "stub-x", "r"]


def test_a_result_before_its_call_is_none() -> None:
    repaired = without_times(sanitize_tool_pairs([result("r", "k"), call("c", "k")]))
    assert [message["id"] for message in repaired] == ["c", "stub-k"]
