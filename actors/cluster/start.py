"""`serve` and `stop`: what the command line calls. This process stays thin and never imports Ray without ``--address``.

It runs the server in a child with a session of its own (`server.py`), passes the first signal on as a wish to drain,
ends everything at the second, and its death, however it comes, ends the child.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from actors.cluster.errors import GaveUp, ServerError
from actors.cluster.ports import refuse_port_in_use
from actors.cluster.ray_environment import (
    common_variables,
    make_packages_importable,
    private_folder,
    set_variables,
)
from actors.settings import Settings

Announce = Callable[[str, int, Sequence[str]], None]

GATEWAY: Final = "actors.gateway.server:Gateway"
WAIT_SECONDS: Final = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(settings: Settings, announce: Announce, *, gateway: str = GATEWAY, wait_seconds: float = WAIT_SECONDS) -> int:
    """Run a server until it is told to end; the exit code. ``announce(host, port, agents)`` once connections are accepted;
    ``agents`` are the names in URLs, none where only the cluster knows them.

    Without an address: blocks; SIGTERM or SIGINT drains and gives 0, a second one ends at once and gives 1. With an
    address: returns as soon as the cluster serves. Mistakes are told on standard error in one sentence. A data folder
    or a port whose holder is going away is waited for, at most ``wait_seconds``.
    """
    try:
        if settings.address:
            set_variables(common_variables())  # Ray reads some of them when it is imported
            from actors.cluster.join import serve_on_cluster

            serve_on_cluster(settings, announce, gateway=gateway, module_folder=os.getcwd())
            return 0
        # What can be known at once is told before anything is made.
        refuse_port_in_use(settings.host, settings.port)
        return _Child(settings, gateway, wait_seconds).run(announce)
    except ServerError as exc:
        _say(str(exc))
        return 1


def stop(address: str) -> int:
    """Drain the server of a cluster and end its gateways and its controller; the exit code."""
    set_variables(common_variables())
    from actors.cluster.join import stop_on_cluster

    try:
        stop_on_cluster(address)
        return 0
    except ServerError as exc:
        _say(str(exc))
        return 1


def _say(sentence: str) -> None:
    print(f"perdure: {sentence}", file=sys.stderr, flush=True)


class _Child:
    """The process that holds the server."""

    def __init__(self, settings: Settings, gateway: str, wait_seconds: float) -> None:
        private_folder(settings.data)
        self._log = settings.data / "server.log"
        self._orders = {
            "settings": settings.with_secrets(),
            "gateway": gateway,
            "module_folder": os.getcwd(),
            "wait_seconds": wait_seconds,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._has_orders = False
        self._signals = 0
        self._is_listening = False

    def run(self, announce: Announce) -> int:
        with self._handlers():
            reports = self._begin()
            error = self._follow(reports, announce)
            assert self._process is not None
            code = self._process.wait()
            self._end_rest()
        if code == 0 or (self._signals == 1 and not self._is_listening):
            return 0  # told to end before it served anything: nothing to drain
        if self._signals > 1:
            raise GaveUp("Ended by a second signal; nothing acknowledged is lost.")
        raise GaveUp(error or f"The server ended unexpectedly ({_reason(code)}); {self._log} may say why.")

    def _begin(self) -> int:
        read_end, write_end = os.pipe()
        make_packages_importable()
        try:
            with _open_log(self._log) as log:
                self._process = subprocess.Popen(
                    # -P: a `storage` package in the current folder must not hide ours
                    [sys.executable, "-P", "-m", "actors.cluster.server", str(write_end)],
                    stdin=subprocess.PIPE,
                    bufsize=0,  # a signal handler writes there too
                    env=_without_key(),
                    stdout=log,
                    stderr=log,
                    pass_fds=(write_end,),
                    start_new_session=True,
                )
        finally:
            os.close(write_end)
        self._tell(json.dumps(self._orders).encode())
        self._has_orders = True
        if self._signals:
            self._tell(b"drain")  # a signal came before there was anybody to tell
        return read_end

    def _tell(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")

    def _follow(self, reports: int, announce: Announce) -> str | None:
        """Until the child has ended; the sentence of its error, if it sent one."""
        error = None
        with os.fdopen(reports, "rb") as lines:
            for line in lines:
                facts: dict[str, Any] = json.loads(line)
                error = facts.get("error", error)
                if "warning" in facts:
                    _say(facts["warning"])
                if "port" in facts:
                    self._is_listening = True
                    announce(facts["host"], facts["port"], facts["agents"])
        return error

    def _end_rest(self) -> None:
        """What the child has left of Ray, if it died: its process group."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def _handlers(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self._signals += 1
            if not self._has_orders:
                return  # `_begin` looks for signals when it has given them
            if self._signals == 1:
                self._tell(b"drain")
            else:
                self._end_rest()

        # A shell starts background commands with SIGINT ignored, `nohup` with SIGHUP: only the second was meant.
        before = {n: signal.getsignal(n) for n in _SIGNALS}
        if before[signal.SIGHUP] is signal.SIG_IGN:
            del before[signal.SIGHUP]
        for number in before:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _without_key() -> dict[str, str]:
    """Our environment without the model's key: Ray would hand it on to all its processes, and the orders hold it."""
    return {name: value for name, value in os.environ.items() if name.upper() != "PERDURE_MODEL_KEY"}


def _open_log(path: Path) -> Any:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "ab")


def _reason(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
