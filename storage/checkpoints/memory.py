"""A checkpoint store in memory, for tests and for the interleaving explorer."""

import threading
from collections.abc import Sequence

from storage.checkpoints.store import AlreadyExists, NotFound


class MemoryStore:
    """Keeps every object in a dict; gone with the process."""

    name = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def create(self, key: str, data: bytes) -> None:
        with self._lock:
            if key in self.objects:
                raise AlreadyExists(key)
            self.objects[key] = bytes(data)

    def get(self, key: str, *, size: int | None = None) -> bytes:
        try:
            data = self.objects[key]
        except KeyError:
            raise NotFound(key) from None
        return data if size is None else data[:size]

    def exists(self, key: str) -> bool:
        return key in self.objects

    def list(self, prefix: str) -> Sequence[str]:
        names = set()
        with self._lock:
            for key in self.objects:
                if key.startswith(prefix):
                    head, slash, _ = key[len(prefix) :].partition("/")
                    names.add(head + slash)
        return sorted(names)

    def delete(self, key: str) -> None:
        with self._lock:
            self.objects.pop(key, None)

    def put_hint(self, key: str, data: bytes) -> None:
        with self._lock:
            self.objects[key] = bytes(data)

    def close(self) -> None:
        pass
