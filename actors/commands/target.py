"""Where a verb speaks to: a server's address without secrets in it, and the name of a conversation."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from actors.errors import BadSetting, CommandFailed

DEFAULT_AGENT = "conversation"
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


@dataclass(frozen=True, slots=True)
class Server:
    """``url`` never holds a credential, so it may be printed; ``token`` never shows in a repr."""

    url: str
    token: str | None = field(default=None, repr=False)


def server(url: str, token: str | None) -> Server:
    """Takes a ``?token=`` out of ``url``. Raises `BadSetting`, which repeats nothing of a url that may hold a secret."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError as exc:
        raise BadSetting("--url", "should look like ws://HOST:PORT.") from exc
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise BadSetting("--url", "should look like ws://HOST:PORT.")
    if parts.username is not None:
        raise BadSetting("--url", "cannot hold a user or password; give the credential with --token.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    query = parse_qsl(parts.query, keep_blank_values=True)
    token = token or next((value for key, value in query if key == "token"), None)
    rest = urlencode([(key, value) for key, value in query if key != "token"])
    clean = urlunsplit((_SCHEMES[parts.scheme], host + port, parts.path.rstrip("/"), rest, ""))
    return Server(clean, token)


def conversation(name: str) -> tuple[str, str]:
    """``agent/name`` or ``name`` -> (agent, name)."""
    agent, slash, rest = name.partition("/")
    agent, rest = (agent, rest) if slash else (DEFAULT_AGENT, name)
    if not agent or not rest:
        raise BadSetting(f"{name!r}", "is no name; it should be NAME or AGENT/NAME.")
    return agent, rest


def title(agent: str, name: str) -> str:
    """How a conversation is shown, harmless for a terminal; `conversation` and a client understand it.

    A name that came percent-encoded from a client is shown as that client calls it, if nothing is lost and all of it can
    be seen.
    """
    from actors.client import as_in_url
    from actors.commands.terminal import printable

    shown = unquote(name)
    if as_in_url(shown) != name or printable(shown) != shown:
        shown = name
    return printable(shown if agent == DEFAULT_AGENT and "/" not in shown else f"{agent}/{shown}")


async def require_listener(server: Server, wait_seconds: float = 5.0) -> None:
    """Raises `CommandFailed` when nothing accepts connections there (a client would go on trying, in silence)."""
    parts = urlsplit(server.url)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    try:
        async with asyncio.timeout(wait_seconds):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError) as exc:
        raise CommandFailed(
            f"Nothing answers at {server.url}; start a server with `perdure serve`, or name another with --url."
        ) from exc
    writer.close()
    # Whether the other side takes the close well is of no interest here.
    with contextlib.suppress(OSError):
        await writer.wait_closed()
