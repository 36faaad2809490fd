"""Cutting text at a number of UTF-16 code units without splitting a character."""

from storage.tokens import utf16_length


def cut(text: str, units: int) -> str:
    """The longest beginning of ``text`` of at most so many UTF-16 code units; a character that does not fit is left out."""
    if units <= 0:
        return ""
    head = text[:units]  # a character has one unit or two
    if head.isascii():
        return head
    return head.encode("utf-16-le", "surrogatepass")[: 2 * units].decode("utf-16-le", "ignore")


def cut_middle(text: str, units: int) -> str:
    """``text``, or its beginning and its end with a note between them that says so: at most so many UTF-16 code units.

    (Where not even the note fits, that is longer.)
    """
    length = utf16_length(text)
    if length <= units:
        return text
    note = f"\n[... the middle of these {length} characters is left out ...]\n"
    kept = max(0, units - len(note))
    return cut(text, kept - kept // 2) + note + _end(text, kept // 2)


def _end(text: str, units: int) -> str:
    tail = text[-units:] if units > 0 else ""
    if tail.isascii():
        return tail
    return tail.encode("utf-16-le", "surrogatepass")[-2 * units :].decode("utf-16-le", "ignore")
