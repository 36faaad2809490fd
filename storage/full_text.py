"""The full-text index of messages. It lags behind: an append does not touch it, a search first catches up.

Invariant: every message whose ``seq`` is at most the index's position is in it, with its present text, if it has text;
nothing else is. The table keeps no copy of the text, so an entry is removed by giving the text that was indexed again: before
a row that is indexed changes or goes, `forget` or `replacing` does that, in the same transaction.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from storage import schema
from storage.errors import CorruptDatabase, InvalidArgument, shown
from storage.message_text import message_text
from storage.records import JsonObject, decode
from storage.search_words import fold, match_expression

BATCH: Final = 64
"""After so many appends the index is brought up to date in the background, so that a search never has much to catch up."""

MOST: Final = 512
"""So many are indexed in one write, which takes some tens of milliseconds."""

_POSITION: Final = "fts_position"
_UNINDEXED: Final = "SELECT seq, CAST(content AS BLOB) FROM assistant_messages WHERE seq > ? ORDER BY seq LIMIT ?"


def position(connection: sqlite3.Connection) -> int:
    """The last ``seq`` that is indexed."""
    row = connection.execute("SELECT value FROM perdure_state WHERE key = ?", (_POSITION,)).fetchone()
    return int(row[0]) if row else 0


def missing(connection: sqlite3.Connection) -> int:
    """How many messages, at most, are not indexed yet."""
    (newest,) = connection.execute("SELECT max(seq) FROM assistant_messages").fetchone()
    return max(0, (newest or 0) - position(connection))


def catch_up(connection: sqlite3.Connection, at_most: int | None = None) -> None:
    """Index what has been appended since; with `at_most`, the oldest so many of it. Raises as `search` does."""
    last = None
    with readable_index():
        for last, content in connection.execute(_UNINDEXED, (position(connection), -1 if at_most is None else at_most)):
            _add(connection, last, content)
    if last is not None:
        _set_position(connection, last)


def forget(connection: sqlite3.Connection, seq: int) -> None:
    """Remove a message from the index, before its row changes or goes."""
    if seq <= position(connection):
        _remove(connection, seq, _content(connection, seq))


@contextmanager
def replacing(connection: sqlite3.Connection, seq: int) -> Iterator[None]:
    """Around a change of a message's content: the index follows if it has the message."""
    is_indexed = seq <= position(connection)
    if is_indexed:
        _remove(connection, seq, _content(connection, seq))
    yield
    if is_indexed:
        _add(connection, seq, _content(connection, seq))


def forget_session(connection: sqlite3.Connection, session_id: str) -> None:
    """Remove all messages of a session from the index, before its rows go."""
    (lowest,) = connection.execute("SELECT min(session_id) FROM assistant_messages").fetchone()
    (highest,) = connection.execute("SELECT max(session_id) FROM assistant_messages").fetchone()
    if lowest == highest == session_id:
        connection.execute("INSERT INTO assistant_fts (assistant_fts) VALUES ('delete-all')")
        return
    query = "SELECT seq, CAST(content AS BLOB) FROM assistant_messages WHERE session_id = ? AND seq <= ?"
    for seq, content in connection.execute(query, (session_id, position(connection))):
        _remove(connection, seq, content)


def lower_position(connection: sqlite3.Connection) -> None:
    """After rows went: a number that may be given again must not count as indexed."""
    (newest,) = connection.execute("SELECT max(seq) FROM assistant_messages").fetchone()
    if position(connection) > (newest or 0):
        _set_position(connection, newest or 0)


def search(connection: sqlite3.Connection, session_id: str | None, query: str, limit: float = 20) -> list[JsonObject]:
    """The messages of a session that contain every word of `query`, best first, ties in the order of insertion.

    ``session_id`` None: of all sessions of the file. The index must be up to date. Raises InvalidArgument for a bad limit,
    CorruptDatabase if the index cannot be read.
    """
    expression = match_expression(query)
    count = whole_limit(limit)
    if expression is None or count == 0:
        return []
    statement = """SELECT CAST(m.content AS BLOB), m.created_at
                   FROM assistant_fts AS f JOIN assistant_messages AS m ON m.seq = f.rowid
                   WHERE f.assistant_fts MATCH ?1 AND (?2 IS NULL OR m.session_id = ?2)
                   ORDER BY f.rank, f.rowid LIMIT ?3"""
    with readable_index():
        rows = connection.execute(statement, (expression, session_id, count)).fetchall()
    return [_result(decode(content), created_at) for content, created_at in rows]


def search_unwritten(
    connection: sqlite3.Connection, session_id: str | None, query: str, limit: float = 20
) -> list[JsonObject]:
    """`search` where nothing can be written: what is not indexed yet is indexed in memory, and found after the rest."""
    found = search(connection, session_id, query, limit)
    with closing(schema.empty()) as scratch:
        rows = connection.execute(_UNINDEXED, (position(connection), -1))
        contents = {seq: content for seq, content in rows}
        for seq, content in contents.items():
            _add(scratch, seq, content)
        statement = "SELECT rowid FROM assistant_fts WHERE assistant_fts MATCH ? ORDER BY rank, rowid"
        expression = match_expression(query)
        hits = [seq for (seq,) in scratch.execute(statement, (expression,))] if expression else []
    statement = "SELECT created_at FROM assistant_messages WHERE seq = ?1 AND (?2 IS NULL OR session_id = ?2)"
    for seq in hits:
        row = connection.execute(statement, (seq, session_id)).fetchone()
        if row:
            found.append(_result(decode(contents[seq]), row[0]))
    return found[: whole_limit(limit)]


def whole_limit(limit: float) -> int:
    """A limit as a count: cut to a whole number. Raises InvalidArgument if it is negative or no number."""
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
        raise InvalidArgument(f"a limit must be a number that is not negative, not {shown(limit)}")
    return int(min(limit, 2**62))


@contextmanager
def readable_index() -> Iterator[None]:
    """An index that cannot be read is an error, never an empty result."""
    try:
        yield
    except sqlite3.DatabaseError as exc:
        raise CorruptDatabase("the full-text index", str(exc)) from exc


def _result(message: JsonObject, created_at: str) -> JsonObject:
    own = message.get("createdAt")
    return {
        "id": message["id"],
        "role": message["role"],
        "content": message_text(message),
        "createdAt": own if isinstance(own, str) and own else created_at,
    }


def _add(connection: sqlite3.Connection, seq: int, content: bytes) -> None:
    text = fold(message_text(decode(content)))
    if text.strip():
        connection.execute("INSERT INTO assistant_fts (rowid, content) VALUES (?, ?)", (seq, text))


def _remove(connection: sqlite3.Connection, seq: int, content: bytes) -> None:
    text = fold(message_text(decode(content)))
    if text.strip():
        statement = "INSERT INTO assistant_fts (assistant_fts, rowid, content) VALUES ('delete', ?, ?)"
        connection.execute(statement, (seq, text))


def _content(connection: sqlite3.Connection, seq: int) -> bytes:
    query = "SELECT CAST(content AS BLOB) FROM assistant_messages WHERE seq = ?"
    content: bytes = connection.execute(query, (seq,)).fetchone()[0]
    return content


def _set_position(connection: sqlite3.Connection, seq: int) -> None:
    connection.execute("INSERT OR REPLACE INTO perdure_state VALUES (?, ?)", (_POSITION, str(seq)))
