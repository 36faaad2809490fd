"""The codec of a lane: messages to bytes and bytes to messages, without I/O.

A lane is an ordered stream of batches. A batch is a u32 length and that many bytes of messages; a message is

    kind u8 | flags u8 | lease u64 | number u64 | head length u32 | body length u32 | head | body

(big endian). ``number`` is a connection, or whatever number the kind needs; ``head`` is short text, or a JSON array of
short fields; ``body`` is the bytes of a frame, never re-encoded. Both ends are ours and of the same version, but an
actor runs a user's code: everything is checked, and all that is wrong is a `LaneError`.
"""

import json
import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import orjson

from actors.cluster.control import (
    Asleep,
    Awake,
    Control,
    Hello,
    Lost,
    Ping,
    Pong,
    Sleep,
    Stay,
    Wake,
    WakeRefused,
)
from actors.conversation.events import (
    Close,
    Command,
    Connect,
    Connected,
    Direct,
    Disconnect,
    Event,
    Failure,
    Message,
    Push,
    Result,
    Returned,
    Rpc,
    Saved,
    SetState,
    StateRefused,
)

MAX_BATCH_BYTES = 256 * 1024 * 1024
"""No batch, hence no single message, is longer."""
FULL_BATCH_BYTES = 1024 * 1024
"""A batch is closed when it has reached this; a longer message has a batch of its own."""

Body: TypeAlias = Control | Command | Event
Fields: TypeAlias = tuple[int, int, bytes, bytes]
"""flags, number, head, body of a message"""

_HEADER = struct.Struct("!BBQQII")
_LENGTH = struct.Struct("!I")


class LaneError(Exception):
    """The bytes are not a lane's, or a message is longer than a lane carries."""


# ---- text ---------------------------------------------------------------------------------------------------------


def _list(*fields: Any) -> bytes:
    try:
        return orjson.dumps(fields)
    except TypeError:  # a lone surrogate, which names and error texts may have
        return json.dumps(fields).encode()


def _fields(head: bytes, *types: type) -> list[Any]:
    try:
        found = orjson.loads(head)
    except orjson.JSONDecodeError:
        found = json.loads(head)
    if not isinstance(found, list) or [type(item) for item in found] != list(types):
        raise LaneError("head", types, found)
    return found


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


# ---- one encoder and one decoder for each kind ----------------------------------------------------------------------
# The number of a kind is its place in this table.


def _connect(m: Connect) -> Fields:
    flags = (1 if m.is_readonly else 0) | (2 if m.saved is not None else 0)
    return flags, m.connection, _list(m.client_id, m.url, m.principal, list(m.verbs)), m.saved or b""


def _to_connect(flags: int, number: int, head: bytes, body: bytes) -> Connect:
    client_id, url, principal, verbs = _fields(head, str, str, str, list)
    if not all(type(verb) is str for verb in verbs):
        raise LaneError("verbs", verbs)
    return Connect(number, client_id, url, principal, bool(flags & 1), tuple(verbs), body if flags & 2 else None)


def _connected(m: Connected) -> Fields:
    flags = (1 if m.is_readonly else 0) | (2 if m.sends_protocol else 0) | (4 if m.state is not None else 0)
    return flags, m.connection, b"", m.state or b""


def _to_connected(flags: int, number: int, head: bytes, body: bytes) -> Connected:
    return Connected(number, body if flags & 4 else None, bool(flags & 1), bool(flags & 2))


def _result(m: Result) -> Fields:
    return (1 if m.is_done else 0) | (2 if m.result is not None else 0), m.connection, m.call, m.result or b""


def _to_result(flags: int, number: int, head: bytes, body: bytes) -> Result:
    return Result(number, head, body if flags & 2 else None, bool(flags & 1))


def _to_failure(flags: int, number: int, head: bytes, body: bytes) -> Failure:
    error, code = _fields(head, str, str)
    return Failure(number, body, error, code, bool(flags & 1))


def _push(m: Push) -> Fields:
    flags = (1 if m.is_protocol else 0) | (2 if m.besides is not None else 0) | (4 if m.is_status else 0)
    return flags, m.besides or 0, _encode(m.phase), m.frame


def _to_push(flags: int, number: int, head: bytes, body: bytes) -> Push:
    return Push(body, bool(flags & 1), number if flags & 2 else None, _decode(head), bool(flags & 4))


def _to_close(flags: int, number: int, head: bytes, body: bytes) -> Close:
    code, reason = _fields(head, int, str)
    return Close(number, code, reason)


def _to_returned(flags: int, number: int, head: bytes, body: bytes) -> Returned:
    _, command, end = _decode_message(memoryview(body), 0)
    if end != len(body) or not isinstance(command, (Connect, Disconnect, Rpc, SetState, Message)):
        raise LaneError("returned", type(command).__name__)
    return Returned(command)


def _to_refused(flags: int, number: int, head: bytes, body: bytes) -> WakeRefused:
    code, sentence = _fields(head, str, str)
    return WakeRefused(code, sentence, bool(flags & 1))


def _to_sleep(flags: int, number: int, head: bytes, body: bytes) -> Sleep:
    (grace_seconds,) = _fields(head, float)
    return Sleep(bool(flags & 1), grace_seconds, bool(flags & 2))


