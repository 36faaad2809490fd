"""One turn: the model is asked, its calls are run, until it has answered in words."""

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

from actors.agent import Stream
from actors.chat.model_messages import model_messages
from actors.chat.reply import Reply, ReplyFull, seal_dead
from actors.chat.tools import ChatTool, ToolFailed
from actors.conversation.calls import public_text
from actors.conversation.json_text import decode, encode
from actors.models import Finished, Model, ModelClient, TextDelta, ToolCall, open_model
from actors.redaction import what_failed
from actors.session import Session
from actors.session.skills import UNLOAD_TOOL
from actors.session.tools import comes_from_outside
from storage import json_text
from storage.errors import StorageError

Json: TypeAlias = dict[str, Any]

MAX_OUTPUT_BYTES = 1024 * 1024
"""More than that of one tool's answer is an error for the model: it would not fit its context anyway."""

MAX_CALLS = 128
"""So many calls of one answer are run; each of the others is answered with an error."""

CANCELLED = "The turn was cancelled before it answered; whether it has done anything is not known."
FULL = "Not run: the reply can hold no more."
TOO_MANY_CALLS = f"Not run: one answer may ask for {MAX_CALLS} calls at most."
TOO_MANY_STEPS = "Not run: the turn had reached its limit of steps."


logger = logging.getLogger("perdure.conversation")


@dataclass(frozen=True, slots=True)
class _Call:
    id: str
    name: str
    input: Any
    refusal: Json | None
    """The answer to a call that is not run."""


