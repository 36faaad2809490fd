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

    Both ends must be on the path, in order, and the end must be visible; either may be the message of an applying overlay.
    A summary extends what applies already: it starts at the earliest applying overlay, unless it starts earlier.
    """
    summaries = {COMPACTION_PREFIX + item.overlay.id: item for item in applied}
    if to_id in summaries:
        end: int | None = summaries[to_id].end
        to_id = summaries[to_id].overlay.to_id
    else:
        end = position(to_id)
        if any(item.start <= end <= item.end for item in applied if end is not None):
            return None
    start = summaries[from_id].start if from_id in summaries else position(from_id)
    if start is None or end is None or start > end:
        return None
    if applied and applied[0].start <= start:
        return applied[0].overlay.from_id, to_id
    return from_id, to_id
