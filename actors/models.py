"""A language model behind any endpoint that speaks OpenAI's chat completions.

The only importer of the `openai` package, which is an extra and is imported when a model is first called. Everything that can
go wrong is a `ModelError`: one sentence with the address and what to do, never the key, and nothing of what the endpoint
says in its own words (that may quote messages, and errors go into logs).
"""

import asyncio
import importlib
import importlib.util
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
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

Json: TypeAlias = dict[str, Any]

_NO_KEY = "none"  # endpoints without keys ignore it; the package asks for one
_REASON = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Model:
    """Which model to call, where, and how patiently. Its key is in no ``repr``."""

    name: str
    url: str = DEFAULT_URL
    key: SecretStr = field(default_factory=lambda: SecretStr(""))
    seconds: float = 120.0
    retries: int = 2

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """The model of the settings; None when none is configured."""
        if not settings.model:
            return None
        url = settings.model_url or DEFAULT_URL
        return cls(settings.model, url, settings.model_key, settings.model_seconds, settings.model_retries)


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
        with _told(self._model):
            chunks = await self._client.chat.completions.create(stream=True, **request)
        return self._events(chunks)

    async def _events(self, chunks: Any) -> Events:
        calls = _Calls()
        reason, usage = "", None
        with _told(self._model):
            async with chunks:
                async for chunk in chunks:
                    usage = _usage(chunk) or usage
                    choice = next(iter(getattr(chunk, "choices", None) or []), None)
                    if choice is None:
                        continue
                    reason = getattr(choice, "finish_reason", None) or reason
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
    )
    async with client:
        yield ModelClient(model, client)


def check_package() -> None:
    """Raises ModelPackageMissing when the extra is not installed."""
    if importlib.util.find_spec("openai") is None:
        raise ModelPackageMissing()


class _Calls:
    """Puts calls together from the pieces in which they are streamed."""

    def __init__(self) -> None:
        self._calls: dict[int, list[str]] = {}  # index -> id, name, arguments

    def add(self, piece: Any) -> None:
        identity, function = getattr(piece, "id", None), getattr(piece, "function", None)
        index = getattr(piece, "index", None)
        if not isinstance(index, int):  # some endpoints send whole calls and do not number them
            index = len(self._calls) if identity or not self._calls else len(self._calls) - 1
        call = self._calls.setdefault(index, ["", "", ""])
        call[0] = call[0] or str(identity or "")
        call[1] = call[1] or str(getattr(function, "name", None) or "")
        call[2] += str(getattr(function, "arguments", None) or "")

    def complete(self) -> Iterator[ToolCall]:
        for _, (identity, name, arguments) in sorted(self._calls.items()):
            yield ToolCall(identity, name, arguments)


def _usage(answer: Any) -> Usage | None:
    """What the endpoint says that it counted, where that is usable."""
    usage = getattr(answer, "usage", None)
    counts = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens")]
    plain = [count if isinstance(count, int) and count > 0 else 0 for count in counts]
    return Usage(*plain) if any(plain) else None


@contextmanager
def _told(model: Model) -> Iterator[None]:
    """Turn what the package raises into our errors."""
    import openai

    try:
        yield
    except openai.APITimeoutError:
        raise ModelUnreachable(model.url, f"no answer within {model.seconds:g} s") from None
    except openai.APIConnectionError as exc:
        raise ModelUnreachable(model.url, _connection_problem(exc)) from None
    except openai.APIStatusError as exc:
        raise ModelRefused(model.url, exc.status_code, _reason(exc, model)) from None
    except openai.APIError as exc:  # an error that the endpoint sends inside of a stream
        raise ModelAnswerBroken(model.url, f"it broke off with an error ({_reason(exc, model)})") from None
    except openai.OpenAIError as exc:
        raise ModelAnswerBroken(model.url, f"it cannot be used ({type(exc).__name__})") from None
    except (ValueError, TypeError, AttributeError) as exc:  # no JSON, or not of the form that it should have
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
    """The short code that the endpoint gives, such as ``context_length_exceeded``; not its sentence, and never the key."""
    key = model.key.get_secret_value()
    for value in (getattr(error, "code", None), getattr(error, "type", None)):
        if isinstance(value, str) and _REASON.fullmatch(value) and not (key and key in value):
            return value
    return "no reason given"
