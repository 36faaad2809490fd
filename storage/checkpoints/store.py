"""What a checkpoint store must do, how that is tested before it is trusted, and how one is opened.

Keys are relative paths of lower-case letters, digits, ``. _ -`` and ``/``; no part of a key comes from a client.
Every method is synchronous, may be called from any thread, and may block. What a store cannot answer it raises as
`storage.errors.StoreUnavailable`: then a `create` may or may not have happened.
"""

import secrets
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

import orjson

from storage.errors import ForeignDatabase, InvalidArgument, StorageError, StoreUnavailable, UnsafeStore

FORMAT = 1
_RACERS = 16


class AlreadyExists(Exception):
    """`create` found an object of that key; nothing was changed. What was found is durable."""


class NotFound(Exception):
    """There is no object of that key."""


class CheckpointStore(Protocol):
    """A flat space of objects that are created once and never changed.

    Guarantee: of any number of concurrent `create`s of one key exactly one succeeds, and once one has returned, every
    `get`, `exists` and `list` sees it, and it survives the loss of power.
    """

    @property
    def name(self) -> str:
        """What a sentence calls this store."""

    def create(self, key: str, data: bytes) -> None:
        """Create an object; returns once it is durable. Raises AlreadyExists."""

    def get(self, key: str, *, size: int | None = None) -> bytes:
        """The object, or only its first ``size`` bytes. Raises NotFound."""

    def exists(self, key: str) -> bool: ...

    def list(self, prefix: str) -> Sequence[str]:
        """Names of what lies directly below ``prefix`` (empty, or ending in ``/``); folders end in ``/``. Sorted."""

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens when it is not there."""

    def put_hint(self, key: str, data: bytes) -> None:
        """Create or replace an object; it may be lost with the power. For hints only, never for safety."""

    def close(self) -> None: ...


def open_store(url: str, *, store_id: str = "") -> CheckpointStore:
    """Open the store that ``url`` names: a folder, which is created when it is not there.

    With a ``store_id`` only that very store is opened and nothing is created: one that was removed or unmounted must not
    come back as an empty one. Raises StoreUnavailable.
    """
    from storage.checkpoints.directory import DirectoryStore

    if "://" in url:
        raise InvalidArgument(
            f"The store {url} cannot be used yet: object stores come with a later release; give a folder."
        )
    store = DirectoryStore(url, must_exist=bool(store_id))
    if store_id and known_store_id(store) != store_id:
        store.close()
        raise StoreUnavailable(f"{url} is not the store that was there before")
    return store


def known_store_id(store: CheckpointStore) -> str | None:
    """The id of this store; None when it has none yet. Raises ForeignDatabase for a store of a newer Perdure."""
    try:
        return _identity(store, store.get("store.json"))
    except NotFound:
        return None


def store_id(store: CheckpointStore) -> str:
    """The id of this store, made by whoever asks first. Raises ForeignDatabase for a store of a newer Perdure."""
    mine = orjson.dumps({"id": uuid.uuid4().hex, "format": FORMAT})
    try:
        store.create("store.json", mine)
    except AlreadyExists:
        mine = store.get("store.json")
    return _identity(store, mine)


def _identity(store: CheckpointStore, text: bytes) -> str:
    try:
        facts = orjson.loads(text)
        identity, version = str(facts["id"]), int(facts["format"])
    except (ValueError, KeyError, TypeError) as exc:
        raise ForeignDatabase(store.name, "store.json is not readable") from exc
    if version != FORMAT:
        raise ForeignDatabase(store.name, f"format {version}, this version reads {FORMAT}")
    return identity


def probe(store: CheckpointStore) -> None:
    """Try whether the store keeps the promise of `CheckpointStore`, as far as that can be tried. Raises UnsafeStore.

    Run once at start, before anything is written: some servers of the S3 protocol accept the condition of a create
    and ignore it.
    """
    mark = secrets.token_hex(16)
    names = [f"{mark}-one", f"{mark}-race"]
    try:
        _probe_create(store, f"probe/{names[0]}")
        _probe_race(store, f"probe/{names[1]}")
        if [name for name in store.list("probe/") if name.startswith(mark)] != names:
            raise UnsafeStore(store.name, "a list does not show what was just created")
    finally:
        for name in names:
            store.delete(f"probe/{name}")


def _probe_create(store: CheckpointStore, key: str) -> None:
    if store.exists(key):
        raise UnsafeStore(store.name, "an object exists that nobody created")
    store.create(key, b"first")
    if store.get(key) != b"first" or store.get(key, size=2) != b"fi" or not store.exists(key):
        raise UnsafeStore(store.name, "an object just created cannot be read back")
    try:
        store.create(key, b"second")
    except AlreadyExists:
        if store.get(key) == b"first":
            return
    raise UnsafeStore(store.name, "a second create of the same key succeeded")


def _probe_race(store: CheckpointStore, key: str) -> None:
    start = threading.Barrier(_RACERS)
    winners: list[bytes] = []
    errors: list[StorageError] = []

    def race(mine: bytes) -> None:
        start.wait()
        try:
            store.create(key, mine)
            winners.append(mine)
        except AlreadyExists:
            pass
        except StorageError as exc:
            errors.append(exc)

    _run_together(race, [b"%d" % number for number in range(_RACERS)])
    if errors:
        raise errors[0]
    if len(winners) != 1:
        raise UnsafeStore(store.name, f"{len(winners)} of {_RACERS} concurrent creates of one key succeeded")
    if store.get(key) != winners[0]:
        raise UnsafeStore(store.name, "the winner of a race is not what is read back")


def _run_together(work: Callable[[bytes], None], arguments: Sequence[bytes]) -> None:
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
