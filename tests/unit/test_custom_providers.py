"""Providers of a user's own: any object with the documented methods, async or not, checked where it is given."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from session_support import Library, Note, opened, text

from actors.session import Session, is_search_provider, is_skill_provider, is_writable_provider
from actors.session.providers import SESSION_METHODS
from compaction import CompactResult
from storage import AgentSessionProvider, SessionMessage
from storage.errors import InvalidArgument

FOLDED = CompactResult(from_message_id="m1", to_message_id="m2", summary="short")


class Plain:
    """Every method of every kind of block, none of them async."""

    def __init__(self) -> None:
        self.label: str | None = None
        self.entries: dict[str, str] = {}

    def init(self, label: str) -> None:
        self.label = label

    def get(self) -> str:
        return f"{len(self.entries)} entries of {self.label}"

    def load(self, key: str) -> str | None:
        return self.entries.get(key)

    def search(self, query: str) -> str | None:
        return "; ".join(text for text in self.entries.values() if query in text) or None

    def set(self, key: str, content: str, description: str | None) -> None:
        self.entries[key] = content


class Remembered:
    """Message storage in a list, none of its methods async; what it gives may be made wrong."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.overlays: list[dict[str, Any]] = []
        self.wrong: dict[str, Any] = {}

    def get_message(self, id: str) -> Any:
        return self.wrong.get("get_message", next((m for m in self.messages if m["id"] == id), None))

    def get_history(self, leaf_id: str | None = None) -> Any:
        return self.wrong.get("get_history", list(self.messages))

    def get_latest_leaf(self) -> Any:
        return self.wrong.get("get_latest_leaf", self.messages[-1] if self.messages else None)

    def get_branches(self, message_id: str) -> Any:
        return self.wrong.get("get_branches", tuple(self.messages[1:]))

    def get_path_length(self, leaf_id: str | None = None) -> Any:
        return self.wrong.get("get_path_length", len(self.messages))

    def append_message(self, message: Any, parent_id: Any = None) -> None:
        self.messages.append(message)

    def update_message(self, message: Any) -> None:
        self.messages = [message if m["id"] == message["id"] else m for m in self.messages]

    def delete_messages(self, ids: list[str]) -> None:
        self.messages = [m for m in self.messages if m["id"] not in ids]

    def clear_messages(self) -> None:
        self.messages.clear()

    def add_compaction(self, summary: str, from_id: str, to_id: str) -> Any:
        overlay = {"id": "1", "summary": summary, "fromMessageId": from_id, "toMessageId": to_id, "createdAt": ""}
        self.overlays.append(overlay)
        return overlay

    def get_compactions(self) -> Any:
        return self.wrong.get("get_compactions", self.overlays)


