"""What tests of sessions share: an owner that keeps its frames, and messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from storage import Database, open_database

JsonObject = dict[str, Any]


class Owner:
    """Has a database and hears the status frames."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.frames: list[JsonObject] = []

    def broadcast(self, frame: JsonObject) -> None:
        self.frames.append(frame)

    def phases(self) -> list[str]:
        return [frame.get("phase", "error") for frame in self.frames]


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Owner]:
    database = await open_database(folder / "conversation.db")
    try:
        yield Owner(database)
    finally:
        await database.close()


def text(message_id: str, content: str = "hello there", role: str = "user") -> JsonObject:
    return {"id": message_id, "role": role, "parts": [{"type": "text", "text": content}]}


def load_result(message_id: str, key: str, output: Any = "the document", **part: Any) -> JsonObject:
    """An assistant message that holds what ``load_context`` answered."""
    call = {
        "type": "tool-load_context",
        "toolCallId": f"call-{message_id}",
        "input": {"label": "skills", "key": key},
        "output": output,
        "state": "output-available",
        **part,
    }
    return {"id": message_id, "role": "assistant", "parts": [call]}


class Note:
    """A writable block in memory."""

    def __init__(self, content: str | None = None) -> None:
        self.content = content
        self.reads = 0

    async def get(self) -> str | None:
        self.reads += 1
        return self.content

    async def set(self, content: str) -> None:
        self.content = content


class Library:
    """A writable skill provider in memory."""

    def __init__(self, **documents: str) -> None:
        self.documents = documents

    async def get(self) -> str | None:
        return "\n".join(f"- {key}" for key in self.documents) or None

    async def load(self, key: str) -> str | None:
        return self.documents.get(key)

    async def set(self, key: str, content: str, description: str | None = None) -> None:
        self.documents[key] = content
