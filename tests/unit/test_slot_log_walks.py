"""Random interleavings of several writers over one log: claims, appends, snapshots, collection, lost and repeated answers.

A writer that is never chosen again is one that was killed; one chosen late is a zombie that thawed. Whatever happens, every
acknowledged value is in the history that the last claim finds, in order, and every snapshot agrees with it.
"""

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from store_fakes import PageImage

from storage.checkpoints.layout import snapshot_key
from storage.checkpoints.log import SlotLog
from storage.checkpoints.memory import MemoryStore
from storage.checkpoints.records import Header, Kind
from storage.checkpoints.replay import Base
from storage.checkpoints.snapshots import collect
from storage.checkpoints.store import AlreadyExists
from storage.checkpoints.tail import Change
from storage.errors import Fenced, StoreUnavailable

PREFIX = "aa/walk"
SIZE = 512
WALKS = 300 if os.environ.get("TESTS_LONG") else 15
STEPS = 160


class Killed(BaseException):
    pass


class Stepper:
    """Lets one writer at a time make one call of the store."""

    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        self.is_over = False
        self.is_killed = False

    def wait(self) -> None:
        self.arrived.release()
        self.turn.acquire()
        if self.is_killed:
            raise Killed

    def step(self) -> None:
        self.turn.release()
        self.arrived.acquire()


class SteppedStore:
    """A writer's view of the store: each call is one step; a create may lose its answer, or land a second time later."""

    name = "stepped"

    def __init__(
        self, real: MemoryStore, stepper: Stepper, chance: random.Random, late: list[tuple[str, bytes]]
    ) -> None:
        self._real = real
        self._stepper = stepper
        self._chance = chance
        self._late = late

    def create(self, key: str, data: bytes) -> None:
        self._stepper.wait()
        fate = self._chance.random()
        if "/log/" in key and fate < 0.06:
            self._late.append((key, data))  # sent, and on its way for longer than anybody waits
            raise StoreUnavailable("no answer")
        self._real.create(key, data)
        if "/log/" in key and fate < 0.15:
            raise StoreUnavailable("the answer was lost")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._real, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._stepper.wait()
            return method(*args, **kwargs)

        return call


class Writer:
    """Claims, then appends ever longer texts to page 1, takes snapshots and collects."""

    def __init__(self, number: int, real: MemoryStore, chance: random.Random, walk: "Walk") -> None:
        self.stepper = Stepper()
        self._log = SlotLog(
            SteppedStore(real, self.stepper, chance, walk.late), PREFIX, nonce=number.to_bytes(16, "big")
        )
        self._store = self._log._store
        self._number = number
        self._chance = chance
        self._walk = walk
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.stepper.arrived.acquire()

    def _run(self) -> None:
        try:
            self._live()
        except (Killed, Fenced):
            pass
        except BaseException as exc:
            self.failure = exc
        self.stepper.is_over = True
        self.stepper.arrived.release()

    def _live(self) -> None:
        image = PageImage()
        self._insist(lambda: self._log.claim(image))
        for step in range(4):
            mark = f"{self._number}.{step};"
            text = image.pages.get(1, b"").rstrip(b"\0") + mark.encode()
            page = text.ljust(SIZE, b"\0")
            self._confirm(lambda page=page: self._log.append(Change(SIZE, 1, {1: page})))
            image.pages = {1: page}
            self._walk.acked.append(text)
            if self._chance.random() < 0.5:
                self._snapshot(page)
        self._confirm(self._log.close)

    def _insist(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
                return
            except StoreUnavailable:
                self._log._pending = None  # an open that failed: the next attempt is a new writer
                self._log.nonce = self._chance.randbytes(16)

    def _confirm(self, call: Callable[[], object]) -> None:
        try:
            call()
        except StoreUnavailable:
            while True:
                try:
                    self._log.resend()
                    return
                except StoreUnavailable:
                    continue

    def _snapshot(self, page: bytes) -> None:
        log = self._log
        header = Header(Kind.SNAPSHOT, log.slot, log.epoch, log.digest, log.nonce, page_size=SIZE, pages=1, db_pages=1)
        data = log.codec.encode(header, {1: page})
        try:
            self._store.create(snapshot_key(PREFIX, log.slot), data)
        except AlreadyExists:
            pass
        log.note_snapshot(Base(log.slot, log.digest, log.epoch, len(data)), log.bytes)
        collect(self._store, PREFIX, older_than_ms=10**9, prove=log.prove)


class Walk:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.real = MemoryStore()
        self.acked: list[bytes] = []
        self.late: list[tuple[str, bytes]] = []

    def run(self) -> None:
        writers = [Writer(number, self.real, self.chance, self) for number in range(1, 3)]
        for number in range(3, STEPS):
            if self.late and self.chance.random() < 0.1:
                key, data = self.late.pop(self.chance.randrange(len(self.late)))
                if not self.real.exists(key):
                    self.real.create(key, data)
            alive = [writer for writer in writers if not writer.stepper.is_over]
            if len(alive) < 4 and self.chance.random() < 0.1:
                writers.append(Writer(number, self.real, self.chance, self))
            elif alive:
                favourite = self.chance.choice(alive)
                for _ in range(self.chance.randrange(1, 12)):
                    if not favourite.stepper.is_over:
                        favourite.stepper.step()
        for writer in writers:
            writer.stepper.is_killed = True
            writer.stepper.turn.release()
            writer.thread.join(10)
            if writer.failure is not None:
                raise writer.failure

    def check(self) -> None:
        image = PageImage()
        SlotLog(self.real, PREFIX, nonce=b"\xff" * 16).claim(image)
        history = image.pages.get(1, b"").rstrip(b"\0")
        for text in self.acked:
            assert history.startswith(text), f"{text!r} was acknowledged; the history is {history!r}"


@pytest.mark.parametrize("block", range(4))
def test_whatever_the_order_nothing_acknowledged_is_lost(block: int) -> None:
    acknowledged = 0
    for seed in range(block * WALKS, (block + 1) * WALKS):
        walk = Walk(seed)
        try:
            walk.run()
            walk.check()
        except BaseException:
            print(f"seed {seed}")
            raise
        acknowledged += len(walk.acked)
    print(f"{WALKS} walks, {acknowledged} acknowledged")
    assert acknowledged > WALKS
