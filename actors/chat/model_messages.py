"""A history turned into the messages of OpenAI's chat completions. Pure.

What endpoints demand holds for every history: each tool message comes right behind the call that it answers, each call is
answered, no id occurs twice in one message, names are plain, arguments are an object (D32), no message is empty.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from compaction import sanitize_tool_pairs
from compaction.tool_pairs import answer_of, in_words, input_of, is_call, links, parts, places, tool_name

Json: TypeAlias = dict[str, Any]
Part: TypeAlias = Mapping[str, Any]

NO_ANSWER = "[This tool has given no answer.]"

_NOT_IN_NAMES = re.compile(r"[^\w-]+", re.ASCII)
_LONGEST_NAME = 64


def model_messages(history: Sequence[Json], system_prompt: str = "") -> list[Json]:
    """The system prompt, then the messages; parts that a model has no use for (reasoning, data, sources) are left out."""
    messages = sanitize_tool_pairs(list(history))
    answers, repeated = _answers(messages)
    result: list[Json] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            result += _assistant(message, index, answers, repeated)
        else:
            role = "system" if message["role"] in ("system", "developer") else "user"
            content = _content(message) if role == "user" else _text(message)
            if content:
                result.append({"role": role, "content": content})
    return result


_Place: TypeAlias = tuple[int, int]


def _answers(messages: Sequence[Json]) -> tuple[dict[_Place, Part], set[_Place]]:
    """The answer to each call, and the parts that only repeat a call to answer it; places are a message and a part of it.

    The first final result of a call is its answer, else a preliminary one.
    """
    answers: dict[_Place, Part] = {}
    repeated: set[_Place] = set()
    for preliminary in (False, True):
        found = links(places(messages, preliminary=preliminary))
        for result, call in found.items():
            place = (result.message, result.part)
            if result.is_call and result is not call and place not in answers:
                repeated.add(place)
            answers.setdefault((call.message, call.part), parts(messages[result.message])[result.part])
    return answers, repeated


def _assistant(message: Json, index: int, answers: dict[_Place, Part], repeated: set[_Place]) -> list[Json]:
    """One message for each step of the model, and behind it the answers to its calls."""
    steps: list[_Step] = [_Step()]
    for number, part in enumerate(parts(message)):
        if part.get("type") == "step-start" or (part.get("type") == "text" and steps[-1].calls):
            steps.append(_Step())
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            steps[-1].texts.append(part["text"])
        elif is_call(message, part) and (index, number) not in repeated:
            answer = answers.get((index, number))
            steps[-1].add_call(part, NO_ANSWER if answer is None else answer_of(answer))
    return [message for step in steps for message in step.messages()]


class _Step:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[Json] = []
        self._answers: list[Json] = []
        self._ids: set[str] = set()

    def add_call(self, part: Part, answer: str) -> None:
        identity = given = part["toolCallId"]
        while identity in self._ids:
            identity = f"{given}-{len(self._ids)}"
        self._ids.add(identity)
        name = _NOT_IN_NAMES.sub("_", tool_name(part))[:_LONGEST_NAME]
        arguments = input_of(part)
        function = {"name": name, "arguments": in_words(arguments if isinstance(arguments, dict) else {})}
        self.calls.append({"id": identity, "type": "function", "function": function})
        self._answers.append({"role": "tool", "tool_call_id": identity, "content": answer})

    def messages(self) -> list[Json]:
        text = "\n".join(self.texts)
        if self.calls:
            return [{"role": "assistant", "content": text or None, "tool_calls": self.calls}, *self._answers]
        return [{"role": "assistant", "content": text}] if text.strip() else []


def _text(message: Json) -> str:
    return "\n".join(part["text"] for part in parts(message) if isinstance(part.get("text"), str))


def _content(message: Json) -> str | list[Json]:
    """A text where there is nothing but text, else a list of content parts."""
    content = [found for part in parts(message) for found in _content_part(part)]
    if all(part["type"] == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return content


def _content_part(part: Part) -> list[Json]:
    if part.get("type") == "text" and isinstance(part.get("text"), str) and part["text"]:
        return [{"type": "text", "text": part["text"]}]
    if part.get("type") not in ("file", "image"):
        return []
    url = next((part[name] for name in ("url", "image", "data") if isinstance(part.get(name), str)), "")
    kind = part.get("mediaType") or part.get("mimeType") or ("image/*" if part["type"] == "image" else "")
    if not url:
        return []
    if ":" not in url[:16]:  # bare base64
        url = f"data:{kind or 'application/octet-stream'};base64,{url}"
    return [_file(url, str(kind), str(part.get("filename") or part.get("name") or "file"))]


def _file(url: str, kind: str, name: str) -> Json:
    """Images as such, text in words, other files as files where they are here, else by their address."""
    is_here = url.startswith("data:")
    if is_here:
        kind = kind or url[5:].partition(",")[0].partition(";")[0]
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    if is_here and (kind.startswith("text/") or kind == "application/json"):
        return {"type": "text", "text": f"[File {name}]\n{_read(url)}"}
    if is_here:
        return {"type": "file", "file": {"filename": name, "file_data": url}}
    return {"type": "text", "text": f"[File {name}: {url}]"}


def _read(url: str) -> str:
    head, _, body = url.partition(",")
    data = unquote_to_bytes(body)
    if head.endswith(";base64"):
        try:
            data = base64.b64decode(data)
        except binascii.Error:
            return "(unreadable)"
    return data.decode("utf-8", "replace")
