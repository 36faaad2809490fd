"""An agent that performs the steps of a recorded scenario; which one, its conversation's name says."""

import sys
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

sys.path.append(str(Path(__file__).parents[1] / "conformance"))

import os

from vector_files import DEFAULT_DIRECTORY, Scenario, load_scenarios
from vector_operations import perform
from vector_setup import Harness, build_session
from vector_world import Owner

from actors import Agent, Session, rpc


@cache
def scenarios() -> dict[tuple[str, str], Scenario]:
    return {scenario.key: scenario for scenario in load_scenarios(DEFAULT_DIRECTORY)}


def conversation_name(scenario: Scenario, run: str) -> str:
    return quote(f"{scenario.area}:{scenario.name}:{run}", safe="")


class Vector(Agent):
    def configure(self) -> Session:
        area, name, _ = unquote(self.name).split(":")
        scenario = scenarios()[area, name]
        self.harness = Harness(scenario.setup)
        self.owner: Any = self if scenario.setup.get("broadcast") else Owner(self.database)
        self.others: dict[str, Session] = {}
        return build_session(self.harness, self.owner, None)

    def _session(self, session_id: str | None) -> Session:
        if session_id is None:
            return self.session
        if session_id not in self.others:
            self.others[session_id] = build_session(self.harness, self.owner, session_id)
        return self.others[session_id]

    @rpc
    async def perform(self, op: str, args: dict[str, Any], session_id: str | None = None) -> Any:
        return await perform(self._session(session_id), self.harness, self.owner, op, args)

    @rpc(verb="read")
    async def where(self) -> dict[str, int]:
        return {"pid": os.getpid(), "epoch": self._host.epoch}  # type: ignore[attr-defined]
