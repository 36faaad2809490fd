"""The stored overlays of a session: which of them apply to a path, and what happens to them when messages go.

Every function works on a connection, in the caller's transaction.
"""

import sqlite3
import uuid
from collections.abc import Iterable, Iterator

from storage import leaves, overlays, paths
from storage.errors import InvalidArgument
from storage.overlays import Applied, Overlay, overlay_message
from storage.paths import Range, Sums
from storage.records import COMPACTION_PREFIX, JsonObject, clean
from storage.tokens import estimate_one

_COLUMNS = "seq, id, summary, from_message_id, to_message_id, created_at, tok"


def add(connection: sqlite3.Connection, session_id: str, summary: str, from_id: str, to_id: str) -> JsonObject:
    """Store an overlay, whether it applies or not; the newest leaf's estimate follows."""
    for name, value in (("summary", summary), ("from_id", from_id), ("to_id", to_id)):
        if not isinstance(value, str):
            raise InvalidArgument(f"{name} must be a text, not {type(value).__name__}")
    identity = str(uuid.uuid4())
    summary, from_id, to_id = clean(summary), clean(from_id), clean(to_id)
    tokens = estimate_one(overlay_message(Overlay(0, identity, summary, from_id, to_id, "")))
    row = connection.execute(
        f"""INSERT INTO assistant_compactions (id, session_id, summary, from_message_id, to_message_id, tok)
            VALUES (?, ?, ?, ?, ?, ?) RETURNING {_COLUMNS}""",
        (identity, session_id, summary, from_id, to_id, tokens),
    ).fetchone()
    recount(connection, session_id)
    return record(Overlay(*row))


def remove(connection: sqlite3.Connection, session_id: str, overlay: Overlay) -> None:
    """Remove a stored overlay; what it stood for is visible again, and the newest leaf's estimate follows."""
    connection.execute("DELETE FROM assistant_compactions WHERE seq = ?", (overlay.order,))
    recount(connection, session_id)


def stored(connection: sqlite3.Connection, session_id: str) -> list[Overlay]:
    """All overlays of a session, oldest first."""
    query = f"SELECT {_COLUMNS} FROM assistant_compactions WHERE session_id = ? ORDER BY seq"
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


def exists_any(connection: sqlite3.Connection, session_id: str) -> bool:
    query = "SELECT 1 FROM assistant_compactions WHERE session_id = ? LIMIT 1"
    return connection.execute(query, (session_id,)).fetchone() is not None


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


def ends_at(connection: sqlite3.Connection, session_id: str, message_id: str) -> bool:
    """Whether an overlay waits for a message of this id as its end."""
    query = "SELECT 1 FROM assistant_compactions WHERE session_id = ? AND to_message_id = ? LIMIT 1"
    return connection.execute(query, (session_id, message_id)).fetchone() is not None


def applied(connection: sqlite3.Connection, session_id: str, leaf: int | None, *, since: int = 0) -> list[Applied]:
    """The overlays that apply to the path that ends at `leaf`; their positions are the ``seq`` of their ends.

    With `since`, the path that is read begins at that message; what is above it is not on it.
    """
    candidates = stored(connection, session_id) if leaf is not None else []
    if not candidates:
        return []
    path = _Path(connection, leaf)

    def position(message_id: str) -> int | None:
        seq = leaves.seq_of(connection, session_id, message_id)
        return seq if seq is not None and seq >= since and path.contains(seq) else None

    return overlays.resolve(candidates, position)


def hides(applying: Iterable[Applied], seq: int) -> bool:
    """Whether a message of the path lies in one of the ranges."""
    return any(item.start <= seq <= item.end for item in applying)


def identities(applying: Iterable[Applied]) -> list[str]:
    return [item.overlay.id for item in applying]


def pieces(path: Iterable[Range], applying: Iterable[Applied]) -> Iterator[Range | Applied]:
    """What is visible of a path, in its order: ranges of rows, and overlays in place of what they hide."""
    waiting = iter(applying)
    item = next(waiting, None)
    shown = False
    for first, last in path:
        while first <= last:
            if item is None or item.start > last:
                yield first, last
                break
            if not shown:
                if first < item.start:
                    yield first, item.start - 1
                yield item
                shown = True
            first = item.end + 1
            if item.end <= last:
                item, shown = next(waiting, None), False


