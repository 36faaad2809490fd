"""Claim, append, fence, close, snapshot and collection of the slot log, over a store in memory."""

import itertools

import pytest
from store_fakes import FaultyStore, PageImage

from storage.checkpoints.layout import floor_key, slot_key, slots_in, snapshot_key
from storage.checkpoints.log import SlotLog
from storage.checkpoints.memory import MemoryStore
from storage.checkpoints.records import ZERO, Codec, Header, Kind, decode
from storage.checkpoints.replay import NOTHING, Base, replay_without_claim
from storage.checkpoints.snapshots import collect
from storage.checkpoints.store import AlreadyExists
from storage.checkpoints.tail import Change
from storage.errors import CorruptRecord, Fenced, StoreUnavailable

PREFIX = "aa/conversation"
SIZE = 512
_nonces = itertools.count()


def page(text: str) -> bytes:
    return text.encode().ljust(SIZE, b"\0")


def change(text: str, number: int = 1) -> Change:
    return Change(SIZE, max(number, 1), {number: page(text)})


def writer(store: MemoryStore, now_ms: int = 0, node: bytes = b"N" * 16) -> SlotLog:
    return SlotLog(store, PREFIX, nonce=next(_nonces).to_bytes(16, "big"), node=node, now_ms=lambda: now_ms)


def claimed(store: MemoryStore, now_ms: int = 0) -> tuple[SlotLog, PageImage]:
    log, image = writer(store, now_ms), PageImage()
    log.claim(image)
    return log, image


def snapshot(store: MemoryStore, log: SlotLog, image: PageImage, time_ms: int = 0) -> None:
    pages = dict(image.pages)
    header = Header(
        Kind.SNAPSHOT, log.slot, log.epoch, log.digest, log.nonce, b"N" * 16, time_ms, SIZE, len(pages), len(pages)
    )
    data = log.codec.encode(header, pages)
    store.create(snapshot_key(PREFIX, log.slot), data)
    log.note_snapshot(Base(log.slot, log.digest, log.epoch, len(data)), log.bytes)


def kinds(store: MemoryStore) -> str:
    letters = {Kind.OPEN: "O", Kind.DATA: "D", Kind.CLOSE: "C"}
    return "".join(
        letters[decode(store.get(slot_key(PREFIX, slot)), "x").header.kind] for slot in slots_in(store, f"{PREFIX}/log")
    )


# ---- claim ----


def test_a_claim_of_a_new_name_opens_slot_zero_with_epoch_one() -> None:
    store = MemoryStore()
    log, image = claimed(store)
    assert (log.slot, log.epoch, log.is_owner) == (0, 1, True)
    assert image.pages == {}
    assert image.checks == 1
    assert kinds(store) == "O"


def test_a_claim_replays_every_slot_and_opens_the_next_epoch() -> None:
    store = MemoryStore()
    first, _ = claimed(store)
    first.append(change("one"))
    first.append(change("two", 2))
    second, image = claimed(store)
    assert (second.slot, second.epoch) == (3, 2)
    assert image.pages == {1: page("one"), 2: page("two")}
    assert not second.was_closed
    assert second.last_writer == b"N" * 16
    first_again = decode(store.get(slot_key(PREFIX, 1)), "x")
    assert first_again.header.prev == decode(store.get(slot_key(PREFIX, 0)), "x").digest


def test_a_claim_after_a_close_knows_that_it_was_clean() -> None:
    store = MemoryStore()
    first, _ = claimed(store)
    first.close()
    second, _ = claimed(store)
    assert second.was_closed
    assert kinds(store) == "OCO"


def test_a_claim_that_finds_the_slot_taken_goes_on_behind_it() -> None:
    store = FaultyStore()
    first, _ = claimed(store)
    once = iter([True])

    def interfere(key: str) -> None:
        if next(once, False):
            first.append(change("in between"))

    store.before_create = interfere
    second, image = claimed(store)
    assert image.pages == {1: page("in between")}
    assert (second.slot, second.epoch) == (2, 2)
    with pytest.raises(Fenced):
        first.append(change("late"))


def test_a_claim_whose_answer_was_lost_is_found_to_be_its_own() -> None:
    store = FaultyStore()
    log, image = writer(store), PageImage()
    real_create = store.create

    def twice(key: str, data: bytes) -> None:
        real_create(key, data)
        raise AlreadyExists(key)  # as a store does whose client library repeats the call by itself

    store.create = twice  # type: ignore[method-assign]
    log.claim(image)
    assert (log.slot, log.epoch) == (0, 1)


