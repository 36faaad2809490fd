"""A stored summary changes the estimate of the visible path by what it hides, whatever else is stored."""

import random
import sqlite3

import pytest

from storage import compactions, leaves, schema, visibility
from storage import message_tree as tree


def message(name: str, words: int = 1) -> dict[str, object]:
    return {"id": name, "role": "user", "parts": [{"type": "text", "text": "word " * words}]}


def opened() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    return connection


@pytest.mark.parametrize("seed", range(40))
def test_the_sum_is_that_of_a_recount(seed: int) -> None:
    chance = random.Random(seed)
    connection = opened()
    names: list[str] = []
    for number in range(30):
        name = f"m{number}"
        parent = names[-1] if names and chance.random() < 0.85 else chance.choice([*names[-6:], None])
        tree.append(connection, "", message(name, chance.randrange(60)), parent)
        names.append(name)
    for number in range(5):
        name = f"late{number}"
        tree.append(connection, "", message(name, chance.randrange(60)))
        call = leaves.seq_of(connection, "", names[0])
        compactions.add(connection, "", "told " * chance.randrange(9), name, name, call=call)
        names.append(name)
    for _ in range(60):
        first = chance.randrange(len(names))
        last = chance.choice([first, *range(first, min(len(names), first + 12)), chance.randrange(len(names))])
        compactions.add(connection, "", "so " * chance.randrange(40), names[first], names[last])
        leaf = leaves.latest(connection, "")
        assert leaf is not None
        assert leaf.sums.tokens == visibility.visible_tokens(connection, "", leaf.seq)


def side_by_side(count: int) -> sqlite3.Connection:
    connection = opened()
    for number in range(2 * count + 20):
        tree.append(connection, "", message(f"m{number}"))
    for number in range(count):
        compactions.add(connection, "", "in short", f"m{2 * number}", f"m{2 * number + 1}")
    return connection


def test_the_cost_of_a_summary_does_not_grow_with_messages_and_with_other_summaries() -> None:
    def steps(count: int) -> int:
        connection = side_by_side(count)
        ticks = 0

        def tick() -> int:
            nonlocal ticks
            ticks += 1
            return 0

        connection.set_progress_handler(tick, 1)
        compactions.add(connection, "", "in short", f"m{2 * count}", f"m{2 * count + 1}")
        connection.set_progress_handler(None, 1)
        return ticks

    assert steps(1_000) - steps(100) <= 900 * 12  # each summary before it is looked at in the index, no message is
