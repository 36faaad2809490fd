"""A conversation for Python code in the same Ray cluster: `connect`.

A handle asks the gateway of the conversation's node which actor holds it and under which lease, then calls that actor
directly. It outlives hibernation, the actor's death and the gateway's: all three make it ask again.
"""

import asyncio
import functools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.calling import Status
from actors.cluster.errors import NotServed
from actors.cluster.placement import NAMESPACE, gateway_name, node_of
from actors.cluster.ray_environment import address_to_join
from actors.cluster.reach import join
from actors.conversation.json_text import decode, encode
from actors.errors import TryAgain
from actors.session_calls import SessionCalls
from storage.checkpoints.keys import ConversationKey
from storage.errors import Closed, Fenced, OutcomeUnknown, StorageError

RETRY_SECONDS = 30.0
"""How long a call that was certainly not executed is repeated before its error is raised."""
_FIRST_PAUSE_SECONDS = 0.005
_LAST_PAUSE_SECONDS = 1.0


async def connect(agent: str, name: str) -> "ConversationHandle":
    """A handle of this conversation, which is woken now.

    Needs a connected Ray (inside a job or an actor, or after ``ray.init``), or one that ``RAY_ADDRESS`` names. Never starts
    one. Raises `NotServed`, `CannotStart`, `UnknownAgent`, `Busy`. Handles are for trusted code: nobody asks for credentials.
    """
    if not ray.is_initialized():
        # Left to itself, Ray would start a cluster of its own, in which nobody serves anything.
        await join(address_to_join())
    handle = ConversationHandle(agent, name)
    await handle._repeat(handle._place, is_idempotent=True)
    return handle


class ConversationHandle(SessionCalls):
    """The Session methods, `call` and `status` of one conversation.

    Calls awaited one after another keep their order; concurrent ones have none. Cancelling a call does not stop what the
    conversation has begun.
    """

    def __init__(self, agent: str, name: str) -> None:
        self._key = ConversationKey(agent, name)
        self._gateway: Any = None
        self._was_served = False
        self._held: tuple[Any, int] | None = None  # the actor and the lease under which it has the conversation

    def __repr__(self) -> str:
        return f"<conversation {self._key}>"

    async def status(self) -> AsyncIterator[Status]:
        """Token usage of this conversation, beginning with the last that is known.

        Wakes nobody. A slow reader sees the newest one only.
        """
        last: bytes | None = None
        status: Status | None = None
        while True:
            attempt = functools.partial(self._next_frame, last)
            frame = await self._repeat(attempt, is_idempotent=True)
            if frame is not None:
                last = frame
                status = Status.from_frame(decode(frame), status)
                yield status

    async def _next_frame(self, last: bytes | None) -> Any:
        gateway = await self._find_gateway()
        return await gateway.frame.remote(self._key.agent, self._key.name, last)

    # ---- one call

    async def _invoke(self, method: str, arguments: list[Any], *, is_idempotent: bool) -> Any:
        text = encode(arguments)
        result = await self._repeat(lambda: self._once(method, text, is_idempotent), is_idempotent=is_idempotent)
        return None if result is None else decode(result)

    async def _once(self, method: str, arguments: bytes, is_idempotent: bool) -> bytes | None:
        actor, lease = await self._place(is_used=not is_idempotent)
        agent, name = self._key.agent, self._key.name
        try:
            result: bytes | None = await actor.call.remote(agent, name, lease, method, arguments)
        except RayActorError as exc:
            self._held = None
            raise OutcomeUnknown() from exc
        return result

    async def _place(self, *, is_used: bool = False) -> tuple[Any, int]:
        """Who holds the conversation. ``is_used``: ask the actor too, before it is given what must not be repeated."""
        if self._held is not None and is_used:
            actor, lease = self._held
            try:
                is_held = await actor.holds.remote(self._key.agent, self._key.name, lease)
            except RayActorError:  # it retired, perhaps long ago
                is_held = False
            if not is_held:
                self._held = None
        if self._held is None:
            gateway = await self._find_gateway()
            self._held = await gateway.acquire.remote(self._key.agent, self._key.name)
        assert self._held is not None
        return self._held

    async def _find_gateway(self) -> Any:
        if self._gateway is None:
            name = gateway_name(node_of(self._key))
            try:
                self._gateway = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
            except ValueError as exc:
                raise NotServed("No Perdure is running on this Ray cluster.") from exc
        self._was_served = True
        return self._gateway

    async def _repeat(self, attempt: Callable[[], Awaitable[Any]], *, is_idempotent: bool) -> Any:
        """Run it until it succeeds, fails for good, or has been "not executed" for `RETRY_SECONDS`."""
        deadline = time.monotonic() + RETRY_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await attempt()
            except (StorageError, RayTaskError, RayActorError) as exc:
                error = self._judge(exc)
                may_repeat = isinstance(error, TryAgain | Fenced | Closed) or (
                    isinstance(error, OutcomeUnknown) and is_idempotent
                )
                if isinstance(error, NotServed):
                    may_repeat = self._was_served  # a gateway that has died is started again
                if not may_repeat or time.monotonic() + pause > deadline:
                    raise error from exc
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LAST_PAUSE_SECONDS)

    def _judge(self, exc: Exception) -> Exception:
        """The typed error behind what Ray raised; what was found out about places is forgotten."""
        self._held = None
        if isinstance(exc, RayActorError):  # of the gateway: the call itself never left
            self._gateway = None
            return NotServed("The gateway of this Ray cluster does not answer.")
        if isinstance(exc, RayTaskError):
            return exc.cause if isinstance(exc.cause, Exception) else exc
        return exc
