"""The one place that knows tool calls: which parts are calls or results, which calls still wait, and what belongs together.

A call is a part of an assistant message with a ``toolCallId``, of type ``tool-NAME``, ``dynamic-tool`` or ``tool-call``. Its
result is in the same part (``output``, or a final ``state``), or in a part with the same ``toolCallId`` of another message: any
tool part of a message that is not the assistant's (role ``tool``), or a ``tool-result`` part.

An id may be used again. A result belongs to the nearest message before it that makes the call; if that one makes several calls
with this id, to the first of them that has none yet. Whoever asks what belongs together asks `links`.

An output that is marked ``preliminary`` answers nothing: its call is open until a final one has come.

What a call asked for and what an answer says is read here too, by `input_of` and `answer_of`.

Messages come from clients, and a field may hold any JSON: what is not of its kind counts as not there.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from compaction.messages import Message as Message  # for those who speak of tool pairs
from storage.records import javascript_json

Part: TypeAlias = Mapping[str, Any]

WAITING_STATES = frozenset({"input-streaming", "input-available", "approval-requested", "approval-responded"})
FINAL_STATES = frozenset({"output-available", "output-error", "output-denied", "result"})

APPROVAL_STATES = frozenset({"approval-requested", "approval-responded"})
APPROVALS = frozenset({"tool-approval-request", "tool-approval-response"})

ABANDONED_AFTER = 30
"""A call waits for its result until so many later messages have come (messages of results alone do not count).

The next message after a call is normally its result. Tools that run in the background while the user and the model go on talking
take some exchanges longer; after 15 of them the process that should have answered is taken for dead, so that its call cannot
hold up compaction for ever."""

APPROVAL_ABANDONED_AFTER = 100
"""The same for a call that waits for an approval: a person may go on talking for long before deciding."""


DENIED = "The user did not allow this call."

UNKNOWN = "unknown"  # the name of a tool that has none; text of the interface


@dataclass(frozen=True, slots=True)
class Place:
    """What a tool part is, the index of its message, and its index in `parts` of it. A part can be a call and its own result."""

    message: int
    part: int
    call_id: str
    is_call: bool
    is_result: bool
    asks_approval: bool = False


def tool_call_id(part: Any) -> str | None:
    """The id that ties calls and results together; None for any other part."""
    if not is_tool_part(part):
        return None
    identity = part.get("toolCallId")
    return identity if isinstance(identity, str) and identity else None


def is_tool_part(part: Any) -> bool:
    """Whether a part is about a tool, even if no id ties it to others."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and (kind == "dynamic-tool" or kind.startswith("tool-"))


def tool_name(part: Part) -> str:
    """What the tool is called: ``toolName``, else what the type says; never empty."""
    name = own_name(part)
    if name is not None:
        return name
    kind = part.get("type")
    if not isinstance(kind, str) or not kind.startswith("tool-") or kind in ("tool-call", "tool-result"):
        return UNKNOWN
    return kind.removeprefix("tool-").strip() or UNKNOWN


def own_name(part: Part) -> str | None:
    """``toolName``, if it names anything."""
    name = part.get("toolName")
    return name if isinstance(name, str) and name.strip() else None


def _state(part: Part) -> str | None:
    state = part.get("state")
    return state if isinstance(state, str) else None


def is_call(message: Message, part: Part) -> bool:
    """Whether this part of the message asks for a tool to be run."""
    if tool_call_id(part) is None or is_plain_result(part) or part["type"] in APPROVALS:
        return False
    return part["type"] == "tool-call" or message.get("role") == "assistant"


def is_result(message: Message, part: Part) -> bool:
    """Whether this part of the message is, or holds, the final answer to a call."""
    return tool_call_id(part) is not None and part.get("preliminary") is not True and has_any_output(part)


def has_any_output(part: Part) -> bool:
    """Whether a tool part holds an answer, final or not."""
    return is_plain_result(part) or _state(part) in FINAL_STATES or _has_output(part)


def is_plain_result(part: Part) -> bool:
    """Whether a part is of the kinds that are results and nothing else. (A tool may be named "error": then it has a state.)"""
    kind = part.get("type")
    return kind == "tool-result" or (kind == "tool-error" and "error" in part and _state(part) is None)


def _has_output(part: Part) -> bool:
    if _state(part) in WAITING_STATES:
        return part.get("output") is not None or part.get("result") is not None
    return "output" in part or "result" in part


