"""A server on a Ray cluster that somebody else runs: a detached controller, found by its name."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from actors.cluster import ray_environment as environment
from actors.cluster.controller import Controller, drain_limit_seconds
from actors.cluster.errors import CannotStart, GaveUp, ServerError
from actors.cluster.options import NodeOptions
from actors.cluster.parent_death import end_with_parent
from actors.cluster.placement import CONTROLLER_NAME, NAMESPACE, THE_NODE
from actors.cluster.reach import join

Announce = Callable[[str, int, Sequence[str]], None]

_ANSWER_SECONDS = 10.0


class ControllerActor:
    """The controller as a detached actor. Ends itself when it has drained or given up."""

    def __init__(self, options: NodeOptions) -> None:
        end_with_parent()
        self._options = options
        self._controller = Controller(options)
        self._address: tuple[str, int] | None = None
        self._error: ServerError | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> tuple[str, int]:
        """The address of the gateway, which is started by the first call."""
        with self._lock:
            if self._address is None:
                self._address = self._controller.start()
                threading.Thread(target=self._run, name="perdure-controller", daemon=True).start()
            return self._address

    def _run(self) -> None:
        try:
            self._controller.run()
        except ServerError as exc:
            self._error = exc
        self._ended.set()

    def drain_limit_seconds(self) -> float:
        return drain_limit_seconds(self._options)

    def stop(self) -> None:
        """Returns when everything has been hibernated. Raises `GaveUp`."""
        self._controller.drain()
        self._ended.wait()
        if self._error is not None:
            raise self._error


CONTROLLER: Any = ray.remote(ControllerActor)


def serve_on_cluster(settings: Any, announce: Announce, *, gateway: str, module_folder: str) -> None:
    """Make controller and gateway exist on the cluster at ``settings.address``, and return."""
    environment.private_folder(settings.data)
    with _joined(settings.address, settings.data):
        options = NodeOptions(settings, module_folder, THE_NODE, gateway, settings.port, may_share=True)
        controller: Any = CONTROLLER.options(
            name=CONTROLLER_NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,
        ).remote(options)
        try:
            host, port = ray.get(controller.start.remote(), timeout=settings.start_seconds * 2)
        except RayError as exc:
            with contextlib.suppress(RayError):
                ray.kill(controller)
            raise _told(exc, CannotStart("The controller did not start.")) from exc
        announce(host, port, ())


def stop_on_cluster(address: str) -> None:
    """Drain, then end the controller. Raises `GaveUp`, and `CannotStart` when nothing is served there."""
    with _joined(address, None):
        try:
            controller: Any = ray.get_actor(CONTROLLER_NAME, namespace=NAMESPACE)
        except ValueError as exc:
            raise CannotStart(f"No Perdure is running on the cluster {address}.") from exc
        try:
            limit = ray.get(controller.drain_limit_seconds.remote(), timeout=_ANSWER_SECONDS)
            ray.get(controller.stop.remote(), timeout=limit + _ANSWER_SECONDS)
        except RayError as exc:
            raise _told(exc, GaveUp("The server could not be stopped cleanly.")) from exc
        finally:
            with contextlib.suppress(RayError):
                ray.kill(controller)


def _told(error: RayError, otherwise: ServerError) -> ServerError:
    cause = error.cause if isinstance(error, RayTaskError) else error
    return cause if isinstance(cause, ServerError) else otherwise


@contextlib.contextmanager
def _joined(address: str, folder: Any) -> Iterator[None]:
    """Connected to the cluster; from another folder, since Ray puts the current one first on its workers' path."""
    with contextlib.chdir(folder) if folder is not None else contextlib.chdir(os.sep):
        asyncio.run(join(address))
    try:
        yield
    finally:
        ray.shutdown()
