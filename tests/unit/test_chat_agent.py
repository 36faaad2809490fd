"""Turns of `ChatAgent` against a scripted endpoint."""

import asyncio
import json
import logging
import os
import random
import string
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from awake import Hall, awake
from hypothesis import given, settings
from hypothesis import strategies as st
from model_server import ModelServer, Reply, model_server, problems
from session_support import text

from actors import ChatAgent, Session, SessionManager, rpc
from actors.agent import agent_info
from actors.chat import reply as reply_module
from actors.chat.model_messages import NO_ANSWER, model_messages
from actors.chat.tools import FunctionTool, ToolFailed
from actors.chat.turn import MAX_CALLS
from actors.conversation.events import Failure, Result
from actors.errors import ModelAnswerBroken, ModelUnreachable
from actors.models import Model, open_model
from actors.session.tools import Tool
from compaction import Usage, estimate_message_tokens
from storage import access, sessions
from storage.checkpoints import ConversationKey, MemoryStore
from storage.errors import InvalidArgument, LimitExceeded, StoreUnavailable
from storage.records import clean, encode
from storage.sessions import NewSession

Json = dict[str, Any]
KEY = "sk-canary-4711"
CHAT = ConversationKey("helper", "alice")


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server
    assert server.refused == []


class Helper(ChatAgent):
    """Tools of every kind. What they did is noted on the class, since instances end with a sleep."""

    calls: list[Any]
    hold: asyncio.Event
    begun: asyncio.Event
    max_steps = 4
    tool_seconds = 0.5

    def tools(self) -> Any:
        async def search(input: Json) -> str:
            return f"found {input['query']}"

        schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        return {
            "weather": self.weather,
            "add": self.add,
            "fail": self.fail,
            "wait": self.wait,
            "lookup": Tool("lookup", "Looks it up.", schema, search),
            "huge": lambda: "x" * 2_000_000,
        }

    async def weather(self, city: str, days: int = 1) -> Json:
        """Tells the weather of a city.

        Not told to the model.
        """
        type(self).calls.append(("weather", city, days))
        return {"city": city, "sun": True}

    def add(self, a: int, b: int) -> int:
        type(self).calls.append(("add", a, b))
        return a + b

    async def fail(self) -> str:
        raise RuntimeError("the airline is closed")

    async def wait(self) -> str:
        type(self).begun.set()
        await type(self).hold.wait()
        return "waited"


@asynccontextmanager
async def chatting(
    folder: Path, server: ModelServer, agent: type[ChatAgent] = Helper, **options: Any
) -> AsyncIterator[Hall]:
    Helper.calls, Helper.hold, Helper.begun = [], asyncio.Event(), asyncio.Event()
    given = {"model": "tiny", "model_url": server.url, "model_key": KEY, "model_retries": 0, "key": CHAT, **options}
    async with awake(folder, agent, **given) as hall:
        await hall.connect()
        yield hall


async def ask(hall: Hall, question: str, *more: Any) -> tuple[list[Json], Json]:
    """The chunks and the final message."""
    call = f"chat-{len(hall.events)}"
    hall.send(call, "chat", question, *more)
    answer = await hall.answer(call)
    assert isinstance(answer, Result), answer
    assert answer.result is not None
    return chunks_of(hall, call), json.loads(answer.result)["message"]


def chunks_of(hall: Hall, call: str) -> list[Json]:
    wanted = json.dumps(call).encode()
    results = [event for event in hall.events if isinstance(event, Result) and event.call == wanted]
    return [json.loads(event.result or b"null") for event in results if not event.is_done]


async def until_chunk(hall: Hall, call: str, number: int = 1) -> None:
    while len(chunks_of(hall, call)) < number:
        hall._arrived.clear()
        await asyncio.wait_for(hall._arrived.wait(), 10)


async def failed(hall: Hall, question: str, *more: Any) -> str:
    call = f"chat-{len(hall.events)}"
    hall.send(call, "chat", question, *more)
    answer = await hall.answer(call)
    assert isinstance(answer, Failure), answer
    return answer.error


async def history(hall: Hall) -> list[Json]:
    found: list[Json] = await hall.call("getHistory")
    return found


def tool_parts(message: Json) -> list[Json]:
    return [part for part in message["parts"] if "toolCallId" in part]


def told(server: ModelServer, number: int) -> list[str]:
    """What the model was given with a request, without the prompt."""
    return [message["content"] for message in server.requests[number]["messages"][1:]]


def slots(store: MemoryStore) -> int:
    return len([key for key in store.objects if "/log/" in key])


# ---- answers --------------------------------------------------------------------------------------------------


async def test_an_answer_is_streamed_and_stored(server: ModelServer, tmp_path: Path) -> None:
    server.answer("Good ", "morning", "!", usage=(30, 3))
    async with chatting(tmp_path, server) as hall:
        await hall.call("replaceContextBlock", "memory", "Likes tea.")
        chunks, message = await ask(hall, "Hello?", "q1")
        assert chunks == [{"type": "text-delta", "text": piece} for piece in ("Good ", "morning", "!")]
        assert await history(hall) == [text("q1", "Hello?"), message]
        assert message == {
            "id": "q1-reply",
            "role": "assistant",
            "parts": [{"type": "text", "text": "Good morning!"}],
            "metadata": {
                "replyTo": "q1",
                "status": "done",
                "model": "tiny",
                "usage": {"inputTokens": 30, "outputTokens": 3},
                "finishReason": "stop",
            },
        }
        request = server.requests[0]
        prompt, question = request["messages"]
        assert prompt["role"] == "system"
        assert "Likes tea." in prompt["content"]
        assert question == {"role": "user", "content": "Hello?"}
        assert request["stream_options"] == {"include_usage": True}
        assert server.keys == [f"Bearer {KEY}"]


async def test_what_a_registered_session_spends_is_in_its_row(server: ModelServer, tmp_path: Path) -> None:
    class Registered(Helper):
        def configure(self) -> Session:
            self.trips = SessionManager.create(self)
            return self.trips.get_session("trip")

        @rpc
        async def register(self) -> None:
            await access.write(
                self.database, lambda connection: sessions.create(connection, "trip", NewSession("Paris"))
            )

        @rpc
        async def spent(self) -> list[int]:
            info = await self.trips.get("trip")
            return [info.input_tokens, info.output_tokens]

    server.answer(calls=[("c1", "add", '{"a": 1, "b": 2}')], usage=(100, 10))
    server.answer("Three.", usage=(200, 20))
    async with chatting(tmp_path, server, Registered) as hall:
        await hall.call("register")
        _, message = await ask(hall, "1 + 2?")
        assert message["metadata"]["usage"] == {"inputTokens": 300, "outputTokens": 30}
        assert await hall.call("spent") == [300, 30]


async def test_a_question_without_an_id_gets_one_and_the_next_turn_sees_the_last(
    server: ModelServer, tmp_path: Path
) -> None:
    store = MemoryStore()
    for turn in range(3):  # asleep between the turns
        server.answer(f"Answer {turn}")
        async with chatting(tmp_path, server, store=store) as hall:
            await ask(hall, f"Question {turn}")
    expected: list[Json] = []
    for turn in range(3):
        expected.append({"role": "user", "content": f"Question {turn}"})
        assert server.requests[turn]["messages"][1:] == expected
        expected.append({"role": "assistant", "content": f"Answer {turn}"})


async def test_the_session_api_is_offered_too_and_chat_needs_the_verb_edit() -> None:
    verbs = agent_info(ChatAgent).verbs
    assert (verbs["chat"], verbs["cancelChat"], verbs["getHistory"]) == ("edit", "edit", "read")


