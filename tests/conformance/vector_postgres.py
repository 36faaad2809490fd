"""Mode ``postgres`` (FORMAT.md section 3): a fresh schema of a real server, with the documented tables."""

from typing import Any

MISSING: str | None = "mode postgres"


async def open_owner(directory: Any) -> Any:
    """What sessions of this mode are built over; it has ``close()``. Opened again for the same directory: the same data."""
    raise NotImplementedError


def session_provider(owner: Any, session_id: str) -> Any:
    raise NotImplementedError


def context_provider(owner: Any, key: str) -> Any:
    raise NotImplementedError


def search_provider(owner: Any) -> Any:
    raise NotImplementedError
