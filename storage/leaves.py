"""The latest leaf of a session and the running sums of its path.

The newest row of a session never has a child, so it is the latest leaf. Its ``path_*`` columns are the sums of its path:
count and bytes of all messages on it, tokens of what is visible of it. In other rows they are out of date.
"""

import sqlite3
from dataclasses import dataclass

from storage.paths import Sums

_COLUMNS = "seq, id, session_id, shared, path_count, path_bytes, path_tok"


@dataclass(frozen=True, slots=True)
class Leaf:
    seq: int
    id: str
    sums: Sums


@dataclass(frozen=True, slots=True)
class Ends:
    """The latest leaf of a session (None: it is empty), and what its next row must have in the column ``shared``."""

    leaf: Leaf | None
    shared: int | None


def ends(connection: sqlite3.Connection, session_id: str) -> Ends:
    """One look at the newest row of the file; one more if that is another session's."""
    newest = connection.execute(f"SELECT {_COLUMNS} FROM assistant_messages ORDER BY seq DESC LIMIT 1").fetchone()
    if newest is None:
        return Ends(None, None if session_id == "" else 0)
    seq, _, newest_session, shared, *_ = newest
    if newest_session == session_id:
        return Ends(_leaf(newest), shared)
    if shared is None:  # the default session has been alone so far
        return Ends(None, seq)
    return Ends(_leaf_among_others(connection, session_id, shared), shared)


def alone_until(connection: sqlite3.Connection) -> int:
    """The last ``seq`` up to which all rows are of the default session and not indexed by session."""
    row = connection.execute("SELECT seq, shared FROM assistant_messages ORDER BY seq DESC LIMIT 1").fetchone()
    if row is None:
        return 0
    return int(row[0] if row[1] is None else row[1])


def latest(connection: sqlite3.Connection, session_id: str) -> Leaf | None:
    return ends(connection, session_id).leaf


def counts(connection: sqlite3.Connection) -> dict[str, int]:
    """Messages and visible tokens of the default session's path to its latest leaf, from the running sums."""
    leaf = latest(connection, "")
    return {"messages": leaf.sums.count, "tokens": leaf.sums.tokens} if leaf else {"messages": 0, "tokens": 0}


def seq_of(connection: sqlite3.Connection, session_id: str, message_id: str) -> int | None:
    """The number of a message; None if the session does not have it."""
    query = "SELECT seq FROM assistant_messages WHERE session_id = ? AND id = ?"
    row = connection.execute(query, (session_id, message_id)).fetchone()
    return row[0] if row else None


def set_sums(connection: sqlite3.Connection, seq: int, sums: Sums) -> None:
    statement = "UPDATE assistant_messages SET path_count = ?, path_bytes = ?, path_tok = ? WHERE seq = ?"
    connection.execute(statement, (sums.count, sums.bytes, sums.tokens, seq))


def _leaf_among_others(connection: sqlite3.Connection, session_id: str, shared: int) -> Leaf | None:
    query = f"""SELECT {_COLUMNS} FROM assistant_messages INDEXED BY am_session
                WHERE session_id = ? AND shared IS NOT NULL ORDER BY seq DESC LIMIT 1"""
    row = connection.execute(query, (session_id,)).fetchone()
    if row is None and session_id == "":
        query = f"SELECT {_COLUMNS} FROM assistant_messages WHERE seq <= ? ORDER BY seq DESC LIMIT 1"
        row = connection.execute(query, (shared,)).fetchone()
    return _leaf(row) if row else None


def _leaf(row: tuple[int, str, str, int | None, int, int, int]) -> Leaf:
    seq, identity, _, _, count, size, tokens = row
    return Leaf(seq, identity, Sums(count, size, tokens))
