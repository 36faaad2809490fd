"""Where late results and their calls are stored. The rules are in `actors.session.late_results`.

Every function works on a connection, in the caller's transaction.
"""

import sqlite3
from collections.abc import Callable

import orjson

from storage import paths, visibility
from storage.records import JsonObject, decode


def nearest(
    connection: sqlite3.Connection, seq: int, call_id: str, is_call: Callable[[JsonObject, str], bool]
) -> int | None:
    """The last message above `seq` that makes this call. Costs the distance to it."""
    query = """SELECT seq, CAST(content AS BLOB) FROM assistant_messages
               WHERE seq BETWEEN ? AND ? AND instr(content, ?) ORDER BY seq DESC LIMIT 1"""
    text = orjson.dumps(call_id).decode()
    for first, last in paths.ranges_upward(connection, seq):
        below = min(last, seq - 1)
        while row := connection.execute(query, (first, below, text)).fetchone():
            if is_call(decode(row[1]), call_id):
                return int(row[0])
            below = row[0] - 1
    return None


def after(connection: sqlite3.Connection, session_id: str, seq: int, last: int = 2**62) -> list[tuple[int, JsonObject]]:
    """The messages after `seq` that speak of tool calls, on every branch. Costs what has come since."""
    query = """SELECT seq, CAST(content AS BLOB) FROM assistant_messages
               WHERE seq > ? AND seq <= ? AND +session_id = ? AND instr(content, '"toolCallId"') ORDER BY seq"""
    return [(found, decode(content)) for found, content in connection.execute(query, (seq, last, session_id))]


def beside(connection: sqlite3.Connection, session_id: str, leaf: int, seq: int) -> list[tuple[int, JsonObject]]:
    """`after`, without those of the path to `leaf`, the newest message; no message of the path is read."""
    found: list[tuple[int, JsonObject]] = []
    end = leaf
    for first, last in paths.ranges_upward(connection, leaf):
        if last < end:
            found += after(connection, session_id, max(last, seq), end)
        end = first - 1
        if end <= seq:
            break
    return found


def is_covered(connection: sqlite3.Connection, seq: int) -> bool:
    """Whether this message has the overlay of a late result, visible or not."""
    query = "SELECT EXISTS (SELECT 1 FROM assistant_compactions WHERE call IS NOT NULL AND first = ?)"
    return bool(connection.execute(query, (seq,)).fetchone()[0])


def forget(connection: sqlite3.Connection, session_id: str, seq: int) -> None:
    """Remove the overlay of a late result, if this message has one; the newest leaf's estimate follows."""
    statement = "DELETE FROM assistant_compactions WHERE call IS NOT NULL AND first = ?"
    if connection.execute(statement, (seq,)).rowcount:
        visibility.recount(connection, session_id)
        uncover(connection, session_id, seq, seq)


def uncover(connection: sqlite3.Connection, session_id: str, first: int, last: int | None = None) -> None:
    """Remove the overlays of late results whose calls, in this range, are visible; the newest leaf's estimate follows."""
    query = """SELECT call, first, seq FROM assistant_compactions INDEXED BY ac_order
               WHERE session_id = ? AND call BETWEEN ? AND ? ORDER BY call"""
    rows = connection.execute(query, (session_id, first, 2**62 if last is None else last)).fetchall()
    visible = [row for row in rows if _is_visible(connection, session_id, row[0], row[1])]
    for _, message, order in visible:
        connection.execute("DELETE FROM assistant_compactions WHERE seq = ?", (order,))
        uncover(connection, session_id, message, message)  # it may itself hold a call that was hidden with it
    if visible:
        visibility.recount(connection, session_id)


def _is_visible(connection: sqlite3.Connection, session_id: str, call: int, leaf: int) -> bool:
    is_there = paths.is_on_path(connection, call, leaf)  # it may have been deleted
    return is_there and not visibility.is_folded(connection, session_id, leaf, call)
