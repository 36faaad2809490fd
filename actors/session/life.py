"""The sessions of one database that are in use, as one: whether any of them compacts, and putting them all to sleep."""

import asyncio

from actors.session.session import Session
from storage.database import Database


class SessionsInUse:
    """Every `Session` over a database from its first use on, as long as somebody holds it or it compacts; and those given."""

    def __init__(self, database: Database, *more: Session) -> None:
        self._database = database
        self._more = more

    @property
    def is_compacting(self) -> bool:
        return any(session.is_compacting for session in self._all())

    async def settled(self) -> None:
        """Return when no compaction runs in any of them."""
        while running := [session for session in self._all() if session.is_compacting]:
            await asyncio.gather(*(session.settled() for session in running))

    async def cancel_compaction(self) -> None:
        """End every automatic compaction that runs."""
        await asyncio.gather(*(session.cancel_compaction() for session in self._all()))

    async def hibernate(self) -> None:
        """Before all of them are dropped in good order: keep what only memory holds."""
        for session in self._all():
            await session.hibernate()

    async def resume(self) -> None:
        """After an awakening: take over what `hibernate` kept. Sessions made later do so at their first call."""
        for session in self._all():
            await session.resume()

    def _all(self) -> list[Session]:
        found = dict.fromkeys(self._more)
        found.update(dict.fromkeys(user for user in self._database.users if isinstance(user, Session)))
        return list(found)
