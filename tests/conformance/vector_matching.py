"""Compares an actual value with an expected one by unification (FORMAT.md section 2.4)."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

Bindings = dict[str, str]

PLACEHOLDER = re.compile(r"\$uuid\d+")
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d\.\d{3}Z| \d\d:\d\d:\d\d)")
CLOCK_TOLERANCE = timedelta(minutes=10)
NUMBER_TOLERANCE = 1e-9


class Unbound(Exception):
    """A placeholder that no earlier value has bound."""


def match(expected: Any, actual: Any, bindings: Bindings, *, unordered: bool = False) -> Bindings | None:
    """The bindings after `actual` was found equal to `expected`, or None. `bindings` is not changed."""
    if unordered:
        if not (isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual)):
            return None
        return next(_match_multiset(expected, actual, bindings), None)
    return _match(expected, actual, bindings)


def substitute(value: Any, bindings: Bindings) -> Any:
    """Put bound texts in place of placeholders. Raises Unbound."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda found: _bound(found.group(), bindings), value)
    if isinstance(value, dict):
        return {key: substitute(item, bindings) for key, item in value.items()}
    if isinstance(value, list):
        return [substitute(item, bindings) for item in value]
    return value


def is_timestamp(value: Any) -> bool:
    """Whether this is a current time in one of the two forms of FORMAT.md."""
    if not isinstance(value, str) or TIMESTAMP.fullmatch(value) is None:
        return False
    try:
        moment = datetime.fromisoformat(value).replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(datetime.now(UTC) - moment) < CLOCK_TOLERANCE


def _bound(name: str, bindings: Bindings) -> str:
    if name not in bindings:
        raise Unbound(name)
    return bindings[name]


def _match(expected: Any, actual: Any, bindings: Bindings) -> Bindings | None:
    if isinstance(expected, str):
        return _match_text(expected, actual, bindings)
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or expected.keys() != actual.keys():
            return None
        return _match_all([(item, actual[key]) for key, item in expected.items()], bindings)
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(expected) != len(actual):
            return None
        return _match_all(list(zip(expected, actual, strict=True)), bindings)
    return bindings if _is_same_scalar(expected, actual) else None


def _match_all(pairs: list[tuple[Any, Any]], bindings: Bindings) -> Bindings | None:
    for expected, actual in pairs:
        matched = _match(expected, actual, bindings)
        if matched is None:
            return None
        bindings = matched
    return bindings


def _match_multiset(expected: list[Any], actual: list[Any], bindings: Bindings) -> Iterator[Bindings]:
    if not expected:
        yield bindings
        return
    for index, candidate in enumerate(actual):
        matched = _match(expected[0], candidate, bindings)
        if matched is not None:
            yield from _match_multiset(expected[1:], actual[:index] + actual[index + 1 :], matched)


def _match_text(expected: str, actual: Any, bindings: Bindings) -> Bindings | None:
    if not isinstance(actual, str):
        return None
    if expected == "$time":
        return bindings if is_timestamp(actual) else None
    if expected == "$time_or_empty":
        return bindings if actual == "" or is_timestamp(actual) else None
    names = PLACEHOLDER.findall(expected)
    if not names:
        return bindings if expected == actual else None
    found = re.fullmatch(_pattern(expected, bindings), actual)
    if found is None:
        return None
    fresh = {name: found.group(_group(name)) for name in names if name not in bindings}
    texts = [*bindings.values(), *fresh.values()]
    return None if len(set(texts)) != len(texts) else {**bindings, **fresh}


def _pattern(expected: str, bindings: Bindings) -> str:
    seen: set[str] = set()
    pieces: list[str] = []
    cuts = [(0, 0), *(found.span() for found in PLACEHOLDER.finditer(expected)), (len(expected), len(expected))]
    for (_, start), (end, stop) in pairwise(cuts):
        pieces.append(re.escape(expected[start:end]))
        name = expected[end:stop]
        if name in bindings:
            pieces.append(re.escape(bindings[name]))
        elif name in seen:
            pieces.append(f"(?P={_group(name)})")
        elif name:
            seen.add(name)
            pieces.append(rf"(?P<{_group(name)}>\S+)")
    return "".join(pieces)


def _group(name: str) -> str:
    return name.removeprefix("$")


def _is_same_scalar(expected: Any, actual: Any) -> bool:
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return type(expected) is type(actual) and bool(expected == actual)
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        return bool(abs(expected - actual) <= NUMBER_TOLERANCE * max(abs(expected), abs(actual)))
    return False
