"""Where a scenario's conversation lives, and how it is restarted. Subclass `World` to run the same scenarios elsewhere.

`World` keeps the conversation in one SQLite file in this process. A subclass that restarts in another way overrides `open`,
`restart`, `hibernate` and `close`; one whose session is out of reach overrides `perform` and `settled` too. Broadcast frames go
to `frames`. Everything in `harness` is outside the conversation and survives.
"""

from pathlib import Path
from typing import Any

import vector_manager
import vector_postgres
from vector_files import Scenario
from vector_operations import UTILITIES, perform
from vector_setup import Harness, build_session

from actors.session import Session
from actors.session.life import SessionsInUse
from storage.database import Database, open_database


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
        self.manager: Any = None

    async def open(self) -> None:
        """Make the conversation exist and be awake."""
        if self.scenario.setup["mode"] == "postgres":
            self.owner = await vector_postgres.open_owner(self.directory)
            return
        database = await open_database(self.directory / "conversation.db")
        is_heard = self.scenario.setup.get("broadcast")
        self.owner = BroadcastingOwner(database, self.frames) if is_heard else Owner(database)
        if self.scenario.setup["mode"] == "manager":
            self.manager = vector_manager.build_manager(self.harness, self.owner)

    async def close(self) -> None:
        """The scenario is over."""
        await self.settled()
        self.sessions.clear()
        self.manager = None
        await getattr(self.owner, "database", self.owner).close()

    async def restart(self) -> None:
        """The operation ``restart``: everything in memory is lost, nothing of it is saved first."""
        await self.close()
        await self.open()

    async def hibernate(self) -> None:
        """Between any two steps, in a run that hibernates: put the conversation to sleep in good order, and wake it."""
        known = list(self.sessions)
        for session in self.sessions.values():
            await session.hibernate()
        if self.manager is not None:
            await SessionsInUse(self.owner.database).hibernate()
        await self.restart()
        for session_id in known:
            await self.session(session_id).resume()

    def session(self, session_id: str | None) -> Session:
        """The session object, made on its first use since the last restart."""
        if self.manager is not None:
            self.sessions[session_id] = self.manager.get_session(session_id)
        elif session_id not in self.sessions:
            self.sessions[session_id] = build_session(self.harness, self.owner, session_id)
        return self.sessions[session_id]

    async def perform(self, op: str, args: dict[str, Any], session_id: str | None) -> Any:
        """Perform one operation of sections 4.1 and 4.3; its value as plain JSON. Raises what the operation raises."""
        if self.manager is not None and session_id is None and op not in UTILITIES:
            return await vector_manager.perform_on_manager(self.manager, self.harness, op, args)
        return await perform(self.session(session_id), self.harness, self.owner, op, args)

    async def settled(self) -> None:
        """Return when no compaction runs, so that every frame of the step is in `frames`."""
        for session in self.sessions.values():
            await session.settled()
        if self.manager is not None:
            await SessionsInUse(self.owner.database).settled()
