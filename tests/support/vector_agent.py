"""An agent that performs the steps of a recorded scenario; which one, its conversation's name says."""

import sys
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

sys.path.append(str(Path(__file__).parents[1] / "conformance"))

import os

from vector_files import DEFAULT_DIRECTORY, Scenario, load_scenarios
from vector_manager import build_manager, perform_on_manager
from vector_operations import UTILITIES, perform
from vector_setup import Harness, build_session
from vector_world import Owner

from actors import Agent, Session, rpc
from actors.session import SessionManager


@cache
def scenarios() -> dict[tuple[str, str], Scenario]:
    return {scenario.key: scenario for scenario in load_scenarios(DEFAULT_DIRECTORY)}


def conversation_name(scenario: Scenario, run: str) -> str:
    return quote(f"{scenario.area}:{scenario.name}:{run}", safe="")


class Vector(Agent):
    def configure(self) -> Session | SessionManager:
        area, name, _ = unquote(self.name).split(":")
        scenario = scenarios()[area, name]
        self.harness = Harness(scenario.setup)
        self.owner: Any = self if scenario.setup.get("broadcast") else Owner(self.database)
        self.others: dict[str, Session] = {}
        self.has_manager = scenario.setup["mode"] == "manager"
        return build_manager(self.harness, self.owner) if self.has_manager else build_session(self.harness, self.owner)

    def _session(self, session_id: str | None) -> Session:
        if session_id is None:
            return self.session
        if self.has_manager:
            return self.manager.get_session(session_id)
        if session_id not in self.others:
            self.others[session_id] = build_session(self.harness, self.owner, session_id)
        return self.others[session_id]

    @rpc
    async def perform(self, op: str, args: dict[str, Any], session_id: str | None = None) -> Any:
        if self.has_manager and session_id is None and op not in UTILITIES:
            return await perform_on_manager(self.manager, self.harness, op, args)
        return await perform(self._session(session_id), self.harness, self.owner, op, args)

    @rpc(verb="read")
    async def where(self) -> dict[str, int]:
        return {"pid": os.getpid(), "epoch": self._host.epoch}  # type: ignore[attr-defined]
