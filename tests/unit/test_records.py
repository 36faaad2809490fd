"""What is refused before anything is stored, and what comes back."""

import datetime
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import json_text
from storage.errors import InvalidMessage
from storage.json_text import MAX_DEPTH, clean, dump, is_too_deep, javascript_json, load, parse
from storage.records import LATEST, SessionMessage, StoredCompaction, decode, encode

TEXT = [{"type": "text", "text": "x"}]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "parts": []},
        {"id": "", "role": "user", "parts": []},
        {"id": 7, "role": "user", "parts": []},
        {"id": "m", "parts": []},
        {"id": "m", "role": "", "parts": []},
        {"id": "m", "role": "user"},
        {"id": "m", "role": "user", "parts": None},
        {"id": "m", "role": "user", "parts": "text"},
        {"id": "m", "role": "user", "parts": ["text"]},
        {"id": "m", "role": "user", "parts": [{"type": "text", "text": object()}]},
        {"id": "m", "role": "user", "parts": [], 5: "not a name"},
        ["m"],
        "m",
        None,
    ],
)
def test_a_message_without_id_role_or_parts_is_refused(message):
    with pytest.raises(InvalidMessage):
        encode(message)


def test_a_message_nested_too_deeply_is_refused():
    value: list = []
    for _ in range(2_000):
        value = [value]
    with pytest.raises(InvalidMessage):
        encode({"id": "m", "role": "user", "parts": [{"type": "data", "data": value}]})


def test_unknown_fields_and_the_order_of_keys_are_kept():
    message = {"parts": TEXT, "zeta": [1, 2.5, None, True], "id": "m", "role": "any role", "createdAt": "2001-02-03"}
    plain, text = encode(message)
    assert plain == message
    assert text == json.dumps(message, separators=(",", ":"))
    assert list(decode(text)) == list(message)


def test_a_typed_message_is_stored_as_it_was_given():
    message = {"id": "m", "role": "user", "parts": TEXT, "createdAt": "2001", "metadata": {"a": [1]}}
    assert encode(SessionMessage.model_validate(message))[0] == message
    assert encode(SessionMessage(id="m", role="user", parts=TEXT))[0] == {"id": "m", "role": "user", "parts": TEXT}


def test_names_on_the_wire_are_camel_case():
    stored = {"id": "1", "summary": "s", "fromMessageId": "a", "toMessageId": "b", "createdAt": "t"}
    assert StoredCompaction(**stored) == stored
    assert StoredCompaction.__required_keys__ == set(stored)


def test_left_out_survives_pickling_as_itself():
    assert pickle.loads(pickle.dumps(LATEST)) is LATEST
    assert repr(LATEST) == "LATEST"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\ud83d\ude00\ude00", "\ufffd😀\ufffd"),
        ("漢字\ud800漢字", "漢字\ufffd漢字"),
        ("end\ud83d", "end\ufffd"),
        ("a\x00b\x85\u2028\ufeff", "a\x00b\x85\u2028\ufeff"),
    ],
)
def test_only_lone_surrogates_are_replaced(given, stored):
    assert clean(given) == stored
    plain, text = dump({"k" + given: [given]})
    assert plain == load(text) == {"k" + stored: [stored]}
    text.encode("utf-8")


def test_every_other_character_round_trips():
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), 0x1F600, 0x10FFFF]))
    assert load(dump([every])[1]) == [every]
    assert load(dump([bytes(range(256)).decode("latin-1")])[1]) == [bytes(range(256)).decode("latin-1")]


def test_what_json_has_no_word_for_becomes_null_or_text():
    day = datetime.datetime(2001, 2, 3, 4, 5, 6)
    assert load(dump([float("nan"), float("inf"), (1, 2)])[1]) == [None, None, [1, 2]]
    assert dump([day, float("-inf")])[0] == ["2001-02-03T04:05:06", None]


def test_large_integers_are_stored_exactly():
    assert dump([2**70, -(2**65)])[1] == f"[{2**70},{-(2**65)}]"


def test_parse_repairs_lone_surrogates_that_were_escaped():
    assert parse(rb'{"a":"\ud800x","b":"\ud83d\ude00"}') == {"a": "\ufffdx", "b": "😀"}
    for bad in (b"{", b"[NaN]", b'["\\ud800", Infinity]', b"", b"[" * 100_000):
        with pytest.raises(ValueError):
            parse(bad)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (2.5, "2.5"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e20, "100000000000000000000"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e-6, "0.000001"),
        (1.25e-5, "0.0000125"),
        (1e-7, "1e-7"),
        (-1.5e-9, "-1.5e-9"),
        (5e-324, "5e-324"),
        (10**20, "100000000000000000000"),
        (2**60, "1152921504606847000"),
        (float("nan"), "null"),
        ({"a": [True, False, None, "é\n"]}, '{"a":[true,false,null,"é\\n"]}'),
    ],
)
def test_numbers_are_written_as_javascript_writes_them(value, text):
    assert javascript_json(value) == text


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(anything)
def test_the_quick_way_to_json_text_writes_what_the_exact_one_does(value):
    assert javascript_json(value) == json_text._javascript_json(value)


def nested(levels: int) -> dict:
    """A message of so many levels."""
    value: object = "leaf"
    for _ in range(levels - 3):
        value = [value]
    return {"id": "m", "role": "user", "parts": [{"type": "data", "data": value}]}


@pytest.mark.parametrize("wide", ["", 2**70, "\ud800"])  # the fast way and the slow way
def test_the_depth_of_a_message_has_one_limit(wide):
    assert encode({**nested(MAX_DEPTH), "wide": wide})
    with pytest.raises(InvalidMessage, match="nested too deeply"):
        encode({**nested(MAX_DEPTH + 1), "wide": wide})


def test_brackets_in_a_text_are_no_depth():
    assert encode({"id": "m", "role": "user", "parts": [{"type": "text", "text": "[{" * 1_000}, *TEXT * 1_000]})


def test_a_value_that_holds_itself_is_too_deep():
    value: list = []
    value += [value, value]
    assert is_too_deep(value)


@pytest.mark.parametrize(
    "number", [10**400, -(10**400), 10**5_000, 2**1024], ids=["long", "negative", "very long", "just"]
)
def test_a_number_that_no_reader_can_hold_is_refused_in_our_words(number):
    with pytest.raises(InvalidMessage, match=r"not stored: a number is too large\.$"):
        encode({"id": "m", "role": "user", "parts": [], "n": number})


def test_the_largest_double_is_stored():
    assert encode({"id": "m", "role": "user", "parts": [], "n": 2**1024 - 2**971})
