"""A private PostgreSQL from the machine's binaries: one per test run, a fresh schema for whoever asks.

It listens on a free port of the loopback address and on a socket in its own folder, keeps nothing safe (no fsync), and is
stopped by its process id when the run ends. `reason_missing` says why there is none; tests are then skipped, loudly.
"""

import atexit
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

SECONDS = 60
USER = "perdure"
SKIPPED = "nothing was tested on a real PostgreSQL"


@cache
def binaries() -> Path | None:
    """The folder of ``initdb`` and ``postgres``, the newest first; None if there is none."""
    folders = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    if config := shutil.which("pg_config"):
        told = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        folders.append(Path(told.stdout.strip() or "/nonexistent"))
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(versions, key=lambda path: (len(path.parent.name), path.parent.name), reverse=True)
    return next((path for path in folders if (path / "initdb").exists() and (path / "postgres").exists()), None)


def reason_missing() -> str | None:
    if binaries() is None:
        return "no PostgreSQL binaries (initdb, postgres) on this machine; on Debian install the package postgresql"
    return None


class PostgresServer:
    """A running server."""

    def __init__(self, folder: Path, port: int, process: "subprocess.Popen[bytes]") -> None:
        self.folder, self.port, self.process = folder, port, process
        self._schemas = itertools.count(1)
        self._known: dict[str, str] = {}

    def dsn(self, schema: str, user: str = USER, password: str | None = None) -> str:
        secret = "" if password is None else f" password={password}"
        return (
            f"host=127.0.0.1 port={self.port} dbname=postgres user={user}{secret} connect_timeout=10 "
            f"options='-c search_path={schema}'"
        )

    def schema(self, name: str | None = None) -> str:
        """A fresh schema; for a name that was asked for before, the same one."""
        if name is not None and name in self._known:
            return self._known[name]
        schema = f"test_{next(self._schemas)}"
        self.execute(f"CREATE SCHEMA {schema}")
        if name is not None:
            self._known[name] = schema
        return schema

    def execute(self, statement: str, *args: Any, schema: str = "public") -> list[tuple[Any, ...]]:
        """Run one statement as the server's owner."""
        with psycopg.connect(self.dsn(schema), autocommit=True) as connection:
            cursor = connection.execute(statement, args or None)
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # fast: ends the sessions
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_started: list[PostgresServer] = []


def server() -> PostgresServer:
    """The server of this test run. Skips the test where there can be none."""
    if reason := reason_missing():
        pytest.skip(f"{SKIPPED}: {reason}")
    if not _started:
        _started.append(_start())
        atexit.register(_started[0].stop)
    return _started[0]


def _start() -> PostgresServer:
    folder = Path(tempfile.mkdtemp(prefix="perdure-pg-"))
    command, account = _unprivileged()
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    bin_dir = binaries()
    assert bin_dir is not None
    settings = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions", "-U", USER]
    _run([*command, str(bin_dir / "initdb"), "-D", str(folder / "data"), *settings], folder)
    for _ in range(5):  # somebody else may take the port that was free
        server = _launch(command, bin_dir, folder)
        if server is not None:
            return server
    raise RuntimeError(f"PostgreSQL does not start: {(folder / 'log').read_text(errors='replace')[-2000:]}")


def _launch(command: list[str], bin_dir: Path, folder: Path) -> PostgresServer | None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": folder,
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "max_connections": 50,
        "shared_buffers": "32MB",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, str(bin_dir / "postgres"), "-D", str(folder / "data"), *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    server = PostgresServer(folder, port, process)
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(psycopg.OperationalError):
            if server.execute("SELECT 1") == [(1,)]:
                return server
        time.sleep(0.05)  # a server that starts has no event to wait for
    server.process.kill()
    server.process.wait()
    return None


def _unprivileged() -> tuple[list[str], Any]:
    """How to run a command as somebody who is not root, and who that is; nothing if we are not root."""
    dying = ["--pdeathsig", "INT"]  # it ends with this process, however that ends
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0:
        return ([setpriv, *dying] if setpriv else []), None
    names = {account.pw_name: account for account in pwd.getpwall()}
    account = names.get("postgres") or names["nobody"]
    if setpriv:
        who = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
        return [setpriv, *who, *dying], account
    return ["runuser", "-u", account.pw_name, "--"], account


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} … initdb failed: {done.stderr[-2000:]}")
