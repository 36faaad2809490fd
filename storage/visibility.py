"""What is visible of a path: the overlays that apply to it, found from the root on, and what shows between them.

The rule is that of `storage.overlays`. What a summary hides is not looked at, so the cost is that of what is visible: neither
superseded overlays nor late results that were folded count. An overlay of a late result (`storage.late_results`) shows in
place of its message unless a summary hides that.
"""

import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

import orjson

from storage import leaves, paths
from storage.overlays import Applied, Overlay
from storage.paths import Range, Sums

COLUMNS: Final = "seq, id, summary, from_message_id, to_message_id, created_at, tok"

_NEXT_START: Final = """SELECT first FROM assistant_compactions INDEXED BY ac_order
                        WHERE session_id = ? AND call IS NULL AND first >= ? ORDER BY first LIMIT 1"""
_STARTING_AT: Final = """SELECT seq, last FROM assistant_compactions INDEXED BY ac_order
                         WHERE session_id = ? AND call IS NULL AND first = ? AND last >= first ORDER BY seq DESC"""
_LATE: Final = """SELECT late.seq, late.first FROM json_each(?) AS gap
                  CROSS JOIN assistant_compactions AS late INDEXED BY ac_late
                  WHERE late.call IS NOT NULL AND late.first BETWEEN gap.value ->> 0 AND gap.value ->> 1"""

_Place = tuple[int, int, int]
"""``seq`` of the first and last message of a range, and of the overlay that stands for it."""


def applied(connection: sqlite3.Connection, session_id: str, leaf: int | None, *, since: int = 0) -> list[Applied]:
    """The overlays that apply to the path that ends at `leaf`; their positions are the ``seq`` of their ends.

    With `since`, the path that is read begins at that message; what is above it is not on it.
    """
    start = _earliest(connection, session_id, leaf, since)
    if start is None:
        return []
    path = _path(connection, leaf, start)
    summaries = list(_summaries(connection, session_id, path, since))
    places = sorted(summaries + _late(connection, _gaps(path, summaries, since)))
    query = f"SELECT {COLUMNS} FROM assistant_compactions WHERE seq = ?"
    return [Applied(Overlay(*connection.execute(query, (seq,)).fetchone()), first, last) for first, last, seq in places]


def is_folded(connection: sqlite3.Connection, session_id: str, leaf: int, seq: int) -> bool:
    """Whether a summary hides a message of the path that ends at `leaf`. Looks at no overlay that begins after it."""
    start = _earliest_summary(connection, session_id, 0)
    if start is None or start > seq:
        return False
    for first, last, _ in _summaries(connection, session_id, _path(connection, leaf, start), 0):
        if seq <= last:
            return first <= seq
    return False


def hidden_until(connection: sqlite3.Connection, session_id: str, first: int, last: int) -> int:
    """The end of the summary that begins at `first` and applies to every path through `last`; before `first` if none does."""
    for _, end in connection.execute(_STARTING_AT, (session_id, first)):
        if paths.is_on_path(connection, end, last):
            return int(end)
    return first - 1


def is_start(connection: sqlite3.Connection, session_id: str, seq: int) -> bool:
    """Whether a summary begins at this message."""
    return _earliest_summary(connection, session_id, seq) == seq


def shown_tokens(connection: sqlite3.Connection, session_id: str, leaf: int, seq: int, tokens: int) -> int:
    """What a message of the path, of so many tokens, adds to what is visible: all, nothing, or the text that stands for it."""
    if is_folded(connection, session_id, leaf, seq):
        return 0
    query = "SELECT tok FROM assistant_compactions WHERE call IS NOT NULL AND first = ?"
    late = connection.execute(query, (seq,)).fetchone()
    return tokens if late is None else int(late[0])


def identities(applying: Iterable[Applied]) -> list[str]:
    return [item.overlay.id for item in applying]


def pieces(path: Iterable[Range], applying: Iterable[Applied]) -> Iterator[Range | Applied]:
    """What is visible of a path, in its order: ranges of rows, and overlays in place of what they hide."""
    waiting = iter(applying)
    item = next(waiting, None)
    shown = False
    for first, last in path:
        while first <= last:
            if item is None or item.start > last:
                yield first, last
                break
            if not shown:
                if first < item.start:
                    yield first, item.start - 1
                yield item
                shown = True
            first = item.end + 1
            if item.end <= last:
                item, shown = next(waiting, None), False


def visible_tokens(connection: sqlite3.Connection, session_id: str, leaf: int | None) -> int:
    """Counted anew: the estimate of what is visible of a path. Costs what is visible, not what is hidden."""
    total = 0
    for piece in pieces(paths.ranges(connection, leaf), applied(connection, session_id, leaf)):
        total += piece.overlay.tokens if isinstance(piece, Applied) else paths.sums(connection, *piece).tokens
    return total


def recount(connection: sqlite3.Connection, session_id: str) -> None:
    """Count the visible tokens of the latest leaf's path anew."""
    leaf = leaves.latest(connection, session_id)
    if leaf is not None:
        tokens = visible_tokens(connection, session_id, leaf.seq)
        leaves.set_sums(connection, leaf.seq, Sums(leaf.sums.count, leaf.sums.bytes, tokens))


