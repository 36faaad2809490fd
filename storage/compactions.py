"""The stored overlays of a session, and what happens to them when messages come and go.

Which of them apply to a path is read in `storage.visibility`.

Every function works on a connection, in the caller's transaction.
"""

import sqlite3
import uuid

from storage import late_results, leaves, paths, visibility
from storage.errors import InvalidArgument
from storage.overlays import Overlay, overlay_message
from storage.paths import Sums
from storage.records import COMPACTION_PREFIX, JsonObject, clean
from storage.tokens import estimate_one
from storage.visibility import COLUMNS, recount


def add(
    connection: sqlite3.Connection, session_id: str, summary: str, from_id: str, to_id: str, *, call: int | None = None
) -> JsonObject:
    """Store an overlay, whether it applies or not; the newest leaf's estimate follows.

    ``call``: it stands for a visible message that is the late result of this call (`storage.late_results`).
    """
    for name, value in (("summary", summary), ("from_id", from_id), ("to_id", to_id)):
        if not isinstance(value, str):
            raise InvalidArgument(f"{name} must be a text, not {type(value).__name__}")
    identity = str(uuid.uuid4())
    summary, from_id, to_id = clean(summary), clean(from_id), clean(to_id)
    first, last = (leaves.seq_of(connection, session_id, end) for end in (from_id, to_id))
    tokens = estimate_one(overlay_message(Overlay(0, identity, summary, from_id, to_id, "")))
    leaf = leaves.latest(connection, session_id)
    change, is_most = 0, False
    if call is None and leaf is not None and first is not None and last is not None and first <= last:
        is_most = 2 * (last - first) > leaf.sums.count  # then what stays is counted more quickly
        change = 0 if is_most else visibility.change_by(connection, session_id, leaf.seq, first, last, tokens)
    row = connection.execute(
        f"""INSERT INTO assistant_compactions
                (id, session_id, summary, from_message_id, to_message_id, first, last, call, tok)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {COLUMNS}""",
        (identity, session_id, summary, from_id, to_id, first, last, call, tokens),
    ).fetchone()
    if call is not None and first is not None:
        _count_instead(connection, session_id, first, tokens)
    elif first is not None and last is not None and first <= last:
        if is_most:
            recount(connection, session_id)
        elif leaf is not None and change:
            leaves.set_sums(connection, leaf.seq, leaf.sums + Sums(tokens=change))
        late_results.uncover(connection, session_id, last + 1)
    return record(Overlay(*row))


def _count_instead(connection: sqlite3.Connection, session_id: str, seq: int, tokens: int) -> None:
    """The newest leaf's estimate when a text of so many tokens stands for a message that was visible."""
    leaf = leaves.latest(connection, session_id)
    if leaf is not None and leaf.seq == seq:
        (before,) = connection.execute("SELECT tok FROM assistant_messages WHERE seq = ?", (seq,)).fetchone()
        leaves.set_sums(connection, seq, leaf.sums + Sums(tokens=tokens - before))
    elif leaf is not None and paths.is_on_path(connection, seq, leaf.seq):
        recount(connection, session_id)


def stored(connection: sqlite3.Connection, session_id: str) -> list[Overlay]:
    """All overlays of a session, oldest first."""
    query = f"SELECT {COLUMNS} FROM assistant_compactions WHERE session_id = ? ORDER BY seq"
    return [Overlay(*row) for row in connection.execute(query, (session_id,))]


def clear(connection: sqlite3.Connection, session_id: str) -> int:
    """Remove all overlays of a session; how many there were."""
    return connection.execute("DELETE FROM assistant_compactions WHERE session_id = ?", (session_id,)).rowcount


def record(overlay: Overlay) -> JsonObject:
    """An overlay as readers see it."""
    return {
        "id": overlay.id,
        "summary": overlay.summary,
        "fromMessageId": overlay.from_id,
        "toMessageId": overlay.to_id,
        "createdAt": overlay.created_at,
    }


def is_overlay_id(connection: sqlite3.Connection, session_id: str, message_id: str) -> bool:
    """Whether a message id is that of a stored overlay's message."""
    query = "SELECT 1 FROM assistant_compactions WHERE id = ? AND session_id = ?"
    key = message_id.removeprefix(COMPACTION_PREFIX)
    return connection.execute(query, (key, session_id)).fetchone() is not None


