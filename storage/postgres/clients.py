"""How statements reach PostgreSQL: four kinds of clients behind one interface. No driver is imported here.

Invariant of `Client.write`: it runs one statement under a lock, and that statement sees everything that was committed before the
lock was granted. Connections with transactions do it in one; others send the lock and the statement as one block.
"""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from storage.errors import InvalidArgument, StorageError
from storage.maybe_async import settle
from storage.postgres.errors import PostgresFailed, failure_of, is_loss, sqlstate_of
from storage.postgres.statements import Value, block, formatted, loop, numbered
from storage.postgres.tables import Tables

T = TypeVar("T")
Row: TypeAlias = Mapping[str, Any]

_LOCK: Final = """SELECT CAST(current_setting('transaction_isolation') AS text) AS isolation
    FROM (SELECT pg_advisory_xact_lock(hashtextextended(CAST(? AS text), 0))) AS locked"""
_READ_COMMITTED: Final = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
_IDLE: Final = 0
"""libpq's status of a connection that is in no transaction."""
_GONE: Final = ("42P01", "42703")
_PROBLEM: Final = re.compile(r"perdure:(\w+)")


class PostgresConnection(Protocol):
    """A connection of any driver: runs one statement with ``?`` placeholders; the result has ``rows``, each a mapping."""

    async def execute(self, query: str, args: Sequence[Value] = ..., /) -> Any: ...


class Shared:
    """What all providers over one object have in common. It must not hold the object, which would then never go."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.making = asyncio.Lock()
        self.turn = asyncio.Lock()


class Client:
    """Statements over one client. What is known of its tables is shared by all providers over it."""

    def __init__(self, shared: Shared) -> None:
        self.tables = shared.tables
        self._making = shared.making

    async def ready(self, *names: str) -> Tables:
        """The tables of these names, made if they are missing. Raises MissingTables."""
        if not self.tables.are_known(names):
            async with self._making:
                if not self.tables.are_known(names):
                    await self.tables.make(self, list(names))
        return self.tables

    async def read(self, statement: str, args: Sequence[Value]) -> list[Row]:
        """The rows of one statement that changes nothing."""
        try:
            return await self._read(statement, args)
        except Exception as exc:
            failure = self._failure(exc)
        raise failure  # outside, so that no driver's text travels with it

    async def write(self, lock: str, statement: str, args: Sequence[Value]) -> str | None:
        """Run a statement under a lock. Its row's column ``problem``: with a text nothing is changed."""
        try:
            return await self._write(lock, statement, args)
        except Exception as exc:
            failure = self._failure(exc)
        raise failure

    async def write_each(self, lock: str, statement: str, args: Sequence[Value], each: Sequence[str]) -> None:
        """Run a statement without a row for each of several texts, its last argument, in this order: all of them or none."""
        try:
            await self._write_each(lock, statement, args, each)
            return
        except Exception as exc:
            failure = self._failure(exc)
        raise failure

    async def define(self, statement: str) -> None:
        """Run one statement without arguments, in a transaction of its own."""
        try:
            await self._define(statement)
            return
        except Exception as exc:
            failure = self._failure(exc)
        raise failure

    def _failure(self, error: Exception) -> StorageError:
        if sqlstate_of(error) in _GONE or (isinstance(error, PostgresFailed) and error.sqlstate in _GONE):
            self.tables.forget()
        return failure_of(error)

    async def _read(self, statement: str, args: Sequence[Value]) -> list[Row]:
        raise NotImplementedError

    async def _write(self, lock: str, statement: str, args: Sequence[Value]) -> str | None:
        raise NotImplementedError

    async def _write_each(self, lock: str, statement: str, args: Sequence[Value], each: Sequence[str]) -> None:
        raise NotImplementedError

    async def _define(self, statement: str) -> None:
        raise NotImplementedError


class PsycopgClient(Client):
    """One ``psycopg.AsyncConnection``, used by one operation at a time.

    In a transaction that the caller has begun, what is written is part of it.
    """

    def __init__(self, connection: Any, shared: Shared) -> None:
        super().__init__(shared)
        self._connection = connection
        self._turn = shared.turn

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        async with self._turn:
            yield self._connection

    async def _read(self, statement: str, args: Sequence[Value]) -> list[Row]:
        async with self._connected() as connection, _reading(connection):
            return await _run(connection, statement, args)

    async def _write(self, lock: str, statement: str, args: Sequence[Value]) -> str | None:
        (row,) = await self._locked(lock, lambda connection: _run(connection, statement, args))
        return None if row["problem"] is None else str(row["problem"])

    async def _write_each(self, lock: str, statement: str, args: Sequence[Value], each: Sequence[str]) -> None:
        await self._locked(lock, lambda connection: connection.execute(loop(lock, statement, args, each)))

    async def _locked(self, lock: str, run: Callable[[Any], Awaitable[T]]) -> T:
        """`run` in a transaction that has the lock."""
        is_committing = False
        try:
            async with self._connected() as connection:
                is_own = _is_idle(connection)
                async with connection.transaction():
                    if is_own:
                        await _run(connection, _READ_COMMITTED, ())
                    (locked,) = await _run(connection, _LOCK, (lock,))
                    if locked["isolation"] != "read committed":
                        raise _other_isolation()
                    result = await run(connection)
                    is_committing = is_own
            return result
        except Exception as exc:
            failure = self._failure_of_write(exc, is_committing)
        raise failure

    async def _define(self, statement: str) -> None:
        async with self._connected() as connection, connection.transaction():
            await connection.execute(statement)

    def _failure_of_write(self, error: Exception, is_committing: bool) -> StorageError:
        self._failure(error)
        return failure_of(error, is_uncertain=is_committing)


