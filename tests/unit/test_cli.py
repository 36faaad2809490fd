"""The verbs: help, options, and one sentence for each mistake."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from actors.cli import app, run
from actors.client import as_in_url
from actors.cluster.start import Announce
from actors.commands.target import conversation, server, title
from actors.settings import Settings

ROOT = Path(__file__).parents[2]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]

# The command line of the public interface, as far as it exists.
OPTIONS = {
    "serve": "--host --port --data --store --address --compact-after --idle-seconds --max-awake --spares --recycle "
    "--allow-origin --config",
    "stop": "--address",
    "demo": "--url",
    "watch": "--url --token",
    "import": "--format --agent --url --token",
    "ls": "--data --store --json",
    "show": "--data --store --json",
}


def test_the_verbs_are_those_of_the_interface() -> None:
    assert set(COMMANDS) == set(OPTIONS)


@pytest.mark.parametrize("verb", OPTIONS)
def test_every_verb_has_help_for_itself_and_each_of_its_options(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    text = capsys.readouterr().out
    missing = [option for option in OPTIONS[verb].split() if not re.search(rf"^ +{option}\b", text, re.M)]
    assert not missing
    assert "(8787)" not in text
    assert "<list" not in text
    assert COMMANDS[verb].help
    assert [p.name for p in COMMANDS[verb].params if not getattr(p, "help", None)] == []


@pytest.mark.parametrize("verb", OPTIONS)
def test_every_verb_is_in_the_readme(verb: str) -> None:
    assert f"perdure {verb}" in (ROOT / "README.md").read_text("utf-8")


def test_without_words_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    text = capsys.readouterr().out
    assert "Commands:" in text
    assert "..." not in text.split("Commands:")[1]


def test_an_import_without_one_good_line_sends_nothing_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text("no JSON\n")
    assert run(["import", str(tmp_path / "bad.jsonl"), "--format", "jsonl"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"perdure: {tmp_path}/bad.jsonl has no line that is a conversation in the format jsonl."


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["fly"], 2, r"No such command 'fly'\. Try `perdure --help`\."),
        (["shwo"], 2, r"No such command 'shwo'\. Did you mean 'show'\? Try `perdure --help`\."),
        (["serve", "--idel-seconds", "3"], 2, r"No such option: --idel-seconds.*"),
        (
            ["serve", "--port", "http"],
            2,
            r"Invalid value for '--port': it should be a valid integer\. Try `perdure serve --help`\.",
        ),
        (["serve", "--port", "70000"], 1, r"--port should be less than or equal to 65535, not 70000\."),
        (["serve", "--config", "/nowhere.toml"], 1, r"--config /nowhere\.toml: the file cannot be read \(.*\)\."),
        (
            ["serve", "no-colon"],
            1,
            r"MODULE:CLASS 'no-colon' should be MODULE:CLASS, for example my_module:Assistant\.",
        ),
        (["stop"], 1, r"--address should name the Ray cluster; .*"),
        (["import", "/nowhere.jsonl", "--format", "jsonl"], 2, r"Invalid value for 'FILE': .*does not exist.*"),
        (["import", __file__], 2, r"Missing option '--format'.*"),
        (
            ["import", __file__, "--format", "xml"],
            2,
            r"Invalid value for '--format': 'xml' is not one of 'openai-chat'.*",
        ),
        (["import", os.devnull, "--format", "jsonl"], 1, r"/dev/null is empty\."),
        (["watch", "a", "--url", "localhost:1"], 1, r"--url should look like ws://HOST:PORT\."),
        (["watch", "/a"], 1, r"'/a' is no name; it should be NAME or AGENT/NAME\."),
        (["watch", "a", "--url", "ws://127.0.0.1:1"], 1, r"Nothing answers at ws://127\.0\.0\.1:1; .*"),
        (["demo", "--url", "ws://127.0.0.1:1"], 1, r"Nothing answers at ws://127\.0\.0\.1:1; .*"),
        (["show", "nobody", "--store", "/nowhere"], 1, r"There is no store at /nowhere; .*"),
        (["ls", "--store", "/nowhere"], 1, r"There is no store at /nowhere; .*"),
    ],
)
def test_a_mistake_is_one_sentence_on_stderr(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"perdure: {sentence}\n", err), err


def test_a_start_on_every_address_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--host", "0.0.0.0", "--data", str(tmp_path / "data")]) == 1
    assert re.fullmatch(r"perdure: Without credentials only a loopback address .*\n", capsys.readouterr().err)
    assert not (tmp_path / "data").exists()


def test_a_token_in_a_url_is_never_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("ws://127.0.0.1:1/?token=CANARY", "ws://me:CANARY@127.0.0.1:1", "nonsense?token=CANARY"):
        assert run(["watch", "a", "--url", url]) == 1
        assert "CANARY" not in "".join(capsys.readouterr())


def test_an_unexpected_failure_is_one_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("oh\nno")

    monkeypatch.setattr("actors.settings.load_settings", fail)
    assert run(["ls"]) == 1
    assert capsys.readouterr().err == (
        "perdure: This should not have happened (RuntimeError: oh no); `perdure --traceback ...` shows where.\n"
    )


def test_help_and_the_verbs_that_read_or_connect_leave_ray_alone() -> None:
    modules = ["actors.cli", "actors.client", "actors.importer", "actors.inspection", "actors.settings", "rich.live"]
    code = f"import sys, json, {', '.join(modules)}; print(json.dumps('ray' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) is False


def test_a_reader_that_goes_away_is_no_failure() -> None:
    code = "import sys; sys.path.insert(0, '.'); from actors.cli import main; sys.argv[1:] = ['--help']; main()"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writing)
    assert (done.returncode in (1, 141), done.stderr) == (True, "")


@pytest.mark.parametrize(
    ("given", "clean", "token"),
    [
        ("ws://h:1", "ws://h:1", None),
        ("https://h/base/?a=1&token=T", "wss://h/base?a=1", "T"),
        ("ws://[::1]:8787/", "ws://[::1]:8787", None),
    ],
)
def test_a_url_is_taken_apart_into_what_may_be_shown_and_the_credential(
    given: str, clean: str, token: str | None
) -> None:
    found = server(given, None)
    assert (found.url, found.token) == (clean, token)
    assert "T" not in repr(found).replace("Server", "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("alice", ("conversation", "alice")), ("robot/a/b", ("robot", "a/b")), ("a b", ("conversation", "a b"))],
)
def test_a_name_may_have_its_agent_before_the_first_slash(given: str, expected: tuple[str, str]) -> None:
    assert conversation(given) == expected


@pytest.mark.parametrize(
    ("agent", "name", "shown"),
    [
        ("conversation", "alice", "alice"),
        ("robot", "a%2Fb", "robot/a/b"),
        ("conversation", "a%2Fb", "conversation/a/b"),
        ("conversation", "gr%C3%BC%C3%9Fe%20dich", "grüße dich"),
        ("conversation", "50%25", "50%25"),
        ("conversation", "%E2%80%AEevil", "%E2%80%AEevil"),
        ("conversation", "%1B[31m", "%1B[31m"),
        ("conversation", "\x1b\u202e", "\\x1b\\u202e"),
        ("conversation", "%FF", "%FF"),
    ],
)
def test_a_name_is_shown_as_its_client_calls_it_where_that_is_safe(agent: str, name: str, shown: str) -> None:
    assert title(agent, name) == shown
    if "%" in name:
        assert conversation(shown)[0] == agent
        assert as_in_url(conversation(shown)[1]) == name


@pytest.mark.parametrize("agents", [("conversation", "assistant"), ("assistant",)])
def test_serve_prints_one_line_for_programs_and_the_next_steps_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, agents: tuple[str, ...]
) -> None:
    def serve(settings: Settings, announce: Announce) -> int:
        assert (settings.idle_seconds, settings.agents) == (5.0, ("my_module:Assistant",))
        announce("127.0.0.1", 9000, agents)
        return 7

    monkeypatch.setattr("actors.cluster.start.serve", serve)
    folder = tmp_path / "my data"
    assert run(["serve", "my_module:Assistant", "--idle-seconds", "5", "--data", str(folder)]) == 7
    out, err = capsys.readouterr()
    assert out == "perdure: listening on ws://127.0.0.1:9000\n"
    assert "Serving " + ", ".join(f"/agents/{agent}/NAME" for agent in agents) + "\n" in err
    has_demo = f"demo --url ws://127.0.0.1:9000 --data '{folder}'" in err
    assert has_demo == ("conversation" in agents)  # that is what the demo speaks to
    assert f"watch --url ws://127.0.0.1:9000 --data '{folder}'" in err
    assert f"ls --data '{folder}'" in err
