"""Serving on a Ray that somebody else runs: `serve` with an address makes it serve and returns, `stop` drains it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ray_node import message

import actors
from actors.client import Client

SERVE = """
import json, sys
from actors.cluster.start import serve
from actors.settings import Settings
settings = Settings(**json.loads(sys.argv[1]))
sys.exit(serve(settings, lambda host, port, agents: print(f"listening {host} {port}", flush=True)))
"""
STOP = "import sys; from actors.cluster.start import stop; sys.exit(stop(sys.argv[1]))"


def run(program: str, argument: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", program, argument], capture_output=True, text=True, timeout=90)


@pytest.fixture
def address(local_ray: None) -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


async def test_a_cluster_serves_after_serve_has_returned_until_it_is_stopped(address: str, tmp_path: Path) -> None:
    settings = {"address": address, "data": str(tmp_path / "data"), "port": 0, "spares": 1}
    served = await asyncio.to_thread(run, SERVE, json.dumps(settings))
    assert (served.returncode, served.stderr) == (0, "")
    _, host, port = served.stdout.split()
    async with Client(f"ws://{host}:{port}", "conversation", "ann") as chat:
        await chat.append_message(message("m1"))
    handle = await actors.connect("conversation", "ann")
    assert [m["id"] for m in await handle.get_history()] == ["m1"]

    again = await asyncio.to_thread(run, SERVE, json.dumps(settings))
    assert (again.returncode, again.stdout) == (0, served.stdout)

    stopped = await asyncio.to_thread(run, STOP, address)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert "drained" in (tmp_path / "data" / "node-0" / "logs" / "gateway.log").read_text()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))

    nothing = await asyncio.to_thread(run, STOP, address)
    assert nothing.returncode == 1
    assert nothing.stderr == f"perdure: No Perdure is running on the cluster {address}.\n"


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "There is no Ray cluster to reach at 127.0.0.1:1: Connection refused."),
        ("ray://head:10001", "ray://head:10001 is not an address to join: give the HOST:PORT of the cluster's head."),
    ],
)
def test_a_cluster_that_is_not_there_is_told_in_one_sentence(tmp_path: Path, address: str, sentence: str) -> None:
    served = run(SERVE, json.dumps({"address": address, "data": str(tmp_path / "data"), "port": 0}))
    assert (served.returncode, served.stderr) == (1, f"perdure: {sentence}\n")


def test_ray_refuses_whoever_has_no_token(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1]); print('let in')"
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setenv("HOME", str(tmp_path))
    refused = run(program, address)
    assert refused.returncode != 0
    assert "AuthenticationError" in refused.stderr
    assert "let in" not in refused.stdout
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    wrong = run(program, address)
    assert wrong.returncode != 0
    assert "AuthenticationError" in wrong.stderr
