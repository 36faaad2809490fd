"""Open a conversation from the store, and close it into the store."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage.checkpoints.image import FileImage
from storage.checkpoints.keys import ConversationKey
from storage.checkpoints.records import Header
from storage.checkpoints.replay import replay_without_claim
from storage.checkpoints.replica import Describe, Prepare, Replica
from storage.checkpoints.store import CheckpointStore
from storage.errors import LocalDiskFailed, StorageError
from storage.replicated import ReplicatedDatabase, open_replicated
from storage.replication import StorageOptions


@dataclass(frozen=True, slots=True)
class OpenedConversation:
    key: ConversationKey
    database: ReplicatedDatabase
    replica: Replica

    @property
    def epoch(self) -> int:
        """Of this writer; 0 while a name that was never written is not claimed."""
        return self.replica.log.epoch

    @property
    def slot(self) -> int:
        """The last confirmed one; -1 while there is none."""
        return self.replica.log.slot

    @property
    def is_claimed(self) -> bool:
        return self.replica.log.is_owner

    @property
    def is_proved(self) -> bool:
        """Whether ownership was proved less than a second ago: then what is known may be told without asking the store."""
        return self.replica.proof.is_fresh


async def open_conversation(
    store: CheckpointStore,
    key: ConversationKey,
    work_dir: Path,
    *,
    node: bytes = bytes(16),
    options: StorageOptions | None = None,
    prepare: Prepare | None = None,
    template: bytes = b"",
    describe: Describe | None = None,
    claim: Literal["lazy", "eager"] = "lazy",
    on_lost: Callable[[StorageError], None] | None = None,
) -> OpenedConversation:
    """Claim a conversation, restore its file (or use this node's warm one again), and open it.

    A name that was never written is not claimed before its first write and leaves nothing in the store until then.
    ``prepare`` runs in a transaction of its own right after the open (migrations). ``template``: the file that a
    new name begins with, so that its tables need not be made each time. ``describe`` gives the counts of messages
    and tokens for the hint, at the end. ``on_lost`` is called once, on the
    loop, when another writer took over or confirming broke; `close_conversation` is due then.

    Raises Damaged (CorruptRecord, CorruptDatabase, ForeignDatabase: nothing is changed, what was restored of a file is put
    aside), StoreUnavailable, LocalDiskFailed, or Fenced by a writer that came in between.
    """
    replica = Replica(
        store,
        key,
        work_dir,
        node=node,
        options=options,
        prepare=prepare,
        template=template,
        describe=describe,
        is_lazy=claim == "lazy",
    )
    database = await open_replicated(replica, options=options, on_lost=on_lost)
    database.is_migrated = prepare is not None
    return OpenedConversation(key, database, replica)


async def close_conversation(opened: OpenedConversation) -> StorageError | None:
    """Finish what was submitted, take a snapshot if one is due, write CLOSE, and keep the file for the next wake here.

    Raises nothing; everything local is released whatever happens. None = closed cleanly, or never written. An error says why
    there is no CLOSE: Fenced, StoreUnavailable, …; the next claim works all the same, and what was acknowledged is safe.
    """
    return await opened.database.close()


async def abandon_conversation(opened: OpenedConversation) -> None:
    """Let go at once, without CLOSE, as a killed process does."""
    await opened.database.abandon()


def read_conversation(store: CheckpointStore, key: ConversationKey, folder: Path) -> tuple[Path, Header] | None:
    """Restore a copy of a conversation into ``folder`` without claiming it, beside a running server; None = never written.

    Gives the file and the header of the last record it holds. Blocks. Raises Damaged, StoreUnavailable, LocalDiskFailed.
    """
    path = folder / f"{key.digest}.sqlite"
    try:
        path.unlink(missing_ok=True)
        image = FileImage(path, f"The conversation {key}")
    except OSError as exc:
        raise LocalDiskFailed(f"{path}: {exc.strerror}") from exc
    try:
        last = replay_without_claim(store, key.prefix, image)
    except OSError as exc:
        raise LocalDiskFailed(f"{path}: {exc.strerror}") from exc
    finally:
        image.close()
    if last is None:
        os.unlink(path)
        return None
    return path, last
