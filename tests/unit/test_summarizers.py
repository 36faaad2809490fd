"""What writes summaries: a model behind an OpenAI-compatible endpoint, or the embedded extractive summarizer."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from awake import awake
from model_server import ModelServer, model_server
from session_support import opened, text

from actors import Conversation, Session
from actors.errors import BadSetting, ModelAnswerBroken, ModelError, ModelPackageMissing, ModelRefused, ModelUnreachable
from actors.models import Model, open_model
from actors.settings import Settings, load_settings
from actors.summarizers import LABEL, compact_extractively, default_compaction, openai_summarizer
from compaction import CompactContext, Summary, Usage, create_compact_function
from compaction.tool_pairs import unanswered
from storage.errors import InvalidArgument

KEY = "sk-canary-4711"


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


def summarizer(server: ModelServer, **options: Any) -> Any:
    return openai_summarizer(server.url, model="tiny", api_key=KEY, **{"max_retries": 0, **options})


async def test_a_summary_of_a_model_comes_with_what_it_cost(server: ModelServer) -> None:
    server.answer("## Topic\n", "Flights.", usage=(120, 7))
    assert await summarizer(server)("Summarize this") == Summary("## Topic\nFlights.", Usage(120, 7))
    assert server.requests[0]["model"] == "tiny"
    assert server.requests[0]["messages"] == [{"role": "user", "content": "Summarize this"}]
    assert server.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize("status", [429, 500])
async def test_a_refusal_for_now_is_tried_again_and_only_so_often(server: ModelServer, status: int) -> None:
    soon = [("retry-after-ms", "1")]
    for _ in range(2):
        server.answer(status=status, headers=soon)
    server.answer("At last.")
    assert (await summarizer(server, max_retries=2)("prompt")).text == "At last."
    for _ in range(5):
        server.answer(status=status, headers=soon)
    with pytest.raises(ModelRefused, match=rf"refused the request \(HTTP {status}, scripted_error\)\.$"):
        await summarizer(server, max_retries=1)("prompt")
    assert len(server.requests) == 5


async def test_what_a_model_does_wrong_is_one_sentence_without_key_and_messages(
    server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = {"message": f"bad key {KEY} for: my secret prompt", "code": KEY, "type": f"x-{KEY}"}
    server.answer(status=401, error=echo)
    server.answer("")
    server.answer(silent=True)
    errors = []
    for seconds in (5, 5, 0.2):
        with pytest.raises(ModelError) as caught:
            await summarizer(server, timeout_seconds=seconds)("my secret prompt")
        errors.append(caught.value)
    with pytest.raises(ModelError) as caught:
        await openai_summarizer("http://127.0.0.1:9/v1", model="tiny", api_key=KEY, max_retries=0)("my secret prompt")
    errors.append(caught.value)
    assert [str(error) for error in errors] == [
        f"The model 'tiny' at {server.url} refused the request (HTTP 401, no reason given; check the key, which a server reads "
        "from --model-key-file).",
        f"The answer of the model at {server.url} cannot be used: it holds no text.",
        f"The model at {server.url} cannot be reached: no answer within 0.2 s.",
        "The model at http://127.0.0.1:9/v1 cannot be reached: no connection can be made.",
    ]
    assert [type(error) for error in errors] == [ModelRefused, ModelAnswerBroken, ModelUnreachable, ModelUnreachable]
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("perdure"))
    everything = "\n".join(str(record.__dict__) for record in caplog.records)
    assert "secret prompt" not in ours
    assert KEY not in everything
    assert not any(error.__cause__ for error in errors)


async def test_without_the_package_one_sentence_says_what_to_install(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ModelPackageMissing, match="install the extra openai"):
        await summarizer(server)("prompt")
    assert server.requests == []


def test_importing_the_product_does_not_import_the_package() -> None:
    import subprocess

    code = "import actors, actors.summarizers, actors.models, sys; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_key_is_in_no_repr() -> None:
    settings = Settings(model="tiny", model_key=KEY)
    model = Model.of(settings)
    assert model is not None
    assert model.key.get_secret_value() == KEY
    for shown in (settings, model, openai_summarizer(model="tiny", api_key=KEY)):
        assert KEY not in repr(shown)
        assert KEY not in str(shown)
    assert KEY not in settings.model_dump_json()
    assert Settings(**settings.with_secrets()) == settings


@pytest.mark.parametrize("given", ["not one word", "line\nline", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str
) -> None:
    monkeypatch.setenv("PERDURE_MODEL_KEY", given)
    with pytest.raises(BadSetting) as caught:
        load_settings({"model": "tiny"})
    assert str(caught.value) == "PERDURE_MODEL_KEY should be one word of ASCII characters."
    with pytest.raises(ValueError) as shown:
        Settings(model_key=given)
    assert given not in str(shown.value)
    assert caught.value.__cause__ is None
    file = tmp_path / "key"
    file.write_text(given)
    monkeypatch.delenv("PERDURE_MODEL_KEY")
    with pytest.raises(BadSetting, match=r"the file should hold the key, one word, and nothing else\.$"):
        load_settings({"model": "tiny", "model_key_file": file})


def test_the_key_comes_from_the_flags_file_before_the_variable_before_the_settings_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, config = tmp_path / "key", tmp_path / "perdure.toml"
    file.write_text("from-file\n")
    config.write_text("model_key = 'from-config'\nmodel = 'tiny'\n")
    assert load_settings({}, config).model_key.get_secret_value() == "from-config"
    monkeypatch.setenv("PERDURE_MODEL_KEY", "from-variable")
    assert load_settings({}, config).model_key.get_secret_value() == "from-variable"
    settings = load_settings({"model_key_file": file}, config)
    assert settings.model_key.get_secret_value() == "from-file"
    monkeypatch.setenv("PERDURE_MODEL_KEY_FILE", str(file))
    with pytest.raises(BadSetting, match="given twice"):
        load_settings({}, config)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("localhost:1", "--model-url should be an http or https address, for example http://127.0.0.1:11434/v1."),
        (
            "http://user:secret@host/v1",
            "--model-url should be an address alone; the key belongs into PERDURE_MODEL_KEY or --model-key-file.",
        ),
    ],
)
def test_an_address_of_a_model_is_checked(url: str, sentence: str) -> None:
    with pytest.raises(BadSetting) as caught:
        load_settings({"model": "tiny", "model_url": url})
    assert str(caught.value) == sentence


def test_an_address_without_a_model_is_a_mistake() -> None:
    with pytest.raises(BadSetting, match=r"^--model is missing: name the model to use at http://here/v1\.$"):
        load_settings({"model_url": "http://here/v1"})


# ---- compaction -----------------------------------------------------------------------------------------------


async def fill(session: Session, count: int = 12) -> None:
    for number in range(count):
        await session.append_message(text(f"m{number}", f"Sentence {number}. " + "word " * 60))
    await session.settled()


async def test_any_async_function_can_write_summaries(tmp_path: Path) -> None:
    async def summarize(prompt: str) -> str:
        return f"of {len(prompt)} characters"

    async with opened(tmp_path) as owner:
        session = Session.create(owner).on_compaction(create_compact_function(summarize=summarize, tail_token_budget=1))
        await fill(session)
        result = await session.compact()
        assert result is not None
        assert result.summary.endswith(" characters")


async def test_a_conversation_compacts_by_the_configured_model(server: ModelServer, tmp_path: Path) -> None:
    for number in range(20):
        server.answer(f"## Topic\nSummary {number}", usage=(50, 10))
    async with awake(tmp_path, Conversation, compact_after=1_000, model="tiny", model_url=server.url) as hall:
        await hall.connect()
        for number in range(24):
            await hall.call("appendMessage", text(f"m{number}", f"Sentence {number}. " + "word " * 60))
            await hall.conversation._agent.session.settled()
        history = await hall.call("getHistory")
        overlay = next(message for message in history if message["id"].startswith("compaction_"))
        prompts = [request["messages"][0]["content"] for request in server.requests]
        assert len(prompts) >= 2
        assert overlay["parts"][0]["text"] == f"## Topic\nSummary {len(prompts) - 1}"
        for number, prompt in enumerate(prompts[1:]):
            assert f"Summary {number}" in prompt
        assert len(history) < 24


async def test_a_model_that_fails_leaves_the_conversation_as_it_was_and_clients_are_told(
    server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        server.answer(status=500, error={"message": "word word", "code": "broken"})
    options = {"compact_after": 300, "model": "tiny", "model_url": server.url, "model_key": KEY, "model_retries": 0}
    async with awake(tmp_path, Conversation, **options) as hall:
        await hall.connect()
        for number in range(7):
            await hall.call("appendMessage", text(f"m{number}", "word " * 60))
            await hall.conversation._agent.session.settled()
        assert len(await hall.call("getHistory")) == 7
        frames = [event.frame.decode() for event in hall.events if hasattr(event, "frame")]
        assert any("cf_agent_session_error" in frame and "refused the request (HTTP 500" in frame for frame in frames)
    assert server.requests
    assert "refused the request (HTTP 500, broken)" in caplog.text
    assert "word word" not in caplog.text
    assert KEY not in caplog.text + "".join(frames)


async def test_without_a_model_the_summary_says_that_it_is_extractive(tmp_path: Path) -> None:
    assert default_compaction(Settings()) is compact_extractively
    async with awake(tmp_path, Conversation, compact_after=500) as hall:
        await hall.connect()
        for number in range(20):
            await hall.call("appendMessage", text(f"m{number}", f"Sentence {number}. " + "word " * 60))
            await hall.conversation._agent.session.settled()
        history = await hall.call("getHistory")
        summaries = [message for message in history if message["id"].startswith("compaction_")]
        assert len(summaries) == 1
        lines = summaries[0]["parts"][0]["text"].splitlines()
        assert lines[0] == LABEL
        assert lines.count(LABEL) == 1
        assert lines[1:6] == [f"user: Sentence {number}." for number in range(3, 8)]
        assert history[-1]["id"] == "m19"


async def test_an_extractive_summary_takes_earlier_summaries_in() -> None:
    earlier = {"id": "compaction_1", "role": "assistant", "parts": [{"type": "text", "text": f"{LABEL}\nuser: First."}]}
    messages = [text("a"), earlier, *(text(f"m{number}", f"Number {number}. More") for number in range(9))]
    result = await compact_extractively(messages)
    assert result is not None
    assert result.summary.splitlines()[:3] == [LABEL, "user: First.", "user: Number 0."]
    assert result.to_message_id.startswith("m")


async def test_an_extractive_summary_has_what_was_said_and_no_reasoning() -> None:
    thought = {"type": "reasoning", "text": "Nobody should read this."}
    messages = [text(f"m{number}", f"Number {number}. More") for number in range(9)]
    messages[4]["parts"].insert(0, thought)
    messages[5]["parts"] = [thought]
    result = await compact_extractively(messages)
    assert result is not None
    assert "Nobody" not in result.summary
    assert "user: Number 4." in result.summary


async def test_an_extractive_summary_is_short_whatever_it_folds() -> None:
    earlier = {"id": "compaction_1", "role": "assistant", "parts": [{"type": "text", "text": "x" * 1_000_000}]}
    messages = [earlier, *(text(f"m{number}", "y" * 1_000_000) for number in range(9))]
    result = await compact_extractively(messages)
    assert result is not None
    assert len(result.summary) < 60 * 600


async def test_the_session_s_counter_decides_for_the_default_summarizers_too(server: ModelServer) -> None:
    asked: list[str] = []

    async def counter(*, messages: list[dict[str, Any]], system_prompt: str, context_blocks: list[Any]) -> int:
        asked.extend(message["id"] for message in messages)
        return 10**6

    messages = [text(f"m{number}", "Number. " + "word " * 20) for number in range(14)]
    for settings in (Settings(), Settings(model="tiny", model_url=server.url)):
        result = await default_compaction(settings)(messages, CompactContext(counter))
        assert (result.to_message_id, asked) == ("m11", ["m13", "m12"])
        asked.clear()


async def test_a_prompt_for_the_configured_model_is_no_longer_than_a_conversation_at_the_threshold(
    server: ModelServer,
) -> None:
    messages = [text(f"m{number}", "word " * 10_000) for number in range(14)]
    for threshold, longest in ((10, 10_000), (5_000, 20_000), (10**9, 400_000)):
        settings = Settings(model="tiny", model_url=server.url, compact_after=threshold)
        assert await default_compaction(settings)(messages) is not None
        assert longest / 3 < len(server.requests[-1]["messages"][0]["content"]) <= longest


async def test_an_extractive_summary_parts_no_pair_and_folds_no_call_that_waits() -> None:
    def call(identity: str, **part: Any) -> dict[str, Any]:
        part = {"type": "tool-f", "toolCallId": identity, "input": {}, **part}
        return {"id": f"c-{identity}", "role": "assistant", "parts": [part]}

    def result_of(identity: str) -> dict[str, Any]:
        part = {"type": "tool-f", "toolCallId": identity, "output": "x", "state": "output-available"}
        return {"id": f"r-{identity}", "role": "tool", "parts": [part]}

    for place in range(3, 12):
        messages = [text(f"m{number}", "Number. " + "word " * 20) for number in range(14)]
        messages[place:place] = [call("p", state="input-available"), result_of("p")]
        result = await compact_extractively(messages)
        assert result is not None
        ids = [message["id"] for message in messages]
        start, end = ids.index(result.from_message_id), ids.index(result.to_message_id)
        left = messages[:start] + messages[end + 1 :]
        assert ("c-p" in {message["id"] for message in left}) == ("r-p" in {message["id"] for message in left})
        waiting = [*messages[:5], call("w", state="input-available"), *messages[5:]]
        result = await compact_extractively(waiting)
        if result is not None:
            end = [message["id"] for message in waiting].index(result.to_message_id)
            assert end < 5
            assert unanswered(waiting[end + 1 :])


async def test_nothing_is_left_of_a_client_after_its_use(server: ModelServer) -> None:
    import threading

    threads = set(threading.enumerate())
    async with open_model(Model("tiny", server.url)) as client:
        assert await client.complete([{"role": "user", "content": "hi"}]) == ("ok", Usage(10, 5))
    tasks = asyncio.all_tasks() - {asyncio.current_task()} - server.connections
    assert [task for task in tasks if "serve" not in repr(task)] == []
    assert [thread.name for thread in set(threading.enumerate()) - threads if "asyncio" not in thread.name] == []


def test_the_summarizer_of_a_library_user_needs_a_name() -> None:
    with pytest.raises(InvalidArgument, match="needs a name"):
        openai_summarizer(model="")
