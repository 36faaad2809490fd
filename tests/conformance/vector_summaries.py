"""The compaction function of kind ``summarize`` (FORMAT.md 3.3): `create_compact_function` with a scripted ``summarize``."""

from typing import Any

MISSING: str | None = "create_compact_function"


def compact_function(harness: Any) -> Any:
    raise NotImplementedError