async def test_without_a_model_nothing_is_stored_and_the_sentence_says_what_to_do(
    server: ModelServer, tmp_path: Path
) -> None:
    async with chatting(tmp_path, server, model="") as hall:
        assert "start the server with --model NAME" in await failed(hall, "Hello?")
        assert await history(hall) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["  "], "must not be empty"),
        ([5], "chat: 'text' must be text."),
        (["Hello?", 5], "chat: 'messageId' must be text."),
        (["Hello?", ""], "The id of a question must be a text and must not be empty."),
        (["Hello?", "compaction_1"], "must not begin with 'compaction_'"),
        (["Hello?", "a1"], "is no question"),
        (["Hello?", "u1"], "another message with the id 'u1-reply'"),
    ],
)
async def test_a_question_that_cannot_be_one_is_refused(
    server: ModelServer, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    async with chatting(tmp_path, server) as hall:
        await hall.call("appendMessage", text("a1", "hi", "assistant"))
        await hall.call("appendMessage", text("u1-reply", "mine", "user"))
        assert sentence in await failed(hall, *arguments)
        assert server.requests == []
        assert [message["id"] for message in await history(hall)] == ["a1", "u1-reply"]


@pytest.mark.parametrize(
    ("arguments", "sentence"), [((5,), "The question must be a text"), (("Hello?", 5), "The id of a question must be")]
)
async def test_a_method_that_calls_chat_with_something_else_is_told_so(
    server: ModelServer, tmp_path: Path, arguments: Any, sentence: str
) -> None:
    async with chatting(tmp_path, server) as hall:
        with pytest.raises(InvalidArgument, match=sentence):
            await hall.conversation._agent.chat(None, *arguments)


# ---- tools ----------------------------------------------------------------------------------------------------


async def test_tools_run_in_steps_until_the_model_answers_in_words(server: ModelServer, tmp_path: Path) -> None:
    server.answer("Let me see. ", calls=[("c1", "weather", '{"city": "Paris"}')], usage=(10, 1))
    server.answer(calls=[("c2", "set_context", '{"label": "memory", "content": "Paris is sunny"}')], usage=(20, 2))
    server.answer("Sunny.", usage=(30, 3))
    async with chatting(tmp_path, server) as hall:
        chunks, message = await ask(hall, "Weather in Paris?", "q1")
        weather = {"type": "tool-weather", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Paris"}}
        assert message["parts"][:3] == [
            {"type": "text", "text": "Let me see. "},
            {**weather, "state": "output-available", "output": {"city": "Paris", "sun": True}},
            {"type": "step-start"},
        ]
        assert [part["type"] for part in message["parts"][3:]] == ["tool-set_context", "step-start", "text"]
        assert message["metadata"]["usage"] == {"inputTokens": 60, "outputTokens": 6}
        assert [chunk["type"] for chunk in chunks] == [
            *("text-delta", "tool-call", "tool-result"),
            *("tool-call", "tool-result"),
            "text-delta",
        ]
        assert chunks[1] == {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Paris"}}
        assert chunks[2]["output"] == {"city": "Paris", "sun": True}
        assert (await hall.call("getContextBlock", "memory"))["content"] == "Paris is sunny"
        assert (await history(hall))[1] == message
        assert Helper.calls == [("weather", "Paris", 1)]

    offered = {tool["function"]["name"]: tool["function"] for tool in server.requests[0]["tools"]}
    assert {"set_context", "weather", "add", "lookup"} <= offered.keys()
    assert offered["weather"]["description"] == "Tells the weather of a city."
    assert offered["weather"]["parameters"] == {
        "type": "object",
        "additionalProperties": False,
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
        "required": ["city"],
    }
    called = {"name": "weather", "arguments": '{"city":"Paris"}'}
    assert server.requests[1]["messages"][2:] == [
        {
            "role": "assistant",
            "content": "Let me see. ",
            "tool_calls": [{"id": "c1", "type": "function", "function": called}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"city":"Paris","sun":true}'},
    ]
    assert [message["role"] for message in server.requests[2]["messages"][2:]] == ["assistant", "tool"] * 2


async def test_calls_of_one_answer_run_side_by_side_and_each_result_is_stored_as_it_comes(
    server: ModelServer, tmp_path: Path
) -> None:
    server.answer(calls=[("c1", "wait", "{}"), ("c2", "add", '{"a": 1, "b": 2}'), ("c3", "lookup", '{"query": "x"}')])
    server.answer("Done.")
    async with chatting(tmp_path, server) as hall:
        hall.send("one", "chat", "Go", "q1")
        await until_chunk(hall, "one", 5)  # three calls, two results: the slow one is still running
        stored = {part["toolCallId"]: part for part in tool_parts((await history(hall))[1])}
        assert stored["c1"]["state"] == "input-available"
        assert (stored["c2"]["output"], stored["c3"]["output"]) == (3, "found x")
        Helper.hold.set()
        await hall.answer("one")
        assert [part["output"] for part in tool_parts((await history(hall))[1])] == ["waited", 3, "found x"]
        results = [message["content"] for message in server.requests[1]["messages"] if message["role"] == "tool"]
        assert results == ["waited", "3", "found x"]


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("fail", "{}", "the airline is closed"),
        ("add", '{"a": "one", "b": 2}', "a: Input should be a valid integer"),
        ("add", "[1, 2]", "the input: Input should be"),
        ("add", '{"a": 1', "the input: Input should be"),
        ("nothing", "{}", "There is no tool 'nothing'; there are: set_context, weather"),
        ("set_context", '{"label": "nope", "content": "x"}', 'block "nope" not found'),
        ("wait", "{}", "It gave no answer within 0.5 s."),
        ("huge", "{}", "Its answer of 2,000,002 bytes is over the limit of 1,048,576."),
    ],
)
async def test_what_a_tool_does_wrong_is_told_to_the_model(
    server: ModelServer, tmp_path: Path, name: str, arguments: str, error: str
) -> None:
    server.answer(calls=[("c1", name, arguments)])
    server.answer("Sorry.")
    async with chatting(tmp_path, server) as hall:
        chunks, message = await ask(hall, "Go", "q1")
        (part,) = tool_parts(message)
        assert part["state"] == "output-error"
        assert part["errorText"].startswith(error)
        assert "output" not in part
        assert chunks[1]["errorText"] == part["errorText"]
        told = [message for message in server.requests[1]["messages"] if message["role"] == "tool"]
        assert told[0]["content"] == f"Error: {part['errorText']}"
        sent = server.requests[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
        assert isinstance(json.loads(sent), dict)
        assert message["parts"][-1] == {"type": "text", "text": "Sorry."}


def nested(depth: int) -> str:
    return '{"a": ' + "[" * depth + "]" * depth + "}"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (nested(125), "nested too deeply"),
        (nested(900), "nested too deeply"),
        (nested(200_000), "nested too deeply"),
        ('{"a": 1' + "0" * 400 + "}", "a number is too large"),
    ],
)
async def test_arguments_that_a_message_cannot_hold_are_an_error_for_the_model(
    server: ModelServer, tmp_path: Path, arguments: str, why: str
) -> None:
    server.answer(calls=[("c1", "add", arguments), ("c2", "add", nested(124)), ("c3", "add", '{"a": 1, "b": 2}')])
    server.answer("Sorry.")
    async with chatting(tmp_path, server) as hall:
        chunks, message = await ask(hall, "Go", "q1")
        first, second, third = tool_parts(message)
        assert first["state"] == "output-error"
        assert first["errorText"] == f"Not run: the arguments cannot be kept: {why}."
        assert first["input"] == arguments
        assert second["errorText"].startswith("a: Input should be a valid integer")
        assert third["output"] == 3
        results = {chunk["toolCallId"]: chunk for chunk in chunks if chunk["type"] == "tool-result"}
        assert results["c1"]["errorText"] == first["errorText"]
        assert message["parts"][-1] == {"type": "text", "text": "Sorry."}
        assert await history(hall) == [text("q1", "Go"), message]


@dataclass
class Weather:
    sun: bool


async def test_answers_that_a_message_cannot_hold_are_made_plain_or_an_error(
    server: ModelServer, tmp_path: Path
) -> None:
    class Odd(Helper):
        def tools(self) -> Any:
            return {
                "deep": lambda: json.loads(nested(200)),
                "long": lambda: 10**400,
                "data": lambda: Weather(sun=True),
                "tuple": lambda: (1, {2: {3}}),
            }

    server.answer(calls=[(name, name, "{}") for name in ("deep", "long", "data", "tuple")])
    async with chatting(tmp_path, server, Odd) as hall:
        _, message = await ask(hall, "Go", "q1")
        deep, long, data, pair = tool_parts(message)
        assert deep["errorText"] == "nested too deeply"
        assert long["errorText"] == "a number is too large"
        assert data["output"] == {"sun": True}
        assert pair["output"] == [1, {"2": [3]}]
        assert message["metadata"]["status"] == "done"


async def test_whatever_a_tool_raises_is_an_error_for_the_model_and_a_line_in_the_log_without_its_text(
    server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def cancelled() -> str:
        work = asyncio.create_task(asyncio.sleep(60))
        work.cancel()
        await work
        return "never"

    async def late() -> str:
        raise TimeoutError("a secret address")

    async def closed() -> str:
        raise GeneratorExit("secret")

    def leave() -> str:
        raise SystemExit("secret")

    def ended() -> str:
        return next(iter(()))

    async def odd(input: Json) -> str:
        raise LookupError("secret")

    class Failing(Helper):
        def tools(self) -> Any:
            given = {"cancelled": cancelled, "late": late, "closed": closed, "leave": leave, "ended": ended}
            return {**given, "fail": self.fail, "odd": Tool("odd", "Fails.", {"type": "object"}, odd)}

    names = ["cancelled", "late", "closed", "leave", "ended", "fail", "odd"]
    server.answer(calls=[(name, name, "{}") for name in names])
    async with chatting(tmp_path, server, Failing) as hall:
        _, message = await ask(hall, "Go", "q1")
        assert [part["errorText"] for part in tool_parts(message)] == [
            "Unknown error occurred",
            "Internal error (TimeoutError)",
            "secret",
            "secret",
            "StopIteration",
            "the airline is closed",
            "secret",
        ]
        assert message["metadata"]["status"] == "done"
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("The tool ")]
    kinds = [
        "CancelledError",
        "TimeoutError",
        "GeneratorExit",
        "SystemExit",
        "RuntimeError",
        "RuntimeError",
        "LookupError",
    ]
    for name, kind in zip(names, kinds, strict=True):
        told = [line for line in lines if line.startswith(f"The tool {name} failed: {kind} at ")]
        assert len(told) == 1
        assert "test_chat_agent.py:" in told[0]
    assert "secret" not in caplog.text
    assert "airline" not in caplog.text


@pytest.mark.parametrize("name", ["", "two words", "ä", "x" * 65, "a.b", "end\n"])
async def test_a_tool_that_no_endpoint_would_take_is_refused_by_its_name(
    server: ModelServer, tmp_path: Path, name: str
) -> None:
    class Odd(Helper):
        def tools(self) -> Any:
            return {name: self.add}

    async with chatting(tmp_path, server, Odd) as hall:
        error = await failed(hall, "Go", "q1")
        assert error == f"the tool {name!r} needs a name of 1 to 64 letters, digits, '_' and '-'"
        assert server.requests == []


async def test_so_many_calls_of_one_answer_are_run_and_the_others_are_errors(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer(calls=[(f"c{number}", "add", f'{{"a": {number}, "b": 1}}') for number in range(1_000)])
    server.answer("Done.")
    async with chatting(tmp_path, server) as hall, counted_updates(hall, monkeypatch) as sizes:
        chunks, message = await ask(hall, "Go", "q1")
        assert len(Helper.calls) == MAX_CALLS == 128
        found = tool_parts(message)
        assert [part["output"] for part in found[:128]] == list(range(1, 129))
        assert {part["errorText"] for part in found[128:]} == {"Not run: one answer may ask for 128 calls at most."}
        assert len(found) == 1_000
        assert len([chunk for chunk in chunks if chunk["type"] == "tool-result"]) == 1_000
        assert sum(sizes) <= 8 * reply_module.size_of(message)
        assert len([m for m in server.requests[1]["messages"] if m["role"] == "tool"]) == 1_000


async def test_an_answer_of_nothing_but_calls_is_broken_at_some_number(server: ModelServer, tmp_path: Path) -> None:
    server.answer(calls=[(f"c{number}", "add", "{}") for number in range(1_025)])
    async with chatting(tmp_path, server) as hall:
        assert "it asks for more than 1,024 calls." in await failed(hall, "Go", "q1")
        assert Helper.calls == []


async def test_many_calls_of_the_tools_of_a_session_are_not_stored_once_for_each(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = json.dumps({"label": "memory", "content": "x" * 2_000})
    server.answer(calls=[(f"c{number}", "set_context", arguments) for number in range(100)])
    server.answer("Done.")
    async with chatting(tmp_path, server) as hall, counted_updates(hall, monkeypatch) as sizes:
        _, message = await ask(hall, "Go", "q1")
        assert {part["output"].partition(".")[0] for part in tool_parts(message)} == {"Written to memory"}
        assert sum(sizes) <= 12 * reply_module.size_of(message)


async def test_an_answer_of_a_tool_that_a_message_cannot_hold_is_an_error_for_the_model(
    server: ModelServer, tmp_path: Path
) -> None:
    class Wordy(Helper):
        def tools(self) -> Any:
            return {"long": lambda: "x" * 5_000}

    server.answer(calls=[("c1", "long", "{}")])
    server.answer("Sorry.")
    async with chatting(tmp_path, server, Wordy, max_message_bytes=2_048) as hall:
        chunks, message = await ask(hall, "Go", "q1")
        (part,) = tool_parts(message)
        assert part["errorText"] == "Its answer is larger than what can be stored."
        assert chunks[1]["errorText"] == part["errorText"]
        assert (await history(hall))[1] == message


async def test_calls_that_share_an_id_or_have_an_odd_name_get_their_own_answers(
    server: ModelServer, tmp_path: Path
) -> None:
    class Odd(Helper):
        def tools(self) -> Any:
            return {**super().tools(), "result": self.add}

    twice = [("c", "add", '{"a": 1, "b": 2}'), ("c", "result", '{"a": 3, "b": 4}'), ("", "lookup", '{"query": "x"}')]
    server.answer(calls=twice)
    server.answer(calls=[("c", "add", '{"a": 5, "b": 6}'), ("d", "no such tool", "")])
    server.answer("Done.")
    async with chatting(tmp_path, server, Odd) as hall:
        _, message = await ask(hall, "Go", "q1")
        found = tool_parts(message)
        assert [part.get("output") for part in found] == [3, 7, "found x", 11, None]
        assert len({part["toolCallId"] for part in found}) == 5
        assert [part["type"] for part in found] == [
            *("tool-add", "dynamic-tool", "tool-lookup", "tool-add", "dynamic-tool")
        ]
        told = {m["tool_call_id"]: m["content"] for m in server.requests[2]["messages"] if m["role"] == "tool"}
        assert [told[part["toolCallId"]] for part in found[:4]] == ["3", "7", "found x", "11"]


async def test_the_last_step_is_asked_for_words_and_calls_of_it_are_not_run(
    server: ModelServer, tmp_path: Path
) -> None:
    for number in range(9):
        server.answer(calls=[(f"c{number}", "add", '{"a": 1, "b": 1}')])
    async with chatting(tmp_path, server) as hall:
        _, message = await ask(hall, "Go", "q1")
        assert len(server.requests) == Helper.max_steps
        assert [request["tool_choice"] for request in server.requests] == ["auto"] * 3 + ["none"]
        assert len(Helper.calls) == 3
        assert message["metadata"]["status"] == "max-steps"
        assert [part["state"] for part in tool_parts(message)] == ["output-available"] * 3 + ["output-error"]
        assert (await history(hall))[1] == message
        await ask(hall, "Go", "q1")  # the turn is complete
        assert len(server.requests) == Helper.max_steps


async def test_a_document_unloaded_in_the_turn_that_loaded_it_is_gone(server: ModelServer, tmp_path: Path) -> None:
    class Library:
        async def get(self) -> str:
            return "- refunds"

        async def load(self, key: str) -> str:
            return "All about refunds"

    class Reader(ChatAgent):
        def configure(self) -> Any:
            return super().configure().with_context("skills", provider=Library())

    arguments = '{"label": "skills", "key": "refunds"}'
    server.answer(calls=[("c1", "load_context", arguments)])
    server.answer(calls=[("c2", "unload_context", arguments)])
    server.answer("Done.")
    async with chatting(tmp_path, server, Reader) as hall:
        _, message = await ask(hall, "Go", "q1")
        assert "All about refunds" in json.dumps(server.requests[1])
        assert "All about refunds" not in json.dumps(server.requests[2])
        assert "All about refunds" not in json.dumps(message)
        assert (await history(hall))[1] == message
        assert await hall.call("getLoadedSkillKeys") == []


# ---- how often it is stored -------------------------------------------------------------------------------------


async def test_a_long_answer_is_stored_in_few_groups_and_not_for_each_token(
    server: ModelServer, tmp_path: Path
) -> None:
    server.answer(*["word "] * 2_000)
    store = MemoryStore()
    loop = asyncio.get_running_loop()
    async with chatting(tmp_path, server, store=store) as hall:
        await ask(hall, "Warm up", "q0")
        server.script.clear()
        server.answer(*["word "] * 2_000)
        before, started = slots(store), loop.time()
        chunks, message = await ask(hall, "Go", "q1")
        seconds = loop.time() - started
        assert len(chunks) == 2_000
        assert message["parts"] == [{"type": "text", "text": "word " * 2_000}]
        # question, empty reply, end
        assert slots(store) - before <= 3 + seconds / reply_module.SAVE_SECONDS
        assert slots(store) > before


async def test_what_streams_is_stored_within_a_second_also_when_the_model_pauses(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_module, "SAVE_SECONDS", 0.05)
    reply = server.answer("Half an ", "answer", pause_before=1)
    async with chatting(tmp_path, server) as hall:
        session, is_stored = hall.conversation._agent.session, asyncio.Event()
        update = session.update_message

        async def noting(message: Json) -> None:
            await update(message)
            is_stored.set()

        monkeypatch.setattr(session, "update_message", noting)
        hall.send("one", "chat", "Go", "q1")
        await asyncio.wait_for(is_stored.wait(), 5)
        assert not reply.go.is_set()
        stored = (await history(hall))[1]
        assert stored["parts"] == [{"type": "text", "text": "Half an "}]
        assert stored["metadata"]["status"] == "streaming"
        reply.go.set()
        await hall.answer("one")


# ---- ends before the end ----------------------------------------------------------------------------------------


async def test_a_turn_can_be_cancelled_and_what_was_written_stays(server: ModelServer, tmp_path: Path) -> None:
    reply = server.answer("Half an ", "answer", pause_before=1)
    async with chatting(tmp_path, server) as hall:
        hall.send("one", "chat", "Go", "q1")
        await until_chunk(hall, "one")
        assert await hall.call("cancelChat", "q7") is False
        assert await hall.call("cancelChat") is True
        answer = await hall.answer("one")
        assert isinstance(answer, Result)
        message = json.loads(answer.result or b"")["message"]
        assert message["parts"] == [{"type": "text", "text": "Half an "}]
        assert message["metadata"]["status"] == "cancelled"
        assert await history(hall) == [text("q1", "Go"), message]
        await asyncio.wait_for(reply.is_gone.wait(), 5)  # the model writes no further
        assert await hall.call("cancelChat") is False
        server.answer("Next.")
        _, after = await ask(hall, "And now?", "q2")
        assert after["parts"] == [{"type": "text", "text": "Next."}]
        assert server.requests[1]["messages"][2] == {"role": "assistant", "content": "Half an "}


async def test_a_turn_can_be_cancelled_before_it_has_begun(server: ModelServer, tmp_path: Path) -> None:
    reply = server.answer("First", pause_before=0)
    async with chatting(tmp_path, server) as hall:
        hall.send("one", "chat", "Go", "q1")
        hall.send("two", "chat", "And?", "q2")
        hall.send("three", "chat", "And?", "q3")
        assert await hall.call("cancelChat", "q2") is True
        reply.go.set()
        answers = [await hall.answer(call) for call in ("one", "two", "three")]
        statuses = [json.loads(answer.result)["message"]["metadata"]["status"] for answer in answers]
        assert statuses == ["done", "cancelled", "done"]
        assert [message["parts"] for message in await history(hall)][3] == []
        assert len(server.requests) == 2

        hall.send("four", "chat", "Again", "q4")  # and cancelled at once, in the same breath
        hall.send("stop", "cancelChat")
        answer = await hall.answer("four")
        assert json.loads(answer.result)["message"]["metadata"]["status"] == "cancelled"
        assert len(server.requests) == 2


async def test_cancelling_says_false_for_a_turn_that_only_returns_a_complete_reply(
    server: ModelServer, tmp_path: Path
) -> None:
    server.answer("Done.")
    reply = server.answer("Slow", pause_before=0)
    async with chatting(tmp_path, server) as hall:
        _, message = await ask(hall, "Question 1", "q1")
        hall.send("slow", "chat", "Question 2", "q2")
        await asyncio.wait_for(reply.is_paused.wait(), 5)
        hall.send("again", "chat", "Question 1", "q1")  # waits for its turn to return what there is
        assert await hall.call("cancelChat", "q1") is False
        hall.send("new", "chat", "Question 3", "q3")
        assert await hall.call("cancelChat", "q3") is True
        reply.go.set()
        answers = [json.loads((await hall.answer(call)).result)["message"] for call in ("slow", "again", "new")]
        assert answers[1] == message
        assert [answer["metadata"]["status"] for answer in answers] == ["done", "done", "cancelled"]


async def test_the_thread_of_a_tool_outlives_its_time_and_its_answer_is_dropped(
    server: ModelServer, tmp_path: Path
) -> None:
    release, done = threading.Event(), threading.Event()

    class Slow(Helper):
        tool_seconds = 0.1

        def tools(self) -> Any:
            return {"hold": self.hold_on}

        def hold_on(self) -> str:
            release.wait(10)
            done.set()
            return "late"

    server.answer(calls=[("c1", "hold", "{}")])
    server.answer("Sorry.")
    try:
        async with chatting(tmp_path, server, Slow) as hall:
            _, message = await ask(hall, "Go", "q1")
            assert not done.is_set()
            release.set()
            assert await asyncio.to_thread(done.wait, 5)
            assert tool_parts(message)[0]["errorText"] == "It gave no answer within 0.1 s."
            assert (await history(hall))[1] == message
    finally:
        release.set()


async def test_a_call_that_runs_when_the_turn_is_cancelled_gets_an_error_for_an_answer(
    server: ModelServer, tmp_path: Path
) -> None:
    server.answer(calls=[("c1", "wait", "{}")])
    async with chatting(tmp_path, server) as hall:
        hall.send("one", "chat", "Go", "q1")
        await asyncio.wait_for(Helper.begun.wait(), 5)
        assert await hall.call("cancelChat", "q1") is True
        await hall.answer("one")
        (part,) = tool_parts((await history(hall))[1])
        assert part["state"] == "output-error"
        assert "cancelled" in part["errorText"]


async def test_a_turn_goes_on_when_its_client_has_gone(server: ModelServer, tmp_path: Path) -> None:
    from actors.conversation.events import Disconnect

    reply = server.answer("Half an ", "answer", pause_before=1)
    async with chatting(tmp_path, server) as hall:
        hall.send("one", "chat", "Go", "q1")
        await until_chunk(hall, "one")
        hall.conversation.submit(Disconnect(1))
        await hall.connect(2)
        reply.go.set()
        await hall.answer("one")
        stored = await hall.call("getHistory", connection=2)
        assert stored[1]["parts"] == [{"type": "text", "text": "Half an answer"}]


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"cut_before": 2}, "cannot be reached: the connection broke off."),
        ({"raw_before": {2: "data: {no json\n\n"}}, "cannot be used: it is not of the form that it should have"),
        (
            {"raw_before": {2: 'data: {"error": {"message": "word", "code": "overloaded"}}\n\n'}},
            "cannot be used: it broke off with an error (overloaded).",
        ),
        ({"has_end": False}, "cannot be used: it ended in the middle."),
    ],
)
async def test_an_answer_that_breaks_off_ends_the_stream_with_one_sentence_and_stays(
    server: ModelServer, tmp_path: Path, facts: Json, sentence: str
) -> None:
    server.answer("Half ", "an ", "answer", **facts)
    server.answer("Whole.")
    async with chatting(tmp_path, server) as hall:
        error = await failed(hall, "Go", "q1")
        assert sentence in error
        assert error.startswith(("The model at ", "The answer of the model at "))
        question, message = await history(hall)
        assert question == text("q1", "Go")
        assert message["parts"][0]["text"].startswith("Half an ")
        assert (message["metadata"]["status"], message["metadata"]["error"]) == ("error", error)
        _, message = await ask(hall, "Go", "q1")
        assert message["parts"] == [{"type": "text", "text": "Whole."}]
        assert "error" not in message["metadata"]
        assert await history(hall) == [question, message]
        assert server.requests[1]["messages"][1:] == [{"role": "user", "content": "Go"}]


