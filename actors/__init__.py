"""What acts: sessions, conversations, their actors and the gateway."""

from typing import TYPE_CHECKING

from actors.agent import Agent, Connection, Stream, rpc
from actors.client import Client
from actors.session import Session

if TYPE_CHECKING:
    from actors.cluster.handle import ConversationHandle

__all__ = ["Agent", "Client", "Connection", "Session", "Stream", "connect", "rpc"]


async def connect(agent: str, name: str) -> "ConversationHandle":
    """A handle of a conversation, for trusted code inside the cluster (a Ray job, driver or actor). See `ConversationHandle`."""
    from actors.cluster.handle import connect as connect_in_cluster  # only here: whoever has no Ray need not import it

    return await connect_in_cluster(agent, name)
