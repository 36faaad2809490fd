"""Warm files of sleeping conversations: bounded, least recently used first, whatever else is under way."""

import json
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoints import ConversationKey, StorageOptions, sweep_warm, warm
from storage.checkpoints.replay import Base
from storage.checkpoints.warm import Clean, LocalFile

NOTHING = StorageOptions(max_warm_bytes=0)


def key(name: str) -> ConversationKey:
    return ConversationKey("chat", name)


def put_by(file: LocalFile, content: bytes, slot: int = 1) -> None:
    """What the end of a conversation does with its file."""
    file.fill(content)
    for suffix in ("-wal", "-shm"):
        Path(f"{file.path}{suffix}").touch()
    Path(f"{file.path}-shm").write_bytes(bytes(32_768))
    file.keep_logs()
    for suffix in ("-wal", "-shm"):
        Path(f"{file.path}{suffix}").unlink()
    file.keep(slot=slot, digest=bytes(32), epoch=1, snapshot=Base(0, b"", 1, 0), log_bytes=0)


def keep(work: Path, name: str, content: bytes) -> None:
    file = LocalFile(work, key(name))
    file.take()
    put_by(file, content)


def take(work: Path, name: str) -> tuple[LocalFile, Clean | None]:
    file = LocalFile(work, key(name))
    return file, file.take()


def is_warm(work: Path, name: str) -> bool:
    return (work / key(name).prefix / "warm.sqlite").exists()


def files(work: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in work.rglob("*") if path.is_file()}


def test_what_is_put_by_costs_no_more_than_the_database(tmp_path: Path) -> None:
    keep(tmp_path, "a", b"x" * 5_000)
    assert {size for name, size in files(tmp_path).items() if name.endswith(("-wal", "-shm"))} == {0}


def test_the_least_recently_used_go_until_the_rest_is_below_the_limit(tmp_path: Path) -> None:
    for name in "abcd":
        keep(tmp_path, name, b"x" * 1_000)
    file, clean = take(tmp_path, "a")
    assert clean is not None
    put_by(file, b"x" * 1_500)
    assert sweep_warm(tmp_path, StorageOptions(max_warm_bytes=4_500)) == 0
    assert sweep_warm(tmp_path, StorageOptions(max_warm_bytes=4_499)) == 1
    assert [is_warm(tmp_path, name) for name in "abcd"] == [True, False, True, True]
    assert not (tmp_path / key("b").prefix).exists()
    assert sweep_warm(tmp_path, StorageOptions(max_warm_bytes=1_500)) == 2
    assert [is_warm(tmp_path, name) for name in "abcd"] == [True, False, False, False]
    assert sweep_warm(tmp_path, NOTHING) == 1
    assert files(tmp_path) == {}


def test_only_what_is_warm_is_swept(tmp_path: Path) -> None:
    live, _ = take(tmp_path, "live")
    live.fill(b"in use")
    broken, _ = take(tmp_path, "broken")
    broken.fill(b"for somebody to look at")
    aside = broken.put_aside()
    (tmp_path / "stray").write_bytes(b"")
    assert sweep_warm(tmp_path, NOTHING) == 0
    assert live.path.read_bytes() == b"in use"
    assert aside.read_bytes() == b"for somebody to look at"
    assert sweep_warm(tmp_path / "not there", NOTHING) == 0


class Interrupted:
    """The module ``os``, with something else happening right before one of its calls."""

    def __init__(self, at: int, other: Callable[[], None]) -> None:
        self.left, self.other = at, other

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._before(real) if callable(real) and name not in ("fspath", "fsencode") else real

    def _before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                self.other()
            return real(*arguments, **options)

        return call


def at_every_step(
    monkeypatch: pytest.MonkeyPatch, folder: Path, work: Callable[[Path], None], other: Callable[[Path], None]
) -> list[Path]:
    """``work`` again and again, in new folders, with ``other`` in the middle of it, one call of ``os`` later each time."""
    folders = []
    for step in range(100):
        here = folder / str(step)
        keep(here, "a", b"first")
        interruption = Interrupted(step, lambda here=here: other(here))  # type: ignore[misc]
        with monkeypatch.context() as patch:
            patch.setattr(warm, "os", interruption)
            work(here)
        if interruption.left >= 0:
            assert len(folders) > 1
            return folders
        folders.append(here)
    raise AssertionError("it has no end")


def taken(here: Path) -> None:
    file, clean = take(here, "a")
    assert file.path.read_bytes() == (b"" if clean is None else b"first")


def taken_and_kept(here: Path) -> None:
    file, _ = take(here, "a")
    put_by(file, b"second", slot=2)


@pytest.mark.parametrize("work", [taken, taken_and_kept])
def test_a_sweep_in_the_middle_of_taking_and_keeping_costs_a_warm_start_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], None]
) -> None:
    for here in at_every_step(monkeypatch, tmp_path, work, lambda here: _swept(here)):
        file, clean = take(here, "a")
        assert file.path.read_bytes() == (b"" if clean is None else b"second")


@pytest.mark.parametrize("other", [taken, taken_and_kept])
def test_taking_and_keeping_in_the_middle_of_a_sweep_costs_a_warm_start_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Callable[[Path], None]
) -> None:
    for here in at_every_step(monkeypatch, tmp_path, _swept, other):
        if other is taken:  # the live file is there, whatever was swept
            assert [name for name in files(here) if name.startswith("live-")]
        file, clean = take(here, "a")
        assert file.path.read_bytes() == (b"" if clean is None else b"second")


def _swept(here: Path) -> None:
    sweep_warm(here, NOTHING)


ROUNDS = 1_000 if os.environ.get("TESTS_LONG") else 120


def test_sweeps_beside_many_conversations_that_wake_and_sleep(tmp_path: Path) -> None:
    stopped = threading.Event()
    warm_starts = 0

    def live(number: int) -> None:
        nonlocal warm_starts
        content = b""
        for round in range(ROUNDS):
            file, clean = take(tmp_path, str(number))
            assert clean is None or clean.slot == round - 1
            assert file.path.read_bytes() == (b"" if clean is None else content)
            warm_starts += clean is not None
            content = random.randbytes(random.randrange(1, 2_000))
            if random.random() < 0.1:
                file.drop()
            else:
                put_by(file, content, slot=round)

    def sweep() -> None:
        while not stopped.is_set():
            sweep_warm(tmp_path, StorageOptions(max_warm_bytes=random.choice([0, 2_000])))

    with ThreadPoolExecutor(8) as pool:
        sweepers = [pool.submit(sweep) for _ in range(2)]
        lives = [pool.submit(live, number) for number in range(4)]
        try:
            for running in lives:
                running.result(60)
        finally:
            stopped.set()
        for running in sweepers:
            running.result(60)
    assert warm_starts > 0
    sweep_warm(tmp_path, NOTHING)
    assert not [name for name in files(tmp_path) if name != "clean.json" and not name.startswith("live-")]


@pytest.mark.parametrize(
    "change",
    [
        {"slot": "x"},
        {"slot": -5},
        {"slot": True},
        {"slot": 1e300},
        {"epoch": None},
        {"digest": "zz" * 32},
        {"digest": "00"},
        {"digest": 5},
        {"snapshot_slot": []},
        {"snapshot_size": -1},
        {"log_bytes": "0"},
    ],
)
def test_a_description_with_a_doubtful_value_is_not_believed(tmp_path: Path, change: dict[str, Any]) -> None:
    keep(tmp_path, "a", b"content")
    path = tmp_path / key("a").prefix / "clean.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    file, clean = take(tmp_path, "a")
    assert clean is None
    assert file.path.read_bytes() == b""
