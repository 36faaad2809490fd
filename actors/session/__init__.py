"""Session: a conversation's messages, context blocks, system prompt and compaction. No Ray, no sockets."""

from actors.session.blocks import ContextBlock, ContextConfig
from actors.session.building import SessionContextOptions, SessionOptions
from actors.session.manager import SessionManager, SessionManagerOptions, SessionPage
from actors.session.providers import (
    ContextProvider,
    SearchProvider,
    SessionProvider,
    SkillProvider,
    SqlProvider,
    WritableContextProvider,
    is_search_provider,
    is_skill_provider,
    is_writable_provider,
)
from actors.session.session import Session
from actors.session.tools import Tool, anthropic_tools, openai_tools

__all__ = [
    "ContextBlock",
    "ContextConfig",
    "ContextProvider",
    "SearchProvider",
    "Session",
    "SessionContextOptions",
    "SessionManager",
    "SessionManagerOptions",
    "SessionOptions",
    "SessionPage",
    "SessionProvider",
    "SkillProvider",
    "SqlProvider",
    "Tool",
    "WritableContextProvider",
    "anthropic_tools",
    "is_search_provider",
    "is_skill_provider",
    "is_writable_provider",
    "openai_tools",
]
