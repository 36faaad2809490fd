"""Mode ``manager`` (FORMAT.md 3.2, 4.2): a session manager built from the setup, and its operations."""

from typing import Any

MISSING: str | None = "mode manager"

MANAGER_OPERATIONS: set[str] = set()


def build_manager(harness: Any, owner: Any) -> Any:
    raise NotImplementedError


async def perform_on_manager(manager: Any, harness: Any, op: str, args: dict[str, Any]) -> Any:
    """One operation of section 4.2; its value as plain JSON."""
    raise NotImplementedError
