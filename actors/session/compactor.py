"""Runs the session's compaction function: by hand, or by itself when the estimate is above the threshold.

At most one run at a time. A run calls a model and takes seconds, so it holds up nobody: reads and writes go on, and the
summary is stored afterwards only if its range is still on the path.
"""

import asyncio
import contextlib
import inspect
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from actors.errors import NoCompaction
from actors.session import guests
from actors.session.history import History, Written
from actors.session.locks import holding_nothing
from actors.session.prompt import SystemPrompt
from actors.session.seen import SeenHistory
from actors.session.status import Report, Status
from compaction import CompactContext, CompactFunction, CompactResult, TokenCounter
from storage.errors import InvalidArgument, StorageError

log = logging.getLogger("perdure.session")

COMPACTION_SECONDS = 600.0
"""A compaction function that has not answered by then has failed."""

GROWTH = 0.1
"""After a fruitless automatic run the estimate must grow by this part of the threshold before the next."""

VAIN_NOTE = "fruitless_compaction"


@dataclass(frozen=True, slots=True)
class Vain:
    """The last automatic run that failed or shortened nothing: the estimate then, and whether the user was warned since."""

    tokens: int | None = None
    is_warned: bool = False


class Compactor:
    """The compaction of one session."""

    def __init__(
        self,
        history: History,
        prompt: SystemPrompt,
        status: Status,
        *,
        function: CompactFunction | None,
        threshold: float | None,
        counter: TokenCounter | None,
        on_error: Callable[[Exception], Any] | None,
    ) -> None:
        self._history = history
        self._prompt = prompt
        self._status = status
        self._function = function
        self._threshold = threshold
        self._context = CompactContext(counter, threshold)
        self._on_error = on_error
        self.holder: Any = None
        """What must be alive while a run is: the session, through which the owner of the database finds the run."""
        self._is_over = False
        self._lock = asyncio.Lock()
        self._order = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._summarizing = guests.Inside("compaction function")
        self._handling = guests.Inside("handler of compaction errors")
        self._handlers: set[asyncio.Task[None]] = set()
        self._failed_count = ""
        self._vain: Vain | None = None

    @property
    def is_automatic(self) -> bool:
        return self._function is not None and self._threshold is not None

    @property
    def reports(self) -> bool:
        """Whether anybody needs an estimate."""
        return self._status.is_heard or self.is_automatic

    @property
    def is_running(self) -> bool:
        return self._task is not None or self._lock.locked()

    async def after_write(self, written: Written) -> None:
        """Tell the new estimate, if anybody needs it, in the order of the writes."""
        await self._follow(written, self._tell_in_order)

    async def after_append(self, written: Written) -> None:
        """`after_write`, and start a run in the background if the estimate asks for it."""
        await self._follow(written, self._tell_and_consider)

    async def _follow(self, written: Written, work: Callable[[Written], Coroutine[Any, Any, None]]) -> None:
        """The write is done: storage that fails afterwards must not make it look like one that was not."""
        if not self.reports:
            return
        try:
            self._status.refuse_write_inside()
            await work(written)
        except Exception as exc:
            log.warning("a write was stored and not told of: %s", guests.for_the_log(exc))

    async def _tell_in_order(self, written: Written) -> None:
        async with self._order:
            await self._tell(written)

    async def _tell_and_consider(self, written: Written) -> None:
        async with self._order:
            report = await self._tell(written)
            if written.is_changed and report.error is None:
                await self._consider(report)
        if written.is_changed and report.error is not None:
            self._handle(report.error)

    async def run(self) -> CompactResult | None:
        """Wait for a run that is going on, then run; None if nothing was folded or the function failed.

        Raises NoCompaction, CalledFromInside, CalledItself, and what storing the summary raises.
        """
        if self._function is None:
            raise NoCompaction()
        self._summarizing.refuse("compact()")
        self._status.refuse_refresh_inside("compact()")
        async with self._lock:
            before = await self._begin()
            try:
                return await self._run_by_hand(before)
            except BaseException as exc:
                if not isinstance(exc, Exception):
                    self._status.send_idle()
                raise

    async def _run_by_hand(self, before: Report) -> CompactResult | None:
        try:
            result, seen = await self._summarize()
        except Exception as exc:
            await self._end_failed(exc)
            return None
        try:
            stored = await self._store(result, seen)
        except Exception as exc:
            await self._end_failed(exc)
            raise
        if stored is not None:
            await self._refresh_prompt()
        after = await self._end(before, stored)
        if stored is not None and self.is_automatic and after.tokens < before.tokens:
            await self._remember(None, is_warned=False)
        return stored

    async def settled(self) -> None:
        """Return when no run is going on, and no handler is at work that this is not called from.

        Raises CalledFromInside, CalledItself.
        """
        self._summarizing.refuse("Waiting for a compaction")
        self._status.refuse_refresh_inside("Waiting for a compaction")
        while self._task is not None or (self._handlers and not self._handling.is_true):
            waiting = self._handlers if self._task is None else {self._task}
            await asyncio.wait(waiting)
        if self._lock.locked():
            async with self._lock:
                pass

    async def end(self) -> None:
        """The session is going to be deleted: `cancel`, and neither begin nor note anything any more."""
        self._is_over = True
        await self.cancel()

    def reopen(self) -> None:
        """It was not deleted after all."""
        self._is_over = False

    async def cancel(self) -> None:
        """End an automatic run now; nothing of it is stored unless that has begun."""
        tasks = {self._task} if self._task is not None else set()
        if not self._handling.is_true:
            tasks |= self._handlers
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _tell(self, written: Written) -> Report:
        report = await self._status.report("idle", path_tokens=written.path_tokens)
        self._log_failed_count(report.error)
        if self.is_automatic and report.error is None and not self._is_above(report):
            await self._remember(None)  # below the threshold, a fruitless run holds up no other
        return report

    async def _consider(self, report: Report) -> None:
        if self._is_over or self.is_running or not self._is_above(report):
            return
        last = (await self._load_note()).tokens
        has_grown = last is None or report.tokens >= last + GROWTH * (self._threshold or 0)
        if has_grown and not self.is_running and not self._is_over:
            self._task = asyncio.create_task(
                self._run_automatically(), name="session compaction", context=holding_nothing()
            )
            self._task.add_done_callback(self._forget_task)

    def _log_failed_count(self, error: Exception | None) -> None:
        """Once, until an estimate was made again: without one there is no automatic compaction."""
        told = "" if error is None else guests.for_the_log(error)
        if told and told != self._failed_count:
            log.warning("the tokens of the session could not be estimated: %s", told)
        self._failed_count = told

    def _handle(self, error: Exception) -> None:
        """Give an error of automatic compaction to the user's handler, which nothing waits for but `settled`.

        What it raises is only logged. Of what it causes itself it is not told.
        """
        if self._on_error is None or self._is_over or self._handling.is_true:
            return
        task = asyncio.create_task(self._call_handler(self._on_error, error), name="handler of compaction errors")
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _call_handler(self, handler: Callable[[Exception], Any], error: Exception) -> None:
        try:
            with self._handling.entered():
                async with asyncio.timeout(COMPACTION_SECONDS):
                    await guests.call(handler, error)
        except Exception as failure:
            log.warning("the handler of compaction errors failed: %s", guests.for_the_log(failure))

    async def _run_automatically(self) -> None:
        error: Exception | None = None
        try:
            async with self._lock:
                error = await self._attempt()
        except StorageError as exc:
            log.warning("an automatic compaction ended: %s", exc)
        except Exception:
            log.exception("an automatic compaction failed")
        except BaseException:
            self._status.send_idle()
            raise
        finally:
            self._task = None
        if error is not None:
            self._handle(error)

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        if self._task is task:  # it was cancelled before it began
            self._task = None

    def _is_above(self, report: Report) -> bool:
        return self._function is not None and self._threshold is not None and report.tokens > self._threshold

    async def _attempt(self) -> Exception | None:
        """What the user's handler is to be told."""
        before = await self._begin()
        try:
            stored = await self._store(*await self._summarize())
        except Exception as exc:
            log.warning("an automatic compaction failed: %s", guests.for_the_log(exc))
            self._status.send_error(exc)
            await self._status.report("idle")
            with contextlib.suppress(StorageError):  # the storage that failed, most likely; it has been told of
                await self._remember(before.tokens)
            return exc
        failure = None if stored is None else await self._refresh_prompt()
        after = await self._end(before, stored)
        if stored is not None and after.tokens < before.tokens:
            await self._remember(None, is_warned=False)
        else:
            await self._remember_vain(before.tokens if stored is None else after.tokens)
        return failure

    async def _begin(self) -> Report:
        return await self._status.report("compacting") if self.reports else Report(0)

    async def _end(self, before: Report, stored: CompactResult | None) -> Report:
        if not self.reports:
            return Report(0)
        return await self._status.report("idle", tokens_before=None if stored is None else before.tokens)

    async def _end_failed(self, error: Exception) -> None:
        log.warning("a compaction failed: %s", guests.for_the_log(error))
        self._status.send_error(error)
        if self.reports:
            await self._status.report("idle")

    async def _summarize(self) -> tuple[CompactResult | None, SeenHistory]:
        """What the function says, and what it was given."""
        assert self._function is not None
        messages, seen = await self._history.snapshot()
        arguments = (messages, self._context) if _takes_context(self._function) else (messages,)
        with self._summarizing.entered():
            async with asyncio.timeout(COMPACTION_SECONDS):
                return _result(await guests.call(self._function, *arguments)), seen

    async def _store(self, result: CompactResult | None, seen: SeenHistory) -> CompactResult | None:
        return None if result is None else await self._history.store_summary(result, seen)

    async def _refresh_prompt(self) -> Exception | None:
        """Render the prompt again after a summary was stored. That it failed is told, and takes nothing from the summary."""
        try:
            await self._prompt.refresh()
        except Exception as exc:
            log.warning("a summary was stored and the prompt was not rendered again: %s", guests.for_the_log(exc))
            self._status.send_error(exc)
            return exc
        return None

    async def _load_note(self) -> Vain:
        if self._vain is None:
            text = await self._history.get_note(VAIN_NOTE)
            self._vain = Vain() if text is None else Vain(*json.loads(text))
        return self._vain

    async def _remember(self, tokens: int | None, *, is_warned: bool | None = None) -> None:
        """At which estimate a run was in vain (None: the last was not), and whether that has been said."""
        known = await self._load_note()
        vain = Vain(tokens, known.is_warned if is_warned is None else is_warned)
        if vain != known and not self._is_over:
            text = None if vain == Vain() else json.dumps([vain.tokens, vain.is_warned])
            await self._history.put_note(VAIN_NOTE, text)
            self._vain = vain

    async def _remember_vain(self, tokens: int) -> None:
        """Say so once, until a run has shortened something, hibernation or not."""
        if not (await self._load_note()).is_warned:
            log.warning(
                "automatic compaction shortened nothing: about %d tokens, above the threshold of %s; "
                "the next attempt waits until they have grown by a tenth of that; "
                "if the newest messages alone are above it, give create_compact_function a smaller tail_token_budget",
                tokens,
                self._threshold,
            )
        await self._remember(tokens, is_warned=True)


def _takes_context(function: CompactFunction) -> bool:
    """Whether it can be called with a second argument."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _result(value: Any) -> CompactResult | None:
    if value is None or isinstance(value, CompactResult):
        return value
    if isinstance(value, str):
        raise InvalidArgument(
            "The compaction function answered with a text, so it is a summarizer: "
            "give on_compaction(create_compact_function(summarize=…)) of it."
        )
    try:
        return CompactResult.model_validate(value)
    except ValidationError as exc:
        raise InvalidArgument(
            "A compaction function must return None or an object with fromMessageId, toMessageId and summary."
        ) from exc
