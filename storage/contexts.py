"""AgentContextProvider: one context block in SQLite."""

import sqlite3

from storage.access import Owner, database_of, read, write
from storage.errors import InvalidArgument, LimitExceeded
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
        """Replace the content. Returns after it is durable. Raises LimitExceeded for one block too many."""
        if not isinstance(content, str):
            raise InvalidArgument(f"the content of a block must be a text, not {type(content).__name__}")
        limit = self.database.options.max_blocks
        await write(self.database, lambda connection: set_block(connection, self.key, content, max_blocks=limit))


def get_block(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT content FROM cf_agents_context_blocks WHERE label = ?", (key,)).fetchone()
    return row[0] if row else None


def set_block(connection: sqlite3.Connection, key: str, content: str, *, max_blocks: int) -> None:
    query = "SELECT count(*) FROM cf_agents_context_blocks WHERE label != ? AND label NOT GLOB '_system_prompt*'"
    (count,) = connection.execute(query, (key,)).fetchone()
    if count >= max_blocks and not key.startswith("_system_prompt"):
        raise LimitExceeded("The number of context blocks", f"{max_blocks:,}")
    connection.execute(
        """INSERT INTO cf_agents_context_blocks (label, content) VALUES (?, ?)
           ON CONFLICT (label) DO UPDATE SET content = excluded.content, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')""",
        (key, clean(content)),
    )
