"""Where a new summary goes among those that apply. What applies to a path is decided in `storage.overlays`."""

from collections.abc import Callable, Sequence

from storage.overlays import Applied, is_compaction_message, overlay_message, resolve, visible
from storage.records import COMPACTION_PREFIX

__all__ = [
    "COMPACTION_PREFIX",
    "Applied",
    "is_compaction_message",
    "overlay_message",
    "place_overlay",
    "resolve",
    "visible",
]


def place_overlay(
    from_id: str, to_id: str, position: Callable[[str], int | None], applied: Sequence[Applied]
) -> tuple[str, str] | None:
    """The range under which a summary of ``from_id`` … ``to_id`` is stored, or None if it could never apply.

    Both ends must be on the path, in order, and the end must be visible; the start may also be the message of an applying
    overlay. A summary extends what applies already: it starts at the earliest applying overlay, unless it starts earlier.
    """
    end = position(to_id)
    if end is None or any(item.start <= end <= item.end for item in applied):
        return None
    folded = next((item for item in applied if from_id == COMPACTION_PREFIX + item.overlay.id), None)
    start = folded.start if folded is not None else position(from_id)
    if start is None or start > end:
        return None
    if applied and applied[0].start <= start:
        return applied[0].overlay.from_id, to_id
    return from_id, to_id
