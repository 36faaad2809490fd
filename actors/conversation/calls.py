"""One call of an agent's method: found, bound, run, and answered with events."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from actors.agent import Agent
from actors.conversation.events import ConnectionId, Event, Failure, Result, Rpc
from actors.conversation.json_text import Unreadable, decode, encode
from actors.errors import CallFailed, MethodNotCallable, NotAllowed, TryAgain, UnknownMethod
from actors.redaction import what_failed
from actors.rpc import RpcMethod
from actors.wire_errors import error_from
from storage.errors import InvalidArgument, NotExecuted, OutcomeUnknown, StorageError

logger = logging.getLogger("perdure.conversation")

_NOTHING = object()


def find_method(agent: Agent, name: str) -> RpcMethod:
    """Raises UnknownMethod or MethodNotCallable."""
    method = agent.methods.get(name)
    if method is not None:
        return method
    if not name.startswith("__") and callable(getattr(type(agent), name, None)):
        raise MethodNotCallable(name)
    raise UnknownMethod(name)


def check_verb(method: RpcMethod, arguments: dict[str, Any], verbs: frozenset[str]) -> None:
    """Raises NotAllowed. An append of a system message needs *edit* (security.md T38)."""
    needed = method.verb
    message = arguments.get("message")
    if needed == "append" and isinstance(message, dict) and message.get("role") == "system":
        needed = "edit"
    if needed not in verbs:
        raise NotAllowed(needed)


@dataclass(frozen=True, slots=True)
class Request:
    """A call as it came from a client."""

    connection: ConnectionId
    call: bytes  # its id, as JSON text
    name: str
    arguments: list[Any]


def parse_request(command: Rpc) -> Request:
    """The gateway has checked that id and method are text and that args is a list. Raises InvalidArgument."""
    try:
        value = decode(command.frame)
    except Unreadable as exc:  # the gateway, with less on its stack, could just read it
        raise InvalidArgument(f"The call was not executed: {exc}.") from None
    return Request(command.connection, command.call, value["method"], value["args"])


async def invoke(agent: Agent, method: RpcMethod, arguments: dict[str, Any]) -> bytes | None:
    """Run a method that does not stream; its result as JSON text, None when it returned nothing."""
    result = await getattr(agent, method.attribute)(**arguments)
    return encode_result(method, result)


def encode_result(method: RpcMethod, result: Any) -> bytes | None:
    """A method that is not annotated to return something has no result when it returns None; any other None is ``null``."""
    if result is None and method.returns_nothing:
        return None
    try:
        return encode(result)
    except ValueError as exc:
        raise InvalidArgument(f"The result of {method.name} cannot be sent: {exc}.") from exc


class Answer:
    """The answer to one call, and the `Stream` of a streaming method. Exactly one terminal event leaves it."""

    def __init__(
        self,
        method: RpcMethod,
        connection: ConnectionId,
        call: bytes,
        emit: Callable[[Event], None],
        prove: Callable[[RpcMethod], Coroutine[Any, Any, None]],
    ) -> None:
        """``prove`` raises if this process may not tell what its memory holds any more."""
        self._prove = prove
        self._method = method
        self._connection = connection
        self._call = call
        self._emit = emit
        self.is_ended = False

    async def send(self, chunk: Any) -> None:
        self._check_open()
        await self._prove(self._method)
        self._emit(Result(self._connection, self._call, encode_result(self._method, chunk), is_done=False))
        await asyncio.sleep(0)  # a method that only produces chunks must not hold the loop

    async def end(self, value: Any = _NOTHING) -> None:
        self._check_open()
        self.finish(None if value is _NOTHING else encode_result(self._method, value))

    async def error(self, text: str) -> None:
        self._check_open()
        self.fail(CallFailed(text))

    def finish(self, result: bytes | None) -> None:
        """The terminal event, unless there was one."""
        if not self.is_ended:
            self.is_ended = True
            self._emit(Result(self._connection, self._call, result, is_done=True))

    def fail(self, error: BaseException) -> None:
        if self.is_ended:
            logger.error("%s failed after its answer: %s", self._method.name, what_failed(error))
            return
        self.is_ended = True
        self._emit(failure(self._connection, self._call, error, self._method))

    def _check_open(self) -> None:
        if self.is_ended:
            raise RuntimeError(f"The stream of {self._method.name} has already ended.")


def seen_by_caller(error: BaseException, method: RpcMethod | None) -> StorageError:
    """The error that the caller gets for what a call raised.

    A definite "not executed" of one operation says nothing of the call when the method may have done other things before.
    """
    if isinstance(error, TimeoutError | asyncio.CancelledError):
        return OutcomeUnknown()
    if isinstance(error, NotExecuted | TryAgain) and method is not None and not method.is_single:
        return OutcomeUnknown()
    if isinstance(error, StorageError):
        return error
    name = "a method" if method is None else method.name
    logger.warning("%s failed: %s", name, what_failed(error))  # the agent's author looks for it there
    return CallFailed(public_text(error))


def failure(connection: ConnectionId, call: bytes, error: BaseException, method: RpcMethod | None) -> Failure:
    seen = seen_by_caller(error, method)
    text = str(seen)
    if not seen.is_retryable and error_from(text).is_retryable:
        # Clients know errors by their texts: one of the agent's own must not be taken for a call that may be repeated.
        text = f"{type(error).__name__}: {text}"
    return Failure(connection, call, text, seen.code, was_executed=isinstance(seen, OutcomeUnknown | CallFailed))


def public_text(error: BaseException) -> str:
    """What a client may read of an exception of the agent's own code: its message, but nothing of SQLite's or the system's."""
    if isinstance(error, sqlite3.Error | OSError | MemoryError):
        return f"Internal error ({type(error).__name__})"
    if isinstance(error, LookupError):  # its message is only what was not found
        return f"{type(error).__name__}: {error}"
    return str(error) or "Unknown error occurred"
