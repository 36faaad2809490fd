"""Sessions that go on from another one: a fork has a copy of what is visible of a path, a continuation has a summary.

The copy is made inside SQLite, one statement for each range of the path, and costs what is copied. Every function works in the
caller's transaction.
"""

import sqlite3
import uuid
from dataclasses import dataclass
from typing import Final

from storage import compactions, leaves, message_tree, overlays, paths, sessions, visibility
from storage.errors import InvalidArgument, UnknownMessage
from storage.overlays import Applied, overlay_message
from storage.paths import Range, Sums
from storage.records import COMPACTION_PREFIX, Appended, SessionInfo, clean
from storage.replication import StorageOptions

CONTINUED: Final = "[Context from previous session]\n\n"
"""What the first message of a continuation begins with; the text is part of the interface."""

_UUID: Final = """lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-' ||
                  substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))"""
_COPY: Final = f"""
    WITH fresh AS MATERIALIZED (
        SELECT seq, {_UUID} AS id FROM assistant_messages WHERE seq BETWEEN :first AND :last
    ), chain AS (
        SELECT seq, id, lag(id, 1, :above) OVER (ORDER BY seq) AS above FROM fresh
    ), copied AS (
        SELECT chain.seq, chain.id, above, role, tok, created_at, json_set(content, '$.id', chain.id) AS content
        FROM chain CROSS JOIN assistant_messages AS message USING (seq)
    )
    INSERT INTO assistant_messages
        (seq, session_id, id, parent_id, parent, shared, role, tok, bytes, path_count, path_bytes, path_tok, created_at, content)
    SELECT :start + seq - :first, :session_id, id, above,
           CASE WHEN above IS NULL THEN NULL ELSE :start + seq - :first - 1 END, :shared,
           role, tok, length(CAST(content AS BLOB)), 0, 0, 0, created_at, content
    FROM copied ORDER BY seq"""


@dataclass(frozen=True, slots=True)
class Begun:
    """A session that was made from another one, as it was when its row was created; and what its messages came to."""

    info: SessionInfo
    appended: Appended


def fork(
    connection: sqlite3.Connection, session_id: str, at_message_id: str, name: str, *, options: StorageOptions
) -> Begun:
    """A new session with what is visible up to a message, under new ids; a summary becomes a message of its own.

    Raises UnknownSession, UnknownMessage, LimitExceeded.
    """
    source = sessions.require(connection, session_id)
    leaf = _message(connection, session_id, at_message_id)
    info = sessions.create(connection, str(uuid.uuid4()), sessions.inherited(source, name))
    pieces = visibility.pieces(paths.ranges(connection, leaf), visibility.applied(connection, session_id, leaf))
    copy = _Copy(connection, info.id, options.max_message_bytes)
    for piece in list(pieces):
        if isinstance(piece, Applied):
            copy.add_summary(piece)
        else:
            copy.add_range(piece)
    appended = copy.finish()
    message_tree.check_count(connection, options.max_messages)
    return Begun(info, appended)


def split(
    connection: sqlite3.Connection, session_id: str, summary: str, name: str | None, *, options: StorageOptions
) -> Begun:
    """End a session, and begin one that continues it from a summary. Raises UnknownSession, LimitExceeded, InvalidMessage."""
    source = sessions.require(connection, session_id)
    sessions.end(connection, session_id, "compaction")
    new = sessions.inherited(source, source.name if name is None else name, model=source.model, source=source.source)
    info = sessions.create(connection, str(uuid.uuid4()), new)
    text = CONTINUED + _text(summary, "summary")
    overlays.check_size(text, options.max_message_bytes)
    parts = [{"type": "text", "text": text}]
    message = {"id": str(uuid.uuid4()), "role": "assistant", "parts": parts}
    appended = message_tree.append(connection, info.id, message)
    message_tree.check_count(connection, options.max_messages)
    return Begun(info, appended)


def _message(connection: sqlite3.Connection, session_id: str, message_id: str) -> int:
    """The message to fork at; at an overlay's message it is the last one that the overlay stands for."""
    identity = _text(message_id, "message id")
    if identity.startswith(COMPACTION_PREFIX):
        identity = compactions.end_of(connection, session_id, identity) or identity
    seq = leaves.seq_of(connection, session_id, identity)
    if seq is None:
        raise UnknownMessage(message_id)
    return seq


def _text(value: str, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"the {what} must be a text, not {type(value).__name__}")
    return clean(value)


class _Copy:
    """One path of an empty session, written from its root to its leaf."""

    def __init__(self, connection: sqlite3.Connection, session_id: str, max_message_bytes: int) -> None:
        self._connection = connection
        self._max_message_bytes = max_message_bytes
        self._session_id = session_id
        self._shared = leaves.ends(connection, session_id).shared
        (newest,) = connection.execute("SELECT max(seq) FROM assistant_messages").fetchone()
        self._first = self._next = (newest or 0) + 1
        self._above: str | None = None

    def add_range(self, part: Range) -> None:
        first, last = part
        self._connection.execute(
            _COPY,
            {
                "first": first,
                "last": last,
                "start": self._next,
                "above": self._above,
                "session_id": self._session_id,
                "shared": self._shared,
            },
        )
        self._next += last - first + 1
        query = "SELECT id FROM assistant_messages WHERE seq = ?"
        (self._above,) = self._connection.execute(query, (self._next - 1,)).fetchone()

    def add_summary(self, applied: Applied) -> None:
        overlays.check_size(applied.overlay.summary, self._max_message_bytes)
        message = {**overlay_message(applied.overlay), "id": str(uuid.uuid4())}
        message_tree.append(self._connection, self._session_id, message, self._above)
        (seq,) = self._connection.execute("SELECT max(seq) FROM assistant_messages").fetchone()
        assert seq == self._next
        self._next, self._above = seq + 1, message["id"]

    def finish(self) -> Appended:
        total = paths.sums(self._connection, self._first, self._next - 1)
        leaves.set_sums(self._connection, self._next - 1, Sums(total.count, total.bytes, total.tokens))
        return Appended(True, total.tokens)
