"""The tree of messages of one session as PostgreSQL has it: paths and what is visible of them. No database."""

from dataclasses import dataclass, replace
from typing import Any

import orjson

from storage.overlays import Applied, Overlay, resolve
from storage.postgres.texts import iso_time, unescape


@dataclass(frozen=True, slots=True)
class Tree:
    """All messages of a session by id, in the order of insertion, and its overlays. Ids are as they are stored.

    The newest message never has a child, so it is the latest leaf. Of those that were asked for: ``contents``; ``places``,
    numbers that grow in the order of insertion; ``versions``, which change whenever a row does; ``times``, in milliseconds.
    """

    parents: dict[str, str | None]
    sizes: dict[str, int]
    overlays: list[Overlay]
    contents: dict[str, str]
    places: dict[str, int]
    versions: dict[str, str]
    times: dict[str, int]

    @property
    def latest(self) -> str | None:
        return next(reversed(self.parents), None)

    def path(self, leaf: str | None = None) -> list[str]:
        """The ids from the root to a message (None: the latest leaf)."""
        here = self.latest if leaf is None else leaf
        path: list[str] = []
        while here is not None and here in self.parents and len(path) < len(self.parents):
            path.append(here)
            here = self.parents[here]
        return path[::-1]

    def applied(self, path: list[str]) -> list[Applied]:
        """The overlays that apply to a path, by the positions on it."""
        return resolve(self.overlays, {identity: place for place, identity in enumerate(path)}.get)

    def visible(self, path: list[str]) -> list[str | Overlay]:
        """A path, or its end, with overlays in place of what they stand for."""
        result: list[str | Overlay] = []
        place = 0
        for item in self.applied(path):
            result += path[place : item.start]
            result.append(item.overlay)
            place = item.end + 1
        return result + path[place:]

    def newest(self, path: list[str], budget: int, least: int) -> list[str]:
        """The end of a path whose size fits, at least so many messages."""
        size = count = 0
        for identity in reversed(path):
            if count >= least and size + self.sizes[identity] > budget:
                break
            size += self.sizes[identity]
            count += 1
        return path[len(path) - count :]

    def unescaped(self) -> "Tree":
        """With all ids as they were given."""
        overlays = [replace(item, from_id=unescape(item.from_id), to_id=unescape(item.to_id)) for item in self.overlays]
        parents = {unescape(key): None if parent is None else unescape(parent) for key, parent in self.parents.items()}
        named: list[dict[str, Any]] = [
            {unescape(key): value for key, value in values.items()}
            for values in (self.sizes, self.contents, self.places, self.versions, self.times)
        ]
        return Tree(parents, named[0], overlays, *named[1:])


def tree_of(row: Any) -> Tree:
    """From the columns ``messages`` and ``overlays``: JSON arrays in the order of insertion, or null."""
    messages = orjson.loads(row["messages"] or "[]")
    overlays = [
        Overlay(order, identity, unescape(summary), from_id, to_id, iso_time(created))
        for order, (identity, summary, from_id, to_id, created) in enumerate(orjson.loads(row["overlays"] or "[]"))
    ]
    columns = [{each[0]: each[column] for each in messages} for column in range(1, 3)]
    asked = [{each[0]: each[column] for each in messages if each[column] is not None} for column in range(3, 7)]
    return Tree(columns[0], columns[1], overlays, *asked)
