"""One call to a conversation on behalf of a plain HTTP request: a connection that joins, asks and leaves."""

import asyncio
from collections.abc import Iterator
from typing import Protocol

import orjson

from actors.cluster.front import Front
from actors.cluster.refusals import Refusal
from actors.conversation.events import (
    Close,
    Command,
    Connect,
    ConnectionId,
    Disconnect,
    Event,
    Failure,
    Result,
    Rpc,
)
from actors.errors import Busy, CallFailed, CallRefused
from actors.gateway import protocol
from storage.checkpoints.keys import ConversationKey
from storage.errors import OutcomeUnknown


class Conversations(Protocol):
    """The keeper, as the gateway sees it."""

    def attach(self, front: Front, /) -> None: ...
    def submit(self, key: ConversationKey, command: Command, /) -> None: ...


class Asking:
    def __init__(self, keeper: Conversations, numbers: Iterator[ConnectionId]) -> None:
        self._keeper = keeper
        self._numbers = numbers
        self._waiting: dict[ConnectionId, asyncio.Future[Event]] = {}

    async def ask(
        self, key: ConversationKey, url: str, principal: str, verbs: tuple[str, ...], method: str, seconds: float
    ) -> bytes:
        """The result as JSON text. Raises TimeoutError after ``seconds``, or the StorageError that it failed with."""
        number = next(self._numbers)
        answer: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        frame = orjson.dumps({"type": "rpc", "id": "", "method": method, "args": []})
        self._keeper.submit(key, Connect(number, f"http-{number}", url, principal, is_readonly=True, verbs=verbs))
        self._keeper.submit(key, Rpc(number, frame, call=b'""'))
        try:
            async with asyncio.timeout(seconds):
                return _result(await answer)
        finally:
            del self._waiting[number]
            self._keeper.submit(key, Disconnect(number))

    def event(self, event: Event, connection: ConnectionId) -> bool:
        """Take an event for one of our connections; False: it is not ours.

        When the keeper gives a connection up, the answer to its call says why.
        """
        answer = self._waiting.get(connection)
        if answer is None:
            return False
        is_final = isinstance(event, Failure | Close) or (isinstance(event, Result) and event.is_done)
        if is_final and not answer.done():
            answer.set_result(event)
        return True


def _result(event: Event) -> bytes:
    if isinstance(event, Result):
        return event.result or b"null"
    if isinstance(event, Failure):
        raise Busy() if event.code == OutcomeUnknown.code else Refusal(event.code, event.error).error()
    assert isinstance(event, Close)  # by the agent
    if event.code in (protocol.RESTART, protocol.TRY_LATER):
        raise Busy()
    kind = CallFailed if event.code == protocol.INTERNAL_ERROR else CallRefused
    raise kind(event.reason or "This connection was closed")
