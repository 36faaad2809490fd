"""The kinds of clients that PostgreSQL's providers take, over one schema of the test server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from postgres_server import USER, server
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg_pool import AsyncConnectionPool

KINDS = ["connection", "autocommit", "raw", "pool", "execute", "query"]


class ExecuteClient:
    """In the style of `PostgresConnection`: a naive driver that knows nothing of literals. Remembers what it was asked."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.statements: list[str] = []

    async def execute(self, query: str, args: Sequence[Any] = ()) -> dict[str, Any]:
        self.statements.append(query)
        assert query.count("?") == len(args)
        cursor = await self._connection.execute(query.replace("?", "%s"), list(args))
        names = [column.name for column in cursor.description or ()]
        rows = await cursor.fetchall() if cursor.description else []
        return {"rows": [dict(zip(names, row, strict=True)) for row in rows]}


@dataclass
class QueryResult:
    rows: list[dict[str, Any]]


class QueryClient:
    """In the style of node's ``pg``: ``$1`` placeholders, an object with rows, and big numbers as texts."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def query(self, text: str, values: Sequence[Any]) -> QueryResult:
        async with AsyncRawCursor(self._connection) as cursor:
            await cursor.execute(text, list(values))
            names = [column.name for column in cursor.description or ()]
            rows = await cursor.fetchall() if cursor.description else []
        plain = [[str(value) if isinstance(value, int) else value for value in row] for row in rows]
        return QueryResult([dict(zip(names, row, strict=True)) for row in plain])


@asynccontextmanager
async def client(kind: str, schema: str, user: str = USER) -> AsyncIterator[Any]:
    dsn = server().dsn(schema, user)
    if kind == "pool":
        async with AsyncConnectionPool(dsn, min_size=2, max_size=4, open=False) as pool:
            yield pool
        return
    async with await AsyncConnection.connect(dsn, autocommit=kind not in ("connection", "raw")) as connection:
        if kind == "raw":
            connection.cursor_factory = AsyncRawCursor
        yield {"execute": ExecuteClient, "query": QueryClient}.get(kind, lambda same: same)(connection)
