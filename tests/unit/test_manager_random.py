"""Random use of a SessionManager, restarts included, against a plain model. `TESTS_LONG=1` runs many more."""

import asyncio
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from session_support import text
from test_storage_against_recount import Model, Row, without_time

from actors import SessionManager
from storage import open_database
from storage.errors import UnknownMessage, UnknownParent, UnknownSession
from storage.records import LATEST

WORDS = ["apple", "bridge", "東京", "🎉", "zebra"]
CONTINUED = "[Context from previous session]\n\n"


@dataclass
class Known:
    """A session, as the model sees it."""

    name: str
    parent: str | None = None
    owner: str | None = None
    tags: list[str] = field(default_factory=list)
    input_tokens: int = 0
    end_reason: str | None = None
    memory: str = ""
    tree: Model = field(default_factory=Model)


Op = tuple[str, int, int, int]
OPS = {
    "create": 4,
    "append": 12,
    "branch": 5,
    "root": 1,
    "upsert": 4,
    "batch": 4,
    "delete_messages": 4,
    "clear": 1,
    "fork": 5,
    "split": 2,
    "compact": 3,
    "usage": 2,
    "rename": 2,
    "metadata": 2,
    "memory": 2,
    "delete": 2,
    "restart": 2,
    "search": 2,
}
NUMBERS = st.integers(0, 2**16)
OPERATIONS = st.tuples(
    st.sampled_from([name for name, weight in OPS.items() for _ in range(weight)]), NUMBERS, NUMBERS, NUMBERS
)