def test_a_claim_of_an_empty_log_is_fenced_when_somebody_came_first() -> None:
    store = MemoryStore()
    claimed(store)
    with pytest.raises(Fenced):
        writer(store).claim_new()


def test_a_claim_of_an_empty_log_can_be_repeated_until_the_store_answers() -> None:
    store = FaultyStore()
    log = writer(store)
    store.refuses = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            log.claim_new()
    store.refuses = False
    log.claim_new()
    log.append(change("one"))
    assert kinds(store) == "OD"


# ---- a log that has lost records ----


def test_a_claim_writes_nothing_into_a_hole_in_the_log() -> None:
    store = MemoryStore()
    log, _ = claimed(store)
    for number in range(3):
        log.append(change(str(number)))
    store.delete(slot_key(PREFIX, 2))
    before = dict(store.objects)
    with pytest.raises(CorruptRecord, match=f"{slot_key(PREFIX, 2)} is damaged"):
        claimed(store)
    with pytest.raises(CorruptRecord):
        replay_without_claim(store, PREFIX, PageImage())
    assert store.objects == before


@pytest.mark.parametrize("kept", ["log", "snap", "floor"])
def test_a_log_without_its_first_slot_is_not_taken_for_a_new_one(kept: str) -> None:
    store, _ = grown(4)
    store.create(floor_key(PREFIX, 2), b"")
    store.delete(slot_key(PREFIX, 0))
    store.objects = {key: data for key, data in store.objects.items() if f"/{kept}/" in key}
    assert store.objects
    before = dict(store.objects)
    for attempt in (writer(store).check_new, writer(store).claim_new, lambda: claimed(store)):
        with pytest.raises(CorruptRecord, match=r"(log/0+|snap) is damaged .*(missing|not there)"):
            attempt()
    with pytest.raises(CorruptRecord):
        replay_without_claim(store, PREFIX, PageImage())
    assert store.objects == before


def test_a_claim_that_lacks_the_snapshot_of_the_floor_is_refused() -> None:
    """It would start at slot 0 again and again, and leave an OPEN in what was collected each time."""
    store, log = grown(6)
    collect(store, PREFIX, older_than_ms=10**9, prove=log.prove)
    for slot in slots_in(store, f"{PREFIX}/snap"):
        store.delete(snapshot_key(PREFIX, slot))
    before = dict(store.objects)
    with pytest.raises(CorruptRecord):
        claimed(store)
    with pytest.raises(CorruptRecord):
        replay_without_claim(store, PREFIX, PageImage())
    assert store.objects == before


def test_a_claim_that_looks_while_others_write_is_no_damage() -> None:
    """The slot that was absent, and later ones, come between the look at it and the list."""
    store = FaultyStore()
    first, _ = claimed(store)
    real_list = store.list
    once = iter([True])

    def list_late(prefix: str) -> list[str]:
        if prefix.endswith("/log/") and next(once, False):
            first.append(change("one"))
            first.append(change("two"))
        return list(real_list(prefix))

    store.list = list_late  # type: ignore[method-assign]
    second, image = claimed(store)
    assert image.pages == {1: page("two")}
    assert second.slot == 3


def test_a_name_that_was_never_written_costs_one_list() -> None:
    store = FaultyStore()
    writer(store).check_new()
    assert store.calls == [f"list {PREFIX}/"]


def test_slot_zero_outlives_every_collection() -> None:
    store, log = grown(6)
    collect(store, PREFIX, older_than_ms=10**9, prove=log.prove)
    assert slots_in(store, f"{PREFIX}/log")[0] == 0


# ---- append and fence ----


def test_an_append_stores_one_record_and_advances_one_slot() -> None:
    store = MemoryStore()
    log, _ = claimed(store)
    log.append(change("one"))
    assert log.slot == 1
    assert kinds(store) == "OD"
    assert log.bytes_since_snapshot == sum(len(data) for data in store.objects.values())


