"""Writes to the tree of messages of one session, in the caller's transaction.

What each keeps true: the latest leaf is the newest row and its sums are exact; a message that goes hands its children to its
parent; the full-text index holds nothing of a message that is gone or has changed. Each returns the new state of the latest
leaf's path, so that an append costs the same whatever the history.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from storage import compactions, full_text, late_results, leaves, paths, visibility
from storage.errors import InvalidArgument, InvalidMessage, LimitExceeded, UnknownMessage, UnknownParent
from storage.leaves import Ends, Leaf
from storage.paths import Sums
from storage.records import (
    COMPACTION_PREFIX,
    LATEST,
    Appended,
    JsonObject,
    Latest,
    SessionMessage,
    clean,
    decode,
    encode,
)
from storage.tokens import estimate_one

Parent: TypeAlias = str | Latest | None
Then: TypeAlias = Callable[[sqlite3.Connection, JsonObject], None]
"""What else to do with a message, in its transaction."""
Replaced: TypeAlias = Callable[[sqlite3.Connection, int, JsonObject, JsonObject], None]
"""What else to do with a message that speaks of tool calls, or did, in the transaction that replaced it: its ``seq``, the message
before and after."""

_TOOL: Final = '"toolCallId"'


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message that has been validated, encoded and estimated: what `append` and `update` store."""

    id: str
    role: str
    text: str
    sums: Sums


def prepare(message: Mapping[str, Any] | SessionMessage | Prepared) -> Prepared:
    """Everything about a message that needs no database. Raises InvalidMessage."""
    if isinstance(message, Prepared):
        return message
    plain, text = encode(message)
    size = len(text) if text.isascii() else len(text.encode())
    try:
        tokens = estimate_one(plain)
    except RecursionError:
        raise InvalidMessage("nested too deeply") from None
    return Prepared(plain["id"], plain["role"], text, Sums(1, size, tokens))


def append(
    connection: sqlite3.Connection,
    session_id: str,
    message: Mapping[str, Any] | SessionMessage | Prepared,
    parent_id: Parent = LATEST,
) -> Appended:
    """Add a message below `parent_id`: the latest leaf, None for a new root. An id that is there already changes nothing.

    Raises InvalidMessage, UnknownParent.
    """
    new = prepare(message)
    ends = leaves.ends(connection, session_id)
    if new.id.startswith(COMPACTION_PREFIX):
        _require_overlay(connection, session_id, new.id)
        return _unchanged(ends.leaf)
    parent = _resolve_parent(connection, session_id, parent_id, ends.leaf)
    if isinstance(parent, UnknownParent):
        if leaves.seq_of(connection, session_id, new.id) is None:
            raise parent
        return _unchanged(ends.leaf)
    above = Sums() if ends.leaf is None else _sums_at(connection, session_id, ends.leaf.sums, ends.leaf.seq, parent[0])
    seq = _insert(connection, session_id, new, parent, ends, above + new.sums)
    if seq is None:
        return _unchanged(ends.leaf)
    if compactions.arrive(connection, session_id, new.id, seq):
        return _state(connection, session_id, is_changed=True)
    return Appended(True, above.tokens + new.sums.tokens)


def append_all(
    connection: sqlite3.Connection,
    session_id: str,
    messages: Iterable[Prepared],
    parent_id: Parent = LATEST,
    then: Then | None = None,
) -> list[Appended]:
    """Add messages, each below the one before it, the first as `append` does; what each did.

    An overlay's message stands for the last message of its range. `then` is called after each that is new.
    Raises InvalidMessage, UnknownParent.
    """
    results: list[Appended] = []
    for message in messages:
        results.append(_append_with(connection, session_id, message, parent_id, then))
        if message.id.startswith(COMPACTION_PREFIX):
            end = compactions.end_of(connection, session_id, message.id)
            parent_id = parent_id if end is None else end
        else:
            parent_id = message.id
    return results


def upsert(
    connection: sqlite3.Connection,
    session_id: str,
    message: Prepared,
    parent_id: Parent = LATEST,
    then: Then | None = None,
    replaced: Replaced | None = None,
) -> Appended:
    """`update` if there is a message of that id, wherever it is, else `append`, with `then` after one that is new."""
    is_known = leaves.seq_of(connection, session_id, message.id) is not None
    if is_known or compactions.is_overlay_id(connection, session_id, message.id):
        return replace(update(connection, session_id, message, replaced), inserted=False)
    return _append_with(connection, session_id, message, parent_id, then)


