"""Who is awake, and the last status frame of each conversation; looking at it never wakes anyone."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from types import TracebackType

from actors.conversation.events import Push
from storage.checkpoints.keys import ConversationKey

MAX_REMEMBERED = 10_000
"""Of the conversations that sleep the last frames of so many are remembered."""


@dataclass(frozen=True, slots=True)
class Status:
    key: ConversationKey
    is_awake: bool
    frame: bytes | None  # the last that told of token usage; None = none was seen on this node


class StatusSubscription:
    """Asynchronous iterator over what changes, beginning with what is so now. Never behind by more than one status of
    each conversation: a slow reader sees the newest one only. Ends after `close()`, which leaving ``async with`` calls.
    """

    def __init__(self, board: "StatusBoard", key: ConversationKey | None) -> None:
        self._board = board
        self.key = key
        self._news: OrderedDict[ConversationKey, Status] = OrderedDict()
        self._has_news = asyncio.Event()
        self._is_closed = False

    def tell(self, status: Status) -> None:
        self._news[status.key] = status
        self._has_news.set()

    def close(self) -> None:
        self._is_closed = True
        self._board.unsubscribe(self)
        self._has_news.set()

    def __aiter__(self) -> AsyncIterator[Status]:
        return self

    async def __anext__(self) -> Status:
        while not self._news:
            if self._is_closed:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        return self._news.popitem(last=False)[1]

    async def __aenter__(self) -> "StatusSubscription":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StatusBoard:
    def __init__(self) -> None:
        self._known: OrderedDict[ConversationKey, Status] = OrderedDict()  # the least recently changed first
        self._subscriptions: dict[ConversationKey | None, list[StatusSubscription]] = {}

    def subscribe(self, key: ConversationKey | None) -> StatusSubscription:
        """To one conversation, or (None) to all."""
        subscription = StatusSubscription(self, key)
        self._subscriptions.setdefault(key, []).append(subscription)
        now = list(self._known.values()) if key is None else [self._known.get(key) or Status(key, False, None)]
        for status in now:
            subscription.tell(status)
        return subscription

    def unsubscribe(self, subscription: StatusSubscription) -> None:
        listeners = self._subscriptions.get(subscription.key, [])
        if subscription in listeners:
            listeners.remove(subscription)
            if not listeners:
                del self._subscriptions[subscription.key]

    def pushed(self, key: ConversationKey, push: Push) -> None:
        if push.is_status:
            self._change(replace(self._status(key), frame=push.frame))

    def awake(self, key: ConversationKey, is_awake: bool) -> None:
        status = self._status(key)
        if status.is_awake != is_awake:
            self._change(replace(status, is_awake=is_awake))

    def close(self) -> None:
        """Ends all subscriptions."""
        for subscription in [s for listeners in self._subscriptions.values() for s in listeners]:
            subscription.close()

    def _status(self, key: ConversationKey) -> Status:
        return self._known.get(key) or Status(key, False, None)

    def _change(self, status: Status) -> None:
        self._known[status.key] = status
        self._known.move_to_end(status.key)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        for key in (status.key, None):
            for subscription in self._subscriptions.get(key, ()):
                subscription.tell(status)