def test_a_fenced_writer_is_never_heard_again() -> None:
    store = MemoryStore()
    zombie, _ = claimed(store)
    claimed(store)
    before = dict(store.objects)
    with pytest.raises(Fenced) as caught:
        zombie.append(change("zombie"))
    assert caught.value.args == ((b"N" * 16).hex(), 2)
    for attempt in (zombie.resend, zombie.close, zombie.prove, lambda: zombie.append(change("again"))):
        with pytest.raises(Fenced):
            attempt()
    assert store.objects == before
    assert not zombie.is_owner


def test_a_lost_answer_is_repeated_with_the_same_bytes_in_the_same_slot() -> None:
    store = FaultyStore()
    log, _ = claimed(store)
    store.attempts.clear()
    store.loses_answers = 1
    with pytest.raises(StoreUnavailable):
        log.append(change("one"))
    assert log.slot == 0
    with pytest.raises(RuntimeError):
        log.append(change("two"))  # I1: nothing else before it is confirmed
    log.resend()
    assert log.slot == 1
    assert len(store.attempts) == 2
    assert store.attempts[0] == store.attempts[1]


def test_a_lost_answer_of_a_record_that_never_landed_is_definite_once_somebody_else_is_there() -> None:
    store = FaultyStore()
    log, _ = claimed(store)
    store.refuses = True
    with pytest.raises(StoreUnavailable):
        log.append(change("one"))
    store.refuses = False
    _, image = claimed(store)
    with pytest.raises(Fenced):
        log.resend()
    assert image.pages == {}


def test_a_landed_record_whose_answer_was_lost_is_part_of_the_history() -> None:
    store = FaultyStore()
    log, _ = claimed(store)
    store.loses_answers = 1
    with pytest.raises(StoreUnavailable):
        log.append(change("one"))
    _, image = claimed(store)
    assert image.pages == {1: page("one")}
    log.resend()  # it was confirmed before the successor came
    with pytest.raises(Fenced):
        log.append(change("two"))


def test_a_proof_fails_once_a_successor_is_there() -> None:
    store = MemoryStore()
    log, _ = claimed(store)
    log.prove()
    claimed(store)
    with pytest.raises(Fenced):
        log.prove()


def test_a_store_that_contradicts_itself_is_no_answer() -> None:
    class Contradicts(MemoryStore):
        def create(self, key: str, data: bytes) -> None:
            raise AlreadyExists(key)

    with pytest.raises(StoreUnavailable, match="and that it does not"):
        writer(Contradicts()).claim_new()


# ---- close ----


def test_nothing_is_written_after_close() -> None:
    store = MemoryStore()
    log, _ = claimed(store)
    log.close()
    assert log.is_closed
    assert not log.is_owner
    with pytest.raises(RuntimeError):
        log.append(change("late"))
    assert kinds(store) == "OC"


# ---- warm ----


def test_a_warm_start_replays_only_what_came_later() -> None:
    store = FaultyStore()
    first, image = claimed(store)
    first.append(change("one"))
    first.close()
    warm = Base(first.slot, first.digest, first.epoch)
    image.pages = {1: page("one")}
    second = writer(store)
    store.calls.clear()
    assert second.claim(image, warm) is warm
    assert image.pages == {1: page("one")}
    assert second.epoch == 2
    assert [call for call in store.calls if "/log/" in call] == [
        f"get {slot_key(PREFIX, 2)}",
        f"get {slot_key(PREFIX, 3)}",
        f"create {slot_key(PREFIX, 3)}",
    ]


@pytest.mark.parametrize("damage", ["other", "gone", "unreadable"])
def test_a_warm_file_of_another_history_is_dropped(damage: str) -> None:
    store = MemoryStore()
    first, _ = claimed(store)
    first.append(change("one"))
    first.close()
    image = PageImage()
    image.pages = {1: page("of another history"), 9: page("more")}
    key = slot_key(PREFIX, 2)
    if damage == "gone":
        warm = Base(7, first.digest, 1)
    else:
        warm = Base(2, b"x" * 32, 1)
    second = writer(store)
    if damage == "unreadable":
        data = store.objects.pop(key)
        store.objects[key] = b"junk"
        with pytest.raises(CorruptRecord):
            second.claim(image, Base(2, first.digest, 1))
        store.objects[key] = data
        return
    assert second.claim(image, warm) is NOTHING
    assert image.pages == {1: page("one")}