def change_by(connection: sqlite3.Connection, session_id: str, leaf: int, first: int, last: int, tokens: int) -> int:
    """By how much the visible tokens of the path to `leaf` would change by one more summary of so many tokens.

    Costs what the summary hides, and summaries that begin inside of it; of others only those that it replaces.
    """
    path = [(max(start, first), end) for start, end in _path(connection, leaf, first)]
    if (
        _on_path(path, first) != first
        or _on_path(path, last) != last
        or _is_hidden(connection, session_id, leaf, first)
    ):
        return 0
    before = _summaries(connection, session_id, path, first)
    after = _summaries(connection, session_id, path, last + 1)
    hidden: tuple[list[_Place], list[_Place]] = [], [(first, last, 0)]
    following = [next(before, None), next(after, None)]
    horizon, is_settled = last, False
    while not is_settled:  # until both ways to see the path go on alike
        is_settled = True
        for index, rest in enumerate((before, after)):
            while (item := following[index]) is not None and item[0] <= horizon:
                hidden[index].append(item)
                horizon, following[index], is_settled = max(horizon, item[1]), next(rest, None), False
    part = [(start, min(end, horizon)) for start, end in path if start <= horizon]
    return _shown(connection, part, hidden[1]) + tokens - _shown(connection, part, hidden[0])


def _is_hidden(connection: sqlite3.Connection, session_id: str, leaf: int, seq: int) -> bool:
    """`is_folded` by a summary that begins before it; where none reaches it, that is seen at once."""
    query = """SELECT EXISTS (SELECT 1 FROM assistant_compactions INDEXED BY ac_order
               WHERE session_id = ? AND call IS NULL AND first < ? AND last >= ?)"""
    (may_be,) = connection.execute(query, (session_id, seq, seq)).fetchone()
    if not may_be:
        return False
    start = _earliest_summary(connection, session_id, 0)
    assert start is not None
    for first, last, _ in _summaries(connection, session_id, _path(connection, leaf, start), 0):
        if seq <= last:
            return first < seq
    return False


def _shown(connection: sqlite3.Connection, part: list[Range], hidden: list[_Place]) -> int:
    """The visible tokens of a part of a path of which these summaries hide something."""
    gaps = _gaps(part, hidden, part[0][0])
    total = sum(paths.sums(connection, *gap).tokens for gap in gaps)
    for first, _, seq in _late(connection, gaps):
        (instead,) = connection.execute("SELECT tok FROM assistant_compactions WHERE seq = ?", (seq,)).fetchone()
        total += instead - paths.sums(connection, first, first).tokens
    for _, _, seq in hidden:
        row = connection.execute("SELECT tok FROM assistant_compactions WHERE seq = ?", (seq,)).fetchone()
        total += row[0] if row else 0
    return total


def _earliest(connection: sqlite3.Connection, session_id: str, leaf: int | None, since: int) -> int | None:
    """Where the first overlay may begin; None if there is none."""
    query = "SELECT first FROM assistant_compactions INDEXED BY ac_late WHERE call IS NOT NULL AND first BETWEEN ? AND ? LIMIT 1"
    late = connection.execute(query, (since, leaf)).fetchone()
    summary = _earliest_summary(connection, session_id, since)
    return summary if late is None else late[0] if summary is None else min(summary, late[0])


def _earliest_summary(connection: sqlite3.Connection, session_id: str, since: int) -> int | None:
    row = connection.execute(_NEXT_START, (session_id, since)).fetchone()
    return row[0] if row else None


def _path(connection: sqlite3.Connection, leaf: int | None, start: int) -> list[Range]:
    """The ranges of the path that end at `start` or after it, from the root's side."""
    found: list[Range] = []
    for first, last in paths.ranges_upward(connection, leaf):
        if last >= start:
            found.append((first, last))
        if first <= start:
            break
    return found[::-1]


def _summaries(connection: sqlite3.Connection, session_id: str, path: list[Range], since: int) -> Iterator[_Place]:
    """The summaries that apply to a path, from the root on."""
    at = since
    while (start := _earliest_summary(connection, session_id, at)) is not None:
        on_path = _on_path(path, start)
        if on_path is None:
            return
        at = on_path
        if at != start:
            continue
        for seq, last in connection.execute(_STARTING_AT, (session_id, start)):
            if _on_path(path, last) == last:
                yield start, last, seq
                at = last
                break
        at += 1


def _on_path(path: list[Range], seq: int) -> int | None:
    """The message, or the first one of the path after it."""
    index = bisect_left(path, seq, key=lambda part: part[1])
    return max(seq, path[index][0]) if index < len(path) else None


def _gaps(path: list[Range], summaries: list[_Place], since: int) -> list[Range]:
    """The ranges of the path that no summary hides."""
    gaps: list[Range] = []
    waiting = iter(summaries)
    item = next(waiting, None)
    for first, last in path:
        first = max(first, since)
        while item is not None and first <= last and item[0] <= last:
            if first < item[0]:
                gaps.append((first, item[0] - 1))
            first = max(first, item[1] + 1)
            if item[1] > last:
                break
            item = next(waiting, None)
        if first <= last:
            gaps.append((first, last))
    return gaps


def _late(connection: sqlite3.Connection, gaps: list[Range]) -> list[_Place]:
    """The overlays of late results in these ranges."""
    return [(first, first, seq) for seq, first in connection.execute(_LATE, (orjson.dumps(gaps).decode(),))]
