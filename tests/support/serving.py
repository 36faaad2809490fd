"""A real `perdure serve` in a process of its own, for tests and benchmarks."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60
STOP_SECONDS = 60
SUPPORT = Path(__file__).parent


@dataclass(frozen=True)
class ProcessInfo:
    pid: int
    parent: int
    title: str


def processes() -> list[ProcessInfo]:
    """All processes of this machine that can be read."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        rest = stat[stat.rindex(")") + 2 :].split()
        if rest[0] != "Z":
            found.append(ProcessInfo(int(entry.name), int(rest[1]), title))
    return found


def descendants(pid: int) -> list[ProcessInfo]:
    everyone = processes()
    family, size = {pid}, 0
    while size != len(family):
        size = len(family)
        family |= {process.pid for process in everyone if process.parent in family}
    return [process for process in everyone if process.pid in family and process.pid != pid]


class Server:
    """Starts on construction; `url` and `host` once it listens. Use as a context manager."""

    def __init__(
        self, data: Path | None = None, *options: str, agents: tuple[str, ...] = (), **environment: str
    ) -> None:
        self.owns_data = data is None
        self.data = data or Path(tempfile.mkdtemp(prefix="perdure-test-"))
        self.options = options
        self.agents = agents
        self.environment = environment
        self.output: list[str] = []
        self.start()

    def start(self) -> None:
        command = [str(Path(sys.executable).parent / "perdure"), "serve", *self.agents]
        command += ["--data", str(self.data), "--port", "0", *self.options]
        environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "PYTHONUNBUFFERED": "1", **self.environment}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            line = self.process.stdout.readline() if ready else ""
            self.output.append(line)
            match = re.search(r"listening on ws://(\S+:\d+)", line)
            if match:
                self.host = match.group(1)
                self.url = f"ws://{self.host}"
                return
            if not line:
                self.kill()
                raise RuntimeError("the server did not start:\n" + "".join(self.output))

    @property
    def pid(self) -> int:
        return self.process.pid

    def family(self, title: str = "") -> list[ProcessInfo]:
        """Processes below the server whose command line holds this text."""
        return [process for process in descendants(self.pid) if title in process.title]

    def actors(self) -> list[ProcessInfo]:
        return self.family("ray::ConversationActor")

    def gateways(self) -> list[ProcessInfo]:
        return self.family("ray::GatewayActor")

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End it and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._close_output()
        return code

    def kill(self) -> None:
        """SIGKILL the server and everything below it, as a power cut would."""
        family = [process.pid for process in descendants(self.pid)]
        for pid in [self.pid, *family]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(STOP_SECONDS)
        self._close_output()

    def _close_output(self) -> None:
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.output.append(self.process.stdout.read() or "")
            self.process.stdout.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            if self.owns_data:
                shutil.rmtree(self.data, ignore_errors=True)


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def resident_mb(pid: int) -> float:
    """Resident set size in MB; 0 for a process that has gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0