async def test_a_model_that_falls_silent_is_given_up(server: ModelServer, tmp_path: Path) -> None:
    reply = server.answer("Half an ", "answer", pause_before=1)
    async with chatting(tmp_path, server, model_seconds=0.3) as hall:
        assert "cannot be reached: no answer within 0.3 s." in await failed(hall, "Go", "q1")
        await asyncio.wait_for(reply.is_gone.wait(), 5)
        assert (await history(hall))[1]["parts"] == [{"type": "text", "text": "Half an "}]


def delta(**fields: Any) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': fields}]})}\n\n"


@pytest.mark.parametrize(
    ("endless", "why"),
    [
        (": still there\n\n", "no answer within 0.3 s"),
        (": still there\n", "no answer within 0.3 s"),
        (delta(), "no answer within 0.3 s"),
        (delta(role="assistant", content=""), "no answer within 0.3 s"),
        (delta(reasoning_content="Hm."), "its answer took longer than 0.8 s"),
        (delta(content="more "), "its answer took longer than 0.8 s"),
    ],
)
async def test_a_model_that_never_ends_is_given_up_and_the_next_turn_begins(
    server: ModelServer, tmp_path: Path, endless: str, why: str
) -> None:
    reply = server.answer("Half an ", endless=endless)
    server.answer("Here I am.")
    async with chatting(tmp_path, server, model_seconds=0.3, model_answer_seconds=0.8) as hall:
        hall.send("next", "chat", "And you?", "q2")
        hall.send("first", "chat", "Go", "q1")
        server.script.rotate(1)
        answer = await hall.answer("first")
        assert isinstance(answer, Failure)
        assert answer.error == f"The model at {server.url} cannot be reached: {why}."
        await asyncio.wait_for(reply.is_gone.wait(), 5)
        assert isinstance(await hall.answer("next"), Result)
        first = await hall.call("getMessage", "q1-reply")
        assert first["metadata"]["status"] == "error"
        assert first["parts"][0]["text"].startswith("Half an ")