def visible_tokens(connection: sqlite3.Connection, session_id: str, leaf: int | None) -> int:
    """Counted anew: the estimate of what is visible of a path. Costs what is visible, not what is hidden."""
    total = 0
    for piece in pieces(paths.ranges(connection, leaf), applied(connection, session_id, leaf)):
        total += piece.overlay.tokens if isinstance(piece, Applied) else paths.sums(connection, *piece).tokens
    return total


def recount(connection: sqlite3.Connection, session_id: str) -> None:
    """Count the visible tokens of the latest leaf's path anew."""
    leaf = leaves.latest(connection, session_id)
    if leaf is not None:
        tokens = visible_tokens(connection, session_id, leaf.seq)
        leaves.set_sums(connection, leaf.seq, Sums(leaf.sums.count, leaf.sums.bytes, tokens))


def release_anchor(connection: sqlite3.Connection, session_id: str, message_id: str, seq: int) -> None:
    """Before a message goes: overlays that begin or end at it move to its neighbour inside, or are dropped.

    Dropped is one without a message left, and one whose new end would be on branches that it did not apply to: it tells what
    was said on another, and may hold a call that is answered here. An overlay whose other end is not on a path with it never
    applied and stays as it is.
    """
    query = f"""SELECT {_COLUMNS} FROM assistant_compactions
                WHERE session_id = ?1 AND (from_message_id = ?2 OR to_message_id = ?2)"""
    for overlay in [Overlay(*row) for row in connection.execute(query, (session_id, message_id))]:
        if overlay.from_id == overlay.to_id:
            connection.execute("DELETE FROM assistant_compactions WHERE seq = ?", (overlay.order,))
        elif overlay.from_id == message_id:
            end = leaves.seq_of(connection, session_id, overlay.to_id)
            neighbour = paths.child_towards(connection, seq, end) if end is not None and end > seq else None
            _move(connection, overlay, "from_message_id", neighbour)
        else:
            start = leaves.seq_of(connection, session_id, overlay.from_id)
            is_range = start is not None and start < seq and paths.is_on_path(connection, start, seq)
            query = "SELECT parent FROM assistant_messages WHERE seq = ?"
            neighbour = connection.execute(query, (seq,)).fetchone()[0] if is_range else None
            if neighbour is not None and _has_other_child(connection, neighbour, seq):
                connection.execute("DELETE FROM assistant_compactions WHERE seq = ?", (overlay.order,))
            else:
                _move(connection, overlay, "to_message_id", neighbour)


def _has_other_child(connection: sqlite3.Connection, seq: int, child: int) -> bool:
    query = """SELECT EXISTS (SELECT 1 FROM assistant_messages WHERE seq = ?1 + 1 AND parent = ?1 AND seq != ?2)
               OR EXISTS (SELECT 1 FROM assistant_messages INDEXED BY am_branch
                          WHERE parent = ?1 AND parent IS NOT seq - 1 AND seq != ?2)"""
    return bool(connection.execute(query, (seq, child)).fetchone()[0])


def _move(connection: sqlite3.Connection, overlay: Overlay, column: str, neighbour: int | None) -> None:
    if neighbour is not None:
        statement = f"""UPDATE assistant_compactions SET {column} = (SELECT id FROM assistant_messages WHERE seq = ?)
                        WHERE seq = ?"""
        connection.execute(statement, (neighbour, overlay.order))


class _Path:
    """Membership in one path; walks it only as far as it is asked."""

    def __init__(self, connection: sqlite3.Connection, leaf: int | None) -> None:
        self._rest = paths.ranges_upward(connection, leaf)
        self._known: list[Range] = []

    def contains(self, seq: int) -> bool:
        while not self._known or self._known[-1][0] > seq:
            step = next(self._rest, None)
            if step is None:
                break
            self._known.append(step)
        # the ranges go upward, so the right one is the last that does not begin after `seq`
        low, high = 0, len(self._known)
        while low < high:
            middle = (low + high) // 2
            if self._known[middle][0] > seq:
                low = middle + 1
            else:
                high = middle
        return low < len(self._known) and seq <= self._known[low][1]
