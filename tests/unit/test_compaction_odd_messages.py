"""Messages come from clients: whatever JSON their fields hold, they can be repaired, folded, told, shortened and counted."""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from histories import Message, talk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_support import opened

from actors.session import Session
from actors.summarizers import compact_extractively
from compaction import (
    align_boundary_backward,
    align_boundary_forward,
    build_summary_prompt,
    compute_summary_budget,
    create_compact_function,
    estimate_message_tokens,
    find_tail_cut_by_tokens,
    sanitize_tool_pairs,
    truncate_older_messages,
)
from compaction.summarize import choose_fold
from compaction.tool_pairs import ABANDONED_AFTER, is_call, is_result, open_calls, places, tool_call_id, tool_name
from storage.errors import InvalidArgument
from storage.records import SessionMessage

bounded = settings(
    max_examples=3_000 if os.environ.get("TESTS_LONG") else 300,
    deadline=None,
    derandomize=not os.environ.get("TESTS_LONG"),
    suppress_health_check=list(HealthCheck),
)

PLAIN: list[Any] = [None, True, False, 0, -1, 2**60, 10**400, 1e300, float("nan"), "", "x", "\ud800", "é", [], {}]
ODD = [*PLAIN, ["x"], [[]], {"a": 1}, {"a": ["b", {"c": None}]}, [{"type": "text"}], "word " * 400, ["long " * 400]]

KINDS = [
    "tool-f",
    "dynamic-tool",
    "tool-call",
    "tool-result",
    "tool-error",
    "tool-",
    "text",
    "reasoning",
    "file",
    "image",
]
STATES = ["input-available", "approval-requested", "output-available", "output-error", "output-denied", "result"]
SOUND: dict[str, list[Any]] = {
    "type": KINDS,
    "toolCallId": ["k", "l"],
    "toolName": ["f"],
    "state": STATES,
    "preliminary": [True, False],
    "text": ["some words"],
    "mediaType": ["image/png"],
    "url": ["data:image/png;base64,abc"],
}
FIELDS = [
    *SOUND,
    "input",
    "args",
    "output",
    "result",
    "errorText",
    "error",
    "approval",
    "reasoning",
    "filename",
    "data",
]


def odd(chance: random.Random, *sound: Any) -> Any:
    return chance.choice(ODD if chance.random() < 0.2 or not sound else sound)


def odd_part(chance: random.Random) -> Any:
    if chance.random() < 0.1:
        return chance.choice(ODD)
    names = ["type", "toolCallId", *chance.sample(FIELDS, chance.randrange(6))]
    return {name: odd(chance, *SOUND.get(name, [])) for name in names}


def odd_history(chance: random.Random) -> list[Message]:
    messages: list[Message] = []
    for number in range(chance.randint(1, 10)):
        parts = odd(chance, [odd_part(chance) for _ in range(chance.randint(1, 3))])
        message = {"id": odd(chance, f"m{number}"), "role": odd(chance, "assistant", "tool", "user"), "parts": parts}
        messages.append({**message, "createdAt": odd(chance)})
    return messages


odd_histories = st.integers(0, 2**32).map(random.Random).map(odd_history)
"""Drawn by a generator of its own: hypothesis prefers what is simple, and here that is what is sound."""


@bounded
@given(odd_histories, st.integers(0, 8))
def test_messages_that_hold_anything_break_nothing(messages: list[Message], index: int) -> None:
    before = repr(messages)
    repaired = sanitize_tool_pairs(messages)
    assert open_calls(list(places(repaired, preliminary=True))) == []
    assert all(message["parts"] for message in repaired)
    assert align_boundary_backward(messages, index) <= index <= align_boundary_forward(messages, index)
    assert 0 <= find_tail_cut_by_tokens(messages, 0, 10, 1) < len(messages)
    assert estimate_message_tokens(messages) >= 4 * len(messages)
    assert compute_summary_budget(messages) >= 100
    assert len(build_summary_prompt(messages, None, 100, max_prompt_chars=10_000).encode()) > 0
    shortened = truncate_older_messages(messages, 0, 100, 100)
    assert repr([message["id"] for message in shortened]) == repr([message["id"] for message in messages])
    assert all(tool_name(one).strip() for message in shortened for one in message["parts"])
    assert repr(messages) == before


@bounded
@given(odd_histories)
def test_messages_that_hold_anything_can_be_folded(messages: list[Message]) -> None:
    told: list[str] = []

    def summarize(prompt: str) -> str:
        told.append(prompt)
        return "what was said"

    async def fold() -> None:
        options: dict[str, Any] = {"protect_head": 1, "tail_token_budget": 0, "min_tail_messages": 1}
        history = [*talk(2, "head"), *messages, *talk(ABANDONED_AFTER + 1, "tail")]
        chosen = await choose_fold(history, **options)
        result = await create_compact_function(summarize=summarize, **options)(history)
        assert (result is None) == (chosen is None)
        if result is not None and chosen is not None:
            assert (result.from_message_id, result.to_message_id) == (chosen.from_id, chosen.to_id)
            assert result.from_message_id == "head1"
        extract = await compact_extractively(history)
        assert extract is None or extract.summary

    asyncio.run(fold())
    assert all(prompt.encode() for prompt in told)


