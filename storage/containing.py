"""Messages whose stored text contains a given text, read without decoding the others."""

import sqlite3

from storage import leaves, paths
from storage.records import JsonObject, decode


def on_path(connection: sqlite3.Connection, session_id: str, text: str) -> list[JsonObject]:
    """Those on the path to the latest leaf, from its root, also where an overlay hides them. `text`: plain ASCII."""
    leaf = leaves.latest(connection, session_id)
    if leaf is None:
        return []
    query = "SELECT content FROM assistant_messages WHERE seq BETWEEN ? AND ? AND instr(content, ?) ORDER BY seq"
    found: list[JsonObject] = []
    for first, last in paths.ranges(connection, leaf.seq):
        found += [decode(content) for (content,) in connection.execute(query, (first, last, text))]
    return found


def anywhere(connection: sqlite3.Connection, session_id: str, text: str) -> list[JsonObject]:
    """Those of the whole session, on every branch, in the order of their insertion. `text`: plain ASCII."""
    query = "SELECT content FROM assistant_messages WHERE session_id = ? AND instr(content, ?) ORDER BY seq"
    return [decode(content) for (content,) in connection.execute(query, (session_id, text))]
