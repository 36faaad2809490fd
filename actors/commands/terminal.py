"""What verbs say to a person. Text that came from elsewhere is made harmless: a terminal obeys control characters."""

import sys
import unicodedata

from rich.console import Console

_UNSAFE = ("Cc", "Cf", "Cs")
_JOINERS = "\u200c\u200d"  # harmless, and part of how emoji and several scripts are written


def printable(text: str) -> str:
    """Control characters, also the invisible ones that turn text around, as their escapes."""
    return "".join(_escaped(c) if unicodedata.category(c) in _UNSAFE and c not in _JOINERS else c for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def console(*, is_error: bool = False) -> Console:
    """A console that prints text as it is: no markup, no colouring of numbers, no breaking of long lines."""
    return Console(stderr=is_error, highlight=False, markup=False, emoji=False, soft_wrap=True)


def say(line: str) -> None:
    """One line for the person at the terminal, out of the way of what programs read."""
    print("perdure: " + printable(line), file=sys.stderr, flush=True)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
