"""How text is prepared for the full-text index, and queries for FTS5.

The tokenizer (``porter unicode61``) takes a run of CJK characters for one word and emoji for space. So each CJK character is
set apart, which makes a substring a phrase, and each emoji becomes a private-use character of plane 15, which is a word.
Other text is indexed as it is. Text and queries go through the same `fold`, so what is a word is decided in one place.
"""

import re
import unicodedata
from typing import Final

from storage.errors import InvalidArgument
from storage.json_text import clean

_CJK: Final = (
    "\u1100-\u11ff\u2e80-\u2fd5\u3005-\u3007\u3031-\u3035\u3041-\u3096\u309d-\u30fa\u30fc-\u312f\u3131-\u318e\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c\uac00-\ud7fb\uf900-\ufaff\uff66-\uffdc"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
_EMOJI: Final = (
    "\u231a\u231b\u2328\u23cf\u23e9-\u23fa\u2600-\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55"
    "\U0001f000-\U0001fbff"
)
_TEXT_EMOJI: Final = (  # emoji only when a variation selector says so
    "\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe"
    "\u3030\u303d\u3297\u3299"
)
_APART = re.compile(f"[{_CJK}{_EMOJI}]|[{_TEXT_EMOJI}](?=\ufe0f)")
_CONJOINING = re.compile("[\u1100-\u11ff\u3099\u309a\ua960-\ua97c\ud7b0-\ud7fb]")
_IS_EMOJI = re.compile(f"[{_EMOJI}{_TEXT_EMOJI}]")
_SPACE: Final = re.compile("[\0\t\n\v\f\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]+")


def fold(text: str) -> str:
    """`text` as it is given to the index."""
    if text.isascii():
        return text
    if _CONJOINING.search(text):
        text = unicodedata.normalize("NFC", text)
    return _APART.sub(_set_apart, text)


def match_expression(query: str) -> str | None:
    """The FTS5 expression that finds what contains every word of `query`; None if it has no word.

    Nothing in a query is an operator: each word is quoted, one of several tokens is a phrase.
    """
    if not isinstance(query, str):
        raise InvalidArgument(f"a query must be a text, not {type(query).__name__}")
    words = dict.fromkeys(word for word in _SPACE.split(clean(query)) if word)
    return " ".join(f'"{fold(word).replace(chr(34), chr(34) * 2)}"' for word in words) or None


def _set_apart(match: re.Match[str]) -> str:
    character = match[0]
    if _IS_EMOJI.match(character):
        character = chr(0xF0000 + (ord(character) & 0xFFFF))
    return f" {character} "
