"""`perdure serve actors:ChatAgent` against a scripted endpoint: streams, kills, cancels, summaries, and where the key is not."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from model_server import ModelServer, Reply, model_server
from serving import Server, processes

from actors import ChatAgent, Client, Conversation
from actors.cluster.agents import unready
from actors.cluster.ray_environment import temp_root
from actors.errors import NoModel, UnknownAgent
from actors.models import Model
from actors.settings import Settings
from storage.errors import OutcomeUnknown

KEY = "sk-canary-4711-of-the-server"
AGENTS = ("actors:ChatAgent", "actors:Conversation")


@pytest.fixture
async def model():
    async with model_server() as server:
        yield server


async def serve(folder: Path, model: ModelServer, *options: str, **environment: str) -> Server:
    given = ("--model", "tiny", "--model-url", model.url, "--spares", "1", *options)
    variables = {"PERDURE_MODEL_RETRIES": "0", **environment}
    return await asyncio.to_thread(Server, folder / "data", *given, agents=AGENTS, **variables)


async def test_a_chat_over_a_websocket_survives_kills_cancels_and_sleeps(model: ModelServer, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    with await serve(tmp_path, model, "--max-awake", "1", "--model-key-file", str(key)) as server:
        async with Client(server.url, "chat-agent", "ann", call_seconds=60) as chat:
            model.answer("Good ", "morning")
            stream = chat.stream("chat", "Hello?", "q1")
            assert [chunk async for chunk in stream] == [
                {"type": "text-delta", "text": "Good "},
                {"type": "text-delta", "text": "morning"},
            ]
            assert stream.result["message"] == (await chat.get_history())[1]
            assert stream.result["message"]["metadata"]["usage"] == {"inputTokens": 10, "outputTokens": 5}

            # killed in the middle of an answer
            paused = model.answer("Half an ", "answer", pause_before=1)
            stream = chat.stream("chat", "And now?", "q2")
            chunks = aiter(stream)
            assert await anext(chunks) == {"type": "text-delta", "text": "Half an "}
            await until_stored(chat, "q2-reply")
            for actor in server.actors():
                os.kill(actor.pid, signal.SIGKILL)
            with pytest.raises(OutcomeUnknown):
                await anext(chunks)
            await asyncio.wait_for(paused.is_gone.wait(), 20)
            partial = (await chat.get_history())[-1]
            assert partial["id"] == "q2-reply"
            assert partial["parts"] == [{"type": "text", "text": "Half an "}]
            assert partial["metadata"]["status"] == "streaming"

            # something else is asked first; the old question is answered where it was asked
            model.answer("Of course")
            assert [chunk["text"] async for chunk in chat.stream("chat", "Are you there?", "other")] == ["Of course"]
            model.answer("A whole ", "answer")
            stream = chat.stream("chat", "And now?", "q2")
            assert [chunk["text"] async for chunk in stream] == ["A whole ", "answer"]
            history = await chat.get_history()
            assert [message["id"] for message in history] == [
                *("q1", "q1-reply", "q2", "q2-reply", "other", "other-reply")
            ]
            assert history[3] == stream.result["message"]
            assert history[3]["parts"] == [{"type": "text", "text": "A whole answer"}]
            assert [message["content"] for message in model.requests[-1]["messages"][1:]] == [
                *("Hello?", "Good morning", "And now?")
            ]

            # cancelled by another client, asleep afterwards, and awake again
            model.answer("Long ", "story", pause_before=1)
            stream = chat.stream("chat", "Tell me", "q3")
            chunks = aiter(stream)
            await anext(chunks)
            async with Client(server.url, "chat-agent", "ann") as other:
                assert await other.call("cancelChat") is True
            assert [chunk async for chunk in chunks] == []
            assert stream.result["message"]["metadata"]["status"] == "cancelled"
            assert stream.result["message"]["parts"] == [{"type": "text", "text": "Long "}]
            pids = {actor.pid for actor in server.actors()}
            async with Client(server.url, "conversation", "guest") as guest:  # there is room for one only
                assert await guest.get_history() == []
            stream = chat.stream("chat", "Still there?", "q4")
            assert [chunk["text"] async for chunk in stream] == ["ok"]
            assert len(await chat.get_history()) == 10
            assert {actor.pid for actor in server.actors()} & pids, "a chat has left something in its process"

        assert KEY not in "\n".join(process.title for process in processes())
        assert_key_in_no_file(temp_root())  # Ray's session
    told = "".join(server.output)
    assert_key_in_no_file(tmp_path / "data")
    assert KEY not in told
    assert set(model.keys) == {f"Bearer {KEY}"}
    logs = "".join(path.read_text() for path in (tmp_path / "data").rglob("*.log"))
    assert "Good morning" not in logs
    assert "whole" not in logs


def assert_key_in_no_file(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            assert KEY.encode() not in path.read_bytes(), path


def assert_key_in_no_environment(server: Server) -> None:
    """Of what runs below the command, to which it was given: Ray, the gateway, the actors."""
    family = server.family()
    for name in ("raylet", "gcs_server", "ray::GatewayActor", "ray::ConversationActor"):
        assert any(name in process.title for process in family), name
    for process in family:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            assert KEY.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes(), process.title


async def until_stored(chat: Client, message_id: str) -> None:
    """Every change is told by a status frame."""
    async with asyncio.timeout(20):
        async for _ in chat.status():
            message = await chat.get_message(message_id)
            if message is not None and message["parts"]:
                return


async def test_a_conversation_is_compacted_by_the_configured_model(model: ModelServer, tmp_path: Path) -> None:
    model.summary = Reply(["## Topic\nFlights to Paris"], usage=(40, 4))
    with await serve(tmp_path, model, "--compact-after", "500", PERDURE_MODEL_KEY=KEY) as server:
        async with Client(server.url, "conversation", "ann") as chat:
            statuses = aiter(chat.status())
            for number in range(12):
                await chat.append_message(
                    {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": "word " * 60}]}
                )
            async with asyncio.timeout(30):
                while (await anext(statuses)).tokens_before is None:
                    pass
            history = await chat.get_history()
            assert_key_in_no_environment(server)
    overlay = next(message for message in history if message["id"].startswith("compaction_"))
    assert overlay["parts"] == [{"type": "text", "text": "## Topic\nFlights to Paris"}]
    assert history[-1]["id"] == "m11"
    assert model.requests[0]["model"] == "tiny"
    assert set(model.keys) == {f"Bearer {KEY}"}


async def test_a_chat_agent_without_a_model_is_told_at_the_start_and_to_who_asks(tmp_path: Path) -> None:
    server = await asyncio.to_thread(Server, tmp_path / "data", "--spares", "1", agents=("actors:ChatAgent",))
    with server:
        async with Client(server.url, "chat-agent", "ann") as chat:
            with pytest.raises(NoModel):
                async for _ in chat.stream("chat", "Hello?"):
                    pass
        with pytest.raises(UnknownAgent, match=r"'conversation' is served here; there are: chat-agent\."):
            await Client(server.url, "conversation", "ann").__aenter__()
    told = "".join(server.output)
    assert told.count("perdure: chat-agent has no model, so its chats will be refused; give --model NAME") == 1
    assert "Serving /agents/chat-agent/NAME\n" in told
    assert " demo" not in told


def test_an_agent_that_brings_its_model_needs_none_of_the_settings() -> None:
    class Own(ChatAgent):
        def chat_model(self) -> Model | None:
            return Model("own")

    class Silent(ChatAgent):
        pass

    agents = {"own": Own, "silent": Silent, "conversation": Conversation}
    assert [sentence.split()[0] for sentence in unready(agents, Settings())] == ["silent"]
    assert list(unready(agents, Settings(model="tiny"))) == []


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    command = [str(Path(sys.executable).parent / "perdure"), "serve", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}, check=False
    )
    return done.returncode, done.stderr


def test_a_mistake_about_the_model_is_one_sentence(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    code, told = run(*data, "--model-url", "http://127.0.0.1:9/v1")
    assert (code, told.count("\n")) == (1, 1)
    assert "--model is missing" in told
    code, told = run(*data, "--model", "tiny", "--model-key-file", str(tmp_path / "none"))
    assert (code, told.count("\n")) == (1, 1)
    assert "the file cannot be read" in told
    code, told = run(*data, "--model", "tiny", PERDURE_MODEL_KEY=f"{KEY} {KEY}")
    assert (code, told.count("\n")) == (1, 1)
    assert KEY not in told
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['openai'] = None\n")
    code, told = run(*data, "--model", "tiny", PYTHONPATH=str(tmp_path))
    assert (code, told.count("\n")) == (1, 1)
    assert "install the extra openai" in told
