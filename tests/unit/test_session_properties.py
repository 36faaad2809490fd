"""Whole sessions under random use, against a model that keeps every message and recounts everything.

Trees, tool calls (parts of one message, parallel, answered in their message or by later ones, late, more than once, on several
branches, by updates), budgets, deletions, summaries by hand, by `create_compact_function` and automatic, changes while a summary
is being written, and restarts.
`TESTS_LONG=1` runs many more.
"""

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from awake import KEY
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from actors import Agent, Session
from actors.conversation.awake import AwakeConversation
from actors.settings import Settings
from compaction import CompactContext, CompactResult, create_compact_function, estimate_message_tokens
from storage import access, open_database
from storage.checkpoints import DirectoryStore, abandon_conversation

JsonObject = dict[str, Any]
WORDS = ["apple", "bridge", "cloud", "dragon", "東京", "タワー", "🎉", "POL-358"]
IS_LONG = bool(os.environ.get("TESTS_LONG"))
SOME = st.integers(0, 10**6)
TEXTS = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


# ---- the model ------------------------------------------------------------------------------------------------


@dataclass
class Row:
    message: JsonObject
    parent: str | None


@dataclass
class Model:
    """One session, the slow and obvious way: what was acknowledged."""

    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def newest(self) -> str | None:
        return next(reversed(self.rows), None)

    def path(self, leaf: str | None) -> list[JsonObject]:
        path: list[JsonObject] = []
        while leaf is not None:
            path.insert(0, self.rows[leaf].message)
            leaf = self.rows[leaf].parent
        return path

    def append(self, message: JsonObject, parent: str | None) -> None:
        self.rows[message["id"]] = Row(message, parent)

    def delete(self, identity: str) -> None:
        gone = self.rows.pop(identity)
        for row in self.rows.values():
            if row.parent == identity:
                row.parent = gone.parent

    def containing(self, words: list[str]) -> set[str]:
        return {key for key, row in self.rows.items() if set(words) <= set(words_of(row.message))}


def words_of(message: JsonObject) -> list[str]:
    return [word for part in message["parts"] if part["type"] == "text" for word in part["text"].split()]


def calls_of(message: JsonObject) -> dict[str, bool]:
    """The calls that a message makes, and whether it holds their results."""
    if message["role"] != "assistant":
        return {}
    return {part["toolCallId"]: "output" in part for part in message["parts"] if "toolCallId" in part}


def answers_of(message: JsonObject) -> list[str]:
    return [part["toolCallId"] for part in message["parts"] if "toolCallId" in part and message["role"] == "tool"]


def broken_pairs(path: list[JsonObject], visible: list[JsonObject], updated: set[str]) -> list[str]:
    """What the whole path has together and the visible history has apart.

    ``updated``: calls that an update answered or made; one that wrote the result into what is folded leaves its call open.
    """
    shown = {message["id"] for message in visible}
    caller: dict[str, str] = {}
    answered_by: dict[str, list[str]] = {}
    broken: list[str] = []
    for message in path:
        for call_id in answers_of(message):
            if call_id in caller:
                answered_by.setdefault(call_id, []).append(message["id"])
                if message["id"] in shown and caller[call_id] not in shown:
                    broken.append(f"{message['id']} answers {call_id}, whose call is folded")
        caller.update(dict.fromkeys(calls_of(message), message["id"]))
    for message in visible:
        for call_id, holds_result in calls_of(message).items():
            answers = answered_by.get(call_id, [])
            if answers and not holds_result and not shown & set(answers) and call_id not in updated:
                broken.append(f"{message['id']} calls {call_id}, whose result is folded")
    return broken


# ---- where the session lives ----------------------------------------------------------------------------------

Configure = Callable[[Session], Session]


