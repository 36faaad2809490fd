"""The frames of the wire protocol, without I/O: what was received becomes a value, what is to be sent becomes bytes.

Results, states and errors arrive here as JSON text that is already encoded and are only spliced into their frame.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

import orjson

from actors.conversation.json_text import Unreadable, decode, encode

# ---- received -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RpcFrame:
    """A well-formed request: ``id`` and ``method`` are text, ``args`` is a list."""

    frame: bytes
    call: bytes  # its id, as JSON text


@dataclass(frozen=True, slots=True)
class StateFrame:
    """A state update: there is a ``state`` key."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class OtherFrame:
    """Anything else, malformed requests included. It is no error and gets no reply."""

    payload: bytes
    is_text: bool


@dataclass(frozen=True, slots=True)
class UnreadableFrame:
    """A request, or a state update, that goes beyond what is read here."""

    answer: bytes


Received: TypeAlias = RpcFrame | StateFrame | OtherFrame | UnreadableFrame


def parse(message: str | bytes) -> Received:
    """What a client sent. Never raises: what is not a request is an `OtherFrame`. Binary is never read as protocol."""
    if isinstance(message, bytes):
        return OtherFrame(message, is_text=False)
    payload = message.encode()
    try:
        value = _object(payload)
    except Unreadable as exc:
        return _unreadable(payload, str(exc))
    kind = value.get("type")
    if kind == "rpc" and _is_call(value):
        return RpcFrame(payload, encode(value["id"]))
    if kind == "cf_agent_state" and "state" in value:
        return StateFrame(payload)
    return OtherFrame(payload, is_text=True)


def _object(payload: bytes) -> dict[str, object]:
    if not payload.lstrip(b" \t\r\n").startswith(b"{"):
        return {}
    try:
        value = decode(payload)
    except Unreadable:
        raise
    except ValueError:  # not JSON
        return {}
    return value if isinstance(value, dict) else {}


def _is_call(value: dict[str, object]) -> bool:
    return (
        isinstance(value.get("id"), str)
        and isinstance(value.get("method"), str)
        and isinstance(value.get("args"), list)
    )


_MAX_TOKENS = 250_000  # a tenth of a second; longer frames of this kind are ignored
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|\[+|\]+|[{}]', re.DOTALL)
_LONG_NUMBER = re.compile(rb"(?<!\d)\d{4000,}")


def _unreadable(payload: bytes, why: str) -> UnreadableFrame | OtherFrame:
    """An answer, if this looks like JSON and its outermost level is that of a request or of a state update."""
    try:
        value = _object(_LONG_NUMBER.sub(b"0", _outermost(payload)))
    except ValueError:
        value = {}
    if value.get("type") == "rpc" and _is_call(value):
        return UnreadableFrame(failure(encode(value["id"]), f"The call was not executed: {why}."))
    if value.get("type") == "cf_agent_state" and "state" in value:
        return UnreadableFrame(state_error(f"The state was not stored: {why}."))
    return OtherFrame(payload, is_text=True)


def _outermost(payload: bytes) -> bytes:
    """The text without what is inside the objects and lists of its outermost level; b"" if there is no end, or too much."""
    kept: list[bytes] = []
    depth = start = 0
    for count, token in enumerate(_TOKEN.finditer(payload)):
        length = token.end() - token.start()
        if count > _MAX_TOKENS or depth < 0:
            return b""
        if token[0][:1] in b"[{":
            if depth <= 1:
                until = token.start() + 1
                kept.append(payload[start:until])
                start = until
            depth += length
        elif token[0][:1] in b"]}":
            if depth > 1 >= depth - length:
                start = token.end() - 1
            depth -= length
    kept.append(payload[start:])
    return b"".join(kept) if depth == 0 else b""


# ---- sent -----------------------------------------------------------------------------------------------------

MCP = b'{"mcp":{"servers":{},"tools":[],"prompts":[],"resources":[]},"type":"cf_agent_mcp_servers"}'
"""No MCP servers: the frame is due on every connect all the same."""


def identity(agent: str, name: str) -> bytes:
    return b'{"name":%b,"agent":%b,"type":"cf_agent_identity"}' % (_text(name), _text(agent))


def state(value: bytes) -> bytes:
    return b'{"state":%b,"type":"cf_agent_state"}' % value


def state_error(error: str) -> bytes:
    return b'{"type":"cf_agent_state_error","error":%b}' % _text(error)


def result(call: bytes, value: bytes | None, *, is_done: bool) -> bytes:
    """A result or a chunk. ``value`` None: the method returned nothing, and the key is left out."""
    done = b"true" if is_done else b"false"
    spliced = b"" if value is None else b',"result":' + value
    return b'{"done":%b,"id":%b%b,"success":true,"type":"rpc"}' % (done, call, spliced)


def failure(call: bytes, error: str) -> bytes:
    return b'{"error":%b,"id":%b,"success":false,"type":"rpc"}' % (_text(error), call)


def _text(value: str) -> bytes:
    return orjson.dumps(value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


# ---- closing --------------------------------------------------------------------------------------------------

# How clients react is PROTOCOL.md section 10: they stop for good after 1008 and 4000-4999 only.
RESTART = 1012
TRY_LATER = 1013
INTERNAL_ERROR = 1011
UNAUTHORIZED = 4001
NOT_FOUND = 4004

_MAX_REASON_BYTES = 123  # RFC 6455: a control frame holds 125 bytes, two of them the code


def close_reason(reason: str) -> str:
    """``reason``, cut to what a close frame holds without splitting a character."""
    return reason.encode("utf-8", "replace")[:_MAX_REASON_BYTES].decode("utf-8", "ignore")


def close_code(code: int) -> int:
    """``code`` if a server may send it, else 1011."""
    is_sendable = code in {1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014}
    return code if is_sendable or 3000 <= code < 5000 else INTERNAL_ERROR
