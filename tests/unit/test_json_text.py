"""JSON at the border of a conversation."""

import json

import orjson
import pytest

from actors.conversation.json_text import Unreadable, decode, encode


def test_numbers_without_json_become_null():
    assert encode({"a": float("nan"), "b": float("inf"), "c": 1.5}) == b'{"a":null,"b":null,"c":1.5}'


def test_a_lone_surrogate_becomes_the_replacement_character_and_nothing_else_changes():
    assert json.loads(encode({"text": "日本 \ud800 語 😀"})) == {"text": "日本 � 語 😀"}


def test_integers_of_any_size_are_kept():
    assert decode(encode([2**80, float("nan")])) == [2**80, None]


def test_stored_text_is_spliced():
    assert encode({"history": orjson.Fragment(b'[{"id":"m1"}]')}) == b'{"history":[{"id":"m1"}]}'
    assert json.loads(encode({"history": orjson.Fragment(b'[{"id":"m1"}]'), "n": 2**70})) == {
        "history": [{"id": "m1"}],
        "n": 2**70,
    }


def test_a_value_that_holds_itself_is_refused_with_a_sentence():
    value: dict = {}
    value["self"] = value
    with pytest.raises(ValueError, match="cannot express, or itself"):
        encode(value)


def test_an_object_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="JSON cannot express"):
        encode(object())


def test_deep_nesting_is_refused_and_harms_nobody():
    with pytest.raises(ValueError):
        decode(b"[" * 100_000)


def test_nan_in_a_frame_is_not_json():
    with pytest.raises(ValueError):
        decode(b'{"x":NaN}')


@pytest.mark.parametrize("besides", ["", 2**70, "\ud800"])
def test_whatever_was_stored_can_be_sent_with_what_is_wrapped_around_it(besides):
    value: object = besides
    for _ in range(254 + 20):  # 254: what releases before the limit have stored
        value = {"a": [value]} if isinstance(value, str) else [value]
    assert decode(encode(value)) is not None


@pytest.mark.parametrize("text", [b"[" * 100_000 + b"]" * 100_000, b"9" * 5_000])
def test_what_may_be_json_beyond_all_reason_is_told_from_what_is_not(text):
    with pytest.raises(Unreadable):
        decode(text)
