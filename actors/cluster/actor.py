"""The Ray actor that holds conversations, one after another: a thin skin around `ConversationHost`."""

import asyncio
import contextlib
import gc
import logging
import os
from typing import Any

import ray

from actors.cluster.agents import load_agents
from actors.cluster.host import ConversationHost, Held, waker_of
from actors.cluster.logs import log_to
from actors.cluster.options import ActorOptions
from actors.cluster.parent_death import end_with_parent
from actors.conversation.awake import AwakeConversation
from actors.conversation.json_text import decode
from actors.errors import CallFailed
from storage.checkpoints import CheckpointStore, open_store
from storage.checkpoints.keys import ConversationKey
from storage.errors import StorageError

logger = logging.getLogger("perdure.actor")


def end_process(code: int) -> None:
    """No handler, no ``finally`` and no thread of this process runs any more."""
    logging.shutdown()
    os._exit(code)


class ConversationActor:
    """Plain; wrapped below. A Python handle calls `call`; everything else goes over the lane."""

    def __init__(self, options: ActorOptions) -> None:
        end_with_parent()
        os.umask(0o077)
        log_to(options.logs / "actors.log")
        self._options = options
        self._store: CheckpointStore | None = None
        with contextlib.suppress(StorageError):  # then it is an error of each wake, until the store is there again
            self._store = self._open_store()
        agents = load_agents(options.settings.agents, options.module_folder)
        self._host = ConversationHost(waker_of(agents, self._open), end_process)
        gc.collect()
        gc.freeze()  # what is here now stays for good; later collections need not look at it

    def _open_store(self) -> CheckpointStore:
        return open_store(self._options.settings.store, store_id=self._options.store_id)

    async def _open(self, key: ConversationKey, agent_class: Any, **hooks: Any) -> Held:
        options = self._options
        if self._store is None:
            self._store = self._open_store()
        return await AwakeConversation.wake(
            key,
            agent_class,
            store=self._store,
            work_dir=options.work,
            settings=options.settings,
            node=options.node_id,
            **hooks,
        )

    async def serve(self, token: str) -> int:
        """Connect to the keeper; the process id. From then on this process lives as long as its lane."""
        await self._host.connect(self._options.lane, os.getpid(), token)
        return os.getpid()

    async def holds(self, agent: str, name: str, lease: int) -> bool:
        """Whether `call` with this lease would be served."""
        return self._host.holds(ConversationKey(agent, name), lease)

    async def call(self, agent: str, name: str, lease: int, method: str, arguments: bytes) -> bytes | None:
        """A method of the conversation, with a JSON list of arguments; its result as JSON text, None = none.

        Raises `NotMine` (certainly not executed), and what the method raises, as a typed error.
        """
        try:
            return await self._host.call(ConversationKey(agent, name), lease, method, decode(arguments))
        except (StorageError, asyncio.CancelledError):
            raise
        except Exception as exc:  # of the agent's own code: its class may not exist where the handle is
            raise CallFailed(f"{type(exc).__name__}: {exc}", "error") from None


CONVERSATION: Any = ray.remote(ConversationActor)
