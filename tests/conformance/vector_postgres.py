"""Mode ``postgres`` (FORMAT.md section 3): a fresh schema of a real server, with the tables as the providers make them."""

from typing import Any

import postgres_server
from psycopg import AsyncConnection

from storage import PostgresContextProvider, PostgresSearchProvider, PostgresSessionProvider


async def open_owner(directory: Any) -> Any:
    """What sessions of this mode are built over; it has ``close()``. Opened again for the same directory: the same data."""
    server = postgres_server.server()
    return await AsyncConnection.connect(server.dsn(server.schema(str(directory))))


def session_provider(owner: Any, session_id: str) -> Any:
    return PostgresSessionProvider(owner, session_id)


def context_provider(owner: Any, key: str) -> Any:
    return PostgresContextProvider(owner, key)


def search_provider(owner: Any) -> Any:
    return PostgresSearchProvider(owner)
