"""A keeper and conversations in memory, for tests of the gateway and of the client: no Ray, no storage.

`FakeKeeper` implements what the gateway sees of a keeper. A conversation is as wide awake as the test wants: `hold` keeps its
commands waiting until `release`.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from actors.conversation.events import (
    Close,
    Command,
    Connect,
    Connected,
    ConnectionId,
    Direct,
    Disconnect,
    Event,
    Failure,
    Message,
    Push,
    Result,
    Rpc,
    SetState,
    StateRefused,
)
from actors.gateway.server import Gateway
from actors.gateway.socket import Timing
from actors.settings import Settings
from storage.checkpoints.keys import ConversationKey

UNSET: Any = object()
NOTHING: Any = object()


@dataclass(frozen=True)
class FakeAgent:
    sends_identity: bool = True
    has_message_hook: bool = False
    has_protocol_hook: bool = False
    initial_state: Any = UNSET
    threshold: int | None = None
    greeting: str = ""
    is_echo: bool = False


AGENTS = {
    "conv-agent": FakeAgent(),
    "state-agent": FakeAgent(initial_state={"count": 0}, has_protocol_hook=True),
    "echo-agent": FakeAgent(has_message_hook=True, greeting="hello-from-onConnect", is_echo=True),
    "throw-msg-agent": FakeAgent(has_message_hook=True),
    "hidden-agent": FakeAgent(sends_identity=False),
    "conversation": FakeAgent(threshold=100_000),
}


@dataclass
class FakeConversation:
    """One conversation in memory: messages on one path, a state, and the methods that the transcripts call."""

    keeper: "FakeKeeper"
    agent: FakeAgent
    state: Any = UNSET
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    joined: dict[ConnectionId, Connect] = field(default_factory=dict)
    no_protocol: set[ConnectionId] = field(default_factory=set)
    connection_state: dict[ConnectionId, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    sequence: int = 0

    def __post_init__(self) -> None:
        self.state = self.agent.initial_state

    # ---- commands

    def run(self, command: Command) -> None:
        if isinstance(command, Connect):
            self._join(command)
        elif isinstance(command, Disconnect):
            self.joined.pop(command.connection, None)
        elif isinstance(command, SetState):
            self._client_state(command)
        elif isinstance(command, Message):
            self._message(command)
        elif isinstance(command, Rpc):
            self.keeper.spawn(self._call(command.connection, orjson.loads(command.frame)))

    def _join(self, command: Connect) -> None:
        number = command.connection
        self.joined[number] = command
        sends_protocol = "proto=off" not in command.url
        if not sends_protocol:
            self.no_protocol.add(number)
        state = None if self.state is UNSET else orjson.dumps(self.state)
        self.emit(Connected(number, state, self._is_readonly(number), sends_protocol))
        if self.agent.greeting:
            self.emit(Direct(number, self.agent.greeting.encode(), is_text=True))

    def _is_readonly(self, number: ConnectionId) -> bool:
        return "mode=view" in self.joined[number].url

    def _client_state(self, command: SetState) -> None:
        value = orjson.loads(command.frame)["state"]
        if self._is_readonly(command.connection):
            self.emit(StateRefused(command.connection, "Connection is readonly"))
        elif isinstance(value, dict) and value.get("count", 0) < 0:
            self.emit(StateRefused(command.connection, "State update rejected"))
        else:
            self.set_state(value, besides=command.connection)

    def set_state(self, value: Any, besides: ConnectionId | None = None) -> None:
        self.state = value
        frame = b'{"state":%b,"type":"cf_agent_state"}' % orjson.dumps(value)
        self.push(frame, is_protocol=True, besides=besides, phase="state")

    def _message(self, command: Message) -> None:
        if self.agent.is_echo:
            payload = b"echo:" + command.payload if command.is_text else command.payload
            self.emit(Direct(command.connection, payload, command.is_text))

    async def _call(self, number: ConnectionId, request: dict[str, Any]) -> None:
        call, name = orjson.dumps(request["id"]), request["method"]
        self.calls.append(name)
        method = None if name.startswith("_") else getattr(self, "rpc_" + name, None)
        if method is None:
            wrong = "callable" if name in ("constructor", "toString", "secret", "setState", "sql") else "exist"
            text = f"Method {name} is not callable" if wrong == "callable" else f"Method {name} does not exist"
            self.emit(Failure(number, call, text, "unknown_method", was_executed=False))
            return
        try:
            result = await method(number, call, *request["args"])
        except Exception as exc:
            self.emit(Failure(number, call, str(exc), "call_failed", was_executed=True))
            return
        self.emit(Result(number, call, None if result is NOTHING else orjson.dumps(result), is_done=True))

    # ---- events

    def emit(self, event: Event) -> None:
        self.keeper.front.event(event)

    def push(
        self, frame: bytes, *, is_protocol: bool = False, besides: ConnectionId | None = None, phase: str = ""
    ) -> None:
        audience = [number for number in self.joined if number != besides]
        self.keeper.front.push(audience, Push(frame, is_protocol, besides, phase))

    def status(self, phase: str = "idle", **more: Any) -> None:
        self.sequence += 1
        frame = {
            "type": "cf_agent_session",
            "phase": phase,
            "tokenEstimate": sum(4 + math.ceil(len(orjson.dumps(m)) / 4) for m in self.messages.values()),
            "tokenThreshold": self.agent.threshold,
            **more,
            "seq": self.sequence,
            "epoch": 1,
        }
        self.push(orjson.dumps(frame), phase="" if "compacted" in more else phase)

    # ---- methods of the reference's demos

    async def rpc_add(self, number: ConnectionId, call: bytes, a: Any = None, b: Any = None, *_: Any) -> Any:
        return None if a is None or b is None else a + b

    async def rpc_nothing(self, *_: Any) -> Any:
        return NOTHING

    async def rpc_nul(self, *_: Any) -> Any:
        return None

    async def rpc_big(self, *_: Any) -> Any:
        return {"d": "2026-01-01T00:00:00.000Z", "nan": None}

    async def rpc_fail(self, number: ConnectionId, call: bytes, text: str) -> Any:
        raise ValueError(text)

    async def rpc_failString(self, *_: Any) -> Any:
        raise ValueError("Unknown error occurred")

    async def rpc_circular(self, *_: Any) -> Any:
        raise ValueError("The result of circular cannot be sent.")

    async def rpc_slow(self, number: ConnectionId, call: bytes, ms: int) -> Any:
        await asyncio.sleep(ms / 1000)
        return "slow-done"

    async def rpc_block(self, number: ConnectionId, call: bytes, name: str = "") -> Any:
        """Runs until the test sets ``keeper.gates[name]``."""
        await self.keeper.gates[name].wait()
        return name

    async def rpc_payload(self, number: ConnectionId, call: bytes, size: int) -> Any:
        return "x" * size

    async def rpc_streamOk(self, number: ConnectionId, call: bytes, count: int) -> Any:
        for i in range(count):
            self.emit(Result(number, call, orjson.dumps({"i": i}), is_done=False))
        return {"total": count}

    async def rpc_streamBareEnd(self, number: ConnectionId, call: bytes) -> Any:
        self.emit(Result(number, call, b'"x"', is_done=False))
        return NOTHING

    async def rpc_streamForget(self, number: ConnectionId, call: bytes) -> Any:
        self.emit(Result(number, call, b'{"i":0}', is_done=False))
        return NOTHING

    async def rpc_streamThrow(self, number: ConnectionId, call: bytes) -> Any:
        self.emit(Result(number, call, b'{"i":0}', is_done=False))
        raise ValueError("stream exploded")

    async def rpc_streamErr(self, number: ConnectionId, call: bytes) -> Any:
        self.emit(Result(number, call, b'{"i":0}', is_done=False))
        raise ValueError("soft error")

    async def rpc_bump(self, number: ConnectionId, call: bytes) -> Any:
        if self._is_readonly(number):
            raise ValueError("Connection is readonly")
        count = self.state["count"] + 1
        self.set_state({"count": count})
        return count

    async def rpc_whoami(self, number: ConnectionId, call: bytes) -> Any:
        connect = self.joined[number]
        path = connect.url.partition("?")[0]
        return {"id": connect.client_id, "state": self.connection_state.get(number), "uri": path}

    async def rpc_setConn(self, number: ConnectionId, call: bytes, value: Any) -> Any:
        self.connection_state[number] = value
        return value

    async def rpc_count(self, *_: Any) -> Any:
        return len(self.joined)

    async def rpc_sendBinary(self, number: ConnectionId, call: bytes) -> Any:
        self.emit(Direct(number, b"\x01\x02\x03", is_text=False))
        return "sent"

    async def rpc_closeMe(self, number: ConnectionId, call: bytes, code: int, reason: str) -> Any:
        asyncio.get_running_loop().call_soon(self.emit, Close(number, code, reason))
        return "closing"

    # ---- methods of a session

    async def rpc_appendMessage(
        self, number: ConnectionId, call: bytes, message: dict[str, Any], parent: Any = UNSET
    ) -> Any:
        if message["id"] not in self.messages:
            self.parents[message["id"]] = self._leaf() if parent is UNSET else parent
            self.messages[message["id"]] = message
        self.status()
        return NOTHING

    async def rpc_getHistory(self, number: ConnectionId, call: bytes, leaf: str | None = None) -> Any:
        path: list[dict[str, Any]] = []
        at = leaf or self._leaf()
        while at is not None and at in self.messages:
            path.insert(0, self.messages[at])
            at = self.parents[at]
        return path

    async def rpc_getMessages(self, number: ConnectionId, call: bytes) -> Any:
        return await self.rpc_getHistory(number, call)

    async def rpc_getBranches(self, number: ConnectionId, call: bytes, parent: str) -> Any:
        return [self.messages[child] for child, of in self.parents.items() if of == parent]

    async def rpc_getLatestLeaf(self, *_: Any) -> Any:
        leaf = self._leaf()
        return None if leaf is None else self.messages[leaf]

    async def rpc_search(self, number: ConnectionId, call: bytes, query: str, options: Any = None) -> Any:
        limit = (options or {}).get("limit", 20)
        found = [m for m in self.messages.values() if query in orjson.dumps(m).decode()]
        return [{"id": m["id"], "role": m["role"], "content": m["parts"][0]["text"]} for m in found][:limit]

    async def rpc_compact(self, *_: Any) -> Any:
        self.status("compacting")
        ids = list(self.messages)
        self.status("idle", compacted={"tokensBefore": 50})
        return {"fromMessageId": ids[0], "toMessageId": ids[-1], "summary": "SUMMARY"}

    def _leaf(self) -> str | None:
        return next(reversed(self.messages), None)


class FakeKeeper:
    """What the gateway sees of a keeper: commands in, in order; events out through the front."""

    def __init__(self, agents: dict[str, FakeAgent] | None = None) -> None:
        self.agents = AGENTS if agents is None else agents
        self.conversations: dict[ConversationKey, FakeConversation] = {}
        self.submitted: list[tuple[ConversationKey, Command]] = []
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.refuse: Callable[[Command], Event | None] = lambda command: (
            None
        )  # an event to answer a command with instead
        self._held: list[tuple[ConversationKey, Command]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Event()

    def attach(self, front: Any) -> None:
        self.front = front

    def submit(self, key: ConversationKey, command: Command) -> None:
        self.submitted.append((key, command))
        self._arrived.set()
        if self._held is None:
            asyncio.get_running_loop().call_soon(self._run, key, command)
        else:
            self._held.append((key, command))

    def hold(self) -> None:
        """Conversations do nothing until `release`, as if they were waking."""
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for key, command in held:
            self._run(key, command)

    def _run(self, key: ConversationKey, command: Command) -> None:
        instead = self.refuse(command)
        if instead is not None:
            self.front.event(instead)
        else:
            self.conversation(key.agent, key.name).run(command)

    def conversation(self, agent: str, name: str) -> FakeConversation:
        key = ConversationKey(agent, name)
        if key not in self.conversations:
            self.conversations[key] = FakeConversation(self, self.agents[agent])
        return self.conversations[key]

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def commands(self, kind: type) -> list[Any]:
        return [command for _, command in self.submitted if isinstance(command, kind)]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition on what was submitted holds."""
        while not is_so():
            self._arrived.clear()
            await self._arrived.wait()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def running_gateway(
    keeper: FakeKeeper | None = None, *, timing: Timing | None = None, port: int = 0, **settings: Any
) -> Any:
    """A gateway on a loopback port with a fake keeper; yields ``(gateway, keeper, "ws://127.0.0.1:PORT")``."""
    keeper = keeper or FakeKeeper()
    gateway = Gateway(keeper, keeper.agents, Settings(**settings), timing=timing)
    port = await gateway.start("127.0.0.1", port)
    try:
        yield gateway, keeper, f"ws://127.0.0.1:{port}"
    finally:
        keeper.stop()
        await gateway.close()
