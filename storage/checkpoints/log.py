"""The slot log of one conversation: claim it, append to it, close it. The only fence there is.

Objects, below the conversation's prefix: ``log/<slot>`` (OPEN, DATA, CLOSE), ``snap/<slot>`` (the whole database after
that slot), ``floor/<slot>`` ("slots up to this one may be deleted"). All are created once and never changed.

Creating slot n both stores a commit and proves that nobody else has written since: a successor begins by creating an
OPEN record in the next slot, which is exactly where the predecessor's next create would go. No clock, no lease.

Invariants:

- I1 Slot n+1 is attempted only after slot n is confirmed; one create in flight; retries are byte-identical.
- I2 What is acknowledged is in its slot; every acknowledged prefix is a prefix of the one history.
- I3 A record's ``prev`` is the digest of the record before it; a snapshot names the digest it stands on.
- I4 The floor is raised before anything is deleted, only to the slot of a verified snapshot, and never lowered.
- I5 A claim counts only if the floor, read *after* its OPEN exists, is not above the snapshot it replayed from.
- I6 A fence (OPEN) outlives every writer of the epoch before it, unless that epoch wrote CLOSE.
- I7 No snapshot contains a page that was not shipped.
- I8 Nothing computed from a commit is told before its slot is confirmed; reads too (`storage.database`).

Nothing here reads a clock or draws a random number, and every effect is one call of the store: so a scheduler that
steps between those calls sees every interleaving there is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from storage.checkpoints.layout import floor_above, lost_slot, slot_key
from storage.checkpoints.records import ZERO, Codec, Header, Kind, decode, digest_of
from storage.checkpoints.replay import NOTHING, Base, Image, check_progress, load_newest, lost
from storage.checkpoints.store import AlreadyExists, CheckpointStore, NotFound
from storage.checkpoints.tail import Change
from storage.errors import CorruptRecord, Fenced, StoreUnavailable

_CONTRADICTIONS = 100


@dataclass(frozen=True, slots=True)
class _Pending:
    slot: int
    data: bytes
    header: Header


class SlotLog:
    """One writer's view of the log. Not for several threads."""

    def __init__(
        self,
        store: CheckpointStore,
        prefix: str,
        *,
        nonce: bytes,
        node: bytes = bytes(16),
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """``nonce`` (16 bytes) must differ between any two writers; ``node`` and ``now_ms`` are advisory."""
        self._store = store
        self.nonce = nonce
        self.node = node
        self._now_ms = now_ms
        self._pending: _Pending | None = None
        self.prefix = prefix
        self.codec = Codec()
        self.slot = -1  # the last confirmed one
        self.digest = ZERO
        self.epoch = 0
        self.is_owner = False
        self.is_closed = False  # by CLOSE
        self.fenced: Fenced | None = None
        self.bytes = 0  # of the records that this object has read and written
        self._snapshot = (NOTHING, 0)  # the newest one known, and `bytes` then; one value: another thread sets it
        self.last_writer = b""  # node of the newest OPEN that the claim met
        self.was_closed = True  # whether the epoch before this one wrote CLOSE

    @property
    def has_pending(self) -> bool:
        """A record was encoded for the next slot and is not confirmed."""
        return self._pending is not None

    @property
    def snapshot(self) -> Base:
        """The newest one known."""
        return self._snapshot[0]

    @property
    def bytes_since_snapshot(self) -> int:
        return self.bytes - self._snapshot[1]

    def note_snapshot(self, base: Base, at_bytes: int) -> None:
        """There is a snapshot, made when `bytes` was ``at_bytes``. May be called in any thread."""
        self._snapshot = (base, at_bytes)

    # ---- claim ----

    def claim(self, image: Image, warm: Base | None = None) -> Base:
        """Rebuild the database in ``image`` and become the owner; returns where the replay started.

        ``warm`` is the slot that ``image`` holds already; it is used only if that slot still has that digest.
        Raises Damaged, with nothing written; or StoreUnavailable.
        """
        base, stale = self._still_there(image, warm), None
        while True:
            if base is None:
                base = load_newest(self._store, self.prefix, image, self.codec)
                check_progress(self.prefix, base, stale)
            self._start_at(base)
            if self._replay(image, base, is_whole=base is warm) and not floor_above(
                self._store, self.prefix, base.slot
            ):
                self.is_owner = True
                return base
            # the start was collected meanwhile: an OPEN that was written stays, and the replay starts again
            stale, base = base, None

    def check_new(self) -> None:
        """For whoever found slot 0 absent. Raises CorruptRecord when this log was written before and has lost it."""
        if lost_slot(self._store, self.prefix, 0) is not None:
            raise lost(self.prefix, 0)

    def claim_new(self) -> None:
        """Become the first owner of a log that must be empty.

        Raises Fenced when somebody has written; CorruptRecord, with nothing written, like `check_new`; or StoreUnavailable.
        """
        if self.slot < 0:
            self.check_new()
        if self._pending is None and self.slot < 0:
            self._prepare(Kind.OPEN, epoch=1)
        if self._pending is not None:
            self._confirm()
        if floor_above(self._store, self.prefix, -1):
            raise self._fence(None)
        self.is_owner = True

    def _still_there(self, image: Image, warm: Base | None) -> Base | None:
        if warm is None:
            return None
        try:
            data = self._store.get(slot_key(self.prefix, warm.slot))
            if decode(data, slot_key(self.prefix, warm.slot)).digest == warm.digest:
                return warm
        except (NotFound, CorruptRecord):
            pass
        image.reset()
        return None

    def _start_at(self, base: Base) -> None:
        self.slot, self.digest, self.epoch = base.slot, base.digest, base.epoch
        self._snapshot, self.bytes = (base, 0), 0
        self.last_writer, self.was_closed = b"", True

    def _replay(self, image: Image, base: Base, *, is_whole: bool) -> bool:
        """Apply the slots after ``base`` until an OPEN of our own is in; False when the base turned out to be stale.

        ``is_whole``: the end of the log is known, so what is absent there needs no second look.
        """
        while True:
            name = slot_key(self.prefix, self.slot + 1)
            try:
                data = self._store.get(name)
            except NotFound:
                missing = None if is_whole else lost_slot(self._store, self.prefix, self.slot + 1)
                if missing is not None:
                    if floor_above(self._store, self.prefix, base.slot):
                        return False
                    raise lost(self.prefix, missing) from None
                image.check()
                self._prepare(Kind.OPEN, epoch=self.epoch + 1)
                if self._put():
                    self._accept()
                    return True
                self._pending = None
                continue
            record = decode(data, name)
            if record.header.slot != self.slot + 1 or record.header.prev != self.digest:
                if floor_above(self._store, self.prefix, base.slot):
                    return False
                raise CorruptRecord(name, "it does not continue the record before it")
            image.apply(record, self.codec)
            self._take(record.header, record.digest, len(data))

    # ---- append ----

    def append(self, change: Change) -> None:
        """Store one commit; returns when its slot is confirmed.

        Raises StoreUnavailable: then call `resend` until it returns or raises Fenced, and append nothing meanwhile.
        Raises Fenced: certainly not stored, and never will be.
        """
        self._prepare(Kind.DATA, epoch=self.epoch, change=change)
        self._confirm()

    def resend(self) -> None:
        """Try again to confirm what is pending, with the same bytes in the same slot. Raises like `append`."""
        if self.fenced is not None:
            raise self.fenced
        if self._pending is not None:
            self._confirm()

    def close(self) -> None:
        """Write CLOSE; after that this writer never writes again. Raises like `append`; then call `resend`."""
        self._prepare(Kind.CLOSE, epoch=self.epoch)
        self._confirm()

    def prove(self) -> None:
        """Return if the next slot is still absent, so that this writer is still the owner; else raise Fenced."""
        if self.fenced is not None:
            raise self.fenced
        if self._store.exists(slot_key(self.prefix, self.slot + 1)):
            raise self._fence(self._look())

    def _prepare(self, kind: Kind, *, epoch: int, change: Change | None = None) -> None:
        if self.fenced is not None:
            raise self.fenced
        if self._pending is not None or self.is_closed:
            raise RuntimeError("nothing may be written now")  # I1
        pages = change.pages if change else {}
        header = Header(
            kind=kind,
            slot=self.slot + 1,
            epoch=epoch,
            prev=self.digest,
            nonce=self.nonce,
            node=self.node,
            time_ms=self._now_ms(),
            page_size=change.page_size if change else 0,
            pages=len(pages),
            db_pages=change.db_pages if change else 0,
        )
        self._pending = _Pending(header.slot, self.codec.encode(header, pages), header)

    def _confirm(self) -> None:
        if not self._put():
            raise self._fence(self._look())
        self._accept()

    def _put(self) -> bool:
        """Create the pending record's slot; False when somebody else's record is there."""
        pending = self._pending
        assert pending is not None
        key = slot_key(self.prefix, pending.slot)
        for _ in range(_CONTRADICTIONS):
            try:
                self._store.create(key, pending.data)
                return True
            except AlreadyExists:
                try:
                    return self._store.get(key) == pending.data  # ours, when an answer was lost
                except NotFound:
                    continue
        raise StoreUnavailable(f"{self._store.name} says that {key} exists and that it does not")

    def _accept(self) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        self.slot, self.digest, self.epoch = pending.slot, digest_of(pending.data), pending.header.epoch
        self.bytes += len(pending.data)
        if pending.header.kind is Kind.CLOSE:
            self.is_owner, self.is_closed = False, True

    def _take(self, header: Header, digest: bytes, size: int) -> None:
        self.slot, self.digest, self.epoch = header.slot, digest, max(self.epoch, header.epoch)
        self.bytes += size
        self.was_closed = header.kind is Kind.CLOSE
        if header.kind is Kind.OPEN:
            self.last_writer = header.node

    def _look(self) -> Header | None:
        """The header of what is in the next slot, to tell who took over; only advice."""
        key = slot_key(self.prefix, self.slot + 1)
        try:
            return decode(self._store.get(key), key).header
        except (NotFound, CorruptRecord, StoreUnavailable):
            return None

    def _fence(self, other: Header | None) -> Fenced:
        self.is_owner = False
        self.fenced = Fenced(other.node.hex(), other.epoch) if other else Fenced()
        return self.fenced
