"""Reading a checkpoint store for `ls` and `show`, beside the writer of its conversations."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from actors.cli import run
from actors.inspection import conversations, is_asleep
from storage import AgentContextProvider, AgentSessionProvider, leaves
from storage.checkpoints import (
    ConversationKey,
    DirectoryStore,
    OpenedConversation,
    close_conversation,
    open_conversation,
)

NAMES = ["alice", "a/b c\x1b[31m", "ü\u202e"]


async def fill(store: DirectoryStore, folder: Path, name: str, agent: str = "conversation") -> OpenedConversation:
    opened = await open_conversation(store, ConversationKey(agent, name), folder / "work", describe=leaves.counts)
    session = AgentSessionProvider(opened.database)
    for index, text in enumerate(["Hello?", "Yes.", "Still there?", "Always."]):
        await session.append_message({"id": f"m{index}", "role": "user", "parts": [{"type": "text", "text": text}]})
    await session.add_compaction("They greeted.", "m0", "m1")
    await AgentContextProvider(opened.database, "memory").set("Likes tea")
    return opened


@pytest.mark.parametrize("name", NAMES)
async def test_a_conversation_is_awake_until_its_close_is_written(tmp_path: Path, name: str) -> None:
    store = DirectoryStore(tmp_path / "store")
    assert is_asleep(store.name, "conversation", name) is None
    opened = await fill(store, tmp_path, name)
    assert is_asleep(store.name, "conversation", name) is False
    await close_conversation(opened)
    assert is_asleep(store.name, "conversation", name) is True
    (listed,) = conversations(store.name)
    assert (listed.name, listed.messages, listed.is_asleep) == (name, 4, True)


async def test_ls_prints_a_line_for_each_and_json_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    await close_conversation(await fill(store, tmp_path, NAMES[1], "robot"))
    opened = await fill(store, tmp_path, "alice")
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["ls", "--store", store.name]) == 0
    text = capsys.readouterr().out
    assert "\x1b[31m" not in text
    lines = sorted(line.split() for line in text.splitlines()[1:-1])
    assert [line[0] for line in lines] == ["alice", "robot/a/b"]
    assert ("awake" in lines[0], "asleep" in lines[1]) == (True, True)
    assert run(["ls", "--store", store.name, "--json"]) == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(fact["agent"], fact["name"], fact["state"]) for fact in facts} == {
        ("conversation", "alice", "awake"),
        ("robot", NAMES[1], "asleep"),
    }
    await close_conversation(opened)


async def test_one_long_name_is_cut_and_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    for name in ("n" * 300, "short", "%E6%9C%AC%20" * 40, "a%20b"):
        await close_conversation(await fill(store, tmp_path, name))
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["ls", "--store", store.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    assert lines[1].startswith("a b  ")
    assert [line.count("…") for line in lines] == [0, 0, 1, 0, 1]
    assert all(re.search(r" 4 +\d+  asleep  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", line) for line in lines[1:])
    assert run(["ls", "--store", store.name, "--json"]) == 0
    assert "a%20b" in [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]


async def test_ls_explains_the_numbers_of_what_is_awake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = DirectoryStore(tmp_path / "store")
    opened = await fill(store, tmp_path, "alice")
    assert run(["ls", "--store", store.name]) == 0
    assert capsys.readouterr().out.endswith("from when it last slept; ? = it has not slept yet.\n")
    await close_conversation(opened)


def test_ls_of_an_empty_store_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--store", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "No conversation yet.\n"


async def shown(tmp_path: Path, *words: str) -> int:
    # `show` runs a loop of its own, so it needs a thread without one.
    return await asyncio.to_thread(run, ["show", *words, "--store", str(tmp_path / "store")])


async def test_show_prints_an_awake_conversation_without_claiming_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = await fill(DirectoryStore(tmp_path / "store"), tmp_path, "alice")
    assert await shown(tmp_path, "alice") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[memory] Likes tea"
    assert lines[1].startswith("compaction_")
    assert lines[2:][:-1] == [
        "  stands for m0 to m1",
        "  They greeted.",
        "m2  user",
        "  Still there?",
        "m3  user",
        "  Always.",
    ]
    assert lines[-1].startswith("4 messages, 3 entries with its summaries, ")
    before = opened.slot
    await AgentContextProvider(opened.database, "memory").set("Still the owner")
    assert opened.slot == before + 1
    await close_conversation(opened)


async def test_the_system_prompt_is_shown_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = await fill(DirectoryStore(tmp_path / "store"), tmp_path, "alice")
    await AgentContextProvider(opened.database, "_system_prompt").set("Be kind.\n\nBe \x1b[31mbrief.")
    assert await shown(tmp_path, "alice") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["[_system_prompt] Be kind.", "[_system_prompt] Be \\x1b[31mbrief."]
    await close_conversation(opened)


async def test_show_json_is_the_whole_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await close_conversation(await fill(DirectoryStore(tmp_path / "store"), tmp_path, "x/y", "robot"))
    assert await shown(tmp_path, "robot/x/y", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert [message["id"] for message in content["history"][1:]] == ["m2", "m3"]
    assert list(content["folded"].values()) == [["m0", "m1"]]
    assert (content["blocks"], content["messages"]) == ({"memory": "Likes tea"}, 4)


async def test_show_finds_a_name_as_a_client_calls_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await close_conversation(await fill(DirectoryStore(tmp_path / "store"), tmp_path, "a%20b"))
    assert await shown(tmp_path, "a b") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("4 messages")


async def test_show_of_a_name_that_was_never_written_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = DirectoryStore(tmp_path / "store")
    assert await shown(tmp_path, "nobody") == 1
    assert capsys.readouterr().err == "perdure: There is no conversation 'nobody' here; see `perdure ls`.\n"
    assert list(conversations(store.name)) == []
    assert [name for name in store.list("") if name != ".t/"] == []
