"""The WAL tail against `serialize()`: after any SQL, pages read from the log make the same file."""

import random
import sqlite3
from pathlib import Path

import pytest

from storage.checkpoints.tail import TailLost, WalTail
from storage.connections import connect_writer

STEPS = 150


class Copy:
    def __init__(self) -> None:
        self.data = bytearray()

    def apply(self, tail: WalTail) -> bool:
        change = tail.read()
        if change is None:
            return False
        size = change.page_size
        for number, image in change.pages.items():
            end = number * size
            self.data.extend(bytes(max(0, end - len(self.data))))
            self.data[end - size : end] = image
        del self.data[change.db_pages * size :]
        return True


@pytest.mark.parametrize("seed", range(6))
def test_the_copy_is_byte_identical_whatever_sql_was_run(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path = tmp_path / "db.sqlite"
    setup = sqlite3.connect(path)
    setup.execute(f"PRAGMA page_size={chance.choice([512, 1024, 4096, 65536])}")
    setup.execute(f"PRAGMA auto_vacuum={chance.choice([0, 1, 2])}")
    setup.execute("VACUUM")
    setup.close()
    connection = connect_writer(path, is_replicated=True)
    if seed % 2:  # the tail itself must not depend on cache_spill=OFF
        connection.execute("PRAGMA cache_spill=1")
        connection.execute("PRAGMA cache_size=5")
    copy = Copy()
    copy.data[:] = connection.serialize()
    tail = WalTail(path)
    tail.skip()
    compared = 0
    for step in range(STEPS):
        _random_step(connection, chance, step)
        copy.apply(tail)
        if chance.random() < 0.3:
            assert bytes(copy.data) == connection.serialize(), f"seed {seed}, step {step}"
            compared += 1
        if chance.random() < 0.15:
            connection.execute(f"PRAGMA wal_checkpoint({chance.choice(['PASSIVE', 'RESTART', 'TRUNCATE'])})").fetchall()
    assert compared > STEPS // 6
    assert bytes(copy.data) == connection.serialize()
    connection.close()
    tail.close()


def _random_step(connection: sqlite3.Connection, chance: random.Random, step: int) -> None:
    choice = chance.random()
    try:
        if choice < 0.06:
            connection.execute(f"CREATE TABLE IF NOT EXISTS t{chance.randrange(4)}(id INTEGER PRIMARY KEY, v)")
        elif choice < 0.09:
            connection.execute(f"DROP TABLE IF EXISTS t{chance.randrange(4)}")
        elif choice < 0.12:
            connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS f USING fts5(v)")
        elif choice < 0.16:
            connection.execute("VACUUM")
        elif choice < 0.20:
            connection.execute("PRAGMA incremental_vacuum(3)").fetchall()
        elif choice < 0.24:
            connection.execute("INSERT INTO f(f) VALUES('optimize')")
        else:
            _random_transaction(connection, chance)
    except sqlite3.OperationalError as exc:
        if "no such table" not in str(exc):
            raise
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _random_transaction(connection: sqlite3.Connection, chance: random.Random) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for _ in range(chance.randrange(1, 8)):
        connection.execute("SAVEPOINT s")
        table = f"t{chance.randrange(4)}"
        kind = chance.random()
        if kind < 0.6:
            for _ in range(chance.randrange(1, 30)):
                connection.execute(f"INSERT INTO {table}(v) VALUES(?)", (chance.randbytes(chance.randrange(1, 3000)),))
        elif kind < 0.75:
            connection.execute(f"DELETE FROM {table} WHERE id % 3 = ?", (chance.randrange(3),))
        elif kind < 0.85:
            connection.execute("INSERT INTO f(v) VALUES(?)", (f"word{chance.randrange(50)} and more",))
        else:
            connection.execute(f"UPDATE {table} SET v = ? WHERE id % 5 = 0", (chance.randbytes(100),))
        if chance.random() < 0.3:
            connection.execute("ROLLBACK TO s")
        connection.execute("RELEASE s")
    connection.execute("ROLLBACK" if chance.random() < 0.15 else "COMMIT")


@pytest.fixture
def opened(tmp_path: Path) -> tuple[sqlite3.Connection, WalTail]:
    connection = connect_writer(tmp_path / "db.sqlite", is_replicated=True)
    connection.execute("CREATE TABLE t(v)")
    tail = WalTail(tmp_path / "db.sqlite")
    tail.skip()
    return connection, tail


def test_nothing_is_read_when_nothing_was_committed(opened: tuple[sqlite3.Connection, WalTail]) -> None:
    connection, tail = opened
    assert tail.read() is None
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO t VALUES(1)")
    connection.execute("ROLLBACK")
    assert tail.read() is None


def test_a_commit_after_a_passive_checkpoint_is_not_missed(opened: tuple[sqlite3.Connection, WalTail]) -> None:
    """The log starts again at its beginning then, and its size does not change."""
    connection, tail = opened
    for number in range(20):
        connection.execute("INSERT INTO t VALUES(?)", (number,))
    assert tail.read() is not None
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    connection.execute("INSERT INTO t VALUES('after')")
    change = tail.read()
    assert change is not None
    assert any(b"after" in image for image in change.pages.values())


def test_each_page_comes_once_with_its_last_image(opened: tuple[sqlite3.Connection, WalTail]) -> None:
    connection, tail = opened
    for number in range(50):
        connection.execute("INSERT INTO t VALUES(?)", (f"value {number}",))
    change = tail.read()
    assert change is not None
    assert len(change.pages) == 1
    assert b"value 49" in next(iter(change.pages.values()))


def test_a_log_that_went_backwards_is_refused(opened: tuple[sqlite3.Connection, WalTail]) -> None:
    _, tail = opened
    tail._frames += 1
    with pytest.raises(TailLost):
        tail.read()
