"""Which skills are loaded: kept in memory, found again in the history after an awakening, unloaded by rewriting it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from actors.session.history import History, Written
from compaction.tool_pairs import input_of, is_call, is_result, tool_name
from storage.records import JsonObject

Skill = tuple[str, str]
"""Label of the block, key of the document."""

LOAD_TOOL = "load_context"
UNLOAD_TOOL = "unload_context"
NOTE = "loaded_skills"


def not_found(key: str) -> str:
    """What the load tool answers for a key that does not exist."""
    return f"Not found: {key}"


def unloaded_marker(key: str) -> str:
    """What takes the place of an unloaded document in the history."""
    return f"[skill unloaded: {key}]"


class LoadedSkills:
    """The loaded skills of one session."""

    def __init__(self, history: History, after_write: Callable[[Written], Awaitable[Any]]) -> None:
        self._history = history
        self._after_write = after_write
        self._loaded: set[Skill] | None = None
        self._lock = asyncio.Lock()

    async def restore(self) -> set[Skill]:
        """What is loaded; found in the history (or in the note of a good night) the first time.

        Callers go on in the order in which they came, also while the first one is reading.
        """
        async with self._lock:
            if self._loaded is None:
                note = await self._history.take_note(NOTE)
                if note is not None:
                    self._loaded = {(label, key) for label, key in json.loads(note)}
                else:
                    self._loaded = loaded_in(await self._history.tool_messages(LOAD_TOOL))
            return self._loaded

    def add(self, skill: Skill) -> None:
        if self._loaded is not None:
            self._loaded.add(skill)

    def reset(self) -> None:
        self._loaded = set()

    def forget_block(self, label: str) -> None:
        """The block is gone; its documents stay in the history."""
        if self._loaded is not None:
            self._loaded = {skill for skill in self._loaded if skill[0] != label}

    async def unload(self, skill: Skill) -> bool:
        """Replace every load result of a loaded skill by a marker, on every branch; whether it was loaded."""
        if skill not in await self.restore():
            return False
        written = await self._history.rewrite(LOAD_TOOL, lambda message: without_skill(message, skill))
        (await self.restore()).discard(skill)
        if written.is_changed:
            await self._after_write(written)
        return True

    async def save(self) -> None:
        """Before a good night: note what the history alone would not tell."""
        if self._loaded is None:
            return
        if self._loaded != loaded_in(await self._history.tool_messages(LOAD_TOOL)):
            await self._history.put_note(NOTE, json.dumps(sorted(self._loaded)))


def loaded_in(messages: Iterable[JsonObject]) -> set[Skill]:
    """The skills whose documents a history holds."""
    loaded: set[Skill] = set()
    for message in messages:
        for tool, skill, output in _finished_calls(message):
            if tool == UNLOAD_TOOL:
                loaded.discard(skill)
            elif holds_document(skill, output):
                loaded.add(skill)
    return loaded


def holds_document(skill: Skill, output: Any) -> bool:
    """Whether the output of a load is a document, not a failure or what unloading left."""
    if not isinstance(output, str):
        return output is not None
    return output not in (not_found(skill[1]), unloaded_marker(skill[1])) and not output.startswith("Error: ")


def without_skill(message: JsonObject, skill: Skill) -> JsonObject | None:
    """The message with a marker in place of each document of the skill; None if it holds none."""
    marker = unloaded_marker(skill[1])
    parts = [
        {**part, "output": marker} if _is_load_of(message, part, skill) else part for part in message.get("parts", [])
    ]
    return {**message, "parts": parts} if parts != message.get("parts") else None


def _is_load_of(message: JsonObject, part: Any, skill: Skill) -> bool:
    call = _finished_call(message, part)
    return call is not None and call[:2] == (LOAD_TOOL, skill) and holds_document(skill, call[2])


def _finished_calls(message: JsonObject) -> Iterator[tuple[str, Skill, Any]]:
    for part in message.get("parts", []):
        call = _finished_call(message, part)
        if call is not None:
            yield call


def _finished_call(message: JsonObject, part: Any) -> tuple[str, Skill, Any] | None:
    if not (is_call(message, part) and is_result(message, part)) or part.get("state") != "output-available":
        return None
    tool, arguments = tool_name(part), input_of(part)
    if tool not in (LOAD_TOOL, UNLOAD_TOOL) or not isinstance(arguments, dict):
        return None
    label, key = arguments.get("label"), arguments.get("key")
    if not (isinstance(label, str) and label and isinstance(key, str) and key):
        return None
    return tool, (label, key), part.get("output")