_KINDS: tuple[tuple[type, Callable[[Any], Fields], Callable[[int, int, bytes, bytes], Body]], ...] = (
    (Hello, lambda m: (0, m.pid, _encode(m.token), b""), lambda f, n, h, b: Hello(n, _decode(h))),
    (Wake, lambda m: (0, 0, _list(m.agent, m.name), b""), lambda f, n, h, b: Wake(*_fields(h, str, str))),
    (Awake, lambda m: (0, m.epoch, b"", b""), lambda f, n, h, b: Awake(n)),
    (WakeRefused, lambda m: (int(m.is_spare_ok), 0, _list(m.code, m.sentence), b""), _to_refused),
    (Sleep, lambda m: (int(m.may_stay) | 2 * int(m.is_last), 0, _list(float(m.grace_seconds)), b""), _to_sleep),
    (Asleep, lambda m: (int(m.is_spare_ok), 0, b"", b""), lambda f, n, h, b: Asleep(bool(f & 1))),
    (Stay, lambda m: (0, 0, b"", b""), lambda f, n, h, b: Stay()),
    (Lost, lambda m: (0, 0, _encode(m.reason), b""), lambda f, n, h, b: Lost(_decode(h))),
    (Ping, lambda m: (0, m.number, b"", b""), lambda f, n, h, b: Ping(n)),
    (Pong, lambda m: (0, m.number, b"", b""), lambda f, n, h, b: Pong(n)),
    (Connect, _connect, _to_connect),
    (Disconnect, lambda m: (0, m.connection, b"", b""), lambda f, n, h, b: Disconnect(n)),
    (Rpc, lambda m: (0, m.connection, m.call, m.frame), lambda f, n, h, b: Rpc(n, b, h)),
    (SetState, lambda m: (0, m.connection, b"", m.frame), lambda f, n, h, b: SetState(n, b)),
    (
        Message,
        lambda m: (int(m.is_text), m.connection, b"", m.payload),
        lambda f, n, h, b: Message(n, b, bool(f & 1)),
    ),
    (Connected, _connected, _to_connected),
    (Result, _result, _to_result),
    (Failure, lambda m: (int(m.was_executed), m.connection, _list(m.error, m.code), m.call), _to_failure),
    (
        StateRefused,
        lambda m: (0, m.connection, b"", _encode(m.error)),
        lambda f, n, h, b: StateRefused(n, _decode(b)),
    ),
    (Push, _push, _to_push),
    (Direct, lambda m: (int(m.is_text), m.connection, b"", m.payload), lambda f, n, h, b: Direct(n, b, bool(f & 1))),
    (Close, lambda m: (0, m.connection, _list(m.code, m.reason), b""), _to_close),
    (Saved, lambda m: (0, m.connection, b"", m.saved), lambda f, n, h, b: Saved(n, b)),
    (Returned, lambda m: (0, 0, b"", encode_message(0, m.command)), _to_returned),
)
_ENCODERS = {kind: (number, encoder) for number, (kind, encoder, _) in enumerate(_KINDS)}
_DECODERS = [decoder for _, _, decoder in _KINDS]


# ---- messages and batches -------------------------------------------------------------------------------------------


def encode_message(lease: int, body: Body) -> bytes:
    """One message, to be put in a batch; `LaneError` if it is too long to travel."""
    kind, encoder = _ENCODERS[type(body)]
    flags, number, head, payload = encoder(body)
    if _HEADER.size + len(head) + len(payload) > MAX_BATCH_BYTES:
        raise LaneError("message too long", type(body).__name__, len(head) + len(payload))
    return b"".join((_HEADER.pack(kind, flags, lease, number, len(head), len(payload)), head, payload))


def encode_batches(messages: Iterable[bytes]) -> bytes:
    """Encoded messages, in their order, as the bytes of one or more batches."""
    parts: list[bytes] = []
    start, size = 0, 0
    for message in messages:
        if size and size + len(message) > FULL_BATCH_BYTES:
            parts.insert(start, _LENGTH.pack(size))
            start, size = len(parts), 0
        parts.append(message)
        size += len(message)
    if size:
        parts.insert(start, _LENGTH.pack(size))
    return b"".join(parts)


def _decode_message(view: memoryview, at: int) -> tuple[int, Body, int]:
    start = at + _HEADER.size
    if start > len(view):
        raise LaneError("short message")
    kind, flags, lease, number, head_size, body_size = _HEADER.unpack_from(view, at)
    middle, end = start + head_size, start + head_size + body_size
    if end > len(view) or kind >= len(_DECODERS):
        raise LaneError("kind or length", kind, head_size, body_size)
    try:
        body = _DECODERS[kind](flags, number, bytes(view[start:middle]), bytes(view[middle:end]))
    except (ValueError, RecursionError) as exc:
        raise LaneError("not decodable", kind) from exc
    return lease, body, end


class LaneDecoder:
    """Bytes in, in pieces of any size; messages out, each with its lease. After a `LaneError` it is of no more use."""

    def __init__(self, max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        self._buffer = bytearray()
        self._max_batch_bytes = max_batch_bytes

    def feed(self, data: bytes) -> list[tuple[int, Body]]:
        self._buffer += data
        messages: list[tuple[int, Body]] = []
        used = 0
        with memoryview(self._buffer) as view:
            while (end := self._end_of_batch(view, used)) is not None:
                with view[used + _LENGTH.size : end] as batch:
                    at = 0
                    while at < len(batch):
                        lease, body, at = _decode_message(batch, at)
                        messages.append((lease, body))
                used = end
        del self._buffer[:used]
        return messages

    def _end_of_batch(self, view: memoryview, start: int) -> int | None:
        if len(view) - start < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(view, start)
        if not 0 < size <= self._max_batch_bytes:
            raise LaneError("length of a batch", size)
        end: int = start + _LENGTH.size + size
        return end if end <= len(view) else None