async def test_a_summary_that_never_comes_is_given_up(server: ModelServer) -> None:
    server.answer(silent=True)
    async with open_model(Model("tiny", server.url, seconds=60.0, retries=0, answer_seconds=0.3)) as client:
        with pytest.raises(ModelUnreachable, match=r"its answer took longer than 0\.3 s"):
            await client.complete([{"role": "user", "content": "Go"}])


async def test_what_an_endpoint_sends_at_once_is_bounded(server: ModelServer, tmp_path: Path) -> None:
    """One event, whatever it is made of; not all of a stream, of which nothing is held."""
    most = 2 * 2_048 + 1024 * 1024
    broken = f"The answer of the model at {server.url} cannot be used: it is larger than {most:,} bytes."
    comment = ": " + "x" * 1_000 + "\r\n\r\n"
    async with chatting(tmp_path, server, max_message_bytes=2_048) as hall:
        server.answer("Fine.", raw_before={0: comment * 2_000})
        assert (await ask(hall, "Go", "q1"))[1]["metadata"]["status"] == "done"
        for number, event in enumerate(["data: " + "x" * (most + 1), ("data: " + "x" * 1_000 + "\n") * 1_100]):
            reply = server.answer("Fine.", raw_before={0: event}, pause_before=0)
            assert await failed(hall, "Go", f"large{number}") == broken
            await asyncio.wait_for(reply.is_gone.wait(), 5)
        half = "x" * (most // 2 + 10)
        server.answer(calls=[("c1", "add", half), ("c2", "add", half)])
        assert await failed(hall, "Go", "q3") == broken
    async with open_model(Model("tiny", server.url, retries=0, max_bytes=10_000)) as client:
        server.answer("x" * 9_000)
        assert (await client.complete([{"role": "user", "content": "Go"}]))[0] == "x" * 9_000
        for reply in ({"pieces": ["x" * 10_000]}, {"status": 400, "error": {"message": "x" * 10_000}}):
            server.script.append(Reply(**reply))
            with pytest.raises(ModelAnswerBroken, match=r"it is larger than 10,000 bytes"):
                await client.complete([{"role": "user", "content": "Go"}])


async def test_an_answer_that_might_unpack_to_any_size_is_not_read(server: ModelServer, tmp_path: Path) -> None:
    server.answer(status=400, headers=[("Content-Encoding", "br")])
    async with chatting(tmp_path, server) as hall:
        assert await failed(hall, "Go", "q1") == (
            f"The answer of the model at {server.url} cannot be used: it is compressed, which was not asked for."
        )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_is_not_followed(server: ModelServer, tmp_path: Path, status: int) -> None:
    async with model_server() as other, chatting(tmp_path, server) as hall:
        server.answer(status=status, headers=[("Location", f"{other.url}/chat/completions")])
        assert await failed(hall, "Go", "q1") == (
            f"The model 'tiny' at {server.url} refused the request (HTTP {status}, it points to another address, which is not "
            "followed)."
        )
        assert other.requests == []
        assert len(server.requests) == 1


async def test_a_redirect_at_home_is_followed(server: ModelServer, tmp_path: Path) -> None:
    server.answer(status=307, headers=[("Location", "/v1/chat/completions?again")])
    server.answer("Here.")
    async with chatting(tmp_path, server) as hall:
        assert (await ask(hall, "Go", "q1"))[1]["parts"] == [{"type": "text", "text": "Here."}]
        assert server.requests[0] == server.requests[1]


@pytest.mark.parametrize("count", [10**399, 2**60, True, -1, "ten", None, [1], 1.5])
async def test_a_count_of_tokens_that_is_none_is_ignored(server: ModelServer, tmp_path: Path, count: Any) -> None:
    server.answer("Fine.", usage=(count, count))
    server.answer("Again.", usage=(count, 7))
    async with chatting(tmp_path, server) as hall:
        _, message = await ask(hall, "Go", "q1")
        assert message["metadata"]["status"] == "done"
        assert "usage" not in message["metadata"]
        _, message = await ask(hall, "Go", "q2")
        assert message["metadata"]["usage"] == {"inputTokens": 0, "outputTokens": 7}


@pytest.mark.parametrize("reason", [{"a": 1}, ["stop"], 7, "x" * 5_000])
async def test_a_reason_of_any_kind_ends_an_answer(server: ModelServer, tmp_path: Path, reason: Any) -> None:
    server.answer("Fine.", finish=reason)
    async with chatting(tmp_path, server) as hall:
        _, message = await ask(hall, "Go", "q1")
        assert message["metadata"]["status"] == "done"
        assert message["metadata"]["finishReason"] == ("x" * 64 if isinstance(reason, str) else "unknown")


async def test_a_key_that_is_refused_is_said_to_be_checked(server: ModelServer, tmp_path: Path) -> None:
    server.answer(status=401)
    async with chatting(tmp_path, server) as hall:
        error = await failed(hall, "Go", "q1")
        assert error.startswith(
            f"The model 'tiny' at {server.url} refused the request (HTTP 401, scripted_error; check the key"
        )


async def test_a_model_that_refuses_leaves_the_question_and_no_secret_anywhere(
    server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.answer(status=500, error={"message": f"{KEY} Go", "code": KEY})
    server.answer("Fine.")
    async with chatting(tmp_path, server) as hall:
        error = await failed(hall, "my private question", "q1")
        assert error == f"The model 'tiny' at {server.url} refused the request (HTTP 500, no reason given)."
        assert [message["id"] for message in await history(hall)] == ["q1", "q1-reply"]
        _, message = await ask(hall, "my private question", "q1")  # B10: one question, then the reply
        assert await history(hall) == [text("q1", "my private question"), message]
        assert KEY not in repr(hall.events)
    assert KEY not in caplog.text
    assert "private" not in caplog.text


async def test_a_complete_reply_is_returned_and_not_made_again(server: ModelServer, tmp_path: Path) -> None:
    server.answer("Once.")
    async with chatting(tmp_path, server) as hall:
        _, first = await ask(hall, "Go", "q1")
        chunks, second = await ask(hall, "Go", "q1")
        assert (first, chunks) == (second, [])
        assert len(server.requests) == 1


async def test_an_id_that_is_no_unicode_is_one_question_all_the_same(server: ModelServer, tmp_path: Path) -> None:
    reply = server.answer("One ", "answer", pause_before=1)
    async with chatting(tmp_path, server) as hall:
        hall.send("one", "chat", "Go", "q\ud800")
        await asyncio.wait_for(reply.is_paused.wait(), 5)
        assert await hall.call("cancelChat", "q\ud800") is True
        await hall.answer("one")
        _, message = await ask(hall, "Go", "q\ud800")
        assert message["id"] == "q\ufffd-reply"
        assert message["metadata"]["status"] == "cancelled"
        assert await ask(hall, "Go", "q\ufffd") == ([], message)
        assert len(server.requests) == 1


async def test_the_same_question_while_it_is_answered_waits_for_that_answer(
    server: ModelServer, tmp_path: Path
) -> None:
    reply = server.answer("Half an ", "answer", pause_before=1)
    async with chatting(tmp_path, server) as hall:
        for call in ("one", "two"):
            hall.send(call, "chat", "Go", "q1")
        await until_chunk(hall, "one")
        reply.go.set()
        answers = [await hall.answer(call) for call in ("one", "two")]
        assert isinstance(answers[0], Result)
        assert isinstance(answers[1], Result)
        assert answers[0].result == answers[1].result
        assert len(server.requests) == 1


async def test_a_second_turn_waits_for_the_first_and_sees_it(server: ModelServer, tmp_path: Path) -> None:
    reply = server.answer("First", pause_before=0)
    server.answer("Second")
    async with chatting(tmp_path, server) as hall:
        hall.send("one", "chat", "Question 1", "q1")
        await asyncio.wait_for(reply.is_paused.wait(), 5)
        hall.send("two", "chat", "Question 2", "q2")
        await hall.call("appendMessage", text("other", "by the way"))  # another client's message waits for nothing
        assert len(server.requests) == 1
        reply.go.set()
        await hall.answer("two")
        assert [message["id"] for message in await history(hall)] == ["q1", "q1-reply", "other", "q2", "q2-reply"]
        assert [message["content"] for message in server.requests[1]["messages"][1:]] == [
            *("Question 1", "First", "by the way", "Question 2")
        ]


async def test_a_turn_that_was_cut_short_goes_on_without_running_its_tools_again(
    server: ModelServer, tmp_path: Path
) -> None:
    server.answer("I add. ", calls=[("c1", "add", '{"a": 1, "b": 2}')])
    server.answer("It is th", "ree.", cut_before=1)
    server.answer("Three.")
    store = MemoryStore()
    async with chatting(tmp_path, server, store=store) as hall:
        await failed(hall, "1 + 2?", "q1")
        assert len(Helper.calls) == 1
    async with chatting(tmp_path, server, store=store) as hall:
        _, message = await ask(hall, "1 + 2?", "q1")
        assert Helper.calls == []
        assert [part.get("text") or part["type"] for part in message["parts"]] == [
            *("I add. ", "tool-add", "step-start", "Three.")
        ]
        assert await history(hall) == [text("q1", "1 + 2?"), message]
        assert server.requests[2]["messages"] == server.requests[1]["messages"]


def dead_reply(state: str = "streaming") -> Json:
    """What a turn leaves whose process was killed while a tool ran."""
    call = {"type": "tool-add", "toolCallId": "c1", "toolName": "add", "input": {"a": 1, "b": 2}}
    return {
        "id": "q1-reply",
        "role": "assistant",
        "parts": [{"type": "text", "text": "I add."}, {**call, "state": "input-available"}],
        "metadata": {"replyTo": "q1", "status": state, "model": "tiny"},
    }


@pytest.mark.parametrize("question", ["q1", "q2"])
async def test_a_call_whose_process_died_is_sealed_by_the_next_turn_and_not_run(
    server: ModelServer, tmp_path: Path, question: str
) -> None:
    server.answer("I do not know.")
    async with chatting(tmp_path, server) as hall:
        await hall.call("appendMessage", text("q1", "1 + 2?"))
        await hall.call("appendMessage", dead_reply())
        await ask(hall, "1 + 2?", question)
        stored = {message["id"]: message for message in await history(hall)}
        (part,) = tool_parts(stored["q1-reply"])
        assert part["state"] == "output-error"
        assert "interrupted" in part["errorText"]
        assert Helper.calls == []
        messages = server.requests[0]["messages"]
        assert [message["role"] for message in messages[1:4]] == ["user", "assistant", "tool"]
        status = stored["q1-reply"]["metadata"]["status"]
        assert status == ("done" if question == "q1" else "interrupted")


async def test_a_turn_that_is_drained_leaves_what_it_has_and_goes_on_elsewhere(
    server: ModelServer, tmp_path: Path
) -> None:
    reply = server.answer("Half an ", "answer", pause_before=1)
    store = MemoryStore()
    async with chatting(tmp_path, server, store=store) as hall:
        hall.send("one", "chat", "Go", "q1")
        await until_chunk(hall, "one")
        assert hall.conversation.is_busy
        await hall.conversation.hibernate(0.05)
        answer = await hall.answer("one")
        assert isinstance(answer, Failure)
        await asyncio.wait_for(reply.is_gone.wait(), 5)
    server.answer("Whole.")
    async with chatting(tmp_path, server, store=store) as hall:
        stored = (await history(hall))[1]
        assert stored["parts"] == [{"type": "text", "text": "Half an "}]
        assert stored["metadata"]["status"] == "interrupted"
        _, message = await ask(hall, "Go", "q1")
        assert message["parts"] == [{"type": "text", "text": "Whole."}]


async def test_a_result_that_could_not_be_stored_is_not_lost_and_its_tool_not_run_again(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # B11
    server.answer(calls=[("c1", "add", '{"a": 1, "b": 2}')])
    server.answer("Three.")
    async with chatting(tmp_path, server) as hall:
        session = hall.conversation._agent.session
        update, failures = session.update_message, []

        async def full(message: Json) -> None:
            if any(part.get("state") == "output-available" for part in message["parts"]):
                failures.append(message["id"])
                raise StoreUnavailable("scripted")
            await update(message)

        monkeypatch.setattr(session, "update_message", full)
        await failed(hall, "1 + 2?", "q1")
        assert failures
        monkeypatch.setattr(session, "update_message", update)
        (part,) = tool_parts((await history(hall))[1])
        assert part["state"] == "input-available"
        await ask(hall, "1 + 2?", "q1")
        (part,) = tool_parts((await history(hall))[1])
        assert part["state"] == "output-error"
        assert len(Helper.calls) == 1


async def test_the_model_writes_the_summaries_too_and_sees_them_in_later_turns(
    server: ModelServer, tmp_path: Path
) -> None:
    server.summary = Reply(["## Topic\nA long talk"])
    async with chatting(tmp_path, server, compact_after=400) as hall:
        for number in range(8):
            server.answer("word " * 60)
            await ask(hall, f"Question {number}", f"q{number}")
            await hall.conversation._agent.session.settled()
        await ask(hall, "And now?", "last")
        overlay = next(message for message in await history(hall) if message["id"].startswith("compaction_"))
        told = server.requests[-1]["messages"]
        assert {"role": "assistant", "content": overlay["parts"][0]["text"]} in told
        assert overlay["parts"] == [{"type": "text", "text": "## Topic\nA long talk"}]
        assert len(told) < 2 * 9


# ---- where it is stored -----------------------------------------------------------------------------------------


async def test_an_old_question_that_is_asked_again_is_answered_from_its_own_place(
    server: ModelServer, tmp_path: Path
) -> None:
    """q1 was stored, its process died; q2 was answered; then q1 is tried again."""
    server.answer("Half an", cut_before=0)
    server.answer("Two.")
    server.answer("One.")
    server.answer("Three.")
    async with chatting(tmp_path, server) as hall:
        await failed(hall, "Question 1", "q1")
        await ask(hall, "Question 2", "q2")
        await ask(hall, "Question 1", "q1")
        assert told(server, 2) == ["Question 1"]
        assert [message["id"] for message in await history(hall)] == ["q1", "q1-reply", "q2", "q2-reply"]
        assert (await history(hall))[1]["parts"] == [{"type": "text", "text": "One."}]
        await ask(hall, "Question 3", "q3")
        assert told(server, 3) == ["Question 1", "One.", "Question 2", "Two.", "Question 3"]


async def test_a_question_without_a_reply_gets_it_below_itself_whatever_came_since(
    server: ModelServer, tmp_path: Path
) -> None:
    server.answer("Two.")
    server.answer("One.")
    server.answer("Three.")
    async with chatting(tmp_path, server) as hall:
        await hall.call("appendMessage", text("q1", "Question 1"))
        await ask(hall, "Question 2", "q2")
        await ask(hall, "Question 1", "q1")
        assert told(server, 1) == ["Question 1"]
        assert [message["id"] for message in await hall.call("getBranches", "q1")] == ["q2", "q1-reply"]
        # what was added last is the latest leaf, and the other branch is where it was
        assert [message["id"] for message in await history(hall)] == ["q1", "q1-reply"]
        assert [message["id"] for message in await hall.call("getHistory", "q2-reply")] == ["q1", "q2", "q2-reply"]
        await ask(hall, "Question 3", "q3")
        assert told(server, 2) == ["Question 1", "One.", "Question 3"]


async def test_nothing_comes_between_a_question_and_its_reply(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer("One.")
    async with chatting(tmp_path, server) as hall:
        session = hall.conversation._agent.session
        append, append_all, others = session.append_message, session.append_messages, iter(range(9))

        def with_another(write: Any) -> Any:
            async def write_both(*arguments: Any) -> None:
                await write(*arguments)
                await append(text(f"other{next(others)}", "meanwhile"))

            return write_both

        monkeypatch.setattr(session, "append_message", with_another(append))
        monkeypatch.setattr(session, "append_messages", with_another(append_all))
        await ask(hall, "Question 1", "q1")
        assert [message["id"] for message in await history(hall)] == ["q1", "q1-reply", "other0"]
        assert told(server, 0) == ["Question 1"]


async def test_a_question_that_a_summary_ends_with_is_still_asked(server: ModelServer, tmp_path: Path) -> None:
    server.answer("One.")
    async with chatting(tmp_path, server) as hall:
        await hall.call("appendMessage", text("before", "Hello"))
        await hall.call("appendMessage", text("q1", "Question 1"))
        await hall.call("addCompaction", "Greetings", "before", "q1")
        await ask(hall, "Question 1", "q1")
        assert told(server, 0) == ["Greetings", "Question 1"]


async def test_two_clients_append_while_a_turn_runs(server: ModelServer, tmp_path: Path) -> None:
    reply = server.answer("Adding ", "now.", calls=[("c1", "add", '{"a": 1, "b": 2}')], pause_before=1)
    server.answer("Three.")
    server.answer("Yes.")
    async with chatting(tmp_path, server) as hall:
        await hall.connect(2)
        hall.send("one", "chat", "1 + 2?", "q1")
        await until_chunk(hall, "one")
        for number in range(5):
            for client in (1, 2):
                message = text(f"m{client}-{number}", f"by {client}")
                hall.send(f"append{client}-{number}", "appendMessage", message, connection=client)
        for number in range(5):
            for client in (1, 2):
                assert isinstance(await hall.answer(f"append{client}-{number}"), Result)
        reply.go.set()
        await hall.answer("one")
        assert told(server, 1)[0] == "1 + 2?"
        assert "by" not in json.dumps(server.requests[1]["messages"][1:])
        shown = await history(hall)
        assert [message["id"] for message in shown[:2]] == ["q1", "q1-reply"]
        for client in (1, 2):
            own = [message["id"] for message in shown if message["id"].startswith(f"m{client}-")]
            assert own == [f"m{client}-{number}" for number in range(5)]
        assert shown[1]["parts"][-1] == {"type": "text", "text": "Three."}
        assert await hall.call("getPathLength") == 12
        await ask(hall, "Seen?", "q2")
        assert len(told(server, 2)) == 15  # one of them is the tool's answer
        session = hall.conversation._agent.session
        assert await session._parts.history.path_tokens() == estimate_message_tokens(await history(hall))


@pytest.mark.parametrize("what", ["clear", "both", "question", "reply"])
async def test_a_turn_whose_question_is_deleted_meanwhile_ends_and_leaves_nothing(
    server: ModelServer, tmp_path: Path, what: str
) -> None:
    """Neither is the model asked again, nor is a call of its answer run."""
    reply = server.answer("Adding ", "now.", calls=[("c1", "wait", "{}")], pause_before=1)
    server.answer(calls=[("c2", "add", '{"a": 1, "b": 2}')])
    server.answer("Fresh.")
    gone = {"clear": {"q1", "q1-reply", "q0"}, "both": {"q1", "q1-reply"}, "question": {"q1"}, "reply": {"q1-reply"}}[
        what
    ]
    async with chatting(tmp_path, server) as hall:
        await hall.call("appendMessage", text("q0", "before"))
        hall.send("one", "chat", "1 + 2?", "q1")
        await until_chunk(hall, "one")
        await (hall.call("clearMessages") if what == "clear" else hall.call("deleteMessages", sorted(gone)))
        Helper.hold.set()
        reply.go.set()
        answer = await hall.answer("one")
        assert isinstance(answer, Failure)
        assert answer.code == "unknown_message"
        assert f"no message '{'q1' if what == 'question' else 'q1-reply'}'" in answer.error
        assert len(server.requests) == 1
        assert Helper.begun.is_set() == (what == "question")  # the reply could be stored, and so its calls were run
        left = {message["id"] for message in await history(hall)}
        assert left == {"q0", "q1", "q1-reply"} - gone
        server.script.clear()
        server.answer("Fresh.")
        if what == "question":
            assert "another message with the id 'q1-reply'" in await failed(hall, "1 + 2?", "q1")
            assert "q1" not in {message["id"] for message in await history(hall)}
        else:
            _, message = await ask(hall, "1 + 2?", "q1")
            assert message["parts"] == [{"type": "text", "text": "Fresh."}]
            assert told(server, 1)[-1] == "1 + 2?"


async def test_the_model_is_not_asked_for_a_reply_that_was_deleted_between_two_steps(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer(calls=[("c1", "add", '{"a": 1, "b": 2}')])
    async with chatting(tmp_path, server) as hall:
        session = hall.conversation._agent.session
        tools = session.tools

        async def deleting() -> Any:
            if server.requests:
                await session.delete_messages(["q1-reply"])
            return await tools()

        monkeypatch.setattr(session, "tools", deleting)
        assert "no message 'q1-reply'" in await failed(hall, "1 + 2?", "q1")
        assert len(server.requests) == 1
        assert await history(hall) == [text("q1", "1 + 2?")]


async def test_a_conversation_with_a_turn_hibernates_in_bounded_time_also_when_its_tools_end_never(
    server: ModelServer, tmp_path: Path
) -> None:
    """While it runs it is busy, which keeps the keeper from putting it to sleep; a drain gives it its time and no more."""
    release = threading.Event()

    class Stuck(Helper):
        tool_seconds = 60.0

        def tools(self) -> Any:
            return {"hold": self.hold_on, "swallow": self.swallow}

        def hold_on(self) -> str:
            loop.call_soon_threadsafe(Helper.begun.set)
            release.wait(30)
            return "late"

        async def swallow(self) -> str:
            await asyncio.sleep(60)
            return "late"

    store, loop = MemoryStore(), asyncio.get_running_loop()
    server.answer(calls=[("c1", "hold", "{}"), ("c2", "swallow", "{}")])
    try:
        async with chatting(tmp_path, server, Stuck, store=store) as hall:
            hall.send("one", "chat", "Go", "q1")
            await asyncio.wait_for(Helper.begun.wait(), 5)
            assert hall.conversation.is_busy
            started = loop.time()
            await hall.conversation.hibernate(0.3)
            assert 0.3 <= loop.time() - started < 2
            assert isinstance(await hall.answer("one"), Failure)
            assert not hall.conversation.is_busy
    finally:
        release.set()
    async with chatting(tmp_path, server, store=store) as hall:
        stored = (await history(hall))[1]
        assert stored["metadata"]["status"] == "interrupted"
        assert ["interrupted" in part["errorText"] for part in tool_parts(stored)] == [True, True]
        assert "late" not in json.dumps(stored)


# ---- how large it may be ----------------------------------------------------------------------------------------


@asynccontextmanager
async def counted_updates(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    session = hall.conversation._agent.session
    update, sizes = session.update_message, []

    async def counting(message: Json) -> None:
        sizes.append(reply_module.size_of(message))
        await update(message)

    with monkeypatch.context() as patch:
        patch.setattr(session, "update_message", counting)
        yield sizes


def log_bytes(store: MemoryStore) -> int:
    return sum(len(data) for key, data in store.objects.items() if "/log/" in key)


async def test_a_long_answer_is_written_a_few_times_and_not_its_square(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 MB from a model so slow that time would allow a save for each piece."""
    monkeypatch.setattr(reply_module, "SAVE_SECONDS", 0.0)
    rng = random.Random(4)
    pieces = ["".join(rng.choices(string.ascii_letters, k=1_024)) for _ in range(1_024)]
    store = MemoryStore()
    async with chatting(tmp_path, server, store=store) as hall, counted_updates(hall, monkeypatch) as sizes:
        session = hall.conversation._agent.session
        reply = await reply_module.Reply.begin(session, "q1", "Go", model="tiny", limit=8 * 1024 * 1024)
        before = log_bytes(store)
        for piece in pieces:
            reply.add_text(piece)
            if reply._saving is not None:
                await reply._saving
        message = await reply.finish("done")
        assert (await history(hall))[1] == message
        assert message["parts"] == [{"type": "text", "text": "".join(pieces)}]
        size = reply_module.size_of(message)
        most = (reply_module.WRITE_FACTOR + 1) * size + reply_module.WRITE_FREE  # and the end
        assert sum(sizes) <= most
        assert log_bytes(store) - before < 1.5 * most
        assert all(later <= 1.3 * size for size, later in pairwise(sizes[20:]))  # no long part of it waits for the end


async def test_many_answers_of_tools_are_written_a_few_times_and_not_once_for_each(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wordy(Helper):
        def tools(self) -> Any:
            return {"long": lambda: "x" * 10_000}

    server.answer(calls=[(f"c{number}", "long", "{}") for number in range(60)])
    server.answer("Done.")
    async with chatting(tmp_path, server, Wordy) as hall, counted_updates(hall, monkeypatch) as sizes:
        chunks, message = await ask(hall, "Go", "q1")
        assert [part["output"] for part in tool_parts(message)] == ["x" * 10_000] * 60
        assert len(chunks) == 2 * 60 + 1
        size = reply_module.size_of(message)
        assert sum(sizes) <= (reply_module.WRITE_FACTOR + 3) * size + reply_module.WRITE_FREE


async def test_all_answers_of_a_step_are_stored_before_the_model_is_asked_again(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_module, "WRITE_FACTOR", 0)
    monkeypatch.setattr(reply_module, "WRITE_FREE", 0)
    server.answer("I add.", calls=[("c1", "add", '{"a": 1, "b": 2}'), ("c2", "add", '{"a": 3, "b": 4}')])
    reply = server.answer("Done.", pause_before=0)
    async with chatting(tmp_path, server) as hall, counted_updates(hall, monkeypatch) as sizes:
        hall.send("one", "chat", "Go", "q1")
        await asyncio.wait_for(reply.is_paused.wait(), 5)
        assert [part["output"] for part in tool_parts((await history(hall))[1])] == [3, 7]
        assert len(sizes) == 2  # the calls before they were run, and the answers
        reply.go.set()
        await hall.answer("one")
        assert len(sizes) == 3


@pytest.mark.parametrize("piece", ["word ", 'q"\n', "ä€", "\U0001f600"])
async def test_a_reply_that_a_message_cannot_hold_is_cut_and_complete(
    server: ModelServer, tmp_path: Path, piece: str
) -> None:
    reply = server.answer(*[piece * 20] * 400, pause_before=399)
    async with chatting(tmp_path, server, max_message_bytes=4_096) as hall:
        chunks, message = await ask(hall, "Go", "q1")
        await asyncio.wait_for(reply.is_gone.wait(), 5)  # the model is not paid for what nobody keeps
        assert len(chunks) < 399
        assert message["metadata"]["status"] == "full"
        assert 2_048 < reply_module.size_of(message) <= 4_096
        assert (piece * 8_000).startswith(message["parts"][0]["text"])
        assert (await history(hall))[1] == message
        assert await ask(hall, "Go", "q1") == ([], message)
        assert len(server.requests) == 1
        server.answer("Next.")
        _, after = await ask(hall, "And?", "q2")
        assert after["metadata"]["status"] == "done"


async def test_calls_that_a_full_reply_cannot_hold_are_not_run(server: ModelServer, tmp_path: Path) -> None:
    server.answer("Let me see.", calls=[("c1", "lookup", json.dumps({"query": "x" * 3_000}))])
    async with chatting(tmp_path, server, max_message_bytes=2_048) as hall:
        chunks, message = await ask(hall, "Go", "q1")
        assert [chunk["type"] for chunk in chunks] == ["text-delta"]
        assert message["parts"] == [{"type": "text", "text": "Let me see."}]
        assert message["metadata"]["status"] == "full"


async def test_a_reply_that_is_full_of_answers_ends_and_is_not_gone_on_with_for_ever(
    server: ModelServer, tmp_path: Path
) -> None:
    class Wordy(Helper):
        max_steps = 50

        def tools(self) -> Any:
            return {"long": lambda: "x" * 600}

    for number in range(50):
        server.answer(calls=[(f"c{number}", "long", "{}")])
    async with chatting(tmp_path, server, Wordy, max_message_bytes=4_096) as hall:
        _, message = await ask(hall, "Go", "q1")
        assert message["metadata"]["status"] == "full"
        assert 4 <= len(server.requests) < 30
        assert tool_parts(message)[0]["output"] == "x" * 600
        assert all(part["state"] in ("output-available", "output-error") for part in tool_parts(message))
        assert reply_module.size_of(message) <= 4_096
        asked = len(server.requests)
        assert await ask(hall, "Go", "q1") == ([], message)
        assert len(server.requests) == asked


async def test_a_reply_that_an_earlier_try_left_full_ends_without_the_model(
    server: ModelServer, tmp_path: Path
) -> None:
    async with chatting(tmp_path, server, max_message_bytes=2_048) as hall:
        message = dead_reply()
        message["parts"][0]["text"] = "x" * (2_048 - reply_module.size_of(message) + len("I add."))
        await hall.call("appendMessage", text("q1", "Go"))
        await hall.call("appendMessage", message)
        _, ended = await ask(hall, "Go", "q1")
        assert ended["metadata"]["status"] == "full"
        assert server.requests == []
        assert await ask(hall, "Go", "q1") == ([], ended)


async def test_a_storage_that_holds_less_than_the_settings_say_cuts_at_what_it_has(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_module, "SAVE_SECONDS", 0.0)
    reply, is_stored = server.answer(*["word "] * 2_000, pause_before=150), asyncio.Event()
    async with chatting(tmp_path, server) as hall:
        session = hall.conversation._agent.session
        update = session.update_message

        async def narrow(message: Json) -> None:
            if reply_module.size_of(message) > 2_000:
                raise LimitExceeded("A message", "2,000 bytes")
            await update(message)
            if reply_module.size_of(message) > 750:  # all words before the pause
                is_stored.set()

        monkeypatch.setattr(session, "update_message", narrow)
        hall.send("one", "chat", "Go", "q1")
        await asyncio.wait_for(is_stored.wait(), 10)
        reply.go.set()
        answer = await hall.answer("one")
        assert isinstance(answer, Result)
        message = json.loads(answer.result or b"")["message"]
        assert message["metadata"]["status"] == "full"
        assert message["parts"][0]["text"].startswith("word word")
        assert (await history(hall))[1] == message


@settings(max_examples=1_000 if os.environ.get("TESTS_LONG") else 60, deadline=None)
@given(st.lists(st.text(max_size=300) | st.none(), max_size=6), st.integers(200, 1_500))
def test_what_is_cut_fits_and_begins_as_the_whole(texts: list[str | None], limit: int) -> None:
    parts = [{"type": "step-start"} if part is None else {"type": "text", "text": part} for part in texts]
    metadata = {"replyTo": "q", "status": "done"}
    whole = {"id": "q-reply", "role": "assistant", "parts": parts, "metadata": metadata}
    message = reply_module.cut(whole, limit)
    assert reply_module.size_of(message) <= limit
    assert whole["parts"] == parts
    assert metadata["status"] == "done"
    if reply_module.size_of(whole) <= limit:
        assert message is whole
        return
    assert message["metadata"]["status"] == "full"
    kept = message["parts"]
    assert kept[:-1] == parts[: len(kept)][:-1]
    if kept and kept[-1]["type"] == "text":
        assert clean(parts[len(kept) - 1]["text"]).startswith(kept[-1]["text"])


def test_of_many_parts_no_more_are_cut_than_must_be_and_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(count: int) -> Json:
        return {**dead_reply(), "parts": [{"type": "step-start", "n": "x" * (number % 7)} for number in range(count)]}

    whole, measured, size_of = reply(500), [], reply_module.size_of
    monkeypatch.setattr(reply_module, "size_of", lambda message: measured.append(1) or size_of(message))
    for limit in range(200, 5_000, 321):
        measured.clear()
        kept = len(reply_module.cut(whole, limit)["parts"])
        status = {"metadata": {**whole["metadata"], "status": "full"}}
        assert size_of({**reply(kept), **status}) <= limit
        assert size_of({**reply(kept + 1), **status}) > limit
        assert len(measured) <= 5


# ---- whatever is stored ------------------------------------------------------------------------------------------


any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 10**20) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


def objects(**plausible: list[Any]) -> st.SearchStrategy[Json]:
    """Objects with some of these fields: as they should be, or any JSON."""
    fields = {name: st.sampled_from(values) | any_json for name, values in plausible.items()}
    return st.fixed_dictionaries({}, optional=fields)


TYPES = ("f", "", " ", "result", "call", "error")
odd_parts = objects(
    type=[*("text", "file", "image", "step-start", "dynamic-tool"), *(f"tool-{name}" for name in TYPES)],
    toolCallId=["a", "b"],
    toolName=["f", "", " ", "two words", "ä"],
    state=["input-available", "output-available", "output-error", "output-denied", "approval-requested"],
    text=["hi"],
    url=["data:text/plain;base64,eA==", "data:,x", "https://x.example/y", "eA=="],
    mediaType=["image/png", "text/plain"],
    preliminary=[True],
    **{name: ["x"] for name in ("input", "args", "output", "result", "errorText", "error", "image", "data")},
    **{name: ["x"] for name in ("mimeType", "filename", "name")},
)
odd_metadata = objects(
    replyTo=["q1"],
    status=["streaming", "error", "done"],
    usage=[{"inputTokens": 5, "outputTokens": 5}, {"inputTokens": "x"}],
    error=["no"],
    finishReason=["stop"],
    model=["tiny"],
)


@st.composite
def odd_messages(draw: st.DrawFn) -> list[Json]:
    """A question, a message with the id of its reply, and others."""
    messages: list[Json] = [text("q1", "Go")]
    for identity in ["q1-reply", *draw(st.lists(st.sampled_from(["m1", "m2", "m3"]), unique=True))]:
        role = draw(st.sampled_from(["assistant", "assistant", "user", "system", "tool"]))
        message = {"id": identity, "role": role, "parts": draw(st.lists(odd_parts, max_size=4))}
        messages.append({**message, **draw(st.fixed_dictionaries({}, optional={"metadata": odd_metadata | any_json}))})
    return messages


class Stored:
    """The part of a `Session` that a reply uses, over a dictionary."""

    def __init__(self, messages: list[Json]) -> None:
        self.messages = {message["id"]: encode(message)[0] for message in messages}

    async def get_message(self, identity: str) -> Json | None:
        return self.messages.get(identity)

    async def get_history(self, leaf: str) -> list[Json]:
        return list(self.messages.values())

    async def update_message(self, message: Json) -> None:
        self.messages[message["id"]] = encode(message)[0]


@settings(max_examples=2_000 if os.environ.get("TESTS_LONG") else 150, deadline=None)
@given(odd_messages())
def test_no_message_that_can_be_stored_breaks_a_chat(messages: list[Json]) -> None:
    async def turn() -> None:
        stored: Any = Stored(messages)
        try:
            reply = await reply_module.Reply.begin(stored, "q1", "Go", model="tiny", limit=100_000)
        except InvalidArgument:  # another message with that id
            reply = reply_module.Reply(
                stored, encode({**messages[1], "role": "assistant", "metadata": {"replyTo": "q1"}})[0], 9_999
            )
        history = await reply_module.seal_dead(stored, await reply.path(), reply.id)
        told = model_messages(history, "Prompt")
        assert problems(told) == []
        json.dumps(told)
        reply.add_text("Hello")
        call = reply.add_call("a", "f", {})
        reply.end_step(Usage(3, 4), "tool_calls")
        await reply.answer(call, {"state": "output-available", "output": 1})
        ended = await reply.finish("done")
        assert ended["metadata"]["usage"]["inputTokens"] in (3, 8)
        assert stored.messages["q1-reply"] == ended
        for limit in (10, 300):
            reply_module.cut(ended, limit)

    asyncio.run(turn())


@pytest.mark.parametrize(
    "odd",
    [
        {"parts": [{"type": "tool-x", "toolCallId": "c", "state": ["x"], "input": {}}]},
        {"parts": [{"type": "tool-", "toolCallId": "c", "state": "output-available", "input": {}, "output": "o"}]},
        {"parts": [{"type": "tool-x", "toolCallId": "c"}], "metadata": {"replyTo": [], "status": ["streaming"]}},
        {"parts": [{"type": "tool-x", "toolCallId": "c"}], "metadata": {"replyTo": [], "status": "streaming"}},
        {"parts": [], "metadata": 5},
    ],
)
async def test_an_odd_message_does_not_end_the_chat_of_its_conversation(
    server: ModelServer, tmp_path: Path, odd: Json
) -> None:
    async with chatting(tmp_path, server) as hall:
        await hall.call("appendMessage", {"id": "odd", "role": "assistant", **odd})
        for number in range(2):
            _, message = await ask(hall, "Go", f"q{number}")
            assert message["metadata"]["status"] == "done"


@pytest.mark.parametrize(
    "usage",
    [
        5,
        [],
        None,
        {"inputTokens": "x", "outputTokens": [1]},
        {"inputTokens": True},
        {"inputTokens": -5, "outputTokens": 10**20},
    ],
)
async def test_an_odd_count_in_a_reply_that_is_gone_on_with_counts_nothing(
    server: ModelServer, tmp_path: Path, usage: Any
) -> None:
    async with chatting(tmp_path, server) as hall:
        await hall.call("appendMessage", text("q1", "Go"))
        dead = dead_reply()
        dead["metadata"]["usage"] = usage
        await hall.call("appendMessage", dead)
        _, message = await ask(hall, "Go", "q1")
        assert message["metadata"]["usage"] == {"inputTokens": 10, "outputTokens": 5}


# ---- the history for a model ------------------------------------------------------------------------------------


def tool(identity: str, **part: Any) -> Json:
    return {"type": "tool-f", "toolCallId": identity, "input": {}, **part}


def assistant(*parts: Json, identity: str = "a") -> Json:
    return {"id": identity, "role": "assistant", "parts": list(parts)}


def test_a_result_of_a_message_of_its_own_comes_right_behind_its_call() -> None:
    result = {"type": "tool-result", "toolCallId": "k", "output": "late"}
    messages = [
        assistant(tool("k", state="input-available")),
        text("u"),
        {"id": "r", "role": "tool", "parts": [result]},
    ]
    assert [message["role"] for message in model_messages(messages)] == ["assistant", "tool", "user"]
    assert model_messages(messages)[1]["content"] == "late"


@st.composite
def tool_part(draw: st.DrawFn) -> Json:
    """A part of a call or a result, in any state that histories have been seen in, and in some that they have not."""
    kind = draw(st.sampled_from(["tool-f", "tool-result", "tool-call", "dynamic-tool"]))
    part: Json = {"type": kind, "toolCallId": draw(st.sampled_from(["a", "b", "c", ""]))}
    states = [
        "input-streaming",
        "input-available",
        "approval-requested",
        "output-available",
        "output-error",
        "output-denied",
    ]
    for name, values in {
        "toolName": ["f", "", "odd name!", None],
        "input": [{}, None, "text", [1]],
        "state": states,
        "output": ["x", "", None, {"deep": ["\ud800"]}],
        "result": ["y", None],
        "errorText": ["no", None],
        "preliminary": [True, False],
    }.items():
        if draw(st.booleans()):
            part[name] = draw(st.sampled_from(values))
    return part


text_parts = st.sampled_from(
    [
        {"type": "text", "text": "hi"},
        {"type": "text", "text": ""},
        {"type": "step-start"},
        {"type": "file"},
        {"type": "text"},
    ]
)
histories = st.lists(
    st.builds(
        lambda role, parts: {"id": "m", "role": role, "parts": parts},
        st.sampled_from(["user", "assistant", "assistant", "tool", "system", "data"]),
        st.lists(tool_part() | text_parts, max_size=5),
    ),
    max_size=8,
)


@settings(max_examples=2_000 if os.environ.get("TESTS_LONG") else 120, deadline=None)
@given(histories)
def test_a_strict_endpoint_takes_every_history(messages: list[Json]) -> None:  # B29
    told = model_messages(messages, "Prompt")
    assert problems(told) == []
    json.dumps(told)


def test_an_id_that_is_used_again_is_another_call() -> None:
    messages = [assistant(tool("k", output=n, state="output-available"), identity=f"a{n}") for n in (1, 2)]
    assert [message.get("content") for message in model_messages(messages)] == [None, "1", None, "2"]
    late = assistant(tool("k", output=2, state="output-available"))  # repeats the call in order to answer it
    told = model_messages([assistant(tool("k", state="input-available")), late])
    assert [message.get("content") for message in told] == [None, "2"]


def test_orphans_and_calls_without_answers_are_made_sound() -> None:
    orphan = {"id": "r", "role": "tool", "parts": [{"type": "tool-result", "toolCallId": "gone", "output": "x"}]}
    messages = model_messages([orphan, assistant(tool("k", state="input-available")), text("u")])
    assert [message["role"] for message in messages] == ["assistant", "tool", "user"]
    assert messages[1]["content"] != ""


@pytest.mark.parametrize("given", [None, "", [], '{"a": 1}', 7])
def test_an_input_that_is_no_object_is_told_as_an_empty_one(given: Any) -> None:  # D32, B61
    (call, _) = model_messages([assistant(tool("k", input=given, output="x", state="output-available"))])
    assert call["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_ids_that_occur_twice_in_a_step_and_odd_names_are_made_sound() -> None:
    parts = [{**tool("k", output=n, state="output-available"), "toolName": "naïve tool" + "x" * 99} for n in (1, 2)]
    first, *answers = model_messages([assistant(*parts)])
    ids = [call["id"] for call in first["tool_calls"]]
    assert len(set(ids)) == 2
    assert [answer["tool_call_id"] for answer in answers] == ids
    assert [answer["content"] for answer in answers] == ["1", "2"]
    assert {len(call["function"]["name"]) for call in first["tool_calls"]} == {64}


def test_steps_are_told_apart_and_a_summary_is_an_ordinary_message() -> None:
    done = {"output": "x", "state": "output-available"}
    message = assistant({"type": "text", "text": "one"}, tool("k", **done), {"type": "step-start"}, tool("l", **done))
    summary = {"id": "compaction_1", "role": "assistant", "parts": [{"type": "text", "text": "Earlier: tea."}]}
    told = model_messages([text("s", "Be kind.", "system"), summary, message, assistant(identity="empty")], "Prompt")
    assert [m["role"] for m in told] == ["system", "system", "assistant", "assistant", "tool", "assistant", "tool"]
    assert told[2] == {"role": "assistant", "content": "Earlier: tea."}
    assert told[5]["content"] is None


@pytest.mark.parametrize(
    ("call", "result", "arguments", "answer"),
    [
        ({"input": {"n": 1}}, {"type": "tool-result", "output": {"m": [2]}}, '{"n":1}', '{"m":[2]}'),
        ({"type": "tool-call", "args": {"n": 1}}, {"type": "tool-result", "result": "two"}, '{"n":1}', "two"),
        ({}, {"type": "tool-error", "error": "closed"}, "{}", "Error: closed"),
        ({}, {"type": "tool-error", "error": {"code": 7}}, "{}", 'Error: {"code":7}'),
        ({}, {"type": "tool-result", "state": "output-error", "errorText": "no"}, "{}", "Error: no"),
        ({}, {"type": "tool-result", "output": None}, "{}", "null"),
        ({"output": "half", "preliminary": True}, {"type": "text", "text": "hi"}, "{}", "half"),
        ({"output": "half", "preliminary": True}, {"type": "tool-result", "output": "whole"}, "{}", "whole"),
    ],
)
def test_calls_and_answers_of_every_shape_are_told(call: Json, result: Json, arguments: str, answer: str) -> None:
    messages = [
        assistant({"type": "tool-f", "toolCallId": "k", "toolName": "f", **call}),
        {
            "id": "r",
            "role": "assistant",
            "parts": [result if result["type"] == "text" else {"toolCallId": "k", **result}],
        },
    ]
    asked, answered, *_ = model_messages(messages)
    assert asked["tool_calls"][0]["function"] == {"name": "f", "arguments": arguments}
    assert answered == {"role": "tool", "tool_call_id": "k", "content": answer}


def test_the_first_final_answer_of_a_call_is_the_one_that_is_told() -> None:
    results = [{"type": "tool-result", "toolCallId": "k", "output": n} for n in (1, 2)]
    messages = [assistant(tool("k", state="input-available")), assistant(*results, identity="r")]
    assert [message.get("content") for message in model_messages(messages)] == [None, "1"]


def test_a_denied_and_a_failed_call_are_told_in_words() -> None:
    parts = [tool("k", state="output-denied"), tool("l", state="output-error", errorText="no")]
    _, denied, failure = model_messages([assistant(*parts)])
    assert (denied["content"], failure["content"]) == ("The user did not allow this call.", "Error: no")
    assert NO_ANSWER not in denied["content"]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"type": "tool-"}, "unknown"),
        ({"type": "tool-", "toolName": ""}, "unknown"),
        ({"type": "dynamic-tool", "toolName": "ä b"}, "_b"),
        ({"type": "tool-" + "x" * 90}, "x" * 64),
    ],
)
def test_every_name_of_a_tool_is_one_that_endpoints_take(part: Json, name: str) -> None:
    call, _ = model_messages([assistant({"toolCallId": "a", "input": {}, "output": "x", **part})])
    assert call["tool_calls"][0]["function"]["name"] == name


def test_a_system_message_without_words_is_left_out() -> None:
    image = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,eA=="}
    assert model_messages([{"id": "s", "role": "system", "parts": [image]}]) == []


def test_images_and_files_are_told_as_such() -> None:
    png, note = "data:image/png;base64,AAAA", "data:text/plain;base64,aGVsbG8="
    parts = [
        {"type": "text", "text": "Look:"},
        {"type": "file", "mediaType": "image/png", "url": png},
        {"type": "file", "filename": "note.txt", "url": note},
        {
            "type": "file",
            "mediaType": "application/pdf",
            "filename": "a.pdf",
            "url": "data:application/pdf;base64,AA==",
        },
        {"type": "file", "mediaType": "application/pdf", "url": "https://example.org/a.pdf"},
        {"type": "file"},
        {"type": "data-thing", "data": 1},
    ]
    (message,) = model_messages([{"id": "u", "role": "user", "parts": parts}])
    assert message["content"] == [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": png}},
        {"type": "text", "text": "[File note.txt]\nhello"},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
        {"type": "text", "text": "[File file: https://example.org/a.pdf]"},
    ]


# ---- functions as tools -----------------------------------------------------------------------------------------


async def test_a_function_tool_checks_its_input_and_awaits_what_it_should() -> None:
    def later(n: int = 2) -> Any:
        async def answer() -> int:
            return n

        return answer()

    assert await FunctionTool("later", later).execute({}) == 2
    with pytest.raises(ToolFailed, match="n: Input should be a valid integer"):
        await FunctionTool("later", later).execute({"n": "x"})
    with pytest.raises(ToolFailed, match="more: Extra inputs are not permitted"):
        await FunctionTool("later", later).execute({"more": 1})
    with pytest.raises(TypeError, match="only parameters that can be given by name"):
        FunctionTool("all", lambda *everything: None)
