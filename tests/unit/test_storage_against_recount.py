"""Random writes against a model that knows nothing of running sums, ranges or indexes and recounts everything each time."""

import random
import sqlite3
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from storage import compactions, full_text, history, leaves, schema
from storage import message_tree as tree
from storage.records import LATEST
from storage.tokens import estimate_message_tokens

WORDS = ["apple", "bridge", "cloud", "dragon", "東京", "タワー", "京都", "한국", "🎉", "👍", "zebra"]
SESSIONS = ["", "", "a", "b"]


@dataclass
class Row:
    id: str
    parent: str | None
    message: dict[str, Any]


@dataclass
class Model:
    """One session, the slow and obvious way."""

    rows: list[Row] = field(default_factory=list)
    overlays: list[dict[str, str]] = field(default_factory=list)

    def find(self, message_id: str) -> Row | None:
        return next((row for row in self.rows if row.id == message_id), None)

    def path(self, leaf_id: str | None = None) -> list[Row]:
        row = self.find(leaf_id) if leaf_id else (self.rows[-1] if self.rows else None)
        path: list[Row] = []
        while row is not None:
            path.insert(0, row)
            row = self.find(row.parent) if row.parent else None
        return path

    def visible(self, path: list[Row]) -> list[dict[str, Any]]:
        ids = [row.id for row in path]
        result: list[dict[str, Any]] = []
        place = 0
        while place < len(path):
            chosen = None
            for overlay in self.overlays:
                if overlay["from"] == ids[place] and overlay["to"] in ids[place:]:
                    chosen = overlay
            if chosen is None:
                result.append(path[place].message)
                place += 1
            else:
                parts = [{"type": "text", "text": chosen["summary"]}]
                result.append({"id": f"compaction_{chosen['id']}", "role": "assistant", "parts": parts})
                place = ids.index(chosen["to"]) + 1
        return result

    def append(self, message: dict[str, Any], parent: str | None) -> None:
        if self.find(message["id"]) is None:
            self.rows.append(Row(message["id"], parent, message))

    def delete(self, message_id: str) -> None:
        gone = self.find(message_id)
        if gone is None:
            return
        kept = []
        for overlay in self.overlays:
            if overlay["from"] == overlay["to"] == message_id:
                continue
            ids = [row.id for row in self.path(overlay["to"])]
            if self.find(overlay["to"]) is None or overlay["from"] not in ids:
                kept.append(overlay)
                continue
            if overlay["to"] == message_id and any(row.parent == ids[-2] and row.id != message_id for row in self.rows):
                continue  # its new end would be on other branches
            kept.append(overlay)
            if overlay["from"] == message_id:
                overlay["from"] = ids[ids.index(message_id) + 1]
            elif overlay["to"] == message_id:
                overlay["to"] = ids[-2]
        self.overlays = kept
        for row in self.rows:
            if row.parent == message_id:
                row.parent = gone.parent
        self.rows.remove(gone)

    def search(self, words: list[str]) -> set[str]:
        return {row.id for row in self.rows if all(word in text_of(row.message) for word in words)}


def text_of(message: dict[str, Any]) -> str:
    return " ".join(part["text"] for part in message["parts"])


def without_time(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "createdAt"}


