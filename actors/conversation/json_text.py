"""JSON at the border of a conversation: what methods return becomes text once, here, and is only spliced afterwards."""

import dataclasses
import json
from datetime import datetime
from typing import Any

import orjson
from pydantic import BaseModel

from storage.json_text import clean

_MAX_DEPTH = 300
"""Of what is sent: a stored message of any version (254), and what is wrapped around it."""


class Unreadable(ValueError):
    """It may well be JSON, but is nested more deeply, or has a longer number, than is read here."""


def encode(value: Any) -> bytes:
    """JSON text as JavaScript would write it: NaN and infinities are ``null``, lone surrogates U+FFFD.

    Models are written by their wire names without absent fields. Raises ValueError with one sentence when there is no JSON
    for the value (a cycle, an object of no known kind).
    """
    try:
        return orjson.dumps(value, default=_default, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        return _encode_slowly(value)


def decode(text: bytes) -> Any:
    """Raises ValueError for what is not JSON, Unreadable for what goes beyond all reason."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _decode_slowly(text)


def _default(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError


def _encode_slowly(value: Any) -> bytes:
    """For what orjson refuses although JSON has it: integers beyond 64 bits, lone surrogates, deep nesting."""

    def default(other: Any) -> Any:
        if isinstance(other, orjson.Fragment):
            return json.loads(orjson.dumps(other))
        if isinstance(other, datetime):
            return other.isoformat()
        return _default(other)

    try:
        text = json.dumps(_finite(value), default=default, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueError("it holds something that JSON cannot express, or itself") from exc
    return clean(text).encode()


def _finite(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _finite(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, depth + 1) for item in value]
    return value


def _decode_slowly(text: bytes) -> Any:
    """Like JSON.parse where orjson is stricter: lone surrogates in escapes, integers of any size."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_int=_integer)
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # Python's own limit; its time to read a number grows with the square of the length
        raise Unreadable("a number in it is too large") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
