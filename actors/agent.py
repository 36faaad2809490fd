"""The user's side of a conversation: subclass `Agent`, say what its session is, offer methods with `rpc`.

One instance serves one conversation while it is awake; when the conversation hibernates the instance is dropped, and a new
one is made at the next wake, perhaps in another process. What must survive goes into the session, into `state` or into the
database. Module globals are shared by all conversations that a process holds, one after another: keep nothing of one
conversation there.
"""

import contextvars
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from actors.errors import NotSupported
from actors.rpc import RpcMethod, Verb, rpc, rpc_methods
from actors.session import Session, SessionManager
from actors.settings import Settings
from storage.database import Database
from storage.errors import InvalidArgument

__all__ = ["UNSET", "Agent", "Connection", "Stream", "agent_info", "kebab", "rpc"]


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()
"""The state of an agent that has none: no state frame is sent. (``None`` is a state.)"""


def kebab(name: str) -> str:
    """The name of an agent in URLs, by the rule of the official clients (PROTOCOL.md section 1)."""
    if name == name.upper() and name != name.lower():
        return name.lower().replace("_", "-")
    dashed = re.sub(r"[A-Z]", lambda match: "-" + match.group().lower(), name).removeprefix("-")
    return dashed.replace("_", "-").removesuffix("-")


class Host(Protocol):
    """What an agent's conversation does for it."""

    def send(self, connection: int, payload: bytes, *, is_text: bool) -> None: ...
    def close_connection(self, connection: int, code: int, reason: str) -> None: ...
    def save_connection(self, connection: "Connection") -> None: ...
    def broadcast(self, frame: dict[str, Any] | str) -> None: ...
    async def set_state(self, value: Any) -> None: ...
    def state(self) -> Any: ...
    def connections(self) -> Iterable["Connection"]: ...


