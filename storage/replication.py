"""The seam between a `Database` and what makes its commits survive; and how long a proof of ownership is good for."""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PROOF_SECONDS = 1.0
BEAT_SECONDS = 0.25
_RETRY_PROOF_SECONDS = 0.5


def boottime() -> float:
    """Seconds of a clock that also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """The settings of DESIGN.md section 6 that concern storage, under the same names."""

    store_deadline_seconds: float = 10.0
    stale_read_seconds: float = 60.0
    retention_seconds: float = 86_400.0
    snapshot_bytes: int = 4 * 1024 * 1024
    snapshot_slots: int = 256
    max_queued_operations: int = 1_000
    max_queued_bytes: int = 8 * 1024 * 1024
    max_conversation_bytes: int = 1024**3
    max_message_bytes: int = 8 * 1024 * 1024
    max_messages: int = 1_000_000
    max_blocks: int = 256
    max_warm_bytes: int = 2 * 1024**3

    @classmethod
    def of(cls, settings: Any) -> "StorageOptions":
        """Take the fields of these names from any settings object."""
        return cls(**{name: getattr(settings, name) for name in cls.__slots__})


class Proof:
    """When it was last certain that this process owns its conversation, and whether it was paused since.

    Not for several threads, but `beat` may be called from another one.
    """

    def __init__(self, *, stale_read_seconds: float, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._stale_read_seconds = stale_read_seconds
        self._proved_at = float("-inf")
        self._failed_at = float("-inf")
        self._beat_at = clock()
        self._paused_at = float("-inf")

    def now(self) -> float:
        return self._clock()

    def renew(self, at: float) -> None:
        """Ownership was confirmed by a call of the store that began at ``at``."""
        self._proved_at = max(self._proved_at, at)
        self._failed_at = float("-inf")

    def failed(self) -> None:
        """The store gave no answer."""
        self._failed_at = self._clock()

    def beat(self) -> None:
        """Called every BEAT_SECONDS while the process runs: a gap of more than a second was a pause."""
        now = self._clock()
        if now - self._beat_at > PROOF_SECONDS:
            self._paused_at = now
        self._beat_at = now

    @property
    def is_fresh(self) -> bool:
        return self._clock() - self._proved_at < PROOF_SECONDS

    @property
    def has_just_failed(self) -> bool:
        """The store gave no answer a moment ago: asking again for each read would only make each of them slow."""
        return self._clock() - self._failed_at < _RETRY_PROOF_SECONDS

    def allows_stale_reads(self) -> bool:
        """Whether the last confirmed state may be read while the store gives no answer."""
        self.beat()
        return self._paused_at < self._proved_at and self._clock() - self._proved_at < self._stale_read_seconds


class Replicator(Protocol):
    """Makes commits survive the file. Unless it says otherwise a method is called in the database's thread and may block."""

    proof: Proof

    @property
    def needs_settling(self) -> bool:
        """Whether `settle` has something to do. Called anywhere."""

    def restore(self) -> Path:
        """Before the file is opened: bring it into place, own it, and say where it is. Raises any StorageError."""

    def cancel(self) -> None:
        """Nobody waits for `restore` any more: raise Closed rather than take the conversation over. Called in any thread."""

    def opened(self, connection: sqlite3.Connection) -> None:
        """The file is open; nothing has been written through this connection yet."""

    def ship(self, connection: sqlite3.Connection) -> None:
        """After a COMMIT: return once what it changed is confirmed, and ownership proved.

        Raises StoreUnavailable (call `retry` until it returns; commit nothing meanwhile) or Fenced (for good).
        """

    def retry(self) -> None:
        """Try once more to confirm what `ship` could not: the same bytes in the same place. Raises like `ship`."""

    def prove(self) -> None:
        """Return if ownership was proved less than a second ago or can be proved now; else Fenced or StoreUnavailable."""

    def settle(self, connection: sqlite3.Connection) -> None:
        """Everything is confirmed and nobody of this process reads: the time for checkpoints and snapshots."""

    def closing(self, connection: sqlite3.Connection) -> None:
        """Everything is confirmed and nothing will be written any more. Raises like `ship`."""

    def stop(self) -> None:
        """Before any connection is closed: end whatever reads the file on its own. May be called again."""

    def closed(self, *, cleanly: bool) -> None:
        """Every connection is closed, after a `closing` that returned (``cleanly``) or at any other time."""
