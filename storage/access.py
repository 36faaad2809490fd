"""How providers reach their tables: through whatever owns a Database, with the tables there when they are needed.

A file that was never written is read as empty and stays so: reading must leave nothing behind.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Protocol, TypeAlias, TypeVar

from storage import schema
from storage.database import Database
from storage.errors import InvalidArgument

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]


class HasDatabase(Protocol):
    """An Agent, or any object that has a database."""

    @property
    def database(self) -> Database: ...


Owner: TypeAlias = Database | HasDatabase


def database_of(owner: Owner) -> Database:
    """The database itself, or the one of its owner. Raises InvalidArgument if there is none."""
    if isinstance(owner, Database):
        return owner
    database = getattr(owner, "database", None)
    if not isinstance(database, Database):
        raise InvalidArgument(f"a Database, or an object with one as .database, is needed, not {type(owner).__name__}")
    return database


async def read(database: Database, work: Work[T]) -> T:
    """Run `work(connection)` as a read, on empty tables if the file was never written."""
    if database.is_migrated:
        return await database.read(work)
    current, result = await database.read(lambda connection: _read_unmigrated(connection, work))
    if current == schema.NEWEST:
        database.is_migrated = True
    elif current:
        return await write(database, work)
    assert result is not None
    return result[0]


async def write(database: Database, work: Work[T], *, size: int = 0) -> T:
    """Run `work(connection)` as a write; the first one makes the tables, in the same transaction.

    ``size``: about how many bytes it holds while it waits.
    """
    if database.is_migrated:
        return await database.write(work, size=size)

    def migrate_first(connection: sqlite3.Connection) -> T:
        schema.migrate(connection)
        return work(connection)

    result = await database.write(migrate_first, size=size)
    database.is_migrated = True
    return result


def _read_unmigrated(connection: sqlite3.Connection, work: Work[T]) -> tuple[int, tuple[T] | None]:
    current = schema.version(connection)
    if current == schema.NEWEST:
        return current, (work(connection),)
    if current:
        return current, None
    with closing(schema.empty()) as tables:
        return current, (work(tables),)
