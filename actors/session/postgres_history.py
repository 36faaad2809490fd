"""`History` over PostgreSQL: what is decided by what was read is stored only if that still holds (`storage.postgres.guards`)."""

import contextlib
import logging
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final

from actors.session import late_results
from actors.session.history import History, Written
from actors.session.late_results import as_stored, as_summary, calls, calls_of, lone_results, text_of
from actors.session.seen import SeenHistory, as_text
from compaction import CompactResult
from compaction.overlays import place_overlay
from storage.errors import InvalidMessage, Overloaded, StorageError
from storage.overlays import Applied, Overlay, overlay_message
from storage.postgres import PostgresSessionProvider
from storage.postgres.guards import State
from storage.postgres.trees import Tree
from storage.records import JsonObject, Latest, clean, encode

log = logging.getLogger("perdure.session")

ATTEMPTS: Final = 10
"""So often a decision is made anew because what it was decided by has changed."""


class PostgresHistory(History):
    """Over `PostgresSessionProvider`."""

    provider: PostgresSessionProvider

    async def append(self, message: Any, parent_id: str | Latest | None) -> Written:
        if not late_results.has_tool_parts(message) or parent_id is None:
            return await super().append(message, parent_id)
        plain, _ = encode(message)
        if not (answered := lone_results(plain)):
            return await super().append(plain, parent_id)
        for _ in range(ATTEMPTS):
            branches = await self._branches(answered)
            parent = branches.tree.latest if isinstance(parent_id, Latest) else clean(parent_id)
            if parent not in branches.tree.parents or plain["id"] in branches.tree.parents:
                return await super().append(plain, parent_id)
            overlays = branches.covering_appended(plain, parent)
            if await self.provider.append_if(branches.state, plain, parent_id, overlays, map(as_stored, answered)):
                return Written(True)
        raise _changing()

    async def _late_results(self, message: JsonObject, parent_id: str | Latest | None) -> str:
        return ""  # `append` has seen to them

    async def update(self, message: Any) -> Written:
        plain, _ = encode(message)
        before = await self.provider.get_message(plain["id"])
        concerned = set() if before is None else _concerned(before, plain)
        if before is None or not concerned:
            return await super().update(plain)
        (await self._branches(concerned)).replace(before, plain)  # refuses what no text can stand for
        await self.provider.update_message(plain)
        try:
            await self._renew(before, plain, concerned)
        except StorageError as exc:  # the message is replaced; the next summary looks again
            log.warning("a late result may not be told as text, or still be: %s", type(exc).__name__)
        return Written(True)

    async def _became_late(self, message: JsonObject) -> str:
        return ""  # `update` has seen to it

    async def _renew(self, before: JsonObject, after: JsonObject, concerned: set[str]) -> None:
        for _ in range(ATTEMPTS):
            branches = await self._branches(concerned)
            branches.replace(before, after)
            watched = map(as_stored, concerned)
            if await self.provider.change_overlays(branches.state, branches.added, branches.removed, watched):
                return
        raise _changing()

    async def delete(self, message_ids: list[str]) -> Written:
        written = await super().delete(message_ids)
        try:
            await self._uncover()
        except StorageError as exc:  # the messages are gone; the next deletion or summary looks again
            log.warning("late results whose calls are visible again may still be told as text: %s", type(exc).__name__)
        return written

    async def path_tokens(self) -> int:
        return await self.provider.path_tokens()

    async def store_summary(self, result: CompactResult, seen: SeenHistory) -> CompactResult | None:
        """As `History.store_summary`, at one moment: what changes while it is decided makes it be decided anew."""
        calls = seen.calls_in(result)
        for _ in range(ATTEMPTS):
            branches = await self._branches(calls, only_beside=True)
            visible = await self._visible(branches.tree)
            if visible is None:
                continue  # messages went meanwhile
            if not visible or not seen.still_holds(result, as_text(visible)):
                return None
            placed = branches.add_summary(result, calls)
            if placed is None:
                return None
            branches.uncover()
            watched = map(as_stored, calls)
            if await self.provider.change_overlays(branches.state, branches.added, branches.removed, watched):
                return placed
        raise _changing()

    async def _visible(self, tree: Tree) -> list[JsonObject] | None:
        """The history to the latest leaf; None if a message of it has gone since."""
        shown = tree.visible(tree.path())
        contents = await self.provider.get_messages(item for item in shown if isinstance(item, str))
        if any(isinstance(item, str) and item not in contents for item in shown):
            return None
        return [overlay_message(item) if isinstance(item, Overlay) else contents[item] for item in shown]

    async def _uncover(self) -> None:
        rows = await self.provider.get_compactions()
        if not any(row["fromMessageId"] == row["toMessageId"] for row in rows):
            return
        for _ in range(ATTEMPTS):
            branches = await self._branches(())
            branches.uncover()
            if not branches.removed or await self.provider.change_overlays(branches.state, [], branches.removed, ()):
                return
        raise _changing()

    async def _branches(self, call_ids: Collection[str], *, only_beside: bool = False) -> "_Branches":
        """The tree, and its messages that have to do with these calls or with results that are told as text.

        With ``only_beside``: these calls matter only where there is more than one branch.
        """
        state = await self.provider.get_state()
        if only_beside and len(state.tree.path()) == len(state.tree.parents):
            call_ids = ()
        covered = [item.from_id for item in state.tree.overlays if item.from_id == item.to_id]
        messages = await self.provider.get_messages(covered) if covered else {}
        held = set(call_ids).union(*map(lone_results, messages.values()))
        messages |= await self.provider.get_messages_holding(map(as_stored, held))
        return _Branches(state, messages)


