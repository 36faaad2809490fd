"""Log files stay short while they are written to, and carry nothing that an agent's exception says."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from agents_for_tests import Probe
from awake import awake

from actors.cluster import logs
from actors.conversation.events import Close, Connect, Message
from actors.gateway.socket_log import SocketLog
from actors.redaction import what_failed
from actors.rpc import rpc
from storage.checkpoints.keys import ConversationKey

SECRET = "what the user wrote"


def _writer(path: Path) -> logging.Logger:
    """As `log_to` makes it in each process."""
    logger = logging.Logger("writer", logging.INFO)
    logger.addHandler(logs.handler_for(path))
    return logger


async def test_several_writers_go_on_in_a_new_file_when_a_log_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_TOO_LONG", 10_000)
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.001)
    path = tmp_path / "actors.log"
    writers = [_writer(path), _writer(path)]
    keeping = asyncio.create_task(logs.keep_short(tmp_path))
    for number in range(400):
        for writer in writers:
            writer.info("line %d %s", number, "x" * 100)
        if number % 20 == 0:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    keeping.cancel()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 50_000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["actors.log", "actors.log.1"] or not path.exists()
    for writer in writers:
        writer.info("the end")
        writer.handlers[0].close()
    assert path.read_text().count("the end") == 2


async def test_sockets_are_told_together(caplog):
    caplog.set_level(logging.INFO, "perdure.gateway")
    story = SocketLog(logging.getLogger("perdure.gateway"))
    for number in range(120):
        story.opened(number, ConversationKey("chat", f"a\n{number}"))
    story.closed(7, 1000)
    assert len(caplog.records) == 1
    story.flush()
    story.flush()
    assert len(caplog.records) == 2
    assert "0 opened 'chat/a\\n0'" in caplog.messages[0]
    assert caplog.messages[1].endswith("; 7 closed 1000")


def test_an_exception_is_told_by_its_class_and_its_place():
    def fails() -> None:
        try:
            raise OSError(28, SECRET)
        except OSError as exc:
            raise ValueError(SECRET) from exc

    with pytest.raises(ValueError, match=SECRET) as caught:
        fails()
    text = what_failed(caught.value)
    assert text.startswith("ValueError at test_logs.py:")
    assert "in fails" in text
    assert "OSError 28 at test_logs.py:" in text
    assert SECRET not in text


class Failing(Probe):
    async def on_connect(self, connection: Any) -> None:
        if connection.url == "/fails":
            raise ValueError(SECRET)

    async def on_message(self, connection: Any, message: Any) -> None:
        raise KeyError(message)

    @rpc(streaming=True)
    async def late(self, stream: Any) -> None:
        await stream.end()
        raise RuntimeError(SECRET)

    @rpc
    async def broken(self) -> None:
        raise OSError(5, SECRET)


async def test_nothing_that_an_agents_exception_says_is_logged(tmp_path, caplog):
    async with awake(tmp_path, Failing) as hall:
        await hall.connect(1)
        hall.conversation.submit(Connect(2, "pk", "/fails", "", False, ()))
        await hall.until(Close)
        hall.conversation.submit(Message(1, SECRET.encode(), is_text=True))
        for method in ("late", "broken"):
            hall.send(method, method)
            await hall.answer(method)
        await asyncio.sleep(0.05)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.args[-1].split()[0] for record in told if record.args] == [  # type: ignore[union-attr,index]
        "ValueError",
        "KeyError",
        "RuntimeError",
        "OSError",
    ]
    assert SECRET not in caplog.text
    assert "test_logs.py:" in caplog.text
