"""The hint beside each conversation's log: what ``perdure ls`` shows without reading the log. Never used for safety."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storage.checkpoints.keys import ConversationKey
from storage.checkpoints.store import CheckpointStore, NotFound

_SIZE_STEP = 512  # a hint that keeps its size is cheap to replace


@dataclass(frozen=True, slots=True)
class Meta:
    """Times are milliseconds since 1970. ``messages`` and ``tokens`` are as of the last hibernation, None = not told."""

    agent: str
    name: str
    created: int
    updated: int
    epoch: int
    slot: int
    messages: int | None = None
    tokens: int | None = None

    @property
    def key(self) -> ConversationKey:
        return ConversationKey(self.agent, self.name)


def meta_key(key: ConversationKey) -> str:
    return f"{key.prefix}/meta.json"


def write_meta(
    store: CheckpointStore, key: ConversationKey, facts: Mapping[str, Any], *, epoch: int, slot: int, now_ms: int
) -> None:
    before = read_meta(store, key)
    meta = Meta(
        agent=key.agent,
        name=key.name,
        created=before.created if before else now_ms,
        updated=now_ms,
        epoch=epoch,
        slot=slot,
        messages=facts.get("messages", before.messages if before else None),
        tokens=facts.get("tokens", before.tokens if before else None),
    )
    text = json.dumps({name: getattr(meta, name) for name in Meta.__slots__}).encode()  # a name is any text
    store.put_hint(meta_key(key), text.ljust(-(-len(text) // _SIZE_STEP) * _SIZE_STEP))


def read_meta(store: CheckpointStore, key: ConversationKey) -> Meta | None:
    """The hint of one conversation; None when there is none, or none that can be read."""
    return _load(store, meta_key(key))


def list_conversations(store: CheckpointStore) -> Iterator[Meta]:
    """The hints of all conversations that were ever written, in no useful order. Claims nothing."""
    for fan in store.list(""):
        if len(fan) != 3 or not fan.endswith("/"):
            continue
        for folder in store.list(fan):
            meta = _load(store, f"{fan}{folder}meta.json")
            if meta is not None:
                yield meta


def _load(store: CheckpointStore, key: str) -> Meta | None:
    try:
        return Meta(**json.loads(store.get(key)))
    except (NotFound, ValueError, TypeError):
        return None
