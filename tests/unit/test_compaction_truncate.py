"""Truncation of older messages: limits hold, shapes stay, and no character is split."""

import copy
import json
from typing import Any

from histories import Message, call, talk, text
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction import truncate_older_messages
from compaction.truncate import NOTE, truncate_output
from storage.records import SessionMessage

bounded = settings(max_examples=100, deadline=None, derandomize=True)
LEAST = 60
"""Below this not even the shortest mark has room, and the limit may be passed by the brackets around it."""

strings = st.text(st.sampled_from([*'ab "\\\n', "é", "東", "😀", "\x00"]), max_size=120)
values = st.recursive(
    st.one_of(strings, st.integers(-(10**12), 10**12), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=8), st.dictionaries(st.text("abc", max_size=3), inner, max_size=5)
    ),
    max_leaves=40,
)


def units(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-16-le")) // 2


def done(output: Any, **fields: Any) -> Message:
    part = {"type": "tool-f", "toolCallId": "k", "input": {}, "output": output, "state": "output-available", **fields}
    return {"id": "d", "role": "assistant", "parts": [part]}


@bounded
@given(values, st.integers(LEAST, 600))
def test_a_structured_output_keeps_its_kind_and_gets_within_the_limit(value: Any, limit: int) -> None:
    before = copy.deepcopy(value)
    shortened = truncate_output(value, limit)
    assert value == before
    json.dumps(shortened, ensure_ascii=False).encode()
    assert type(shortened) is type(value)
    if isinstance(value, str):
        assert len(shortened.encode("utf-16-le")) // 2 <= limit
    elif isinstance(value, dict | list):
        assert units(shortened) <= limit
        assert shortened == value or units(value) > limit
    else:
        assert shortened == value


@bounded
@given(values, st.integers(-5, LEAST))
def test_no_limit_is_too_small(value: Any, limit: int) -> None:
    shortened = truncate_output(value, limit)
    json.dumps(shortened, ensure_ascii=False).encode()
    assert type(shortened) is type(value)


def test_emoji_of_every_length_are_cut_between_characters() -> None:
    for prefix in ("", "a"):
        for count in range(40):
            whole = prefix + "😀" * count
            for limit in range(85):
                [short] = truncate_older_messages([text("m", words=whole or " ")], 0, max_text_chars=limit)
                said = short["parts"][0]["text"]
                said.encode()
                if len(whole.encode("utf-16-le")) // 2 > limit:
                    kept, mark, _ = said.partition("... [truncated ")
                    assert mark
                    assert whole.startswith(kept)
                    assert len(kept.encode("utf-16-le")) // 2 in (limit, limit - 1)
                for output in (whole, [whole], {"a": whole}):
                    [short] = truncate_older_messages([done(output)], 0, max_tool_output_chars=limit)
                    json.dumps(short, ensure_ascii=False).encode()


def test_the_half_of_a_character_is_left_out() -> None:
    [short] = truncate_older_messages([text("m", words="ab😀cd")], 0, max_text_chars=3)
    assert short["parts"][0]["text"] == "ab... [truncated 6 chars]"


def test_only_the_texts_and_outputs_of_older_messages_are_shortened() -> None:
    long = "word " * 5_000
    fields = {"input": {"q": long}}
    messages = [
        text("m", words=long),
        {"id": "r", "role": "assistant", "parts": [{"type": "reasoning", "text": long}, {"type": "file", "url": long}]},
        done(long, **fields),
        done({"rows": [long]}, **fields),
        call("c", "k"),
        {"id": "t", "role": "tool", "parts": [{"type": "tool-result", "toolCallId": "k", "result": long}]},
        *[text(f"n{number}", words=long) for number in range(4)],
    ]
    before = copy.deepcopy(messages)
    shortened = truncate_older_messages(messages)
    assert messages == before
    assert shortened[-4:] == messages[-4:]
    assert [shortened[1], shortened[4]] == [messages[1], messages[4]]
    assert len(shortened[0]["parts"][0]["text"]) == 10_000 + len("... [truncated 25000 chars]")
    assert len(shortened[2]["parts"][0]["output"]) == 500
    assert len(shortened[5]["parts"][0]["result"]) == 500
    assert units(shortened[3]["parts"][0]["output"]) <= 500
    assert all(shortened[index]["parts"][0]["input"] == {"q": long} for index in (2, 3))
    assert truncate_older_messages(messages, len(messages)) == truncate_older_messages(messages, 10**6) == messages
    assert truncate_older_messages([SessionMessage.model_validate(text("m", words=long))], -1)[0] == shortened[0]


def test_what_is_left_out_says_so() -> None:
    rows = [{"id": number, "name": "n" * 50} for number in range(20)]
    assert truncate_output(rows, 300) == [*rows[:3], "Array output truncated ... [truncated 1391 chars]"]
    assert truncate_output({"rows": rows, "ok": True}, 300) == {
        "rows": [{"__truncated": True, "__truncatedChars": 1391, "note": NOTE}],
        "ok": True,
    }
    small = {"ok": True, "of": {"a": 1}}
    assert truncate_output({**small, "big": {"rows": rows}}, 300)["of"] == {"a": 1}


def test_an_output_nested_without_end_is_no_trouble() -> None:
    deep: Any = "x" * 300
    for _ in range(100):
        deep = {"a": deep}
    assert "[Nested output omitted" in json.dumps(truncate_output(deep, 200))
    assert truncate_older_messages(talk(3), 0) == talk(3)
