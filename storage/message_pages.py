"""Pages of the messages of a session without their content: ``id``, ``parentId``, ``role``, ``bytes``, ``tokens``, ``createdAt``.

Three orders. ``newest`` (one path, from its leaf upward) and ``inserted`` (all branches, as they were written): a page costs its
own rows. ``oldest`` (one path, from its root downward): so does a page without a branching; one with a branching also costs
a step for each place at which the path jumps between there and the leaf. A walk along a path keeps to the leaf with which it
began. What is appended or deleted meanwhile makes no other row come twice, or not at all; if both the row and the leaf that a
cursor tells of are gone, the walk goes on above the place where they were.
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Literal, TypeAlias

from storage import cursors, history, leaves, paths
from storage.errors import InvalidArgument, shown
from storage.paths import Range
from storage.records import MessagePage, MessageRow

Order: TypeAlias = Literal["newest", "oldest", "inserted"]
Row: TypeAlias = tuple[int, str, str | None, str, int, int, str]

_COLUMNS: Final = "seq, id, parent_id, role, bytes, tok, created_at"


def page(
    connection: sqlite3.Connection,
    session_id: str,
    limit: int,
    cursor: str | None = None,
    *,
    order: Order = "newest",
    leaf_id: str | None = None,
) -> MessagePage:
    """Up to `limit` rows as ``messages``, and ``nextCursor`` if there are more; to be used with the same order and leaf.

    ``leaf_id`` None: the path to the latest leaf. Raises InvalidArgument for a limit, order or cursor that cannot be.
    """
    if not isinstance(order, str) or order not in _PAGES:
        raise InvalidArgument(f"the order of messages is {', '.join(map(repr, _PAGES))}, not {shown(order)}")
    limit = cursors.checked_limit(limit)
    if leaf_id is not None and not isinstance(leaf_id, str):
        raise InvalidArgument(f"the leaf of a page must be a message id, not {type(leaf_id).__name__}")
    scope = cursors.scope("messages", session_id, order, leaf_id or None)
    rows, next_place = _PAGES[order](connection, session_id, limit, cursor, scope, leaf_id)
    found: MessagePage = {"messages": [_record(row) for row in rows]}
    if next_place is not None:
        found["nextCursor"] = cursors.encode(scope, *next_place)
    return found


def _newest(
    connection: sqlite3.Connection, session_id: str, limit: int, cursor: str | None, scope: int, leaf_id: str | None
) -> tuple[list[Row], tuple[int, ...] | None]:
    if cursor is None:
        leaf = start = history.leaf_seq(connection, session_id, leaf_id)
        leaf_mark = _mark(connection, leaf)
    else:
        leaf, leaf_mark, last, last_mark = cursors.decode(cursor, scope, 4)
        start = _above(connection, session_id, (leaf, leaf_mark), (last, last_mark))
    rows = list(islice(_upward(connection, start), limit + 1))
    if len(rows) <= limit or leaf is None:
        return rows, None
    seq, identity, *_ = rows[limit - 1]
    return rows[:limit], (leaf, leaf_mark, seq, cursors.mark(identity))


def _oldest(
    connection: sqlite3.Connection, session_id: str, limit: int, cursor: str | None, scope: int, leaf_id: str | None
) -> tuple[list[Row], tuple[int, ...] | None]:
    if cursor is None:
        leaf = end = history.leaf_seq(connection, session_id, leaf_id)
        leaf_mark = _mark(connection, leaf)
        place, is_place_there = 0, True
    else:
        leaf, leaf_mark, place, place_mark = cursors.decode(cursor, scope, 4)
        is_place_there = _is_there(connection, session_id, place, place_mark)
        end = (
            leaf if _is_there(connection, session_id, leaf, leaf_mark) else _newest_before(connection, session_id, leaf)
        )
    rows: list[Row] = []
    while is_place_there and len(rows) <= limit and place != end and end is not None:
        following = _children(connection, session_id, place)
        if len(following) != 1:  # which way leads to the leaf is seen from there only
            is_place_there = False
        else:
            rows.append(following[0])
            place = rows[-1][0]
    if not is_place_there:
        rows += _below(connection, end, place, limit + 1 - len(rows))
    if len(rows) <= limit or leaf is None:
        return rows, None
    seq, identity, *_ = rows[limit - 1]
    return rows[:limit], (leaf, leaf_mark, seq, cursors.mark(identity))


def _children(connection: sqlite3.Connection, session_id: str, seq: int) -> list[Row]:
    """The children of a message; with 0, the roots of the session. Not more than three, since only one is of use."""
    if seq == 0:
        query = f"""SELECT {_COLUMNS} FROM assistant_messages INDEXED BY am_root
                    WHERE session_id = ? AND parent IS NULL LIMIT 2"""
        return connection.execute(query, (session_id,)).fetchall()
    query = f"SELECT {_COLUMNS} FROM assistant_messages WHERE seq = ?1 + 1 AND parent = ?1"
    found: list[Row] = connection.execute(query, (seq,)).fetchall()
    query = f"""SELECT {_COLUMNS} FROM assistant_messages INDEXED BY am_branch
                WHERE parent = ? AND parent IS NOT seq - 1 LIMIT 2"""
    return found + connection.execute(query, (seq,)).fetchall()


def _below(connection: sqlite3.Connection, leaf: int | None, after: int, count: int) -> list[Row]:
    """The first rows behind `after` on the path to `leaf`, found from the leaf."""
    ranges: deque[Range] = deque(maxlen=count)  # each has a row at least
    for first, last in paths.ranges_upward(connection, leaf):
        if last <= after:
            break
        ranges.append((max(first, after + 1), last))
        if first <= after + 1:
            break
    query = f"SELECT {_COLUMNS} FROM assistant_messages WHERE seq BETWEEN ? AND ? ORDER BY seq"
    return list(islice(_rows(connection, query, reversed(ranges)), count))


def _inserted(
    connection: sqlite3.Connection, session_id: str, limit: int, cursor: str | None, scope: int, leaf_id: str | None
) -> tuple[list[Row], tuple[int, ...] | None]:
    if leaf_id:
        raise InvalidArgument("a page of all messages, in the order 'inserted', has no leaf")
    after = 0 if cursor is None else cursors.decode(cursor, scope, 1)[0]
    rows: list[Row] = []
    alone = leaves.alone_until(connection) if session_id == "" else 0
    if after < alone:
        query = f"SELECT {_COLUMNS} FROM assistant_messages WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
        rows = connection.execute(query, (after, alone, limit + 1)).fetchall()
    if len(rows) <= limit:
        query = f"""SELECT {_COLUMNS} FROM assistant_messages INDEXED BY am_session
                    WHERE session_id = ? AND shared IS NOT NULL AND seq > ? ORDER BY seq LIMIT ?"""
        found = connection.execute(query, (session_id, max(after, alone), limit + 1 - len(rows)))
        rows += found.fetchall()
    return rows[:limit], (rows[limit - 1][0],) if len(rows) > limit else None


_Pages: TypeAlias = Callable[
    [sqlite3.Connection, str, int, str | None, int, str | None], tuple[list[Row], tuple[int, ...] | None]
]
_PAGES: Final[dict[str, _Pages]] = {"newest": _newest, "oldest": _oldest, "inserted": _inserted}


def _above(connection: sqlite3.Connection, session_id: str, leaf: tuple[int, int], last: tuple[int, int]) -> int | None:
    """Where the walk upward goes on: above the last row that was given, or where that was."""
    seq = last[0]
    if _is_there(connection, session_id, *last):
        parent: int | None = connection.execute(
            "SELECT parent FROM assistant_messages WHERE seq = ?", (seq,)
        ).fetchone()[0]
        return parent
    if not _is_there(connection, session_id, *leaf):
        return _newest_before(connection, session_id, seq)
    for first, end in paths.ranges_upward(connection, leaf[0]):
        if first < seq:
            return min(end, seq - 1)
    return None


def _is_there(connection: sqlite3.Connection, session_id: str, seq: int, mark: int) -> bool:
    """Whether the message still is where it was: a number may be given again when the newest rows go."""
    query = "SELECT id FROM assistant_messages WHERE seq = ? AND session_id = ?"
    row = connection.execute(query, (seq, session_id)).fetchone()
    return row is not None and cursors.mark(row[0]) == mark


def _newest_before(connection: sqlite3.Connection, session_id: str, seq: int) -> int | None:
    alone = leaves.alone_until(connection) if session_id == "" else 0
    query = """SELECT max(seq) FROM assistant_messages INDEXED BY am_session
               WHERE session_id = ? AND shared IS NOT NULL AND seq < ?"""
    (found,) = connection.execute(query, (session_id, seq)).fetchone()
    if found is None and alone:
        query = "SELECT max(seq) FROM assistant_messages WHERE seq < ? AND seq <= ?"
        (found,) = connection.execute(query, (seq, alone)).fetchone()
    return None if found is None else int(found)


def _upward(connection: sqlite3.Connection, leaf: int | None) -> Iterator[Row]:
    query = f"SELECT {_COLUMNS} FROM assistant_messages WHERE seq BETWEEN ? AND ? ORDER BY seq DESC"
    return _rows(connection, query, paths.ranges_upward(connection, leaf))


def _rows(connection: sqlite3.Connection, query: str, ranges: Iterable[Range]) -> Iterator[Row]:
    for part in ranges:
        yield from connection.execute(query, part)


def _mark(connection: sqlite3.Connection, seq: int | None) -> int:
    if seq is None:
        return 0
    return cursors.mark(connection.execute("SELECT id FROM assistant_messages WHERE seq = ?", (seq,)).fetchone()[0])


def _record(row: Row) -> MessageRow:
    _, identity, parent_id, role, size, tokens, created_at = row
    return {
        "id": identity,
        "parentId": parent_id,
        "role": role,
        "bytes": size,
        "tokens": tokens,
        "createdAt": created_at,
    }
