"""The embedded start as a process: signals, deaths, restarts on the same folder, mistakes."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from embedded import Embedded, until

from actors.client import Client
from actors.cluster.errors import CannotStart
from actors.cluster.folder import NodeFolder
from actors.cluster.ports import wait_for_port


def message(identity: str) -> dict[str, Any]:
    return {"id": identity, "role": "user", "parts": [{"type": "text", "text": "hello"}]}


async def append(url: str, *identities: str) -> None:
    async with Client(url, "conversation", "ann") as chat:
        for identity in identities:
            await chat.append_message(message(identity))


async def history(url: str, agent: str = "conversation") -> list[str]:
    async with Client(url, agent, "ann") as chat:
        return [found["id"] for found in await chat.get_history()]


def is_free(data: Path, port: int) -> bool:
    try:
        NodeFolder.lock(data, wait_seconds=0, may_share=False).release()
        wait_for_port("127.0.0.1", port, 0)
    except CannotStart:
        return False
    return True


async def test_a_server_ends_cleanly_by_signals_and_keeps_everything_through_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Embedded(data) as server:
        server.wait_until_listening()
        assert data.stat().st_mode & 0o777 == 0o700
        assert not [found for found in server.family() if "/monitor.py" in found.title or "log_monitor" in found.title]
        # What is sent to the server's process group or session reaches none of Ray's processes.
        assert {os.getsid(found.pid) for found in server.family()}.isdisjoint({server.process.pid})
        await append(server.url, "m1", "m2")
        server.signal_group(signal.SIGINT)  # as Ctrl-C does
        assert server.wait() == 0
        assert server.errors() == ""
        until(lambda: not server.survivors(), 5)
    assert "asleep" in (data / "node-0" / "logs" / "actors.log").read_text()

    with Embedded(data) as server:
        server.wait_until_listening()
        assert await history(server.url) == ["m1", "m2"]
        await append(server.url, "m3")
        server.signal(signal.SIGKILL)
        server.wait()
        until(lambda: is_free(data, server.port), 2)
        until(lambda: not server.survivors("Actor"), 2)

    with Embedded(data) as server:
        server.wait_until_listening()
        assert await history(server.url) == ["m1", "m2", "m3"]
        server.signal_group(signal.SIGTERM)
        assert server.wait() == 0


DRIVER = """
import asyncio, sys, actors
async def main():
    chat = await actors.connect("conversation", "ann", data=(sys.argv[1:] or [None])[0])
    await chat.append_message({"id": "h1", "role": "user", "parts": []})
    print([found["id"] for found in await chat.get_history()])
asyncio.run(main())
"""


def listening_addresses(pids: set[int]) -> set[str]:
    """Of all TCP sockets that these processes listen on."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(descriptor))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


