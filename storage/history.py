"""Reads of the tree of messages of one session. Content is spliced as the stored JSON text and parsed once, if at all."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from storage import leaves, paths
from storage.errors import InvalidArgument, shown
from storage.overlays import Applied, overlay_message
from storage.paths import Range
from storage.records import JsonObject, clean, decode
from storage.visibility import applied, pieces

_SPLICE: Final = 256
_ONE_RANGE: Final = "SELECT content FROM assistant_messages WHERE seq BETWEEN ? AND ? ORDER BY seq"
_RANGES: Final = """SELECT message.content FROM json_each(?) AS part CROSS JOIN assistant_messages AS message
                    WHERE message.seq BETWEEN part.value ->> 0 AND part.value ->> 1 ORDER BY message.seq"""


@dataclass(frozen=True, slots=True)
class RecentRows:
    """The newest messages as JSON text of an array, whether older ones were left out, and the size of the whole path."""

    json: bytes
    truncated: bool
    total_bytes: int


def message(connection: sqlite3.Connection, session_id: str, message_id: str) -> JsonObject | None:
    query = "SELECT CAST(content AS BLOB) FROM assistant_messages WHERE session_id = ? AND id = ?"
    row = connection.execute(query, (session_id, _text(message_id))).fetchone()
    return decode(row[0]) if row else None


def latest_leaf(connection: sqlite3.Connection, session_id: str) -> JsonObject | None:
    leaf = leaves.latest(connection, session_id)
    if leaf is None:
        return None
    query = "SELECT CAST(content AS BLOB) FROM assistant_messages WHERE seq = ?"
    return decode(connection.execute(query, (leaf.seq,)).fetchone()[0])


def branches(connection: sqlite3.Connection, session_id: str, message_id: str) -> list[JsonObject]:
    """The children of a message, in the order of insertion."""
    seq = leaves.seq_of(connection, session_id, _text(message_id))
    if seq is None:
        return []
    # the first child that directly follows its parent is not in am_branch
    query = """SELECT CAST(content AS BLOB) FROM assistant_messages WHERE seq = ?1 + 1 AND parent = ?1"""
    contents = connection.execute(query, (seq,)).fetchall()
    query = """SELECT CAST(content AS BLOB) FROM assistant_messages INDEXED BY am_branch
               WHERE parent = ? AND parent IS NOT seq - 1 ORDER BY seq"""
    contents += connection.execute(query, (seq,)).fetchall()
    return [decode(content) for (content,) in contents]


def visible_json(connection: sqlite3.Connection, session_id: str, leaf_id: str | None = None) -> bytes:
    """What is visible on the path to a leaf, from the root, as JSON text. None or "" is the latest leaf."""
    leaf = leaf_seq(connection, session_id, leaf_id)
    return _visible_json(connection, session_id, leaf, paths.ranges(connection, leaf))


def raw_json(connection: sqlite3.Connection, session_id: str, leaf_id: str | None = None) -> bytes:
    """All messages on the path, as if there were no overlays, as JSON text."""
    path = paths.ranges(connection, leaf_seq(connection, session_id, leaf_id))
    return _array(list(_texts_of(connection, path)))


def path_length(connection: sqlite3.Connection, session_id: str, leaf_id: str | None = None) -> int:
    if leaf_id is None or leaf_id == "":
        leaf = leaves.latest(connection, session_id)
        return leaf.sums.count if leaf else 0
    path = paths.ranges_upward(connection, leaf_seq(connection, session_id, leaf_id))
    return sum(last - first + 1 for first, last in path)


def row_stats(connection: sqlite3.Connection, session_id: str) -> list[JsonObject]:
    """Id, role and size of all messages on the path to the latest leaf."""
    stats: list[JsonObject] = []
    for part in paths.ranges(connection, leaf_seq(connection, session_id, None)):
        query = "SELECT id, role, bytes FROM assistant_messages WHERE seq BETWEEN ? AND ? ORDER BY seq"
        stats += ({"id": row[0], "role": row[1], "bytes": row[2]} for row in connection.execute(query, part))
    return stats


def recent(
    connection: sqlite3.Connection, session_id: str, max_content_bytes: float, min_recent_messages: float = 1
) -> RecentRows:
    """The longest run of newest messages whose size fits the budget, at least so many; overlays apply within it."""
    leaf = leaves.latest(connection, session_id)
    if leaf is None:
        return RecentRows(b"[]", False, 0)
    budget = whole_number(max_content_bytes, "max_content_bytes")
    least = max(1, whole_number(min_recent_messages, "min_recent_messages"))
    window = _newest(connection, leaf.seq, budget, least)
    count = sum(last - first + 1 for first, last in window)
    found = _visible_json(connection, session_id, leaf.seq, window)
    return RecentRows(found, count < leaf.sums.count, leaf.sums.bytes)


def _newest(connection: sqlite3.Connection, leaf: int, budget: int, least: int) -> list[Range]:
    """The end of the path to `leaf` that fits, as ranges from the root's side."""
    window: list[Range] = []
    query = "SELECT seq, bytes FROM assistant_messages WHERE seq BETWEEN ? AND ? ORDER BY seq DESC"
    count = size = 0
    for first, last in paths.ranges_upward(connection, leaf):
        start = last + 1
        for seq, row_size in connection.execute(query, (first, last)):
            if count >= least and size + row_size > budget:
                break
            count, size, start = count + 1, size + row_size, seq
        if start <= last:
            window.append((start, last))
        if start > first:
            break
    return window[::-1]


