"""Results of tool calls that come after their call was folded into a summary: all the rules.

Invariant: no visible history shows a result whose call a summary hides there, but for one on another branch that came in a
message with answers to visible calls before the summary did (below). `create_compact_function` folds a call together
with its results, and one without a result only when it has waited so long that nobody can be expected to answer
(`compaction.tool_pairs.ABANDONED_AFTER`). If an answer comes all the same, the first or one more:

* A message with the result is stored as it is. In the history an overlay of its own stands for it, which tells in plain text
  which tool answered what, the answer shortened to `MAX_TOOL_OUTPUT_CHARS` as tool outputs are; the message's own texts are
  whole. `Session.get_raw_history` shows the original. The next compaction takes it up.
* The overlay keeps which call it is about (column ``call`` of ``assistant_compactions``; of several calls the first), and goes
  in the transaction in which that call becomes visible again: a summary on one branch takes the place of an older one that
  starts at the same message also on other branches, where it may hide less, and a deletion may drop a summary
  (`storage.late_results.uncover`). A call that was deleted is not visible again: its answer stays told as text.
* A fold may hide a call that another branch has answered (there alone, or once more); the overlay for that answer is stored with
  the summary.
* An update may turn any message into such an answer, or into something else, and may add or take away calls: what stands for
  that message, and for the answers to those calls, is made anew in its transaction.
* A result that is written into the message of its call changes that message, as any update does, and no summary.
* A message that answers such a call together with calls that are visible is refused: no text can stand for it without
  taking the other results away from their calls. One that is there already, on another branch, stays as it is.
* While the summary is being written, an answer to a call in its range makes it worthless: it is not stored.

Over other storage the overlay is an ordinary one. `PostgresHistory` keeps the same rules and knows it by its text; over any other
provider only new messages at the end of a branch and updates on the path are looked at, and their overlays go with them.
"""

import contextlib
import sqlite3
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from compaction.tool_pairs import Message, answer_of, is_call, is_result, parts, tool_call_id, tool_name, unanswered
from compaction.truncate import MAX_TOOL_OUTPUT_CHARS, truncate_output
from storage import compactions, late_results, leaves, visibility
from storage.errors import InvalidMessage
from storage.records import JsonObject


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
            f"it answers {sorted(late)}, whose calls a summary holds, together with other calls; "
            "send that answer in a message of its own"
        )
    return text_of(message)


def text_of(message: Message) -> str:
    """The text that stands for a message with late results."""
    return "\n".join(line for line in (_line(message, part) for part in parts(message)) if line)


def _line(message: Message, part: Message) -> str:
    if is_result(message, part):
        answer = truncate_output(answer_of(part), MAX_TOOL_OUTPUT_CHARS)
        return f"[Late result of an earlier call of {tool_name(part)}: {answer}]"
    return part["text"] if part.get("type") == "text" and isinstance(part.get("text"), str) else ""


def cover_appended(connection: sqlite3.Connection, session_id: str, message: Message) -> None:
    """Let an overlay stand for the newest message if it answers folded calls. In the transaction that appended it."""
    if lone_results(message):
        leaf = leaves.latest(connection, session_id)
        assert leaf is not None
        _cover(connection, session_id, leaf.seq, leaf.id, message)


def cover_beside(
    connection: sqlite3.Connection, session_id: str, leaf: int, last: int, folded: Collection[str]
) -> None:
    """After a summary up to `last` was stored on the path to `leaf`: overlays for answers to its calls on other branches.

    Costs what other branches have after it.
    """
    for seq, message in late_results.beside(connection, session_id, leaf, last) if folded else ():
        if not lone_results(message).isdisjoint(folded):
            with contextlib.suppress(InvalidMessage):  # it answers others too and is there already: it stays as it is
                _cover(connection, session_id, seq, message["id"], message)


def cover_updated(
    connection: sqlite3.Connection, session_id: str, seq: int, before: JsonObject, after: JsonObject
) -> None:
    """Make anew what stands for a message that was replaced, and for answers to calls that it makes or made.

    In the transaction that replaced it. Costs what has come since if it makes other calls than before. Raises InvalidMessage.
    """
    _renew(connection, session_id, seq, after)
    changed = calls_of(before) ^ calls_of(after)
    for later, message in late_results.after(connection, session_id, seq) if changed else ():
        if not lone_results(message).isdisjoint(changed):
            with contextlib.suppress(InvalidMessage):
                _renew(connection, session_id, later, message)


def calls(message: Message, call_id: str) -> bool:
    """Whether a message makes this call."""
    return any(tool_call_id(part) == call_id and is_call(message, part) for part in parts(message))


def calls_of(message: Message) -> set[str]:
    """The calls that a message makes."""
    return {part["toolCallId"] for part in parts(message) if is_call(message, part)}


def as_stored(call_id: str) -> str:
    """As the text of a message with this call, or a result of it, holds its id."""
    return orjson.dumps(call_id).decode()


def _renew(connection: sqlite3.Connection, session_id: str, seq: int, message: Message) -> None:
    late_results.forget(connection, session_id, seq)
    if lone_results(message):
        _cover(connection, session_id, seq, message["id"], message)


def _cover(connection: sqlite3.Connection, session_id: str, seq: int, message_id: str, message: Message) -> None:
    if late_results.is_covered(connection, seq) or visibility.is_folded(connection, session_id, seq, seq):
        return  # what stands for it depends on the message alone
    nearest = {call_id: late_results.nearest(connection, seq, call_id, calls) for call_id in lone_results(message)}
    late = {
        call_id: call
        for call_id, call in nearest.items()
        if call is not None and visibility.is_folded(connection, session_id, seq, call)
    }
    if late:
        summary = as_summary(message, late)
        compactions.add(connection, session_id, summary, message_id, message_id, call=min(late.values()))
