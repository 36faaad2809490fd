"""What Ray prints in the process that started it, made fit for a log."""

import re
from typing import TextIO

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_USUAL = "A worker died or was killed while executing a task"


class RayMessages:
    """Standard output without colour codes and without Ray's alarm about workers that end, as ours do when they choose to.

    A death that matters is in our own logs.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._has_dropped = False

    def write(self, text: str) -> int:
        if _USUAL in text:
            self._has_dropped = not text.endswith("\n")
        elif not (self._has_dropped and text == "\n"):
            self._has_dropped = False
            self._stream.write(_COLOUR.sub("", text))
        else:
            self._has_dropped = False  # `print` writes the end of its line by itself
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