def _visible_json(connection: sqlite3.Connection, session_id: str, leaf: int | None, path: list[Range]) -> bytes:
    """What is visible of `path`, which is the end of the path to `leaf`, or all of it."""
    result: list[bytes] = []
    rows: list[Range] = []
    applying = applied(connection, session_id, leaf, since=path[0][0]) if path else []
    for piece in pieces(path, applying):
        if isinstance(piece, Applied):
            result += _texts_of(connection, rows)
            result.append(orjson.dumps(overlay_message(piece.overlay)))
            rows = []
        else:
            rows.append(piece)
    result += _texts_of(connection, rows)
    return _array(result)


def _texts_of(connection: sqlite3.Connection, parts: list[Range]) -> Iterator[bytes]:
    """The messages of some ranges as JSON texts, each of up to `_SPLICE` messages with commas between them."""
    for chunk in _chunks(parts):
        source, arguments = (_ONE_RANGE, chunk[0]) if len(chunk) == 1 else (_RANGES, (orjson.dumps(chunk).decode(),))
        try:
            query = f"SELECT CAST(group_concat(content) AS BLOB) FROM ({source})"
            yield connection.execute(query, arguments).fetchone()[0]
        except sqlite3.DataError:  # together they are longer than SQLite's longest text
            for (text,) in connection.execute(f"SELECT CAST(content AS BLOB) FROM ({source})", arguments):
                yield text


def _chunks(parts: list[Range]) -> Iterator[list[Range]]:
    """The ranges, cut and put together so that each chunk has up to `_SPLICE` messages."""
    chunk: list[Range] = []
    room = _SPLICE
    for first, last in parts:
        while first <= last:
            end = min(last, first + room - 1)
            chunk.append((first, end))
            room -= end - first + 1
            first = end + 1
            if room == 0:
                yield chunk
                chunk, room = [], _SPLICE
    if chunk:
        yield chunk


def _array(texts: list[bytes]) -> bytes:
    """JSON texts as the text of one array, copied once."""
    if not texts:
        return b"[]"
    texts[0] = b"[" + texts[0]
    texts[-1] += b"]"
    return b",".join(texts)


def leaf_seq(connection: sqlite3.Connection, session_id: str, leaf_id: str | None) -> int | None:
    if leaf_id is None or leaf_id == "":
        leaf = leaves.latest(connection, session_id)
        return leaf.seq if leaf else None
    return leaves.seq_of(connection, session_id, _text(leaf_id))


def _text(value: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"a message id must be a text, not {type(value).__name__}")
    return clean(value)


def whole_number(value: float, name: str) -> int:
    """A number cut to a whole one, below 0 is 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise InvalidArgument(f"{name} must be a number, not {shown(value)}")
    return int(max(0, min(value, 2**62)))
