"""Whether a Ray cluster can be reached: asked before Ray is, which ends the whole process when nobody answers."""

import socket

from actors.cluster.errors import CannotStart

_ANSWER_SECONDS = 10.0


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