class Library:
    """A file that is opened and closed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chat.db"

    async def open(self, configure: Configure) -> Session:
        self.database = await open_database(self.path)
        self.session = configure(Session.create(self.database))
        return self.session

    async def sleep(self) -> None:
        await self.session.hibernate()
        await self.database.close()

    async def crash(self) -> None:
        await self.session.cancel_compaction()
        await self.database.close()


class Awake:
    """An awake conversation over a checkpoint store; sleeps and is killed, by turns with its local file and without."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work, self.nights = folder, folder / "work", 0

    async def open(self, configure: Configure) -> Session:
        class Chat(Agent):
            def configure(self) -> Session:
                return configure(Session.create(self))

        self.work.mkdir(mode=0o700, exist_ok=True)
        self.conversation = await AwakeConversation.wake(
            KEY,
            Chat,
            store=DirectoryStore(self.folder / "store"),
            work_dir=self.work,
            settings=Settings(data=self.folder),
            node=bytes(16),
            emit=lambda event: None,
            on_lost=lambda error: None,
        )
        return self.conversation._agent.session

    async def sleep(self) -> None:
        await self.conversation.hibernate()
        self._forget_file()

    async def crash(self) -> None:
        await abandon_conversation(self.conversation._opened)
        self._forget_file()

    def _forget_file(self) -> None:
        self.nights += 1
        if self.nights % 2:
            shutil.rmtree(self.work)


# ---- the machine ----------------------------------------------------------------------------------------------


