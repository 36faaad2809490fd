"""What the processes of one server are told when they start. Crosses Ray by pickle; trusted on both sides."""

from dataclasses import dataclass
from pathlib import Path

from actors.settings import Settings


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """For a gateway actor.

    ``gateway``: ``MODULE:CLASS`` of the gateway, by name since this layer does not import it. ``may_share``: other nodes
    may use the same data folder, so the first free DATA/node-K is taken instead of waiting for node-0.
    """

    settings: Settings
    module_folder: str
    node: str
    gateway: str
    port: int
    may_share: bool = False


@dataclass(frozen=True, slots=True)
class ActorOptions:
    """For a conversation actor."""

    settings: Settings
    module_folder: str
    work: Path
    logs: Path
    node_id: bytes  # 16 bytes that name this node in OPEN records
    lane: str  # path of the keeper's socket
    store_id: str  # of the store that the gateway has probed
