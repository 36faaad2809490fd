"""The README's transcript is played against a real server, word for word."""

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

from serving import Server

from actors.cluster.controller import drain_limit_seconds
from actors.cluster.options import NodeOptions
from actors.gateway.outbox import ANSWER_FACTOR
from actors.inspection import is_asleep
from actors.settings import Settings

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
PERDURE = Path(sys.executable).parent / "perdure"
WHEN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def perdure(words: list[str], server: Server, folder: Path) -> str:
    environment = {
        "PERDURE_URL": server.url,
        "PERDURE_DATA": str(server.data),
        "COLUMNS": "100",
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        [PERDURE, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    return done.stdout


async def asleep(server: Server, name: str) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(is_asleep, str(server.data / "store"), "conversation", name):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_the_transcript_is_what_one_sees(tmp_path: Path) -> None:
    (tmp_path / "parcel.jsonl").write_text(blocks("json")[0], "utf-8")
    transcript = next(block for block in blocks("console") if "perdure import" in block)
    steps = re.findall(r"^\$ perdure (.*)\n((?:(?!\$ ).*\n)*)", transcript, re.M)
    assert len(steps) >= 3
    with Server(tmp_path / "data", "--idle-seconds", "0.5") as server:
        for words, expected in steps:
            if words.startswith("ls"):
                asyncio.run(asleep(server, "parcel-17"))
            shown = perdure(shlex.split(words), server, tmp_path)
            assert _plain(shown) == _plain(expected), words
        program = next(block for block in blocks("python") if "asyncio.run(main())" in block)
        program = program.replace("ws://127.0.0.1:8787", server.url)
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60, check=True
        )
        assert done.stdout == blocks("text")[0]


def test_the_demo_shows_gauge_compaction_sleep_and_wake(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--idle-seconds", "1") as server:
        environment = {"PERDURE_IDLE_SECONDS": "1", "PERDURE_DATA": str(server.data), "PATH": "/usr/bin:/bin"}
        command = [PERDURE, "demo", "--url", server.url, "--pause", "0"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    tokens = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) tokens$", done.stdout, re.M)]
    assert tokens[:14] == sorted(tokens[:14])
    assert tokens[0] > 0
    before, after = re.search(r"compact\(\): ([\d,]+) -> ([\d,]+) tokens", done.stdout).groups()  # type: ignore[union-attr]
    assert int(after.replace(",", "")) < int(before.replace(",", ""))
    assert "Asleep: " in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 84] == []
    assert re.search(r"A read on the same socket woke it: [\d.]+ ms", done.stdout)


def test_operators_read_the_limits_that_the_code_has() -> None:
    operators = (Path(__file__).parents[2] / "deploy" / "README.md").read_text("utf-8")
    limit = drain_limit_seconds(NodeOptions(Settings(), "", "", "", 0))
    assert f"up to {limit:g} s" in operators
    assert 45 < limit < 60, "about a minute, as it says there"
    assert f"of answers to its own calls {ANSWER_FACTOR} times that" in README


def _plain(text: str) -> list[str]:
    return [WHEN.sub("WHEN", line).rstrip() for line in text.strip().splitlines()]
