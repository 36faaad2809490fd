"""AgentContextProvider: one context block in SQLite."""

import sqlite3

from storage.access import Owner, database_of, read, write
from storage.errors import InvalidArgument, LimitExceeded
from storage.records import clean


class AgentContextProvider:
    """A writable block, kept in the row `key`. `owner`: a Database or anything with one as ``.database``.

    ``session_id``: the session that the row belongs to, and goes with.
    """

    def __init__(self, owner: Owner, key: str, *, session_id: str = "") -> None:
        self.key = clean(key)
        self.session_id = clean(session_id)
        self.database = database_of(owner)

    async def get(self) -> str | None:
        """The content; None if nothing was written yet."""
        return await read(self.database, lambda connection: get_block(connection, self.key, self.session_id))

    async def set(self, content: str) -> None:
        """Replace the content. Returns after it is durable. Raises LimitExceeded for one block too many."""
        if not isinstance(content, str):
            raise InvalidArgument(f"the content of a block must be a text, not {type(content).__name__}")
        limit = self.database.options.max_blocks
        await write(
            self.database,
            lambda connection: set_block(connection, self.key, content, self.session_id, max_blocks=limit),
        )


def get_block(connection: sqlite3.Connection, key: str, session_id: str = "") -> str | None:
    query = "SELECT content FROM cf_agents_context_blocks WHERE session_id = ? AND label = ?"
    row = connection.execute(query, (session_id, key)).fetchone()
    return row[0] if row else None


def set_block(connection: sqlite3.Connection, key: str, content: str, session_id: str = "", *, max_blocks: int) -> None:
    """Write a block. The limit counts those of its session."""
    query = """SELECT count(*) FROM cf_agents_context_blocks
               WHERE session_id = ? AND label != ? AND label NOT GLOB '_system_prompt*'"""
    (count,) = connection.execute(query, (session_id, key)).fetchone()
    if count >= max_blocks and not key.startswith("_system_prompt"):
        raise LimitExceeded("The number of context blocks", f"{max_blocks:,}")
    connection.execute(
        """INSERT INTO cf_agents_context_blocks (session_id, label, content) VALUES (?, ?, ?)
           ON CONFLICT (session_id, label)
           DO UPDATE SET content = excluded.content, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')""",
        (session_id, key, clean(content)),
    )


def clear_blocks(connection: sqlite3.Connection, session_id: str) -> None:
    """Remove all blocks of a session, its frozen prompt included."""
    connection.execute("DELETE FROM cf_agents_context_blocks WHERE session_id = ?", (session_id,))
