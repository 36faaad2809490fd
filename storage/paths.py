"""The path from a root to a message, as the ranges of rows that it is made of.

Invariant: a parent's ``seq`` is smaller than its child's, and a row whose parent is ``seq - 1`` continues the range of the row
before it. So an unbranched history is one range, whatever its length, and reading a path costs one step for each place where
it jumps.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]
"""First and last ``seq``; every row between them exists and is the child of the one before."""


_JUMP: Final = """(SELECT seq FROM assistant_messages INDEXED BY am_jump
                  WHERE seq <= {} AND parent IS NOT seq - 1 ORDER BY seq DESC LIMIT 1)"""
_RANGES: Final = f"""
    WITH RECURSIVE range (first, last, parent) AS (
        SELECT seq, ?1, parent FROM assistant_messages INDEXED BY am_jump
        WHERE seq = {_JUMP.format("?1")} AND parent IS NOT seq - 1
        UNION ALL
        SELECT jump.seq, range.parent, jump.parent
        FROM range CROSS JOIN assistant_messages AS jump INDEXED BY am_jump
        WHERE jump.seq = {_JUMP.format("range.parent")} AND jump.parent IS NOT jump.seq - 1
    )
    SELECT first, last FROM range"""


@dataclass(frozen=True, slots=True)
class Sums:
    """Of some messages: how many, the size of their JSON, and their token estimate."""

    count: int = 0
    bytes: int = 0
    tokens: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.count + other.count, self.bytes + other.bytes, self.tokens + other.tokens)

    def __sub__(self, other: "Sums") -> "Sums":
        return Sums(self.count - other.count, self.bytes - other.bytes, self.tokens - other.tokens)


def ranges_upward(connection: sqlite3.Connection, leaf: int | None) -> Iterator[Range]:
    """The ranges of the path that ends at `leaf`, from the leaf to the root; each is looked for when it is asked for."""
    return connection.execute(_RANGES, (leaf,))


def ranges(connection: sqlite3.Connection, leaf: int | None) -> list[Range]:
    """The ranges of the path that ends at `leaf`, from the root to the leaf."""
    return list(ranges_upward(connection, leaf))[::-1]


def is_on_path(connection: sqlite3.Connection, seq: int, leaf: int | None) -> bool:
    """Whether `leaf` is the message or descends from it. Costs the distance between them, in jumps."""
    for first, last in ranges_upward(connection, leaf):
        if first <= seq:
            return seq <= last
    return False


def child_towards(connection: sqlite3.Connection, seq: int, descendant: int) -> int | None:
    """The child of `seq` on the way to `descendant`; None if it is not above it."""
    below: int | None = None
    for first, last in ranges_upward(connection, descendant):
        if first <= seq:
            return seq + 1 if seq < last else below if seq == last else None
        below = first
    return None


def sums(connection: sqlite3.Connection, first: int, last: int) -> Sums:
    """Of the rows of (a part of) one range."""
    if first > last:
        return Sums()
    query = "SELECT count(*), total(bytes), total(tok) FROM assistant_messages WHERE seq BETWEEN ? AND ?"
    count, size, tokens = connection.execute(query, (first, last)).fetchone()
    return Sums(count, int(size), int(tokens))


def difference(connection: sqlite3.Connection, old: int | None, new: int | None) -> Sums:
    """What the path to `new` has more than the path to `old`. Costs the distance from both to where they meet."""
    result = Sums()
    while old != new:
        if new is None or (old is not None and old > new):
            part, old = _step(connection, old, new)
            result -= part
        else:
            part, new = _step(connection, new, old)
            result += part
    return result


def _step(connection: sqlite3.Connection, upper: int | None, other: int | None) -> tuple[Sums, int | None]:
    """From `upper` to the start of its range, or to `other` if it is in it: what lies between, and where we are then."""
    assert upper is not None
    first, parent = _jump(connection, upper)
    if other is not None and other >= first:
        return sums(connection, other + 1, upper), other
    return sums(connection, first, upper), parent


def _jump(connection: sqlite3.Connection, seq: int) -> tuple[int, int | None]:
    """The first row of the range that `seq` is in, and its parent."""
    query = """SELECT seq, parent FROM assistant_messages INDEXED BY am_jump
               WHERE seq <= ? AND parent IS NOT seq - 1 ORDER BY seq DESC LIMIT 1"""
    first, parent = connection.execute(query, (seq,)).fetchone()
    return first, parent
