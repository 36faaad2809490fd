"""AgentSearchProvider: entries of a searchable context block in SQLite."""

import sqlite3
from typing import Final

from storage.access import Owner, database_of, read, write
from storage.errors import InvalidArgument
from storage.full_text import readable_index
from storage.records import clean
from storage.search_words import fold, match_expression

RESULTS: Final = 10


class AgentSearchProvider:
    """Keyed entries with full-text search. `owner`: a Database or anything with one as ``.database``.

    Entries belong to a label and a session; `for_session` gives the provider of another session.
    """

    def __init__(self, owner: Owner, label: str | None = None, *, session_id: str = "") -> None:
        self.database = database_of(owner)
        self.label = None if label is None else clean(label)
        self.session_id = clean(session_id)

    def init(self, label: str) -> None:
        """Take the block's label, unless one was given."""
        if self.label is None:
            self.label = clean(label)

    def for_session(self, session_id: str) -> "AgentSearchProvider":
        """The same provider over the entries of one session."""
        return AgentSearchProvider(self.database, self.label, session_id=session_id)

    async def get(self) -> str | None:
        """How many entries there are, as a sentence; None if there are none."""
        scope = self._scope()
        count = await read(self.database, lambda connection: count_entries(connection, *scope))
        return f"{count} entries indexed." if count else None

    async def search(self, query: str) -> str | None:
        """The ten best entries that contain every word, each as ``[key]`` and its content; None if there are none."""
        scope = self._scope()
        found = await read(self.database, lambda connection: search_entries(connection, *scope, query))
        return "\n\n".join(f"[{key}]\n{content}" for key, content in found) or None

    async def set(self, key: str, content: str) -> None:
        """Write one entry, in place of an earlier one with that key. Returns after it is durable."""
        if not isinstance(key, str) or not isinstance(content, str):
            raise InvalidArgument("the key and the content of an entry must be texts")
        scope = self._scope()
        await write(self.database, lambda connection: set_entry(connection, *scope, clean(key), clean(content)))

    def _scope(self) -> tuple[str, str]:
        return self.session_id, self.label or ""


def count_entries(connection: sqlite3.Connection, session_id: str, label: str) -> int:
    query = "SELECT count(*) FROM cf_agents_search_entries WHERE session_id = ? AND label = ?"
    return int(connection.execute(query, (session_id, label)).fetchone()[0])


def search_entries(
    connection: sqlite3.Connection, session_id: str, label: str, query: str, limit: int = RESULTS
) -> list[tuple[str, str]]:
    """Key and content of the entries that contain every word of `query`, best first."""
    expression = match_expression(query)
    if expression is None:
        return []
    statement = """SELECT e.key, e.content FROM cf_agents_search_fts AS f JOIN cf_agents_search_entries AS e ON e.seq = f.rowid
                   WHERE f.cf_agents_search_fts MATCH ? AND e.session_id = ? AND e.label = ?
                   ORDER BY f.rank, f.rowid LIMIT ?"""
    with readable_index():
        return connection.execute(statement, (expression, session_id, label, limit)).fetchall()


def set_entry(connection: sqlite3.Connection, session_id: str, label: str, key: str, content: str) -> None:
    query = "SELECT seq, content FROM cf_agents_search_entries WHERE session_id = ? AND label = ? AND key = ?"
    row = connection.execute(query, (session_id, label, key)).fetchone()
    if row is None:
        statement = "INSERT INTO cf_agents_search_entries (session_id, label, key, content) VALUES (?, ?, ?, ?)"
        seq = connection.execute(statement, (session_id, label, key, content)).lastrowid
    else:
        seq, old = row
        _forget(connection, seq, old)
        connection.execute(
            """UPDATE cf_agents_search_entries SET content = ?, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
               WHERE seq = ?""",
            (content, seq),
        )
    connection.execute("INSERT INTO cf_agents_search_fts (rowid, content) VALUES (?, ?)", (seq, fold(content)))


def clear_entries(connection: sqlite3.Connection, session_id: str) -> None:
    """Remove all entries of a session, under every label."""
    query = "SELECT seq, content FROM cf_agents_search_entries WHERE session_id = ?"
    for seq, content in connection.execute(query, (session_id,)).fetchall():
        _forget(connection, seq, content)
    connection.execute("DELETE FROM cf_agents_search_entries WHERE session_id = ?", (session_id,))


def _forget(connection: sqlite3.Connection, seq: int, content: str) -> None:
    statement = "INSERT INTO cf_agents_search_fts (cf_agents_search_fts, rowid, content) VALUES ('delete', ?, ?)"
    connection.execute(statement, (seq, fold(content)))
