"""Repairs a history in which calls and results have lost each other, so that a model accepts it."""

from collections.abc import Sequence
from typing import Any

from compaction.messages import Given, Message, plain
from compaction.tool_pairs import has_any_output, is_call, parts, tool_call_id
from storage.records import timestamp

STUB_RESULT = "[Result from earlier conversation — see context summary above]"  # text of the interface


def sanitize_tool_pairs(messages: Sequence[Given]) -> list[dict[str, Any]]:
    """`messages` with each result after its call and a result for each call; the given messages are not changed.

    Results without a call before them are removed, calls without a result after them get a stub, as a message of its own right
    behind the call's. Messages without parts are removed. A preliminary output counts as a result here: a model may see it.
    """
    kept: list[Message] = []
    called: set[str] = set()
    for message in plain(messages):
        whole = parts(message)
        sound: list[Any] = []
        for part in whole:
            if _is_call(message, part):
                called.add(part["toolCallId"])
            if not _is_result(message, part) or part["toolCallId"] in called:
                sound.append(part)
        if sound:
            kept.append(message if len(sound) == len(message["parts"]) else {**message, "parts": sound})
    return _with_stubs(kept)


def _with_stubs(messages: Sequence[Message]) -> list[dict[str, Any]]:
    answered: set[str] = set()
    backward: list[dict[str, Any]] = []
    for message in reversed(messages):
        unanswered: list[Any] = []
        for part in reversed(parts(message)):
            if _is_result(message, part):
                answered.add(part["toolCallId"])
            if _is_call(message, part) and part["toolCallId"] not in answered:
                unanswered.append(part)
        backward += map(_stub, unanswered)
        backward.append(dict(message))
    return backward[::-1]


def _is_call(message: Message, part: Any) -> bool:
    return tool_call_id(part) is not None and is_call(message, part)


def _is_result(message: Message, part: Any) -> bool:
    return tool_call_id(part) is not None and has_any_output(part)


def _stub(part: Any) -> dict[str, Any]:
    call_id, name = part["toolCallId"], part.get("toolName")
    result = {"type": "tool-result", "toolCallId": call_id, "toolName": name or "unknown", "result": STUB_RESULT}
    return {"id": f"stub-{call_id}", "role": "assistant", "parts": [result], "createdAt": timestamp()}