class Machine:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        schema.migrate(self.connection)
        self.models = {session: Model() for session in SESSIONS}
        self.count = 0

    def message(self, message_id: str) -> dict[str, Any]:
        words = self.random.choices(WORDS, k=self.random.randrange(6))
        return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": " ".join(words)}]}

    def some_id(self, model: Model) -> str:
        if not model.rows or self.random.random() < 0.05:
            return f"m{self.count + self.random.randrange(-5, 5)}"
        newest = model.rows[-6:] if self.random.random() < 0.5 else model.rows
        return self.random.choice(newest).id

    def step(self) -> None:
        session = self.random.choice(SESSIONS)
        model = self.models[session]
        (kind,) = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        getattr(self, kind)(session, model)
        self.check_estimate(session, model)

    def append(self, session: str, model: Model) -> None:
        self.count += 1
        message = self.message(f"m{self.count}")
        model.append(message, model.rows[-1].id if model.rows else None)
        tree.append(self.connection, session, message, LATEST)

    def branch(self, session: str, model: Model) -> None:
        if not model.rows:
            return
        self.count += 1
        parent = self.random.choice(model.rows[-8:] if self.random.random() < 0.7 else model.rows).id
        message = self.message(f"m{self.count}")
        model.append(message, parent)
        tree.append(self.connection, session, message, parent)

    def awaited(self, session: str, model: Model) -> None:
        """Append a message whose id an overlay names that has not applied so far."""
        ends = [item[end] for item in model.overlays for end in ("from", "to")]
        missing = [end for end in ends if model.find(end) is None]
        if missing:
            message = self.message(self.random.choice(missing))
            model.append(message, model.rows[-1].id if model.rows else None)
            tree.append(self.connection, session, message, LATEST)

    def root(self, session: str, model: Model) -> None:
        self.count += 1
        message = self.message(f"m{self.count}")
        model.append(message, None)
        tree.append(self.connection, session, message, None)

    def update(self, session: str, model: Model) -> None:
        if model.rows:
            row = self.random.choice(model.rows[-4:] if self.random.random() < 0.5 else model.rows)
            row.message = self.message(row.id)
            tree.update(self.connection, session, row.message)

    def delete(self, session: str, model: Model) -> None:
        ids = [self.some_id(model) for _ in range(self.random.choice([1, 1, 1, 2, 4]))]
        for message_id in ids:
            model.delete(message_id)
        tree.delete(self.connection, session, ids)

    def compact(self, session: str, model: Model) -> None:
        path = model.path(self.some_id(model) if self.random.random() < 0.4 else None)
        if len(path) > 1 and self.random.random() < 0.9:
            start, end = sorted(self.random.choices(range(len(path)), k=2))
            ends = path[start].id, path[end].id
        else:
            ends = self.some_id(model), self.some_id(model)
            if self.random.random() < 0.5:
                ends = ends[0], f"later{self.count}"
            elif self.random.random() < 0.3:
                ends = f"soon{self.count}", f"later{self.count}"
        summary = " ".join(self.random.choices(WORDS, k=self.random.randrange(4)))
        stored = compactions.add(self.connection, session, summary, *ends)
        model.overlays.append({"id": stored["id"], "summary": summary, "from": ends[0], "to": ends[1]})

    def clear(self, session: str, model: Model) -> None:
        model.rows.clear()
        model.overlays.clear()
        tree.clear(self.connection, session)

    def index(self, session: str, model: Model) -> None:
        full_text.catch_up(self.connection, self.random.choice([None, 3]))

    def check_estimate(self, session: str, model: Model) -> None:
        expected = estimate_message_tokens(model.visible(model.path()))
        assert tree.path_tokens(self.connection, session) == expected

    def check_everything(self) -> None:
        for session, model in self.models.items():
            for leaf_id in [None, *(row.id for row in model.rows[-3:]), self.some_id(model)]:
                path = model.path(leaf_id)
                messages = orjson.loads(history.visible_json(self.connection, session, leaf_id))
                assert [without_time(message) for message in messages] == model.visible(path)
                assert history.path_length(self.connection, session, leaf_id) == len(path)
            assert [stat["id"] for stat in history.row_stats(self.connection, session)] == [r.id for r in model.path()]
            self.check_recent(session, model)
            self.check_branches(session, model)
            ends = [(item.from_id, item.to_id) for item in compactions.stored(self.connection, session)]
            assert ends == [(item["from"], item["to"]) for item in model.overlays]
            leaf = leaves.latest(self.connection, session)
            assert (leaf.id if leaf else None) == (model.rows[-1].id if model.rows else None)
        self.check_search()

    def check_recent(self, session: str, model: Model) -> None:
        sizes = [stat["bytes"] for stat in history.row_stats(self.connection, session)]
        budget, least = self.random.randrange(1500), self.random.randrange(5)
        count = min(max(1, least), len(sizes))
        while count < len(sizes) and sum(sizes[-count - 1 :]) <= budget:
            count += 1
        found = history.recent(self.connection, session, budget, least)
        expected = model.visible(model.path()[len(sizes) - count :])
        assert [without_time(message) for message in orjson.loads(found.json)] == expected
        assert (found.truncated, found.total_bytes) == (count < len(sizes), sum(sizes))

    def check_branches(self, session: str, model: Model) -> None:
        for row in model.rows[-5:]:
            children = [child.message for child in model.rows if child.parent == row.id]
            assert history.branches(self.connection, session, row.id) == children

    def check_search(self) -> None:
        full_text.catch_up(self.connection)
        for words in [[word] for word in WORDS] + [self.random.sample(WORDS, 2) for _ in range(4)] + [["京"], ["タワ"]]:
            for session, model in self.models.items():
                found = full_text.search(self.connection, session, " ".join(words), 10_000)
                assert len(found) == len({item["id"] for item in found})
                assert {item["id"] for item in found} == model.search(words)


WEIGHTS = {
    "append": 40,
    "branch": 12,
    "awaited": 4,
    "root": 2,
    "update": 14,
    "delete": 14,
    "compact": 8,
    "clear": 0.3,
    "index": 6,
}


@pytest.mark.parametrize("seed", range(6))
def test_random_writes_leave_what_a_recount_finds(seed: int) -> None:
    machine = Machine(seed)
    for number in range(500):
        machine.step()
        if number % 25 == 0:
            machine.check_everything()
    machine.check_everything()