class Machine:
    """Does each operation in both, and compares what can be seen of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Known] = {}  # the session that changed last is at the end
        self.count = 0

    async def open(self) -> None:
        self.database = await open_database(self.path)
        self.manager = SessionManager.create(self.database).with_context("memory").with_cached_prompt()

    async def run(self, operations: list[Op]) -> None:
        await self.open()
        for name, a, b, c in operations:
            session_id = list(self.known)[a % len(self.known)] if self.known else "missing"
            if a % 29 == 0:
                session_id = "missing"
            await getattr(self, name)(session_id, b, c)
            await self.check(session_id)
        await self.restart("", 0, 0)
        for session_id in [*self.known, "missing"]:
            await self.check(session_id)
        for session_id in list(self.known):
            await self.delete(session_id, 0, 0)
        await self.check_nothing_is_left()
        await self.database.close()

    # ---- operations -----------------------------------------------------------------------------------------------

    async def create(self, _: str, b: int, c: int) -> None:
        info = await self.manager.create(f"s{b % 3}", owner=["a", "b", None][c % 3], tags=["x", "y"][: c % 3])
        self.known[info.id] = Known(info.name, owner=["a", "b", None][c % 3], tags=["x", "y"][: c % 3])

    async def append(self, session_id: str, b: int, c: int) -> None:
        await self.put(session_id, self.message(b), LATEST)

    async def branch(self, session_id: str, b: int, c: int) -> None:
        await self.put(session_id, self.message(b), self.some_id(session_id, c))

    async def root(self, session_id: str, b: int, c: int) -> None:
        await self.put(session_id, self.message(b), None)

    async def put(self, session_id: str, message: dict[str, Any], parent: Any) -> None:
        error = None
        if session_id not in self.known:
            error = UnknownSession
        elif isinstance(parent, str) and not any(map(self.tree(session_id).find, (parent, message["id"]))):
            error = UnknownParent
        done = self.manager.append(session_id, message, parent)
        if await refused(done, error):
            return
        self.add(session_id, message, parent)
        self.touch(session_id)

    async def upsert(self, session_id: str, b: int, c: int) -> None:
        message = self.message(b)
        if c % 2 and session_id in self.known:
            message["id"] = self.some_id(session_id, c // 2)
        if await refused(
            self.manager.upsert(session_id, message), None if session_id in self.known else UnknownSession
        ):
            return
        row = self.tree(session_id).find(message["id"])
        if row is not None:
            row.message = message
        else:
            self.add(session_id, message, LATEST)
        self.touch(session_id)

    async def batch(self, session_id: str, b: int, c: int) -> None:
        messages = [self.message(b + number) for number in range(c % 4)]
        if c % 3 == 0 and session_id in self.known and self.tree(session_id).rows:
            messages.insert(0, self.tree(session_id).rows[-1].message)
        done = self.manager.append_all(session_id, messages)
        if await refused(done, None if session_id in self.known else UnknownSession):
            return
        parent: Any = LATEST
        for message in messages:
            self.add(session_id, message, parent)
            parent = message["id"]
        self.touch(session_id)

    async def delete_messages(self, session_id: str, b: int, c: int) -> None:
        ids = [self.some_id(session_id, b), self.some_id(session_id, c)][: 1 + c % 2]
        done = self.manager.delete_messages(session_id, ids)
        if await refused(done, None if session_id in self.known else UnknownSession):
            return
        for message_id in ids:
            self.tree(session_id).delete(message_id)
        self.touch(session_id)

    async def clear(self, session_id: str, b: int, c: int) -> None:
        done = self.manager.clear_messages(session_id)
        if await refused(done, None if session_id in self.known else UnknownSession):
            return
        self.known[session_id].tree = Model()
        self.touch(session_id)

    async def fork(self, session_id: str, b: int, c: int) -> None:
        at = self.some_id(session_id, b)
        error = UnknownSession if session_id not in self.known else None
        if error is None and self.tree(session_id).find(at) is None:
            error = UnknownMessage
        done = self.manager.fork(session_id, at, "fork")
        if error is not None:
            assert await refused(done, error)
            return
        info = await done
        source = self.known[session_id]
        visible = source.tree.visible(source.tree.path(at))
        copied = await self.manager.get_history(info.id)
        assert [changed(message) for message in copied] == [changed(message) for message in visible]
        assert not {message["id"] for message in copied} & {row.id for row in source.tree.rows}
        fork = Known("fork", session_id, source.owner, source.tags)
        for above, message in zip([None, *copied], copied, strict=False):
            fork.tree.rows.append(Row(message["id"], above and above["id"], without_time(message)))
        self.known[info.id] = fork

    async def split(self, session_id: str, b: int, c: int) -> None:
        done = self.manager.compact_and_split(session_id, f"gist {b}", [None, "next"][c % 2])
        if session_id not in self.known:
            assert await refused(done, UnknownSession)
            return
        info = await done
        source = self.known[session_id]
        source.end_reason = "compaction"
        self.touch(session_id)
        (message,) = await self.manager.get_history(info.id)
        assert message["parts"] == [{"type": "text", "text": f"{CONTINUED}gist {b}"}]
        new = Known([source.name, "next"][c % 2], session_id, source.owner, source.tags)
        new.tree.rows.append(Row(message["id"], None, message))
        self.known[info.id] = new

    async def compact(self, session_id: str, b: int, c: int) -> None:
        ends = [self.some_id(session_id, b), self.some_id(session_id, c)]
        done = self.manager.add_compaction(session_id, f"summary {b}", *ends)
        if session_id not in self.known:
            assert await refused(done, UnknownSession)
            return
        stored = await done
        self.tree(session_id).overlays.append(
            {"id": stored["id"], "summary": f"summary {b}", "from": ends[0], "to": ends[1]}
        )
        self.touch(session_id)

    async def usage(self, session_id: str, b: int, c: int) -> None:
        done = self.manager.add_usage(session_id, b, c, 0.5)
        if await refused(done, None if session_id in self.known else UnknownSession):
            return
        self.known[session_id].input_tokens += b
        self.touch(session_id)

    async def rename(self, session_id: str, b: int, c: int) -> None:
        await self.manager.rename(session_id, f"name {b}")
        if session_id in self.known:
            self.known[session_id].name = f"name {b}"
            self.touch(session_id)

    async def metadata(self, session_id: str, b: int, c: int) -> None:
        done = self.manager.set_metadata(session_id, owner=["a", None][b % 2], tags=["x"][: c % 2])
        if await refused(done, None if session_id in self.known else UnknownSession):
            return
        self.known[session_id].owner, self.known[session_id].tags = ["a", None][b % 2], ["x"][: c % 2]
        self.touch(session_id)

    async def memory(self, session_id: str, b: int, c: int) -> None:
        if session_id in self.known:
            await self.manager.get_session(session_id).replace_context_block("memory", f"note {b}")
            self.known[session_id].memory = f"note {b}"

    async def delete(self, session_id: str, b: int, c: int) -> None:
        await self.manager.delete(session_id)
        self.known.pop(session_id, None)

    async def restart(self, session_id: str, b: int, c: int) -> None:
        await self.database.close()
        await self.open()

    async def search(self, session_id: str, b: int, c: int) -> None:
        words = [WORDS[b % len(WORDS)], WORDS[c % len(WORDS)]][: 1 + c % 2]
        found = await self.manager.search(" ".join(words), 1_000)
        wanted = sorted(identity for known in self.known.values() for identity in known.tree.search(words))
        assert sorted(hit["id"] for hit in found) == wanted

    # ---- the model ------------------------------------------------------------------------------------------------

    def tree(self, session_id: str) -> Model:
        return self.known[session_id].tree

    def touch(self, session_id: str) -> None:
        self.known[session_id] = self.known.pop(session_id)

    def message(self, number: int) -> dict[str, Any]:
        """Ids are few, so that sessions have messages of the same ids."""
        self.count += 1
        return text(f"m{self.count % 12}", " ".join([WORDS[number % 5], WORDS[number % 7 % 5]]))

    def some_id(self, session_id: str, number: int) -> str:
        rows = self.tree(session_id).rows if session_id in self.known else []
        return rows[number % len(rows)].id if rows and number % 11 else "nowhere"

    def add(self, session_id: str, message: dict[str, Any], parent: Any) -> None:
        tree = self.tree(session_id)
        if parent is LATEST:
            parent = tree.rows[-1].id if tree.rows else None
        tree.append(message, parent)

    # ---- comparisons ----------------------------------------------------------------------------------------------

    async def check(self, session_id: str) -> None:
        infos = await self.manager.list()
        assert [info.id for info in infos] == list(self.known)[::-1]
        for info in infos:
            known = self.known[info.id]
            assert (info.name, info.parent_session_id, info.owner, info.tags, info.input_tokens, info.end_reason) == (
                known.name,
                known.parent,
                known.owner,
                known.tags,
                known.input_tokens,
                known.end_reason,
            )
        if session_id not in self.known:
            assert await self.manager.get_history(session_id) == []
            return
        tree = self.tree(session_id)
        found = await self.manager.get_history(session_id)
        assert [without_time(message) for message in found] == tree.visible(tree.path())
        assert await self.manager.get_message_count(session_id) == len(tree.path())
        session = self.manager.get_session(session_id)
        block = await session.get_context_block("memory")
        assert block is not None
        assert block.content == self.known[session_id].memory
        page = await session.page_messages(1_000, order="oldest")
        assert [row["id"] for row in page["messages"]] == [row.id for row in tree.path()]

    async def check_nothing_is_left(self) -> None:
        tables = "assistant_messages assistant_compactions assistant_sessions cf_agents_context_blocks".split()
        for table in tables:
            query = f"SELECT count(*) FROM {table}"
            assert await self.database.read(lambda connection, q=query: connection.execute(q).fetchone()) == (0,), table
        for word in WORDS:
            assert await self.manager.search(word) == []


async def refused(done: Any, error: type[Exception] | None) -> bool:
    """Whether the operation was refused, which is so exactly if an error was expected."""
    (outcome,) = await asyncio.gather(done, return_exceptions=True)
    if isinstance(outcome, BaseException) and not isinstance(outcome, UnknownSession | UnknownParent | UnknownMessage):
        raise outcome
    raised = type(outcome) if isinstance(outcome, BaseException) else None
    assert raised is error, outcome
    return raised is not None


def changed(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in ("id", "createdAt")}


@settings(max_examples=400 if os.environ.get("TESTS_LONG") else 12, deadline=None)
@given(st.lists(OPERATIONS, min_size=10, max_size=60))
def test_any_use_of_a_manager_is_what_a_plain_model_says(operations: list[Op]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(Machine(Path(folder) / "chat.db").run([("create", 0, 0, 0), *operations]))
