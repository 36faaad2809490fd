"""All sessions of a conversation sleep and wake with it, and keep it awake while they compact."""

import asyncio
import gc
from typing import Any

import pytest
from awake import awake
from session_support import Library, load_result, text

from actors import Agent, Session, SessionManager, SessionMethods, rpc
from actors.errors import NotSupported
from actors.session.life import SessionsInUse
from storage import AgentSessionProvider, open_database
from storage.checkpoints import MemoryStore


class Gate:
    """A compaction function that waits until it is let through."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, messages: list[Any]) -> dict[str, str]:
        self.began.set()
        await self.open.wait()
        return {"fromMessageId": "m1", "toMessageId": "m1", "summary": "folded"}


def assistant(gate, configure):
    """An agent whose further sessions are made by `configure(agent, gate)`."""

    class Assistant(SessionMethods, Agent):
        def configure(self) -> Session | SessionManager:
            made: Session | SessionManager = configure(self, gate)
            return made

        @rpc
        async def append_to(self, session_id: str, message: dict[str, Any]) -> None:
            await self.further(session_id).append_message(message)

        @rpc(verb="read")
        async def history_of(self, session_id: str) -> Any:
            return [message["id"] for message in await self.further(session_id).get_history()]

        def further(self, session_id: str) -> Session:
            return self.manager.get_session(session_id)

    return Assistant


def managed(agent, gate):
    return SessionManager.create(agent).on_compaction(gate).compact_after(1)


class Loose:
    """Agents that make a session in each call, and keep none."""

    @staticmethod
    def by_owner(gate):
        base = assistant(gate, lambda agent, gate: Session.create(agent))

        class Loosely(base):
            def further(self, session_id: str) -> Session:
                return Session.create(self).for_session(session_id).on_compaction(gate).compact_after(1)

        return Loosely

    @staticmethod
    def by_provider(gate):
        base = assistant(gate, lambda agent, gate: Session.create(agent))

        class Loosely(base):
            def further(self, session_id: str) -> Session:
                return Session(AgentSessionProvider(self, session_id)).on_compaction(gate).compact_after(1)

        return Loosely


KINDS = {"manager": lambda gate: assistant(gate, managed), "owner": Loose.by_owner, "provider": Loose.by_provider}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_further_session_that_compacts_keeps_the_conversation_busy_and_is_waited_for(tmp_path, kind):
    gate, store = Gate(), MemoryStore()
    agent_class = KINDS[kind](gate)
    async with awake(tmp_path, agent_class, store=store) as hall:
        await hall.connect()
        await hall.call("appendTo", "x", text("m1"))
        await gate.began.wait()
        gc.collect()  # nobody holds the session but what it does
        assert hall.conversation.is_busy
        night = asyncio.create_task(hall.conversation.hibernate())
        await asyncio.sleep(0)
        gate.open.set()
        await night
        assert not hall.conversation.is_busy
    async with awake(tmp_path, agent_class, store=store) as hall:
        await hall.connect()
        (summary,) = await hall.call("historyOf", "x")
        assert summary.startswith("compaction_")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_compaction_that_outlives_the_grace_is_cancelled_and_nothing_is_lost(tmp_path, kind):
    gate, store = Gate(), MemoryStore()
    agent_class = KINDS[kind](gate)
    async with awake(tmp_path, agent_class, store=store) as hall:
        await hall.connect()
        await hall.call("appendTo", "x", text("m1"))
        await gate.began.wait()
        await hall.conversation.hibernate(grace_seconds=0.01)
    async with awake(tmp_path, agent_class, store=store) as hall:
        await hall.connect()
        assert await hall.call("historyOf", "x") == ["m1"]


async def test_what_a_further_session_had_loaded_is_loaded_after_the_night(tmp_path):
    library = Library(guide="the guide")

    def configure(agent, _):
        return SessionManager.create(agent).with_context("skills", provider=library)

    store, agent_class = MemoryStore(), assistant(Gate(), configure)
    async with awake(tmp_path, agent_class, store=store) as hall:
        session = hall.conversation._agent.manager.get_session("x")
        await session.append_message(text("m0"))
        await (await session.tools())["load_context"].execute({"label": "skills", "key": "guide"})
        other = hall.conversation._agent.manager.get_session("y")
        await other.append_message(load_result("m1", "guide"))  # which loads nothing, as long as the object lives
        assert await other.get_loaded_skill_keys() == set()
    async with awake(tmp_path, agent_class, store=store) as hall:
        manager = hall.conversation._agent.manager
        assert await manager.get_session("x").get_loaded_skill_keys() == {"skills:guide"}
        assert await manager.get_session("y").get_loaded_skill_keys() == set()


async def test_an_agent_with_a_manager_offers_its_default_session(tmp_path):
    store, agent_class = (
        MemoryStore(),
        assistant(Gate(), lambda agent, _: SessionManager.create(agent).with_context("memory")),
    )
    async with awake(tmp_path, agent_class, store=store) as hall:
        await hall.connect()
        agent = hall.conversation._agent
        assert agent.session is agent.manager.get_session("")
        await hall.call("appendMessage", text("m1", "apple"))
        assert [message["id"] for message in await hall.call("getHistory")] == ["m1"]
        assert [block["label"] for block in await hall.call("getContextBlocks")] == ["memory"]
        info = await agent.manager.create("a")
        assert await agent.manager.list() == [info]
        assert await agent.manager.get_history(info.id) == []
        assert [found["id"] for found in await agent.manager.search("apple")] == ["m1"]
    async with awake(tmp_path, agent_class, store=store) as hall:
        assert await hall.conversation._agent.manager.list() == [info]


async def test_an_agent_with_a_session_has_no_manager(tmp_path):
    async with awake(tmp_path) as hall:
        with pytest.raises(NotSupported, match="manager"):
            _ = hall.conversation._agent.manager


async def test_a_session_that_nobody_holds_is_let_go(tmp_path):
    database = await open_database(tmp_path / "chat.db")
    for number in range(20):
        await Session.create(database).for_session(str(number)).append_message(text("m1"))
    gc.collect()
    assert SessionsInUse(database)._all() == []
    kept = Session.create(database)
    await kept.get_history()
    assert SessionsInUse(database)._all() == [kept]
    await database.close()
