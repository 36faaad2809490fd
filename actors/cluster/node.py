"""The gateway actor of a node: the keeper, the gateway in front of it, and the folder that both live in."""

import asyncio
import json
import logging
import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import ray

from actors.agent import agent_info
from actors.cluster.agents import load_agents, load_class, unready
from actors.cluster.errors import CannotStart
from actors.cluster.folder import NodeFolder
from actors.cluster.keeper import Keeper
from actors.cluster.listener import MAX_PATH_BYTES, LaneListener
from actors.cluster.logs import keep_short, log_to
from actors.cluster.options import ActorOptions, NodeOptions
from actors.cluster.parent_death import end_with_parent
from actors.cluster.ports import wait_for_port
from actors.cluster.ray_source import RayActorSource
from actors.errors import UnknownAgent
from storage.checkpoints import CheckpointStore, StorageOptions, open_store, probe, store_id, sweep_warm
from storage.checkpoints.keys import ConversationKey
from storage.errors import StorageError, StoreUnavailable

logger = logging.getLogger("perdure.node")

WAIT_SECONDS = 10.0
"""How long a start waits for a lock or a port whose holder may be going away."""
_POLL_SECONDS = 20.0
SWEEP_SECONDS = 60.0


class GatewayActor:
    """Plain; wrapped in `controller.py`. One per node, detached, never restarted by Ray."""

    def __init__(self, options: NodeOptions) -> None:
        end_with_parent()
        os.umask(0o077)
        self._options = options
        self._started = asyncio.Event()
        self._ended = asyncio.Event()
        self._folder: NodeFolder
        self._store: CheckpointStore
        self._keeper: Keeper
        self._listener: LaneListener
        self._source: RayActorSource
        self._rotation: asyncio.Task[None]
        self._gateway: Any
        self._sweeping: asyncio.Task[None]
        self._agents: dict[str, Any] = {}

    async def start(self) -> tuple[str, int]:
        """Lock the folder, open the store, listen; the address. Raises `CannotStart` with one sentence."""
        try:
            address = await self._start()
            self._started.set()
            return address
        except CannotStart:
            raise
        except (StorageError, OSError) as exc:
            raise CannotStart(str(exc)) from exc

    async def _start(self) -> tuple[str, int]:
        options, settings = self._options, self._options.settings
        self._folder = await asyncio.to_thread(
            NodeFolder.lock, settings.data, wait_seconds=WAIT_SECONDS, may_share=options.may_share
        )
        log_to(self._folder.logs / "gateway.log")
        self._rotation = asyncio.create_task(keep_short(self._folder.logs))
        await asyncio.to_thread(self._check_store)
        self._agents = load_agents(settings.agents, options.module_folder)
        for sentence in unready(self._agents, settings):
            logger.warning("%s", sentence)
        self._listener = LaneListener(_lane_path(self._folder.number))
        self._source = RayActorSource(
            ActorOptions(
                settings=settings,
                module_folder=options.module_folder,
                work=self._folder.work,
                logs=self._folder.logs,
                node_id=uuid.uuid5(uuid.NAMESPACE_URL, f"{settings.store}#{options.node}").bytes,
                lane=str(self._listener.path),
                store_id=self._store_id,
            )
        )
        self._keeper = Keeper(self._source, settings)
        infos = {name: agent_info(agent) for name, agent in self._agents.items()}
        self._gateway = load_class(options.gateway)(self._keeper, infos, settings, probe=self._probe)
        await self._listener.open(self._keeper)
        self._keeper.start()
        port = settings.port + self._folder.number if options.may_share and settings.port else options.port
        await asyncio.to_thread(wait_for_port, settings.host, port, WAIT_SECONDS)
        port = await self._gateway.start(settings.host, port)
        self._sweeping = asyncio.create_task(sweep_for_ever(self._folder.work, StorageOptions.of(settings)))
        logger.info("listening on %s:%d, node %s", settings.host, port, options.node)
        return settings.host, port

    def _check_store(self) -> None:
        """Open the store; the one of the last start with this data folder, if there was one and it is still configured."""
        settings = self._options.settings
        memory = settings.data / "store-id"
        remembered = _remembered(memory, settings.store)
        try:
            self._store = open_store(settings.store, store_id=remembered)
        except StoreUnavailable as exc:
            if not remembered:
                raise
            raise CannotStart(
                f"The store {settings.store} is not the one of the last start with {settings.data}: is it mounted? "
                f"To begin with an empty store, remove {memory}."
            ) from exc
        probe(self._store)
        self._store_id = store_id(self._store)
        memory.write_text(json.dumps({"store": settings.store, "id": self._store_id}))

    async def _probe(self) -> None:
        """Raises when conversations cannot be served now."""
        await asyncio.to_thread(self._store.exists, "store.json")
        why = self._keeper.stuck()
        if why is not None:
            raise RuntimeError(why)

    async def ended(self) -> None:
        """Returns when it has been drained. Until then it tells a caller of this actor's death by failing."""
        await self._ended.wait()

    async def drain(self) -> None:
        """Take nothing new, let running calls finish, hibernate everything, close the sockets, unlock the folder."""
        started = time.monotonic()
        seconds = self._options.settings.drain_seconds
        await self._gateway.drain(seconds)
        await self._keeper.drain(max(0.0, seconds - (time.monotonic() - started)))
        await self._gateway.close()
        await self._listener.close()
        self._source.close()
        self._sweeping.cancel()
        self._rotation.cancel()
        self._folder.release()
        logger.info("drained")
        self._ended.set()

    # ---- for Python handles

    async def acquire(self, agent: str, name: str) -> tuple[Any, int]:
        """Who holds the conversation, woken if need be, and under which lease. Raises `UnknownAgent`, `Busy`."""
        await self._started.wait()
        if agent not in self._agents:
            raise UnknownAgent(agent, ", ".join(self._agents))
        return await self._keeper.acquire(ConversationKey(agent, name))

    async def frame(self, agent: str, name: str, last: bytes | None) -> bytes | None:
        """The next status frame that is not ``last``; None if none came for a while. Wakes nobody."""
        await self._started.wait()
        async with self._keeper.status(ConversationKey(agent, name)) as statuses:
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    async for status in statuses:
                        if status.frame is not None and status.frame != last:
                            return status.frame
            except TimeoutError:
                pass
        return None

    async def statistics(self) -> dict[str, Any]:
        return self._keeper.statistics()


async def sweep_for_ever(work: Path, options: StorageOptions) -> None:
    """Keep the local files of sleeping conversations within their limit, here and not at each wake or sleep."""
    while True:
        try:
            count = await asyncio.to_thread(sweep_warm, work, options)
            if count:
                logger.info("removed the local files of %d sleeping conversations", count)
        except Exception:
            logger.exception("the local files of sleeping conversations were not swept")
        await asyncio.sleep(SWEEP_SECONDS)


def _lane_path(number: int) -> Path:
    """Below Ray's session folder, in a folder of our own with mode 0700; short enough for a socket."""
    worker: Any = ray._private.worker  # no public call tells the folder
    session = Path(worker._global_node.get_session_dir_path())
    folder = session / f"perdure-{number}"
    if len(os.fsencode(folder / "lane")) > MAX_PATH_BYTES:
        folder = Path(tempfile.mkdtemp(prefix="perdure-"))
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / "lane"


def _remembered(memory: Path, store: str) -> str:
    """The id of this store at the last start; "" when there was none, or another store."""
    try:
        facts = json.loads(memory.read_text())
        return str(facts["id"]) if facts["store"] == store else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