class PoolClient(PsycopgClient):
    """A ``psycopg_pool.AsyncConnectionPool``: each operation takes a connection of its own."""

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        pool = self._connection
        try:
            async with pool.connection() as connection:
                yield connection
        except Exception as exc:
            if is_loss(failure_of(exc)) and not getattr(pool, "closed", False):
                with suppress(Exception):
                    await pool.check()  # replaces what else was lost, so that the next call finds a connection
            raise


class BareClient(Client):
    """An object that runs one statement at a time and promises nothing about the next: each write is one block."""

    def __init__(self, run: Callable[[str, list[Value]], Any], styled: Callable[[str], str], shared: Shared) -> None:
        super().__init__(shared)
        self._run = run
        self._styled = styled

    async def _read(self, statement: str, args: Sequence[Value]) -> list[Row]:
        return _rows(await settle(self._run(self._styled(statement), list(args))))

    async def _write(self, lock: str, statement: str, args: Sequence[Value]) -> str | None:
        return await self._block(block(lock, statement, args))

    async def _write_each(self, lock: str, statement: str, args: Sequence[Value], each: Sequence[str]) -> None:
        await self._block(loop(lock, statement, args, each))

    async def _block(self, statement: str) -> str | None:
        try:
            await settle(self._run(statement, []))
            return None
        except Exception as exc:
            problem = _PROBLEM.search(str(exc))
            self._failure(exc)
            failure = failure_of(exc, is_uncertain=True)
        if problem is None:
            raise failure
        if problem[1] == "isolation":
            raise _other_isolation()
        return problem[1]

    async def _define(self, statement: str) -> None:
        await settle(self._run(statement, []))


def _other_isolation() -> PostgresFailed:
    return PostgresFailed(
        "isolation",
        "writes of a conversation need READ COMMITTED; the transaction that they are part of has another level",
    )


_SHARED: WeakKeyDictionary[Any, Shared] = WeakKeyDictionary()


def client_of(client: Any) -> Client:
    """A `Client` over an object. Raises InvalidArgument for what is none of the four kinds."""
    return client if isinstance(client, Client) else _adapted(client, _shared(client))


def _shared(client: Any) -> Shared:
    try:
        return _SHARED.setdefault(client, Shared())
    except TypeError:  # cannot be a weak key: what is known of its tables is then each provider's own
        return Shared()


def _adapted(client: Any, shared: Shared) -> Client:
    if isinstance(client, type):
        raise InvalidArgument(f"A PostgreSQL client is an object, not the class {client.__name__}.")
    if _has(client, "connection", "getconn", "putconn"):
        return PoolClient(_asynchronous(client, client.getconn, "psycopg_pool.AsyncConnectionPool"), shared)
    if _has(client, "cursor", "transaction") and hasattr(client, "pgconn"):
        return PsycopgClient(_asynchronous(client, client.execute, "psycopg.AsyncConnection"), shared)
    if not _has_any(client, "fetch", "fetchone", "fetchall", "executescript", "executemany"):
        if _has(client, "execute"):
            return BareClient(client.execute, str, shared)
        if _has(client, "query"):
            return BareClient(client.query, numbered, shared)
    raise InvalidArgument(
        f"A PostgreSQL client is a psycopg.AsyncConnection, a psycopg_pool.AsyncConnectionPool, or an object with "
        f"execute(query, args) or query(text, values) that gives an object with rows, not {type(client).__name__}."
    )


def _asynchronous(client: Any, method: Any, wanted: str) -> Any:
    if not inspect.iscoroutinefunction(method):
        raise InvalidArgument(
            f"A PostgreSQL client must be asynchronous: give a {wanted}, not {type(client).__name__}."
        )
    return client


def _has(client: Any, *names: str) -> bool:
    return all(callable(getattr(client, name, None)) for name in names)


def _has_any(client: Any, *names: str) -> bool:
    return any(callable(getattr(client, name, None)) for name in names)


def _is_idle(connection: Any) -> bool:
    return bool(connection.info.transaction_status == _IDLE)


def _reading(connection: Any) -> AbstractAsyncContextManager[Any]:
    """A transaction, so that none is left open; none if the connection needs none."""
    return nullcontext() if connection.autocommit else connection.transaction()


async def _run(connection: Any, statement: str, args: Sequence[Value]) -> list[Row]:
    styled = numbered if "Raw" in connection.cursor_factory.__name__ else formatted
    async with connection.cursor(row_factory=_mapping) as cursor:
        await cursor.execute(styled(statement), list(args))
        return await cursor.fetchall() if cursor.description else []


def _mapping(cursor: Any) -> Callable[[Sequence[Any]], Row]:
    names = [column.name for column in cursor.description or ()]
    return lambda values: dict(zip(names, values, strict=True))


def _rows(result: Any) -> list[Row]:
    rows = result.get("rows") if isinstance(result, Mapping) else getattr(result, "rows", None)
    if not isinstance(rows, (list, tuple)) or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidArgument(
            f"A PostgreSQL client must give an object with rows, each a mapping by column name, not {type(result).__name__}."
        )
    return list(rows)
