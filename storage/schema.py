"""The tables, and the way from every earlier version to the newest.

The documented tables have further columns, which keep the costs of an append and of the usual reads independent of the history:

``seq``       the order of insertion, and the message's number in its file; a parent's is smaller than its child's
``parent``    the parent's ``seq``; almost always ``seq - 1``, so only the other rows are indexed (``am_jump``, ``am_branch``,
              ``am_root``)
``tok``       the token estimate of this message, ``bytes`` the size of its JSON
``path_*``    count, bytes and visible tokens of the path that ends here; authoritative in the newest row of a session only
``shared``    NULL as long as the file holds the default session only, then the ``seq`` of the last row before that changed;
              rows that have it are indexed by session (``am_session``)

Of overlays, ``first`` and ``last`` are the ``seq`` of the ends (NULL: there is no such message) and ``call`` that of the call
whose late result the overlay stands for (NULL: it is a summary). ``ac_order`` finds the summaries of a path from its root on.

Of sessions, ``seq`` is the order of creation and ``change`` that of the last changes; ``tags`` is a JSON list. Context blocks
belong to a session, so that they go with it; their labels are as documented (``memory_<session id>``).
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Final

from storage.connections import PAGE_SIZE
from storage.errors import ForeignDatabase

APPLICATION_ID: Final = 0x50657264  # "Perd"

_NOW = "(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"

_VERSION_1 = (
    f"""CREATE TABLE assistant_messages (
        seq INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL DEFAULT '',
        id TEXT NOT NULL,
        parent_id TEXT,
        parent INTEGER,
        shared INTEGER,
        role TEXT NOT NULL,
        tok INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        path_count INTEGER NOT NULL,
        path_bytes INTEGER NOT NULL,
        path_tok INTEGER NOT NULL,
        created_at DATETIME NOT NULL DEFAULT {_NOW},
        content TEXT NOT NULL,
        UNIQUE (session_id, id)
    )""",
    "CREATE INDEX am_jump ON assistant_messages (seq, parent) WHERE parent IS NOT seq - 1",
    "CREATE INDEX am_branch ON assistant_messages (parent) WHERE parent IS NOT seq - 1",
    "CREATE INDEX am_root ON assistant_messages (session_id) WHERE parent IS NULL",
    "CREATE INDEX am_session ON assistant_messages (session_id) WHERE shared IS NOT NULL",
    f"""CREATE TABLE assistant_compactions (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL DEFAULT '',
        summary TEXT NOT NULL,
        from_message_id TEXT NOT NULL,
        to_message_id TEXT NOT NULL,
        first INTEGER,
        last INTEGER,
        call INTEGER,
        tok INTEGER NOT NULL,
        created_at DATETIME NOT NULL DEFAULT {_NOW}
    )""",
    "CREATE INDEX ac_from ON assistant_compactions (session_id, from_message_id)",
    "CREATE INDEX ac_order ON assistant_compactions (session_id, call, first)",
    "CREATE UNIQUE INDEX ac_late ON assistant_compactions (first) WHERE call IS NOT NULL",
    "CREATE INDEX ac_to ON assistant_compactions (session_id, to_message_id)",
    "CREATE VIRTUAL TABLE assistant_fts USING fts5(content, content='', tokenize='porter unicode61')",
    f"""CREATE TABLE assistant_sessions (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        change INTEGER NOT NULL UNIQUE,
        name TEXT NOT NULL,
        parent_session_id TEXT,
        model TEXT,
        source TEXT,
        input_tokens INTEGER NOT NULL DEFAULT 0,
        output_tokens INTEGER NOT NULL DEFAULT 0,
        estimated_cost REAL NOT NULL DEFAULT 0,
        end_reason TEXT,
        owner TEXT,
        tags TEXT,
        created_at DATETIME NOT NULL DEFAULT {_NOW},
        updated_at DATETIME NOT NULL DEFAULT {_NOW}
    )""",
    "CREATE INDEX as_owner ON assistant_sessions (owner, change) WHERE owner IS NOT NULL",
    f"""CREATE TABLE cf_agents_context_blocks (
        session_id TEXT NOT NULL DEFAULT '',
        label TEXT NOT NULL,
        content TEXT NOT NULL,
        updated_at DATETIME NOT NULL DEFAULT {_NOW},
        PRIMARY KEY (session_id, label)
    )""",
    f"""CREATE TABLE cf_agents_search_entries (
        seq INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL DEFAULT '',
        label TEXT NOT NULL,
        key TEXT NOT NULL,
        content TEXT NOT NULL,
        created_at DATETIME NOT NULL DEFAULT {_NOW},
        updated_at DATETIME NOT NULL DEFAULT {_NOW},
        UNIQUE (session_id, label, key)
    )""",
    "CREATE VIRTUAL TABLE cf_agents_search_fts USING fts5(content, content='', tokenize='porter unicode61')",
    "CREATE TABLE perdure_state (key TEXT NOT NULL PRIMARY KEY, value TEXT) WITHOUT ROWID",
)


def _create(connection: sqlite3.Connection) -> None:
    for statement in _VERSION_1:
        connection.execute(statement)


_MIGRATIONS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (_create,)
"""Number n leads from version n to n + 1. Never change one that was released; add one."""

NEWEST: Final = len(_MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables to the newest version, in the caller's transaction. Costs nothing when they are.

    Raises ForeignDatabase, with nothing changed, if the file is another program's or a newer Perdure's.
    """
    current = version(connection)
    if current == NEWEST:
        return
    for number in range(current, NEWEST):
        _MIGRATIONS[number](connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {NEWEST}")


def version(connection: sqlite3.Connection) -> int:
    """The version of the tables; 0 if the file is empty. Raises ForeignDatabase as `migrate` does."""
    (current,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        if application or current or connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            raise ForeignDatabase(_path(connection), f"application id {application:#x}")
    elif current > NEWEST:
        raise ForeignDatabase(_path(connection), f"version {current}, this Perdure knows {NEWEST}")
    return int(current)


@cache
def template() -> bytes:
    """A database file with the newest, empty tables, in WAL mode: to copy it is cheaper than to make the tables."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        migrate(connection)
        image = bytearray(connection.serialize())
    image[18:20] = b"\x02\x02"  # the format's read and write versions: 2 is WAL
    return bytes(image)


def empty() -> sqlite3.Connection:
    """A database in memory with the newest, empty tables: what a file that was never written is read as."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    return connection


def _path(connection: sqlite3.Connection) -> str:
    row = connection.execute("PRAGMA database_list").fetchone()
    return str(row[2]) or ":memory:"
