"""Reading conversations of other programs, and sending them through clients that stand in for a server."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from real_conversations import DATA, MISSING

from actors.errors import ConnectionLost
from actors.importer import Report, Trouble, send_all
from actors.openai_chat import ConversionError, to_ui_messages
from actors.transcripts import BadLine, Step, Transcript, read_jsonl, read_openai_chat, read_ui_messages
from storage.errors import InvalidMessage


def call(identity: str | None, name: str, arguments: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def test_texts_of_every_role_become_text_parts_with_ids_of_line_and_index() -> None:
    source = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is my parcel?"},
        {"role": "assistant", "content": "On its way."},
    ]
    assert to_ui_messages(source, "p1") == [
        {"id": "p1-0", "role": "system", "parts": [{"type": "text", "text": "Be brief."}]},
        {"id": "p1-1", "role": "user", "parts": [{"type": "text", "text": "Where is my parcel?"}]},
        {"id": "p1-2", "role": "assistant", "parts": [{"type": "text", "text": "On its way."}]},
    ]


def test_a_call_and_its_result_become_one_part() -> None:
    source = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "One moment.", "tool_calls": [call("c1", "weather", '{"city": "Oslo"}')]},
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": '{"degrees": 4}'},
        {"role": "assistant", "content": "4 degrees."},
    ]
    messages = to_ui_messages(source, "w")
    assert [message["id"] for message in messages] == ["w-0", "w-1", "w-3"]
    assert messages[1]["parts"] == [
        {"type": "text", "text": "One moment."},
        {
            "type": "dynamic-tool",
            "toolCallId": "c1",
            "toolName": "weather",
            "input": {"city": "Oslo"},
            "output": '{"degrees": 4}',
            "state": "output-available",
        },
    ]


def test_parallel_calls_get_their_own_results_in_whatever_order_these_come() -> None:
    source = [
        {"role": "assistant", "content": None, "tool_calls": [call("a", "first", "{}"), call("b", "second", "{}")]},
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "tool", "tool_call_id": "a", "content": "A"},
    ]
    (message,) = to_ui_messages(source, "x")
    assert [(part["toolName"], part["output"]) for part in message["parts"]] == [("first", "A"), ("second", "B")]


def test_a_call_id_used_twice_keeps_each_result_with_its_own_call() -> None:
    source = [
        {"role": "assistant", "content": None, "tool_calls": [call("same", "f", '{"n": 1}')]},
        {"role": "tool", "tool_call_id": "same", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [call("same", "f", '{"n": 2}')]},
        {"role": "tool", "tool_call_id": "same", "content": "two"},
    ]
    parts = [message["parts"][0] for message in to_ui_messages(source, "x")]
    assert [(part["input"]["n"], part["output"]) for part in parts] == [(1, "one"), (2, "two")]


def test_a_call_without_a_result_stays_open() -> None:
    (message,) = to_ui_messages([{"role": "assistant", "tool_calls": [call("c", "f", "{}")]}], "x")
    assert message["parts"][0]["state"] == "input-available"
    assert "output" not in message["parts"][0]


def test_a_result_without_a_call_is_kept() -> None:
    (message,) = to_ui_messages([{"role": "tool", "tool_call_id": "gone", "name": "f", "content": "late"}], "x")
    assert message["role"] == "assistant"
    assert message["parts"][0] | {"output": "late", "toolCallId": "gone", "toolName": "f"} == message["parts"][0]


@pytest.mark.parametrize("arguments", ['{"city": "Os', "", "NaN", "[" * 100_000])
def test_arguments_that_are_no_json_are_kept_word_for_word(arguments: str) -> None:
    (message,) = to_ui_messages([{"role": "assistant", "tool_calls": [call("c", "f", arguments)]}], "x")
    assert message["parts"][0]["input"] == arguments


def test_the_older_function_call_finds_its_result_by_name() -> None:
    source = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "f", "content": "ok"},
    ]
    (message,) = to_ui_messages(source, "x")
    assert (message["parts"][0]["input"], message["parts"][0]["output"]) == ({"a": 1}, "ok")


def test_images_become_file_parts_and_unknown_content_is_kept() -> None:
    content = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA"}},
    ]
    (message,) = to_ui_messages([{"role": "user", "content": content}], "x")
    assert message["parts"] == [
        {"type": "text", "text": "Look"},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"},
        {"type": "data-openai", "data": content[2]},
    ]


def test_ids_and_times_of_the_source_are_kept() -> None:
    source = [
        {"id": "mine", "role": "user", "content": "a", "created_at": 1_700_000_000},
        {"role": "user", "content": "b", "createdAt": "2024-01-02T03:04:05Z"},
    ]
    messages = to_ui_messages(source, "x")
    assert [message["id"] for message in messages] == ["mine", "x-1"]
    assert [message["createdAt"] for message in messages] == ["2023-11-14T22:13:20.000Z", "2024-01-02T03:04:05Z"]


@pytest.mark.parametrize(
    "item", ["text", {"content": "no role"}, {"role": "wizard", "content": ""}, {"role": ["user"]}]
)
def test_a_message_that_is_none_is_refused(item: object) -> None:
    with pytest.raises(ConversionError, match="message 0"):
        to_ui_messages([item], "x")


def test_a_bad_line_is_named_by_its_number_and_the_rest_is_read(tmp_path: Path) -> None:
    good = {"id": "a", "messages": [{"role": "user", "content": "hi"}]}
    path = write_lines(tmp_path / "f.jsonl", good, "", "{oops", "[1]", {"id": "b"}, good, good | {"id": "z"})
    found = list(read_openai_chat(path))
    assert [item.name if isinstance(item, Transcript) else item.line for item in found] == ["a", 3, 4, 5, 6, "z"]
    twin = found[4]
    assert isinstance(twin, BadLine)
    assert twin.reason == "its id 'a' is that of line 1 already"


def test_a_line_that_is_no_utf8_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"messages": []}\n{"id": "\xff"}\n')
    first, second = read_openai_chat(path)
    assert (first, second) == (Transcript("f-1", None, []), BadLine(2, "it is not UTF-8 text"))


def test_twin_message_ids_in_a_line_are_refused_since_one_would_vanish(tmp_path: Path) -> None:
    messages = [{"id": "m", "role": "user", "parts": []}, {"id": "m", "role": "user", "parts": []}]
    (found,) = read_ui_messages(write_lines(tmp_path / "f", {"id": "a", "messages": messages}))
    assert found == BadLine(1, "the message id 'm' is in it twice")


def test_ui_messages_pass_untouched_and_get_ids_where_they_have_none(tmp_path: Path) -> None:
    messages = [
        {"id": "m", "role": "user", "parts": [{"type": "text", "text": "a"}], "extra": {"kept": True}},
        {"role": "assistant", "parts": []},
    ]
    (found,) = read_ui_messages(write_lines(tmp_path / "f", {"id": "a", "messages": messages}))
    assert isinstance(found, Transcript)
    assert [step.message for step in found.steps] == [messages[0], {"id": "a-1", **messages[1]}]
    assert [step.parent_id for step in found.steps] == [None, "m"]


def test_our_own_lines_keep_the_tree_and_gather_each_conversation(tmp_path: Path) -> None:
    def line(conversation: str, identity: str, **more: object) -> dict[str, object]:
        return {"conversation": conversation, "message": {"id": identity, "role": "user", "parts": []}, **more}

    path = write_lines(
        tmp_path / "f",
        line("a", "1"),
        line("b", "9"),
        line("a", "2"),
        line("a", "3", parentId="1"),
        line("a", "4", parentId=7),
    )
    found = list(read_jsonl(path))
    assert found[0] == BadLine(5, "its 'parentId' is not a text")
    trees = {t.name: [(s.message["id"], s.parent_id) for s in t.steps] for t in found if isinstance(t, Transcript)}
    assert trees == {"a": [("1", None), ("2", "1"), ("3", "1")], "b": [("9", None)]}


@pytest.mark.skipif(not DATA.is_file(), reason=MISSING)
def test_the_real_conversations_lose_no_text_no_call_and_no_result() -> None:
    lines = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]
    found = list(read_openai_chat(DATA))
    assert len(found) == len(lines) == 50
    for source, transcript in zip(lines, found, strict=True):
        assert isinstance(transcript, Transcript)
        assert transcript.name == source["id"]
        parts = [part for step in transcript.steps for part in step.message["parts"]]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        assert texts == [m["content"] for m in source["messages"] if m["role"] != "tool" and m["content"]]
        tools = [part for part in parts if part["type"] == "dynamic-tool"]
        assert Counter((part["toolCallId"], part["output"]) for part in tools) == Counter(
            (m["tool_call_id"], m["content"]) for m in source["messages"] if m["role"] == "tool"
        )
        assert all(re.fullmatch(re.escape(source["id"]) + r"-\d+", step.message["id"]) for step in transcript.steps)
    assert sum(len(t.steps) for t in found if isinstance(t, Transcript)) == 956


class FakeServer:
    """Conversations as lists of messages; remembers how many were open at a time."""

    def __init__(self, *, refuse: str = "", lose_after: int | None = None) -> None:
        self.stored: dict[str, dict[str, tuple[dict[str, Any], str | None]]] = {}
        self.asked = self.open = self.most_open = self.appended = 0
        self.refuse, self.lose_after = refuse, lose_after

    @asynccontextmanager
    async def open_chat(self, agent: str, name: str) -> AsyncIterator["FakeChat"]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0)
        try:
            yield FakeChat(self, f"{agent}/{name}")
        finally:
            self.open -= 1


class FakeChat:
    def __init__(self, server: FakeServer, key: str) -> None:
        self.server = server
        self.messages = server.stored.setdefault(key, {})

    async def get_message(self, id: str) -> dict[str, Any] | None:
        self.server.asked += 1
        await asyncio.sleep(0)
        return self.messages[id][0] if id in self.messages else None

    async def append_message(self, message: dict[str, Any], parent_id: str | None) -> None:
        await asyncio.sleep(0)
        if self.server.appended == self.server.lose_after:
            raise ConnectionLost("gone")
        if message["id"] == self.server.refuse:
            raise InvalidMessage("it is refused")
        assert parent_id is None or parent_id in self.messages
        self.server.appended += 1
        self.messages.setdefault(message["id"], (message, parent_id))


def transcript(name: str, count: int, line: int = 1) -> Transcript:
    ids = [f"{name}-{index}" for index in range(count)]
    messages = [{"id": identity, "role": "user", "parts": []} for identity in ids]
    return Transcript(name, None, [Step(m, p, line) for m, p in zip(messages, [None, *ids], strict=False)])


async def send(server: FakeServer, *transcripts: Transcript, parallel: int = 3) -> tuple[Report, int]:
    done: list[int] = []
    report = await send_all(transcripts, "conversation", server.open_chat, parallel=parallel, advance=done.append)
    return report, sum(done)


async def test_everything_is_sent_in_order_and_no_more_than_allowed_at_a_time() -> None:
    server = FakeServer()
    report, done = await send(server, *(transcript(f"t{n}", 5) for n in range(10)))
    assert (report.conversations, report.sent, report.already_there, done) == (10, 50, 0, 50)
    stored = [(message["id"], parent) for message, parent in server.stored["conversation/t3"].values()]
    assert stored == [(f"t3-{index}", f"t3-{index - 1}" if index else None) for index in range(5)]
    assert server.most_open == 3


async def test_a_second_run_changes_nothing_and_asks_once_for_each_conversation() -> None:
    server = FakeServer()
    await send(server, transcript("a", 100), transcript("b", 100))
    server.asked = server.appended = 0
    report, done = await send(server, transcript("a", 100), transcript("b", 100))
    assert (report.sent, report.already_there, done) == (0, 200, 200)
    assert (server.appended, server.asked) == (0, 2)


@pytest.mark.parametrize("stop", range(8))
async def test_an_interrupted_run_goes_on_where_it_stopped(stop: int) -> None:
    server = FakeServer(lose_after=stop)
    with pytest.raises(ConnectionLost):
        await send(server, transcript("a", 8))
    server.lose_after = None
    report, _ = await send(server, transcript("a", 8))
    assert (report.sent, report.already_there) == (8 - stop, stop)
    assert [*server.stored["conversation/a"]] == [f"a-{index}" for index in range(8)]


async def test_a_refused_message_ends_its_own_conversation_only() -> None:
    server = FakeServer(refuse="b-2")
    report, _ = await send(server, transcript("a", 4), transcript("b", 4, line=7), transcript("c", 4))
    assert report.troubles == [Trouble(7, "b", "This message was not stored: it is refused.")]
    assert {key: len(messages) for key, messages in server.stored.items()} == {
        "conversation/a": 4,
        "conversation/b": 2,
        "conversation/c": 4,
    }


async def test_a_line_may_name_its_own_agent_and_an_empty_one_opens_nothing() -> None:
    server = FakeServer()
    await send(server, Transcript("x", "assistant", transcript("x", 1).steps), Transcript("empty", None))
    assert [*server.stored] == ["assistant/x"]
