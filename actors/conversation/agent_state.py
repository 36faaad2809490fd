"""The state of an agent: what its own code sees at once, and what everybody else sees once it is durable."""

import sqlite3
from typing import Any

from actors.agent import UNSET
from actors.conversation.json_text import decode, encode
from storage.database import Database
from storage.errors import LimitExceeded
from storage.json_text import MAX_DEPTH, is_too_deep

_KEY = "agent_state"


class AgentState:
    """One conversation's; UNSET until `begin`."""

    def __init__(self, database: Database) -> None:
        self.seen: Any = UNSET
        """What the agent's own code sees: what comes behind a change builds on it."""
        self._database = database
        self._confirmed: Any = UNSET
        self._unconfirmed_changes = 0

    def begin(self, stored: str | None, initial: Any) -> None:
        """With what `read_stored` found, or else the state of a conversation that never had one."""
        self.seen = self._confirmed = initial if stored is None else decode(stored.encode())

    @property
    def is_unconfirmed(self) -> bool:
        """Whether what is seen may not be durable yet."""
        return self._unconfirmed_changes > 0

    @property
    def confirmed_text(self) -> bytes | None:
        """What others may be told, as JSON text; None when there is no state."""
        return None if self._confirmed is UNSET else encode(self._confirmed)

    async def change(self, value: Any) -> bytes:
        """Replace the state; returns its JSON text once it is durable. A change that fails is taken back.

        Raises LimitExceeded, ValueError, and what the database raises.
        """
        text, state = _plain(value)
        self.seen = state
        self._unconfirmed_changes += 1
        try:
            await self._database.write(lambda connection: _write(connection, text.decode()))
        except BaseException:
            if self.seen is state:
                self.seen = self._confirmed
            raise
        finally:
            self._unconfirmed_changes -= 1
        self._confirmed = state
        return text


def read_stored(connection: sqlite3.Connection) -> str | None:
    """The stored state as JSON text; None when it was never set."""
    row = connection.execute("SELECT value FROM perdure_state WHERE key = ?", (_KEY,)).fetchone()
    return None if row is None else row[0]


def _write(connection: sqlite3.Connection, text: str) -> None:
    connection.execute(
        "INSERT INTO perdure_state(key, value) VALUES (?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
        (_KEY, text),
    )


def _plain(value: Any) -> tuple[bytes, Any]:
    """The state as JSON text, and as what is read from that. Raises LimitExceeded, ValueError."""
    try:
        text = encode(value)
    except ValueError:
        if is_too_deep(value):
            raise LimitExceeded("The nesting of a state", f"{MAX_DEPTH} levels") from None
        raise
    state = decode(text)
    if is_too_deep(state):
        raise LimitExceeded("The nesting of a state", f"{MAX_DEPTH} levels")
    return text, state
