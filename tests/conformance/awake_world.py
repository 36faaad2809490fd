"""A world whose conversation is the object that an actor wraps, over a checkpoint store.

`hibernate` ends with CLOSE and claims again, by turns from the warm file and from the store alone; `restart` lets go without
a word, as a killed process does.
"""

import shutil
from pathlib import Path
from typing import Any

import vector_manager
from vector_files import Scenario
from vector_setup import build_session
from vector_world import Owner, World

from actors.agent import Agent
from actors.conversation.awake import AwakeConversation
from actors.conversation.events import Event, Push
from actors.conversation.json_text import decode
from actors.session import Session, SessionManager
from actors.settings import Settings
from storage.checkpoints import ConversationKey, DirectoryStore, abandon_conversation

KEY = ConversationKey("vector", "scenario")


class AwakeWorld(World):
    def __init__(self, scenario: Scenario, directory: Path) -> None:
        super().__init__(scenario, directory)
        self.store = DirectoryStore(directory / "store")
        self.work_dir = directory / "work"
        self.settings = Settings(data=directory)
        self.sleeps = 0
        self.conversation: AwakeConversation

    async def open(self) -> None:
        world = self

        class VectorAgent(Agent):
            def configure(self) -> Session | SessionManager:
                world.owner = self if world.scenario.setup.get("broadcast") else Owner(self.database)
                world.sessions = {}
                if world.scenario.setup["mode"] == "manager":
                    world.manager = vector_manager.build_manager(world.harness, world.owner)
                    return world.manager
                world.sessions = {None: build_session(world.harness, world.owner, None)}
                return world.sessions[None]

        self.work_dir.mkdir(mode=0o700, exist_ok=True)
        self.conversation = await AwakeConversation.wake(
            KEY,
            VectorAgent,
            store=self.store,
            work_dir=self.work_dir,
            settings=self.settings,
            node=bytes(16),
            emit=self._emit,
            on_lost=self._lost,
        )

    async def close(self) -> None:
        await self.settled()
        await self.conversation.hibernate()

    async def restart(self) -> None:
        await self.settled()
        await abandon_conversation(self.conversation._opened)
        await self.open()

    async def hibernate(self) -> None:
        others = [session_id for session_id in self.sessions if session_id is not None]
        await self.conversation.hibernate()
        self.sleeps += 1
        if self.sleeps % 2:
            shutil.rmtree(self.work_dir)
        await self.open()
        for session_id in others:
            await self.session(session_id).resume()

    def _emit(self, event: Event) -> None:
        assert isinstance(event, Push), event
        frame: dict[str, Any] = decode(event.frame)
        assert frame.pop("seq") > 0
        assert frame.pop("epoch") >= 0
        self.frames.append(frame)

    def _lost(self, error: BaseException) -> None:
        raise AssertionError(f"the conversation was lost: {error}")
