"""The sessions that a manager has in memory."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

from actors.session.building import Parts
from actors.session.builtin_history import history_of
from actors.session.session import Session
from storage.errors import UnknownSession
from storage.messages import AgentSessionProvider

KEPT: Final = 256
"""So many sessions stay in memory though nobody holds them."""


class HeldSessions:
    """By id: a session that somebody holds, or that compacts, and those that were used last.

    As long as it is one of these, an id gives the same object. What only memory has of one that is dropped (a frozen prompt
    without a store, blocks added at run time) is gone with it, as it is when a conversation goes to sleep.
    """

    def __init__(self, build: Callable[[str], Session], owner: Any) -> None:
        self._build = build
        self._owner = owner
        self._recent: OrderedDict[str, Held] = OrderedDict()
        self._alive: WeakValueDictionary[str, Session] = WeakValueDictionary()

    def __len__(self) -> int:
        """How many are kept, held or not."""
        return len(self._recent)

    def get(self, session_id: str) -> "Held":
        """The session; made if it is not in memory."""
        held = self.find(session_id) or Held(self._build(session_id), self._owner)
        self._alive[session_id] = held.session
        self._recent[session_id] = held
        while len(self._recent) > KEPT:
            self._recent.popitem(last=False)
        return held

    def find(self, session_id: str) -> "Held | None":
        """The session if it is in memory; it counts as used."""
        if session_id in self._recent:
            self._recent.move_to_end(session_id)
            return self._recent[session_id]
        session = self._alive.get(session_id)
        return None if session is None else Held(session, self._owner)

    def forget(self, session_id: str) -> None:
        self._recent.pop(session_id, None)
        self._alive.pop(session_id, None)

    def writing(self, session_id: str) -> "Writing":
        """Around a write of the manager."""
        return Writing(self, session_id)


class Held:
    """A session, and the same one for the manager's own writes: these need its row."""

    def __init__(self, session: Session, owner: Any) -> None:
        self.session = session
        self.is_given = False  # somebody else has it, and must get the same one again
        self._owner = owner
        self._registered: Session | None = None

    @property
    def parts(self) -> Parts:
        return self.session._parts

    @property
    def registered(self) -> Session:
        if self._registered is None:
            provider = AgentSessionProvider(self._owner, self.session._session_id, is_registered=True)
            self._registered = copy.copy(self.session)
            self._registered._made = replace(self.parts, history=history_of(provider))
        return self._registered


class Writing:
    """Around a write: an id that turns out to be unknown leaves no session in memory."""

    def __init__(self, sessions: HeldSessions, session_id: str) -> None:
        self._sessions = sessions
        self._session_id = session_id
        self._is_new = sessions.find(session_id) is None

    async def __aenter__(self) -> Session:
        return self._sessions.get(self._session_id).registered

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        held = self._sessions.find(self._session_id)
        if self._is_new and isinstance(error, UnknownSession) and held is not None and not held.is_given:
            self._sessions.forget(self._session_id)
