"""Messages of the OpenAI chat-completions format turned into the AI-SDK UI shape. Pure.

One message of the source becomes one message here, but for tool results: each goes into the ``dynamic-tool`` part of
its call. The source may use one call id several times; a result answers the oldest call of its id that is still open.
"""

import json
import mimetypes
from datetime import UTC, datetime
from typing import Any

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TIMES = ("createdAt", "created_at", "timestamp", "created")


class ConversionError(ValueError):
    """The reason why a conversation cannot be read, as the rest of a sentence."""


def to_ui_messages(source: list[Any], name: str) -> list[dict[str, Any]]:
    """Ids are ``<name>-<index in the source>`` where the source has none. Raises `ConversionError`."""
    messages: list[dict[str, Any]] = []
    open_calls: list[dict[str, Any]] = []
    for index, item in enumerate(source):
        if not isinstance(item, dict):
            raise ConversionError(f"message {index} is not a JSON object")
        role = item.get("role")
        if role in ("tool", "function"):
            orphan = _answer(open_calls, item)
            if orphan is not None:
                messages.append(_message(item, "assistant", [orphan], f"{name}-{index}"))
        elif isinstance(role, str) and role in _ROLES:
            calls = [_call(call, index, position) for position, call in enumerate(_calls(item))]
            open_calls += calls
            parts = _content(item.get("content")) + _refusal(item) + calls
            messages.append(_message(item, _ROLES[role], parts, f"{name}-{index}"))
        else:
            raise ConversionError(f"message {index} has the unknown role {role!r}")
    return messages


def _message(item: dict[str, Any], role: str, parts: list[dict[str, Any]], default_id: str) -> dict[str, Any]:
    given = item.get("id")
    message: dict[str, Any] = {"id": given if isinstance(given, str) and given else default_id, "role": role}
    message["parts"] = parts
    created = next((item[key] for key in _TIMES if item.get(key) is not None), None)
    if created is not None:
        message["createdAt"] = _iso(created)
    if item.get("name") and item.get("role") not in ("tool", "function"):
        message["metadata"] = {"name": item["name"]}
    return message


def _iso(created: object) -> object:
    """Seconds since 1970 become the text that JavaScript would write; a text is kept as it is."""
    if isinstance(created, bool) or not isinstance(created, int | float):
        return created
    try:
        moment = datetime.fromtimestamp(created, UTC)
    except (ValueError, OverflowError, OSError) as exc:
        raise ConversionError(f"the time {created!r} is none") from exc
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _content(content: object) -> list[dict[str, Any]]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        return [_part(part) for part in content]
    return [{"type": "data-openai", "data": content}]


def _part(part: object) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else image
    if isinstance(url, str):
        return {"type": "file", "mediaType": _media_type(url), "url": url}
    return {"type": "data-openai", "data": part}


def _media_type(url: str) -> str:
    if url.startswith("data:"):
        return url[5:].partition(",")[0].partition(";")[0] or "text/plain"
    return mimetypes.guess_type(url.partition("?")[0])[0] or "image/*"


def _refusal(item: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": item["refusal"]}] if isinstance(item.get("refusal"), str) else []


def _calls(item: dict[str, Any]) -> list[Any]:
    calls = item.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ConversionError('"tool_calls" is not a list')
    if isinstance(item.get("function_call"), dict):  # the older form, one call without an id
        return [*calls, {"function": item["function_call"]}]
    return calls


def _call(call: object, index: int, position: int) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise ConversionError(f"a tool call of message {index} is not a JSON object")
    kind = call.get("function") if isinstance(call.get("function"), dict) else call.get("custom")
    function: dict[str, Any] = kind if isinstance(kind, dict) else {}
    identity = call.get("id")
    return {
        "type": "dynamic-tool",
        "toolCallId": identity if isinstance(identity, str) and identity else f"call-{index}-{position}",
        "toolName": str(function.get("name") or "unknown"),
        "input": _input(function.get("arguments", function.get("input"))),
        "state": "input-available",
    }


def _input(arguments: object) -> object:
    """The parsed arguments; a text that is no JSON is kept word for word."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return arguments


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _answer(open_calls: list[dict[str, Any]], item: dict[str, Any]) -> dict[str, Any] | None:
    """Puts a result into its call. A result without a call is returned as a part of its own: nothing is dropped."""
    identity, tool = item.get("tool_call_id"), item.get("name")
    for position, part in enumerate(open_calls):
        if part["toolCallId"] == identity or (identity is None and part["toolName"] == tool):
            del open_calls[position]
            part["output"] = _output(item.get("content"))
            part["state"] = "output-available"
            return None
    return {
        "type": "dynamic-tool",
        "toolCallId": identity if isinstance(identity, str) and identity else "unknown",
        "toolName": str(tool or "unknown"),
        "input": None,
        "output": _output(item.get("content")),
        "state": "output-available",
    }


def _output(content: object) -> object:
    """Text stays the text that it is, also where it looks like JSON; a list of text parts becomes one text."""
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        return "".join(part["text"] for part in content)
    return content
