"""How many tokens the session's next model call would take, and the status frames that tell it to clients."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from actors.session import guests
from actors.session.blocks import ContextBlocks
from actors.session.history import History
from actors.session.prompt import SystemPrompt
from compaction import InvalidTokenCount, TokenCounter
from compaction.checks import finite, is_number
from compaction.errors import TokenCountTimeout

log = logging.getLogger("perdure.session")

COUNT_SECONDS = 10.0
"""A token counter that has not answered by then has failed: every write waits for its estimate."""

COUNT_PAUSE = 60.0
"""So long it is then not asked again, so that the writes that wait do not each wait for it."""

Frame = dict[str, Any]
Phase = Literal["idle", "compacting"]


@dataclass(frozen=True, slots=True)
class Report:
    """An estimate; 0 with the error when it could not be made."""

    tokens: int
    error: Exception | None = None


class Status:
    """Estimates, and frames for the broadcaster if there is one. Frames are sent in the order of the reports."""

    def __init__(
        self,
        history: History,
        blocks: ContextBlocks,
        prompt: SystemPrompt,
        *,
        broadcast: Callable[[Frame], Any] | None,
        threshold: float | None,
        counter: TokenCounter | None,
    ) -> None:
        self._history = history
        self._blocks = blocks
        self._prompt = prompt
        self._broadcast = broadcast
        self._threshold = threshold
        self._counter = counter
        self._last = 0
        self._counting = guests.Inside("token counter")
        self._silent_until = 0.0
        self._is_deaf = False

    @property
    def is_heard(self) -> bool:
        return self._broadcast is not None

    async def report(self, phase: Phase, *, path_tokens: int | None = None, tokens_before: int | None = None) -> Report:
        """Estimate once, then send the frame of `phase` (after an error frame if the estimate failed).

        ``path_tokens``: what the visible path is known to count, so that it need not be read.
        """
        try:
            report = Report(await self._estimate(path_tokens))
        except Exception as exc:  # a storage that fails, or the counter
            self.send_error(exc)
            report = Report(0, exc)
        self._last = report.tokens
        self._send(phase, report.tokens, tokens_before)
        return report

    def refuse_write_inside(self) -> None:
        """Raise CalledFromInside or CalledItself for a write by the counter, or by a provider or store that is being read:
        the write would wait for its estimate, which waits for them."""
        self._counting.refuse("A write")
        self._blocks.refuse_inside_load()
        self._prompt.refuse_inside()

    def refuse_refresh_inside(self, what: str) -> None:
        """The same for what may wait until the prompt is rendered again, and so also for a provider that is being written."""
        self._counting.refuse(what)
        self._blocks.refuse_inside()
        self._prompt.refuse_inside()

    def send_error(self, error: BaseException) -> None:
        self._broadcast_frame({"type": "cf_agent_session_error", "error": guests.for_clients(error)})

    def send_idle(self) -> None:
        """Repeat the last estimate in an idle frame, at once."""
        self._send("idle", self._last, None)

    def _send(self, phase: Phase, tokens: int, tokens_before: int | None) -> None:
        if self._broadcast is None:
            return
        frame: Frame = {
            "type": "cf_agent_session",
            "phase": phase,
            "tokenEstimate": tokens,
            "tokenThreshold": self._threshold,
        }
        if tokens_before is not None:
            frame["compacted"] = {"tokensBefore": tokens_before}
        self._broadcast_frame(frame)

    def _broadcast_frame(self, frame: Frame) -> None:
        """What a broadcaster raises is its own affair: what the frame tells of has been done."""
        if self._broadcast is None:
            return
        try:
            self._broadcast(frame)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            if not self._is_deaf:
                log.warning("broadcast raised %s; frames of this session may be lost", guests.for_the_log(exc))
            self._is_deaf = True

    async def _estimate(self, path_tokens: int | None) -> int:
        if self._counter is None:
            if path_tokens is None:
                path_tokens = await self._history.path_tokens()
            return path_tokens + await self._prompt.tokens()
        messages = await self._history.get_history()
        prompt = await self._prompt.current()
        blocks = await self._blocks.all()
        return _whole(await self._count(self._counter, messages=messages, system_prompt=prompt, context_blocks=blocks))

    async def _count(self, counter: TokenCounter, **given: Any) -> Any:
        if time.monotonic() < self._silent_until:
            raise TokenCountTimeout(f"{COUNT_SECONDS:g}", f"{COUNT_PAUSE:g}")
        with self._counting.entered():
            asked = asyncio.ensure_future(guests.call(counter, **given))
            asked.add_done_callback(_forget)
            try:
                await asyncio.wait([asked], timeout=COUNT_SECONDS)
            finally:
                asked.cancel()
        if not asked.done():
            self._silent_until = time.monotonic() + COUNT_PAUSE
            raise TokenCountTimeout(f"{COUNT_SECONDS:g}", f"{COUNT_PAUSE:g}")
        return asked.result()


def _forget(asked: "asyncio.Future[Any]") -> None:
    """An answer that nobody waits for any more."""
    if not asked.cancelled():
        asked.exception()


def _whole(count: Any) -> int:
    """A counter's answer as a number of tokens: rounded up, never below 0; what is no finite number counts as 0.

    Raises InvalidTokenCount for what is no number.
    """
    if not is_number(count):
        raise InvalidTokenCount(type(count).__name__)
    return max(0, math.ceil(finite(count) or 0))