def echoes(connection: sqlite3.Connection, session_id: str) -> list[str]:
    """Messages that repeat a stored overlay: clients send back what they were shown, and other programs have stored that.

    Perdure stores none, and removes those that it finds; they hold nothing that the overlay does not.
    """
    query = """SELECT id FROM assistant_messages AS message WHERE session_id = ?1 AND id >= ?2 AND id < ?3
               AND EXISTS (SELECT 1 FROM assistant_compactions
                           WHERE session_id = ?1 AND id = substr(message.id, length(?2) + 1))"""
    after = COMPACTION_PREFIX[:-1] + chr(ord(COMPACTION_PREFIX[-1]) + 1)
    return [row[0] for row in connection.execute(query, (session_id, COMPACTION_PREFIX, after))]


def end_of(connection: sqlite3.Connection, session_id: str, message_id: str) -> str | None:
    """The last message of the range that an overlay's message stands for; None if there is no such overlay or message."""
    query = """SELECT to_message_id FROM assistant_compactions AS overlay WHERE id = ?1 AND session_id = ?2 AND EXISTS
               (SELECT 1 FROM assistant_messages WHERE session_id = ?2 AND id = overlay.to_message_id)"""
    row = connection.execute(query, (message_id.removeprefix(COMPACTION_PREFIX), session_id)).fetchone()
    return row[0] if row else None


def arrive(connection: sqlite3.Connection, session_id: str, message_id: str, seq: int) -> bool:
    """After a message was appended: overlays that named it before it was there know its place. Whether one may apply now."""
    where = "WHERE session_id = ? AND {}_message_id = ?"
    found = 0
    for end, place in (("from", "first"), ("to", "last")):
        statement = f"UPDATE assistant_compactions SET {place} = ? {where.format(end)}"
        found = connection.execute(statement, (seq, session_id, message_id)).rowcount
    if found:
        recount(connection, session_id)
    return found > 0


def release_anchor(connection: sqlite3.Connection, session_id: str, message_id: str, seq: int) -> int | None:
    """Before a message goes: overlays that begin or end at it move to its neighbour inside, or are dropped.

    Dropped is one without a message left, and one whose new end would be on branches that it did not apply to: it tells what
    was said on another, and may hold a call that is answered here. An overlay whose other end is not on a path with it never
    applied and stays as it is.

    From which message on others may be hidden or shown than before; None if only the message itself goes.
    """
    query = """SELECT seq, first, last, call FROM assistant_compactions WHERE session_id = ?1 AND from_message_id = ?2
               UNION SELECT seq, first, last, call FROM assistant_compactions WHERE session_id = ?1 AND to_message_id = ?2"""
    rows = connection.execute(query, (session_id, message_id)).fetchall()
    is_end = any(last == seq and first != seq for _, first, last, _ in rows)
    changed: list[int] = []
    neighbours: set[int] = set()
    for order, first, last, call in rows:
        if first != last and (first is None or last is None or not paths.is_on_path(connection, first, last)):
            place = "first" if first == seq else "last"
            connection.execute(f"UPDATE assistant_compactions SET {place} = NULL WHERE seq = ?", (order,))
        elif first == last:
            _drop(connection, order)
            if call is None:
                changed.append(first)
        elif first == seq:
            neighbour = paths.child_towards(connection, seq, last)
            assert neighbour is not None
            if neighbour not in neighbours and (is_end or visibility.is_start(connection, session_id, neighbour)):
                changed.append(
                    neighbour
                )  # it meets another that begins there, or is no more hidden by one that ended here
            neighbours.add(neighbour)
            _move(connection, order, "from", "first", neighbour)
        else:
            (above,) = connection.execute("SELECT parent FROM assistant_messages WHERE seq = ?", (seq,)).fetchone()
            if _has_other_child(connection, above, seq):
                _drop(connection, order)
                changed.append(visibility.hidden_until(connection, session_id, first, last) + 1)
            else:
                _move(connection, order, "to", "last", above)
    return min(changed, default=None)


def _drop(connection: sqlite3.Connection, order: int) -> None:
    connection.execute("DELETE FROM assistant_compactions WHERE seq = ?", (order,))


def _has_other_child(connection: sqlite3.Connection, seq: int, child: int) -> bool:
    query = """SELECT EXISTS (SELECT 1 FROM assistant_messages WHERE seq = ?1 + 1 AND parent = ?1 AND seq != ?2)
               OR EXISTS (SELECT 1 FROM assistant_messages INDEXED BY am_branch
                          WHERE parent = ?1 AND parent IS NOT seq - 1 AND seq != ?2)"""
    return bool(connection.execute(query, (seq, child)).fetchone()[0])


def _move(connection: sqlite3.Connection, order: int, end: str, place: str, neighbour: int) -> None:
    statement = f"""UPDATE assistant_compactions
                    SET {place} = ?1, {end}_message_id = (SELECT id FROM assistant_messages WHERE seq = ?1) WHERE seq = ?2"""
    connection.execute(statement, (neighbour, order))
