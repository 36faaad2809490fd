"""PostgresSessionProvider: the messages of one session in PostgreSQL.

A write is one statement under the session's lock, so that two processes that append at once neither lose a message nor fork. A
read of a path first takes the shape of the tree and then the messages that are visible; if one of these went in between, it
begins again.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import orjson

from storage.errors import InvalidArgument, InvalidMessage, LimitExceeded, UnknownMessage, UnknownParent
from storage.full_text import whole_limit
from storage.history import whole_number
from storage.message_pages import Order
from storage.message_text import message_text
from storage.message_tree import Parent
from storage.overlays import Overlay, check_size, overlay_message
from storage.postgres import pages
from storage.postgres.clients import client_of
from storage.postgres.errors import PostgresFailed, PostgresUnavailable
from storage.postgres.guards import CHANGED, DIGESTS, VERSION, State, change_of_overlays, guarded, unguarded
from storage.postgres.tables import COMPACTIONS, MESSAGES, Tables
from storage.postgres.texts import escape, iso_time, query_words, required, unescape
from storage.postgres.trees import Tree, tree_of
from storage.records import COMPACTION_PREFIX, LATEST, JsonObject, Latest, SessionMessage, clean, decode, encode
from storage.replication import StorageOptions
from storage.tokens import estimate_one

_log = logging.getLogger("perdure.storage")

_INDEXED: Final = 150_000
"""So many characters of a message are searched if PostgreSQL cannot index all of them (a tsvector has at most 1 MiB)."""

_ATTEMPTS: Final = 3
"""After so many reads in which messages went, everything is read at once."""

_MILLISECONDS: Final = "CAST(EXTRACT(EPOCH FROM {}.created_at) * 1000 AS bigint)"

_APPEND: Final = """
    WITH {guard}new AS (
        SELECT CAST(? AS text) AS session_id, CAST(? AS text) AS id, CAST(? AS text) AS role, CAST(? AS text) AS content,
               CAST(? AS text) AS text_content, CAST(? AS text) AS place, CAST(? AS text) AS parent_id),
    newest AS (
        SELECT m.id, m.created_at FROM assistant_messages AS m WHERE m.session_id = (SELECT new.session_id FROM new)
        ORDER BY {newest_first} LIMIT 1),
    parent AS (
        SELECT CASE new.place WHEN 'latest' THEN (SELECT newest.id FROM newest) ELSE new.parent_id END AS id,
               new.place <> 'given' OR EXISTS (SELECT 1 FROM assistant_messages AS m
                   WHERE m.session_id = new.session_id AND m.id = new.parent_id) AS is_known
        FROM new),
    stored AS (
        INSERT INTO assistant_messages (id, session_id, parent_id, role, content, text_content, created_at)
        SELECT new.id, new.session_id, parent.id, new.role, new.content, new.text_content,
               GREATEST(clock_timestamp(), (SELECT newest.created_at FROM newest) + interval '1 microsecond')
        FROM new CROSS JOIN parent WHERE parent.is_known{if_holds}
        ON CONFLICT (session_id, id) DO NOTHING RETURNING 1){added}
    SELECT CASE {if_changed}WHEN NOT parent.is_known AND NOT EXISTS (
        SELECT 1 FROM assistant_messages AS m CROSS JOIN new WHERE m.session_id = new.session_id AND m.id = new.id)
        THEN 'unknown_parent' END AS problem
    FROM parent"""

_UPDATE: Final = """
    WITH changed AS (
        UPDATE assistant_messages SET role = CAST(? AS text), content = CAST(? AS text), text_content = CAST(? AS text)
        WHERE session_id = CAST(? AS text) AND id = CAST(? AS text) RETURNING 1)
    SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM changed) THEN 'unknown_message' END AS problem"""

# Children take the parent; an overlay keeps the part of its range that stays, as `storage.compactions.release_anchor` says.
# LIMIT keeps each step of the walk one look into the primary key.
_DELETE: Final = """
    WITH RECURSIVE gone AS (
        SELECT m.session_id, m.id, m.parent_id FROM assistant_messages AS m
        WHERE m.session_id = CAST(? AS text) AND m.id = CAST(? AS text)),
    moved AS (
        UPDATE assistant_messages AS m SET parent_id = gone.parent_id FROM gone
        WHERE m.session_id = gone.session_id AND m.parent_id = gone.id),
    span (overlay, start, id, parent_id, depth) AS (
        SELECT c.id, c.from_message_id, m.id, m.parent_id, 0 FROM assistant_compactions AS c
        JOIN gone ON c.session_id = gone.session_id AND gone.id IN (c.from_message_id, c.to_message_id)
        JOIN assistant_messages AS m ON m.session_id = gone.session_id AND m.id = c.to_message_id
        UNION
        SELECT span.overlay, span.start, above.id, above.parent_id, span.depth + 1
        FROM span CROSS JOIN gone CROSS JOIN LATERAL (
            SELECT m.id, m.parent_id FROM assistant_messages AS m
            WHERE m.session_id = gone.session_id AND m.id = span.parent_id LIMIT 1) AS above
        WHERE span.id <> span.start),
    applying AS (SELECT span.overlay FROM span WHERE span.id = span.start),
    rest AS (
        SELECT span.overlay, (array_agg(span.id ORDER BY span.depth DESC))[1] AS first,
               (array_agg(span.id ORDER BY span.depth))[1] AS last
        FROM span JOIN applying ON applying.overlay = span.overlay CROSS JOIN gone
        WHERE span.id <> gone.id AND NOT (
            EXISTS (SELECT 1 FROM assistant_compactions AS c WHERE c.id = span.overlay AND c.to_message_id = gone.id)
            AND EXISTS (SELECT 1 FROM assistant_messages AS m
                WHERE m.session_id = gone.session_id AND m.parent_id = gone.parent_id AND m.id <> gone.id))
        GROUP BY span.overlay),
    shortened AS (
        UPDATE assistant_compactions AS c SET from_message_id = rest.first, to_message_id = rest.last
        FROM rest WHERE c.id = rest.overlay),
    dropped AS (
        DELETE FROM assistant_compactions AS c USING applying
        WHERE c.id = applying.overlay AND c.id NOT IN (SELECT rest.overlay FROM rest))
    DELETE FROM assistant_messages AS m USING gone WHERE m.session_id = gone.session_id AND m.id = gone.id"""

# As `storage.compactions.echoes`.
_ECHOES: Final = f"""SELECT m.id FROM assistant_compactions AS c
    JOIN assistant_messages AS m ON m.session_id = c.session_id AND m.id = '{COMPACTION_PREFIX}' || c.id
    WHERE c.session_id = CAST(? AS text)"""

_CLEAR: Final = """
    WITH args AS (SELECT CAST(? AS text) AS session_id),
    messages AS (DELETE FROM assistant_messages AS m USING args WHERE m.session_id = args.session_id),
    overlays AS (DELETE FROM assistant_compactions AS c USING args WHERE c.session_id = args.session_id)
    SELECT CAST(NULL AS text) AS problem"""

_ADD_COMPACTION: Final = """
    WITH new AS (
        SELECT CAST(? AS text) AS id, CAST(? AS text) AS session_id, CAST(? AS text) AS summary,
               CAST(? AS text) AS from_message_id, CAST(? AS text) AS to_message_id),
    stored AS (
        INSERT INTO assistant_compactions (id, session_id, summary, from_message_id, to_message_id, created_at)
        SELECT new.id, new.session_id, new.summary, new.from_message_id, new.to_message_id,
               GREATEST(clock_timestamp(), (SELECT max(c.created_at) FROM assistant_compactions AS c
                   WHERE c.session_id = new.session_id) + interval '1 microsecond')
        FROM new)
    SELECT CAST(NULL AS text) AS problem"""

_OVERLAYS: Final = f"""SELECT json_agg(json_build_array(
        c.id, c.summary, c.from_message_id, c.to_message_id, {_MILLISECONDS.format("c")}) ORDER BY {{oldest_overlay}})
    FROM assistant_compactions AS c WHERE c.session_id = CAST(? AS text)"""

_TREE: Final = f"""SELECT
    CAST((SELECT json_agg(json_build_array(m.id, m.parent_id, octet_length(m.content), {{columns}}) ORDER BY {{oldest_first}})
          FROM assistant_messages AS m WHERE m.session_id = CAST(? AS text)) AS text) AS messages,
    CAST(({_OVERLAYS}) AS text) AS overlays"""
_COLUMNS: Final = {
    "content": "m.content",
    "place": "{place}",
    "version": VERSION.format("m"),
    "time": _MILLISECONDS.format("m"),
}

_CONTENTS: Final = """SELECT m.id, m.content FROM assistant_messages AS m WHERE m.session_id = CAST(? AS text)
    AND m.id IN (SELECT wanted.id FROM json_array_elements_text(CAST(? AS json)) AS wanted (id))"""

_HOLDING: Final = """SELECT m.id, m.content FROM assistant_messages AS m WHERE m.session_id = CAST(? AS text)
    AND EXISTS (SELECT 1 FROM json_array_elements_text(CAST(? AS json)) AS w (held) WHERE strpos(m.content, w.held) > 0)
    ORDER BY {oldest_first}"""

_ALL_CONTENTS: Final = "SELECT m.id, m.content FROM assistant_messages AS m WHERE m.session_id = CAST(? AS text)"

_SEARCH: Final = f"""SELECT m.content, {_MILLISECONDS.format("m")} AS created
    FROM assistant_messages AS m CROSS JOIN plainto_tsquery('english', CAST(? AS text)) AS q
    WHERE m.session_id = CAST(? AS text) AND (m.content_tsv @@ q{{or_nothing}}){{substrings}}
    ORDER BY ts_rank(m.content_tsv, q) DESC, {{oldest_first}} LIMIT CAST(? AS bigint)"""

OR_NOTHING: Final = " OR numnode(q) = 0"
"""A query of nothing but substrings has no word that must match."""


class PostgresSessionProvider:
    """The messages of one session in PostgreSQL.

    `client`: a ``psycopg.AsyncConnection``, a ``psycopg_pool.AsyncConnectionPool``, or any object with ``execute(query, args)``
    (``?`` placeholders) or ``query(text, values)`` (``$1`` placeholders) that gives an object with ``rows``. Writes return after
    their commit, unless they are part of a transaction that the caller began on that connection.

    Differs from SQLite in:

    * The search, which is PostgreSQL's own, in English.
    * ``get_history_row_stats`` is not there (a session answers None), and neither are the notes of a session: how automatic
      compaction fared is forgotten with the process.
    * A message has the same limit of size; how many there are and how large they are together has none.
    * Reads of a path, pages and estimates read the shape of the whole tree. The estimate after an append (for automatic
      compaction, or an owner that hears of it) reads no message twice: with messages of a kilobyte it takes 1 ms at 100 of
      them, 3 at 1,000 and 32 at 10,000, where reading all of them anew takes 3, 32 and 197.
    * ``Session.append_messages`` and the unloading of skills are a write for each message, not one for all.

    Raises PostgresUnavailable, PoolNotOpen, MissingTables, UnsuitableServer and PostgresFailed, beside what is named. What the
    server must be, and how its tables are made beforehand: `storage.postgres`.
    """

    def __init__(self, client: Any, session_id: str = "") -> None:
        self._client = client_of(client)
        self._session = required(session_id, "a session id")
        self._lock = f"perdure:session:{self._session}"
        self._is_sound = False
        self._estimates: dict[str, tuple[str, int]] = {}

    @property
    def session_id(self) -> str:
        return unescape(self._session)

    async def get_message(self, message_id: str) -> JsonObject | None:
        query = f"{_ALL_CONTENTS} AND m.id = CAST(? AS text)"
        await self._tables()
        rows = await self._client.read(query, [self._session, required(message_id, "a message id")])
        return decode(rows[0]["content"]) if rows else None

    async def get_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        """What is visible from the root to a leaf; None or "" is the latest one."""
        leaf = _leaf(leaf_id)
        _, messages = await self._shown(lambda tree: tree.visible(tree.path(leaf)))
        return messages

    async def get_raw_history(self, leaf_id: str | None = None) -> list[JsonObject]:
        """All messages of the path, as if there were no overlays."""
        leaf = _leaf(leaf_id)
        _, messages = await self._shown(lambda tree: list(tree.path(leaf)))
        return messages

    async def get_latest_leaf(self) -> JsonObject | None:
        tables = await self._tables()
        query = f"{_ALL_CONTENTS} ORDER BY {tables.newest_first(MESSAGES)} LIMIT 1"
        rows = await self._client.read(query, [self._session])
        return decode(rows[0]["content"]) if rows else None

    async def get_branches(self, message_id: str) -> list[JsonObject]:
        """The children of a message, oldest first."""
        tables = await self._tables()
        query = f"{_ALL_CONTENTS} AND m.parent_id = CAST(? AS text) ORDER BY {tables.oldest_first(MESSAGES)}"
        rows = await self._client.read(query, [self._session, required(message_id, "a message id")])
        return [decode(row["content"]) for row in rows]

    async def get_path_length(self, leaf_id: str | None = None) -> int:
        """How many messages there are from the root to a leaf, overlays not applied."""
        leaf = _leaf(leaf_id)
        return len((await self._tree()).path(leaf))

    async def append_message(self, message: Mapping[str, Any] | SessionMessage, parent_id: Parent = LATEST) -> None:
        """Store a message below `parent_id` (left out: the latest leaf; None: a new root).

        An id that is there already changes nothing, so repeating a call is safe. Raises InvalidMessage, UnknownParent.
        """
        plain, content = _encoded(message)
        if plain["id"].startswith(COMPACTION_PREFIX):
            if not await self._is_overlay(plain["id"]):
                raise InvalidMessage(f"ids that begin with {COMPACTION_PREFIX!r} are reserved for summaries")
            return
        statement = unguarded(_APPEND, await self._tables())
        await self._append(statement, [], plain, content, parent_id)

    async def update_message(self, message: Mapping[str, Any] | SessionMessage) -> None:
        """Replace the message of that id. Raises InvalidMessage, UnknownMessage."""
        plain, content = _encoded(message)
        if plain["id"].startswith(COMPACTION_PREFIX):
            if not await self._is_overlay(plain["id"]):
                raise UnknownMessage(plain["id"])
            return
        await self._tables()
        key = [self._session, escape(plain["id"])]
        role = escape(plain["role"])
        problem = await self._write_indexed(_UPDATE, plain, lambda text: [role, content, text, *key])
        if problem == "unknown_message":
            raise UnknownMessage(plain["id"])

    async def delete_messages(self, message_ids: Iterable[str]) -> None:
        """Remove messages; their children take their parents. Unknown ids are ignored."""
        if isinstance(message_ids, (str, bytes)) or not isinstance(message_ids, Iterable):
            raise InvalidArgument("message_ids must be a list of texts")
        ids = [escape(identity) for identity in message_ids if isinstance(identity, str)]
        await self._tables()
        await self._delete(ids)

    async def clear_messages(self) -> None:
        """Remove all messages and overlays of the session."""
        await self._tables()
        await self._write(_CLEAR, [self._session])

    async def add_compaction(self, summary: str, from_id: str, to_id: str) -> JsonObject:
        """Store an overlay. One whose ends are not on a path, in order, never applies to it and hides nothing."""
        texts = [required(summary, "summary"), required(from_id, "from_id"), required(to_id, "to_id")]
        check_size(clean(summary), StorageOptions().max_message_bytes)
        identity = str(uuid.uuid4())
        await self._tables()
        await self._write(_ADD_COMPACTION, [identity, self._session, *texts])
        query = f"SELECT {_MILLISECONDS.format('c')} AS created FROM assistant_compactions AS c WHERE c.id = CAST(? AS text)"
        rows = await self._client.read(query, [identity])
        created = iso_time(rows[0]["created"]) if rows else ""
        return _record(Overlay(0, identity, unescape(texts[0]), texts[1], texts[2], created))

    async def get_compactions(self) -> list[JsonObject]:
        """All overlays, oldest first, whether they apply or not."""
        tables = await self._tables()
        overlays = _OVERLAYS.format(oldest_overlay=tables.oldest_first(COMPACTIONS))
        query = f"SELECT CAST(NULL AS text) AS messages, CAST(({overlays}) AS text) AS overlays"
        (row,) = await self._client.read(query, [self._session])
        return [_record(overlay) for overlay in tree_of(row).overlays]

    async def search_messages(self, query: str, limit: int = 20) -> list[JsonObject]:
        """The messages, on all branches, that contain every word of `query`; the best first.

        Words with CJK characters or emoji are found as substrings. Raises InvalidArgument for a negative limit.
        """
        words, substrings = query_words(query)
        count = whole_limit(limit)
        tables = await self._tables()
        statement = _SEARCH.format(
            or_nothing=OR_NOTHING if substrings else "",
            substrings=substring_conditions("m.text_content", substrings),
            oldest_first=tables.oldest_first(MESSAGES),
        )
        rows = await self._client.read(statement, [words, self._session, *substrings, count])
        return [_found(decode(row["content"]), iso_time(row["created"])) for row in rows]

    async def get_recent_history(self, max_content_bytes: float, min_recent_messages: float = 1) -> JsonObject:
        """The newest messages that fit a budget of bytes, at least `min_recent_messages` (1 or more) of them."""
        budget = whole_number(max_content_bytes, "max_content_bytes")
        least = max(1, whole_number(min_recent_messages, "min_recent_messages"))
        tree, messages = await self._shown(lambda tree: tree.visible(tree.newest(tree.path(), budget, least)))
        path = tree.path()
        return {
            "messages": messages,
            "truncated": len(tree.newest(path, budget, least)) < len(path),
            "totalContentBytes": sum(tree.sizes[identity] for identity in path),
        }

    async def get_messages_containing(self, text: str) -> list[JsonObject]:
        """The messages, on all branches, whose JSON holds a text, in the order of insertion. `text`: plain ASCII."""
        tables = await self._tables()
        query = f"""{_ALL_CONTENTS} AND strpos(m.content, CAST(? AS text)) > 0
                    ORDER BY {tables.oldest_first(MESSAGES)}"""
        rows = await self._client.read(query, [self._session, required(text, "a text")])
        return [decode(row["content"]) for row in rows]

    async def page_messages(
        self,
        limit: int = 100,
        cursor: str | None = None,
        *,
        order: Order = "newest",
        leaf_id: str | None = None,
    ) -> JsonObject:
        """A page of the messages without their content, as `storage.message_pages` says. Reads the shape of the whole tree."""
        leaf = _leaf(leaf_id)

        def rows(tree: Tree) -> tuple[list[str], str | None]:
            return pages.page(tree, self.session_id, limit, cursor, order, leaf)

        tree, messages = await self._shown(lambda tree: list(rows(tree)[0]), "place", "time")
        ids, next_cursor = rows(tree)
        found: JsonObject = {
            "messages": [_page_row(tree, identity, message) for identity, message in zip(ids, messages, strict=True)]
        }
        if next_cursor is not None:
            found["nextCursor"] = next_cursor
        return found

    async def path_tokens(self) -> int:
        """The estimate of the visible path to the latest leaf, without the prompt.

        Reads the shape of the tree, and only those messages that are new or changed since the last estimate of this provider.
        """
        tree = await self._tree("version")
        shown = tree.visible(tree.path())
        ids = [item for item in shown if isinstance(item, str)]
        known = {
            identity: self._estimates[identity]
            for identity in ids
            if self._estimates.get(identity, ("",))[0] == tree.versions[identity]
        }
        missing = [identity for identity in ids if identity not in known]
        contents = await self._contents(missing, is_most=2 * len(missing) > len(tree.parents))
        for identity in missing:
            if identity in contents:  # if it has changed meanwhile, its version is seen to be an old one the next time
                known[identity] = (tree.versions[identity], estimate_one(decode(contents[identity])))
        self._estimates = known
        overlays = sum(estimate_one(overlay_message(item)) for item in shown if isinstance(item, Overlay))
        return overlays + sum(tokens for _, tokens in known.values())

    async def get_state(self) -> State:
        """The session as it is now, for writes that are decided by it: `append_if` and `change_overlays`."""
        tables = await self._tables()
        row = await self._row(tables, f",\n    {DIGESTS}", ["place"], [self._session, self._session])
        tree = tree_of(row)
        newest = max(tree.places.values(), default=-1)
        return State(tree.unescaped(), str(row["seen_messages"]), str(row["seen_overlays"]), newest)

    async def get_messages(self, message_ids: Iterable[str]) -> dict[str, JsonObject]:
        """The messages of these ids, as far as they are there."""
        contents = await self._contents([escape(identity) for identity in message_ids], is_most=False)
        return {unescape(identity): decode(content) for identity, content in contents.items()}

    async def get_messages_holding(self, texts: Iterable[str]) -> dict[str, JsonObject]:
        """The messages, on all branches, whose JSON holds one of these texts, in the order of insertion."""
        if not (held := list(texts)):
            return {}
        statement = _HOLDING.format(oldest_first=(await self._tables()).oldest_first(MESSAGES))
        rows = await self._client.read(statement, [self._session, orjson.dumps(held).decode()])
        return {unescape(row["id"]): decode(row["content"]) for row in rows}

    async def append_if(
        self, state: State, message: JsonObject, parent_id: Parent, overlays: list[Overlay], watched: Iterable[str]
    ) -> bool:
        """`append_message`, with overlays if it is new; False, and nothing is stored, if `state` does not hold any more."""
        plain, content = _encoded(message)
        statement = guarded(_APPEND, await self._tables())
        facts = state.facts(self._session, watched=watched, added=overlays)
        return await self._append(statement, [facts], plain, content, parent_id)

    async def change_overlays(
        self, state: State, added: list[Overlay], removed: Iterable[str], watched: Iterable[str]
    ) -> bool:
        """Add and remove overlays; False, and nothing is stored, if `state` does not hold any more."""
        statement = change_of_overlays(await self._tables())
        facts = state.facts(self._session, watched=watched, added=added, removed=removed)
        return await self._write(statement, [facts]) != CHANGED

    async def _tables(self) -> Tables:
        """Before every operation. Echoes that were found are looked for again: what removed them may not be committed."""
        tables = await self._client.ready(MESSAGES, COMPACTIONS)
        if not self._is_sound:
            rows = await self._client.read(_ECHOES, [self._session])
            self._is_sound = not rows
            try:
                await self._delete([row["id"] for row in rows])
            except (PostgresUnavailable, PostgresFailed):  # reads go on while nothing can be written
                _log.debug("summaries that are stored as messages could not be removed")
        return tables

    async def _tree(self, *columns: str) -> Tree:
        return tree_of(await self._row(await self._tables(), "", columns, []))

    async def _row(self, tables: Tables, more: str, columns: Collection[str], args: list[Any]) -> Mapping[str, Any]:
        """What `tree_of` takes, with those columns of messages that are asked for."""
        texts = [text if name in columns else "NULL" for name, text in _COLUMNS.items()]
        statement = _TREE.format(
            columns=", ".join(texts).format(place=tables.place(MESSAGES)),
            oldest_first=tables.oldest_first(MESSAGES),
            oldest_overlay=tables.oldest_first(COMPACTIONS),
        )
        (row,) = await self._client.read(statement + more, [self._session, self._session, *args])
        return row

    async def _shown(self, choose: Callable[[Tree], list[Any]], *columns: str) -> tuple[Tree, list[JsonObject]]:
        """The tree, and the messages that `choose` takes of it: ids and overlays."""
        for _ in range(_ATTEMPTS):
            tree = await self._tree(*columns)
            chosen: list[str | Overlay] = choose(tree)
            ids = [item for item in chosen if isinstance(item, str)]
            contents = await self._contents(ids, is_most=2 * len(ids) > len(tree.parents))
            if all(identity in contents for identity in ids):
                return tree, _messages(chosen, contents)
        tree = await self._tree("content", *columns)
        return tree, _messages(choose(tree), tree.contents)

    async def _contents(self, ids: list[str], *, is_most: bool) -> dict[str, str]:
        if not ids:
            return {}
        if is_most:
            rows = await self._client.read(_ALL_CONTENTS, [self._session])
        else:
            rows = await self._client.read(_CONTENTS, [self._session, orjson.dumps(ids).decode()])
        return {row["id"]: row["content"] for row in rows}

    async def _is_overlay(self, message_id: str) -> bool:
        await self._tables()
        query = """SELECT 1 AS found FROM assistant_compactions AS c
                   WHERE c.id = CAST(? AS text) AND c.session_id = CAST(? AS text)"""
        key = escape(message_id.removeprefix(COMPACTION_PREFIX))
        return bool(await self._client.read(query, [key, self._session]))

    async def _write(self, statement: str, args: list[Any]) -> str | None:
        return await self._client.write(self._lock, statement, args)

    async def _delete(self, ids: list[str]) -> None:
        if ids:
            await self._client.write_each(self._lock, _DELETE, [self._session], ids)

    async def _append(
        self, statement: str, first: list[Any], plain: JsonObject, content: str, parent_id: Parent
    ) -> bool:
        """Run an append; False if its state did not hold."""
        place, parent = _place(parent_id)
        new = [*first, self._session, escape(plain["id"]), escape(plain["role"]), content]
        problem = await self._write_indexed(statement, plain, lambda text: [*new, text, place, parent])
        if problem == "unknown_parent":
            raise UnknownParent(unescape(parent or ""))
        return problem != CHANGED

    async def _write_indexed(self, statement: str, message: JsonObject, args: Any) -> str | None:
        """Write a message with its text for the search; with the beginning of the text if PostgreSQL cannot index it all."""
        text = escape(message_text(message, "\n"))
        try:
            return await self._write(statement, args(text))
        except LimitExceeded:
            if len(text) <= _INDEXED:
                raise
        return await self._write(statement, args(text[:_INDEXED]))


def _messages(chosen: list[str | Overlay], contents: Mapping[str, str]) -> list[JsonObject]:
    return [overlay_message(item) if isinstance(item, Overlay) else decode(contents[item]) for item in chosen]


def _page_row(tree: Tree, identity: str, message: JsonObject) -> JsonObject:
    parent = tree.parents[identity]
    return {
        "id": message["id"],
        "parentId": None if parent is None else unescape(parent),
        "role": message["role"],
        "bytes": tree.sizes[identity],
        "tokens": estimate_one(message),
        "createdAt": iso_time(tree.times.get(identity, 0)),
    }


def substring_conditions(column: str, substrings: list[str]) -> str:
    """One condition with one placeholder for each."""
    return f" AND strpos(lower(normalize({column})), lower(CAST(? AS text))) > 0" * len(substrings)


def _encoded(message: Mapping[str, Any] | SessionMessage) -> tuple[JsonObject, str]:
    """A message that may be stored, and its text. Raises InvalidMessage, LimitExceeded."""
    plain, content = encode(message)
    limit = StorageOptions().max_message_bytes
    size = len(content.encode())
    if size > limit:
        raise LimitExceeded(f"A message of {size:,} bytes", f"{limit:,} bytes")
    return plain, content


def _place(parent_id: Parent) -> tuple[str, str | None]:
    if isinstance(parent_id, Latest):
        return "latest", None
    return ("root", None) if parent_id is None else ("given", required(parent_id, "parent_id"))


def _leaf(leaf_id: str | None) -> str | None:
    return None if leaf_id is None or leaf_id == "" else required(leaf_id, "a message id")


def _record(overlay: Overlay) -> JsonObject:
    return {
        "id": overlay.id,
        "summary": overlay.summary,
        "fromMessageId": unescape(overlay.from_id),
        "toMessageId": unescape(overlay.to_id),
        "createdAt": overlay.created_at,
    }


def _found(message: JsonObject, created_at: str) -> JsonObject:
    own = message.get("createdAt")
    return {
        "id": message["id"],
        "role": message["role"],
        "content": message_text(message, "\n"),
        "createdAt": own if isinstance(own, str) and own else created_at,
    }
