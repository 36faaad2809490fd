"""PostgresSearchProvider: entries of a searchable context block in PostgreSQL."""

from typing import Any, Final

from storage.postgres.clients import client_of
from storage.postgres.messages import OR_NOTHING, substring_conditions
from storage.postgres.tables import ENTRIES, Tables
from storage.postgres.texts import escape, label_of, query_words, required, unescape
from storage.search import RESULTS

_COUNT: Final = "SELECT count(*) AS entries FROM cf_agents_search_entries WHERE label = CAST(? AS text)"
_SEARCH: Final = """SELECT e.key, e.content
    FROM cf_agents_search_entries AS e CROSS JOIN plainto_tsquery('english', CAST(? AS text)) AS q
    WHERE e.label = CAST(? AS text) AND (e.content_tsv @@ q{or_nothing}){substrings}
    ORDER BY ts_rank(e.content_tsv, q) DESC, {oldest_first} LIMIT CAST(? AS bigint)"""
_SET: Final = """
    WITH new AS (SELECT CAST(? AS text) AS label, CAST(? AS text) AS key, CAST(? AS text) AS content),
    stored AS (
        INSERT INTO cf_agents_search_entries (label, key, content, created_at, updated_at)
        SELECT new.label, new.key, new.content,
               GREATEST(clock_timestamp(), (SELECT max(e.created_at) FROM cf_agents_search_entries AS e
                   WHERE e.label = new.label) + interval '1 microsecond'), clock_timestamp()
        FROM new
        ON CONFLICT (label, key) DO UPDATE SET content = EXCLUDED.content, updated_at = EXCLUDED.updated_at)
    SELECT CAST(NULL AS text) AS problem"""


class PostgresSearchProvider:
    """Keyed entries with full-text search, in English. `client`: as for PostgresSessionProvider.

    Entries belong to a label and a session; `for_session` gives the provider of another session. An entry with more text than
    PostgreSQL can index raises LimitExceeded.
    """

    def __init__(self, client: Any, label: str | None = None, *, session_id: str = "") -> None:
        self._client = client_of(client)
        self._label = None if label is None else required(label, "a label")
        self._session = required(session_id, "a session id")

    def init(self, label: str) -> None:
        """Take the block's label, unless one was given."""
        if self._label is None:
            self._label = escape(label)

    def for_session(self, session_id: str) -> "PostgresSearchProvider":
        """The same provider over the entries of one session."""
        label = None if self._label is None else unescape(self._label)
        return PostgresSearchProvider(self._client, label, session_id=session_id)

    async def get(self) -> str | None:
        """How many entries there are, as a sentence; None if there are none."""
        await self._tables()
        (row,) = await self._client.read(_COUNT, [self._row_label()])
        return f"{row['entries']} entries indexed." if int(row["entries"]) else None

    async def search(self, query: str) -> str | None:
        """The ten best entries that contain every word, each as ``[key]`` and its content; None if there are none."""
        words, substrings = query_words(query)
        tables = await self._tables()
        statement = _SEARCH.format(
            or_nothing=OR_NOTHING if substrings else "",
            substrings=substring_conditions("e.content", substrings),
            oldest_first=tables.oldest_first(ENTRIES),
        )
        rows = await self._client.read(statement, [words, self._row_label(), *substrings, RESULTS])
        return "\n\n".join(f"[{unescape(row['key'])}]\n{unescape(row['content'])}" for row in rows) or None

    async def set(self, key: str, content: str) -> None:
        """Write one entry, in place of an earlier one with that key. Returns after it is committed."""
        entry = [required(key, "the key of an entry"), required(content, "the content of an entry")]
        label = self._row_label()
        await self._tables()
        await self._client.write(f"perdure:entries:{label}", _SET, [label, *entry])

    async def _tables(self) -> Tables:
        return await self._client.ready(ENTRIES)

    def _row_label(self) -> str:
        return label_of(self._label or "", self._session)
