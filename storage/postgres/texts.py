"""Text as PostgreSQL can hold it, and back; times and words of queries.

PostgreSQL has no U+0000. It is stored as U+FDD0 between two spaces, so that the words around it stay words to the full-text
search, and a U+FDD0 of the text itself is stored twice. Every text column of the tables is escaped in this way except
``content`` of messages, which is JSON and has its own way to write U+0000.
"""

import re
import unicodedata
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from storage.errors import InvalidArgument
from storage.json_text import clean
from storage.search_words import fold

_MARK: Final = "\ufdd0"
_NUL: Final = f" {_MARK} "
_ESCAPED: Final = re.compile(f"{_MARK}{_MARK}|{_NUL}")


def escape(text: str) -> str:
    """`text`, lone surrogates repaired, as it is stored."""
    text = clean(text)
    if "\0" in text or _MARK in text:
        text = text.replace(_MARK, _MARK * 2).replace("\0", _NUL)
    return text


def unescape(text: str) -> str:
    if _MARK not in text:
        return text
    return _ESCAPED.sub(lambda found: "\0" if found[0] == _NUL else _MARK, text)


def required(value: Any, name: str) -> str:
    """A text argument as it is stored. Raises InvalidArgument if it is none."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a text, not {type(value).__name__}")
    return escape(value)


def label_of(label: str, session: str) -> str:
    """The row's label for a session. The documented tables have no column for it: with one, both are a JSON array."""
    return orjson.dumps([label, session]).decode() if session or label.startswith("[") else label


def iso_time(milliseconds: Any) -> str:
    """Milliseconds since 1970 as ISO-8601."""
    moment = datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def query_words(query: Any) -> tuple[str, list[str]]:
    """A query for ``plainto_tsquery``, and the words that are found as substrings because they hold CJK text or emoji."""
    if not isinstance(query, str):
        raise InvalidArgument(f"a query must be a text, not {type(query).__name__}")
    query = clean(query).replace("\0", " ")
    apart = [word for word in query.split() if fold(word) != word]
    if not apart:
        return query, []
    rest = " ".join(word for word in query.split() if fold(word) == word)
    return rest, [unicodedata.normalize("NFC", word) for word in apart]
