"""Joining a Ray cluster that runs already, without the ways in which Ray waits: for many minutes, and deaf to signals.

When nobody answers at all, Ray ends the whole process, so that is asked before Ray is.
"""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import ray
from ray.exceptions import RayError

from actors.cluster.errors import CannotStart
from actors.cluster.ray_environment import joining_arguments

_ANSWER_SECONDS = 10.0
JOIN_SECONDS = 30.0


async def join(address: str) -> None:
    """Connect Ray to this cluster. Raises `CannotStart` with one sentence, at the latest after `JOIN_SECONDS`."""
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            await asyncio.wrap_future(_begin(address))
    except TimeoutError as exc:
        raise CannotStart(f"The Ray cluster at {address} gives no answer within {JOIN_SECONDS:g} s.") from exc


def _begin(address: str) -> Future[None]:
    """In a thread that nobody waits for at the end, since nothing can call Ray back from an answer that does not come."""
    joined: Future[None] = Future()
    joined.set_running_or_notify_cancel()

    def work() -> None:
        try:
            check_reachable(address)
            with _without_word_of_signals():
                ray.init(**joining_arguments(address))
            joined.set_result(None)
        except CannotStart as exc:
            joined.set_exception(exc)
        except (ConnectionError, RayError, RuntimeError, ValueError) as exc:
            problem = CannotStart(f"There is no Ray cluster to reach at {address}: {str(exc).splitlines()[0]}")
            problem.__cause__ = exc
            joined.set_exception(problem)
        except BaseException as exc:
            joined.set_exception(exc)

    threading.Thread(target=work, name="perdure-join", daemon=True).start()
    return joined


@contextlib.contextmanager
def _without_word_of_signals() -> Iterator[None]:
    """Ray warns that it does not take SIGTERM over from a thread, which is as well: that belongs to the program."""

    def is_other(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("SIGTERM handler is not set")

    logger = logging.getLogger("ray._private.worker")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def check_reachable(address: str) -> None:
    """Raises `CannotStart` with one sentence."""
    host, _, port = address.rpartition(":")
    if "://" in address:
        raise CannotStart(f"{address} is not an address to join: give the HOST:PORT of the cluster's head.")
    if not port.isdigit():
        return  # "auto": Ray looks for a cluster on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except OSError as exc:
        raise CannotStart(f"There is no Ray cluster to reach at {address}: {exc.strerror or exc}.") from exc
