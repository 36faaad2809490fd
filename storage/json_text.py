"""JSON text in and out of the database, with every input that JSON or SQLite cannot hold made harmless.

Lone surrogates become U+FFFD (pairs of them the character that they mean), NaN and infinities ``null``; everything else, NUL
included, comes back as it was. Text is compact and keeps the order of keys.
"""

import datetime
import enum
import json
import math
import re
import uuid
from collections.abc import Mapping
from typing import Any

import orjson

MAX_DEPTH = 128
"""So many objects and lists may be inside each other, the outermost counted. orjson writes 254, which leaves room for what
is wrapped around a message on its way to a client."""

_STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
_MAYBE_ODD_NUMBER = re.compile(rb"\.0[,\]}]|\.0$|\d[eE][-+]?\d|\d{16}")
"""Where JavaScript may write a number in another way: 1.0, 1e21, 1e-7, 2**53 + 1."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def dump(value: Any) -> tuple[Any, str]:
    """`value` as plain JSON, and its text. Raises TypeError or ValueError with the reason if it has none."""
    plain = value
    try:
        text = orjson.dumps(value, option=_STRICT).decode()
    except TypeError:  # something rare: let the slow way find out what
        try:
            plain = _plain(value)
            text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except RecursionError:
            raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and is_too_deep(plain):  # counting first is what costs nothing
        raise ValueError("nested too deeply")
    if plain is not value:
        orjson.loads(text)
    return plain, text


def is_too_deep(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether more than this many objects and lists are inside each other; a value that holds itself is too deep."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return False
    return levels == 0 or any(is_too_deep(item, levels - 1) for item in value)


def load(text: str | bytes) -> Any:
    """The value of a JSON text that `dump` made."""
    return orjson.loads(text)


def parse(text: str | bytes) -> Any:
    """The value of any JSON text, lone surrogates repaired. Raises ValueError if it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return _plain(json.loads(text, parse_constant=_refuse_constant))
        except RecursionError:
            raise ValueError("nested too deeply") from None


def clean(text: str) -> str:
    """`text` as Unicode: surrogate pairs joined, lone surrogates replaced by U+FFFD."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def javascript_json(value: Any) -> str:
    """Compact JSON as JavaScript writes it; differs from others only in numbers."""
    try:
        text = orjson.dumps(value, option=_STRICT)
    except TypeError:
        return _javascript_json(value)
    return _javascript_json(value) if _MAYBE_ODD_NUMBER.search(text) else text.decode()


def _javascript_json(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "true" if value is True else "false" if value is False else "null"
    if isinstance(value, float):
        return _javascript_number(value)
    if isinstance(value, int):
        return _javascript_number(_double(value)) if abs(value) > 2**53 else str(value)
    if isinstance(value, str):
        return json.dumps(clean(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        return (
            "{"
            + ",".join(f"{json.dumps(str(k), ensure_ascii=False)}:{_javascript_json(v)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_javascript_json, value)) + "]"
    return _javascript_json(_plain(value))


def _double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _javascript_number(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    if value == 0:
        return "0"
    if value.is_integer() and abs(value) < 1e21:
        return _digits(value)
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    if -7 < int(exponent) < 0:
        return f"{value:.{len(mantissa.replace('.', '').replace('-', '')) - 1 - int(exponent)}f}"
    return f"{mantissa}e{int(exponent):+d}"


def _digits(value: float) -> str:
    """A whole number below 1e21: the shortest digits that mean it, then zeros."""
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return mantissa.removesuffix(".0")
    whole, _, fraction = mantissa.partition(".")
    return whole + fraction.ljust(int(exponent), "0")


def _plain(value: Any) -> Any:
    """`value` in JSON's own types."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, str):
        return clean(str(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(by_alias=True, exclude_unset=True))
    raise TypeError(f"{type(value).__name__} is not JSON")


def _integer(value: int) -> int:
    """Readers of JSON keep numbers as doubles: what would be infinite there cannot be read back."""
    try:
        float(value)
    except OverflowError:
        raise ValueError("a number is too large") from None
    return int(value)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of type {type(key).__name__} is not JSON")
    return clean(str(key))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
