"""An agent that tells a test, by a file, that a call is running."""

import asyncio
from pathlib import Path

from actors import Agent, rpc
from actors.session_methods import SessionMethods


class Slow(SessionMethods, Agent):
    @rpc
    async def mark_and_wait(self, mark: str, seconds: float) -> str:
        Path(mark).touch()  # noqa: ASYNC240
        await asyncio.sleep(seconds)
        return "waited"