def test_a_warm_start_below_the_floor_starts_again_from_the_snapshot() -> None:
    """The stale file's next slots are gone; its OPEN stays where it is, in the hole, and counts for nothing."""
    store = MemoryStore()
    old, _ = claimed(store)
    old.close()
    warm = Base(old.slot, old.digest, old.epoch)
    log, image = claimed(store)
    for number in range(5):
        log.append(change(f"v{number}"))
        image.pages = {1: page(f"v{number}")}
    snapshot(store, log, image, time_ms=1)
    log.append(change("later"))
    store.create(floor_key(PREFIX, 7), b"")
    for slot in range(2, 8):
        store.delete(slot_key(PREFIX, slot))
    stale_image = PageImage()
    stale_image.pages = {1: page("stale")}
    second = writer(store)
    second.claim(stale_image, warm)
    assert stale_image.pages == {1: page("later")}
    assert second.slot == 9
    assert second.epoch == 3


# ---- damage ----


def test_a_damaged_slot_is_refused_and_never_skipped() -> None:
    store = MemoryStore()
    log, _ = claimed(store)
    for number in range(3):
        log.append(change(f"v{number}"))
    for slot in range(4):
        key = slot_key(PREFIX, slot)
        whole = store.objects[key]
        store.objects[key] = whole[:-1] + bytes([whole[-1] ^ 1])
        before = dict(store.objects)
        with pytest.raises(CorruptRecord, match=f"{slot:016d}"):
            claimed(store)
        assert store.objects == before, "nothing is written to a log that cannot be read"
        store.objects[key] = whole


def test_a_record_of_another_history_is_refused() -> None:
    store, other = MemoryStore(), MemoryStore()
    for which, text in ((store, "ours"), (other, "theirs")):
        log, _ = claimed(which)
        log.append(change(text))
        log.append(change(text + " again"))
    store.objects[slot_key(PREFIX, 2)] = other.objects[slot_key(PREFIX, 2)]
    with pytest.raises(CorruptRecord, match="does not continue"):
        claimed(store)


def test_a_damaged_newest_snapshot_is_passed_over_while_the_slots_are_there() -> None:
    store = MemoryStore()
    log, image = claimed(store)
    log.append(change("one"))
    image.pages = {1: page("one")}
    snapshot(store, log, image)
    log.append(change("two"))
    image.pages = {1: page("two")}
    snapshot(store, log, image)
    store.objects[snapshot_key(PREFIX, 2)] = b"junk"
    second, restored = claimed(store)
    assert restored.pages == {1: page("two")}
    assert second.snapshot.slot == 1
    store.objects[snapshot_key(PREFIX, 1)] = b"junk"
    assert claimed(store)[1].pages == {1: page("two")}
    store.create(floor_key(PREFIX, 1), b"")
    before = dict(store.objects)
    with pytest.raises(CorruptRecord, match="snap"):
        claimed(store)
    assert store.objects == before


# ---- snapshots and collection ----


def grown(snapshots: int, *, closes: bool = False) -> tuple[MemoryStore, SlotLog]:
    """A log with a snapshot after every third commit, each made at the time of its number."""
    store = MemoryStore()
    log, image = claimed(store)
    for number in range(snapshots):
        for step in range(3):
            log.append(change(f"v{number}.{step}"))
        image.pages = {1: page(f"v{number}.2")}
        snapshot(store, log, image, time_ms=number)
        if closes:
            log.close()
            log, image = claimed(store)
    return store, log


def test_a_claim_starts_at_the_newest_snapshot() -> None:
    store, _ = grown(3)
    log, image = claimed(store)
    assert log.snapshot.slot == 9
    assert image.pages == {1: page("v2.2")}


def test_collection_keeps_what_the_retention_needs_and_two_snapshots() -> None:
    store, log = grown(5)
    assert slots_in(store, f"{PREFIX}/snap") == [3, 6, 9, 12, 15]
    assert collect(store, PREFIX, older_than_ms=2, prove=log.prove) == 9
    assert slots_in(store, f"{PREFIX}/snap") == [9, 12, 15]
    assert slots_in(store, f"{PREFIX}/floor") == [9]
    assert kinds(store) == "ODDDDDD", "the fence stays"
    assert claimed(store)[1].pages == {1: page("v4.2")}


def test_collection_never_leaves_fewer_than_two_snapshots() -> None:
    store, log = grown(3)
    assert collect(store, PREFIX, older_than_ms=10**9, prove=log.prove) == 6
    assert slots_in(store, f"{PREFIX}/snap") == [6, 9]
    assert collect(store, PREFIX, older_than_ms=10**9, prove=log.prove) is None
    store, log = grown(1)
    assert collect(store, PREFIX, older_than_ms=10**9, prove=log.prove) is None