class Conversations(RuleBasedStateMachine):
    home_type: type[Library] | type[Awake] = Library

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        # so that a short run gets as far as abandoned calls and what follows from them
        self.stack.enter_context(patch("compaction.tool_pairs.ABANDONED_AFTER", 2))
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.runner = self.stack.enter_context(asyncio.Runner())
        self.home = self.home_type(self.folder)
        self.model = Model()
        self.first_content: dict[str, JsonObject] = {}
        self.updated_calls: set[str] = set()
        self.ids = itertools.count()
        self.summaries = itertools.count()
        self.is_split_by_hand = False
        self.gate: asyncio.Event | None = None
        self.begun: asyncio.Event | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @initialize(
        head=st.integers(0, 4),
        budget=st.integers(0, 120),
        tail=st.integers(0, 4),
        threshold=st.one_of(st.none(), st.integers(20, 300)),
        own_counter=st.booleans(),
        by_hand=st.booleans(),
    )
    def begin(self, head: int, budget: int, tail: int, threshold: int | None, own_counter: bool, by_hand: bool) -> None:
        self.options = {"protect_head": head, "tail_token_budget": budget, "min_tail_messages": tail}
        self.threshold, self.own_counter, self.by_hand = threshold, own_counter, by_hand
        self.run(self._open())

    async def _open(self) -> None:
        self.session = await self.home.open(self._configure)

    def _configure(self, session: Session) -> Session:
        fold = create_compact_function(summarize=self._summarize, **self.options)

        async def compact(messages: list[JsonObject], context: CompactContext) -> CompactResult | None:
            result = await fold(messages, context)
            assert result is None or len(messages) > self.options["protect_head"]
            return result

        session.on_compaction(compact)
        if self.threshold is None:
            return session
        counter = (lambda messages, **_: 30 * len(messages)) if self.own_counter else None
        return session.compact_after(self.threshold, token_counter=counter)

    async def _summarize(self, prompt: str) -> str:
        if self.begun is not None and self.gate is not None:
            self.begun.set()
            await self.gate.wait()
        return f"summary number {next(self.summaries)}"

    # ---- messages ---------------------------------------------------------------------------------------------

    def some_id(self, pick: int) -> str:
        return list(self.model.rows)[-1 - pick % len(self.model.rows)]

    async def _append(self, message: JsonObject, parent: str | None, *, is_latest: bool) -> None:
        if is_latest:
            await self.session.append_message(message)
        else:
            await self.session.append_message(message, parent)
        self.model.append(message, parent)
        self.first_content[message["id"]] = message

    def append(self, message: JsonObject, parent: str | None = None, *, is_latest: bool = True) -> None:
        async def work() -> None:
            await self._append(message, self.model.newest if is_latest else parent, is_latest=is_latest)
            await self.session.settled()

        self.run(work())

    def text(self, words: str, role: str = "user") -> JsonObject:
        return {"id": f"m{next(self.ids)}", "role": role, "parts": [{"type": "text", "text": words}]}

    def calls(self, count: int, answered: int, words: str) -> JsonObject:
        identity = f"m{next(self.ids)}"
        parts: list[JsonObject] = [{"type": "text", "text": words}] if words else []
        for number in range(count):
            part = {
                "type": "tool-look",
                "toolCallId": f"{identity}-{number}",
                "toolName": "look",
                "input": {"n": number},
            }
            done = {"output": f"out {number}", "state": "output-available"} if number < answered else {}
            parts.append({**part, "state": "input-available", **done})
        return {"id": identity, "role": "assistant", "parts": parts}

    @rule(texts=st.lists(TEXTS, min_size=1, max_size=5))
    def say(self, texts: list[str]) -> None:
        for words in texts:
            self.append(self.text(words))

    @rule(words=TEXTS, pick=st.one_of(SOME, SOME, SOME, st.none()))
    @precondition(lambda self: self.model.rows)
    def branch(self, words: str, pick: int | None) -> None:
        self.append(self.text(words), None if pick is None else self.some_id(pick), is_latest=False)

    @rule(count=st.integers(1, 3), answered=st.integers(0, 3), words=TEXTS)
    def call(self, count: int, answered: int, words: str) -> None:
        self.append(self.calls(count, answered, words))

    @rule(count=st.integers(1, 3), apart=st.integers(1, 3), words=TEXTS)
    def use_a_tool(self, count: int, apart: int, words: str) -> None:
        """Calls, and at once their results, in up to three messages of their own."""
        message = self.calls(count, 0, words)
        self.append(message)
        waiting = list(calls_of(message))
        while waiting:
            self.append(self.results(waiting[:apart]))
            waiting = waiting[apart:]

    def results(self, call_ids: list[str]) -> JsonObject:
        parts = [
            {"type": "tool-look", "toolCallId": call_id, "output": "found it", "state": "output-available"}
            for call_id in call_ids
        ]
        return {"id": f"m{next(self.ids)}", "role": "tool", "parts": parts}

    @rule(pick=SOME, leaf=SOME, how_many=st.integers(1, 3), by_update=st.booleans())
    @precondition(lambda self: any(map(self.open_calls, self.model.rows)))
    def answer(self, pick: int, leaf: int, how_many: int, by_update: bool) -> None:
        """Results for some open calls of one message: in it, or in a message below any message that comes after it."""
        leaves = [identity for identity in self.model.rows if self.open_calls(identity)]
        parent = leaves[-1 - leaf % len(leaves)]
        calling, call_ids = self.open_calls(parent)[pick % len(self.open_calls(parent))]
        call_ids = call_ids[:how_many]
        if by_update:
            message = self.model.rows[calling].message
            parts = [
                {**part, "output": "late", "state": "output-available"} if part.get("toolCallId") in call_ids else part
                for part in message["parts"]
            ]
            self.update({**message, "parts": parts})
            return
        self.append(self.results(call_ids), parent, is_latest=parent == self.model.newest)

    def open_calls(self, leaf: str) -> list[tuple[str, list[str]]]:
        """The calls of a path that have no result on it, by message."""
        path = self.model.path(leaf)
        answered = {call_id for message in path for call_id in answers_of(message)}
        found = []
        for message in path:
            waiting = [
                key for key, holds_result in calls_of(message).items() if not holds_result and key not in answered
            ]
            if waiting:
                found.append((message["id"], waiting))
        return found

    @rule(pick=SOME, leaf=SOME)
    @precondition(lambda self: any(map(self.made_on, self.model.rows)))
    def answer_once_more(self, pick: int, leaf: int) -> None:
        """A result for a call that may have one, below any message that comes after the call."""
        message, parent = self.one_more_answer(pick, leaf)
        self.append(message, parent, is_latest=parent == self.model.newest)

    def one_more_answer(self, pick: int, leaf: int) -> tuple[JsonObject, str]:
        leaves = [identity for identity in self.model.rows if self.made_on(identity)]
        parent = leaves[-1 - leaf % len(leaves)]
        made = self.made_on(parent)
        return self.results([made[-1 - pick % len(made)]]), parent

    def made_on(self, leaf: str | None) -> list[str]:
        """The calls of a path."""
        return [call_id for message in self.model.path(leaf) for call_id in calls_of(message)]

    @rule(pick=SOME, call=SOME, by_upsert=st.booleans())
    @precondition(lambda self: any(map(self.may_become_answer, self.model.rows)))
    def turn_into_an_answer(self, pick: int, call: int, by_upsert: bool) -> None:
        self.update(self.as_an_answer(pick, call), by_upsert=by_upsert)

    def as_an_answer(self, pick: int, call: int) -> JsonObject:
        """A message that makes no call, as an answer to one above it."""
        found = [identity for identity in self.model.rows if self.may_become_answer(identity)]
        identity = found[-1 - pick % len(found)]
        made = self.made_on(self.model.rows[identity].parent)
        return {**self.results([made[-1 - call % len(made)]]), "id": identity}

    def may_become_answer(self, identity: str) -> bool:
        row = self.model.rows[identity]
        return not calls_of(row.message) and bool(self.made_on(row.parent))

    @rule(pick=SOME, words=TEXTS)
    @precondition(lambda self: self.model.rows)
    def turn_into_a_text(self, pick: int, words: str) -> None:
        self.update({**self.text(words), "id": self.some_id(pick)})

    @rule(pick=SOME, by_upsert=st.booleans())
    @precondition(lambda self: self.model.rows)
    def turn_into_what_it_was(self, pick: int, by_upsert: bool) -> None:
        self.update(self.first_content[self.some_id(pick)], by_upsert=by_upsert)

    def update(self, message: JsonObject, *, by_upsert: bool = False) -> None:
        self.run(self._update(message, by_upsert=by_upsert))

    async def _update(self, message: JsonObject, *, by_upsert: bool = False) -> None:
        await (self.session.upsert_message if by_upsert else self.session.update_message)(message)
        before = self.model.rows[message["id"]].message
        if before["role"] != message["role"]:
            for each in (before, message):
                self.updated_calls |= {*calls_of(each), *answers_of(each)}
        self.model.rows[message["id"]].message = message

    @rule(pick=SOME, words=TEXTS)
    @precondition(lambda self: self.model.rows)
    def rephrase(self, pick: int, words: str) -> None:
        message = self.model.rows[self.some_id(pick)].message
        kept = [part for part in message["parts"] if part["type"] != "text"]
        self.update({**message, "parts": [{"type": "text", "text": words}, *kept]})

    @rule(picks=st.lists(SOME, min_size=1, max_size=4))
    @precondition(lambda self: self.model.rows)
    def delete(self, picks: list[int]) -> None:
        identities = list(dict.fromkeys(map(self.some_id, picks)))
        self.run(self.session.delete_messages(identities))
        for identity in identities:
            self.model.delete(identity)

    @rule(yes=st.integers(0, 9))
    def clear(self, yes: int) -> None:
        if yes == 9:
            self.run(self.session.clear_messages())
            self.model.rows.clear()
            self.is_split_by_hand = False

    @rule()
    @precondition(lambda self: self.model.rows)
    def send_back_what_is_shown(self) -> None:
        async def work() -> None:
            for message in await self.session.get_history():
                await self.session.append_message(message)
            await self.session.settled()

        self.run(work())

    # ---- summaries and nights ---------------------------------------------------------------------------------

    @rule()
    def compact(self) -> None:
        self.run(self.session.compact())

    @rule(first=SOME, last=SOME)
    @precondition(lambda self: self.by_hand and self.model.rows)
    def summarize_by_hand(self, first: int, last: int) -> None:
        self.is_split_by_hand = True
        self.run(self.session.add_compaction("by hand", self.some_id(first), self.some_id(last)))

    @rule(
        picks=st.lists(SOME, max_size=2),
        parent=st.one_of(st.none(), SOME),
        words=TEXTS,
        answer=st.one_of(st.none(), st.tuples(SOME, SOME)),
        turn=st.one_of(st.none(), st.tuples(SOME, SOME)),
    )
    @precondition(lambda self: self.model.rows)
    def change_while_a_summary_is_written(
        self,
        picks: list[int],
        parent: int | None,
        words: str,
        answer: tuple[int, int] | None,
        turn: tuple[int, int] | None,
    ) -> None:
        async def work() -> None:
            shown = [message["id"] for message in await self.session.get_history()]
            deleted: set[str] = set()
            self.gate, self.begun = asyncio.Event(), asyncio.Event()
            running = asyncio.create_task(self.session.compact())
            await asyncio.wait([running, asyncio.create_task(self.begun.wait())], return_when="FIRST_COMPLETED")
            for pick in picks:
                if self.model.rows:
                    identity = self.some_id(pick)
                    await self.session.delete_messages([identity])
                    self.model.delete(identity)
                    deleted.add(identity)
            is_latest = parent is None or not self.model.rows
            below = self.model.newest if is_latest else self.some_id(parent or 0)
            await self._append(self.text(words), below, is_latest=is_latest)
            if answer is not None and any(map(self.made_on, self.model.rows)):
                message, leaf = self.one_more_answer(*answer)
                await self._append(message, leaf, is_latest=leaf == self.model.newest)
            if turn is not None and any(map(self.may_become_answer, self.model.rows)):
                await self._update(self.as_an_answer(*turn))
            self.begun.set()
            self.gate.set()
            result = await running
            await self.session.settled()
            if result is not None:
                first, last = result.from_message_id, result.to_message_id
                start = shown.index(first) if first in shown else next(i for i, key in enumerate(shown) if "_" in key)
                assert not deleted & set(shown[start : shown.index(last) + 1]), (
                    "a summary of what was deleted meanwhile"
                )
            self.gate = self.begun = None

        self.run(work())

    @rule(head=st.integers(0, 4), budget=st.integers(0, 120), tail=st.integers(0, 4), is_crash=st.booleans())
    def restart(self, head: int, budget: int, tail: int, is_crash: bool) -> None:
        self.options = {"protect_head": head, "tail_token_budget": budget, "min_tail_messages": tail}

        async def work() -> None:
            await (self.home.crash() if is_crash else self.home.sleep())
            await self._open()

        self.run(work())

    # ---- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def the_newest_history_holds(self) -> None:
        if hasattr(self, "session"):
            self.run(self._check(None))
            self.run(self._check_counts())
            self.run(self._check_late_results())

    async def _check(self, leaf: str | None) -> None:
        path = self.model.path(leaf or self.model.newest)
        assert await self.session.get_raw_history(leaf) == path
        visible = await self.session.get_history(leaf)
        overlays = {f"compaction_{row['id']}": row for row in await self.session.get_compactions()}
        expanded: list[JsonObject] = []
        for message in visible:
            if message["id"] in overlays:
                row = overlays[message["id"]]
                assert message["parts"] == [{"type": "text", "text": row["summary"]}]
                order = [each["id"] for each in path]
                first, last = order.index(row["fromMessageId"]), order.index(row["toMessageId"])
                expanded += path[first : last + 1]
            else:
                expanded.append(message)
        assert expanded == path, "a message is neither visible nor in the range of a summary, or is both"
        if not self.is_split_by_hand:
            assert broken_pairs(path, visible, self.updated_calls) == []

    async def _check_counts(self) -> None:
        provider = self.session._parts.history.provider
        assert await provider.path_tokens() == estimate_message_tokens(await self.session.get_history())
        assert await self.session.get_path_length() == len(self.model.path(self.model.newest))

    async def _check_late_results(self) -> None:
        """No result is told as text whose call is visible above it."""
        query = """SELECT late.from_message_id, caller.id FROM assistant_compactions AS late
                   JOIN assistant_messages AS caller ON caller.seq = late.call"""
        database = self.session._parts.history.provider.database
        for late, caller in await access.read(database, lambda connection: connection.execute(query).fetchall()):
            assert caller not in [message["id"] for message in await self.session.get_history(late)]

    async def _check_search(self) -> None:
        for words in [[word] for word in WORDS] + [WORDS[:2], WORDS[2:5], [WORDS[0], WORDS[-1]]]:
            found = [entry["id"] for entry in await self.session.search(" ".join(words), 1000)]
            assert len(found) == len(set(found))
            assert set(found) == self.model.containing(words)

    def teardown(self) -> None:
        try:
            if hasattr(self, "session"):
                for leaf in self.model.rows:
                    self.run(self._check(leaf))
                self.run(self._check_search())
                self.run(self.home.sleep())
        finally:
            self.stack.close()


