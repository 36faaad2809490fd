"""Opaque texts that say where the next page of a listing begins.

A cursor holds a place in an order that never changes, so it stays valid while rows come and go; and a mark of the listing that
it belongs to, so that it is refused anywhere else.
"""

import base64
import binascii
import hashlib
from typing import Any, Final

import orjson

from storage.errors import InvalidArgument, shown
from storage.records import clean

MOST: Final = 1_000
"""Rows of one page."""

_LONGEST: Final = 512


def checked_limit(limit: Any) -> int:
    """How many rows a page may have. Raises InvalidArgument."""
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit != limit // 1 or not 1 <= limit <= MOST:
        raise InvalidArgument(f"the limit of a page must be a whole number from 1 to {MOST:,}, not {shown(limit)}")
    return int(limit)


def scope(*facts: str | None) -> int:
    """A mark of a listing: what it lists, of which session, in which order."""
    return mark(orjson.dumps([None if fact is None else clean(fact) for fact in facts]).decode())


def mark(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())


def encode(scope: int, *numbers: int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([scope, *numbers])).rstrip(b"=").decode()


def decode(cursor: str, scope: int, count: int) -> list[int]:
    """The numbers that `encode` was given. Raises InvalidArgument if it was not, or not for this listing."""
    refused = InvalidArgument("This cursor is of no page of this listing; begin again without one.")
    if not isinstance(cursor, str) or len(cursor) > _LONGEST:
        raise refused
    try:
        values = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise refused from None
    if not isinstance(values, list) or len(values) != count + 1 or values[0] != scope:
        raise refused
    if not all(type(value) is int and 0 <= value < 2**63 for value in values):
        raise refused
    return values[1:]
