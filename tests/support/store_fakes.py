"""Checkpoint stores that misbehave on demand, and images that remember."""

import threading
from collections.abc import Callable, Sequence

from storage.checkpoints.memory import MemoryStore
from storage.checkpoints.records import Codec, Record
from storage.checkpoints.replay import Image
from storage.errors import StoreUnavailable


class FaultyStore(MemoryStore):
    """Each switch works on creates below ``log/``; what is asked is kept in ``calls``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.attempts: list[tuple[str, bytes]] = []
        self.refuses = False  # every call fails, nothing is changed
        self.loses_answers = 0  # so many creates succeed and say that they failed
        self.before_create: Callable[[str], None] = lambda key: None
        self.gate = threading.Event()  # creates and existence tests wait for it
        self.gate.set()
        self.is_waiting = threading.Event()

    def _enter(self, call: str) -> None:
        self.calls.append(call)
        if not self.gate.is_set() and call.startswith(("create", "exists")):
            self.is_waiting.set()
            assert self.gate.wait(30)
        if self.refuses:
            raise StoreUnavailable("refused by the test")

    def create(self, key: str, data: bytes) -> None:
        self._enter(f"create {key}")
        self.before_create(key)
        if "/log/" in key:
            self.attempts.append((key, bytes(data)))
        super().create(key, data)
        if "/log/" in key and self.loses_answers:
            self.loses_answers -= 1
            raise StoreUnavailable("the answer was lost")

    def exists(self, key: str) -> bool:
        self._enter(f"exists {key}")
        return super().exists(key)

    def get(self, key: str, *, size: int | None = None) -> bytes:
        self._enter(f"get {key}")
        return super().get(key, size=size)

    def list(self, prefix: str) -> Sequence[str]:
        self._enter(f"list {prefix}")
        return super().list(prefix)

    def put_hint(self, key: str, data: bytes) -> None:
        self._enter(f"hint {key}")
        super().put_hint(key, data)


class PageImage(Image):
    """A database in memory: page number -> image."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.checks = 0

    def reset(self) -> None:
        self.pages = {}

    def apply(self, record: Record, codec: Codec) -> None:
        self.pages.update(codec.pages(record))
        if record.header.pages:
            self.pages = {n: image for n, image in self.pages.items() if n <= record.header.db_pages}

    def check(self) -> None:
        self.checks += 1
