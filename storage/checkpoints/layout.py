"""Where the objects of one conversation are, below its prefix, and what their names say."""

from storage.checkpoints.store import CheckpointStore


def slot_key(prefix: str, slot: int) -> str:
    return f"{prefix}/log/{slot:016d}"


def snapshot_key(prefix: str, slot: int) -> str:
    return f"{prefix}/snap/{slot:016d}"


def floor_key(prefix: str, slot: int) -> str:
    return f"{prefix}/floor/{slot:016d}"


def slots_in(store: CheckpointStore, folder: str) -> list[int]:
    """The slot numbers of the objects in ``log``, ``snap`` or ``floor``, ascending."""
    return [int(name) for name in store.list(f"{folder}/") if name.isdigit()]


def floor_above(store: CheckpointStore, prefix: str, slot: int) -> bool:
    """Whether slots after ``slot`` may have been deleted."""
    floors = slots_in(store, f"{prefix}/floor")
    return bool(floors) and floors[-1] > slot


def lost_slot(store: CheckpointStore, prefix: str, slot: int) -> int | None:
    """Which record the log had and lacks, for whoever has just found ``slot`` absent; None when it ends there.

    ``slot`` is lost when something later is there; so is the first one when it is absent: no collection deletes that.
    Also tells ``slot`` when a collection took it meanwhile: then the floor, read after this, is above it.
    """
    if slot == 0 and not store.list(f"{prefix}/"):
        return None
    slots = slots_in(store, f"{prefix}/log")
    if slot > 0 and slots[:1] != [0]:
        lost = 0
    elif (
        (slots and slots[-1] > slot)
        or any(at >= slot for at in slots_in(store, f"{prefix}/snap"))
        or (slot == 0 and slots_in(store, f"{prefix}/floor"))
    ):
        lost = slot
    else:
        return None
    return None if store.exists(slot_key(prefix, lost)) else lost  # it came since
