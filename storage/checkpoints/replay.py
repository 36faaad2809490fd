"""Rebuild a database from the newest snapshot and the slots after it, without writing anything."""

from dataclasses import dataclass
from typing import Protocol

from storage.checkpoints.layout import floor_above, lost_slot, slot_key, slots_in, snapshot_key
from storage.checkpoints.records import ZERO, Codec, Header, Kind, Record, decode
from storage.checkpoints.store import CheckpointStore, NotFound
from storage.errors import CorruptRecord


@dataclass(frozen=True, slots=True)
class Base:
    """Where a replay starts: the database is known as it was after ``slot``."""

    slot: int
    digest: bytes
    epoch: int
    size: int = 0  # bytes of the snapshot


NOTHING = Base(-1, ZERO, 0)


class Image(Protocol):
    """The database that a replay builds."""

    def reset(self) -> None:
        """Empty it."""

    def apply(self, record: Record, codec: Codec) -> None:
        """Put the pages of a record into it. Raises CorruptRecord."""

    def check(self) -> None:
        """Called before an OPEN is written. Raises Damaged when what was built is not sound."""


def load_newest(store: CheckpointStore, prefix: str, image: Image, codec: Codec) -> Base:
    """Load the newest sound snapshot into ``image`` and return where to go on; NOTHING when there is none.

    A damaged snapshot is passed over when all slots after an older one are there still; else CorruptRecord.
    """
    while True:
        damage: CorruptRecord | None = None
        for slot in reversed(slots_in(store, f"{prefix}/snap")):
            image.reset()
            try:
                base = _load(store, prefix, slot, image, codec)
            except NotFound:
                break  # collected since the listing
            except CorruptRecord as exc:
                damage = damage or exc
                continue
            if damage is not None and floor_above(store, prefix, slot):
                raise damage
            return base
        else:
            image.reset()
            if damage is not None and floor_above(store, prefix, -1):
                raise damage
            return NOTHING


def _load(store: CheckpointStore, prefix: str, slot: int, image: Image, codec: Codec) -> Base:
    name = snapshot_key(prefix, slot)
    data = store.get(name)
    record = decode(data, name)
    header = record.header
    if header.kind is not Kind.SNAPSHOT or header.slot != slot:
        raise CorruptRecord(name, "it is not the snapshot of this slot")
    image.apply(record, codec)
    return Base(slot, header.prev, header.epoch, len(data))


def check_progress(prefix: str, base: Base, stale: Base | None) -> None:
    """``stale`` was below the floor, and a floor is raised only to a snapshot. Raises CorruptRecord when that is lost."""
    if stale is not None and base.slot <= stale.slot:
        raise CorruptRecord(f"{prefix}/snap", "the snapshot from which the log goes on is not there")


def lost(prefix: str, slot: int) -> CorruptRecord:
    return CorruptRecord(slot_key(prefix, slot), "it is missing, but what was written after it is there")


def replay_without_claim(store: CheckpointStore, prefix: str, image: Image) -> Header | None:
    """Rebuild the newest state in ``image`` without writing anything; the header of the last record, None when there is none.

    What it sees is a confirmed or a landed prefix of the history. Raises CorruptRecord, StoreUnavailable.
    """
    codec = Codec()
    stale: Base | None = None
    while True:
        base = load_newest(store, prefix, image, codec)
        check_progress(prefix, base, stale)
        stale = base
        slot, digest, last = base.slot, base.digest, None
        while True:
            name = slot_key(prefix, slot + 1)
            try:
                record = decode(store.get(name), name)
            except NotFound:
                missing = lost_slot(store, prefix, slot + 1)
                if missing is None or floor_above(store, prefix, base.slot):
                    break
                raise lost(prefix, missing) from None
            if record.header.slot != slot + 1 or record.header.prev != digest:
                if floor_above(store, prefix, base.slot):
                    break
                raise CorruptRecord(name, "it does not continue the record before it")
            image.apply(record, codec)
            slot, digest, last = slot + 1, record.digest, record.header
        if not floor_above(store, prefix, base.slot):
            image.check()
            if last is None and base is not NOTHING:
                last = Header(Kind.SNAPSHOT, base.slot, base.epoch, base.digest, bytes(16))
            return last
