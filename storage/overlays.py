"""Which overlays apply to a path, and what is then visible. Pure: no database, no clock.

Invariant: an overlay applies if both of its ends are on the path, in order. From the root to the leaf, the newest of those that
start at a message wins and hides everything up to its end; what starts inside a hidden range does not apply.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from storage.errors import LimitExceeded
from storage.records import COMPACTION_PREFIX, JsonObject, SessionMessage


@dataclass(frozen=True, slots=True)
class Overlay:
    """A stored summary. ``order`` grows with each one that is stored."""

    order: int
    id: str
    summary: str
    from_id: str
    to_id: str
    created_at: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Applied:
    """An overlay that applies, and where: positions (or any numbers that grow along the path) of its ends."""

    overlay: Overlay
    start: int
    end: int


def resolve(overlays: Iterable[Overlay], position: Callable[[str], int | None]) -> list[Applied]:
    """The overlays that apply, in the order of the path. ``position(id)`` is None for what is not on it."""
    by_start: dict[int, Applied] = {}
    settled: set[str] = set()
    for overlay in sorted(overlays, key=lambda item: item.order, reverse=True):
        if overlay.from_id in settled:
            continue
        start = position(overlay.from_id)
        if start is None:
            settled.add(overlay.from_id)
            continue
        end = position(overlay.to_id)
        if end is not None and start <= end:
            by_start[start] = Applied(overlay, start, end)
            settled.add(overlay.from_id)
    applied: list[Applied] = []
    for start in sorted(by_start):
        if not applied or start > applied[-1].end:
            applied.append(by_start[start])
    return applied


def visible(messages: Sequence[JsonObject], overlays: Iterable[Overlay]) -> list[JsonObject]:
    """`messages`, a path from its root, with the applying overlays in place of what they stand for."""
    index = {message["id"]: place for place, message in enumerate(messages)}
    result: list[JsonObject] = []
    place = 0
    for item in resolve(overlays, index.get):
        result += messages[place : item.start]
        result.append(overlay_message(item.overlay))
        place = item.end + 1
    return result + list(messages[place:])


def overlay_message(overlay: Overlay) -> JsonObject:
    """The message that readers see in place of the range."""
    return {
        "id": COMPACTION_PREFIX + overlay.id,
        "role": "assistant",
        "parts": [{"type": "text", "text": overlay.summary}],
        "createdAt": overlay.created_at,
    }


def check_size(summary: str, limit: int) -> None:
    """Raise LimitExceeded for a summary that is over the limit of a message."""
    size = len(orjson.dumps(overlay_message(Overlay(0, "", summary, "", "", ""))))
    if size > limit:
        raise LimitExceeded(f"A summary of {size:,} bytes", f"{limit:,} bytes")


def is_compaction_message(message: Mapping[str, Any] | SessionMessage) -> bool:
    """Whether a message stands for an overlay."""
    identity = message.id if isinstance(message, SessionMessage) else message.get("id")
    return isinstance(identity, str) and identity.startswith(COMPACTION_PREFIX)
