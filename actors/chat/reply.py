"""The assistant's message of one turn, stored as it comes: whole whenever a part ends, at most once in `SAVE_SECONDS` between.

Its id follows from the question's, so a turn that is tried again finds what the first try has left. ``metadata`` tells where it
stands: ``replyTo``, ``status`` (one of `STATUSES`), ``model``, ``usage`` (``inputTokens`` and ``outputTokens`` of all calls),
``finishReason``, and ``error``, the sentence of a turn that failed.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import uuid4

from actors.session import Session
from compaction import Usage
from storage.errors import InvalidArgument, LimitExceeded, StorageError

Json: TypeAlias = dict[str, Any]

SAVE_SECONDS = 0.75
COMPLETE = frozenset({"done", "cancelled", "max-steps"})
STATUSES = COMPLETE | {"streaming", "error", "interrupted"}
"""Those that are not complete are gone on with when the question comes again."""

INTERRUPTED = "It was interrupted before it answered; whether it has done anything is not known."
_PLAIN_NAME = re.compile(r"(?!(?:call|result)$)[A-Za-z0-9_-]+")  # `tool-call` and `tool-result` are types of their own
_FINAL = ("output-available", "output-error", "output-denied")


def reply_id(question_id: str) -> str:
    return f"{question_id}-reply"


class Reply:
    """Begun by `Reply.begin`, ended by `finish`."""

    def __init__(self, session: Session, message: Json) -> None:
        self._session = session
        self._message = message
        self._texts: list[str] = []  # of the last part, while it is written
        self._is_new_step = bool(message["parts"])
        self._is_changed = False
        self._saved_at = time.monotonic()
        self._saving: asyncio.Task[None] | None = None
        self._problem: Exception | None = None
        self._lock = asyncio.Lock()

    @classmethod
    async def begin(cls, session: Session, question_id: str, model: str) -> "Reply":
        """Store an empty reply, or take over what an earlier try has left. Raises InvalidArgument for a foreign message."""
        identity = reply_id(question_id)
        message = await session.get_message(identity)
        if message is None:
            metadata = {"replyTo": question_id, "status": "streaming", "model": model}
            message = {"id": identity, "role": "assistant", "parts": [], "metadata": metadata}
            await session.append_message(message)
            return cls(session, message)
        if status_of(message) is None or message["metadata"].get("replyTo") != question_id:
            raise InvalidArgument(f"There is another message with the id {identity!r}: give this question another id.")
        reply = cls(session, message)
        if not reply.is_complete:
            message = sealed({**message, "parts": _kept(message["parts"])}, "streaming")
            message["metadata"].pop("error", None)
            reply = cls(session, message)
            reply._is_changed = True
            await reply.save()
        return reply

    @property
    def id(self) -> str:
        return str(self._message["id"])

    @property
    def message(self) -> Json:
        return self._message

    @property
    def is_complete(self) -> bool:
        return status_of(self._message) in COMPLETE

    @property
    def steps(self) -> int:
        """How many answers of the model it holds."""
        parts: list[Json] = self._message["parts"]
        return sum(1 for part in parts if part.get("type") == "step-start") + bool(parts)

    # ---- what comes -------------------------------------------------------------------------------------------

    def add_text(self, text: str) -> None:
        """Does not wait. Raises what an earlier save in the background failed with."""
        if self._problem is not None:
            raise self._problem
        if not self._texts:
            self._begin_step()
            self._message["parts"].append({"type": "text", "text": ""})
        self._texts.append(text)
        self._is_changed = True
        if self._saving is None:
            self._saving = asyncio.create_task(self._save_soon())

    def end_step(self, usage: Usage | None, reason: str) -> None:
        """An answer of the model has ended; the next text or call begins another step."""
        self._end_text()
        metadata = self._message["metadata"]
        if usage is not None:
            counted = metadata.get("usage", {})
            metadata["usage"] = {
                "inputTokens": counted.get("inputTokens", 0) + usage.input_tokens,
                "outputTokens": counted.get("outputTokens", 0) + usage.output_tokens,
            }
        metadata["finishReason"] = reason
        self._is_changed = True
        self._is_new_step = bool(self._message["parts"])

    def add_call(self, given_id: str, name: str, arguments: Any) -> str:
        """A call that waits for its answer; stored by the next `save`. Its id: the given one, unless it was used before."""
        self._end_text()
        self._begin_step()
        parts = self._message["parts"]
        is_used = not given_id or any(part.get("toolCallId") == given_id for part in parts)
        call_id = f"call-{uuid4().hex}" if is_used else given_id
        kind = f"tool-{name}" if _PLAIN_NAME.fullmatch(name) else "dynamic-tool"
        part = {"type": kind, "toolCallId": call_id, "toolName": name}
        parts.append({**part, "input": arguments, "state": "input-available"})
        self._is_changed = True
        return call_id

    async def answer(self, call_id: str, outcome: Json) -> Json:
        """Store the answer to a call: ``output``, or ``errorText``, and the state that goes with it. What was stored: an error
        if a message cannot hold the answer."""
        async with self._lock:
            return await self._answer(call_id, outcome)

    async def answer_alone(self, call_id: str, run: Callable[[], Awaitable[Json]]) -> Json:
        """Run a tool that may rewrite stored messages, this one too, and `answer`; nothing else is saved meanwhile."""
        async with self._lock:
            await self._save()
            outcome = await run()
            self._message = await self._session.get_message(self.id) or self._message
            return await self._answer(call_id, outcome)

    async def finish(self, status: str, *, error: str | None = None, left: str = INTERRUPTED) -> Json:
        """Store the end. Calls without an answer get ``left`` as their error."""
        await self._stop_saving()
        self._end_text()
        async with self._lock:
            self._message = sealed(self._message, status, left)
            if error is not None:
                self._message["metadata"]["error"] = error
            self._is_changed = True
            await self._save()
        return self._message

    # ---- storage ----------------------------------------------------------------------------------------------

    async def save(self) -> None:
        """Returns when everything so far is stored."""
        async with self._lock:
            await self._save()

    async def _save(self) -> None:
        if not self._is_changed:
            return
        self._join_text()
        self._is_changed = False
        try:
            await self._session.update_message(self._message)
        except BaseException:
            self._is_changed = True
            raise
        finally:
            self._saved_at = time.monotonic()

    async def _save_soon(self) -> None:
        """Until everything is stored, and no oftener than it should be."""
        try:
            while self._is_changed:
                await asyncio.sleep(max(0.0, self._saved_at + SAVE_SECONDS - time.monotonic()))
                await self.save()
        except Exception as exc:
            self._problem = exc
        finally:
            self._saving = None

    async def _stop_saving(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait([self._saving])

    async def _answer(self, call_id: str, outcome: Json) -> Json:
        parts = self._message["parts"]
        index = next(number for number, part in enumerate(parts) if part.get("toolCallId") == call_id)
        waiting = parts[index]
        try:
            parts[index] = {**waiting, **outcome}
            self._is_changed = True
            await self._save()
            return outcome
        except LimitExceeded:
            parts[index] = {**waiting, **_TOO_LARGE}
            await self._save()
            return _TOO_LARGE

    def _begin_step(self) -> None:
        if self._is_new_step:
            self._message["parts"].append({"type": "step-start"})
            self._is_new_step = False

    def _end_text(self) -> None:
        self._join_text()
        self._texts = []

    def _join_text(self) -> None:
        if self._texts:
            self._texts = ["".join(self._texts)]
            self._message["parts"][-1] = {"type": "text", "text": self._texts[0]}


_TOO_LARGE: Json = {"state": "output-error", "errorText": "Its answer is larger than what can be stored."}


def status_of(message: Json) -> str | None:
    """The status of a message that is a reply; None for any other."""
    metadata = message.get("metadata")
    status = metadata.get("status") if isinstance(metadata, dict) and "replyTo" in metadata else None
    return status if message["role"] == "assistant" and status in STATUSES else None


def sealed(message: Json, status: str, left: str = INTERRUPTED) -> Json:
    """The reply with another status, and an error in place of each answer that will not come."""
    parts = [
        {**part, "state": "output-error", "errorText": left} if "toolCallId" in part and not _is_final(part) else part
        for part in message["parts"]
    ]
    return {**message, "parts": parts, "metadata": {**message["metadata"], "status": status}}


async def seal_dead(session: Session, history: list[Json], living: str) -> list[Json]:
    """Replies whose turn ended with its process: calls of theirs that wait would wait for ever. The history as it is then."""
    result = []
    for message in history:
        if message["id"] != living and status_of(message) == "streaming":
            message = sealed(message, "interrupted")
            with contextlib.suppress(StorageError):  # it is tidied up by the next turn
                await session.update_message(message)
        result.append(message)
    return result


def _kept(parts: list[Json]) -> list[Json]:
    """What a new try goes on from: all up to the last call. Text behind it is written again, calls are not made again."""
    last = max((index for index, part in enumerate(parts) if "toolCallId" in part), default=-1)
    return parts[: last + 1]


def _is_final(part: Json) -> bool:
    return part.get("state") in _FINAL
