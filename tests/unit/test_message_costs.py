"""What may not grow with the history, counted in SQLite's own steps, so that no clock is needed."""

import functools
import random
import sqlite3
import tracemalloc

import orjson
import pytest

from actors.session import late_results
from storage import compactions, full_text, history, schema
from storage import message_tree as tree

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
        compactions.add(connection, "", "summary", names[2], names[count // 2])
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
    cost = steps(connection, lambda: compactions.add(connection, "", "summary", names[2], names[-20]))
    assert cost < 2_000


def tool(message_id, role, call_id, **part):
    return {"id": message_id, "role": role, "parts": [{"type": "tool-look", "toolCallId": call_id, **part}]}


def answer(connection, number):
    message = tool(f"r{number}", "tool", f"c{number}", output="42")
    tree.append(connection, "", message)
    late_results.cover_appended(connection, "", message)


@functools.cache
def worn(count):
    """A short visible history above which so many summaries were superseded and so many late results folded."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    tree.append(connection, "", message("m"))
    for number in range(count):
        tree.append(connection, "", tool(f"c{number}", "assistant", f"c{number}", input={}))
        compactions.add(connection, "", "summary", "m", f"c{number}")
        answer(connection, number)
        compactions.add(connection, "", "summary", "m", f"r{number}")
    tree.append(connection, "", tool("call", "assistant", f"c{count}", input={}))
    for name in ("a", "b", "c"):
        tree.append(connection, "", message(name))
    compactions.add(connection, "", "summary", "m", "a")
    (late,) = connection.execute("SELECT count(*) FROM assistant_compactions WHERE call IS NOT NULL").fetchone()
    assert late == count
    return connection


WORN = {
    "append": lambda c, count: tree.append(c, "", message("new")),
    "late result": answer,
    "branch": lambda c, count: tree.append(c, "", message("new"), "b"),
    "update": lambda c, count: tree.update(c, "", message("b", "other words, more of them")),
    "delete": lambda c, count: tree.delete(c, "", ["b"]),
    "delete what is hidden": lambda c, count: tree.delete(c, "", ["call"]),
    "delete the end of a summary": lambda c, count: tree.delete(c, "", ["a"]),
    "summary": lambda c, count: compactions.add(c, "", "summary", "m", "b"),
    "answers to what is folded": lambda c, count: late_results.cover_beside(
        c, "", 2 * count + 5, 2 * count + 2, {f"c{count}"}
    ),
    "update that answers": lambda c, count: tree.update(
        c, "", tool("b", "tool", f"c{count}", output="42"), lambda c, *args: late_results.cover_updated(c, "", *args)
    ),
    "history": lambda c, count: history.visible_json(c, ""),
    "newest part of the history": lambda c, count: history.recent(c, "", 0, 2),
}


@pytest.mark.parametrize("operation", WORN)
def test_the_cost_does_not_grow_with_superseded_overlays_and_late_results(operation):
    small, large = (
        steps(connection, lambda c=connection, n=count: WORN[operation](c, n))
        for connection, count in ((worn(10), 10), (worn(500), 500))
    )
    assert large <= small * 1.2


def test_looking_for_answers_to_many_folded_calls_reads_no_message_of_the_path():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    for number in range(600):
        tree.append(connection, "", tool(f"c{number}", "assistant", f"c{number}", input={}))
    for number in range(600, 1_000):
        tree.append(connection, "", message(f"c{number}"))
    compactions.add(connection, "", "summary", "c0", "c300")
    folded = {f"c{number}" for number in range(301)}
    assert steps(connection, lambda: late_results.cover_beside(connection, "", 1_000, 301, folded)) < 200


def test_a_worn_history_shows_its_summary_and_what_came_after_it():
    connection = worn(10)
    answer_it = steps(connection, lambda: answer(connection, 10))
    assert answer_it > 0
    shown = [item["parts"][0]["text"] for item in orjson.loads(history.visible_json(connection, ""))]
    assert shown == ["summary", "some words to store", "some words to store"]
    assert len(compactions.stored(connection, "")) == 31


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
