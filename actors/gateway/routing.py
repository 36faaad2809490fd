"""Which conversation a path means. Nothing is decoded: the name is the raw segment of the URL, and stays so."""

import uuid
from collections.abc import Container
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote_plus

PREFIX = "agents"
_SUB_AGENT = "sub"
_MAX_CLIENT_ID = 256


@dataclass(frozen=True, slots=True)
class Route:
    """A conversation, and what followed its name in the path."""

    agent: str
    name: str
    rest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A path that leads to no conversation, as HTTP says it."""

    status: int
    text: str
    is_terminal: bool = False  # tell a WebSocket by a close frame, after which clients stop trying


Target: TypeAlias = Route | Refusal

NOT_FOUND = Refusal(404, "Not found")
INVALID_REQUEST = Refusal(400, "Invalid request")
NO_SUB_AGENTS = Refusal(404, "Sub-agents are not served here", is_terminal=True)
NAME_TOO_LONG = Refusal(404, "This conversation name is too long", is_terminal=True)


def find(path: str, agents: Container[str], max_name_bytes: int) -> Target:
    """The target of a request path (with or without a query). Empty segments do not count."""
    segments = [segment for segment in path.partition("?")[0].split("/") if segment]
    if len(segments) < 3 or segments[0] != PREFIX:
        return NOT_FOUND
    agent, name, rest = segments[1], segments[2], tuple(segments[3:])
    if agent not in agents:
        return INVALID_REQUEST
    if len(name.encode()) > max_name_bytes:
        return NAME_TOO_LONG
    if len(rest) >= 3 and rest[0] == _SUB_AGENT:
        return NO_SUB_AGENTS
    return Route(agent, name, rest)


def is_page(path: str, *names: str) -> bool:
    """Whether a path is one of ours outside of the conversations."""
    return path.partition("?")[0] in names


def query_value(path: str, key: str) -> str | None:
    """The first value of a query parameter, decoded."""
    for pair in path.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if unquote_plus(name) == key:
            return unquote_plus(value)
    return None


def client_id(path: str) -> str:
    """The client's ``_pk``, which names nobody and proves nothing, or a new one."""
    given = query_value(path, "_pk")
    return given if given and len(given) <= _MAX_CLIENT_ID else str(uuid.uuid4())


def without_token(path: str) -> str:
    """Path and query without the parameter ``token``; all else as it came."""
    head, _, query = path.partition("?")
    kept = [pair for pair in query.split("&") if pair and unquote_plus(pair.partition("=")[0]) != "token"]
    return head + ("?" + "&".join(kept) if kept else "")
