"""Cutting text at a number of UTF-16 code units without splitting a character."""


def cut(text: str, units: int) -> str:
    """The longest beginning of ``text`` of at most so many UTF-16 code units; a character that does not fit is left out."""
    if units <= 0:
        return ""
    head = text[:units]  # a character has one unit or two
    if head.isascii():
        return head
    return head.encode("utf-16-le", "surrogatepass")[: 2 * units].decode("utf-16-le", "ignore")
