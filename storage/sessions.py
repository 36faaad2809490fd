"""The registry of the sessions of one database, and what concerns a session as a whole.

The documented ``name`` of a session is its title. ``change`` grows with every change of any session, so lists have one order,
whatever the clock says. Every function works on a connection, in the caller's transaction.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeAlias

import orjson

from storage import compactions, contexts, cursors, full_text, notes, search
from storage.errors import InvalidArgument, LimitExceeded, UnknownSession, shown
from storage.records import MOST_SPENT, SessionInfo, check_amounts, clean

Order: TypeAlias = Literal["updated", "created"]

MAX_TEXT_BYTES: Final = 16 * 1024
"""Of a name, an owner, a tag, a model or a source."""

MAX_TAGS: Final = 100

_COLUMNS = """id, name, parent_session_id, model, source, input_tokens, output_tokens, estimated_cost, end_reason,
              created_at, updated_at, owner, tags"""
_FIELDS = [name.strip() for name in _COLUMNS.split(",")]
_NOW = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
_NEXT_CHANGE = "(SELECT coalesce(max(change), 0) + 1 FROM assistant_sessions)"


class Keep(Enum):
    """The type of `KEEP`."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final = Keep.KEEP
"""An argument left out: the value stays as it is."""


class Amounts(Protocol):
    """What a call of a model cost."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cost(self) -> float: ...


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a session is created with. Raises InvalidArgument, LimitExceeded."""

    name: str
    parent_session_id: str | None = None
    model: str | None = None
    source: str | None = None
    owner: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", checked_text(self.name, "name"))
        for field in ("parent_session_id", "model", "source", "owner"):
            value = getattr(self, field)
            object.__setattr__(self, field, None if value is None else checked_text(value, field))
        object.__setattr__(self, "tags", checked_tags(self.tags))


def create(connection: sqlite3.Connection, session_id: str, new: NewSession) -> SessionInfo:
    row = connection.execute(
        f"""INSERT INTO assistant_sessions (id, change, name, parent_session_id, model, source, owner, tags)
            VALUES (?, {_NEXT_CHANGE}, ?, ?, ?, ?, ?, ?) RETURNING {_COLUMNS}""",
        (session_id, new.name, new.parent_session_id, new.model, new.source, new.owner, _tags_text(new.tags)),
    ).fetchone()
    return _info(row)


def get(connection: sqlite3.Connection, session_id: str) -> SessionInfo | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM assistant_sessions WHERE id = ?", (session_id,)).fetchone()
    return _info(row) if row else None


def require(connection: sqlite3.Connection, session_id: str) -> SessionInfo:
    """`get`. Raises UnknownSession."""
    found = get(connection, session_id)
    if found is None:
        raise UnknownSession(session_id)
    return found


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM assistant_sessions").fetchone()[0])


def listed(
    connection: sqlite3.Connection,
    *,
    owner: str | None = None,
    tag: str | None = None,
    order: Order = "updated",
    before: int | None = None,
    limit: int = -1,
) -> list[tuple[int, SessionInfo]]:
    """The sessions, the one that was changed (or created) last first, each with its place in that order.

    ``before``: only those behind this place. ``owner`` and ``tag`` None: whatever they are. The rows are read in the order of
    the list until there are `limit`: without filters, or with an owner in the order of changes, no others are; a tag has no
    index, since a list of tags would have to be kept in the order of changes by every write. So a page by a tag looks at the tags
    of each session (of the owner, if one is given) until it is full, and by a tag that few have at those of all.
    """
    owner, tag = checked_filter(owner, "owner"), checked_filter(tag, "tag")
    place = {"updated": "change", "created": "seq"}[order]
    conditions = {
        f"{place} < ?": before,
        "owner = ?": owner,
        "EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)": tag,
    }
    asked = {condition: value for condition, value in conditions.items() if value is not None}
    where = f"WHERE {' AND '.join(asked)}" if asked else ""
    query = f"SELECT {place}, {_COLUMNS} FROM assistant_sessions {where} ORDER BY {place} DESC LIMIT ?"
    return [(row[0], _info(row[1:])) for row in connection.execute(query, (*asked.values(), limit))]


def page(
    connection: sqlite3.Connection,
    limit: int,
    cursor: str | None = None,
    *,
    owner: str | None = None,
    tag: str | None = None,
    order: Order = "updated",
) -> tuple[list[SessionInfo], str | None]:
    """Up to `limit` sessions in the order of `listed`, and the cursor of the next page (None: there is none).

    Raises InvalidArgument for a limit or a cursor that cannot be.
    """
    if order not in ("updated", "created"):
        raise InvalidArgument(f"the order of sessions is 'updated' or 'created', not {shown(order)}")
    limit = cursors.checked_limit(limit)
    owner, tag = checked_filter(owner, "owner"), checked_filter(tag, "tag")
    scope = cursors.scope("sessions", order, owner, tag)
    before = None if cursor is None else cursors.decode(cursor, scope, 1)[0]
    found = listed(connection, owner=owner, tag=tag, order=order, before=before, limit=limit + 1)
    following = cursors.encode(scope, found[limit - 1][0]) if len(found) > limit else None
    return [info for _, info in found[:limit]], following


