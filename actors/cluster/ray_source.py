"""Starts conversation actors for a keeper: Ray actors, owned by this process and ending with it."""

import asyncio
import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

from actors.cluster.actor import CONVERSATION
from actors.cluster.options import ActorOptions


class RayActorSource:
    """An `ActorSource`. Nothing of Ray is called on the event loop: creating an actor blocks for milliseconds there."""

    def __init__(self, options: ActorOptions) -> None:
        self._options = options
        self._handles: dict[str, Any] = {}
        self._thread = ThreadPoolExecutor(1, "perdure-starts")

    async def start(self, token: str) -> None:
        """Returns when the actor has said Hello. Raises Ray's errors; a start that takes too long is ended."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._begin, token)

    def _begin(self, token: str) -> None:
        # No resources: awake conversations are not limited by cores. No restarts: recovery has one path, the claim.
        actor = CONVERSATION.options(num_cpus=0, max_restarts=0, max_task_retries=0).remote(self._options)
        self._handles[token] = actor
        try:
            ray.get(actor.serve.remote(token), timeout=self._options.settings.start_seconds)
        except BaseException:
            self._handles.pop(token, None)
            raise

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # ray.kill takes 5 s for a process that is stopped

    def handle(self, token: str) -> Any:
        return self._handles[token]

    def forget(self, token: str) -> None:
        actor = self._handles.pop(token, None)
        if actor is not None:
            self._thread.submit(_drop, actor)

    def close(self) -> None:
        """Let go of all actors, which ends them."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._handles.clear()


def _drop(actor: Any) -> None:
    """The last reference goes with this frame, in the thread and not on the loop."""
