"""Texts that a session leaves for itself, in ``perdure_state``. They go with it.

Every function works on a connection, in the caller's transaction.
"""

import sqlite3


def get(connection: sqlite3.Connection, session_id: str, name: str) -> str | None:
    row = connection.execute("SELECT value FROM perdure_state WHERE key = ?", (_key(session_id, name),)).fetchone()
    return None if row is None else row[0]


def take(connection: sqlite3.Connection, session_id: str, name: str) -> str | None:
    """`get`, and forget it."""
    statement = "DELETE FROM perdure_state WHERE key = ? RETURNING value"
    row = connection.execute(statement, (_key(session_id, name),)).fetchone()
    return None if row is None else row[0]


def put(connection: sqlite3.Connection, session_id: str, name: str, text: str | None) -> None:
    """Leave a text (None: remove it)."""
    key = _key(session_id, name)
    if text is None:
        connection.execute("DELETE FROM perdure_state WHERE key = ?", (key,))
    else:
        connection.execute("INSERT OR REPLACE INTO perdure_state (key, value) VALUES (?, ?)", (key, text))


def clear(connection: sqlite3.Connection, session_id: str) -> None:
    """Remove all that a session left."""
    prefix = _key(session_id, "")
    statement = """DELETE FROM perdure_state
                   WHERE key >= ?1 AND substr(key, 1, length(?1)) = ?1 AND instr(substr(key, length(?1) + 1), ':') = 0
                         AND key < ?2"""
    connection.execute(statement, (prefix, prefix[:-1] + ";"))


def _key(session_id: str, name: str) -> str:
    """A name has no colon, a session id may have some."""
    return f"session:{session_id}:{name}"
