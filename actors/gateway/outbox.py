"""Frames that wait because their socket's peer reads more slowly than we write.

Invariant: frames leave in the order in which they were added, except that a frame with a phase takes out the waiting one of
the same phase. What may wait is bounded: frames that nobody asked for by ``limit`` bytes, answers to calls (which the limit of
calls in flight bounds already) by ``ANSWER_FACTOR`` times that.
"""

from collections import OrderedDict
from dataclasses import dataclass

ANSWER_FACTOR = 8


@dataclass(frozen=True, slots=True)
class Frame:
    payload: bytes
    is_text: bool
    phase: str = ""  # "" = never replaced by a newer one
    is_answer: bool = False  # the last frame of a call


class Outbox:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: OrderedDict[int, Frame] = OrderedDict()
        self._newest: dict[str, int] = {}
        self._serial = 0
        self._bytes = {True: 0, False: 0}  # by Frame.is_answer

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return sum(self._bytes.values())

    def add(self, frame: Frame) -> bool:
        """Put a frame behind the others. False: it does not fit any more, and was not added."""
        if frame.phase:
            self._drop(self._newest.get(frame.phase))
        elif self._bytes[frame.is_answer] > self._limit * (ANSWER_FACTOR if frame.is_answer else 1):
            return False
        self._serial += 1
        self._frames[self._serial] = frame
        self._bytes[frame.is_answer] += len(frame.payload)
        if frame.phase:
            self._newest[frame.phase] = self._serial
        return True

    def take(self) -> Frame:
        """The oldest frame. Raises KeyError when there is none."""
        serial, frame = self._frames.popitem(last=False)
        self._bytes[frame.is_answer] -= len(frame.payload)
        if self._newest.get(frame.phase) == serial:
            del self._newest[frame.phase]
        return frame

    def clear(self) -> None:
        self._frames.clear()
        self._newest.clear()
        self._bytes = {True: 0, False: 0}

    def _drop(self, serial: int | None) -> None:
        frame = self._frames.pop(serial, None) if serial is not None else None
        if frame is not None:
            self._bytes[frame.is_answer] -= len(frame.payload)
