"""`actors.connect` in programs of their own: an error in time, never a Ray of its own, and whenever Ray was imported."""

import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from ray_node import Node

PROGRAM = """
import asyncio, sys
import actors
try:
    asyncio.run(actors.connect("conversation", "alice", **eval(sys.argv[1])))
except Exception as exc:
    print(type(exc).__name__, exc)
if sys.argv[2] == "False":
    assert "ray" not in sys.modules
import ray
assert not ray.is_initialized()
"""


def play(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", **environment},
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "address", "told"),
    [
        ("{}", "", "NotServed Ray is not connected: call ray.init() first"),
        ("{'data': '/nowhere'}", "", "NotServed No server of this machine runs on the data folder /nowhere"),
        ("{}", "127.0.0.1:9", "CannotStart There is no Ray cluster to reach at 127.0.0.1:9"),
    ],
)
def test_without_a_ray_to_join_it_says_so_and_ray_is_not_even_imported(options: str, address: str, told: str) -> None:
    done = play(PROGRAM, options, str(bool(address)), **({"RAY_ADDRESS": address} if address else {}))
    assert done.stdout.startswith(told), done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


def test_a_ray_that_never_answers_is_given_up_in_time_while_the_program_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        done = play(
            """
            import asyncio
            import actors, ray
            from actors.cluster import reach

            reach.JOIN_SECONDS = 1

            async def main():
                beats = 0
                connecting = asyncio.create_task(actors.connect("conversation", "alice"))
                while not connecting.done():
                    beats += 1
                    await asyncio.sleep(0.05)
                print(beats > 5, type(connecting.exception()).__name__, connecting.exception())

            asyncio.run(main())
            """,
            RAY_ADDRESS=f"127.0.0.1:{silent.getsockname()[1]}",
        )
    assert done.stdout.startswith("True CannotStart The Ray cluster at 127.0.0.1:"), done.stdout + done.stderr
    assert "gives no answer within 1 s" in done.stdout
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < 20


def data_folder(data: Path) -> None:
    """With what a server writes into it for other programs."""
    import ray

    from actors.cluster.ray_environment import write_variables_for_drivers

    data.mkdir()
    write_variables_for_drivers(data, ray.get_runtime_context().gcs_address)


JOIN = """
import asyncio, sys
import ray
import actors
from actors.cluster.errors import NotServed

async def main():
    data, other = sys.argv[1:]
    {before}
    chat = await actors.connect("conversation", "dora", data=data)
    await chat.append_message({{"id": "m1", "role": "user", "parts": []}})
    again = await actors.connect("conversation", "dora", data=data)
    print([message["id"] for message in await again.get_history()])
    try:
        await actors.connect("conversation", "dora", data=other)
    except NotServed as exc:
        print(exc)

asyncio.run(main())
"""

EARLIER = """
    try:
        await actors.connect("conversation", "dora")
    except NotServed:
        assert not ray.is_initialized()
    import os
    from ray._raylet import AuthenticationTokenLoader
    os.environ["RAY_AUTH_TOKEN"] = "that-of-another-cluster-0123456789"
    assert AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True)
    del os.environ["RAY_AUTH_TOKEN"]
"""


@pytest.mark.parametrize("before", ["pass", EARLIER.strip()], ids=["imported", "asked before"])
def test_a_data_folder_is_joined_also_by_a_program_that_has_imported_ray(
    node: Node, tmp_path: Path, before: str
) -> None:
    data_folder(tmp_path / "data")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ray.env").write_text("RAY_ADDRESS=127.0.0.1:9\n")
    done = play(JOIN.format(before=before), str(tmp_path / "data"), str(tmp_path / "other"))
    assert done.stdout.splitlines() == [
        "['m1']",
        f"This program is connected to another Ray than that of {tmp_path / 'other'}, which is at 127.0.0.1:9: "
        "call ray.shutdown() first, or leave out data=.",
    ], done.stdout + done.stderr
    assert done.stderr == ""


def test_a_ray_that_cannot_be_told_afterwards_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "ray.env").write_text("RAY_ADDRESS=127.0.0.1:9\n")
    done = play(
        """
        import asyncio, sys
        import ray, actors
        from ray._private import ray_constants

        del ray_constants.ENABLE_RAY_CLUSTER
        try:
            asyncio.run(actors.connect("conversation", "alice", data=sys.argv[1]))
        except Exception as exc:
            print(type(exc).__name__, exc)
        """,
        str(tmp_path),
    )
    assert done.stdout.startswith("NotServed Ray was imported before, with other settings"), done.stdout + done.stderr
    assert str(tmp_path / "ray.env") in done.stdout