def _append_with(
    connection: sqlite3.Connection, session_id: str, message: Prepared, parent_id: Parent, then: Then | None
) -> Appended:
    appended = append(connection, session_id, message, parent_id)
    if then is None or not appended.inserted:
        return appended
    then(connection, decode(message.text))
    return Appended(True, path_tokens(connection, session_id))


def check_count(connection: sqlite3.Connection, limit: int) -> None:
    """Raises LimitExceeded, which undoes the write, if the file holds more messages than it may. Costs one look below that."""
    (newest,) = connection.execute("SELECT max(seq) FROM assistant_messages").fetchone()
    if (newest or 0) <= limit:
        return
    (count,) = connection.execute("SELECT count(*) FROM assistant_messages").fetchone()
    if count > limit:
        raise LimitExceeded("The number of messages of this conversation", f"{limit:,}")


def update(
    connection: sqlite3.Connection,
    session_id: str,
    message: Mapping[str, Any] | SessionMessage | Prepared,
    replaced: Replaced | None = None,
) -> Appended:
    """Replace the content of a message. Raises InvalidMessage, UnknownMessage. An overlay's message is left as it is."""
    new = prepare(message)
    leaf = leaves.latest(connection, session_id)
    if new.id.startswith(COMPACTION_PREFIX):
        if not compactions.is_overlay_id(connection, session_id, new.id):
            raise UnknownMessage(new.id)
        return _unchanged(leaf)
    query = "SELECT seq, bytes, tok, content FROM assistant_messages WHERE session_id = ? AND id = ?"
    row = connection.execute(query, (session_id, new.id)).fetchone()
    if row is None or leaf is None:
        raise UnknownMessage(new.id)
    seq, size, tokens, before = row
    with full_text.replacing(connection, seq):
        connection.execute(
            "UPDATE assistant_messages SET content = ?, role = ?, bytes = ?, tok = ? WHERE seq = ?",
            (new.text, new.role, new.sums.bytes, new.sums.tokens, seq),
        )
    change = new.sums - Sums(1, size, tokens)
    if change != Sums() and paths.is_on_path(connection, seq, leaf.seq):
        if change.tokens and not visibility.shown_tokens(connection, session_id, leaf.seq, seq, 1):
            change = Sums(0, change.bytes, 0)
        leaves.set_sums(connection, leaf.seq, leaf.sums + change)
    if replaced is not None and (_TOOL in before or _TOOL in new.text):
        replaced(connection, seq, decode(before), decode(new.text))
    return _state(connection, session_id, is_changed=True)


def delete(connection: sqlite3.Connection, session_id: str, message_ids: Iterable[str]) -> Appended:
    """Remove messages; their children take their parents, overlays keep what is left of them. Unknown ids are ignored."""
    if isinstance(message_ids, (str, bytes)) or not isinstance(message_ids, Iterable):
        raise InvalidArgument("message_ids must be a list of texts")
    is_changed = False
    for message_id in message_ids:
        if isinstance(message_id, str):
            is_changed |= _delete_one(connection, session_id, clean(message_id))
    return _state(connection, session_id, is_changed=is_changed)


def clear(connection: sqlite3.Connection, session_id: str) -> Appended:
    """Remove all messages and overlays of a session."""
    full_text.forget_session(connection, session_id)
    removed = connection.execute("DELETE FROM assistant_messages WHERE session_id = ?", (session_id,)).rowcount
    full_text.lower_position(connection)
    removed += compactions.clear(connection, session_id)
    return Appended(removed > 0, 0)


def path_tokens(connection: sqlite3.Connection, session_id: str) -> int:
    """The estimate of the visible path to the latest leaf, from the running sum."""
    leaf = leaves.latest(connection, session_id)
    return leaf.sums.tokens if leaf else 0


