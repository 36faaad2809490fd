"""Pages of a tree of messages: the orders, rows and cursors of `storage.message_pages`. No database.

A cursor tells of rows by their places, as that module's does by their ``seq``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from storage import cursors
from storage.errors import InvalidArgument
from storage.postgres.texts import unescape
from storage.postgres.trees import Tree

Place: TypeAlias = tuple[int, int]
"""Of a row: its number and the mark of its id."""


def page(
    tree: Tree, session_id: str, limit: int, cursor: str | None, order: str, leaf_id: str | None
) -> tuple[list[str], str | None]:
    """The ids of the rows, as they are stored, and the next cursor. ``leaf_id``: as it is stored.

    Raises InvalidArgument for a limit, order or cursor that cannot be.
    """
    if order not in _PAGES:
        raise InvalidArgument(f"the order of messages is {', '.join(map(repr, _PAGES))}, not {order!r}")
    limit = cursors.checked_limit(limit)
    tree = replace(tree, places=_growing(tree))
    scope = cursors.scope("messages", session_id, order, unescape(leaf_id) if leaf_id else None)
    rows, next_place = _PAGES[order](tree, limit, cursor, scope, leaf_id)
    return rows, None if next_place is None else cursors.encode(scope, *next_place)


_Found: TypeAlias = tuple[list[str], tuple[int, ...] | None]


def _newest(tree: Tree, limit: int, cursor: str | None, scope: int, leaf_id: str | None) -> _Found:
    if cursor is None:
        path = tree.path(leaf_id)
        leaf = _place(tree, path[-1]) if path else (0, 0)
    else:
        leaf_number, leaf_mark, number, mark = cursors.decode(cursor, scope, 4)
        leaf = (leaf_number, leaf_mark)
        path = _above(tree, leaf, (number, mark))
    rows = path[::-1][: limit + 1]
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], (*leaf, *_place(tree, rows[limit - 1]))


def _oldest(tree: Tree, limit: int, cursor: str | None, scope: int, leaf_id: str | None) -> _Found:
    here: str | None = None
    number = -1
    is_there = True
    if cursor is None:
        path = tree.path(leaf_id)
        leaf = _place(tree, path[-1]) if path else (0, 0)
    else:
        leaf_number, leaf_mark, number, mark = cursors.decode(cursor, scope, 4)
        leaf = (leaf_number, leaf_mark)
        here = _there(tree, (number, mark))
        is_there = here is not None
        end = _there(tree, leaf)
        path = _path_before(tree, leaf_number) if end is None else tree.path(end)
    children = _children(tree)
    rows: list[str] = []
    while is_there and len(rows) <= limit and path and here != path[-1]:
        following = children.get(here, [])
        if len(following) != 1:  # which way leads to the leaf is seen from there only
            is_there = False
        else:
            here = following[0]
            number = tree.places[here]
            rows.append(here)
    if not is_there:
        rows += [identity for identity in path if tree.places[identity] > number]
    rows = rows[: limit + 1]
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], (*leaf, *_place(tree, rows[limit - 1]))


def _inserted(tree: Tree, limit: int, cursor: str | None, scope: int, leaf_id: str | None) -> _Found:
    if leaf_id:
        raise InvalidArgument("a page of all messages, in the order 'inserted', has no leaf")
    after = -1 if cursor is None else cursors.decode(cursor, scope, 1)[0]
    rows = [identity for identity in tree.parents if tree.places[identity] > after][: limit + 1]
    return rows[:limit], (tree.places[rows[limit - 1]],) if len(rows) > limit else None


_PAGES: Final[dict[str, Callable[[Tree, int, str | None, int, str | None], _Found]]] = {
    "newest": _newest,
    "oldest": _oldest,
    "inserted": _inserted,
}


def _above(tree: Tree, leaf: Place, last: Place) -> list[str]:
    """The path that is left of a walk upward: what is above the last row that was given, or above where that was."""
    if (row := _there(tree, last)) is not None:
        return tree.path(row)[:-1]
    if (end := _there(tree, leaf)) is not None:
        return [identity for identity in tree.path(end) if tree.places[identity] < last[0]]
    return _path_before(tree, last[0])


def _path_before(tree: Tree, number: int) -> list[str]:
    """The path to the newest row before a place."""
    newest = next((identity for identity in reversed(tree.parents) if tree.places[identity] < number), None)
    return [] if newest is None else tree.path(newest)


def _children(tree: Tree) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for identity, parent in tree.parents.items():
        found.setdefault(parent if parent in tree.parents else None, []).append(identity)
    return found


def _growing(tree: Tree) -> dict[str, int]:
    """The places without ties, which there may be where the order is that of times."""
    places: dict[str, int] = {}
    last = -1
    for identity in tree.parents:
        last = places[identity] = max(tree.places[identity], last + 1)
    return places


def _there(tree: Tree, place: Place) -> str | None:
    number, mark = place
    candidates = (identity for identity in tree.parents if tree.places[identity] == number)
    return next((identity for identity in candidates if cursors.mark(unescape(identity)) == mark), None)


def _place(tree: Tree, identity: str) -> Place:
    return tree.places[identity], cursors.mark(unescape(identity))
