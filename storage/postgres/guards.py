"""Writes that are decided by what was read: stored if that still holds when the session's lock is granted, or not at all.

It holds if no row that was read has changed or gone (every change of a row gives it another ``ctid`` or ``xmin``), if what came
since continues the path that was the latest, and if none of that holds one of the texts that the decision watches for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import orjson

from storage.overlays import Overlay
from storage.postgres.tables import MESSAGES, Tables
from storage.postgres.texts import escape
from storage.postgres.trees import Tree

CHANGED: Final = "changed"
"""The problem of a write whose state did not hold."""

VERSION: Final = "CAST({0}.ctid AS text) || ' ' || CAST({0}.xmin AS text)"
_DIGEST: Final = f"COALESCE(CAST(sum(hashtextextended({{0}}.id || ' ' || {VERSION}, 0)) AS text), '')"

DIGESTS: Final = f"""(SELECT {_DIGEST.format("m")} FROM assistant_messages AS m
     WHERE m.session_id = CAST(? AS text)) AS seen_messages,
    (SELECT {_DIGEST.format("c")} FROM assistant_compactions AS c WHERE c.session_id = CAST(? AS text)) AS seen_overlays"""

_GUARD: Final = f"""seen AS (
        SELECT given.f ->> 'session' AS session_id, given.f ->> 'messages' AS messages, given.f ->> 'overlays' AS overlays,
               CAST(given.f ->> 'newest' AS bigint) AS newest, given.f ->> 'leaf' AS leaf, given.f -> 'watched' AS watched,
               given.f -> 'added' AS added, given.f -> 'removed' AS removed
        FROM (SELECT CAST(? AS json) AS f) AS given),
    guard AS (
        SELECT seen.messages = (SELECT {_DIGEST.format("m")} FROM assistant_messages AS m
                                WHERE m.session_id = seen.session_id AND {{place_of_m}} <= seen.newest)
           AND seen.overlays = (SELECT {_DIGEST.format("c")} FROM assistant_compactions AS c
                                WHERE c.session_id = seen.session_id)
           AND NOT EXISTS (
               SELECT 1 FROM assistant_messages AS m WHERE m.session_id = seen.session_id AND {{place_of_m}} > seen.newest
               AND (EXISTS (SELECT 1 FROM json_array_elements_text(seen.watched) AS w (held)
                            WHERE strpos(m.content, w.held) > 0)
                    OR (m.parent_id IS DISTINCT FROM seen.leaf AND NOT EXISTS (
                        SELECT 1 FROM assistant_messages AS a WHERE a.session_id = seen.session_id
                        AND a.id = m.parent_id AND {{place_of_a}} > seen.newest)))) AS holds
        FROM seen)"""

_ADDED: Final = """added AS (
        INSERT INTO assistant_compactions (id, session_id, summary, from_message_id, to_message_id, created_at)
        SELECT o.f ->> 0, seen.session_id, o.f ->> 1, o.f ->> 2, o.f ->> 3,
               GREATEST(clock_timestamp(), (SELECT max(c.created_at) FROM assistant_compactions AS c
                   WHERE c.session_id = seen.session_id)) + o.number * interval '1 microsecond'
        FROM seen CROSS JOIN guard CROSS JOIN json_array_elements(seen.added) WITH ORDINALITY AS o (f, number)
        WHERE guard.holds{0} ORDER BY o.number)"""

_CHANGE: Final = f"""
    WITH {_GUARD},
    {_ADDED.format("")},
    removed AS (
        DELETE FROM assistant_compactions AS c USING seen, guard WHERE guard.holds AND c.session_id = seen.session_id
        AND c.id IN (SELECT r.id FROM json_array_elements_text(seen.removed) AS r (id)))
    SELECT CASE WHEN NOT guard.holds THEN '{CHANGED}' END AS problem FROM guard"""


@dataclass(frozen=True, slots=True)
class State:
    """A session as it was read, ids as they were given, and how to know it again."""

    tree: Tree
    messages: str
    overlays: str
    newest: int

    def facts(
        self, session: str, *, watched: Iterable[str] = (), added: Iterable[Overlay] = (), removed: Iterable[str] = ()
    ) -> str:
        """The argument of a guarded statement."""
        leaf = self.tree.latest
        rows = [[item.id, escape(item.summary), escape(item.from_id), escape(item.to_id)] for item in added]
        facts = {
            "session": session,
            "messages": self.messages,
            "overlays": self.overlays,
            "newest": self.newest,
            "leaf": None if leaf is None else escape(leaf),
            "watched": list(watched),
            "added": rows,
            "removed": list(removed),
        }
        return orjson.dumps(facts).decode()


def change_of_overlays(tables: Tables) -> str:
    """Add and remove overlays, if the state holds."""
    return _CHANGE.format(place_of_m=tables.place(MESSAGES), place_of_a=tables.place(MESSAGES, "a"))


def guarded(append: str, tables: Tables) -> str:
    """The statement `append`, which has parts for this, with overlays for a message that is new, if the state holds."""
    guard = _GUARD.format(place_of_m=tables.place(MESSAGES), place_of_a=tables.place(MESSAGES, "a"))
    return append.format(
        newest_first=tables.newest_first(MESSAGES),
        guard=f"{guard},\n    ",
        if_holds=" AND (SELECT guard.holds FROM guard)",
        added=",\n    " + _ADDED.format(" AND EXISTS (SELECT 1 FROM stored)"),
        if_changed=f"WHEN NOT (SELECT guard.holds FROM guard) THEN '{CHANGED}' ",
    )


def unguarded(append: str, tables: Tables) -> str:
    return append.format(newest_first=tables.newest_first(MESSAGES), guard="", if_holds="", added="", if_changed="")
