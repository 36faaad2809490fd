"""The process that a `perdure serve` without ``--address`` runs everything in: Ray, and the controller.

Started by `start.py` in a session of its own, since Ray's daemons die of signals that a terminal or a supervisor sends
to the whole process group. The parent holds the other end of standard input: a line means drain, an end of file means
that the parent is gone, and then all of this ends at once. What the parent should know goes out as lines of JSON.
"""

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from actors.cluster import ray_environment as environment
from actors.cluster.errors import ServerError
from actors.cluster.folder import NodeFolder
from actors.cluster.ports import listeners_of_session, wait_for_port
from actors.cluster.ray_messages import RayMessages
from actors.settings import Settings

logger = logging.getLogger("perdure.server")


class Reports:
    """Lines of JSON to the parent."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # an end of file must tell the parent of our death, not of Ray's
        self._descriptor = descriptor

    def send(self, **facts: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._descriptor, json.dumps(facts).encode() + b"\n")


class ParentLink(threading.Thread):
    """Listens to the parent."""

    def __init__(self) -> None:
        super().__init__(name="perdure-parent", daemon=True)
        self._descriptor = os.dup(0)  # not inherited by Ray's processes, unlike standard input
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        self._rest = b""
        self._controller: Any = None
        self._wants_drain = False
        self._lock = threading.Lock()

    def read_line(self) -> bytes:
        """The first line; to be called before the thread is started."""
        while b"\n" not in self._rest:
            self._read()
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _read(self) -> None:
        data = os.read(self._descriptor, 65536)
        if not data:
            end_everything()
        self._rest += data

    def run(self) -> None:
        while True:
            if b"\n" in self._rest:
                self._rest = self._rest.split(b"\n", 1)[1]
                self.drain()
            else:
                self._read()

    def drain(self) -> None:
        with self._lock:
            self._wants_drain = True
            if self._controller is None:
                end_everything()  # nothing has been served yet, so there is nothing to lose
            self._controller.drain()

    def attach(self, controller: Any) -> None:
        """From now on a drain goes through this controller."""
        with self._lock:
            self._controller = controller


def end_everything() -> NoReturn:
    """SIGKILL for this process and Ray's daemons, which are in our process group; the actors follow their raylet."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> NoReturn:
    link = ParentLink()
    reports = Reports(int(sys.argv[1]))
    os.umask(0o077)
    standard_output: Any = RayMessages(sys.stdout)
    sys.stdout = standard_output
    orders = json.loads(link.read_line())
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link.start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        _serve(Settings(**orders["settings"]), orders, link, reports)
        code = 0
    except ServerError as exc:
        reports.send(error=str(exc))
        code = 1
    except Exception as exc:
        logger.exception("The server failed")
        reports.send(error=f"The server failed: {type(exc).__name__}: {exc}")
        code = 1
    logging.shutdown()
    os._exit(code)


def _serve(settings: Settings, orders: dict[str, Any], link: ParentLink, reports: Reports) -> None:
    # Before the cost of a Ray; the gateway takes both again, for good.
    NodeFolder.lock(settings.data, wait_seconds=orders["wait_seconds"], may_share=False).release()
    wait_for_port(settings.host, settings.port, orders["wait_seconds"])
    environment.set_variables(environment.embedded_variables(environment.token_file(settings.data)))
    environment.make_packages_importable()
    from actors.cluster.agents import load_agents, unready

    # a mistake in the user's module is told before Ray starts
    agents = load_agents(settings.agents, orders["module_folder"])
    for sentence in unready(agents, settings):
        reports.send(warning=sentence)

    import ray

    session = start_ray(settings)
    try:
        from actors.cluster.controller import Controller
        from actors.cluster.options import NodeOptions
        from actors.cluster.placement import THE_NODE

        options = NodeOptions(settings, orders["module_folder"], THE_NODE, orders["gateway"], settings.port)
        controller = Controller(options, is_ray_alive)
        signal.signal(signal.SIGTERM, lambda *_: controller.drain())  # ray.init has set its own
        host, port = controller.start()
        link.attach(controller)
        logger.info("listening sockets of this server and its Ray: %s", ", ".join(listeners_of_session()))
        reports.send(host=host, port=port, agents=list(agents))
        controller.run()
    finally:
        ray.shutdown()
        shutil.rmtree(session, ignore_errors=True)


def start_ray(settings: Settings) -> Path:
    """Start a Ray of our own; its session folder. The calling thread must live as long as Ray does: the daemons are
    killed when the thread that started them ends (PR_SET_PDEATHSIG)."""
    import ray

    root = environment.temp_root()
    environment.remove_dead_sessions(root)
    with contextlib.chdir(settings.data), environment.without_helpers():
        context: Any = ray.init(**environment.embedded_arguments(root))
    environment.write_variables_for_drivers(settings.data, str(context.address_info["gcs_address"]))
    return Path(context.address_info["session_dir"])


def is_ray_alive() -> bool:
    """Whether the two daemons without which nothing goes on are running."""
    import ray._private.worker as worker

    node = worker._global_node  # no public call tells; the driver itself waits for a minute before it notices
    return node is not None and not any(kind in ("gcs_server", "raylet") for kind, _ in node.dead_processes())


if __name__ == "__main__":
    main()