class Connection:
    """One client socket of this conversation, as the agent's hooks see it."""

    def __init__(self, host: Host, number: int, client_id: str, url: str, principal: str, verbs: Iterable[str]) -> None:
        self._host = host
        self._number = number
        self.id = client_id
        """The client's ``_pk`` (not unique, not a credential)."""
        self.url = url
        """Path and query, without the token."""
        self.principal = principal
        """Who the token says it is; "" without credentials."""
        self.verbs = frozenset(verbs)
        self._is_readonly = False
        self._sends_protocol = True
        self._state: Any = None

    @property
    def is_readonly(self) -> bool:
        """Whether state may not be changed through this connection. Survives hibernation, ends with the socket."""
        return self._is_readonly

    @is_readonly.setter
    def is_readonly(self, value: bool) -> None:
        self._is_readonly = value
        self._host.save_connection(self)

    @property
    def state(self) -> Any:
        """A small JSON value of the agent's own for this socket. Survives hibernation, ends with the socket."""
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = value
        self._host.save_connection(self)

    def send(self, payload: str | bytes) -> None:
        """Send a text or binary frame to this socket."""
        is_text = isinstance(payload, str)
        data = payload.encode("utf-8", "replace") if isinstance(payload, str) else payload
        self._host.send(self._number, data, is_text=is_text)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close this socket. The clients stop reconnecting after 1008 and 4000-4999 only (PROTOCOL.md section 10)."""
        self._host.close_connection(self._number, code, reason)


class Stream(Protocol):
    """What a streaming method writes to: chunks, then one end. A method that returns without an end ends it."""

    async def send(self, chunk: Any) -> None:
        """Send one chunk (any JSON value)."""

    async def end(self, value: Any = ...) -> None:
        """End the stream, with a final value if given."""

    async def error(self, text: str) -> None:
        """End the stream with an error."""


current_connection: contextvars.ContextVar[Connection | None] = contextvars.ContextVar(
    "current_connection", default=None
)
"""The connection whose call is running, also in the tasks that it started (an automatic compaction is one); None in calls of
Python handles and in hooks."""


class Agent:
    """Base class of the agents that a server serves.

    Clients may call its `rpc` methods, nothing else. With `SessionMethods` as a further base they may call the Session API as
    well: ``class Assistant(SessionMethods, Agent)``.

    ``database``: this conversation's SQLite file. ``name``: the conversation's name. ``session``: what `configure` returned.
    If that is a `SessionManager`, it is ``manager``, and ``session`` is the conversation's default session: configured like
    the manager's others, not in its lists, and what `SessionMethods` offers to clients. Further sessions, of a manager or
    made with `Session.create`, keep the conversation awake while they compact, and sleep and wake with it.
    """

    initial_state: ClassVar[Any] = UNSET
    """The state of a conversation whose state was never set; UNSET = none."""
    sends_identity: ClassVar[bool] = True
    """Whether clients are told agent and name on connect (without it `AgentClient.ready` never resolves)."""
    methods: ClassVar[dict[str, RpcMethod]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.methods = rpc_methods(cls)
        if inspect.iscoroutinefunction(cls.configure):
            raise TypeError(
                f"{cls.__qualname__}.configure must be a plain `def`: use `on_start` for what has to be awaited."
            )

    def __init__(self, *, database: Database, name: str, settings: Settings, host: Host) -> None:
        self.database = database
        self.name = name
        self.settings = settings
        self._host = host
        configured = self._configured()
        self._manager = configured if isinstance(configured, SessionManager) else None
        self.session: Session = configured.get_session("") if isinstance(configured, SessionManager) else configured

    def _configured(self) -> Session | SessionManager:
        configured: object = self.configure()
        if isinstance(configured, Session | SessionManager):
            return configured
        if inspect.iscoroutine(configured):
            configured.close()  # nobody awaits it
        raise InvalidArgument(
            f"{type(self).__name__}.configure must return a Session or a SessionManager, not {type(configured).__name__}."
        )

    def configure(self) -> Session | SessionManager:
        """The session of this conversation, or the manager of its sessions. Called once per wake, before anything else; must
        not touch storage."""
        return Session.create(self)

    @property
    def manager(self) -> SessionManager:
        """The manager of this conversation's sessions. Raises NotSupported if `configure` did not return one."""
        if self._manager is None:
            raise NotSupported(f"{type(self).__name__}.configure returns a session, not a manager of sessions.")
        return self._manager

    # ---- hooks ----------------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        """Called at each wake, before the first call."""

    async def on_connect(self, connection: Connection) -> None:
        """Called once per socket, after it has joined. Raising closes the socket with 1011."""

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        """Called for every frame that is not part of the protocol. An exception is logged and changes nothing."""

    async def on_disconnect(self, connection: Connection) -> None:
        """Called when a socket has gone while the conversation is awake."""

    def is_readonly_connection(self, connection: Connection) -> bool:
        """Decided once per socket, before it joins."""
        return False

    def sends_protocol_to(self, connection: Connection) -> bool:
        """False: no identity, state and mcp frames for this socket (calls and session frames still flow)."""
        return True

    def validate_state(self, value: Any, connection: Connection | None) -> None:
        """Raise to refuse a new state; a client gets the generic "State update rejected"."""

    # ---- state and broadcasts -------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The agent's state (any JSON value), or UNSET. Change it with `set_state`, not in place."""
        return self._host.state()

    async def set_state(self, value: Any) -> None:
        """Replace the state; returns when it is durable and has been broadcast.

        Raises ReadOnlyConnection inside a call of a read-only connection.
        """
        await self._host.set_state(value)

    def broadcast(self, frame: dict[str, Any] | str) -> None:
        """Send a text frame (or a value as JSON) to every connection of this conversation."""
        self._host.broadcast(frame)

    @property
    def connections(self) -> list[Connection]:
        """The sockets that have joined."""
        return list(self._host.connections())


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What a gateway needs to know of an agent class, without an instance."""

    kebab: str
    sends_identity: bool
    has_message_hook: bool
    verbs: dict[str, Verb]  # method on the wire -> verb
    has_protocol_hook: bool = False  # the agent decides for each socket whether it gets protocol frames


def agent_info(agent_class: type[Agent]) -> AgentInfo:
    return AgentInfo(
        kebab(agent_class.__name__),
        agent_class.sends_identity,
        agent_class.on_message is not Agent.on_message,
        {name: method.verb for name, method in agent_class.methods.items()},
        agent_class.sends_protocol_to is not Agent.sends_protocol_to,
    )
