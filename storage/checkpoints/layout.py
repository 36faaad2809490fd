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
