"""Which overlays apply: the rule itself, on lists."""

from storage.overlays import Overlay, is_compaction_message, overlay_message, resolve, visible


def overlay(order, start, end, summary="s"):
    return Overlay(order, f"o{order}", summary, start, end, "2001-02-03T04:05:06.789Z")


def shown(path, *overlays):
    messages = [{"id": name, "role": "user", "parts": []} for name in path]
    return [message["id"].removeprefix("compaction_") for message in visible(messages, overlays)]


def test_a_range_is_replaced_by_its_summary():
    assert shown("abcdef", overlay(1, "b", "d")) == ["a", "o1", "e", "f"]


def test_both_ends_must_be_on_the_path_in_order():
    assert shown("abc", overlay(1, "b", "z"), overlay(2, "z", "b"), overlay(3, "c", "a")) == ["a", "b", "c"]


def test_the_newest_of_those_that_start_at_a_message_wins():
    assert shown("abcdef", overlay(1, "b", "e"), overlay(2, "b", "c")) == ["a", "o2", "d", "e", "f"]
    assert shown("abcdef", overlay(2, "b", "c"), overlay(1, "b", "e")) == ["a", "o2", "d", "e", "f"]


def test_an_unusable_overlay_hides_no_usable_one():
    assert shown("abcd", overlay(1, "b", "c"), overlay(2, "b", "z"), overlay(3, "b", "a")) == ["a", "o1", "d"]


def test_what_starts_inside_a_hidden_range_does_not_apply():
    assert shown("abcdefg", overlay(1, "b", "d"), overlay(2, "c", "f")) == ["a", "o1", "e", "f", "g"]
    assert shown("abcdefg", overlay(1, "d", "e"), overlay(2, "b", "e")) == ["a", "o2", "f", "g"]


def test_several_ranges_apply_side_by_side():
    assert shown("abcdef", overlay(1, "e", "f"), overlay(2, "a", "a"), overlay(3, "b", "b")) == [
        "o2",
        "o3",
        "c",
        "d",
        "o1",
    ]


def test_positions_may_be_any_growing_numbers():
    places = {"a": 3, "b": 70, "c": 71}
    (applied,) = resolve([overlay(1, "a", "b")], places.get)
    assert (applied.start, applied.end) == (3, 70)


def test_the_message_of_an_overlay_is_recognised_by_its_id():
    message = overlay_message(overlay(1, "a", "b", "what was said"))
    assert message == {
        "id": "compaction_o1",
        "role": "assistant",
        "parts": [{"type": "text", "text": "what was said"}],
        "createdAt": "2001-02-03T04:05:06.789Z",
    }
    assert is_compaction_message(message)
    assert not is_compaction_message({"id": 5})