class Turn:
    """Runs once. ``stream`` gets the chunks that `ChatAgent.chat` documents."""

    def __init__(
        self,
        session: Session,
        stream: Stream,
        *,
        own_tools: Mapping[str, ChatTool],
        max_steps: int,
        tool_seconds: float,
    ) -> None:
        self._session = session
        self._stream = stream
        self._own_tools = own_tools
        self._max_steps = max_steps
        self._tool_seconds = tool_seconds
        self._reply: Reply
        self._work: asyncio.Task[str] | None = None
        self._is_cancelled = False

    async def run(self, model: Model, reply: Reply) -> Json:
        """The reply as it is stored at the end, also when it was cancelled or is full. Raises what the turn failed with, which is
        stored as well."""
        if self._is_cancelled:
            return await reply.finish("cancelled", left=CANCELLED)
        self._reply = reply
        self._work = asyncio.create_task(self._steps(model), name="chat turn")
        try:
            status = await self._work
        except ReplyFull:
            return await reply.finish("full", left=FULL)
        except asyncio.CancelledError:
            if self._is_cancelled:
                return await reply.finish("cancelled", left=CANCELLED)
            await self._fail("interrupted", None)
            raise
        except Exception as exc:
            await self._fail("error", str(exc) if isinstance(exc, StorageError) else public_text(exc))
            raise
        return await reply.finish(status, left=TOO_MANY_STEPS)

    @property
    def has_begun(self) -> bool:
        return self._work is not None

    def cancel(self) -> bool:
        """End it, also before it has begun; what was written so far stays. Whether there was anything to end."""
        if self._work is not None and self._work.done():
            return False
        self._is_cancelled = True
        return self._work is None or self._work.cancel()

    async def _fail(self, status: str, error: str | None) -> None:
        try:
            await self._reply.finish(status, error=error)
        except StorageError:  # then it is stored as it was last; the error that began it is the one to tell
            pass

    async def _steps(self, model: Model) -> str:
        """The status that the turn ends with."""
        async with open_model(model) as client:
            first = self._reply.steps
            for step in range(first, max(self._max_steps, first + 1)):
                may_call = step + 1 < self._max_steps
                tools = {**await self._session.tools(), **self._own_tools}
                calls = await self._ask(client, tools, may_call)
                if not calls:
                    return "done"
                if may_call:
                    await self._run_all(calls, tools)
        return "max-steps"

    async def _ask(self, client: ModelClient, tools: Mapping[str, ChatTool], may_call: bool) -> list[_Call]:
        """One answer of the model, stored, and the calls that it asks for."""
        history = await seal_dead(self._session, await self._reply.path(), self._reply.id)
        messages = model_messages(history, await self._session.freeze_system_prompt())
        calls: list[ToolCall] = []
        finished: Finished | None = None
        events = await client.stream(messages, [tool.to_openai() for tool in tools.values()], may_call=may_call)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, TextDelta):
                    self._reply.add_text(event.text)
                    await self._stream.send({"type": "text-delta", "text": event.text})
                elif isinstance(event, ToolCall):
                    calls.append(event)
                else:
                    finished = event
        asked = [self._add(call, number) for number, call in enumerate(calls)]
        if finished is not None:
            self._reply.end_step(finished.usage, finished.reason)
            if finished.usage is not None:
                await self._session.record_usage(finished.usage)
        if asked:  # else the end of the turn stores it
            await self._reply.save()
        for call in asked:
            about = {"toolCallId": call.id, "toolName": call.name}
            await self._stream.send({"type": "tool-call", **about, "input": call.input})
            if call.refusal is not None:
                await self._stream.send({"type": "tool-result", **about, **call.refusal})
        return asked

    def _add(self, asked: ToolCall, number: int) -> _Call:
        given, mistake = _input(asked.arguments)
        if number >= MAX_CALLS:
            mistake = TOO_MANY_CALLS
        refusal = None if mistake is None else _error(mistake)
        name = asked.name or "unknown"
        return _Call(self._reply.add_call(asked.id, name, given, refusal), name, given, refusal)

    async def _run_all(self, calls: list[_Call], tools: Mapping[str, ChatTool]) -> None:
        """Side by side; only what a tool does to the session's own messages is done alone."""
        outcomes = await asyncio.gather(
            *(self._run(call, tools) for call in calls if call.refusal is None), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _run(self, call: _Call, tools: Mapping[str, ChatTool]) -> None:
        call_id, name = call.id, call.name
        tool = tools.get(name)
        if tool is None:
            unknown = f"There is no tool {name!r}; there are: {', '.join(tools) or 'none'}."
            outcome = await self._reply.answer(call_id, _error(unknown))
        elif name in self._own_tools:
            outcome = await self._reply.answer(call_id, await self._outcome(tool, call.input))
        else:
            outcome = await self._reply.answer_alone(
                call_id, lambda: self._outcome(tool, call.input), rewrites=name == UNLOAD_TOOL
            )
        await self._stream.send({"type": "tool-result", "toolCallId": call_id, "toolName": name, **outcome})

    async def _outcome(self, tool: ChatTool, arguments: Any) -> Json:
        """What is stored of a call: whatever a tool does wrong is an error for the model, not for the turn."""
        task, patience = asyncio.current_task(), asyncio.timeout(self._tool_seconds)
        try:
            async with patience:
                output = await tool.execute(arguments)
            text = encode(output)
            size = len(text)
            if size <= MAX_OUTPUT_BYTES:
                output = decode(text)
                _check_storable(output)
        except ToolFailed as exc:
            return _error(str(exc))
        except BaseException as exc:
            if isinstance(exc, TimeoutError) and patience.expired():
                logger.warning("The tool %s gave no answer within %g s", tool.name, self._tool_seconds)
                return _error(f"It gave no answer within {self._tool_seconds:g} s.")
            if comes_from_outside(exc, task):
                raise
            if not isinstance(exc, StorageError):
                logger.warning("The tool %s failed: %s", tool.name, what_failed(exc))
            return _error(public_text(exc))
        if size > MAX_OUTPUT_BYTES:
            return _error(f"Its answer of {size:,} bytes is over the limit of {MAX_OUTPUT_BYTES:,}.")
        if isinstance(output, str) and output.startswith("Error: "):
            return _error(output.removeprefix("Error: "))
        return {"state": "output-available", "output": output}


def _error(text: str) -> Json:
    return {"state": "output-error", "errorText": text}


def _input(arguments: str) -> tuple[Any, str | None]:
    """The parsed arguments, and what is wrong with them if they cannot be kept. A text that is no JSON is kept word for word, as
    are arguments that a message cannot hold."""
    try:
        given = json.loads(arguments or "{}", parse_constant=_refuse)
    except RecursionError:
        return arguments, f"{_BAD_INPUT} nested too deeply."
    except ValueError:
        return arguments, None
    try:
        _check_storable(given)
    except ValueError as exc:
        return arguments, f"{_BAD_INPUT} {exc}."
    return given, None


_BAD_INPUT = "Not run: the arguments cannot be kept:"


def _check_storable(value: Any) -> None:
    """Raises ValueError for what cannot be in a part of a message, such as too many lists inside each other."""
    json_text.dump({"parts": [{"": value}]})


def _refuse(name: str) -> None:
    raise ValueError(name)
