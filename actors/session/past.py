"""What a model can find in the sessions of a manager: a searchable block of every session, and a tool beside them."""

from typing import Any, Final, Protocol

from actors.session.tools import Tool
from storage.records import SearchResult

RESULTS: Final = 10
NOTHING: Final = "No results found."


class Searchable(Protocol):
    """A `SessionManager`."""

    async def search(self, query: str, limit: int = ...) -> list[SearchResult]: ...
    async def count(self) -> int: ...


class PastSessions:
    """The provider of the searchable history. It is one for all sessions: there is nothing in it to be kept apart."""

    def __init__(self, manager: Searchable) -> None:
        self._manager = manager

    async def get(self) -> str | None:
        """How many sessions can be searched; None if there are none."""
        count = await self._manager.count()
        return f"{count} session{'' if count == 1 else 's'} available for search." if count else None

    async def search(self, query: str) -> str | None:
        """The ten best messages of all sessions, each with its role; None if there are none."""
        found = await self._manager.search(query, RESULTS)
        return "\n---\n".join(f"[{message['role']}] {message['content']}" for message in found) or None


def search_tool(past: PastSessions) -> Tool:
    """The tool ``session_search``."""

    async def run(arguments: dict[str, Any]) -> str:
        return await past.search(arguments["query"]) or NOTHING

    query = {"type": "string", "description": "Words that must all occur in a message."}
    schema = {"type": "object", "properties": {"query": query}, "required": ["query"]}
    description = (
        "Search the messages of all sessions, this one and earlier ones; at most ten come back, the best first."
    )
    return Tool("session_search", description, schema, run)
