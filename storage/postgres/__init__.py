"""Sessions in PostgreSQL: message storage, context blocks and searchable entries over any driver's connection.

The server is PostgreSQL 13 or newer, and its database is in UTF8; the first call of a provider raises UnsuitableServer
for any other.

The tables are made by the first call that needs them, if its role may. To make them beforehand, or for a role that may
not, run as their owner, with ``psql`` or any driver and without arguments::

    ORDER_COLUMN    where tables exist that were made from the documented statements: adds the column ``seq`` to them
    TABLES          makes what is not there

ORDER_COLUMN locks a table while it numbers all its rows. For large tables in use, run it at a quiet time, before a process
starts with a role that owns them: else its first call does it. A role that does not own them goes on without the column.
"""

from storage.postgres.clients import PostgresConnection
from storage.postgres.contexts import PostgresContextProvider
from storage.postgres.messages import PostgresSessionProvider
from storage.postgres.search import PostgresSearchProvider
from storage.postgres.tables import ORDER_COLUMN, TABLES

__all__ = [
    "ORDER_COLUMN",
    "TABLES",
    "PostgresConnection",
    "PostgresContextProvider",
    "PostgresSearchProvider",
    "PostgresSessionProvider",
]
