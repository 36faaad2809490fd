"""The calls of one client, without I/O: which frames are to be sent, what a received frame means, what a lost socket means.

Invariants: frames are sent in the order in which their calls were made; a call that is not idempotent is never sent twice
unless the server said that it did not execute it; every call ends, with its answer, a typed error or its caller's timeout.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from actors.conversation.json_text import encode
from actors.errors import ActorsError, TryAgain
from actors.wire_errors import error_from
from storage.errors import InvalidArgument, LimitExceeded, NotExecuted, OutcomeUnknown, StorageError

_RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_KEPT_STATUSES = 256
_END = object()


@dataclass(frozen=True, slots=True)
class Status:
    """Token usage of a conversation, after a change.

    ``phase``: ``idle``, ``compacting``, or ``error`` with the text of what a compaction failed with (the numbers are then
    those of before). ``tokens_before`` is set once after a compaction: what the estimate was before it.
    """

    phase: str
    token_estimate: int
    token_threshold: int | None
    tokens_before: int | None = None
    error: str | None = None
    epoch: int | None = None
    seq: int | None = None

    @classmethod
    def from_frame(cls, frame: dict[str, Any], last: "Status | None") -> "Status":
        epoch, seq = frame.get("epoch"), frame.get("seq")
        if frame["type"] == "cf_agent_session_error":
            estimate, threshold = (last.token_estimate, last.token_threshold) if last else (0, None)
            return cls("error", estimate, threshold, None, str(frame.get("error")), epoch, seq)
        before = (frame.get("compacted") or {}).get("tokensBefore")
        estimate, limit = int(frame.get("tokenEstimate") or 0), frame.get("tokenThreshold")
        return cls(str(frame.get("phase")), estimate, None if limit is None else int(limit), before, None, epoch, seq)


class Call:
    """One call, from its making to its end."""

    def __init__(self, method: str, args: list[Any], *, is_idempotent: bool) -> None:
        self.method = method
        self.args = args
        self.is_idempotent = is_idempotent
        self.is_sent = False
        self.attempts = 0
        self.has_chunks = False
        self.chunks: asyncio.Queue[Any] | None = None  # of a streaming call
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.id = ""
        self.frame = b""

    def succeed(self, value: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(value)
        self._end_chunks()

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # seen: whoever stopped waiting is not to be warned about it
        self._end_chunks()

    def _end_chunks(self) -> None:
        if self.chunks is not None:
            self.chunks.put_nowait(_END)


class Calls:
    def __init__(self) -> None:
        self.ended: ActorsError | None = None
        self.answered = 0
        self.state: Any = None
        self.state_error: str | None = None
        self._ids = itertools.count(1)
        self._open: dict[str, Call] = {}  # in the order in which they were made
        self._ready: deque[Call | bytes] = deque()  # a call, or a state frame
        self._is_ready = asyncio.Event()
        self._end_of_statuses: ActorsError | None = None
        self._last_status: Status | None = None
        self._subscribers: set[_Newest] = set()

    # ---- from the caller ------------------------------------------------------------------------------------

    async def run(self, call: Call, seconds: float) -> Any:
        """The answer to a call. Raises what it failed with, or TimeoutError."""
        self.start(call)
        try:
            async with asyncio.timeout(seconds):
                return await call.answer
        except TimeoutError as exc:
            fate = "it may have been executed" if call.attempts else "it was not sent"
            raise TimeoutError(f"{call.method} gave no answer within {seconds:g} s; {fate}.") from exc
        finally:
            self.forget(call)

    def start(self, call: Call) -> None:
        if self.ended is not None:
            raise copy(self.ended)  # each its own, with no frames of earlier callers
        call.id = str(next(self._ids))
        try:
            call.frame = encode({"type": "rpc", "id": call.id, "method": call.method, "args": call.args})
        except ValueError as exc:
            raise InvalidArgument(f"The arguments of {call.method} cannot be sent: {exc}.") from exc
        self._open[call.id] = call
        self._make_ready(call)

    def forget(self, call: Call) -> None:
        """Its caller does not wait any more; a late answer is dropped."""
        if self._open.pop(call.id, None) is not None and not call.is_sent:
            self._ready = deque(item for item in self._ready if item is not call)

    def set_state(self, value: Any) -> None:
        if self.ended is not None:
            raise copy(self.ended)
        self.state = value
        self._make_ready(b'{"state":%b,"type":"cf_agent_state"}' % encode(value))

    def end(self, error: ActorsError, *, is_wanted: bool = False) -> None:
        """No socket will be opened any more: every call that waits fails with ``error``.

        So do subscriptions, unless this is what the user wanted: then they end.
        """
        if self.ended is None:
            self.ended = error
            self._end_of_statuses = None if is_wanted else error
            for call in list(self._open.values()):
                call.fail(error)
            for subscriber in self._subscribers:
                subscriber.end(self._end_of_statuses)

    # ---- to and from the socket -----------------------------------------------------------------------------

    async def next_frame(self) -> bytes:
        """The next frame to send; from here on its call counts as sent."""
        while not self._ready:
            self._is_ready.clear()
            await self._is_ready.wait()
        item = self._ready.popleft()
        if isinstance(item, bytes):
            return item
        item.is_sent = True
        item.attempts += 1
        return item.frame

    def receive(self, frame: dict[str, Any]) -> None:
        kind = frame.get("type")
        if kind == "rpc":
            self._answer(frame)
        elif kind in ("cf_agent_session", "cf_agent_session_error"):
            self._last_status = Status.from_frame(frame, self._last_status)
            for subscriber in self._subscribers:
                subscriber.put(self._last_status)
        elif kind == "cf_agent_state":
            self.state = frame.get("state")
        elif kind == "cf_agent_state_error":
            self.state_error = str(frame.get("error"))

    def lost(self, *, is_too_big: bool) -> None:
        """The socket is gone. What was sent and may be repeated is sent again on the next one, in the old order."""
        sent = [call for call in self._open.values() if call.is_sent]
        if is_too_big and sent:
            largest = max(sent, key=lambda call: len(call.frame))
            self._fail(largest, LimitExceeded(f"This call of {len(largest.frame):,} bytes", "what the server takes"))
            sent.remove(largest)
        again = [call for call in sent if call.is_idempotent]
        for call in again:
            call.is_sent = False
        self._ready.extendleft(reversed(again))
        for call in sent:
            if not call.is_idempotent:
                self._fail(call, OutcomeUnknown())

    # ---- inside ---------------------------------------------------------------------------------------------

    def _make_ready(self, item: Call | bytes) -> None:
        self._ready.append(item)
        self._is_ready.set()

    def _answer(self, frame: dict[str, Any]) -> None:
        call = self._open.get(str(frame.get("id")))
        if call is None:
            return
        self.answered += 1
        if frame.get("success") is not True:
            self._failed(call, error_from(str(frame.get("error"))))
        elif frame.get("done", True):
            del self._open[call.id]
            call.succeed(frame.get("result"))
        else:
            call.has_chunks = True
            if call.chunks is not None:
                call.chunks.put_nowait(frame.get("result"))

    def _failed(self, call: Call, error: StorageError) -> None:
        is_definite = isinstance(error, TryAgain | NotExecuted)
        may_repeat = error.is_retryable and not call.has_chunks and (is_definite or call.is_idempotent)
        if not may_repeat:
            self._fail(call, error)
            return
        delay = _RETRY_SECONDS[min(call.attempts, len(_RETRY_SECONDS)) - 1]
        call.is_sent = False
        asyncio.get_running_loop().call_later(delay, self._again, call)

    def _again(self, call: Call) -> None:
        if self._open.get(call.id) is call and not call.is_sent and call not in self._ready:
            self._make_ready(call)

    def _fail(self, call: Call, error: StorageError) -> None:
        self._open.pop(call.id, None)
        call.fail(error)

    # ---- statuses -------------------------------------------------------------------------------------------

    @contextmanager
    def subscribe(self) -> Iterator["_Newest"]:
        subscriber = _Newest()
        self._subscribers.add(subscriber)
        try:
            if self._last_status is not None:
                subscriber.put(self._last_status)
            if self.ended is not None:
                subscriber.end(self._end_of_statuses)
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)


class Stream:
    """The chunks of a streaming call, once; `result` is its last value afterwards."""

    def __init__(self, calls: Calls, call: Call) -> None:
        self._calls = calls
        self._call = call
        self._is_started = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate()

    @property
    def result(self) -> Any:
        """The value that the stream ended with. Raises RuntimeError before its end."""
        if not self._call.answer.done():
            raise RuntimeError("This stream has not ended yet.")
        return self._call.answer.result()

    async def _iterate(self) -> AsyncIterator[Any]:
        if self._is_started:
            raise RuntimeError("A stream can be iterated over once.")
        self._is_started = True
        chunks: asyncio.Queue[Any] = asyncio.Queue()
        self._call.chunks = chunks
        self._calls.start(self._call)
        try:
            while True:
                chunk = await chunks.get()
                if chunk is _END:
                    break
                yield chunk
        finally:
            self._calls.forget(self._call)
        self._call.answer.result()  # raises what the stream failed with


class _Newest:
    """A queue that forgets its oldest rather than grow."""

    def __init__(self) -> None:
        self._items: deque[Status] = deque(maxlen=_KEPT_STATUSES)
        self._is_ended = False
        self._error: ActorsError | None = None
        self._changed = asyncio.Event()

    def put(self, status: Status) -> None:
        self._items.append(status)
        self._changed.set()

    def end(self, error: ActorsError | None) -> None:
        self._is_ended, self._error = True, error
        self._changed.set()

    async def get(self) -> Status | None:
        """The next one; None at the end. Raises what it ended with."""
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._is_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._items.popleft()
