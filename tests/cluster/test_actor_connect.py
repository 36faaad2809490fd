"""`actors.connect` outside of a connected Ray: an error in time, and never a Ray of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
import actors
try:
    asyncio.run(actors.connect("conversation", "alice", **eval(sys.argv[1])))
except Exception as exc:
    print(type(exc).__name__, exc)
import ray
assert not ray.is_initialized()
"""


@pytest.mark.parametrize(
    ("options", "address", "told"),
    [
        ("{}", "", "NotServed Ray is not connected: call ray.init() first"),
        ("{'data': '/nowhere'}", "", "NotServed No server of this machine runs on the data folder /nowhere"),
        ("{}", "127.0.0.1:9", "CannotStart There is no Ray cluster to reach at 127.0.0.1:9"),
    ],
)
def test_without_a_ray_to_join_it_says_so(options, address, told):
    environment = {"PATH": "/usr/bin:/bin", "RAY_ADDRESS": address} if address else {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, options],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert done.stdout.startswith(told), done.stdout + done.stderr
    assert done.returncode == 0
