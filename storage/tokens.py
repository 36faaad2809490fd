"""The token estimate: a heuristic without a tokenizer, computed once when a message is stored.

It lives in storage because stored columns depend on it. Lengths are UTF-16 code units and white space is JavaScript's,
so that the numbers are those that the clients of `agents` know.

An image, or a file given as a data URL, counts ``IMAGE_TOKENS``, however large it is.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from storage.json_text import javascript_json

MESSAGE_TOKENS = 4
"""What every message counts beside its parts."""

IMAGE_TOKENS = 1_000
"""What one image or data URL counts at most."""

_LONG = 4 * IMAGE_TOKENS  # shorter text cannot count more than one image
_ODD_SPACE = re.compile("[\x1c-\x1f\x85\ufeff]")  # where Python's str.split() and JavaScript's \s disagree
_WORD = re.compile("[^\t\n\v\f\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]+")
_LONG_BASE64 = re.compile(rf";base64,[A-Za-z0-9+/=_-]{{{_LONG},}}")
_MEDIA_TYPE_LENGTH = 1_000  # of a data URL, before its base64


def estimate_string_tokens(text: str) -> int:
    """max(length / 4, words * 1.3), rounded up."""
    if not text:
        return 0
    return math.ceil(max(utf16_length(text) / 4, _word_count(text) * 1.3))


def estimate_message_tokens(messages: Iterable[Mapping[str, Any]]) -> int:
    """The sum over messages: 4 each, and their parts."""
    return sum(map(estimate_one, messages))


def estimate_one(message: Mapping[str, Any]) -> int:
    """One message. The estimate of a list is the sum of these, which is why running sums are exact."""
    parts = message.get("parts")
    return MESSAGE_TOKENS + (sum(map(_part_tokens, parts)) if isinstance(parts, (list, tuple)) else 0)


def utf16_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _word_count(text: str) -> int:
    if _ODD_SPACE.search(text):
        return sum(1 for _ in _WORD.finditer(text))
    return len(text.split())


def _part_tokens(part: Any) -> int:
    if not isinstance(part, Mapping):
        return 0
    kind = part.get("type")
    if isinstance(kind, str) and (kind.startswith("tool-") or kind == "dynamic-tool"):
        output = part.get("output")
        return _value_tokens(part.get("input")) + _value_tokens(part.get("result") if output is None else output)
    for field in ("text", "reasoning", "result"):
        value = part.get(field)
        if value is not None:
            return _value_tokens(value)
    return IMAGE_TOKENS if _is_image(part) else 0


def _is_image(part: Mapping[str, Any]) -> bool:
    """Whether a part is an image or carries its content as a data URL."""
    if part.get("type") not in ("file", "image"):
        return False
    media_type, url = part.get("mediaType"), part.get("url")
    return (
        part.get("type") == "image"
        or (isinstance(media_type, str) and media_type.startswith("image/"))
        or (isinstance(url, str) and url.startswith("data:"))
    )


def _value_tokens(value: Any) -> int:
    """A text counts as it is, anything else as compact JSON; large images inside count as images."""
    if value is None:
        return 0
    if isinstance(value, str):
        return _text_tokens(value)
    text = javascript_json(value)
    if len(text) <= _LONG:
        return estimate_string_tokens(text)
    kept, images = _without_image_data(value)
    return _text_tokens(javascript_json(kept) if images else text) + images * IMAGE_TOKENS


def _text_tokens(text: str) -> int:
    if len(text) <= _LONG or ";base64," not in text:
        return estimate_string_tokens(text)
    kept: list[str] = []
    images = end = 0
    for match in _LONG_BASE64.finditer(text):
        start = text.rfind("data:", max(end, match.start() - _MEDIA_TYPE_LENGTH), match.start())
        if start >= 0:
            kept.append(text[end:start])
            images, end = images + 1, match.end()
    return estimate_string_tokens("".join(kept) + text[end:]) + images * IMAGE_TOKENS


def _without_image_data(value: Any) -> tuple[Any, int]:
    """`value` without the base64 data of images in the form ``{"data": …, "mimeType": "image/…"}``, and how many there were."""
    if isinstance(value, Mapping):
        media_type = value.get("mimeType", value.get("mediaType"))
        data = value.get("data")
        if (
            isinstance(media_type, str)
            and media_type.startswith("image/")
            and isinstance(data, str)
            and len(data) > _LONG
        ):
            return {key: item for key, item in value.items() if key != "data"}, 1
        pairs = {key: _without_image_data(item) for key, item in value.items()}
        return {key: kept for key, (kept, _) in pairs.items()}, sum(images for _, images in pairs.values())
    if isinstance(value, (list, tuple)):
        items = [_without_image_data(item) for item in value]
        return [kept for kept, _ in items], sum(images for _, images in items)
    return value, 0
