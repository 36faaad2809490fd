"""Real writer processes on a store in a folder: killed, stopped, thawed, racing. Nothing acknowledged is ever lost."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import store_writer

from storage.checkpoints import ConversationKey, DirectoryStore, read_conversation

ROOT = Path(__file__).parents[2]
KILLS = 6


class Writer:
    def __init__(self, tmp_path: Path, name: str, work: str) -> None:
        self.acked: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, store_writer.__file__, str(tmp_path / "store"), str(tmp_path / work), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdout is not None
        self.out = self.process.stdout

    def read_until(self, count: int) -> None:
        """Wait until so many rows are acknowledged, or the process has ended."""
        while len(self.acked) < count and (line := self.out.readline().decode().strip()):
            self._take(line)

    def end(self) -> int:
        """Everything that it said to the end."""
        rest = self.out.read().decode()
        for line in rest.splitlines(keepends=True):
            if line.endswith("\n"):
                self._take(line.strip())
        self.out.close()
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read().decode()
        self.process.stderr.close()
        return self.process.wait()

    def _take(self, line: str) -> None:
        if line.startswith(("epoch", "fenced")):
            return
        self.acked.append(line)

    def kill(self) -> None:
        self.process.kill()


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    started: list[Writer] = []
    yield started
    for writer in started:
        writer.process.kill()
        if not writer.out.closed:
            writer.end()


def stored(tmp_path: Path, key: ConversationKey = store_writer.KEY) -> list[str]:
    store = DirectoryStore(tmp_path / "store")
    found = read_conversation(store, key, tmp_path)
    store.close()
    assert found is not None
    connection = sqlite3.connect(found[0])
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    rows = [row[0] for row in connection.execute("SELECT id FROM t ORDER BY rowid")]
    connection.close()
    return rows


def check(tmp_path: Path, acked: list[str]) -> None:
    rows = stored(tmp_path)
    assert len(rows) == len(set(rows))
    missing = set(acked) - set(rows)
    assert not missing, f"{len(missing)} of {len(acked)} acknowledged rows are lost"
    for client in {row.rsplit("-", 1)[0] for row in rows}:
        own = [row for row in rows if row.startswith(client + "-")]
        assert own == [f"{client}-{step:06d}" for step in range(len(own))], "in order, without a gap"


def test_a_writer_killed_again_and_again_loses_nothing(tmp_path: Path, writers: list[Writer]) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}, {KILLS} kills")
    chance = random.Random(seed)
    acked: list[str] = []
    for number in range(KILLS):
        writer = Writer(tmp_path, f"w{number}", "work")
        writers.append(writer)
        writer.read_until(chance.randrange(1, 200))
        writer.kill()
        writer.end()
        assert writer.acked, writer.errors
        acked += writer.acked
    check(tmp_path, acked)


def test_a_stopped_writer_that_is_thawed_after_a_takeover_acknowledges_nothing_more(
    tmp_path: Path, writers: list[Writer]
) -> None:
    zombie = Writer(tmp_path, "zombie", "work1")
    writers.append(zombie)
    zombie.read_until(50)
    zombie.process.send_signal(signal.SIGSTOP)
    successor = Writer(tmp_path, "successor", "work2")
    writers.append(successor)
    successor.read_until(50)
    zombie.process.send_signal(signal.SIGCONT)
    assert zombie.end() == 3, "it noticed by itself that it was fenced"
    successor.read_until(len(successor.acked) + 50)
    successor.kill()
    successor.end()
    check(tmp_path, zombie.acked + successor.acked)
    assert not list((tmp_path / "work1").rglob("*.sqlite*")), "a fenced writer drops its file"


def test_writers_that_race_to_claim_are_one_after_another(tmp_path: Path, writers: list[Writer]) -> None:
    """Also the kernel's view of it: killed and stopped at random while they take over from each other."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acked: list[str] = []
    running: list[Writer] = []
    end = time.monotonic() + 6
    number = 0
    while time.monotonic() < end:
        while len(running) < 3:
            writer = Writer(tmp_path, f"r{number}", f"work{number % 2}")
            number += 1
            writers.append(writer)
            running.append(writer)
        victim = chance.choice(running)
        time.sleep(chance.random() * 0.3)
        action = chance.choice(["kill", "stop", "let"])
        if action == "stop" and victim.process.poll() is None:
            victim.process.send_signal(signal.SIGSTOP)
            time.sleep(chance.random() * 0.3)
            victim.process.send_signal(signal.SIGCONT)
        elif action == "kill":
            victim.kill()
        for writer in [w for w in running if w.process.poll() is not None]:
            running.remove(writer)
            assert writer.end() in (3, -signal.SIGKILL), writer.errors
            acked += writer.acked
    for writer in running:
        writer.kill()
        writer.end()
        acked += writer.acked
    print(f"{number} writers, {len(acked)} acknowledged")
    assert acked
    check(tmp_path, acked)