ODD_PARTS: list[dict[str, Any]] = [
    {"type": "tool-x", "toolCallId": "c", "state": ["x"], "input": {}},
    {"type": "tool-x", "toolCallId": "c", "state": {"a": 1}, "output": 1},
    {"type": ["x"], "toolCallId": "c"},
    {"type": "tool-x", "toolCallId": ["c"]},
    {"type": "tool-x", "toolCallId": "c", "toolName": ["x"]},
    {"type": "tool-x", "toolCallId": "c", "preliminary": [1], "output": 1},
    {"type": "tool-", "toolCallId": "c", "toolName": " ", "state": 7, "output": {}},
]


@pytest.mark.parametrize("odd", ODD_PARTS, ids=repr)
async def test_no_stored_message_holds_up_the_compaction_of_its_session(tmp_path: Path, odd: dict[str, Any]) -> None:
    compact = create_compact_function(
        summarize=lambda prompt: "what was said", protect_head=1, tail_token_budget=0, min_tail_messages=1
    )
    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(compact)
        messages = talk(40)
        messages[2]["parts"], messages[2]["role"] = [odd], "assistant"
        for message in messages:
            await session.append_message(message)
        result = await session.compact()
        assert result is not None
        assert (result.from_message_id, result.to_message_id) == ("m1", "m38")


def test_a_state_that_is_no_text_is_no_state() -> None:
    for state in ODD:
        if not isinstance(state, str):
            called = {"type": "tool-f", "toolCallId": "k", "state": state, "input": {}}
            answered = {**called, "output": 1}
            message = {"id": "m", "role": "assistant", "parts": [called, answered]}
            assert (is_call(message, called), is_result(message, called)) == (True, False)
            assert (is_call(message, answered), is_result(message, answered)) == (True, True)
            failed = {"type": "tool-error", "toolCallId": "k", "state": state, "error": "e"}
            assert (is_call(message, failed), is_result(message, failed)) == (False, True)


def test_a_tool_is_never_without_a_name() -> None:
    parts = [
        {"type": "tool-"},
        {"type": "tool- "},
        {"type": "tool-", "toolName": ""},
        {"type": "dynamic-tool", "toolName": " \n"},
        {"type": "tool-", "toolName": ["f"]},
        {"type": ["tool-f"]},
    ]
    assert [tool_name(part) for part in parts] == ["unknown"] * 6
    call = {"id": "m", "role": "assistant", "parts": [{"type": "tool-f", "toolCallId": "k", "toolName": ["f"]}]}
    assert sanitize_tool_pairs([call])[1]["parts"][0]["toolName"] == "unknown"
    assert tool_call_id({"type": "tool-f", "toolCallId": ["k"]}) is None


TAKING_MESSAGES: list[Callable[[Any], Any]] = [
    estimate_message_tokens,
    sanitize_tool_pairs,
    truncate_older_messages,
    compute_summary_budget,
    lambda messages: build_summary_prompt(messages, None, 100),
    lambda messages: align_boundary_forward(messages, 1),
    lambda messages: align_boundary_backward(messages, 1),
    lambda messages: find_tail_cut_by_tokens(messages, 0),
]


@pytest.mark.parametrize("function", TAKING_MESSAGES)
def test_what_are_no_messages_is_said_in_one_sentence(function: Callable[[Any], Any]) -> None:
    (message,) = talk(1)
    for wrong in (message, SessionMessage.model_validate(message)):
        with pytest.raises(InvalidArgument, match=r"^messages must be a list of messages, not one message\.$"):
            function(wrong)
    for wrong in (None, 5, "text"):
        with pytest.raises(InvalidArgument, match=r"^messages must be a list of messages, not of type \w+\.$"):
            function(wrong)
    for wrong in ([message, "text"], [None], [[message]]):
        with pytest.raises(InvalidArgument, match=r"^messages must be a list of messages; one of these is of type"):
            function(wrong)


def test_numbers_that_are_none_are_said_by_name() -> None:
    messages = talk(3)
    wrongs: list[tuple[str, Callable[[Any], Any]]] = [
        ("keep_recent", lambda wrong: truncate_older_messages(messages, keep_recent=wrong)),
        ("max_tool_output_chars", lambda wrong: truncate_older_messages(messages, max_tool_output_chars=wrong)),
        ("max_text_chars", lambda wrong: truncate_older_messages(messages, max_text_chars=wrong)),
        ("index", lambda wrong: align_boundary_forward(messages, wrong)),
        ("index", lambda wrong: align_boundary_backward(messages, wrong)),
        ("head_end", lambda wrong: find_tail_cut_by_tokens(messages, wrong)),
        ("tail_token_budget", lambda wrong: find_tail_cut_by_tokens(messages, 0, wrong)),
        ("min_tail_messages", lambda wrong: find_tail_cut_by_tokens(messages, 0, 1, wrong)),
    ]
    for name, call in wrongs:
        for wrong in ("a", None, True, [1], float("nan")):
            with pytest.raises(InvalidArgument, match=f"^{name} must be a (whole )?number"):
                call(wrong)
    assert truncate_older_messages(messages, keep_recent=-1) == messages
