"""A conversation while it is awake: the plain asyncio object that an actor wraps.

Guarantees:

* commands of one connection are admitted in the order in which they were submitted, then run concurrently;
* events leave in the order in which they were produced, and never before what they tell is durable: whatever a method
  awaited from the session or the database was confirmed before it went on (the output gate, DESIGN.md section 4);
* a command that was certainly not executed comes back as `Returned`, every other `Rpc` gets exactly one last event.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Self

from actors.agent import Agent, Connection, current_connection
from actors.conversation.agent_state import AgentState, read_stored
from actors.conversation.calls import (
    Answer,
    Request,
    check_verb,
    failure,
    find_method,
    invoke,
    parse_request,
    seen_by_caller,
)
from actors.conversation.events import (
    Close,
    Command,
    Connect,
    Connected,
    ConnectionId,
    Direct,
    Disconnect,
    Event,
    Message,
    Push,
    Returned,
    Rpc,
    Saved,
    SetState,
    StateRefused,
)
from actors.conversation.json_text import decode, encode
from actors.errors import Busy, ConnectionLost, NotMine, ReadOnlyConnection
from actors.redaction import what_failed
from actors.rpc import RpcMethod
from actors.session.life import SessionsInUse
from actors.settings import Settings
from storage import leaves, schema
from storage.checkpoints import (
    CheckpointStore,
    ConversationKey,
    OpenedConversation,
    StorageOptions,
    close_conversation,
    open_conversation,
)
from storage.errors import Closed, Fenced, InvalidArgument, StorageError

logger = logging.getLogger("perdure.conversation")

_STATUS_FRAMES = ("cf_agent_session", "cf_agent_session_error")


class AwakeConversation:
    """One conversation, awake. Made by `wake`, ended by `hibernate` or by ``on_lost``."""

    @classmethod
    async def wake(
        cls,
        key: ConversationKey,
        agent_class: type[Agent],
        *,
        store: CheckpointStore,
        work_dir: Path,
        settings: Settings,
        node: bytes,
        emit: Callable[[Event], None],
        on_lost: Callable[[BaseException], None],
    ) -> Self:
        """Claim the conversation (a name that was never written is claimed by its first write), restore it, start its agent.

        Raises StoreUnavailable, Damaged or what the agent's own start raises; nothing is held then.
        """
        stored_state: list[str | None] = []

        def prepare(connection: sqlite3.Connection) -> None:
            schema.migrate(connection)
            # here, since each hop to the database's thread counts in a wake
            stored_state[:] = [read_stored(connection)]

        opened = await open_conversation(
            store,
            key,
            work_dir,
            node=node,
            options=StorageOptions.of(settings),
            prepare=prepare,
            template=schema.template(),
            describe=leaves.counts,
            on_lost=on_lost,
        )
        try:
            conversation = cls(key, agent_class, opened, settings, emit, on_lost)
            await conversation._start(stored_state[0])
        except BaseException:
            await close_conversation(opened)
            raise
        return conversation

    def __init__(
        self,
        key: ConversationKey,
        agent_class: type[Agent],
        opened: OpenedConversation,
        settings: Settings,
        emit: Callable[[Event], None],
        on_lost: Callable[[BaseException], None],
    ) -> None:
        self.key = key
        self.last_used = time.monotonic()
        self._opened = opened
        self._settings = settings
        self._emit = emit
        self._on_lost = on_lost
        self._sequence = 0
        self._state = AgentState(opened.database)
        self._joined: dict[ConnectionId, Connection] = {}
        self._joining: dict[ConnectionId, asyncio.Task[None]] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self._hooks: set[asyncio.Task[Any]] = set()
        self._message_bytes = 0  # of messages that wait or run
        self._is_closing = False
        self._agent = agent_class(database=opened.database, name=key.name, settings=settings, host=self)
        self._sessions = SessionsInUse(opened.database, self._agent.session)

        opened.database.on_resumed = self._give_way

    def _give_way(self) -> None:
        """Writes whose callers were told "unknown" have landed: what the agent and its session hold in memory may be older.

        The next wake reads everything afresh; nobody but this conversation notices.
        """
        self._is_closing = True
        self._on_lost(Closed())

    async def _start(self, stored_state: str | None) -> None:
        self._state.begin(stored_state, self._agent.initial_state)
        await self._sessions.resume()
        await self._agent.on_start()

    @property
    def epoch(self) -> int:
        """Number of this writer; 0 before the first write of a new name."""
        return self._opened.epoch

    @property
    def is_busy(self) -> bool:
        """Whether calls, hooks or a compaction are running: then it is not the time to hibernate."""
        return bool(self._calls or self._hooks or self._joining) or self._sessions.is_compacting

    # ---- commands -------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """Admit one command. Answers come as events; while closing, the answer is `Returned`."""
        self.last_used = time.monotonic()
        if isinstance(command, Disconnect):
            self._leave(command)
        elif self._is_closing:
            self._emit(Returned(command))
        elif isinstance(command, Rpc):
            self._admit(command)
        elif isinstance(command, Connect):
            self._begin(self._join(command), self._joining, command.connection)
        elif isinstance(command, SetState):
            self._spawn(self._client_state(command), self._calls)
        elif isinstance(command, Message):
            self._admit_message(command)

    def _begin(
        self, work: Coroutine[Any, Any, None], where: dict[ConnectionId, asyncio.Task[None]], key: ConnectionId
    ) -> None:
        task = asyncio.create_task(work)
        where[key] = task
        task.add_done_callback(lambda _: where.pop(key, None))

    def _spawn(self, work: Coroutine[Any, Any, None], where: set[asyncio.Task[Any]]) -> None:
        task = asyncio.create_task(work)
        where.add(task)
        task.add_done_callback(where.discard)

    # ---- connections ----------------------------------------------------------------------------------------

    async def _join(self, command: Connect) -> None:
        number = command.connection
        connection = Connection(self, number, command.client_id, command.url, command.principal, command.verbs)
        agent = self._agent
        try:
            saved = None if command.saved is None else decode(command.saved)
            if saved is None:
                connection._is_readonly = command.is_readonly or agent.is_readonly_connection(connection)
                connection._sends_protocol = agent.sends_protocol_to(connection)
            else:
                connection._is_readonly, connection._sends_protocol, connection._state = saved
            if not self._opened.is_proved:  # an owner with a successor must not tell its state
                await self._opened.database.read(lambda _: None)
        except (Fenced, Closed):
            self._emit(Returned(command))
            return
        except Exception as exc:
            self._refuse_connection(number, exc)
            return
        self._joined[number] = connection
        self._emit(Connected(number, self._state.confirmed_text, connection._is_readonly, connection._sends_protocol))
        if saved is None:
            self.save_connection(connection)
            if type(self._agent).on_connect is not Agent.on_connect:
                self._spawn(self._greet(connection), self._hooks)

    async def _greet(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self._settings.call_seconds):
                await self._agent.on_connect(connection)
        except Exception as exc:
            self._refuse_connection(connection._number, exc)

    def _refuse_connection(self, number: ConnectionId, error: Exception) -> None:
        logger.error("a connection could not be set up: %s", what_failed(error))
        code, reason = (1013, "try again later") if getattr(error, "is_retryable", False) else (1011, "internal error")
        self._emit(Close(number, code, reason))

    def _leave(self, command: Disconnect) -> None:
        joining = self._joining.get(command.connection)
        if joining is not None:
            joining.cancel()
        connection = self._joined.pop(command.connection, None)
        if connection is None or self._is_closing or type(self._agent).on_disconnect is Agent.on_disconnect:
            return
        self._spawn(self._guard(self._agent.on_disconnect(connection)), self._hooks)

    async def _guard(self, hook: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._settings.call_seconds):
                await hook
        except Exception as exc:
            logger.error("a hook failed: %s", what_failed(exc))

    # ---- calls ----------------------------------------------------------------------------------------------

    def _admit(self, command: Rpc) -> None:
        """Refuse at once what can never run; let the rest run in a task of its own, in this order."""
        method: RpcMethod | None = None
        try:
            request = parse_request(command)
            if len(self._calls) >= self._settings.max_queued_operations:
                raise Busy()
            method = find_method(self._agent, request.name)
            arguments = method.bind(request.arguments)
        except Exception as exc:
            self._emit(failure(command.connection, command.call, exc, method))
            return
        joined = None
        if command.connection not in self._joining:  # else it must not overtake those that wait for the join
            joined = self._joined.get(
                command.connection
            )  # what was accepted runs, also when its socket has gone by then
        self._spawn(self._call(command, request, method, arguments, joined), self._calls)

    async def _call(
        self,
        command: Rpc,
        request: Request,
        method: RpcMethod,
        arguments: dict[str, Any],
        joined: Connection | None,
    ) -> None:
        answer = Answer(method, request.connection, request.call, self._emit, self._prove)
        try:
            connection = joined or await self._connection(request.connection)
            if connection is None:
                raise ConnectionLost("before it had joined")
            current_connection.set(connection)
            check_verb(method, arguments, connection.verbs)
            async with asyncio.timeout(self._settings.call_seconds):
                if method.is_streaming:
                    await getattr(self._agent, method.attribute)(answer, **arguments)
                    result = None
                else:
                    result = await invoke(self._agent, method, arguments)
                await self._prove(method)
                answer.finish(result)
        except (Fenced, Closed) as exc:
            if method.is_single:
                self._emit(Returned(command))
            else:
                answer.fail(exc)
        except (Exception, asyncio.CancelledError) as exc:
            answer.fail(exc)

    async def _prove(self, method: RpcMethod) -> None:
        """Before an answer that may come from memory: an owner with a successor must not give it, nor may a state that it was
        computed from be unconfirmed. Raises Fenced.

        One operation that writes was confirmed, which is a proof; after it nothing may look like "not executed".
        """
        if method.is_single and method.verb != "read":
            return
        if self._state.is_unconfirmed or not self._opened.is_proved:
            await self._opened.database.read(lambda _: None)

    async def _connection(self, number: ConnectionId) -> Connection | None:
        """The connection once it has joined; None when its socket has gone, or never came."""
        joining = self._joining.get(number)
        if joining is not None:
            await asyncio.wait([joining])
        return self._joined.get(number)

    async def call(self, name: str, arguments: list[Any]) -> bytes | None:
        """A call of trusted code in the cluster (a handle): the result as JSON text, None when there is none.

        Raises what the method raises, NotMine while closing, OutcomeUnknown after ``call_seconds``.
        """
        if self._is_closing:
            raise NotMine()
        self.last_used = time.monotonic()
        method = find_method(self._agent, name)
        if method.is_streaming:
            raise InvalidArgument(f"{name} streams its answer; call it over a WebSocket.")
        bound = method.bind(arguments)
        running = asyncio.create_task(self._direct_call(method, bound))
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        return await running

    async def _direct_call(self, method: RpcMethod, arguments: dict[str, Any]) -> bytes | None:
        try:
            async with asyncio.timeout(self._settings.call_seconds):
                result = await invoke(self._agent, method, arguments)
                await self._prove(method)
                return result
        except (Fenced, Closed) as exc:
            raise NotMine() if method.is_single else seen_by_caller(exc, method) from exc
        except (Exception, asyncio.CancelledError) as exc:
            raise seen_by_caller(exc, method) from exc

    def _admit_message(self, command: Message) -> None:
        """There is no answer to a message, so a socket that sends more than can wait is closed."""
        size = len(command.payload)
        is_full = len(self._hooks) >= self._settings.max_queued_operations
        if is_full or (self._message_bytes and self._message_bytes + size > self._settings.max_queued_bytes):
            self._emit(Close(command.connection, 1013, "too many messages"))
            return
        self._message_bytes += size
        self._spawn(self._message(command), self._hooks)

    async def _message(self, command: Message) -> None:
        try:
            connection = await self._connection(command.connection)
            if connection is not None:
                payload = command.payload.decode("utf-8", "replace") if command.is_text else command.payload
                await self._guard(self._agent.on_message(connection, payload))
        finally:
            self._message_bytes -= len(command.payload)

    # ---- state ----------------------------------------------------------------------------------------------

    async def _client_state(self, command: SetState) -> None:
        connection = await self._connection(command.connection)
        if connection is None:
            return
        try:
            if connection.is_readonly or "edit" not in connection.verbs:
                raise ReadOnlyConnection()
            await self._change_state(decode(command.frame)["state"], connection)
        except (Fenced, Closed):
            self._emit(Returned(command))
        except StorageError as exc:
            self._emit(StateRefused(command.connection, str(exc)))
        except Exception as exc:
            logger.info("a state was refused: %s", type(exc).__name__)
            self._emit(StateRefused(command.connection, "State update rejected"))

    async def _change_state(self, value: Any, sender: Connection | None) -> None:
        self._agent.validate_state(value, sender)
        text = await self._state.change(value)
        besides = None if sender is None else sender._number
        self._emit(
            Push(b'{"state":%b,"type":"cf_agent_state"}' % text, is_protocol=True, besides=besides, phase="state")
        )

    # ---- what the agent may do (actors.agent.Host) ------------------------------------------------------------

    def state(self) -> Any:
        return self._state.seen

    async def set_state(self, value: Any) -> None:
        connection = current_connection.get()
        if connection is not None and connection.is_readonly:
            raise ReadOnlyConnection()
        await self._change_state(value, None)

    def broadcast(self, frame: dict[str, Any] | str) -> None:
        if isinstance(frame, str):
            self._emit(Push(frame.encode("utf-8", "replace"), is_protocol=False, besides=None, phase=""))
            return
        phase = ""
        if str(frame.get("type", "")).startswith("cf_agent_session"):
            self._sequence += 1
            if "compacted" not in frame:
                phase = str(frame.get("phase", ""))
            frame = {**frame, "seq": self._sequence, "epoch": self.epoch}
        is_status = frame.get("type") in _STATUS_FRAMES
        self._emit(Push(encode(frame), is_protocol=False, besides=None, phase=phase, is_status=is_status))

    def send(self, connection: ConnectionId, payload: bytes, *, is_text: bool) -> None:
        self._emit(Direct(connection, payload, is_text))

    def close_connection(self, connection: ConnectionId, code: int, reason: str) -> None:
        self._emit(Close(connection, code, reason))

    def save_connection(self, connection: Connection) -> None:
        saved = encode([connection._is_readonly, connection._sends_protocol, connection._state])
        self._emit(Saved(connection._number, saved))

    def connections(self) -> Iterable[Connection]:
        return self._joined.values()

    # ---- the end --------------------------------------------------------------------------------------------

    async def settle_calls(self, seconds: float) -> None:
        """Returns when all calls that run have ended, hence have told how; or after ``seconds``."""
        running = {*self._calls, *self._joining.values()}
        if running:
            await asyncio.wait(running, timeout=seconds)

    async def hibernate(self, grace_seconds: float | None = None) -> None:
        """Finish what runs (at most ``grace_seconds``, then its outcome is unknown), write CLOSE, let go of everything.

        Left out, ``grace_seconds`` is the setting ``drain_seconds``.

        Raises why CLOSE could not be written (Fenced, StoreUnavailable): everything acknowledged is in the store all the
        same, and everything local has been let go.
        """
        self._is_closing = True
        try:
            await self._finish(self._settings.drain_seconds if grace_seconds is None else grace_seconds)
        finally:
            problem = await close_conversation(self._opened)
        if problem is not None:
            raise problem

    async def _finish(self, grace_seconds: float) -> None:
        sessions = self._sessions
        running: set[asyncio.Task[Any]] = {*self._calls, *self._hooks, *self._joining.values()}
        if sessions.is_compacting:
            running.add(asyncio.create_task(sessions.settled()))
        if running:
            _, late = await asyncio.wait(running, timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                await sessions.cancel_compaction()
                await asyncio.wait(late, timeout=1.0)
        if self._opened.is_claimed and not self._opened.database.is_lost:
            with contextlib.suppress(StorageError):  # what only memory held is no promise
                await sessions.hibernate()
