"""Snapshots of a conversation, and the collection of what they replace.

Both are for the owner only. A snapshot is made of a slot that is confirmed, from a file that holds nothing else (I7).
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from storage.checkpoints.layout import floor_key, slot_key, slots_in, snapshot_key
from storage.checkpoints.records import HEADER_SIZE, Codec, Header, Kind, decode, decode_header
from storage.checkpoints.store import AlreadyExists, CheckpointStore, NotFound
from storage.errors import CorruptRecord

_PIECE = 1 << 20
KEPT_SNAPSHOTS = 2


@dataclass(frozen=True, slots=True)
class Cut:
    """A confirmed slot, and the file that holds the database exactly as it was after it."""

    slot: int
    digest: bytes
    epoch: int
    descriptor: int
    page_size: int
    db_pages: int
    time_ms: int
    nonce: bytes
    node: bytes
    at_bytes: int  # `SlotLog.bytes` then


def write_snapshot(store: CheckpointStore, prefix: str, cut: Cut) -> int:
    """Store the snapshot of a cut and read it back; its size in bytes. Raises CorruptRecord when it came back changed."""
    header = Header(
        kind=Kind.SNAPSHOT,
        slot=cut.slot,
        epoch=cut.epoch,
        prev=cut.digest,
        nonce=cut.nonce,
        node=cut.node,
        time_ms=cut.time_ms,
        page_size=cut.page_size,
        pages=cut.db_pages,
        db_pages=cut.db_pages,
    )
    data = Codec().encode_stream(header, _pieces(cut))
    key = snapshot_key(prefix, cut.slot)
    try:
        store.create(key, data)
    except AlreadyExists:
        pass  # of the same slot, so of the same database: an earlier attempt
    return verify_snapshot(store, prefix, cut.slot)


def verify_snapshot(store: CheckpointStore, prefix: str, slot: int) -> int:
    """Read a snapshot and check its digest and every page of it; its size in bytes. Raises CorruptRecord, NotFound."""
    key = snapshot_key(prefix, slot)
    data = store.get(key)
    record = decode(data, key)
    if record.header.kind is not Kind.SNAPSHOT or record.header.slot != slot:
        raise CorruptRecord(key, "it is not the snapshot of this slot")
    for _ in Codec().pages(record):
        pass
    return len(data)


def _pieces(cut: Cut) -> Iterator[bytes]:
    size = cut.db_pages * cut.page_size
    step = max(1, _PIECE // cut.page_size) * cut.page_size
    for offset in range(0, size, step):
        piece = os.pread(cut.descriptor, min(step, size - offset), offset)
        if len(piece) != min(step, size - offset):
            raise CorruptRecord("the local file", "it is shorter than its database")
        yield piece


def collect(
    store: CheckpointStore,
    prefix: str,
    *,
    older_than_ms: int,
    prove: Callable[[], None],
    spacing_ms: int = 0,
    floor: int | None = None,
) -> int | None:
    """Delete what no restore within the retention needs; the floor it raised to, None when there was nothing to do.

    Kept are the newest snapshot of before ``older_than_ms`` and all that came after it, and never fewer than two
    verified snapshots. Between the oldest and the two newest a snapshot is kept only if it is ``spacing_ms`` younger than
    the one before: every slot is there still, so the others save nothing but time. ``prove`` is called before anything
    is written and raises when this writer is no longer the owner.
    """
    chosen = _floor_for(store, prefix, older_than_ms) if floor is None else floor
    if chosen is not None:
        prove()
        _raise_floor(store, prefix, chosen)
    thin = _too_dense(store, prefix, spacing_ms) if spacing_ms else []
    if thin:
        prove()
        for slot in thin:
            store.delete(snapshot_key(prefix, slot))
    return chosen


def _raise_floor(store: CheckpointStore, prefix: str, chosen: int) -> None:
    try:
        store.create(floor_key(prefix, chosen), b"")  # I4: before the first delete
    except AlreadyExists:
        pass
    _delete_slots(store, prefix, chosen)
    for slot in slots_in(store, f"{prefix}/snap"):
        if slot < chosen:
            store.delete(snapshot_key(prefix, slot))
    # the floor before this one stays for now: a listing under way, while one is made and another deleted, may miss both
    for slot in slots_in(store, f"{prefix}/floor")[:-2]:
        store.delete(floor_key(prefix, slot))


def _too_dense(store: CheckpointStore, prefix: str, spacing_ms: int) -> list[int]:
    """Snapshots that are too close to the one kept before them; never the oldest nor the newest two."""
    snapshots = slots_in(store, f"{prefix}/snap")
    if len(snapshots) <= KEPT_SNAPSHOTS + 1:
        return []
    kept_at = _time_of(store, prefix, snapshots[0])
    dense = []
    for slot in snapshots[1:-KEPT_SNAPSHOTS]:
        time_ms = _time_of(store, prefix, slot)
        if time_ms - kept_at < spacing_ms:
            dense.append(slot)
        else:
            kept_at = time_ms
    return dense


def _floor_for(store: CheckpointStore, prefix: str, older_than_ms: int) -> int | None:
    snapshots = slots_in(store, f"{prefix}/snap")
    floors = slots_in(store, f"{prefix}/floor")
    lowest = floors[-1] if floors else -1
    newer_verified = 0
    for slot in reversed(snapshots):
        if slot < lowest:
            return None
        is_old = _time_of(store, prefix, slot) <= older_than_ms
        if newer_verified >= KEPT_SNAPSHOTS - 1 and is_old:
            if _is_sound(store, prefix, slot):
                return slot if slot > lowest else None
        elif newer_verified < KEPT_SNAPSHOTS - 1 and _is_sound(store, prefix, slot):
            newer_verified += 1
    return None


def _time_of(store: CheckpointStore, prefix: str, slot: int) -> int:
    key = snapshot_key(prefix, slot)
    try:
        return decode_header(store.get(key, size=HEADER_SIZE), key)[0].time_ms
    except (CorruptRecord, NotFound):  # gone when another owner collects: the proof will tell
        return 0


def _is_sound(store: CheckpointStore, prefix: str, slot: int) -> bool:
    try:
        verify_snapshot(store, prefix, slot)
    except (CorruptRecord, NotFound):
        return False
    return True


def _delete_slots(store: CheckpointStore, prefix: str, floor: int) -> None:
    """Delete DATA and CLOSE up to the floor, and an OPEN only when the record before it is a CLOSE (I6).

    Such an OPEN goes before its CLOSE does: were it the other way, an interrupted collection would leave a fence for ever.
    """
    closed_at: int | None = None
    for slot in slots_in(store, f"{prefix}/log"):
        if slot > floor:
            break
        key = slot_key(prefix, slot)
        try:
            kind = decode_header(store.get(key, size=HEADER_SIZE), key)[0].kind
        except NotFound:
            continue
        if kind is Kind.OPEN and closed_at == slot - 1:
            store.delete(key)
        if closed_at is not None:
            store.delete(slot_key(prefix, closed_at))
            closed_at = None
        if kind is Kind.CLOSE:
            closed_at = slot
        elif kind is Kind.DATA:
            store.delete(key)
    if closed_at is not None and closed_at < floor:
        store.delete(slot_key(prefix, closed_at))