def input_of(part: Part) -> Any:
    """What a call was given: ``input``, or ``args`` of older parts; an empty object where neither is there."""
    return next((part[field] for field in ("input", "args") if part.get(field) is not None), {})


def answer_of(part: Part) -> str:
    """What a tool said, in words: a text as it is, anything else as compact JSON, an error and a denial as a sentence.

    Only for parts that hold an answer (`has_any_output`).
    """
    state = _state(part)
    if state == "output-denied":
        return DENIED
    output = next((part[field] for field in ("output", "result") if part.get(field) is not None), None)
    error = next((part[field] for field in ("errorText", "error") if part.get(field) is not None), None)
    if state == "output-error" or (output is None and (error is not None or part.get("type") == "tool-error")):
        reason = output if error is None else error
        return f"Error: {'the tool failed' if reason in (None, '') else in_words(reason)}"
    return in_words(output)


def in_words(value: Any) -> str:
    """A text as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else javascript_json(value)


def parts(message: Message) -> list[Part]:
    """The parts of a message that are objects."""
    held = message.get("parts")
    return [part for part in held if isinstance(part, Mapping)] if isinstance(held, (list, tuple)) else []


def places(messages: Sequence[Message], *, preliminary: bool = False) -> Iterator[Place]:
    """All calls and results, in order; with ``preliminary`` outputs that are not final are results too."""
    for index, message in enumerate(messages):
        for number, part in enumerate(parts(message)):
            call_id = tool_call_id(part)
            if call_id is not None:
                answers = has_any_output(part) if preliminary else is_result(message, part)
                asks = _state(part) in APPROVAL_STATES
                found = Place(index, number, call_id, is_call(message, part), answers, asks)
                if found.is_call or found.is_result:
                    yield found


def is_results_only(message: Message) -> bool:
    """Whether the message holds results and nothing else (such messages do not make a call older)."""
    held = parts(message)
    return bool(held) and all(is_result(message, part) and not is_call(message, part) for part in held)


def links(found: Iterable[Place]) -> dict[Place, Place]:
    """Each result with the call that it answers. Results without any call before them are left out.

    A part that is both answers itself, unless the nearest call before it is still open: then it repeats that call to answer it.
    """
    newest: dict[str, Place] = {}  # the nearest call by its id
    is_open: dict[str, deque[Place]] = defaultdict(
        deque
    )  # the calls of its message with that id which have no result yet
    linked: dict[Place, Place] = {}
    for place in found:
        nearest, waiting = newest.get(place.call_id), is_open[place.call_id]
        if place.is_result and waiting:
            linked[place] = waiting.popleft()
        elif place.is_result and place.is_call:
            linked[place] = place
        elif place.is_result and nearest is not None:
            linked[place] = nearest
        if place.is_call:
            if nearest is not None and nearest.message != place.message:
                waiting.clear()
            newest[place.call_id] = place
            if not place.is_result:
                waiting.append(place)
    return linked


@dataclass(frozen=True, slots=True)
class Pair:
    """A result and the call that it answers: indexes of their messages. ``needs_call`` is False for a result that repeats its
    call in the same part, and so can stand alone."""

    call: int
    result: int
    needs_call: bool


def pairs(messages: Sequence[Message]) -> list[Pair]:
    """`links` as indexes of messages, in the order of the results."""
    return [
        Pair(call.message, result.message, needs_call=not result.is_call)
        for result, call in links(places(messages)).items()
    ]


def unanswered(messages: Sequence[Message]) -> list[Place]:
    """Calls without a final result, in order."""
    return open_calls(list(places(messages)))


def open_calls(found: Sequence[Place]) -> list[Place]:
    """Those of these calls that none of these results answers."""
    answered = set(links(found).values())
    return [place for place in found if place.is_call and not place.is_result and place not in answered]


def waiting_and_abandoned(messages: Sequence[Message]) -> tuple[list[Place], list[Place]]:
    """The unanswered calls that wait, and those that nobody waits for any more (`ABANDONED_AFTER`)."""
    later = 0
    ages: dict[int, int] = {}
    for index in range(len(messages) - 1, -1, -1):
        ages[index] = later
        later += not is_results_only(messages[index])
    waiting: list[Place] = []
    abandoned: list[Place] = []
    for place in unanswered(messages):
        bound = APPROVAL_ABANDONED_AFTER if place.asks_approval else ABANDONED_AFTER
        (waiting if ages[place.message] < bound else abandoned).append(place)
    return waiting, abandoned
