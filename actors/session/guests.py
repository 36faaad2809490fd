"""Calls of functions that users of a session bring: counters, compaction functions, handlers of errors.

They may do anything: raise what is no Exception, never return, or call the session that waits for them.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from actors.errors import CalledFromInside
from storage.errors import StorageError
from storage.maybe_async import settle

OURS: Final = Path(__file__).parents[2]
OWN: Final = tuple(str(OURS / name) for name in ("actors", "compaction", "storage"))

_GENERIC: Final = "Something went wrong inside of Perdure; the server's log says where."


class Stopped(Exception):
    """A guest ended with something that is no Exception, as if it had been cancelled; nobody has cancelled its caller."""

    def __str__(self) -> str:
        return f"it ended with {self.args[0]}"


class Inside:
    """Whether this code was called, directly or in a task, by something that is still going on."""

    def __init__(self, name: str) -> None:
        self._calls: ContextVar[tuple[list[bool], ...]] = ContextVar(name, default=())
        self._name = name

    @contextmanager
    def entered(self) -> Iterator[None]:
        is_going = [True]
        token = self._calls.set((*self._calls.get(), is_going))
        try:
            yield
        finally:
            is_going[0] = False
            self._calls.reset(token)

    @property
    def is_true(self) -> bool:
        return any(is_going[0] for is_going in self._calls.get())

    def refuse(self, what: str) -> None:
        """Raise CalledFromInside if it is so."""
        if self.is_true:
            raise CalledFromInside(what, self._name)


async def call(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a guest answers, async or not. A cancel of the caller is one; anything like it that the guest raises is `Stopped`."""
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        return await settle(function(*args, **named))
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as exc:
        if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling() > cancels:
            raise
        raise Stopped(type(exc).__name__) from exc


def for_clients(error: BaseException) -> str:
    """What clients are told: our own sentences, and what code of the user's raised; of a fault in our own code only that."""
    if place_in_own_code(error) is not None:
        return _GENERIC
    return str(error) or type(error).__name__


def for_the_log(error: BaseException) -> str:
    """Our own sentence, or the class and the place: what a model's client says may quote messages, which logs never carry."""
    if isinstance(error, StorageError):
        return str(error)
    place = place_in_own_code(error)
    return type(error).__name__ if place is None else f"{type(error).__name__} at {place}"


def place_in_own_code(error: BaseException) -> str | None:
    """Where in our own code an error was raised that is none of its typed errors; None for any other."""
    if isinstance(error, StorageError | Stopped | TimeoutError) or error.__traceback__ is None:
        return None
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = traceback.tb_frame.f_code.co_filename
    if not file.startswith(OWN):
        return None
    return f"{Path(file).relative_to(OURS)}:{traceback.tb_lineno}"
