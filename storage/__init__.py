"""What survives: SQLite, Postgres and object stores. Knows nothing of Ray, sockets or models."""

from storage.contexts import AgentContextProvider
from storage.database import Database, open_database
from storage.messages import AgentSessionProvider
from storage.postgres import (
    PostgresConnection,
    PostgresContextProvider,
    PostgresSearchProvider,
    PostgresSessionProvider,
)
from storage.records import (
    LATEST,
    MessagePage,
    MessageRow,
    RecentHistory,
    RowStat,
    SearchResult,
    SessionInfo,
    SessionMessage,
    SessionMessagePart,
    StoredCompaction,
)
from storage.search import AgentSearchProvider
from storage.skills import R2SkillProvider

__all__ = [
    "LATEST",
    "AgentContextProvider",
    "AgentSearchProvider",
    "AgentSessionProvider",
    "Database",
    "MessagePage",
    "MessageRow",
    "PostgresConnection",
    "PostgresContextProvider",
    "PostgresSearchProvider",
    "PostgresSessionProvider",
    "R2SkillProvider",
    "RecentHistory",
    "RowStat",
    "SearchResult",
    "SessionInfo",
    "SessionMessage",
    "SessionMessagePart",
    "StoredCompaction",
    "open_database",
]
