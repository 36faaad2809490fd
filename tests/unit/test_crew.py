"""What the log says of an actor that could not be started."""

import pytest

from actors.cluster.crew import _in_a_line

DIED = (
    "The actor died because of an error raised in its creation task, \x1b[36mray::Actor.__init__()\x1b[39m (pid=7)\n"
    '  File "/a/b.py", line 7, in __init__\n'
    "    open_store(url)\n"
    "storage.errors.StoreUnavailable: The checkpoint store gives no answer."
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(DIED), "RuntimeError: storage.errors.StoreUnavailable: The checkpoint store gives no answer."),
        (RuntimeError("The actor died.\n\tclass_name: X\n\tpid: 7"), "RuntimeError: The actor died."),
        (RuntimeError("x" * 1_000), "RuntimeError: " + "x" * 300),
        (ValueError(), "ValueError"),
    ],
)
def test_why_a_start_failed_is_one_line(error: Exception, line: str) -> None:
    assert _in_a_line(error) == line
