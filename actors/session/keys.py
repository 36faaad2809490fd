"""Keys of entries in keyed blocks: stable for a title, telling for a text."""

import re
import unicodedata

SLUG_LENGTH = 60
_TITLE_SPACE = re.compile(r"\A[\s\ufeff]+|[\s\ufeff]+\Z")


def entry_key(title: str | None, content: str) -> str:
    """The key under which an entry is stored.

    Titles that are equal after NFKC, case folding and dropping punctuation share a key; titles that differ in a letter or a
    digit outside ASCII do not. Without a title the key comes from the content, so equal contents share one.
    """
    trimmed = _TITLE_SPACE.sub("", title or "")
    if not trimmed:
        return f"{slug(_first_units(content, SLUG_LENGTH)) or 'entry'}-{text_hash(content)}"
    if trimmed.isascii():
        return slug(trimmed) or f"entry-{text_hash(trimmed)}"
    folded = fold(trimmed)
    if folded.isascii():
        return slug(folded) or f"entry-{text_hash(trimmed)}"
    return f"{slug(folded) or 'entry'}-{text_hash(folded)}"


def slug(text: str) -> str:
    """Lower case; every run of anything but a–z and 0–9 is one dash; at most 60 characters."""
    dashed = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return dashed[:SLUG_LENGTH].strip("-")


def fold(title: str) -> str:
    """What two titles that mean the same have in common: letters, marks and digits, words apart by one space."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", title).casefold())
    kept = "".join(char if unicodedata.category(char)[0] in "LMN" else " " for char in text)
    return " ".join(kept.split())


def text_hash(text: str) -> str:
    """FNV-1a, 32 bit, over UTF-16 code units, in base 36."""
    value = 0x811C9DC5
    units = text.encode("utf-16-le", "surrogatepass")
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = ((value ^ (low | high << 8)) * 0x01000193) & 0xFFFFFFFF
    return _base36(value)


def _base36(value: int) -> str:
    digits = ""
    while value:
        value, digit = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


def _first_units(text: str, count: int) -> str:
    if text.isascii():
        return text[:count]
    return text.encode("utf-16-le", "surrogatepass")[: 2 * count].decode("utf-16-le", "replace")
