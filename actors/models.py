"""A language model behind any endpoint that speaks OpenAI's chat completions.

The only importer of the `openai` package, which is an extra and is imported when a model is first called. Everything that can
go wrong is a `ModelError`: one sentence with the address and what to do, never the key, and nothing of what the endpoint
says in its own words (that may quote messages, and errors go into logs).

What an endpoint may cost is bounded, whatever it sends: `Model` says by what. Redirects to another origin are not followed, since
they would carry the conversation along.
"""

import asyncio
import importlib
import importlib.util
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from pydantic import SecretStr

from actors.errors import (
    ModelAnswerBroken,
    ModelPackageMissing,
    ModelRefused,
    ModelUnreachable,
)
from actors.settings import Settings
from compaction import Usage

DEFAULT_URL = "https://api.openai.com/v1"
CONNECT_SECONDS = 10.0

MAX_CALLS = 1_024
"""An answer with more calls than that is broken. (How many of them are run is for the turn to say.)"""
MAX_TOKENS = 10**9
"""More than that of one answer is no count, and is ignored."""

Json: TypeAlias = dict[str, Any]

_NO_KEY = "none"  # endpoints without keys ignore it; the package asks for one
_CHECK_KEY = "check the key, which a server reads from --model-key-file"
_LONGEST_REASON = 64
_LEAST_BYTES = 1024 * 1024
_REASON = re.compile(r"[\w.-]{1,64}")
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass(frozen=True, slots=True)
class Model:
    """Which model to call, where, and how patiently. Its key is in no ``repr``.

    ``seconds``: so long an answer may bring nothing new; comments and empty chunks are nothing. ``answer_seconds``: so long a
    whole answer may take, tries that failed included. ``max_bytes``: the largest answer, or one event and the calls of a streamed
    one, whose text is for the caller to bound.
    """

    name: str
    url: str = DEFAULT_URL
    key: SecretStr = field(default_factory=lambda: SecretStr(""))
    seconds: float = 120.0
    retries: int = 2
    answer_seconds: float = 600.0
    max_bytes: int = 8 * 1024 * 1024

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """The model of the settings; None when none is configured."""
        if not settings.model:
            return None
        url = settings.model_url or DEFAULT_URL
        return cls(
            settings.model,
            url,
            settings.model_key,
            settings.model_seconds,
            settings.model_retries,
            settings.model_answer_seconds,
            2 * settings.max_message_bytes + _LEAST_BYTES,  # what is too large for a message is for the turn to say
        )


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call that the model asks for; ``arguments`` is the text that it wrote, which may be no JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer. ``reason``: stop, tool_calls, length, content_filter, or what else the endpoint says."""

    reason: str
    usage: Usage | None  # None: the endpoint did not count


ModelEvent: TypeAlias = TextDelta | ToolCall | Finished
Events: TypeAlias = AsyncGenerator[ModelEvent, None]


class ModelClient:
    """Open connections to a model, for a few calls. Made by `open_model`."""

    def __init__(self, model: Model, client: Any) -> None:
        self._model = model
        self._client = client

    async def complete(self, messages: Sequence[Json]) -> tuple[str, Usage | None]:
        """The whole answer to these messages, as text."""
        with _told(self._model):
            async with _Patience(self._model).for_all():
                answer = await self._client.chat.completions.create(model=self._model.name, messages=messages)
            choice = next(iter(answer.choices or []), None)
            text = getattr(getattr(choice, "message", None), "content", None)
            usage = _usage(answer)
        if not isinstance(text, str) or not text.strip():
            raise ModelAnswerBroken(self._model.url, "it holds no text")
        return text, usage

    async def stream(self, messages: Sequence[Json], tools: Sequence[Json] = (), *, may_call: bool = True) -> Events:
        """The answer as it comes: `TextDelta`, then `ToolCall`, then one `Finished`. An async iterator, to be closed.

        ``may_call`` False: the tools are named, since calls of them are in the messages, but the model is asked for text.
        """
        request: Json = {"model": self._model.name, "messages": messages, "stream_options": {"include_usage": True}}
        if tools:
            request |= {"tools": tools, "tool_choice": "auto" if may_call else "none"}
        patience = _Patience(self._model)
        with _told(self._model):
            async with patience.for_all():
                chunks = await self._client.chat.completions.create(stream=True, **request)
        return self._events(chunks, patience)

    async def _events(self, chunks: Any, patience: "_Patience") -> Events:
        calls = _Calls(self._model.max_bytes)
        reason, usage = "", None
        with _told(self._model):
            async with chunks, aclosing(patience.through(chunks)) as pieces:
                async for chunk in pieces:
                    usage = _usage(chunk) or usage
                    choice = next(iter(getattr(chunk, "choices", None) or []), None)
                    if choice is None:
                        continue
                    given = getattr(choice, "finish_reason", None)
                    if given:
                        reason = given[:_LONGEST_REASON] if isinstance(given, str) else "unknown"
                    delta = getattr(choice, "delta", None)
                    for text in (getattr(delta, "content", None), getattr(delta, "refusal", None)):
                        if isinstance(text, str) and text:
                            yield TextDelta(text)
                    for piece in getattr(delta, "tool_calls", None) or []:
                        calls.add(piece)
        if not reason:
            raise ModelAnswerBroken(self._model.url, "it ended in the middle")
        for call in calls.complete():
            yield call
        yield Finished(reason, usage)


@asynccontextmanager
async def open_model(model: Model) -> AsyncIterator[ModelClient]:
    """A client of this model; its connections are closed at the end. Raises ModelPackageMissing."""
    check_package()
    # In a thread: it takes half a second of a loop that others wait for.
    openai = await asyncio.to_thread(importlib.import_module, "openai")
    client = openai.AsyncOpenAI(
        base_url=model.url,
        api_key=model.key.get_secret_value() or _NO_KEY,
        timeout=openai.Timeout(model.seconds, connect=min(CONNECT_SECONDS, model.seconds)),
        max_retries=model.retries,
        default_headers={"Accept-Encoding": "identity"},  # so that what comes is no larger than it looks
        http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [_guard(model)]}),
    )
    async with client:
        yield ModelClient(model, client)


def check_package() -> None:
    """Raises ModelPackageMissing when the extra is not installed."""
    if importlib.util.find_spec("openai") is None:
        raise ModelPackageMissing()


class _Patience:
    """How long is waited for one answer. Raises ModelUnreachable."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._end = asyncio.get_running_loop().time() + model.answer_seconds

    @asynccontextmanager
    async def for_all(self) -> AsyncIterator[None]:
        """To the end of the time for the whole answer."""
        async with self._until(self._end, ""):
            yield

    async def through(self, chunks: Any) -> AsyncGenerator[Any, None]:
        """The chunks, as long as they bring something. What is done with one between two takes none of the time for silence."""
        silent = 0.0
        clock = asyncio.get_running_loop()
        while True:
            begun = clock.time()
            quiet_end = begun + self._model.seconds - silent
            is_last = self._end < quiet_end
            why = "" if is_last else f"no answer within {self._model.seconds:g} s"
            async with self._until(self._end if is_last else quiet_end, why):
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
            silent = 0.0 if _brings_something(chunk) else silent + clock.time() - begun
            yield chunk

    @asynccontextmanager
    async def _until(self, end: float, why: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(end):
                yield
        except TimeoutError:
            raise ModelUnreachable(
                self._model.url, why or f"its answer took longer than {self._model.answer_seconds:g} s"
            ) from None


def _brings_something(chunk: Any) -> bool:
    """Whether a chunk holds a piece of an answer of any kind, thoughts included."""
    if getattr(chunk, "usage", None) is not None:
        return True
    choice = next(iter(getattr(chunk, "choices", None) or []), None)
    if getattr(choice, "finish_reason", None):
        return True
    delta = getattr(choice, "delta", None)
    pieces = {**vars(delta), **(getattr(delta, "model_extra", None) or {})} if delta is not None else {}
    return any(value for name, value in pieces.items() if name != "role" and not name.startswith("_"))


class _Unusable(Exception):
    """An answer that is not read to its end; its text says why."""


def _guard(model: Model) -> Callable[[Any], Any]:
    """Looks at each response before it is read: bounds how much of it is held, and keeps redirects at home."""

    too_large = f"it is larger than {model.max_bytes:,} bytes"

    async def guard(response: Any) -> None:
        target = response.headers.get("location")
        if target is not None and _origin(response.url.join(target)) != _origin(response.url):
            del response.headers["location"]  # then it is a refusal
        if response.headers.get("content-encoding", "identity").lower() not in ("identity", "gzip", "deflate", ""):
            raise _Unusable("it is compressed, which was not asked for")
        is_stream = response.is_success and response.headers.get("content-type", "").startswith("text/event-stream")
        read = response.aiter_bytes

        async def bounded(chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
            size, before = 0, b""
            async with aclosing(read(chunk_size)) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if is_stream:
                        seen = before + chunk
                        ends = [match.end() for match in _BLANK_LINE.finditer(seen)]
                        size, before = (len(seen) - ends[-1] if ends else size), seen[-3:]
                    if size > model.max_bytes:
                        raise _Unusable(too_large)
                    yield chunk

        response.aiter_bytes = bounded

    return guard


def _origin(url: Any) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class _Calls:
    """Puts calls together from the pieces in which they are streamed. Raises _Unusable when there is too much."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._calls: dict[int, list[str]] = {}  # index -> id, name
        self._arguments: dict[int, list[str]] = {}

    def add(self, piece: Any) -> None:
        identity, function = getattr(piece, "id", None), getattr(piece, "function", None)
        index = getattr(piece, "index", None)
        if not isinstance(index, int):  # some endpoints send whole calls and do not number them
            index = len(self._calls) if identity or not self._calls else len(self._calls) - 1
        call = self._calls.setdefault(index, ["", ""])
        call[0] = call[0] or str(identity or "")
        call[1] = call[1] or str(getattr(function, "name", None) or "")
        arguments = str(getattr(function, "arguments", None) or "")
        self._arguments.setdefault(index, []).append(arguments)
        self._size += len(arguments)
        if len(self._calls) > MAX_CALLS:
            raise _Unusable(f"it asks for more than {MAX_CALLS:,} calls")
        if self._size > self._max_bytes:
            raise _Unusable(f"it is larger than {self._max_bytes:,} bytes")

    def complete(self) -> Iterator[ToolCall]:
        for index, (identity, name) in sorted(self._calls.items()):
            yield ToolCall(identity, name, "".join(self._arguments[index]))


def _usage(answer: Any) -> Usage | None:
    """What the endpoint says that it counted, where that is usable."""
    usage = getattr(answer, "usage", None)
    counts = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens")]
    plain = [count if type(count) is int and 0 < count <= MAX_TOKENS else 0 for count in counts]
    return Usage(*plain) if any(plain) else None


@contextmanager
def _told(model: Model) -> Iterator[None]:
    """Turn what the package raises into our errors."""
    import openai

    try:
        yield
    except openai.APITimeoutError:
        raise ModelUnreachable(model.url, f"no answer within {model.seconds:g} s") from None
    except _Unusable as exc:
        raise ModelAnswerBroken(model.url, str(exc)) from None
    except openai.APIConnectionError as exc:
        raise ModelUnreachable(model.url, _connection_problem(exc)) from None
    except openai.APIStatusError as exc:
        raise ModelRefused(model.name, model.url, exc.status_code, _reason(exc, model)) from None
    except openai.APIError as exc:  # an error that the endpoint sends inside of a stream
        raise ModelAnswerBroken(model.url, f"it broke off with an error ({_reason(exc, model)})") from None
    except openai.OpenAIError as exc:
        raise ModelAnswerBroken(model.url, f"it cannot be used ({type(exc).__name__})") from None
    except (
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as exc:  # no JSON, or not of the form that it should have
        raise ModelAnswerBroken(
            model.url, f"it is not of the form that it should have ({type(exc).__name__})"
        ) from None


def _connection_problem(error: BaseException) -> str:
    """The kind of the innermost cause that says something, in plain words."""
    names = set()
    cause: BaseException | None = error
    while cause is not None:
        names.add(type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    if "ConnectError" in names or "ConnectionRefusedError" in names or "gaierror" in names:
        return "no connection can be made"
    return "the connection broke off"


def _reason(error: Any, model: Model) -> str:
    """Why it refused, in our words and its code."""
    status = getattr(error, "status_code", 0)
    if 300 <= status < 400:
        return "it points to another address, which is not followed"
    return _code(error, model) + (f"; {_CHECK_KEY}" if status == 401 else "")


def _code(error: Any, model: Model) -> str:
    """The short code that the endpoint gives, such as ``context_length_exceeded``; not its sentence, and never the key."""
    key = model.key.get_secret_value()
    for value in (getattr(error, "code", None), getattr(error, "type", None)):
        if isinstance(value, str) and _REASON.fullmatch(value) and not (key and key in value):
            return value
    return "no reason given"
