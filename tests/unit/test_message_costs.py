"""What may not grow with the history, counted in SQLite's own steps, so that no clock is needed."""

import functools
import random
import sqlite3
import tracemalloc

import pytest

from storage import full_text, history, schema
from storage import messages as tree

SMALL, LARGE = 60, 6_000


def message(message_id, text="some words to store"):
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


@functools.cache
def filled(count, *, with_overlay=False):
    """A history that the tests share: each undoes what it did."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    source = random.Random(5)
    names = [f"{source.getrandbits(64):x}" for _ in range(count)]
    for name in names:
        tree.append(connection, "", message(name))
    full_text.catch_up(connection)
    if with_overlay:
        tree.add_compaction(connection, "", "summary", names[2], names[count // 2])
    return connection, names


def steps(connection, work):
    count = 0

    def tick():
        nonlocal count
        count += 1

    connection.execute("BEGIN")
    connection.set_progress_handler(tick, 1)
    try:
        work()
    finally:
        connection.set_progress_handler(None, 0)
        connection.execute("ROLLBACK")
    return count


OPERATIONS = {
    "append": lambda c, names: tree.append(c, "", message("new")),
    "branch five back": lambda c, names: tree.append(c, "", message("new"), names[-6]),
    "update the newest": lambda c, names: tree.update(c, "", message(names[-1], "other words, more of them")),
    "update the one before": lambda c, names: tree.update(c, "", message(names[-2], "other words, more of them")),
    "delete the newest": lambda c, names: tree.delete(c, "", [names[-1]]),
    "delete the one before": lambda c, names: tree.delete(c, "", [names[-2]]),
    "estimate": lambda c, names: tree.path_tokens(c, ""),
    "latest leaf": lambda c, names: history.latest_leaf(c, ""),
    "length of the path": lambda c, names: history.path_length(c, ""),
    "last fifty": lambda c, names: history.recent(c, "", 0, 50),
    "one message": lambda c, names: history.message(c, "", names[3]),
    "branches": lambda c, names: history.branches(c, "", names[3]),
}


@pytest.mark.parametrize("with_overlay", [False, True], ids=["plain", "compacted"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_cost_does_not_grow_with_the_history(operation, with_overlay):
    small, large = (
        steps(connection, lambda c=connection, n=names: OPERATIONS[operation](c, n))
        for connection, names in (filled(SMALL, with_overlay=with_overlay), filled(LARGE, with_overlay=with_overlay))
    )
    assert large <= small * 1.2


def test_counting_a_compacted_path_costs_what_is_visible():
    connection, names = filled(LARGE)
    cost = steps(connection, lambda: tree.add_compaction(connection, "", "summary", names[2], names[-20]))
    assert cost < 2_000


def test_sessions_of_one_file_do_not_slow_each_other_down():
    connection, _ = filled.__wrapped__(SMALL)
    for number in range(3_000):
        tree.append(connection, "busy", message(f"b{number}"))
    assert steps(connection, lambda: tree.append(connection, "", message("late"))) < 200
    assert steps(connection, lambda: tree.append(connection, "third", message("first"))) < 200
    assert steps(connection, lambda: tree.append(connection, "busy", message("next"))) < 200
    assert history.path_length(connection, "") == SMALL
    assert history.path_length(connection, "busy") == 3_000


def test_the_newest_part_of_a_large_history_is_read_without_the_rest():
    """B59: memory is bounded by the window, not by the conversation."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    for number in range(300):
        tree.append(connection, "", message(f"m{number}", "x" * 100_000))
    tracemalloc.start()
    try:
        found = history.recent(connection, "", 1_000_000)
        tree.path_tokens(connection, "")
        history.row_stats(connection, "")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 900_000 < len(found.json) < 1_000_100
    assert found.total_bytes > 30_000_000
    assert peak < 4_000_000
