"""The slot log: how a conversation survives its file, its process and its node."""

from storage.checkpoints.keys import ConversationKey

__all__ = ["ConversationKey"]