def _insert(
    connection: sqlite3.Connection,
    session_id: str,
    new: Prepared,
    parent: tuple[int | None, str | None],
    ends: Ends,
    sums: Sums,
) -> int | None:
    """Its ``seq``; None if the id is there already."""
    cursor = connection.execute(
        """INSERT INTO assistant_messages
               (session_id, id, parent, parent_id, shared, role, tok, bytes, path_count, path_bytes, path_tok, content)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session_id, id) DO NOTHING""",
        (
            session_id,
            new.id,
            *parent,
            ends.shared,
            new.role,
            new.sums.tokens,
            new.sums.bytes,
            sums.count,
            sums.bytes,
            sums.tokens,
            new.text,
        ),
    )
    return cursor.lastrowid if cursor.rowcount == 1 else None


def _resolve_parent(
    connection: sqlite3.Connection, session_id: str, parent_id: Parent, leaf: Leaf | None
) -> tuple[int | None, str | None] | UnknownParent:
    if isinstance(parent_id, Latest):
        return (leaf.seq, leaf.id) if leaf else (None, None)
    if parent_id is None:
        return None, None
    if not isinstance(parent_id, str):
        raise InvalidArgument(f"parent_id must be a text, not {type(parent_id).__name__}")
    parent_id = clean(parent_id)
    seq = leaves.seq_of(connection, session_id, parent_id)
    return UnknownParent(parent_id) if seq is None else (seq, parent_id)


def _sums_at(
    connection: sqlite3.Connection, session_id: str, sums: Sums, known: int | None, target: int | None
) -> Sums:
    """The sums of the path to `target`, from those of the path to `known`. Costs the distance between them."""
    if target == known:
        return sums
    if target is None:
        return Sums()
    sums += paths.difference(connection, known, target)
    before, after = (visibility.applied(connection, session_id, leaf) for leaf in (known, target))
    if visibility.identities(before) != visibility.identities(after):
        return Sums(sums.count, sums.bytes, visibility.visible_tokens(connection, session_id, target))
    return sums


def _delete_one(connection: sqlite3.Connection, session_id: str, message_id: str) -> bool:
    query = "SELECT seq, parent, parent_id, bytes, tok FROM assistant_messages WHERE session_id = ? AND id = ?"
    row = connection.execute(query, (session_id, message_id)).fetchone()
    leaf = leaves.latest(connection, session_id)
    if row is None or leaf is None:
        return False
    seq, parent, parent_id, size, tokens = row
    sums = leaf.sums
    if paths.is_on_path(connection, seq, leaf.seq):
        sums -= Sums(1, size, visibility.shown_tokens(connection, session_id, leaf.seq, seq, tokens))
    changed = compactions.release_anchor(connection, session_id, message_id, seq)
    full_text.forget(connection, seq)
    _hand_over_children(connection, seq, parent, parent_id)
    connection.execute("DELETE FROM assistant_messages WHERE seq = ?", (seq,))
    full_text.lower_position(connection)
    newest = leaves.latest(connection, session_id)
    if newest is None:
        return True
    known = parent if seq == leaf.seq else newest.seq
    leaves.set_sums(connection, newest.seq, _sums_at(connection, session_id, sums, known, newest.seq))
    if changed is not None:
        visibility.recount(connection, session_id)
        late_results.uncover(connection, session_id, changed)
    return True


def _hand_over_children(connection: sqlite3.Connection, seq: int, parent: int | None, parent_id: str | None) -> None:
    statement = "UPDATE assistant_messages SET parent = ?, parent_id = ? WHERE seq = ? AND parent = ?"
    connection.execute(statement, (parent, parent_id, seq + 1, seq))
    query = "SELECT seq FROM assistant_messages INDEXED BY am_branch WHERE parent = ? AND parent IS NOT seq - 1"
    for (child,) in connection.execute(query, (seq,)).fetchall():
        connection.execute(statement, (parent, parent_id, child, seq))


def _require_overlay(connection: sqlite3.Connection, session_id: str, message_id: str) -> None:
    if not compactions.is_overlay_id(connection, session_id, message_id):
        raise InvalidMessage(f"ids that begin with {COMPACTION_PREFIX!r} are reserved for summaries")


def _state(connection: sqlite3.Connection, session_id: str, *, is_changed: bool) -> Appended:
    return Appended(is_changed, path_tokens(connection, session_id))


def _unchanged(leaf: Leaf | None) -> Appended:
    return Appended(False, leaf.sums.tokens if leaf else 0)
