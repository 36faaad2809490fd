"""`actors.cluster.start.serve` in a process of its own, as the command line calls it."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from serving import ProcessInfo, descendants, processes

START_SECONDS = 60.0

PROGRAM = """
import json, os, sys
from actors.cluster.start import serve
from actors.settings import Settings
settings = Settings(**json.loads(sys.argv[1]))
sys.exit(serve(settings, lambda host, port, agents: print(f"listening {host} {port}", flush=True),
               wait_seconds=1.0))
"""


class Embedded:
    """Started by the constructor, in a process group of its own; `wait_until_listening` says when it serves."""

    def __init__(self, data: Path, *, port: int = 0, agents: Sequence[str] = (), folder: Path | None = None) -> None:
        import json

        settings = {"data": str(data), "port": port, "agents": list(agents), "spares": 1, "max_awake": 4}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        self.url = ""
        self.port = 0
        self._family: set[int] = set()

    def wait_until_listening(self) -> "Embedded":
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_SECONDS)
        words = self.process.stdout.readline().split() if ready else []
        if not words:
            self.process.kill()
            raise AssertionError("it did not start: " + self.errors())
        self.port = int(words[2])
        self.url = f"ws://{words[1]}:{self.port}"
        self._family = {self.process.pid, *(found.pid for found in self.family())}
        return self

    def family(self, title: str = "") -> list[ProcessInfo]:
        return [found for found in descendants(self.process.pid) if title in found.title]

    def survivors(self, title: str = "") -> list[ProcessInfo]:
        """Of the processes there were when it began to listen."""
        return [found for found in processes() if found.pid in self._family and title in found.title]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def wait(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def __enter__(self) -> "Embedded":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)  # its child and Ray end with it
            self.process.wait(30)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def until(condition: object, seconds: float) -> float:
    """How long it took to come true."""
    assert callable(condition)
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it did not come true in time"
        time.sleep(0.02)
    return time.monotonic() - started
