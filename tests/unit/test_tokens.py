"""The estimate: recorded values are in the conformance vectors; here are images, and that it is a sum."""

import os
import random
from contextlib import closing

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import history, message_tree, schema
from storage.tokens import IMAGE_TOKENS, MESSAGE_TOKENS, estimate_message_tokens, estimate_one, estimate_string_tokens

PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 300_000  # 3 MB


def message(*parts):
    return {"id": "m", "role": "user", "parts": list(parts)}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "mediaType": "image/png", "url": PICTURE},
        {"type": "file", "mediaType": "image/png", "url": "https://example.com/a.png"},
        {"type": "file", "mediaType": "application/pdf", "url": "data:application/pdf;base64,AAAA"},
        {"type": "file", "url": "data:xxxx"},
        {"type": "image", "image": PICTURE},
    ],
)
def test_an_image_or_a_data_url_counts_a_constant(part):
    assert estimate_one(message(part)) == MESSAGE_TOKENS + IMAGE_TOKENS


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool-shot", "input": {}, "output": PICTURE},
        {"type": "tool-shot", "input": {}, "output": {"images": [PICTURE, "see above"]}},
        {
            "type": "tool-shot",
            "output": {"content": [{"type": "image", "data": PICTURE[22:], "mimeType": "image/png"}]},
        },
        {"type": "text", "text": f"look: {PICTURE} there"},
    ],
)
def test_an_image_inside_a_tool_output_or_a_text_is_bounded(part):
    assert IMAGE_TOKENS <= estimate_one(message(part)) <= IMAGE_TOKENS + 50


def test_long_text_that_is_no_image_counts_as_recorded():
    text = "A" * 100_000
    assert estimate_one(message({"type": "text", "text": text})) == 4 + 25_000
    assert estimate_one(message({"type": "tool-x", "output": {"data": text, "mimeType": "text/plain"}})) > 25_000
    assert estimate_one(message({"type": "text", "text": ";base64," + text})) > 25_000


def test_other_files_count_nothing():
    assert estimate_one(message({"type": "file", "mediaType": "application/pdf", "url": "https://example.com/a"})) == 4


def test_the_estimate_of_a_list_is_the_sum_of_its_messages():
    source = random.Random(1)
    messages = [
        message(*({"type": "text", "text": source.choice("ab \u3000😀日") * source.randrange(9)} for _ in range(3)))
        for _ in range(50)
    ]
    assert estimate_message_tokens(messages) == sum(map(estimate_one, messages))


def test_words_are_split_as_javascript_splits_them():
    assert estimate_string_tokens("a\x1cb\x85c\u200bd") == estimate_string_tokens("aaaaaaa")
    assert estimate_string_tokens("a\ufeffb\ufeffc") == estimate_string_tokens("a b c")
    assert estimate_string_tokens("\x85") == 2


def test_lone_surrogates_do_not_break_the_estimate():
    assert estimate_string_tokens("\ud800" * 8) == 2


def test_text_made_to_look_like_images_is_counted_in_linear_time():
    for text in ("data:" * 1_000_000 + ";base64,", "data:;base64," * 300_000, ";base64," + "data:;" * 1_000_000):
        assert estimate_one(message({"type": "text", "text": text})) >= len(text) // 4


def test_a_number_too_large_for_javascript_counts_as_what_it_writes():
    counts = [estimate_string_tokens(text) for text in ('{"n":[null]}', "null")]
    parts = [{"type": "tool-f", "input": {"n": [10**400]}}, {"type": "tool-f", "output": -(10**400)}]
    assert [estimate_message_tokens([{"parts": [part]}]) - 4 for part in parts] == counts


@pytest.mark.parametrize("parts", [None, 5, True, "text", {"type": "text", "text": "words"}])
def test_parts_that_are_no_list_count_nothing(parts):
    assert estimate_message_tokens([{"id": "m", "role": "user", "parts": parts}]) == 4


def test_odd_parts_are_counted_without_an_error():
    assert estimate_one({"id": "m", "role": "user"}) == 4
    assert estimate_one(message("not an object", {"type": 5, "text": 7}, {"text": [1.0]})) == 4 + 2 + 2


PARTS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=60)),
    st.builds(lambda text: {"type": "reasoning", "text": text}, st.text(max_size=20)),
    st.builds(
        lambda given, output: {"type": "tool-look", "toolCallId": "c", "input": given, "output": output},
        st.dictionaries(
            st.text(max_size=5), st.integers() | st.floats(allow_nan=False, allow_infinity=False), max_size=3
        ),
        st.recursive(st.none() | st.text(max_size=30) | st.booleans(), lambda inner: st.lists(inner, max_size=3)),
    ),
    st.just({"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"}),
)


@settings(max_examples=2_000 if os.environ.get("TESTS_LONG") else 150, derandomize=True, deadline=None)
@given(st.lists(st.lists(PARTS, max_size=4), max_size=5))
def test_the_estimate_of_a_stored_message_is_that_of_the_given_one(contents):  # D13, D33
    """What is kept beside a message in storage equals a recount of what is read back."""
    messages = [{"id": f"m{number}", "role": "user", "parts": parts} for number, parts in enumerate(contents)]
    with closing(schema.empty()) as connection:
        for entry in messages:
            message_tree.append(connection, "", entry)
        stored = orjson.loads(history.visible_json(connection, ""))
        assert message_tree.path_tokens(connection, "") == estimate_message_tokens(stored)
        assert estimate_message_tokens(stored) == sum(map(estimate_one, stored))


def test_a_picture_counts_the_same_whatever_its_size():  # D33, B50
    small = {"type": "file", "mediaType": "image/png", "url": PICTURE[:100]}
    large = {"type": "file", "mediaType": "image/png", "url": PICTURE}
    assert estimate_one(message(small)) == estimate_one(message(large)) == MESSAGE_TOKENS + IMAGE_TOKENS