def touch(connection: sqlite3.Connection, session_id: str) -> bool:
    """The session has changed now; whether it is registered."""
    return _update(connection, session_id, {})


def require_and_touch(connection: sqlite3.Connection, session_id: str) -> None:
    """`touch`. Raises UnknownSession."""
    if not touch(connection, session_id):
        raise UnknownSession(session_id)


def rename(connection: sqlite3.Connection, session_id: str, name: str) -> bool:
    """Give a session another name; whether it is registered."""
    return _update(connection, session_id, {"name": checked_text(name, "name")})


def set_metadata(
    connection: sqlite3.Connection,
    session_id: str,
    *,
    name: str | Keep = KEEP,
    owner: str | Keep | None = KEEP,
    tags: Iterable[str] | Keep = KEEP,
) -> SessionInfo:
    """Change what is given. Raises UnknownSession, InvalidArgument, LimitExceeded."""
    values: dict[str, Any] = {}
    if not isinstance(name, Keep):
        values["name"] = checked_text(name, "name")
    if not isinstance(owner, Keep):
        values["owner"] = None if owner is None else checked_text(owner, "owner")
    if not isinstance(tags, Keep):
        values["tags"] = _tags_text(checked_tags(tags))
    if not _update(connection, session_id, values):
        raise UnknownSession(session_id)
    return require(connection, session_id)


def end(connection: sqlite3.Connection, session_id: str, reason: str) -> None:
    """Mark a session as ended. Raises UnknownSession."""
    if not _update(connection, session_id, {"end_reason": reason}):
        raise UnknownSession(session_id)


def add_usage(connection: sqlite3.Connection, session_id: str, usage: Amounts) -> bool:
    """Add what a call cost to a session's totals; whether it is registered (else nothing is kept).

    Totals are what was spent: deleting messages gives nothing back, and a fork begins at zero. A total ends at 2**53, the last
    number that every reader of JSON counts exactly. Raises InvalidArgument for amounts that are negative, not finite or above
    that, and for parts of tokens.
    """
    check_amounts(usage.input_tokens, usage.output_tokens, usage.cost)
    statement = f"""UPDATE assistant_sessions
                    SET input_tokens = min(input_tokens + ?, {MOST_SPENT}),
                        output_tokens = min(output_tokens + ?, {MOST_SPENT}),
                        estimated_cost = min(estimated_cost + ?, {MOST_SPENT}.0), updated_at = {_NOW}, change = {_NEXT_CHANGE}
                    WHERE id = ?"""
    amounts = (usage.input_tokens, usage.output_tokens, float(usage.cost))
    return connection.execute(statement, (*amounts, session_id)).rowcount > 0


def delete(connection: sqlite3.Connection, session_id: str) -> bool:
    """Remove a session and all that belongs to it, from every table; whether it was registered."""
    full_text.forget_session(connection, session_id)
    connection.execute("DELETE FROM assistant_messages WHERE session_id = ?", (session_id,))
    full_text.lower_position(connection)
    compactions.clear(connection, session_id)
    contexts.clear_blocks(connection, session_id)
    search.clear_entries(connection, session_id)
    notes.clear(connection, session_id)
    return connection.execute("DELETE FROM assistant_sessions WHERE id = ?", (session_id,)).rowcount > 0


def inherited(info: SessionInfo, name: str, **changes: Any) -> NewSession:
    """A session that goes on from another one: it has its owner and tags."""
    new = NewSession(name, parent_session_id=info.id, owner=info.owner, tags=tuple(info.tags))
    return replace(new, **changes)


def checked_text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"the {what} of a session must be a text, not {type(value).__name__}")
    text: str = clean(value)
    if len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise LimitExceeded(f"The {what} of a session", f"{MAX_TEXT_BYTES:,} bytes")
    return text


def checked_filter(value: Any, what: str) -> str | None:
    """What to look for; no length is too much for that. Raises InvalidArgument."""
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"the {what} of sessions to find must be a text, not {type(value).__name__}")
    return None if value is None else clean(value)


def checked_tags(tags: Any) -> tuple[str, ...]:
    """Each tag once, in the order given."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidArgument("the tags of a session must be a list of texts")
    checked = tuple(dict.fromkeys(checked_text(tag, "tag") for tag in tags))
    if "" in checked:
        raise InvalidArgument("a tag of a session must not be empty")
    if len(checked) > MAX_TAGS:
        raise LimitExceeded("The number of tags of a session", str(MAX_TAGS))
    return checked


def _update(connection: sqlite3.Connection, session_id: str, values: dict[str, Any]) -> bool:
    changes = "".join(f"{column} = ?, " for column in values)
    statement = f"""UPDATE assistant_sessions SET {changes} updated_at = {_NOW}, change = {_NEXT_CHANGE}
                    WHERE id = ?"""
    return connection.execute(statement, (*values.values(), session_id)).rowcount > 0


def _tags_text(tags: tuple[str, ...]) -> str | None:
    return orjson.dumps(tags).decode() if tags else None


def _info(row: tuple[Any, ...]) -> SessionInfo:
    fields = dict(zip(_FIELDS, row, strict=True))
    fields["tags"] = orjson.loads(fields["tags"]) if fields["tags"] else []
    return SessionInfo.model_construct(**fields)
