"""What a checkpoint store holds, read beside a running server: nothing is claimed, nothing is woken."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actors.client import as_in_url
from actors.errors import CommandFailed, NotFound
from storage import AgentSessionProvider, Database, open_database
from storage.checkpoints import CheckpointStore, ConversationKey, list_conversations, open_store, read_conversation
from storage.checkpoints.layout import slot_key, slots_in
from storage.checkpoints.records import HEADER_SIZE, Kind, decode_header
from storage.checkpoints.store import NotFound as NoObject
from storage.records import COMPACTION_PREFIX


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the list. Numbers are as of the last hint that was written: None = not known."""

    agent: str
    name: str
    messages: int | None
    tokens: int | None
    is_asleep: bool
    updated_ms: int | None

    def as_json(self) -> dict[str, Any]:
        facts = asdict(self)
        facts["state"] = "asleep" if facts.pop("is_asleep") else "awake"
        return facts


@dataclass(frozen=True, slots=True)
class Content:
    """One conversation, up to its latest leaf. ``history`` is what a reader gets, ``messages`` the number stored.

    ``folded``: id of a summary in ``history`` -> ids of the first and the last message that it stands for.
    """

    agent: str
    name: str
    history: list[dict[str, Any]]
    folded: dict[str, tuple[str, str]]
    blocks: dict[str, str]
    messages: int
    tokens: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def open_existing(url: str) -> CheckpointStore:
    """Opening a folder that is not there would make one; reading a store should not. Raises `CommandFailed`."""
    if "://" not in url and not Path(url).is_dir():
        raise CommandFailed(f"There is no store at {url}; name the server's folder with --data or --store.")
    return open_store(url)


def conversations(url: str) -> Iterator[Listed]:
    """All conversations of the store. Raises `CommandFailed` at once when there is no store."""
    return _listed(open_existing(url))


def _listed(store: CheckpointStore) -> Iterator[Listed]:
    try:
        for hint in list_conversations(store):
            asleep = _is_closed(store, hint.key.prefix)
            yield Listed(hint.agent, hint.name, hint.messages, hint.tokens, asleep is not False, hint.updated)
    finally:
        store.close()


async def read(url: str, agent: str, name: str) -> Content:
    """Restores a copy in a folder of its own, reads it and removes it. Raises `NotFound`.

    ``name`` is as the server knows it, or as a client calls it (``a b`` for what came as ``a%20b``).
    """
    store = open_existing(url)
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
            key, path = await asyncio.to_thread(_restore, store, agent, name, Path(folder))
            database = await open_database(path)
            try:
                return await _content(key, database)
            finally:
                await database.close()
    finally:
        store.close()


def _restore(store: CheckpointStore, agent: str, name: str, folder: Path) -> tuple[ConversationKey, Path]:
    for candidate in dict.fromkeys([name, as_in_url(name)]):
        key = ConversationKey(agent, candidate)
        found = read_conversation(store, key, folder)
        if found is not None:
            return key, found[0]
    raise NotFound(f"{agent}/{name}")


async def _content(key: ConversationKey, database: Database) -> Content:
    messages = AgentSessionProvider(database)
    history = await messages.get_history()
    overlays = {
        COMPACTION_PREFIX + overlay["id"]: (overlay["fromMessageId"], overlay["toMessageId"])
        for overlay in await messages.get_compactions()
    }
    shown = {message["id"] for message in history}
    rows = await messages.get_history_row_stats()
    return Content(
        agent=key.agent,
        name=key.name,
        history=history,
        folded={summary: ends for summary, ends in overlays.items() if summary in shown},
        blocks=await database.read(_blocks),
        messages=len(rows),
        tokens=await messages.path_tokens(),
    )


def _blocks(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT label, content FROM cf_agents_context_blocks ORDER BY label"))


def is_asleep(url: str, agent: str, name: str) -> bool | None:
    """Whether the conversation's last record is a CLOSE; None = it is not in a store that can be read here."""
    if "://" not in url and not Path(url).is_dir():
        return None
    store = open_store(url)
    try:
        return _is_closed(store, ConversationKey(agent, name).prefix)
    finally:
        store.close()


def _is_closed(store: CheckpointStore, prefix: str) -> bool | None:
    while True:
        slots = slots_in(store, f"{prefix}/log")
        if not slots:
            # A closed conversation may be a snapshot only.
            return True if slots_in(store, f"{prefix}/snap") else None
        key = slot_key(prefix, slots[-1])
        try:
            header, _ = decode_header(store.get(key, size=HEADER_SIZE), key)
        except NoObject:
            continue  # collected since the listing
        return header.kind is Kind.CLOSE
