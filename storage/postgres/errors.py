"""What can go wrong with PostgreSQL, in the tree of `storage.errors`.

::

    StorageError
    ├── Refused
    │   └── PoolNotOpen               the pool was not opened, or is closed
    ├── NotExecuted
    │   └── StoreUnavailable
    │       └── PostgresUnavailable   the connection was lost or there is none; nothing was stored; repeat the call
    ├── Damaged
    │   ├── MissingTables             a table or a column is not there, and this role may not make it
    │   └── UnsuitableServer          the server is too old, or its database not in UTF8
    └── PostgresFailed                the server refused a statement for another reason

A write whose connection went while it was being committed is an `OutcomeUnknown`. Errors carry a driver's text only where the
server answered, and never a password.
"""

import re
from typing import Final

from storage.errors import Damaged, LimitExceeded, OutcomeUnknown, Refused, StorageError, StoreUnavailable


class PoolNotOpen(Refused):
    code = "pool_not_open"
    sentence = "The PostgreSQL pool is not open: use `async with pool`; nothing was stored."


class PostgresUnavailable(StoreUnavailable):
    code = "postgres_unavailable"
    sentence = "PostgreSQL gives no answer ({0}); nothing was stored, repeat the call."


class MissingTables(Damaged):
    code = "missing_tables"
    sentence = (
        "PostgreSQL lacks {0}, and this role may not create it ({1}); "
        "run the statements of storage.postgres.TABLES once, as a role that may."
    )


class UnsuitableServer(Damaged):
    code = "unsuitable_server"
    sentence = "This PostgreSQL cannot keep sessions: it has {0}, and {1} is needed; nothing was stored."


class PostgresFailed(StorageError):
    code = "postgres_failed"
    sentence = "PostgreSQL refused a statement ({0}): {1}"

    @property
    def sqlstate(self) -> str:
        return str(self.args[0])


_STATE: Final = re.compile(r"[0-9A-Z]{5}")
_UNAVAILABLE: Final = re.compile("08|40|53|57|25006|25P0[34]|55P03")
_UNCERTAIN: Final = re.compile("08|40003|57P")
_LOST: Final = re.compile("Operational|Interface|Connection|Timeout|Closed|Disconnect|TooManyRequests")
_NOT_OPEN: Final = re.compile("^PoolClosed$")
_SECRETS: Final = re.compile(r"(\w+://[^\s:/@]*:)[^\s@]*@|\b(password\s*=\s*)('[^']*'|\S+)", re.IGNORECASE)


def failure_of(error: Exception, *, is_uncertain: bool = False) -> StorageError:
    """The error of this layer for a driver's. `is_uncertain`: when it came, the write may have been committed already."""
    if isinstance(error, StorageError):
        return error
    if _is_named(error, _NOT_OPEN):  # by `psycopg_pool`, before there is a connection
        return PoolNotOpen()
    state = sqlstate_of(error)
    if state is None and _is_loss(error):
        return OutcomeUnknown() if is_uncertain else PostgresUnavailable(type(error).__name__)
    if state is not None and is_uncertain and _UNCERTAIN.match(state):
        return OutcomeUnknown()
    if state is not None and _UNAVAILABLE.match(state):
        return PostgresUnavailable(f"{type(error).__name__}, SQLSTATE {state}")
    if state is not None and state.startswith("54"):
        return LimitExceeded("A text", "what PostgreSQL can index")
    return PostgresFailed(state or type(error).__name__, _told(error))


def is_loss(error: StorageError) -> bool:
    """Whether the connection that was used is of no more use."""
    return isinstance(error, (PostgresUnavailable, OutcomeUnknown))


def sqlstate_of(error: Exception) -> str | None:
    """What the server answered; None if the error is the driver's own."""
    for name in ("sqlstate", "code", "pgcode"):
        state = getattr(error, name, None)
        if isinstance(state, str) and _STATE.fullmatch(state):
            return state
    return None


def _is_loss(error: Exception) -> bool:
    return isinstance(error, (OSError, EOFError)) or _is_named(error, _LOST)


def _is_named(error: Exception, names: "re.Pattern[str]") -> bool:
    return any(names.search(kind.__name__) for kind in type(error).__mro__)


def _told(error: Exception) -> str:
    """The first line of what the server said, without its details, which may hold what was stored."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    lines = str(primary or error).splitlines() or [""]
    return _SECRETS.sub(lambda found: (found[1] or found[2]) + ("…@" if found[1] else "…"), lines[0])
