"""Where a scenario's conversation lives, and how it is restarted. Subclass `World` to run the same scenarios elsewhere.

`World` keeps the conversation in one SQLite file in this process. A subclass that restarts in another way overrides `open`,
`restart`, `hibernate` and `close`; one whose session is out of reach overrides `perform` and `settled` too. Broadcast frames go
to `frames`. Everything in `harness` is outside the conversation and survives.
"""

from pathlib import Path
from typing import Any

from vector_files import Scenario
from vector_operations import SESSION_OPERATIONS, UTILITIES, perform
from vector_setup import Harness, build_session

import compaction
from actors.session import Session
from storage.database import Database, open_database

HARNESS_OPERATIONS = {"restart", "sleep", "get_summarizer_calls", "get_counter_calls", "get_compaction_errors"}
OPERATIONS = {
    *SESSION_OPERATIONS,
    *HARNESS_OPERATIONS,
    *(op for op, (name, _) in UTILITIES.items() if hasattr(compaction, name)),
}
MODES = {"session", "constructor", "provider", "minimal_provider"}


class Owner:
    """What `Session.create` is given. It can broadcast only when the scenario says so."""

    def __init__(self, database: Database) -> None:
        self.database = database


class BroadcastingOwner(Owner):
    def __init__(self, database: Database, frames: list[dict[str, Any]]) -> None:
        super().__init__(database)
        self._frames = frames

    def broadcast(self, frame: dict[str, Any]) -> None:
        self._frames.append(frame)


class World:
    """One scenario's conversation, in this process."""

    def __init__(self, scenario: Scenario, directory: Path) -> None:
        self.scenario = scenario
        self.directory = directory
        self.harness = Harness(scenario.setup)
        self.frames: list[dict[str, Any]] = []
        self.owner: Any = None
        self.sessions: dict[str | None, Session] = {}

    async def open(self) -> None:
        """Make the conversation exist and be awake."""
        database = await open_database(self.directory / "conversation.db")
        is_heard = self.scenario.setup.get("broadcast")
        self.owner = BroadcastingOwner(database, self.frames) if is_heard else Owner(database)

    async def close(self) -> None:
        """The scenario is over."""
        for session in self.sessions.values():
            await session.settled()
        self.sessions.clear()
        await self.owner.database.close()

    async def restart(self) -> None:
        """The operation ``restart``: everything in memory is lost, nothing of it is saved first."""
        await self.close()
        await self.open()

    async def hibernate(self) -> None:
        """Between any two steps, in a run that hibernates: put the conversation to sleep in good order, and wake it."""
        known = list(self.sessions)
        for session in self.sessions.values():
            await session.hibernate()
        await self.restart()
        for session_id in known:
            await self.session(session_id).resume()

    def session(self, session_id: str | None) -> Session:
        """The session object, made on its first use since the last restart."""
        if session_id not in self.sessions:
            self.sessions[session_id] = build_session(self.harness, self.owner, session_id)
        return self.sessions[session_id]

    async def perform(self, op: str, args: dict[str, Any], session_id: str | None) -> Any:
        """Perform one operation of sections 4.1 and 4.3; its value as plain JSON. Raises what the operation raises."""
        return await perform(self.session(session_id), self.harness, self.owner, op, args)

    async def settled(self) -> None:
        """Return when no compaction runs, so that every frame of the step is in `frames`."""
        for session in self.sessions.values():
            await session.settled()


def missing(scenario: Scenario) -> str | None:
    """What this scenario needs that does not exist yet, or None: such a scenario is reported as not run."""
    mode = scenario.setup["mode"]
    if mode not in MODES:
        return f"mode {mode}"
    if scenario.setup.get("compaction", {}).get("kind") == "summarize":
        return "create_compact_function"
    absent = sorted({step["op"] for step in scenario.steps} - OPERATIONS)
    return absent[0] if absent else None
