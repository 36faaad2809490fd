"""What verbs say to a person. Text that came from elsewhere is made harmless: a terminal obeys control characters."""

import sys
import unicodedata
from collections.abc import Container, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

_UNSAFE = ("Cc", "Cf", "Cs")
_LEAST_NAME = 10
_JOINERS = "\u200c\u200d"  # harmless, and part of how emoji and several scripts are written


def printable(text: str) -> str:
    """Control characters, also the invisible ones that turn text around, as their escapes."""
    return "".join(_escaped(c) if unicodedata.category(c) in _UNSAFE and c not in _JOINERS else c for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def console(*, is_error: bool = False) -> Console:
    """A console that prints text as it is: no markup, no colouring of numbers, no breaking of long lines."""
    return Console(stderr=is_error, highlight=False, markup=False, emoji=False, soft_wrap=True)


def aligned(rows: Sequence[Sequence[str | Text]], width: int, right: Container[int] = ()) -> list[Text]:
    """A line for each row, in columns, the first row as heading. What is too wide loses the end of its first column only.

    ``right``: the columns of numbers.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
    others = sum(widths[1:]) + 2 * (len(widths) - 1)
    widths[0] = max(min(_LEAST_NAME, widths[0]), min(widths[0], width - others))
    lines = []
    for index, row in enumerate(cells):
        line = Text(style="bold" if index == 0 else "")
        for column, cell in enumerate(row):
            if column == 0:
                cell = Text(cut(cell.plain, widths[0]))
            padding = " " * (widths[column] - cell.cell_len)
            line.append("  " if column else "")
            line.append_text(Text(padding) + cell if column in right else cell + Text(padding))
        line.rstrip()
        lines.append(line)
    return lines


def cut(text: str, width: int) -> str:
    """At most so many columns of a terminal, with … where something is missing."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def say(line: str) -> None:
    """One line for the person at the terminal, out of the way of what programs read."""
    print("perdure: " + printable(line), file=sys.stderr, flush=True)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
