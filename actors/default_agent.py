"""The agent that a server serves when it is given none: the Session API, ready for clients."""

from actors.agent import Agent
from actors.session import Session
from actors.session_methods import SessionMethods
from actors.summarizers import default_compaction

__all__ = ["Conversation"]


class Conversation(SessionMethods, Agent):
    """One writable ``memory`` block, a cached prompt, and compaction above the configured threshold."""

    def configure(self) -> Session:
        return (
            Session.create(self)
            .with_context("memory", description="Facts worth keeping", max_tokens=1100)
            .with_cached_prompt()
            .on_compaction(default_compaction(self.settings))
            .compact_after(self.settings.compact_after)
        )