async def test_everything_listens_on_the_loopback_address_and_a_driver_joins_by_the_written_variables(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with Embedded(data) as server:
        server.wait_until_listening()
        addresses = listening_addresses({found.pid for found in server.family()})
        assert addresses == {"0100007F", "0000000000000000FFFF00000100007F"}
        variables = dict(line.split("=", 1) for line in (data / "ray.env").read_text().splitlines())
        others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        for words, environment in (([], {**others, **variables}), ([str(data)], others)):
            driver = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", DRIVER, *words, env=environment, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await asyncio.wait_for(driver.communicate(), 60)
            assert output.decode().splitlines()[-1] == "['h1']"
        assert await history(server.url) == ["h1"]
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


async def test_a_gateway_that_dies_is_started_again_on_its_port_and_given_up_after_the_third_death(
    tmp_path: Path,
) -> None:
    with Embedded(tmp_path / "data") as server:
        server.wait_until_listening()
        async with Client(server.url, "conversation", "ann") as chat:
            await chat.append_message(message("m1"))
            for number in range(2):
                (gateway,) = server.family("ray::GatewayActor")
                os.kill(gateway.pid, signal.SIGKILL)
                await chat.append_message(message(f"after {number}"))
            assert len(await chat.get_history()) == 3
            (gateway,) = server.family("ray::GatewayActor")
            os.kill(gateway.pid, signal.SIGKILL)
            assert await asyncio.to_thread(server.wait) == 1
        assert server.errors().startswith("perdure: The gateway died 3 times within a minute")


async def test_a_call_that_runs_when_the_whole_process_group_is_told_to_end_is_finished_first(tmp_path: Path) -> None:
    support = Path(__file__).parents[1] / "support"
    with Embedded(tmp_path / "data", agents=["ray_agents:Slow"], folder=support) as server:
        server.wait_until_listening()
        mark = tmp_path / "mark"
        async with Client(server.url, "slow", "ann") as chat:
            call = asyncio.create_task(chat.call("markAndWait", str(mark), 3))
            await asyncio.to_thread(until, mark.exists, 20)
            server.signal_group(signal.SIGTERM)
            assert await asyncio.wait_for(call, 20) == "waited"
        assert await asyncio.to_thread(server.wait) == 0
        assert server.errors() == ""


async def test_a_second_signal_ends_a_drain_at_once_and_non_zero(tmp_path: Path) -> None:
    support = Path(__file__).parents[1] / "support"
    with Embedded(tmp_path / "data", agents=["ray_agents:Slow"], folder=support) as server:
        server.wait_until_listening()
        mark = tmp_path / "mark"
        async with Client(server.url, "slow", "ann") as chat:
            call = asyncio.create_task(chat.call("markAndWait", str(mark), 60))
            await asyncio.to_thread(until, mark.exists, 20)
            server.signal(signal.SIGTERM)
            await asyncio.to_thread(until, lambda: not accepts(server.port), 20)  # it drains
            server.signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.wait, 10) == 1
            call.cancel()
            await asyncio.wait([call])
        assert server.errors() == "perdure: Ended by a second signal; nothing acknowledged is lost.\n"
        until(lambda: not server.survivors("Actor"), 2)


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_ray_ends_the_server_with_a_sentence(tmp_path: Path, how: int) -> None:
    with Embedded(tmp_path / "data") as server:
        server.wait_until_listening()
        (raylet,) = (found for found in server.family("/raylet/raylet") if "raylet_socket_name" in found.title[:400])
        os.kill(raylet.pid, how)
        assert server.wait(20) == 1
        assert "Ray is gone" in server.errors()
        until(lambda: not server.survivors("Actor"), 2)


async def test_a_users_own_storage_package_in_the_current_folder_hides_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    (tmp_path / "my_module.py").write_text(
        "from actors import Agent\n"
        "from actors.session_methods import SessionMethods\n"
        "class MyAssistant(SessionMethods, Agent): ...\n"
    )
    with Embedded(tmp_path / "data", agents=["my_module:MyAssistant"], folder=tmp_path) as server:
        server.wait_until_listening()
        assert await history(server.url, "my-assistant") == []
        # While it serves: a second one on the same folder, and one on the same port.
        with Embedded(tmp_path / "data") as second, Embedded(tmp_path / "other", port=server.port) as third:
            assert second.wait() == 1
            assert third.wait() == 1
            assert second.errors().startswith(f"perdure: The data folder {tmp_path}/data is already served by process ")
            assert not (tmp_path / "other").exists()
            assert third.errors().startswith(f"perdure: Port {server.port} on 127.0.0.1 is taken by process ")


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        ("nothing_here:Agent", "There is no module 'nothing_here' here or among the installed packages."),
        ("broken:Agent", "The module 'broken' cannot be imported: ZeroDivisionError: division by zero"),
        ("json:Agent", "The module 'json' has no class 'Agent'."),
        ("json:JSONDecoder", "json:JSONDecoder is not a subclass of actors.Agent."),
    ],
)
def test_a_mistake_in_the_agents_is_told_in_one_sentence(tmp_path: Path, agent: str, sentence: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    with Embedded(tmp_path / "data", agents=[agent], folder=tmp_path) as server:
        assert server.wait() == 1
        assert server.errors() == f"perdure: {sentence}\n"


def test_a_data_folder_that_cannot_be_written_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Embedded(tmp_path / "file") as server:
        assert server.wait() == 1
        assert server.errors() == f"perdure: {tmp_path}/file is not a folder.\n"


def test_a_signal_before_it_listens_ends_it_with_zero_and_leaves_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Embedded(data) as server:
        until(lambda: server.family("gcs_server"), 20)
        family = {found.pid for found in server.family()}
        server.signal(signal.SIGTERM)
        assert server.wait(10) == 0
        server._family = family
        until(lambda: not server.survivors("Actor"), 3)
