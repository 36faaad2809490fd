"""The assistant's message of one turn, below its question, stored as it comes.

Its id follows from the question's, so a turn that is tried again finds what the first try has left. ``metadata`` tells where it
stands: ``replyTo``, ``status`` (one of `STATUSES`), ``model``, ``usage`` (``inputTokens`` and ``outputTokens`` of all calls),
``finishReason``, and ``error``, the sentence of a turn that failed.

What must not be lost is stored at once: calls before they are run, the answers once all of a step are there, and the end. Text,
and single answers before that, are stored in between, at most once in `SAVE_SECONDS` and only while `WRITE_FACTOR` allows: every
save writes the whole message, and so a reply costs a multiple of its size, not its square.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import uuid4

from actors.conversation.json_text import encode
from actors.session import Session
from compaction import Usage
from compaction.tool_pairs import is_call, is_result
from storage import json_text, records
from storage.errors import InvalidArgument, LimitExceeded, StorageError, UnknownMessage

Json: TypeAlias = dict[str, Any]

SAVE_SECONDS = 0.75
WRITE_FACTOR = 5
"""A save that can wait is left out if all saves would come to more than that many times the size of the message, and
`WRITE_FREE` bytes. Behind them, a long text is stored whenever it has grown by a quarter."""
WRITE_FREE = 64 * 1024

COMPLETE = frozenset({"done", "cancelled", "max-steps", "full"})
"""``full``: it was cut because a message can hold no more."""
STATUSES = COMPLETE | {"streaming", "error", "interrupted"}
"""Those that are not complete are gone on with when the question comes again."""

INTERRUPTED = "It was interrupted before it answered; whether it has done anything is not known."
_MOST_TOKENS = 2**53
_PLAIN_NAME = re.compile(r"(?!(?:call|result)$)[A-Za-z0-9_-]+")  # `tool-call` and `tool-result` are types of their own


class ReplyFull(Exception):
    """The message can hold no more; to be ended with the status ``full``. Its cause is what refused a save, if one was tried."""


def reply_id(question_id: str) -> str:
    return f"{question_id}-reply"


class Reply:
    """Begun by `Reply.begin`, ended by `finish`."""

    def __init__(self, session: Session, message: Json, limit: int) -> None:
        self._session = session
        self._message = message
        self._limit = limit
        self._size = size_of(message)  # about: what has come since the last save is counted without its quoting
        self._stored_size = self._size
        self._written = 0
        self._texts: list[str] = []  # of the last part, while it is written
        self._is_new_step = bool(message["parts"])
        self._is_changed = False
        self._saved_at = time.monotonic()
        self._saving: asyncio.Task[None] | None = None
        self._problem: Exception | None = None
        self._lock = asyncio.Lock()

    @classmethod
    async def begin(cls, session: Session, question_id: str, text: str, *, model: str, limit: int) -> "Reply":
        """Store the question and below it, in the same moment, an empty reply; or take over what an earlier try has left.

        ``limit``: how many bytes a message may have. Raises InvalidArgument for ids of other messages, before anything is stored.
        """
        identity = reply_id(question_id)
        question, message = await session.get_message(question_id), await session.get_message(identity)
        if question is not None and question["role"] != "user":
            raise InvalidArgument(f"The message {question_id!r} is no question.")
        if message is None:
            metadata = {"replyTo": question_id, "status": "streaming", "model": model}
            message = {"id": identity, "role": "assistant", "parts": [], "metadata": metadata}
            if question is None:
                question = {"id": question_id, "role": "user", "parts": [{"type": "text", "text": text}]}
                await session.append_messages([question, message])
            else:
                await session.append_message(message, question_id)
            return cls(session, message, limit)
        if question is None or status_of(message) is None or message["metadata"]["replyTo"] != question_id:
            raise InvalidArgument(f"There is another message with the id {identity!r}: give this question another id.")
        reply = cls(session, message, limit)
        if not reply.is_complete:
            await reply._take_over()
        return reply

    async def _take_over(self) -> None:
        self._message = sealed({**self._message, "parts": _kept(self._message["parts"])}, "streaming")
        self._message["metadata"].pop("error", None)
        self._is_new_step = bool(self._message["parts"])
        self._is_changed = True
        try:
            await self.save()
        except ReplyFull:
            await self.finish("full")

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

    async def path(self) -> list[Json]:
        """What is to be answered: the path to the question, whatever else has been stored since, and this reply.

        Raises UnknownMessage once one of the two was deleted.
        """
        question_id = self._message["metadata"]["replyTo"]
        async with self._lock:
            stored = await self._session.get_message(self.id)
            if stored is None:
                raise UnknownMessage(self.id)
            if status_of(stored) is not None and not self._is_changed:  # others may have taken documents out of it
                self._message = stored
        history = await self._session.get_history(question_id)
        if not any(message["id"] == question_id for message in history):  # a summary may end with it
            question = await self._session.get_message(question_id)
            if question is None:
                raise UnknownMessage(question_id)
            history.append(question)
        return [*history, self._message]

    # ---- what comes -------------------------------------------------------------------------------------------

    def add_text(self, text: str) -> None:
        """Does not wait. Raises ReplyFull, and what an earlier save in the background failed with."""
        if self._problem is not None:
            raise self._problem
        if not self._texts:
            self._begin_step()
            self._message["parts"].append({"type": "text", "text": ""})
        self._texts.append(text)
        self._grow(len(text.encode("utf-8", "replace")))
        if self._size > self._limit:
            raise ReplyFull
        if self._saving is None and self._can_afford():
            self._saving = asyncio.create_task(self._save_soon())

    def end_step(self, usage: Usage | None, reason: str) -> None:
        """An answer of the model has ended; the next text or call begins another step."""
        self._end_text()
        metadata = self._message["metadata"]
        if usage is not None:
            counted = metadata.get("usage")
            metadata["usage"] = {
                "inputTokens": _count(counted, "inputTokens") + usage.input_tokens,
                "outputTokens": _count(counted, "outputTokens") + usage.output_tokens,
            }
        metadata["finishReason"] = reason
        self._grow(0)
        self._is_new_step = bool(self._message["parts"])

    def add_call(self, given_id: str, name: str, arguments: Any, outcome: Json | None = None) -> str:
        """A call that waits for its answer, unless it is given with its ``outcome``; stored by the next `save`. Its id: the given
        one, unless it was used before."""
        self._end_text()
        self._begin_step()
        parts = self._message["parts"]
        is_used = not given_id or any(part.get("toolCallId") == given_id for part in parts)
        call_id = f"call-{uuid4().hex}" if is_used else given_id
        kind = f"tool-{name}" if _PLAIN_NAME.fullmatch(name) else "dynamic-tool"
        part = {"type": kind, "toolCallId": call_id, "toolName": name, "input": arguments, "state": "input-available"}
        part |= outcome or {}
        parts.append(part)
        self._grow(len(encode(part)))
        return call_id

    async def answer(self, call_id: str, outcome: Json) -> Json:
        """Put the answer to a call: ``output``, or ``errorText``, and the state that goes with it. Stored at the latest when
        every call has one. What was put: an error if a message cannot hold the answer. Raises ReplyFull."""
        async with self._lock:
            return await self._answer(call_id, outcome)

    async def answer_alone(self, call_id: str, run: Callable[[], Awaitable[Json]], *, rewrites: bool) -> Json:
        """Run a tool and `answer`; nothing else is saved meanwhile. ``rewrites``: it may change stored messages, this one too,
        and so this one is stored before it."""
        async with self._lock:
            if rewrites:
                await self._save()
            outcome = await run()
            if rewrites:
                self._message = await self._session.get_message(self.id) or self._message
            return await self._answer(call_id, outcome)

    async def finish(self, status: str, *, error: str | None = None, left: str = INTERRUPTED) -> Json:
        """Store the end. Calls without an answer get ``left`` as their error. What a message cannot hold is cut from the end, and
        then the status is ``full``. Raises LimitExceeded if not even that can be stored."""
        await self._stop_saving()
        self._end_text()
        async with self._lock:
            whole = sealed(self._message, status, left)
            if error is not None:
                whole["metadata"]["error"] = error
            try:
                await self._save_end(cut(whole, self._limit))
            except ReplyFull:  # the storage holds less than it should
                try:
                    await self._save_end(cut(whole, min(self._limit, self._stored_size)))
                except ReplyFull as exc:
                    raise exc.__cause__ or exc from None
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
        self._size = size_of(self._message)
        if self._size > self._limit:
            raise ReplyFull from LimitExceeded(f"A reply of {self._size:,} bytes", f"{self._limit:,} bytes")
        self._is_changed = False
        try:
            size = self._size
            await self._session.update_message(self._message)
            self._stored_size = size
            self._written += size
        except BaseException as exc:
            self._is_changed = True
            if isinstance(exc, LimitExceeded):
                raise ReplyFull from exc
            raise
        finally:
            self._saved_at = time.monotonic()

    async def _save_end(self, message: Json) -> None:
        self._message = message
        self._is_changed = True
        await self._save()

    async def _save_soon(self) -> None:
        """Until everything is stored, or no more can be afforded; no oftener than it should be."""
        try:
            while self._is_changed and self._can_afford():
                await asyncio.sleep(max(0.0, self._saved_at + SAVE_SECONDS - time.monotonic()))
                await self.save()
        except Exception as exc:
            self._problem = exc
        finally:
            self._saving = None

    def _can_afford(self) -> bool:
        return self._written + self._size <= WRITE_FACTOR * self._size + WRITE_FREE

    def _grow(self, size: int) -> None:
        self._size += size
        self._is_changed = True

    async def _stop_saving(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait([self._saving])

    async def _answer(self, call_id: str, outcome: Json) -> Json:
        parts = self._message["parts"]
        index = next(number for number, part in enumerate(parts) if part.get("toolCallId") == call_id)
        waiting = parts[index]
        try:
            await self._put(index, {**waiting, **outcome})
            return outcome
        except ReplyFull:
            self._size = size_of({**self._message, "parts": [*parts[:index], waiting, *parts[index + 1 :]]})
            await self._put(index, {**waiting, **_TOO_LARGE})
            return _TOO_LARGE

    async def _put(self, index: int, part: Json) -> None:
        parts = self._message["parts"]
        parts[index] = part
        self._grow(len(encode(part)))
        is_last = all(self._is_answered(each) for each in parts if "toolCallId" in each)
        if is_last or self._size > self._limit or self._can_afford():
            await self._save()

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

    def _is_answered(self, part: Json) -> bool:
        return _is_answered(self._message, part)


_TOO_LARGE: Json = {"state": "output-error", "errorText": "Its answer is larger than what can be stored."}


def status_of(message: Json) -> str | None:
    """The status of a message that is a reply; None for any other."""
    metadata = message.get("metadata")
    status = metadata.get("status") if isinstance(metadata, dict) and "replyTo" in metadata else None
    is_known = isinstance(status, str) and status in STATUSES
    return status if message["role"] == "assistant" and is_known else None


def sealed(message: Json, status: str, left: str = INTERRUPTED) -> Json:
    """The reply with another status, and an error in place of each answer that will not come."""
    parts = [
        part if _is_answered(message, part) else {**part, "state": "output-error", "errorText": left}
        for part in message["parts"]
    ]
    return {**message, "parts": parts, "metadata": {**message["metadata"], "status": status}}


def cut(message: Json, limit: int) -> Json:
    """The reply as it is, or ``full`` and without as much from its end as it has too many bytes."""
    over = size_of(message) - limit
    if over <= 0:
        return message
    metadata = {**message["metadata"], "status": "full"}
    message = {**message, "parts": list(message["parts"]), "metadata": metadata}
    parts = message["parts"]
    over = size_of(message) - limit
    while parts and (size := len(json_text.dump(parts[-1])[1].encode())) <= over:  # those that go as a whole
        parts.pop()
        over -= size + bool(parts)
    while parts and (over := size_of(message) - limit) > 0:
        last = parts.pop()
        text = str(last.get("text", "")).encode("utf-8", "replace")[:-over].decode("utf-8", "ignore")
        if text:
            parts.append({**last, "text": text})
    return message


def size_of(message: Json) -> int:
    """How many bytes are stored of a message."""
    return len(records.encode(message)[1].encode())


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


def _count(usage: Any, name: str) -> int:
    """A count of tokens in stored metadata; 0 for what is none."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and 0 <= count <= _MOST_TOKENS else 0


def _kept(parts: list[Json]) -> list[Json]:
    """What a new try goes on from: all up to the last call. Text behind it is written again, calls are not made again."""
    last = max((index for index, part in enumerate(parts) if "toolCallId" in part), default=-1)
    return parts[: last + 1]


def _is_answered(message: Json, part: Json) -> bool:
    """Whether nothing is to come for a part."""
    return not is_call(message, part) or is_result(message, part)
