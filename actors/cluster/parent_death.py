"""End this process at once when the raylet that started it is gone.

Ray's own check notices after its interval, and not before somebody has reaped the dead raylet: under an init that
reaps slowly, or not at all, a worker outlives its cluster and keeps its lock, its port and its lanes.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """SIGKILL this process when its parent dies (Linux only; elsewhere Ray's check has to do)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent == 1 or os.getppid() != parent:  # it died before the call
        os._exit(1)
