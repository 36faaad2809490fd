"""Turns of `ChatAgent` against a scripted endpoint."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
from actors.conversation.events import Failure, Result
from actors.session.tools import Tool
from storage import access, sessions
from storage.checkpoints import ConversationKey, MemoryStore
from storage.errors import StoreUnavailable
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


async def test_a_model_that_refuses_leaves_the_question_and_no_secret_anywhere(
    server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.answer(status=500, error={"message": f"{KEY} Go", "code": KEY})
    server.answer("Fine.")
    async with chatting(tmp_path, server) as hall:
        error = await failed(hall, "my private question", "q1")
        assert error == f"The model at {server.url} refused the request (HTTP 500, no reason given)."
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


@settings(max_examples=2_000 if os.environ.get("PERDURE_LONG") else 120, deadline=None)
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


def test_a_denied_and_a_failed_call_are_told_in_words() -> None:
    parts = [tool("k", state="output-denied"), tool("l", state="output-error", errorText="no")]
    _, denied, failure = model_messages([assistant(*parts)])
    assert (denied["content"], failure["content"]) == ("The user did not allow this call.", "Error: no")
    assert NO_ANSWER not in denied["content"]


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
