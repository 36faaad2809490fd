"""The lock of a node's folder, and the one sentence when it or a port is taken."""

import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from actors.cluster import ray_environment
from actors.cluster.errors import CannotStart
from actors.cluster.folder import NodeFolder
from actors.cluster.ports import refuse_port_in_use, wait_for_port


def test_a_locked_folder_is_refused_with_the_process_that_holds_it(tmp_path: Path) -> None:
    held = NodeFolder.lock(tmp_path, wait_seconds=0, may_share=False)
    with pytest.raises(CannotStart, match=rf"already served by process {os.getpid()}\.$"):
        NodeFolder.lock(tmp_path, wait_seconds=0, may_share=False)
    held.release()
    NodeFolder.lock(tmp_path, wait_seconds=0, may_share=False).release()


def test_a_start_waits_for_a_lock_that_is_about_to_be_released(tmp_path: Path) -> None:
    held = NodeFolder.lock(tmp_path, wait_seconds=0, may_share=False)
    threading.Timer(0.2, held.release).start()
    NodeFolder.lock(tmp_path, wait_seconds=10, may_share=False).release()


def test_nodes_that_share_a_data_folder_take_the_first_that_is_free(tmp_path: Path) -> None:
    first = NodeFolder.lock(tmp_path, wait_seconds=0, may_share=True)
    second = NodeFolder.lock(tmp_path, wait_seconds=0, may_share=True)
    assert (first.number, second.number) == (0, 1)
    first.release()
    third = NodeFolder.lock(tmp_path, wait_seconds=0, may_share=True)
    assert third.number == 0
    second.release()
    third.release()


def test_a_killed_holder_leaves_no_lock_even_if_a_child_of_it_lives(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time, pathlib\n"
        "from actors.cluster.folder import NodeFolder\n"
        "folder = NodeFolder.lock(pathlib.Path(sys.argv[1]), wait_seconds=0, may_share=False)\n"
        "child = subprocess.Popen(['sleep', '60'], close_fds=False, stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ray_environment.package_root())}
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(CannotStart):
            NodeFolder.lock(tmp_path, wait_seconds=0, may_share=False)
        holder.kill()
        holder.wait()
        NodeFolder.lock(tmp_path, wait_seconds=0, may_share=False).release()
    finally:
        os.kill(child, 9)
        holder.stdout.close()


def test_folders_and_lock_are_private(tmp_path: Path) -> None:
    folder = NodeFolder.lock(tmp_path / "new" / "data", wait_seconds=0, may_share=False)
    for path in (tmp_path / "new", folder.path.parent, folder.path, folder.work, folder.logs):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (folder.path / "lock").stat().st_mode & 0o777 == 0o600
    folder.release()


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "node-0").mkdir()
    (tmp_path / "victim").write_text("content")
    (tmp_path / "node-0" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(CannotStart, match="cannot be opened"):
        NodeFolder.lock(tmp_path, wait_seconds=0, may_share=False)
    assert (tmp_path / "victim").read_text() == "content"


def test_a_data_folder_that_is_a_file_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(CannotStart, match=r"data is not a folder\.$"):
        NodeFolder.lock(tmp_path / "data", wait_seconds=0, may_share=False)
    with pytest.raises(CannotStart, match="cannot be made"):
        NodeFolder.lock(tmp_path / "data" / "below", wait_seconds=0, may_share=False)


def test_a_port_in_use_is_told_with_the_process_that_has_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match=rf"Port {port} on 127.0.0.1 is taken by process {os.getpid()} "):
            wait_for_port("127.0.0.1", port, 0)


def test_a_start_waits_for_a_port_that_is_about_to_be_released() -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    threading.Timer(0.2, taken.close).start()
    wait_for_port("127.0.0.1", taken.getsockname()[1], 10)


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None: ...


def test_a_port_and_a_folder_whose_holder_serves_are_refused_at_once(tmp_path: Path) -> None:
    held = NodeFolder.lock(tmp_path, wait_seconds=0, may_share=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            started = time.monotonic()
            with pytest.raises(CannotStart, match="is taken by process"):
                refuse_port_in_use("127.0.0.1", server.server_port)
            with pytest.raises(CannotStart, match="already served by process"):
                NodeFolder.lock(tmp_path, wait_seconds=60, may_share=False)
            assert time.monotonic() - started < 30
        finally:
            server.shutdown()
            serving.join()
    held.release()


def test_a_port_of_something_silent_is_not_refused_by_a_quick_look() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refuse_port_in_use("127.0.0.1", taken.getsockname()[1])


def test_an_address_of_another_machine_is_told_at_once() -> None:
    with pytest.raises(CannotStart, match="cannot be opened"):
        wait_for_port("192.0.2.77", 8787, 10)


def test_the_token_of_ray_is_private_and_stays(tmp_path: Path) -> None:
    path = ray_environment.token_file(tmp_path)
    secret = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(secret) == 64
    assert ray_environment.token_file(tmp_path).read_text() == secret
    assert [entry.name for entry in tmp_path.iterdir()] == ["ray-token"]


def test_sessions_of_dead_servers_are_removed_and_others_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / f"session_2026-01-01_00-00-00_123456_{dead.pid}").mkdir()
    mine = tmp_path / f"session_2026-01-01_00-00-00_123456_{os.getpid()}"
    mine.mkdir()
    (tmp_path / "session_latest").symlink_to(mine)
    ray_environment.remove_dead_sessions(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [mine.name, "session_latest"]
