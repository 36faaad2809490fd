"""Repairs a history in which calls and results have lost each other, so that a model accepts it."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from compaction.messages import Given, plain
from compaction.tool_pairs import UNKNOWN, Part, Place, links, open_calls, own_name, parts, places
from storage.records import timestamp

STUB_RESULT = "[Result from earlier conversation — see context summary above]"  # text of the interface


def sanitize_tool_pairs(messages: Sequence[Given]) -> list[dict[str, Any]]:
    """`messages` with each result after its call and a result for each call; the given messages are not changed.

    Results without a call before them are removed, calls without a result after them get a stub, as a message of its own right
    behind the call's. Messages without parts are removed. A preliminary output counts as a result here: a model may see it.

    Which result is whose, also where an id is used again, is decided by `compaction.tool_pairs.links`. A stub has the time at
    which it is made, and an id that follows from its call's: stubs for calls with one id have one id too, for they are made
    for a model's input, not to be stored.
    """
    history = plain(messages)
    found = list(places(history, preliminary=True))
    lost = _lost_results(found)
    unanswered: dict[int, list[Place]] = defaultdict(list)
    for call in open_calls(found):
        unanswered[call.message].append(call)
    repaired: list[dict[str, Any]] = []
    for index, message in enumerate(history):
        whole = parts(message)
        sound = [part for number, part in enumerate(whole) if number not in lost[index]]
        if sound:
            repaired.append(dict(message) if len(sound) == len(message["parts"]) else {**message, "parts": sound})
            repaired += [_stub(whole[call.part]) for call in unanswered[index]]
    return repaired


def _lost_results(found: list[Place]) -> dict[int, set[int]]:
    """By message, the indexes of the parts that are results of no call."""
    linked = links(found)
    lost: dict[int, set[int]] = defaultdict(set)
    for place in found:
        if place.is_result and place not in linked:
            lost[place.message].add(place.part)
    return lost


def _stub(call: Part) -> dict[str, Any]:
    call_id, name = call["toolCallId"], own_name(call) or UNKNOWN
    result = {"type": "tool-result", "toolCallId": call_id, "toolName": name, "result": STUB_RESULT}
    return {"id": f"stub-{call_id}", "role": "assistant", "parts": [result], "createdAt": timestamp()}