async def test_methods_need_not_be_async(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        provider = Plain()
        session = Session.create(owner).with_context("all", provider=provider)
        tools = await session.tools()
        assert list(tools) == ["set_context", "load_context", "unload_context", "search_context"]
        write = {"label": "all", "content": "the text", "metadata": {"title": "T"}}
        assert await tools["set_context"].execute(write) == 'Indexed "t" in all.'
        assert await tools["load_context"].execute({"label": "all", "key": "t"}) == "the text"
        assert await tools["search_context"].execute({"label": "all", "query": "text"}) == "the text"
        assert "1 entries of all" in await session.freeze_system_prompt()


async def test_a_session_provider_need_not_be_async() -> None:
    session = Session.create(Remembered()).on_compaction(lambda messages: FOLDED)
    for number in range(4):
        await session.append_message(text(f"m{number}"))
    assert [message["id"] for message in await session.get_history()] == ["m0", "m1", "m2", "m3"]
    assert (await session.get_message("m1") or {})["id"] == "m1"
    assert (await session.get_latest_leaf() or {})["id"] == "m3"
    assert await session.get_path_length() == 4
    assert len(await session.get_branches("m0")) == 3
    assert await session.compact() == FOLDED
    assert (await session.get_compactions())[0]["summary"] == "short"
    await session.update_message(text("m1", "changed"))
    await session.delete_messages(["m2"])
    assert [message["parts"][0]["text"] for message in await session.get_history()][1] == "changed"
    await session.clear_messages()
    assert await session.get_history() == []


async def test_a_session_provider_may_give_models_of_messages() -> None:
    provider = Remembered()
    provider.wrong["get_history"] = [SessionMessage.model_validate(text("m0") | {"createdAt": "then", "own": 1})]
    assert await Session.create(provider).get_history() == [text("m0") | {"createdAt": "then", "own": 1}]


class OnlySet:
    def set(self, content: str) -> None: ...


class OnlyLoad:
    def load(self, key: str) -> None: ...


class Values:
    get = "a text"


class SetOfNothing(Note):
    def set(self) -> None: ...  # type: ignore[override]


class SkillSetOfTwo(Library):
    async def set(self, key: str, content: str) -> None: ...  # type: ignore[override]


class GetOfMuch:
    def get(self, label: str) -> str:
        return label


BAD_BLOCKS = [
    (object(), "none of a provider's methods"),
    (5, "none of a provider's methods"),
    (b"text", "none of a provider's methods"),
    (OnlySet(), "has set but no get"),
    (OnlyLoad(), "has load but no get"),
    (SimpleNamespace(set=print, search=print), "has set and search but no get"),
    (Values(), "must have get as a method"),
    (SimpleNamespace(get=lambda: "", set="no"), "must have set as a method"),
    (Note, "is the class Note; give an object"),
    (SetOfNothing(), r"must take set\(content\)"),
    (SkillSetOfTwo(), r"must take set\(key, content, description\)"),
    (GetOfMuch(), r"must take get\(\)"),
]


@pytest.mark.parametrize(("provider", "reason"), BAD_BLOCKS)
async def test_half_a_provider_is_refused_where_it_is_given(tmp_path: Path, provider: Any, reason: str) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        with pytest.raises(InvalidArgument, match=f"of the context block 'memory'.*{reason}"):
            session.with_context("memory", provider=provider)
        with pytest.raises(InvalidArgument, match=reason):
            await session.add_context("memory", provider=provider)
        with pytest.raises(InvalidArgument, match=reason):
            Session(AgentSessionProvider(owner), context=[{"label": "memory", "provider": provider}])
        assert await session.get_context_blocks() == []


@pytest.mark.parametrize("store", [SimpleNamespace(get=lambda: ""), OnlySet(), Library(), "text", Note, object()])
async def test_what_cannot_keep_a_prompt_is_refused(tmp_path: Path, store: Any) -> None:
    async with opened(tmp_path) as owner:
        with pytest.raises(InvalidArgument, match="of the cached prompt"):
            Session.create(owner).with_cached_prompt(store)
        with pytest.raises(InvalidArgument, match="of the cached prompt"):
            Session(AgentSessionProvider(owner), prompt_store=store)


async def test_a_prompt_store_that_gives_no_text_is_told_so(tmp_path: Path) -> None:
    store = Note()
    store.content = 5  # type: ignore[assignment]
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("memory").with_cached_prompt(store)
        with pytest.raises(InvalidArgument, match="of the cached prompt gave an int"):
            await session.freeze_system_prompt()
        await session.append_message(text("m1"))
        assert "of the cached prompt" in owner.frames[0]["error"]
        assert "MEMORY" in await session.refresh_system_prompt()  # which writes the store anew


@pytest.mark.parametrize("limit", [-1, float("nan"), "5", None])
async def test_storage_of_ones_own_is_never_asked_for_an_impossible_number(limit: Any) -> None:  # D30
    asked: list[Any] = []
    provider = Remembered()
    provider.search_messages = lambda query, limit: asked.append((query, limit)) or []  # type: ignore[attr-defined]
    session = Session.create(provider)
    with pytest.raises(InvalidArgument):
        await session.search("x", limit)
    assert await session.search("x", 2.9) == []  # type: ignore[arg-type]
    assert asked == [("x", 2)]


def without(*names: str) -> Any:
    kept = {name: getattr(Remembered(), name) for name in SESSION_METHODS if name not in names}
    return SimpleNamespace(**kept)


@pytest.mark.parametrize("make", [Session.create, Session])
def test_a_session_provider_that_lacks_methods_is_told_which(make: Callable[[Any], Session]) -> None:
    with pytest.raises(InvalidArgument, match="needs add_compaction and get_compactions"):
        make(without("add_compaction", "get_compactions"))
    with pytest.raises(InvalidArgument, match="needs get_branches;"):
        make(without("get_branches"))
    with pytest.raises(InvalidArgument, match="class"):
        make(Remembered)
    make(without())


@pytest.mark.parametrize("owner", [None, "chat.db", 5, object(), {"database": 1}, SimpleNamespace(database="chat.db")])
def test_what_has_no_database_and_stores_no_messages_is_no_owner(owner: Any) -> None:
    with pytest.raises(InvalidArgument, match="needs a database"):
        Session.create(owner)
    with pytest.raises(InvalidArgument):
        Session(owner)


@pytest.mark.parametrize("options", [{"max_tokens": "9"}, {"max_tokens": True}, {"max_tokens": float("nan")}])
async def test_options_of_a_block_are_checked(tmp_path: Path, options: Any) -> None:
    async with opened(tmp_path) as owner:
        with pytest.raises(InvalidArgument, match="max_tokens"):
            Session.create(owner).with_context("memory", **options)
        with pytest.raises(InvalidArgument, match="description"):
            Session.create(owner).with_context("memory", description=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="label"):
            Session.create(owner).with_context("")


@pytest.mark.parametrize(("wrong", "said"), [(5, "an int"), (b"text", "a bytes"), (["text"], "a list")])
async def test_a_block_that_is_no_text_is_refused_and_none_is_empty(tmp_path: Path, wrong: Any, said: str) -> None:
    note = Note("text")
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("memory", provider=note)
        note.content = wrong
        with pytest.raises(InvalidArgument, match=f"'memory' gave {said}, not a text"):
            await session.get_context_blocks()
        await session.append_message(text("m1"))  # the conversation goes on; the estimate says what is wrong
        assert "not a text" in owner.frames[0]["error"]
        note.content = None
        assert (await session.get_context_blocks())[0].content == ""


@pytest.mark.parametrize("wrong", [5, b"text", {"text": "x"}])
async def test_a_document_or_result_that_is_no_text_is_an_answer_that_says_so(tmp_path: Path, wrong: Any) -> None:
    provider = Plain()
    provider.entries["guide"] = wrong
    provider.search = lambda query: wrong  # type: ignore[method-assign]
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("docs", provider=provider)
        tools = await session.tools()
        answer = await tools["load_context"].execute({"label": "docs", "key": "guide"})
        assert (
            answer
            == f"Error: The provider of the context block 'docs' gave a {type(wrong).__name__}, not a text.".replace(
                "a int", "an int"
            )
        )
        assert await session.get_loaded_skill_keys() == set()
        answer = await tools["search_context"].execute({"label": "docs", "query": "x"})
        assert answer.startswith("Error: The provider of the context block 'docs' gave")


@pytest.mark.parametrize(
    ("method", "value", "call"),
    [
        ("get_history", None, lambda session: session.get_history()),
        ("get_history", [5], lambda session: session.get_history()),
        ("get_history", [{"role": "user"}], lambda session: session.get_history()),
        ("get_branches", "m1", lambda session: session.get_branches("m0")),
        ("get_message", b"m1", lambda session: session.get_message("m1")),
        ("get_latest_leaf", [], lambda session: session.get_latest_leaf()),
        ("get_path_length", "2", lambda session: session.get_path_length()),
        ("get_compactions", None, lambda session: session.get_compactions()),
    ],
)
async def test_a_session_provider_that_gives_something_else_is_told_so(method: str, value: Any, call: Any) -> None:
    provider = Remembered()
    provider.wrong[method] = value
    with pytest.raises(InvalidArgument, match=f"The session provider's {method} must give"):
        await call(Session.create(provider))


class Faulty(Library):
    """Raises an error without a text."""

    broken = False

    async def get(self) -> str | None:
        if self.broken:
            raise ConnectionResetError
        return await super().get()

    async def load(self, key: str) -> str | None:
        raise ConnectionResetError

    async def set(self, key: str, content: str, description: str | None = None) -> None:
        await super().set(key, content, description)
        self.broken = True


async def test_what_a_provider_raises_reaches_the_caller_and_a_model_as_a_sentence(tmp_path: Path) -> None:
    provider = Faulty(guide="g")
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("docs", provider=provider)
        tools = await session.tools()
        assert await tools["load_context"].execute({"label": "docs", "key": "guide"}) == "Error: ConnectionResetError"
        write = {"label": "docs", "content": "new", "metadata": {"title": "n"}}
        assert await tools["set_context"].execute(write) == 'Indexed "n" in docs.'  # written, though not listed
        assert provider.documents["n"] == "new"
        assert [block.content for block in await session.get_context_blocks()] == ["- guide"]
        with pytest.raises(ConnectionResetError):
            await session.refresh_system_prompt()
        assert [block.content for block in await session.get_context_blocks()] == ["- guide"]
        provider.broken = False
        assert "- n" in await session.refresh_system_prompt()


class Slow(Note):
    """Each write, and each read after the first, waits until it is let go."""

    def __init__(self, content: str) -> None:
        super().__init__(content)
        self.began = asyncio.Event()
        self.go = asyncio.Event()

    async def get(self) -> str | None:
        if self.reads:
            self.began.set()
            await self.go.wait()
        return await super().get()

    async def set(self, content: str) -> None:
        self.began.set()
        await self.go.wait()
        await super().set(content)


async def test_nothing_waits_for_a_slow_write_but_what_is_about_its_block(tmp_path: Path) -> None:
    slow, quick = Slow("old"), Note("")
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("slow", provider=slow).with_context("quick", provider=quick)
        await session.get_context_blocks()
        writing = asyncio.create_task(session.replace_context_block("slow", "new"))
        await slow.began.wait()
        appending = asyncio.create_task(session.append_context_block("slow", "more"))
        await session.append_message(text("m1"))
        assert (await session.replace_context_block("quick", "q")).content == "q"
        assert [block.content for block in await session.get_context_blocks()] == ["old", "q"]
        assert len(await session.tools()) == 1
        assert not writing.done()
        assert not appending.done()
        slow.go.set()
        assert (await writing).content == "new"
        assert (await appending).content == "new\nmore"


async def test_a_write_during_a_slow_refresh_is_not_undone_by_it(tmp_path: Path) -> None:
    quick, slow = Note(""), Slow("old")
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("quick", provider=quick).with_context("slow", provider=slow)
        await session.get_context_blocks()
        refreshing = asyncio.create_task(session.refresh_system_prompt())
        await slow.began.wait()
        await session.replace_context_block("quick", "written meanwhile")
        slow.go.set()
        assert "written meanwhile" in await refreshing
        assert [block.content for block in await session.get_context_blocks()] == ["written meanwhile", "old"]


async def test_a_block_that_is_removed_during_a_write_stays_removed(tmp_path: Path) -> None:
    slow = Slow("old")
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        await session.add_context("slow", provider=slow)
        writing = asyncio.create_task(session.replace_context_block("slow", "new"))
        await slow.began.wait()
        assert await session.remove_context("slow")
        slow.go.set()
        await writing
        assert slow.content == "new"
        assert await session.get_context_blocks() == []
        assert await session.add_context("slow", provider=Note("another"))
        assert [block.content for block in await session.get_context_blocks()] == ["another"]


async def test_a_write_that_is_cancelled_leaves_the_block_as_it_was(tmp_path: Path) -> None:
    slow = Slow("old")
    async with opened(tmp_path) as owner:
        session = Session.create(owner).with_context("slow", provider=slow)
        await session.get_context_blocks()
        writing = asyncio.create_task(session.replace_context_block("slow", "new"))
        await slow.began.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert (await session.get_context_blocks())[0].content == slow.content == "old"
        slow.go.set()
        assert (await session.replace_context_block("slow", "next")).content == "next"


def test_the_guards_tell_the_kinds_apart() -> None:
    assert [is_writable_provider(Note()), is_skill_provider(Note()), is_search_provider(Note())] == [True, False, False]
    assert [is_writable_provider(Library()), is_skill_provider(Library())] == [True, True]
    assert is_search_provider(Plain())
    for guard in (is_writable_provider, is_skill_provider, is_search_provider):
        assert [guard(value) for value in (None, "text", OnlySet(), OnlyLoad(), Values())] == [False] * 5
