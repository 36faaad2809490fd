"""Keeps a gateway running: starts it, starts it again when it dies, gives up when it keeps dying, drains it.

Blocking code for a thread of its own; everything that can happen to it comes through one queue.
"""

import contextlib
import dataclasses
import logging
import queue
import time
from collections.abc import Callable
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from actors.cluster.errors import CannotStart, GaveUp, ServerError
from actors.cluster.node import GatewayActor
from actors.cluster.options import NodeOptions
from actors.cluster.placement import NAMESPACE, gateway_name

logger = logging.getLogger("perdure.controller")

MAX_DEATHS = 3
DEATHS_WITHIN_SECONDS = 60.0
_DRAIN: Final = object()
_NAME_FREE_SECONDS = 5.0
_LOOK_SECONDS = 0.5  # how often a lost Ray is looked for
_MARGIN_SECONDS = 15.0  # closing what a drain leaves, on a busy machine


def drain_limit_seconds(options: NodeOptions) -> float:
    """The longest that a drain may take: running calls, then a store that hangs, then the rest."""
    settings = options.settings
    return settings.drain_seconds + settings.store_deadline_seconds + settings.hang_seconds + _MARGIN_SECONDS


def _in_short(error: BaseException | None) -> str:
    """Ray's errors say in whole paragraphs what their class's name says."""
    if error is None:
        return "it ended by itself"
    if isinstance(error, RayTaskError):
        return type(error.cause).__name__
    return type(error).__name__ if isinstance(error, RayError) else str(error)


class Controller:
    """``is_ray_alive`` is asked twice a second; without it only the death of gateways is noticed."""

    def __init__(self, options: NodeOptions, is_ray_alive: Callable[[], bool] = lambda: True) -> None:
        self._options = options
        self._is_ray_alive = is_ray_alive
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._gateway: Any = None
        self._deaths: list[float] = []

    def start(self) -> tuple[str, int]:
        """Returns the address once connections are accepted. Raises `CannotStart`; nothing is tried again."""
        host, port = self._start_gateway()
        self._options = dataclasses.replace(self._options, port=port)  # a later gateway takes the same one
        return host, port

    def drain(self) -> None:
        """Ask for an end; may be called from any thread, also before `start`."""
        self._events.put(_DRAIN)

    def run(self) -> None:
        """Returns after a clean drain. Raises `GaveUp`."""
        while True:
            event = self._next_event()
            if event is _DRAIN:
                self._drain_gateway()
                return
            gateway, error = event
            if gateway is self._gateway:
                self._start_again(error)

    def _next_event(self) -> Any:
        while True:
            try:
                return self._events.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                self._check_ray()

    def _check_ray(self) -> None:
        if not self._is_ray_alive():
            raise GaveUp("Ray is gone, so this server ends; nothing acknowledged is lost.")

    def _wait_for(self, answer: Any, seconds: float) -> Any:
        """``ray.get`` that notices a lost Ray, of which it would hear nothing. Raises `GaveUp` then, else Ray's errors."""
        deadline = time.monotonic() + seconds
        while not ray.wait([answer], timeout=_LOOK_SECONDS)[0] and time.monotonic() < deadline:
            self._check_ray()
        return ray.get(answer, timeout=0)

    def _start_gateway(self) -> tuple[str, int]:
        gateway = self._create()
        try:
            address: tuple[str, int] = self._wait_for(gateway.start.remote(), self._options.settings.start_seconds)
        except RayTaskError as exc:
            with contextlib.suppress(RayError):
                ray.kill(gateway)
            cause = exc.cause
            raise (
                cause if isinstance(cause, ServerError) else CannotStart(f"The gateway did not start: {cause}")
            ) from exc
        except RayError as exc:
            with contextlib.suppress(RayError):
                ray.kill(gateway)
            raise CannotStart(f"The gateway did not start ({type(exc).__name__}).") from exc
        self._gateway = gateway
        gateway.ended.remote().future().add_done_callback(lambda done: self._events.put((gateway, done.exception())))
        return address

    def _create(self) -> Any:
        # Ray's own restarts are off: recovery has one path, this one.
        options = GATEWAY.options(
            name=gateway_name(self._options.node),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
        )
        deadline = time.monotonic() + _NAME_FREE_SECONDS
        while True:
            try:
                return options.remote(self._options)
            except ValueError as exc:  # the name of a gateway that has just died is not free yet
                if time.monotonic() > deadline:
                    raise CannotStart(f"Another gateway of this cluster serves node {self._options.node}.") from exc
                time.sleep(0.02)

    def _start_again(self, error: BaseException | None) -> None:
        logger.warning("The gateway died (%s)", _in_short(error))
        while True:
            now = time.monotonic()
            self._deaths = [*(t for t in self._deaths if now - t < DEATHS_WITHIN_SECONDS), now]
            self._check_ray()
            if len(self._deaths) >= MAX_DEATHS:
                reason = _in_short(error)
                raise GaveUp(f"The gateway died {MAX_DEATHS} times within a minute, the last time of this: {reason}")
            try:
                self._start_gateway()
                return
            except CannotStart as exc:
                logger.warning("The gateway could not be started again: %s", exc)
                error = exc

    def _drain_gateway(self) -> None:
        limit = drain_limit_seconds(self._options)
        try:
            self._wait_for(self._gateway.drain.remote(), limit)
        except GetTimeoutError as exc:
            raise GaveUp(f"Not everything was hibernated within {limit:.0f} s; nothing acknowledged is lost.") from exc
        except RayTaskError as exc:
            raise GaveUp(f"The gateway could not be drained: {exc.cause}; nothing acknowledged is lost.") from exc
        except RayError as exc:
            raise GaveUp("The gateway died while it was drained; nothing acknowledged is lost.") from exc
        finally:
            with contextlib.suppress(RayError):
                ray.kill(self._gateway)


GATEWAY: Any = ray.remote(GatewayActor)
