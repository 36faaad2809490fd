"""What acts: sessions, conversations, their actors and the gateway."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from actors.agent import Agent, Connection, Stream, rpc
from actors.chat.agent import ChatAgent
from actors.client import Client
from actors.default_agent import Conversation
from actors.session import (
    ContextBlock,
    ContextConfig,
    ContextProvider,
    SearchProvider,
    Session,
    SessionContextOptions,
    SessionManager,
    SessionManagerOptions,
    SessionOptions,
    SessionPage,
    SessionProvider,
    SkillProvider,
    SqlProvider,
    Tool,
    WritableContextProvider,
    anthropic_tools,
    is_search_provider,
    is_skill_provider,
    is_writable_provider,
    openai_tools,
)
from actors.session_methods import SessionMethods

if TYPE_CHECKING:
    from actors.cluster.handle import ConversationHandle

__all__ = [
    "Agent",
    "ChatAgent",
    "Client",
    "Connection",
    "ContextBlock",
    "ContextConfig",
    "ContextProvider",
    "Conversation",
    "SearchProvider",
    "Session",
    "SessionContextOptions",
    "SessionManager",
    "SessionManagerOptions",
    "SessionMethods",
    "SessionOptions",
    "SessionPage",
    "SessionProvider",
    "SkillProvider",
    "SqlProvider",
    "Stream",
    "Tool",
    "WritableContextProvider",
    "anthropic_tools",
    "connect",
    "is_search_provider",
    "is_skill_provider",
    "is_writable_provider",
    "openai_tools",
    "rpc",
]


async def connect(agent: str, name: str, *, data: str | os.PathLike[str] | None = None) -> "ConversationHandle":
    """A handle of a conversation, for trusted code inside the cluster (a Ray job, driver or actor). See `ConversationHandle`.

    ``data``: the data folder of a `perdure serve` on this machine, whose Ray is joined. Without it, the Ray that this program is
    connected to is used, else the one that ``RAY_ADDRESS`` names. Raises `NotServed` when there is no server, `CannotStart` when
    that Ray does not answer in time, and never starts a Ray of its own.
    """
    # Imported here, since whoever has no Ray need not import it, and since Ray reads its settings when it is imported.
    from actors.cluster.ray_environment import address_to_join, read_variables_for_drivers

    if data is not None:
        read_variables_for_drivers(Path(data))
    elif "ray" not in sys.modules:
        address_to_join()  # without one there is nothing to import Ray for
    from actors.cluster.handle import connect as connect_in_cluster

    return await connect_in_cluster(agent, name)
