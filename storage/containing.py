"""Messages that hold a given text in one of their strings (or names), read without decoding the others."""

import sqlite3

import orjson

from storage import leaves, paths
from storage.records import JsonObject, clean, decode


def on_path(connection: sqlite3.Connection, session_id: str, text: str) -> list[JsonObject]:
    """Those on the path to the latest leaf, from its root, also where an overlay hides them."""
    leaf = leaves.latest(connection, session_id)
    if leaf is None:
        return []
    query = "SELECT content FROM assistant_messages WHERE seq BETWEEN ? AND ? AND instr(content, ?) ORDER BY seq"
    found: list[JsonObject] = []
    for first, last in paths.ranges(connection, leaf.seq):
        found += [decode(content) for (content,) in connection.execute(query, (first, last, _as_stored(text)))]
    return found


def anywhere(connection: sqlite3.Connection, session_id: str, text: str) -> list[JsonObject]:
    """Those of the whole session, on every branch, in the order of their insertion."""
    query = "SELECT content FROM assistant_messages WHERE session_id = ? AND instr(content, ?) ORDER BY seq"
    return [decode(content) for (content,) in connection.execute(query, (session_id, _as_stored(text)))]


def _as_stored(text: str) -> str:
    """As it is inside of a JSON string."""
    return orjson.dumps(clean(text)).decode()[1:-1]