def test_snapshots_within_the_retention_are_thinned_and_every_slot_stays() -> None:
    store, log = grown(10)
    assert collect(store, PREFIX, older_than_ms=-1, prove=log.prove, spacing_ms=4) is None
    assert slots_in(store, f"{PREFIX}/snap") == [3, 15, 27, 30]
    assert len(slots_in(store, f"{PREFIX}/log")) == 31
    assert claimed(store)[1].pages == {1: page("v9.2")}


def test_collection_does_not_count_a_damaged_snapshot() -> None:
    store, log = grown(4)
    store.objects[snapshot_key(PREFIX, 12)] = b"junk"
    assert collect(store, PREFIX, older_than_ms=10**9, prove=log.prove) == 6
    assert claimed(store)[1].pages == {1: page("v3.2")}
    store, log = grown(2)
    store.objects[snapshot_key(PREFIX, 3)] = b"junk"
    assert collect(store, PREFIX, older_than_ms=10**9, prove=log.prove) is None


def test_collection_by_a_fenced_writer_deletes_nothing() -> None:
    store, log = grown(4)
    claimed(store)
    before = dict(store.objects)
    with pytest.raises(Fenced):
        collect(store, PREFIX, older_than_ms=10**9, prove=log.prove)
    assert store.objects == before


def test_a_fence_after_a_close_is_collected_and_others_stay() -> None:
    store, log = grown(4, closes=True)
    assert kinds(store) == "ODDDCODDDCODDDCODDDCO"
    floor = collect(store, PREFIX, older_than_ms=10**9, prove=log.prove)
    assert floor == 13
    assert slots_in(store, f"{PREFIX}/log") == [0, *range(14, 21)]
    assert kinds(store) == "OCODDDCO"
    assert claimed(store)[1].pages == {1: page("v3.2")}


@pytest.mark.parametrize("stop_after", range(1, 40))
def test_an_interrupted_collection_loses_nothing_and_leaves_no_fence_that_could_go(stop_after: int) -> None:
    class Stops(Exception):
        pass

    store, log = grown(4, closes=True)
    deletes = itertools.count(1)
    real_delete = store.delete

    def delete(key: str) -> None:
        if next(deletes) > stop_after:
            raise Stops
        real_delete(key)

    store.delete = delete  # type: ignore[method-assign]
    try:
        collect(store, PREFIX, older_than_ms=10**9, prove=log.prove)
    except Stops:
        pass
    store.delete = real_delete  # type: ignore[method-assign]
    log, image = claimed(store)
    assert image.pages == {1: page("v3.2")}
    collect(store, PREFIX, older_than_ms=10**9, prove=log.prove, floor=13)
    assert slots_in(store, f"{PREFIX}/log") == [0, *range(14, 22)]


def test_the_floor_is_there_before_the_first_delete() -> None:
    store, log = grown(3)
    order: list[str] = []
    real_create, real_delete = store.create, store.delete
    store.create = lambda key, data: (order.append(f"create {key}"), real_create(key, data))[1]  # type: ignore
    store.delete = lambda key: (order.append(f"delete {key}"), real_delete(key))[1]  # type: ignore
    collect(store, PREFIX, older_than_ms=10**9, prove=log.prove)
    assert order[0] == f"create {floor_key(PREFIX, 6)}"
    assert all(step.startswith("delete") for step in order[1:])


# ---- reading ----


def test_reading_writes_nothing_and_sees_the_newest_state() -> None:
    store, log = grown(2)
    log.append(change("newest"))
    before = dict(store.objects)
    image = PageImage()
    last = replay_without_claim(store, PREFIX, image)
    assert last is not None
    assert (last.slot, last.epoch) == (7, 1)
    assert image.pages == {1: page("newest")}
    assert store.objects == before
    assert replay_without_claim(store, "aa/other", PageImage()) is None


def test_the_chain_begins_with_zeros() -> None:
    store = MemoryStore()
    claimed(store)
    assert decode(store.get(slot_key(PREFIX, 0)), "x").header.prev == ZERO
    assert Codec().encode(Header(Kind.OPEN, 0, 1, ZERO, b"n" * 16), {})
