"""Who may reach the gateway from a browser: the rules for Origin, Host and the address to bind.

A page of any site can open a WebSocket to any address that its visitor reaches, and a name of the attacker's can be made to
resolve to a loopback address. So both headers are checked on every request, with credentials and without.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence

from actors.cluster.errors import CannotStart

_ORIGIN = re.compile(r"(https?)://([^/\s@?#]+)")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:/\s@\[\]]+)(?::(\d{1,5}))?")
_DEFAULT_PORT = {"http": ":80", "https": ":443"}


def is_loopback(host: str) -> bool:
    """Whether an address or host name is this machine and nothing else."""
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def check_bind(host: str) -> None:
    """Without credentials the gateway serves this machine only. Raises CannotStart."""
    if not is_loopback(host):
        raise CannotStart(
            f"Without credentials only a loopback address may be served, not {host or 'every address'!r}: "
            "leave --host at 127.0.0.1."
        )


class OriginRules:
    """Decides on the Origin and Host headers of a request.

    ``is_loopback_bind``: Host must then be a loopback name. ``scheme``: of the gateway itself; None when something in front
    of it may speak TLS for it. Raises CannotStart for an allow-listed value that is not an origin.
    """

    def __init__(self, allowed: Iterable[str], *, is_loopback_bind: bool, scheme: str | None) -> None:
        self._allowed = frozenset(_checked(origin) for origin in allowed)
        self._is_loopback_bind = is_loopback_bind
        self._schemes = ("http", "https") if scheme is None else (scheme,)

    def refusal(self, origins: Sequence[str], hosts: Sequence[str]) -> str | None:
        """Why a request with these header values is refused, in one sentence; None = it is accepted."""
        host = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            return "The request must have one valid Host header."
        if self._is_loopback_bind and not is_loopback(host.group(1)):
            return "This server answers to loopback names only; this Host is not one."
        if not origins:
            return None  # not a browser
        if len(origins) > 1 or not (self.is_listed(origins[0]) or self._is_own(origins[0], hosts[0])):
            return "This origin may not use this server; --allow-origin lets it."
        return None

    def is_listed(self, origin: str) -> bool:
        """Whether the origin was allowed by the operator."""
        return origin in self._allowed

    def _is_own(self, origin: str, host: str) -> bool:
        return any(origin == f"{scheme}://{host.removesuffix(_DEFAULT_PORT[scheme])}" for scheme in self._schemes)


def _checked(origin: str) -> str:
    value = origin.removesuffix("/")
    if not _ORIGIN.fullmatch(value):
        raise CannotStart(f"--allow-origin needs an origin such as https://app.example.com, not {origin!r}.")
    return value.lower()
