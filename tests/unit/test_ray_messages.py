"""What of Ray's words reaches server.log."""

import io
from typing import Any

from actors.cluster.ray_messages import RayMessages


def test_alarms_about_workers_that_end_and_colours_are_left_out() -> None:
    stream = io.StringIO()
    out: Any = RayMessages(stream)
    print("one", file=out)
    print("\x1b[33m(raylet)\x1b[0m A worker died or was killed while executing a task by an error.\nMore.", file=out)
    print("\x1b[33m(raylet)\x1b[0m The disk is full.", file=out, flush=True)
    print(file=out)
    assert stream.getvalue() == "one\n(raylet) The disk is full.\n\n"
