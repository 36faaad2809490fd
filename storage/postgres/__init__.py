"""Sessions in PostgreSQL: message storage, context blocks and searchable entries over any driver's connection."""

from storage.postgres.clients import PostgresConnection
from storage.postgres.contexts import PostgresContextProvider
from storage.postgres.messages import PostgresSessionProvider
from storage.postgres.search import PostgresSearchProvider
from storage.postgres.tables import TABLES

__all__ = [
    "TABLES",
    "PostgresConnection",
    "PostgresContextProvider",
    "PostgresSearchProvider",
    "PostgresSessionProvider",
]
