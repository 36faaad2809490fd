"""Results of tool calls that come after their call was folded into a summary.

`create_compact_function` folds a call without its result only when it has waited so long that nobody can be expected to answer
(`compaction.tool_pairs.ABANDONED_AFTER`). If the answer comes all the same, then so that no history holds a result without
its call:

* A message with the result is stored as it is; in the history a summary of its own stands for it, which tells in plain
  text which tool answered what. The next compaction takes it up.
* A result that is written into the message of its call changes that message, as any update does, and no summary.
  `Session.get_raw_history` shows it.
* A message that answers such a call together with calls that are visible is refused: no text can stand for it without
  taking the other results away from their calls. One that is there already, on another branch, stays as it is.
* While the summary is being written, an answer to a call in its range makes it worthless: it is not stored.
"""

import contextlib
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import orjson

from compaction.tool_pairs import Message, is_call, is_result, parts, tool_call_id, tool_name, unanswered
from storage import compactions, containing, history, leaves, paths
from storage.errors import InvalidMessage
from storage.overlays import Applied
from storage.records import JsonObject, decode


def has_tool_parts(message: Any) -> bool:
    """A cheap look at a message that has not been validated: whether it may answer anything."""
    held = message.get("parts") if isinstance(message, Mapping) else getattr(message, "parts", None)
    return isinstance(held, list | tuple) and any(isinstance(part, Mapping) and "toolCallId" in part for part in held)


def lone_results(message: Message) -> set[str]:
    """The calls of other messages that this one answers."""
    called: set[str] = set()
    answered: set[str] = set()
    for part in parts(message):
        call_id = tool_call_id(part)
        if call_id is None:
            continue
        if is_call(message, part):
            called.add(call_id)
        elif is_result(message, part) and call_id not in called:
            answered.add(call_id)
    return answered


def as_summary(message: Message, late: Collection[str]) -> str:
    """The text that stands for a message with late results. Raises InvalidMessage if it holds more than text can stand for."""
    if lone_results(message) - set(late) or unanswered([message]):
        raise InvalidMessage(
            f"it answers {sorted(late)}, which a summary holds as abandoned, together with other calls; "
            "send that answer in a message of its own"
        )
    return _text_of(message)


def _text_of(message: Message) -> str:
    return "\n".join(line for line in map(_line, parts(message)) if line)


def _line(part: Message) -> str:
    if tool_call_id(part) is not None:
        answer = next((part[name] for name in ("output", "result", "errorText") if part.get(name) is not None), "")
        text = answer if isinstance(answer, str) else orjson.dumps(answer).decode()
        return f"[Late result of an earlier call of {tool_name(part)}: {text}]"
    return part["text"] if isinstance(part.get("text"), str) else ""


def cover_appended(connection: sqlite3.Connection, session_id: str, message: Message) -> None:
    """Let a summary stand for the newest message if it answers folded calls. In the transaction that appended it."""
    leaf = leaves.latest(connection, session_id)
    assert leaf is not None
    _cover(connection, session_id, leaf.seq, leaf.id, message)


def answers(connection: sqlite3.Connection, session_id: str, call_id: str, call: int) -> list[tuple[int, JsonObject]]:
    """The messages of all branches that answer a call from outside of its message, which is at `call`."""
    found: list[tuple[int, JsonObject]] = []
    for message in containing.anywhere(connection, session_id, _as_stored(call_id)):
        if call_id in lone_results(message):
            seq = leaves.seq_of(connection, session_id, message["id"])
            if seq is not None and _nearest_call(connection, seq, call_id) == call:
                found.append((seq, message))
    return found


def cover(connection: sqlite3.Connection, session_id: str, late: Iterable[tuple[int, JsonObject]]) -> None:
    """Let summaries stand for messages of other branches whose calls have been folded just now."""
    for seq, message in late:
        with contextlib.suppress(InvalidMessage):  # it answers others too and is there already: it stays as it is
            _cover(connection, session_id, seq, message["id"], message)


def uncover(connection: sqlite3.Connection, session_id: str) -> None:
    """Let late results be seen as they are where their calls are visible again.

    A summary made on one branch takes the place of an older one that starts at the same message also on other branches that
    hold both of its ends; there it may hide less. And a deletion may drop a summary.
    """
    for overlay in compactions.stored(connection, session_id):
        seq = leaves.seq_of(connection, session_id, overlay.from_id) if overlay.from_id == overlay.to_id else None
        message = history.message(connection, session_id, overlay.from_id) if seq is not None else None
        if seq is None or message is None or overlay.summary != _text_of(message):
            continue
        applying = compactions.applied(connection, session_id, seq)
        if not any(_is_folded(connection, seq, call_id, applying) for call_id in lone_results(message)):
            compactions.remove(connection, session_id, overlay)


def _cover(connection: sqlite3.Connection, session_id: str, seq: int, message_id: str, message: Message) -> None:
    applying = compactions.applied(connection, session_id, seq)
    if not applying or compactions.hides(applying, seq):
        return
    late = {call_id for call_id in lone_results(message) if _is_folded(connection, seq, call_id, applying)}
    if late:
        compactions.add(connection, session_id, as_summary(message, late), message_id, message_id)


def _is_folded(connection: sqlite3.Connection, seq: int, call_id: str, applying: list[Applied]) -> bool:
    call = _nearest_call(connection, seq, call_id)
    return call is not None and compactions.hides(applying, call)


def _nearest_call(connection: sqlite3.Connection, seq: int, call_id: str) -> int | None:
    """The last message above `seq` that makes this call. Costs the distance to it."""
    query = """SELECT seq, CAST(content AS BLOB) FROM assistant_messages
               WHERE seq BETWEEN ? AND ? AND instr(content, ?) ORDER BY seq DESC"""
    for first, last in paths.ranges_upward(connection, seq):
        for candidate, content in connection.execute(query, (first, min(last, seq - 1), _as_stored(call_id))):
            message = decode(content)
            if any(tool_call_id(part) == call_id and is_call(message, part) for part in parts(message)):
                return int(candidate)
    return None


def _as_stored(call_id: str) -> str:
    return orjson.dumps(call_id).decode()