class AwakeConversations(Conversations):
    home_type = Awake


def machine_settings(examples: int) -> settings:
    return settings(
        max_examples=examples * (100 if IS_LONG else 1),
        stateful_step_count=40 if IS_LONG else 20,
        derandomize=not IS_LONG,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def test_a_session_in_a_file_keeps_every_message_every_pair_and_every_sum() -> None:
    run_state_machine_as_test(Conversations, settings=machine_settings(12))


def test_a_conversation_that_sleeps_and_dies_keeps_every_message_every_pair_and_every_sum() -> None:
    run_state_machine_as_test(AwakeConversations, settings=machine_settings(5))


@pytest.mark.parametrize("seed", range(1_000 if IS_LONG else 25))
def test_results_that_come_more_than_once_on_branches_and_by_updates_are_never_shown_without_their_call(
    seed: int,
) -> None:
    """Few messages, nearly all of them about tools, and everything but the newest folded as soon as it may be."""
    chance = random.Random(seed)
    machine = Conversations()
    some = partial(chance.randrange, 10**6)
    try:
        machine.begin(
            head=chance.randrange(2),
            budget=0,
            tail=chance.randrange(1, 3),
            threshold=None,
            own_counter=False,
            by_hand=False,
        )
        machine.say(["apple"])
        for _ in range(24):
            answers = any(map(machine.made_on, machine.model.rows))
            turns = any(map(machine.may_become_answer, machine.model.rows))
            match chance.randrange(10):
                case 0 | 1:
                    machine.use_a_tool(count=1, apart=1, words="cloud")
                case 2 if answers:
                    machine.answer_once_more(some(), chance.randrange(4))
                case 3 if turns:
                    machine.turn_into_an_answer(
                        chance.randrange(4), chance.randrange(4), by_upsert=chance.random() < 0.5
                    )
                case 4:
                    machine.branch("bridge", chance.randrange(4))
                case 5 | 6:
                    again = chance.choice([None, (chance.randrange(2), 0), (chance.randrange(4), chance.randrange(4))])
                    turn = chance.choice([None, None, (chance.randrange(4), chance.randrange(4))])
                    below = chance.choice([None, None, chance.randrange(4)])
                    machine.change_while_a_summary_is_written([], below, "dragon", again, turn)
                case 7:
                    machine.say(["cloud", "apple"])
                case _:
                    machine.compact()
            for leaf in machine.model.rows:
                machine.run(machine._check(leaf))
            machine.run(machine._check_counts())
    finally:
        machine.teardown()
