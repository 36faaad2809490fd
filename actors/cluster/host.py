"""The actor's end of the lane: wakes, serves and hibernates one conversation after another. Knows nothing of Ray.

Invariant: a command reaches a conversation, and an event leaves, only under the lease under which that conversation
was woken. Whatever breaks this process's own machinery ends the process: the end of file of its lane tells the keeper.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.cluster.connection import LaneConnection
from actors.cluster.control import Asleep, Awake, Hello, Lost, Ping, Pong, Sleep, Stay, Wake, WakeRefused
from actors.cluster.lane import Body, LaneError
from actors.cluster.tenancy import Tenancy, watch_tasks
from actors.conversation.calls import public_text
from actors.conversation.events import Command, Event, Failure, Result, Returned
from actors.errors import NotMine, UnknownAgent
from actors.redaction import what_failed
from storage.checkpoints.keys import ConversationKey
from storage.errors import Fenced, StorageError

logger = logging.getLogger("perdure.actor")

RETIRE_SECONDS = 1.0
SETTLE_SECONDS = 0.2
"""So long what runs in a lost conversation may take to say that it was not executed."""


class Held(Protocol):
    """What a host needs of an awake conversation (`AwakeConversation` has it)."""

    @property
    def epoch(self) -> int: ...
    @property
    def is_busy(self) -> bool: ...
    def submit(self, command: Command) -> None: ...
    async def call(self, name: str, arguments: list[Any]) -> bytes | None: ...
    async def settle_calls(self, seconds: float) -> None: ...
    async def hibernate(self, grace_seconds: float) -> None: ...


class Waker(Protocol):
    """Claims and opens a conversation."""

    def __call__(
        self,
        key: ConversationKey,
        *,
        emit: Callable[[Event], None],
        on_lost: Callable[[BaseException], None],
    ) -> Coroutine[Any, Any, Held]: ...


@dataclass(slots=True)
class _Lease:
    """What was woken under this number. ``conversation`` is None until it is awake."""

    number: int
    key: ConversationKey
    tenancy: Tenancy = field(default_factory=Tenancy)
    conversation: Held | None = None
    is_leaving: bool = False
    is_lost: bool = False


class ConversationHost:
    """One per process. ``end`` ends the process at once (``os._exit``); it is given the exit code."""

    def __init__(self, wake: Waker, end: Callable[[int], None]) -> None:
        self._wake = wake
        self._end = end
        self._leases: dict[ConversationKey, _Lease] = {}  # at most one, until a mode that holds several
        self._work: set[asyncio.Task[None]] = set()
        self._lane: LaneConnection | None = None
        self._has_callers = False  # Python handles know this process
        self._is_retired = False  # it holds nothing, and nothing will come

    async def connect(self, path: str, pid: int, token: str) -> None:
        """Connect to the keeper's socket and say who we are."""
        loop = asyncio.get_running_loop()
        watch_tasks(loop)
        loop.set_exception_handler(_unhandled)
        _, lane = await loop.create_unix_connection(lambda: LaneConnection(self), path)
        self._lane = lane
        lane.send(0, Hello(pid, token))

    async def call(self, key: ConversationKey, lease: int, method: str, arguments: list[Any]) -> bytes | None:
        """A call of a Python handle. `NotMine` (certainly not executed) unless this very lease is held and stays."""
        self._has_callers = True
        held = self._leases.get(key)
        if held is None or held.number != lease or held.conversation is None or held.is_leaving:
            raise NotMine()
        return await held.tenancy.spawn(held.conversation.call(method, arguments))

    def holds(self, key: ConversationKey, lease: int) -> bool:
        """Whether a `call` now would be served."""
        held = self._leases.get(key)
        return held is not None and held.number == lease and held.conversation is not None and not held.is_leaving

    # ---- the lane (LaneOwner)

    def received(self, lane: LaneConnection, lease: int, body: Body) -> None:
        match body:
            case Ping():
                lane.send(lease, Pong(body.number))
            case Wake():
                self._begin(self._do_wake(lane, lease, ConversationKey(body.agent, body.name)))
            case Sleep():
                self._sleep(lane, lease, body)
            case _:
                self._command(lane, lease, body)

    def resumed(self, lane: LaneConnection) -> None:
        pass  # a host never waits for its lane: what it has to send is bounded by what it was asked

    def ended(self, lane: LaneConnection, error: Exception | None) -> None:
        if self._is_retired and self._has_callers and error is None:
            # Handles that are on their way here hear "not mine" and not that the outcome of their call is unknown.
            asyncio.get_running_loop().call_later(RETIRE_SECONDS, self._end, 0)
        else:
            self._end(0 if error is None else 1)

    # ---- what comes in

    def _find(self, number: int) -> _Lease | None:
        return next((lease for lease in self._leases.values() if lease.number == number), None)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        """Our own machinery is broken: nothing that this process would still say can be trusted."""
        logger.critical("The actor ends itself: %s", "" if error is None else what_failed(error))
        self._end(1)

    def _command(self, lane: LaneConnection, number: int, body: Any) -> None:
        lease = self._find(number)
        if lease is None or lease.conversation is None or lease.is_leaving:
            lane.send(number, Returned(body))
            return
        try:
            lease.tenancy.run(lease.conversation.submit, body)
        except Exception as exc:
            self._fail(exc)

    def _emit(self, lane: LaneConnection, lease: _Lease, event: Event) -> None:
        if self._leases.get(lease.key) is not lease:
            return  # a late word of a conversation that has left
        try:
            lane.send(lease.number, event)
        except LaneError:
            logger.error("An event was too long to be sent: %s", type(event).__name__)
            if isinstance(event, Result):
                lane.send(
                    lease.number,
                    Failure(event.connection, event.call, "The result is too long to be sent.", "limit_exceeded", True),
                )

    # ---- waking

    async def _do_wake(self, lane: LaneConnection, number: int, key: ConversationKey) -> None:
        if self._leases:
            raise RuntimeError("woken while holding a conversation")
        lease = _Lease(number, key)
        self._leases[key] = lease
        waking = lease.tenancy.spawn(self._open(lane, lease))
        await asyncio.wait([waking])
        error = waking.exception()
        if error is None:
            lease.conversation = waking.result()
            logger.info("awake: %s (lease %d, epoch %d)", key.digest[:12], number, lease.conversation.epoch)
            lane.send(number, Awake(lease.conversation.epoch))
            return
        what = type(error).__name__ if isinstance(error, StorageError) else what_failed(error)
        logger.warning("not woken: %s (%s)", key.digest[:12], what)
        is_ordinary = isinstance(error, StorageError) and not isinstance(error, Fenced)
        del waking
        code, sentence = (error.code, str(error)) if isinstance(error, StorageError) else ("error", public_text(error))
        error.__traceback__ = None  # its frames hold what the wake had made
        is_spare_ok = await self._drop(lease) and is_ordinary
        lane.send(number, WakeRefused(code, sentence, is_spare_ok))
        if not is_spare_ok:
            lane.close()

    def _open(self, lane: LaneConnection, lease: _Lease) -> Coroutine[Any, Any, Held]:
        return self._wake(
            lease.key,
            emit=lambda event: self._emit(lane, lease, event),
            on_lost=lambda error: self._lost(lane, lease, error),
        )

    # ---- sleeping

    def _sleep(self, lane: LaneConnection, number: int, order: Sleep) -> None:
        lease = self._find(number)
        if lease is None or lease.conversation is None or lease.is_leaving:
            return  # the answer to what came before is on its way
        if order.may_stay and lease.conversation.is_busy:
            lane.send(number, Stay())
            return
        lease.is_leaving = True  # from here on commands are returned
        self._begin(self._hibernate(lane, lease, order))

    async def _hibernate(self, lane: LaneConnection, lease: _Lease, order: Sleep) -> None:
        assert lease.conversation is not None
        try:
            await lease.tenancy.spawn(lease.conversation.hibernate(order.grace_seconds))
        except StorageError as exc:
            if isinstance(exc, Fenced) or lease.is_lost:
                self._lost(lane, lease, exc)
                return
            # What was acknowledged is in the store, and the next wake claims without a CLOSE.
            logger.warning("no CLOSE: %s (lease %d, %s)", lease.key.digest[:12], lease.number, type(exc).__name__)
            exc.__traceback__ = None  # its frames hold the conversation
        # Any other error ends the process: the keeper sees the end of file, and the next wake claims without a CLOSE.
        is_spare_ok = await self._drop(lease) and not order.is_last
        logger.info("asleep: %s (lease %d)", lease.key.digest[:12], lease.number)
        lane.send(lease.number, Asleep(is_spare_ok))
        if not is_spare_ok:
            self._is_retired = True
            lane.close()  # its end ends this process

    async def _drop(self, lease: _Lease) -> bool:
        """Let go of everything; whether nothing was left behind."""
        del self._leases[lease.key]
        lease.conversation = None
        left = await lease.tenancy.leave()
        if left:
            logger.warning("left behind by %s: %s", lease.key.digest[:12], ", ".join(left[:10]))
        return not left

    def _lost(self, lane: LaneConnection, lease: _Lease, error: BaseException) -> None:
        """Nothing can be stored any more. Called before those who wait for the database hear it."""
        if self._leases.get(lease.key) is not lease or lease.is_lost:
            return
        if not isinstance(error, StorageError):
            self._fail(error)
            return
        logger.warning("lost: %s (lease %d, %s)", lease.key.digest[:12], lease.number, type(error).__name__)
        lease.is_leaving = lease.is_lost = True
        self._begin(self._take_leave(lane, lease, str(error)))

    async def _take_leave(self, lane: LaneConnection, lease: _Lease, reason: str) -> None:
        """What was not executed comes back before `Lost`, behind which nothing is heard."""
        if lease.conversation is not None:
            await lease.conversation.settle_calls(SETTLE_SECONDS)
        lane.send(lease.number, Lost(reason))
        lane.close()  # sends what is unsent, then `ended` ends this process


def _unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """In place of asyncio's own, which logs an agent's exceptions with their texts."""
    error = context.get("exception")
    logger.error("nobody handled: %s", context["message"] if error is None else what_failed(error))


def waker_of(agents: Mapping[str, Any], open_one: Callable[..., Coroutine[Any, Any, Held]]) -> Waker:
    """A `Waker` that finds the agent class by the kebab name first. Raises `UnknownAgent`."""

    async def wake(key: ConversationKey, **hooks: Any) -> Held:
        if key.agent not in agents:
            raise UnknownAgent(key.agent, ", ".join(agents))
        return await open_one(key, agents[key.agent], **hooks)

    return wake
