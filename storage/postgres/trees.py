"""The tree of messages of one session as PostgreSQL has it: paths and what is visible of them. No database."""

from dataclasses import dataclass
from typing import Any

import orjson

from storage.overlays import Overlay, resolve
from storage.postgres.texts import iso_time, unescape


@dataclass(frozen=True, slots=True)
class Tree:
    """All messages of a session by id, in the order of insertion, and its overlays. Ids are as they are stored.

    The newest message never has a child, so it is the latest leaf. ``contents``: of those that were asked for.
    """

    parents: dict[str, str | None]
    sizes: dict[str, int]
    overlays: list[Overlay]
    contents: dict[str, str]

    def path(self, leaf: str | None = None) -> list[str]:
        """The ids from the root to a message (None: the latest leaf)."""
        here = next(reversed(self.parents), None) if leaf is None else leaf
        path: list[str] = []
        while here is not None and here in self.parents and len(path) < len(self.parents):
            path.append(here)
            here = self.parents[here]
        return path[::-1]

    def visible(self, path: list[str]) -> list[str | Overlay]:
        """A path, or its end, with overlays in place of what they stand for."""
        position = {identity: place for place, identity in enumerate(path)}
        result: list[str | Overlay] = []
        place = 0
        for item in resolve(self.overlays, position.get):
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


def tree_of(row: Any) -> Tree:
    """From the columns ``messages`` and ``overlays``: JSON arrays in the order of insertion, or null."""
    messages = orjson.loads(row["messages"] or "[]")
    overlays = [
        Overlay(order, identity, unescape(summary), from_id, to_id, iso_time(created))
        for order, (identity, summary, from_id, to_id, created) in enumerate(orjson.loads(row["overlays"] or "[]"))
    ]
    parents = {identity: parent for identity, parent, _, _ in messages}
    sizes = {identity: size for identity, _, size, _ in messages}
    return Tree(parents, sizes, overlays, {identity: content for identity, _, _, content in messages if content})
