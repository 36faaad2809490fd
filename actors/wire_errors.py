"""Typed errors from the texts of failure frames.

The wire has no error code (PROTOCOL.md section 5), but every typed error's text is its class's sentence, with facts. So the
sentences are read backwards here; what is none, whole and with nothing before or behind, is a `CallFailed`.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import actors.errors
import compaction.errors
import storage.errors
from storage.errors import StorageError

_FIELD = re.compile(r"\{\d(!r)?\}")
_LEAST_WORDS = 10  # characters that a sentence must have besides its facts


def error_from(text: str) -> StorageError:
    """The error whose ``str()`` is ``text``."""
    for pattern, kinds, error in _patterns():
        found = pattern.fullmatch(text)
        if found is not None:
            return error(*(_fact(fact, is_repr) for fact, is_repr in zip(found.groups(), kinds, strict=True)))
    return actors.errors.CallFailed(text)


@cache
def _patterns() -> list[tuple[re.Pattern[str], list[bool], type[StorageError]]]:
    patterns = []
    for error in _classes(StorageError):
        sentence = error.sentence
        if len(_FIELD.sub("", sentence).strip()) >= _LEAST_WORDS and error.__module__ in _MODULES:
            kinds = [bool(field) for field in _FIELD.findall(sentence)]
            literals = [re.escape(part) for part in re.split(r"\{\d(?:!r)?\}", sentence)]
            patterns.append((re.compile("(.*?)".join(literals), re.DOTALL), kinds, error))
    # the one that says most first
    return sorted(patterns, key=lambda pattern: -len(pattern[0].pattern))


_MODULES = {actors.errors.__name__, compaction.errors.__name__, storage.errors.__name__}


def _classes(base: type[StorageError]) -> Iterator[type[StorageError]]:
    for error in base.__subclasses__():
        if "sentence" in vars(error):
            yield error
        yield from _classes(error)


def _fact(text: str, is_repr: bool) -> Any:
    if not is_repr:
        return int(text) if text.isdecimal() else text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
