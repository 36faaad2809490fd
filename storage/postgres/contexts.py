"""PostgresContextProvider: one context block, or a frozen prompt, in PostgreSQL."""

from typing import Any, Final

from storage.postgres.clients import client_of
from storage.postgres.tables import BLOCKS
from storage.postgres.texts import label_of, required, unescape

_GET: Final = "SELECT content FROM cf_agents_context_blocks WHERE label = CAST(? AS text)"
_SET: Final = """
    WITH stored AS (
        INSERT INTO cf_agents_context_blocks (label, content, updated_at)
        VALUES (CAST(? AS text), CAST(? AS text), clock_timestamp())
        ON CONFLICT (label) DO UPDATE SET content = EXCLUDED.content, updated_at = EXCLUDED.updated_at)
    SELECT CAST(NULL AS text) AS problem"""


class PostgresContextProvider:
    """A writable block, kept in the row `label`. `client`: as for PostgresSessionProvider."""

    def __init__(self, client: Any, label: str) -> None:
        self._client = client_of(client)
        self._label = required(label, "a label")

    def for_prompt_of(self, session_id: str) -> "PostgresContextProvider":
        """As the prompt store of one of several sessions: a row of its own."""
        return PostgresContextProvider(self._client, label_of(unescape(self._label), session_id))

    async def get(self) -> str | None:
        """The content; None if nothing was written yet."""
        await self._client.ready(BLOCKS)
        rows = await self._client.read(_GET, [self._label])
        return unescape(rows[0]["content"]) if rows else None

    async def set(self, content: str) -> None:
        """Replace the content. Returns after it is committed."""
        stored = required(content, "the content of a block")
        await self._client.ready(BLOCKS)
        await self._client.write(f"perdure:block:{self._label}", _SET, [self._label, stored])
