"""What goes into a conversation and what comes out of it: plain values, no sockets, no Ray, no wire format.

`Command`s are handed to an awake conversation one after another in the order in which their connection sent them;
`Event`s leave it in the order in which it produced them, and never before what they tell is durable.
JSON travels as text that is already encoded (``bytes``), so that a gateway only splices it into a frame.
"""

from dataclasses import dataclass
from typing import TypeAlias

ConnectionId: TypeAlias = int
"""Number that one gateway gave to one of its sockets; never used again. Not the client's ``_pk``."""


# ---- commands -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """A socket joins. Answered by exactly one `Connected`; events produced after that one reach the socket."""

    connection: ConnectionId
    client_id: str  # the client's _pk, or one made for it
    url: str  # path and query without the token
    principal: str  # "" without credentials
    is_readonly: bool
    verbs: tuple[str, ...]  # what this principal may do here
    saved: bytes | None = None  # what the last `Saved` of this socket said: it had joined before the conversation slept


@dataclass(frozen=True, slots=True)
class Disconnect:
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class Rpc:
    """A well-formed request frame: ``frame`` is the client's own JSON text (keys id, method, args are checked by the gateway)."""

    connection: ConnectionId
    frame: bytes
    call: bytes  # its id, as the JSON text that its answer will carry


@dataclass(frozen=True, slots=True)
class SetState:
    """A state frame of a client: its own JSON text, with a ``state`` key."""

    connection: ConnectionId
    frame: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """Anything else that a client sent, for `Agent.on_message`; sent on only for agents that have that hook."""

    connection: ConnectionId
    payload: bytes
    is_text: bool


Command: TypeAlias = Connect | Disconnect | Rpc | SetState | Message


# ---- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    connection: ConnectionId
    state: bytes | None  # JSON; None = there is no state (no frame)
    is_readonly: bool
    sends_protocol: bool  # False = no identity, state and mcp frames for this socket


@dataclass(frozen=True, slots=True)
class Result:
    """An answer to an `Rpc`, or a chunk of one (``is_done`` False)."""

    connection: ConnectionId
    call: bytes  # the request's id, as JSON text
    result: bytes | None  # JSON text; None = the method returned nothing
    is_done: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """An `Rpc` failed. ``code`` is a stable short name (errors.py), ``was_executed`` False = certainly not executed."""

    connection: ConnectionId
    call: bytes
    error: str
    code: str
    was_executed: bool


@dataclass(frozen=True, slots=True)
class StateRefused:
    connection: ConnectionId
    error: str


@dataclass(frozen=True, slots=True)
class Push:
    """A frame for every connection of the conversation but ``besides``.

    ``is_protocol``: not for connections that asked for no protocol frames. ``phase``: of a session frame that may be
    replaced by a newer one of the same phase ("idle", "compacting"); "" = never dropped. ``is_status``: it tells of the
    token usage.
    """

    frame: bytes
    is_protocol: bool
    besides: ConnectionId | None
    phase: str
    is_status: bool = False


@dataclass(frozen=True, slots=True)
class Direct:
    """A frame that the agent's own code sends to one connection."""

    connection: ConnectionId
    payload: bytes
    is_text: bool


@dataclass(frozen=True, slots=True)
class Close:
    """The agent's own code closes one connection."""

    connection: ConnectionId
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Saved:
    """What a conversation wants to find again in `Connect.saved` when it wakes with this socket still open; opaque JSON."""

    connection: ConnectionId
    saved: bytes


@dataclass(frozen=True, slots=True)
class Returned:
    """This command was certainly not executed (the conversation goes to sleep or was taken over): run it after the next wake."""

    command: Command


Event: TypeAlias = Connected | Result | Failure | StateRefused | Push | Direct | Close | Saved | Returned
