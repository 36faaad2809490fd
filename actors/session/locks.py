"""Locks around what calls a provider of the user's: one that waits for itself is told so instead of waiting for ever."""

import asyncio
from contextvars import Context, ContextVar, Token, copy_context
from typing import Any, Final

from actors.errors import CalledItself

_HELD: Final[ContextVar[tuple["Turn", ...]]] = ContextVar("perdure_session_turns", default=())


def holding_nothing() -> Context:
    """The context for a task that nobody inside a lock waits for."""
    context = copy_context()
    context.run(_HELD.set, ())
    return context


class Turn:
    """One time of holding a lock."""

    __slots__ = ("lock",)

    def __init__(self, lock: "OwnLock") -> None:
        self.lock: OwnLock | None = lock


class OwnLock:
    """An `asyncio.Lock` for ``async with``. Whoever asks for it inside, or in a task begun inside while it is held, gets
    CalledItself: that task may be one that the holder waits for."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = asyncio.Lock()
        self._holding: tuple[Turn, Token[tuple[Turn, ...]]] | None = None

    def locked(self) -> bool:
        return self._lock.locked()

    def refuse_inside(self) -> None:
        """Raise CalledItself inside, for what may wait for somebody who waits for this lock."""
        if any(turn.lock is self for turn in _HELD.get()):
            raise CalledItself(self._what)

    async def __aenter__(self) -> None:
        self.refuse_inside()
        await self._lock.acquire()
        held, turn = _HELD.get(), Turn(self)
        self._holding = turn, _HELD.set((*(other for other in held if other.lock is not None), turn))

    async def __aexit__(self, *_: Any) -> None:
        assert self._holding is not None
        (turn, token), self._holding = self._holding, None
        turn.lock = None
        _HELD.reset(token)
        self._lock.release()