class _Branches:
    """The branches of a session as they were read, and what is decided by them; see `late_results`.

    ``messages``: all that hold the calls that are asked for. What is not in the tree has come since and is not looked at.
    """

    def __init__(self, state: State, messages: Mapping[str, JsonObject]) -> None:
        self.state = state
        self.tree = state.tree
        self._messages = {identity: each for identity, each in messages.items() if identity in state.tree.parents}
        self._overlays = self.tree.overlays  # of this state alone, changed in place
        self._stored = {item.id for item in self._overlays}

    @property
    def added(self) -> list[Overlay]:
        return [item for item in self._overlays if item.id not in self._stored]

    @property
    def removed(self) -> set[str]:
        return self._stored - {item.id for item in self._overlays}

    def covering_appended(self, message: JsonObject, parent: str) -> list[Overlay]:
        """The summaries that stand for a message that is going to be appended: one or none. Raises InvalidMessage."""
        self._cover([*self.tree.path(parent), message["id"]], message)
        return self.added

    def add_summary(self, result: CompactResult, calls: Collection[str]) -> CompactResult | None:
        """Add the overlay of a result that holds these calls, and summaries for answers to them on other branches; where it
        is, None if nowhere."""
        path = self.tree.path()
        position = {identity: index for index, identity in enumerate(path)}
        placed = place_overlay(result.from_message_id, result.to_message_id, position.get, self.tree.applied(path))
        if placed is None:
            return None
        self._add(result.summary, *placed)
        for identity, message in self._messages.items():
            if identity not in position and not lone_results(message).isdisjoint(calls):
                with contextlib.suppress(
                    InvalidMessage
                ):  # it answers others too and is there already: it stays as it is
                    self._cover(self.tree.path(identity), message)
        return result.at(*placed)

    def replace(self, before: JsonObject, after: JsonObject) -> None:
        """Make anew what stands for a message that is replaced, and for answers to calls that it makes or made.

        Raises InvalidMessage.
        """
        replaced = after["id"]
        if replaced not in self.tree.parents:
            return
        changed = calls_of(before) ^ calls_of(after)
        told = text_of(before)
        self._messages[replaced] = after
        self._cover_anew(replaced, told)
        for identity, message in self._messages.items():
            if identity != replaced and not lone_results(message).isdisjoint(changed):
                with contextlib.suppress(InvalidMessage):
                    self._cover_anew(identity, text_of(message))

    def _cover_anew(self, identity: str, told: str) -> None:
        for item in list(self._overlays):
            if item.from_id == item.to_id == identity and item.summary == told:
                self._overlays.remove(item)
        self._cover(self.tree.path(identity), self._messages[identity])

    def uncover(self) -> None:
        """Let late results be seen as they are where all their calls are visible again; one that was deleted never is."""
        for overlay in list(self._overlays):
            message = self._messages.get(overlay.from_id) if overlay.from_id == overlay.to_id else None
            if message is None or overlay.summary != text_of(message):
                continue
            path = self.tree.path(overlay.from_id)
            found = [self._nearest_call(path, call_id) for call_id in lone_results(message)]
            hidden = [range(item.start, item.end + 1) for item in self.tree.applied(path)]
            if found and all(call is not None and not any(call in each for each in hidden) for call in found):
                self._overlays.remove(overlay)

    def _cover(self, path: list[str], message: JsonObject) -> None:
        """Let a summary stand for the message at the end of a path if it answers folded calls."""
        applying = self.tree.applied(path)
        if any(item.start <= len(path) - 1 <= item.end for item in applying):
            return
        late = {call_id for call_id in lone_results(message) if self._is_folded(path, call_id, applying)}
        if late:
            self._add(as_summary(message, late), path[-1], path[-1])

    def _add(self, summary: str, from_id: str, to_id: str) -> None:
        order = 1 + max((item.order for item in self._overlays), default=-1)
        self._overlays.append(Overlay(order, str(uuid.uuid4()), summary, from_id, to_id, ""))

    def _is_folded(self, path: list[str], call_id: str, applying: list[Applied]) -> bool:
        call = self._nearest_call(path, call_id)
        return call is not None and any(item.start <= call <= item.end for item in applying)

    def _nearest_call(self, path: list[str], call_id: str) -> int | None:
        """Where the last message above the end of a path is that makes this call."""
        for index in range(len(path) - 2, -1, -1):
            message = self._messages.get(path[index])
            if message is not None and calls(message, call_id):
                return index
        return None


def _concerned(before: JsonObject, after: JsonObject) -> set[str]:
    """The calls whose pairs an update may change."""
    return lone_results(before) | lone_results(after) | (calls_of(before) ^ calls_of(after))


def _changing() -> Overloaded:
    return Overloaded("the history changes faster than it can be read")
