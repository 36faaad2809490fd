"""The slot log: how a conversation survives its file, its process and its node."""

from storage.checkpoints.conversations import (
    OpenedConversation,
    abandon_conversation,
    close_conversation,
    open_conversation,
    read_conversation,
)
from storage.checkpoints.directory import DirectoryStore
from storage.checkpoints.keys import ConversationKey
from storage.checkpoints.memory import MemoryStore
from storage.checkpoints.meta import Meta, list_conversations, read_meta
from storage.checkpoints.store import CheckpointStore, known_store_id, open_store, probe, store_id
from storage.checkpoints.warm import forget_warm, sweep_warm
from storage.replication import StorageOptions

__all__ = [
    "CheckpointStore",
    "ConversationKey",
    "DirectoryStore",
    "MemoryStore",
    "Meta",
    "OpenedConversation",
    "StorageOptions",
    "abandon_conversation",
    "close_conversation",
    "forget_warm",
    "known_store_id",
    "list_conversations",
    "open_conversation",
    "open_store",
    "probe",
    "read_conversation",
    "read_meta",
    "store_id",
    "sweep_warm",
]
