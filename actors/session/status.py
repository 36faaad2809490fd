"""How many tokens the session's next model call would take, and the status frames that tell it to clients."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from actors.session.blocks import ContextBlocks
from actors.session.history import History
from actors.session.prompt import SystemPrompt
from compaction import TokenCounter
from compaction.checks import finite, is_number
from storage.maybe_async import settle

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

    @property
    def is_heard(self) -> bool:
        return self._broadcast is not None

    async def report(self, phase: Phase, *, path_tokens: int | None = None, tokens_before: int | None = None) -> Report:
        """Estimate once, then send the frame of `phase` (after an error frame if the estimate failed).

        ``path_tokens``: what the visible path is known to count, so that it need not be read.
        """
        try:
            report = Report(await self._estimate(path_tokens))
        except Exception as exc:
            self.send_error(exc)
            report = Report(0, exc)
        self._last = report.tokens
        self._send(phase, report.tokens, tokens_before)
        return report

    def send_error(self, error: BaseException) -> None:
        if self._broadcast is not None:
            self._broadcast({"type": "cf_agent_session_error", "error": str(error) or type(error).__name__})

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
        self._broadcast(frame)

    async def _estimate(self, path_tokens: int | None) -> int:
        if self._counter is None:
            if path_tokens is None:
                path_tokens = await self._history.path_tokens()
            return path_tokens + await self._prompt.tokens()
        messages = await self._history.get_history()
        prompt = await self._prompt.current()
        blocks = await self._blocks.all()
        return _whole(await settle(self._counter(messages=messages, system_prompt=prompt, context_blocks=blocks)))


def _whole(count: Any) -> int:
    """A counter's answer as a number of tokens: rounded up, never below 0; what is no finite number counts as 0."""
    if not is_number(count) or finite(count) is None:
        return 0
    return max(0, math.ceil(count))
