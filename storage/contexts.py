"""AgentContextProvider: one context block in SQLite."""

import sqlite3

from storage.access import Owner, database_of, read, write
from storage.errors import InvalidArgument
from storage.records import clean


class AgentContextProvider:
    """A writable block, kept in the row `key`. `owner`: a Database or anything with one as ``.database``."""

    def __init__(self, owner: Owner, key: str) -> None:
        self.key = clean(key)
        self.database = database_of(owner)

    async def get(self) -> str | None:
        """The content; None if nothing was written yet."""
        return await read(self.database, lambda connection: get_block(connection, self.key))

    async def set(self, content: str) -> None:
        """Replace the content. Returns after it is durable."""
        if not isinstance(content, str):
            raise InvalidArgument(f"the content of a block must be a text, not {type(content).__name__}")
        await write(self.database, lambda connection: set_block(connection, self.key, content))


def get_block(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT content FROM cf_agents_context_blocks WHERE label = ?", (key,)).fetchone()
    return row[0] if row else None


def set_block(connection: sqlite3.Connection, key: str, content: str) -> None:
    connection.execute(
        """INSERT INTO cf_agents_context_blocks (label, content) VALUES (?, ?)
           ON CONFLICT (label) DO UPDATE SET content = excluded.content, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')""",
        (key, clean(content)),
    )
