"""Every argument of every public method of Session, SessionManager and R2SkillProvider, given what it cannot be.

An answer is right, or one sentence of a typed error. No error repeats a large or deep value, and nothing untyped comes out.
"""

import inspect
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from session_support import Library, Note, Owner, opened, text
from test_custom_providers import Remembered

from actors import Session, SessionManager
from compaction import Usage
from storage import R2SkillProvider
from storage.errors import StorageError


def nested(levels: int = 2_000) -> list[Any]:
    """A list in a list in a list …; longer chains than Python's stack is deep."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a number": lambda: 5,
    "true": lambda: True,
    "below zero": lambda: -1,
    "not a number": lambda: math.nan,
    "infinite": lambda: math.inf,
    "too large": lambda: 10**400,
    "bytes": lambda: b"",
    "a list": lambda: [],
    "an object": lambda: {},
    "a deep list": nested,
    "a list of a deep list": lambda: [nested()],
    "a list of odd things": lambda: ["m1", 5, None],
    "a message with a deep part": lambda: {"id": "odd", "role": "user", "parts": [{"type": "text", "text": nested()}]},
    "a message with a deep role": lambda: {"id": "odd", "role": nested(), "parts": []},
    "a message with a deep id": lambda: {"id": nested(), "role": "user", "parts": []},
    "a lone surrogate": lambda: "\ud800",
    "a long text": lambda: "x" * 100_000,
    "an empty text": lambda: "",
    "a class": lambda: Note,
    "something": object,
}

GOOD: dict[str, Any] = {
    "at_message_id": "m1",
    "content": "text",
    "context": (),
    "cost": 0.5,
    "cursor": None,
    "description": "d",
    "from_id": "m1",
    "function": lambda messages: None,
    "handler": lambda error: None,
    "input_tokens": 1,
    "key": "k",
    "label": "memory",
    "leaf_id": "m2",
    "limit": 5,
    "max_content_bytes": 100,
    "max_tokens": 50,
    "message": text("m3"),
    "message_id": "m1",
    "message_ids": ["m3"],
    "messages": [text("m3")],
    "min_recent_messages": 1,
    "model": "a",
    "name": "title",
    "order": None,
    "output_tokens": 1,
    "owner": "me",
    "parent_id": "m2",
    "parent_session_id": "a",
    "provider": None,
    "query": "hello",
    "session_id": None,
    "source": "s",
    "summary": "short",
    "tag": "t",
    "tags": ["t"],
    "threshold": 10,
    "to_id": "m2",
    "token_counter": lambda messages, system_prompt, context_blocks: 1,
    "usage": Usage(1, 1),
}
"""A value of every parameter that its method takes. None: its default, or what the test makes."""

SPECIAL: dict[tuple[str, str], Any] = {
    ("add_context", "label"): "another",
    ("with_context", "label"): "another",
    ("add_context", "provider"): Note(),
    ("create", "owner"): None,
    ("unload_skill", "label"): "skills",
}


class Plain(Remembered):
    """Message storage of a user's own that trusts what it is given."""

    def get_message(self, id: str) -> Any:
        return super().get_message(id.strip())

    def get_history(self, leaf_id: str | None = None) -> Any:
        return super().get_history(leaf_id and leaf_id.strip())

    def get_branches(self, message_id: str) -> Any:
        return super().get_branches(message_id.strip())

    def get_path_length(self, leaf_id: str | None = None) -> Any:
        return super().get_path_length(leaf_id and leaf_id.strip())

    def append_message(self, message: Any, parent_id: str | None = None) -> None:
        super().append_message(message, parent_id and parent_id.strip())

    def delete_messages(self, ids: list[str]) -> None:
        super().delete_messages([each.strip() for each in ids])

    def add_compaction(self, summary: str, from_id: str, to_id: str) -> Any:
        return super().add_compaction(summary.strip(), from_id.strip(), to_id.strip())

    def get_recent_history(self, max_content_bytes: float, min_recent_messages: float) -> Any:
        return {"messages": self.messages[-int(min_recent_messages + max_content_bytes) :]}

    def search_messages(self, query: str, limit: float) -> Any:
        return [message for message in self.messages if query.strip() in str(message)][: int(limit)]

    def page_messages(self, limit: int, cursor: str | None, *, order: str, leaf_id: str | None) -> Any:
        return [order.strip(), cursor and cursor.strip(), leaf_id and leaf_id.strip(), self.messages[: int(limit)]]


def public_methods(of: type) -> list[str]:
    return [name for name, member in inspect.getmembers(of) if not name.startswith("_") and callable(member)]


CASES = [
    (of, name)
    for of in (Session, Plain, SessionManager, R2SkillProvider)
    for name in public_methods(Session if of is Plain else of)
]
"""`Plain` stands for a session over one."""


@asynccontextmanager
async def made(folder: Path) -> AsyncIterator[tuple[Owner, str, Callable[[type], Any]]]:
    """An owner whose database has a session of two messages, its id, and how each object is made anew."""
    async with opened(folder) as owner:
        info = await SessionManager(owner).create("title")
        (folder / "skills").mkdir()
        plain = Plain()

        def anew(of: type) -> Any:
            if of is R2SkillProvider:
                return R2SkillProvider(folder / "skills")
            blocks = [{"label": "memory"}, {"label": "skills", "provider": Library(k="document")}]
            manager = SessionManager(owner, context=blocks, compaction=lambda messages: None)
            if of is SessionManager:
                return manager
            if of is Plain:
                return (
                    Session.create(plain).with_context("memory", provider=Note()).on_compaction(lambda messages: None)
                )
            return manager._build(info.id)

        for kind in (Session, Plain):
            await anew(kind).append_messages([text("m1"), text("m2"), text("m3")])
        yield owner, info.id, anew


def parameters(method: Any) -> Iterator[inspect.Parameter]:
    return (each for each in inspect.signature(method).parameters.values() if each.name != "self")


@pytest.mark.parametrize(("of", "name"), CASES, ids=[f"{of.__name__}.{name}" for of, name in CASES])
async def test_a_wrong_argument_is_one_sentence_of_a_typed_error(tmp_path: Path, of: type, name: str) -> None:
    async with made(tmp_path) as (owner, session_id, anew):
        wrong: list[str] = []

        async def call(odd_name: str | None, what: str, odd: Any) -> None:
            """One call with good arguments but for one."""
            method = getattr(anew(of), name)
            given: dict[str, Any] = {}
            for each in parameters(method):
                good = SPECIAL.get((name, each.name), GOOD[each.name])
                if each.name == "session_id":
                    good = session_id
                value = odd if each.name == odd_name else good
                if value is not None or each.name == odd_name:
                    given[each.name] = value
                elif each.default is inspect.Parameter.empty:
                    given[each.name] = owner
            try:
                result = method(**given)
                if inspect.isawaitable(result):
                    await result
            except StorageError as exc:
                said = str(exc)
                if len(said) > 500 or "\n" in said or "\ud800" in said:
                    wrong.append(f"{odd_name}={what}: {type(exc).__name__} says {len(said)} characters: {said[:120]!r}")
                if odd_name is None:
                    wrong.append(f"good arguments: {exc}")
            except Exception as exc:
                wrong.append(f"{odd_name}={what}: {type(exc).__name__}: {str(exc)[:120]}")

        if name != "delete":
            await call(None, "", None)
        for each in parameters(getattr(anew(of), name)):
            for what, make in ODD.items():
                await call(each.name, what, make())
        assert not wrong, "\n".join(wrong)
